//! Starting and stopping a worker: for a gateway in the same process (`start`), or for gateways in others (`start_sessions`).
//!
//! Invariant: both are the same engine thread; what differs is who speaks with it.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::{Device, EngineConfig};
use lifecycle::Incarnation;
use lifecycle::message::{Down, From, Up};
use lifecycle::session::{SessionConfig, WorkerSide};
use observe::{Clock, Journal};

use crate::door::{Door, Ended};
use crate::engine_thread::EngineThread;
use crate::mail::Mail;
use crate::sessions::{Links, Sessions};
use crate::text::Text;
use crate::tokenise;

/// What a worker needs to know beside its device and its model's text side.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// This life of the worker.
    pub incarnation: Incarnation,
    /// The engine's limits.
    pub engine: EngineConfig,
    /// Threads that render and tokenise prompts.
    pub tokenise_threads: usize,
    /// How long an attempt may be here, whatever its gateway says (`worker_deadline`).
    pub deadline: Duration,
}

/// The worker takes no more messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the worker has ended")]
pub struct Closed;

/// A running worker, for a gateway in this process.
pub struct Worker {
    thread: Running,
    clock: Clock,
}

impl Worker {
    /// Hands a message to the worker. Order is kept.
    pub fn send(&self, message: From<Down>) -> Result<(), Closed> {
        self.sender()(message)
    }

    /// A sender that outlives this handle. It never waits.
    pub fn sender(&self) -> impl Fn(From<Down>) -> Result<(), Closed> + Send + Sync + 'static {
        let (mailbox, clock) = (self.thread.mailbox.clone(), self.clock);
        move |message| mailbox.send(Mail::Down(message, clock.now())).map_err(|_| Closed)
    }

    /// Ends every attempt (cause `shutdown`), waits until all are released and the threads are gone.
    pub fn stop(self) {
        self.thread.stop();
    }
}

/// A running worker, for gateways in other processes.
pub struct SessionWorker {
    thread: Running,
    door: Door,
}

impl SessionWorker {
    /// What speaks with it: sessions, questions, drain. A clone outlives this handle.
    pub fn door(&self) -> Door {
        self.door.clone()
    }

    /// Ends every attempt (cause `shutdown`), waits until all are released and the threads are gone. Sessions are over then.
    pub fn stop(self) {
        self.thread.stop();
    }
}

struct Running {
    mailbox: Sender<Mail>,
    handle: JoinHandle<()>,
}

impl Running {
    fn stop(self) {
        let _ = self.mailbox.send(Mail::Stop);
        let _ = self.handle.join();
    }
}

/// Starts a worker over a device. `up` gets what it has to say; it never waits for a caller, only for the channel.
///
/// # Errors
/// The system gives no thread.
pub fn start(
    config: WorkerConfig,
    device: Box<dyn Device>,
    text: Arc<Text>,
    journal: Journal,
    up: tokio::sync::mpsc::Sender<From<Up>>,
) -> std::io::Result<Worker> {
    let clock = journal.clock();
    let thread = run(config, device, text, journal, Links::Local { up, gateway: None }, Ended::default())?;
    Ok(Worker { thread, clock })
}

/// Starts a worker over a device that gateways reach by sessions. `name` is the worker's own, the same through all its lives.
///
/// # Errors
/// The system gives no thread.
pub fn start_sessions(
    config: WorkerConfig,
    name: Arc<str>,
    session: SessionConfig,
    device: Box<dyn Device>,
    text: Arc<Text>,
    journal: Journal,
) -> std::io::Result<SessionWorker> {
    let (incarnation, ended) = (config.incarnation, Ended::default());
    let side = WorkerSide::new(name, incarnation, session);
    let thread = run(config, device, text, journal, Links::Sessions(Box::new(Sessions::new(side))), ended.clone())?;
    let door = Door::new(incarnation, thread.mailbox.clone(), ended);
    Ok(SessionWorker { thread, door })
}

/// Says that the thread ends, also where it ends by a panic. Dropped before the thread's outlets are.
pub(crate) struct Ending(pub(crate) Ended);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.set();
    }
}

fn run(
    config: WorkerConfig,
    device: Box<dyn Device>,
    text: Arc<Text>,
    journal: Journal,
    links: Links,
    ended: Ended,
) -> std::io::Result<Running> {
    // Senders must not wait: a gateway sends while it holds its table. What waits is bounded by the calls, questions and steps there can be,
    // and for a gateway in another process by its session's share.
    let (mailbox, mail) = channel();
    let (jobs, waiting) = tokenise::queue();
    tokenise::start(config.tokenise_threads.max(1), text.clone(), device.limits().context, waiting, mailbox.clone())?;
    let mut thread = EngineThread::new(config, device, text, journal, links, (mailbox.clone(), jobs));
    let handle = std::thread::Builder::new().name("kvit-engine".into()).spawn(move || {
        let _says_so = Ending(ended);
        thread.run(mail);
    })?;
    Ok(Running { mailbox, handle })
}
