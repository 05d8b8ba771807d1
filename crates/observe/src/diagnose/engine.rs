//! The same question put to an engine that others wrote, by the counters that it shows.
//!
//! Such counters count requests, tokens and used memory. They name no owner, so most of what kvit's own account tells apart they cannot: a
//! request whose caller is gone counts like any other, and a cached block may count like a leaked one. What they cannot tell is said, and the
//! verdict is then that nobody can tell.
//!
//! Invariant: pure; a quantity that the engine does not show is never taken for 0.
// contract: C-29

use serde::{Deserialize, Serialize};

use super::{Diagnosis, Finding, Probe, Verdict, count, long, mib};

/// A used part of the memory above which runs are short of it.
const SHORT: f64 = 0.9;
/// A used part of the memory that is as good as none.
const NONE: f64 = 0.005;
/// Memory that an engine's process may gain or lose without a word.
const BYTES_MIN: f64 = (1 << 20) as f64;

/// One look at an engine's counters; `None` is what it does not show.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineLook {
    /// When, in milliseconds of the calendar.
    pub at_ms: u64,
    /// Requests that are computed.
    pub running: Option<f64>,
    /// Requests that wait.
    pub waiting: Option<f64>,
    /// Used part of the KV memory, 0 to 1.
    pub kv_used: Option<f64>,
    /// Blocks or positions that requests hold, without what is only cached.
    pub kv_held: Option<f64>,
    /// Tokens generated since the start.
    pub generated: Option<f64>,
    /// Prompt tokens computed since the start.
    pub prompted: Option<f64>,
    /// Steps computed since the start.
    pub steps: Option<f64>,
    /// Its processes' memory in bytes.
    pub resident: Option<f64>,
    /// Its sums move only when a request ends, so that standing still they say nothing.
    pub sums_move_at_end: bool,
}

/// What is looked at.
struct Counters<'a> {
    looks: &'a [EngineLook],
    now: EngineLook,
    callers: Option<u64>,
    over_ms: u64,
}

/// Judges looks at an engine, in the order of their times. `callers` is how many requests of it somebody waits for, where whoever asks knows.
pub fn judge_engine(looks: &[EngineLook], callers: Option<u64>, probe: Option<&Probe>) -> Diagnosis {
    let (first, now) = match (looks.first(), looks.last()) {
        (Some(first), Some(now)) => (first, *now),
        _ => {
            let nothing = Finding::new(Verdict::CannotTell, vec!["No counters were read.".to_owned()], &["Is the profile the engine's?"]);
            return nothing.conclude(Vec::new(), Vec::new(), 0, 0);
        }
    };
    let over_ms = now.at_ms.saturating_sub(first.at_ms);
    let seen = Counters { looks, now, callers, over_ms };
    let starved = |probe: &&Probe| probe.unsaid.is_none() && probe.starved > 0;
    let mut found: Vec<Finding> = [
        probe.filter(starved).map(|probe| starved_probe(probe, &seen)),
        seen.held_by_nobody(),
        seen.stands_still(),
        seen.never_cancelled(),
        seen.unknown_callers(),
        seen.pressure(),
        seen.kept(),
    ]
    .into_iter()
    .flatten()
    .collect();
    // The first of those that go before the others; the list is in that order but for two that may be either.
    found.sort_by_key(|finding| finding.verdict);
    let also = found.iter().skip(1).map(|finding| finding.verdict).collect();
    let mut verdict = if found.is_empty() { seen.rest() } else { found.swap_remove(0) };
    verdict.evidence.extend(probe.map(Probe::told));
    verdict.conclude(also, seen.unknown(probe), looks.len(), over_ms)
}

/// A probe's requests were not served, though nothing was in their way.
fn starved_probe(probe: &Probe, seen: &Counters<'_>) -> Finding {
    let mut evidence = vec![format!(
        "{} of {} was not served within {}.",
        probe.starved,
        count(probe.runs.into(), "probing request"),
        long(probe.patience_ms)
    )];
    evidence.push(seen.sums());
    let why = "It may be capacity that is gone or an engine that hangs: look at its log, and `kvit verify` it on a quiet moment.";
    Finding::new(if seen.is_idle() { Verdict::AccountingDefect } else { Verdict::CannotTell }, evidence, &[why])
}

impl Counters<'_> {
    fn is_idle(&self) -> bool {
        self.now.running == Some(0.0) && self.now.waiting.unwrap_or(0.0) == 0.0
    }

    /// How much a sum grew between the first look and the last.
    fn grown(&self, of: impl Fn(&EngineLook) -> Option<f64>) -> Option<f64> {
        let (first, last) = (self.looks.first()?, self.looks.last()?);
        (self.looks.len() > 1).then_some(())?;
        Some(of(last)? - of(first)?)
    }

    /// In every look.
    fn always(&self, holds: impl Fn(&EngineLook) -> bool) -> bool {
        self.looks.len() > 1 && self.looks.iter().all(holds)
    }

    fn sums(&self) -> String {
        let part = |n: Option<f64>| n.map_or_else(|| "not shown".to_owned(), |n| format!("{:.1} %", n * 100.0));
        let number = |n: Option<f64>| n.map_or_else(|| "not shown".to_owned(), |n| format!("{n:.0}"));
        let EngineLook { running, waiting, kv_used, kv_held, .. } = self.now;
        format!(
            "Running {}, waiting {}, KV memory used {}, held by requests {}.",
            number(running),
            number(waiting),
            part(kv_used),
            number(kv_held)
        )
    }

    /// Memory that requests hold, and there is no request, look after look.
    fn held_by_nobody(&self) -> Option<Finding> {
        let idle = |look: &EngineLook| look.running == Some(0.0) && look.waiting.unwrap_or(0.0) == 0.0;
        if !self.always(|look| idle(look) && look.kv_held.is_some_and(|held| held > 0.0)) {
            return None;
        }
        let evidence = vec![
            format!(
                "No request ran or waited at any of {}, {} apart, and requests held memory at each.",
                count(self.looks.len() as u64, "look"),
                long(self.over_ms)
            ),
            self.sums(),
        ];
        Some(Finding::new(
            Verdict::AccountingDefect,
            evidence,
            &["Restart the engine when it is idle, and report it to its makers with these looks."],
        ))
    }

    /// Requests are computed, and nothing is.
    fn stands_still(&self) -> Option<Finding> {
        if self.grown(|look| look.generated) != Some(0.0) || !self.always(|look| look.running.is_some_and(|n| n > 0.0)) {
            return None;
        }
        let span = long(self.over_ms);
        if self.grown(|look| look.steps) == Some(0.0) && !self.now.sums_move_at_end {
            let evidence =
                vec![format!("Requests were running at each look, and in {span} no step was done and no token generated."), self.sums()];
            let next = ["Is the engine's process stopped, starved or hung in a kernel? Let it go on, or restart it."];
            return Some(Finding::new(Verdict::DrainingStuck, evidence, &next));
        }
        if self.grown(|look| look.steps).is_some_and(|n| n > 0.0) {
            return None;
        }
        let why = "a long request looks like this, and so does an engine that hangs";
        let evidence = vec![format!("Requests were running at each look, and in {span} no token was counted: {why}."), self.sums()];
        Some(Finding::new(Verdict::CannotTell, evidence, &["Watch for longer than a request takes: `--watch SECONDS`."]))
    }

    /// More requests than callers, look after look, and work is done for them.
    fn never_cancelled(&self) -> Option<Finding> {
        let callers = self.callers?;
        let more = |look: &EngineLook| look.running.is_some_and(|running| running > callers as f64);
        if !self.always(more) {
            return None;
        }
        let asked = count(callers, "caller");
        let mut evidence = vec![
            format!(
                "{asked} by your word, and more requests than that were running at each of {}, {} apart.",
                count(self.looks.len() as u64, "look"),
                long(self.over_ms)
            ),
            self.sums(),
        ];
        evidence.extend(self.grown(|look| look.generated).filter(|n| *n > 0.0).map(|n| format!("{n:.0} tokens were generated meanwhile.")));
        let next = [
            "`kvit verify URL` finds the boundary at which a departure is lost, with taps between the hops.",
            "docs/verify.md has what is known of each hop, and which setting mends it.",
        ];
        let mut found = Finding::new(Verdict::UpstreamNeverCancelled, evidence, &next);
        found.boundary = Some("gateway-worker".to_owned());
        Some(found)
    }

    /// Requests run, and nobody has said how many callers there are.
    fn unknown_callers(&self) -> Option<Finding> {
        let short = self.pressure().is_some();
        let running = self.now.running;
        let evidence = match (running, self.callers) {
            (None, _) => vec!["The engine does not show how many requests it runs.".to_owned(), self.sums()],
            (Some(n), None) if n > 0.0 && !short => {
                vec![format!("{n:.0} requests run, and a request whose caller is gone is counted like any other."), self.sums()]
            }
            _ => return None,
        };
        Some(Finding::new(
            Verdict::CannotTell,
            evidence,
            &["Say how many requests have a caller: `--callers N` (0 where you have stopped all of them), and watch: `--watch SECONDS`."],
        ))
    }

    fn pressure(&self) -> Option<Finding> {
        let full = self.now.kv_used.is_some_and(|used| used > SHORT) && self.now.running.is_some_and(|n| n > 0.0);
        let queue = self.now.waiting.is_some_and(|n| n > 0.0) && self.now.running.is_some_and(|n| n > 0.0);
        let evidence = vec![self.sums()];
        let next = [
            "Admit fewer requests at once or add an engine, once it is sure that their callers are there: `kvit verify` tells whether departures end them.",
        ];
        (full || queue).then(|| Finding::new(Verdict::PressureFromLiveRuns, evidence, &next))
    }

    /// What was held came back, and the memory did not.
    fn kept(&self) -> Option<Finding> {
        let most = self.looks.iter().filter(|look| look.running.is_some_and(|n| n > 0.0)).find_map(|look| look.resident)?;
        let now = self.now.resident.filter(|now| self.is_idle() && *now + BYTES_MIN >= most)?;
        let evidence = vec![
            format!("With requests running its processes had {}, and idle they have {}.", mib(most as u64), mib(now as u64)),
            self.sums(),
        ];
        Some(Finding::new(Verdict::NoLeakAllocatorKeeps, evidence, &["Nothing, as long as it does not grow from one rest to the next."]))
    }

    /// Nothing was found.
    fn rest(&self) -> Finding {
        let used = self.now.kv_used.filter(|used| *used > NONE);
        if let (true, Some(_), None) = (self.is_idle(), used, self.now.kv_held) {
            let evidence = vec![self.sums(), "Nobody runs, and memory is in use: a cache looks like this, and so does a leak.".to_owned()];
            return Finding::new(
                Verdict::CannotTell,
                evidence,
                &["`--probe`, and after it whether what is in use grows from one rest to the next: `--watch`, `--compare`."],
            );
        }
        Finding::new(Verdict::Healthy, vec![self.sums()], &[])
    }

    fn unknown(&self, probe: Option<&Probe>) -> Vec<String> {
        let mut unknown = vec!["Whose request is whose: these counters name no owner, no block and no fence.".to_owned()];
        if self.callers.is_none() {
            unknown.push("Requests with a caller from requests without: `--callers N` says how many there should be.".to_owned());
        }
        if self.now.kv_held.is_none() {
            unknown.push("A cached block from a leaked one: the engine shows one number for what is in use.".to_owned());
        }
        if self.now.sums_move_at_end {
            unknown.push("A long request from one that hangs: the sums move when a request ends.".to_owned());
        }
        if self.now.steps.is_none() {
            unknown.push("A long prefill from an engine that stands still: it does not count its steps.".to_owned());
        }
        if self.looks.len() < 2 {
            unknown.push("What grows or does not move: that takes two looks; `--watch SECONDS`.".to_owned());
        }
        if !probe.is_some_and(Probe::shows_reuse) {
            unknown.push("Whether new requests are really given what is called free: `--probe`.".to_owned());
        }
        unknown
    }
}
