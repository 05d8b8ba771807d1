//! The families in which `GET /metrics` shows the totals.
//!
//! Labels are the contract's words only, so the number of series is bounded whatever callers do.
//!
//! Invariant: every family has a row in docs/metrics.md, which a test demands.
// contract: C-15 C-24

use lifecycle::session::PeerState;
use lifecycle::{Boundary, ByPhase, Cause, Guarantee, OutcomeKind, Phase};

use super::histogram::Histogram;
use super::{CAUSES, Defect, Scrape, Totals, WorkerScrape};
use crate::exposition::{Family, Text, seconds};
use crate::journal::Limits;
use crate::view::RunState;
use crate::{accounts, exported, files, holdings, outside};

impl Totals {
    /// The metrics page. `epoch_us` is what the journal's clock is behind the time since 1970.
    pub(crate) fn expose(&self, scrape: &Scrape<'_>, limits: Limits, epoch_us: u64) -> String {
        let mut text = Text::new(scrape.format, epoch_us);
        let life = scrape.incarnation.to_string();
        let labels = [("version", scrape.version), ("incarnation", life.as_str())];
        text.gauge("kvit_build_info", "What runs here; always 1.").sample(&labels, 1);
        accounts::expose(&mut text, scrape.workers);
        self.expose_inference(&mut text, scrape.workers);
        if let Some(holdings) = scrape.holdings {
            holdings::expose(&mut text, holdings);
        }
        if let Some(outside) = scrape.outside {
            outside::expose(&mut text, outside);
        }
        if let Some(spans) = scrape.spans {
            exported::expose(&mut text, spans);
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

    /// The three gauges by which the Gateway API Inference Extension chooses among servers.
    fn expose_inference(&self, text: &mut Text, workers: &[WorkerScrape<'_>]) {
        let runs = |states: &[RunState]| states.iter().map(|s| self.runs[*s as usize]).sum();
        let about = "TotalQueuedRequests of the Gateway API Inference Extension: runs that wait for their first or their next step.";
        let waiting = [RunState::Queued, RunState::Preempted, RunState::Suspended];
        text.gauge("kvit_inference_queued_requests", about).sample(&[], runs(&waiting));
        let about = "TotalRunningRequests of the Gateway API Inference Extension: runs that are computed, or still hold something.";
        let running = [RunState::Prefilling, RunState::Decoding, RunState::Stopping];
        text.gauge("kvit_inference_running_requests", about).sample(&[], runs(&running));
        let answered = || workers.iter().filter_map(|worker| worker.snapshot);
        let pool: u64 = answered().map(|s| u64::from(s.total)).sum();
        // An engine of another make has no account: no sample is better than one that calls it empty.
        if pool > 0 {
            let taken: u64 = answered().map(|s| u64::from(s.active) + u64::from(s.draining) + u64::from(s.quarantined)).sum();
            let about =
                "KVCacheUtilization of the Gateway API Inference Extension: the part of the pool that no run can be given now, 0 to 1.";
            text.gauge("kvit_inference_kv_cache_utilization", about).fraction(&[], taken as f64 / pool as f64);
        }
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
        count("kvit_prefix_lookups_total", "Prompts that were looked up in the prefix index, once a run.", self.prefix_lookups);
        count("kvit_prefix_hits_total", "Of them, prompts of which the index had a part.", self.prefix_hits);
        count("kvit_preemptions_total", "Times a run's blocks were taken away to make room.", self.preemptions);
        count("kvit_steps_total", "Steps done by the engine.", self.steps);
        count("kvit_device_failures_total", "Steps that failed.", self.device_failures);
        text.counter("kvit_device_busy_seconds_total", "Time that the device of this process's worker spent in steps.")
            .fraction(&[], seconds(self.busy_us));
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
        let mut latency = |name, help, h: &Histogram| text.histogram(name, help).histogram(&[], h);
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
        let about = "Age of the oldest of them, since its first cancel was sent; 0 if there is none.";
        text.gauge("kvit_cancels_unacknowledged_oldest_seconds", about).fraction(&[], seconds(self.unacknowledged_oldest_us));
        let families = [
            (
                "kvit_disconnect_to_sent_seconds",
                "From the first observation of abandonment, or the end of its grace, to the first cancel sent to a worker.",
                &self.disconnect_to_sent,
            ),
            (
                "kvit_disconnect_to_cancel_seconds",
                "From the first observation of abandonment, or the end of its grace, to the cancel applied.",
                &self.disconnect_to_cancel,
            ),
            (
                "kvit_disconnect_to_acknowledged_seconds",
                "From the first observation of abandonment, or the end of its grace, to the worker's word that the cancel is applied.",
                &self.disconnect_to_acknowledged,
            ),
            (
                "kvit_disconnect_to_released_seconds",
                "From the first observation of abandonment, or the end of its grace, to released.",
                &self.disconnect_to_released,
            ),
        ];
        // Only causes that occurred: all of them would be some 500 lines of zeros a family.
        for (name, help, spans) in families {
            let mut f = text.histogram(name, help);
            spans.each().for_each(|(cause, h)| f.histogram(&[("cause", cause.as_str())], h));
        }
        let families = [
            (
                "kvit_boundary_forwarded_seconds",
                "By boundary: from when abandonment was first observed there, or its grace ended, to when it was passed on.",
                &self.boundary_forwarded,
            ),
            (
                "kvit_boundary_acknowledged_seconds",
                "By boundary: from when abandonment was first observed there, or its grace ended, to when its far side held nothing any more.",
                &self.boundary_acknowledged,
            ),
        ];
        for (name, help, spans) in families {
            let mut f = text.histogram(name, help);
            for boundary in Boundary::ALL {
                let labels = |cause: Cause| [("boundary", boundary.as_str()), ("cause", cause.as_str())];
                spans[*boundary as usize].each().for_each(|(cause, h)| f.histogram(&labels(cause), h));
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
        text.counter("kvit_leases_over_total", "Times that a gateway was not heard for its lease, which ends its attempts.")
            .sample(&[], self.leases_over);
        text.counter("kvit_void_attempts_total", "Attempts whose worker was lost, so that nobody can say that they are released.")
            .sample(&[], self.void);
        text.counter("kvit_suspensions_total", "Times an attempt was suspended because its gateway was not heard or did not read.")
            .sample(&[], self.suspensions);
        text.gauge("kvit_orphaned_attempts", "Attempts that no gateway claims and that are not released yet.").sample(&[], self.orphans);
        let about = "How long the oldest run with such an attempt has had one; 0 if there is none.";
        text.gauge("kvit_orphaned_oldest_seconds", about).fraction(&[], seconds(self.orphans_oldest_us));
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
        if let Some(filed) = &self.filed {
            files::expose(text, filed);
        }
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
