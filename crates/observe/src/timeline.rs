//! A run's timeline as a person reads it: what `kvit trace RUN` prints and `kvit demo` shows, drawn from the run's public JSON alone.
//!
//! It reads the JSON and not the journal, so the command works against any kvit, near or far, and shows nothing that the API does not say.
//!
//! Invariant: any JSON gives a text; what is missing or has another shape is shown as `-`, and no control character reaches the terminal.

mod cells;
mod facts;
mod lanes;
mod phases;
mod story;

use std::fmt::Write;

use serde_json::Value;

use cells::{Ink, paint};
use facts::{Facts, clean};
pub use phases::{Phase, phases, stamps};

/// Narrowest and widest page that is drawn, in columns.
const WIDTH: (usize, usize) = (76, 200);

/// Renders a run (the JSON of `GET /v1/runs/{id}`) for a terminal of `width` columns: who and how it ended; what client, gateway and worker
/// did on one scale; each milestone in the lane where it happened; the boundaries that the signal crossed, with their latencies; and what
/// was used and wasted. With `colour`, ANSI colours mark what matters.
pub fn render_timeline(run: &Value, width: usize, colour: bool) -> String {
    let width = width.clamp(WIDTH.0, WIDTH.1);
    let mut page = Page { facts: Facts(run), out: String::new(), colour };
    page.header();
    page.engine();
    match page.facts.stamps().is_empty() {
        true => page.line(format_args!("\nno milestones")),
        false => {
            page.out.push('\n');
            page.out += &lanes::draw(page.facts, width, colour);
            page.out.push('\n');
            page.out += &story::draw(page.facts, width, colour);
        }
    }
    page.boundaries();
    page.summary();
    page.out
}

/// The three lanes of a run alone, for a terminal of `width` columns: a scale, what client, gateway and worker did, and what the marks mean.
/// Empty for a run without milestones.
pub fn render_lanes(run: &Value, width: usize, colour: bool) -> String {
    lanes::draw(Facts(run), width.clamp(WIDTH.0, WIDTH.1), colour)
}

struct Page<'a> {
    facts: Facts<'a>,
    out: String,
    colour: bool,
}

impl Page<'_> {
    fn header(&mut self) {
        let facts = self.facts;
        let id = self.ink(Ink::Bold, &facts.text("/id"));
        self.line(format_args!("run {id}  {}", facts.text("/model")));
        let (kind, cause) = (facts.text("/outcome/kind"), facts.text("/outcome/cause"));
        let end = match facts.at("/outcome").is_some_and(|o| !o.is_null()) {
            true => format!("{kind}: {cause}"),
            false => "no outcome yet".to_owned(),
        };
        let end = self.ink(Ink::Bold, &end);
        self.line(format_args!("{end}  state {}, attempt {}", facts.text("/state"), facts.text("/attempt")));
        if let Some(reason) = facts.at("/outcome/reason").and_then(Value::as_str) {
            let reason = clean(reason);
            self.line(format_args!("reason: {reason}"));
        }
        // contract: C-6
        if let Some(told) = facts.at("/told").and_then(Value::as_str).map(clean).filter(|told| *told != cause) {
            self.line(format_args!("readers were told: {told}, before the outcome was decided"));
        }
        let bound = match facts.at("/waste_bound_tokens").and_then(Value::as_u64) {
            Some(0) => ", nothing more can be wasted".to_owned(),
            Some(bound) => format!(", at most {bound} tokens can still be wasted"),
            None => String::new(),
        };
        let guarantee = facts.text("/guarantee");
        let paint = if guarantee == "confirmed" { Ink::Green } else { Ink::Yellow };
        let guarantee = self.ink(paint, &guarantee);
        self.line(format_args!("delivery {}, guarantee {guarantee}{bound}", facts.text("/delivery")));
    }

    /// By which name to look for it in an engine's own log.
    // contract: C-1
    fn engine(&mut self) {
        if self.facts.at("/engine").is_some_and(Value::is_object) {
            let (upstream, request) = (self.facts.text("/engine/upstream"), self.facts.text("/engine/request"));
            self.line(format_args!("engine {upstream} calls it {request}"));
        }
    }

    /// How abandonment crossed each boundary: when this side knew, and how much later it had passed that on and had it confirmed.
    fn boundaries(&mut self) {
        let hops: Vec<Value> = self.facts.at("/boundaries").and_then(Value::as_array).cloned().unwrap_or_default();
        let crossed = |hop: &Value| hop.get("observed").is_some_and(Value::is_number);
        if !hops.iter().any(crossed) {
            return;
        }
        self.line(format_args!("\n{:<18}{:>12}{:>14}{:>16}{:>15}", "boundary", "observed", "forwarded", "acknowledged", "clock error"));
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
        let facts = self.facts;
        let t = |name: &str| facts.text(&format!("/tokens/{name}"));
        let tokens = format!(
            "\ntokens  prompt {} ({} cached), generated {}, delivered {}, overrun {}",
            t("prompt"),
            t("cached_prompt"),
            t("generated"),
            t("delivered"),
            t("overrun")
        );
        let phase = match facts.text("/phase_at_disconnect") {
            phase if phase == "-" => "phase   nobody left".to_owned(),
            phase => format!("phase   {phase}, when abandonment was first seen"),
        };
        let layers = match facts.count("/steps/layers_dropped") {
            0 => String::new(),
            n => format!(", {} of a dropped step", story::layers(n)),
        };
        let waste = format!(
            "waste   tokens {}, prompt tokens {}, steps {} of {}{}",
            t("after_disconnect"),
            t("prompt_computed_after_disconnect"),
            facts.text("/steps/after_disconnect"),
            facts.text("/steps/total"),
            layers
        );
        let waste = if facts.wasted() { self.ink(Ink::Red, &waste) } else { waste };
        let blocks = format!(
            "blocks  held {}, peak {}, shared {}",
            facts.text("/blocks/held"),
            facts.text("/blocks/peak"),
            facts.text("/blocks/shared")
        );
        self.line(format_args!("{tokens}\n{waste}\n{phase}\n{blocks}"));
        if let Some(policy) = facts.policy() {
            self.line(format_args!("policy  {policy}"));
        }
        let won = facts.text("/outcome/cause");
        for cause in facts.superseded() {
            self.line(format_args!("late    {cause} (after {won} had won; it changed nothing)"));
        }
    }

    fn ink(&self, ink: Ink, text: &str) -> String {
        paint(ink, text, self.colour)
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        writeln!(self.out, "{text}").expect("writing to a String cannot fail");
    }
}
