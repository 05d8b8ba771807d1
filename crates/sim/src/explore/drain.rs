//! A worker that is told to stop, as `worker`'s shell does it: it takes nothing more, hands back what waits, cancels at a limit what runs,
//! and ends when nothing is left.
//!
//! Invariant: a run is handed back by the worker's own two words, `ended` for `shutdown` and `released`, and by nothing else.
// contract: C-5, C-7, C-20

use engine::Input;
use lifecycle::{Cause, Outcome, Rules};

use super::marks::Mark;
use super::words::{Try, Up};
use super::world::World;

impl<R: Rules> World<R> {
    /// Whether it stops and has nothing left, so that its process may end. What its lanes still keep may be lost with it.
    pub(super) fn is_drained(&self) -> bool {
        self.worker.draining && self.worker.engine.is_idle() && self.worker.device.queue.is_empty()
    }

    pub(super) fn drain(&mut self) {
        self.budget.drains -= 1;
        self.worker.draining = true;
        self.say(Up::Draining);
        let waits = |state: &str, blocks: u32| state == "queued" || (state == "suspended" && blocks == 0);
        let waiting: Vec<Try> =
            self.cut.attempts.iter().filter(|a| waits(a.state, a.blocks)).filter_map(|a| Try::of(&a.attempt, &self.scene.names)).collect();
        for of in waiting {
            if self.fates_of(of).tokens.iter().all(|tokens| *tokens == 0) {
                self.end_for_shutdown(of);
            }
        }
    }

    pub(super) fn drain_over(&mut self) {
        self.worker.drained = true;
        for (of, _) in self.live() {
            if self.fates_of(of).tokens.iter().any(|tokens| *tokens > 0) {
                self.marks.add(Mark::DrainedRunning);
            }
            self.end_for_shutdown(of);
        }
    }

    fn end_for_shutdown(&mut self, of: Try) {
        self.input(Input::End { attempt: of.id(&self.scene.names), number: 0, outcome: Outcome::of(Cause::Shutdown) });
        self.check_cancelled(of);
    }

    /// A submit that had not heard of it: no engine ever has this attempt.
    pub(super) fn turn_away(&mut self, of: Try) {
        self.note(|s| format!("{} is turned away", s.word(of)));
        self.marks.add(Mark::TurnedAway);
        let fate = self.fate(of);
        fate.ends += 1;
        fate.ended = Some(Cause::Shutdown);
        fate.released += 1;
        self.say(Up::Ended(of, Cause::Shutdown));
        self.say(Up::Released(of));
    }
}
