//! A worker that listens, and a proxy before it whose cable can be pulled.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use engine::{Device, DeviceLimits, DoneSink, EngineConfig, StepPlan, SubmitError};
use lifecycle::Incarnation;
use lifecycle::event::Event;
use lifecycle::message::{ModelInfo, Prompt, Snapshot};
use lifecycle::params::Params;
use lifecycle::session::SessionConfig;
use model::arch::llama::{Llama, Precision};
use model::cpu::{CpuDevice, CpuOptions};
use model::gguf::Gguf;
use observe::{Clock, Journal, Limits};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use worker::grpc::GrpcConfig;
use worker::{Door, SessionWorker, SessionsCut, Text, WorkerConfig};

use crate::harness::{Rig, Sizes, id, tiny};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a test's worker is made of.
#[derive(Clone)]
pub struct Setup {
    pub incarnation: Incarnation,
    pub session: SessionConfig,
    pub engine: EngineConfig,
    pub grpc: GrpcConfig,
    /// Least time a step takes.
    pub pace: Duration,
    /// While this is set the device takes no step, and holds the engine thread up with it. No device may do that.
    pub hold: Arc<Hold>,
}

/// A device that is held, and whether somebody waits for it.
#[derive(Default)]
pub struct Hold {
    pub set: AtomicBool,
    pub waits: AtomicBool,
}

impl Default for Setup {
    fn default() -> Self {
        let ms = Duration::from_millis;
        let session = SessionConfig {
            heartbeat: ms(20),
            suspend_after: ms(100),
            lease: ms(5_000),
            resend_after: ms(100),
            ask_every: ms(200),
            ..SessionConfig::default()
        };
        let engine = EngineConfig { step_tokens: 64, max_running: 8, in_flight: 1, ..EngineConfig::default() };
        Setup { incarnation: Incarnation(7), session, engine, grpc: GrpcConfig::default(), pace: ms(2), hold: Arc::default() }
    }
}

/// A device whose steps take a while, so that there is a middle of a run.
struct Paced(CpuDevice, Duration, Arc<Hold>);

impl Device for Paced {
    fn limits(&self) -> DeviceLimits {
        self.0.limits()
    }

    fn submit(&mut self, plan: StepPlan, done: DoneSink) -> Result<(), (SubmitError, StepPlan)> {
        while self.2.set.load(Ordering::SeqCst) {
            self.2.waits.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        let pace = self.1;
        let later: DoneSink = Box::new(move |step| {
            std::thread::sleep(pace);
            done(step);
        });
        self.0.submit(plan, later)
    }
}

/// A worker that listens.
pub struct Host {
    pub rt: Arc<Runtime>,
    worker: Option<SessionWorker>,
    pub door: Door,
    pub addr: SocketAddr,
    pub journal: Journal,
    stop: watch::Sender<bool>,
    served: Option<tokio::task::JoinHandle<Result<(), worker::grpc::ServeError>>>,
}

impl Host {
    pub fn new(setup: &Setup) -> Host {
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let gguf = Gguf::open(&tiny()).expect("the model can be read");
        let text = Arc::new(Text::load(&gguf).expect("its tokenizer is supported"));
        let llama = Arc::new(Llama::load(&gguf, Precision::Fast).expect("its weights are supported"));
        let options = CpuOptions { threads: 1, blocks_total: 256, block_tokens: 16, slots: setup.engine.max_running, isa: None };
        let device = Paced(CpuDevice::new(llama, options).expect("the device starts"), setup.pace, setup.hold.clone());
        let context = device.limits().context;
        let journal = Journal::new(Clock::start(), Limits::default());
        let config =
            WorkerConfig { incarnation: setup.incarnation, engine: setup.engine.clone(), tokenise_threads: 1, deadline: PATIENCE * 60 };
        let worker = worker::start_sessions(config, "w".into(), setup.session, Box::new(device), text, journal.clone());
        let worker = worker.expect("the worker starts");
        let model = ModelInfo { id: "tiny".into(), context, default_max_tokens: 16, created: 1 };
        let (stop, told) = watch::channel(false);
        let listener = rt.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let addr = listener.local_addr().expect("it has an address");
        let wait = |mut told: watch::Receiver<bool>| async move {
            let _ = told.wait_for(|stop| *stop).await;
        };
        let serving = worker::grpc::serve(worker.door(), listener, setup.grpc, setup.session, model, wait(told.clone()), wait(told));
        let served = rt.spawn(serving);
        Host { rt: Arc::new(rt), door: worker.door(), worker: Some(worker), addr, journal, stop, served: Some(served) }
    }

    pub fn snapshot(&self) -> Snapshot {
        self.rt.block_on(self.door.snapshot(true)).expect("the worker is there")
    }

    pub fn sessions(&self) -> SessionsCut {
        self.rt.block_on(self.door.sessions()).expect("the worker is there")
    }

    /// Steps that computed something for a run.
    pub fn steps(&self, name: &str) -> usize {
        self.events(name).iter().filter(|event| matches!(event, Event::Computed { .. })).count()
    }

    pub fn events(&self, name: &str) -> Vec<Event> {
        self.journal.records(&id(name).key).into_iter().map(|record| record.event).collect()
    }

    /// The most steps that were computed for a run between its being suspended and its being attached, or its end.
    pub fn steps_while_suspended(&self, name: &str) -> usize {
        let (mut most, mut since) = (0, None);
        for event in self.events(name) {
            match (event, &mut since) {
                (Event::Suspended, _) => since = Some(0),
                (Event::Attached, _) => since = None,
                (Event::Computed { .. }, Some(steps)) => {
                    *steps += 1;
                    most = most.max(*steps);
                }
                _ => {}
            }
        }
        most
    }

    pub fn until(&self, what: &str, holds: impl Fn(&Host) -> bool) {
        let since = Instant::now();
        while !holds(self) {
            std::thread::sleep(Duration::from_millis(1));
            assert!(since.elapsed() < PATIENCE, "it never came to: {what}");
        }
    }

    pub fn suspended(&self, name: &str) -> usize {
        self.events(name).iter().filter(|event| matches!(event, Event::Suspended)).count()
    }

    /// Nothing of any run is left, here or in the sessions; the blocks add up.
    pub fn assert_at_rest(&self) {
        let s = self.snapshot();
        assert!(s.is_conserved(), "{s:?}");
        assert_eq!((s.free + s.cached, s.active, s.draining, s.quarantined, s.orphaned), (s.total, 0, 0, 0, 0));
        assert_eq!((s.attempts.len(), s.queued, s.running, s.stopping), (0, 0, 0, 0));
        assert!(s.held.kinds().iter().all(|(_, n)| *n == 0), "{:?}", s.held);
        let held = self.sessions().held;
        assert!(held.iter().all(|(kind, n)| *n == 0 || ["gateways", "unacknowledged", "tombstones"].contains(kind)), "{held:?}");
        assert_eq!(self.journal.defects(), 0);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.stop();
        }
        let _ = self.stop.send(true);
        if let Some(served) = self.served.take() {
            let served = self.rt.block_on(served);
            if !std::thread::panicking() {
                served.expect("no panic").expect("it served to the end");
            }
        }
    }
}

/// What a run comes to on a worker of its own: tokens and steps. Asked for once a prompt and length.
pub fn alone(prompt: &[u32], params: &Params) -> (Vec<u32>, usize) {
    type Known = HashMap<(Vec<u32>, Option<u32>), (Vec<u32>, usize)>;
    static KNOWN: OnceLock<std::sync::Mutex<Known>> = OnceLock::new();
    let mut known = KNOWN.get_or_init(Default::default).lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let entry = known.entry((prompt.to_vec(), params.max_tokens));
    entry
        .or_insert_with(|| {
            let mut rig = Rig::new(&tiny(), Sizes { threads: 1, ..Sizes::default() });
            rig.submit("alone", Prompt::Tokens(prompt.to_vec()), params.clone());
            let tokens = rig.released("alone").tokens[&0].clone();
            let steps = rig.journal.records(&id("alone").key).iter().filter(|r| matches!(r.event, Event::Computed { .. })).count();
            rig.stop();
            (tokens, steps)
        })
        .clone()
}

/// A cable between a gateway and a worker.
pub struct Cable {
    pub addr: SocketAddr,
    plugged: Arc<AtomicBool>,
    pulled: watch::Sender<u64>,
}

impl Cable {
    pub fn to(host: &Host) -> Cable {
        let (plugged, pulled, target) = (Arc::new(AtomicBool::new(true)), watch::Sender::new(0), host.addr);
        let (tell, addr) = mpsc::channel();
        let (is_plugged, watched) = (plugged.clone(), pulled.subscribe());
        host.rt.spawn(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            tell.send(listener.local_addr().expect("it has an address")).expect("somebody waits");
            while let Ok((mut near, _)) = listener.accept().await {
                let mut pulled = watched.clone();
                pulled.mark_unchanged();
                if !is_plugged.load(Ordering::SeqCst) {
                    continue;
                }
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = pulled.changed() => {}
                    }
                });
            }
        });
        Cable { addr: addr.recv().expect("it listens"), plugged, pulled }
    }

    /// Every connection breaks, and no other is made.
    pub fn pull(&self) {
        self.plugged.store(false, Ordering::SeqCst);
        self.pulled.send_modify(|n| *n += 1);
    }

    pub fn plug(&self) {
        self.plugged.store(true, Ordering::SeqCst);
    }
}
