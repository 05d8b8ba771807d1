//! A run's timeline as a person reads it: what `kvit trace RUN` prints, drawn from the run's public JSON alone.
//!
//! It reads the JSON and not the journal, so the command works against any kvit, near or far, and shows nothing that the API does not say.
//!
//! Invariant: any JSON gives a text; what is missing or has another shape is shown as `-`, and no control character reaches the terminal.

use std::fmt::Write;

use lifecycle::Milestone;
use serde_json::Value;

/// Narrowest and widest page that is drawn, in columns.
const WIDTH: (usize, usize) = (76, 200);
/// Columns left of the drawing: time, time since abandonment, the milestone's name, and a space after each.
const MARGIN: usize = 11 + 1 + 9 + 1 + 19 + 1;
#[derive(Clone, Copy)]
enum Ink {
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
}

/// Renders a run (the JSON of `GET /v1/runs/{id}`) for a terminal of `width` columns: who and how it ended, its milestones in order of
/// time on one scale, the hops that the signal crossed, and what was used and wasted. With `colour`, ANSI colours mark what matters.
pub fn render_timeline(run: &Value, width: usize, colour: bool) -> String {
    let mut page = Page { run, out: String::new(), columns: width.clamp(WIDTH.0, WIDTH.1) - MARGIN, colour };
    page.header();
    page.milestones();
    page.boundaries();
    page.summary();
    page.out
}

struct Page<'a> {
    run: &'a Value,
    out: String,
    /// Columns of the drawing.
    columns: usize,
    colour: bool,
}

impl Page<'_> {
    fn header(&mut self) {
        let id = self.ink(Ink::Bold, &self.text("/id"));
        self.line(format_args!("run {id}  {}", self.text("/model")));
        let (kind, cause) = (self.text("/outcome/kind"), self.text("/outcome/cause"));
        let end = match self.run.pointer("/outcome").is_some_and(|o| !o.is_null()) {
            true => format!("{kind}: {cause}"),
            false => "no outcome yet".to_owned(),
        };
        let end = self.ink(Ink::Bold, &end);
        self.line(format_args!("{end}  state {}, attempt {}", self.text("/state"), self.text("/attempt")));
        if let Some(reason) = self.run.pointer("/outcome/reason").and_then(Value::as_str) {
            let reason = clean(reason);
            self.line(format_args!("reason: {reason}"));
        }
        let bound = match self.run.pointer("/waste_bound_tokens").and_then(Value::as_u64) {
            Some(0) => ", nothing more can be wasted".to_owned(),
            Some(bound) => format!(", at most {bound} tokens can still be wasted"),
            None => String::new(),
        };
        let guarantee = self.text("/guarantee");
        let paint = if guarantee == "confirmed" { Ink::Green } else { Ink::Yellow };
        let guarantee = self.ink(paint, &guarantee);
        self.line(format_args!("delivery {}, guarantee {guarantee}{bound}", self.text("/delivery")));
    }

    fn milestones(&mut self) {
        // A stable sort: what falls on the same microsecond stays in the contract's order.
        let mut stamps: Vec<(f64, &str)> = Milestone::ALL.iter().filter_map(|m| Some((self.stamp(m.as_str())?, m.as_str()))).collect();
        stamps.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some(&(end, _)) = stamps.last() else {
            self.line(format_args!("\nno milestones"));
            return;
        };
        let lane = self.lane(end);
        let gone = self.abandoned();
        let head = if gone.is_some() { "after" } else { "" };
        self.line(format_args!("\n{:>11} {head:>9} {:<19} {lane}", "ms", ""));
        for (at, name) in stamps {
            let mark = match name {
                "disconnect_observed" | "deadline_fired" => Ink::Red,
                "released" | "settled" => Ink::Green,
                _ => Ink::Bold,
            };
            let (column, mark) = (self.column(at, end), self.ink(mark, "●"));
            let lead = self.ink(Ink::Dim, &"·".repeat(column));
            let after = gone.filter(|from| at > *from).map(|from| format!("+{:.3}", at - from)).unwrap_or_default();
            self.line(format_args!("{:>11} {after:>9} {name:<19} {lead}{mark}", format!("+{at:.3}")));
        }
        self.line(format_args!("{:>11} {}", "", "░ waiting  ▒ prefill  █ decode  ╳ after abandonment"));
    }

    /// One line with what went on at each moment of the run.
    fn lane(&self, end: f64) -> String {
        let column = |name: &str| self.stamp(name).map(|at| self.column(at, end));
        let never = self.columns;
        let prefill = column("prefill_start").unwrap_or(never);
        let decode = column("first_token").unwrap_or(never);
        let gone = self.abandoned().map_or(never, |at| self.column(at, end));
        let done = column("last_compute").filter(|_| gone == never).unwrap_or(never);
        (0..self.columns)
            .map(|at| match at {
                _ if at >= gone => '╳',
                _ if at > done => ' ',
                _ if at >= decode => '█',
                _ if at >= prefill => '▒',
                _ => '░',
            })
            .collect::<String>()
            .trim_end()
            .to_owned()
    }

    fn boundaries(&mut self) {
        let hops: Vec<Value> = self.run.get("boundaries").and_then(Value::as_array).cloned().unwrap_or_default();
        let crossed = |hop: &Value| hop.get("observed").is_some_and(Value::is_number);
        if !hops.iter().any(crossed) {
            return;
        }
        self.line(format_args!("\n{:<18}{:>12}{:>14}{:>16}{:>15}", "hop", "observed", "forwarded", "acknowledged", "clock error"));
        for hop in &hops {
            let at = |name: &str| hop.get(name).and_then(Value::as_f64);
            let after = |name: &str| match (at("observed"), at(name)) {
                (Some(from), Some(to)) => format!("{:+.3}", to - from),
                _ => "-".to_owned(),
            };
            let observed = at("observed").map_or_else(|| "-".to_owned(), |ms| format!("+{ms:.3}"));
            let error = at("clock_error_ms").map_or_else(|| "-".to_owned(), |ms| format!("±{ms:.3}"));
            let name = clean(hop.get("hop").and_then(Value::as_str).unwrap_or("-"));
            self.line(format_args!("{name:<18}{observed:>12}{:>14}{:>16}{error:>15}", after("forwarded"), after("acknowledged")));
        }
    }

    fn summary(&mut self) {
        let t = |name: &str| self.text(&format!("/tokens/{name}"));
        let tokens = format!(
            "\ntokens  prompt {} ({} cached), generated {}, delivered {}, overrun {}",
            t("prompt"),
            t("cached_prompt"),
            t("generated"),
            t("delivered"),
            t("overrun")
        );
        let phase = match self.text("/phase_at_disconnect") {
            phase if phase == "-" => "nobody left".to_owned(),
            phase => format!("abandoned in phase {phase}"),
        };
        let waste = format!(
            "waste   tokens {}, prompt tokens {}, steps {} of {}; {phase}",
            t("after_disconnect"),
            t("prompt_computed_after_disconnect"),
            self.text("/steps/after_disconnect"),
            self.text("/steps/total")
        );
        let blocks = format!(
            "blocks  held {}, peak {}, shared {}",
            self.text("/blocks/held"),
            self.text("/blocks/peak"),
            self.text("/blocks/shared")
        );
        self.line(format_args!("{tokens}\n{waste}\n{blocks}"));
        let late: Vec<String> =
            self.run.get("superseded").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).map(clean).collect();
        if !late.is_empty() {
            let won = self.text("/outcome/cause");
            self.line(format_args!("late    {} (after {won} had won)", late.join(", ")));
        }
    }

    /// When anybody first knew that the run was no longer wanted.
    fn abandoned(&self) -> Option<f64> {
        let stamps = [self.stamp("disconnect_observed"), self.stamp("deadline_fired"), self.stamp("cancel_applied")];
        stamps.into_iter().flatten().min_by(f64::total_cmp)
    }

    fn stamp(&self, name: &str) -> Option<f64> {
        self.run.get("milestones")?.get(name)?.as_f64()
    }

    /// Where a moment lies on the scale from 0 to `end`, in columns.
    fn column(&self, at: f64, end: f64) -> usize {
        let share = if end > 0.0 { (at / end).clamp(0.0, 1.0) } else { 0.0 };
        (share * (self.columns - 1) as f64).round() as usize
    }

    fn text(&self, pointer: &str) -> String {
        match self.run.pointer(pointer) {
            Some(Value::String(text)) => clean(text),
            Some(Value::Number(number)) => number.to_string(),
            _ => "-".to_owned(),
        }
    }

    fn ink(&self, ink: Ink, text: &str) -> String {
        let code = match ink {
            Ink::Bold => 1,
            Ink::Dim => 2,
            Ink::Red => 31,
            Ink::Green => 32,
            Ink::Yellow => 33,
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        writeln!(self.out, "{text}").expect("writing to a String cannot fail");
    }
}

/// A text from elsewhere without what could steer a terminal.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
