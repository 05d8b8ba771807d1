//! What is known of causes and how they are mended: a file of entries, of which those are named that fit a verdict.
//!
//! An entry is about a hop in a role. Where it is known at which boundary the wish to end was lost, only hops between its two sides are asked
//! about; where it is not, all are. A hop whose kind nobody knows gets the entry for unknown ones, and never that of a product.
//!
//! Invariant: only a fault has advice, and a check that saw something and proved nothing, where an entry says so; what passed has none.

use std::sync::LazyLock;

use serde::Deserialize;

use super::cell::{Cell, Phase, Trigger, words};
use super::result::{Boundary, Check, Fault, Hop, Judged, Report, Verdict};

words! {
    /// What a hop is to a fault.
    Role {
        /// It had the departure, and passed it on or not.
        Proxy = "proxy",
        /// It does the work.
        Engine = "engine",
        /// It is the one who asks, and no hop.
        Caller = "caller",
    }
}

/// What a verdict must be for an entry to fit; an empty list fits all.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    /// One of these faults.
    pub faults: Vec<Fault>,
    /// In one of these phases.
    pub phases: Vec<Phase>,
    /// By one of these triggers.
    pub triggers: Vec<Trigger>,
    /// Of a stream, or of none.
    pub streaming: Option<bool>,
    /// It is about checks of these names, and about no cell.
    pub checks: Vec<String>,
    /// It is about such a check where nothing was proven, and something was seen that wants a word.
    pub unproven: bool,
}

impl When {
    fn fits_check(&self, name: &str, fault: Option<Fault>) -> bool {
        let fits = match fault {
            Some(fault) => self.faults.is_empty() || self.faults.contains(&fault),
            None => self.unproven,
        };
        fits && self.checks.iter().any(|check| check == name)
    }

    fn fits(&self, cell: &Cell, fault: Fault) -> bool {
        fn any<T: PartialEq>(of: &[T], one: &T) -> bool {
            of.is_empty() || of.contains(one)
        }
        self.checks.is_empty()
            && any(&self.faults, &fault)
            && any(&self.phases, &cell.phase)
            && any(&self.triggers, &cell.trigger)
            && self.streaming.is_none_or(|streaming| streaming == cell.streaming)
    }
}

/// One cause.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its name in reports, for ever.
    pub id: String,
    /// Kinds of hops that it is about. One about checks that names none is about every engine.
    pub hops: Vec<String>,
    /// What such a hop is to the fault.
    pub role: Role,
    /// The cause in a few words.
    pub title: String,
    /// It fits if one of these does.
    pub when: Vec<When>,
    /// The cause.
    pub cause: String,
    /// What mends it.
    pub fix: String,
    /// What to write in a file or a command, if that is how.
    #[serde(default)]
    pub config: Option<String>,
    /// Where that is known from.
    pub evidence: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    entry: Vec<Entry>,
}

static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| match toml::from_str::<File>(include_str!("../../knowledge/advice.toml")) {
    Ok(file) => file.entry,
    Err(why) => unreachable!("a test reads the file: {why}"),
});

/// All entries, in the order in which they are looked through.
pub fn all() -> &'static [Entry] {
    &ENTRIES
}

/// The entry of this name. A report of another release may name one that is not there.
pub fn named(id: &str) -> Option<&'static Entry> {
    all().iter().find(|entry| entry.id == id)
}

/// Names of the entries that fit the verdict, in the order in which they are to be read.
pub fn advise(judged: &Judged, hops: &[Hop]) -> Vec<String> {
    let Verdict::Fail { fault, .. } = judged.verdict else { return Vec::new() };
    let suspects = Suspects::of(judged, fault, hops);
    let about = |entry: &&Entry| match entry.role {
        Role::Proxy => suspects.proxies.iter().any(|hop| is_about(entry, hop)),
        Role::Engine => suspects.engine.is_some_and(|hop| is_about(entry, hop)),
        Role::Caller => suspects.caller,
    };
    let fits = |entry: &&Entry| entry.when.iter().any(|when| when.fits(&judged.cell, fault));
    all().iter().filter(about).filter(fits).map(|entry| entry.id.clone()).collect()
}

/// The same for a check: what is left behind is left in the engine, whoever passed the departure on to it; a control may be lost at any hop.
pub fn advise_check(check: &Check, hops: &[Hop]) -> Vec<String> {
    let Some((engine, proxies)) = hops.split_last() else { return Vec::new() };
    let fault = match &check.verdict {
        Verdict::Fail { fault, .. } => Some(*fault),
        // Who could look one way only has seen nothing.
        Verdict::NotProven { .. } if check.measured.get("changed") != Some(&0.0) => None,
        _ => return Vec::new(),
    };
    let fits = |entry: &&Entry| entry.when.iter().any(|when| when.fits_check(&check.name, fault));
    let about = |entry: &&Entry| match entry.role {
        Role::Engine => entry.hops.is_empty() || is_about(entry, engine),
        Role::Proxy => proxies.iter().any(|hop| is_about(entry, hop)),
        Role::Caller => false,
    };
    all().iter().filter(about).filter(fits).map(|entry| entry.id.clone()).collect()
}

/// Names what fits in a whole report.
pub fn add(report: &mut Report) {
    report.cells.iter_mut().for_each(|of| of.advice = advise(of, &report.hops));
    report.checks.iter_mut().for_each(|of| of.advice = advise_check(of, &report.hops));
}

/// Who may be at fault.
struct Suspects<'a> {
    caller: bool,
    proxies: &'a [Hop],
    engine: Option<&'a Hop>,
}

impl<'a> Suspects<'a> {
    fn of(judged: &Judged, fault: Fault, hops: &'a [Hop]) -> Suspects<'a> {
        let Some((engine, proxies)) = hops.split_last() else { return Suspects { caller: true, proxies: &[], engine: None } };
        // Who asks again stands in front of the first tap that was passed twice; the engine does not ask itself.
        if fault == Fault::AskedAgain {
            let behind = first_passed_twice(judged).and_then(|name| place(hops, name)).unwrap_or(proxies.len());
            return Suspects { caller: true, proxies: &proxies[..behind.min(proxies.len())], engine: None };
        }
        let sides = judged.lost_at.as_deref().and_then(|name| name.split_once(" → "));
        let Some((left, right)) = sides else {
            // Nobody looked where it was lost: whoever stands in the way may have lost it.
            return Suspects { caller: false, proxies, engine: Some(engine) };
        };
        // A side that is no hop (a tap with a name of its own) bounds nothing.
        let from = place(hops, left).unwrap_or(0).min(proxies.len());
        let to = place(hops, right).unwrap_or(proxies.len()).clamp(from, proxies.len());
        let between = &proxies[from..to];
        // It was told if what was lost there is the stop itself, alone or at the end of a span.
        let is_engine = || place(hops, right).is_none_or(|at| at == proxies.len());
        let ends = |boundary: &Boundary| boundary.name.split_once(" → ").is_some_and(|(_, end)| end == right);
        let at = judged.boundaries.iter().rposition(ends);
        let told = at.map_or_else(is_engine, |at| at + 1 == judged.boundaries.len());
        Suspects { caller: between.is_empty() && left == "client" && !told, proxies: between, engine: told.then_some(engine) }
    }
}

fn place(hops: &[Hop], name: &str) -> Option<usize> {
    hops.iter().position(|hop| hop.name == name)
}

fn first_passed_twice(judged: &Judged) -> Option<&str> {
    let twice = |seen: &'_ super::result::Try| seen.taps.iter().position(|tap| tap.requests > 1);
    let (at, seen) = judged.seen.iter().filter_map(|seen| Some((twice(seen)?, seen))).min_by_key(|(at, _)| *at)?;
    Some(seen.taps.get(at)?.name.as_str())
}

fn is_about(entry: &Entry, hop: &Hop) -> bool {
    let kind = kind_of(hop);
    entry.hops.iter().any(|known| known == kind)
}

/// The kind as entries name it; `unknown` where that is not told.
fn kind_of(hop: &Hop) -> &str {
    match hop.kind.as_deref().map(|kind| super::hop::kind(kind).unwrap_or(kind)) {
        Some(kind) if all().iter().any(|entry| entry.hops.iter().any(|known| known == kind)) => kind,
        _ => "unknown",
    }
}

#[cfg(test)]
#[path = "advice/tests.rs"]
mod tests;
