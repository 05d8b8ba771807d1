//! How an attempt gets in: submit, its prompt, the checks that can refuse it, and its turn to run.

use std::sync::Arc;

use kv::Owner;
use lifecycle::event::Event;
use lifecycle::{AttemptEvent, AttemptId, AttemptState, Cause, Outcome, Resumable, Rules, StepId};

use crate::attempt::{Attempt, Rank, Sequence};
use crate::engine::Engine;
use crate::io::{Effect, Submission};

/// Most deadlines an attempt may carry; more are ignored.
pub(crate) const DEADLINES_MAX: usize = 8;

impl<R: Rules> Engine<R> {
    pub(crate) fn submit(&mut self, s: Submission) {
        if self.by_id.contains_key(&s.attempt) {
            return; // the same message again: it runs already
        }
        let early = match self.tombstones.submit(&s.attempt, s.number) {
            Ok(early) => early,
            Err(()) => return, // executed or given up long ago (C-2)
        };
        let key = self.enter(s);
        // contract: C-11
        let refusal = match (early, &self.lost) {
            (Some(outcome), _) => Some(outcome),
            (None, Some(why)) => Some(Outcome::because(Cause::DeviceError, format!("the device is lost: {why}"))),
            (None, None) if self.waiting.len() >= self.config.queue_limit as usize => {
                Some(Outcome::because(Cause::QueueFull, format!("{} runs wait already", self.config.queue_limit)))
            }
            _ => None,
        };
        self.step_machine(key, AttemptEvent::Submit);
        match refusal {
            Some(outcome) => {
                self.end_attempt(key, outcome);
                self.release_if_drained(key);
            }
            None => {
                let rank = self.attempts[&key].rank;
                self.waiting.insert(rank);
            }
        }
    }

    /// Makes the attempt known, in state unknown.
    fn enter(&mut self, s: Submission) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        for (i, (at, cause)) in s.deadlines.iter().take(DEADLINES_MAX).enumerate() {
            self.deadlines.insert((*at, key * DEADLINES_MAX as u64 + i as u64), *cause);
        }
        let attempt = Attempt {
            id: s.attempt.clone(),
            rank: (s.priority, key),
            state: AttemptState::Unknown,
            sampling: Arc::new(s.sampling),
            stop_tokens: s.stop_tokens.into(),
            n: s.n,
            max_tokens: s.max_tokens,
            salt: s.cache_salt,
            deadlines: s.deadlines,
            sequences: Vec::new(),
            prompt_len: 0,
            cached_prompt: 0,
            generated: 0,
            outcome: None,
            rows_in_flight: 0,
            steps: 0,
            last_step: StepId(0),
            blocks_peak: 0,
            blocks_shared: 0,
            prefill_started: false,
        };
        self.by_id.insert(s.attempt, key);
        self.attempts.insert(key, attempt);
        key
    }

    pub(crate) fn tokenised(&mut self, id: &AttemptId, tokens: Vec<u32>) {
        let Some(&key) = self.by_id.get(id) else { return };
        if !matches!(self.attempts[&key].state, AttemptState::Tokenising | AttemptState::Suspended { was: Resumable::Tokenising }) {
            return; // ended meanwhile, or the same message again
        }
        let fits = self.fit(&self.attempts[&key], &tokens);
        let cap = match fits.and_then(|cap| self.in_time(key, &tokens).map(|()| cap)) {
            Ok(cap) => cap,
            Err(outcome) => {
                self.end_attempt(key, outcome);
                return self.release_if_drained(key);
            }
        };
        let prompt_tokens = tokens.len() as u32;
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        attempt.prompt_len = prompt_tokens;
        attempt.max_tokens = Some(cap);
        for index in 0..attempt.n {
            let owner = Owner(self.next_owner);
            self.next_owner += 1;
            self.owners.insert(owner, key);
            attempt.sequences.push(Sequence::new(owner, index, &tokens));
        }
        let (attempt_id, n) = (attempt.id.clone(), attempt.n);
        self.step_machine(key, AttemptEvent::Tokenised);
        self.journal(key, Event::Queued { prompt_tokens, n, max_tokens: cap });
        self.out.push(Effect::Accepted { attempt: attempt_id, prompt_tokens });
    }

    /// The cap on generated tokens a sequence, or why the attempt can never run.
    fn fit(&self, attempt: &Attempt, tokens: &[u32]) -> Result<u32, Outcome> {
        let (context, vocab, bt) = (self.limits.context as usize, self.limits.vocab, self.limits.block_tokens as usize);
        let prompt = tokens.len();
        if prompt == 0 {
            return Err(Outcome::because(Cause::Invalid, "the prompt has no tokens"));
        }
        if let Some(bad) = tokens.iter().find(|t| **t >= vocab) {
            return Err(Outcome::because(Cause::Invalid, format!("token {bad} is not in the vocabulary of {vocab}")));
        }
        if prompt >= context {
            return Err(Outcome::because(
                Cause::OverLimit,
                format!("the prompt has {prompt} tokens; the model's context of {context} must also hold the answer"),
            ));
        }
        let slots = self.limits.slots.min(self.config.max_running);
        if attempt.n > slots {
            return Err(Outcome::because(Cause::OverLimit, format!("{} answers at once; this worker runs {slots} sequences", attempt.n)));
        }
        let total = (self.limits.blocks_total - self.pool.account().quarantined) as usize;
        let n = attempt.n as usize;
        // Full blocks of the prompt are shared by the n sequences, each has its own tail; the last token needs no position.
        let shared = (prompt - 1) / bt;
        let blocks = |cap: usize| shared + n * ((prompt + cap - 1).div_ceil(bt) - shared);
        let room = context - prompt;
        let cap = match attempt.max_tokens {
            Some(asked) => (asked as usize).min(room),
            None => {
                let per_sequence = total.saturating_sub(shared) / n;
                let fits = ((shared + per_sequence) * bt + 1).saturating_sub(prompt);
                room.min(self.config.default_max_tokens as usize).min(fits).max(1)
            }
        };
        match blocks(cap) {
            need if need > total => Err(Outcome::because(
                Cause::CannotFit,
                format!("{n} x ({prompt} prompt + {cap} answer tokens) need {need} blocks of {bt}; the pool has {total}"),
            )),
            _ => Ok(cap as u32),
        }
    }

    /// Lets waiting attempts run, in order, while there are slots and room for their known tokens.
    pub(crate) fn admit(&mut self) {
        let bt = self.limits.block_tokens as usize;
        // What running attempts still need for tokens they know already.
        let missing = |a: &Attempt| a.sequences.iter().map(|s| s.tokens.len().div_ceil(bt).saturating_sub(s.leases.len())).sum::<usize>();
        let mut promised: usize = self.running.iter().map(|(_, key)| missing(&self.attempts[key])).sum();
        while let Some(rank) = self.next_waiting() {
            let attempt = &self.attempts[&rank.1];
            let open: Vec<usize> = (0..attempt.sequences.len()).filter(|i| attempt.sequences[*i].finished.is_none()).collect();
            let shared = (attempt.prompt_len as usize - 1) / bt;
            let need = shared + open.iter().map(|i| attempt.sequences[*i].tokens.len().div_ceil(bt) - shared).sum::<usize>();
            let room = (self.pool.capacity() as usize).saturating_sub(promised);
            let alone = self.running.is_empty() && self.suspended.is_empty() && self.pool.account().draining == 0;
            if need > room && alone {
                // Blocks were quarantined since it was checked.
                self.end_attempt(rank.1, Outcome::because(Cause::CannotFit, format!("needs {need} blocks, {room} are left")));
                self.release_if_drained(rank.1);
                continue;
            }
            if self.slots.len() < open.len() || need > room {
                return; // strictly in order: nobody overtakes an attempt that waits for room
            }
            promised += need;
            if promised > self.pool.available() as usize {
                self.defect("an attempt was let in on blocks that are not there");
            }
            let Some(attempt) = self.attempts.get_mut(&rank.1) else { return };
            for i in open {
                attempt.sequences[i].slot = self.slots.pop();
            }
            self.waiting.remove(&rank);
            self.running.insert(rank);
            self.step_machine(rank.1, AttemptEvent::Scheduled);
            self.forget_deadlines(rank.1, |cause| cause == Cause::QueueDeadline);
        }
    }

    /// The first waiting attempt whose prompt is there and whose gateway is, if no row of its earlier life is in flight any more.
    fn next_waiting(&self) -> Option<Rank> {
        let rank = *self.waiting.iter().find(|r| self.attempts[&r.1].state.is_runnable())?;
        (self.attempts[&rank.1].rows_in_flight == 0).then_some(rank)
    }

    /// Takes an attempt's deadlines of some causes off the list.
    pub(crate) fn forget_deadlines(&mut self, key: u64, which: impl Fn(Cause) -> bool) {
        let Some(attempt) = self.attempts.get(&key) else { return };
        for (i, (at, cause)) in attempt.deadlines.iter().take(DEADLINES_MAX).enumerate() {
            if which(*cause) {
                self.deadlines.remove(&(*at, key * DEADLINES_MAX as u64 + i as u64));
            }
        }
    }
}
