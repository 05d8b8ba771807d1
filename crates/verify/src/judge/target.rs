//! Where a stack is asked, and what is asked of it that is no run.
//!
//! Invariant: a key is sent and never shown.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use super::wire::{Secure, Speaks, Wire};

/// Longest answer of a request that is no stream, in bytes.
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 20;

/// What a narrow connection's receiving side holds, in bytes; the kernel makes twice as much of it.
const NARROW_BYTES: usize = 4096;
/// Bytes of its segments.
const NARROW_SEGMENT_BYTES: u32 = 536;

/// Where a stack is asked, and with what.
#[derive(Clone, Debug)]
pub struct Target {
    /// `host:port`.
    pub authority: String,
    /// What stands before `/v1`, or nothing.
    pub base: String,
    /// Sent with every request.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// How TLS is spoken, where it is.
    pub(super) secure: Option<Box<Secure>>,
    /// How long it may take to connect, and to answer a question that is no run.
    pub patience: Duration,
}

impl Target {
    /// `http://HOST:PORT[/BASE][/v1]`, or `https`.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(url: &str) -> Result<Target, String> {
        let wrong = || format!("`{url}` is no URL of a stack; it looks like http://127.0.0.1:8000");
        let uri: http::Uri = url.trim_end_matches('/').parse().map_err(|_| wrong())?;
        let is_secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        if authority.as_str().contains('@') {
            return Err("a URL with a user or a password in it would show them; use --key-file".to_owned());
        }
        let base = uri.path().trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let secure = if is_secure { Some(Box::new(Secure::new(authority.host())?)) } else { None };
        let authority = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(if is_secure { 443 } else { 80 }));
        Ok(Target { authority, base, headers: Vec::new(), secure, patience: Duration::from_secs(10) })
    }

    /// Where it is, as a URL.
    pub fn url(&self) -> String {
        format!("{}://{}{}", self.scheme(), self.authority, self.base)
    }

    fn scheme(&self) -> &'static str {
        if self.is_secure() { "https" } else { "http" }
    }

    /// Whether TLS is spoken there.
    pub fn is_secure(&self) -> bool {
        self.secure.is_some()
    }

    /// Trusts the authorities of this file, too, where TLS is spoken.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn trust(&mut self, file: &Path) -> Result<(), String> {
        self.secure.as_mut().map_or(Ok(()), |secure| secure.trust(file))
    }

    /// Sends this key with every request. It is shown nowhere.
    ///
    /// # Errors
    /// It is none.
    pub fn key(&mut self, key: &str) -> Result<(), String> {
        let wrong = |_| "has not one line of visible ASCII characters".to_owned();
        let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(wrong)?;
        value.set_sensitive(true);
        self.headers.push((header::AUTHORIZATION, value));
        Ok(())
    }

    /// Its port, if it is on this machine.
    pub async fn port_here(&self) -> Option<u16> {
        let at = self.address().await.ok()?;
        at.ip().is_loopback().then_some(at.port())
    }

    pub(super) async fn connect(&self, speaks: Speaks) -> std::io::Result<Wire> {
        self.connect_by(speaks, false).await
    }

    /// A connection; through a narrow one little passes that nobody reads.
    pub(super) async fn connect_by(&self, speaks: Speaks, narrow: bool) -> std::io::Result<Wire> {
        let late = |_| std::io::Error::new(std::io::ErrorKind::TimedOut, format!("no connection within {:?}", self.patience));
        let all = async {
            let socket = if narrow { narrow_socket(&self.authority).await? } else { TcpStream::connect(&self.authority).await? };
            socket.set_nodelay(true)?;
            match &self.secure {
                None => Ok(Wire::Plain(socket)),
                Some(secure) => secure.over(socket, speaks).await,
            }
        };
        tokio::time::timeout(self.patience, all).await.map_err(late)?
    }

    /// Where it is, once it was looked up.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn address(&self) -> std::io::Result<SocketAddr> {
        self.connect(Speaks::Http1).await?.socket().peer_addr()
    }

    pub(super) fn request(&self, method: Method, path: &str, id: Option<&str>, body: Bytes) -> Result<Request<Full<Bytes>>, CallerError> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base)).header(header::HOST, &self.authority);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(id) = id {
            request = request.header("x-request-id", id);
        }
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        request.body(Full::new(body)).map_err(|e| CallerError::Request(e.to_string()))
    }

    /// The same for HTTP/2, which names the authority itself.
    pub(super) fn over_http2(&self, request: Request<Full<Bytes>>) -> Result<Request<Full<Bytes>>, CallerError> {
        let (mut head, body) = request.into_parts();
        let wrong = |e: http::Error| CallerError::Request(e.to_string());
        let path = head.uri.to_string();
        head.uri =
            http::Uri::builder().scheme(self.scheme()).authority(self.authority.as_str()).path_and_query(path).build().map_err(wrong)?;
        head.headers.remove(header::HOST);
        Ok(Request::from_parts(head, body))
    }

    /// A gRPC call with one message.
    pub(super) fn call(
        &self,
        path: &str,
        id: &str,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<Request<Full<Bytes>>, CallerError> {
        let mut request = self.over_http2(self.request(Method::POST, path, Some(id), message)?)?;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        if let Some(deadline) = deadline {
            // At most eight digits, as the protocol has it.
            let text = format!("{}m", deadline.as_millis().clamp(1, 99_999_999));
            headers.insert("grpc-timeout", HeaderValue::from_str(&text).map_err(|e| CallerError::Request(e.to_string()))?);
        }
        Ok(request)
    }

    /// A question that is no run, on a connection of its own: the status and the text.
    ///
    /// # Errors
    /// [`CallerError`].
    pub async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<(u16, String), CallerError> {
        self.ask_all(method, path, body).await.map(|(status, _, text)| (status, text))
    }

    /// The same with the `Server` header between the two.
    pub(super) async fn ask_all(&self, method: Method, path: &str, body: Bytes) -> Result<(u16, Option<String>, String), CallerError> {
        let request = self.request(method, path, None, body)?;
        let all = async {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(self.connect(Speaks::Http1).await?)).await?;
            let driver = Driver(tokio::spawn(async move { drop(connection.await) }));
            let answer = sender.send_request(request).await?;
            let status = answer.status().as_u16();
            let server = answer.headers().get(header::SERVER).and_then(|value| value.to_str().ok()).map(str::to_owned);
            let text = whole(answer.into_body()).await?;
            drop(driver);
            Ok((status, server, String::from_utf8_lossy(&text).into_owned()))
        };
        tokio::time::timeout(self.patience, all).await.unwrap_or(Err(CallerError::Late))
    }
}

/// A connection whose receiving side takes little, and whose segments are small: the other side's buffer grows with what it may have under way,
/// and with their size, which over loopback is 64 KiB else.
async fn narrow_socket(authority: &str) -> std::io::Result<TcpStream> {
    let mut failed = std::io::Error::new(std::io::ErrorKind::NotFound, format!("{authority} has no address"));
    for address in tokio::net::lookup_host(authority).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Both are told to the other side when the connection is made.
        let handle = socket2::SockRef::from(&socket);
        handle.set_recv_buffer_size(NARROW_BYTES)?;
        handle.set_tcp_mss(NARROW_SEGMENT_BYTES)?;
        match socket.connect(address).await {
            Ok(socket) => return Ok(socket),
            Err(why) => failed = why,
        }
    }
    Err(failed)
}

/// Why a caller got no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallerError {
    /// The request cannot be written.
    #[error("the request cannot be made: {0}")]
    Request(String),
    /// The connection.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// What came is no HTTP, or broke off.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// Too much came.
    #[error("an answer of more than {ANSWER_BYTES_MAX} bytes")]
    Long,
    /// Nothing came in time.
    #[error("no answer in time")]
    Late,
}

pub(super) async fn whole(mut body: Incoming) -> Result<Vec<u8>, CallerError> {
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            all.extend_from_slice(&data);
        }
        if all.len() > ANSWER_BYTES_MAX {
            return Err(CallerError::Long);
        }
    }
    Ok(all)
}

/// The task that drives a connection; it ends with this.
pub(super) struct Driver(JoinHandle<()>);

impl Driver {
    pub(super) fn new(task: JoinHandle<()>) -> Driver {
        Driver(task)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}
