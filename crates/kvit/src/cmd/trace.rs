//! `kvit trace RUN`: one run's timeline.

use crate::cli::TraceArgs;
use crate::failure::Failure;
use crate::{client, out};

/// Prints the run's timeline, or its JSON.
///
/// # Errors
/// No such run, or no server.
pub fn run(args: &TraceArgs) -> Result<(), Failure> {
    let json = client::get(&args.ask.server, &format!("/v1/runs/{}", client::encode(&args.run)))?;
    if args.ask.json {
        return out::json(&json);
    }
    out::line(observe::render_timeline(&json, out::width(), out::colour()).trim_end())
}
