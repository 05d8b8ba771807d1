//! Whether a worker keeps `kvit.worker.v1`: a scripted gateway over real gRPC, and a case for each promise of the .proto file.
//!
//! A case passes when what it says was seen to hold; every frame that comes in on the way is judged too, whatever the case is about. What
//! cannot be told is `skipped` with the reason, never passed.
//!
//! Invariant: every wait has an end; a worker that hangs fails a case and not the judge.

mod bench;
mod case;
mod cases;
mod gateway;
mod report;

use std::time::Duration;

pub use report::{Judged, Report, Verdict};

use bench::Bench;
use case::Case;

/// How to judge.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only cases whose `group/name` contains this.
    pub only: Option<String>,
    /// Leaves out the cases that wait for a lease or a question, which take as long as the worker's lease.
    pub quick: bool,
    /// Runs the case that tells the worker to drain: it takes nothing afterwards.
    pub drain: bool,
    /// The lease that the gateway states. The worker's holds if it is longer.
    pub lease: Duration,
    /// How long what must come may take. Default 15 s.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options { only: None, quick: false, drain: false, lease: Duration::from_millis(1), patience: Duration::from_secs(15) }
    }
}

/// Why nothing could be judged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is none.
    #[error("`{0}` is no address: HOST:PORT is wanted")]
    Address(String),
    /// Nobody answers, or not as a worker would.
    #[error("no worker answers at {address}: {why}")]
    Unreachable {
        /// Where.
        address: String,
        /// What came instead.
        why: String,
    },
    /// No case has such a name.
    #[error("no case's name contains `{0}`; `--list` names them")]
    NoCase(String),
    /// The system gives no thread.
    #[error("the judge cannot start: {0}")]
    Start(#[from] std::io::Error),
}

/// Every case: its group, its name and what it proves.
pub fn list() -> Vec<(&'static str, &'static str, &'static str)> {
    cases::all().map(|case| (case.group, case.name, case.proves)).collect()
}

/// Judges the worker that listens at `address`. `told` hears of each case when it is over.
///
/// # Errors
/// Nothing could be judged.
pub fn run(address: &str, options: &Options, mut told: impl FnMut(&Judged)) -> Result<Report, Error> {
    let chosen: Vec<&Case> = cases::all().filter(|case| options.only.as_ref().is_none_or(|only| case.full_name().contains(only))).collect();
    if chosen.is_empty() {
        return Err(Error::NoCase(options.only.clone().unwrap_or_default()));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let bench = Bench::meet(address, options).await?;
        let mut judged = Vec::new();
        for case in chosen {
            let one = bench.judge(case).await;
            told(&one);
            judged.push(one);
        }
        Ok(Report::new(address.to_owned(), &bench.worker, judged))
    })
}
