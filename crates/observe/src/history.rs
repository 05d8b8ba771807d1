//! What the totals were at regular moments, so that a period is the difference of two of them.
//!
//! No timer takes them: the first record of a new period brings the mark that closes the one before, at the cost of a comparison for every
//! other record. Whatever lies between two marks was counted in the first period of them, so a mark says how things stood at each moment up to it.
//!
//! Invariant: the difference of two moments on the grid is exact, and memory is bounded.

use std::collections::VecDeque;
use std::time::Duration;

use lifecycle::{OutcomeKind, Time, Waste};

use crate::metrics::Totals;
use crate::metrics::histogram::BUCKETS;

/// Periods of the grid in a window.
const PERIODS: u32 = 20;
/// Windows in a row that can be looked back at.
pub(crate) const WINDOWS: u32 = 3;
/// Marks kept: those windows, and the one at either end.
const MARKS: usize = (PERIODS * WINDOWS + 2) as usize;

/// What became of settled runs that ended in one way.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Ended {
    pub runs: u64,
    pub work: Waste,
    pub zero_delivery_runs: u64,
    pub zero_delivery: Waste,
}

/// The totals at one moment, or what came to them in a period.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub work: Waste,
    pub ended: [Ended; OutcomeKind::ALL.len()],
    pub busy_us: u64,
    pub steps: u64,
    pub defects: u64,
    /// Buckets of disconnect to cancel applied, and of the time between a run's steps.
    pub cancel: [u64; BUCKETS],
    pub cycle: [u64; BUCKETS],
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            work: Waste::default(),
            ended: Default::default(),
            busy_us: 0,
            steps: 0,
            defects: 0,
            cancel: [0; BUCKETS],
            cycle: [0; BUCKETS],
        }
    }
}

impl Tally {
    pub(crate) fn of(totals: &Totals) -> Tally {
        let ended = std::array::from_fn(|kind| {
            let kind = OutcomeKind::ALL[kind];
            let settled = totals.settled_work(kind);
            Ended {
                runs: totals.ended(kind),
                work: settled.sum,
                zero_delivery_runs: settled.zero_delivery_runs,
                zero_delivery: settled.zero_delivery,
            }
        });
        Tally {
            work: totals.work,
            ended,
            busy_us: totals.busy_us,
            steps: totals.steps,
            defects: totals.defects(),
            cancel: totals.disconnect_to_cancel.counts(),
            cycle: totals.inter_token.counts,
        }
    }

    /// What came since `earlier`.
    pub(crate) fn since(&self, earlier: &Tally) -> Tally {
        let buckets = |now: &[u64; BUCKETS], then: &[u64; BUCKETS]| std::array::from_fn(|at| now[at].saturating_sub(then[at]));
        let ended = std::array::from_fn(|kind| {
            let (now, then) = (&self.ended[kind], &earlier.ended[kind]);
            Ended {
                runs: now.runs.saturating_sub(then.runs),
                work: now.work.since(&then.work),
                zero_delivery_runs: now.zero_delivery_runs.saturating_sub(then.zero_delivery_runs),
                zero_delivery: now.zero_delivery.since(&then.zero_delivery),
            }
        });
        Tally {
            work: self.work.since(&earlier.work),
            ended,
            busy_us: self.busy_us.saturating_sub(earlier.busy_us),
            steps: self.steps.saturating_sub(earlier.steps),
            defects: self.defects.saturating_sub(earlier.defects),
            cancel: buckets(&self.cancel, &earlier.cancel),
            cycle: buckets(&self.cycle, &earlier.cycle),
        }
    }
}

/// The marks.
pub(crate) struct History {
    period_us: u64,
    window: Duration,
    /// When the period under way is over.
    due: Time,
    marks: VecDeque<(Time, Tally)>,
    forgot: bool,
}

impl History {
    pub(crate) fn new(window: Duration) -> History {
        let period_us = u64::try_from(window.as_micros()).unwrap_or(u64::MAX).div_ceil(PERIODS.into()).max(1);
        History { period_us, window, due: Time(period_us), marks: VecDeque::new(), forgot: false }
    }

    /// A record of `at` is about to be folded into these totals.
    #[inline]
    pub(crate) fn pass(&mut self, at: Time, totals: &Totals) {
        if at >= self.due {
            self.mark(at, totals);
        }
    }

    #[cold]
    fn mark(&mut self, at: Time, totals: &Totals) {
        let begun = self.floor(at);
        if self.marks.len() >= MARKS {
            self.marks.pop_front();
            self.forgot = true;
        }
        self.marks.push_back((begun, Tally::of(totals)));
        self.due = Time(begun.0.saturating_add(self.period_us));
    }

    fn floor(&self, at: Time) -> Time {
        Time(at.0 - at.0 % self.period_us)
    }

    /// How things stood at a moment on the grid. `None` if that is forgotten.
    fn stood(&self, at: Time, totals: &Totals) -> Option<Tally> {
        if at.0 < self.period_us {
            return (!self.forgot).then(Tally::default);
        }
        let place = self.marks.partition_point(|(mark, _)| *mark < at);
        match self.marks.get(place) {
            Some((mark, _)) if place == 0 && self.forgot && *mark > at => None,
            Some((_, tally)) => Some(tally.clone()),
            None => Some(Tally::of(totals)),
        }
    }

    /// What came in the `back`-th window before the period under way, from 0. `None` if it began before the process did, or is forgotten.
    pub(crate) fn window(&self, back: u32, now: Time, totals: &Totals) -> Option<Tally> {
        let ago = |windows: u32| {
            let span = u64::try_from(self.window.as_micros()).ok()?.checked_mul(windows.into())?;
            Some(self.floor(Time(self.floor(now).0.checked_sub(span)?)))
        };
        let (from, to) = (ago(back + 1)?, ago(back)?);
        Some(self.stood(to, totals)?.since(&self.stood(from, totals)?))
    }

    /// What came in the last window, the period under way included; since the process began if that is shorter ago.
    pub(crate) fn latest(&self, now: Time, totals: &Totals) -> Tally {
        let span = u64::try_from(self.window.as_micros()).unwrap_or(u64::MAX);
        let from = self.floor(Time(now.0.saturating_sub(span)));
        Tally::of(totals).since(&self.stood(from, totals).unwrap_or_default())
    }
}
