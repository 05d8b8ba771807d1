//! What may happen next in an explored world: the edges of its graph.
//!
//! Invariant: an action says everything that is not decided by the cores; the same actions from the same start lead to the same world.

use std::fmt;

/// One edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The gateway sends a run to the worker.
    Place(u8),
    /// A run is no longer wanted, for the cause of this index.
    Leave(u8, u8),
    /// A reader comes back to a run that was left.
    Return(u8),
    /// A run's grace passes.
    GraceOver(u8),
    /// A caller takes the end of its answer.
    TakeEnd(u8),
    /// The cancel driver repeats a run's cancel.
    Repeat(u8),
    /// All deadlines pass by the gateway's clock.
    GatewayDeadlines,
    /// All deadlines pass by the worker's clock.
    WorkerDeadlines,
    /// The frame of this index arrives.
    Deliver(u8),
    /// It arrives, and a copy of it stays on its way.
    Double(u8),
    /// It is lost.
    Lose(u8),
    /// How far the receiver has got comes to the sender, of this way (down or up).
    Heartbeat(bool),
    /// What is unacknowledged is sent again, this way.
    Resend(bool),
    /// Another gateway's cancel of a run arrives.
    Stray(u8),
    /// A run's submit arrives again, beside the lanes.
    SubmitAgain(u8),
    /// A run's prompt is tokenised.
    Tokenised(u8),
    /// Its prompt is refused.
    Refuse(u8),
    /// The engine plans.
    Plan,
    /// The next step begins on the device.
    Begin,
    /// The running step ends; a row that was flagged meanwhile noticed it, or not.
    End(bool),
    /// The engine takes the oldest step's fence message.
    Fence,
    /// The oldest step fails.
    Fail,
    /// The oldest step hangs.
    Hang,
    /// The device is lost.
    LoseDevice,
    /// A step that hung writes after all.
    GhostWrites,
    /// The fence message of a step that hung comes after all.
    LateFence,
    /// The session is lost for longer than `suspend_after`.
    Cut,
    /// A new session takes up where the lost one stood.
    Attach,
    /// The worker is told again that the session is lost, or that it is there.
    SessionAgain,
    /// New connections to the worker have been refused for `refused_after`.
    Refused,
    /// The worker's lease for the gateway is over.
    LeaseOver,
    /// The gateway concludes that the lease is over.
    Conclude,
    /// The worker's process dies and begins a new life.
    Restart,
    /// The gateway hears of the new life.
    Learn,
    /// The worker is told to stop: it takes nothing more and hands back what waits.
    Drain,
    /// The time that it leaves what runs is over.
    DrainOver,
}

impl Action {
    /// What happens, in the contract's words.
    pub fn words(self, names: &dyn Fn(u8) -> String) -> String {
        let of = |run: u8| names(run);
        let way = |down: bool| if down { "the worker" } else { "the gateway" };
        match self {
            Action::Place(run) => format!("the gateway submits {}", of(run)),
            Action::Leave(run, _) => format!("{} is no longer wanted", of(run)),
            Action::Return(run) => format!("a reader comes back to {}", of(run)),
            Action::GraceOver(run) => format!("nobody comes back to {} in time", of(run)),
            Action::TakeEnd(run) => format!("the caller takes the end of {}'s answer", of(run)),
            Action::Repeat(run) => format!("the cancel driver repeats the cancel of {}", of(run)),
            Action::GatewayDeadlines => "the deadlines pass by the gateway's clock".into(),
            Action::WorkerDeadlines => "the deadlines pass by the worker's clock".into(),
            Action::Deliver(_) => "a frame arrives".into(),
            Action::Double(_) => "a frame arrives, and a copy of it is still on its way".into(),
            Action::Lose(_) => "a frame is lost".into(),
            Action::Heartbeat(down) => format!("a heartbeat of {} says how far it has got", way(down)),
            Action::Resend(down) => format!("what {} has not acknowledged is sent again", way(down)),
            Action::Stray(run) => format!("another gateway's cancel of {} arrives", of(run)),
            Action::SubmitAgain(run) => format!("the submit of {} arrives again", of(run)),
            Action::Tokenised(run) => format!("the prompt of {} is tokenised", of(run)),
            Action::Refuse(run) => format!("the prompt of {} cannot be tokenised", of(run)),
            Action::Plan => "the engine plans".into(),
            Action::Begin => "the next step begins on the device".into(),
            Action::End(true) => "the running step ends; what was flagged is dropped at the next layer".into(),
            Action::End(false) => "the running step ends; a flag came too late for its last layer, or there was none".into(),
            Action::Fence => "the engine takes the oldest step's fence".into(),
            Action::Fail => "the oldest step fails".into(),
            Action::Hang => "the oldest step hangs".into(),
            Action::LoseDevice => "the device is lost".into(),
            Action::GhostWrites => "the step that hangs writes after all".into(),
            Action::LateFence => "the fence of the step that hung comes after all".into(),
            Action::Cut => "the session is lost, and suspend_after passes".into(),
            Action::Attach => "a new session attaches".into(),
            Action::SessionAgain => "the engine is told again how the session stands".into(),
            Action::Refused => "the worker's host refuses connections for refused_after".into(),
            Action::LeaseOver => "the worker's lease for the gateway ends".into(),
            Action::Conclude => "the gateway concludes that the lease is over".into(),
            Action::Restart => "the worker dies and begins a new life, all its blocks anew".into(),
            Action::Drain => "the worker is told to stop".into(),
            Action::DrainOver => "the stopping worker's limit is over".into(),
            Action::Learn => "the gateway hears of the worker's new life".into(),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
