//! The scripted upstream: an OpenAI-compatible server on one thread, whose streams have an exact pace.
//!
//! Every token is a write of its own, as an engine that streams makes one. Streams whose time has come together take turns, token by token.
//!
//! Invariant: no token is sent before its time, and none is left out: what is late is sent as soon as it can be.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::answer::{Message, Side};
use crate::clock;
use crate::poll::{Poll, Ready};
use crate::script::{self, MODEL, Script};
use crate::sender::Sender;

/// The listener's token; connections have their places.
const LISTENER: u64 = u64::MAX - 1;
/// Most tokens between two looks at the sockets.
const TURNS: usize = 256;
/// Bytes of one read.
const READ: usize = 16 << 10;

/// A stream that is not at its end.
#[derive(Debug)]
struct Stream {
    id: u64,
    script: Script,
    sent: u64,
}

struct Conn {
    socket: TcpStream,
    message: Message,
    body: Vec<u8>,
    sender: Sender,
    /// Room to write is waited for.
    blocked: bool,
    stream: Option<Stream>,
}

struct Upstream {
    poll: Poll,
    listener: TcpListener,
    conns: Vec<Option<Conn>>,
    free: Vec<usize>,
    /// When the next token of which stream is due, on which connection.
    due: BinaryHeap<Reverse<(u64, u64, usize)>>,
    streams: u64,
}

/// Serves until the process is ended.
pub(crate) fn run(port: u16) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    let poll = Poll::new()?;
    poll.add(&listener, LISTENER)?;
    println!("listening on http://{}", listener.local_addr()?);
    let mut upstream = Upstream { poll, listener, conns: Vec::new(), free: Vec::new(), due: BinaryHeap::new(), streams: 0 };
    let mut ready = Vec::new();
    loop {
        let next = upstream.due.peek().map(|Reverse((at, ..))| *at);
        upstream.poll.wait(next, &mut ready)?;
        for one in &ready {
            upstream.look(*one);
        }
        upstream.send_what_is_due();
    }
}

impl Upstream {
    fn look(&mut self, ready: Ready) {
        if ready.token == LISTENER {
            return self.accept();
        }
        let place = usize::try_from(ready.token).unwrap_or(usize::MAX);
        let lives = !ready.read || self.read(place);
        if lives && ready.write {
            self.flush(place);
        } else if !lives {
            self.close(place);
        }
    }

    fn accept(&mut self) {
        while let Ok((socket, _)) = self.listener.accept() {
            let place = self.free.pop().unwrap_or(self.conns.len());
            let set = socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true));
            if set.and_then(|()| self.poll.add(&socket, place as u64)).is_err() {
                self.free.push(place);
                continue;
            }
            let message = Message::new(Side::Requests);
            let conn = Conn { socket, message, body: Vec::new(), sender: Sender::default(), blocked: false, stream: None };
            match self.conns.get_mut(place) {
                Some(free) => *free = Some(conn),
                None => self.conns.push(Some(conn)),
            }
        }
    }

    /// Takes in what has come. Whether the connection goes on.
    fn read(&mut self, place: usize) -> bool {
        let Some(Some(conn)) = self.conns.get_mut(place) else { return true };
        let mut buffer = [0; READ];
        let n = match conn.socket.read(&mut buffer) {
            Ok(0) => return false,
            Ok(n) => n,
            Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        let mut bytes = &buffer[..n];
        while !bytes.is_empty() {
            let Some(Some(conn)) = self.conns.get_mut(place) else { return true };
            let Conn { message, body, .. } = conn;
            match message.push(bytes, |data| body.extend_from_slice(data)) {
                Ok(used) => bytes = &bytes[used..],
                Err(_) => return false,
            }
            if conn.message.is_over() {
                self.answer(place);
            }
        }
        true
    }

    fn answer(&mut self, place: usize) {
        let Some(Some(conn)) = self.conns.get_mut(place) else { return };
        let message = std::mem::replace(&mut conn.message, Message::new(Side::Requests));
        let body = std::mem::take(&mut conn.body);
        let asked_for_a_stream =
            memchr::memmem::find(&body, br#""stream":true"#).or_else(|| memchr::memmem::find(&body, br#""stream": true"#));
        match (message.target.as_str(), Script::read(&body).filter(|_| asked_for_a_stream.is_some())) {
            ("POST /v1/chat/completions", Some(script)) => {
                self.streams += 1;
                let id = self.streams;
                let out = conn.sender.out();
                out.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n");
                out.extend_from_slice(b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n");
                script::event(out, id, r#"{"role":"assistant","content":""}"#, "null");
                conn.stream = Some(Stream { id, script, sent: 0 });
                self.due.push(Reverse((clock::now() + script.wait_us * 1000, id, place)));
            }
            ("POST /v1/chat/completions", None) => {
                let why = r#"{"error":{"message":"the prompt has no `script: TOKENS GAP_US WAIT_US.`, or no stream was asked for","type":"invalid_request_error"}}"#;
                whole(conn.sender.out(), "400 Bad Request", why);
            }
            ("GET /v1/models", _) => {
                let models =
                    format!(r#"{{"object":"list","data":[{{"id":"{MODEL}","object":"model","created":1764500000,"owned_by":"script"}}]}}"#);
                whole(conn.sender.out(), "200 OK", &models);
            }
            ("GET /health", _) => whole(conn.sender.out(), "200 OK", "{}"),
            _ => whole(conn.sender.out(), "404 Not Found", r#"{"error":{"message":"not found","type":"invalid_request_error"}}"#),
        }
        self.flush(place);
    }

    fn send_what_is_due(&mut self) {
        let now = clock::now();
        for _ in 0..TURNS {
            let Some(Reverse((at, id, place))) = self.due.peek().copied().filter(|Reverse((at, ..))| *at <= now) else { return };
            self.due.pop();
            let Some(Some(conn)) = self.conns.get_mut(place) else { continue };
            // Another stream is on that connection now, or another connection in that place.
            let Some(stream) = conn.stream.as_mut().filter(|stream| stream.id == id) else { continue };
            if stream.sent == stream.script.tokens {
                script::end(conn.sender.out(), id);
                conn.stream = None;
            } else {
                stream.sent += 1;
                script::token(conn.sender.out(), id);
                // Counted from when it was due, so that the pace holds.
                self.due.push(Reverse((at + stream.script.gap_us * 1000, id, place)));
            }
            self.flush(place);
        }
    }

    fn flush(&mut self, place: usize) {
        let Some(Some(conn)) = self.conns.get_mut(place) else { return };
        let Ok(blocked) = conn.sender.send(&conn.socket) else { return self.close(place) };
        if blocked != conn.blocked {
            conn.blocked = blocked;
            if self.poll.writes(&conn.socket, place as u64, blocked).is_err() {
                self.close(place);
            }
        }
    }

    fn close(&mut self, place: usize) {
        if self.conns.get_mut(place).and_then(Option::take).is_some() {
            self.free.push(place);
        }
    }
}

fn whole(out: &mut Vec<u8>, status: &str, body: &str) {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    out.extend_from_slice(head.as_bytes());
}
