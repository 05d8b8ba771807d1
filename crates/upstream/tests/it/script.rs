//! An upstream that does on each connection what a script says, and counts its connections.
//!
//! Invariant: what it counts as open is a connection whose client has not closed it, as the upstream sees it.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use upstream::client::Client;
use upstream::config::UpstreamConfig;

/// Far beyond anything that is waited for.
const LONG: Duration = Duration::from_secs(30);

/// One thing that it does on a connection. Behind the last one it closes.
#[derive(Clone, Debug)]
pub enum Step {
    /// Reads a whole request.
    Request,
    /// Sends this.
    Send(Vec<u8>),
    /// Sends this byte by byte, with a pause before each.
    Drip(&'static str, Duration),
    /// Waits for the client's close.
    UntilClosed,
    /// Waits until somebody says so.
    When(Arc<Notify>),
    /// Sends this for as long as the client takes it.
    Endless(&'static str),
}

pub fn send(text: &str) -> Step {
    Step::Send(text.as_bytes().to_vec())
}

/// A chunked stream's head.
pub fn stream_head() -> Step {
    send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n")
}

pub fn chunk(text: &str) -> Step {
    send(&format!("{:x}\r\n{text}\r\n", text.len()))
}

pub fn last_chunk() -> Step {
    send("0\r\n\r\n")
}

/// An answer with a length.
pub fn reply(status: &str, kind: &str, body: &str) -> Step {
    send(&format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
}

#[derive(Default, Debug)]
pub struct Counts {
    pub accepted: AtomicUsize,
    pub open: AtomicUsize,
    /// Heads of the requests, in the order in which they came.
    pub requests: Mutex<Vec<String>>,
}

/// The upstream. It ends when it is dropped.
pub struct Upstream {
    pub addr: SocketAddr,
    pub counts: Arc<Counts>,
    _task: JoinSet<()>,
}

impl Upstream {
    /// Does `steps` on every connection.
    pub async fn always(steps: Vec<Step>) -> Upstream {
        Upstream::each(move |_| steps.clone()).await
    }

    /// Does on the n-th connection (from 0) what `steps` says.
    pub async fn each(steps: impl Fn(usize) -> Vec<Step> + Send + 'static) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("its address");
        let counts = Arc::new(Counts::default());
        let (mut task, to) = (JoinSet::new(), counts.clone());
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let steps = steps(to.accepted.fetch_add(1, Ordering::SeqCst));
                to.open.fetch_add(1, Ordering::SeqCst);
                connections.spawn(connection(socket, steps, to.clone()));
            }
        });
        Upstream { addr, counts, _task: task }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub fn client(&self, change: impl FnOnce(&mut UpstreamConfig)) -> Client {
        let mut config = UpstreamConfig::at(&self.url()).expect("a URL");
        change(&mut config);
        Client::new(&config).expect("a client")
    }

    pub fn accepted(&self) -> usize {
        self.counts.accepted.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> usize {
        self.counts.requests.lock().expect("counts").len()
    }

    /// Waits until the client has no connection left, on either side.
    pub async fn all_closed(&self, client: &Client) {
        let none = || self.counts.open.load(Ordering::SeqCst) == 0 && client.open() == 0;
        let wait = async {
            while !none() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(LONG, wait).await;
        assert!(waited.is_ok(), "open: {:?} here, {} at the client", self.counts.open, client.open());
    }
}

/// Nothing that is waited for takes this long.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("in time")
}

async fn connection(mut socket: TcpStream, steps: Vec<Step>, counts: Arc<Counts>) {
    let _ = perform(&mut socket, steps, &counts).await;
    drop(socket);
    counts.open.fetch_sub(1, Ordering::SeqCst);
}

pub async fn perform<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut S, steps: Vec<Step>, counts: &Counts) -> std::io::Result<()> {
    for step in steps {
        match step {
            Step::Request => {
                let head = request(socket).await?;
                counts.requests.lock().expect("counts").push(head);
            }
            Step::Send(bytes) => socket.write_all(&bytes).await?,
            Step::Drip(text, pause) => {
                for byte in text.bytes() {
                    tokio::time::sleep(pause).await;
                    socket.write_all(&[byte]).await?;
                }
            }
            Step::When(told) => told.notified().await,
            Step::UntilClosed => while socket.read(&mut [0; 1024]).await? > 0 {},
            Step::Endless(text) => loop {
                socket.write_all(text.as_bytes()).await?;
            },
        }
    }
    Ok(())
}

/// A request's head and body, as one text.
pub async fn request<S: AsyncRead + Unpin>(socket: &mut S) -> std::io::Result<String> {
    let mut all = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")).map_or(0, |n| n.parse().expect("a length"));
            if body.len() >= length {
                return Ok(text);
            }
        }
        let mut buffer = [0; 4096];
        match socket.read(&mut buffer).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => all.extend_from_slice(&buffer[..n]),
        }
    }
}
