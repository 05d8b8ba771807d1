//! A caller of the real model's tests: a raw socket, which counts every token that ever reached it, also those that came while it left.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::server::Server;

/// How a caller goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Going {
    /// It ends its sending side, a FIN, and reads on until the server has closed too. Not `close()`, which would reset what lies unread.
    FinAndDrain,
    /// Plain `close()` while bytes that have come lie unread, which by TCP is a reset.
    CloseUnread,
    /// Plain `close()` with nothing unread: a FIN, and a reset for whatever comes afterwards.
    CloseRead,
    /// `close()` with a linger time of zero: a reset.
    Reset,
}

impl Going {
    /// What the server must call it.
    pub fn cause(self) -> &'static str {
        match self {
            Going::FinAndDrain | Going::CloseRead => "client_closed",
            Going::CloseUnread | Going::Reset => "client_reset",
        }
    }
}

/// A request in progress.
pub struct Guest {
    socket: TcpStream,
    lines: BufReader<TcpStream>,
    /// Tokens that reached this end of the socket so far.
    pub tokens: u64,
    /// Everything that reached it.
    pub heard: String,
}

impl Guest {
    /// Sends a chat request that asks for log-probabilities: they come one entry a token, so that tokens can be counted.
    pub fn chat(server: &Server, id: &str, body: &Value) -> Guest {
        let mut body = body.clone();
        body["logprobs"] = true.into();
        let body = body.to_string();
        let mut socket = server.connect();
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nX-Request-Id: {id}\r\nContent-Length: {}\r\n\r\n", body.len());
        socket.write_all(format!("{head}{body}").as_bytes()).expect("the request can be sent");
        // One byte of room: what is not asked for stays in the kernel, where a close finds it unread.
        let lines = BufReader::with_capacity(1, socket.try_clone().expect("a socket can be cloned"));
        Guest { socket, lines, tokens: 0, heard: String::new() }
    }

    /// The next line; `None` at the end of the connection.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).ok().filter(|&n| n > 0);
        self.take(&line);
        read.map(|_| line.trim_end().to_owned())
    }

    fn take(&mut self, text: &str) {
        self.heard.push_str(text);
        self.tokens += text.lines().map(tokens_in).sum::<u64>();
    }

    /// Reads until so many tokens have come in all; false if the stream ended before.
    pub fn read_tokens(&mut self, n: u64) -> bool {
        while self.tokens < n {
            if self.line().is_none_or(|l| l == "data: [DONE]") {
                return false;
            }
        }
        true
    }

    /// Waits for the answer's head and reads it.
    pub fn head(&mut self) {
        while self.line().is_some_and(|l| !l.is_empty()) {}
    }

    /// Reads on to the end of the connection, or to the end of a stream.
    pub fn read_to_the_end(&mut self) {
        while self.line().is_some_and(|l| l != "0") {}
    }

    /// Waits until something has come that is not read: in decode, the next token.
    fn unread(&mut self) {
        if self.tokens > 0 {
            // The last token's event ends with an empty line, and so does its chunk.
            self.line();
            self.line();
        }
        let came = self.socket.peek(&mut [0]).expect("something comes");
        assert!(came > 0, "the server closed");
    }

    /// Reads what is there, and waits for nothing.
    fn read_what_is_there(&mut self) {
        self.socket.set_nonblocking(true).expect("it can be set");
        let (mut rest, mut piece) = (Vec::new(), [0; 65_536]);
        while let Some(n) = self.lines.read(&mut piece).ok().filter(|&n| n > 0) {
            rest.extend_from_slice(&piece[..n]);
        }
        self.take(&String::from_utf8_lossy(&rest));
    }

    /// Goes. What is left says what had reached it.
    pub fn leave(mut self, how: Going) -> Left {
        match how {
            Going::FinAndDrain => {
                self.socket.shutdown(Shutdown::Write).expect("its sending side can be ended");
                while self.line().is_some() {}
            }
            Going::CloseUnread => self.unread(),
            Going::CloseRead => self.read_what_is_there(),
            Going::Reset => socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO)).expect("linger can be set"),
        }
        Left { tokens: self.tokens, heard: std::mem::take(&mut self.heard) }
    }
}

/// What a caller had when it was gone.
pub struct Left {
    pub tokens: u64,
    pub heard: String,
}

/// How many tokens a line of a stream brings.
fn tokens_in(line: &str) -> u64 {
    let event = line.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok());
    event.and_then(|e| e.pointer("/choices/0/logprobs/content").and_then(Value::as_array).map(Vec::len)).unwrap_or(0) as u64
}

/// A line of the metrics page that has no labels.
pub fn metric(server: &Server, name: &str) -> f64 {
    let page = metrics(server);
    *page.get(name).unwrap_or_else(|| panic!("there is no {name}"))
}

/// The metrics page: each line's number by its name and labels.
pub fn metrics(server: &Server) -> BTreeMap<String, f64> {
    let (_, _, page) = server.request("GET", "/metrics", None, None);
    let page = String::from_utf8(page).expect("metrics are text");
    let lines = page.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.rsplit_once(' '));
    lines.filter_map(|(name, number)| Some((name.to_owned(), number.parse().ok()?))).collect()
}
