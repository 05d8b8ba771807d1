//! Entries of the outbox for runs' tools, which another gateway may be working on: when it is certain that it is not.
//!
//! Whoever works on one gives it another time before each call, and calls no longer than `lease` on that. So whoever sees one time stand for a
//! whole lease by its own clock knows that nobody works on it; what the calendar says at either gateway plays no part.
//!
//! Invariant: pure; what was not seen in between proves nothing.
// contract: C-27

use std::collections::HashMap;
use std::time::Duration;

use store::Hook;
use tokio::time::Instant;

/// The time of each entry, and since when it stands here.
#[derive(Default)]
pub(super) struct Watch(HashMap<String, (i64, Instant)>);

impl Watch {
    /// These are all that there are.
    pub(super) fn see(&mut self, entries: &[Hook], now: Instant) {
        let before = std::mem::take(&mut self.0);
        let since = |hook: &Hook| before.get(&hook.id).filter(|(due_ms, _)| *due_ms == hook.due_ms).map_or(now, |(_, since)| *since);
        self.0 = entries.iter().map(|hook| (hook.id.clone(), (hook.due_ms, since(hook)))).collect();
    }

    /// Whether nobody works on this one.
    pub(super) fn is_left(&self, hook: &Hook, lease: Duration, now: Instant) -> bool {
        let stands = self.0.get(&hook.id).filter(|(due_ms, _)| *due_ms == hook.due_ms);
        stands.is_some_and(|(_, since)| now.duration_since(*since) >= lease)
    }

    /// The store was away.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use lifecycle::{RunId, RunKey, Tenant};

    use super::*;

    #[test]
    fn an_entry_is_left_when_its_time_stands_for_a_whole_lease_whatever_the_calendar_says() {
        let run = RunKey { tenant: Tenant::default(), run: RunId::parse("r").expect("an id") };
        let at = |due_ms| Hook { id: "h".into(), run: run.clone(), url: String::new(), body: Vec::new(), due_ms, tries: 0, last: None };
        let (start, lease) = (Instant::now(), Duration::from_secs(35));
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut watch = Watch::default();
        // Long due, or long not due, by whoever's calendar.
        for due_ms in [0, i64::MAX] {
            watch.see(&[at(due_ms)], after(0));
            assert!(!watch.is_left(&at(due_ms), lease, after(34)));
            assert!(watch.is_left(&at(due_ms), lease, after(35)));
        }
        // Somebody goes on with it.
        watch.see(&[at(1)], after(40));
        watch.see(&[at(2)], after(60));
        assert!(!watch.is_left(&at(2), lease, after(80)) && !watch.is_left(&at(1), lease, after(80)));
        assert!(watch.is_left(&at(2), lease, after(95)));
        // It was away in between, or the store was.
        watch.see(&[], after(96));
        watch.see(&[at(2)], after(97));
        assert!(!watch.is_left(&at(2), lease, after(98)));
        watch.forget();
        assert!(!watch.is_left(&at(2), lease, after(900)));
    }
}
