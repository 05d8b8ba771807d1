//! A whole server in this process, put together as `kvit serve` does it, over a device with a gate; and what stands between gateway and
//! worker looks at every message, so that a test knows when one has been handed on, and can add a deadline or a cancel of a worker's own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use engine::EngineConfig;
use gateway::{Gateway, GatewayConfig, GatewayError, Here, Link, LinkClosed};
use lifecycle::event::Event;
use lifecycle::message::{DeadlineLeft, Down, From, ModelInfo, Snapshot, Up};
use lifecycle::{AttemptId, Cause, Incarnation, RunId, RunKey, Tenant};
use model::arch::llama::{Llama, Precision};
use model::cpu::{CpuDevice, CpuOptions};
use model::gguf::Gguf;
use observe::{Clock, Journal, Limits, RunView};
use serde_json::Value;
use tokio::sync::oneshot;
use worker::{Text, Worker, WorkerConfig};

use super::PATIENCE;
use super::caller::Caller;
use super::gate::{Gate, gate};

const WORKER: Incarnation = Incarnation(0x1111);
const GATEWAY: Incarnation = Incarnation(0x2222);
/// Steps that the engine keeps in flight.
const STEPS_IN_FLIGHT: u64 = 2;
/// Most tokens of a step: two blocks.
pub const STEP_TOKENS: u32 = 32;
/// Questions with at least this number are the test's own.
const OWN_ASKS: u64 = 1 << 60;

/// A loaded model, shared by all stands on it.
#[derive(Clone)]
pub struct Loaded {
    llama: Arc<Llama>,
    text: Arc<Text>,
}

impl Loaded {
    pub fn open(path: &Path) -> Loaded {
        let gguf = Gguf::open(path).expect("the model opens");
        let text = Arc::new(Text::load(&gguf).expect("its tokenizer is supported"));
        Loaded { llama: Arc::new(Llama::load(&gguf, Precision::Fast).expect("its weights are supported")), text }
    }

    /// The tiny model with some tokens that are never chosen: they mark runs.
    pub fn tiny() -> Loaded {
        static TINY: OnceLock<Loaded> = OnceLock::new();
        TINY.get_or_init(|| {
            let path = std::env::temp_dir().join(format!("kvit-endings-{}.gguf", std::process::id()));
            let spec = model::tiny::TinySpec { vocab_extra: super::MARKERS, ..Default::default() };
            model::tiny::write(&path, &spec).expect("the tiny model can be written");
            let loaded = Loaded::open(&path);
            let _ = std::fs::remove_file(&path);
            loaded
        })
        .clone()
    }
}

/// Sizes and policies of a stand.
#[derive(Clone)]
pub struct Setup {
    pub model: Loaded,
    pub blocks: u32,
    pub max_running: u32,
    pub queue_limit: u32,
    /// Nothing but for the rows that are about it: a step that the gate holds would be taken for the device's pace.
    pub deadline_check_percent: u32,
    pub gateway: GatewayConfig,
}

impl Setup {
    pub fn new(model: &Loaded) -> Setup {
        let gateway = GatewayConfig {
            drain: Duration::ZERO,
            settle: PATIENCE,
            answer_grace: PATIENCE,
            ask_timeout: PATIENCE,
            ..GatewayConfig::default()
        };
        Setup { model: model.clone(), blocks: 128, max_running: 12, queue_limit: 64, deadline_check_percent: 0, gateway }
    }
}

/// What was handed to the worker.
#[derive(Default)]
struct Handed {
    numbers: HashMap<RunId, u64>,
    cancels: Vec<(RunId, Cause)>,
    /// Deadlines of the worker's own, put into the submits of these runs.
    deadlines: HashMap<RunId, DeadlineLeft>,
}

/// The server.
pub struct Stand {
    pub addr: SocketAddr,
    pub journal: Journal,
    pub gate: Arc<Gate>,
    pub setup: Setup,
    handed: Arc<Mutex<Handed>>,
    send: Arc<dyn Fn(From<Down>) -> Result<(), LinkClosed> + Send + Sync>,
    answers: std::sync::mpsc::Receiver<(u64, Snapshot)>,
    asks: AtomicU64,
    worker: Option<Worker>,
    stop: Option<oneshot::Sender<()>>,
    served: Option<tokio::task::JoinHandle<Result<(), GatewayError>>>,
    runtime: Option<tokio::runtime::Runtime>,
}

/// How long a stand took to stop, and how.
pub fn key(id: &str) -> RunKey {
    RunKey { tenant: Tenant::default(), run: RunId::parse(id).expect("a test's id is valid") }
}

impl Stand {
    pub fn start(setup: Setup) -> Stand {
        let options = CpuOptions { threads: 1, blocks_total: setup.blocks, block_tokens: 16, slots: setup.max_running, isa: None };
        let device = CpuDevice::new(setup.model.llama.clone(), options).expect("the device starts");
        let (gate, gated) = gate(Box::new(device));
        let journal = Journal::new(Clock::start(), Limits { records: 16_384, runs: 10_000, evicted: 16, ..Limits::default() });
        let engine = EngineConfig {
            step_tokens: STEP_TOKENS,
            max_running: setup.max_running,
            queue_limit: setup.queue_limit,
            deadline_check_percent: setup.deadline_check_percent,
            ..EngineConfig::default()
        };
        let info = ModelInfo {
            id: "tiny".into(),
            context: engine::Device::limits(&gated).context,
            default_max_tokens: engine.default_max_tokens,
            created: 1_700_000_000,
        };
        let config = WorkerConfig { incarnation: WORKER, engine, tokenise_threads: 1, deadline: std::time::Duration::from_secs(3600) };
        let (up, mut from_worker) = tokio::sync::mpsc::channel(1024);
        let worker = worker::start(config, Box::new(gated), setup.model.text.clone(), journal.clone(), up).expect("the worker starts");
        let to_worker = worker.sender();
        let send: Arc<dyn Fn(From<Down>) -> Result<(), LinkClosed> + Send + Sync> =
            Arc::new(move |message| to_worker(message).map_err(|_| LinkClosed));
        let handed = Arc::new(Mutex::new(Handed::default()));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let (to_gateway, up) = tokio::sync::mpsc::channel(1024);
        let (answer, answers) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            while let Some(From { incarnation, message }) = from_worker.recv().await {
                match message {
                    Up::Snapshot { ask, snapshot } if ask >= OWN_ASKS => drop(answer.send((ask, *snapshot))),
                    // A gateway that is gone reads nothing; the worker's last words still have to be taken off its hands.
                    message => drop(to_gateway.send(From { incarnation, message }).await),
                }
            }
        });
        let here = Here { incarnation: WORKER, offer: info.into(), name: "w".into() };
        let link = Link::thread(here, tap(send.clone(), handed.clone()), up);
        let gateway = Gateway::new(setup.gateway.clone(), vec![link], journal.clone(), GATEWAY);
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let addr = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let served = runtime.spawn(async move { gateway.serve(listener, async { drop(stopped.await) }, std::future::pending()).await });
        Stand {
            addr,
            journal,
            gate,
            setup,
            handed,
            send,
            answers,
            asks: AtomicU64::new(OWN_ASKS),
            worker: Some(worker),
            stop: Some(stop),
            served: Some(served),
            runtime: Some(runtime),
        }
    }

    fn handed<T>(&self, look: impl FnOnce(&mut Handed) -> T) -> T {
        look(&mut self.handed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the run's submit is in the worker's mailbox.
    pub fn is_submitted(&self, id: &str) -> bool {
        self.handed(|h| h.numbers.contains_key(&key(id).run))
    }

    /// Whether a cancel of the run with this cause is in the worker's mailbox.
    pub fn is_cancel_sent(&self, id: &str, cause: Cause) -> bool {
        self.handed(|h| h.cancels.contains(&(key(id).run, cause)))
    }

    /// The submit of this run will carry a deadline of the worker's own.
    pub fn add_deadline(&self, id: &str, left: Duration, cause: Cause) {
        self.handed(|h| h.deadlines.insert(key(id).run, DeadlineLeft { left, cause }));
    }

    /// A cancel that no caller and no deadline of this gateway caused.
    pub fn cancel_at_worker(&self, id: &str, cause: Cause) {
        let number = self.handed(|h| h.numbers.get(&key(id).run).copied()).expect("it was submitted");
        let attempt = AttemptId { key: key(id), attempt: 1 };
        let message = Down::Cancel { attempt, cause, number, observed_ago: Duration::ZERO };
        (self.send)(From { incarnation: GATEWAY, message }).expect("the worker listens");
    }

    /// The worker's own cut, asked past the gateway.
    pub fn cut(&self) -> Snapshot {
        let ask = self.asks.fetch_add(1, Ordering::Relaxed);
        (self.send)(From { incarnation: GATEWAY, message: Down::Snapshot { ask, blocks: true } }).expect("the worker listens");
        loop {
            let (answered, snapshot) = self.answers.recv_timeout(PATIENCE).expect("the worker answers");
            if answered == ask {
                return snapshot;
            }
        }
    }

    /// Waits until the held step and one behind it, as many as may be in flight, are all that is under way: then the engine plans nothing
    /// until they go. `or` names what else may keep it from planning.
    pub fn quiet(&self, or: impl Fn() -> bool) -> Snapshot {
        self.until("two steps in flight", || self.gate.held() == STEPS_IN_FLIGHT || or());
        self.gate.quiet();
        self.cut()
    }

    pub fn run(&self, id: &str) -> Option<RunView> {
        self.journal.run(&key(id))
    }

    pub fn count(&self, id: &str, wanted: impl Fn(&Event) -> bool) -> usize {
        self.journal.records(&key(id)).iter().filter(|r| wanted(&r.event)).count()
    }

    pub fn has(&self, id: &str, wanted: impl Fn(&Event) -> bool) -> bool {
        self.count(id, wanted) > 0
    }

    /// Waits until something holds.
    pub fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let since = Instant::now();
        while !holds() {
            assert!(since.elapsed() < PATIENCE, "it never came to: {what}");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    pub fn settled(&self, id: &str) -> RunView {
        let what = format!("{id} settled");
        self.until(&what, || self.run(id).is_some_and(|run| run.settled));
        self.run(id).expect("it is known")
    }

    pub fn request(&self, method: &str, path: &str) -> (u16, Value) {
        let mut caller = Caller::send(self.addr, method, path, "Connection: close\r\n", "");
        caller.drain();
        caller.whole()
    }

    /// `GET /v1/kv`: what must come back exactly, and that the account adds up.
    pub fn rest(&self) -> Rest {
        let (status, kv) = self.request("GET", "/v1/kv");
        assert_eq!((status, &kv["conserved"]), (200, &Value::Bool(true)), "{kv}");
        let n = |name: &str| u32::try_from(kv[name].as_u64().expect("a number")).expect("a small one");
        let live = ["queued", "running", "stopping"].iter().map(|w| kv["runs"][*w].as_u64().expect("a number")).sum();
        Rest { usable: n("free") + n("cached"), active: n("active"), draining: n("draining"), quarantined: n("quarantined"), live }
    }

    /// Begins the shutdown: no more runs, and whatever lives is cancelled at once.
    pub fn shut_down(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Waits for the end of the shutdown; what it ended with.
    pub fn served(&mut self) -> Result<(), GatewayError> {
        self.shut_down();
        let (Some(served), Some(runtime)) = (self.served.take(), &self.runtime) else { return Ok(()) };
        runtime.block_on(served).expect("serving does not panic")
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        // A test that failed must not wait for what it holds.
        self.gate.open_door();
        self.gate.go(None);
        if !std::thread::panicking() {
            let _ = self.served();
        }
        if let Some(worker) = self.worker.take() {
            worker.stop();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

/// An account at rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rest {
    /// Free or cached.
    pub usable: u32,
    pub active: u32,
    pub draining: u32,
    pub quarantined: u32,
    /// Runs that the worker knows.
    pub live: u64,
}

impl Rest {
    /// Everything is back but what a device has taken along.
    pub fn of(total: u32, quarantined: u32) -> Rest {
        Rest { usable: total - quarantined, active: 0, draining: 0, quarantined, live: 0 }
    }
}

fn tap(
    send: Arc<dyn Fn(From<Down>) -> Result<(), LinkClosed> + Send + Sync>,
    handed: Arc<Mutex<Handed>>,
) -> Box<dyn Fn(From<Down>) -> Result<(), LinkClosed> + Send + Sync> {
    Box::new(move |mut message| {
        let mut h = handed.lock().unwrap_or_else(PoisonError::into_inner);
        let note = match &mut message.message {
            Down::Submit(submit) => {
                let run = submit.attempt.key.run.clone();
                submit.deadlines.extend(h.deadlines.remove(&run));
                Some((run, Ok(submit.number)))
            }
            Down::Cancel { attempt, cause, .. } => Some((attempt.key.run.clone(), Err(*cause))),
            Down::Claim { .. } | Down::Disclaim { .. } | Down::Snapshot { .. } => None,
        };
        send(message)?;
        match note {
            Some((run, Ok(number))) => drop(h.numbers.insert(run, number)),
            Some((run, Err(cause))) => h.cancels.push((run, cause)),
            None => {}
        }
        Ok(())
    })
}
