//! The process's totals, folded from the journal's records, and the families in which `GET /metrics` shows them.
//!
//! Labels are the contract's words only, so the number of series is bounded whatever callers do. C-15's account is not counted here: it is
//! cut from the worker's own state and handed in at scrape time.
//!
//! Invariant: a total only grows, except for the gauges that say so.
// contract: C-15 C-24

use std::time::Duration;

use lifecycle::message::Snapshot;
use lifecycle::session::PeerState;
use lifecycle::{ByPhase, Cause, Guarantee, Incarnation, OutcomeKind, Phase, Waste};

use crate::accounts;
use crate::exposition::{Family, Text};
use crate::holdings::{self, Holdings};
use crate::journal::Limits;
use crate::left::Left;
use crate::outside::{self, Outside};
use crate::view::RunState;

/// Upper bounds of the histograms' buckets in microseconds: 100 µs (an in-process hop) to 60 s (a long prefill on a busy CPU).
const BOUNDS_US: [u64; 18] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
    30_000_000, 60_000_000,
];
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

/// A latency histogram. Sums are kept in whole microseconds, so they are exact.
#[derive(Clone, Default, Debug)]
pub(crate) struct Histogram {
    /// One a bound, and one for what is above all of them.
    counts: [u64; BOUNDS_US.len() + 1],
    sum_us: u64,
}

impl Histogram {
    pub(crate) fn observe(&mut self, span: Duration) {
        let us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        self.counts[BOUNDS_US.partition_point(|bound| *bound < us)] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Everything that was counted.
#[derive(Clone, Default, Debug)]
pub(crate) struct Totals {
    outcomes: [u64; CAUSES],
    superseded: [u64; CAUSES],
    /// Work of settled runs, by how they ended.
    settled_work: [lifecycle::Totals; KINDS],
    disconnect_to_cancel: [Histogram; CAUSES],
    disconnect_to_released: [Histogram; CAUSES],
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
    /// Gauge: records in the journal's ring.
    pub records: u64,
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

    pub(crate) fn disconnect_to_cancel(&mut self, cause: Cause, span: Duration) {
        self.disconnect_to_cancel[cause as usize].observe(span);
    }

    pub(crate) fn disconnect_to_released(&mut self, cause: Cause, span: Duration) {
        self.disconnect_to_released[cause as usize].observe(span);
    }

    /// The metrics page, in Prometheus' text format 0.0.4.
    pub(crate) fn expose(&self, scrape: &Scrape<'_>, limits: Limits) -> String {
        let mut text = Text::default();
        let life = scrape.incarnation.to_string();
        let labels = [("version", scrape.version), ("incarnation", life.as_str())];
        text.gauge("kvit_build_info", "What runs here; always 1.").sample(&labels, 1);
        accounts::expose(&mut text, scrape.workers);
        if let Some(holdings) = scrape.holdings {
            holdings::expose(&mut text, holdings);
        }
        if let Some(outside) = scrape.outside {
            outside::expose(&mut text, outside);
        }
        self.expose_runs(&mut text);
        self.expose_work(&mut text);
        self.expose_cancels(&mut text);
        self.expose_graces(&mut text);
        self.expose_sessions(&mut text);
        self.expose_defects(&mut text);
        self.expose_journal(&mut text, limits);
        text.finish()
    }

    fn expose_runs(&self, text: &mut Text) {
        let mut f = text.gauge("kvit_runs", "Runs by state; ended runs are not shown, see kvit_run_outcomes_total.");
        for state in RunState::ALL.into_iter().filter(|s| *s != RunState::Ended) {
            f.sample(&[("state", state.as_str())], self.runs[state as usize]);
        }
        let mut f = text.counter("kvit_run_outcomes_total", "Runs by how and why they ended.");
        for cause in Cause::ALL {
            f.sample(&[("outcome", cause.outcome().as_str()), ("cause", cause.as_str())], self.outcomes[*cause as usize]);
        }
        text.counter("kvit_released_total", "Attempts whose release was journalled: nothing of them is left on the worker.")
            .sample(&[], self.released);
        text.counter("kvit_settled_total", "Runs of which the gateway holds nothing but the record.").sample(&[], self.settled);
        let mut f = text.counter("kvit_run_guarantees_total", "Settled runs by how well it is proven that nothing of them is left.");
        for level in Guarantee::ALL {
            f.sample(&[("guarantee", level.as_str())], self.guarantees[*level as usize]);
        }
        self.left.expose(text);
        let mut f = text.counter("kvit_superseded_total", "Causes that came after another had won.");
        per_cause(&mut f, &self.superseded);
    }

    fn expose_work(&self, text: &mut Text) {
        let mut count = |name, help, value| {
            text.counter(name, help).sample(&[], value);
        };
        count("kvit_tokens_generated_total", "Tokens generated, taken into an answer or thrown away.", self.work.generated);
        count("kvit_tokens_delivered_total", "Tokens handed to callers' connections.", self.work.delivered);
        count("kvit_tokens_overrun_total", "Tokens thrown away because a stop was found while the next step ran.", self.work.overrun);
        count("kvit_prompt_tokens_computed_total", "Prompt positions computed, recomputed ones included.", self.work.prompt);
        count("kvit_prompt_tokens_after_disconnect_total", "Of them, computed after abandonment.", self.work.prompt_after);
        count("kvit_prefix_cached_tokens_total", "Prompt tokens whose K and V came from the prefix index.", self.prefix_cached);
        count("kvit_preemptions_total", "Times a run's blocks were taken away to make room.", self.preemptions);
        count("kvit_steps_total", "Steps done by the engine.", self.steps);
        count("kvit_device_failures_total", "Steps that failed.", self.device_failures);
        per_phase(
            text.counter(
                "kvit_tokens_after_disconnect_total",
                "Tokens computed after abandonment was first observed, taken or thrown away, by phase at that moment.",
            ),
            &self.work.after,
        );
        per_phase(
            text.counter(
                "kvit_steps_after_disconnect_total",
                "Steps that computed something for an abandoned run, counted once a run, by phase when abandonment was first observed.",
            ),
            &self.work.steps_after,
        );
        self.expose_settled_work(text);
        let mut latency = |name, help, h: &Histogram| text.histogram(name, help).histogram(&[], &BOUNDS_US, &h.counts, h.sum_us);
        latency("kvit_time_to_first_token_seconds", "From accepted to the first token computed.", &self.first_token);
        latency("kvit_inter_token_seconds", "Between a run's steps that generated tokens.", &self.inter_token);
        latency("kvit_queue_seconds", "From queued to the first prompt chunk in a step.", &self.queue);
    }

    /// What settled runs cost beside what their callers got, by how they ended; and apart, those whose callers got nothing.
    fn expose_settled_work(&self, text: &mut Text) {
        type Of = fn(&lifecycle::Totals) -> u64;
        let families: [(_, _, Of); 5] = [
            ("kvit_settled_tokens_generated_total", "Tokens generated for settled runs.", |t| t.sum.generated),
            ("kvit_settled_tokens_delivered_total", "Of them, tokens handed to callers' connections.", |t| t.sum.delivered),
            ("kvit_zero_delivery_runs_total", "Settled runs that computed something and delivered no token.", |t| t.zero_delivery_runs),
            ("kvit_zero_delivery_tokens_generated_total", "Tokens generated for those.", |t| t.zero_delivery.generated),
            ("kvit_zero_delivery_prompt_tokens_computed_total", "Prompt positions computed for those.", |t| t.zero_delivery.prompt),
        ];
        for (name, help, of) in families {
            let mut f = text.counter(name, help);
            for kind in OutcomeKind::ALL {
                f.sample(&[("outcome", kind.as_str())], of(&self.settled_work[*kind as usize]));
            }
        }
    }

    fn expose_cancels(&self, text: &mut Text) {
        text.counter("kvit_cancels_sent_total", "Cancels sent to workers, repeats included.").sample(&[], self.cancels_sent);
        text.counter("kvit_cancels_repeated_total", "Cancels that had to be repeated.").sample(&[], self.cancels_repeated);
        text.gauge("kvit_cancels_unacknowledged", "Runs with a cancel sent that is neither acknowledged nor moot.")
            .sample(&[], self.unacknowledged);
        let families = [
            (
                "kvit_disconnect_to_cancel_seconds",
                "From the first observation of abandonment, or the end of its grace, to the cancel applied.",
                &self.disconnect_to_cancel,
            ),
            (
                "kvit_disconnect_to_released_seconds",
                "From the first observation of abandonment, or the end of its grace, to released.",
                &self.disconnect_to_released,
            ),
        ];
        for (name, help, by_cause) in families {
            let mut f = text.histogram(name, help);
            // Only causes that occurred: all of them would be some 500 lines of zeros a scrape.
            for cause in Cause::ALL.iter().filter(|c| by_cause[**c as usize].count() > 0) {
                let h = &by_cause[*cause as usize];
                f.histogram(&[("cause", cause.as_str())], &BOUNDS_US, &h.counts, h.sum_us);
            }
        }
    }

    /// What became of runs whose last reader left and whose policy is not `cancel`.
    fn expose_graces(&self, text: &mut Text) {
        let mut count = |name, help, value| {
            text.counter(name, help).sample(&[], value);
        };
        count("kvit_graces_begun_total", "Times a run's last reader left and somebody could come back.", self.graces_begun);
        count("kvit_graces_resumed_total", "Of them, times somebody came back.", self.graces_resumed);
        count("kvit_graces_run_out_total", "Of them, times nobody came back, or the run ended otherwise meanwhile.", self.graces_run_out);
        count("kvit_left_running_total", "Times a run's last reader left and the run went on, as its policy says.", self.left_running);
    }

    /// Where the worker has sessions with gateways in other processes; all 0 where it has not.
    fn expose_sessions(&self, text: &mut Text) {
        let mut f = text.gauge("kvit_sessions", "Gateways that the worker knows, by how they stand with it.");
        for state in PeerState::ALL {
            f.sample(&[("state", state.as_str())], self.gateways[state as usize]);
        }
        text.counter("kvit_sessions_opened_total", "Connections that gateways opened to the worker.").sample(&[], self.sessions_opened);
        text.counter("kvit_suspensions_total", "Times an attempt was suspended because its gateway was not heard or did not read.")
            .sample(&[], self.suspensions);
        text.gauge("kvit_orphaned_attempts", "Attempts that no gateway claims and that are not released yet.").sample(&[], self.orphans);
        text.counter("kvit_reaped_attempts_total", "Attempts that were cancelled because no gateway claimed them.")
            .sample(&[], self.orphaned);
        text.counter("kvit_stale_messages_total", "Messages of an older life or of another tenure, which changed nothing.")
            .sample(&[], self.stale_messages);
    }

    fn expose_defects(&self, text: &mut Text) {
        let mut f = text.counter("kvit_defects_total", "Things that must not happen and did. Expected to stay 0.");
        for (word, count) in Defect::WORDS.iter().zip(self.defects) {
            f.sample(&[("kind", word)], count);
        }
    }

    /// What is kept on purpose, and how much that may become: it is no leak until it passes the limit.
    fn expose_journal(&self, text: &mut Text, limits: Limits) {
        text.counter("kvit_journal_forgotten_runs_total", "Live runs whose record was dropped at the journal's hard limit.")
            .sample(&[], self.forgotten);
        text.counter("kvit_journal_unmatched_records_total", "Records that named a run the journal does not hold.")
            .sample(&[], self.unmatched);
        let mut gauge = |name, help, value| {
            text.gauge(name, help).sample(&[], value);
        };
        gauge("kvit_journal_runs", "Runs that can be asked for, ended ones included.", self.runs.iter().sum());
        gauge("kvit_journal_runs_max", "Ended runs that the journal keeps; then the one that settled first goes.", limits.runs as u64);
        gauge("kvit_journal_records", "Records in the journal's ring.", self.records);
        gauge("kvit_journal_records_max", "Records that the ring holds; then the oldest goes.", limits.records as u64);
    }
}

fn per_cause(family: &mut Family<'_>, counts: &[u64; CAUSES]) {
    for cause in Cause::ALL {
        family.sample(&[("cause", cause.as_str())], counts[*cause as usize]);
    }
}

fn per_phase(mut family: Family<'_>, counts: &ByPhase) {
    for phase in Phase::ALL {
        family.sample(&[("phase", phase.as_str())], counts.of(*phase));
    }
}
