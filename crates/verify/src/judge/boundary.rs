//! At which boundary the wish to end was lost.
//!
//! On its way it is seen at points: a tap in front of a hop sees that it comes to that hop; a hop's own log says that the hop took note of it,
//! and some proxies say that only when they tell the next one; and at the end the work stops or not. What is lost is lost between the last point that it reached and the first that it did not. Where nobody
//! looked in between, that is a span of several hops, and is told as one.
//!
//! A log is evidence of what its hop noticed, and never of the engine's having stopped: it moves no verdict, only the place.
//!
//! Invariant: pure; a boundary at which nobody looked is neither crossed nor not.
// contract: C-29

use super::cell::{Cell, Phase, Trigger};
use super::logs::{is_waiting, noticed};
use super::result::{Boundary, Hop, Source, TapSaw, Try};
use super::verdict::{Tolerance, median};

/// What stands behind the engine's name at the last boundary, where the hops were named: its own work.
pub const WORK: &str = "work";

/// The way from a caller to the work.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Way {
    /// The hops that are known; the last is the engine.
    pub hops: Vec<Hop>,
    /// Whether somebody named them all, in order. Where nobody did, taps alone say what there is in front of the engine.
    pub named: bool,
}

impl Way {
    /// Whether the tap of this name stands right in front of the engine.
    pub fn is_before_engine(&self, tap: &str) -> bool {
        !self.named || self.hops.last().is_some_and(|engine| engine.name == tap)
    }
}

/// The end of the work.
pub(super) struct Stop {
    /// When it was, of the tries in which it came in time.
    pub(super) in_time: Option<f64>,
    /// By what that is known, or that it did not come.
    pub(super) by: Option<Source>,
}

/// A point on the way.
struct Point {
    /// The hop at which it is; of the work, behind the last.
    hop: usize,
    seen: Option<bool>,
    at: Option<f64>,
}

/// The boundaries of tries that are alike (all that failed, or all that did not), and where the wish was lost in them.
pub(super) fn boundaries(
    cell: Cell,
    tries: &[&Try],
    way: &Way,
    tolerance: &Tolerance,
    stop: &Stop,
    failed: bool,
) -> (Vec<Boundary>, Option<String>) {
    if !cell.trigger.is_departure() {
        return (Vec::new(), None);
    }
    let engine = way.hops.last().map_or("engine", |hop| hop.name.as_str());
    let names: Vec<&str> = if way.named {
        way.hops.iter().map(|hop| hop.name.as_str()).collect()
    } else {
        let most = tries.iter().max_by_key(|seen| seen.taps.len());
        most.map_or(Vec::new(), |seen| seen.taps.iter().map(|tap| tap.name.as_str()).collect())
    };
    let last = if way.named { WORK } else { engine };
    // A cancel by name takes a way of its own: connections on this one tell nothing of it.
    let look = cell.trigger != Trigger::Cancel;
    let taps = |hop: usize| -> Vec<&TapSaw> {
        // Taps that nobody named a hop for are told apart by their place alone.
        let of = |seen: &Try| if way.named { seen.taps.iter().position(|tap| tap.name == names[hop]) } else { Some(hop) };
        let all = tries.iter().filter_map(|seen| seen.taps.get(of(seen)?));
        all.filter(|tap| look && tap.requests > 0 && !tap.is_refusal()).collect()
    };
    let told: Vec<Point> = (0..names.len()).map(|hop| tapped(hop, &taps(hop), cell, tolerance, failed)).collect();
    let took: Vec<Point> = names.iter().enumerate().map(|(hop, name)| logged(hop, name, tries, look, failed.then_some(cell))).collect();
    let told: Vec<(Point, Source)> = told.into_iter().map(|point| heard(point, &took, way)).collect();
    let mut all = Vec::new();
    let mut from = "client";
    for (hop, name) in names.iter().enumerate() {
        let before = hop.checked_sub(1).and_then(|before| took[before].seen);
        let (crossed, by) = match (told[hop].0.seen, took[hop].seen, before) {
            (Some(seen), ..) => (Some(seen), Some(told[hop].1)),
            (None, Some(true), _) => (Some(true), Some(Source::Log)),
            // Who took no note of it passed nothing on.
            (None, _, Some(false)) => (Some(false), Some(Source::Log)),
            _ => (None, None),
        };
        all.push(Boundary { name: format!("{from} → {name}"), crossed, crossed_ms: told[hop].0.at, by });
        from = name;
    }
    // A stop in time is the last crossing; one that came late, or at the work's own end, is none.
    let stopped = stop.by.map(|_| !failed);
    all.push(Boundary { name: format!("{from} → {last}"), crossed: stopped, crossed_ms: stop.in_time.filter(|_| !failed), by: stop.by });
    let work = Point { hop: names.len(), seen: stopped, at: None };
    let points: Vec<Point> = told.into_iter().zip(took).flat_map(|((told, _), took)| [told, took]).chain([work]).collect();
    // Nobody left but a hop: the first of them, or one behind it.
    let from = names.first().filter(|_| way.named && cell.trigger == Trigger::EdgeIdle).copied().unwrap_or("client");
    let lost = failed.then(|| lost(&points, &names, from, last)).flatten();
    (all, lost)
}

/// What the taps in front of a hop saw: one failed try in which it was not told is enough.
fn tapped(hop: usize, taps: &[&TapSaw], cell: Cell, tolerance: &Tolerance, failed: bool) -> Point {
    // Told when it was too late is as bad as not told. What waited had begun if anything of it passed before the hop was told.
    let in_time = |tap: &TapSaw| {
        let before_close = tap.events_after.saturating_sub(tap.events_after_close);
        let begun = cell.phase == Phase::Queued && before_close > 0;
        let soon = tap.events_after as f64 <= tolerance.tokens.max(1.0) && !begun;
        tap.down_closed_ms.is_some_and(|ms| !failed || (ms <= tolerance.stop_ms && soon))
    };
    let all = if failed { taps.iter().all(|tap| in_time(tap)) } else { taps.iter().any(|tap| in_time(tap)) };
    Point { hop, seen: (!taps.is_empty()).then_some(all), at: median(taps.iter().filter_map(|tap| tap.down_closed_ms)) }
}

/// Proxies that write in their log that a caller left when they give its request up, and close their own to the next hop then.
const GIVES_UP: [&str; 4] = ["nginx", "haproxy", "envoy", "caddy"];

/// Where no tap stands in front of a hop, the log of the one before it may say that it was told.
fn heard(point: Point, took: &[Point], way: &Way) -> (Point, Source) {
    let before = point.hop.checked_sub(1).filter(|_| point.seen.is_none());
    let gives_up = |hop: &usize| way.hops[*hop].kind.as_deref().is_some_and(|kind| GIVES_UP.contains(&kind));
    match before.filter(|hop| way.named && took[*hop].seen == Some(true)).filter(gives_up) {
        Some(_) => (Point { seen: Some(true), ..point }, Source::Log),
        None => (point, Source::Tap),
    }
}

/// What a hop's log says of its own. `failed` is the cell of tries that failed.
fn logged(hop: usize, name: &str, tries: &[&Try], look: bool, failed: Option<Cell>) -> Point {
    // It has no time: who notices at the first write, when all of a prompt is computed, notices too late and says the same.
    let writes_late = |cell: Cell| cell.streaming && matches!(cell.phase, Phase::Queued | Phase::Prefill | Phase::Headers);
    let of_waiting = failed.is_some_and(writes_late);
    let of = |seen: &&Try| {
        let lines = seen.logs.iter().filter(|log| log.hop == name);
        let said = lines.filter_map(|log| noticed(&log.means).filter(|noticed| !(of_waiting && *noticed) || is_waiting(&log.means)));
        said.reduce(|one, other| one || other)
    };
    let said: Vec<bool> = tries.iter().filter_map(of).filter(|_| look).collect();
    // What was served whole and stopped in time was near its end anyway.
    let seen = (!said.is_empty()).then(|| said.iter().all(|noticed| *noticed)).filter(|noticed| failed.is_some() || *noticed);
    Point { hop, seen, at: None }
}

/// Between the last point that it reached and the first that it did not.
fn lost(points: &[Point], names: &[&str], from: &str, last: &str) -> Option<String> {
    let first = points.iter().position(|point| point.seen == Some(false))?;
    let reached = points[..first].iter().rposition(|point| point.seen == Some(true)).map(|at| points[at].hop);
    // Points stand in pairs, the tap's first: an odd one is a log's, and what it lacks was lost in its hop.
    let is_log = first % 2 == 1 && first + 1 < points.len();
    let (hop, behind) = (points[first].hop, points[first].hop + usize::from(is_log));
    let left = match reached {
        Some(at) => names[at],
        // What the caller's kernel sent came to the first hop, which says that it took no note of it.
        None if is_log && hop == 0 => names[0],
        None => from,
    };
    Some(format!("{left} → {}", names.get(behind).copied().unwrap_or(last)))
}

#[cfg(test)]
#[path = "boundary/tests.rs"]
mod tests;
