//! `kvit soak`: very many cancels in every phase, and then: is everything back?
//!
//! A leak of one block or one table's entry a request shows nowhere while requests run, and in no run's own record. It shows in what is
//! left when nothing is alive. So a soak lets callers come and go, waits until the server is at rest, and compares: the account of blocks
//! exactly, every table and the process's tasks and descriptors exactly, memory by its growth in second halves.
//!
//! Invariant: growth anywhere is exit code 1; what could not be judged is said.
// contract: C-12 C-13 C-14 C-15
// field: F-58

mod args;
mod caller;
mod http;
mod plan;
mod progress;
mod reading;
mod report;
mod tally;
mod verdict;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde_json::{Value, json};

pub use args::SoakArgs;

use crate::cmd::child::{Log, Server};
use crate::failure::Failure;
use crate::out;
use caller::Caller;
use http::{Address, Watch};
use plan::Aim;
use progress::Progress;
use reading::Reading;
use tally::Tally;
use verdict::Part;

/// Runs that a started server's journal keeps, and records: few, so that a warm-up fills it and memory can be judged.
const JOURNAL_RUNS: u64 = 256;
const JOURNAL_RECORDS: u64 = 4096;
/// Where a server is that nobody names.
const DEFAULT_URL: &str = "http://127.0.0.1:8000";
/// Cancels before the first look at a server that was not started here.
const WARM_UP: u64 = 300;
/// Answers that are compared before and after.
const PROBES: u64 = 4;

/// Callers at most for a cancel: beyond it, runs end faster than their callers can go.
const CALLERS_A_CANCEL: u64 = 5;

/// What the callers of one half share.
struct Work<'a> {
    /// The next caller's number.
    next: &'a AtomicU64,
    /// No caller has this number.
    end: u64,
    /// Cancels that are still to be done.
    left: AtomicU64,
    fill: Option<u32>,
    progress: &'a Progress,
}

/// Everything that the parts of a soak need.
struct Soak<'a> {
    args: &'a SoakArgs,
    address: Address,
    pid: Option<u32>,
    /// Sequences that the engine runs at once, where it says so.
    sequences: Option<u32>,
    /// Part of every run's id: a server that was soaked before knows the old ones.
    life: String,
}

/// Soaks, prints what was found.
///
/// # Errors
/// Growth; or no server, one that is not at rest, one that went away.
pub fn run(args: &SoakArgs, config: Option<&Path>, cache: Option<&Path>) -> Result<(), Failure> {
    if args.sequential + args.concurrent == 0 {
        return Err(Failure::Usage("--sequential and --concurrent are both 0: nothing would be soaked".to_owned()));
    }
    let server = if args.serve { Some(started(args, config, cache)?) } else { None };
    let url = match (&server, &args.url) {
        (Some(server), _) => server.address.clone(),
        (None, Some(url)) => url.clone(),
        (None, None) => std::env::var("KVIT_SERVER").unwrap_or_else(|_| DEFAULT_URL.to_owned()),
    };
    let address = Address::parse(&url, Duration::from_millis(args.patience_ms))?;
    let pid = server.as_ref().map(|server| server.pid);
    let life = uuid::Uuid::now_v7().simple().to_string();
    let mut soak = Soak { args, address, pid, sequences: None, life };
    let (readings, parts, same_answers) = soak.whole()?;
    let tolerance = f64::from(args.rss_tolerance_mib) * f64::from(1 << 20);
    let verdict = verdict::judge(&readings, &parts, tolerance, same_answers);
    if args.json {
        out::json(&report::json(args, &url, &readings, &parts, &verdict))?;
    } else {
        out::line(&report::table(args, &url, pid, &parts, &verdict, out::colour()))?;
    }
    if let Some(server) = server
        && !server.drain()?
    {
        return Err(Failure::Other(anyhow!("the server did not end well: runs were left unsettled")));
    }
    match verdict.wrong.len() {
        0 => Ok(()),
        n => Err(Failure::Other(anyhow!("soak: {n} finding{} (above)", if n == 1 { "" } else { "s" }))),
    }
}

/// A server with a journal so small that a warm-up fills it.
fn started(args: &SoakArgs, config: Option<&Path>, cache: Option<&Path>) -> Result<Server, Failure> {
    Server::start("soak", Log::Shown, |command| {
        let journal = [("--journal-runs", JOURNAL_RUNS.to_string()), ("--journal-records", JOURNAL_RECORDS.to_string())];
        for (name, value) in [("--log", "warn".to_owned())].into_iter().chain(journal) {
            if !args.serve_options.iter().any(|o| o == name || o.starts_with(&format!("{name}="))) {
                command.args([name, &value]);
            }
        }
        for (name, path) in [("--model", args.model.as_deref()), ("--config", config), ("--cache", cache)] {
            if let Some(path) = path {
                command.arg(name).arg(path);
            }
        }
        command.args(&args.serve_options);
    })
}

impl Soak<'_> {
    /// Reads the server as it is, warms it up, reads again, and lets each part run in two halves with a reading after each.
    fn whole(&mut self) -> Result<(Vec<Reading>, Vec<Part>, bool), Failure> {
        let (args, pid, patience) = (self.args, self.pid, self.address.patience());
        let mut watch = Watch::open(self.address)?;
        let fresh = reading::first(&mut watch, pid, patience)?;
        self.sequences = fresh.gauge("kvit_worker_sequences_max").map(|n| n as u32).filter(|n| *n > 0);
        let filled = if args.serve { JOURNAL_RUNS * 3 / 2 } else { 0 };
        let warm_up = args.warm_up.unwrap_or(WARM_UP.max(filled));
        let next = AtomicU64::new(0);
        let progress = Progress::begin("warm-up", warm_up);
        self.half(&next, warm_up - warm_up / 2, 1, &progress)?;
        self.half(&next, warm_up / 2, args.in_flight, &progress)?;
        drop(progress);
        let probes = self.probes(&mut watch)?;
        let warm = reading::warm(&fresh, &mut watch, pid, patience)?;
        let mut readings = vec![fresh, warm.clone()];
        let mut parts = Vec::new();
        let mut cancels = 0;
        for (name, n, at_once) in [("sequential", args.sequential, 1), ("concurrent", args.concurrent, args.in_flight)] {
            if n == 0 {
                continue;
            }
            let progress = Progress::begin(name, n);
            let begin = readings.len() - 1;
            let mut tally = Tally::default();
            for half in [n - n / 2, n / 2] {
                tally.merge(self.half(&next, half, at_once, &progress)?);
                cancels += half;
                let at_rest = reading::back_to(&warm, &mut watch, pid, patience)?;
                readings.push(Reading { cancels, ..at_rest });
            }
            tally.missed(n);
            parts.push(Part { name, readings: [begin, begin + 1, begin + 2], tally });
        }
        let same = self.probes(&mut watch)? == probes;
        Ok((readings, parts, same))
    }

    /// Lets callers come and go, so many at once, until so many runs were cancelled.
    fn half(&self, next: &AtomicU64, cancels: u64, at_once: u16, progress: &Progress) -> Result<Tally, Failure> {
        let since = Instant::now();
        let work = Work {
            next,
            end: next.load(Ordering::Relaxed) + cancels * CALLERS_A_CANCEL,
            left: AtomicU64::new(cancels),
            // Alone, a caller fills the engine itself where it is to wait; many callers wait for one another.
            fill: self.sequences.filter(|_| at_once == 1),
            progress,
        };
        let whole: Mutex<Result<Tally, Failure>> = Mutex::new(Ok(Tally::default()));
        std::thread::scope(|scope| {
            for _ in 0..u64::from(at_once).min(cancels) {
                scope.spawn(|| {
                    let done = self.callers(&work);
                    if done.is_err() {
                        // One that failed stops the others at their next caller.
                        work.left.store(0, Ordering::Relaxed);
                    }
                    let mut whole = whole.lock().unwrap_or_else(PoisonError::into_inner);
                    match (whole.as_mut(), done) {
                        (Ok(tally), Ok(more)) => tally.merge(more),
                        (Ok(_), Err(failure)) => *whole = Err(failure),
                        (Err(_), _) => {}
                    }
                });
            }
        });
        let mut tally = whole.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        tally.took = since.elapsed();
        Ok(tally)
    }

    /// One caller after the other, as long as cancels are left to do. A run that ended otherwise gives its turn back.
    fn callers(&self, work: &Work<'_>) -> Result<Tally, Failure> {
        let mut caller = Caller::new(self.address, work.fill)?;
        let mut tally = Tally::default();
        let turn = |left: u64| left.checked_sub(1);
        while work.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, turn).is_ok() {
            let number = work.next.fetch_add(1, Ordering::Relaxed);
            if number >= work.end {
                break;
            }
            let aim = Aim::draw(self.args, &self.life, number);
            let fate = caller.go(&aim)?;
            tally.add(&aim.id, aim.phase, &fate);
            if fate.is_cancelled() {
                work.progress.add();
            } else {
                work.left.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(tally)
    }

    /// Whole answers to fixed prompts. Before and after they must be the same, whatever lies in the cache.
    fn probes(&self, watch: &mut Watch) -> Result<Vec<Value>, Failure> {
        let one = |number: u64| {
            let prompt = plan::probe(number, self.args.prompt_tokens);
            let body = json!({"prompt": prompt, "max_tokens": self.args.tokens, "temperature": 0, "ignore_eos": true, "logprobs": 0});
            let (status, answer) = watch.ask("POST", "/v1/completions", &body.to_string())?;
            let answer: Value = serde_json::from_slice(&answer).unwrap_or(Value::Null);
            match status {
                200 => Ok(answer["choices"].clone()),
                _ => {
                    let said = answer.pointer("/error/message").and_then(Value::as_str).unwrap_or("nothing").to_owned();
                    Err(Failure::Other(anyhow!("a plain request gets status {status}; the server said: {said}")))
                }
            }
        };
        (0..PROBES).map(one).collect()
    }
}
