//! The engine's whole state, and the one door in: `apply`. After every input the account is checked (C-15).
// contract: C-15

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use kv::{Owner, Pool};
use lifecycle::event::Event;
use lifecycle::{AttemptEvent, AttemptId, Rules, Sound, StepId, Time};

use crate::attempt::{Attempt, Rank};
use crate::config::EngineConfig;
use crate::device::{DeviceLimits, Slot};
use crate::io::{Effect, Input};
use crate::pace::Pace;
use crate::tombstone::Tombstones;

/// A row of a step in flight, as the engine remembers it.
#[derive(Clone, Debug)]
pub(crate) struct RowRef {
    pub key: u64,
    pub sequence: usize,
    pub epoch: u64,
    pub end: usize,
    /// Tokens of it that were known when it was planned.
    pub known: u32,
    /// Index of the token it chooses.
    pub sample_at: Option<usize>,
}

/// A step that is not over.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub id: StepId,
    pub rows: Vec<RowRef>,
}

/// One worker's engine. Single-threaded; driven by a shell that owns clock, device and text.
#[derive(Debug)]
pub struct Engine<R: Rules = Sound> {
    pub(crate) config: EngineConfig,
    pub(crate) limits: DeviceLimits,
    pub(crate) pool: Pool<R>,
    /// In the order of arrival, so that what concerns all of them happens in one order in every process.
    pub(crate) attempts: BTreeMap<u64, Attempt>,
    pub(crate) by_id: HashMap<AttemptId, u64>,
    pub(crate) owners: HashMap<Owner, u64>,
    pub(crate) waiting: BTreeSet<Rank>,
    pub(crate) running: BTreeSet<Rank>,
    /// Suspended with slots and blocks.
    pub(crate) suspended: BTreeSet<Rank>,
    pub(crate) deadlines: BTreeMap<(Time, u64), lifecycle::Cause>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) in_flight: VecDeque<InFlight>,
    pub(crate) tombstones: Tombstones,
    pub(crate) lost: Option<String>,
    pub(crate) next_key: u64,
    pub(crate) next_owner: u64,
    pub(crate) next_step: u64,
    pub(crate) newest_done: StepId,
    pub(crate) pace: Pace,
    pub(crate) out: Vec<Effect>,
}

impl Engine {
    /// An idle engine over a device of these sizes.
    pub fn new(config: EngineConfig, limits: DeviceLimits) -> Engine {
        Engine::with_rules(config, limits)
    }
}

impl<R: Rules> Engine<R> {
    /// The same with other rules than the sound ones; for `sim`'s museum.
    pub fn with_rules(config: EngineConfig, limits: DeviceLimits) -> Engine<R> {
        let slots = limits.slots.min(config.max_running);
        Engine {
            pool: Pool::with_rules(limits.blocks_total, limits.block_tokens),
            attempts: BTreeMap::new(),
            by_id: HashMap::new(),
            owners: HashMap::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            suspended: BTreeSet::new(),
            deadlines: BTreeMap::new(),
            slots: (0..slots).rev().map(Slot).collect(),
            in_flight: VecDeque::new(),
            tombstones: Tombstones::new(config.tombstones),
            lost: None,
            next_key: 1,
            next_owner: 1,
            next_step: 1,
            newest_done: StepId(0),
            pace: Pace::default(),
            out: Vec::new(),
            config,
            limits,
        }
    }

    /// Applies one input and returns what is to be done about it, in order.
    pub fn apply(&mut self, input: Input, now: Time) -> Vec<Effect> {
        self.pace.now = now;
        match input {
            Input::Submit(submission) => self.submit(*submission),
            Input::Tokenised { attempt, tokens } => self.tokenised(&attempt, tokens),
            Input::Refused { attempt, outcome } => self.refused(&attempt, outcome),
            Input::End { attempt, number, outcome } => self.end_by_name(&attempt, number, outcome),
            Input::Stop { attempt, sequence } => self.stop_found(&attempt, sequence),
            Input::Suspend { attempt } => self.suspend(&attempt),
            Input::Attach { attempt } => self.attach(&attempt),
            Input::StepDone(done) => self.step_done(done),
            Input::DeviceLost(why) => self.device_lost(&why),
            Input::Tick => self.fire_deadlines(now),
        }
        self.assert_conserved();
        std::mem::take(&mut self.out)
    }

    /// When `Tick` is next worth applying.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first_key_value().map(|((at, _), _)| *at)
    }

    /// Why the device takes no more steps, if it does not.
    pub fn is_lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Whether nothing is alive: no attempt, no step in flight.
    pub fn is_idle(&self) -> bool {
        self.attempts.is_empty() && self.in_flight.is_empty()
    }

    /// Steps in flight.
    pub fn steps_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether an attempt is alive here.
    pub fn knows(&self, attempt: &AttemptId) -> bool {
        self.by_id.contains_key(attempt)
    }

    /// The newest step whose message was taken.
    pub fn newest_done(&self) -> StepId {
        self.newest_done
    }

    /// Recomputes the whole account from the blocks; for tests and idle moments.
    pub fn audit(&self) -> Result<(), kv::Defect> {
        self.pool.audit()
    }

    /// Stays on in release: it is O(1), and an engine whose account is wrong must not hand out another block.
    pub(crate) fn assert_conserved(&self) {
        if let Err(defect) = self.pool.check() {
            panic!("the block account is broken: {defect}");
        }
    }

    pub(crate) fn journal(&mut self, key: u64, event: Event) {
        if let Some(attempt) = self.attempts.get(&key) {
            self.out.push(Effect::Journal(Some(attempt.id.clone()), event));
        }
    }

    pub(crate) fn defect(&mut self, what: &'static str) {
        self.out.push(Effect::Journal(None, Event::Defect { what }));
    }

    /// Moves an attempt's machine; what it calls impossible is journalled as a defect.
    pub(crate) fn step_machine(&mut self, key: u64, event: AttemptEvent) -> bool {
        let Some(attempt) = self.attempts.get_mut(&key) else { return false };
        R::attempt_meets(attempt.state, event);
        let applied = attempt.state.apply(event);
        if let lifecycle::Applied::Defect(_) = applied {
            self.defect("an attempt's machine refused an event");
        }
        applied == lifecycle::Applied::Moved
    }
}
