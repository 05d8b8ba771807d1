//! Somebody who asks and reads as it comes, on a connection of its own, and may leave at any moment.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::wire::Reply;

/// What was asked for.
#[derive(Clone, Debug)]
pub enum What {
    /// A run, by a chat's stream: its tag.
    Chat(String),
    /// A run, by a response's stream: its tag.
    Response(String),
    /// A background response, answered at once: its tag.
    Object(String),
    /// A run's events, from the one after this.
    Events(String, u64),
    /// A response's events, from the one after this.
    Frames(String, Option<u64>),
    /// A run, or its cancel: what became of it.
    View(String),
}

/// A server-sent event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    pub id: Option<u64>,
    pub kind: String,
    pub data: String,
}

#[derive(Default)]
pub struct Got {
    bytes: Vec<u8>,
    pub closed: bool,
}

pub struct Reader {
    pub what: What,
    got: Arc<Mutex<Got>>,
    task: JoinHandle<()>,
    /// Frames that the model has seen.
    pub seen: usize,
    /// Its head was looked at.
    pub headed: bool,
    /// The run, once it is known.
    pub run: Option<String>,
    /// The life of the gateway that it asked.
    pub life: u128,
    /// The number of the last event that it read.
    pub last: Option<u64>,
    pub text: String,
    pub is_twin: bool,
}

impl Reader {
    pub fn new(addr: SocketAddr, life: u128, what: What, request: String) -> Reader {
        let got = Arc::new(Mutex::new(Got::default()));
        let into = got.clone();
        let task = tokio::spawn(async move {
            let _ = read(addr, &request, &into).await;
            into.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        });
        Reader { what, got, task, seen: 0, headed: false, run: None, life, last: None, text: String::new(), is_twin: false }
    }

    /// The head, the frames or the body so far, and whether nothing more comes.
    pub fn look(&self) -> (Option<Reply>, Vec<Frame>, bool) {
        let got = self.got.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = parse(&got.bytes);
        let stream = reply.as_ref().is_some_and(|r| r.header("content-type").is_some_and(|t| t.contains("event-stream")));
        let frames = if stream { reply.as_ref().map(|r| frames(&r.body)).unwrap_or_default() } else { Vec::new() };
        (reply, frames, got.closed)
    }

    pub fn leave(&self) {
        self.task.abort();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read(addr: SocketAddr, request: &str, into: &Mutex<Got>) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut buffer = [0; 8192];
    loop {
        let n = stream.read(&mut buffer).await?;
        if n == 0 {
            return Ok(());
        }
        into.lock().unwrap_or_else(PoisonError::into_inner).bytes.extend_from_slice(&buffer[..n]);
    }
}

/// As much of an answer as is there.
fn parse(bytes: &[u8]) -> Option<Reply> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, mut rest) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let mut reply = Reply { status, head: head.to_owned(), body: String::new() };
    if reply.header("transfer-encoding").is_none() {
        reply.body = rest.to_owned();
        return Some(reply);
    }
    while let Some((size, after)) = rest.split_once("\r\n") {
        let Some(chunk) = usize::from_str_radix(size, 16).ok().and_then(|size| after.get(..size)) else { break };
        reply.body.push_str(chunk);
        rest = after.get(chunk.len() + 2..).unwrap_or_default();
    }
    Some(reply)
}

fn frames(body: &str) -> Vec<Frame> {
    // What follows the last empty line is not whole yet.
    let whole = body.rfind("\n\n").map_or("", |at| &body[..at + 2]);
    let frames = whole.split("\n\n").filter(|f| !f.is_empty() && !f.starts_with(':'));
    let part = |frame: &str, name: &str| frame.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default().to_owned();
    frames.map(|f| Frame { id: part(f, "id: ").parse().ok(), kind: part(f, "event: "), data: part(f, "data: ") }).collect()
}
