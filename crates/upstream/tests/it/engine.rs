//! A scripted engine behind one address: it says who it is, shows its counters, takes cancels by id, and does with each request what a script
//! says.
//!
//! Invariant: its counters are what it has in its hands: a request whose connection is closed is gone from them, or stays, if it is told to
//! keep zombies.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use upstream::kind::Kind;

use crate::script::{Counts, Step, perform, request};
use crate::stand::until;

pub struct Hands {
    kind: Kind,
    /// Requests for an answer, head and body, in the order in which they came.
    pub asked: Mutex<Vec<String>>,
    /// Cancels by id.
    pub aborts: Mutex<Vec<String>>,
    /// Requests that are answered now.
    pub running: AtomicUsize,
    /// Connections whose client has not closed.
    pub open: AtomicUsize,
    pub looks: AtomicUsize,
    /// How often it was asked for its health.
    healths: AtomicUsize,
    /// Requests for two tokens by which somebody wants to know that a step is over. They are answered, whatever the script says.
    pub witnesses: AtomicUsize,
    keeps_zombies: AtomicBool,
    zombies: AtomicUsize,
}

/// The engine. It ends when it is dropped.
pub struct Engine {
    pub addr: SocketAddr,
    pub hands: Arc<Hands>,
    task: JoinSet<()>,
}

impl Engine {
    /// Does `steps` with every request for an answer.
    pub async fn always(kind: Kind, steps: Vec<Step>) -> Engine {
        Engine::each(kind, move |_| steps.clone()).await
    }

    /// Does with the n-th request for an answer (from 0) what `steps` says, then closes the connection.
    pub async fn each(kind: Kind, steps: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static) -> Engine {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("its address");
        let hands = Arc::new(Hands {
            kind,
            asked: Mutex::default(),
            aborts: Mutex::default(),
            running: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            looks: AtomicUsize::new(0),
            healths: AtomicUsize::new(0),
            witnesses: AtomicUsize::new(0),
            keeps_zombies: AtomicBool::new(false),
            zombies: AtomicUsize::new(0),
        });
        let (mut task, to, steps) = (JoinSet::new(), hands.clone(), Arc::new(steps));
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (hands, steps) = (to.clone(), steps.clone());
                connections.spawn(async move {
                    let _open = One::of(&hands.open);
                    let _ = connection(socket, &hands, &*steps).await;
                });
            }
        });
        Engine { addr, hands, task }
    }

    /// From now on it goes on with requests whose connection was closed.
    pub fn keep_zombies(self) -> Engine {
        self.hands.keeps_zombies.store(true, Ordering::SeqCst);
        self
    }

    /// It dies: nobody listens, and every connection is closed.
    pub async fn die(mut self) {
        self.task.shutdown().await;
        until(|| self.hands.open.load(Ordering::SeqCst) == 0, || format!("{:?} are open", self.hands.open)).await;
    }

    pub fn asked(&self) -> usize {
        self.hands.asked.lock().expect("what was asked").len()
    }

    pub fn running(&self) -> usize {
        self.hands.running.load(Ordering::SeqCst)
    }

    pub fn looks(&self) -> usize {
        self.hands.looks.load(Ordering::SeqCst)
    }

    pub fn healths(&self) -> usize {
        self.hands.healths.load(Ordering::SeqCst)
    }

    pub fn aborts(&self) -> Vec<String> {
        self.hands.aborts.lock().expect("cancels").clone()
    }
}

/// One more, for as long as it lives.
struct One<'a>(&'a AtomicUsize);

impl One<'_> {
    fn of(count: &AtomicUsize) -> One<'_> {
        count.fetch_add(1, Ordering::SeqCst);
        One(count)
    }
}

impl Drop for One<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Hands {
    fn counters(&self) -> Option<String> {
        let present = self.running.load(Ordering::SeqCst) + self.zombies.load(Ordering::SeqCst);
        match self.kind {
            Kind::Vllm => Some(format!("vllm:num_requests_running {present}\nvllm:num_requests_waiting 0\n")),
            Kind::LlamaCpp => Some(format!("llamacpp:requests_processing {present}\nllamacpp:requests_deferred 0\n")),
            Kind::Sglang | Kind::OpenAi => None,
        }
    }
}

async fn connection(mut socket: TcpStream, hands: &Hands, steps: &(impl Fn(usize) -> Vec<Step> + Sync)) -> std::io::Result<()> {
    loop {
        let text = request(&mut socket).await?;
        let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
        let answer = match path.as_str() {
            "/health" => {
                hands.healths.fetch_add(1, Ordering::SeqCst);
                Some(String::new())
            }
            "/v1/models" => Some(r#"{"data":[{"id":"tiny"}]}"#.to_owned()),
            "/version" if hands.kind == Kind::Vllm => Some(r#"{"version":"0.32.0"}"#.to_owned()),
            "/inference/v1/abort_requests" if hands.kind == Kind::Vllm => {
                hands.aborts.lock().expect("cancels").push(text);
                Some("{}".to_owned())
            }
            "/metrics" => {
                hands.looks.fetch_add(1, Ordering::SeqCst);
                hands.counters()
            }
            "/v1/completions" if text.contains(r#""min_tokens":2"#) => {
                hands.witnesses.fetch_add(1, Ordering::SeqCst);
                let two = r#"{"choices":[{"index":0,"text":"aa","finish_reason":"length"}],"usage":{"completion_tokens":2}}"#;
                Some(two.to_owned())
            }
            "/v1/chat/completions" | "/v1/completions" | "/v1/embeddings" => {
                let running = One::of(&hands.running);
                let number = {
                    let mut asked = hands.asked.lock().expect("what was asked");
                    asked.push(text);
                    asked.len() - 1
                };
                let done = perform(&mut socket, steps(number), &Counts::default()).await;
                if hands.keeps_zombies.load(Ordering::SeqCst) {
                    hands.zombies.fetch_add(1, Ordering::SeqCst);
                }
                drop(running);
                return done;
            }
            _ => None,
        };
        let status = if answer.is_some() { "200 OK" } else { "404 Not Found" };
        let answer = answer.unwrap_or_default();
        let reply = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
        socket.write_all(reply.as_bytes()).await?;
    }
}
