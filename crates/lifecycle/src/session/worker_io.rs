//! What a worker's side wants done, and how it shows itself.

use std::sync::Arc;

use super::frame::{ClockSample, Frame};
use super::peer::Peer;
use super::worker_side::{Owner, WorkerSide};
use crate::message::{Submit, Up};
use crate::{AttemptId, Cause, Incarnation};

/// What is to be done, in order.
#[derive(Clone, Debug)]
pub enum WorkerEffect {
    /// Put a frame onto a gateway's newest connection. It may be dropped: it comes again.
    Send {
        /// The gateway's name.
        gateway: Arc<str>,
        /// The connection's number.
        session: u64,
        /// The frame.
        frame: Box<Frame<Up>>,
    },
    /// Hand a new attempt to the engine, under this number.
    Submit(Box<Submit>),
    /// Hand a cancel to the engine.
    Cancel {
        /// Which attempt.
        attempt: AttemptId,
        /// Why.
        cause: Cause,
        /// The number under which the engine got its submit, or will get it.
        number: u64,
    },
    /// Do not schedule an attempt; keep its blocks.
    Suspend(AttemptId),
    /// Schedule it again.
    Attach(AttemptId),
    /// A message of another life or of another tenure changed nothing.
    Stale,
}

/// How a gateway stands with a worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PeerState {
    /// It is heard, and its attempts are scheduled.
    Here,
    /// It is not heard or does not take what is said to it: its attempts are suspended.
    Suspended,
    /// Its lease is over; its attempts are orphaned.
    LeaseOver,
}

impl PeerState {
    /// Every state.
    pub const ALL: [PeerState; 3] = [PeerState::Here, PeerState::Suspended, PeerState::LeaseOver];

    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            PeerState::Here => "here",
            PeerState::Suspended => "suspended",
            PeerState::LeaseOver => "lease_over",
        }
    }

    pub(super) fn of(peer: &Peer) -> PeerState {
        match (peer.lease_over, peer.suspended) {
            (true, _) => PeerState::LeaseOver,
            (_, true) => PeerState::Suspended,
            _ => PeerState::Here,
        }
    }
}

/// A gateway as it stands at a worker.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerCut {
    /// Its name.
    pub gateway: Arc<str>,
    /// Its life.
    pub incarnation: Incarnation,
    /// `here`, `suspended` or `lease_over`.
    pub state: &'static str,
    /// Live attempts that it owns.
    pub attempts: u32,
    /// Messages that it has not acknowledged.
    pub waiting: u32,
    /// Its clock, if it is known.
    pub clock: Option<ClockSample>,
}

impl WorkerSide {
    /// Whether no gateway claims an attempt: its owner's life is over, or its lease.
    pub fn is_orphaned(&self, attempt: &AttemptId) -> bool {
        self.held.get(attempt).is_some_and(|held| held.orphaned || self.peer_of(&held.owner).is_none())
    }

    /// Attempts that are held, with their owner's name and whether they are suspended.
    pub fn attempts(&self) -> impl Iterator<Item = (&AttemptId, &str, bool)> {
        self.held.iter().map(|(id, held)| (id, &*held.owner.0, held.suspended))
    }

    /// Gateways by name, and how each stands. O(gateways), whatever they own.
    pub fn states(&self) -> impl Iterator<Item = (&Arc<str>, PeerState)> {
        self.peers.iter().map(|(name, peer)| (name, PeerState::of(peer)))
    }

    /// Gateways by name.
    pub fn gateways(&self) -> Vec<PeerCut> {
        let count = |owner: Owner| self.held.values().filter(|h| h.owner == owner).count() as u32;
        let cut = |(name, p): (&Arc<str>, &Peer)| PeerCut {
            gateway: name.clone(),
            incarnation: p.life,
            state: PeerState::of(p).as_str(),
            attempts: count((name.clone(), p.life)),
            waiting: p.lane.waiting() as u32,
            clock: p.clock.sample,
        };
        self.peers.iter().map(cut).collect()
    }

    /// How much lies in the tables: gateways, attempts, tombstones, submits that wait, messages that wait. At rest all are 0 but the gateways and,
    /// for `tombstone_keep`, cancels of attempts that are over or never came.
    pub fn held(&self) -> [(&'static str, u32); 5] {
        let waiting: usize = self.peers.values().map(|p| p.lane.waiting()).sum();
        [
            ("gateways", (self.peers.len() + self.former.len()) as u32),
            ("owned", self.held.len() as u32),
            ("tombstones", self.tombstones.len() as u32),
            ("behind", self.behind.len() as u32),
            ("unacknowledged", waiting as u32),
        ]
    }
}
