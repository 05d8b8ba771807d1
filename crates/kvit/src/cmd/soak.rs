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
mod child;
mod http;
mod plan;
mod progress;
mod reading;
mod report;
mod tally;
mod verdict;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde_json::{Value, json};

pub use args::SoakArgs;

use crate::failure::Failure;
use crate::out;
use caller::Caller;
use child::Server;
use http::{Address, Watch};
use plan::Aim;
use progress::Progress;
use reading::Reading;
use tally::Tally;
use verdict::Part;

/// Cancels before the first look at a server that was not started here.
const WARM_UP: u64 = 300;
/// Answers that are compared before and after.
const PROBES: u64 = 4;

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
pub fn run(args: &SoakArgs, cache: Option<PathBuf>) -> Result<(), Failure> {
    if args.sequential + args.concurrent == 0 {
        return Err(Failure::Usage("--sequential and --concurrent are both 0: nothing would be soaked".to_owned()));
    }
    let server = if args.serve { Some(Server::start(args, cache)?) } else { None };
    let url = server.as_ref().map_or(args.url.as_str(), |s| &s.url);
    let address = Address::parse(url, Duration::from_millis(args.patience_ms))?;
    let pid = server.as_ref().map(Server::pid);
    let life = uuid::Uuid::now_v7().simple().to_string();
    let mut soak = Soak { args, address, pid, sequences: None, life };
    let (readings, parts, same_answers) = soak.whole()?;
    let tolerance = f64::from(args.rss_tolerance_mib) * f64::from(1 << 20);
    let verdict = verdict::judge(&readings, &parts, tolerance, same_answers);
    if args.json {
        out::json(&report::json(args, url, &readings, &parts, &verdict))?;
    } else {
        out::line(&report::table(args, url, pid, &parts, &verdict, out::colour()))?;
    }
    if let Some(server) = server {
        server.end()?;
    }
    match verdict.wrong.len() {
        0 => Ok(()),
        n => Err(Failure::Other(anyhow!("soak: {n} finding{} (above)", if n == 1 { "" } else { "s" }))),
    }
}

impl Soak<'_> {
    /// Warms up, takes the first reading, lets each part run in two halves with a reading after each.
    fn whole(&mut self) -> Result<(Vec<Reading>, Vec<Part>, bool), Failure> {
        let args = self.args;
        let mut watch = Watch::open(self.address)?;
        let first = reading::first(&mut watch, self.pid, self.address.patience())?;
        self.sequences = first.gauge("kvit_worker_sequences_max").map(|n| n as u32).filter(|n| *n > 0);
        let mut next = 0;
        let mut numbers = |n: u64| {
            next += n;
            next - n..next
        };
        let warm_up = args.warm_up.unwrap_or(if args.serve { WARM_UP.max(child::JOURNAL_RUNS * 3 / 2) } else { WARM_UP });
        self.part("warm-up", numbers(warm_up / 2), 1)?;
        self.part("warm-up", numbers(warm_up - warm_up / 2), args.in_flight)?;
        let probes = self.probes(&mut watch)?;
        let mut readings = vec![reading::first(&mut watch, self.pid, self.address.patience())?];
        let mut parts = Vec::new();
        let mut callers = 0;
        for (name, n, at_once) in [("sequential", args.sequential, 1), ("concurrent", args.concurrent, args.in_flight)] {
            if n == 0 {
                continue;
            }
            let begin = readings.len() - 1;
            let mut tally = Tally::default();
            for half in [n - n / 2, n / 2] {
                tally.merge(self.part(name, numbers(half), at_once)?);
                callers += half;
                let at_rest = reading::back_to(&readings[0], &mut watch, self.pid, self.address.patience())?;
                readings.push(Reading { callers, ..at_rest });
            }
            parts.push(Part { name, readings: [begin, begin + 1, begin + 2], tally });
        }
        let same = self.probes(&mut watch)? == probes;
        Ok((readings, parts, same))
    }

    /// Lets the callers with these numbers come and go, so many at once.
    fn part(&self, name: &'static str, numbers: Range<u64>, at_once: u16) -> Result<Tally, Failure> {
        let since = Instant::now();
        let progress = Progress::begin(name, numbers.end - numbers.start);
        let next = AtomicU64::new(numbers.start);
        let whole: Mutex<Result<Tally, Failure>> = Mutex::new(Ok(Tally::default()));
        // Alone, a caller fills the engine itself where it is to wait; many callers wait for one another.
        let fill = self.sequences.filter(|_| at_once == 1);
        std::thread::scope(|scope| {
            for _ in 0..u64::from(at_once).min(numbers.end - numbers.start) {
                scope.spawn(|| {
                    let done = self.callers(fill, &next, numbers.end, &progress);
                    // One that failed stops the others at their next caller.
                    let failed = done.is_err();
                    if failed {
                        next.store(numbers.end, Ordering::Relaxed);
                    }
                    let mut whole = whole.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    match (whole.as_mut(), done) {
                        (Ok(tally), Ok(more)) => tally.merge(more),
                        (Ok(_), Err(failure)) => *whole = Err(failure),
                        (Err(_), _) => {}
                    }
                });
            }
        });
        let mut tally = whole.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)?;
        tally.took = since.elapsed();
        Ok(tally)
    }

    fn callers(&self, fill: Option<u32>, next: &AtomicU64, end: u64, progress: &Progress) -> Result<Tally, Failure> {
        let mut caller = Caller::new(self.address, fill)?;
        let mut tally = Tally::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= end {
                return Ok(tally);
            }
            let aim = Aim::draw(self.args, &self.life, number);
            tally.add(&aim.id, aim.phase, &caller.go(&aim)?);
            progress.add();
        }
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
