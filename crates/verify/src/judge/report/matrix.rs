//! Many cells at a glance: a row for each phase and form, a column for each trigger, and below it what is not well, each kind of it once.
//!
//! Where several cells share a place (a shared prefix, more answers than one) it shows the worst of them.
//!
//! Invariant: every fault among the cells is seen in the grid and counted in a line below it.

use super::super::cell::{Phase, Trigger};
use super::super::result::{Judged, Verdict};
use super::table::{Paint, Row};
use super::text::{count, failed, ms, pad, reason, width};

/// Widths of the columns of phase and form.
const PHASE: usize = 9;
const FORM: usize = 7;

/// The grid, line by line.
pub fn grid(cells: &[Judged], paint: Paint) -> Vec<String> {
    let used = |trigger: &Trigger| cells.iter().any(|judged| judged.cell.trigger == *trigger);
    let triggers: Vec<Trigger> = Trigger::ALL.iter().copied().filter(used).collect();
    let parts = |trigger: Trigger| trigger.word().split_once('-').map_or(("", trigger.word().to_owned()), |(a, b)| (a, b.to_owned()));
    let wide = |trigger: Trigger| width(parts(trigger).0).max(width(&parts(trigger).1)).max(4) + 2;
    let upper: String = triggers.iter().map(|&trigger| pad(parts(trigger).0, wide(trigger))).collect();
    let lower: String = triggers.iter().map(|&trigger| pad(&parts(trigger).1, wide(trigger))).collect();
    let mut lines = vec![
        paint.with("1", &format!("{}{upper}", " ".repeat(PHASE + FORM))),
        paint.with("1", &format!("{}{}{lower}", pad("phase", PHASE), pad("answer", FORM))),
    ];
    for &phase in Phase::ALL {
        let mut name = phase.word();
        for streaming in [true, false] {
            let of = |trigger: Trigger| {
                let here = |judged: &&Judged| {
                    let cell = &judged.cell;
                    (cell.phase, cell.trigger, cell.streaming) == (phase, trigger, streaming)
                };
                cells.iter().filter(here).map(|judged| &judged.verdict).max_by_key(|verdict| weight(verdict))
            };
            if triggers.iter().all(|&trigger| of(trigger).is_none()) {
                continue;
            }
            let marks: String = triggers.iter().map(|&trigger| mark(of(trigger), wide(trigger), paint)).collect();
            lines.push(format!(
                "{}{}{marks}",
                pad(std::mem::take(&mut name), PHASE),
                pad(if streaming { "stream" } else { "whole" }, FORM)
            ));
        }
    }
    lines
}

const fn weight(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::NotApplicable { .. } => 0,
        Verdict::Pass => 1,
        Verdict::NotProven { .. } => 2,
        Verdict::Fail { .. } => 3,
    }
}

fn mark(verdict: Option<&Verdict>, wide: usize, paint: Paint) -> String {
    let Some(verdict) = verdict else { return " ".repeat(wide) };
    let word = if matches!(verdict, Verdict::NotProven { .. }) { "?" } else { verdict.word() };
    paint.verdict(verdict, &pad(word, wide))
}

/// What is not well, each kind once, with how many cells are so and the most that was seen: a verdict, and what is said of it.
pub fn kinds(cells: &[Judged]) -> Vec<(&Verdict, String)> {
    let mut kinds: Vec<(String, Row<'_>)> = Vec::new();
    let bad = cells.iter().filter(|judged| judged.verdict != Verdict::Pass);
    for judged in bad {
        let says = match &judged.verdict {
            Verdict::Fail { fault, .. } => failed(judged, *fault),
            other => reason(other).to_owned(),
        };
        match kinds.iter_mut().find(|(known, row)| *known == says && row.of[0].verdict.word() == judged.verdict.word()) {
            Some((_, row)) => row.of.push(judged),
            None => kinds.push((says, Row { of: vec![judged] })),
        }
    }
    kinds.sort_by_key(|(_, row)| std::cmp::Reverse((weight(&row.of[0].verdict), row.of.len())));
    let say = |(says, row): (String, Row<'_>)| {
        let many = row.of.len();
        let cells = if many == 1 { row.of[0].cell.to_string() } else { format!("{many} cells") };
        let (tokens, stop) = (row.range(|judged| judged.tokens_after, count), row.range(|judged| judged.stop_ms, ms));
        let figures = if row.of[0].verdict.is_fail() { format!(", tokens {tokens}, stopped {stop}") } else { String::new() };
        format!("{says}: {cells}{figures}")
    };
    kinds.into_iter().map(|kind| (&kind.1.of[0].verdict, say(kind))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::example::{example, full};
    use super::*;

    #[test]
    fn a_row_for_each_phase_and_form_and_a_column_for_each_trigger() {
        let lines = grid(&full().cells, Paint::Plain);
        assert!(lines.iter().all(|line| width(line.trim_end()) <= 100), "{lines:#?}");
        assert_eq!(lines.len(), 2 + 10, "six phases, and two of them have no answer that is not streamed");
        assert!(lines[1].starts_with("phase    answer close"), "{lines:#?}");
        assert!(lines[2].starts_with("queued   stream pass"), "{lines:#?}");
    }

    #[test]
    fn the_worst_of_a_place_is_shown() {
        let mut cells = example().cells;
        cells[1].verdict = Verdict::NotProven { missing: "x".to_owned() };
        let early = |cells: &[Judged]| grid(cells, Paint::Plain).into_iter().find(|line| line.starts_with("early")).expect("a row");
        assert!(early(&cells).starts_with("early    stream ?"), "{}", early(&cells));
        cells[1].verdict = cells[2].verdict.clone();
        assert!(early(&cells).starts_with("early    stream FAIL"), "{}", early(&cells));
    }

    #[test]
    fn every_cell_that_is_not_well_is_counted_below() {
        let report = full();
        let fails = report.cells.iter().filter(|judged| judged.verdict.is_fail()).count();
        let kinds = kinds(&report.cells);
        let counted: usize = kinds
            .iter()
            .map(|(_, says)| says.split(": ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok()).expect("a count"))
            .sum();
        assert_eq!(counted, fails);
        assert!(kinds[0].0.is_fail() && kinds[0].1.starts_with("never-stops at haproxy → litellm: "), "{kinds:?}");
        let report = example();
        let few = super::kinds(&report.cells);
        assert!(few.iter().any(|(_, says)| says.ends_with("early/cancel/stream")), "{few:?}");
    }
}
