//! One run in full: how it stands, what it cost, its life as a bar, each milestone, and how its end crossed each boundary.

use lifecycle::Milestone as M;
use observe::timeline::{phases, stamps};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use serde_json::Value;

use super::ink::Ink;
use super::wrap;
use crate::facts::{Run, clean, cut, or_dash, plural};
use crate::state::State;

/// Which part of the bar is what follows a leaving: milliseconds of a run of seconds.
const AFTER: f64 = 0.4;

/// Where a milestone is reached. A deadline fires where it was watched: at the gateway, which then has an observation of it.
fn place(run: Run<'_>, milestone: M) -> &'static str {
    match milestone {
        M::Accepted | M::DisconnectObserved | M::CancelSent | M::CancelAcknowledged | M::Settled => "gateway",
        M::DeadlineFired if run.observed() == run.at(milestone) => "gateway",
        _ => "worker",
    }
}

/// A phase's mark and colour.
fn look(phase: &str, in_vain: bool, ink: Ink) -> (&'static str, Style) {
    match phase {
        "prefill" => ("▒", ink.warn()),
        "decode" => ("█", ink.good()),
        _ if phase.starts_with("after") && in_vain => ("╳", ink.bad()),
        "draining" | "settling" => ("─", ink.dim()),
        _ if phase.starts_with("after") => ("─", Style::new()),
        _ => ("░", ink.dim()),
    }
}

/// A run's life on one scale; what follows a leaving is drawn finer.
fn bar(run: Run<'_>, end: f64, width: usize, ink: Ink) -> Line<'static> {
    let phases = phases(run.0, end);
    let gone = phases.iter().find(|phase| phase.name.starts_with("after")).map(|phase| phase.from);
    let last = phases.last().map_or(0.0, |phase| phase.to).max(f64::MIN_POSITIVE);
    let columns = width.saturating_sub(1) as f64;
    let column = |at: f64| match gone.filter(|gone| *gone > 0.0 && *gone < last) {
        Some(gone) if at <= gone => columns * (1.0 - AFTER) * at / gone,
        Some(gone) => columns * (1.0 - AFTER + AFTER * (at - gone) / (last - gone)),
        None => columns * at / last,
    };
    let in_vain = run.wasted().unwrap_or(0) > 0 || run.count("/steps/after_disconnect").unwrap_or(0) > 0;
    let mut cells = vec![(" ", Style::new()); width];
    for phase in &phases {
        let (from, to) = (column(phase.from).round() as usize, column(phase.to).round() as usize);
        cells[from.min(width - 1)..=to.min(width - 1)].fill(look(phase.name, in_vain, ink));
    }
    Line::from_iter(cells.chunk_by(|a, b| a == b).map(|same| Span::styled(same[0].0.repeat(same.len()), same[0].1)))
}

fn stamp(ms: f64) -> String {
    format!("{ms:+.3}")
}

/// All lines of the chosen run.
pub(super) fn lines(state: &State, width: usize, ink: Ink) -> Vec<Line<'static>> {
    let Some(run) = state.run() else { return vec![Line::styled("No run is chosen.", ink.dim())] };
    let (text, fact) = (|name: &str| run.0[name].as_str().map(|word| clean(&word.replace('_', " "))), |at: &str| or_dash(run.count(at)));
    let mut lines =
        vec![Line::from(vec![Span::styled("Run ", ink.bold()), Span::styled(cut(run.id(), width.saturating_sub(4)), ink.bold())])];
    let cause = run.0["outcome"]["cause"].as_str().map(|cause| format!(": {cause}")).unwrap_or_default();
    let attempt = run.count("/attempt").filter(|attempt| *attempt > 1).map(|attempt| format!("  attempt {attempt}")).unwrap_or_default();
    lines.push(Line::from(vec![
        Span::styled(run.word().to_owned(), ink.standing(run.word()).patch(ink.bold())),
        Span::raw(cause),
        Span::styled(format!("{attempt}  {}", cut(&text("model").unwrap_or_default(), 30)), ink.dim()),
    ]));
    let guarantee = text("guarantee");
    let bound = match run.count("/waste_bound_tokens") {
        Some(0) => "nothing more can be wasted".to_owned(),
        Some(most) => format!("at most {} more in vain", plural(most, "token")),
        None => String::new(),
    };
    let proven = if guarantee.as_deref() == Some("confirmed") { ink.good() } else { ink.warn() };
    lines.push(Line::from(vec![
        Span::raw(format!("delivery {}", text("delivery").unwrap_or_else(|| "unknown".into()))),
        Span::styled(guarantee.map(|word| format!("  {word}")).unwrap_or_default(), proven),
        Span::styled(format!("  {bound}"), ink.dim()),
    ]));
    let reason = run.0["outcome"]["reason"].as_str().map(clean);
    lines.extend(reason.into_iter().flat_map(|reason| wrap(&reason, width)).map(Line::raw));
    let marks = stamps(run.0);
    if marks.is_empty() {
        let text = "Its gateway is another one, or it ran in an earlier life: only its outcome is kept.";
        lines.extend(wrap(text, width).into_iter().map(|line| Line::styled(line, ink.dim())));
        return lines;
    }
    let tokens = |name: &str| fact(&format!("/tokens/{name}"));
    let mut say = |text: &str, style| lines.extend(wrap(text, width).into_iter().map(|line| Line::styled(line, style)));
    let made = format!(
        "tokens {} prompt ({} cached), {} made, {} given",
        tokens("prompt"),
        tokens("cached_prompt"),
        tokens("generated"),
        tokens("delivered")
    );
    say(&made, Style::new());
    let waste = format!(
        "waste  {} tokens, {} of the prompt, {} of {} steps",
        tokens("after_disconnect"),
        tokens("prompt_computed_after_disconnect"),
        fact("/steps/after_disconnect"),
        fact("/steps/total")
    );
    say(&waste, if run.wasted().unwrap_or(0) > 0 { ink.bad() } else { Style::new() });
    let left = text("phase_at_disconnect").map(|phase| format!(", left in {phase}")).unwrap_or_default();
    let blocks = format!("blocks {} now, {} at most, {} shared{left}", fact("/blocks/held"), fact("/blocks/peak"), fact("/blocks/shared"));
    say(&blocks, Style::new());
    let newest = marks.last().map_or(0.0, |(at, _)| *at);
    let end = if run.0["settled"] == true { newest } else { run.age_ms(state.server_now()).unwrap_or(newest).max(newest) };
    lines.push(bar(run, end, width, ink));
    lines.push(Line::styled(format!("{:>12} {:>10}  {:<8} {}", "ms", "after", "where", "milestone"), ink.dim()));
    let gone = run.observed();
    for (at, milestone) in marks {
        let after = gone.filter(|gone| at > *gone).map(|gone| stamp(at - gone)).unwrap_or_default();
        let style = match milestone {
            M::DisconnectObserved | M::DeadlineFired => ink.bad(),
            M::Released | M::Settled => ink.good(),
            _ => Style::new(),
        };
        let row = format!("{:>12} {after:>10}  {:<8} ", stamp(at), place(run, milestone));
        lines.push(Line::from(vec![Span::raw(row), Span::styled(milestone.as_str().replace('_', " "), style)]));
    }
    lines.extend(boundaries(run, ink));
    let superseded: Vec<&str> = run.0["superseded"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !superseded.is_empty() {
        lines.extend(wrap(&format!("too late, and changed nothing: {}", superseded.join(", ")), width).into_iter().map(Line::raw));
    }
    lines
}

/// How the end crossed each hop: when this side knew, and how much later it had passed that on and had it confirmed.
fn boundaries(run: Run<'_>, ink: Ink) -> Vec<Line<'static>> {
    let hops = run.0["boundaries"].as_array().into_iter().flatten();
    let crossed: Vec<&Value> = hops.filter(|hop| hop["observed"].is_number()).collect();
    if crossed.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![Line::styled(format!("{:<15}{:>12}{:>11}{:>14}", "boundary", "observed", "forwarded", "acknowledged"), ink.dim())];
    for hop in crossed {
        let after = |name: &str| match (hop["observed"].as_f64(), hop[name].as_f64()) {
            (Some(from), Some(to)) => stamp(to - from),
            _ => "not yet".to_owned(),
        };
        let name = clean(hop["hop"].as_str().unwrap_or("-"));
        let observed = hop["observed"].as_f64().map_or_else(String::new, stamp);
        let row = format!("{name:<15}{observed:>12}{:>11}{:>14}", after("forwarded"), after("acknowledged"));
        let is_late = run.is_live() && (hop["forwarded"].is_null() || hop["acknowledged"].is_null());
        lines.push(Line::styled(row, if is_late { ink.warn() } else { Style::new() }));
    }
    lines
}
