//! `kvit trace RUN...`: runs' timelines: for a terminal, as the server's JSON, or as a file for Perfetto.

mod perfetto;
mod proto;

use std::path::Path;

use anyhow::{Context, anyhow};
use serde_json::{Value, json};

use crate::cli::TraceArgs;
use crate::failure::Failure;
use crate::{client, out};
use perfetto::{Drawing, Subject};

/// Prints the runs' timelines, or their JSON, or writes them into a file.
///
/// # Errors
/// No such run, no server, or a file that cannot be written.
pub fn run(args: &TraceArgs) -> Result<(), Failure> {
    let path = |id: &str| format!("/v1/runs/{}", client::encode(id));
    let runs = args.runs.iter().map(|id| client::get(&args.ask.server, &path(id))).collect::<Result<Vec<Value>, Failure>>()?;
    if let Some(file) = &args.perfetto {
        let subjects = args.runs.iter().zip(runs).map(|(id, run)| {
            let steps = absent(client::get(&args.ask.server, &format!("{}/steps", path(id))))?;
            Ok(Subject { run, steps: steps.unwrap_or_default() })
        });
        let subjects = subjects.collect::<Result<Vec<Subject>, Failure>>()?;
        let moments = absent(client::get(&args.ask.server, "/v1/kv/moments"))?;
        return write(file, &perfetto::draw(&subjects, &moments.unwrap_or_default()));
    }
    match (args.ask.json, &runs[..]) {
        (true, [run]) => out::json(run),
        (true, runs) => out::json(&json!({"object": "list", "data": runs})),
        (false, runs) => {
            let drawn = runs.iter().map(|run| observe::render_timeline(run, out::width(), out::colour()).trim_end().to_owned());
            out::line(&drawn.collect::<Vec<_>>().join("\n\n\n"))
        }
    }
}

/// What a server need not have: a run's steps are not kept for ever, and engines of others have no account of blocks.
fn absent(answer: Result<Value, Failure>) -> Result<Option<Value>, Failure> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Failure::NotFound(_)) => Ok(None),
        Err(other) => Err(other),
    }
}

/// Writes the file and says what is in it, and what is not.
fn write(file: &Path, drawing: &Drawing) -> Result<(), Failure> {
    if drawing.runs == 0 {
        return Err(
            anyhow!("nothing to draw: the server has no milestones of this run, which another gateway or an earlier life had").into()
        );
    }
    std::fs::write(file, drawing.bytes()).with_context(|| format!("{} cannot be written", file.display()))?;
    let counted = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
    let (runs, steps, moments) = (counted(drawing.runs, "run"), counted(drawing.steps, "step"), counted(drawing.moments, "moment"));
    for gap in &drawing.gaps {
        out::note(gap);
    }
    out::line(&format!("{}: {runs}, {steps}, {moments} of blocks; https://ui.perfetto.dev opens it", file.display()))
}
