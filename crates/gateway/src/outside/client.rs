//! One HTTP request to somebody outside, bounded in every way: time, size of the answer, no redirect, no proxy.
//!
//! It runs on a thread of its own, because the client blocks; a runtime that ends does not wait for it, as it would for one of its own
//! blocking tasks. The thread ends by the request's time at the latest, and how many there are at once is the caller's to bound.
//!
//! Invariant: whoever asks is told what is certain: an answer, that nothing was sent, or that nobody can say.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, Request, header};
use tokio::sync::oneshot;

use super::urls::plain;

/// Largest head of an answer in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// What is sent.
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// From the name's look-up to the answer's last byte.
    pub(crate) timeout: Duration,
    /// Bytes of the answer's body that are read; what is more is left.
    pub(crate) answer_bytes_max: usize,
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    /// An answer, and as much of its body as was read.
    Answer { status: u16, body: Vec<u8> },
    /// It did not get as far as the request: why.
    NotSent(&'static str),
    /// It may have arrived: why nothing is known.
    Lost(&'static str),
}

/// Sends and waits for the answer.
pub(crate) async fn send(outgoing: Outgoing) -> Heard {
    let (tell, told) = oneshot::channel();
    let spawned = std::thread::Builder::new().name("outside".to_owned()).spawn(move || drop(tell.send(exchange(&outgoing))));
    match spawned {
        Ok(_) => told.await.unwrap_or(Heard::Lost("the sending thread ended")),
        Err(_) => Heard::NotSent("no thread could be started"),
    }
}

fn exchange(outgoing: &Outgoing) -> Heard {
    let Ok(uri) = plain(&outgoing.url) else { return Heard::NotSent("the URL cannot be sent to") };
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(outgoing.timeout))
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .proxy(None)
        .max_response_header_size(HEAD_BYTES_MAX)
        .max_idle_connections(0)
        .user_agent(concat!("kvit/", env!("CARGO_PKG_VERSION")))
        .build();
    let mut request = Request::builder().method(outgoing.method.clone()).uri(uri).header(header::CONTENT_TYPE, "application/json");
    for (name, value) in &outgoing.headers {
        let Ok(value) = HeaderValue::from_str(value) else { return Heard::NotSent("a header cannot be sent") };
        request = request.header(HeaderName::from_static(name), value);
    }
    let Ok(request) = request.body(outgoing.body.clone()) else { return Heard::NotSent("the request cannot be sent") };
    match ureq::Agent::from(config).run(request) {
        Ok(mut response) => {
            let status = response.status().as_u16();
            let mut body = Vec::new();
            // A body that breaks off is no other answer.
            let mut reader = std::io::Read::take(response.body_mut().as_reader(), outgoing.answer_bytes_max as u64);
            let _ = std::io::Read::read_to_end(&mut reader, &mut body);
            Heard::Answer { status, body }
        }
        Err(why) => unheard(&why),
    }
}

/// What an error leaves open. Only what fails before a connection stands is certain not to have arrived.
fn unheard(why: &ureq::Error) -> Heard {
    use ureq::{Error, Timeout};
    match why {
        Error::HostNotFound => Heard::NotSent("no host of that name"),
        Error::ConnectionFailed => Heard::NotSent("no connection"),
        Error::Timeout(Timeout::Resolve | Timeout::Connect) => Heard::NotSent("no connection in time"),
        Error::Tls(_) | Error::Rustls(_) => Heard::NotSent("no secure connection"),
        Error::Io(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => Heard::NotSent("connection refused"),
        Error::Timeout(_) => Heard::Lost("no answer in time"),
        _ => Heard::Lost("the connection broke off"),
    }
}
