//! The two calls beside a session: a worker's account as one cut, and its drain.
//!
//! Invariant: a cut crosses whole; a state's word that the wire does not know is an error and not left out (C-15).
// contract: C-15

use lifecycle::message::{self, AttemptCut, BlockCut, Held, Snapshot};
use lifecycle::{AttemptId, Incarnation, StepId};

use crate::limits::DRAIN_ATTEMPTS_MAX;
use crate::{Error, field, ids, words, worker_v1 as wire};

/// A cut on its way to whoever asked.
///
/// # Errors
/// A state's word that the wire does not know.
pub fn snapshot_reply(worker: Incarnation, snapshot: &Snapshot) -> Result<wire::SnapshotReply, Error> {
    Ok(wire::SnapshotReply { worker: field::bytes(worker), snapshot: Some(snapshot.try_into()?) })
}

impl TryFrom<wire::SnapshotReply> for message::From<Snapshot> {
    type Error = Error;

    fn try_from(reply: wire::SnapshotReply) -> Result<message::From<Snapshot>, Error> {
        Ok(message::From {
            incarnation: field::incarnation(&reply.worker, "SnapshotReply.worker")?,
            message: field::need(reply.snapshot, "SnapshotReply.snapshot")?.try_into()?,
        })
    }
}

impl TryFrom<&Snapshot> for wire::Snapshot {
    type Error = Error;

    fn try_from(cut: &Snapshot) -> Result<wire::Snapshot, Error> {
        Ok(wire::Snapshot {
            step: cut.step.0,
            block_tokens: cut.block_tokens,
            total: cut.total,
            free: cut.free,
            active: cut.active,
            orphaned: cut.orphaned,
            cached: cut.cached,
            draining: cut.draining,
            quarantined: cut.quarantined,
            queued: cut.queued,
            running: cut.running,
            stopping: cut.stopping,
            stale_releases: cut.stale_releases,
            foreign_releases: cut.foreign_releases,
            double_releases: cut.double_releases,
            device_lost: cut.device_lost.clone(),
            late_completions: cut.late_completions,
            reserved_bytes: cut.reserved_bytes,
            tombstones: cut.tombstones,
            held: Some(cut.held.into()),
            attempts: cut.attempts.iter().map(wire::AttemptCut::try_from).collect::<Result<_, Error>>()?,
            blocks: cut.blocks.iter().map(wire::BlockCut::try_from).collect::<Result<_, Error>>()?,
            orphaned_attempts: cut.orphaned_attempts,
            suspensions: cut.suspensions,
            stale_messages: cut.stale_messages,
        })
    }
}

impl TryFrom<wire::Snapshot> for Snapshot {
    type Error = Error;

    fn try_from(cut: wire::Snapshot) -> Result<Snapshot, Error> {
        Ok(Snapshot {
            step: StepId(cut.step),
            block_tokens: cut.block_tokens,
            total: cut.total,
            free: cut.free,
            active: cut.active,
            orphaned: cut.orphaned,
            cached: cut.cached,
            draining: cut.draining,
            quarantined: cut.quarantined,
            queued: cut.queued,
            running: cut.running,
            stopping: cut.stopping,
            stale_releases: cut.stale_releases,
            foreign_releases: cut.foreign_releases,
            double_releases: cut.double_releases,
            device_lost: cut.device_lost,
            late_completions: cut.late_completions,
            reserved_bytes: cut.reserved_bytes,
            tombstones: cut.tombstones,
            held: field::need(cut.held, "Snapshot.held")?.into(),
            attempts: cut.attempts.into_iter().map(AttemptCut::try_from).collect::<Result<_, Error>>()?,
            blocks: cut.blocks.into_iter().map(BlockCut::try_from).collect::<Result<_, Error>>()?,
            orphaned_attempts: cut.orphaned_attempts,
            suspensions: cut.suspensions,
            stale_messages: cut.stale_messages,
        })
    }
}

macro_rules! held {
    ($($name:ident)+) => {
        impl From<Held> for wire::Held {
            fn from(held: Held) -> wire::Held {
                wire::Held { $($name: held.$name),+ }
            }
        }
        impl From<wire::Held> for Held {
            fn from(held: wire::Held) -> Held {
                Held { $($name: held.$name),+ }
            }
        }
    };
}
held! { attempts owners waiting running deadlines slots slots_total steps answers }

impl TryFrom<&AttemptCut> for wire::AttemptCut {
    type Error = Error;

    fn try_from(cut: &AttemptCut) -> Result<wire::AttemptCut, Error> {
        let state = words::attempt_state_number(cut.state)?;
        Ok(wire::AttemptCut { attempt: Some((&cut.attempt).into()), state, blocks: cut.blocks })
    }
}

impl TryFrom<wire::AttemptCut> for AttemptCut {
    type Error = Error;

    fn try_from(cut: wire::AttemptCut) -> Result<AttemptCut, Error> {
        let attempt = ids::attempt(cut.attempt, "AttemptCut.attempt")?;
        Ok(AttemptCut { attempt, state: words::attempt_state_word(cut.state)?, blocks: cut.blocks })
    }
}

impl TryFrom<&BlockCut> for wire::BlockCut {
    type Error = Error;

    fn try_from(cut: &BlockCut) -> Result<wire::BlockCut, Error> {
        Ok(wire::BlockCut {
            block: cut.block,
            generation: cut.generation,
            state: words::block_state_number(cut.state)?,
            owners: cut.owners.iter().map(wire::Attempt::from).collect(),
            fence: cut.fence.map(|fence| fence.0),
        })
    }
}

impl TryFrom<wire::BlockCut> for BlockCut {
    type Error = Error;

    fn try_from(cut: wire::BlockCut) -> Result<BlockCut, Error> {
        Ok(BlockCut {
            block: cut.block,
            generation: cut.generation,
            state: words::block_state_word(cut.state)?,
            owners: cut.owners.into_iter().map(AttemptId::try_from).collect::<Result<_, Error>>()?,
            fence: cut.fence.map(StepId),
        })
    }
}

/// What became of the attempts that were alive when a worker was told to stop, each in one list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained {
    /// The worker's life.
    pub worker: Incarnation,
    /// They came to their own end.
    pub finished: Vec<AttemptId>,
    /// Nothing of them was generated: they can be dispatched to another worker.
    pub handed_back: Vec<AttemptId>,
    /// They were cut short.
    pub cancelled: Vec<AttemptId>,
    /// Attempts that no list had room for.
    pub left_out: u64,
}

impl From<&Drained> for wire::DrainReply {
    /// Those that were handed back have room first: somebody waits for them.
    fn from(drained: &Drained) -> wire::DrainReply {
        let (mut room, mut left_out) = (DRAIN_ATTEMPTS_MAX.default as usize, drained.left_out);
        let mut list = |attempts: &[AttemptId]| -> Vec<wire::Attempt> {
            let taken = attempts.len().min(room);
            room -= taken;
            left_out = left_out.saturating_add((attempts.len() - taken) as u64);
            attempts[..taken].iter().map(wire::Attempt::from).collect()
        };
        let (handed_back, cancelled, finished) = (list(&drained.handed_back), list(&drained.cancelled), list(&drained.finished));
        wire::DrainReply { worker: field::bytes(drained.worker), finished, handed_back, cancelled, left_out }
    }
}

impl TryFrom<wire::DrainReply> for Drained {
    type Error = Error;

    fn try_from(reply: wire::DrainReply) -> Result<Drained, Error> {
        let total = reply.finished.len() + reply.handed_back.len() + reply.cancelled.len();
        if total as u64 > DRAIN_ATTEMPTS_MAX.default {
            return Err(Error::TooMany { field: "DrainReply", len: total, limit: DRAIN_ATTEMPTS_MAX });
        }
        let list = |attempts, field| ids::read(attempts, DRAIN_ATTEMPTS_MAX, field);
        Ok(Drained {
            worker: field::incarnation(&reply.worker, "DrainReply.worker")?,
            finished: list(reply.finished, "DrainReply.finished")?,
            handed_back: list(reply.handed_back, "DrainReply.handed_back")?,
            cancelled: list(reply.cancelled, "DrainReply.cancelled")?,
            left_out: reply.left_out,
        })
    }
}
