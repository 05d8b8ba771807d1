//! The head: whom is looked at, the verdict, the blocks, waste, and how long a leaving's way takes.

use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use serde_json::Value;

use super::ink::Ink;
use super::wrap;
use crate::facts::{age, clean, count, cut, latency, percent, plural};
use crate::health::{Level, Verdict, firing, share};
use crate::map::{Cell, strip};
use crate::state::State;
use crate::ways::ways;

/// From this height on everything has its place; below the second only what matters most.
const FULL: u16 = 20;
const SMALL: u16 = 12;
/// From this height on the map has three rows.
const TALL: u16 = 34;
/// Answers older than this, in looks, are said to be old.
const OLD_LOOKS: f64 = 3.0;
/// The account's states, but for the orphaned, and how the map shows them.
const BLOCK_STATES: [(&str, Cell); 5] = [
    ("active", Cell::Active),
    ("cached", Cell::Cached),
    ("draining", Cell::Draining),
    ("quarantined", Cell::Quarantined),
    ("free", Cell::Free),
];
/// From this width on words are written out.
const ROOMY: usize = 100;
/// Columns of the name in front of the latencies, and of each of them.
const WAY_NAME: usize = 13;
const WAY_WIDTH: usize = 11;

pub(super) fn lines(state: &State, verdict: &Verdict, area: Rect, ink: Ink) -> Vec<Line<'static>> {
    let width = usize::from(area.width);
    let mut lines = vec![title(state, width, ink)];
    lines.extend(verdict_lines(verdict, width, if area.height >= FULL { 2 } else { 1 }, ink));
    if area.height >= SMALL {
        lines.push(blocks(state, width, ink));
    }
    if area.height >= FULL {
        lines.extend(map(state, width, if area.height >= TALL { 3 } else { 1 }, ink));
    }
    if area.height >= SMALL {
        lines.push(sums(state, verdict, width, ink));
    }
    if area.height >= FULL {
        lines.extend(latencies(state, width, ink));
    }
    lines
}

fn title(state: &State, width: usize, ink: Ink) -> Line<'static> {
    let look = &state.look;
    let who = match (look.caller["keys"] == true, look.caller["name"].as_str(), look.caller["tenant"].as_str()) {
        (true, Some(name), Some(tenant)) => format!("  {} of tenant {}", clean(name), clean(tenant)),
        _ => String::new(),
    };
    let every = state.settings.every_ms as f64;
    let is_old = look.at_ms > 0.0 && state.silence_ms() > OLD_LOOKS * every + 1000.0;
    let (right, style) = match (&look.trouble, state.is_paused) {
        (_, true) => (format!("paused, as of {} ago", age(state.silence_ms())), ink.warn()),
        (Some(_), _) if look.at_ms > 0.0 => (format!("asking again; below as of {} ago", age(state.silence_ms())), ink.bad()),
        (Some(_), _) => ("asking again".to_owned(), ink.bad()),
        (None, _) if is_old => (format!("no answer for {}", age(state.silence_ms())), ink.warn()),
        (None, _) => (format!("every {} s", every / 1000.0), ink.dim()),
    };
    let room = width.saturating_sub(right.chars().count() + 11);
    let server = cut(&format!("{}{who}", state.settings.server), room);
    let gap = room.saturating_sub(server.chars().count()) + 1;
    let spans = [Span::styled("kvit top", ink.bold()), Span::raw(format!("  {server}{}", " ".repeat(gap))), Span::styled(right, style)];
    Line::from_iter(spans)
}

/// The headline and why, in at most so many lines.
fn verdict_lines(verdict: &Verdict, width: usize, most: usize, ink: Ink) -> Vec<Line<'static>> {
    let badge = format!(" {} ", verdict.headline);
    let style = ink.level(verdict.level).patch(ink.chosen());
    let room = width.saturating_sub(badge.chars().count() + 1);
    let mut first = wrap(&verdict.because, room);
    let rest = first.split_off(1).join(" ");
    let mut because = first.pop().unwrap_or_default();
    if most == 1 && !rest.is_empty() {
        because = cut(&format!("{because} {rest}"), room);
    }
    let mut lines = vec![Line::from(vec![Span::styled(badge, style), Span::raw(format!(" {because}"))])];
    if most > 1 {
        // The line is there where it is empty, too: what stands below does not jump up and down.
        lines.push(Line::raw(cut(&rest, width)));
    }
    lines
}

fn blocks(state: &State, width: usize, ink: Ink) -> Line<'static> {
    let look = &state.look;
    let Some(kv) = &look.kv else {
        let text = match (look.is_engines_only(), look.at_ms > 0.0) {
            (true, _) => "the engines behind this gateway are others': they keep no account of blocks here",
            (false, true) => "the worker has not answered with its blocks",
            (false, false) => "not known yet",
        };
        return Line::from(vec![Span::styled("KV blocks  ", ink.bold()), Span::styled(cut(text, width.saturating_sub(11)), ink.dim())]);
    };
    let number = |name: &str| kv[name].as_u64().unwrap_or(0);
    let total = count(number("total"));
    let states: Vec<(&str, u64, Cell)> = BLOCK_STATES.into_iter().map(|(name, cell)| (name, number(name), cell)).collect();
    // As much as has room: with air, without, and without what is zero.
    let orphaned = Some(number("orphaned")).filter(|n| *n > 0).map(|n| format!(" ({} orphaned)", count(n))).unwrap_or_default();
    let length = |gap: usize, joint: usize, states: &[(&str, u64, Cell)]| {
        let each = |(name, n, _): &(&str, u64, Cell)| gap + 1 + joint + name.len() + 1 + count(*n).len();
        10 + total.len() + orphaned.len() + states.iter().map(each).sum::<usize>()
    };
    let some: Vec<_> = states.iter().copied().filter(|(name, n, _)| *n > 0 || *name == "free").collect();
    let (gap, joint, shown) = match (length(2, 1, &states) <= width, length(1, 0, &states) <= width) {
        (true, _) => (2, 1, states),
        (false, true) => (1, 0, states),
        (false, false) => (1, 0, some),
    };
    let mut spans = vec![Span::styled("KV blocks ", ink.bold()), Span::raw(total)];
    if kv["conserved"] != true {
        spans.push(Span::styled(" DO NOT ADD UP", ink.bad()));
    }
    for (name, n, cell) in shown {
        spans.extend([Span::raw(" ".repeat(gap)), Span::styled(cell.symbol(), ink.of(cell.colour()))]);
        spans.push(Span::raw(format!("{}{name} ", " ".repeat(joint))));
        spans.push(Span::styled(count(n), if n > 0 && cell == Cell::Quarantined { ink.bad() } else { ink.bold() }));
        // They are part of the active ones, and there are none where all is well.
        if cell == Cell::Active && !orphaned.is_empty() {
            spans.push(Span::styled(orphaned.clone(), ink.warn()));
        }
    }
    Line::from(spans)
}

fn map(state: &State, width: usize, rows: usize, ink: Ink) -> Vec<Line<'static>> {
    let Some(map) = &state.look.map else { return Vec::new() };
    let workers = state.look.block_workers().len();
    // Where several workers have blocks it is said whose these are.
    let name = match (workers > 1, map["worker"].as_str()) {
        (true, Some(name)) => format!("{} ", cut(&clean(name), 20)),
        _ => String::new(),
    };
    let indent = name.chars().count();
    let room = width.saturating_sub(indent).max(1);
    let names = state.owner_names();
    let cells = strip(map, room * rows, names.as_deref());
    let line = |(i, cells): (usize, &[Cell])| {
        let first = if i == 0 { name.clone() } else { " ".repeat(indent) };
        let mut spans = vec![Span::styled(first, ink.dim())];
        spans.extend(cells.chunk_by(|a, b| a == b).map(|run| Span::styled(run[0].symbol().repeat(run.len()), ink.of(run[0].colour()))));
        Line::from(spans)
    };
    cells.chunks(room).enumerate().map(line).collect()
}

/// Waste, cancels, alerts and the diagnosis, a word each.
fn sums(state: &State, verdict: &Verdict, width: usize, ink: Ink) -> Line<'static> {
    let look = &state.look;
    let period = |name: &str| look.waste.as_ref().and_then(|waste| share(waste, name)).map_or_else(|| "-".to_owned(), percent);
    let window = look.waste.as_ref().and_then(|waste| waste["window_s"].as_f64()).map_or_else(|| "?".to_owned(), |s| age(s * 1000.0));
    let level = |label: &str| verdict.checks.iter().find(|check| check.label == label).map_or(Level::Unknown, |check| check.level);
    let value = |style: Style, text: String| Span::styled(text, style.patch(ink.bold()));
    let waiting = look.unacknowledged(state.server_now());
    let unacknowledged = match waiting.first() {
        Some((_, oldest)) => format!("{}, oldest {}", waiting.len(), age(*oldest)),
        None if look.at_ms > 0.0 => "0".to_owned(),
        None => "-".to_owned(),
    };
    let alerts = match firing(look) {
        None => "-".to_owned(),
        Some(names) if names.is_empty() => "none".to_owned(),
        Some(names) if width < ROOMY => names.len().to_string(),
        Some(names) => names.join(", "),
    };
    let all = match width < ROOMY {
        true => format!(" (all {})  ", period("total")),
        false => format!(" in {window}, {} in all  ", period("total")),
    };
    let diagnosis = look.diagnosis.as_ref().map_or_else(|| "-".to_owned(), diagnosed);
    Line::from(vec![
        Span::styled("Waste ", ink.bold()),
        value(ink.level(level("Waste")), period("window")),
        Span::raw(all),
        Span::styled("Unacked ", ink.bold()),
        value(ink.level(level("Unacknowledged")), unacknowledged),
        Span::styled("  Alerts ", ink.bold()),
        value(ink.level(level("Alerts")), alerts),
        Span::styled(if width < ROOMY { "  Diag " } else { "  Diagnosis " }, ink.bold()),
        Span::raw(diagnosis),
    ])
}

/// The diagnosis in a word.
pub(super) fn diagnosed(diagnosis: &Value) -> String {
    let verdict = diagnosis["verdict"].as_str().or(diagnosis.pointer("/verdict/name").and_then(Value::as_str)).unwrap_or("-");
    clean(&verdict.replace('_', " "))
}

fn latencies(state: &State, width: usize, ink: Ink) -> Vec<Line<'static>> {
    let (left, ways) = ways(&state.look.ended);
    if left == 0 {
        let text = "After leaving  of the runs that ended last nobody left any";
        return vec![Line::styled(cut(text, width), ink.dim()), Line::default()];
    }
    let name = |text: &str| format!("{text:<WAY_NAME$}");
    let mut above = vec![Span::styled(name("After leaving"), ink.bold())];
    let mut below = vec![Span::styled(name("ms p50/p95"), ink.dim())];
    for way in ways {
        let times = way.times.map_or_else(|| "-".to_owned(), |(median, most)| format!("{}/{}", latency(median), latency(most)));
        above.push(Span::styled(format!("{:>WAY_WIDTH$}", way.name), ink.dim()));
        below.push(Span::raw(format!("{times:>WAY_WIDTH$}")));
    }
    if width >= ROOMY {
        below.push(Span::styled(format!("   of the {} left among those that ended last", plural(left as u64, "run")), ink.dim()));
    }
    vec![Line::from(above), Line::from(below)]
}
