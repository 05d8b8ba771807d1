//! What crosses between two processes: frames, and the two messages that open a session.

use std::sync::Arc;
use std::time::Duration;

use crate::{Incarnation, Time};

/// A stamp of the peer's clock, sent back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Echo {
    /// The newest stamp that was heard.
    pub stamp: Time,
    /// How long ago it was heard when this was sent, on the clock of whoever sends it back.
    pub held: Duration,
}

/// One frame: at most one message, and what lets both sides know where they stand.
#[derive(Clone, PartialEq, Debug)]
pub struct Frame<M> {
    /// The sender's life (C-3).
    pub from: Incarnation,
    /// The life that is meant.
    pub to: Incarnation,
    /// Which tenure it belongs to.
    pub tenure: u64,
    /// The message's number in its lane, from 1; 0 for a heartbeat.
    pub number: u64,
    /// Every message up to this number has arrived at the sender.
    pub received: u64,
    /// The sender got a later message than the next: the rest is to be sent again now.
    pub missing: bool,
    /// The sender's clock.
    pub stamp: Time,
    /// The newest stamp of the other side.
    pub echo: Option<Echo>,
    /// The message; none for a heartbeat.
    pub message: Option<M>,
}

/// A gateway's first word on a new connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The gateway's name, the same through all its lives.
    pub gateway: Arc<str>,
    /// This life.
    pub incarnation: Incarnation,
    /// Counts this life's connections to this worker; a late one is refused.
    pub session: u64,
    /// The life and the tenure that it wants to go on with. `None` says that it holds nothing of an earlier one: what is left of it is
    /// disclaimed.
    pub resume: Option<(Incarnation, u64)>,
    /// Every message up to this number has arrived, in the tenure to be resumed.
    pub received: u64,
    /// The gateway's lease.
    pub lease: Duration,
    /// The gateway's clock.
    pub stamp: Time,
}

/// A worker's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The worker's name, the same through all its lives.
    pub worker: Arc<str>,
    /// This life.
    pub incarnation: Incarnation,
    /// The tenure from here on. Another than the one asked for means that nothing of that one is left.
    pub tenure: u64,
    /// Every message up to this number has arrived, in this tenure.
    pub received: u64,
    /// The worker's lease.
    pub lease: Duration,
    /// The worker's clock.
    pub stamp: Time,
}

/// Why a worker does not take a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// A newer life of that gateway was here.
    #[error("a newer life of this gateway, {newest}, has been here")]
    OldGateway {
        /// That life.
        newest: Incarnation,
    },
    /// A later connection of the same life was here.
    #[error("a later connection of this gateway, number {newest}, has been here")]
    OldSession {
        /// That connection.
        newest: u64,
    },
    /// There is no room for another gateway.
    #[error("this worker serves {limit} gateways already (session_gateways_max)")]
    TooManyGateways {
        /// The limit.
        limit: usize,
    },
}

/// How far the peer's clock is from ours, and how wrong that may be. From one frame there and one back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockSample {
    /// The peer's clock minus ours, in microseconds.
    pub offset_us: i64,
    /// Half the way there and back: the true offset is at most so far away.
    pub error: Duration,
    /// When it was taken, on our clock.
    pub at: Time,
}

/// How long a sample counts, whatever comes after it: clocks drift.
const SAMPLE_MAX_AGE: Duration = Duration::from_secs(30);

impl ClockSample {
    /// The sample that a frame with this stamp and this echo gives when it is heard at `now`; `None` if they contradict each other.
    ///
    /// The way of Marzullo and of RFC 5905, section 8: the peer's stamp was made in the middle of what is left of the round trip when the
    /// time that the peer held our stamp is taken out.
    pub fn of(stamp: Time, echo: Echo, now: Time) -> Option<ClockSample> {
        let there_and_back = now.0.checked_sub(echo.stamp.0)?;
        let trip = there_and_back.checked_sub(u64::try_from(echo.held.as_micros()).ok()?)?;
        let offset = i128::from(stamp.0) + i128::from(trip / 2) - i128::from(now.0);
        Some(ClockSample { offset_us: i64::try_from(offset).ok()?, error: Duration::from_micros(trip.div_ceil(2)), at: now })
    }

    /// A moment of the peer's clock on ours.
    pub fn ours(self, theirs: Time) -> Time {
        let moment = i128::from(theirs.0) - i128::from(self.offset_us);
        Time(u64::try_from(moment.max(0)).unwrap_or(u64::MAX))
    }

    /// The better of two: the smaller error, unless it is old.
    pub fn better(self, newer: ClockSample) -> ClockSample {
        let old = newer.at.since(self.at) >= SAMPLE_MAX_AGE;
        if old || newer.error <= self.error { newer } else { self }
    }
}

/// What one side knows of the other's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerClock {
    /// The newest stamp of it, and when that was heard.
    newest: (Time, Time),
    /// The best comparison with ours.
    pub sample: Option<ClockSample>,
}

impl PeerClock {
    pub fn new(stamp: Time, now: Time) -> PeerClock {
        PeerClock { newest: (stamp, now), sample: None }
    }

    /// A stamp was heard, and with it perhaps one of ours that came back. A late frame's stamp says less than is known.
    pub fn hear(&mut self, stamp: Time, echo: Option<Echo>, now: Time) {
        if stamp >= self.newest.0 {
            self.newest = (stamp, now);
        }
        if let Some(sample) = echo.and_then(|echo| ClockSample::of(stamp, echo, now)) {
            self.sample = Some(self.sample.map_or(sample, |best| best.better(sample)));
        }
    }

    /// What goes back with a frame.
    pub fn echo(&self, now: Time) -> Echo {
        Echo { stamp: self.newest.0, held: now.since(self.newest.1) }
    }
}
