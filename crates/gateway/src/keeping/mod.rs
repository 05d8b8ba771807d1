//! What of a run outlives this process: its acceptance, its events where they are kept, its outcome, its record.
//!
//! The table decides and says what is to be written; one task, the recorder, commits it in groups, in the order of the decisions. No token
//! waits for a disk: an interactive run waits for the store twice, before it begins and before its end is told, and no longer than
//! `store_patience` if the store is not there. A background run is not answered before it is safe, and nobody reads an event of it that is not.
//!
//! Invariant: what is written of a run is written in the order in which it was decided; what was refused is never computed.
// contract: C-5 C-26

mod accept;
mod attend;
mod cancel;
mod ending;
mod erase;
mod follow;
mod hub;
mod log;
mod owners;
mod recorder;
mod say;
mod unsure;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use lifecycle::RunKey;
use observe::RunView;
use store::{RunStore, StoreError, Survives, Write, Wrote};
use tokio::sync::{mpsc, oneshot};

pub(crate) use attend::Attendance;
pub(crate) use follow::Follow;
pub(crate) use log::{Log, door_part, tools};
pub(crate) use recorder::Jobs;

use crate::calls::Calls;
use crate::config::KeepConfig;
use attend::Attending;
use ending::Ending;
use hub::Hub;
use recorder::{After, Job};

/// The way to the store.
pub(crate) struct Keeper {
    pub(crate) store: Arc<dyn RunStore>,
    pub(crate) config: KeepConfig,
    jobs: mpsc::UnboundedSender<Job>,
    /// Writes that are not committed yet.
    waiting: AtomicUsize,
    /// The last commit went well.
    available: AtomicBool,
    pub(crate) hub: Hub,
    /// Who reads other gateways' runs here.
    attending: Attending,
    /// Outcomes that are set here and not in the store yet.
    pub(crate) ending: Ending,
    /// Runs that went on though the store had not answered in time.
    pub(crate) late: AtomicU64,
    /// Runs that another gateway took over from here, newest last: what this process knows of them is not what is true.
    given_up: Mutex<VecDeque<RunKey>>,
}

/// Runs that were taken over from here of which that is remembered.
const GIVEN_UP_MAX: usize = 4096;

impl Keeper {
    pub(crate) fn new(store: Arc<dyn RunStore>, config: KeepConfig) -> (Keeper, Jobs) {
        let (jobs, receive) = mpsc::unbounded_channel();
        let keeper = Keeper {
            store,
            config,
            jobs,
            waiting: AtomicUsize::new(0),
            available: AtomicBool::new(true),
            hub: Hub::default(),
            attending: Attending::default(),
            ending: Ending::default(),
            late: AtomicU64::new(0),
            given_up: Mutex::default(),
        };
        (keeper, receive)
    }

    /// Writes that wait for the store.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether the store answered last.
    pub(crate) fn is_available(&self) -> bool {
        self.available.load(Ordering::Relaxed)
    }

    /// Another gateway has taken a run over from here.
    fn given_up(&self, key: &RunKey) {
        let mut given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        if !given_up.contains(key) {
            if given_up.len() == GIVEN_UP_MAX {
                given_up.pop_front();
            }
            given_up.push_back(key.clone());
        }
    }

    /// Whether what is true of a run is what the store says, and not what this process has recorded.
    fn has_given_up(&self, key: &RunKey) -> bool {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    /// Whether so much waits that nothing new is taken on.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting() >= self.config.queue_max
    }

    fn send(&self, writes: Vec<Write>, survives: Survives, after: After) {
        self.waiting.fetch_add(writes.len(), Ordering::Relaxed);
        // The recorder goes last of all; what comes after it has nobody to tell.
        let _ = self.jobs.send(Job { writes, survives, after, tried: false });
    }

    /// Writes in its turn, however long the store is away. Nobody waits for it.
    pub(crate) fn write(&self, write: Write, survives: Survives) {
        self.send(vec![write], survives, After::Nothing);
    }

    /// Writes in its turn, and says what became of it. A write that `may_be_refused` is answered with an error if the store is not there; an
    /// accept is then taken back when it is.
    async fn ask(&self, write: Write, survives: Survives, may_be_refused: bool) -> Result<Wrote, StoreError> {
        self.asked(write, survives, may_be_refused).await.unwrap_or_else(|_| Err(stopping()))
    }

    /// The same, waiting no longer than `patience`: `None` if there was no answer by then. An accept is then taken back.
    async fn ask_patiently(&self, write: Write, survives: Survives) -> Option<Wrote> {
        let mut answer = self.asked(write, survives, false);
        let wrote = match tokio::time::timeout(self.config.patience, &mut answer).await {
            Ok(answer) => answer.ok(),
            Err(_) => {
                // From here on the recorder knows that nobody waits; what it answered before that counts.
                answer.close();
                answer.try_recv().ok()
            }
        };
        wrote.and_then(Result::ok)
    }

    fn asked(&self, write: Write, survives: Survives, may_be_refused: bool) -> oneshot::Receiver<Result<Wrote, StoreError>> {
        let (reply, answer) = oneshot::channel();
        self.send(vec![write], survives, After::Reply { reply, may_be_refused });
        answer
    }
}

fn stopping() -> StoreError {
    StoreError::Unavailable("this process stops".to_owned())
}

impl Calls {
    /// A run as this process knows it, if what it knows is what is true.
    pub(crate) fn known_here(&self, key: &RunKey) -> Option<RunView> {
        let elsewhere = self.keeper.as_ref().is_some_and(|keeper| keeper.has_given_up(key));
        if elsewhere { None } else { self.journal.run(key) }
    }
}

/// Milliseconds of the calendar.
pub(crate) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
