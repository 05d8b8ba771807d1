//! Whether anything grew. Counts must be back exactly; memory is judged by how much the second half of each part added.
//!
//! The first reading is of the server as it was found, the second of the warm one. What belongs to runs is compared with the first, what
//! the process sets up once with the second.
//!
//! The model is a pool that lost one block a request and showed it in one place only: the gauge at rest (field F-58). So no number is
//! judged while something runs, and none is forgiven because it is small.
//!
//! Invariant: what is judged is named with its values, and what the server does not show is listed as not judged.
// contract: C-15

use super::reading::Reading;
use super::tally::Tally;

/// One part of the soak, in two halves, with the readings at its begin, its middle and its end.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// Indices into the readings: begin, middle, end.
    pub readings: [usize; 3],
    /// What became of its runs.
    pub tally: Tally,
}

/// How a row is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Every reading equals that of the server as it was found.
    Exact,
    /// No reading is above that of the warm server.
    NoMore,
    /// Kept on purpose, up to this bound.
    Kept(Option<u64>),
    /// By the growth in second halves.
    Memory,
}

/// A number over all readings.
#[derive(Clone, Debug)]
pub struct Row {
    /// Under which heading.
    pub group: &'static str,
    /// What it counts.
    pub name: String,
    /// One a reading.
    pub values: Vec<f64>,
    /// How it is judged.
    pub rule: Rule,
    /// What is wrong with it, if anything is.
    pub growth: Option<String>,
}

/// What a soak found.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// All numbers.
    pub rows: Vec<Row>,
    /// What the server does not show.
    pub not_judged: Vec<String>,
    /// Growth of memory in the second half of each part, in bytes and in bytes a cancel, beside the part's name.
    pub memory: Vec<(&'static str, f64, f64)>,
    /// A leak of so many bytes a run would have been found, by part.
    pub sensitivity: Vec<(&'static str, f64)>,
    /// Everything that is wrong, in sentences.
    pub wrong: Vec<String>,
}

/// A row's heading, its name, how it is read, and how it is judged.
type Source = (&'static str, &'static str, fn(&Reading) -> Option<f64>, Rule);

/// The reading of the warm server.
pub const WARM: usize = 1;

const BLOCKS: &str = "blocks";
const RUNS: &str = "per-run state";
const PROCESS: &str = "process";
const REFUSED: &str = "must not happen";
const KEPT: &str = "kept on purpose";

fn count(reading: &Reading, name: &str) -> Option<f64> {
    reading.account.get(name).map(|n| *n as f64)
}

const SOURCES: [Source; 25] = [
    (BLOCKS, "free + cached", |r| Some((r.block_count("free") + r.block_count("cached")) as f64), Rule::Exact),
    (BLOCKS, "active", |r| count(r, "active"), Rule::Exact),
    (BLOCKS, "orphaned", |r| count(r, "orphaned"), Rule::Exact),
    (BLOCKS, "draining", |r| count(r, "draining"), Rule::Exact),
    (BLOCKS, "quarantined", |r| count(r, "quarantined"), Rule::Exact),
    (RUNS, "attempts: queued", |r| count(r, "queued"), Rule::Exact),
    (RUNS, "attempts: running", |r| count(r, "running"), Rule::Exact),
    (RUNS, "attempts: stopping", |r| count(r, "stopping"), Rule::Exact),
    (RUNS, "worker's tables", |r| r.gauge("kvit_worker_held"), Rule::Exact),
    (RUNS, "tombstones", |r| count(r, "tombstones"), Rule::Exact),
    (RUNS, "gateway's calls", |r| r.gauge("kvit_gateway_calls"), Rule::Exact),
    (RUNS, "gateway's questions", |r| r.gauge("kvit_gateway_questions"), Rule::Exact),
    (RUNS, "live run views", |r| r.gauge("kvit_runs"), Rule::Exact),
    (RUNS, "cancels unanswered", |r| r.gauge("kvit_cancels_unacknowledged"), Rule::Exact),
    (PROCESS, "tasks", |r| r.gauge("kvit_tasks"), Rule::NoMore),
    (PROCESS, "descriptors", |r| r.gauge("process_open_fds"), Rule::NoMore),
    (PROCESS, "threads", |r| r.gauge("process_threads"), Rule::NoMore),
    (PROCESS, "RSS without pool, MiB", |r| resident(r).map(mib), Rule::Memory),
    (REFUSED, "defects", |r| r.gauge("kvit_defects_total"), Rule::Exact),
    (REFUSED, "refused releases", refused, Rule::Exact),
    (REFUSED, "late completions", |r| count(r, "late_completions"), Rule::Exact),
    (KEPT, "cached blocks", |r| count(r, "cached"), Rule::Kept(None)),
    (KEPT, "pool written to, MiB", |r| Some(mib(r.pool_touched() as f64)), Rule::Kept(None)),
    (KEPT, "runs in the journal", |r| r.gauge("kvit_journal_runs"), Rule::Kept(None)),
    (KEPT, "records in the journal", |r| r.gauge("kvit_journal_records"), Rule::Kept(None)),
];

/// Releases that changed nothing, whatever was wrong with them.
fn refused(reading: &Reading) -> Option<f64> {
    Some(["stale_releases", "foreign_releases", "double_releases"].iter().map(|why| reading.block_count(why) as f64).sum())
}

/// Bytes as MiB.
pub fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// Resident memory without the part of the pool that was ever written to: that comes once a block and is no leak.
pub fn resident(reading: &Reading) -> Option<f64> {
    reading.gauge("process_resident_memory_bytes").map(|rss| rss - reading.pool_touched() as f64)
}

/// Judges the readings.
pub fn judge(readings: &[Reading], parts: &[Part], tolerance_bytes: f64, same_answers: bool) -> Verdict {
    let mut verdict = Verdict::default();
    for (group, name, read, rule) in SOURCES {
        let values: Option<Vec<f64>> = readings.iter().map(read).collect();
        match values {
            Some(values) if !values.is_empty() => verdict.rows.push(row(group, name, values, bound(name, rule, readings))),
            _ => verdict.not_judged.push(name.to_owned()),
        }
    }
    judge_memory(&mut verdict, readings, parts, tolerance_bytes);
    let named = |row: &Row| row.growth.as_ref().map(|growth| format!("{}: {growth}{}", row.name, tables(row, readings)));
    verdict.wrong.extend(verdict.rows.iter().filter_map(named));
    if readings.iter().any(|r| !r.conserved) {
        verdict.wrong.push("blocks: an account does not add up to its total".to_owned());
    }
    for part in parts {
        for (what, (n, ids)) in &part.tally.wrong {
            let named = if ids.is_empty() { String::new() } else { format!(", among them {}", ids.join(", ")) };
            verdict.wrong.push(format!("{}: {n} runs {what}{named}", part.name));
        }
    }
    if !same_answers {
        verdict.wrong.push("answers: the same prompts gave other tokens after the soak than before".to_owned());
    }
    verdict
}

/// The journal says itself how much it keeps at most.
fn bound(name: &str, rule: Rule, readings: &[Reading]) -> Rule {
    let max = match name {
        "runs in the journal" => "kvit_journal_runs_max",
        "records in the journal" => "kvit_journal_records_max",
        _ => return rule,
    };
    Rule::Kept(readings.first().and_then(|r| r.gauge(max)).map(|n| n as u64))
}

fn row(group: &'static str, name: &str, values: Vec<f64>, rule: Rule) -> Row {
    let judged = if rule == Rule::NoMore { values.get(WARM..).unwrap_or_default() } else { &values };
    let before = judged.first().copied().unwrap_or(0.0);
    let off = |v: f64| match rule {
        Rule::Exact => v != before,
        Rule::NoMore => v > before,
        Rule::Kept(max) => max.is_some_and(|max| v > max as f64),
        Rule::Memory => false,
    };
    // The last reading is what counts most; one in between that was off and came back is named too.
    let worst = judged.last().copied().filter(|v| off(*v)).or_else(|| judged.iter().copied().find(|v| off(*v)));
    let growth = worst.map(|v| match rule {
        Rule::Kept(max) => format!("{v}, at most {} are meant to be kept", max.unwrap_or(0)),
        _ => format!("{before} before, {v} after ({:+})", v - before),
    });
    Row { group, name: name.to_owned(), values, rule, growth }
}

/// Which of the worker's tables, where their sum is off.
fn tables(row: &Row, readings: &[Reading]) -> String {
    let (Some(before), Some(after)) = (readings.first(), readings.last()) else { return String::new() };
    if row.name != "worker's tables" {
        return String::new();
    }
    let held = after.series.iter().filter(|(name, _)| name.starts_with("kvit_worker_held{"));
    let off = held.filter(|(name, v)| before.series.get(*name) != Some(v)).map(|(name, v)| format!(" {name} {v}"));
    off.collect()
}

/// A leak adds in every half of a part; pools and buffers that a new load fills add in the first only.
fn judge_memory(verdict: &mut Verdict, readings: &[Reading], parts: &[Part], tolerance: f64) {
    let Some(row) = verdict.rows.iter_mut().find(|row| row.rule == Rule::Memory) else { return };
    let filling = |r: &Reading| {
        let room = |name: &str, max: &str| r.gauge(name).zip(r.gauge(max)).is_some_and(|(n, max)| n < max);
        room("kvit_journal_runs", "kvit_journal_runs_max") || room("kvit_journal_records", "kvit_journal_records_max")
    };
    if readings.get(WARM).is_some_and(filling) {
        verdict.not_judged.push("RSS (the journal was not full after the warm-up: a longer --warm-up fills it)".to_owned());
        return;
    }
    for part in parts {
        let [_, middle, end] = part.readings;
        let (Some(from), Some(to)) = (readings.get(middle), readings.get(end)) else { continue };
        let cancels = to.cancels.saturating_sub(from.cancels) as f64;
        let (Some(a), Some(b)) = (resident(from), resident(to)) else { continue };
        if cancels == 0.0 {
            continue;
        }
        verdict.memory.push((part.name, b - a, (b - a) / cancels));
        verdict.sensitivity.push((part.name, tolerance / cancels));
        if b - a > tolerance {
            let (grown, each) = (mib(b - a), (b - a) / cancels);
            row.growth = Some(format!("{grown:+.1} MiB in the second half of {} ({each:.0} bytes a cancel)", part.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(cancels: u64, change: impl Fn(&mut Reading)) -> Reading {
        let mut r = Reading { cancels, conserved: true, ..Reading::default() };
        for (name, n) in [("total", 100), ("free", 90), ("cached", 10), ("reserved_bytes", 100 << 20), ("active", 0), ("quarantined", 0)] {
            r.account.insert(name, n);
        }
        for (name, n) in
            [("kvit_tasks", 5.0), ("process_resident_memory_bytes", 300.0 * f64::from(1 << 20)), ("kvit_worker_held{kind=\"owners\"}", 0.0)]
        {
            r.series.insert(name.to_owned(), n);
        }
        change(&mut r);
        r
    }

    fn part(tally: Tally) -> Part {
        Part { name: "sequential", readings: [1, 2, 3], tally }
    }

    /// Of a server that is the same fresh and warm, with this in the middle and that at the end.
    fn verdict(changes: [&dyn Fn(&mut Reading); 2]) -> Verdict {
        let readings = [reading(0, |_| {}), reading(0, |_| {}), reading(500, changes[0]), reading(1000, changes[1])];
        judge(&readings, &[part(Tally::default())], mib_bytes(8.0), true)
    }

    const OWNERS: &str = "kvit_worker_held{kind=\"owners\"}";

    fn shows(r: &mut Reading, name: &str, value: f64) {
        r.series.insert(name.to_owned(), value);
    }

    fn counts(r: &mut Reading, name: &'static str, n: u64) {
        r.account.insert(name, n);
    }

    fn mib_bytes(n: f64) -> f64 {
        n * f64::from(1 << 20)
    }

    fn rss(n: f64) -> impl Fn(&mut Reading) {
        move |r| shows(r, "process_resident_memory_bytes", mib_bytes(n))
    }

    #[test]
    fn what_is_back_is_no_growth_and_what_is_not_shown_is_said() {
        let cached = |r: &mut Reading| {
            r.account.insert("free", 60);
            r.account.insert("cached", 40);
        };
        let v = verdict([&cached, &cached]);
        assert!(v.wrong.is_empty(), "cached blocks are no leak: {:?}", v.wrong);
        assert!(
            v.not_judged.iter().any(|n| n == "gateway's calls") && v.not_judged.iter().any(|n| n == "descriptors"),
            "{:?}",
            v.not_judged
        );
    }

    // field: F-58
    #[test]
    fn one_block_is_growth() {
        let v = verdict([&|_| {}, &|r| counts(r, "free", 89)]);
        assert_eq!(v.wrong, ["free + cached: 100 before, 99 after (-1)"]);
        let v = verdict([&|_| {}, &|r| shows(r, OWNERS, 1.0)]);
        assert_eq!(v.wrong, ["worker's tables: 0 before, 1 after (+1) kvit_worker_held{kind=\"owners\"} 1"]);
        let v = verdict([&|_| {}, &|r| r.conserved = false]);
        assert_eq!(v.wrong.len(), 1);
    }

    /// What the warm-up leaves of its runs is growth; what the process set up for it is not.
    #[test]
    fn the_warm_up_is_judged_too() {
        let leaves = |r: &mut Reading| counts(r, "active", 2);
        let readings = [reading(0, |_| {}), reading(0, leaves), reading(1, leaves)];
        assert_eq!(judge(&readings, &[], 1.0, true).wrong, ["active: 0 before, 2 after (+2)"]);
        let threads = |r: &mut Reading| shows(r, "kvit_tasks", 9.0);
        let readings = [reading(0, |_| {}), reading(0, threads), reading(1, threads)];
        assert!(judge(&readings, &[], 1.0, true).wrong.is_empty());
    }

    #[test]
    fn fewer_tasks_are_fine_and_more_are_not() {
        let tasks = |n: f64| move |r: &mut Reading| shows(r, "kvit_tasks", n);
        assert!(verdict([&tasks(4.0), &tasks(4.0)]).wrong.is_empty());
        assert_eq!(verdict([&|_| {}, &tasks(6.0)]).wrong, ["tasks: 5 before, 6 after (+1)"]);
    }

    #[test]
    fn memory_is_judged_by_the_second_half_and_without_the_pool() {
        assert!(verdict([&rss(340.0), &rss(345.0)]).wrong.is_empty(), "the first half fills pools");
        let v = verdict([&rss(320.0), &rss(340.0)]);
        assert_eq!(v.wrong, ["RSS without pool, MiB: +20.0 MiB in the second half of sequential (41943 bytes a cancel)"]);
        // 20 blocks of 1 MiB each are written to for the first time: memory that a pool of this size has.
        let first = |r: &mut Reading| r.untouched = 20;
        let more = rss(320.0);
        let readings = [reading(0, first), reading(0, first), reading(500, first), reading(1000, |r| more(r))];
        assert!(judge(&readings, &[part(Tally::default())], mib_bytes(8.0), true).wrong.is_empty());
    }

    #[test]
    fn memory_is_not_judged_while_the_journal_fills() {
        let room = |r: &mut Reading| {
            r.series.insert("kvit_journal_runs".into(), 3.0);
            r.series.insert("kvit_journal_runs_max".into(), 10.0);
        };
        let more = rss(900.0);
        let end = |r: &mut Reading| {
            room(r);
            more(r);
        };
        let readings = [reading(0, room), reading(0, room), reading(5, room), reading(10, end)];
        let v = judge(&readings, &[part(Tally::default())], 1.0, true);
        assert!(v.wrong.is_empty() && v.not_judged.iter().any(|n| n.starts_with("RSS")), "{v:?}");
        let over = [
            reading(0, room),
            reading(9, |r| {
                room(r);
                shows(r, "kvit_journal_runs", 11.0)
            }),
        ];
        assert_eq!(judge(&over, &[], 1.0, true).wrong, ["runs in the journal: 11, at most 10 are meant to be kept"]);
    }

    #[test]
    fn other_answers_and_runs_that_went_wrong_are_named() {
        let mut tally = Tally::default();
        let fate = super::super::caller::Fate::Ended {
            outcome: "cancelled".into(),
            cause: "client_closed".into(),
            phase: None,
            after_receipt: 2,
            held: 0,
        };
        tally.add("r7", super::super::args::Phase::Prefill, &fate);
        let readings = [reading(0, |_| {}), reading(0, |_| {}), reading(1, |_| {}), reading(2, |_| {})];
        let v = judge(&readings, &[part(tally)], 1.0, false);
        assert_eq!(v.wrong.len(), 2, "{:?}", v.wrong);
        assert!(v.wrong[0].contains("r7") && v.wrong[1].starts_with("answers"));
    }
}
