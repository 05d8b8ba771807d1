//! What the device knows of each sequence: its tokens, how to choose the next, and whether later rows of it still make sense.
//!
//! Invariant: a token is appended exactly when it was chosen; a slot whose last row was dropped or failed, or that chose a stop token, gives
//! no tokens to later rows until it is started anew.
// contract: C-12

use std::ops::Range;
use std::sync::Arc;

use engine::device::{Row, RowTokens, Sampled, Slot, SlotStart};
use lifecycle::params::Sampling;

use crate::sampler;

/// The slots.
pub(crate) struct Slots {
    slots: Vec<Option<Sequence>>,
}

struct Sequence {
    tokens: Vec<u32>,
    prompt_len: usize,
    sampling: Arc<Sampling>,
    number: u32,
    stop_tokens: Arc<[u32]>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Started, and no token chosen yet.
    Known,
    /// The last token was chosen by a row.
    Chosen,
    /// Nothing more is to be computed.
    Ended,
}

/// What a row is to compute.
pub(crate) enum Taken {
    /// These of the slot's tokens.
    Tokens(Range<usize>),
    /// Nothing: it is dropped before its first layer.
    Nothing,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Slots {
        Slots { slots: (0..count).map(|_| None).collect() }
    }

    /// Starts what is to be started, and finds each row's tokens. A row that does not fit its slot is an error of the step.
    pub(crate) fn take(&mut self, rows: &[Row]) -> Result<Vec<Taken>, String> {
        let mut seen: Vec<Slot> = rows.iter().map(|row| row.slot).collect();
        seen.sort_unstable();
        if let Some(twice) = seen.windows(2).find(|w| w[0] == w[1]) {
            return Err(format!("slot {} occurs twice in a step", twice[0].0));
        }
        rows.iter().map(|row| self.take_row(row)).collect()
    }

    fn take_row(&mut self, row: &Row) -> Result<Taken, String> {
        let number = row.slot.0;
        let slot = self.slots.get_mut(number as usize).ok_or_else(|| format!("there is no slot {number}"))?;
        if let Some(start) = &row.start {
            *slot = Some(Sequence::new(start));
        }
        let sequence = slot.as_ref().ok_or_else(|| format!("slot {number} was never started"))?;
        let (from, known) = (row.position as usize, sequence.tokens.len());
        match (sequence.state, &row.tokens) {
            (State::Ended, _) => Ok(Taken::Nothing),
            (State::Known, RowTokens::Last) => Err(format!("slot {number}: no row has chosen a token yet")),
            (State::Chosen, RowTokens::Last) if from + 1 != known => {
                Err(format!("slot {number}: position {from} for its last token, which is at {}", known - 1))
            }
            (State::Chosen, RowTokens::Last) => Ok(Taken::Tokens(from..known)),
            (State::Known | State::Chosen, &RowTokens::Known { count }) => {
                let end = from + count as usize;
                if count == 0 || end > known || (row.sample && end != known) {
                    return Err(format!("slot {number}: tokens {from} to {end} (sample: {}) of {known} known", row.sample));
                }
                Ok(Taken::Tokens(from..end))
            }
        }
    }

    /// A slot's tokens.
    pub(crate) fn tokens(&self, slot: Slot) -> &[u32] {
        self.slots.get(slot.0 as usize).and_then(Option::as_ref).map_or(&[], |s| &s.tokens)
    }

    /// Chooses a slot's next token; nothing for a slot that was never started.
    pub(crate) fn sample(&mut self, slot: Slot, logits: &[f32]) -> Option<Sampled> {
        let s = self.get(slot)?;
        let sampled = sampler::sample(logits, &s.tokens, s.prompt_len, &s.sampling, s.number, &s.stop_tokens);
        s.tokens.push(sampled.token);
        s.state = if s.stop_tokens.contains(&sampled.token) { State::Ended } else { State::Chosen };
        Some(sampled)
    }

    /// A row of the slot was dropped or failed: its later rows have nothing to go on from.
    pub(crate) fn broken(&mut self, slot: Slot) {
        if let Some(s) = self.get(slot) {
            s.state = State::Ended;
        }
    }

    fn get(&mut self, slot: Slot) -> Option<&mut Sequence> {
        self.slots.get_mut(slot.0 as usize).and_then(Option::as_mut)
    }
}

impl Sequence {
    fn new(start: &SlotStart) -> Sequence {
        Sequence {
            tokens: start.tokens.clone(),
            prompt_len: start.prompt_len,
            sampling: Arc::clone(&start.sampling),
            number: start.sequence,
            stop_tokens: Arc::clone(&start.stop_tokens),
            state: State::Known,
        }
    }
}
