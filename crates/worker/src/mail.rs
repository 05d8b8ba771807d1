//! The mailbox: everything that can happen to a worker, in the order in which the engine thread will see it.

use std::sync::Arc;
use std::time::Duration;

use engine::{Flag, StepDone};
use lifecycle::message::{Down, From, Snapshot};
use lifecycle::session::{Frame, Hello, Refused, Welcome};
use lifecycle::{AttemptId, Outcome, Time};
use protocol::Drained;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::door::Session;
use crate::sessions::{Outlet, SessionsCut};

/// One item of the mailbox.
pub(crate) enum Mail {
    /// From the gateway in this process, and when it arrived.
    Down(From<Down>, Time),
    /// A gateway opens a session.
    Hello {
        hello: Hello,
        /// Where its frames go from now on.
        outlet: Outlet,
        reply: oneshot::Sender<Result<(Welcome, Session), Refused>>,
    },
    /// A frame of a gateway's session.
    Frame {
        gateway: Arc<str>,
        connection: u64,
        frame: Box<Frame<Down>>,
        arrived: Time,
        /// Its share of what one session may have in here; given back when it is taken out.
        _room: OwnedSemaphorePermit,
    },
    /// A session is over.
    Closed { gateway: Arc<str>, connection: u64 },
    /// Somebody asks for the account.
    Snapshot { blocks: bool, reply: oneshot::Sender<Snapshot> },
    /// Somebody asks for the sessions.
    Sessions { reply: oneshot::Sender<SessionsCut> },
    /// Take no more, end within the limit, and say what became of whom.
    Drain { limit: Duration, reply: oneshot::Sender<Drained> },
    /// Say when every gateway that is there has acknowledged everything, or when the time is over.
    Flush { within: Duration, reply: oneshot::Sender<()> },
    /// A prompt is ready.
    Tokenised {
        /// Whose.
        attempt: AttemptId,
        /// The tokens, or why there are none.
        result: Result<Vec<u32>, Outcome>,
    },
    /// A step's fence.
    StepDone(StepDone),
    /// End everything and leave.
    Stop,
}

/// A prompt to be tokenised, off the engine thread.
pub(crate) struct Job {
    pub attempt: AttemptId,
    pub prompt: lifecycle::message::Prompt,
    /// Set when nobody wants the result any more.
    pub unwanted: Flag,
}
