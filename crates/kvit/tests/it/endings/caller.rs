//! A caller on a raw socket that counts what it really read: tokens, texts, the end that it was told.
//!
//! Every answer is asked for with `logprobs: 0`, so that each token shows on the wire, also one without text of its own.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::PATIENCE;

/// What a caller read.
#[derive(Clone, Default, Debug, PartialEq)]
pub struct Heard {
    pub status: Option<u16>,
    pub text: BTreeMap<u64, String>,
    /// Each token's log-probability as it stood on the wire: the same text is the same bits.
    pub bits: BTreeMap<u64, Vec<String>>,
    /// Each token as text.
    pub tokens: BTreeMap<u64, Vec<String>>,
    pub finish: BTreeMap<u64, String>,
    /// The code of the error that it was told, in the status' body or as the stream's last event.
    pub code: Option<String>,
    /// All of it, with its proper end.
    pub complete: bool,
    /// The answer is over.
    pub over: bool,
}

impl Heard {
    pub fn count(&self) -> u64 {
        self.bits.values().map(|t| t.len() as u64).sum()
    }

    fn choice(&mut self, choice: &Value) {
        let index = choice["index"].as_u64().unwrap_or(0);
        self.text.entry(index).or_default().push_str(choice["text"].as_str().unwrap_or(""));
        let bits = self.bits.entry(index).or_default();
        bits.extend(choice["logprobs"]["token_logprobs"].as_array().into_iter().flatten().map(Value::to_string));
        let tokens = choice["logprobs"]["tokens"].as_array().into_iter().flatten();
        self.tokens.entry(index).or_default().extend(tokens.filter_map(|t| t.as_str().map(str::to_owned)));
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish.insert(index, reason.to_owned());
        }
    }

    fn object(&mut self, object: &Value) {
        if let Some(code) = object["error"]["code"].as_str() {
            self.code = Some(code.to_owned());
        }
        object["choices"].as_array().into_iter().flatten().for_each(|choice| self.choice(choice));
    }
}

/// How a caller goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    Close,
    Reset,
}

/// One request.
pub struct Caller {
    stream: Option<TcpStream>,
    raw: Vec<u8>,
    ended: bool,
}

impl Caller {
    pub fn post(addr: SocketAddr, path: &str, id: &str, body: &Value) -> Caller {
        Caller::send(addr, "POST", path, &format!("X-Request-Id: {id}\r\nContent-Type: application/json\r\n"), &body.to_string())
    }

    pub fn send(addr: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Caller {
        let mut stream = TcpStream::connect(addr).expect("the server accepts");
        stream.set_nodelay(true).expect("nodelay can be set");
        let head = format!("{method} {path} HTTP/1.1\r\nHost: t\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(head.as_bytes()).expect("the request can be sent");
        Caller { stream: Some(stream), raw: Vec::new(), ended: false }
    }

    /// A caller whose kernel takes as little as it can, so that whoever writes to it soon must wait.
    pub fn narrow(addr: SocketAddr, path: &str, id: &str, body: &Value) -> Caller {
        let socket = socket2::Socket::new(socket2::Domain::for_address(addr), socket2::Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(1024).expect("a small buffer");
        socket.connect(&addr.into()).expect("the server accepts");
        let mut stream = TcpStream::from(socket);
        let body = body.to_string();
        let head = format!("POST {path} HTTP/1.1\r\nHost: t\r\nX-Request-Id: {id}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(head.as_bytes()).expect("the request can be sent");
        Caller { stream: Some(stream), raw: Vec::new(), ended: false }
    }

    /// What was read so far.
    pub fn read(&self) -> Heard {
        let mut read = Heard::default();
        let Some(at) = self.raw.windows(4).position(|w| w == b"\r\n\r\n") else { return read };
        let head = String::from_utf8_lossy(&self.raw[..at]).to_lowercase();
        read.status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
        let rest = &self.raw[at + 4..];
        let (body, over) = if head.contains("transfer-encoding: chunked") {
            unchunk(rest)
        } else {
            let length = head.lines().find_map(|l| l.strip_prefix("content-length:")).and_then(|l| l.trim().parse().ok()).unwrap_or(0);
            (rest[..rest.len().min(length)].to_vec(), rest.len() >= length)
        };
        read.over = over;
        if head.contains("text/event-stream") {
            // Whole events only: a text that breaks off shows nothing of its last piece.
            let text = String::from_utf8_lossy(&body);
            for event in text.split_inclusive("\n\n").filter_map(|e| e.strip_suffix("\n\n")?.strip_prefix("data: ")) {
                match event {
                    "[DONE]" => read.complete = true,
                    json => read.object(&serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {json}"))),
                }
            }
        } else if over {
            let object: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
            read.object(&object);
            read.complete = read.status == Some(200);
        }
        read
    }

    /// Takes in what is there, waiting a moment at most. False once nothing can follow.
    fn take(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        if self.ended {
            return false;
        }
        stream.set_read_timeout(Some(Duration::from_millis(5))).expect("a timeout can be set");
        let mut buffer = [0; 16 << 10];
        match stream.read(&mut buffer) {
            Ok(0) => self.ended = true,
            Ok(n) => self.raw.extend_from_slice(&buffer[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(_) => self.ended = true,
        }
        !self.ended
    }

    /// Reads until what was read is as wanted.
    pub fn until(&mut self, what: &str, wanted: impl Fn(&Heard) -> bool) -> Heard {
        let since = Instant::now();
        loop {
            let read = self.read();
            if wanted(&read) {
                return read;
            }
            assert!(self.take(), "the connection ended before: {what}; read {read:?}");
            assert!(since.elapsed() < PATIENCE, "never read: {what}; read {read:?}");
        }
    }

    /// Reads the answer to its end.
    pub fn finish(&mut self) -> Heard {
        let since = Instant::now();
        while !self.read().over && self.take() {
            assert!(since.elapsed() < PATIENCE, "the answer never ended: {:?}", self.read());
        }
        self.read()
    }

    /// Goes. Whoever closes in good order reads on afterwards, so that late bytes make no reset of it.
    pub fn leave(&mut self, how: Leave) {
        let Some(stream) = &self.stream else { return };
        match how {
            Leave::Close => stream.shutdown(Shutdown::Write).expect("its own side can be closed"),
            Leave::Reset => {
                socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).expect("linger can be set");
                self.stream = None;
            }
        }
    }

    /// Reads whatever still comes until the server has closed too.
    pub fn drain(&mut self) -> Heard {
        let since = Instant::now();
        while self.take() {
            assert!(since.elapsed() < PATIENCE, "the server keeps a closed connection");
        }
        self.read()
    }
}

impl Caller {
    /// Status and body of an answer that is JSON and was read to its end.
    pub fn whole(&self) -> (u16, Value) {
        let at = self.raw.windows(4).position(|w| w == b"\r\n\r\n").expect("an answer has a head");
        let status = self.read().status.expect("an answer has a status");
        (status, serde_json::from_slice(&self.raw[at + 4..]).unwrap_or(Value::Null))
    }
}

/// The chunks that are whole, and whether the last one is among them.
fn unchunk(mut raw: &[u8]) -> (Vec<u8>, bool) {
    let mut out = Vec::new();
    while let Some(at) = raw.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..at]).unwrap_or("").trim(), 16).unwrap_or(usize::MAX);
        if size == 0 {
            return (out, true);
        }
        if size == usize::MAX || raw.len() < at + 2 + size + 2 {
            break;
        }
        out.extend_from_slice(&raw[at + 2..at + 2 + size]);
        raw = &raw[at + 4 + size..];
    }
    (out, false)
}
