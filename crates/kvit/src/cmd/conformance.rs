//! `kvit conformance`: what `verify` found of a worker, as a table that grows case by case and a closing line, or as JSON.
//!
//! Invariant: exit code 0 says that no case failed and that one passed at least.

use std::time::Duration;

use serde_json::json;
use verify::conformance::{self, Error, Options, Report, Verdict};

use crate::cli::ConformanceArgs;
use crate::failure::Failure;
use crate::out;

/// Judges a worker.
pub fn run(args: &ConformanceArgs) -> Result<(), Failure> {
    if args.list {
        return list(args.json);
    }
    let options = Options {
        only: args.only.clone(),
        quick: args.quick,
        drain: args.drain,
        lease: Duration::from_millis(args.lease_ms),
        patience: Duration::from_millis(args.patience_ms),
    };
    let mut printed = Ok(());
    let report = conformance::run(args.address.as_deref().unwrap_or_default(), &options, |case| {
        if !args.json && printed.is_ok() {
            printed = out::line(&Report::line(case));
        }
    });
    printed?;
    let report = report.map_err(failure)?;
    if args.json { out::json(&report.json()) } else { out::line(&report.closing()) }?;
    match (report.count(Verdict::Fail), report.count(Verdict::Pass)) {
        (0, 0) => Err(Failure::Other(anyhow::anyhow!("no case passed: nothing is proved"))),
        (0, _) => Ok(()),
        (failed, _) => Err(Failure::Other(anyhow::anyhow!("the worker does not keep the protocol: {failed} cases failed"))),
    }
}

fn list(as_json: bool) -> Result<(), Failure> {
    let cases = conformance::list();
    if as_json {
        let cases = cases.iter().map(|(group, name, proves)| json!({ "name": format!("{group}/{name}"), "proves": proves }));
        return out::json(&cases.collect());
    }
    cases.iter().try_for_each(|(group, name, proves)| out::line(&format!("{:<42} {proves}", format!("{group}/{name}"))))
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Address(_) | Error::NoCase(_) => Failure::Usage(error.to_string()),
        Error::Unreachable { .. } => Failure::Unreachable(error.to_string()),
        Error::Start(_) => Failure::Other(error.into()),
    }
}
