//! A worker's device at work: how long a step takes, how it ends, and what happens to a worker that is told to stop.
//!
//! Invariant: a step's end is applied once, and nothing of a step is computed after its worker's life is over.

use engine::{DeviceError, Input, StepDone};
use lifecycle::message::Up;
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, Rules, StepId};

use super::event::{Event, Fate, Process};
use super::faults::FaultKind;
use super::scenario::MS;
use super::world::World;

/// How long a drained worker lets its attempts go on.
const DRAIN: u64 = 300 * MS;
/// So many steps of one life may hang: each takes blocks away for good.
const HUNG_MAX: u32 = 1;

impl<R: Rules> World<R> {
    /// Begins the next step, if none runs: how long it takes and how it ends is drawn here.
    pub fn keep_device_busy(&mut self, w: usize) {
        let life = self.workers[w].shell.life;
        if self.workers[w].running.is_some() {
            return;
        }
        let Some(step) = self.workers[w].device.begin().map(|plan| plan.id) else { return };
        self.workers[w].running = Some(step);
        let (low, high) = self.scenario.step;
        let mut lasts = self.steps.between(low, high);
        let hard = self.scenario.hardness as usize - 1;
        let draws = [self.steps.word() % 1000, self.steps.word() % 1000, self.steps.word() % 1000];
        let slow = self.steps.between(50 * MS, 900 * MS);
        let hits = |kind, draw: u64, odds: [u64; 3]| self.is_on(kind) && draw < odds[hard];
        let mut fate = Fate::Done;
        if hits(FaultKind::SlowStep, draws[0], [5, 15, 40]) {
            lasts += slow;
            self.fault(FaultKind::SlowStep);
        }
        let hits = |kind, draw: u64, odds: [u64; 3]| self.is_on(kind) && draw < odds[hard];
        if hits(FaultKind::StepError, draws[1], [5, 15, 40]) {
            fate = Fate::Failed;
        } else if hits(FaultKind::HungStep, draws[2], [2, 5, 10]) && self.workers[w].hung < HUNG_MAX {
            fate = Fate::Hung;
        }
        self.at(self.now + lasts, Event::StepEnd { worker: w, life, step, fate });
    }

    pub fn step_ends(&mut self, w: usize, step: StepId, fate: Fate) {
        if self.workers[w].running != Some(step) && fate != Fate::Lost {
            return;
        }
        self.workers[w].running = None;
        let error = match fate {
            Fate::Done => {
                let Some((plan, rows)) = self.workers[w].device.end() else { return };
                self.workers[w].rows.remove(&plan.id);
                self.apply(w, Input::StepDone(StepDone { id: plan.id, result: Ok(rows) }));
                return self.audit(w);
            }
            Fate::Failed => DeviceError::Step("simulated".into()),
            Fate::Hung => DeviceError::Hung("simulated".into()),
            Fate::Lost => DeviceError::Lost("simulated".into()),
        };
        self.fault(match fate {
            Fate::Hung => FaultKind::HungStep,
            Fate::Lost => FaultKind::DeviceLost,
            _ => FaultKind::StepError,
        });
        self.tell(|| format!("worker-{}: step {step}: {error}", w + 1));
        let worker = &mut self.workers[w];
        worker.device_faults += 1;
        worker.hung += u32::from(fate == Fate::Hung);
        let failed = worker.device.fail();
        let mut all: Vec<_> = failed.into_iter().collect();
        if fate != Fate::Failed {
            // What is queued behind it is not run either.
            while let Some(plan) = worker.device.fail() {
                all.push(plan);
            }
        }
        worker.device.lost |= fate == Fate::Lost;
        all.iter().for_each(|plan| drop(worker.rows.remove(&plan.id)));
        let id = all.first().map_or(step, |plan| plan.id);
        if fate == Fate::Hung {
            let rows = all.iter().flat_map(|plan| plan.rows.clone()).collect();
            let (life, at) = (worker.shell.life, self.now + self.misc.between(MS, 800 * MS));
            self.at(at, Event::Scribble { worker: w, life, rows });
        }
        self.apply(w, Input::StepDone(StepDone { id, result: Err(error) }));
        self.audit(w);
    }

    /// A device that is lost takes every step with it; or, where none is in flight, refuses the next plan.
    pub fn lose_device(&mut self, w: usize) {
        let worker = &mut self.workers[w];
        if !worker.shell.alive || worker.shell.paused || worker.device.lost {
            return;
        }
        if let Some(step) = worker.device.queue.front().map(|plan| plan.id) {
            self.step_ends(w, step, Fate::Lost);
        } else {
            self.fault(FaultKind::DeviceLost);
            let worker = &mut self.workers[w];
            worker.device_faults += 1;
            worker.device.lost = true;
            self.apply(w, Input::DeviceLost("simulated".into()));
        }
        self.pump_worker(w);
    }

    pub fn scribble(&mut self, w: usize, life: Incarnation, rows: &[engine::Row]) {
        if self.workers[w].shell.life == life {
            rows.iter().for_each(|row| self.workers[w].device.scribble(row));
        }
    }

    /// Told to stop: it takes nothing new, and what is left after a while ends.
    pub fn drain(&mut self, w: usize) {
        if !self.workers[w].shell.alive || self.workers[w].shell.paused || self.workers[w].draining {
            return;
        }
        self.fault(FaultKind::Drain);
        self.tell(|| format!("worker-{} drains", w + 1));
        self.workers[w].draining = true;
        self.say(w, Up::Draining);
        let life = self.workers[w].shell.life;
        self.at(self.now + DRAIN, Event::Exit { worker: w, life });
        self.pump_worker(w);
    }

    /// The drain's limit: what is left is cancelled; then the process ends when all is said, or dies with it.
    pub fn exit(&mut self, w: usize, life: Incarnation) {
        let worker = &self.workers[w];
        if worker.shell.life != life || !worker.shell.alive {
            return;
        }
        let left: Vec<AttemptId> = worker.side.attempts().map(|(id, ..)| id.clone()).collect();
        if left.is_empty() || self.healed {
            return self.crash(Process::Worker(w), 50 * MS);
        }
        for attempt in left {
            self.apply(w, Input::End { attempt, number: 0, outcome: Outcome::of(Cause::Shutdown) });
        }
        self.at(self.now + DRAIN, Event::Exit { worker: w, life });
        self.pump_worker(w);
    }
}
