//! What the engine asks of whatever computes: steps submitted without waiting, and one fence message a step.
//!
//! The trait is written for a GPU's streams and events as much as for CPU threads. Invariants a device keeps: steps run in the order of
//! their submission; when a step's `StepDone` is sent, nothing of that step reads or writes any block any more (the fence); a row whose
//! flag is set before the step's first layer computes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kv::BlockId;
use lifecycle::StepId;
use lifecycle::params::Sampling;

/// Says "drop these rows": set once, by any thread, never cleared. The engine hands it out and never reads it.
// contract: C-12
#[derive(Clone, Debug, Default)]
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    /// Sets it; a second time does nothing.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Tells it from every other flag that is alive.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Whether both are the same flag, so their rows the same sequence's.
    pub fn is_same(&self, other: &Flag) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A sequence's place on the device: its tokens so far and how to choose the next. Given by the engine, and given to another sequence as soon
/// as the one that had it ends or is preempted, which may be before the fence of its last row: see [`Device`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u32);

/// What a device must know of a sequence before its first row: it resets the slot.
#[derive(Clone, Debug)]
pub struct SlotStart {
    /// Prompt, then what was generated before a preemption.
    pub tokens: Vec<u32>,
    /// How many of `tokens` are the prompt.
    pub prompt_len: usize,
    /// How to choose tokens.
    pub sampling: Arc<Sampling>,
    /// The sequence's number in its attempt; part of what a draw depends on.
    pub sequence: u32,
    /// Tokens that end the sequence. Once one was chosen, the device drops the slot's later rows by itself before their first layer.
    pub stop_tokens: Arc<[u32]>,
}

/// The tokens of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RowTokens {
    /// `count` tokens of the slot's known tokens, from the row's position on (a prefill chunk, or a recompute).
    Known {
        /// How many.
        count: u32,
    },
    /// The one token that the slot's last row chose; it may not be known to the host yet.
    Last,
}

/// One sequence's part of a step.
#[derive(Clone, Debug)]
pub struct Row {
    /// The sequence's place on the device.
    pub slot: Slot,
    /// Resets the slot first.
    pub start: Option<Arc<SlotStart>>,
    /// Position of the first token; K and V of positions before it are in the table's blocks.
    pub position: u32,
    /// Which tokens to compute.
    pub tokens: RowTokens,
    /// Blocks of positions 0, `block_tokens`, ...; long enough for the row's last position.
    pub table: Arc<[BlockId]>,
    /// Choose a token from the last position's logits.
    pub sample: bool,
    /// Set when the sequence is to stop.
    pub flag: Flag,
}

impl Row {
    /// Number of tokens computed.
    pub fn count(&self) -> u32 {
        match self.tokens {
            RowTokens::Known { count } => count,
            RowTokens::Last => 1,
        }
    }

    /// Whether the row is to be dropped.
    pub fn is_dropped(&self) -> bool {
        self.flag.is_set()
    }
}

/// One step: rows that are computed together.
#[derive(Clone, Debug)]
pub struct StepPlan {
    /// The fence's name; ascending by one.
    pub id: StepId,
    /// At least one row; a slot occurs at most once.
    pub rows: Vec<Row>,
}

/// A chosen token.
#[derive(Clone, PartialEq, Debug)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log-probability under the unmodified logits, where asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens with theirs, best first, where asked for.
    pub top: Vec<(u32, f32)>,
}

/// What became of a row.
#[derive(Clone, PartialEq, Debug)]
pub enum RowDone {
    /// Every layer of it was computed.
    Computed {
        /// The token, where one was to be chosen.
        sampled: Option<Sampled>,
        /// The row's flag was set before all this was done: the device read it once more at the very end.
        late: bool,
    },
    /// Dropped after this many layers (0: before the first). Its blocks hold nothing of use from the row's position on.
    Dropped {
        /// Layers that were computed in vain.
        layers: u32,
    },
}

/// A step that went wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The step failed and no longer runs: its results are void, its fence is complete, the device goes on.
    #[error("the step failed: {0}")]
    Step(String),
    /// It is not known whether the step still runs: its fence can never complete; the device goes on with other blocks. For devices whose
    /// fences are somebody else's word (a GPU's events). Where the device itself runs the step, as `CpuDevice` does, it cannot occur.
    #[error("the step hangs: {0}")]
    Hung(String),
    /// The device is gone.
    #[error("the device is lost: {0}")]
    Lost(String),
}

/// The fence message of a step.
#[derive(Clone, PartialEq, Debug)]
pub struct StepDone {
    /// Which step.
    pub id: StepId,
    /// One entry a row in the plan's order, or what went wrong.
    pub result: Result<Vec<RowDone>, DeviceError>,
}

/// Where a device sends a step's fence; called exactly once, from any thread.
pub type DoneSink = Box<dyn FnOnce(StepDone) + Send>;

/// A plan that a device did not take.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubmitError {
    /// As many steps as the device allows are in flight. Submit again after a fence.
    #[error("the device's queue is full")]
    Full,
    /// The device takes no more steps.
    #[error("the device is lost: {0}")]
    Lost(String),
}

/// A device's fixed sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceLimits {
    /// Blocks in the device's pool.
    pub blocks_total: u32,
    /// Token positions a block.
    pub block_tokens: u32,
    /// Bytes of one block over all layers, K and V.
    pub block_bytes: u64,
    /// Slots.
    pub slots: u32,
    /// Positions a sequence may have.
    pub context: u32,
    /// Size of the vocabulary.
    pub vocab: u32,
    /// Steps that may be in flight: one running, the others queued.
    pub in_flight: u32,
}

/// Something that runs steps, one after the other in the order of their submission.
///
/// **Slots are reused before the fence.** Blocks wait for the fence of the newest step that holds them; a slot does not: the engine gives it to a
/// new sequence while a row of the old one is still in a step. That is safe only because steps are serial: the first row of the new sequence,
/// which resets the slot ([`Row::start`]), is in a later step than every row of the old one. So a device that overlaps steps must keep rows of
/// one slot in the order of their steps, or keep what a slot holds apart by its start. After [`DeviceError::Hung`] the order is broken: whatever
/// the lost step does later must touch no slot that a later step has started anew.
pub trait Device: Send {
    /// The device's fixed sizes.
    fn limits(&self) -> DeviceLimits;

    /// Queues a step and returns without waiting for it. `done` is called when the step's fence completes. A plan that is not taken
    /// comes back with the reason and the unused sink is dropped.
    fn submit(&mut self, plan: StepPlan, done: DoneSink) -> Result<(), (SubmitError, StepPlan)>;
}
