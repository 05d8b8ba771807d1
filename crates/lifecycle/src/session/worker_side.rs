//! A worker's side: which gateway owns which attempt, who is heard of, whose lease is over, and what has to be said again.
//!
//! It stands before the engine: what it lets through is new, in order and of a live life. It decides when an attempt is suspended, attached
//! and orphaned, and ends none of them itself: an orphan's end is an ordinary cancel.
//!
//! Invariant: an attempt is submitted to the engine once; it leaves this table when the engine says `released`, and for no other reason.
// contract: C-2, C-3, C-9, C-10, C-11, C-23

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::frame::{Frame, Hello, Refused};
use super::peer::Peer;
use super::worker_io::WorkerEffect;
use super::{SessionConfig, Welcome};
use crate::message::{Down, Receipt, Submit, Up, Usage};
use crate::{AttemptId, Cause, Incarnation, Outcome, Time};

/// Who owns an attempt.
pub(super) type Owner = (Arc<str>, Incarnation);

/// An attempt that the engine has not released.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) owner: Owner,
    /// The engine's number.
    pub(super) number: u64,
    /// Gateways that cancelled it: they are told how it ended, whoever owns it.
    pub(super) cancelled_by: BTreeSet<Arc<str>>,
    pub(super) suspended: bool,
    /// A cancel because of an orphan is on its way to the engine.
    pub(super) orphaned: bool,
    pub(super) ended: bool,
}

/// A cancel for an attempt that has not come.
#[derive(Clone, Debug)]
pub(super) struct Tombstone {
    /// The gateway that sent it.
    pub(super) from: Arc<str>,
    pub(super) cause: Cause,
    /// When it is forgotten.
    pub(super) until: Time,
}

/// A life of a gateway that a newer one has followed. Its attempts wait for a claim, a disclaim or the end of its lease.
#[derive(Clone, Debug)]
pub(super) struct Former {
    pub(super) owner: Owner,
    pub(super) lease_until: Time,
}

/// A worker's side of all its sessions.
#[derive(Clone, Debug)]
pub struct WorkerSide {
    pub(super) me: Incarnation,
    pub(super) name: Arc<str>,
    pub(super) config: SessionConfig,
    pub(super) peers: BTreeMap<Arc<str>, Peer>,
    pub(super) former: Vec<Former>,
    pub(super) held: BTreeMap<AttemptId, Held>,
    /// Cancels for attempts that have not come. What was acknowledged counts, even if the gateway that sent it has gone since (C-11).
    pub(super) tombstones: BTreeMap<AttemptId, Tombstone>,
    /// Submits that wait until an attempt of the same name is released, which an earlier life of their gateway owned.
    pub(super) behind: BTreeMap<AttemptId, (Arc<str>, Box<Submit>)>,
    pub(super) last_tenure: u64,
    pub(super) last_number: u64,
    pub(super) draining: bool,
    pub(super) stale: u64,
}

impl WorkerSide {
    /// A worker's life that nobody has spoken with.
    pub fn new(name: Arc<str>, me: Incarnation, config: SessionConfig) -> WorkerSide {
        WorkerSide {
            me,
            name,
            config,
            peers: BTreeMap::new(),
            former: Vec::new(),
            held: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            behind: BTreeMap::new(),
            last_tenure: 0,
            last_number: 0,
            draining: false,
            stale: 0,
        }
    }

    /// This life.
    pub const fn incarnation(&self) -> Incarnation {
        self.me
    }

    /// Messages that changed nothing because they were of another life or tenure (C-3).
    pub const fn stale(&self) -> u64 {
        self.stale
    }

    /// A gateway opens a connection.
    ///
    /// # Errors
    /// [`Refused`]: a late connection, a life that is over, or no room.
    pub fn hello(&mut self, hello: &Hello, now: Time) -> Result<(Welcome, Vec<WorkerEffect>), Refused> {
        let mut out = Vec::new();
        let name = hello.gateway.clone();
        let known = self.peers.get(&name).map(|p| (p.life, p.tenure, p.session));
        match known {
            Some((life, ..)) if hello.incarnation < life => {
                self.stale += 1;
                return Err(Refused::OldGateway { newest: life });
            }
            Some((life, _, session)) if hello.incarnation == life && hello.session <= session => {
                self.stale += 1;
                return Err(Refused::OldSession { newest: session });
            }
            Some((life, tenure, _)) if hello.incarnation == life && hello.resume == Some((self.me, tenure)) => {
                if let Some(peer) = self.peers.get_mut(&name) {
                    peer.reopen(hello, &self.config, now);
                }
            }
            known => self.begin(hello, known.map(|k| k.0), now, &mut out)?,
        }
        self.wake(&name, now, &mut out);
        self.flush(&name, now, &mut out);
        match self.peers.get(&name) {
            Some(peer) => Ok((peer.welcome(self.me, &self.name, now), out)),
            None => Err(Refused::TooManyGateways { limit: self.config.gateways_max }),
        }
    }

    /// A tenure begins: the first of a life, or another one because the life holds nothing of the one before.
    fn begin(&mut self, hello: &Hello, known: Option<Incarnation>, now: Time, out: &mut Vec<WorkerEffect>) -> Result<(), Refused> {
        let name = hello.gateway.clone();
        if known.is_none() && self.peers.len() + self.former.len() >= self.config.gateways_max {
            return Err(Refused::TooManyGateways { limit: self.config.gateways_max });
        }
        self.last_tenure += 1;
        let peer = Peer::new(hello, self.last_tenure, &self.config, now);
        let before = self.peers.insert(name.clone(), peer);
        self.behind.retain(|_, (gateway, _)| *gateway != name);
        if self.draining {
            self.push(&name, Up::Draining);
        }
        let Some(before) = before else { return Ok(()) };
        if let Some(peer) = self.peers.get_mut(&name).filter(|p| p.life == before.life) {
            peer.mark = before.mark;
        }
        let owner = (name.clone(), before.life);
        let theirs: Vec<AttemptId> = self.held.iter().filter(|(_, h)| h.owner == owner).map(|(id, _)| id.clone()).collect();
        if before.life == hello.incarnation {
            // contract: C-23. It says itself that it holds nothing any more.
            theirs.into_iter().for_each(|id| self.orphan(&id, out));
        } else if !theirs.is_empty() {
            // Nothing follows from a new life alone: it is asked, and until it has answered nothing of the old one is scheduled.
            theirs.iter().for_each(|id| self.suspend(id, out));
            self.former.push(Former { owner, lease_until: before.lease_until() });
            self.ask(&name, theirs);
        }
        Ok(())
    }

    pub(super) fn ask(&mut self, name: &Arc<str>, attempts: Vec<AttemptId>) {
        for part in attempts.chunks(self.config.ask_max.max(1)) {
            self.push(name, Up::Ask { attempts: part.to_vec() });
        }
    }

    /// A gateway's connection is over. It proves that nobody reads there, and nothing else (C-10).
    pub fn closed(&mut self, gateway: &str, session: u64) {
        if let Some(peer) = self.peers.get_mut(gateway).filter(|p| p.session == session) {
            peer.open = false;
        }
    }

    /// A frame came in on a connection of this gateway.
    pub fn hear(&mut self, gateway: &str, frame: Frame<Down>, now: Time) -> Vec<WorkerEffect> {
        let mut out = Vec::new();
        let name: Arc<str> = gateway.into();
        let meant = |p: &&mut Peer| frame.to == self.me && frame.from == p.life && frame.tenure == p.tenure;
        let Some(peer) = self.peers.get_mut(&name).filter(meant) else {
            // contract: C-3
            self.stale += 1;
            return vec![WorkerEffect::Stale];
        };
        let messages = peer.hear(frame, &self.config, now);
        self.wake(&name, now, &mut out);
        for message in messages {
            self.take(&name, message, now, &mut out);
        }
        self.flush(&name, now, &mut out);
        out
    }

    /// A gateway was heard: what was suspended goes on. After the end of its lease only with an echo that begins a new one: what it says may
    /// have been on its way for long.
    fn wake(&mut self, name: &Arc<str>, now: Time, out: &mut Vec<WorkerEffect>) {
        let config = self.config;
        let Some(peer) = self.peers.get_mut(name) else { return };
        if now >= peer.lease_until() {
            // contract: C-9. The gateway may have concluded already: a submit that comes now is kept and not scheduled.
            peer.suspended = true;
            return;
        }
        peer.lease_over = false;
        // What was suspended because it does not acknowledge goes on when it has acknowledged half.
        if !peer.suspended || now >= peer.suspend_at(&config) || peer.lane.waiting() > config.outbox_max / 2 {
            return;
        }
        peer.suspended = false;
        let owner = (name.clone(), peer.life);
        for (id, held) in self.held.iter_mut().filter(|(_, h)| h.owner == owner && h.suspended) {
            held.suspended = false;
            out.push(WorkerEffect::Attach(id.clone()));
        }
    }

    fn take(&mut self, name: &Arc<str>, message: Down, now: Time, out: &mut Vec<WorkerEffect>) {
        match message {
            Down::Submit(submit) => self.submit(name, submit, out),
            Down::Cancel { attempt, cause, number, .. } => self.cancel(name, attempt, (cause, number), now, out),
            Down::Claim { attempts } => {
                let life = self.peers.get(name).map(|p| p.life);
                for (id, life) in attempts.iter().zip(std::iter::repeat(life)) {
                    self.claim(name, id, life, out);
                }
                self.forget_former(now);
            }
            Down::Disclaim { attempts } => {
                for id in attempts {
                    if self.held.get(&id).is_some_and(|h| h.owner.0 == *name) {
                        self.orphan(&id, out);
                    }
                }
            }
            // A call of its own, outside the session.
            Down::Snapshot { .. } => {}
        }
    }

    fn submit(&mut self, name: &Arc<str>, submit: Box<Submit>, out: &mut Vec<WorkerEffect>) {
        let Some(peer) = self.peers.get_mut(name) else { return };
        // contract: C-2. A lane brings a message once; whoever says the same under a new number does not get it executed again.
        if submit.number <= peer.mark {
            self.stale += 1;
            return out.push(WorkerEffect::Stale);
        }
        peer.mark = submit.number;
        self.take_on(name, submit, out);
    }

    fn take_on(&mut self, name: &Arc<str>, mut submit: Box<Submit>, out: &mut Vec<WorkerEffect>) {
        let Some(peer) = self.peers.get(name) else { return };
        let owner = (name.clone(), peer.life);
        let suspended = peer.suspended;
        let id = submit.attempt.clone();
        if submit.worker != self.me {
            // contract: C-2
            self.stale += 1;
            return self.turn_away(name, id, Outcome::because(Cause::WorkerLost, "meant for an earlier life of this worker"));
        }
        if let Some(held) = self.held.get(&id) {
            if held.owner == owner {
                return; // it runs already
            }
            if held.owner.0 == *name {
                // A run of the same name that an earlier life of this gateway owned: whoever submits it anew does not go on with that one.
                self.orphan(&id, out);
                self.behind.insert(id, (name.clone(), submit));
                return;
            }
            return self.turn_away(name, id, Outcome::because(Cause::Invalid, "another gateway runs an attempt of this name here"));
        }
        if self.draining {
            return self.turn_away(name, id, Outcome::because(Cause::Shutdown, "this worker drains"));
        }
        self.last_number += 1;
        submit.number = self.last_number;
        let mut held =
            Held { owner, number: self.last_number, cancelled_by: BTreeSet::new(), suspended: false, orphaned: false, ended: false };
        // contract: C-11. The engine gets the cancel first, and its tombstone turns the submit away.
        if let Some(Tombstone { from, cause, .. }) = self.tombstones.remove(&id) {
            held.cancelled_by.insert(from);
            out.push(WorkerEffect::Cancel { attempt: id.clone(), cause, number: self.last_number });
        }
        self.held.insert(id.clone(), held);
        out.push(WorkerEffect::Submit(submit));
        if suspended {
            self.suspend(&id, out);
        }
    }

    fn turn_away(&mut self, name: &Arc<str>, attempt: AttemptId, outcome: Outcome) {
        self.push(name, Up::Ended { attempt: attempt.clone(), outcome, usage: Usage::default() });
        self.push(name, Up::Released { attempt, receipt: Receipt::default() });
    }

    fn cancel(&mut self, name: &Arc<str>, attempt: AttemptId, (cause, number): (Cause, u64), now: Time, out: &mut Vec<WorkerEffect>) {
        let behind = self.behind.get(&attempt).is_some_and(|(gateway, submit)| gateway == name && submit.number == number);
        if behind {
            self.behind.remove(&attempt);
            self.push(name, Up::CancelAcknowledged { attempt: attempt.clone(), won: Some(cause) });
            return self.turn_away(name, attempt, Outcome::of(cause));
        }
        if let Some(held) = self.held.get_mut(&attempt) {
            held.cancelled_by.insert(name.clone());
            let number = held.number;
            return out.push(WorkerEffect::Cancel { attempt, cause, number });
        }
        // Its submit was taken, so it was released long ago.
        let over = number > 0 && self.peers.get(name).is_some_and(|p| number <= p.mark);
        if !over && !self.tombstones.contains_key(&attempt) {
            let theirs = self.tombstones.values().filter(|t| t.from == *name).count();
            let all = self.config.tombstones_max.saturating_mul(self.config.gateways_max);
            if theirs >= self.config.tombstones_max || self.tombstones.len() >= all {
                return; // nobody may think that it counts: it comes again
            }
            let until = now.after(self.config.tombstone_keep);
            self.tombstones.insert(attempt.clone(), Tombstone { from: name.clone(), cause, until });
        }
        self.push(name, Up::CancelAcknowledged { attempt, won: None });
    }

    fn claim(&mut self, name: &Arc<str>, id: &AttemptId, life: Option<Incarnation>, out: &mut Vec<WorkerEffect>) {
        let Some(held) = self.held.get_mut(id).filter(|h| h.owner.0 == *name && !h.orphaned) else { return };
        if let Some(life) = life.filter(|life| *life != held.owner.1) {
            held.owner.1 = life;
            // A new life that has not acknowledged enough is suspended itself, and its attempts go on with it.
            if !self.peers.get(name).is_some_and(|p| p.suspended) && std::mem::take(&mut held.suspended) {
                out.push(WorkerEffect::Attach(id.clone()));
            }
        }
    }

    pub(super) fn orphan(&mut self, id: &AttemptId, out: &mut Vec<WorkerEffect>) {
        if let Some(held) = self.held.get_mut(id).filter(|h| !h.orphaned) {
            held.orphaned = true;
            out.push(WorkerEffect::Cancel { attempt: id.clone(), cause: Cause::Orphaned, number: held.number });
        }
    }

    pub(super) fn suspend(&mut self, id: &AttemptId, out: &mut Vec<WorkerEffect>) {
        if let Some(held) = self.held.get_mut(id).filter(|h| !h.suspended && !h.ended) {
            held.suspended = true;
            out.push(WorkerEffect::Suspend(id.clone()));
        }
    }

    pub(super) fn peer_of(&self, owner: &Owner) -> Option<&Peer> {
        self.peers.get(&owner.0).filter(|p| p.life == owner.1 && !p.lease_over)
    }

    /// Whom a word about an attempt concerns: its owner, if that life can still be spoken to, and whoever cancelled it.
    pub(super) fn concerned(&self, attempt: &AttemptId) -> BTreeSet<Arc<str>> {
        let Some(held) = self.held.get(attempt) else { return BTreeSet::new() };
        let owner = self.peers.get(&held.owner.0).filter(|p| p.life == held.owner.1).map(|_| held.owner.0.clone());
        owner.into_iter().chain(held.cancelled_by.iter().cloned()).collect()
    }

    pub(super) fn push(&mut self, name: &Arc<str>, message: Up) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.lane.push(message);
        }
    }

    pub(super) fn released(&mut self, attempt: &AttemptId, out: &mut Vec<WorkerEffect>) {
        self.held.remove(attempt);
        if let Some((name, submit)) = self.behind.remove(attempt) {
            self.take_on(&name, submit, out);
        }
    }

    /// What is to be said to a gateway now.
    pub(super) fn flush(&mut self, name: &Arc<str>, now: Time, out: &mut Vec<WorkerEffect>) {
        let Some(peer) = self.peers.get_mut(name) else { return };
        let session = peer.session;
        for frame in peer.frames(self.me, &self.config, now) {
            out.push(WorkerEffect::Send { gateway: name.clone(), session, frame: Box::new(frame) });
        }
    }
}
