//! A whole judgement: the stack is met, its pace measured, each cell tried, what is left looked at, and all of it reported.
//!
//! Invariant: every cell that was asked for is in the report, whatever became of it.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::OnceCell;

use super::cell::{Cell, Phase};
use super::result::{Check, Fault, Judged, Look, Report, Source, Try, Verdict};
use super::settings::Settings;
use super::stack::{Stack, Unjudged, words};
use super::trial::Bench;
use super::verdict::judge;

/// How often a try that says nothing is made again.
const AGAIN: u64 = 2;
/// Numbers of such tries stand above all others.
const AGAIN_FROM: u64 = 1_000_000;

/// Judges a stack. `told` hears of each cell when it is judged.
///
/// # Errors
/// [`Unjudged`]: nothing can be said of it at all.
pub async fn run(mut stack: Stack, settings: &Settings, cells: &[Cell], mut told: impl FnMut(&Judged)) -> Result<Report, Unjudged> {
    let (began, began_s) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()));
    let pace = stack.pace(settings).await?;
    if stack.way.hops.is_empty() {
        let engine = stack.counters.as_ref().map_or(&stack.target, |counters| &counters.target);
        stack.way = super::hops::meet(&[], &stack.target, engine, stack.profile()).await.map_err(Unjudged::Hop)?;
    }
    let stack = stack;
    let alone = OnceCell::new();
    let bench = Bench { stack: &stack, pace: &pace, settings, alone: &alone };
    let (first, polled) = (rest(&stack).await, bench.polls());
    let other_way = Settings { poll: Some(!bench.polls()), ..settings.clone() };
    let (mut judged, mut changed, mut both) = (Vec::new(), Vec::new(), 0_u64);
    for &cell in cells {
        let of = bench.cell(cell, 0).await;
        if settings.both_ways && of.tries > 0 {
            // Tries of one cell have ids of their own, whichever way they are looked at.
            let other = Bench { settings: &other_way, ..bench }.cell(cell, settings.tries).await;
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
    let tries: u64 = judged.iter().map(|of| of.tries).sum();
    // A stack that broke meanwhile stops everything.
    let behind = bench.control("behind").await;
    let mut checks = bench.cleanup(first.as_ref(), tries).await;
    if settings.both_ways {
        checks.push(observer(both, &changed));
    }
    if settings.neighbours > 0 {
        checks.push(bench.neighbours().await);
    }
    // Where nobody left since, nothing is new.
    let control = match &behind {
        Ok(()) if settings.departures > 0 || settings.neighbours > 0 => bench.control("last").await,
        known => known.clone(),
    };
    checks.insert(0, controlled(&control));
    // Logs come last: a proxy writes its line when a request ends, or later.
    let mut seen: Vec<&mut Try> = judged.iter_mut().flat_map(|of| &mut of.seen).collect();
    let mut hints = super::logbook::read(&stack.logs, &mut seen, settings.log_wait()).await;
    if !stack.logs.is_empty() {
        let again = |of: Judged| if of.seen.is_empty() { of } else { judge(of.cell, of.seen, &settings.tolerance(), &stack.way) };
        judged = judged.into_iter().map(again).collect();
    }
    if let Err(why) = &behind {
        judged.iter_mut().for_each(|of| unproven(of, why));
    }
    let settings_told = serde_json::to_value(settings).ok().and_then(|value| value.as_object().cloned()).unwrap_or_default();
    let settings_told: BTreeMap<_, _> = settings_told.into_iter().collect();
    hints.extend(self::hints(&stack, &judged));
    hints.extend(stack.missed.iter().map(|why| {
        format!("one of the first requests, which nobody left, did not end well ({why}), and was asked again: callers of this stack meet that, too")
    }));
    hints.extend(stack.devices.as_ref().map(|devices| format!("looked at: {}", devices.told().join(", "))));
    if stack.processes.is_none() && settings.departures > 0 {
        hints.push(
            "the engine's memory was not looked at: it is not on this machine, or cannot be told from others; --pid names it".to_owned(),
        );
    }
    let mut report = Report {
        object: "verify".to_owned(),
        kvit: env!("CARGO_PKG_VERSION").to_owned(),
        began_s,
        took_s: began.elapsed().as_secs_f64(),
        target: stack.target.url(),
        model: stack.model.clone(),
        profile: stack.profile().to_owned(),
        hops: stack.way.hops.clone(),
        polled,
        settings: settings_told,
        cells: judged,
        checks,
        hints,
    };
    super::advice::add(&mut report);
    Ok(report)
}

impl Bench<'_> {
    /// Asks something that nobody leaves; why it did not end well, if so.
    async fn control(&self, when: &str) -> Result<(), String> {
        let id = format!("verify-control-{when}-{}", self.settings.seed);
        let ask = self.stack.ask(&id, &words(self.settings.seed, &id, 16), true, self.settings.max_tokens);
        self.stack.control(ask, self.patience()).await.map(drop).map_err(|why| format!("{why} ({id})"))
    }

    /// Tries a cell as often as it is to be, and judges it. Its first try has this number.
    async fn cell(&self, cell: Cell, from: u64) -> Judged {
        let tolerance = self.settings.tolerance();
        if let Some(verdict) = self.untried(cell) {
            return Judged { verdict, ..judge(cell, Vec::new(), &tolerance, &self.stack.way) };
        }
        let mut tries = Vec::new();
        for number in from..from + self.settings.tries {
            let (mut seen, mut more) = self.one(cell, number, 0).await;
            // One that says nothing is asked again: a phase that was missed, or a machine that had other work just then, is no answer. A phase
            // in which no head can be had without a token is missed every time.
            for again in 1..=AGAIN {
                if !more || (cell.phase == Phase::Headers && seen.entered.is_none()) {
                    break;
                }
                let why = seen.void.take();
                (seen, more) = self.one(cell, number + again * AGAIN_FROM, again).await;
                // A prompt that was made longer may be refused: what is missing is what was missing before.
                if cell.phase == Phase::Prefill && seen.void.is_some() && more {
                    seen.void = why;
                }
            }
            let for_good = seen.void.is_some() && !more;
            tries.push(seen);
            if for_good {
                break;
            }
        }
        judge(cell, tries, &tolerance, &self.stack.way)
    }
}

/// What a request that nobody left says of the stack when others had been.
fn controlled(control: &Result<(), String>) -> Check {
    let verdict = match control {
        Ok(()) => Verdict::Pass,
        Err(why) => Verdict::Fail { fault: Fault::ControlFails, why: format!("when others had been left, {why}") },
    };
    Check::new("control", verdict, vec![Source::Client])
}

/// A stack that answers nobody any more has stopped everything, and that is no proof.
fn unproven(of: &mut Judged, why: &str) {
    if of.verdict == Verdict::Pass {
        let missing = format!("its work stopped, but the stack may have been broken by then: {why}");
        (of.verdict, of.note) = (Verdict::NotProven { missing }, None);
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
    let check = Check::new("observer", verdict, vec![Source::Counters, Source::CountersApart]);
    check.with("cells", both as f64).with("changed", changed.len() as f64)
}

/// What the engine's counters say with nothing at work.
pub(super) async fn rest(stack: &Stack) -> Option<Look> {
    let counters = stack.counters.as_ref()?;
    counters.look(Instant::now()).await
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
