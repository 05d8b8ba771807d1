//! Where a tap answers questions: plain HTTP/1.1, JSON, nothing but GET.
//!
//! Invariant: a question changes nothing, and no number of them delays what passes: they have a thread of their own, and a limit.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::book::{Book, Which};

/// Most connections of who asks.
const ASKERS_MAX: usize = 64;
/// How long one may take to ask.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause when no connection can be taken.
const PAUSE: Duration = Duration::from_millis(20);

pub async fn serve(listener: TcpListener, book: Arc<Book>) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(ASKERS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return Ok(()) };
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // A clock that is asked for over a socket that gathers bytes first is of no use.
        socket.set_nodelay(true).ok();
        let book = Arc::clone(&book);
        tokio::spawn(async move {
            let answer = hyper::service::service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(&request, &book))));
            let mut server = hyper::server::conn::http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(PATIENCE).half_close(true);
            // Who breaks off a question has none.
            server.serve_connection(TokioIo::new(socket), answer).await.ok();
            drop(permit);
        });
    }
}

fn answer(request: &Request<Incoming>, book: &Book) -> Response<Full<Bytes>> {
    // First of all, so that half of the way there and back is as near to it as can be.
    let now_ns = book.now_ns();
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/clock") => (StatusCode::OK, json!({ "name": book.options.name, "now_ns": now_ns })),
        (&Method::GET, "/exchanges") => match which(request.uri().query().unwrap_or_default()) {
            Ok(which) => (StatusCode::OK, serde_json::to_value(book.page(&which)).unwrap_or_default()),
            Err(why) => (StatusCode::BAD_REQUEST, error(&why)),
        },
        (&Method::GET, path) => (StatusCode::NOT_FOUND, error(&format!("there is no `{path}`: ask for /exchanges or /clock"))),
        (method, _) => (StatusCode::METHOD_NOT_ALLOWED, error(&format!("{method} is not for a tap: ask with GET"))),
    };
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

fn error(why: &str) -> Value {
    json!({ "error": { "message": why } })
}

fn which(query: &str) -> Result<Which, String> {
    let wrong = || format!("`{query}` is neither id=ID nor after=NUMBER");
    match query.split_once('=').ok_or_else(wrong)? {
        ("id", id) => unescape(id).map(Which::Id).ok_or_else(wrong),
        ("after", number) => number.parse().map(Which::After).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

/// Takes `%41` back to `A`.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push(if byte == b'%' { u8::try_from(digit()? * 16 + digit()?).ok()? } else { byte });
    }
    String::from_utf8(bytes).ok()
}

/// The other way: all but what stands for itself in every URL.
pub fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_asked_for_whatever_it_is_made_of() {
        for id in ["a-1", "ä b&c=d%+/?#\"", ""] {
            assert_eq!(which(&format!("id={}", escape(id))), Ok(Which::Id(id.to_owned())));
        }
        assert_eq!(which("after=7"), Ok(Which::After(7)));
        for bad in ["", "id", "id=%4", "id=%zz", "id=%ff", "after=x", "after=-1", "what=1"] {
            assert!(which(bad).is_err(), "{bad}");
        }
    }
}
