//! A caller whose server may be gone at any moment: whatever was not told to its end was not told.
//!
//! Invariant: a body counts as whole only by its length or its last chunk, and an event only with the empty line behind it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::server::PATIENCE;

/// The head of an answer, and the way to its body.
pub struct Answer {
    pub status: u16,
    pub id: Option<String>,
    stream: TcpStream,
    body: BufReader<Body>,
}

/// What comes next on a stream of events.
pub enum Next {
    Event(Event),
    /// The stream came to its proper end.
    Over,
    /// The server is gone.
    Broken,
}

/// A server-sent event.
#[derive(Default)]
pub struct Event {
    pub id: Option<u64>,
    pub kind: String,
    pub data: String,
}

/// The bytes of a body, without their framing. To end early is an error.
struct Body {
    wire: BufReader<TcpStream>,
    left: usize,
    is_chunked: bool,
    is_over: bool,
}

impl Read for Body {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let early = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        if self.left == 0 && self.is_chunked && !self.is_over {
            let mut line = String::new();
            while line.trim().is_empty() {
                line.clear();
                if self.wire.read_line(&mut line)? == 0 {
                    return Err(early());
                }
            }
            self.left = usize::from_str_radix(line.trim(), 16).map_err(|_| early())?;
            self.is_over = self.left == 0;
        }
        let most = self.left.min(into.len());
        if most == 0 {
            return Ok(0);
        }
        let n = self.wire.read(&mut into[..most])?;
        self.left -= n;
        if n == 0 { Err(early()) } else { Ok(n) }
    }
}

/// Asks over a connection of its own. `None` if no head came: then the caller knows nothing.
pub fn ask(port: u16, method: &str, path: &str, headers: &str, body: Option<&Value>) -> Option<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_nodelay(true).ok()?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    let mut wire = BufReader::new(stream.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if wire.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let field =
        |name: &str| head.lines().find_map(|l| l.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim()));
    let is_chunked = field("transfer-encoding").is_some_and(|v| v == "chunked");
    let left = field("content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let id = field("x-request-id").map(str::to_owned);
    Some(Answer { status, id, stream, body: BufReader::new(Body { wire, left, is_chunked, is_over: false }) })
}

impl Answer {
    /// The whole body; `None` if the server went first.
    pub fn json(mut self) -> Option<Value> {
        let mut all = Vec::new();
        self.body.read_to_end(&mut all).ok()?;
        Some(serde_json::from_slice(&all).expect("a whole body is JSON"))
    }

    pub fn event(&mut self) -> Next {
        let mut event = Event::default();
        loop {
            let mut line = String::new();
            match self.body.read_line(&mut line) {
                Ok(0) => return Next::Over,
                Ok(_) => {}
                Err(_) => return Next::Broken,
            }
            let line = line.trim_end();
            if line.is_empty() && !event.data.is_empty() {
                return Next::Event(event);
            }
            match line.split_once(": ") {
                Some(("id", id)) => event.id = id.parse().ok(),
                Some(("event", kind)) => event.kind = kind.to_owned(),
                Some(("data", data)) => event.data = data.to_owned(),
                _ => {}
            }
        }
    }

    /// Leaves by an ordinary close or by a reset.
    pub fn leave(self, by_reset: bool) {
        if by_reset {
            let _ = socket2::SockRef::from(&self.stream).set_linger(Some(std::time::Duration::ZERO));
        }
    }
}
