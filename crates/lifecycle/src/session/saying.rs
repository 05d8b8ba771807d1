//! What the engine says, on its way to the gateways that it concerns.
//!
//! Invariant: a gateway hears of its own attempts and of those that it cancelled, and of no other.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::worker_io::WorkerEffect;
use super::worker_side::WorkerSide;
use crate::event::Record;
use crate::message::Up;
use crate::{AttemptId, Time};

impl WorkerSide {
    /// The engine says something. Each gateway is told what concerns it.
    pub fn said(&mut self, message: Up, now: Time) -> Vec<WorkerEffect> {
        let mut out = Vec::new();
        match message {
            Up::Step { step, deltas } => {
                let parts = self.by_owner(deltas, |delta| Some(delta.attempt.clone()));
                parts.into_iter().for_each(|(name, deltas)| self.push(&name, Up::Step { step, deltas }));
            }
            Up::Records { records } => {
                let parts = self.by_owner(records, Record::attempt);
                parts.into_iter().for_each(|(name, records)| self.push(&name, Up::Records { records }));
            }
            Up::DeviceLost { .. } | Up::Draining => {
                self.draining |= matches!(message, Up::Draining);
                let names: Vec<Arc<str>> = self.peers.keys().cloned().collect();
                names.iter().for_each(|name| self.push(name, message.clone()));
            }
            Up::CancelAcknowledged { ref attempt, .. } => {
                let names = self.held.get(attempt).map(|h| h.cancelled_by.clone()).unwrap_or_default();
                names.iter().for_each(|name| self.push(name, message.clone()));
            }
            Up::Accepted { ref attempt, .. } | Up::Ended { ref attempt, .. } => {
                let names = self.concerned(attempt);
                if let (Up::Ended { .. }, Some(held)) = (&message, self.held.get_mut(attempt)) {
                    held.ended = true;
                }
                names.iter().for_each(|name| self.push(name, message.clone()));
            }
            Up::Released { ref attempt, .. } => {
                self.concerned(attempt).iter().for_each(|name| self.push(name, message.clone()));
                self.released(attempt, &mut out);
            }
            // Outside the session, of our own making, or no word of a worker of this protocol.
            Up::Snapshot { .. } | Up::Ask { .. } | Up::LetGo { .. } | Up::Reported { .. } => {}
        }
        let names: Vec<Arc<str>> = self.peers.keys().cloned().collect();
        names.iter().for_each(|name| self.flush(name, now, &mut out));
        out
    }

    /// One message a gateway, whatever the step brought for others.
    fn by_owner<T>(&self, items: Vec<T>, attempt: impl Fn(&T) -> Option<AttemptId>) -> BTreeMap<Arc<str>, Vec<T>> {
        let mut parts: BTreeMap<Arc<str>, Vec<T>> = BTreeMap::new();
        for item in items {
            let Some(held) = attempt(&item).and_then(|attempt| self.held.get(&attempt)) else { continue };
            if self.peers.get(&held.owner.0).is_some_and(|p| p.life == held.owner.1) {
                parts.entry(held.owner.0.clone()).or_default().push(item);
            }
        }
        parts
    }
}
