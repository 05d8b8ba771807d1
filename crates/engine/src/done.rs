//! What a finished step changes: its fence, the blocks it filled, the tokens it chose, and what must end when it failed.
// contract: C-12, C-16, C-19

use std::collections::BTreeMap;

use lifecycle::event::Event;
use lifecycle::{AttemptEvent, AttemptState, Cause, Outcome, Resumable, Rules, StepId};

use crate::device::{DeviceError, RowDone, Sampled, StepDone};
use crate::engine::{Engine, InFlight, RowRef};
use crate::io::Effect;

/// What a step did for one attempt.
#[derive(Default)]
struct Tally {
    rows: u32,
    dropped: u32,
    layers: u32,
    prompt_tokens: u32,
    generated: u32,
    discarded: u32,
    late: u32,
}

impl<R: Rules> Engine<R> {
    pub(crate) fn step_done(&mut self, done: StepDone) {
        let Some(at) = self.in_flight.iter().position(|f| f.id == done.id) else {
            // Late, doubled or unknown: the pool counts it, nothing changes.
            self.pool.note_late_completion();
            return;
        };
        if at > 0 {
            // Steps run in order: a step that was overtaken can only have hung.
            return self.all_hung("its fence was overtaken by a later step's");
        }
        match done.result {
            Ok(rows) if rows.len() == self.in_flight[0].rows.len() => {
                if let Some(step) = self.in_flight.pop_front() {
                    self.step_computed(step, rows);
                }
            }
            Ok(_) => self.step_failed(&DeviceError::Step("the step's message does not match its plan".into())),
            Err(DeviceError::Step(why)) => self.step_failed(&DeviceError::Step(why)),
            Err(DeviceError::Hung(why)) => self.all_hung(&why),
            Err(DeviceError::Lost(why)) => self.device_lost(&why),
        }
    }

    /// A step hangs: nobody knows what it still writes, nor what a step queued behind it saw. All of them are given up.
    fn all_hung(&mut self, why: &str) {
        while !self.in_flight.is_empty() {
            self.step_failed(&DeviceError::Hung(why.to_string()));
        }
    }

    fn step_computed(&mut self, step: InFlight, rows: Vec<RowDone>) {
        self.newest_done = step.id;
        self.pool.fence_completed(step.id);
        self.measure(&step, &rows);
        let mut tallies: BTreeMap<u64, Tally> = BTreeMap::new();
        let (mut dropped, total) = (0, step.rows.len() as u32);
        for (row, done) in step.rows.iter().zip(rows) {
            if !R::counts_late_row() && self.attempts.get(&row.key).is_some_and(|a| a.outcome.is_some()) {
                continue;
            }
            let tally = tallies.entry(row.key).or_default();
            tally.rows += 1;
            match done {
                RowDone::Computed { sampled, late } => {
                    tally.late += u32::from(late && sampled.is_some());
                    self.row_computed(row, sampled, tally);
                }
                RowDone::Dropped { layers } => {
                    dropped += 1;
                    tally.dropped += 1;
                    tally.layers = tally.layers.max(layers);
                    self.row_dropped(row);
                }
            }
        }
        self.out.push(Effect::Journal(None, Event::StepDone { step: step.id, rows: total, dropped }));
        for (key, tally) in tallies {
            self.close_tally(key, step.id, tally);
        }
    }

    /// Journals what the step did for an attempt; then, and only then, may it be released.
    fn close_tally(&mut self, key: u64, step: StepId, t: Tally) {
        if t.dropped > 0 {
            self.journal(key, Event::RowsDropped { step, layers: t.layers });
        }
        if t.rows > t.dropped {
            let Tally { prompt_tokens, generated, discarded, late, .. } = t;
            self.journal(key, Event::Computed { step, prompt_tokens, generated, discarded, late });
        }
        self.release_if_drained(key);
    }

    fn settle_row(&mut self, row: &RowRef) -> bool {
        let Some(attempt) = self.attempts.get_mut(&row.key) else { return false };
        attempt.rows_in_flight -= 1;
        let seq = &mut attempt.sequences[row.sequence];
        seq.rows_in_flight -= 1;
        let current = seq.epoch == row.epoch && seq.finished.is_none() && attempt.outcome.is_none();
        if current && row.sample_at.is_some() {
            seq.samples_in_flight -= 1;
        }
        current
    }

    fn row_computed(&mut self, row: &RowRef, sampled: Option<Sampled>, tally: &mut Tally) {
        let current = self.settle_row(row);
        tally.prompt_tokens += row.known;
        if current {
            self.index_blocks(row.key, row.sequence, row.end);
        }
        let Some(sampled) = sampled else { return };
        let Some(attempt) = self.attempts.get_mut(&row.key) else { return };
        let seq = &mut attempt.sequences[row.sequence];
        // A preempted sequence takes the token too: a recompute would choose the same (C-14).
        let wanted = attempt.outcome.is_none() && seq.finished.is_none() && row.sample_at == Some(seq.tokens.len());
        if !wanted {
            tally.discarded += 1;
            return;
        }
        tally.generated += 1;
        let ends = attempt.stop_tokens.contains(&sampled.token);
        seq.tokens.push(sampled.token);
        attempt.generated += 1;
        let full = attempt.sequences[row.sequence].generated() >= attempt.cap();
        let finish = match (ends, full) {
            (true, _) => Some(Cause::Stop),
            (false, true) => Some(Cause::Length),
            _ => None,
        };
        let attempt_id = attempt.id.clone();
        if matches!(attempt.state, AttemptState::Prefilling | AttemptState::Suspended { was: Resumable::Prefilling }) {
            self.step_machine(row.key, AttemptEvent::FirstToken);
        }
        if self.attempts[&row.key].generated == 1 {
            self.journal(row.key, Event::FirstToken);
        }
        self.out.push(Effect::Token { attempt: attempt_id, sequence: row.sequence as u32, sampled, finish });
        if let Some(cause) = finish {
            self.finish_sequence(row.key, row.sequence, cause);
        }
    }

    fn row_dropped(&mut self, row: &RowRef) {
        if !self.settle_row(row) {
            return;
        }
        // Nobody asked for that: start the attempt over from what is known.
        self.defect("the device dropped a row that nobody had flagged");
        let rank = self.attempts[&row.key].rank;
        if self.running.contains(&rank) {
            self.preempt(rank);
        } else if self.suspended.contains(&rank) {
            self.take_place(rank); // its machine learns of it when it goes on
        }
    }

    /// The oldest step in flight failed. What it held ends; the engine goes on with the rest.
    fn step_failed(&mut self, error: &DeviceError) {
        let Some(step) = self.in_flight.pop_front() else { return };
        let hung = !matches!(error, DeviceError::Step(_));
        let mut keys: Vec<u64> = Vec::new();
        let mut quarantined = 0;
        for row in &step.rows {
            if hung && self.attempts.get(&row.key).is_some_and(|a| a.sequences[row.sequence].epoch == row.epoch) {
                quarantined += self.quarantine_sequence(row.key, row.sequence);
            }
            self.settle_row(row);
            if !keys.contains(&row.key) {
                keys.push(row.key);
            }
        }
        match hung {
            true => self.quarantine_step(step.id),
            false => {
                self.pool.fence_completed(step.id);
            }
        }
        self.out.push(Effect::Journal(None, Event::DeviceFailed { step: step.id, quarantined }));
        for key in keys {
            self.end_attempt(key, Outcome::because(Cause::DeviceError, error.to_string()));
            self.release_if_drained(key);
        }
    }

    /// Nothing can be computed any more: every attempt ends, what was in a step is quarantined, and new attempts are refused.
    pub(crate) fn device_lost(&mut self, why: &str) {
        if self.lost.is_none() {
            self.lost = Some(why.to_string());
            // First of all, so that whoever is told of an end finds the server saying why.
            self.out.push(Effect::DeviceLost(why.to_string()));
        }
        while !self.in_flight.is_empty() {
            self.step_failed(&DeviceError::Lost(why.to_string()));
        }
        let left: Vec<u64> = self.attempts.keys().copied().collect();
        for key in left {
            self.end_attempt(key, Outcome::because(Cause::DeviceError, format!("the device is lost: {why}")));
            self.release_if_drained(key);
        }
    }
}
