//! What must be true, whatever goes wrong: the truth about every run, kept apart from what the processes believe, and every clause's check.
//!
//! Invariant: the first clause that is broken stands; nothing here is known to a core.

use std::collections::{BTreeMap, BTreeSet};

use lifecycle::{AttemptId, Cause, Incarnation, RunKey};

use super::device::{TAG_BITS, isolated};
use super::met::Met;
use super::readers::Readers;
use super::scenario::{RunPlan, Scenario, called};

/// A clause that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The contract's clause, or `liveness`.
    pub clause: &'static str,
    /// What happened.
    pub what: String,
}

/// The truth about an attempt.
#[derive(Clone, Debug)]
pub(super) struct AttemptTruth {
    pub worker: usize,
    pub life: Incarnation,
    pub submitted: u32,
    pub ended: bool,
    pub released: u32,
    pub suspended: bool,
    /// Its gateway has concluded that this life of the worker is over.
    pub fenced: bool,
    pub orphaned: bool,
    /// The worker said that it turned the submit down, and no engine had got it.
    pub turned_down: bool,
}

/// The truth about a run.
#[derive(Clone, Debug)]
pub(super) struct RunTruth {
    pub plan: RunPlan,
    pub attempts: Vec<AttemptTruth>,
    /// The gateway's life that accepted it, and when.
    pub owner: Option<(usize, Incarnation)>,
    pub accepted_at: u64,
    pub owner_lost: bool,
    pub wanted: BTreeSet<Cause>,
    pub readers: Readers,
    pub outcome: Option<Cause>,
    pub settled: bool,
    end_told: bool,
    delivered: Vec<Vec<u32>>,
    expected: Vec<Vec<u32>>,
}

/// All that is true.
#[derive(Debug)]
pub(super) struct Oracle {
    violation: Option<Violation>,
    pub runs: Vec<RunTruth>,
    names: BTreeMap<RunKey, usize>,
    /// Cancels that a worker's life acknowledged for attempts that it did not know.
    tombstones: BTreeSet<(usize, Incarnation, AttemptId)>,
    /// Workers whose hosts have refused somebody.
    refusing: BTreeSet<usize>,
    /// What was met on the way, so that a quiet run is seen to be quiet.
    pub met: Met,
}

impl Oracle {
    pub fn new(scenario: &Scenario) -> Oracle {
        let truth = |plan: &RunPlan| RunTruth {
            attempts: Vec::new(),
            owner: None,
            accepted_at: 0,
            owner_lost: false,
            wanted: BTreeSet::new(),
            readers: Readers::new(plan),
            outcome: None,
            settled: false,
            end_told: false,
            delivered: vec![Vec::new(); plan.n as usize],
            expected: Vec::new(),
            plan: plan.clone(),
        };
        Oracle {
            violation: None,
            names: scenario.runs.iter().enumerate().map(|(i, plan)| (plan.key.clone(), i)).collect(),
            runs: scenario.runs.iter().map(truth).collect(),
            tombstones: BTreeSet::new(),
            refusing: BTreeSet::new(),
            met: Met::default(),
        }
    }

    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// A clause is broken. The first one stands.
    pub fn fail(&mut self, clause: &'static str, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { clause, what: what() });
        }
    }

    pub fn run(&self, attempt: &AttemptId) -> Option<usize> {
        self.names.get(&attempt.key).copied()
    }

    /// A worker's host refuses a connection.
    pub fn refuses(&mut self, worker: usize) {
        self.refusing.insert(worker);
    }

    /// Whether a worker's host has ever done that.
    pub fn has_refused(&self, worker: usize) -> bool {
        self.refusing.contains(&worker)
    }

    /// What the device is told of whose row it is: the run, and in the last bits the attempt.
    pub fn tag(&self, attempt: &AttemptId) -> u64 {
        self.run(attempt).map_or(0, |run| (run as u64 + 1) << TAG_BITS | u64::from(attempt.attempt))
    }

    pub fn owner(&self, attempt: &AttemptId) -> Option<(usize, Incarnation)> {
        self.run(attempt).and_then(|run| self.runs[run].owner)
    }

    fn attempt(&mut self, attempt: &AttemptId) -> Option<&mut AttemptTruth> {
        let run = self.run(attempt)?;
        self.runs[run].attempts.get_mut((attempt.attempt as usize).checked_sub(1)?)
    }

    pub fn accepted(&mut self, run: usize, gateway: usize, life: Incarnation, at: u64) {
        let truth = &mut self.runs[run];
        truth.owner = Some((gateway, life));
        truth.accepted_at = at;
        self.met.runs += 1;
    }

    pub fn wanted(&mut self, run: usize, cause: Cause) {
        self.runs[run].wanted.insert(cause);
    }

    // contract: C-2, C-5
    pub fn placed(&mut self, attempt: &AttemptId, worker: usize, life: Incarnation) {
        let Some(run) = self.run(attempt) else { return };
        let truth = &mut self.runs[run];
        if let Some(before) = truth.attempts.last() {
            self.met.again += 1;
            // Over at its worker, or never begun there, is as good as fenced.
            if !before.fenced && before.released == 0 && !before.turned_down {
                return self.fail("C-9", || format!("{attempt} begins and the attempt before it is not fenced"));
            }
        }
        if truth.outcome.is_some() || attempt.attempt as usize != truth.attempts.len() + 1 {
            return self.fail("C-5", || format!("{attempt} begins after the outcome, or out of its turn"));
        }
        truth.attempts.push(AttemptTruth {
            worker,
            life,
            submitted: 0,
            ended: false,
            released: 0,
            suspended: false,
            fenced: false,
            orphaned: false,
            turned_down: false,
        });
    }

    // contract: C-2
    pub fn submitted(&mut self, attempt: &AttemptId, worker: usize, life: Incarnation) {
        let Some(truth) = self.attempt(attempt) else {
            return self.fail("C-2", || format!("{attempt} is executed and no gateway has placed it"));
        };
        truth.submitted += 1;
        let right = truth.submitted == 1 && !truth.turned_down && (truth.worker, truth.life) == (worker, life);
        if !right {
            self.fail("C-2", || format!("{attempt} is executed a second time, or where it was not sent (worker-{})", worker + 1));
        }
    }

    // contract: C-10
    pub fn suspended(&mut self, attempt: &AttemptId, life: Incarnation, is: bool) {
        if is {
            self.met.suspended += 1;
        } else {
            self.met.attached += 1;
        }
        if let Some(truth) = self.attempt(attempt).filter(|t| t.life == life) {
            truth.suspended = is;
        }
    }

    // contract: C-23
    pub fn orphaned(&mut self, attempt: &AttemptId, rightly: bool) {
        self.met.orphaned += 1;
        if let Some(truth) = self.attempt(attempt) {
            truth.orphaned = true;
        }
        if !rightly {
            self.fail("C-23", || format!("{attempt} is orphaned while its gateway claims it and the lease is not over"));
        }
    }

    /// A cancel was handed to the engine: there is no state in which it does not work.
    // contract: C-13
    pub fn cancelled(&mut self, attempt: &AttemptId, life: Incarnation) {
        let lives = |t: &&mut AttemptTruth| t.life == life && t.submitted > 0 && !t.ended;
        if self.attempt(attempt).filter(lives).is_some() {
            self.fail("C-13", || format!("{attempt} goes on after a cancel has reached its engine"));
        }
    }

    // contract: C-4
    pub fn ended(&mut self, attempt: &AttemptId, life: Incarnation) {
        let Some(truth) = self.attempt(attempt).filter(|t| t.life == life) else { return };
        if std::mem::replace(&mut truth.ended, true) {
            self.fail("C-4", || format!("{attempt} ended twice"));
        }
    }

    // contract: C-20
    pub fn released(&mut self, attempt: &AttemptId, life: Incarnation, blocks_held: u32) {
        let Some(truth) = self.attempt(attempt).filter(|t| t.life == life) else { return };
        truth.released += 1;
        let (ended, released) = (truth.ended, truth.released);
        if released > 1 || !ended || blocks_held > 0 {
            self.fail("C-20", || format!("{attempt} released: time {released}, ended {ended}, {blocks_held} blocks held"));
        }
    }

    /// A gateway concludes that the worker of a run's attempt, which it has not heard released, is over.
    // contract: C-9
    pub fn fenced(&mut self, run: usize, worker: usize, life: Incarnation) {
        // One before the current attempt was given back there, and is over.
        let current = self.runs[run].attempts.last_mut();
        current.into_iter().filter(|a| (a.worker, a.life) == (worker, life)).for_each(|a| a.fenced = true);
    }

    /// A worker that stops gave a run back that it has nothing of, or never had.
    // contract: C-2
    pub fn handed_back(&mut self, run: usize) {
        if let Some(attempt) = self.runs[run].attempts.last_mut() {
            attempt.turned_down |= attempt.submitted == 0;
        }
    }

    pub fn owner_died(&mut self, gateway: usize, life: Incarnation) {
        for run in self.runs.iter_mut().filter(|r| r.owner == Some((gateway, life)) && !r.settled) {
            run.owner_lost = true;
            self.met.ownerless += 1;
        }
    }

    /// A worker's life said of a cancel that it does not know the attempt: its submit must not be executed there any more.
    // contract: C-11
    pub fn tombstone(&mut self, attempt: &AttemptId, worker: usize, life: Incarnation) {
        if self.tombstones.insert((worker, life, attempt.clone())) {
            self.met.tombstones += 1;
        }
    }

    pub fn has_tombstone(&self, attempt: &AttemptId, worker: usize, life: Incarnation) -> bool {
        !self.tombstones.is_empty() && self.tombstones.contains(&(worker, life, attempt.clone()))
    }

    /// What the caller of a run is given, token by token.
    // contract: C-10, C-14
    pub fn delivered(&mut self, run: usize, sequence: u32, tokens: &[u32]) {
        self.met.tokens += tokens.len() as u64;
        let truth = &mut self.runs[run];
        truth.expect(run);
        if truth.end_told {
            return self.fail("C-12", || format!("{} gets tokens after its end", called(run)));
        }
        let (Some(got), Some(expected)) = (truth.delivered.get_mut(sequence as usize), truth.expected.get(sequence as usize)) else {
            return self.fail("C-14", || format!("{} gets tokens of a sequence {sequence} that it did not ask for", called(run)));
        };
        got.extend_from_slice(tokens);
        if !expected.starts_with(got) {
            let what = format!("{}, sequence {sequence}: {got:?} is no beginning of the isolated run's {expected:?}", called(run));
            self.fail("C-14", || what);
        }
    }

    /// The caller is told that nothing follows. A caller that was told early, because the worker did not answer, gets no second word.
    pub fn end_told(&mut self, run: usize) {
        self.runs[run].end_told = true;
    }

    /// The outcome is set.
    // contract: C-5
    pub fn outcome(&mut self, run: usize, cause: Cause) {
        let truth = &mut self.runs[run];
        truth.expect(run);
        if let Some(before) = truth.outcome.replace(cause) {
            return self.fail("C-5", || format!("{} has two outcomes: {before}, then {cause}", called(run)));
        }
        if matches!(cause, Cause::Stop | Cause::Length) {
            self.met.completed += 1;
            let truth = &self.runs[run];
            // A caller that was told the end early got no more.
            if !truth.end_told && truth.delivered != truth.expected {
                let what = format!("{} completed with {:?} of {:?}", called(run), truth.delivered, truth.expected);
                self.fail("C-10", || what);
            }
        }
    }

    /// A message came to a worker: what is of another life changes nothing.
    // contract: C-3
    pub fn stale_at_worker(&mut self, meant: bool, is_stale: bool, unchanged: bool) {
        self.met.stale += u64::from(!meant);
        if !(meant || is_stale && unchanged) {
            self.fail("C-3", || "a message of another life changed something at a worker".to_string());
        }
    }

    // contract: C-3
    pub fn stale_at_gateway(&mut self, meant: bool, unchanged: bool) {
        self.met.stale += u64::from(!meant);
        if !meant && !unchanged {
            self.fail("C-3", || "a message of another life changed something at a gateway".to_string());
        }
    }
}

impl RunTruth {
    /// What it generates when nobody disturbs it.
    fn expect(&mut self, run: usize) {
        if self.expected.is_empty() {
            let plan = &self.plan;
            let seed = run as u64 + 1;
            self.expected = (0..plan.n).map(|s| isolated(&plan.prompt, plan.cap, seed, s)).collect();
        }
    }
}
