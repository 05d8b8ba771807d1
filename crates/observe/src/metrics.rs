//! The process's totals, folded from the journal's records. `page` shows them as `GET /metrics`.
//!
//! C-15's account is not counted here: it is cut from the worker's own state and handed in at scrape time.
//!
//! Invariant: a total only grows, except for the gauges that say so.
// contract: C-15 C-24

use std::time::Duration;

use lifecycle::message::Snapshot;
use lifecycle::session::PeerState;
use lifecycle::{Boundary, Cause, Guarantee, Incarnation, OutcomeKind, RunId, Time, Waste};

use crate::exported::Exported;
use crate::exposition::Format;
use crate::files::Filed;
use crate::holdings::Holdings;
use crate::left::Left;
use crate::outside::Outside;
use crate::view::RunState;

pub(crate) mod histogram;
mod page;

use histogram::{BUCKETS, Histogram};

const CAUSES: usize = Cause::ALL.len();
const KINDS: usize = OutcomeKind::ALL.len();

/// What a scrape adds to the journal's own totals.
#[derive(Clone, Copy, Debug)]
pub struct Scrape<'a> {
    /// The program's version.
    pub version: &'a str,
    /// This process's life.
    pub incarnation: Incarnation,
    /// The workers, each with its account. With one, its samples need no name; with several, each has the label `worker`.
    pub workers: &'a [WorkerScrape<'a>],
    /// What the process holds, cut for this scrape. `None` where nobody is asked.
    pub holdings: Option<&'a Holdings>,
    /// What the process did outside. `None` where it does nothing there.
    pub outside: Option<&'a Outside>,
    /// What became of its spans. `None` where none are exported.
    pub spans: Option<&'a Exported>,
    /// How the page is written.
    pub format: Format,
}

/// A worker's part of a scrape.
#[derive(Clone, Copy, Debug)]
pub struct WorkerScrape<'a> {
    /// What it is called.
    pub name: &'a str,
    /// Its account, cut for this scrape. `None` if it did not answer in time: its samples are then left out rather than shown with old
    /// values, and its `kvit_worker_up` is 0.
    pub snapshot: Option<&'a Snapshot>,
    /// Whether it is an engine that others wrote and takes runs now: it has no account that it could answer with.
    pub takes_runs: bool,
    /// Runs that it was given and that are not over, by this gateway's table.
    pub runs: u32,
    /// Most of them at once, where this gateway keeps further ones back.
    pub slots: Option<u32>,
}

/// Something that must not happen, seen in the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Defect {
    AcceptedTwice,
    OutcomeTwice,
    DeliveryEndedTwice,
    DismissedTwice,
    DeliveredAfterEnd,
    SettledTwice,
    AttemptEndedTwice,
    ReleasedTwice,
    ReleasedHolding,
    UsedAfterRelease,
    /// A machine refused something impossible and said so.
    Refused,
    /// C-15's account did not add up in a cut that was handed in.
    NotConserved,
}

impl Defect {
    const WORDS: [&'static str; 12] = [
        "accepted_twice",
        "outcome_twice",
        "delivery_ended_twice",
        "dismissed_twice",
        "delivered_after_end",
        "settled_twice",
        "attempt_ended_twice",
        "released_twice",
        "released_holding",
        "used_after_release",
        "refused",
        "not_conserved",
    ];
}

/// How long the word of an end took from its first observation, by its cause.
#[derive(Clone, Default, Debug)]
pub(crate) struct Spans([Histogram; CAUSES]);

impl Spans {
    pub(crate) fn observe(&mut self, cause: Cause, span: Duration, run: &RunId, at: Time) {
        self.0[cause as usize].observe(span, run, at);
    }

    /// Of all causes together, by bucket.
    pub(crate) fn counts(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|bucket| self.0.iter().map(|h| h.counts[bucket]).sum())
    }

    /// Those that have an observation.
    pub(crate) fn each(&self) -> impl Iterator<Item = (Cause, &Histogram)> {
        Cause::ALL.iter().map(|cause| (*cause, &self.0[*cause as usize])).filter(|(_, h)| h.count() > 0)
    }
}

/// Everything that was counted.
#[derive(Clone, Default, Debug)]
pub(crate) struct Totals {
    outcomes: [u64; CAUSES],
    superseded: [u64; CAUSES],
    /// Work of settled runs, by how they ended.
    settled_work: [lifecycle::Totals; KINDS],
    pub disconnect_to_sent: Spans,
    pub disconnect_to_cancel: Spans,
    pub disconnect_to_acknowledged: Spans,
    pub disconnect_to_released: Spans,
    /// By boundary: until it was passed on there, and until the far side had nothing left.
    pub boundary_forwarded: [Spans; Boundary::ALL.len()],
    pub boundary_acknowledged: [Spans; Boundary::ALL.len()],
    defects: [u64; Defect::WORDS.len()],
    pub first_token: Histogram,
    pub inter_token: Histogram,
    pub queue: Histogram,
    /// Sums of the runs' own counts.
    pub work: Waste,
    /// The engine's steps; a run's step is counted in `work`, once a run.
    pub steps: u64,
    pub device_failures: u64,
    pub cancels_sent: u64,
    pub cancels_repeated: u64,
    pub preemptions: u64,
    pub graces_begun: u64,
    pub graces_resumed: u64,
    pub graces_run_out: u64,
    pub left_running: u64,
    pub suspensions: u64,
    pub orphaned: u64,
    pub stale_messages: u64,
    pub sessions_opened: u64,
    pub prefix_cached: u64,
    pub prefix_lookups: u64,
    pub prefix_hits: u64,
    /// What the device worked, in microseconds.
    pub busy_us: u64,
    /// Attempts whose worker was lost.
    pub void: u64,
    /// Times that a gateway's lease ran out at the worker.
    pub leases_over: u64,
    pub released: u64,
    pub settled: u64,
    /// Those of them that somebody wanted to end, by engine.
    pub left: Left,
    /// Settled runs by guarantee.
    pub guarantees: [u64; Guarantee::ALL.len()],
    /// Live runs whose fold was dropped because even the hard limit was reached.
    pub forgotten: u64,
    /// Records that named a run the journal does not hold.
    pub unmatched: u64,
    /// Gauge: runs that the journal holds, by state.
    pub runs: [u64; RunState::ALL.len()],
    /// Gauge: gateways that the worker knows, by how they stand.
    pub gateways: [u64; PeerState::ALL.len()],
    /// Gauge: attempts that no gateway claims and that are not released.
    pub orphans: u64,
    /// Gauge: cancels that nobody has confirmed yet.
    pub unacknowledged: u64,
    /// Gauge: ages of the oldest of these and of the oldest orphan, in microseconds; 0 if there is none.
    pub unacknowledged_oldest_us: u64,
    pub orphans_oldest_us: u64,
    /// Gauge: records in the journal's ring.
    pub records: u64,
    /// What became of records on their way to files, where there are any.
    pub filed: Option<Filed>,
}

impl Totals {
    pub(crate) fn defect(&mut self, defect: Defect) {
        self.defects[defect as usize] += 1;
    }

    /// Defects of every kind.
    pub(crate) fn defects(&self) -> u64 {
        self.defects.iter().sum()
    }

    pub(crate) fn outcome(&mut self, cause: Cause) {
        self.outcomes[cause as usize] += 1;
    }

    pub(crate) fn superseded(&mut self, cause: Cause) {
        self.superseded[cause as usize] += 1;
    }

    /// A run is settled: its counts are final. Its outcome was set before; a record that says otherwise counts it as failed.
    pub(crate) fn settled_as(&mut self, kind: Option<OutcomeKind>, guarantee: Option<Guarantee>, work: &Waste) {
        self.settled += 1;
        if let Some(level) = guarantee {
            self.guarantees[level as usize] += 1;
        }
        self.settled_work[kind.unwrap_or(OutcomeKind::Failed) as usize].add(work);
    }

    /// A prompt was looked up in the prefix index, which had so many of its tokens.
    pub(crate) fn looked_up(&mut self, cached: u64) {
        self.prefix_lookups += 1;
        self.prefix_hits += u64::from(cached > 0);
    }

    /// Work of settled runs that ended like this.
    pub(crate) fn settled_work(&self, kind: OutcomeKind) -> &lifecycle::Totals {
        &self.settled_work[kind as usize]
    }

    /// Runs that ended like this.
    pub(crate) fn ended(&self, kind: OutcomeKind) -> u64 {
        Cause::ALL.iter().filter(|c| c.outcome() == kind).map(|c| self.outcomes[*c as usize]).sum()
    }
}
