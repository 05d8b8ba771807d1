//! The record of a run whose worker has another journal: what that worker says happened, and, where it says nothing, what its words show.
//!
//! Its times come converted to this process's clock, and how wrong that may be is recorded with the run. Causes come before effects, whatever
//! two clocks say: no worker has anything of an attempt before it was sent, or of a cancel. And what the log says of the gateway's own records.
//!
//! Invariant: only the current attempt's own worker is believed, and only what a worker can know; each end and each release is recorded once.
// contract: C-3 C-20 C-24

use std::sync::Arc;

use lifecycle::event::{Event, Record};
use lifecycle::message::{Delta, Up, Usage};
use lifecycle::session::ClockSample;
use lifecycle::{AttemptId, Incarnation, StepId, Time, WorkerIndex};

use crate::calls::{Calls, Entry};

type Speaker = (WorkerIndex, Incarnation);

/// What was recorded of an entry's current attempt on its worker's behalf.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    attempt: u32,
    /// Its worker's first word was no record: what its words show has to do.
    wordless: bool,
    /// That it has a token is recorded.
    token: bool,
    /// When its cancel arrived, as recorded.
    cancel: Option<Time>,
    /// The clock's error that was recorded last, in microseconds.
    clock_error_us: Option<u64>,
}

impl Calls {
    /// Records what a worker in another process says happened.
    pub(crate) fn keep_records(&self, from: Speaker, records: Vec<Record>) {
        for record in records.into_iter().filter(|record| record.event.crosses()) {
            let Some(attempt) = record.attempt() else { continue };
            self.of_worker(from, &attempt, |entry| {
                let mut at = record.at.max(entry.dispatch.placed_at()).min(self.now());
                match record.event {
                    Event::CancelReceived { .. } => {
                        at = at.max(entry.dispatch.cancelled_at().unwrap_or(at));
                        entry.kept.cancel.get_or_insert(at);
                    }
                    Event::CancelApplied { .. } => at = at.max(entry.kept.cancel.unwrap_or(at)),
                    _ => {}
                }
                self.journal.record_at(Record { at, ..record });
            });
        }
    }

    /// Records what a worker's words show that it left out of its records. To be called before the words are taken in.
    pub(crate) fn keep_words(&self, from: Speaker, message: &Up) {
        match message {
            Up::Accepted { attempt, prompt_tokens } => self.of_worker(from, attempt, |entry| {
                if !self.journal.attempt(&entry.key, attempt.attempt).is_some_and(|known| known.queued) {
                    entry.kept.wordless = true;
                    let (n, max_tokens) = entry.dispatch.asked();
                    let queued = Event::Queued { prompt_tokens: *prompt_tokens, n, max_tokens };
                    self.journal.record(Some(&entry.key), attempt.attempt, queued);
                }
            }),
            Up::Ended { attempt, outcome, usage } => self.of_worker(from, attempt, |entry| {
                if entry.kept.wordless && usage.prompt > 0 {
                    let Usage { prompt, cached_prompt, .. } = *usage;
                    self.journal.record(Some(&entry.key), attempt.attempt, Event::PromptCounted { tokens: prompt, cached: cached_prompt });
                }
                if !self.journal.attempt(&entry.key, attempt.attempt).is_some_and(|known| known.ended) {
                    self.journal.record(Some(&entry.key), attempt.attempt, Event::AttemptEnded { outcome: outcome.clone() });
                }
            }),
            Up::Released { attempt, receipt } => self.of_worker(from, attempt, |entry| {
                if !self.journal.attempt(&entry.key, attempt.attempt).is_some_and(|known| known.released) {
                    self.journal.record(Some(&entry.key), attempt.attempt, Event::Released { receipt: *receipt });
                }
            }),
            Up::Reported { attempt, work } => self.of_worker(from, attempt, |entry| {
                self.journal.record(Some(&entry.key), attempt.attempt, Event::Reported { work: work.clone() });
            }),
            // Tokens are recorded as they are taken in.
            Up::Step { .. } | Up::CancelAcknowledged { .. } | Up::Records { .. } | Up::DeviceLost { .. } | Up::LetGo { .. } => {}
            Up::Ask { .. } | Up::Draining | Up::Snapshot { .. } => {}
        }
    }

    /// An attempt was sent to an engine that keeps no record, under this name: there it waits from now on, for all that is known.
    pub(crate) fn keep_sent(&self, entry: &mut Entry, upstream: Arc<str>, request: u128) {
        let attempt = entry.dispatch.call().attempt();
        let request: Arc<str> = format!("{request:032x}").into();
        tracing::info!(run = %entry.key.run, attempt, %upstream, %request, "sent");
        self.journal.record(Some(&entry.key), attempt, Event::SentAs { upstream, request });
        entry.kept = Kept { attempt, wordless: true, clock_error_us: entry.kept.clock_error_us, ..Kept::default() };
        let (n, max_tokens) = entry.dispatch.asked();
        self.journal.record(Some(&entry.key), attempt, Event::Queued { prompt_tokens: 0, n, max_tokens });
    }

    /// Records tokens of an entry's current attempt, if its worker's words are all that says so.
    pub(crate) fn keep_tokens(&self, entry: &mut Entry, step: StepId, delta: &Delta) {
        if !entry.kept.wordless {
            return;
        }
        let (key, number) = (Some(&entry.key), delta.attempt.attempt);
        let generated = delta.count();
        self.journal.record(key, number, Event::Computed { step, prompt_tokens: 0, generated, discarded: 0, late: 0 });
        if !std::mem::replace(&mut entry.kept.token, true) {
            self.journal.record(key, number, Event::FirstToken);
        }
    }

    /// Calls `keep` for an attempt that is current and that this life of this worker has.
    fn of_worker(&self, (worker, life): Speaker, attempt: &AttemptId, keep: impl FnOnce(&mut Entry)) {
        let mut table = self.lock();
        let clock = table.workers.get(worker).and_then(|known| known.clock);
        let Some(entry) = table.entries.get_mut(&attempt.key).filter(|e| e.dispatch.hears(worker, life, attempt.attempt)) else { return };
        self.of_attempt(entry, attempt.attempt, clock);
        keep(entry);
    }

    /// Something is to be recorded of an entry's current attempt, whose worker's clock is known so well.
    pub(crate) fn of_attempt(&self, entry: &mut Entry, attempt: u32, clock: Option<ClockSample>) {
        if entry.kept.attempt != attempt {
            entry.kept = Kept { attempt, clock_error_us: entry.kept.clock_error_us, ..Kept::default() };
        }
        if let Some(error) = clock.map(|clock| clock.error) {
            let us = u64::try_from(error.as_micros()).unwrap_or(u64::MAX);
            if entry.kept.clock_error_us.is_none_or(|told| us > told) {
                entry.kept.clock_error_us = Some(us);
                self.journal.record(Some(&entry.key), attempt, Event::WorkerClock { error });
            }
        }
    }
}

/// What the log says of a run's record.
pub(crate) fn log(entry: &Entry, event: &Event) {
    let run = &entry.key.run;
    match event {
        Event::GraceBegun { grace } => tracing::info!(%run, ms = grace.as_millis(), "nobody reads; somebody may come back"),
        Event::AbandonmentWithdrawn => tracing::info!(%run, "somebody came back"),
        Event::GraceRanOut => tracing::info!(%run, "nobody came back"),
        Event::LeftRunning { cause } => tracing::info!(%run, %cause, "nobody reads; it goes on"),
        Event::CancelSent { cause, count } => tracing::info!(%run, %cause, count, "cancel sent"),
        Event::Dismissed { cause } => tracing::info!(%run, %cause, "its readers are told an end before there is an outcome"),
        Event::OutcomeSet { outcome } => tracing::info!(%run, outcome = %outcome.kind(), cause = %outcome.cause, "ended"),
        Event::Settled { proven } => tracing::info!(%run, proven, "settled"),
        Event::Defect { what } => tracing::error!(%run, state = entry.dispatch.call().state().label(), what, "refused"),
        _ => {}
    }
}
