//! The journal's part of a look: the runs whose callers are gone, those that live, and what must not happen.
//!
//! Invariant: the runs are looked at a few at a time, so that no record waits long; each stands as it stood when it was looked at.
// contract: C-15 C-24

use lifecycle::Time;

use super::{Journal, State};
use crate::alert::AlertRules;
use crate::diagnose::{LeftRun, Look};
use crate::fold::Run;
use crate::metrics::WorkerScrape;
use crate::view::RunState;

/// Runs that are looked at without letting go of the lock.
const SCAN: usize = 512;
/// Most runs that a look names.
const LEFT_MAX: usize = 64;

impl Journal {
    /// What this journal says of how things stand; the accounts as with `metrics`. Workers, process and version are the caller's to add.
    pub fn look(&self, rules: &AlertRules, workers: &[WorkerScrape<'_>]) -> Look {
        let now = self.0.clock.now();
        let mut look = Look {
            object: "look".to_owned(),
            at_ms: self.0.clock.calendar_ms(now),
            patience_ms: ms(rules.unacknowledged),
            orphaned_ms: ms(rules.orphaned),
            ..Look::default()
        };
        let mut state = self.lock();
        let totals = state.cut(workers, now);
        look.defects = state.history.latest(now, &totals).defects;
        drop(state);
        look.orphans_oldest_ms = totals.orphans_oldest_us / 1000;
        look.tokens_generated = totals.work.generated;
        look.unproven = totals.left.unproven();
        let live = RunState::ALL.into_iter().filter(|state| *state != RunState::Ended);
        look.runs = live.map(|state| (state.as_str().to_owned(), totals.runs[state as usize])).collect();
        self.left(now, &mut look);
        look
    }

    /// The runs that nobody wants and that are not released.
    fn left(&self, now: Time, look: &mut Look) {
        let mut from = 0;
        loop {
            let state = self.lock();
            let some: Vec<(u64, Option<LeftRun>)> =
                state.order.range(from..).take(SCAN).map(|(seq, key)| (*seq, state.left(key, now))).collect();
            drop(state);
            let Some((last, _)) = some.last() else { break };
            from = last + 1;
            for left in some.into_iter().filter_map(|(_, left)| left) {
                look.left_total += 1;
                let place = look.left.partition_point(|other| other.waits_ms >= left.waits_ms);
                if place < LEFT_MAX {
                    look.left.insert(place, left);
                    look.left.truncate(LEFT_MAX);
                }
            }
        }
    }
}

impl State {
    fn left(&self, key: &lifecycle::RunKey, now: Time) -> Option<LeftRun> {
        self.runs.get(key).filter(|run| run.stands.state != RunState::Ended).and_then(|run: &Run| run.left(now))
    }
}

fn ms(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
