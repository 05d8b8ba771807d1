//! A device as hostile as the `Device` trait allows, with its memory as part of the state.
//!
//! What a step writes may land again at any time until its fence message is taken: so a block that is handed out before that is overwritten,
//! and the tokens of whoever got it are wrong. A row that is dropped on its way leaves garbage. A step that hangs may write long after.
//!
//! Invariant: it looks at plans and flags only, never at the engine.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use engine::{DeviceError, Flag, FlagMap, Row, RowDone, RowTokens, Sampled, StepDone, StepPlan};
use lifecycle::StepId;

use super::truth::{choose, mix};
use super::words::Try;

const GARBAGE: u64 = 0xdead;

/// How far a step is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// Behind another, or not begun.
    Waiting,
    /// Its rows have passed their first layer.
    Running,
    /// Its fence message is on its way.
    Done,
}

/// A step on the device.
#[derive(Debug)]
pub struct Queued {
    /// The plan.
    pub plan: StepPlan,
    /// Whose each row is.
    pub whose: Vec<Try>,
    /// How far it is.
    pub stage: Stage,
    dropped: Vec<bool>,
    done: Vec<RowDone>,
    /// What it wrote and may write again.
    landing: Vec<(usize, u64)>,
}

#[derive(Debug, Default)]
struct SlotState {
    tokens: Vec<u32>,
    stop_tokens: Arc<[u32]>,
    sequence: u32,
    ended: bool,
    broken: bool,
    flag: Flag,
}

/// The device.
#[derive(Debug)]
pub struct SimulatedDevice {
    block_tokens: u32,
    memory: Vec<u64>,
    slots: Vec<SlotState>,
    /// Steps whose fence message was not taken, oldest first.
    pub queue: VecDeque<Queued>,
    /// Where a step that hangs may still write.
    ghost: Vec<usize>,
    /// Steps that hung, whose fence messages may come after all.
    pub late: Vec<StepId>,
}

impl SimulatedDevice {
    /// A device with empty memory.
    pub fn new(blocks: u32, block_tokens: u32, slots: u32) -> SimulatedDevice {
        SimulatedDevice {
            block_tokens,
            memory: vec![0; (blocks * block_tokens) as usize],
            slots: (0..slots).map(|_| SlotState::default()).collect(),
            queue: VecDeque::new(),
            ghost: Vec::new(),
            late: Vec::new(),
        }
    }

    /// Takes a plan.
    pub fn submit(&mut self, plan: StepPlan, whose: Vec<Try>) {
        let (dropped, done, landing) = (Vec::new(), Vec::new(), Vec::new());
        self.queue.push_back(Queued { plan, whose, stage: Stage::Waiting, dropped, done, landing });
    }

    /// The step that may begin.
    pub fn next_to_begin(&self) -> Option<usize> {
        let at = self.queue.iter().position(|q| q.stage == Stage::Waiting)?;
        self.queue.iter().take(at).all(|q| q.stage == Stage::Done).then_some(at)
    }

    /// The step that runs.
    pub fn running(&self) -> Option<usize> {
        self.queue.iter().position(|q| q.stage == Stage::Running)
    }

    /// A step begins: rows that are flagged by now are dropped before their first layer. How many.
    pub fn begin(&mut self, at: usize) -> usize {
        let step = &mut self.queue[at];
        step.dropped = step.plan.rows.iter().map(Row::is_dropped).collect();
        step.stage = Stage::Running;
        step.dropped.iter().filter(|d| **d).count()
    }

    /// Whether a row of the running step was flagged since it began.
    pub fn has_flagged_row(&self, at: usize) -> bool {
        let step = &self.queue[at];
        step.plan.rows.iter().zip(&step.dropped).any(|(row, early)| row.is_dropped() && !early)
    }

    /// The running step ends. Rows that were flagged meanwhile are dropped at the next layer if `noticed`, else it was the last layer.
    pub fn end(&mut self, at: usize, noticed: bool) {
        let rows: Vec<(Row, bool)> = self.queue[at].plan.rows.iter().cloned().zip(self.queue[at].dropped.clone()).collect();
        let (mut done, mut landing) = (Vec::new(), Vec::new());
        for (row, early) in rows {
            done.push(self.run_row(&row, early, noticed, &mut landing));
        }
        let step = &mut self.queue[at];
        (step.done, step.landing, step.stage) = (done, landing, Stage::Done);
    }

    fn run_row(&mut self, row: &Row, early: bool, noticed: bool, landing: &mut Vec<(usize, u64)>) -> RowDone {
        let at = row.slot.0 as usize;
        if let Some(start) = &row.start {
            self.slots[at] = SlotState {
                tokens: start.tokens.clone(),
                stop_tokens: start.stop_tokens.clone(),
                sequence: start.sequence,
                flag: row.flag.clone(),
                ..SlotState::default()
            };
        }
        let slot = &mut self.slots[at];
        if early || slot.ended || (slot.broken && row.tokens == RowTokens::Last) {
            slot.broken = true;
            return RowDone::Dropped { layers: 0 };
        }
        let flagged = row.is_dropped();
        if flagged && noticed {
            slot.broken = true;
            for p in row.position..row.position + row.count() {
                self.write(self.place(row, p), GARBAGE, landing);
            }
            return RowDone::Dropped { layers: 1 };
        }
        RowDone::Computed { sampled: self.compute(row, landing), late: flagged }
    }

    fn place(&self, row: &Row, p: u32) -> usize {
        (row.table[(p / self.block_tokens) as usize].0 * self.block_tokens + p % self.block_tokens) as usize
    }

    fn write(&mut self, at: usize, value: u64, landing: &mut Vec<(usize, u64)>) {
        self.memory[at] = value;
        landing.push((at, value));
    }

    fn compute(&mut self, row: &Row, landing: &mut Vec<(usize, u64)>) -> Option<Sampled> {
        let end = row.position + row.count();
        for p in row.position..end {
            let before = if p == 0 { 0 } else { self.memory[self.place(row, p - 1)] };
            let token = self.slots[row.slot.0 as usize].tokens.get(p as usize).copied().unwrap_or(0);
            self.write(self.place(row, p), mix(before, u64::from(token)), landing);
        }
        if !row.sample {
            return None;
        }
        let contents: Vec<u64> = (0..end).map(|p| self.memory[self.place(row, p)]).collect();
        let slot = &mut self.slots[row.slot.0 as usize];
        let token = choose(contents.into_iter(), slot.sequence);
        slot.tokens.truncate(end as usize);
        slot.tokens.push(token);
        slot.ended = slot.stop_tokens.contains(&token);
        Some(Sampled { token, logprob: None, top: Vec::new() })
    }

    /// The oldest step's fence message is taken: what it wrote has landed for the last time.
    pub fn fence(&mut self) -> Option<StepDone> {
        let step = self.queue.pop_front()?;
        step.landing.iter().for_each(|(at, value)| self.memory[*at] = *value);
        Some(StepDone { id: step.plan.id, result: Ok(step.done) })
    }

    /// The oldest step fails.
    pub fn fail(&mut self, error: DeviceError) -> Option<StepDone> {
        let step = self.queue.pop_front()?;
        let id = step.plan.id;
        self.spoil(&step, false);
        if !matches!(error, DeviceError::Step(_)) {
            // What is queued behind it saw nobody knows what: the engine gives all of it up.
            let behind: Vec<Queued> = std::mem::take(&mut self.queue).into();
            behind.iter().for_each(|step| self.spoil(step, true));
            self.spoil(&step, true);
            self.late.push(id);
        }
        Some(StepDone { id, result: Err(error) })
    }

    fn spoil(&mut self, step: &Queued, hangs: bool) {
        for row in &step.plan.rows {
            self.slots[row.slot.0 as usize].broken = true;
            let places: Vec<usize> = (row.position..row.position + row.count()).map(|p| self.place(row, p)).collect();
            places.iter().for_each(|at| self.memory[*at] = GARBAGE);
            if hangs {
                self.ghost.extend(places);
            }
        }
    }

    /// Whether a step that hung may still write.
    pub fn has_ghost(&self) -> bool {
        !self.ghost.is_empty()
    }

    /// It does.
    pub fn ghost_writes(&mut self) {
        std::mem::take(&mut self.ghost).into_iter().for_each(|at| self.memory[at] = GARBAGE);
    }

    /// What a block holds.
    pub fn block(&self, block: u32) -> &[u64] {
        let bt = self.block_tokens as usize;
        &self.memory[block as usize * bt..(block as usize + 1) * bt]
    }

    /// The same device in the world that `flags` belongs to.
    pub fn fork(&self, flags: &mut FlagMap) -> SimulatedDevice {
        let fork = |q: &Queued, flags: &mut FlagMap| Queued {
            plan: q.plan.fork(flags),
            whose: q.whose.clone(),
            stage: q.stage,
            dropped: q.dropped.clone(),
            done: q.done.clone(),
            landing: q.landing.clone(),
        };
        let queue = self.queue.iter().map(|q| fork(q, flags)).collect();
        let slots = self.slots.iter().map(|s| SlotState {
            tokens: s.tokens.clone(),
            stop_tokens: s.stop_tokens.clone(),
            flag: flags.fork(&s.flag),
            ..*s
        });
        SimulatedDevice {
            block_tokens: self.block_tokens,
            memory: self.memory.clone(),
            slots: slots.collect(),
            queue,
            ghost: self.ghost.clone(),
            late: self.late.clone(),
        }
    }

    /// Writes into a fingerprint what can still matter. What free blocks hold cannot, nor can a slot that will be reset before its next row.
    pub fn hash_state<H: Hasher>(&self, next: StepId, matters: impl Fn(u32) -> bool, out: &mut H) {
        for (block, contents) in self.memory.chunks(self.block_tokens as usize).enumerate() {
            if matters(block as u32) {
                (block, contents).hash(out);
            }
        }
        for (i, slot) in self.slots.iter().enumerate() {
            let queued = self.queue.iter().flat_map(|q| &q.plan.rows).any(|row| row.slot.0 as usize == i);
            if queued || !slot.flag.is_set() {
                (i, &slot.tokens, &slot.stop_tokens, slot.sequence, slot.ended, slot.broken).hash(out);
            }
        }
        (self.queue.len(), &self.ghost, self.late.len()).hash(out);
        for step in &self.queue {
            let Queued { plan, whose, stage, dropped, done, landing } = step;
            (next.0 - plan.id.0, whose, stage, dropped, landing).hash(out);
            for row in &plan.rows {
                (row.slot, row.position, row.count(), row.tokens == RowTokens::Last, &row.table, row.sample, row.flag.is_set()).hash(out);
                row.start.as_ref().map(|s| (&s.tokens, s.prompt_len)).hash(out);
            }
            for done in done {
                match done {
                    RowDone::Computed { sampled, late } => (sampled.as_ref().map(|s| s.token), late).hash(out),
                    RowDone::Dropped { layers } => layers.hash(out),
                }
            }
        }
    }
}
