//! `kvit tap`: `verify`'s tap in a process of its own.
//!
//! Invariant: nothing but `listening on ...` and `reporting on ...` goes to stdout, once both listen; the first SIGINT or SIGTERM ends it,
//! and connections that are open then are reset.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use verify::judge::tap::{Options, StartError, Tap};

use super::serve::raise_file_limit;
use crate::cli::TapArgs;
use crate::failure::Failure;
use crate::out;

/// Passes bytes until told to stop.
///
/// # Errors
/// Something that should be an address is none, or cannot be listened on.
pub fn run(args: TapArgs) -> Result<(), Failure> {
    raise_file_limit(args.connections_max as usize, 0);
    let options = Options {
        name: args.name,
        control: args.control,
        trace_header: args.trace_header,
        trace_text: args.trace_text,
        connections_max: args.connections_max as usize,
        exchanges_max: args.exchanges_max as usize,
        head_bytes_max: args.head_bytes_max as usize,
        marks_max: args.marks_max as usize,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let hear = |kind| signal(kind).context("cannot listen for signals");
        let (mut interrupt, mut terminate) = (hear(SignalKind::interrupt())?, hear(SignalKind::terminate())?);
        let tap = Tap::start(&args.listen, &args.upstream, options).map_err(failure)?;
        if !tap.reporting().ip().is_loopback() {
            eprintln!("kvit: whoever reaches {} can read the ids and paths of all requests that pass", tap.reporting());
        }
        out::line(&format!("listening on {}\nreporting on {}", tap.listening(), tap.reporting()))?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok(())
    })
}

fn failure(error: StartError) -> Failure {
    match error {
        StartError::Address { .. } | StartError::Header(_) => Failure::Usage(error.to_string()),
        StartError::Listen { .. } | StartError::Io(_) => Failure::Other(error.into()),
    }
}
