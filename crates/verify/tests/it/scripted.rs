//! A simulated engine with one fault at a time, behind OpenAI's HTTP: slots, prompts that take time, a token a step, counters.
//!
//! Invariant: with no fault it is a correct stack: what is left is gone with the next step, and its counters are what it has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// What is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    Nothing,
    /// It goes on whatever its caller does.
    NeverNotices,
    /// It looks at a connection only when it writes.
    NoticesAtWrite,
    /// It computes so many tokens more.
    LateBy(u64),
    /// A block of each request that was left is never free again.
    LeaksBlock,
    /// An entry of each request that was left stays.
    LeaksState,
    /// Each departure makes the steps slower for a while.
    SlowsNeighbours,
    /// Each departure changes the next token of another request.
    CorruptsNeighbour,
    /// A request that waits is begun though its caller has left.
    KeepsQueued,
    /// A cancel by name is answered well and changes nothing.
    IgnoresCancel,
    /// What was left is asked for again.
    AsksAgain,
    /// Nothing is wrong: with the first departure a pool of entries grows, and stays so.
    GrowsPool,
    /// Nothing is wrong: prompts that were computed are kept and found again.
    Caches,
    /// They were, until the first departure.
    LosesCache,
    /// A slot of each request that was left is never free again, but for the last one.
    LeaksSlot,
    /// What was left stays in its slot for ever, and nothing more is computed of it.
    GetsStuck,
    /// What was left takes the beginning of its prompt with it, though another still needs it: that one's next token is another.
    FreesShared,
    /// Nothing is wrong: a caller that ends its sending side alone is served on.
    ServesHalfClose,
    /// A cancel by name ends all whose id begins so.
    CancelsAlike,
    /// Behind the first departure it refuses all that comes.
    Breaks,
    /// Nothing is wrong: it has no cancel by name.
    RefusesCancel,
    /// It refuses so many requests behind the first.
    RefusesFirst(u64),
    /// It refuses the departures by which it is looked what each of them leaves.
    RefusesDepartures,
    /// Nothing is wrong: its gauges count a request behind so many words of its prompt, or all of it.
    CountsBehind(usize),
    /// What waits and was left is dropped so many milliseconds later; if its turn comes before, a token is made of it.
    SeesQueuedAfter(u64),
    /// Its events are long, and what it cannot write for a while it gives up, or does not.
    WritesMuch {
        gives_up: bool,
    },
    /// Of a request with several answers the first alone ends when it is left.
    LeavesSecond,
}

pub const SLOTS: usize = 4;
/// Prompt words computed in a step.
const CHUNK: usize = 16;
const STEP: Duration = Duration::from_millis(2);
/// Characters at the beginning of two prompts by which they share it.
const BEGINNING: usize = 300;
/// Bytes that make an event long, and how long one may be written before the caller is given up.
const PADDING: usize = 2000;
const STALLED: Duration = Duration::from_millis(100);
/// Slow steps after a departure, where departures are felt.
const SLOW_STEPS: u32 = 100;

struct Job {
    id: String,
    prompt: usize,
    computed: usize,
    asked: u64,
    /// Answers that are made at once.
    n: u64,
    made: u64,
    text: u64,
    /// How its prompt begins.
    begins: String,
    spoiled: bool,
    running: bool,
    /// Tokens until it ends, once it was left.
    left: Option<u64>,
    /// When it was left, if it waited then and is dropped later.
    left_at: Option<Instant>,
    out: mpsc::UnboundedSender<(u64, String)>,
}

#[derive(Default)]
struct World {
    jobs: BTreeMap<u64, Job>,
    next: u64,
    generated: u64,
    prompted: u64,
    asked: u64,
    leaked_blocks: u64,
    leaked_state: u64,
    leaked_slots: usize,
    slow: u32,
    corrupt: bool,
    /// Prompts that are kept, where they are.
    cached: BTreeSet<u64>,
    cache_is_lost: bool,
    is_broken: bool,
    refused: u64,
    /// How requests ended, by id.
    records: BTreeMap<String, String>,
    /// How old gauges become, where they are set now and then; when they were set, and to what.
    gauges_last: Duration,
    /// Words of a prompt behind which they count a request.
    counted_behind: usize,
    gauges: Option<(Instant, [usize; 2])>,
}

/// The engine. It ends when it is dropped.
pub struct Scripted {
    pub addr: SocketAddr,
    world: Arc<Mutex<World>>,
    _tasks: JoinSet<()>,
}

fn held(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().expect("nothing panics with it")
}

impl Scripted {
    pub async fn start(wrong: Wrong) -> Scripted {
        Scripted::start_with(wrong, Duration::ZERO).await
    }

    /// Its gauges are set only when they are so old.
    pub async fn start_with(wrong: Wrong, gauges_last: Duration) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("its address");
        let counted_behind = if let Wrong::CountsBehind(words) = wrong { words } else { 0 };
        let world = Arc::new(Mutex::new(World { gauges_last, counted_behind, ..World::default() }));
        let mut tasks = JoinSet::new();
        let of = world.clone();
        tasks.spawn(async move {
            loop {
                let slow = held(&of).step(wrong);
                tokio::time::sleep(if slow { STEP * 8 } else { STEP }).await;
            }
        });
        let of = world.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let world = of.clone();
                connections.spawn(async move { drop(connection(socket, &world, wrong).await) });
            }
        });
        Scripted { addr, world, _tasks: tasks }
    }

    /// Whether it works on anything now.
    pub fn is_busy(&self) -> bool {
        held(&self.world).jobs.values().any(|job| job.running && job.left != Some(0))
    }
}

impl World {
    fn step(&mut self, wrong: Wrong) -> bool {
        let running = self.jobs.values().filter(|job| job.running).count();
        let free = SLOTS.saturating_sub(running + self.leaked_slots);
        self.jobs.values_mut().filter(|job| !job.running).take(free).for_each(|job| job.running = true);
        self.gauge();
        let mut over = Vec::new();
        for (number, job) in self.jobs.iter_mut().filter(|(_, job)| job.running) {
            if job.left == Some(0) {
                if wrong != Wrong::GetsStuck {
                    over.push(*number);
                }
                continue;
            }
            if job.computed < job.prompt {
                let chunk = CHUNK.min(job.prompt - job.computed);
                job.computed += chunk;
                self.prompted += chunk as u64;
                if job.computed == job.prompt && matches!(wrong, Wrong::Caches | Wrong::LosesCache) && !self.cache_is_lost {
                    self.cached.insert(job.text);
                }
                continue;
            }
            job.made += 1;
            self.generated += job.n;
            job.text = job.text.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut word = if std::mem::take(&mut job.spoiled) { 0 } else { job.text >> 48 };
            if self.corrupt && job.left.is_none() {
                self.corrupt = false;
                word = 0;
            }
            let gone = (0..job.n).any(|index| job.out.send((index, format!("w{word} "))).is_err());
            if gone && wrong == Wrong::NoticesAtWrite {
                over.push(*number);
                continue;
            }
            job.left = job.left.map(|left| left - 1);
            if job.made == job.asked {
                over.push(*number);
            }
        }
        // One that waits and was left is gone at once, unless it is kept.
        if wrong != Wrong::KeepsQueued {
            let after = Duration::from_millis(if let Wrong::SeesQueuedAfter(ms) = wrong { ms } else { 0 });
            let is_dropped = |job: &Job| !job.running && (job.left == Some(0) || job.left_at.is_some_and(|at| at.elapsed() >= after));
            over.extend(self.jobs.iter().filter(|(_, job)| is_dropped(job)).map(|(number, _)| *number));
        }
        for job in over.into_iter().filter_map(|number| self.jobs.remove(&number)) {
            let (kind, cause) = if job.made == job.asked { ("completed", "length") } else { ("cancelled", "client_closed") };
            self.records.insert(job.id, json!({"outcome": {"kind": kind, "cause": cause}}).to_string());
        }
        self.slow = self.slow.saturating_sub(1);
        self.slow > 0
    }

    fn ask(&mut self, id: &str, body: &Value) -> (u64, mpsc::UnboundedReceiver<(u64, String)>) {
        let (out, tokens) = mpsc::unbounded_channel();
        let prompt = body["messages"][0]["content"].as_str().unwrap_or_default();
        let text = prompt.bytes().fold(7_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let (asked, n) = (body["max_tokens"].as_u64().unwrap_or(16), body["n"].as_u64().unwrap_or(1));
        let (number, prompt) = (self.next, prompt.split(' ').count());
        let computed = if self.cached.contains(&text) && !self.cache_is_lost { prompt } else { 0 };
        let begins = body["messages"][0]["content"].as_str().unwrap_or_default().chars().take(BEGINNING).collect();
        let (id, spoiled, running, left, left_at) = (id.to_owned(), false, false, None, None);
        let job = Job { id, prompt, computed, asked, n, made: 0, text, begins, spoiled, running, left, left_at, out };
        self.jobs.insert(number, job);
        self.next += 1;
        self.asked += 1;
        (number, tokens)
    }

    /// The caller of a request is gone.
    fn leave(&mut self, number: u64, body: &Value, wrong: Wrong) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let id = job.id.clone();
        match wrong {
            Wrong::NeverNotices | Wrong::NoticesAtWrite => return,
            Wrong::KeepsQueued if !job.running => return,
            Wrong::LeavesSecond if job.n > 1 => job.n -= 1,
            Wrong::LateBy(tokens) => job.left = Some(tokens),
            Wrong::SeesQueuedAfter(_) if !job.running => (job.left, job.left_at) = (Some(1), Some(Instant::now())),
            _ => job.left = Some(0),
        }
        let begins = job.begins.clone();
        let has_neighbours = self.jobs.values().any(|job| job.left.is_none());
        match wrong {
            Wrong::LeaksBlock => self.leaked_blocks += 1,
            Wrong::LeaksState => self.leaked_state += 1,
            Wrong::LeaksSlot => self.leaked_slots = (self.leaked_slots + 1).min(SLOTS - 1),
            Wrong::GrowsPool => self.leaked_state = 8,
            Wrong::Breaks => self.is_broken = true,
            Wrong::LosesCache => self.cache_is_lost = true,
            Wrong::SlowsNeighbours if has_neighbours => self.slow = SLOW_STEPS,
            Wrong::CorruptsNeighbour => self.corrupt = has_neighbours,
            Wrong::FreesShared => {
                self.jobs.values_mut().filter(|job| job.left.is_none() && job.begins == begins).for_each(|job| job.spoiled = true);
            }
            Wrong::AsksAgain => drop(self.ask(&id, body)),
            _ => {}
        }
    }

    /// Running and waiting, as they are told.
    fn gauge(&mut self) -> [usize; 2] {
        let running: Vec<&Job> = self.jobs.values().filter(|job| job.running).collect();
        let counted = running.iter().filter(|job| job.computed >= self.counted_behind.min(job.prompt)).count();
        let now = [counted, self.jobs.len() - running.len()];
        match self.gauges {
            Some((at, told)) if at.elapsed() < self.gauges_last => told,
            _ => self.gauges.insert((Instant::now(), now)).1,
        }
    }

    fn counters(&mut self) -> String {
        let [running, waiting] = self.gauge();
        let blocks: u64 = self.jobs.values().filter(|job| job.running).map(|job| 1 + job.made / 16).sum();
        let mut page = String::new();
        for (name, value) in [
            ("running", running as u64),
            ("waiting", waiting as u64),
            ("blocks", blocks + self.leaked_blocks),
            ("entries", self.jobs.len() as u64 + self.leaked_state),
            ("generated_total", self.generated),
            ("prompted_total", self.prompted),
            ("asked_total", self.asked),
        ] {
            let _ = writeln!(page, "scripted_{name} {value}");
        }
        page
    }
}

pub const PROFILE: &str = r#"
name = "scripted"
detect = "scripted_running"
running = [{ metric = "scripted_running" }]
waiting = [{ metric = "scripted_waiting" }]
kv_held = [{ metric = "scripted_blocks" }]
per_request = [{ metric = "scripted_entries" }]
generated = [{ metric = "scripted_generated_total" }]
prompted = [{ metric = "scripted_prompted_total" }]
asked = [{ metric = "scripted_asked_total" }]
cancel = { path = "/cancel/{id}", status = 200 }
"#;

async fn request(socket: &mut TcpStream) -> std::io::Result<(String, String)> {
    let mut all = Vec::new();
    loop {
        if let Some(at) = all.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&all[..at]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
            if all.len() >= at + 4 + length {
                return Ok((head, String::from_utf8_lossy(&all[at + 4..at + 4 + length]).into_owned()));
            }
        }
        let mut buffer = [0; 16 << 10];
        match socket.read(&mut buffer).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => all.extend_from_slice(&buffer[..read]),
        }
    }
}

async fn reply(socket: &mut TcpStream, status: &str, body: &str) -> std::io::Result<()> {
    let text =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    socket.write_all(text.as_bytes()).await
}

async fn connection(mut socket: TcpStream, world: &Mutex<World>, wrong: Wrong) -> std::io::Result<()> {
    let (head, body) = request(&mut socket).await?;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    if let Some(id) = path.strip_prefix("/cancel/") {
        if wrong == Wrong::RefusesCancel {
            return reply(&mut socket, "501 Not Implemented", "{}").await;
        }
        let is_meant = |job: &Job| job.id == id || (wrong == Wrong::CancelsAlike && job.id.starts_with(id));
        let found: Vec<u64> = held(world).jobs.iter().filter(|(_, job)| is_meant(job)).map(|(number, _)| *number).collect();
        for number in found.into_iter().filter(|_| wrong != Wrong::IgnoresCancel) {
            held(world).leave(number, &Value::Null, wrong);
        }
        return reply(&mut socket, "200 OK", "{}").await;
    }
    if let Some(record) = path.strip_prefix("/records/").and_then(|id| held(world).records.get(id).cloned()) {
        return reply(&mut socket, "200 OK", &record).await;
    }
    match path.as_str() {
        "/v1/models" => reply(&mut socket, "200 OK", r#"{"data":[{"id":"scripted"}]}"#).await,
        // What routers look at before they send anything.
        "/health" => reply(&mut socket, "200 OK", "{}").await,
        "/metrics" => {
            let page = held(world).counters();
            reply(&mut socket, "200 OK", &page).await
        }
        "/v1/chat/completions" => {
            let body: Value = serde_json::from_str(&body).unwrap_or_default();
            if let Wrong::RefusesFirst(most) = wrong {
                let mut world = held(world);
                world.refused += u64::from(world.asked > 0);
                world.is_broken = (1..=most).contains(&world.refused);
            }
            if held(world).is_broken || (wrong == Wrong::RefusesDepartures && body["messages"][0].to_string().contains("verify-departure"))
            {
                return reply(&mut socket, "503 Service Unavailable", r#"{"error":{"message":"broken"}}"#).await;
            }
            let id = head.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap_or_default().to_owned();
            let (number, tokens) = held(world).ask(&id, &body);
            answer(socket, world, (number, tokens), &body, wrong).await
        }
        _ => reply(&mut socket, "404 Not Found", "{}").await,
    }
}

async fn answer(
    mut socket: TcpStream,
    world: &Mutex<World>,
    (number, mut tokens): (u64, mpsc::UnboundedReceiver<(u64, String)>),
    body: &Value,
    wrong: Wrong,
) -> std::io::Result<()> {
    let streaming = body["stream"] == true;
    let prompt = body["messages"][0]["content"].as_str().unwrap_or_default().split(' ').count();
    let n = body["n"].as_u64().unwrap_or(1);
    let (mut all, mut count, mut begun, mut half) = (vec![String::new(); usize::try_from(n).unwrap_or(1)], 0_u64, false, false);
    let padding = if matches!(wrong, Wrong::WritesMuch { .. }) { "x".repeat(PADDING) } else { String::new() };
    loop {
        let mut byte = [0; 1];
        let token = tokio::select! {
            // Nothing more is asked on this connection.
            read = socket.read(&mut byte), if !half => {
                half = wrong == Wrong::ServesHalfClose && read.is_ok();
                if half {
                    continue;
                }
                held(world).leave(number, body, wrong);
                if wrong == Wrong::NeverNotices {
                    while tokens.recv().await.is_some() {}
                }
                return Ok(());
            }
            token = tokens.recv() => token,
        };
        let Some((index, token)) = token else { break };
        count += 1;
        all[usize::try_from(index).unwrap_or(0)].push_str(&token);
        if streaming {
            let head = if begun { "" } else { "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" };
            begun = true;
            let chunk = json!({"choices": [{"index": index, "delta": {"content": token}}], "padding": padding});
            let event = format!("{head}data: {chunk}\n\n");
            let gives_up = wrong == Wrong::WritesMuch { gives_up: true };
            let written = tokio::time::timeout(if gives_up { STALLED } else { Duration::MAX }, socket.write_all(event.as_bytes())).await;
            // A caller that has reset its connection may be met here first.
            if !written.is_ok_and(|written| written.is_ok()) {
                held(world).leave(number, body, wrong);
                return Ok(());
            }
        }
    }
    if count < body["max_tokens"].as_u64().unwrap_or(16) * n {
        return Ok(());
    }
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": count});
    if streaming {
        let last = json!({"choices": [], "usage": usage});
        socket.write_all(format!("data: {last}\n\ndata: [DONE]\n\n").as_bytes()).await
    } else {
        let choice = |(index, said): (usize, &String)| json!({"index": index, "message": {"content": said}, "finish_reason": "length"});
        let whole = json!({"choices": all.iter().enumerate().map(choice).collect::<Vec<_>>(), "usage": usage});
        reply(&mut socket, "200 OK", &whole.to_string()).await
    }
}
