//! A lost session: its attempts are not scheduled and keep their blocks until a session attaches to them or something ends them.
//!
//! One that had a place (slots, blocks) goes from `running` to `suspended` and back; its rows in flight finish and their tokens count. One that
//! waited stays in `waiting` and keeps its turn, but is passed over: it neither goes on nor holds up who waits behind it. What a suspended
//! attempt computed for others needs no word: it has claimed only blocks of rows in flight, so a follower takes them, and over, as ever.
//!
//! Invariant: a suspended attempt is nobody's victim, and nobody is ended for want of blocks that a suspended attempt keeps.
// contract: C-10

use lifecycle::event::Event;
use lifecycle::{AttemptEvent, AttemptId, AttemptState, Rules};

use crate::engine::Engine;

impl<R: Rules> Engine<R> {
    pub(crate) fn suspend(&mut self, id: &AttemptId) {
        let Some(&key) = self.by_id.get(id) else { return };
        if !self.step_machine(key, AttemptEvent::Suspend) {
            return; // suspended already, or ended
        }
        let rank = self.attempts[&key].rank;
        if self.running.remove(&rank) {
            self.suspended.insert(rank);
        }
    }

    pub(crate) fn attach(&mut self, id: &AttemptId) {
        let Some(&key) = self.by_id.get(id) else { return };
        if !self.step_machine(key, AttemptEvent::Attach) {
            return; // it was not suspended
        }
        let (rank, state) = (self.attempts[&key].rank, self.attempts[&key].state);
        if self.suspended.remove(&rank) {
            self.running.insert(rank);
        } else if matches!(state, AttemptState::Prefilling | AttemptState::Decoding) {
            // The device broke its rows meanwhile: it waits already, to be recomputed, and its machine learns of it now.
            self.step_machine(key, AttemptEvent::Preempt);
            self.journal(key, Event::Preempted);
        }
    }
}
