//! `kvit sim explore`: every reachable state of small worlds around the real cores.

use std::time::{Duration, Instant};

use ::sim::explore::{self, Report, Suite};
use anyhow::anyhow;
use clap::Args;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::out;

/// `kvit sim explore`
#[derive(Debug, Args)]
pub struct ExploreArgs {
    /// The larger setups of the longer tier as well.
    #[arg(long)]
    pub large: bool,
    /// Most states of a setup; one that has more is not closed, and that is a failure.
    #[arg(long, value_name = "NUMBER", default_value_t = 8_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub states_max: u32,
    /// Setups that are explored at once.
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Explores, and prints the figures.
///
/// # Errors
/// A clause is broken, a setup is not closed, or a mark or a cell is not met.
pub fn run(args: &ExploreArgs) -> Result<(), Failure> {
    let begun = Instant::now();
    let clock = || begun.elapsed();
    let mut setups = explore::all();
    if args.large {
        setups.extend(explore::large());
    }
    let told = |report: &Report| {
        if !args.json {
            eprintln!("{}", line_of(report));
        }
    };
    let suite = explore::suite(&setups, args.states_max as usize, args.jobs.into(), &clock, &told);
    let took = clock();
    if args.json {
        out::json(&json_of(&suite, took))?;
    } else {
        out::line(&closing(&suite, took))?;
    }
    if suite.is_good() { Ok(()) } else { Err(Failure::Other(anyhow!(what_failed(&suite)))) }
}

fn line_of(r: &Report) -> String {
    format!(
        "{:18} {:9} {:>8} states {:>9} edges  depth {:>2}  {:>6} at rest  fair way {:>2}  {:>6.1} s",
        r.setup,
        format!("{:?}", r.stopped).to_lowercase(),
        r.states,
        r.edges,
        r.depth,
        r.rests,
        r.longest,
        r.took.as_secs_f64()
    )
}

fn closing(suite: &Suite, took: Duration) -> String {
    format!(
        "explored: {} of {} setups closed, {} states, {} edges, {} violations; marks {} of {}; cells {} met, {} excused, {} open; {:.1} s",
        suite.closed(),
        suite.reports.len(),
        suite.states(),
        suite.edges(),
        suite.violations(),
        explore::Mark::ALL.len() - suite.missing.len(),
        explore::Mark::ALL.len(),
        suite.cells.met,
        suite.cells.excused,
        suite.cells.holes.len() + suite.cells.lies.len(),
        took.as_secs_f64()
    )
}

fn what_failed(suite: &Suite) -> String {
    let marks = suite.missing.iter().map(|mark| format!("never met: {}", mark.text()));
    let holes = suite.cells.holes.iter().map(|cell| format!("never met, without a reason: {cell}"));
    let lies = suite.cells.lies.iter().map(|cell| format!("met, although it cannot be: {cell}"));
    let open = suite.reports.iter().filter(|r| r.stopped == explore::Stopped::Bound).map(|r| format!("not closed: {}", r.setup));
    suite.story.iter().cloned().chain(open).chain(marks).chain(holes).chain(lies).collect::<Vec<_>>().join("\n")
}

fn json_of(suite: &Suite, took: Duration) -> Value {
    let setups = suite.reports.iter().map(|r| {
        json!({
            "setup": r.setup, "stopped": format!("{:?}", r.stopped).to_lowercase(), "states": r.states, "edges": r.edges,
            "depth": r.depth, "at_rest": r.rests, "longest_fair_way": r.longest, "took_s": r.took.as_secs_f64(),
        })
    });
    let missing = suite.missing.iter().map(|mark| mark.text());
    json!({
        "object": "exploration",
        "good": suite.is_good(),
        "setups": setups.collect::<Vec<Value>>(),
        "closed": suite.closed(), "states": suite.states(), "edges": suite.edges(), "violations": suite.violations(),
        "marks": explore::Mark::ALL.len(), "marks_missing": missing.collect::<Vec<_>>(),
        "cells_met": suite.cells.met, "cells_excused": suite.cells.excused, "cells_open": suite.cells.holes, "cells_wrong": suite.cells.lies,
        "story": suite.story, "took_s": took.as_secs_f64(),
    })
}
