//! A scripted engine behind one address: it says who it is, shows its counters, takes cancels by id, and does with each request what a script
//! says.
//!
//! As SGLang it does what that one's public documentation says of cancels: `/abort_request` ends every request whose id (`rid`) begins with the
//! text that it is given, or all with `abort_all`, and answers 200 whatever it found; and as it was reported of its releases (sglang #35255,
//! #34894), it forgets the id of a stream that is closed, whether or not it computes on.
//! As a kvit it keeps no record of any run, unless a test says what it answers to whoever asks for one.
//!
//! Invariant: its counters are what it has in its hands: a request whose connection is closed is gone from them, or stays, if it is told to
//! keep zombies.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use upstream::kind::Kind;

use crate::script::{Counts, Step, perform, request};
use crate::stand::{MODEL, until};

/// What a kvit answers to a question for a run, its request and how many of them came before: a status and a body; `None` to break off.
type Records = Box<dyn Fn(&str, usize) -> Option<(u16, String)> + Send + Sync>;

pub struct Hands {
    kind: Kind,
    records: Mutex<Records>,
    /// Questions for runs, but for those that nobody has.
    pub questions: Mutex<Vec<String>>,
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
    /// Requests that came with an id of their own and are computed, whether or not somebody still listens, and what ends each.
    named: Mutex<BTreeMap<String, Arc<Notify>>>,
    /// Those whose stream was closed, and that are computed on: nobody knows them by their ids any more.
    forgotten: Mutex<Vec<String>>,
    /// The status that a cancel by id is answered with, and that it then does nothing (SGLang).
    deaf: Mutex<Option<&'static str>>,
    /// What tells it from another process.
    self_told: Mutex<Told>,
    /// It takes no such requests, and has no cancel by id; as a kvit it says yes to whoever asks for a run that nobody has.
    pub refuses: AtomicBool,
}

/// What an engine says of itself.
#[derive(Clone)]
pub struct Told {
    pub models: Vec<&'static str>,
    /// Whose they are.
    pub owner: &'static str,
    /// When it began, in seconds.
    pub started: Option<u32>,
    /// It says that it is alive, as LiteLLM does.
    pub litellm: bool,
    /// Which life of a kvit it is.
    pub life: &'static str,
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
        Engine::at("127.0.0.1:0".parse().expect("an address"), kind, steps).await
    }

    /// The same, at this address, where another one may have been.
    pub async fn at(addr: SocketAddr, kind: Kind, steps: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static) -> Engine {
        let listener = TcpListener::bind(addr).await.expect("a port");
        let addr = listener.local_addr().expect("its address");
        let hands = Arc::new(Hands {
            kind,
            records: Mutex::new(Box::new(|_, _| Some((404, NO_RUN.to_owned())))),
            questions: Mutex::default(),
            asked: Mutex::default(),
            aborts: Mutex::default(),
            running: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            looks: AtomicUsize::new(0),
            healths: AtomicUsize::new(0),
            witnesses: AtomicUsize::new(0),
            keeps_zombies: AtomicBool::new(false),
            zombies: AtomicUsize::new(0),
            named: Mutex::default(),
            forgotten: Mutex::default(),
            deaf: Mutex::default(),
            self_told: Mutex::new(Told {
                models: vec![MODEL],
                owner: if kind == Kind::Kvit { "kvit" } else { "somebody" },
                started: None,
                litellm: false,
                life: "1f",
            }),
            refuses: AtomicBool::new(false),
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

    /// From now on it says something else of itself.
    pub fn tells(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.hands.self_told.lock().expect("what it tells"));
    }

    /// What it answers to a question for a run that it was asked to compute.
    pub fn keeps(&self, records: impl Fn(&str, usize) -> Option<(u16, String)> + Send + Sync + 'static) {
        *self.hands.records.lock().expect("records") = Box::new(records);
    }

    /// Questions for runs that it was asked to compute.
    pub fn questions(&self) -> Vec<String> {
        self.hands.questions.lock().expect("questions").clone()
    }

    /// The name that came with its newest request for an answer.
    pub fn name(&self) -> String {
        let asked = self.hands.asked.lock().expect("what was asked").last().cloned().expect("a request");
        asked.lines().find_map(|line| line.strip_prefix("x-request-id: ")).expect("a name").to_owned()
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

    /// The ids of the requests that it computes.
    pub fn computes(&self) -> Vec<String> {
        let mut all: Vec<String> = self.hands.named.lock().expect("ids").keys().cloned().collect();
        all.extend(self.hands.forgotten.lock().expect("ids").iter().cloned());
        all.sort_unstable();
        all
    }

    /// From now on it does nothing that it is told by id, and answers with this status; or as it should.
    pub fn deaf(&self, status: Option<&'static str>) {
        *self.hands.deaf.lock().expect("what it does") = status;
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
    /// Ends every request whose id begins so.
    fn abort(&self, text: &str) {
        self.aborts.lock().expect("cancels").push(text.to_owned());
        if self.deaf.lock().expect("what it does").is_some() {
            return;
        }
        let body = body_of(text);
        let (rid, all) = (body["rid"].as_str().unwrap_or_default(), body["abort_all"] == true);
        self.named.lock().expect("ids").retain(|id, ended| {
            let is_meant = all || (!rid.is_empty() && id.starts_with(rid));
            if is_meant {
                ended.notify_one();
            }
            !is_meant
        });
    }

    /// Answers for a run. Of those that it was never asked to compute it has none.
    fn record(&self, text: &str) -> Option<(u16, String)> {
        let path = text.split(' ').nth(1).unwrap_or_default();
        let id = path.trim_start_matches("/v1/runs/").split('/').next().unwrap_or_default();
        if !self.asked.lock().expect("what was asked").iter().any(|asked| asked.contains(&format!("x-request-id: {id}"))) {
            let said_yes = self.refuses.load(Ordering::SeqCst).then(|| (200, "{}".to_owned()));
            return said_yes.or(Some((404, NO_RUN.to_owned())));
        }
        let mut questions = self.questions.lock().expect("questions");
        questions.push(text.to_owned());
        (self.records.lock().expect("records"))(text, questions.len() - 1)
    }

    fn counters(&self) -> Option<String> {
        let present = self.running.load(Ordering::SeqCst) + self.zombies.load(Ordering::SeqCst);
        let started = self.self_told.lock().expect("what it tells").started;
        let started = started.map_or(String::new(), |started| format!("process_start_time_seconds {started}\n"));
        match self.kind {
            Kind::Vllm => Some(format!("{started}vllm:num_requests_running {present}\nvllm:num_requests_waiting 0\n")),
            Kind::LlamaCpp => Some(format!("llamacpp:requests_processing {present}\nllamacpp:requests_deferred 0\n")),
            Kind::Kvit => {
                let life = self.self_told.lock().expect("what it tells").life;
                Some(format!("kvit_build_info{{version=\"0.1.0\",incarnation=\"{life}\"}} 1\n"))
            }
            Kind::Sglang | Kind::OpenAi => None,
        }
    }
}

/// What a kvit says of a run that it never had.
const NO_RUN: &str = r#"{"error":{"message":"no run","type":"invalid_request_error","param":null,"code":"run_not_found"}}"#;

/// The body of a request, if that is JSON. Of two fields of one name the last counts.
fn body_of(text: &str) -> Value {
    text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok()).unwrap_or_default()
}

async fn connection(mut socket: TcpStream, hands: &Hands, steps: &(impl Fn(usize) -> Vec<Step> + Sync)) -> std::io::Result<()> {
    loop {
        let text = request(&mut socket).await?;
        let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
        if hands.kind == Kind::Kvit && path.starts_with("/v1/runs/") {
            let Some((status, body)) = hands.record(&text) else { return Ok(()) };
            let reply = format!("HTTP/1.1 {status} So\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            socket.write_all(reply.as_bytes()).await?;
            continue;
        }
        let answer = match path.as_str() {
            "/health" => {
                hands.healths.fetch_add(1, Ordering::SeqCst);
                Some(String::new())
            }
            "/v1/models" => {
                let Told { models, owner, .. } = hands.self_told.lock().expect("what it tells").clone();
                let models = models.iter().map(|id| json!({"id": id, "owned_by": owner}));
                Some(json!({"data": models.collect::<Vec<_>>()}).to_string())
            }
            "/health/liveliness" => {
                let alive = hands.self_told.lock().expect("what it tells").litellm;
                alive.then(|| "\"I'm alive!\"".to_owned())
            }
            "/version" if hands.kind == Kind::Vllm => Some(r#"{"version":"0.32.0"}"#.to_owned()),
            "/inference/v1/abort_requests" if hands.kind == Kind::Vllm => {
                hands.aborts.lock().expect("cancels").push(text);
                (!hands.refuses.load(Ordering::SeqCst)).then(|| "{}".to_owned())
            }
            "/abort_request" if hands.kind == Kind::Sglang => {
                hands.abort(&text);
                (!hands.refuses.load(Ordering::SeqCst)).then(|| "Success".to_owned())
            }
            "/metrics" => {
                hands.looks.fetch_add(1, Ordering::SeqCst);
                hands.counters()
            }
            "/v1/completions" if text.contains(r#""min_tokens":2"#) => {
                hands.witnesses.fetch_add(1, Ordering::SeqCst);
                let two = r#"{"choices":[{"index":0,"text":"aa","finish_reason":"length"}],"usage":{"completion_tokens":2}}"#;
                (!hands.refuses.load(Ordering::SeqCst)).then(|| two.to_owned())
            }
            "/v1/chat/completions" | "/v1/completions" | "/v1/embeddings" => {
                let running = One::of(&hands.running);
                let rid = body_of(&text)["rid"].as_str().map(str::to_owned).filter(|_| hands.kind == Kind::Sglang);
                let ended = Arc::new(Notify::new());
                if let Some(rid) = &rid {
                    hands.named.lock().expect("ids").insert(rid.clone(), ended.clone());
                }
                let number = {
                    let mut asked = hands.asked.lock().expect("what was asked");
                    asked.push(text);
                    asked.len() - 1
                };
                let counts = Counts::default();
                let (done, told) = tokio::select! {
                    done = perform(&mut socket, steps(number), &counts) => (done, false),
                    () = ended.notified() => (Ok(()), true),
                };
                let goes_on = !told && hands.keeps_zombies.load(Ordering::SeqCst);
                hands.zombies.fetch_add(usize::from(goes_on), Ordering::SeqCst);
                if let Some(rid) = &rid {
                    hands.named.lock().expect("ids").remove(rid);
                    hands.forgotten.lock().expect("ids").extend(goes_on.then(|| rid.clone()));
                }
                drop(running);
                return done;
            }
            _ => None,
        };
        let deaf = hands.deaf.lock().expect("what it does").filter(|_| path == "/abort_request");
        let status = deaf.unwrap_or(if answer.is_some() { "200 OK" } else { "404 Not Found" });
        let answer = answer.unwrap_or_default();
        let reply = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
        socket.write_all(reply.as_bytes()).await?;
    }
}
