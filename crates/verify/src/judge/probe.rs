//! How much fits into an engine that does not say how much room it has: requests at once, before departures and behind them.
//!
//! What is compared is how much longer many at once take than one alone, so a machine that is busy meanwhile slows both sides of it.
//!
//! Invariant: the best of several tries behind the departures has to be worse than the worst before them, by far, to convict.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::caller::{Caller, End};
use super::result::{Check, Fault, Source, Verdict};
use super::stack::{ended_badly, words};
use super::trial::Bench;

/// Requests at once: some more than small engines have slots.
const PROBES: usize = 6;
/// Tokens that each asks for.
const TOKENS: u64 = 8;
/// Tries before, and most tries behind.
const BEFORE: usize = 2;
/// See [`BEFORE`].
const AFTER: usize = 3;
/// So many times as long as before says that less fits. Half of two slots makes it twice as long.
const WORSE: f64 = 1.6;

impl Bench<'_> {
    /// Whether nothing but a probe says how much room there is.
    pub(super) fn needs_probe(&self) -> bool {
        let profile = self.stack.counters.as_ref().map(|counters| &counters.profile);
        profile.is_none_or(|profile| profile.kv_held.is_empty() && profile.kv_used.is_empty())
    }

    /// How many times as long many at once take as one: the most of some tries.
    pub(super) async fn fits_before(&self) -> Result<f64, String> {
        let mut most = 0.0_f64;
        for number in 0..BEFORE {
            most = most.max(self.ratio(&format!("before-{number}")).await?);
        }
        Ok(most)
    }

    /// Whether as much fits as before.
    pub(super) async fn fits(&self, before: Result<f64, String>) -> Check {
        let check = Check::new("probe", Verdict::Pass, vec![Source::Probe]);
        let missing = |when: &str, why: &str| Verdict::NotProven { missing: format!("requests at once that nobody left, {when}: {why}") };
        let before = match before {
            Ok(before) => before,
            Err(why) => return Check { verdict: missing("before the departures", &why), ..check },
        };
        let mut least = f64::INFINITY;
        for number in 0..AFTER {
            match self.ratio(&format!("after-{number}")).await {
                Ok(ratio) => least = least.min(ratio),
                Err(why) => return Check { verdict: missing("behind the departures", &why), ..check },
            }
            if least <= before * WORSE {
                break;
            }
        }
        Check { verdict: judged(before, least), ..check }.with("before", before).with("after", least)
    }

    async fn ratio(&self, name: &str) -> Result<f64, String> {
        let alone = self.together(name, 1).await?;
        let many = self.together(name, PROBES).await?;
        Ok(many.as_secs_f64() / alone.as_secs_f64().max(1e-6))
    }

    /// How long so many requests take that are asked at once, until the last has ended.
    async fn together(&self, name: &str, count: usize) -> Result<Duration, String> {
        self.rested().await.map_err(|missed| missed.why)?;
        let begun = Instant::now();
        let mut all = JoinSet::new();
        for number in 0..count {
            let id = format!("verify-probe-{name}-{count}-{number}-{}", self.settings.seed);
            let ask = self.stack.ask(&id, &words(self.settings.seed, &id, 16), true, TOKENS);
            let mut caller = Caller::ask(&self.stack.target, ask).await.map_err(|e| format!("one could not be sent: {e}"))?;
            all.spawn(async move {
                let how = caller.rest().await;
                if how == End::Complete { Ok(()) } else { Err(ended_badly(&caller.read, how)) }
            });
        }
        let ended = async {
            while let Some(one) = all.join_next().await {
                one.map_err(|e| e.to_string())??;
            }
            Ok(begun.elapsed())
        };
        self.in_time(1, ended).await
    }
}

fn judged(before: f64, after: f64) -> Verdict {
    if after <= before * WORSE {
        return Verdict::Pass;
    }
    let why =
        format!("{PROBES} requests at once took {after:.1} times as long as one, and {before:.1} times before anybody had left: less fits");
    Verdict::Fail { fault: Fault::CapacityLeaks, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_of_two_that_is_gone_is_seen_and_a_slower_machine_is_none() {
        assert_eq!(judged(3.0, 3.4), Verdict::Pass);
        assert_eq!(judged(3.0, 0.9), Verdict::Pass);
        assert!(matches!(judged(3.0, 6.0), Verdict::Fail { fault: Fault::CapacityLeaks, why } if why.contains("6.0 times as long as one")));
    }
}
