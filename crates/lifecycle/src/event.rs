//! Journal records: one small typed record for each thing that happened. Every view (metrics, timelines, verdicts) folds these.
//!
//! The cores emit them; shells stamp and forward them; nothing else counts.

use std::sync::Arc;
use std::time::Duration;

use crate::message::{Receipt, Reported};
use crate::policy::OnDisconnect;
use crate::session::PeerState;
use crate::{AttemptId, Cause, Delivery, Guarantee, Incarnation, Outcome, Phase, RunKey, StepId, Time};

/// One line of the journal.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    /// When, on this process's clock.
    pub at: Time,
    /// Whose run; `None` for what concerns the worker as a whole.
    pub run: Option<RunKey>,
    /// Which attempt, from 1; 0 where none exists yet.
    pub attempt: u32,
    /// What happened.
    pub event: Event,
}

impl Record {
    /// The attempt that it is about, if it is about one.
    pub fn attempt(&self) -> Option<AttemptId> {
        let key = self.run.clone().filter(|_| self.attempt > 0)?;
        Some(AttemptId { key, attempt: self.attempt })
    }
}

/// What can happen.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    // --- the gateway's side ---
    /// A run was accepted at the front door.
    Accepted {
        /// The model asked for.
        model: Arc<str>,
        /// Answers asked for.
        n: u32,
        /// Whether the caller reads a stream.
        stream: bool,
        /// What a disconnect means for it (C-25).
        on_disconnect: OnDisconnect,
    },
    /// The submit was sent to a worker.
    Dispatched {
        /// Most tokens that it can compute, prompt and answers, as long as nothing but the model's context is known.
        tokens_max: u64,
    },
    /// The submit went to an engine of another make, in whose own log the attempt has this name (C-1).
    SentAs {
        /// What the engine is called here.
        upstream: Arc<str>,
        /// What the attempt is called there.
        request: Arc<str>,
    },
    /// Somebody no longer wants the run: a disconnect, a cancel by name, a deadline, a shutdown. Seen at the gateway.
    AbandonmentObserved {
        /// Why.
        cause: Cause,
    },
    /// The last reader left, and somebody may come back for so long. What is computed meanwhile is waste only if nobody does (C-25).
    GraceBegun {
        /// How long.
        grace: Duration,
    },
    /// Somebody came back before the cancel was applied: nobody has left (C-25).
    AbandonmentWithdrawn,
    /// Nobody came back, or the run ended otherwise meanwhile (C-25).
    GraceRanOut,
    /// The last reader left, and the run goes on without one, as its policy says (C-25).
    LeftRunning {
        /// How it left.
        cause: Cause,
    },
    /// A cancel was sent to the worker; more than once if it is repeated.
    CancelSent {
        /// Why.
        cause: Cause,
        /// 1 for the first.
        count: u32,
    },
    /// The worker acknowledged the cancel.
    CancelAcknowledged,
    /// Tokens were handed to the caller's connection.
    Delivered {
        /// How many.
        tokens: u32,
    },
    /// The caller's answer is over, one way or another.
    DeliveryEnded {
        /// What was sent.
        delivery: Delivery,
    },
    /// The readers were told this end before the outcome was decided, for no word of the worker's came or is to be expected. Once a run. What
    /// they were told is a fact about the delivery; the outcome may become another (C-6).
    Dismissed {
        /// Why, as they were told.
        cause: Cause,
    },
    /// The run's outcome is decided. Once a run.
    OutcomeSet {
        /// How it ended.
        outcome: Outcome,
    },
    /// A cause came after another had won.
    Superseded {
        /// The late one.
        cause: Cause,
        /// The one that had won.
        won: Cause,
    },
    /// The gateway holds nothing of the run but its record. Once a run.
    Settled {
        /// Whether the release was acknowledged; false for a void or a run that never reached a worker's blocks is still true.
        proven: bool,
    },
    /// A worker in another process was compared: times that it states of this run may be so wrong (C-24).
    WorkerClock {
        /// At most.
        error: Duration,
    },
    /// The attempt's worker stops and gave it back before anything of it was delivered: the run waits for another.
    HandedBack,
    // --- the worker's side ---
    /// The attempt waits to be scheduled.
    Queued {
        /// Tokens of its prompt.
        prompt_tokens: u32,
        /// Its sequences.
        n: u32,
        /// The output cap of each.
        max_tokens: u32,
    },
    /// Blocks were taken for the attempt.
    BlocksAllocated {
        /// Blocks it holds now.
        held: u32,
        /// Prompt tokens whose blocks came from the prefix index with this.
        cached_tokens: u32,
        /// Blocks shared with others that came with this.
        shared: u32,
    },
    /// Its first prompt chunk went into a step.
    PrefillStart,
    /// A step computed rows of the attempt to the end.
    Computed {
        /// The step.
        step: StepId,
        /// Prompt tokens (or recomputed tokens) in it.
        prompt_tokens: u32,
        /// Tokens that were generated and count as the answer.
        generated: u32,
        /// Tokens that were generated and thrown away, because the attempt or the sequence had ended meanwhile.
        discarded: u32,
        /// Of these tokens, those that were not done when their row was flagged: computed after the end was known (C-12).
        late: u32,
    },
    /// A step dropped rows of the attempt.
    RowsDropped {
        /// The step.
        step: StepId,
        /// Layers computed in vain; 0 if none.
        layers: u32,
    },
    /// The first token of the attempt is there.
    FirstToken,
    /// Its blocks were taken away to make room; it will be recomputed.
    Preempted,
    /// A cancel arrived at the worker.
    CancelReceived {
        /// Why.
        cause: Cause,
    },
    /// The engine made the attempt non-runnable because of a cancel or a deadline.
    CancelApplied {
        /// Why.
        cause: Cause,
        /// Where the attempt was.
        phase: Phase,
    },
    /// A cancel came for an attempt that is not known (C-11).
    Tombstoned {
        /// Why.
        cause: Cause,
    },
    /// Its gateway is not heard, or does not take what is said to it: the attempt is not scheduled and keeps its blocks (C-10).
    Suspended,
    /// Its gateway is back: it goes on where it was.
    Attached,
    /// No gateway claims it: the lease is over, or it was disclaimed (C-23). An ordinary cancel follows.
    Orphaned,
    /// The worker decided how the attempt ends.
    AttemptEnded {
        /// How.
        outcome: Outcome,
    },
    /// What an engine without records says of the attempt's prompt when it has ended.
    PromptCounted {
        /// Its tokens.
        tokens: u32,
        /// Of them, those that it had computed before.
        cached: u32,
    },
    /// The last step that held rows of the ended attempt is over.
    FenceCompleted {
        /// That step.
        step: StepId,
    },
    /// The attempt owns nothing any more. Once an attempt (C-20).
    Released {
        /// What it used.
        receipt: Receipt,
    },
    /// The attempt's worker is lost: nobody can say "released" (C-20).
    Void {
        /// The worker's life that is over.
        worker: Incarnation,
    },
    /// Another kvit had the attempt as a run of its own, and has told what it did for it.
    Reported {
        /// What its record says.
        work: Box<Reported>,
    },
    /// The attempt's engine does not acknowledge a release: how well its end is proven otherwise (C-29).
    LetGo {
        /// `observed` or less.
        guarantee: Guarantee,
    },
    // --- the worker as a whole ---
    /// A step's fence completed.
    StepDone {
        /// The step.
        step: StepId,
        /// Rows in its plan.
        rows: u32,
        /// Rows that were dropped.
        dropped: u32,
    },
    /// The device spent so much more time in steps; told a few times a second, and when it has nothing to do.
    DeviceBusy {
        /// How much.
        span: Duration,
    },
    /// A step failed.
    DeviceFailed {
        /// The step.
        step: StepId,
        /// Blocks that had to be quarantined.
        quarantined: u32,
    },
    /// A gateway opened a connection to the worker.
    SessionOpened {
        /// Its name.
        gateway: Arc<str>,
        /// Its life.
        incarnation: Incarnation,
        /// Which of that life's connections.
        session: u64,
    },
    /// A gateway's connection is over. It proves that nobody reads there, and nothing else (C-10).
    SessionClosed {
        /// Its name.
        gateway: Arc<str>,
        /// Which connection.
        session: u64,
    },
    /// A gateway stands otherwise with the worker than before.
    Gateway {
        /// Its name.
        gateway: Arc<str>,
        /// How; `None` if it is forgotten.
        state: Option<PeerState>,
    },
    /// A message from an older life of its sender, or meant for an older life of this process, changed nothing (C-3).
    StaleMessage,
    /// A typed defect: something impossible was asked for and refused. Never expected.
    Defect {
        /// What, for a person.
        what: &'static str,
    },
}

impl Event {
    /// Whether it is a worker's word about an attempt that it has: what crosses to a gateway in another process.
    pub const fn crosses(&self) -> bool {
        match self {
            Event::Queued { .. } | Event::BlocksAllocated { .. } | Event::PrefillStart | Event::Computed { .. } => true,
            Event::RowsDropped { .. } | Event::FirstToken | Event::Preempted | Event::CancelReceived { .. } => true,
            Event::CancelApplied { .. } | Event::Suspended | Event::Attached | Event::Orphaned => true,
            Event::AttemptEnded { .. } | Event::FenceCompleted { .. } | Event::Released { .. } => true,
            Event::Accepted { .. } | Event::Dispatched { .. } | Event::AbandonmentObserved { .. } | Event::CancelSent { .. } => false,
            Event::GraceBegun { .. } | Event::AbandonmentWithdrawn | Event::GraceRanOut | Event::LeftRunning { .. } => false,
            Event::CancelAcknowledged | Event::Delivered { .. } | Event::DeliveryEnded { .. } | Event::OutcomeSet { .. } => false,
            Event::Dismissed { .. } => false,
            Event::Superseded { .. } | Event::Settled { .. } | Event::WorkerClock { .. } | Event::HandedBack | Event::Void { .. } => false,
            Event::Reported { .. } | Event::LetGo { .. } | Event::PromptCounted { .. } | Event::SentAs { .. } => false,
            Event::Tombstoned { .. } | Event::StepDone { .. } | Event::DeviceFailed { .. } | Event::StaleMessage => false,
            Event::SessionOpened { .. } | Event::SessionClosed { .. } | Event::Gateway { .. } | Event::Defect { .. } => false,
            Event::DeviceBusy { .. } => false,
        }
    }
}
