//! What a soak found, as a table for a person and as JSON for a machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use console::Style;
use serde_json::{Value, json};

use super::args::{SoakArgs, word};
use super::reading::Reading;
use super::tally::Tally;
use super::verdict::{Part, Row, Rule, Verdict, mib};

/// Phases as the server names them, in the order of a run's life.
const SEEN: [&str; 4] = ["queued", "prefill", "before_first_token", "decode"];
/// Outcomes in the order of the contract's table.
const OUTCOMES: [&str; 5] = ["cancelled", "completed", "expired", "rejected", "failed"];

/// How a verdict is drawn.
struct Pen {
    good: Style,
    bad: Style,
    dim: Style,
    bold: Style,
}

impl Pen {
    fn new(colour: bool) -> Pen {
        let style = || Style::new().force_styling(colour);
        Pen { good: style().green(), bad: style().red().bold(), dim: style().dim(), bold: style().bold() }
    }
}

/// The table.
pub fn table(args: &SoakArgs, url: &str, pid: Option<u32>, parts: &[Part], verdict: &Verdict, colour: bool) -> String {
    let pen = Pen::new(colour);
    let mut text = String::new();
    let process = pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
    put(&mut text, format_args!("{} {url}{process}\n", pen.bold.apply_to("soak of")));
    let (tokens, prompt, seed) = (args.tokens, args.prompt_tokens, args.seed);
    put(&mut text, format_args!("each run: a prompt of {prompt} tokens, {tokens} tokens asked for; seed {seed}\n\n"));
    ends(&mut text, parts, args.in_flight);
    phases(&mut text, parts);
    rows(&mut text, parts, verdict, &pen);
    memory(&mut text, verdict, &pen);
    if verdict.wrong.is_empty() {
        put(
            &mut text,
            format_args!("\n{}", pen.good.apply_to("no growth: every count is back exactly, and the answers are the same as before")),
        );
    } else {
        put(&mut text, format_args!("\n{}", pen.bad.apply_to("GROWTH, or something else that must not be:")));
        verdict.wrong.iter().for_each(|what| put(&mut text, format_args!("\n  {what}")));
    }
    text
}

fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(what);
}

fn ends(text: &mut String, parts: &[Part], in_flight: u16) {
    put(text, format_args!("{:<26}{:>9}", "part", "callers"));
    OUTCOMES.iter().for_each(|kind| put(text, format_args!("{kind:>11}")));
    put(text, format_args!("{:>12}{:>9}{:>9}\n", "never read", "seconds", "a second"));
    for Part { name, tally, .. } in parts {
        let name = if *name == "concurrent" { format!("{name}, {in_flight} at once") } else { (*name).to_owned() };
        put(text, format_args!("{name:<26}{:>9}", tally.callers));
        OUTCOMES.iter().for_each(|kind| put(text, format_args!("{:>11}", tally.outcome(kind))));
        let seconds = tally.took.as_secs_f64();
        put(text, format_args!("{:>12}{seconds:>9.1}{:>9.1}\n", tally.never_read, tally.callers as f64 / seconds.max(1e-9)));
    }
    let most = parts.iter().map(|p| p.tally.after_receipt_max).max().unwrap_or(0);
    put(text, format_args!("most tokens that a run computed after its cancel had arrived: {most}\n"));
}

/// What was aimed at, by row, and where the server saw the run, by column.
fn phases(text: &mut String, parts: &[Part]) {
    let mut all = Tally::default();
    parts.iter().for_each(|p| all.merge(p.tally.clone()));
    put(text, format_args!("\n{:<26}", "cancelled, left in"));
    SEEN.iter().for_each(|seen| put(text, format_args!("{seen:>20}")));
    let aims: BTreeSet<_> = all.phases.keys().map(|(aim, _)| *aim).collect();
    for aim in aims {
        put(text, format_args!("\n  {:<24}", word(aim)));
        for seen in SEEN {
            put(text, format_args!("{:>20}", all.phases.get(&(aim, seen.to_owned())).copied().unwrap_or(0)));
        }
    }
    text.push_str("\n\n");
}

fn heads(parts: &[Part]) -> Vec<String> {
    let of = |p: &Part| [format!("half {}", p.name), p.name.to_owned()];
    ["fresh", "warm"].map(str::to_owned).into_iter().chain(parts.iter().flat_map(of)).collect()
}

fn number(row: &Row, value: f64) -> String {
    if row.name.ends_with("MiB") { format!("{value:.1}") } else { format!("{value}") }
}

fn rows(text: &mut String, parts: &[Part], verdict: &Verdict, pen: &Pen) {
    let heads = heads(parts);
    put(text, format_args!("{:<26}", "at rest"));
    heads.iter().for_each(|head| put(text, format_args!("{head:>17}")));
    text.push('\n');
    let mut group = "";
    for row in &verdict.rows {
        if row.group != group {
            group = row.group;
            put(text, format_args!("{}\n", pen.bold.apply_to(group)));
        }
        put(text, format_args!("  {:<24}", row.name));
        row.values.iter().for_each(|v| put(text, format_args!("{:>17}", number(row, *v))));
        let mark = match (&row.growth, row.rule) {
            (Some(_), _) => pen.bad.apply_to("  GROWTH".to_owned()),
            (None, Rule::Kept(max)) => pen.dim.apply_to(max.map(|max| format!("  of {max}")).unwrap_or_default()),
            (None, Rule::Memory) if verdict.memory.is_empty() => pen.dim.apply_to("  not judged".to_owned()),
            (None, _) => pen.good.apply_to("  ok".to_owned()),
        };
        put(text, format_args!("{mark}\n"));
    }
}

fn memory(text: &mut String, verdict: &Verdict, pen: &Pen) {
    for ((name, grown, each), (_, least)) in verdict.memory.iter().zip(&verdict.sensitivity) {
        let grown = mib(*grown);
        put(
            text,
            format_args!(
                "memory, second half of {name}: {grown:+.1} MiB, {each:.0} bytes a cancel; above {least:.0} it counts as growth\n"
            ),
        );
    }
    if !verdict.not_judged.is_empty() {
        put(text, format_args!("{} {}\n", pen.dim.apply_to("not judged:"), verdict.not_judged.join(", ")));
    }
}

/// For `--json`.
pub fn json(args: &SoakArgs, url: &str, readings: &[Reading], parts: &[Part], verdict: &Verdict) -> Value {
    let heads = heads(parts);
    let rows: Vec<Value> = verdict.rows.iter().map(|row| row_json(row, &heads)).collect();
    let memory = verdict.memory.iter().zip(&verdict.sensitivity).map(|((part, bytes, each), (_, least))| {
        json!({"part": part, "second_half_bytes": bytes, "bytes_per_cancel": each, "growth_above_bytes_per_cancel": least})
    });
    let parts: Vec<Value> = parts
        .iter()
        .map(|p| {
            let mut part = p.tally.to_json();
            part["part"] = json!(p.name);
            part
        })
        .collect();
    let held =
        readings.last().map(|r| r.series.iter().filter(|(name, _)| name.starts_with("kvit_worker_held")).collect::<BTreeMap<_, _>>());
    json!({"object": "soak", "url": url, "seed": args.seed, "tokens": args.tokens, "prompt_tokens": args.prompt_tokens,
           "in_flight": args.in_flight, "rss_tolerance_mib": args.rss_tolerance_mib, "parts": parts, "rows": rows,
           "worker_held_after": held, "memory": memory.collect::<Vec<_>>(), "not_judged": verdict.not_judged,
           "wrong": verdict.wrong, "growth": !verdict.wrong.is_empty()})
}

fn row_json(row: &Row, heads: &[String]) -> Value {
    let values: serde_json::Map<String, Value> = heads.iter().cloned().zip(row.values.iter().map(|v| json!(v))).collect();
    let rule = match row.rule {
        Rule::Exact => "exact",
        Rule::NoMore => "no_more",
        Rule::Kept(_) => "kept",
        Rule::Memory => "second_half",
    };
    json!({"group": row.group, "name": row.name, "rule": rule, "values": values, "growth": row.growth})
}
