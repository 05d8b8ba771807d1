//! A caller made of a raw socket.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::simulated::soon;

/// How a caller leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    Close,
    Reset,
}

impl Leave {
    pub const BOTH: [(Leave, &'static str); 2] = [(Leave::Close, "client_closed"), (Leave::Reset, "client_reset")];

    pub fn now(self, stream: TcpStream) {
        if self == Leave::Reset {
            stream.set_zero_linger().expect("SO_LINGER");
        }
        drop(stream);
    }
}

pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<String> {
        let found = self.head.lines().filter_map(|line| line.split_once(':')).find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_owned())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The data of each server-sent event; comments are none.
    pub fn events(&self) -> Vec<String> {
        let events = self.body.split("\n\n").filter(|e| !e.is_empty() && !e.starts_with(':'));
        events.map(|e| e.strip_prefix("data: ").unwrap_or_else(|| panic!("not an event: {e:?}")).to_owned()).collect()
    }

    /// Status, type, param and code of an error, its shape checked.
    pub fn error(&self) -> (u16, Value, Value, Value) {
        let json = self.json();
        let error = json["error"].as_object().unwrap_or_else(|| panic!("no error object: {json}"));
        let names: Vec<&str> = error.keys().map(String::as_str).collect();
        assert_eq!(names, ["message", "type", "param", "code"]);
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()));
        (self.status, error["type"].clone(), error["param"].clone(), error["code"].clone())
    }
}

pub fn request_text(method: &str, path: &str, headers: &str, body: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len())
}

pub fn chat(extra: &str) -> String {
    format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{extra}}}"#)
}

pub fn chat_request(id: &str, extra: &str) -> String {
    request_text("POST", "/v1/chat/completions", &format!("X-Request-Id: {id}\r\n"), &chat(extra))
}

/// Connects and sends.
pub async fn send(addr: SocketAddr, text: &str) -> TcpStream {
    let mut stream = soon("a connection", TcpStream::connect(addr)).await.expect("connect");
    soon("sending", stream.write_all(text.as_bytes())).await.expect("send");
    stream
}

/// Reads until the text contains `wanted`.
pub async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains(wanted) {
        let n = soon(wanted, stream.read(&mut buffer)).await.expect("read");
        assert!(n > 0, "closed before {wanted:?}: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    text
}

/// Reads one whole answer off the connection, which stays open.
pub async fn read_reply(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(reply) = parse(&bytes) {
            return reply;
        }
        let n = soon("an answer", stream.read(&mut buffer)).await.expect("read");
        assert!(n > 0, "closed in an answer: {}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&buffer[..n]);
    }
}

fn parse(bytes: &[u8]) -> Option<Reply> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, rest) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let mut reply = Reply { status, head: head.to_owned(), body: String::new() };
    if reply.header("transfer-encoding").is_some() {
        let mut rest = rest;
        loop {
            let (size, after) = rest.split_once("\r\n")?;
            let size = usize::from_str_radix(size, 16).ok()?;
            let chunk = after.get(..size)?;
            rest = after.get(size..)?.strip_prefix("\r\n")?;
            if size == 0 {
                return Some(reply);
            }
            reply.body.push_str(chunk);
        }
    }
    let length: usize = reply.header("content-length").map_or(Ok(0), |n| n.parse()).ok()?;
    reply.body = rest.get(..length)?.to_owned();
    Some(reply)
}

/// One request on a connection of its own.
pub async fn ask(addr: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Reply {
    let mut stream = send(addr, &request_text(method, path, headers, body)).await;
    read_reply(&mut stream).await
}

pub async fn get(addr: SocketAddr, path: &str) -> Reply {
    ask(addr, "GET", path, "", "").await
}

pub async fn cancel(addr: SocketAddr, id: &str, wait_ms: u64) -> Reply {
    ask(addr, "POST", &format!("/v1/runs/{id}/cancel?wait_ms={wait_ms}"), "", "").await
}

/// A short time, for configurations.
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
