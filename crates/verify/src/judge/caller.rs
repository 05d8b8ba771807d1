//! A caller as a judge needs it: it stamps what comes, and leaves in every way that there is, at a moment that it is told.
//!
//! The connection is hyper's, and a second handle on its socket is ours: so a close can be a FIN or an RST, one side can be closed alone, and a
//! caller can stop reading without anybody behind it going on.
//!
//! Invariant: nothing is read that was not asked for, beyond one buffer; what was read is stamped when it was read.

mod leave;

use std::process::Stdio;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use protocol::runs_v1::generate_event::Event as Message;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdout};
use tokio::task::JoinHandle;

use super::events::{Event, Splitter, error};
use super::grpc::{self, Frames};
use super::target::{ANSWER_BYTES_MAX, Driver};
use super::wire::Speaks;

pub use super::target::{CallerError, Target};
pub use leave::Left;

/// Where a gRPC call says how it ended.
const GRPC_STATUS: &str = "grpc-status";

/// How a run is asked for.
#[derive(Clone, Debug)]
pub struct Ask {
    /// `/v1/chat/completions` or another.
    pub path: &'static str,
    /// As JSON.
    pub body: Value,
    /// Sent as `X-Request-Id`.
    pub id: String,
    /// By what it is asked.
    pub by: By,
}

/// What a request is asked by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum By {
    /// A connection of its own.
    #[default]
    Http1,
    /// The same through buffers of the kernel's that are as small as it lets them be, so that whoever writes soon feels that nobody reads.
    Http1Narrow,
    /// The same with HTTP/2, so that a stream can be reset alone.
    Http2,
    /// `curl`, a process that can be killed.
    Process,
    /// kvit's gRPC front door, with a deadline that the call carries or without.
    Grpc(Option<Duration>),
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
    /// What the stack said of its failure.
    pub error: Option<String>,
}

/// One request and what comes back.
pub struct Caller {
    /// The second handle on its socket; a process has its own.
    socket: Option<socket2::Socket>,
    _driver: Option<Driver>,
    /// Nothing more is asked by it; an HTTP/2 connection ends when nobody can, and a reset stream would be a closed connection.
    _sender: Option<http2::SendRequest<Full<Bytes>>>,
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
    /// The messages of a gRPC call.
    Call(Incoming, Frames),
    /// A process that writes the answer's head and body to a pipe.
    Process(Box<Child>, ChildStdout, Vec<u8>),
    Over,
}

impl Caller {
    /// Sends a request on a connection of its own.
    ///
    /// # Errors
    /// [`CallerError`]: it could not be sent.
    pub async fn ask(target: &Target, ask: Ask) -> Result<Caller, CallerError> {
        if ask.by == By::Process {
            return Caller::process(target, &ask).await;
        }
        let request = match ask.by {
            By::Grpc(deadline) => {
                let message = grpc::request(&ask.body).map_err(CallerError::Request)?;
                target.call(grpc::PATH, &ask.id, message, deadline)?
            }
            By::Http2 => target.over_http2(target.request(Method::POST, ask.path, Some(&ask.id), ask.body.to_string().into())?)?,
            By::Http1 | By::Http1Narrow | By::Process => {
                target.request(Method::POST, ask.path, Some(&ask.id), ask.body.to_string().into())?
            }
        };
        let speaks = if matches!(ask.by, By::Http2 | By::Grpc(_)) { Speaks::Http2 } else { Speaks::Http1 };
        let socket = target.connect_by(speaks, ask.by == By::Http1Narrow).await?;
        let handle = socket2::SockRef::from(socket.socket()).try_clone()?;
        let (asked, driver);
        let mut kept = None;
        if speaks == Speaks::Http2 {
            let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await?;
            driver = Driver::new(tokio::spawn(async move { drop(connection.await) }));
            kept = Some(sender.clone());
            asked = tokio::spawn(async move { sender.send_request(request).await });
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
            driver = Driver::new(tokio::spawn(async move { drop(connection.await) }));
            asked = tokio::spawn(async move { sender.send_request(request).await });
        }
        let (sent, read) = (Instant::now(), Read::default());
        let state = State::Asked(asked);
        Ok(Caller { socket: Some(handle), _driver: Some(driver), _sender: kept, state, splitter: Splitter::default(), sent, read })
    }

    /// Asks by `curl`, which is a process like any caller's.
    async fn process(target: &Target, ask: &Ask) -> Result<Caller, CallerError> {
        let mut command = tokio::process::Command::new("curl");
        command.args(["-sNi", "--http1.1", "--noproxy", "*", "-X", "POST", "--data-binary", "@-"]);
        command.args(["-H", "content-type: application/json", "-H", &format!("x-request-id: {}", ask.id), "-H", "expect:"]);
        for (name, value) in &target.headers {
            command.args(["-H", &format!("{name}: {}", value.to_str().unwrap_or_default())]);
        }
        if let Some(file) = target.secure.as_ref().and_then(|secure| secure.authorities.as_ref()) {
            command.arg("--cacert").arg(file);
        }
        command.arg(format!("{}{}", target.url(), ask.path));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|e| CallerError::Request(format!("curl cannot be started: {e}")))?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(ask.body.to_string().as_bytes()).await?;
        }
        let output = child.stdout.take().ok_or_else(|| CallerError::Request("curl has no output".to_owned()))?;
        let state = State::Process(Box::new(child), output, Vec::new());
        Ok(Caller {
            socket: None,
            _driver: None,
            _sender: None,
            state,
            splitter: Splitter::default(),
            sent: Instant::now(),
            read: Read::default(),
        })
    }

    /// Takes what `curl` wrote: a head, then events or a whole answer.
    fn take_output(&mut self, piece: &[u8]) {
        let mut events = Vec::new();
        if let State::Process(_, _, all) = &mut self.state {
            if self.read.head.is_some() {
                self.splitter.push(piece, &mut events);
                all.extend_from_slice(piece);
            } else {
                all.extend_from_slice(piece);
                let Some(end) = all.windows(4).position(|four| four == b"\r\n\r\n") else { return };
                let status = std::str::from_utf8(&all[..end]).ok().and_then(|head| head.split(' ').nth(1)?.parse().ok());
                self.read.head = Some((Instant::now(), status.unwrap_or(0)));
                let body = all.split_off(end + 4);
                self.splitter.push(&body, &mut events);
                *all = body;
            }
            // Events are told as they come; only an answer that is none has to be kept.
            if !events.is_empty() {
                all.clear();
            }
        }
        events.iter().for_each(|event| self.take(event));
    }

    /// Whether its answer has ended, or is not read any more.
    pub fn is_over(&self) -> bool {
        self.read.end.is_some() || matches!(self.state, State::Over)
    }

    /// Reads the next piece of it, if it has not ended.
    pub async fn next(&mut self) {
        match &mut self.state {
            State::Asked(answer) => match answer.await {
                Ok(Ok(answer)) => {
                    self.read.head = Some((Instant::now(), answer.status().as_u16()));
                    let kind = answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
                    if kind.starts_with("application/grpc") {
                        // A call that was turned away at once has its status here, and nothing behind it.
                        let refused = answer.headers().contains_key(GRPC_STATUS);
                        self.state = State::Call(answer.into_body(), Frames::default());
                        if refused {
                            self.ends(End::Error);
                        }
                        return;
                    }
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
            State::Call(body, frames) => match body.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => match frames.push(&data) {
                        Some(events) => events.into_iter().for_each(|event| self.take_message(event)),
                        None => self.ends(End::Broken),
                    },
                    Err(frame) => {
                        let status = frame.into_trailers().ok().and_then(|trailers| trailers.get(GRPC_STATUS).cloned());
                        let well = status.is_some_and(|status| status == "0");
                        self.ends(if well { End::Complete } else { End::Error });
                    }
                },
                Some(Err(_)) | None => self.ends(End::Broken),
            },
            State::Process(_, output, all) => {
                let mut buffer = vec![0; 16 << 10];
                match output.read(&mut buffer).await {
                    Ok(read @ 1..) if all.len() + read <= ANSWER_BYTES_MAX => self.take_output(&buffer[..read]),
                    _ => {
                        let all = std::mem::take(all);
                        // A stream's own end was its last event.
                        if all.is_empty() { self.ends(End::Broken) } else { self.take_whole(&all) }
                    }
                }
            }
            State::Over => {}
        }
    }

    fn ends(&mut self, how: End) {
        self.read.end.get_or_insert((Instant::now(), how));
        self.state = State::Over;
    }

    fn fails(&mut self, said: String) {
        self.read.error.get_or_insert(said);
        self.ends(End::Error);
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
            Event::Error(said) => self.fails(said.clone()),
        }
    }

    fn take_message(&mut self, event: Message) {
        match event {
            Message::Accepted(_) => {}
            Message::Delta(delta) => {
                let now = Instant::now();
                self.read.tokens.extend(delta.tokens.iter().map(|_| now));
                self.text(delta.sequence as usize).push_str(&delta.text);
            }
            Message::Ended(ended) => self.read.usage = ended.usage.map(|usage| (usage.prompt.into(), usage.generated.into())),
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
        let answer = answer.unwrap_or_default();
        if !(200..300).contains(&status) || !answer.is_object() || answer.get("error").is_some() {
            return self.fails(error(&answer));
        }
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
}
