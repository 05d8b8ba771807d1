//! How long the device works: from a step's submission, or the end of the one before it, to its own end.
//!
//! Invariant: no step costs a record for it; what has come together is told when it is worth a tenth of a second, or when nothing is left to
//! do. A device whose steps overlap is busy once.

use std::time::Duration;

use lifecycle::Time;
use lifecycle::event::Event;
use observe::Journal;

/// What is worth a record.
const WORTH: Duration = Duration::from_millis(100);

/// Steps on the device, and the time since they are.
#[derive(Default)]
pub(crate) struct Busy {
    steps: u32,
    since: Time,
    untold: Duration,
}

impl Busy {
    /// The device took a step.
    pub(crate) fn submitted(&mut self, now: Time) {
        if self.steps == 0 {
            self.since = now;
        }
        self.steps += 1;
    }

    /// A step is over, well or not.
    pub(crate) fn done(&mut self, journal: &Journal) {
        let now = journal.clock().now();
        self.steps = self.steps.saturating_sub(1);
        self.untold += now.since(std::mem::replace(&mut self.since, now));
        if self.untold >= WORTH {
            self.tell(journal);
        }
    }

    /// All that could be planned is planned.
    pub(crate) fn planned(&mut self, journal: &Journal) {
        if self.steps == 0 && !self.untold.is_zero() {
            self.tell(journal);
        }
    }

    fn tell(&mut self, journal: &Journal) {
        journal.record(None, 0, Event::DeviceBusy { span: std::mem::take(&mut self.untold) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use observe::{Clock, Limits};

    use super::*;

    static NOW_MS: AtomicU64 = AtomicU64::new(0);

    fn pass(ms: u64) -> Time {
        Time(1000 * (NOW_MS.fetch_add(ms, Ordering::Relaxed) + ms))
    }

    #[test]
    fn steps_that_overlap_are_counted_once_and_idle_time_never() {
        let journal = Journal::new(Clock::over(|| Duration::from_millis(NOW_MS.load(Ordering::Relaxed))), Limits::default());
        let told = || {
            let mut sum = Duration::ZERO;
            let records = journal.count(|r| match r.event {
                Event::DeviceBusy { span } => {
                    sum += span;
                    true
                }
                _ => false,
            });
            (records, sum.as_millis())
        };
        let mut busy = Busy::default();
        busy.submitted(pass(500));
        busy.submitted(pass(10));
        pass(20);
        busy.done(&journal);
        busy.planned(&journal);
        assert_eq!(told(), (0, 0), "30 ms are not worth a record while there is more to do");
        pass(5);
        busy.done(&journal);
        busy.planned(&journal);
        assert_eq!(told(), (1, 35), "from the first one's submission to the last one's end");
        busy.submitted(pass(1000));
        pass(150);
        busy.done(&journal);
        assert_eq!(told(), (2, 185), "and it was idle for a second");
    }
}
