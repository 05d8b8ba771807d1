//! No false alarm: the quick set, again and again, on an engine that is well, half of the times on a machine that is busy. Only passes.
//!
//! The judgements of a batch run beside each other, each with an engine of its own: they wait most of the time.
// contract: C-29

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinSet;
use verify::judge::cell::Set;
use verify::judge::result::{Report, Verdict};
use verify::judge::settings::Settings;

use crate::convicted::{judged_by, told};
use crate::scripted::{Scripted, Wrong};

/// Judgements of a batch.
const BATCH: u64 = 15;

/// Threads that do nothing but take the machine's time; they end with this.
struct Load {
    over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    /// Two for each core.
    fn start() -> Load {
        let over = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let work = |over: Arc<AtomicBool>| {
            move || {
                let mut sum = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    for number in 0..10_000_u64 {
                        sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(number));
                    }
                }
            }
        };
        let threads = (0..cores * 2).map(|_| std::thread::spawn(work(over.clone()))).collect();
        Load { over, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Short answers and prompts, and what a verdict allows as it is by default.
fn settings(seed: u64) -> Settings {
    Settings { tries: 1, max_tokens: 100, prefill_ms: 150, departures: 4, look_every_ms: 5, seed, ..Settings::default() }
}

fn is_well(verdict: &Verdict) -> bool {
    // Nobody can look for a cache where none is.
    matches!(verdict, Verdict::Pass | Verdict::NotApplicable { .. })
}

fn alarms(report: &Report) -> bool {
    let cells = report.cells.iter().any(|of| of.verdict != Verdict::Pass);
    cells || report.checks.iter().any(|check| !is_well(&check.verdict)) || report.exit_code() != 0
}

/// So many judgements, every second batch of them under load.
async fn repeated(times: u64) {
    let mut told_of = Vec::new();
    for batch in 0..times / BATCH {
        let load = (batch % 2 == 1).then(Load::start);
        let mut all = JoinSet::new();
        for number in 0..BATCH {
            all.spawn(async move {
                let engine = Scripted::start(Wrong::Nothing).await;
                judged_by(&engine, &Set::Quick.cells(), &settings(batch * BATCH + number + 1)).await
            });
        }
        while let Some(report) = all.join_next().await {
            let report = report.expect("a judgement ends");
            if alarms(&report) {
                let how = if load.is_some() { "under load" } else { "at rest" };
                told_of.push(format!("{how}, seed {}:\n{}", report.settings["seed"], told(&report)));
            }
        }
    }
    assert!(told_of.is_empty(), "{} of {times} judgements of a correct engine did not pass:\n{}", told_of.len(), told_of.join("\n\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_judgements_of_a_correct_engine_give_only_passes() {
    repeated(30).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn long_three_hundred_judgements_of_a_correct_engine_give_only_passes() {
    repeated(300).await;
}
