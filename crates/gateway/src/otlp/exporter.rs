//! What takes runs that are over, makes spans of them, and sends those in batches for as long as the gateway serves.
//!
//! Invariant: whoever hands a run over never waits; how many wait, how much is sent at once, how long and how often are bounded; every span of
//! a run that was handed over is counted once, as what became of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lifecycle::Incarnation;
use observe::Exported;
use observe::otlp::wire::Span;
use observe::otlp::{Finished, Process, request};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::config::{OtlpConfig, OtlpEndpoint};
use super::send::{Sender, Sent};

/// Spans of a usual run, to know when there are enough for a batch.
const SPANS_OF_RUN: usize = 8;

#[derive(Default)]
struct Counts {
    exported: AtomicU64,
    rejected: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

/// A gateway's exporter.
pub(crate) struct Exporter {
    config: OtlpConfig,
    endpoint: OtlpEndpoint,
    incarnation: Incarnation,
    waiting: Mutex<VecDeque<Finished>>,
    news: Notify,
    /// Becomes true when the process ends: nothing is waited for any more.
    closing: watch::Sender<bool>,
    counts: Counts,
    /// Spans that are being sent.
    under_way: AtomicU64,
    /// That it fails, or that too much waits, is said in the log, and not said again before it went well.
    is_failing: AtomicBool,
    is_full: AtomicBool,
}

impl Exporter {
    /// One for this configuration, if it names a collector.
    pub(crate) fn new(config: &OtlpConfig, incarnation: Incarnation) -> Option<Exporter> {
        let endpoint = config.endpoint.clone()?;
        Some(Exporter {
            config: config.clone(),
            endpoint,
            incarnation,
            waiting: Mutex::default(),
            news: Notify::new(),
            closing: watch::Sender::new(false),
            counts: Counts::default(),
            under_way: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
        })
    }

    /// What became of its spans so far.
    pub(crate) fn cut(&self) -> Exported {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts { exported, rejected, failed, dropped } = &self.counts;
        Exported { exported: of(exported), rejected: of(rejected), failed: of(failed), dropped: of(dropped) }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Finished>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a run that is over. Never waits: what has no room is dropped, and counted.
    // contract: C-28
    pub(crate) fn take(&self, run: Finished) {
        let mut waiting = self.waiting();
        if waiting.len() < self.config.queue_max {
            waiting.push_back(run);
            drop(waiting);
            return self.news.notify_one();
        }
        drop(waiting);
        add(&self.counts.dropped, run.spans().len());
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(queue_max = self.config.queue_max, "too many runs wait to be exported: spans are dropped");
        }
    }

    /// Sends until it is told that the process ends, and then what is left.
    pub(crate) async fn run(self: Arc<Self>, name: Arc<str>) {
        let sender = match Sender::new(&self.config, &self.endpoint) {
            Ok(sender) => sender,
            Err(why) => return tracing::error!(endpoint = %self.endpoint, %why, "spans cannot be exported"),
        };
        let mut closing = self.closing.subscribe();
        loop {
            if self.waiting().is_empty() {
                if *closing.borrow() {
                    return;
                }
                tokio::select! { () = self.news.notified() => {}, _ = closing.changed() => {} }
                continue;
            }
            let mut gathered = std::pin::pin!(tokio::time::sleep(self.config.every));
            while !*closing.borrow() && self.waiting().len().saturating_mul(SPANS_OF_RUN) < self.config.batch_max {
                tokio::select! { () = &mut gathered => break, () = self.news.notified() => {}, _ = closing.changed() => {} }
            }
            let spans = self.batch();
            self.under_way.store(spans.len() as u64, Ordering::Relaxed);
            self.export(&sender, &name, spans, &mut closing).await;
            self.under_way.store(0, Ordering::Relaxed);
        }
    }

    fn batch(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        while spans.len() < self.config.batch_max {
            let Some(run) = self.waiting().pop_front() else { break };
            spans.extend(run.spans());
        }
        spans
    }

    async fn export(&self, sender: &Sender, name: &str, spans: Vec<Span>, closing: &mut watch::Receiver<bool>) {
        let count = spans.len();
        let process = Process { name, version: env!("CARGO_PKG_VERSION"), incarnation: self.incarnation.to_string() };
        let (request, mut wait) = (request(&process, spans), self.config.retry);
        for tried in 1.. {
            match sender.send(&request).await {
                Sent::Taken { rejected, why } => {
                    let rejected = usize::try_from(rejected).unwrap_or(usize::MAX).min(count);
                    add(&self.counts.rejected, rejected);
                    add(&self.counts.exported, count - rejected);
                    return if rejected == 0 { self.well() } else { self.ill(&format!("the collector refused some: {why}")) };
                }
                Sent::Refused(why) => {
                    add(&self.counts.rejected, count);
                    return self.ill(&why);
                }
                Sent::NotNow(why) => {
                    self.ill(&why);
                    if tried >= self.config.tries_max || *closing.borrow() {
                        return add(&self.counts.failed, count);
                    }
                    tokio::select! { () = tokio::time::sleep(wait) => {}, _ = closing.wait_for(|closing| *closing) => {} }
                    wait = wait.saturating_mul(2);
                }
            }
        }
    }

    fn well(&self) {
        self.is_full.store(false, Ordering::Relaxed);
        if self.is_failing.swap(false, Ordering::Relaxed) {
            tracing::info!(endpoint = %self.endpoint, "spans are exported again");
        }
    }

    fn ill(&self, why: &str) {
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(endpoint = %self.endpoint, %why, "spans are not exported");
        }
    }

    /// The process ends: what is left is sent once, within the time of one sending.
    pub(crate) async fn finish(&self, mut running: JoinHandle<()>) {
        self.closing.send_replace(true);
        if tokio::time::timeout(self.config.timeout, &mut running).await.is_err() {
            running.abort();
        }
        let left: usize = self.waiting().drain(..).map(|run| run.spans().len()).sum();
        let left = left.saturating_add(usize::try_from(self.under_way.swap(0, Ordering::Relaxed)).unwrap_or(usize::MAX));
        if left > 0 {
            add(&self.counts.dropped, left);
            tracing::warn!(spans = left, "spans were left at the end and not exported");
        }
    }
}

fn add(counter: &AtomicU64, spans: usize) {
    counter.fetch_add(spans as u64, Ordering::Relaxed);
}
