//! One request to one upstream, and its answer: pooled HTTP/1.1 connections, each driven by the task that reads from it.
//!
//! Nobody but the reader of an answer touches its connection, so a stream costs one task, and its bytes are handed on as the slices of the
//! read buffer that they came in.
//!
//! Invariant: [`CallError::NotSent`] says that not one byte of the request was taken by anybody, so it may be sent elsewhere; after
//! anything else nobody knows. An answer that is dropped before its end closes its connection there and then.
// contract: C-28

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gateway::Alarm;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::base::Base;
use super::config::{ConfigError, UpstreamConfig};
use super::conn::{Conn, in_body};
use super::connect::Connector;
use super::io::Meter;
use super::pool::Pool;

pub use super::errors::{CallError, Lost, NotSent};

/// Headers of an answer that say something to the caller. Names that end in `-` are beginnings.
/// `metadata` is vLLM's, and says where in an answer of bytes which embedding stands.
const PASSED_ON: [&str; 7] =
    ["retry-after", "retry-after-ms", "x-should-retry", "x-ratelimit-", "openai-", "anthropic-ratelimit-", "metadata"];
/// What belongs to one connection, or is this client's own to say.
const OURS: [HeaderName; 12] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::EXPECT,
    header::ACCEPT_ENCODING,
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
];

/// Limits of one request that are not the upstream's usual ones.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the request's first byte to the answer's head.
    pub head_timeout: Duration,
    /// Longest time without a byte of the body.
    pub idle_timeout: Duration,
    /// Longest body.
    pub answer_bytes_max: u64,
}

struct Shared {
    connector: Connector,
    pool: Arc<Pool>,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
    base: Base,
    head_bytes_max: usize,
    limits: Limits,
}

/// Whether a byte of a request was taken on any connection.
#[derive(Default, Debug)]
pub struct Sent(Mutex<Option<(Arc<Meter>, u64)>>);

impl Sent {
    /// It is sent on this connection now: nothing of it was taken on any before.
    fn on(&self, meter: &Arc<Meter>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((meter.clone(), meter.taken()));
    }

    /// Whether one was. While that is not so, nobody can have got anything of it.
    pub fn any(&self) -> bool {
        self.taken() > 0
    }

    /// Bytes of it that were taken, its head among them.
    pub fn taken(&self) -> u64 {
        let on = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        on.as_ref().map_or(0, |(meter, before)| meter.taken().saturating_sub(*before))
    }
}

/// The client of one upstream. A clone is the same client.
#[derive(Clone)]
pub struct Client(Arc<Shared>);

impl Client {
    /// For the upstream of `config`. Connects to nobody yet.
    ///
    /// # Errors
    /// [`ConfigError`]: the key, the host or the file of authorities cannot be used.
    pub fn new(config: &UpstreamConfig) -> Result<Client, ConfigError> {
        let wrong = |what: &'static str, why: String| ConfigError { upstream: config.url.to_string(), what, why };
        let authorization = match &config.api_key {
            None => None,
            Some(key) => {
                let value = HeaderValue::from_str(&format!("Bearer {}", key.reveal()));
                let mut value = value.map_err(|_| wrong("api_key", "has a character that a header cannot have".to_owned()))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let connector = Connector::new(&config.url, config.ca_file.as_deref(), config.connect_timeout);
        Ok(Client(Arc::new(Shared {
            connector: connector.map_err(|why| wrong("TLS", why))?,
            pool: Pool::new(config.idle_connections_max, config.idle_keep),
            host: HeaderValue::from_str(&config.url.authority()).map_err(|e| wrong("url", e.to_string()))?,
            authorization,
            base: config.url.clone(),
            head_bytes_max: config.head_bytes_max,
            limits: Limits {
                head_timeout: config.head_timeout,
                idle_timeout: config.idle_timeout,
                answer_bytes_max: config.answer_bytes_max,
            },
        })))
    }

    /// Sends JSON. Returns when the head of the answer is there, whatever its status.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn post(&self, path: &str, headers: HeaderMap, body: Bytes) -> Result<Answer, CallError> {
        self.post_watched(path, headers, body, &Sent::default()).await
    }

    /// The same for whoever may give it up at any moment, and then asks `sent` whether anything was sent.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn post_watched(&self, path: &str, headers: HeaderMap, body: Bytes, sent: &Sent) -> Result<Answer, CallError> {
        let request = self.request(Method::POST, path, headers, body)?;
        self.send(request, self.0.limits, sent).await
    }

    /// Asks for something that changes nothing.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn get(&self, path: &str, limits: Limits) -> Result<Answer, CallError> {
        self.call(Method::GET, path, HeaderMap::new(), Bytes::new(), limits).await
    }

    /// Any request, with limits of its own.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(&self, method: Method, path: &str, headers: HeaderMap, body: Bytes, limits: Limits) -> Result<Answer, CallError> {
        let request = self.request(method, path, headers, body)?;
        self.send(request, limits, &Sent::default()).await
    }

    async fn send(&self, request: Request<Full<Bytes>>, limits: Limits, sent: &Sent) -> Result<Answer, CallError> {
        while let Some(conn) = self.0.pool.take() {
            match self.on(conn, request.clone(), limits, sent).await {
                // It had been closed meanwhile: the next one, and in the end a new one.
                Err(CallError::NotSent(NotSent::Closed)) => {}
                other => return other,
            }
        }
        let (io, meter) = self.0.connector.connect().await.map_err(CallError::NotSent)?;
        let conn = Conn::new(io, meter, self.0.head_bytes_max).await.map_err(CallError::NotSent)?;
        self.on(conn, request, limits, sent).await
    }

    /// Connections that are open now, waiting ones and those that are being opened included.
    pub fn open(&self) -> usize {
        self.0.connector.open().load(Ordering::Acquire)
    }

    /// Those of them that wait for a next request.
    pub fn idle(&self) -> usize {
        self.0.pool.len()
    }

    /// Where the upstream is.
    pub fn base(&self) -> &Base {
        &self.0.base
    }

    fn request(&self, method: Method, path: &str, mut headers: HeaderMap, body: Bytes) -> Result<Request<Full<Bytes>>, CallError> {
        for name in OURS {
            headers.remove(name);
        }
        headers.insert(header::HOST, self.0.host.clone());
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if method == Method::POST {
            headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        }
        if let Some(key) = &self.0.authorization {
            headers.insert(header::AUTHORIZATION, key.clone());
        }
        let request = Request::builder().method(method).uri(self.0.base.target(path)).body(Full::new(body));
        let mut request = request.map_err(|e| CallError::NotSent(NotSent::Request(e.to_string())))?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    async fn on(&self, mut conn: Conn, request: Request<Full<Bytes>>, limits: Limits, sent: &Sent) -> Result<Answer, CallError> {
        let before = conn.taken();
        sent.on(conn.meter());
        let response = match tokio::time::timeout(limits.head_timeout, conn.ask(request)).await {
            Ok(response) => response?,
            Err(_) if conn.taken() == before => return Err(CallError::NotSent(NotSent::SendTimeout)),
            Err(_) => return Err(CallError::Lost(Lost::HeadTimeout)),
        };
        Answer::new(response, conn, self.0.pool.clone(), limits)
    }
}

/// An answer whose head has come. Dropped before its end, it closes its connection.
pub struct Answer {
    /// Its status, whatever it is.
    pub status: u16,
    /// What its body is said to be.
    pub content_type: Option<String>,
    /// Those of its headers that say something to the caller.
    pub headers: HeaderMap,
    /// LiteLLM says of itself that it is there: it puts its own headers on what its models answer.
    pub is_litellm: bool,
    body: Incoming,
    /// `None` from the body's end on: then it is in the pool, or closed.
    conn: Option<Conn>,
    pool: Arc<Pool>,
    limits: Limits,
    bytes: u64,
    moved: Instant,
    empty: Instant,
    idle: Alarm,
    failed: Option<Lost>,
    once: bool,
}

impl Answer {
    fn new(response: Response<Incoming>, conn: Conn, pool: Arc<Pool>, limits: Limits) -> Result<Answer, CallError> {
        let (head, body) = response.into_parts();
        let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity") || value.is_empty();
        if head.headers.get(header::CONTENT_ENCODING).is_some_and(|value| !plain(value)) {
            return Err(CallError::Lost(Lost::Encoded));
        }
        let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let passed_on = |name: &str| PASSED_ON.iter().any(|p| if p.ends_with('-') { name.starts_with(p) } else { name == *p });
        let mut headers = HeaderMap::new();
        for (name, value) in head.headers.iter().filter(|(name, _)| passed_on(name.as_str())) {
            headers.append(name.clone(), value.clone());
        }
        let is_litellm = head.headers.keys().any(|name| name.as_str().starts_with("x-litellm-"));
        let moved = Instant::now();
        let idle = Alarm::at(moved + limits.idle_timeout);
        let status = head.status.as_u16();
        Ok(Answer {
            status,
            content_type,
            headers,
            is_litellm,
            body,
            conn: Some(conn),
            pool,
            limits,
            bytes: 0,
            moved,
            empty: moved,
            idle,
            failed: None,
            once: false,
        })
    }

    /// Behind this answer the connection is closed, whatever the upstream says of it.
    pub fn close_behind(&mut self) {
        self.once = true;
    }

    /// Whether it is a stream of server-sent events.
    pub fn is_event_stream(&self) -> bool {
        let kind = self.content_type.as_deref().and_then(|t| t.split(';').next()).unwrap_or_default();
        kind.trim().eq_ignore_ascii_case("text/event-stream")
    }

    /// The last moment at which there was nothing to read: what was read since then came after it.
    pub fn empty_at(&self) -> Instant {
        self.empty
    }

    /// The next piece of the body, as it came; `None` at its end. May be dropped and called again.
    ///
    /// # Errors
    /// [`CallError::Lost`], then and ever after. The connection is closed.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The same for whoever polls.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, CallError>> {
        if let Some(why) = &self.failed {
            return Poll::Ready(Err(CallError::Lost(why.clone())));
        }
        let result = ready!(self.poll_body(cx));
        Poll::Ready(result.map_err(|why| {
            self.conn = None;
            self.failed = Some(why.clone());
            CallError::Lost(why)
        }))
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Lost>> {
        loop {
            let Some(conn) = &mut self.conn else { return Poll::Ready(Ok(None)) };
            // What is read now is in the body's hands at once.
            let looked = Instant::now();
            let over = conn.drive(cx);
            let frame = Pin::new(&mut self.body).poll_frame(cx);
            if over && frame.is_pending() {
                return Poll::Ready(Err(Lost::BrokeOff));
            }
            match frame {
                Poll::Ready(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    self.bytes += data.len() as u64;
                    if self.bytes > self.limits.answer_bytes_max {
                        return Poll::Ready(Err(Lost::TooLong(self.limits.answer_bytes_max)));
                    }
                    self.moved = looked;
                    return Poll::Ready(Ok(Some(data)));
                }
                Poll::Ready(Some(Err(e))) => return Poll::Ready(Err(in_body(&e))),
                Poll::Ready(None) => {
                    if let Some(conn) = self.conn.take().filter(|_| !self.once) {
                        self.pool.put(conn);
                    }
                    return Poll::Ready(Ok(None));
                }
                Poll::Pending => {
                    self.empty = looked;
                    return self.poll_idle(cx, looked);
                }
            }
        }
    }

    /// The timer is set anew only when it has run out, and asked only when that may be.
    fn poll_idle(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Result<Option<Bytes>, Lost>> {
        let due = self.moved + self.limits.idle_timeout;
        ready!(self.idle.poll(cx, now, due));
        Poll::Ready(Err(Lost::IdleTimeout(self.limits.idle_timeout)))
    }

    /// All that is left of the body.
    ///
    /// # Errors
    /// [`CallError::Lost`].
    pub async fn whole(mut self) -> Result<Bytes, CallError> {
        let Some(first) = self.next().await? else { return Ok(Bytes::new()) };
        let Some(second) = self.next().await? else { return Ok(first) };
        let mut all = BytesMut::from(&first[..]);
        all.extend_from_slice(&second);
        while let Some(more) = self.next().await? {
            all.extend_from_slice(&more);
        }
        Ok(all.freeze())
    }
}
