//! Two reports of one stack: which cells got better or worse, and which hops are not what they were, so that what was proven with them is
//! proven no more.
//!
//! Invariant: a hop whose fingerprint lacks something is said to be unknown, never unchanged.
// contract: C-29

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::cell::words;
use super::super::result::{Hop, Report, Verdict};
use super::table::Paint;
use super::text::{hop, ms, pad, seen, tokens, wrap};

words! {
    /// What became of a cell or a check.
    Change {
        /// It passes and did not, or it is a fault no more.
        Better = "better",
        /// It is a fault and was none.
        Worse = "worse",
        /// Neither: a fault of another kind, or evidence that is gone.
        Differs = "differs",
        /// The older report does not have it.
        New = "new",
        /// The newer one does not.
        Gone = "gone",
        /// Its verdict is what it was.
        Unchanged = "unchanged",
    }
}

/// A verdict in short.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Short {
    /// The word, and the fault behind it.
    pub verdict: String,
    /// Where it was lost, if there is more than one place.
    pub lost_at: Option<String>,
    /// See [`Judged`](super::super::result::Judged).
    pub tokens_after: Option<f64>,
    /// See there.
    pub stop_ms: Option<f64>,
}

/// A cell or a check in both reports.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pair {
    /// The cell, or the check's name.
    pub name: String,
    /// What became of it.
    pub change: Change,
    /// In the older report.
    pub old: Option<Short>,
    /// In the newer one.
    pub new: Option<Short>,
}

/// How a hop is not what it was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Moved {
    /// The hop.
    pub hop: String,
    /// `kind`, `version`, `configuration`, `place`; `unknown` where a fingerprint lacks something, so that nothing can be said.
    pub what: String,
    /// What it was.
    pub old: Option<String>,
    /// What it is.
    pub new: Option<String>,
}

impl Moved {
    /// Whether evidence with the old hop is stale. What is unknown is not proven to be.
    pub fn is_stale(&self) -> bool {
        self.what != "unknown"
    }

    fn says(&self) -> String {
        let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "none".to_owned());
        match self.what.as_str() {
            "unknown" => format!("{}: nothing says whether it is what it was ({})", self.hop, side(&self.new.clone().or(self.old.clone()))),
            what => format!("{}: {what} was {}, is {}", self.hop, side(&self.old), side(&self.new)),
        }
    }
}

/// Whether a report still is of what stands there now.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Staleness {
    /// Always `verify.staleness`.
    pub object: String,
    /// Whether a hop is not what it was.
    pub stale: bool,
    /// When the report was made, in seconds of the calendar.
    pub began_s: u64,
    /// Hops that are not what they were, and those of which nothing says it.
    pub hops: Vec<Moved>,
}

impl Staleness {
    /// Of a report, with its hops as they are now.
    pub fn of(old: &Report, now: &[Hop]) -> Staleness {
        let hops = stale(old, now);
        Staleness { object: "verify.staleness".to_owned(), stale: hops.iter().any(Moved::is_stale), began_s: old.began_s, hops }
    }

    /// 1 if it is stale, 2 if something of a hop cannot be compared, else 0. Where no configuration was named, none is missed.
    pub fn exit_code(&self) -> u8 {
        match (self.stale, self.hops.is_empty()) {
            (true, _) => 1,
            (false, false) => 2,
            (false, true) => 0,
        }
    }

    /// For a person.
    pub fn text(&self, columns: usize) -> String {
        let says = match self.exit_code() {
            0 => "every hop is what it was: the evidence stands",
            1 => "the evidence is stale: a hop is not what it was; judge the stack again",
            _ => "nothing is known to have changed, and not everything can be compared",
        };
        let mut lines = Vec::new();
        for moved in &self.hops {
            let word = pad(if moved.is_stale() { "stale" } else { "unknown" }, 11);
            let said = wrap(&moved.says(), columns.max(60) - 11);
            lines
                .extend(said.iter().enumerate().map(|(at, line)| format!("{}{line}", if at == 0 { word.clone() } else { " ".repeat(11) })));
        }
        lines.extend(wrap(&format!("report of {}: {says}", super::text::calendar(self.began_s)), columns.max(60)));
        lines.join("\n")
    }
}

/// How a report differs from an older one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// Always `verify.comparison`.
    pub object: String,
    /// How many of each change there are.
    pub counts: BTreeMap<String, usize>,
    /// The cells, in the newer report's order, then those that are gone.
    pub cells: Vec<Pair>,
    /// The checks.
    pub checks: Vec<Pair>,
    /// Hops that are not what they were.
    pub hops: Vec<Moved>,
    /// What else differs, so that verdicts may differ for it: the model, the settings, how it was looked.
    pub otherwise: Vec<String>,
}

impl Comparison {
    /// 1 if anything got worse, else 0.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.counts.contains_key(Change::Worse.word()))
    }
}

/// Compares.
pub fn compare(old: &Report, new: &Report) -> Comparison {
    let cells = |report: &Report| {
        let short = |judged: &super::super::result::Judged| Short {
            verdict: word(&judged.verdict),
            lost_at: judged.lost_at.clone().filter(|_| judged.boundaries.len() > 1),
            tokens_after: judged.tokens_after,
            stop_ms: judged.stop_ms,
        };
        report.cells.iter().map(|judged| (judged.cell.to_string(), judged.verdict.clone(), short(judged))).collect::<Vec<_>>()
    };
    let checks = |report: &Report| {
        let short = |verdict: &Verdict| Short { verdict: word(verdict), lost_at: None, tokens_after: None, stop_ms: None };
        report.checks.iter().map(|check| (check.name.clone(), check.verdict.clone(), short(&check.verdict))).collect::<Vec<_>>()
    };
    let (cells, checks) = (pairs(cells(old), cells(new)), pairs(checks(old), checks(new)));
    let mut counts = BTreeMap::new();
    for pair in cells.iter().chain(&checks) {
        *counts.entry(pair.change.word().to_owned()).or_default() += 1;
    }
    let object = "verify.comparison".to_owned();
    Comparison { object, counts, cells, checks, hops: moved(&old.hops, &new.hops), otherwise: otherwise(old, new) }
}

/// Which hops are not what they were when the report was made, so that its evidence is stale.
pub fn stale(report: &Report, now: &[Hop]) -> Vec<Moved> {
    moved(&report.hops, now)
}

type Named = (String, Verdict, Short);

fn pairs(old: Vec<Named>, new: Vec<Named>) -> Vec<Pair> {
    let mut left: Vec<Option<Named>> = old.into_iter().map(Some).collect();
    let mut pairs = Vec::new();
    for (name, verdict, short) in new {
        let was = left.iter_mut().find(|one| one.as_ref().is_some_and(|(of, _, _)| *of == name)).and_then(Option::take);
        let change = was.as_ref().map_or(Change::New, |(_, was, _)| change(was, &verdict));
        pairs.push(Pair { name, change, old: was.map(|(_, _, short)| short), new: Some(short) });
    }
    pairs.extend(left.into_iter().flatten().map(|(name, _, short)| Pair { name, change: Change::Gone, old: Some(short), new: None }));
    pairs
}

fn change(old: &Verdict, new: &Verdict) -> Change {
    match (old, new) {
        (Verdict::Fail { fault: old, .. }, Verdict::Fail { fault: new, .. }) if old != new => Change::Differs,
        (old, new) if old.word() == new.word() => Change::Unchanged,
        (_, Verdict::Fail { .. }) => Change::Worse,
        (Verdict::Fail { .. } | Verdict::NotProven { .. }, Verdict::Pass) => Change::Better,
        _ => Change::Differs,
    }
}

fn word(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Fail { fault, .. } => format!("{} {fault}", verdict.word()),
        other => other.word().to_owned(),
    }
}

fn moved(old: &[Hop], new: &[Hop]) -> Vec<Moved> {
    let mut all = Vec::new();
    let find = |hops: &[Hop], name: &str| hops.iter().position(|hop| hop.name == name);
    for (at, was) in old.iter().enumerate() {
        let Some(place) = find(new, &was.name) else {
            all.push(Moved { hop: was.name.clone(), what: "place".to_owned(), old: Some(hop(was)), new: None });
            continue;
        };
        let is = &new[place];
        // Its place counts among the hops that both have: one that was added in front of it moved nothing.
        let before = |hops: &[Hop], at: usize, other: &[Hop]| {
            hops[..at].iter().filter(|hop| find(other, &hop.name).is_some()).map(|hop| hop.name.clone()).collect::<Vec<_>>()
        };
        let (stood, stands) = (before(old, at, new), before(new, place, old));
        let same = |a: &[String], b: &[String]| a.len() == b.len() && a.iter().all(|name| b.contains(name));
        if !same(&stood, &stands) {
            let behind = |names: Vec<String>| Some(names.last().map_or_else(|| "first".to_owned(), |name| format!("behind {name}")));
            all.push(Moved { hop: was.name.clone(), what: "place".to_owned(), old: behind(stood), new: behind(stands) });
        }
        let mut unknown = Vec::new();
        for (what, old, new) in [
            ("kind", &was.kind, &is.kind),
            ("version", &was.version, &is.version),
            ("configuration", &was.config_sha256, &is.config_sha256),
        ] {
            match (old, new) {
                (Some(old), Some(new)) if old == new => {}
                (Some(_), Some(_)) => all.push(Moved { hop: was.name.clone(), what: what.to_owned(), old: old.clone(), new: new.clone() }),
                _ => unknown.push(what),
            }
        }
        if !unknown.is_empty() {
            let lacks = Some(format!("no {} to compare", unknown.join(" and no ")));
            all.push(Moved { hop: was.name.clone(), what: "unknown".to_owned(), old: None, new: lacks });
        }
    }
    let added = new.iter().filter(|is| find(old, &is.name).is_none());
    all.extend(added.map(|is| Moved { hop: is.name.clone(), what: "place".to_owned(), old: None, new: Some(hop(is)) }));
    all
}

fn otherwise(old: &Report, new: &Report) -> Vec<String> {
    let mut all = Vec::new();
    let texts = [("target", &old.target, &new.target), ("model", &old.model, &new.model), ("profile", &old.profile, &new.profile)];
    all.extend(texts.into_iter().filter(|(_, old, new)| old != new).map(|(name, old, new)| format!("{name} was {old}, is {new}")));
    if old.polled != new.polled {
        all.push(format!("the engine was looked at during tries: {}, now {}", old.polled, new.polled));
    }
    let names: std::collections::BTreeSet<&String> = old.settings.keys().chain(new.settings.keys()).collect();
    // Each run has prompts of its own unless it is told not to.
    for name in names.into_iter().filter(|name| *name != "seed") {
        let (was, is) = (old.settings.get(name), new.settings.get(name));
        if was != is {
            let say = |value: Option<&serde_json::Value>| value.map_or_else(|| "not said".to_owned(), ToString::to_string);
            all.push(format!("setting `{name}` was {}, is {}", say(was), say(is)));
        }
    }
    all
}

/// The comparison for a person, a line for each change; what is unchanged is counted only.
pub fn text(of: &Comparison, columns: usize, paint: Paint) -> String {
    let columns = columns.max(60);
    let mut out = String::new();
    let mut paragraph = |mark: &str, text: &str| {
        let indent = super::text::width(mark);
        for (index, line) in wrap(text, columns - indent).iter().enumerate() {
            let before = if index == 0 { mark.to_owned() } else { " ".repeat(indent) };
            out.push_str(&paint_word(paint, format!("{before}{line}").trim_end()));
            out.push('\n');
        }
    };
    for pair in of.cells.iter().chain(&of.checks).filter(|pair| pair.change != Change::Unchanged) {
        let side = |side: &Option<Short>| {
            side.as_ref().map_or_else(
                || "none".to_owned(),
                |short| {
                    let place = short.lost_at.as_deref().map(|place| format!(" at {place}")).unwrap_or_default();
                    let figures = (short.tokens_after.is_some() || short.stop_ms.is_some())
                        .then(|| format!(" ({}, {})", seen(short.tokens_after, tokens), seen(short.stop_ms, ms)));
                    format!("{}{place}{}", short.verdict, figures.unwrap_or_default())
                },
            )
        };
        paragraph(&pad(pair.change.word(), 11), &format!("{}: {} → {}", pair.name, side(&pair.old), side(&pair.new)));
    }
    for moved in &of.hops {
        paragraph(&pad(if moved.is_stale() { "stale" } else { "unknown" }, 11), &moved.says());
    }
    for line in &of.otherwise {
        paragraph(&pad("otherwise", 11), line);
    }
    let counts: Vec<String> =
        Change::ALL.iter().filter_map(|change| of.counts.get(change.word()).map(|n| format!("{n} {change}"))).collect();
    paragraph("", &if counts.is_empty() { "there is nothing to compare".to_owned() } else { counts.join(", ") });
    out
}

/// The line with its first word in its colour.
fn paint_word(paint: Paint, line: &str) -> String {
    let code = match line.split(' ').next() {
        Some("worse") => "1;31",
        Some("better") => "32",
        Some("stale" | "differs" | "unknown") => "33",
        _ => return line.to_owned(),
    };
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    if paint == Paint::Colour { format!("\u{1b}[{code}m{word}\u{1b}[0m {rest}") } else { line.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::super::result::Fault;
    use super::super::example::{example, hostile};
    use super::super::table::COLUMNS;
    use super::super::text::width;
    use super::*;

    fn changed() -> (Report, Report) {
        let (old, mut new) = (example(), example());
        let verdict = |report: &mut Report, index: usize, verdict| report.cells[index].verdict = verdict;
        verdict(&mut new, 0, Verdict::Fail { fault: Fault::NeverStops, why: String::new() });
        verdict(&mut new, 2, Verdict::Pass);
        verdict(&mut new, 3, Verdict::Fail { fault: Fault::NeverStops, why: String::new() });
        verdict(&mut new, 4, Verdict::NotProven { missing: String::new() });
        verdict(&mut new, 5, Verdict::Pass);
        new.cells.remove(6);
        new.cells[1].cell = "queued/close/stream".parse().expect("a cell");
        new.checks[1].verdict = Verdict::Fail { fault: Fault::NeighboursSlowed, why: String::new() };
        new.hops[0].version = Some("3.3.0".to_owned());
        new.hops[1].config_sha256 = Some("0".repeat(64));
        new.settings.insert("stop_ms".to_owned(), 100.into());
        (old, new)
    }

    #[test]
    fn what_became_of_each_cell() {
        let (old, new) = changed();
        let comparison = compare(&old, &new);
        let all: Vec<_> = comparison.cells.iter().map(|pair| (pair.name.as_str(), pair.change)).collect();
        let want = [
            ("early/close/stream", Change::Worse),
            ("queued/close/stream", Change::New),
            ("early/close/whole", Change::Better),
            ("prefill/close/stream", Change::Differs),
            ("late/reset/stream", Change::Differs),
            ("early/cancel/stream", Change::Better),
            ("early/close/stream/shared", Change::Gone),
            ("headers/close/whole", Change::Gone),
        ];
        assert_eq!(all, want);
        assert_eq!(comparison.checks.iter().map(|pair| pair.change).filter(|change| *change == Change::Worse).count(), 1);
        assert_eq!((comparison.counts["worse"], comparison.counts["better"], comparison.exit_code()), (2, 2, 1));
        assert_eq!(comparison.otherwise, ["setting `stop_ms` was 2000, is 100"]);
    }

    #[test]
    fn a_report_is_what_it_is() {
        let same = compare(&example(), &example());
        assert_eq!((same.counts.len(), same.counts["unchanged"], same.exit_code()), (1, 11, 0));
        assert!(same.hops.iter().all(|moved| !moved.is_stale()) && same.otherwise.is_empty(), "{:?}", same.hops);
        let said = text(&same, COLUMNS, Paint::Plain);
        assert_eq!(said, "unknown    vllm: nothing says whether it is what it was (no configuration to compare)\n11 unchanged\n");
    }

    #[test]
    fn evidence_is_stale_where_a_hop_is_not_what_it_was() {
        let report = example();
        let what = |now: &[Hop]| -> Vec<(String, String)> {
            stale(&report, now).into_iter().filter(Moved::is_stale).map(|moved| (moved.hop, moved.what)).collect()
        };
        let pair = |hop: &str, what: &str| (hop.to_owned(), what.to_owned());
        assert_eq!(what(&report.hops), []);
        assert_eq!(what(&changed().1.hops), [pair("haproxy", "version"), pair("litellm", "configuration")]);
        assert_eq!(what(&report.hops[1..]), [pair("haproxy", "place")]);
        let mut now = report.hops.clone();
        now.insert(0, Hop { name: "edge".to_owned(), ..report.hops[0].clone() });
        assert_eq!(what(&now), [pair("edge", "place")]);
        now.remove(0);
        now.swap(0, 1);
        assert_eq!(what(&now), [pair("haproxy", "place"), pair("litellm", "place")]);
        now = report.hops.clone();
        now[0].version = None;
        let unknown: Vec<Moved> = stale(&report, &now).into_iter().filter(|moved| !moved.is_stale()).collect();
        assert_eq!(unknown.iter().map(|moved| moved.hop.as_str()).collect::<Vec<_>>(), ["haproxy", "vllm"]);
    }

    #[test]
    fn the_table_and_the_json_say_it() {
        let (old, new) = changed();
        let comparison = compare(&old, &new);
        let said = text(&comparison, COLUMNS, Paint::Plain);
        for says in [
            "worse      early/close/stream: pass (1 token, 12 ms) → FAIL never-stops",
            "stale      haproxy: version was 2.6.12, is 3.3.0",
            "otherwise  setting `stop_ms` was 2000, is 100",
            "2 better, 2 worse, 2 differs, 1 new, 2 gone, 3 unchanged",
        ] {
            assert!(said.contains(says), "{says}\n{said}");
        }
        let json = serde_json::to_string(&comparison).expect("a text");
        assert_eq!(serde_json::from_str::<Comparison>(&json).expect("a comparison"), comparison);
        assert!(text(&comparison, COLUMNS, Paint::Colour).contains("\u{1b}[1;31mworse\u{1b}[0m"));
        for report in [example(), hostile()] {
            let said = text(&compare(&report, &hostile()), COLUMNS, Paint::Plain);
            assert!(said.lines().all(|line| width(line) <= COLUMNS), "{said}");
            assert!(!said.chars().any(|c| c.is_control() && c != '\n'));
        }
    }
}
