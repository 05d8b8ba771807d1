//! A try as a picture: a lane for the caller, each tap and the engine, over the time since the trigger.
//!
//! What matters happens within milliseconds around the trigger, and what came before and goes on after takes seconds. So the axis is
//! logarithmic on both sides of 0, and straight within a millisecond of it.
//!
//! Invariant: every stamp that is a number has its mark, and a table beside the picture has the same ones, for who cannot see it.

use std::fmt::Write;

use super::super::result::{EngineSaw, TapSaw, Try};
use super::text::{clean, count, escape, ms};

/// Most marks of one lane: an engine may have been looked at for minutes.
const MARKS_MAX: usize = 300;
/// Times beyond this are clipped, in milliseconds.
const FAR_MS: f64 = 1e8;

const WIDTH: f64 = 920.0;
const LEFT: f64 = 118.0;
const RIGHT: f64 = 896.0;
const LANE: f64 = 58.0;
const TOP: f64 = 24.0;

/// What a mark is, as the style sheet calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Point,
    Token,
    Close,
    Gone,
    Look,
}

impl Kind {
    const fn class(self) -> &'static str {
        match self {
            Kind::Point => "point",
            Kind::Token => "token",
            Kind::Close => "close",
            Kind::Gone => "gone",
            Kind::Look => "look",
        }
    }
}

struct Mark {
    at: f64,
    label: String,
    kind: Kind,
}

struct Lane {
    name: String,
    /// From when to when something was at work there; without an end it was when it was looked at last.
    from: Option<f64>,
    to: Option<f64>,
    goes_on: bool,
    marks: Vec<Mark>,
}

impl Lane {
    fn new(name: &str) -> Lane {
        Lane { name: clean(name), from: None, to: None, goes_on: false, marks: Vec::new() }
    }

    fn mark(&mut self, at: Option<f64>, kind: Kind, label: impl Into<String>) {
        if let Some(at) = at.filter(|at| at.is_finite())
            && self.marks.len() < MARKS_MAX
        {
            self.marks.push(Mark { at: at.clamp(-FAR_MS, FAR_MS), label: clean(&label.into()), kind });
        }
    }
}

/// The picture, and its table. `title` says of what.
pub fn timeline(seen: &Try, engine: &str, title: &str) -> String {
    let mut lanes = vec![caller(seen)];
    lanes.extend(seen.taps.iter().map(tap));
    if seen.engine.is_some() || seen.cpu.is_some() || seen.gpu.is_some() {
        lanes.push(worker(seen, engine));
    }
    draw(&lanes, title)
}

fn caller(seen: &Try) -> Lane {
    let client = &seen.client;
    let mut lane = Lane::new("client");
    lane.mark(client.sent_ms, Kind::Point, "asked");
    lane.mark(client.head_ms, Kind::Point, client.status.map_or_else(|| "head".to_owned(), |status| format!("head {status}")));
    lane.mark(client.first_token_ms, Kind::Token, "first token");
    lane.mark(Some(0.0), Kind::Close, format!("left, {} read", client.tokens));
    if let Some(end) = client.end_ms.filter(|end| *end > 0.0) {
        lane.mark(Some(end), Kind::Point, client.end.clone().unwrap_or_else(|| "end".to_owned()));
    }
    lane.from = client.sent_ms;
    lane.to = Some(client.end_ms.unwrap_or(0.0));
    lane
}

fn tap(tap: &TapSaw) -> Lane {
    let mut lane = Lane::new(&format!("→ {}", tap.name));
    lane.mark(tap.request_ms, Kind::Point, if tap.requests > 1 { format!("{} requests", tap.requests) } else { "request".to_owned() });
    let how = |how: &Option<String>| how.as_deref().map(|how| format!(" ({how})")).unwrap_or_default();
    lane.mark(tap.down_closed_ms, Kind::Close, format!("told{}", how(&tap.down_how)));
    lane.mark(tap.up_closed_ms, Kind::Gone, format!("closed{}", how(&tap.up_how)));
    let last = if tap.complete { "complete" } else { "last byte" };
    lane.mark(tap.last_byte_ms, Kind::Token, format!("{last}, {} after", tap.events_after));
    lane.from = tap.request_ms;
    lane.to = tap.up_closed_ms.into_iter().chain(tap.last_byte_ms).filter(|ms| ms.is_finite()).reduce(f64::max);
    lane
}

fn worker(seen: &Try, name: &str) -> Lane {
    let mut lane = Lane::new(name);
    let first = seen.taps.last().and_then(|tap| tap.request_ms).or(seen.client.sent_ms);
    lane.from = first;
    if let Some(engine) = &seen.engine {
        lane.mark(
            engine.gone_ms,
            Kind::Gone,
            engine.tokens_after.map_or_else(|| "gone".to_owned(), |n| format!("gone, {} after", count(n))),
        );
        looks(&mut lane, engine);
        lane.to = engine.gone_ms.or_else(|| engine.after.last().map(|look| look.ended_ms));
        lane.goes_on = engine.gone_ms.is_none() && engine.after.iter().any(|look| look.running.is_some());
    }
    for (load, label) in [(&seen.gpu, "GPU quiet"), (&seen.cpu, "processor quiet")] {
        let quiet_ms = load.as_ref().and_then(|load| load.quiet_ms);
        lane.mark(quiet_ms, Kind::Point, label);
        lane.to = lane.to.or(quiet_ms);
    }
    lane
}

fn looks(lane: &mut Lane, engine: &EngineSaw) {
    for look in engine.before.iter().chain(&engine.after).chain(&engine.rest) {
        let of = |name: &str, value: Option<f64>| value.map(|value| format!("{} {name}", count(value)));
        let said: Vec<String> = [of("running", look.running), of("waiting", look.waiting)].into_iter().flatten().collect();
        let said = if said.is_empty() { "look".to_owned() } else { format!("look: {}", said.join(", ")) };
        lane.mark(Some(look.ended_ms), Kind::Look, said);
    }
}

/// A time on the axis: a millisecond is 1, ten are 2, and as much to the left.
fn bend(ms: f64) -> f64 {
    let far = ms.abs();
    ms.signum() * if far <= 1.0 { far } else { 1.0 + far.log10() }
}

struct Axis {
    from: f64,
    to: f64,
}

impl Axis {
    fn of(lanes: &[Lane]) -> Axis {
        let marks = lanes.iter().flat_map(|lane| lane.marks.iter().map(|mark| mark.at));
        let (from, to) = marks.fold((-1.0_f64, 10.0_f64), |(from, to), at| (from.min(at), to.max(at)));
        Axis { from: bend(from) - 0.15, to: bend(to) + 0.25 }
    }

    fn x(&self, ms: f64) -> f64 {
        let at = (bend(ms.clamp(-FAR_MS, FAR_MS)) - self.from) / (self.to - self.from);
        LEFT + at.clamp(0.0, 1.0) * (RIGHT - LEFT)
    }

    fn ticks(&self) -> Vec<f64> {
        let powers = (0..9).map(|power| 10_f64.powi(power));
        let both = powers.clone().map(|ms| -ms).chain([0.0]).chain(powers);
        both.filter(|ms| (self.from..=self.to).contains(&bend(*ms))).collect()
    }
}

fn draw(lanes: &[Lane], title: &str) -> String {
    let axis = Axis::of(lanes);
    let height = TOP + LANE * lanes.len() as f64 + 26.0;
    let bottom = height - 26.0;
    let mut out = format!(
        "<div class=\"wide\" role=\"region\" aria-label=\"{0}\" tabindex=\"0\">\
         <svg class=\"line\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\">\n<title>{0}</title>\n",
        escape(title)
    );
    for tick in axis.ticks() {
        let x = axis.x(tick);
        let class = if tick == 0.0 { "zero" } else { "grid" };
        let says = if tick == 0.0 { "left".to_owned() } else { tick_label(tick) };
        let _ = writeln!(out, "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{bottom:.1}\"/>", TOP - 12.0);
        let _ = writeln!(out, "<text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\">{says}</text>", bottom + 16.0);
    }
    for (index, lane) in lanes.iter().enumerate() {
        draw_lane(&mut out, lane, &axis, TOP + LANE * (index as f64 + 0.5));
    }
    out.push_str("</svg></div>\n");
    stamps(&mut out, lanes);
    out
}

fn tick_label(at: f64) -> String {
    let says = if at.abs() < 1000.0 { format!("{:.0} ms", at.abs()) } else { format!("{:.0} s", at.abs() / 1e3) };
    if at < 0.0 { format!("−{says}") } else { format!("+{says}") }
}

fn draw_lane(out: &mut String, lane: &Lane, axis: &Axis, y: f64) {
    let name: String = if lane.name.chars().count() > 16 { lane.name.chars().take(15).chain(['…']).collect() } else { lane.name.clone() };
    let _ =
        writeln!(out, "<text class=\"name\" x=\"8\" y=\"{:.1}\">{}<title>{}</title></text>", y + 4.0, escape(&name), escape(&lane.name));
    let _ = writeln!(out, "<line class=\"lane\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
    let finite = |at: Option<f64>| at.filter(|at| at.is_finite());
    if let (Some(from), Some(to)) = (finite(lane.from), finite(lane.to)) {
        let mut bar = |class: &str, from: f64, to: f64| {
            if to > from {
                let (x, end) = (axis.x(from), axis.x(to));
                let wide = (end - x).max(0.5);
                let _ =
                    writeln!(out, "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"8\" rx=\"2\"/>", y - 4.0);
            }
        };
        bar("work", from, to.min(0.0));
        bar("wasted", from.max(0.0), to);
        if lane.goes_on {
            let x = axis.x(to);
            let _ = writeln!(out, "<path class=\"on\" d=\"M{x:.1} {:.1}l9 6l-9 6z\"><title>still counted</title></path>", y - 6.0);
        }
    }
    draw_marks(out, lane, axis, y);
}

/// Marks, and as many of their labels as have room: above the lane in two rows, and below it.
fn draw_marks(out: &mut String, lane: &Lane, axis: &Axis, y: f64) {
    let mut rows: [(f64, Vec<(f64, f64)>); 3] = [(-9.0, Vec::new()), (17.0, Vec::new()), (-20.0, Vec::new())];
    let mut marks: Vec<&Mark> = lane.marks.iter().collect();
    // Looks are many and say little: what happened gets its label first.
    marks.sort_by(|a, b| (a.kind == Kind::Look).cmp(&(b.kind == Kind::Look)).then(a.at.total_cmp(&b.at)));
    for mark in marks {
        let x = axis.x(mark.at);
        let shape = match mark.kind {
            Kind::Point => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"),
            Kind::Token => format!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"3\" height=\"14\"/>", x - 1.5, y - 7.0),
            Kind::Close => format!("<path d=\"M{:.1} {:.1}l10 10m0 -10l-10 10\"/>", x - 5.0, y - 5.0),
            Kind::Gone => format!("<path d=\"M{x:.1} {:.1}l6 6l-6 6l-6 -6z\"/>", y - 6.0),
            Kind::Look => format!("<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>", y + 5.0, y + 10.0),
        };
        let says = format!("{} {}", stamp(mark.at), mark.label);
        let _ = writeln!(out, "<g class=\"{}\"><title>{}</title>{shape}</g>", mark.kind.class(), escape(&says));
        if mark.kind == Kind::Look {
            continue;
        }
        let short: String =
            if mark.label.chars().count() > 28 { mark.label.chars().take(27).chain(['…']).collect() } else { mark.label.clone() };
        let half = short.chars().count() as f64 * 2.95 + 4.0;
        let middle = x.clamp(LEFT + half, RIGHT + 20.0 - half);
        let free = |taken: &[(f64, f64)]| taken.iter().all(|(from, to)| middle + half <= *from || middle - half >= *to);
        if let Some((dy, taken)) = rows.iter_mut().find(|(_, taken)| free(taken)) {
            taken.push((middle - half, middle + half));
            let _ = writeln!(out, "<text class=\"label\" x=\"{middle:.1}\" y=\"{:.1}\">{}</text>", y + *dy, escape(&short));
        }
    }
}

fn stamp(at: f64) -> String {
    if at > 0.0 { format!("+{}", ms(at)) } else { ms(at) }
}

/// The same as a table.
fn stamps(out: &mut String, lanes: &[Lane]) {
    out.push_str("<details class=\"stamps\"><summary>all stamps</summary><table><thead><tr><th scope=\"col\">since it was left</th>");
    out.push_str("<th scope=\"col\">where</th><th scope=\"col\">what</th></tr></thead><tbody>\n");
    let mut all: Vec<(&Lane, &Mark)> = lanes.iter().flat_map(|lane| lane.marks.iter().map(move |mark| (lane, mark))).collect();
    all.sort_by(|a, b| a.1.at.total_cmp(&b.1.at));
    for (lane, mark) in all {
        let (at, name, label) = (stamp(mark.at), escape(&lane.name), escape(&mark.label));
        let _ = writeln!(out, "<tr><td class=\"n\">{at}</td><td>{name}</td><td>{label}</td></tr>");
    }
    out.push_str("</tbody></table></details>\n");
}

#[cfg(test)]
mod tests {
    use super::super::example::{example, hostile};
    use super::*;

    #[test]
    fn every_stamp_has_its_mark_and_its_line_in_the_table() {
        let report = example();
        let seen = &report.cells[0].seen[0];
        let text = timeline(seen, "vllm", "a try");
        for says in
            ["−642 ms asked", "head 200", "first token", "left, 3 read", "+1.2 ms told (fin)", "+2.1 ms closed (rst)", "gone, 1 after"]
        {
            assert!(text.contains(says) || text.contains(&says.replace('−', "-")), "{says}\n{text}");
        }
        let (marks, lines) = (text.matches("<g class=").count(), text.matches("<tr><td").count());
        assert_eq!(marks, lines);
        assert_eq!(text.matches("class=\"name\"").count(), 4, "client, two taps, engine");
        assert_eq!(text.matches("class=\"look\"").count(), 4);
    }

    #[test]
    fn work_that_was_never_seen_to_end_goes_on() {
        let mut seen = example().cells[2].seen[0].clone();
        let engine = seen.engine.as_mut().expect("counters");
        engine.gone_ms = None;
        assert!(timeline(&seen, "vllm", "a").contains("still counted"));
    }

    #[test]
    fn the_axis_is_straight_around_zero_and_keeps_the_order() {
        let axis = Axis { from: bend(-1e4), to: bend(1e4) };
        let times = [-1e4, -10.0, -1.0, -0.5, 0.0, 0.5, 1.0, 10.0, 1e4];
        assert!(times.map(|ms| axis.x(ms)).is_sorted());
        assert_eq!((axis.x(f64::MAX), axis.x(-f64::MAX)), (RIGHT, LEFT));
        assert!((axis.x(0.0) - (LEFT + RIGHT) / 2.0).abs() < 1e-9);
        assert_eq!(axis.ticks().len(), 11);
        assert_eq!([-10.0, 1e4].map(tick_label), ["−10 ms", "+10 s"]);
    }

    #[test]
    fn figures_that_are_none_draw_nothing_and_no_text_leaves_its_place() {
        for judged in hostile().cells {
            for seen in judged.seen {
                let text = timeline(&seen, "<b>", "a \"title\"");
                assert!(!text.contains("NaN") && !text.contains("inf") && !text.contains("<b>") && !text.contains("<script"), "{text}");
            }
        }
        assert!(timeline(&Try::default(), "e", "t").contains("<svg"));
    }
}
