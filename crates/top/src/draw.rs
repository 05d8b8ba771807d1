//! A frame, drawn of the state alone: the head (health, blocks, waste, latencies), the runs, one run in full, and what stands in front.
//!
//! Invariant: any state gives a frame of any size; where there is no room the least important goes first, and the runs last.

mod detail;
mod head;
mod ink;
mod popups;
mod runs;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

use crate::facts::cut;
use crate::health::judge;
use crate::state::State;
use ink::Ink;

/// From this width on a run in full stands beside the others.
const WIDE: u16 = 110;
/// How wide that is.
const DETAIL_WIDTH: u16 = 54;
/// Lines that are true even if the server does not answer.
const ABOVE_OLD: u16 = 2;
/// Fewer columns or rows than these are no screen.
const LEAST: (u16, u16) = (24, 6);

/// Where everything stands.
pub(crate) struct Plan {
    head: Rect,
    runs: Option<Rect>,
    detail: Option<Rect>,
    foot: Rect,
}

impl Plan {
    fn of(area: Rect, head: u16, is_detailed: bool) -> Plan {
        let head = head.min(area.height.saturating_sub(1));
        let body = Rect { y: area.y + head, height: area.height - head - 1, ..area };
        let is_wide = area.width >= WIDE;
        let (runs, detail) = match (is_wide, is_detailed) {
            // Where both have room both are there, and whoever asks for one of them closes it.
            (true, false) => {
                let left = Rect { width: body.width - DETAIL_WIDTH - 1, ..body };
                (Some(left), Some(Rect { x: body.x + left.width + 1, width: DETAIL_WIDTH, ..body }))
            }
            (false, true) => (None, Some(body)),
            _ => (Some(body), None),
        };
        Plan { head: Rect { height: head, ..area }, runs, detail, foot: Rect { y: area.bottom() - 1, height: 1, ..area } }
    }
}

/// How many rows of runs there are on a screen of this size.
pub(crate) fn page(area: Rect, state: &State) -> usize {
    if area.width < LEAST.0 || area.height < LEAST.1 {
        return 1;
    }
    let ink = Ink(state.settings.colour);
    let head = head::lines(state, &judge(&state.look, state.server_now()), area, ink).len();
    Plan::of(area, head as u16, state.is_detailed).runs.map_or(1, |runs| usize::from(runs.height.saturating_sub(runs::ABOVE)).max(1))
}

/// Draws the state.
pub(crate) fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    let ink = Ink(state.settings.colour);
    let buffer = frame.buffer_mut();
    let verdict = judge(&state.look, state.server_now());
    if area.width < LEAST.0 || area.height < LEAST.1 {
        put(buffer, area, &[Line::raw(format!("{}: too small", verdict.headline))], 0);
        return;
    }
    let head = head::lines(state, &verdict, area, ink);
    let plan = Plan::of(area, head.len() as u16, state.is_detailed);
    put(buffer, plan.head, &head, 0);
    if let Some(at) = plan.runs {
        runs::draw(buffer, at, state, ink);
    }
    if let Some(at) = plan.detail {
        let lines = detail::lines(state, usize::from(at.width), ink);
        let most = lines.len().saturating_sub(usize::from(at.height)) as u16;
        put(buffer, at, &lines, state.scroll.min(most));
        if plan.runs.is_some() {
            (at.top()..at.bottom()).for_each(|y| _ = buffer.set_string(at.x - 1, y, "│", ink.dim()));
        }
    }
    if state.look.trouble.is_some() {
        // What stands there is what was known before.
        let below = plan.head.y + ABOVE_OLD;
        buffer.set_style(Rect { y: below, height: plan.foot.y.saturating_sub(below), ..area }, ink.dim());
    }
    put(buffer, plan.foot, &[foot(state, usize::from(area.width), ink)], 0);
    popups::draw(buffer, area, state, &verdict, ink);
}

/// Lines from a first one on, as far as there is room.
fn put(buffer: &mut Buffer, area: Rect, lines: &[Line<'_>], first: u16) {
    for (line, y) in lines.iter().skip(usize::from(first)).zip(area.top()..area.bottom()) {
        buffer.set_line(area.x, y, line, area.width);
    }
}

/// What was said, or what the keys do.
fn foot(state: &State, width: usize, ink: Ink) -> Line<'static> {
    if let Some(said) = state.said() {
        return Line::styled(cut(said, width), ink.bold());
    }
    if state.is_typing {
        return Line::styled("type part of an id; Enter keeps it, Esc takes it away", ink.bold());
    }
    let is_one = state.is_detailed && width < usize::from(WIDE);
    let one = ["? help", "q quit", "Esc the others", "[ ] scroll", "↑↓ another run", "c cancel", "h health"];
    let all = ["? help", "q quit", "↑↓ choose", "⏎ one run", "c cancel", "h health", "s state", "u cause", "/ id", "p pause", "w worker"];
    let keys: &[&str] = if is_one { &one } else { &all };
    let mut text = String::new();
    for key in keys {
        if text.chars().count() + key.chars().count() + 2 <= width {
            text += if text.is_empty() { "" } else { "  " };
            text += key;
        }
    }
    Line::styled(text, ink.dim())
}

/// A text in lines of at most this width, broken between words where that is possible.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let last = lines.last_mut().expect("there is always a line");
            let used = last.chars().count();
            let space = usize::from(used > 0);
            if used + space + word.len() <= width {
                last.push_str(if space == 1 { " " } else { "" });
                last.extend(word);
                break;
            }
            if used > 0 {
                lines.push(String::new());
            } else {
                last.extend(word.drain(..width));
                lines.push(String::new());
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Popup;

    #[test]
    fn lines_are_broken_between_words_and_in_words_that_are_too_long() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn every_size_has_a_frame_whatever_is_known() {
        use ratatui::Terminal;
        use ratatui::backend::TestBackend;
        use serde_json::json;

        use crate::{Look, Settings, Trouble};

        let settings = || Settings { server: "http://a-name-that-is-longer-than-a-small-screen:8000".into(), every_ms: 1000, colour: true };
        let unknown = State::new(settings(), 5000.0);
        let mut away = unknown.clone();
        away.take(Look {
            trouble: Some(Trouble::Unreachable("nobody is there, or nobody that can be reached from here".into())),
            ..Look::default()
        });
        let mut odd = unknown.clone();
        let run = json!({"id": "r".repeat(128), "state": "stopping", "created_ms": 1,
                         "milestones": {"accepted": 0.0, "queued": -3.0, "cancel_sent": 9.0},
                         "boundaries": [{"hop": "x", "observed": 1.0}], "outcome": {"reason": "why\nnot".repeat(40)}, "superseded": ["a"]});
        let kv = json!({"total": 1_000_000, "free": 1, "active": 999_998, "orphaned": 4, "quarantined": 1});
        let diagnosis = json!({"verdict": "pressure", "evidence": [{"a": 1}, "b"], "next": "c"});
        let trouble = Some(Trouble::Refused("it does not want to".into()));
        odd.take(Look { live: vec![run, json!({})], kv: Some(kv), diagnosis: Some(diagnosis), at_ms: 1.0, trouble, ..Look::default() });
        for state in [unknown, away, odd] {
            for (is_detailed, popup) in [(false, None), (true, Some(Popup::Health(7))), (true, Some(Popup::Help))] {
                let mut state = state.clone();
                (state.is_detailed, state.popup, state.scroll) = (is_detailed, popup, 3);
                for (width, height) in (1..130).step_by(3).flat_map(|width| (1..45).step_by(4).map(move |height| (width, height))) {
                    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
                    let Ok(_) = terminal.draw(|frame| draw(frame, &state));
                    assert!(page(Rect::new(0, 0, width, height), &state) >= 1);
                }
            }
        }
    }
}
