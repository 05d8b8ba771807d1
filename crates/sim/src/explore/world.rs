//! A state of the explored world: the real cores, the device, the network, and what has been seen so far.
//!
//! Invariant: two worlds with the same fingerprint have the same future; whatever a check remembers is in it.

use std::hash::Hash;
use std::sync::Arc;

use engine::{DeviceLimits, Engine, EngineConfig, FlagMap};
use kv::Digest;
use lifecycle::message::Snapshot;
use lifecycle::{AttemptId, Cause, Rules, StepId, Time};

use super::device::SimulatedDevice;
use super::gate::{Gate, LATE};
use super::marks::Marks;
use super::net::{Message, Net};
use super::setup::{Budget, Setup};
use super::truth::Truth;
use super::words::{Try, first_id};

/// Attempts that a run may have.
pub const TRIES: usize = 2;

/// What never changes in a setup.
#[derive(Debug)]
pub struct Scene {
    /// The setup.
    pub setup: Setup,
    /// What is right.
    pub truth: Truth,
    /// The id of each run's first attempt.
    pub names: Vec<AttemptId>,
}

impl Scene {
    /// Of a setup.
    ///
    /// # Panics
    /// Where a run's name is no id.
    pub fn new(setup: Setup) -> Arc<Scene> {
        let truth = Truth::of(&setup);
        let names: Vec<AttemptId> = setup.runs.iter().filter_map(|run| first_id(run.name)).collect();
        assert_eq!(names.len(), setup.runs.len(), "a setup's names are ids");
        Arc::new(Scene { setup, truth, names })
    }

    /// An attempt as people read it.
    pub fn word(&self, of: Try) -> String {
        format!("{}/{}", self.setup.runs[usize::from(of.run)].name, of.attempt)
    }
}

/// What was seen of an attempt at the worker.
#[derive(Clone, Hash, Default, Debug)]
pub struct Fate {
    /// Its submit was received, on this life of the worker.
    pub life: u8,
    /// In this tenure.
    pub tenure: u8,
    /// How often it was taken on.
    pub taken_on: u8,
    /// How often its end was said.
    pub ends: u8,
    /// With which cause.
    pub ended: Option<Cause>,
    /// How often its release was said.
    pub released: u8,
    /// How often its release was journalled.
    pub journalled: u8,
    /// Tokens by answer.
    pub tokens: Vec<u8>,
    /// A cancel of it was received before its submit.
    pub early: bool,
    /// Another gateway's cancel named it.
    pub named: bool,
    /// A cancel or a deadline was applied.
    pub cancelled: bool,
    /// Tokens computed after that.
    pub late: u8,
    /// One answer is over, the other is not.
    pub half: bool,
    /// It waited for a prefix that another computes.
    pub followed: bool,
}

/// The worker.
#[derive(Debug)]
pub struct Worker<R: Rules> {
    /// Counts its lives, from 1.
    pub life: u8,
    /// The real engine.
    pub engine: Engine<R>,
    /// The device.
    pub device: SimulatedDevice,
    /// Prompts being tokenised.
    pub prompts: Vec<Try>,
    /// Something was applied since the last plan.
    pub plan_due: bool,
    /// The gateway's session is lost and its attempts are suspended.
    pub cut: bool,
    /// Its lease is over.
    pub orphaned: bool,
    /// Deadlines have passed.
    pub late: bool,
    /// It was told to stop.
    pub draining: bool,
    /// What ran then was cancelled.
    pub drained: bool,
}

impl<R: Rules> Worker<R> {
    pub(super) fn new(life: u8, setup: &Setup) -> Worker<R> {
        let config = EngineConfig {
            model: "m".into(),
            step_tokens: setup.step_tokens,
            max_running: setup.slots,
            queue_limit: 8,
            default_max_tokens: 2,
            tombstones: setup.tombstones,
            in_flight: setup.in_flight,
            // Time does not pass by steps here, so nothing is known of how fast a device is.
            deadline_check_percent: 0,
        };
        let limits = DeviceLimits {
            blocks_total: setup.blocks,
            block_tokens: setup.block_tokens,
            block_bytes: 1,
            slots: setup.slots,
            context: 32,
            vocab: super::truth::VOCAB,
            in_flight: setup.in_flight,
        };
        Worker {
            life,
            engine: Engine::with_rules(config, limits),
            device: SimulatedDevice::new(setup.blocks, setup.block_tokens, setup.slots),
            prompts: Vec::new(),
            plan_due: false,
            cut: false,
            orphaned: false,
            late: false,
            draining: false,
            drained: false,
        }
    }

    /// Its clock.
    pub fn now(&self) -> Time {
        if self.late { LATE } else { Time::ZERO }
    }

    fn fork(&self) -> Worker<R> {
        let mut flags = FlagMap::default();
        Worker { engine: self.engine.fork(&mut flags), device: self.device.fork(&mut flags), prompts: self.prompts.clone(), ..*self }
    }
}

/// A clause that is broken, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which.
    pub clause: &'static str,
    /// How.
    pub what: String,
}

/// A state.
#[derive(Debug)]
pub struct World<R: Rules> {
    /// What never changes.
    pub scene: Arc<Scene>,
    /// The gateway.
    pub gate: Gate<R>,
    /// What is between.
    pub net: Net,
    /// Messages of a lost session where there are no lanes.
    pub held: Vec<Message>,
    /// The worker.
    pub worker: Worker<R>,
    /// By run and attempt.
    pub fates: Vec<Fate>,
    /// What may still go wrong.
    pub budget: Budget,
    /// The worker's account after the last action.
    pub cut: Arc<Snapshot>,
    /// What the last action met.
    pub marks: Marks,
    /// The first clause that was broken.
    pub violation: Option<Violation>,
    /// What happened, where somebody wants to read it.
    pub log: Option<Vec<String>>,
    /// The cancel that is being applied came from another gateway.
    pub(super) stray: bool,
}

impl<R: Rules> World<R> {
    /// The start.
    pub fn new(scene: &Arc<Scene>) -> World<R> {
        let setup = &scene.setup;
        let fates = setup.runs.iter().flat_map(|run| vec![Fate { tokens: vec![0; run.n as usize], ..Fate::default() }; TRIES]).collect();
        let worker = Worker::new(1, setup);
        World {
            scene: scene.clone(),
            gate: Gate::new(&scene.names, setup),
            net: Net::new(),
            held: Vec::new(),
            cut: Arc::new(worker.engine.snapshot(true, &|_| false)),
            worker,
            fates,
            budget: setup.budget,
            marks: Marks::default(),
            violation: None,
            log: None,
            stray: false,
        }
    }

    /// A second world that goes on from here.
    pub fn fork(&self) -> World<R> {
        World {
            scene: self.scene.clone(),
            gate: self.gate.clone(),
            net: self.net.clone(),
            held: self.held.clone(),
            worker: self.worker.fork(),
            fates: self.fates.clone(),
            budget: self.budget,
            cut: self.cut.clone(),
            marks: Marks::default(),
            violation: self.violation.clone(),
            log: self.log.clone(),
            stray: false,
        }
    }

    /// The state as one number.
    pub fn fingerprint(&self) -> u128 {
        let mut out = Digest::default();
        self.gate.hash_state(&mut out);
        self.net.hash_state(&mut out);
        self.held.hash(&mut out);
        let Worker { life, engine, device, prompts, plan_due, cut, orphaned, late, draining, drained } = &self.worker;
        engine.hash_state(self.worker.now(), &mut out);
        let matters = |block: u32| self.cut.blocks.get(block as usize).is_some_and(|b| !matches!(b.state, "free" | "quarantined"));
        device.hash_state(StepId(self.cut.step.0 + 1), matters, &mut out);
        (life, prompts, plan_due, cut, orphaned, late, draining, drained).hash(&mut out);
        self.fates.hash(&mut out);
        self.budget.hash(&mut out);
        out.value()
    }

    /// What was seen of an attempt.
    pub fn fate(&mut self, of: Try) -> &mut Fate {
        &mut self.fates[usize::from(of.run) * TRIES + usize::from(of.attempt) - 1]
    }

    /// The state of an attempt at the worker before this action, as the API calls it.
    pub fn state_before(&self, of: Try) -> Option<&'static str> {
        let id = of.id(&self.scene.names);
        self.cut.attempts.iter().find(|a| a.attempt == id).map(|a| a.state)
    }

    /// Notes that a clause is broken; the first one counts.
    pub fn violate(&mut self, clause: &'static str, what: String) {
        self.violation.get_or_insert(Violation { clause, what });
    }

    /// Notes what happened, if anybody reads it.
    pub fn note(&mut self, what: impl FnOnce(&Scene) -> String) {
        if let Some(log) = &mut self.log {
            log.push(what(&self.scene));
        }
    }

    /// Whether nothing is left to do: every run is settled, nothing is on its way, and the worker is empty.
    pub fn is_at_rest(&self) -> bool {
        self.gate.is_settled()
            && self.net.frames.is_empty()
            && self.held.is_empty()
            && self.worker.engine.is_idle()
            && self.worker.device.queue.is_empty()
            && self.worker.prompts.is_empty()
            && !self.worker.plan_due
    }
}
