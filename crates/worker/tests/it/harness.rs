//! A worker on a model, and what it says.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Device, EngineConfig};
use lifecycle::message::{Down, From, Prompt, Snapshot, Submit, Up};
use lifecycle::params::{Params, Sampling};
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, RunId, RunKey, Tenant};
use model::arch::llama::{Llama, Precision};
use model::cpu::{CpuDevice, CpuOptions};
use model::gguf::Gguf;
use observe::{Clock, Journal, Limits};
use worker::{Text, Worker, WorkerConfig};

const WORKER: Incarnation = Incarnation(7);
const GATEWAY: Incarnation = Incarnation(3);
const PATIENCE: Duration = Duration::from_secs(60);

/// What a run was seen to do.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    pub tokens: HashMap<u32, Vec<u32>>,
    /// What was said of each token's log-probability and those of the best others, where asked for: tokens, and the numbers' bits.
    pub logprobs: HashMap<u32, Vec<Vec<(u32, u32)>>>,
    pub text: HashMap<u32, String>,
    pub finish: HashMap<u32, Cause>,
    pub outcome: Option<Outcome>,
    pub released: u32,
    pub acknowledged: Vec<Option<Cause>>,
}

/// A worker and everything it said.
pub struct Rig {
    worker: Option<Worker>,
    up: tokio::sync::mpsc::Receiver<From<Up>>,
    pub journal: Journal,
    pub seen: HashMap<String, Seen>,
    /// What was said of a lost device.
    pub device_lost: Vec<String>,
    snapshots: HashMap<u64, Snapshot>,
    numbers: HashMap<String, u64>,
    asks: u64,
}

/// Sizes of a rig.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub blocks: u32,
    pub threads: usize,
    pub step_tokens: u32,
    pub max_running: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { blocks: 128, threads: 2, step_tokens: 64, max_running: 8 }
    }
}

pub fn id(name: &str) -> AttemptId {
    let run = RunId::parse(name).expect("a test's id is valid");
    AttemptId { key: RunKey { tenant: Tenant::default(), run }, attempt: 1 }
}

pub fn greedy(max_tokens: u32) -> Params {
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    Params { sampling, max_tokens: Some(max_tokens), ignore_eos: true, ..Params::default() }
}

/// Takes in what concerns a run; whatever else was said comes back.
pub fn see(seen: &mut HashMap<String, Seen>, message: Up) -> Option<Up> {
    let name = |a: &AttemptId| a.key.run.as_str().to_string();
    match message {
        Up::Step { deltas, .. } => {
            for d in deltas {
                let seen = seen.entry(name(&d.attempt)).or_default();
                assert_eq!(seen.outcome, None, "a token after the end");
                seen.tokens.entry(d.sequence).or_default().extend(d.tokens);
                let bits = d.logprobs.iter().map(|l| {
                    let top = l.top.iter().map(|(token, _, logprob)| (*token, logprob.to_bits()));
                    std::iter::once((l.token, l.logprob.to_bits())).chain(top).collect()
                });
                seen.logprobs.entry(d.sequence).or_default().extend(bits);
                seen.text.entry(d.sequence).or_default().push_str(&d.text);
                if let Some(cause) = d.finish {
                    seen.finish.insert(d.sequence, cause);
                }
            }
        }
        Up::Ended { attempt, outcome, .. } => {
            let before = seen.entry(name(&attempt)).or_default().outcome.replace(outcome);
            assert_eq!(before, None, "a second outcome");
        }
        Up::Released { attempt, receipt } => {
            assert_eq!(receipt.blocks_held, 0);
            seen.entry(name(&attempt)).or_default().released += 1;
        }
        Up::CancelAcknowledged { attempt, won } => seen.entry(name(&attempt)).or_default().acknowledged.push(won),
        other => return Some(other),
    }
    None
}

impl Rig {
    pub fn new(path: &Path, sizes: Sizes) -> Rig {
        let gguf = Gguf::open(path).expect("the model can be read");
        let text = Arc::new(Text::load(&gguf).expect("its tokenizer is supported"));
        let llama = Arc::new(Llama::load(&gguf, Precision::Fast).expect("its weights are supported"));
        let options =
            CpuOptions { threads: sizes.threads, blocks_total: sizes.blocks, block_tokens: 16, slots: sizes.max_running, isa: None };
        let device = CpuDevice::new(llama, options).expect("the device starts");
        Rig::over(Box::new(device), text, sizes)
    }

    /// A worker over any device.
    pub fn over(device: Box<dyn Device>, text: Arc<Text>, sizes: Sizes) -> Rig {
        let journal = Journal::new(Clock::start(), Limits::default());
        let (send, up) = tokio::sync::mpsc::channel(1 << 16);
        let engine = EngineConfig { step_tokens: sizes.step_tokens, max_running: sizes.max_running, ..EngineConfig::default() };
        let config = WorkerConfig { incarnation: WORKER, engine, tokenise_threads: 1, deadline: PATIENCE * 60 };
        let worker = worker::start(config, device, text, journal.clone(), send).expect("the worker starts");
        Rig {
            worker: Some(worker),
            up,
            journal,
            seen: HashMap::new(),
            device_lost: Vec::new(),
            snapshots: HashMap::new(),
            numbers: HashMap::new(),
            asks: 0,
        }
    }

    pub fn send(&self, message: Down) {
        let worker = self.worker.as_ref().expect("it runs");
        worker.send(From { incarnation: GATEWAY, message }).expect("it takes messages");
    }

    pub fn submit(&mut self, name: &str, prompt: Prompt, params: Params) {
        let number = self.numbers.len() as u64 + 1;
        self.numbers.insert(name.to_string(), number);
        self.seen.entry(name.to_string()).or_default();
        self.send(Down::Submit(Box::new(Submit {
            attempt: id(name),
            worker: WORKER,
            number,
            model: "".into(),
            prompt,
            params,
            deadlines: Vec::new(),
        })));
    }

    pub fn cancel(&self, name: &str, cause: Cause) {
        let number = self.numbers.get(name).copied().unwrap_or(u64::MAX);
        self.send(Down::Cancel { attempt: id(name), cause, number, observed_ago: Duration::ZERO });
    }

    fn take(&mut self, message: Up) {
        match see(&mut self.seen, message) {
            Some(Up::Snapshot { ask, snapshot }) => {
                self.snapshots.insert(ask, *snapshot);
            }
            Some(Up::DeviceLost { why }) => self.device_lost.push(why),
            _ => {}
        }
    }

    /// Takes messages in until something holds.
    pub fn until(&mut self, what: &str, holds: impl Fn(&Rig) -> bool) {
        let since = Instant::now();
        while !holds(self) {
            match self.up.try_recv() {
                Ok(From { message, .. }) => self.take(message),
                Err(_) => std::thread::sleep(Duration::from_micros(50)),
            }
            assert!(since.elapsed() < PATIENCE, "it never came to: {what}");
        }
    }

    pub fn tokens(&self, name: &str) -> usize {
        self.seen.get(name).map_or(0, |s| s.tokens.values().map(Vec::len).sum())
    }

    pub fn released(&mut self, name: &str) -> Seen {
        self.until(&format!("{name} released"), |rig| rig.seen.get(name).is_some_and(|s| s.released > 0));
        self.seen[name].clone()
    }

    pub fn snapshot(&mut self) -> Snapshot {
        self.asks += 1;
        let ask = self.asks;
        self.send(Down::Snapshot { ask, blocks: true });
        self.until("an answer", |rig| rig.snapshots.contains_key(&ask));
        self.snapshots[&ask].clone()
    }

    /// Everything is back and nothing is left of any run.
    pub fn assert_at_rest(&mut self) {
        let s = self.snapshot();
        assert!(s.is_conserved(), "{s:?}");
        assert_eq!((s.free + s.cached, s.active, s.draining, s.quarantined), (s.total, 0, 0, 0));
        assert_eq!((s.attempts.len(), s.queued, s.running, s.stopping), (0, 0, 0, 0));
        assert!(s.blocks.iter().all(|b| b.owners.is_empty()));
        assert!(s.held.kinds().iter().all(|(_, n)| *n == 0), "{:?}", s.held);
        assert_eq!(self.journal.defects(), 0);
    }

    /// Ends the worker; all its threads are gone afterwards.
    pub fn stop(mut self) -> HashMap<String, Seen> {
        if let Some(worker) = self.worker.take() {
            worker.stop();
        }
        while let Ok(From { message, .. }) = self.up.try_recv() {
            self.take(message);
        }
        std::mem::take(&mut self.seen)
    }
}

/// The tiny model, written once a test process; the folder goes with the process's temporary files.
pub fn tiny() -> std::path::PathBuf {
    let dir = std::env::temp_dir().join(format!("kvit-worker-it-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the temporary folder can be made");
    let path = dir.join("tiny.gguf");
    if !path.exists() {
        model::tiny::write(&path, &model::tiny::TinySpec::default()).expect("the tiny model can be written");
    }
    path
}
