//! A device with a gate: it passes every step to the real one, and can hold a step back, fail it, or keep the engine's thread at its door,
//! exactly at the step that a test names. So a phase is reached and kept by counting, never by sleeping.
//!
//! Runs are told apart by their marker: the first of the stop tokens that they ask for.
//!
//! Invariant: steps reach the device, and their fences the engine, in the order of their submission; none is lost.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::{Device, DeviceError, DeviceLimits, DoneSink, Row, RowDone, RowTokens, Slot, StepDone, StepPlan, SubmitError};
use lifecycle::StepId;

use super::PATIENCE;

/// Which step is to be held.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// The one with this chunk of the run's prompt, from 1, that is not the last chunk.
    Chunk(u32),
    /// The one that chooses this token, from 1, of this sequence.
    Token(u32, u32),
    /// The first without a row of the run, after one that had some.
    Gone,
}

/// Where a held step is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// Before the device begins it.
    Before,
    /// When it is computed, before its fence is told.
    After,
}

/// A step to be held, with everything behind it.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    /// The run.
    pub marker: u32,
    /// Its step.
    pub when: When,
    /// On which side of the computation.
    pub hold: Hold,
    /// Whether the door shuts behind it: the next submit keeps the engine's thread.
    pub door: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Door {
    #[default]
    Open,
    Shut,
    /// Whoever stands there panics.
    Broken,
}

#[derive(Clone, Copy)]
struct Sequence {
    marker: u32,
    number: u32,
    prompt: u32,
}

impl Sequence {
    /// The token that a row chooses, counted from 1 after the prompt.
    fn ordinal(&self, row: &Row) -> u32 {
        let end = row.position + row.count();
        end + 1 - self.prompt.min(end)
    }
}

#[derive(Default)]
struct State {
    inner: Option<Box<dyn Device>>,
    slots: HashMap<Slot, Sequence>,
    /// Tokens that the device chose, by run and sequence.
    chosen: HashMap<(u32, u32), Vec<u32>>,
    /// The newest of its tokens that a step is to choose, by run and sequence.
    planned: HashMap<(u32, u32), u32>,
    trap: Option<Trap>,
    chunks: u32,
    seen: bool,
    /// Everything from this step on is held.
    held: Option<(StepId, Hold)>,
    plans: VecDeque<(StepPlan, DoneSink)>,
    dones: VecDeque<(StepDone, DoneSink)>,
    /// Steps that the device has and has not finished.
    computing: u32,
    door: Door,
    at_door: bool,
    /// No further step is taken.
    refuses: bool,
}

/// The test's side.
pub struct Gate {
    limits: DeviceLimits,
    state: Mutex<State>,
    changed: Condvar,
}

/// The engine's side.
pub struct Gated(Arc<Gate>);

/// Puts a gate before a device.
pub fn gate(inner: Box<dyn Device>) -> (Arc<Gate>, Gated) {
    let limits = inner.limits();
    let gate = Arc::new(Gate { limits, state: Mutex::new(State { inner: Some(inner), ..State::default() }), changed: Condvar::new() });
    (gate.clone(), Gated(gate))
}

impl Device for Gated {
    fn limits(&self) -> DeviceLimits {
        self.0.limits
    }

    fn submit(&mut self, plan: StepPlan, done: DoneSink) -> Result<(), (SubmitError, StepPlan)> {
        self.0.submit(plan, done)
    }
}

impl Drop for Gated {
    /// The engine is gone: so is the device, once its steps are over.
    fn drop(&mut self) {
        let inner = self.0.lock().inner.take();
        drop(inner);
    }
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(self: &Arc<Self>, plan: StepPlan, done: DoneSink) -> Result<(), (SubmitError, StepPlan)> {
        let mut s = self.lock();
        while s.door == Door::Shut {
            s.at_door = true;
            self.changed.notify_all();
            s = self.changed.wait(s).unwrap_or_else(PoisonError::into_inner);
        }
        s.at_door = false;
        if s.door == Door::Broken {
            drop(s);
            panic!("the worker's thread ends here, as the test wants it");
        }
        if s.refuses {
            return Err((SubmitError::Lost("it takes no more steps, as the test wants it".into()), plan));
        }
        for row in &plan.rows {
            if let Some(start) = &row.start {
                let marker = start.stop_tokens.first().copied().unwrap_or(u32::MAX);
                s.slots.insert(row.slot, Sequence { marker, number: start.sequence, prompt: start.prompt_len as u32 });
                if start.tokens.len() == start.prompt_len {
                    s.chosen.remove(&(marker, start.sequence));
                }
            }
        }
        for row in plan.rows.iter().filter(|row| row.sample) {
            if let Some(of) = s.slots.get(&row.slot).copied() {
                s.planned.insert((of.marker, of.number), of.ordinal(row));
            }
        }
        if s.held.is_none() && s.catches(&plan) {
            let trap = s.trap.take().expect("it caught");
            s.held = Some((plan.id, trap.hold));
            if trap.door {
                s.door = Door::Shut;
            }
        }
        match s.held {
            Some((_, Hold::Before)) => s.plans.push_back((plan, done)),
            _ => self.pass(&mut s, plan, done)?,
        }
        self.changed.notify_all();
        Ok(())
    }

    fn pass(self: &Arc<Self>, s: &mut State, plan: StepPlan, done: DoneSink) -> Result<(), (SubmitError, StepPlan)> {
        let gate = self.clone();
        let rows: Vec<Option<Sequence>> = plan.rows.iter().map(|row| s.slots.get(&row.slot).copied()).collect();
        let sink = Box::new(move |message: StepDone| gate.done(&rows, message, done));
        let Some(inner) = &mut s.inner else { return Err((SubmitError::Lost("it is gone".into()), plan)) };
        inner.submit(plan, sink)?;
        s.computing += 1;
        Ok(())
    }

    fn done(&self, rows: &[Option<Sequence>], message: StepDone, sink: DoneSink) {
        let mut s = self.lock();
        s.computing -= 1;
        for (sequence, row) in rows.iter().zip(message.result.iter().flatten()) {
            if let (Some(of), RowDone::Computed { sampled: Some(sampled), .. }) = (sequence, row) {
                s.chosen.entry((of.marker, of.number)).or_default().push(sampled.token);
            }
        }
        match s.held {
            Some((from, Hold::After)) if message.id >= from => s.dones.push_back((message, sink)),
            // Under the lock: no later step's message may overtake this one.
            _ => sink(message),
        }
        self.changed.notify_all();
    }

    fn wait(&self, what: &str, holds: impl Fn(&State) -> bool) {
        let since = Instant::now();
        let mut s = self.lock();
        while !holds(&s) {
            assert!(since.elapsed() < PATIENCE, "it never came to: {what}");
            s = self.changed.wait_timeout(s, Duration::from_millis(20)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sets a trap. What is held stays held until `go`.
    pub fn arm(&self, trap: Trap) {
        let mut s = self.lock();
        (s.trap, s.chunks, s.seen) = (Some(trap), 0, false);
    }

    /// Sets the trap again for a run that had rows already.
    pub fn arm_gone_again(&self, trap: Trap) {
        let mut s = self.lock();
        (s.trap, s.chunks, s.seen) = (Some(trap), 0, true);
    }

    /// Whether the trap has caught its step.
    pub fn has_caught(&self) -> bool {
        self.lock().held.is_some()
    }

    /// How many steps are held.
    pub fn held(&self) -> u64 {
        let s = self.lock();
        (s.plans.len() + s.dones.len()) as u64
    }

    /// Waits until nothing before the held step is under way, and what can be computed of the held ones is.
    pub fn quiet(&self) {
        self.wait("a quiet device", |s| s.held.is_some() && s.computing == 0);
    }

    /// Lets everything that is held go, in its order; the first step with this failure, if one is given.
    pub fn go(self: &Arc<Self>, failure: Option<DeviceError>) {
        let mut s = self.lock();
        let mut failure = failure;
        s.held = None;
        while let Some((mut message, sink)) = s.dones.pop_front() {
            if let Some(error) = failure.take() {
                message.result = Err(error);
            }
            sink(message);
        }
        while let Some((plan, done)) = s.plans.pop_front() {
            if let Some(error) = failure.take() {
                done(StepDone { id: plan.id, result: Err(error) });
                continue;
            }
            // A device that is gone with its worker takes nothing; any other has room for every step in flight.
            if let Err((SubmitError::Full, _)) = self.pass(&mut s, plan, done) {
                panic!("the device has room for every step in flight");
            }
        }
        self.changed.notify_all();
    }

    /// Keeps the engine's thread at its next submit.
    pub fn shut_door(&self) {
        self.lock().door = Door::Shut;
    }

    /// Waits until the engine's thread stands at the door.
    pub fn engine_at_door(&self) {
        self.wait("the engine's thread at the door", |s| s.at_door);
    }

    /// Lets the engine's thread in.
    pub fn open_door(&self) {
        self.lock().door = Door::Open;
        self.changed.notify_all();
    }

    /// The engine's thread panics at the door: a worker that dies.
    pub fn break_door(&self) {
        self.lock().door = Door::Broken;
        self.changed.notify_all();
    }

    /// From now on every step is refused for good.
    pub fn refuse(&self) {
        self.lock().refuses = true;
    }

    /// The newest token of a run's sequence that a step was to choose.
    pub fn planned(&self, marker: u32, sequence: u32) -> u32 {
        self.lock().planned.get(&(marker, sequence)).copied().unwrap_or(0)
    }

    /// Positions that a sequence may have.
    pub fn context(&self) -> u32 {
        self.limits.context
    }

    /// Tokens that the device chose for a run's sequence.
    pub fn chosen(&self, marker: u32, sequence: u32) -> Vec<u32> {
        self.lock().chosen.get(&(marker, sequence)).cloned().unwrap_or_default()
    }
}

impl State {
    fn catches(&mut self, plan: &StepPlan) -> bool {
        let Some(trap) = self.trap else { return false };
        let mut has_rows = false;
        for row in &plan.rows {
            let Some(of) = self.slots.get(&row.slot).copied().filter(|of| of.marker == trap.marker) else { continue };
            has_rows = true;
            match trap.when {
                When::Chunk(nth) if matches!(row.tokens, RowTokens::Known { .. }) && !row.sample && of.number == 0 => {
                    self.chunks += 1;
                    if self.chunks == nth {
                        return true;
                    }
                }
                When::Token(sequence, wanted) if row.sample && of.number == sequence && of.ordinal(row) == wanted => return true,
                _ => {}
            }
        }
        let gone = matches!(trap.when, When::Gone) && self.seen && !has_rows;
        self.seen |= has_rows;
        gone
    }
}
