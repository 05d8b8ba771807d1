//! How an attempt ends: the first cause to be applied wins, its rows are flagged, its blocks retired behind their fences, and
//! `released` said once, when the last step that holds it is over.
// contract: C-4, C-12, C-13, C-18, C-20, C-31

use lifecycle::event::Event;
use lifecycle::message::{Receipt, Usage};
use lifecycle::{AttemptEvent, AttemptId, Cause, Outcome, OutcomeKind, Phase, Rules, Time};

use crate::admission::DEADLINES_MAX;
use crate::engine::Engine;
use crate::io::Effect;

impl<R: Rules> Engine<R> {
    /// The shell that prepares the prompt could not. Whoever has ended meanwhile stays as he is.
    pub(crate) fn refused(&mut self, id: &AttemptId, outcome: Outcome) {
        let Some(&key) = self.by_id.get(id) else { return };
        self.end_attempt(key, outcome);
        self.release_if_drained(key);
    }

    /// A cancel. Works in every state and answers in every state.
    pub(crate) fn end_by_name(&mut self, id: &AttemptId, number: u64, outcome: Outcome) {
        let cause = outcome.cause;
        let Some(key) = R::named(id, self.by_id.get(id).copied(), self.attempts.iter().map(|(key, a)| (*key, &a.id))) else {
            if self.tombstones.may_come(number) && R::leaves_tombstone() {
                self.tombstones.remember(id.clone(), number, outcome);
                self.out.push(Effect::Journal(Some(id.clone()), Event::Tombstoned { cause }));
            }
            self.out.push(Effect::CancelAcknowledged { attempt: id.clone(), won: None });
            return;
        };
        self.end_attempt(key, outcome);
        let won = self.attempts.get(&key).and_then(|a| a.state.cause());
        self.out.push(Effect::CancelAcknowledged { attempt: id.clone(), won });
        self.release_if_drained(key);
    }

    /// Deadlines that have passed end their attempts, in the queue, in prefill and in decode.
    // contract: C-22
    pub(crate) fn fire_deadlines(&mut self, now: Time) {
        while let Some((&(at, entry), &cause)) = self.deadlines.first_key_value() {
            if at > now {
                return;
            }
            self.deadlines.remove(&(at, entry));
            let key = entry / DEADLINES_MAX as u64;
            self.end_attempt(key, Outcome::of(cause));
            self.release_if_drained(key);
        }
    }

    /// A stop string was found in a sequence's text, maybe after further tokens were computed.
    pub(crate) fn stop_found(&mut self, id: &AttemptId, sequence: u32) {
        let Some(&key) = self.by_id.get(id) else { return };
        if self.attempts[&key].state.is_live() {
            self.finish_sequence(key, sequence as usize, Cause::Stop);
            self.release_if_drained(key);
        }
    }

    /// One sequence came to its own end; the attempt does when the last has.
    pub(crate) fn finish_sequence(&mut self, key: u64, sequence: usize, cause: Cause) {
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        let Some(seq) = attempt.sequences.get_mut(sequence) else { return };
        if seq.finished.is_some() {
            return;
        }
        seq.finished = Some(cause);
        self.retire_sequence(key, sequence);
        let Some(attempt) = self.attempts.get(&key) else { return };
        if attempt.sequences.iter().all(|s| s.finished.is_some()) {
            let capped = attempt.sequences.iter().any(|s| s.finished == Some(Cause::Length));
            self.end_attempt(key, Outcome::of(if capped { Cause::Length } else { Cause::Stop }));
        }
    }

    /// Ends an attempt if nothing has ended it before. The caller calls `release_if_drained` afterwards, when its rows are settled.
    pub(crate) fn end_attempt(&mut self, key: u64, outcome: Outcome) {
        let Some(attempt) = self.attempts.get(&key) else { return };
        let prompt_computed = attempt.sequences.iter().any(|s| s.sampled);
        let phase = attempt.state.phase_with(prompt_computed, attempt.generated > 0).unwrap_or(Phase::Queued);
        let moved = self.step_machine(key, AttemptEvent::End(outcome.cause));
        if !moved {
            if R::releases_again() {
                self.say_released(key);
            }
            return;
        }
        if matches!(outcome.kind(), OutcomeKind::Cancelled | OutcomeKind::Expired) {
            self.journal(key, Event::CancelApplied { cause: outcome.cause, phase });
        }
        self.forget_deadlines(key, |_| true);
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        attempt.outcome = Some(outcome.clone());
        let (rank, sequences, id) = (attempt.rank, attempt.sequences.len(), attempt.id.clone());
        let usage = Usage { prompt: attempt.prompt_len, cached_prompt: attempt.cached_prompt, generated: attempt.generated };
        self.waiting.remove(&rank);
        self.running.remove(&rank);
        self.suspended.remove(&rank);
        for s in (0..sequences).filter(|s| R::ends_sequence(*s)) {
            self.retire_sequence(key, s);
        }
        self.journal(key, Event::AttemptEnded { outcome: outcome.clone() });
        self.out.push(Effect::Ended { attempt: id, outcome, usage });
    }

    /// Says `released` once nothing of an ended attempt is left in a step.
    pub(crate) fn release_if_drained(&mut self, key: u64) {
        let Some(attempt) = self.attempts.get(&key) else { return };
        if attempt.outcome.is_none() || !R::is_released(attempt.rows_in_flight) || !self.step_machine(key, AttemptEvent::Drained) {
            return;
        }
        self.say_released(key);
        if let Some(attempt) = self.attempts.remove(&key) {
            self.by_id.remove(&attempt.id);
            for s in &attempt.sequences {
                self.owners.remove(&s.owner);
            }
        }
    }

    fn say_released(&mut self, key: u64) {
        let Some(attempt) = self.attempts.get(&key) else { return };
        let attempt_id = attempt.id.clone();
        let receipt = Receipt {
            blocks_held: attempt.blocks_held(),
            blocks_peak: attempt.blocks_peak,
            blocks_shared: attempt.blocks_shared,
            steps: attempt.steps,
            fence: attempt.last_step,
        };
        if receipt.fence.0 > 0 {
            self.journal(key, Event::FenceCompleted { step: receipt.fence });
        }
        self.journal(key, Event::Released { receipt });
        self.out.push(Effect::Released { attempt: attempt_id, receipt });
    }
}
