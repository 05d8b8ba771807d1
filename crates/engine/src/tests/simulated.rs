//! A simulated device and a world around an engine. Only for tests: tokens are hashes of what the simulated memory holds.
//!
//! K and V of position p are a number made from the number at p - 1, read from memory, and the token at p. A chosen token is made from
//! all numbers before it. So a block that is handed out too early, shared wrongly or recomputed differently gives other tokens.

use std::collections::{HashMap, VecDeque};

use kv::BlockId;
use lifecycle::event::Event;
use lifecycle::message::{Receipt, Snapshot};
use lifecycle::params::Sampling;
use lifecycle::{AttemptId, Cause, Outcome, RunId, RunKey, Tenant, Time};

use crate::device::{DeviceError, DeviceLimits, RowDone, RowTokens, Sampled, Slot, StepDone, StepPlan};
use crate::{Effect, Engine, EngineConfig, Input, Submission};

pub const VOCAB: u32 = 97;
pub const STOP: u32 = 96;
pub const BT: u32 = 4;
/// Steps that the device may have in flight.
pub const IN_FLIGHT: usize = 2;

fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(23) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 29)
}

fn choose(fold: u64) -> u32 {
    (mix(fold, 7) % u64::from(VOCAB)) as u32
}

/// What an isolated run generates: at most `cap` tokens, ending with the stop token if it is chosen.
pub fn isolated(prompt: &[u32], cap: usize, ignore_stop: bool) -> Vec<u32> {
    let (mut content, mut fold) = (0, 0);
    let mut out = Vec::new();
    for t in prompt {
        content = mix(content, u64::from(*t));
        fold = mix(fold, content);
    }
    while out.len() < cap {
        let token = choose(fold);
        out.push(token);
        if token == STOP && !ignore_stop {
            break;
        }
        content = mix(content, u64::from(token));
        fold = mix(fold, content);
    }
    out
}

#[derive(Default)]
struct SlotState {
    tokens: Vec<u32>,
    stop_tokens: Vec<u32>,
    ended: bool,
    broken: bool,
}

/// Runs steps one after the other when told to.
#[derive(Default)]
pub struct SimulatedDevice {
    memory: HashMap<(BlockId, u32), u64>,
    slots: HashMap<Slot, SlotState>,
    pub queue: VecDeque<StepPlan>,
}

impl SimulatedDevice {
    /// Runs the oldest queued step to its end. Rows flagged by now are dropped before layer 0, those flagged in `mid_step` later.
    pub fn run_step(&mut self, mid_step: impl FnOnce()) -> Option<StepDone> {
        let plan = self.queue.pop_front()?;
        let early: Vec<bool> = plan.rows.iter().map(|r| r.is_dropped()).collect();
        mid_step();
        let mut rows = Vec::new();
        for (row, early) in plan.rows.iter().zip(early) {
            if let Some(start) = &row.start {
                let state = SlotState { tokens: start.tokens.clone(), stop_tokens: start.stop_tokens.to_vec(), ..SlotState::default() };
                self.slots.insert(row.slot, state);
            }
            let slot = self.slots.get_mut(&row.slot).expect("a slot is started before it is used");
            if early || slot.ended || (slot.broken && row.tokens == RowTokens::Last) {
                slot.broken = true;
                rows.push(RowDone::Dropped { layers: 0 });
                continue;
            }
            if row.is_dropped() {
                // Half computed: some layers wrote, others did not. Whoever reads this gets nonsense.
                for p in row.position..row.position + row.count() {
                    self.memory.insert((row.table[(p / BT) as usize], p % BT), 0xdead);
                }
                slot.broken = true;
                rows.push(RowDone::Dropped { layers: 3 });
                continue;
            }
            rows.push(RowDone::Computed { sampled: compute(&mut self.memory, slot, row), late: false });
        }
        Some(StepDone { id: plan.id, result: Ok(rows) })
    }

    pub fn fail_step(&mut self, error: DeviceError) -> Option<StepDone> {
        let plan = self.queue.pop_front()?;
        for row in &plan.rows {
            self.slots.entry(row.slot).or_default().broken = true;
        }
        Some(StepDone { id: plan.id, result: Err(error) })
    }
}

fn compute(memory: &mut HashMap<(BlockId, u32), u64>, slot: &mut SlotState, row: &crate::Row) -> Option<Sampled> {
    let at = |p: u32| (row.table[(p / BT) as usize], p % BT);
    for p in row.position..row.position + row.count() {
        let before = if p == 0 { 0 } else { memory.get(&at(p - 1)).copied().unwrap_or(0xbad) };
        memory.insert(at(p), mix(before, u64::from(slot.tokens[p as usize])));
    }
    if !row.sample {
        return None;
    }
    let fold = (0..row.position + row.count()).fold(0, |f, p| mix(f, memory[&at(p)]));
    let token = choose(fold);
    slot.tokens.truncate((row.position + row.count()) as usize);
    slot.tokens.push(token);
    slot.ended = slot.stop_tokens.contains(&token);
    Some(Sampled { token, logprob: None, top: Vec::new() })
}

/// What a run was seen to do.
#[derive(Default, Clone, Debug)]
pub struct Seen {
    pub answers: HashMap<u32, Vec<u32>>,
    pub ended: Vec<Outcome>,
    pub released: Vec<Receipt>,
    pub released_events: u32,
    pub computed_after_cancel: u32,
    pub cancel_applied: bool,
    pub delivered_after_end: u32,
    pub acknowledged: Vec<Option<Cause>>,
    pub preempted: u32,
    pub cached_tokens: u32,
    pub discarded: u32,
    pub events: Vec<Event>,
}

/// An engine, its simulated device, and everything that came out.
pub struct World {
    pub engine: Engine,
    pub device: SimulatedDevice,
    pub now: Time,
    pub seen: HashMap<AttemptId, Seen>,
    pub defects: u32,
    /// Blocks that each failed step took along, as journalled.
    pub failures: Vec<u32>,
    /// What was said of a lost device.
    pub lost: Vec<String>,
    pub numbers: HashMap<AttemptId, u64>,
    next_number: u64,
}

pub fn id(name: &str) -> AttemptId {
    let run = RunId::parse(name).expect("a test's id is valid");
    AttemptId { key: RunKey { tenant: Tenant::default(), run }, attempt: 1 }
}

impl World {
    pub fn new(blocks: u32, config: EngineConfig) -> World {
        let limits = DeviceLimits {
            blocks_total: blocks,
            block_tokens: BT,
            block_bytes: 64,
            slots: 8,
            context: 200,
            vocab: VOCAB,
            in_flight: IN_FLIGHT as u32,
        };
        World {
            engine: Engine::new(config, limits),
            device: SimulatedDevice::default(),
            now: Time(1),
            seen: HashMap::new(),
            defects: 0,
            failures: Vec::new(),
            lost: Vec::new(),
            numbers: HashMap::new(),
            next_number: 1,
        }
    }

    pub fn small(blocks: u32) -> World {
        World::new(blocks, EngineConfig { step_tokens: 16, max_running: 8, ..EngineConfig::default() })
    }

    pub fn submission(&mut self, name: &str) -> Submission {
        let number = self.next_number;
        self.next_number += 1;
        self.numbers.insert(id(name), number);
        Submission {
            attempt: id(name),
            number,
            n: 1,
            max_tokens: Some(8),
            sampling: Sampling::default(),
            stop_tokens: vec![STOP],
            cache_salt: String::new(),
            priority: 0,
            deadlines: Vec::new(),
        }
    }

    pub fn submit(&mut self, name: &str, prompt: &[u32], max_tokens: u32) {
        let s = Submission { max_tokens: Some(max_tokens), ..self.submission(name) };
        self.start(s, prompt);
    }

    pub fn start(&mut self, s: Submission, prompt: &[u32]) {
        let attempt = s.attempt.clone();
        self.apply(Input::Submit(Box::new(s)));
        self.apply(Input::Tokenised { attempt, tokens: prompt.to_vec() });
    }

    pub fn cancel(&mut self, name: &str, cause: Cause) {
        let attempt = id(name);
        let number = self.numbers.get(&attempt).copied().unwrap_or(u64::MAX);
        self.apply(Input::End { attempt, number, outcome: Outcome::of(cause) });
    }

    pub fn apply(&mut self, input: Input) {
        self.now = Time(self.now.0 + 1);
        let effects = self.engine.apply(input, self.now);
        self.take(effects);
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Token { attempt, sequence, sampled, .. } => {
                    let seen = self.seen.entry(attempt).or_default();
                    seen.delivered_after_end += u32::from(!seen.ended.is_empty());
                    seen.answers.entry(sequence).or_default().push(sampled.token);
                }
                Effect::Ended { attempt, outcome, .. } => self.seen.entry(attempt).or_default().ended.push(outcome),
                Effect::Released { attempt, receipt } => self.seen.entry(attempt).or_default().released.push(receipt),
                Effect::CancelAcknowledged { attempt, won } => self.seen.entry(attempt).or_default().acknowledged.push(won),
                Effect::Accepted { .. } => {}
                Effect::DeviceLost(why) => self.lost.push(why),
                Effect::Journal(attempt, event) => self.take_event(attempt, event),
            }
        }
    }

    fn take_event(&mut self, attempt: Option<AttemptId>, event: Event) {
        if let Event::Defect { .. } = event {
            self.defects += 1;
        }
        if let Event::DeviceFailed { quarantined, .. } = event {
            self.failures.push(quarantined);
        }
        let Some(attempt) = attempt else { return };
        let seen = self.seen.entry(attempt).or_default();
        seen.events.push(event.clone());
        match event {
            Event::Released { .. } => seen.released_events += 1,
            Event::CancelApplied { .. } => seen.cancel_applied = true,
            Event::Preempted => seen.preempted += 1,
            Event::BlocksAllocated { cached_tokens, .. } => seen.cached_tokens += cached_tokens,
            Event::Computed { generated, discarded, .. } => {
                seen.discarded += discarded;
                if seen.cancel_applied {
                    seen.computed_after_cancel += generated + discarded;
                }
            }
            _ => {}
        }
    }

    /// Plans and submits until the device is full.
    pub fn fill(&mut self) {
        loop {
            let (plan, effects) = self.engine.plan();
            self.take(effects);
            match plan {
                Some(plan) => {
                    self.assert_untouched(&plan);
                    self.device.queue.push_back(plan);
                }
                None => return,
            }
        }
    }

    /// No row writes a block that a step which is not over may still touch for another sequence.
    // contract: C-16  field: F-39, F-41
    fn assert_untouched(&self, plan: &StepPlan) {
        for row in &plan.rows {
            let written = (row.position / BT) as usize..=((row.position + row.count() - 1) / BT) as usize;
            let others = self.device.queue.iter().chain([plan]).flat_map(|p| &p.rows).filter(|o| !o.flag.is_same(&row.flag));
            for other in others {
                let shared = row.table[written.clone()].iter().find(|b| other.table.contains(b));
                assert_eq!(shared, None, "step {} writes a block that another sequence's row is on", plan.id);
            }
        }
    }

    /// One step of the device, and the engine's answer.
    pub fn step(&mut self) -> bool {
        self.fill();
        match self.device.run_step(|| {}) {
            Some(done) => {
                self.apply(Input::StepDone(done));
                true
            }
            None => false,
        }
    }

    /// Steps until nothing is alive; at most `limit` steps.
    pub fn finish(&mut self, limit: usize) {
        for _ in 0..limit {
            if !self.step() {
                break;
            }
        }
        assert!(self.engine.is_idle(), "something is still alive after {limit} steps: {:?}", self.cut().attempts);
    }

    pub fn cut(&self) -> Snapshot {
        self.engine.snapshot(false, &|_| false)
    }

    pub fn seen(&self, name: &str) -> Seen {
        self.seen.get(&id(name)).cloned().unwrap_or_default()
    }

    /// Everything is back: no owner, no open fence, no state of any run.
    pub fn assert_at_rest(&self) {
        self.engine.audit().expect("the audit agrees");
        let s = self.cut();
        assert!(s.is_conserved());
        assert_eq!((s.free + s.cached + s.quarantined, s.active, s.draining), (s.total, 0, 0));
        assert_eq!((s.queued, s.running, s.stopping, s.attempts.len()), (0, 0, 0, 0));
        assert!(s.held.kinds().iter().all(|(_, n)| *n == 0), "{:?}", s.held);
        assert_eq!(self.defects, 0);
        for (attempt, seen) in &self.seen {
            // contract: C-20
            assert!(seen.released.len() <= 1 && seen.ended.len() == seen.released.len(), "{attempt}: {seen:?}");
            assert_eq!(seen.released_events as usize, seen.released.len(), "{attempt}");
            assert!(seen.released.iter().all(|r| r.blocks_held == 0));
            // contract: C-12
            assert_eq!(seen.delivered_after_end, 0, "{attempt}");
        }
    }
}
