//! Client, gateway and worker as three lines over one scale. What follows abandonment takes milliseconds of a run of seconds, so that part
//! gets at least two fifths of the width, and the scale says how much finer it is there.

use lifecycle::Milestone as M;

use super::cells::{Cells, Ink};
use super::facts::Facts;

/// Columns of the lanes' names.
const NAMES: usize = 9;
/// Least and largest share of the width for what follows abandonment.
const AFTER: (f64, f64) = (0.4, 0.75);
/// From this much on a finer scale is named.
const FINER: f64 = 1.5;

/// Where a moment lies.
struct Scale {
    columns: usize,
    end: f64,
    /// When the finer part begins, and in which column.
    split: Option<(f64, usize)>,
}

impl Scale {
    fn new(columns: usize, end: f64, gone: Option<f64>) -> Scale {
        let end = if end.is_finite() && end > 0.0 { end } else { 0.0 };
        let split = gone.filter(|at| *at < end && *at >= 0.0).map(|at| {
            let share = ((end - at) / end).clamp(AFTER.0, AFTER.1);
            (at, ((1.0 - share) * (columns - 1) as f64).round() as usize)
        });
        Scale { columns, end, split }
    }

    fn column(&self, at: f64) -> usize {
        let place = |at: f64, (from, to): (f64, f64), (first, last): (usize, usize)| {
            let share = if to > from { ((at - from) / (to - from)).clamp(0.0, 1.0) } else { 0.0 };
            first + (share * (last - first) as f64).round() as usize
        };
        match self.split {
            Some((gone, column)) if at <= gone => place(at, (0.0, gone), (0, column)),
            Some((gone, column)) => place(at, (gone, self.end), (column, self.columns - 1)),
            None => place(at, (0.0, self.end), (0, self.columns - 1)),
        }
    }

    /// How much finer the part after the split is drawn.
    fn finer(&self) -> Option<f64> {
        let (gone, column) = self.split?;
        let before = gone / column.max(1) as f64;
        let after = (self.end - gone) / (self.columns - 1 - column).max(1) as f64;
        Some(before / after).filter(|times| *times >= FINER)
    }

    fn line(&self, colour: bool) -> String {
        let mut cells = Cells::new(NAMES + self.columns);
        cells.put(NAMES, "0 ms", Ink::Dim);
        let last = format!("+{:.3}", self.end);
        let last_at = (NAMES + self.columns).saturating_sub(last.chars().count());
        cells.put(last_at, &last, Ink::Dim);
        if let Some((gone, column)) = self.split {
            let label = format!("+{gone:.3} ");
            let column = NAMES + column;
            if column >= NAMES + 5 + label.len() {
                cells.put(column - label.len(), &label, Ink::Dim);
            }
            let finer = self.finer().map(|times| format!(" ×{times:.0} finer")).unwrap_or_default();
            if column + 1 + finer.chars().count() < last_at {
                cells.put(column + 1, &finer, Ink::Dim);
            }
            cells.put(column, "┊", Ink::Dim);
        }
        cells.line(colour)
    }
}

pub(super) fn draw(facts: Facts<'_>, width: usize, colour: bool) -> String {
    let stamps = facts.stamps();
    let Some(&(end, _)) = stamps.last() else { return String::new() };
    let scale = Scale::new(width - NAMES, end, facts.abandoned());
    let at = |milestone| facts.stamp(milestone).map(|at| NAMES + scale.column(at));
    let last = NAMES + scale.column(end);
    let lane = |name: &str| {
        let mut cells = Cells::new(width);
        cells.put(0, name, Ink::Bold);
        cells
    };
    let mut out = scale.line(colour);

    let mut client = lane("client");
    let stay = at(M::Settled).unwrap_or(last);
    client.fill(NAMES..stay + 1, '─', Ink::Plain);
    client.put(NAMES, "●", Ink::Bold);
    match (facts.leaving(), at(M::DisconnectObserved)) {
        (Some(word), Some(gone)) => {
            client.fill(gone..width, ' ', Ink::Plain);
            client.put(gone, &format!("╳ {word}"), Ink::Red);
        }
        _ if at(M::Settled).is_some() => client.put(stay, "●", Ink::Bold),
        _ => {}
    }
    out += &client.line(colour);

    let mut gateway = lane("gateway");
    gateway.fill(at(M::Accepted).unwrap_or(last)..at(M::Settled).unwrap_or(last) + 1, '─', Ink::Plain);
    let marks = [(M::Accepted, Ink::Bold), (M::CancelSent, Ink::Bold), (M::CancelAcknowledged, Ink::Bold), (M::Settled, Ink::Green)];
    let seen = [(M::DeadlineFired, Ink::Red), (M::DisconnectObserved, Ink::Red)];
    for (milestone, ink) in marks.into_iter().chain(seen) {
        if let Some(column) = at(milestone) {
            gateway.put(column, "●", ink);
        }
    }
    out += &gateway.line(colour);

    let mut worker = lane("worker");
    let over = at(M::Released).unwrap_or(last);
    let gone = facts.abandoned().map(|at| NAMES + scale.column(at));
    let computed = match (at(M::LastCompute), gone) {
        (Some(end), Some(gone)) if !facts.wasted() => end.min(gone),
        (Some(end), _) => end,
        (None, gone) => gone.unwrap_or(over),
    };
    if let Some(queued) = at(M::Queued) {
        worker.fill(queued..over + 1, '░', Ink::Dim);
    }
    for (milestone, c, ink) in [(M::PrefillStart, '▒', Ink::Yellow), (M::FirstToken, '█', Ink::Cyan)] {
        if let Some(from) = at(milestone) {
            worker.fill(from..computed.max(from) + 1, c, ink);
            worker.fill(computed.max(from) + 1..over + 1, '─', Ink::Plain);
        }
    }
    if let (Some(gone), true) = (gone, facts.wasted()) {
        worker.fill(gone..computed + 1, '╳', Ink::Red);
    }
    if let Some(released) = at(M::Released) {
        worker.put(released, "●", Ink::Green);
    }
    out += &worker.line(colour);
    let mut legend = Cells::new(width);
    legend.put(NAMES, "░ waiting  ▒ prefill  █ decode  ╳ computed in vain  ● a milestone", Ink::Dim);
    out + &legend.line(colour)
}
