//! The table of runs: those that live first, then those that ended last.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::ink::Ink;
use crate::facts::{Run, age, count, cut, or_dash, short};
use crate::state::State;

/// Lines above the first run.
pub(super) const ABOVE: u16 = 2;
/// Columns of the mark in front of a row, and between two columns.
const MARK: usize = 2;
const GAP: usize = 1;
/// The narrowest and widest column of ids.
const ID: (usize, usize) = (12, 36);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Column {
    State,
    Id,
    Tenant,
    Cause,
    Age,
    Made,
    Given,
    Waste,
    Blocks,
}

use Column as C;

/// In their order.
const COLUMNS: [Column; 9] = [C::State, C::Id, C::Tenant, C::Cause, C::Age, C::Made, C::Given, C::Waste, C::Blocks];
/// Which go first where there is no room.
const DISPENSABLE: [Column; 7] = [C::Blocks, C::Given, C::Tenant, C::Made, C::Cause, C::Age, C::Waste];

impl Column {
    fn title(self) -> &'static str {
        match self {
            C::State => "state",
            C::Id => "run",
            C::Tenant => "tenant",
            C::Cause => "cause",
            C::Age => "age",
            C::Made => "made",
            C::Given => "given",
            C::Waste => "waste",
            C::Blocks => "blocks",
        }
    }

    fn width(self) -> usize {
        match self {
            C::State | C::Tenant => 10,
            C::Id => ID.0,
            C::Cause => 16,
            C::Age | C::Made | C::Given | C::Waste | C::Blocks => 6,
        }
    }

    fn is_number(self) -> bool {
        matches!(self, C::Age | C::Made | C::Given | C::Waste | C::Blocks)
    }
}

/// The columns that have room, with their widths.
fn fitted(width: usize, tenants: bool) -> Vec<(Column, usize)> {
    let mut columns: Vec<Column> = COLUMNS.into_iter().filter(|column| tenants || *column != C::Tenant).collect();
    let needed = |columns: &[Column]| MARK + columns.iter().map(|column| column.width() + GAP).sum::<usize>() - GAP;
    for column in DISPENSABLE {
        if needed(&columns) > width {
            columns.retain(|kept| *kept != column);
        }
    }
    let spare = width.saturating_sub(needed(&columns)).min(ID.1 - ID.0);
    columns.into_iter().map(|column| (column, column.width() + if column == C::Id { spare } else { 0 })).collect()
}

fn cell(column: Column, width: usize, text: &str) -> String {
    match column.is_number() {
        true => format!("{:>width$}", cut(text, width)),
        false => format!("{:<width$}", cut(text, width)),
    }
}

fn value(column: Column, width: usize, run: Run<'_>, now_ms: f64, ink: Ink) -> (String, Style) {
    let plain = Style::new();
    match column {
        C::State => (run.word().to_owned(), ink.standing(run.word())),
        C::Id => (short(run.id(), width), plain),
        C::Tenant => (run.tenant().to_owned(), plain),
        C::Cause => (run.cause(), plain),
        C::Age => (run.age_ms(now_ms).map_or_else(|| "-".to_owned(), age), plain),
        C::Made => (or_dash(run.count("/tokens/generated")), plain),
        C::Given => (or_dash(run.count("/tokens/delivered")), plain),
        C::Waste => (or_dash(run.wasted()), if run.wasted().unwrap_or(0) > 0 { ink.bad() } else { plain }),
        C::Blocks => (or_dash(run.count("/blocks/held")), plain),
    }
}

/// How many there are, and what filters hold.
fn title(state: &State, rows: &[Run<'_>], width: usize, ink: Ink) -> Line<'static> {
    let live = rows.iter().filter(|run| run.is_live()).count();
    let more = if state.look.more { "+" } else { "" };
    let counted = format!("  {} live, {}{more} ended", count(live as u64), count((rows.len() - live) as u64));
    let mut filters = String::new();
    let held = [("state", &state.wanted.state), ("cause", &state.wanted.cause), ("tenant", &state.wanted.tenant)];
    for (name, value) in held {
        filters += &value.as_ref().map(|value| format!("  {name} {value}")).unwrap_or_default();
    }
    if state.is_typing || !state.part.is_empty() {
        filters += &format!("  id {}{}", state.part, if state.is_typing { "_" } else { "" });
    }
    let spans = [Span::styled("Runs", ink.bold()), Span::raw(counted), Span::styled(filters, ink.warn())];
    let used: usize = spans.iter().map(|span| span.content.chars().count()).sum();
    Line::from_iter(spans.into_iter().chain([Span::styled(format!("  {}", "─".repeat(width.saturating_sub(used + 2))), ink.dim())]))
}

pub(super) fn draw(buffer: &mut Buffer, area: Rect, state: &State, ink: Ink) {
    let rows = state.rows();
    let width = usize::from(area.width);
    let columns = fitted(width, state.look.is_operator());
    let mut above = vec![Span::raw(" ".repeat(MARK))];
    above.extend(columns.iter().map(|(column, width)| Span::styled(cell(*column, *width, column.title()) + " ", ink.dim())));
    super::put(buffer, area, &[title(state, &rows, width, ink), Line::from(above)], 0);
    let below = Rect { y: area.y + ABOVE.min(area.height), height: area.height.saturating_sub(ABOVE), ..area };
    if rows.is_empty() {
        let is_filtered = !state.part.is_empty() || state.look.table.is_some();
        let text = match (state.look.at_ms > 0.0, is_filtered) {
            (false, _) => "  Not known yet.",
            (true, true) => "  No run is like that; x takes the filters away.",
            (true, false) => "  No run yet. Ask the model something, and it appears here.",
        };
        return super::put(buffer, below, &[Line::styled(text, ink.dim())], 0);
    }
    let (at, height) = (state.row(&rows), usize::from(below.height));
    // The chosen one is in sight, in the middle where there are others on both sides.
    let first = at.saturating_sub(height / 2).min(rows.len().saturating_sub(height));
    let now_ms = state.server_now();
    for ((i, run), y) in rows.iter().enumerate().skip(first).zip(below.top()..below.bottom()) {
        let mark = match (i == at, run.unacknowledged_ms(now_ms).is_some()) {
            (_, true) => Span::styled("! ", ink.bad()),
            (true, false) => Span::raw("> "),
            (false, false) => Span::raw("  "),
        };
        let mut spans = vec![mark];
        for (column, width) in &columns {
            let (text, style) = value(*column, *width, *run, now_ms, ink);
            spans.push(Span::styled(cell(*column, *width, &text) + " ", style));
        }
        buffer.set_line(below.x, y, &Line::from(spans), below.width);
        if i == at {
            buffer.set_style(Rect { y, height: 1, ..below }, ink.chosen());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_least_goes_first_where_there_is_no_room() {
        let shown = |width, tenants| fitted(width, tenants).into_iter().map(|(column, _)| column.title()).collect::<Vec<_>>();
        assert_eq!(shown(80, false), ["state", "run", "cause", "age", "made", "given", "waste", "blocks"]);
        assert_eq!(shown(80, true), ["state", "run", "tenant", "cause", "age", "made", "waste"]);
        assert_eq!(shown(60, true), ["state", "run", "cause", "age", "waste"]);
        assert_eq!(shown(24, true), ["state", "run"]);
        for width in 26..200 {
            let needed = MARK + fitted(width, true).iter().map(|(_, width)| width + GAP).sum::<usize>() - GAP;
            assert!(needed <= width, "{needed} of {width}");
        }
    }
}
