//! `kvit museum`: real bugs, and how the explorer catches the cores that have them.

use std::time::Instant;

use anyhow::anyhow;
use clap::Args;
use serde_json::{Value, json};
use sim::museum::{Caught, EXHIBITS, Exhibit, exhibit};

use crate::failure::Failure;
use crate::out;

/// `kvit museum`
#[derive(Debug, Args)]
pub struct MuseumArgs {
    /// The bug to show; without it all are listed.
    #[arg(conflicts_with = "check")]
    pub name: Option<String>,
    /// Run all of them; fail if one is not caught.
    #[arg(long)]
    pub check: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Lists the bugs, shows one, or checks that all are caught.
///
/// # Errors
/// No such bug, or one that is not caught.
pub fn run(args: &MuseumArgs) -> Result<(), Failure> {
    match &args.name {
        _ if args.check => check(args.json),
        Some(name) => {
            let known = exhibit(name).ok_or_else(|| Failure::NotFound(format!("the museum has no {name}; `kvit museum` lists it")))?;
            show(known, args.json)
        }
        None => list(args.json),
    }
}

fn list(as_json: bool) -> Result<(), Failure> {
    if as_json {
        return out::json(&Value::Array(EXHIBITS.iter().map(label).collect()));
    }
    let lines = EXHIBITS.iter().map(|e| format!("{:25} {:4} {}\n{:30} {}", e.name, e.clause, e.title, "", e.thread));
    out::line(&lines.collect::<Vec<_>>().join("\n"))
}

fn show(exhibit: &Exhibit, as_json: bool) -> Result<(), Failure> {
    let caught = hunt(exhibit);
    if as_json {
        out::json(&json_of(exhibit, &caught))?;
    } else {
        out::line(&format!(
            "{}: {}\n{}\n  {}\n\nIn the setup `{}`, after {} steps:\n{}\n\nThe sound rule: {}",
            exhibit.name,
            exhibit.title,
            exhibit.thread,
            exhibit.report,
            exhibit.setup,
            caught.steps(),
            caught.story.join("\n"),
            exhibit.fix
        ))?;
    }
    if exhibit.is_caught(&caught) { Ok(()) } else { Err(Failure::Other(anyhow!("{} is not caught", exhibit.name))) }
}

fn check(as_json: bool) -> Result<(), Failure> {
    let begun = Instant::now();
    let all: Vec<(&Exhibit, Caught)> = EXHIBITS.iter().map(|exhibit| (exhibit, hunt(exhibit))).collect();
    let missed: Vec<&str> = all.iter().filter(|(e, caught)| !e.is_caught(caught)).map(|(e, _)| e.name).collect();
    if as_json {
        let bugs: Vec<Value> = all.iter().map(|(e, caught)| json_of(e, caught)).collect();
        out::json(&json!({ "object": "museum", "bugs": bugs, "caught": all.len() - missed.len(), "missed": missed }))?;
    } else {
        for (e, caught) in &all {
            let verdict = if e.is_caught(caught) { "caught" } else { "MISSED" };
            eprintln!("{:25} {verdict} {:4} {:>2} steps, {:>5} states", e.name, e.clause, caught.steps(), caught.report.states);
        }
        let steps: usize = all.iter().map(|(_, caught)| caught.steps()).sum();
        let states: usize = all.iter().map(|(_, caught)| caught.report.states).sum();
        let (caught, took) = (all.len() - missed.len(), begun.elapsed().as_secs_f64());
        out::line(&format!("museum: {} bugs, {caught} caught, {steps} steps in all, {states} states searched; {took:.1} s", all.len()))?;
    }
    if missed.is_empty() { Ok(()) } else { Err(Failure::Other(anyhow!("not caught: {}", missed.join(", ")))) }
}

fn hunt(exhibit: &Exhibit) -> Caught {
    let begun = Instant::now();
    exhibit.catch(&|| begun.elapsed())
}

fn label(e: &Exhibit) -> Value {
    json!({ "name": e.name, "title": e.title, "thread": e.thread, "report": e.report, "clause": e.clause, "fix": e.fix, "setup": e.setup })
}

fn json_of(e: &Exhibit, caught: &Caught) -> Value {
    let mut value = label(e);
    value["caught"] = e.is_caught(caught).into();
    value["steps"] = caught.steps().into();
    value["states"] = caught.report.states.into();
    value["story"] = caught.story.clone().into();
    value
}
