//! What the next step computes: in order of service, one token for each decoding sequence and prompt chunks with what is left of the budget.

use std::sync::Arc;

use lifecycle::event::Event;
use lifecycle::{Cause, Outcome, Rules, StepId};

use crate::attempt::Rank;
use crate::device::{Row, RowTokens, SlotStart, StepPlan};
use crate::engine::{Engine, InFlight, RowRef};
use crate::io::Effect;

/// A step being put together.
struct Draft {
    id: StepId,
    rows: Vec<Row>,
    refs: Vec<RowRef>,
    /// Tokens left for prompt chunks.
    budget: usize,
}

impl<R: Rules> Engine<R> {
    /// The next step, if there is something to compute and the device has room. It counts as in flight from here on: submit it.
    pub fn plan(&mut self) -> (Option<StepPlan>, Vec<Effect>) {
        let mut plan = None;
        while self.lost.is_none() && self.in_flight.len() < self.config.in_flight.min(self.limits.in_flight) as usize {
            self.admit();
            let draft = self.draft();
            self.assert_conserved();
            if !draft.rows.is_empty() {
                self.next_step += 1;
                self.pace.planned(draft.id, self.in_flight.is_empty());
                self.in_flight.push_back(InFlight { id: draft.id, rows: draft.refs });
                plan = Some(StepPlan { id: draft.id, rows: draft.rows });
                break;
            }
            if !self.in_flight.is_empty() || !self.unstick() {
                break;
            }
        }
        (plan, std::mem::take(&mut self.out))
    }

    fn draft(&mut self) -> Draft {
        let order: Vec<Rank> = self.running.iter().copied().collect();
        let decoding = |r: &Rank| self.attempts[&r.1].sequences.iter().filter(|s| s.is_decoding()).count();
        let decoding: usize = order.iter().map(decoding).sum();
        let bt = self.limits.block_tokens as usize;
        let budget = (self.config.step_tokens as usize).saturating_sub(decoding).max(bt);
        let mut draft = Draft { id: StepId(self.next_step), rows: Vec::new(), refs: Vec::new(), budget };
        for rank in order {
            let count = self.attempts.get(&rank.1).map_or(0, |a| a.sequences.len());
            for s in 0..count {
                if self.running.contains(&rank) {
                    self.plan_sequence(rank, s, &mut draft);
                }
            }
        }
        draft
    }

    /// Nothing is in flight and nothing that runs can go on: the youngest gives way, and ends if it is alone (the pool shrank under it).
    /// While suspended attempts keep blocks, it waits for them instead. Whether anything changed.
    // contract: C-10, C-16
    fn unstick(&mut self) -> bool {
        let Some(youngest) = self.running.last().copied() else { return false };
        if self.running.len() > 1 {
            self.preempt(youngest);
            return true;
        }
        if !self.suspended.is_empty() {
            return false;
        }
        let why = "the pool has too few usable blocks left for this run";
        self.end_attempt(youngest.1, Outcome::because(Cause::WorkerError, why));
        self.release_if_drained(youngest.1);
        true
    }

    fn plan_sequence(&mut self, rank: Rank, s: usize, draft: &mut Draft) {
        let attempt = &self.attempts[&rank.1];
        let seq = &attempt.sequences[s];
        if seq.finished.is_some() {
            return;
        }
        if seq.is_decoding() {
            if seq.generated() + seq.samples_in_flight < attempt.cap() {
                self.plan_decode(rank, s, draft);
            }
        } else if seq.scheduled < seq.tokens.len() && draft.budget > 0 {
            self.plan_prefill(rank, s, draft);
        }
    }

    fn plan_decode(&mut self, rank: Rank, s: usize, draft: &mut Draft) {
        let bt = self.limits.block_tokens as usize;
        let position = self.attempts[&rank.1].sequences[s].scheduled;
        let want = (position + 1).div_ceil(bt);
        if self.allocate(rank, s, want) >= want {
            self.push_row(rank.1, s, draft, RowTokens::Last, true);
        }
    }

    fn plan_prefill(&mut self, rank: Rank, s: usize, draft: &mut Draft) {
        let (key, bt) = (rank.1, self.limits.block_tokens as usize);
        if !self.share_prefix(key, s) {
            return; // somebody computes the next block: follow, and take over if they end
        }
        let seq = &self.attempts[&key].sequences[s];
        let (start, known) = (seq.scheduled, seq.tokens.len());
        let mut end = known.min(start + draft.budget);
        if end < known {
            end = end / bt * bt; // whole blocks, so that a chunk never ends inside one
        }
        if end <= start {
            return;
        }
        let have = self.allocate(rank, s, end.div_ceil(bt)) * bt;
        end = end.min(have);
        if end <= start || !self.running.contains(&rank) {
            return;
        }
        self.claim_blocks(key, s, start / bt, end / bt);
        draft.budget = draft.budget.saturating_sub(end - start);
        self.push_row(key, s, draft, RowTokens::Known { count: (end - start) as u32 }, end == known);
    }

    fn push_row(&mut self, key: u64, s: usize, draft: &mut Draft, tokens: RowTokens, sample: bool) {
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        let (sampling, stop_tokens) = (attempt.sampling.clone(), attempt.stop_tokens.clone());
        let seq = &mut attempt.sequences[s];
        let Some(slot) = seq.slot else { return };
        let start = (!seq.started).then(|| {
            Arc::new(SlotStart { tokens: seq.tokens.clone(), prompt_len: seq.prompt_len, sampling, sequence: seq.index, stop_tokens })
        });
        seq.started = true;
        let (position, known) = match tokens {
            RowTokens::Known { count } => (seq.scheduled, count),
            RowTokens::Last => (seq.scheduled, 0),
        };
        let end = position + (known as usize).max(1);
        draft.rows.push(Row { slot, start, position: position as u32, tokens, table: seq.table.clone(), sample, flag: seq.flag.clone() });
        draft.refs.push(RowRef { key, sequence: s, epoch: seq.epoch, end, known, sample_at: sample.then_some(end) });
        seq.scheduled = end;
        seq.samples_in_flight += usize::from(sample);
        seq.sampled |= sample;
        seq.rows_in_flight += 1;
        seq.last_step = draft.id;
        attempt.rows_in_flight += 1;
        if attempt.last_step != draft.id {
            attempt.steps += 1;
            attempt.last_step = draft.id;
        }
        if !attempt.prefill_started {
            attempt.prefill_started = true;
            self.journal(key, Event::PrefillStart);
        }
    }
}
