//! Somebody outside: a scripted service that counts what it is asked, with which keys, and answers as it is told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::simulated::soon;

/// How a request is answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// With this status and body.
    Status(u16, &'static str),
    /// With this status and a place to go to.
    Redirect(String),
    /// When the test lets it: with 200.
    Held,
    /// By closing the connection.
    Closed,
}

/// What was asked.
#[derive(Clone, Debug)]
pub struct Asked {
    pub head: String,
    pub body: String,
}

impl Asked {
    /// The value of a header.
    pub fn header(&self, name: &str) -> String {
        let of = |line: &str| line.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned());
        self.head.lines().find_map(of).unwrap_or_default()
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }
}

#[derive(Default)]
struct State {
    asked: Mutex<Vec<Asked>>,
    script: Mutex<Vec<Answer>>,
    release: Notify,
}

/// The service; everything beyond its script is answered with 200.
#[derive(Clone)]
pub struct Service {
    pub addr: SocketAddr,
    state: Arc<State>,
}

impl Service {
    pub async fn start(script: &[Answer]) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let state = Arc::new(State { script: Mutex::new(script.to_vec()), ..State::default() });
        let service = Service { addr: listener.local_addr().expect("an address"), state: state.clone() };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, state.clone()));
            }
        });
        service
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it was asked as often.
    pub async fn until_asked(&self, times: usize) -> Vec<Asked> {
        soon("as many requests", async {
            while self.asked().len() < times {
                tokio::time::sleep(crate::wire::ms(2)).await;
            }
        })
        .await;
        self.asked()
    }

    /// Answers what is held.
    pub fn release(&self) {
        self.state.release.notify_waiters();
    }
}

async fn serve(mut stream: TcpStream, state: Arc<State>) {
    let mut read = Vec::new();
    let (head, length) = loop {
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(n) if n > 0 => read.extend_from_slice(&piece[..n]),
            _ => return,
        }
        let Some(at) = read.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&read[..at]).into_owned();
        let length =
            head.lines().find_map(|l| l.to_ascii_lowercase().strip_prefix("content-length: ").and_then(|n| n.parse::<usize>().ok()));
        let length = at + 4 + length.unwrap_or(0);
        if read.len() >= length {
            break (head, at + 4);
        }
    };
    let body = String::from_utf8_lossy(&read[length..]).into_owned();
    state.asked.lock().unwrap_or_else(PoisonError::into_inner).push(Asked { head, body });
    let answer = {
        let mut script = state.script.lock().unwrap_or_else(PoisonError::into_inner);
        if script.is_empty() { Answer::Status(200, "{\"id\":\"ch_1\"}") } else { script.remove(0) }
    };
    let (status, extra, body) = match answer {
        Answer::Status(status, body) => (status, String::new(), body),
        Answer::Redirect(to) => (302, format!("Location: {to}\r\n"), ""),
        Answer::Held => {
            state.release.notified().await;
            (200, String::new(), "{\"id\":\"ch_late\"}")
        }
        Answer::Closed => return,
    };
    let text = format!("HTTP/1.1 {status} X\r\n{extra}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    let _ = stream.write_all(text.as_bytes()).await;
}
