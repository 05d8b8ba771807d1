//! An upstream as a worker behind a gateway's link: what the table sends down becomes requests, and what the engine answers comes up as words.
//!
//! One task a request. It owns the request's connection, and a cancel ends the task at whatever it waits for: the connection is closed with it.
//! What is said up then is what is known: that the run has ended, and, once the engine's counters have shown it or did not in time, how well that
//! is proven. Another kvit is asked for its record of the run. One task an upstream looks who it is, whether it is there, and at its counters while a cancel is not proven.
//!
//! Invariant: every submit is answered by one `Ended` and one `LetGo`, or, where nothing was sent that could have an effect, by the words of a
//! worker that gives it back.
// contract: C-2 C-8 C-28 C-29
// field: F-01 F-03

mod ask;
mod health;
mod judge;
mod observe;
mod proof;
mod reading;
mod run;
mod tell;
mod witness;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gateway::{Ear, Link, LinkClosed, LinkEvent, SendDown};
use lifecycle::message::{Down, From, Up};
use lifecycle::{AttemptId, Cause, Incarnation};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::abort::Aborter;
use crate::breaker::{Breaker, Epoch};
use crate::client::Client;
use crate::config::{ConfigError, UpstreamConfig};
use crate::detect::Detected;
use crate::evidence::Ledger;
use crate::kind::{CancelBy, Capabilities, Kind};

/// How long proofs are looked for once the gateway ends its runs because it goes away itself: less than it waits for them to settle.
const LAST_LOOKS: Duration = Duration::from_secs(3);

/// An upstream's tasks; dropping it ends none of them.
pub struct Upstream {
    shared: Arc<Shared>,
}

/// What is known of the engine since it was last met.
#[derive(Clone, Debug)]
struct Met {
    detected: Detected,
    capabilities: Capabilities,
    /// The model that a witness asks for.
    model: Arc<str>,
    /// How it is told of cancels.
    cancel: CancelBy,
}

impl Met {
    /// Whether it is another kvit that shows its record of a run to us, and heeds what it is told.
    fn keeps_records(&self) -> bool {
        self.detected.kind == Kind::Kvit && self.detected.counters && self.cancel != CancelBy::Nothing
    }
}

struct Shared {
    config: UpstreamConfig,
    client: Client,
    /// This life of the link. The engine behind it may be another than before (`health`): its runs are this link's all the same.
    life: Incarnation,
    began: Instant,
    ear: Ear,
    met: watch::Sender<Option<Arc<Met>>>,
    aborter: Mutex<Arc<Aborter>>,
    ledger: Mutex<Ledger>,
    /// Attempts whose end is told and whose proof is not.
    unproven: Mutex<HashMap<u64, AttemptId>>,
    /// Requests that are not over, by attempt: where each hears of its cancel.
    live: Mutex<HashMap<AttemptId, watch::Sender<Option<Cause>>>>,
    /// A cancel waits for its proof.
    closed: Notify,
    /// One may need a witness for it.
    unwitnessed: Notify,
    /// The engine is asked no new thing until it was looked at.
    doubted: AtomicBool,
    doubt: Notify,
    /// Nobody listened there since it was met.
    refused: AtomicBool,
    /// It has refused to be asked for a witness since it was met.
    takes_no_witness: AtomicBool,
    /// One of its answers since it was met was LiteLLM's.
    is_litellm: AtomicBool,
    /// What becomes of it when its runs fail, and in which of its epochs a run is sent.
    breaker: Mutex<Breaker>,
    epoch: Epoch,
    /// Tasks that are not over.
    tasks: AtomicUsize,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn tell(&self, event: LinkEvent) {
        self.ear.tell(event);
    }

    fn say(&self, message: Up) {
        self.tell(LinkEvent::Up(From { incarnation: self.life, message }));
    }

    fn aborter(&self) -> Arc<Aborter> {
        held(&self.aborter).clone()
    }

    /// What it can do; before it was met, nothing but closing.
    fn capabilities(&self) -> Option<Arc<Met>> {
        self.met.borrow().clone()
    }
}

/// A link to the upstream of `config`, as this life, and what has to run for it.
///
/// # Errors
/// [`ConfigError`]: no client can be made for it.
pub fn link(config: UpstreamConfig, life: Incarnation) -> Result<(Link, Upstream), ConfigError> {
    config.check()?;
    let client = Client::new(&config)?;
    let ear = Ear::default();
    let kind = config.kind.unwrap_or(Kind::OpenAi);
    let cancel = kind.cancel(config.cancel);
    let breaker = Breaker::new(config.failures_max, config.open, config.open_max);
    let shared = Arc::new(Shared {
        ledger: Mutex::new(Ledger::new(cancel, None, config.observe_for)),
        aborter: Mutex::new(Arc::new(Aborter::new(kind, cancel))),
        client,
        life,
        began: Instant::now(),
        ear: ear.clone(),
        met: watch::Sender::new(None),
        unproven: Mutex::default(),
        live: Mutex::default(),
        closed: Notify::new(),
        unwitnessed: Notify::new(),
        doubted: AtomicBool::new(false),
        doubt: Notify::new(),
        refused: AtomicBool::new(false),
        takes_no_witness: AtomicBool::new(false),
        is_litellm: AtomicBool::new(false),
        epoch: breaker.epoch(),
        breaker: Mutex::new(breaker),
        tasks: AtomicUsize::new(0),
        config,
    });
    let name: Arc<str> = shared.config.name.as_str().into();
    let down = shared.clone();
    let send: SendDown = Box::new(move |message| down.take_down(message.message));
    Ok((Link::engine(name, send, ear, health::expected(&shared.config)), Upstream { shared }))
}

/// What a link has in hand now. A clone looks at the same link.
#[derive(Clone)]
pub struct InHand(Arc<Shared>);

impl InHand {
    /// Tasks of requests that are not over, and of cancels that are being told by id.
    pub fn tasks(&self) -> usize {
        self.0.tasks.load(Ordering::Acquire)
    }

    /// Requests whose end was not told yet.
    pub fn requests(&self) -> usize {
        held(&self.0.live).len()
    }

    /// Requests whose end was told, and for which nobody has said yet how well it is proven.
    pub fn unproven(&self) -> usize {
        held(&self.0.unproven).len()
    }

    /// Connections to the engine that something is asked on.
    pub fn busy(&self) -> usize {
        self.0.client.open().saturating_sub(self.0.client.idle())
    }
}

/// One task of a link, for as long as it runs, however it ends.
struct Task(Arc<Shared>);

impl Task {
    fn begin(shared: &Arc<Shared>) -> Task {
        shared.tasks.fetch_add(1, Ordering::AcqRel);
        Task(shared.clone())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.tasks.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Upstream {
    /// A look at what the link has in hand.
    pub fn in_hand(&self) -> InHand {
        InHand(self.shared.clone())
    }

    /// Meets the engine, watches it, and looks for proofs, for as long as it is polled.
    pub async fn run(self) {
        tokio::join!(health::watch(&self.shared), observe::watch(&self.shared), witness::watch(&self.shared));
    }
}

impl Shared {
    /// What the table sends. Never waits.
    fn take_down(self: &Arc<Self>, message: Down) -> Result<(), LinkClosed> {
        match message {
            Down::Submit(submit) => {
                let (cancel, cancelled) = watch::channel(None);
                held(&self.live).insert(submit.attempt.clone(), cancel);
                // Here, where it is decided that it is sent: whoever decides may hold the breaker.
                let epoch = self.epoch.now();
                let (task, run) = (Task::begin(self), run::run(self.clone(), (*submit, epoch), cancelled));
                tokio::spawn(async move {
                    let _task = task;
                    run.await;
                });
            }
            // One that is not here has said its end, which is on its way.
            Down::Cancel { attempt, cause, .. } => {
                if cause == Cause::Shutdown {
                    held(&self.ledger).end_by(self.now().saturating_add(LAST_LOOKS));
                    self.closed.notify_one();
                }
                if let Some(cancel) = held(&self.live).get(&attempt) {
                    cancel.send_if_modified(|wanted| wanted.is_none().then(|| *wanted = Some(cause)).is_some());
                }
            }
            Down::Disclaim { attempts } => {
                let live = held(&self.live);
                for cancel in attempts.iter().filter_map(|attempt| live.get(attempt)) {
                    cancel.send_if_modified(|wanted| wanted.is_none().then(|| *wanted = Some(Cause::Orphaned)).is_some());
                }
            }
            // It has no account, and nothing of it is suspended.
            Down::Claim { .. } | Down::Snapshot { .. } => {}
        }
        Ok(())
    }

    /// Something shows that it may not be there: no new runs until it was looked at.
    fn doubt(&self) {
        self.doubt_within(&held(&self.breaker));
    }

    /// The same, for whoever holds the breaker: what is decided under its lock is told under it.
    fn doubt_within(&self, _: &Breaker) {
        if !self.doubted.swap(true, Ordering::AcqRel) {
            self.tell(LinkEvent::Silent);
        }
        self.doubt.notify_one();
    }

    /// Something shows that it may be another than was met: it is asked, and gets new runs meanwhile.
    fn wonder(&self) {
        self.doubt.notify_one();
    }

    /// A run that was sent in this epoch has failed by the engine.
    fn failed(&self, epoch: u64) {
        let mut breaker = held(&self.breaker);
        if breaker.failed(epoch, self.now()) {
            tracing::warn!(upstream = %self.config.name, "fails run after run: its circuit is open");
            self.doubt_within(&breaker);
        }
    }

    /// It has answered a run that was sent in this epoch that it has too much to do: it is left alone for as long as it says, or a short time.
    /// One that refuses at once would otherwise be the one with the least to do, and get every run.
    fn crowded(&self, epoch: u64, wait: Option<Duration>) {
        let wait = wait.unwrap_or(self.config.open).min(self.config.open_max);
        let mut breaker = held(&self.breaker);
        if breaker.hold(epoch, self.now(), wait) {
            tracing::info!(upstream = %self.config.name, wait_ms = wait.as_millis(), "has too much to do (429): it is left alone for a while");
            self.doubt_within(&breaker);
        }
    }

    /// A run that was sent in this epoch went well, or was refused for what it asks.
    fn worked(&self, epoch: u64) {
        let mut breaker = held(&self.breaker);
        if breaker.worked(epoch) {
            tracing::info!(upstream = %self.config.name, "a run went well: its circuit is closed");
            self.tell(LinkEvent::Back);
        }
    }
}
