//! A whole judgement: the stack is met, its pace measured, each cell tried, what is left looked at, and all of it reported.
//!
//! Invariant: every cell that was asked for is in the report, whatever became of it.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::cell::Cell;
use super::result::{Check, Fault, Hop, Judged, Look, Report, Source, Verdict};
use super::settings::Settings;
use super::stack::{Stack, Unjudged};
use super::trial::Bench;
use super::verdict::judge;

/// Judges a stack. `told` hears of each cell when it is judged.
///
/// # Errors
/// [`Unjudged`]: nothing can be said of it at all.
pub async fn run(mut stack: Stack, settings: &Settings, cells: &[Cell], mut told: impl FnMut(&Judged)) -> Result<Report, Unjudged> {
    let (began, began_s) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()));
    let pace = stack.pace(settings).await?;
    let stack = stack;
    let bench = Bench { stack: &stack, pace: &pace, settings };
    let profile = stack.counters.as_ref().map_or("none", |counters| counters.profile.name.as_str()).to_owned();
    let hops = vec![Hop { name: profile.clone(), kind: Some(profile.clone()), version: None, config_sha256: None }];
    let (first, polled) = (rest(&stack).await, bench.polls());
    let other_way = Settings { poll: Some(!bench.polls()), ..settings.clone() };
    let (mut judged, mut changed, mut both) = (Vec::new(), Vec::new(), 0_u64);
    for &cell in cells {
        let of = bench.cell(cell, &hops).await;
        if settings.both_ways && of.tries > 0 {
            let other = Bench { settings: &other_way, ..bench }.cell(cell, &hops).await;
            if other.tries > 0 {
                both += 1;
                if other.verdict.is_fail() != of.verdict.is_fail() {
                    changed.push(cell.to_string());
                }
            }
        }
        told(&of);
        judged.push(of);
    }
    let mut checks = Vec::new();
    let tries: u64 = judged.iter().map(|of| of.tries).sum();
    if let Some((first, last)) = first.zip(rest(&stack).await) {
        checks.extend(leaks(&first, &last, tries));
    }
    if settings.both_ways {
        checks.push(observer(both, &changed));
    }
    if settings.neighbours > 0 {
        checks.push(bench.neighbours().await);
    }
    let settings_told = serde_json::to_value(settings).ok().and_then(|value| value.as_object().cloned()).unwrap_or_default();
    let settings_told: BTreeMap<_, _> = settings_told.into_iter().collect();
    let hints = hints(&stack, &judged);
    Ok(Report {
        object: "verify".to_owned(),
        kvit: env!("CARGO_PKG_VERSION").to_owned(),
        began_s,
        took_s: began.elapsed().as_secs_f64(),
        target: format!("http://{}{}", stack.target.authority, stack.target.base),
        model: stack.model.clone(),
        profile,
        hops,
        polled,
        settings: settings_told,
        cells: judged,
        checks,
        hints,
    })
}

impl Bench<'_> {
    /// Tries a cell as often as it is to be, and judges it.
    async fn cell(&self, cell: Cell, hops: &[Hop]) -> Judged {
        let tolerance = self.settings.tolerance();
        if let Some(verdict) = self.untried(cell) {
            return Judged { verdict, ..judge(cell, Vec::new(), &tolerance, hops) };
        }
        let mut tries = Vec::new();
        for number in 0..self.settings.tries {
            tries.push(self.one(cell, number).await);
        }
        judge(cell, tries, &tolerance, hops)
    }
}

/// Whether looking changed an answer.
fn observer(both: u64, changed: &[String]) -> Check {
    let verdict = match (both, changed) {
        (0, _) => Verdict::NotProven {
            missing: "no cell could be judged both ways: without looks there have to be --pid, --tap or sums that move".to_owned(),
        },
        (_, []) => Verdict::Pass,
        (_, cells) => Verdict::NotProven {
            missing: format!("looking at the engine changed the answer of {}: believe the passive one", cells.join(", ")),
        },
    };
    let measured = [("cells".to_owned(), both as f64), ("changed".to_owned(), changed.len() as f64)].into();
    Check { name: "observer".to_owned(), verdict, by: vec![Source::Counters, Source::CountersApart], measured }
}

/// What the engine's counters say with nothing at work.
async fn rest(stack: &Stack) -> Option<Look> {
    let counters = stack.counters.as_ref()?;
    counters.look(Instant::now()).await
}

/// What has grown between two moments of rest.
fn leaks(first: &Look, last: &Look, departures: u64) -> Vec<Check> {
    let grown = |name: &str, fault: Fault, of: fn(&Look) -> Option<f64>, least: f64| {
        let (before, after) = (of(first)?, of(last)?);
        let growth = after - before;
        let verdict = if departures == 0 {
            Verdict::NotProven { missing: "nobody left".to_owned() }
        } else if growth >= least {
            Verdict::Fail { fault, why: format!("{growth} more than before {departures} departures, with nothing at work") }
        } else {
            Verdict::Pass
        };
        let measured = [("before", before), ("after", after), ("departures", departures as f64)];
        let measured = measured.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Some(Check { name: name.to_owned(), verdict, by: vec![Source::CountersApart], measured })
    };
    // A part of the memory is a number of blocks that nobody told: a hundredth of it is no rounding.
    let capacity = grown("capacity", Fault::CapacityLeaks, |look| look.kv_held, 1.0)
        .or_else(|| grown("capacity", Fault::CapacityLeaks, |look| look.kv_used, 0.01));
    let state = grown("per-request state", Fault::StateLeaks, |look| look.per_request, 1.0);
    capacity.into_iter().chain(state).collect()
}

/// What could not be proven, and what would help.
fn hints(stack: &Stack, judged: &[Judged]) -> Vec<String> {
    let mut hints = Vec::new();
    if stack.counters.is_none() {
        hints.push("no engine's counters were found: name the engine with --engine URL (llama-server needs --metrics), or a mapping with --profile FILE".to_owned());
    }
    for of in judged {
        if let Verdict::NotProven { missing } = &of.verdict
            && !hints.contains(missing)
        {
            hints.push(missing.clone());
        }
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grew_with_nothing_at_work_is_a_leak_and_what_is_not_told_is_not_checked() {
        let look = |kv_held, per_request| Look { kv_held, per_request, ..Look::default() };
        let checks = leaks(&look(Some(0.0), Some(2.0)), &look(Some(21.0), Some(2.0)), 21);
        assert!(matches!(checks[0].verdict, Verdict::Fail { fault: Fault::CapacityLeaks, .. }));
        assert_eq!(checks[1].verdict, Verdict::Pass);
        assert!(leaks(&look(None, None), &look(None, None), 21).is_empty());
        let used = |kv_used| Look { kv_used: Some(kv_used), ..Look::default() };
        assert_eq!(leaks(&used(0.1), &used(0.105), 3)[0].verdict, Verdict::Pass);
        assert!(leaks(&used(0.1), &used(0.2), 3)[0].verdict.is_fail());
    }
}
