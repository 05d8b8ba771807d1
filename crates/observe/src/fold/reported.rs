//! What another kvit's own record says of an attempt that it had: counted beside what its answer showed, and never twice.
//!
//! Invariant: a token that was read here is not counted again; what was done for nobody is never less than either of the two counted.
// contract: C-12 C-28

use lifecycle::message::Reported;

use super::Run;
use crate::metrics::Totals;

impl Run {
    pub(super) fn reported(&mut self, number: u32, work: &Reported, totals: &mut Totals) {
        self.check_unreleased(number, totals);
        let before = self.meter.waste();
        let shown = self.attempt_mut(number).and_then(|a| a.ahead).map_or(0, |ahead| ahead.generated());
        let more = (work.generated.saturating_sub(shown), work.steps.saturating_sub(before.steps));
        self.meter.reported(more, work);
        totals.work.add(&self.meter.waste().since(&before));
        self.after_receipt += work.after_receipt;
        // Unless its answer had come to an end that said so.
        if self.prompt == 0 && work.prompt > 0 {
            totals.looked_up(work.cached_prompt);
            totals.prefix_cached += work.cached_prompt.saturating_sub(self.cached_prompt);
            (self.prompt, self.cached_prompt) = (work.prompt, work.cached_prompt);
        }
        if let Some(attempt) = self.attempt_mut(number) {
            attempt.bound = work.waste_bound;
        }
    }
}
