//! A run that another gateway had and lost: it goes on here with a further attempt.
//!
//! Who may take a run over is decided where runs are stored; here it is only made sure that what the former gateway's attempt still says can
//! be told apart, for the next attempt has the next number.
//!
//! Invariant: of the former attempt nobody here can say that it was released, so the run is never called proven.
// contract: C-2 C-5 C-20

use super::{Dispatch, DispatchConfig, Effects, Work};
use crate::event::Event;
use crate::rules::Rules;
use crate::{Call, Deadline, Incarnation, RunKey, Time};

impl<R: Rules> Dispatch<R> {
    /// A run whose current attempt, at another gateway, was `attempt`; 0 if it had none. It waits for a worker, for attempt + 1. Deadlines are
    /// those that are left, and redispatches count from here.
    pub fn taken_over(key: RunKey, work: Work, deadlines: Vec<Deadline>, config: DispatchConfig, attempt: u32, now: Time) -> Dispatch<R> {
        let mut run = Dispatch::new(key, work, deadlines, config, now);
        run.call = Call::taken_over(attempt);
        run.first = attempt;
        run
    }

    /// The same run, whose readers were told already that a worker had taken it on.
    #[must_use]
    pub fn accepted_before(mut self) -> Dispatch<R> {
        self.accepted = true;
        self
    }

    /// What has to be written of a run that was taken over, before all else: its former attempt is void. Nothing of a run of this gateway's.
    pub fn former(&self) -> Effects {
        let mut effects = Vec::new();
        if self.first > 0 && self.call.attempt() == self.first {
            // Whose worker it was is not known here.
            self.note(Event::Void { worker: Incarnation(0) }, &mut effects);
        }
        effects
    }
}
