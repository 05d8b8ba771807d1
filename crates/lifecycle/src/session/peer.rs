//! What a worker knows of one life of one gateway.
//!
//! Invariant: the lease is counted from a stamp of the worker's own clock that this life has sent back.

use super::frame::{Frame, Hello, PeerClock};
use super::lane::Lane;
use super::{SessionConfig, Welcome};
use crate::message::{Down, Up};
use crate::{Incarnation, Time};

/// So many times `suspend_after` may pass between a stamp of ours and its echo.
const DEAF_PARTS: u32 = 4;

/// So many times `outbox_max` may lie unacknowledged before nothing more is taken of a gateway: what is suspended can still end.
const OUTBOX_PARTS: usize = 2;

/// One life of a gateway, seen from a worker.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub life: Incarnation,
    pub tenure: u64,
    pub lane: Lane<Up, Down>,
    /// The newest connection's number; and whether it is open.
    pub session: u64,
    pub open: bool,
    pub heard: Time,
    /// The newest of our stamps that it sent back; the moment of the hello before any did.
    pub echoed: Time,
    pub suspended: bool,
    /// Its attempts were ended because the lease was over.
    pub lease_over: bool,
    pub clock: PeerClock,
    /// Highest number of a submit that was taken.
    pub mark: u64,
    /// When the next frame goes out, whatever there is to say.
    pub heartbeat_at: Time,
    /// Something came in that is not acknowledged yet.
    pub owes: bool,
    pub ask_at: Time,
    pub lease: std::time::Duration,
}

impl Peer {
    pub fn new(hello: &Hello, tenure: u64, config: &SessionConfig, now: Time) -> Peer {
        Peer {
            life: hello.incarnation,
            tenure,
            lane: Lane::default(),
            session: hello.session,
            open: true,
            heard: now,
            echoed: now,
            suspended: false,
            lease_over: false,
            clock: PeerClock::new(hello.stamp, now),
            mark: 0,
            heartbeat_at: now,
            owes: true,
            ask_at: now.after(config.ask_every),
            lease: config.lease.max(hello.lease.min(config.lease_max)),
        }
    }

    /// A further connection of the same life, in the same tenure.
    pub fn reopen(&mut self, hello: &Hello, config: &SessionConfig, now: Time) {
        self.session = hello.session;
        self.open = true;
        self.clock.hear(hello.stamp, None, now);
        self.lane.acknowledge(hello.received, false, config, now);
        self.lane.rewind();
        self.heartbeat_at = now;
        self.heard = now;
    }

    pub fn welcome(&self, me: Incarnation, worker: &std::sync::Arc<str>, now: Time) -> Welcome {
        let received = self.lane.received();
        Welcome { worker: worker.clone(), incarnation: me, tenure: self.tenure, received, lease: self.lease, stamp: now }
    }

    /// Takes a frame in; gives the messages whose turn it is.
    pub fn hear(&mut self, frame: Frame<Down>, config: &SessionConfig, now: Time) -> Vec<Down> {
        self.heard = now;
        self.owes |= frame.number > 0;
        self.lane.acknowledge(frame.received, frame.missing, config, now);
        self.clock.hear(frame.stamp, frame.echo, now);
        // contract: C-9. A stamp from the future is no echo of ours.
        if let Some(echo) = frame.echo.filter(|e| e.stamp <= now) {
            self.echoed = self.echoed.max(echo.stamp);
        }
        // Each message may be answered. Of one who takes no answers nothing more is taken: it comes again.
        if self.lane.waiting() > config.outbox_max.saturating_mul(OUTBOX_PARTS) {
            return Vec::new();
        }
        frame.message.map(|message| self.lane.accept(frame.number, message, config)).unwrap_or_default()
    }

    /// When it is not to be scheduled any more if it stays silent, or if it speaks and shows no sign of hearing us: what is computed then
    /// reaches nobody.
    // contract: C-10
    pub fn suspend_at(&self, config: &SessionConfig) -> Time {
        self.heard.after(config.suspend_after).min(self.echoed.after(config.suspend_after * DEAF_PARTS))
    }

    /// When its lease is over if it stays silent.
    // contract: C-9
    pub fn lease_until(&self) -> Time {
        self.echoed.after(self.lease)
    }

    /// When it is forgotten if it stays silent: until then a gateway that was stopped can still learn what became of its attempts.
    pub fn forget_at(&self) -> Time {
        self.lease_until().after(self.lease)
    }

    /// The frames that are to go out now.
    pub fn frames(&mut self, me: Incarnation, config: &SessionConfig, now: Time) -> Vec<Frame<Up>> {
        let mut frames = Vec::new();
        if !self.open {
            return frames;
        }
        while let Some((number, message)) = self.lane.pop_due(config, now) {
            frames.push(self.frame(me, number, Some(message), now));
        }
        let missing = self.lane.take_missing();
        if frames.is_empty() && (missing || self.owes || now >= self.heartbeat_at) {
            frames.push(self.frame(me, 0, None, now));
        }
        if let Some(last) = frames.last_mut() {
            last.missing = missing;
            self.owes = false;
            self.heartbeat_at = now.after(config.heartbeat);
        }
        frames
    }

    fn frame(&self, me: Incarnation, number: u64, message: Option<Up>, now: Time) -> Frame<Up> {
        Frame {
            from: me,
            to: self.life,
            tenure: self.tenure,
            number,
            received: self.lane.received(),
            missing: false,
            stamp: now,
            echo: Some(self.clock.echo(now)),
            message,
        }
    }
}
