//! `kvit trace RUN...`: runs' timelines: for a terminal, as the server's JSON, or as a file for Perfetto.

mod perfetto;
mod proto;

use std::path::Path;

use anyhow::{Context, anyhow};
use serde_json::{Value, json};

use super::past::Past;
use crate::cli::TraceArgs;
use crate::failure::Failure;
use crate::{client, out};
use perfetto::{Drawing, Subject};

/// Prints the runs' timelines, or their JSON, or writes them into a file.
///
/// # Errors
/// No such run, no server, no journal, or a file that cannot be written.
pub fn run(args: &TraceArgs) -> Result<(), Failure> {
    let source = match &args.journal {
        // Steps are read off the ring, and drawn only for Perfetto.
        Some(dir) => Source::Past(Past::read(dir, if args.perfetto.is_some() { RECORDS_MAX } else { 0 })?),
        None => Source::Server(&args.ask.server),
    };
    let runs = args.runs.iter().map(|id| source.run(id)).collect::<Result<Vec<Value>, Failure>>()?;
    if let Some(file) = &args.perfetto {
        let subjects = args.runs.iter().zip(runs).map(|(id, run)| Ok(Subject { run, steps: source.steps(id)? }));
        let subjects = subjects.collect::<Result<Vec<Subject>, Failure>>()?;
        return write(file, &perfetto::draw(&subjects, &source.moments()?));
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

/// Most records of a journal's files that are kept to draw steps of.
const RECORDS_MAX: usize = 1 << 22;

/// Where runs are asked for.
enum Source<'a> {
    Server(&'a str),
    Past(Past),
}

impl Source<'_> {
    fn run(&self, id: &str) -> Result<Value, Failure> {
        match self {
            Source::Server(server) => client::get(server, &format!("/v1/runs/{}", client::encode(id))),
            Source::Past(past) => past.run(id),
        }
    }

    fn steps(&self, id: &str) -> Result<Value, Failure> {
        match self {
            Source::Server(server) => absent(client::get(server, &format!("/v1/runs/{}/steps", client::encode(id)))),
            Source::Past(past) => past.steps(id),
        }
    }

    /// How the blocks stood, which is in no journal.
    fn moments(&self) -> Result<Value, Failure> {
        match self {
            Source::Server(server) => absent(client::get(server, "/v1/kv/moments")),
            Source::Past(_) => Ok(Value::Null),
        }
    }
}

/// What a server need not have: a run's steps are not kept for ever, and engines of others have no account of blocks.
fn absent(answer: Result<Value, Failure>) -> Result<Value, Failure> {
    match answer {
        Err(Failure::NotFound(_)) => Ok(Value::Null),
        other => other,
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
