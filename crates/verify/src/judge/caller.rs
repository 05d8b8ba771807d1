//! A caller as a judge needs it: it stamps what comes, and leaves in every way that there is, at a moment that it is told.
//!
//! The connection is hyper's, and a second handle on its socket is ours: so a close can be a FIN or an RST, one side can be closed alone, and a
//! caller can stop reading without anybody behind it going on.
//!
//! Invariant: nothing is read that was not asked for, beyond one buffer; what was read is stamped when it was read.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::cell::Trigger;
use super::events::{Event, Splitter};

/// Longest answer of a request that is no stream, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Where a stack is asked, and with what.
#[derive(Clone, Debug)]
pub struct Target {
    /// `host:port`.
    pub authority: String,
    /// What stands before `/v1`, or nothing.
    pub base: String,
    /// Sent with every request.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// How long it may take to connect, and to answer a question that is no run.
    pub patience: Duration,
}

impl Target {
    /// `http://HOST:PORT[/BASE][/v1]`.
    ///
    /// # Errors
    /// It is none, or `https`.
    pub fn parse(url: &str) -> Result<Target, String> {
        let wrong = || format!("`{url}` is no URL of a stack; it looks like http://127.0.0.1:8000");
        let uri: http::Uri = url.trim_end_matches('/').parse().map_err(|_| wrong())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(format!("`{url}`: TLS hides how a connection is closed; put the judge behind whatever ends it")),
            _ => return Err(wrong()),
        }
        let authority = uri.authority().ok_or_else(wrong)?;
        if authority.as_str().contains('@') {
            return Err("a URL with a user or a password in it would show them; use --key-file".to_owned());
        }
        let base = uri.path().trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let authority = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80));
        Ok(Target { authority, base, headers: Vec::new(), patience: Duration::from_secs(10) })
    }

    pub(super) async fn connect(&self) -> std::io::Result<TcpStream> {
        let late = |_| std::io::Error::new(std::io::ErrorKind::TimedOut, format!("no connection within {:?}", self.patience));
        let socket = tokio::time::timeout(self.patience, TcpStream::connect(&self.authority)).await.map_err(late)??;
        socket.set_nodelay(true)?;
        Ok(socket)
    }

    /// Where it is, once it was looked up.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn address(&self) -> std::io::Result<SocketAddr> {
        self.connect().await?.peer_addr()
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

    /// A question that is no run, on a connection of its own: the status and the text.
    ///
    /// # Errors
    /// [`CallerError`].
    pub async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<(u16, String), CallerError> {
        let request = self.request(method, path, None, body)?;
        let all = async {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(self.connect().await?)).await?;
            let driver = Driver(tokio::spawn(async move { drop(connection.await) }));
            let answer = sender.send_request(request).await?;
            let status = answer.status().as_u16();
            let text = whole(answer.into_body()).await?;
            drop(driver);
            Ok((status, String::from_utf8_lossy(&text).into_owned()))
        };
        tokio::time::timeout(self.patience, all).await.unwrap_or(Err(CallerError::Late))
    }
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

/// How a run is asked for.
#[derive(Clone, Debug)]
pub struct Ask {
    /// `/v1/chat/completions` or another.
    pub path: &'static str,
    /// As JSON.
    pub body: Value,
    /// Sent as `X-Request-Id`.
    pub id: String,
    /// Over HTTP/2.
    pub http2: bool,
}

/// How an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// As it should.
    Complete,
    /// With an error of the stack's.
    Error,
    /// The connection was closed, or broke.
    Broken,
}

/// What was read of an answer so far.
#[derive(Clone, Debug, Default)]
pub struct Read {
    /// When the head came, and its status.
    pub head: Option<(Instant, u16)>,
    /// When each token came, as far as they can be counted.
    pub tokens: Vec<Instant>,
    /// What was said, one text an answer.
    pub texts: Vec<String>,
    /// What the stack says of the tokens.
    pub usage: Option<(u64, u64)>,
    /// When it ended, and how.
    pub end: Option<(Instant, End)>,
}

/// One request and what comes back.
pub struct Caller {
    socket: socket2::Socket,
    _driver: Driver,
    state: State,
    splitter: Splitter,
    /// When the request was sent.
    pub sent: Instant,
    /// What was read.
    pub read: Read,
}

enum State {
    Asked(JoinHandle<Result<http::Response<Incoming>, hyper::Error>>),
    Stream(Incoming),
    Whole(Incoming, Vec<u8>),
    Over,
}

impl Caller {
    /// Sends a request on a connection of its own.
    ///
    /// # Errors
    /// [`CallerError`]: it could not be sent.
    pub async fn ask(target: &Target, ask: Ask) -> Result<Caller, CallerError> {
        let request = target.request(Method::POST, ask.path, Some(&ask.id), ask.body.to_string().into())?;
        let socket = target.connect().await?;
        let handle = socket2::SockRef::from(&socket).try_clone()?;
        let (asked, driver);
        if ask.http2 {
            let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await?;
            driver = Driver(tokio::spawn(async move { drop(connection.await) }));
            asked = tokio::spawn(async move { sender.send_request(request).await });
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
            driver = Driver(tokio::spawn(async move { drop(connection.await) }));
            asked = tokio::spawn(async move { sender.send_request(request).await });
        }
        let (sent, read) = (Instant::now(), Read::default());
        Ok(Caller { socket: handle, _driver: driver, state: State::Asked(asked), splitter: Splitter::default(), sent, read })
    }

    /// Whether its answer has ended.
    pub fn is_over(&self) -> bool {
        self.read.end.is_some()
    }

    /// Reads the next piece of it, if it has not ended.
    pub async fn next(&mut self) {
        match &mut self.state {
            State::Asked(answer) => match answer.await {
                Ok(Ok(answer)) => {
                    self.read.head = Some((Instant::now(), answer.status().as_u16()));
                    let kind = answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
                    let is_stream = kind.starts_with("text/event-stream");
                    self.state = if is_stream { State::Stream(answer.into_body()) } else { State::Whole(answer.into_body(), Vec::new()) };
                }
                _ => self.ends(End::Broken),
            },
            State::Stream(body) => match body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        let mut events = Vec::new();
                        self.splitter.push(&data, &mut events);
                        events.iter().for_each(|event| self.take(event));
                    }
                }
                Some(Err(_)) => self.ends(End::Broken),
                // A stream that ends without its last word broke off.
                None => self.ends(End::Broken),
            },
            State::Whole(body, all) => match body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        all.extend_from_slice(&data);
                    }
                    if all.len() > ANSWER_BYTES_MAX {
                        self.ends(End::Broken);
                    }
                }
                Some(Err(_)) => self.ends(End::Broken),
                None => {
                    let all = std::mem::take(all);
                    self.take_whole(&all);
                }
            },
            State::Over => {}
        }
    }

    fn ends(&mut self, how: End) {
        self.read.end.get_or_insert((Instant::now(), how));
        self.state = State::Over;
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Done => self.ends(End::Complete),
            Event::Said { index, text, counts } => {
                if *counts {
                    self.read.tokens.push(Instant::now());
                }
                self.text(*index).push_str(text);
            }
            Event::Usage { prompt, generated } => self.read.usage = Some((*prompt, *generated)),
            Event::Error => self.ends(End::Error),
        }
    }

    fn text(&mut self, index: usize) -> &mut String {
        let index = index.min(super::events::CHOICES_MAX - 1);
        if self.read.texts.len() <= index {
            self.read.texts.resize(index + 1, String::new());
        }
        &mut self.read.texts[index]
    }

    fn take_whole(&mut self, all: &[u8]) {
        let status = self.read.head.map_or(0, |(_, status)| status);
        let answer: Option<Value> = serde_json::from_slice(all).ok();
        let Some(answer) = answer.filter(|answer| (200..300).contains(&status) && answer.get("error").is_none()) else {
            return self.ends(End::Error);
        };
        for choice in answer["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
            let said = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
            self.text(index).push_str(said);
        }
        let count = |name: &str| answer["usage"][name].as_u64();
        self.read.usage = count("prompt_tokens").zip(count("completion_tokens"));
        let now = Instant::now();
        let generated = self.read.usage.map_or(0, |(_, generated)| generated);
        self.read.tokens.extend((0..generated).map(|_| now));
        self.ends(End::Complete);
    }

    /// Reads until the head is there. Whether it is.
    pub async fn head(&mut self) -> bool {
        while self.read.head.is_none() && !self.is_over() {
            self.next().await;
        }
        self.read.head.is_some()
    }

    /// Reads until so many tokens are there. Whether they are.
    pub async fn tokens(&mut self, count: usize) -> bool {
        while self.read.tokens.len() < count && !self.is_over() {
            self.next().await;
        }
        self.read.tokens.len() >= count
    }

    /// Reads to the end.
    pub async fn rest(&mut self) -> End {
        while !self.is_over() {
            self.next().await;
        }
        self.read.end.map_or(End::Broken, |(_, how)| how)
    }

    /// Leaves in a way that ends the connection, or a part of it. What the other side sees of it is what that way is called.
    ///
    /// # Errors
    /// The kernel's.
    pub fn leave(mut self, how: Trigger) -> std::io::Result<Left> {
        match how {
            // Closed with unread bytes in it, a socket is reset: what has come is thrown away first, so that this one is a FIN.
            Trigger::Close | Trigger::StreamReset => {
                self.state = State::Over;
                if how == Trigger::Close {
                    self.socket.shutdown(std::net::Shutdown::Write).or_else(gone)?;
                }
                Ok(Left { at: Instant::now(), read: std::mem::take(&mut self.read), kept: None })
            }
            Trigger::Reset => {
                self.socket.set_linger(Some(Duration::ZERO))?;
                let read = std::mem::take(&mut self.read);
                let at = Instant::now();
                drop(self);
                Ok(Left { at, read, kept: None })
            }
            Trigger::HalfClose => {
                self.socket.shutdown(std::net::Shutdown::Write).or_else(gone)?;
                Ok(Left { at: Instant::now(), read: self.read.clone(), kept: Some(self) })
            }
            // Nothing is done to the connection: whoever reads no more, or waits for a deadline, keeps it.
            _ => Ok(Left { at: Instant::now(), read: self.read.clone(), kept: Some(self) }),
        }
    }
}

/// A peer that is gone has closed already.
fn gone(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotConnected { Ok(()) } else { Err(error) }
}

/// A caller that has left.
pub struct Left {
    /// When.
    pub at: Instant,
    /// What it had read.
    pub read: Read,
    /// Its connection, where its way of leaving keeps it.
    pub kept: Option<Caller>,
}
