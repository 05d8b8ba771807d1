//! What can happen in a simulated world, and to which process.

use lifecycle::message::{Down, Up};
use lifecycle::session::{Frame, Hello, Welcome};
use lifecycle::{AttemptId, Cause, Incarnation, StepId};

use super::chaos::Chaos;
use super::network::Session;

/// A gateway and a worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Link {
    pub gateway: usize,
    pub worker: usize,
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "gateway-{}/worker-{}", self.gateway + 1, self.worker + 1)
    }
}

/// A process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Process {
    Gateway(usize),
    Worker(usize),
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Process::Gateway(g) => write!(f, "gateway-{}", g + 1),
            Process::Worker(w) => write!(f, "worker-{}", w + 1),
        }
    }
}

/// How a step ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Done,
    Failed,
    Hung,
    Lost,
}

/// Something that happens at a moment.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Down {
        link: Link,
        session: Session,
        frame: Box<Frame<Down>>,
    },
    Up {
        link: Link,
        session: Session,
        frame: Box<Frame<Up>>,
    },
    Hello {
        link: Link,
        hello: Box<Hello>,
    },
    /// The worker's answer; none if it takes no connection.
    Welcome {
        link: Link,
        session: Session,
        welcome: Option<Box<Welcome>>,
    },
    /// The worker's host answers that nobody listens there.
    Refused {
        link: Link,
        session: Session,
    },
    ClosedAtGateway {
        link: Link,
        session: Session,
    },
    ClosedAtWorker {
        link: Link,
        session: Session,
    },
    /// A gateway's life opens a connection, unless one was opened since.
    Connect {
        link: Link,
        session: Session,
    },
    /// The welcome has not come, or nothing has been heard for long: this connection is given up.
    GiveUp {
        link: Link,
        session: Session,
    },
    Wake(Process),
    StepEnd {
        worker: usize,
        life: Incarnation,
        step: StepId,
        fate: Fate,
    },
    /// A step that hung writes after all.
    Scribble {
        worker: usize,
        life: Incarnation,
        rows: Vec<engine::Row>,
    },
    Tokenised {
        worker: usize,
        life: Incarnation,
        attempt: AttemptId,
        tokens: Vec<u32>,
    },
    Arrive(usize),
    Leave(usize, Cause),
    /// A reader comes to a run that has none.
    ComeBack(usize),
    /// A leaving's grace is over by every clock.
    GraceOver {
        run: usize,
        leaving: Option<u32>,
    },
    CancelByName(usize, usize),
    /// The caller has read its answer to the end.
    Read {
        run: usize,
        gateway: usize,
        life: Incarnation,
    },
    Chaos(Chaos),
    Resume(Process),
    Restart(Process),
    Exit {
        worker: usize,
        life: Incarnation,
    },
    Heal,
    Look,
}

impl Event {
    /// The process that it happens to; `None` for what happens to the world.
    pub fn process(&self) -> Option<Process> {
        match self {
            Event::Down { link, .. } | Event::Hello { link, .. } | Event::ClosedAtWorker { link, .. } => Some(Process::Worker(link.worker)),
            Event::Up { link, .. }
            | Event::Welcome { link, .. }
            | Event::Refused { link, .. }
            | Event::ClosedAtGateway { link, .. }
            | Event::Connect { link, .. }
            | Event::GiveUp { link, .. } => Some(Process::Gateway(link.gateway)),
            Event::StepEnd { worker, .. } | Event::Tokenised { worker, .. } => Some(Process::Worker(*worker)),
            Event::CancelByName(_, gateway) | Event::Read { gateway, .. } => Some(Process::Gateway(*gateway)),
            Event::Wake(process) => Some(*process),
            _ => None,
        }
    }

    /// A number for the trace's hash.
    pub fn tag(&self) -> u64 {
        match self {
            Event::Down { link, frame, .. } => 1 | frame.number << 8 | (link.gateway as u64) << 40 | (link.worker as u64) << 44,
            Event::Up { link, frame, .. } => 2 | frame.number << 8 | (link.gateway as u64) << 40 | (link.worker as u64) << 44,
            Event::Hello { .. } => 3,
            Event::Welcome { .. } => 4,
            Event::ClosedAtGateway { .. } => 5,
            Event::ClosedAtWorker { .. } => 6,
            Event::Connect { .. } => 7,
            Event::GiveUp { .. } => 8,
            Event::Wake(_) => 9,
            Event::StepEnd { step, .. } => 10 | step.0 << 8,
            Event::Scribble { .. } => 11,
            Event::Tokenised { .. } => 12,
            Event::Arrive(run) => 13 | (*run as u64) << 8,
            Event::Leave(run, _) => 14 | (*run as u64) << 8,
            Event::CancelByName(run, _) => 15 | (*run as u64) << 8,
            Event::Read { run, .. } => 16 | (*run as u64) << 8,
            Event::Chaos(_) => 17,
            Event::Resume(_) => 18,
            Event::Restart(_) => 19,
            Event::Exit { .. } => 20,
            Event::Heal => 21,
            Event::Look => 22,
            Event::Refused { .. } => 23,
            Event::ComeBack(run) => 24 | (*run as u64) << 8,
            Event::GraceOver { run, .. } => 25 | (*run as u64) << 8,
        }
    }
}
