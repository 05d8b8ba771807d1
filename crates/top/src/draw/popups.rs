//! What stands in front: help, health in full, lists to choose from, and the question before a cancel.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Widget};
use serde_json::Value;

use super::head::diagnosed;
use super::ink::Ink;
use super::wrap;
use crate::facts::{age, clean, cut, percent, plural};
use crate::health::{Verdict, share};
use crate::menu::Menu;
use crate::state::{Popup, State};

/// Columns of a text box, its frame included.
const TEXT_WIDTH: u16 = 76;
const HELP: [(&str, &str); 17] = [
    ("↑ ↓  j k", "choose a run; PgUp, PgDn, Home, End go further"),
    ("Enter", "one run in full, or (on a wide screen) the runs alone"),
    ("[  ]", "scroll the run in full"),
    ("c", "cancel the chosen run, once that is confirmed"),
    ("h", "health in full: checks, alerts, diagnosis, waste"),
    ("s", "only runs in one state"),
    ("u", "only runs that ended for one cause"),
    ("t", "only one tenant's runs (operators)"),
    ("/", "only runs with this in their id"),
    ("x", "no filter"),
    ("w", "the blocks of the next worker"),
    ("p", "pause; r looks at once"),
    ("Ctrl-L", "draw everything anew"),
    ("q  Ctrl-C", "the end"),
    ("", ""),
    ("█ ▒ ▚ X ·", "blocks: active, cached, draining, quarantined, free"),
    ("◆", "blocks of the chosen run;  ! a cancel nobody acknowledged"),
];

pub(super) fn draw(buffer: &mut Buffer, area: Rect, state: &State, verdict: &Verdict, ink: Ink) {
    match &state.popup {
        None => {}
        Some(Popup::Help) => {
            let line = |(keys, text): &(&'static str, &'static str)| {
                Line::from(vec![Span::styled(format!(" {keys:<10} "), ink.bold()), Span::raw(*text)])
            };
            boxed(buffer, area, "Keys", &HELP.iter().map(line).collect::<Vec<_>>(), 0, ink);
        }
        Some(Popup::Health(first)) => {
            let width = usize::from(TEXT_WIDTH.min(area.width)).saturating_sub(4);
            boxed(buffer, area, "Health", &health(state, verdict, width, ink), *first, ink);
        }
        Some(Popup::Menu(menu)) => list(buffer, area, menu, ink),
        Some(Popup::Confirm((_, id))) => {
            let made = state.run().and_then(|run| run.count("/tokens/generated")).map(|n| format!(", {} made", plural(n, "token")));
            let standing = state.run().map_or("", |run| run.word());
            let lines = [
                Line::from(vec![Span::raw(" Cancel "), Span::styled(cut(id, 60), ink.bold()), Span::raw("?")]),
                Line::raw(format!(" It is {standing}{}. Its caller is told.", made.unwrap_or_default())),
                Line::default(),
                Line::from(vec![Span::styled(" y", ink.bold()), Span::raw(" cancels it, every other key does not")]),
            ];
            boxed(buffer, area, "Cancel", &lines, 0, ink);
        }
    }
}

/// Lines in a frame in the middle, from a first one on.
fn boxed(buffer: &mut Buffer, area: Rect, title: &str, lines: &[Line<'_>], first: u16, ink: Ink) {
    let widest = lines.iter().map(Line::width).max().unwrap_or(0) as u16 + 3;
    let (width, height) = (widest.max(title.len() as u16 + 4).min(TEXT_WIDTH).min(area.width), (lines.len() as u16 + 2).min(area.height));
    let at = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    Clear.render(at, buffer);
    let block = Block::bordered().title(Span::styled(format!(" {title} "), ink.bold()));
    let inside = block.inner(at);
    block.render(at, buffer);
    let most = lines.len().saturating_sub(usize::from(inside.height)) as u16;
    super::put(buffer, inside, lines, first.min(most));
    if most > 0 {
        let more = format!(" {}-{} of {} ", first.min(most) + 1, first.min(most) + inside.height, lines.len());
        buffer.set_string(at.right().saturating_sub(more.len() as u16 + 1).max(at.x), at.bottom() - 1, more, ink.dim());
    }
}

fn list(buffer: &mut Buffer, area: Rect, menu: &Menu, ink: Ink) {
    let line = |(i, word): (usize, &String)| {
        let style = if i == menu.at { ink.chosen() } else { ratatui::style::Style::new() };
        Line::styled(format!(" {:<24} ", cut(&clean(word), 24)), style)
    };
    let lines: Vec<Line<'_>> = menu.words.iter().enumerate().map(line).collect();
    let first = (menu.at as u16).saturating_sub(area.height.saturating_sub(2) / 2);
    boxed(buffer, area, menu.title(), &lines, first, ink);
}

/// A line a fact, whatever its shape.
fn fact(value: &Value) -> String {
    match value {
        Value::String(text) => clean(text),
        Value::Array(list) => list.iter().map(fact).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => {
            let text = ["text", "what", "summary"].iter().find_map(|name| fields.get(*name)?.as_str());
            let all =
                || fields.iter().map(|(name, one)| format!("{}: {}", name.replace('_', " "), fact(one))).collect::<Vec<_>>().join(", ");
            text.map_or_else(all, clean)
        }
        other => other.to_string(),
    }
}

fn facts(value: &Value) -> Vec<String> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(list) => list.iter().map(fact).collect(),
        one => vec![fact(one)],
    }
}

fn number(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |n| ((n * 1e4).round() / 1e4).to_string())
}

/// Everything that the verdict was made of, and what stands behind it.
fn health(state: &State, verdict: &Verdict, width: usize, ink: Ink) -> Vec<Line<'static>> {
    let look = &state.look;
    let mut lines = Vec::new();
    let mut say = |indent: usize, text: &str, style| {
        let wrapped = wrap(text, width.saturating_sub(indent)).into_iter();
        lines.extend(wrapped.map(|line| Line::styled(format!(" {}{line}", " ".repeat(indent)), style)));
    };
    let plain = ratatui::style::Style::new();
    say(0, &format!("{}. {}", verdict.headline, verdict.because), ink.level(verdict.level));
    for check in &verdict.checks {
        say(2, &format!("{:<15} {}", check.label, check.value), ink.level(check.level));
    }
    for (run, since) in look.unacknowledged(state.server_now()) {
        say(
            2,
            &format!(
                "no word on the cancel of {} for {}, {} held",
                run.id(),
                age(since),
                plural(run.count("/blocks/held").unwrap_or(0), "block")
            ),
            ink.bad(),
        );
    }
    say(0, "Workers", ink.bold());
    for worker in &look.workers {
        let lost = worker["device_lost"].as_str().map(|why| format!(", device lost: {}", clean(why))).unwrap_or_default();
        let word = |name: &str| clean(worker[name].as_str().unwrap_or("-"));
        say(
            2,
            &format!(
                "{} {}, {}, {}{lost}",
                word("name"),
                word("state"),
                word("model"),
                plural(worker["runs"].as_u64().unwrap_or(0), "run")
            ),
            plain,
        );
    }
    say(0, "Diagnosis", ink.bold());
    match &look.diagnosis {
        None => say(2, "- (this server has none, or not for this key)", ink.dim()),
        Some(diagnosis) => {
            let summary = diagnosis["summary"].as_str().map(clean).unwrap_or_default();
            say(2, format!("{}. {summary}", diagnosed(diagnosis)).trim_end(), plain);
            facts(&diagnosis["evidence"]).iter().for_each(|text| say(2, &format!("- {text}"), plain));
            facts(&diagnosis["next"]).iter().for_each(|text| say(2, &format!("next: {text}"), ink.bold()));
        }
    }
    say(0, "Alerts", ink.bold());
    match look.alerts.as_ref().and_then(|alerts| alerts["data"].as_array()) {
        None => say(2, "- (this server has none, or not for this key)", ink.dim()),
        Some(alerts) => {
            for alert in alerts {
                let word = |name: &str| clean(alert[name].as_str().unwrap_or("-"));
                let style = if alert["state"] == "firing" { ink.bad() } else { plain };
                let (value, threshold) = (number(&alert["value"]), number(&alert["threshold"]));
                say(2, &format!("{:<8} {:<26} {value} of {threshold} {}", word("state"), word("name"), word("unit")), style);
                if alert["state"] == "firing" {
                    say(11, &word("summary"), plain);
                    say(11, &format!("see {}", word("runbook")), ink.dim());
                }
            }
        }
    }
    if let Some(waste) = &look.waste {
        say(0, "Waste", ink.bold());
        for (period, name) in [("window", "in the last window"), ("total", "since the start")] {
            let of = |path: &str| number(waste.pointer(&format!("/{period}{path}")).unwrap_or(&Value::Null));
            let ratio = share(waste, period).map_or_else(|| "-".to_owned(), percent);
            say(
                2,
                &format!(
                    "{name}: {ratio}; {} tokens of {}, {} of prompts of {}",
                    of("/ratio/after_disconnect"),
                    of("/ratio/tokens"),
                    of("/ratio/prompt_after_disconnect"),
                    of("/ratio/prompt_tokens")
                ),
                plain,
            );
            say(
                2,
                &format!(
                    "  cancelled runs: {}, {} tokens made, {} delivered; an answer cost {} tokens",
                    of("/cancelled/runs"),
                    of("/cancelled/generated"),
                    of("/cancelled/delivered"),
                    of("/cost/per_answer/tokens")
                ),
                plain,
            );
        }
    }
    lines
}
