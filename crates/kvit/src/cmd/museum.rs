//! `kvit museum`: real bugs, and how explorer and simulator catch the cores that have them.

use std::time::Instant;

use anyhow::anyhow;
use clap::Args;
use serde_json::{Value, json};
use sim::museum::{Caught, EXHIBITS, Exhibit, SEEDS, exhibit};
use sim::simulate::Failure as Broken;

use crate::failure::Failure;
use crate::out;

/// `kvit museum`
#[derive(Debug, Args)]
pub struct MuseumArgs {
    /// The bug to show; without it all are listed.
    #[arg(conflicts_with = "check")]
    pub name: Option<String>,
    /// Run all of them; fail if one is not caught by the explorer, or not found by the simulator within 1,000 seeds.
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

fn show(exhibit: &'static Exhibit, as_json: bool) -> Result<(), Failure> {
    let hunted = Hunted::new(exhibit);
    if as_json {
        out::json(&hunted.json())?;
    } else {
        out::line(&format!(
            "{}: {}\n{}\n  {}\n\nIn the setup `{}`, after {} steps:\n{}\n\n{}\n\nThe sound rule: {}",
            exhibit.name,
            exhibit.title,
            exhibit.thread,
            exhibit.report,
            exhibit.setup,
            hunted.caught.steps(),
            hunted.caught.story.join("\n"),
            hunted.seed_in_words(),
            exhibit.fix
        ))?;
    }
    hunted.missed().map_or(Ok(()), |missed| Err(Failure::Other(anyhow!(missed))))
}

fn check(as_json: bool) -> Result<(), Failure> {
    let begun = Instant::now();
    let all: Vec<Hunted> = EXHIBITS.iter().map(Hunted::new).collect();
    let missed: Vec<String> = all.iter().filter_map(Hunted::missed).collect();
    let caught = all.iter().filter(|h| h.is_caught()).count();
    let seen: Vec<u64> = all.iter().filter(|h| h.is_seen()).filter_map(Hunted::seed).collect();
    let latest = seen.iter().max().copied();
    if as_json {
        let bugs: Vec<Value> = all.iter().map(Hunted::json).collect();
        out::json(&json!({
            "object": "museum", "bugs": bugs, "caught": caught, "found_by_simulator": seen.len(), "latest_seed": latest, "missed": missed,
        }))?;
    } else {
        all.iter().for_each(|h| eprintln!("{}", h.line()));
        let steps: usize = all.iter().map(|h| h.caught.steps()).sum();
        let states: usize = all.iter().map(|h| h.caught.report.states).sum();
        let latest = latest.map_or("none".to_owned(), |seed| seed.to_string());
        out::line(&format!(
            "museum: {} bugs; explorer: {caught} caught, {steps} steps in all, {states} states searched; simulator: {} found, latest seed \
             {latest}; {:.1} s",
            all.len(),
            seen.len(),
            begun.elapsed().as_secs_f64()
        ))?;
    }
    if missed.is_empty() { Ok(()) } else { Err(Failure::Other(anyhow!(missed.join("\n")))) }
}

/// An exhibit, and what explorer and simulator made of it.
struct Hunted {
    exhibit: &'static Exhibit,
    caught: Caught,
    broken: Option<Broken>,
}

impl Hunted {
    fn new(exhibit: &'static Exhibit) -> Hunted {
        let begun = Instant::now();
        Hunted { exhibit, caught: exhibit.catch(&|| begun.elapsed()), broken: exhibit.play(SEEDS) }
    }

    fn is_caught(&self) -> bool {
        self.exhibit.is_caught(&self.caught)
    }

    fn is_seen(&self) -> bool {
        self.exhibit.is_seen(self.broken.as_ref())
    }

    fn seed(&self) -> Option<u64> {
        self.broken.as_ref().map(|broken| broken.seed)
    }

    /// Who has missed it, if anybody.
    fn missed(&self) -> Option<String> {
        let name = self.exhibit.name;
        match (self.is_caught(), self.is_seen()) {
            (true, true) => None,
            (false, true) => Some(format!("{name} is not caught by the explorer")),
            (true, false) => Some(format!("{name} is not found by the simulator within {SEEDS} seeds")),
            (false, false) => Some(format!("{name} is neither caught by the explorer nor found by the simulator")),
        }
    }

    fn line(&self) -> String {
        let (e, verdict) = (self.exhibit, if self.missed().is_none() { "caught" } else { "MISSED" });
        let seed = self.broken.as_ref().map_or("no seed".to_owned(), |b| format!("seed {:>3} {}", b.seed, b.violation.clause));
        format!("{:25} {verdict} {:4} {:>2} steps, {:>5} states; {seed}", e.name, e.clause, self.caught.steps(), self.caught.report.states)
    }

    fn seed_in_words(&self) -> String {
        let Some(broken) = &self.broken else { return format!("The simulator does not find it within {SEEDS} seeds.") };
        let (clause, what) = (broken.violation.clause, &broken.violation.what);
        format!("The simulator finds it in seed {}, after {} events: {clause}: {what}", broken.seed, broken.events)
    }

    fn json(&self) -> Value {
        let mut value = label(self.exhibit);
        value["caught"] = self.is_caught().into();
        value["steps"] = self.caught.steps().into();
        value["states"] = self.caught.report.states.into();
        value["story"] = self.caught.story.clone().into();
        value["found_by_simulator"] = self.is_seen().into();
        value["simulator"] = self.broken.as_ref().map_or(Value::Null, |broken| {
            let (clause, what) = (broken.violation.clause, &broken.violation.what);
            json!({ "seed": broken.seed, "clause": clause, "what": what, "events": broken.events, "faults": broken.needs.to_string() })
        });
        value
    }
}

fn label(e: &Exhibit) -> Value {
    json!({ "name": e.name, "title": e.title, "thread": e.thread, "report": e.report, "clause": e.clause, "fix": e.fix, "setup": e.setup })
}
