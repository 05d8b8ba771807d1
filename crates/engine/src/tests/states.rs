//! Forks and fingerprints: a small engine's states, explored in breadth. Two ways to one fingerprint must go on alike for ever.
//!
//! "Alike" is shown by induction: from both, every input gives the same effects and again one fingerprint.

use std::collections::HashMap;
use std::hash::Hash;

use kv::Digest;
use lifecycle::params::Sampling;
use lifecycle::{Cause, Outcome, StepId, Time};

use super::simulated::id;
use crate::device::{DeviceError, DeviceLimits, RowDone, Sampled, StepDone, StepPlan};
use crate::{Effect, Engine, EngineConfig, FlagMap, Input, Submission};

const NAMES: [&str; 2] = ["a", "b"];
const DEADLINE: Time = Time(50);

/// What may happen next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Submit(usize),
    Tokenised(usize),
    End(usize),
    Suspend(usize),
    Attach(usize),
    Stop(usize),
    Plan,
    /// The oldest step is done: rows whose flag is set were dropped.
    Done,
    /// The oldest step fails and is over.
    Fails,
    /// Nobody knows what the oldest step still does.
    Hangs,
    /// The device breaks every row of the oldest step.
    Breaks,
    Tick,
}

/// An engine, the plans that its device has, and the time.
pub(super) struct State {
    pub engine: Engine,
    queue: Vec<StepPlan>,
    pub now: Time,
}

fn submission(k: usize) -> Submission {
    Submission {
        attempt: id(NAMES[k]),
        number: k as u64 + 1,
        n: 1 + k as u32,
        max_tokens: Some(2),
        sampling: Sampling::default(),
        stop_tokens: vec![8],
        cache_salt: String::new(),
        priority: 0,
        deadlines: if k == 0 { vec![(DEADLINE, Cause::ClientDeadline)] } else { vec![] },
    }
}

impl State {
    pub fn new(blocks: u32) -> State {
        let config = EngineConfig { step_tokens: 4, max_running: 3, ..EngineConfig::default() };
        let limits = DeviceLimits { blocks_total: blocks, block_tokens: 2, block_bytes: 1, slots: 3, context: 8, vocab: 9, in_flight: 2 };
        State { engine: Engine::new(config, limits), queue: Vec::new(), now: Time(1) }
    }

    pub fn fork(&self) -> State {
        let mut flags = FlagMap::default();
        let engine = self.engine.fork(&mut flags);
        State { engine, queue: self.queue.iter().map(|plan| plan.fork(&mut flags)).collect(), now: self.now }
    }

    /// The engine's fingerprint, and what a device would see of its rows.
    fn print(&self) -> u128 {
        let mut out = Digest::default();
        self.engine.hash_state(self.now, &mut out);
        for plan in &self.queue {
            (self.engine.next_step - plan.id.0).hash(&mut out);
            for row in &plan.rows {
                (row.slot, row.position, row.count(), &row.table, row.sample, row.is_dropped(), row.start.is_some()).hash(&mut out);
            }
        }
        (DEADLINE > self.now).hash(&mut out);
        out.value()
    }

    /// What may happen here.
    fn acts(&self) -> Vec<Act> {
        let mut acts = vec![Act::Plan, Act::Tick];
        for k in 0..NAMES.len() {
            acts.extend([Act::Submit(k), Act::Tokenised(k), Act::End(k), Act::Suspend(k), Act::Attach(k), Act::Stop(k)]);
        }
        if !self.queue.is_empty() {
            acts.extend([Act::Done, Act::Fails, Act::Hangs, Act::Breaks]);
        }
        acts
    }

    fn done(&mut self, result: impl Fn(&crate::Row) -> RowDone) -> Input {
        let plan = self.queue.remove(0);
        Input::StepDone(StepDone { id: plan.id, result: Ok(plan.rows.iter().map(result).collect()) })
    }

    fn failed(&mut self, error: DeviceError) -> Input {
        let id = self.queue.remove(0).id;
        Input::StepDone(StepDone { id, result: Err(error) })
    }

    /// Does it, and says what came of it, with numbers of steps told by their distance.
    pub fn act(&mut self, act: Act) -> String {
        let next = self.engine.next_step;
        let oldest = self.queue.first().map_or(next, |plan| plan.id.0);
        let input = match act {
            Act::Plan => {
                let (plan, effects) = self.engine.plan();
                let said = format!("{effects:?} {plan:?}");
                self.queue.extend(plan);
                return relative(&said, oldest, next);
            }
            Act::Submit(k) => Input::Submit(Box::new(submission(k))),
            Act::Tokenised(k) => Input::Tokenised { attempt: id(NAMES[k]), tokens: vec![1, 2, 3] },
            Act::End(k) => Input::End { attempt: id(NAMES[k]), number: k as u64 + 1, outcome: Outcome::of(Cause::ClientClosed) },
            Act::Suspend(k) => Input::Suspend { attempt: id(NAMES[k]) },
            Act::Attach(k) => Input::Attach { attempt: id(NAMES[k]) },
            Act::Stop(k) => Input::Stop { attempt: id(NAMES[k]), sequence: 0 },
            Act::Done => self.done(|row| match row.is_dropped() {
                true => RowDone::Dropped { layers: 0 },
                // One choice for each position, as a model would make it.
                false => RowDone::Computed { sampled: row.sample.then(|| token(4 + row.position % 3)), late: false },
            }),
            Act::Breaks => self.done(|_| RowDone::Dropped { layers: 1 }),
            Act::Fails => self.failed(DeviceError::Step("simulated".into())),
            Act::Hangs => {
                let input = self.failed(DeviceError::Hung("simulated".into()));
                self.queue.clear();
                input
            }
            Act::Tick => {
                self.now = Time(self.now.0 + 60);
                Input::Tick
            }
        };
        let effects: Vec<Effect> = self.engine.apply(input, self.now);
        relative(&format!("{effects:?}"), oldest, next)
    }
}

fn token(token: u32) -> Sampled {
    Sampled { token, logprob: None, top: Vec::new() }
}

/// Replaces each number of a step, which prints as `s17`, by its distance from the next; of steps that are over only that they are.
fn relative(said: &str, oldest: u64, next: u64) -> String {
    let mut out = String::new();
    let mut parts = said.split(": s");
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        match part[..digits].parse::<u64>() {
            Ok(step) if step >= oldest => out.push_str(&format!(": next-{}", next.wrapping_sub(step) as i64)),
            Ok(_) => out.push_str(": an old step"),
            Err(_) => out.push_str(": s"),
        }
        out.push_str(&part[digits..]);
    }
    out
}

#[test]
fn numbers_of_steps_are_told_by_their_distance() {
    let effects = vec![Effect::Journal(None, lifecycle::event::Event::FenceCompleted { step: StepId(17) })];
    let said = format!("{effects:?}");
    assert!(relative(&said, 16, 18).contains("step: next-1"), "{said}");
    assert!(relative(&said, 18, 19).contains("step: an old step"), "{said}");
    assert_eq!(relative("a: slot b: s5", 1, 6), "a: slot b: next-1");
}

/// What was found of an exploration.
#[derive(Default, Debug)]
struct Found {
    states: usize,
    /// Further ways to a state that was known. Every 32nd was compared with the first.
    ways: usize,
    /// Compared beside those: ways with other numbers of steps, attempts or owners than the first.
    renamed: usize,
}

/// Explores breadth first up to so many states, and compares of each state up to `ways` further ways to it with the first.
fn explore(blocks: u32, states: usize, ways: usize) -> Found {
    let mut known: HashMap<u128, usize> = HashMap::new();
    let mut all = vec![State::new(blocks)];
    let mut compared = vec![0];
    known.insert(all[0].print(), 0);
    let mut found = Found::default();
    let mut at = 0;
    while at < all.len() && all.len() < states {
        for act in all[at].acts() {
            let mut next = all[at].fork();
            next.act(act);
            assert_eq!(next.engine.audit(), Ok(()));
            match known.get(&next.print()).copied() {
                None => {
                    known.insert(next.print(), all.len());
                    all.push(next);
                    compared.push(0);
                }
                Some(first) if compared[first] < ways && is_renamed(&next, &all[first]) => {
                    compared[first] += 1;
                    found.renamed += 1;
                    compare(&next, &all[first]);
                }
                Some(first) if found.ways % 32 == 0 => {
                    found.ways += 1;
                    compare(&next, &all[first]);
                }
                Some(_) => found.ways += 1,
            }
        }
        at += 1;
    }
    found.states = all.len();
    found
}

fn is_renamed(one: &State, other: &State) -> bool {
    let counters = |s: &State| (s.engine.next_step, s.engine.next_key, s.engine.next_owner, s.now);
    counters(one) != counters(other)
}

fn compare(one: &State, other: &State) {
    let account = |s: &State| s.engine.pool.account();
    assert_eq!(account(one), account(other), "one fingerprint, one account");
    for act in one.acts() {
        let (mut one, mut other) = (one.fork(), other.fork());
        assert_eq!(one.act(act), other.act(act), "{act:?}");
        assert_eq!(one.print(), other.print(), "after {act:?}");
    }
}

#[test]
fn states_with_one_fingerprint_go_on_alike() {
    for blocks in [3, 6] {
        let found = explore(blocks, 3000, 2);
        assert!(found.states >= 3000 && found.ways > 10_000 && found.renamed > 500, "{found:?}");
    }
}

/// Runs `a` to its end: cancelled or not, with a suspension or not, and then `b` for a while.
fn history(cancelled: bool, before: usize) -> State {
    let mut s = State::new(6);
    let drive = |s: &mut State, acts: &[Act]| acts.iter().for_each(|act| drop(s.act(*act)));
    for _ in 0..before {
        drive(&mut s, &[Act::Plan, Act::Suspend(0), Act::Attach(0), Act::Tick]);
    }
    s.now = Time(1);
    drive(&mut s, &[Act::Submit(0)]);
    if cancelled {
        drive(&mut s, &[Act::End(0), Act::End(0)]);
    } else {
        drive(&mut s, &[Act::Suspend(0), Act::Stop(0), Act::Attach(0), Act::End(0), Act::Tokenised(0)]);
    }
    drive(&mut s, &[Act::Submit(1), Act::Tokenised(1), Act::Plan]);
    s
}

#[test]
fn two_histories_that_reach_one_situation_have_one_fingerprint() {
    let fingerprint = |s: &State| s.engine.fingerprint(s.now);
    let first = history(true, 0);
    assert_eq!(fingerprint(&first), fingerprint(&history(false, 3)));
    // Another one, from a state in which other steps, keys, owners and generations were given.
    let mut long = State::new(6);
    let mut short = State::new(6);
    for act in [Act::Submit(0), Act::Tokenised(0), Act::Plan, Act::End(0), Act::Done] {
        long.act(act);
    }
    for act in [Act::Submit(0), Act::End(0)] {
        short.act(act);
    }
    for s in [&mut long, &mut short] {
        for act in [Act::Submit(1), Act::Tokenised(1), Act::Plan, Act::Done, Act::Plan] {
            s.act(act);
        }
    }
    assert!(is_renamed(&long, &short));
    assert_eq!(fingerprint(&long), fingerprint(&short));
    // The time left counts, not the time.
    let at = |now: u64, deadline: u64| {
        let mut s = State::new(6);
        s.now = Time(now);
        let submission = Submission { deadlines: vec![(Time(deadline), Cause::ClientDeadline)], ..submission(0) };
        s.engine.apply(Input::Submit(Box::new(submission)), s.now);
        fingerprint(&s)
    };
    assert_eq!(at(10, 60), at(20, 70));
    assert_ne!(at(10, 60), at(10, 61));
}

#[test]
fn a_fork_and_its_device_leave_the_first_world_alone() {
    let mut first = State::new(6);
    for act in [Act::Submit(0), Act::Tokenised(0), Act::Submit(1), Act::Tokenised(1), Act::Plan] {
        first.act(act);
    }
    let before = (first.print(), first.engine.pool.account());
    let mut fork = first.fork();
    assert_eq!(fork.print(), before.0);
    let (row, forked) = (first.queue[0].rows[0].flag.clone(), fork.queue[0].rows[0].flag.clone());
    assert!(!row.is_same(&forked), "a flag of its own");
    fork.act(Act::End(0));
    assert!(forked.is_set() && !row.is_set(), "which its engine sets and its device sees");
    assert_eq!((first.print(), first.engine.pool.account()), before);
    // A flag that was set is set in the fork.
    assert!(fork.fork().queue[0].rows[0].is_dropped());
    while !fork.queue.is_empty() {
        fork.act(Act::Done);
    }
    assert_eq!((first.print(), first.engine.pool.account()), before);
    assert_eq!((first.engine.audit(), fork.engine.audit()), (Ok(()), Ok(())));
    // And the other way round.
    let before = fork.print();
    first.act(Act::End(1));
    assert!(row.is_same(&first.queue[0].rows[0].flag));
    assert_eq!(fork.print(), before);
}

#[test]
fn what_a_run_asked_for_and_why_it_is_to_end_tell_engines_apart() {
    let submitted = |change: fn(&mut Submission)| {
        let (mut s, mut submission) = (State::new(6), submission(0));
        change(&mut submission);
        s.engine.apply(Input::Submit(Box::new(submission)), s.now);
        s.engine.fingerprint(s.now)
    };
    let cancelled = |cause: Cause, number: u64| {
        let mut s = State::new(6);
        s.engine.apply(Input::End { attempt: id("a"), number, outcome: Outcome::of(cause) }, s.now);
        s.engine.fingerprint(s.now)
    };
    let prints = [
        State::new(6).engine.fingerprint(Time(1)),
        State::new(5).engine.fingerprint(Time(1)),
        submitted(|_| {}),
        submitted(|s| s.n = 2),
        submitted(|s| s.max_tokens = Some(3)),
        submitted(|s| s.sampling.temperature = 0.5),
        submitted(|s| s.stop_tokens = vec![7]),
        submitted(|s| s.cache_salt = "salt".into()),
        submitted(|s| s.priority = 1),
        submitted(|s| s.number = 2),
        submitted(|s| s.attempt = id("b")),
        submitted(|s| s.deadlines[0].1 = Cause::QueueDeadline),
        cancelled(Cause::ClientClosed, 1),
        cancelled(Cause::ClientReset, 1),
        cancelled(Cause::ClientClosed, 2),
    ];
    for (i, one) in prints.iter().enumerate() {
        assert_eq!(prints.iter().position(|other| other == one), Some(i), "{i} is told from those before it");
    }
}
