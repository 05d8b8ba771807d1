//! Time at a worker's side: who is silent, whose lease is over, who is asked, who is forgotten.
//!
//! Invariant: no timer frees a block: what it decides is that an attempt is not scheduled, or that it is cancelled as an orphan.
// contract: C-9, C-10, C-23

use std::sync::Arc;

use super::peer::Peer;
use super::worker_io::WorkerEffect;
use super::worker_side::{Owner, WorkerSide};
use crate::{AttemptId, Time};

impl WorkerSide {
    /// Time has passed. To be called before every step (C-9), and when [`Self::next_due`] says so.
    pub fn tick(&mut self, now: Time) -> Vec<WorkerEffect> {
        let mut out = Vec::new();
        let names: Vec<Arc<str>> = self.peers.keys().cloned().collect();
        for name in &names {
            self.look_at(name, now, &mut out);
            self.flush(name, now, &mut out);
        }
        self.look_at_former(now, &mut out);
        self.tombstones.retain(|_, tombstone| now < tombstone.until);
        out
    }

    fn look_at(&mut self, name: &Arc<str>, now: Time, out: &mut Vec<WorkerEffect>) {
        let config = self.config;
        let Some(peer) = self.peers.get_mut(name) else { return };
        let owner = (name.clone(), peer.life);
        let silent = now >= peer.suspend_at(&config);
        let full = peer.lane.waiting() > config.outbox_max;
        let lease_over = now >= peer.lease_until();
        let forget = now >= peer.forget_at();
        let suspends = (silent || full) && !peer.suspended;
        // contract: C-9. What still comes of it after the lease's end is not scheduled.
        peer.suspended |= silent || full || lease_over;
        let orphans = lease_over && !std::mem::replace(&mut peer.lease_over, lease_over);
        // One more question to somebody who takes none would only fill its outbox.
        let asks = !peer.suspended && now >= peer.ask_at;
        if asks {
            peer.ask_at = now.after(config.ask_every);
        }
        if !(suspends || orphans || asks || forget) {
            return;
        }
        let theirs: Vec<AttemptId> = self.held.iter().filter(|(_, h)| h.owner == owner).map(|(id, _)| id.clone()).collect();
        if suspends {
            theirs.iter().for_each(|id| self.suspend(id, out));
        }
        if orphans || forget {
            theirs.iter().for_each(|id| self.orphan(id, out));
        }
        if asks && !theirs.is_empty() {
            self.ask(name, theirs);
        }
        if forget {
            self.peers.remove(name);
            self.behind.retain(|_, (gateway, _)| gateway != name);
        }
    }

    /// The former lives whose lease is over lose what nobody has claimed.
    fn look_at_former(&mut self, now: Time, out: &mut Vec<WorkerEffect>) {
        let over: Vec<Owner> = self.former.iter().filter(|f| now >= f.lease_until).map(|f| f.owner.clone()).collect();
        for owner in over {
            let theirs: Vec<AttemptId> = self.held.iter().filter(|(_, h)| h.owner == owner).map(|(id, _)| id.clone()).collect();
            theirs.iter().for_each(|id| self.orphan(id, out));
        }
        self.forget_former(now);
    }

    pub(super) fn forget_former(&mut self, now: Time) {
        let held = &self.held;
        self.former.retain(|f| now < f.lease_until && held.values().any(|h| h.owner == f.owner));
    }

    /// When `tick` is next worth calling.
    pub fn next_due(&self) -> Option<Time> {
        let config = &self.config;
        let peer = |p: &Peer| {
            let frames = p.open.then_some(p.heartbeat_at).into_iter().chain(p.lane.resend_at(config).filter(|_| p.open));
            let suspend = (!p.suspended).then(|| p.suspend_at(config));
            let lease = if p.lease_over { p.forget_at() } else { p.lease_until() };
            frames.chain(suspend).chain([lease]).min()
        };
        self.peers.values().filter_map(peer).chain(self.former.iter().map(|f| f.lease_until)).min()
    }
}
