//! A simulated device: tokens are made from what its memory holds, so that a block in wrong hands gives wrong tokens.
//!
//! K and V of a position are a number made from the number before it, as read from memory, and the token there. A token is chosen from all
//! numbers before it, the run and the sequence. A block that is handed out too early, shared wrongly, published half done or recomputed
//! differently changes what comes next.
//!
//! Invariant: steps run in the order of their submission; a row whose flag is set before its step begins computes nothing.

use std::collections::VecDeque;

use engine::{Row, RowDone, RowTokens, Sampled, StepPlan};
use kv::BlockId;

use super::rng::mix;

/// Tokens there are.
pub(super) const VOCAB: u32 = 97;
/// The one that ends an answer.
pub(super) const STOP: u32 = 96;
/// Positions a block.
pub(super) const BLOCK_TOKENS: u32 = 4;

fn choose(fold: u64, seed: u64, sequence: u32) -> u32 {
    (mix(mix(fold, seed), u64::from(sequence)) % u64::from(VOCAB)) as u32
}

/// What a sequence of a run generates when nobody disturbs it.
pub(super) fn isolated(prompt: &[u32], cap: u32, seed: u64, sequence: u32) -> Vec<u32> {
    let (mut content, mut fold) = (0, 0);
    let mut out = Vec::new();
    for token in prompt {
        content = mix(content, u64::from(*token));
        fold = mix(fold, content);
    }
    while out.len() < cap as usize {
        let token = choose(fold, seed, sequence);
        out.push(token);
        if token == STOP {
            break;
        }
        content = mix(content, u64::from(token));
        fold = mix(fold, content);
    }
    out
}

#[derive(Clone, Debug, Default)]
struct SlotState {
    tokens: Vec<u32>,
    seed: u64,
    sequence: u32,
    ended: bool,
    broken: bool,
}

/// Memory, slots and the steps that wait.
#[derive(Debug)]
pub(super) struct SimulatedDevice {
    memory: Vec<u64>,
    slots: Vec<SlotState>,
    /// The first is running if `early` is there: rows that were flagged when it began.
    pub queue: VecDeque<StepPlan>,
    early: Option<Vec<bool>>,
    pub lost: bool,
}

impl SimulatedDevice {
    pub fn new(blocks: u32, slots: u32) -> SimulatedDevice {
        SimulatedDevice {
            memory: vec![0xbad; (blocks * BLOCK_TOKENS) as usize],
            slots: vec![SlotState::default(); slots as usize],
            queue: VecDeque::new(),
            early: None,
            lost: false,
        }
    }

    /// Begins the oldest step, if none is running.
    pub fn begin(&mut self) -> Option<&StepPlan> {
        let plan = self.queue.front().filter(|_| self.early.is_none())?;
        self.early = Some(plan.rows.iter().map(Row::is_dropped).collect());
        Some(plan)
    }

    /// Ends the running step: everything of it is computed now, but what was flagged before it began, or while it ran.
    pub fn end(&mut self) -> Option<(StepPlan, Vec<RowDone>)> {
        let (early, plan) = (self.early.take()?, self.queue.pop_front()?);
        let done = plan.rows.iter().zip(early).map(|(row, early)| self.run(row, early)).collect();
        Some((plan, done))
    }

    /// Ends the running step without a result.
    pub fn fail(&mut self) -> Option<StepPlan> {
        self.early = None;
        let plan = self.queue.pop_front()?;
        for row in &plan.rows {
            self.start(row);
            self.slots[row.slot.0 as usize].broken = true;
        }
        Some(plan)
    }

    fn start(&mut self, row: &Row) {
        if let Some(start) = &row.start {
            self.slots[row.slot.0 as usize] =
                SlotState { tokens: start.tokens.clone(), seed: start.sampling.seed, sequence: start.sequence, ..SlotState::default() };
        }
    }

    fn run(&mut self, row: &Row, early: bool) -> RowDone {
        self.start(row);
        let slot = &mut self.slots[row.slot.0 as usize];
        if early || slot.ended || (slot.broken && row.tokens == RowTokens::Last) {
            slot.broken = true;
            return RowDone::Dropped { layers: 0 };
        }
        if row.is_dropped() {
            // Half computed: whoever reads this gets nonsense.
            slot.broken = true;
            self.scribble(row);
            return RowDone::Dropped { layers: 3 };
        }
        RowDone::Computed { sampled: self.compute(row), late: false }
    }

    /// Writes nonsense where a row writes.
    pub fn scribble(&mut self, row: &Row) {
        for p in row.position..row.position + row.count() {
            self.memory[place(&row.table, p)] = 0xdead;
        }
    }

    fn compute(&mut self, row: &Row) -> Option<Sampled> {
        let (memory, slot) = (&mut self.memory, &mut self.slots[row.slot.0 as usize]);
        let end = row.position + row.count();
        for p in row.position..end {
            let before = if p == 0 { 0 } else { memory[place(&row.table, p - 1)] };
            memory[place(&row.table, p)] = mix(before, u64::from(slot.tokens.get(p as usize).copied().unwrap_or(0)));
        }
        if !row.sample {
            return None;
        }
        let fold = (0..end).fold(0, |fold, p| mix(fold, memory[place(&row.table, p)]));
        let token = choose(fold, slot.seed >> TAG_BITS, slot.sequence);
        slot.tokens.truncate(end as usize);
        slot.tokens.push(token);
        slot.ended = token == STOP;
        Some(Sampled { token, logprob: None, top: Vec::new() })
    }
}

/// A row does not say whose it is; its seed does, whose last bits hold the attempt's number.
pub(super) const TAG_BITS: u32 = 8;

fn place(table: &[BlockId], position: u32) -> usize {
    (table[(position / BLOCK_TOKENS) as usize].0 * BLOCK_TOKENS + position % BLOCK_TOKENS) as usize
}
