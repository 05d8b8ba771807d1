//! Both sides against each other over a network that a test controls, with an engine of three lines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::*;
use crate::message::{Delta, Down, Prompt, Receipt, Submit, Up, Usage};
use crate::params::Params;
use crate::{AttemptId, Cause, Incarnation, Outcome, RunId, RunKey, StepId, Tenant, Time};

const MS: Duration = Duration::from_millis(1);

fn id(run: &str, attempt: u32) -> AttemptId {
    AttemptId { key: RunKey { tenant: Tenant::default(), run: RunId::parse(run).expect("a test's id") }, attempt }
}

/// What became of an attempt at the worker: the engine of these tests.
#[derive(Default, Debug, Clone, PartialEq)]
struct Ran {
    number: u64,
    suspended: bool,
    cause: Option<Cause>,
    released: bool,
    tokens: u32,
}

/// A worker: its side, and an engine that gives a token to each attempt that is not suspended when it is told to step.
struct TestWorker {
    side: WorkerSide,
    ran: BTreeMap<AttemptId, Ran>,
    early: BTreeMap<AttemptId, Cause>,
    submitted: u32,
    step: u64,
}

impl TestWorker {
    fn new(life: u128, config: SessionConfig) -> TestWorker {
        let side = WorkerSide::new("w".into(), Incarnation(life), config);
        TestWorker { side, ran: BTreeMap::new(), early: BTreeMap::new(), submitted: 0, step: 0 }
    }

    /// Carries effects out; gives the frames that go out.
    fn carry(&mut self, effects: Vec<WorkerEffect>, now: Time) -> Vec<(String, Frame<Up>)> {
        let mut frames = Vec::new();
        let mut queue = VecDeque::from(effects);
        while let Some(effect) = queue.pop_front() {
            let mut say = |side: &mut WorkerSide, up: Up| queue.extend(side.said(up, now));
            match effect {
                WorkerEffect::Send { gateway, frame, .. } => frames.push((gateway.to_string(), *frame)),
                WorkerEffect::Submit(submit) => {
                    self.submitted += 1;
                    let attempt = submit.attempt.clone();
                    let before = self.ran.insert(attempt.clone(), Ran { number: submit.number, ..Ran::default() });
                    assert!(before.is_none_or(|b| b.released), "{attempt} runs twice at once");
                    match self.early.remove(&attempt) {
                        Some(cause) => self.end(&attempt, cause).into_iter().for_each(|up| say(&mut self.side, up)),
                        None => say(&mut self.side, Up::Accepted { attempt, prompt_tokens: 1 }),
                    }
                }
                WorkerEffect::Cancel { attempt, cause, .. } => {
                    let live = self.ran.get(&attempt).filter(|r| !r.released);
                    let won = live.map(|r| r.cause.unwrap_or(cause));
                    if live.is_none() {
                        self.early.insert(attempt.clone(), cause);
                    }
                    say(&mut self.side, Up::CancelAcknowledged { attempt: attempt.clone(), won });
                    self.end(&attempt, cause).into_iter().for_each(|up| say(&mut self.side, up));
                }
                WorkerEffect::Suspend(attempt) => self.ran.get_mut(&attempt).expect("known").suspended = true,
                WorkerEffect::Attach(attempt) => self.ran.get_mut(&attempt).expect("known").suspended = false,
                WorkerEffect::Stale => {}
            }
        }
        frames
    }

    fn end(&mut self, attempt: &AttemptId, cause: Cause) -> Vec<Up> {
        let Some(ran) = self.ran.get_mut(attempt).filter(|r| r.cause.is_none()) else { return Vec::new() };
        ran.cause = Some(cause);
        ran.released = true;
        let ended = Up::Ended { attempt: attempt.clone(), outcome: Outcome::of(cause), usage: Usage::default() };
        vec![ended, Up::Released { attempt: attempt.clone(), receipt: Receipt::default() }]
    }

    /// One step: looks at the leases first, as a worker does.
    fn step(&mut self, now: Time) -> Vec<(String, Frame<Up>)> {
        let looked = self.side.tick(now);
        let mut frames = self.carry(looked, now);
        self.step += 1;
        let mut deltas = Vec::new();
        for (attempt, ran) in self.ran.iter_mut().filter(|(_, r)| r.cause.is_none() && !r.suspended) {
            ran.tokens += 1;
            deltas.push(delta(attempt, ran.tokens));
        }
        if !deltas.is_empty() {
            let said = self.side.said(Up::Step { step: StepId(self.step), deltas }, now);
            frames.extend(self.carry(said, now));
        }
        frames
    }
}

fn delta(attempt: &AttemptId, token: u32) -> Delta {
    Delta {
        attempt: attempt.clone(),
        sequence: 0,
        text: String::new(),
        tokens: vec![token],
        logprobs: Vec::new(),
        finish: None,
        passed: None,
    }
}

/// A gateway: its side, and what was delivered.
struct TestGateway {
    name: &'static str,
    side: GatewaySide,
    tokens: BTreeMap<AttemptId, Vec<u32>>,
    ended: BTreeMap<AttemptId, Cause>,
    released: BTreeSet<AttemptId>,
    acknowledged: BTreeMap<AttemptId, Vec<Option<Cause>>>,
    asked: Vec<Vec<AttemptId>>,
    events: Vec<&'static str>,
    next_number: u64,
}

/// The world: one worker, its gateways, and what is on its way.
struct World {
    now: Time,
    config: SessionConfig,
    worker: TestWorker,
    gateways: Vec<TestGateway>,
    down: VecDeque<(usize, Frame<Down>)>,
    up: VecDeque<(usize, Frame<Up>)>,
    random: u64,
    /// Of a hundred frames, so many are lost, and so many are doubled.
    loss: u64,
    doubled: u64,
    reorder: bool,
    cut: bool,
}

impl World {
    fn new(gateways: &[&'static str]) -> World {
        let config = SessionConfig { lease: MS * 2000, ask_every: Duration::from_secs(3600), ..SessionConfig::default() };
        let gateway = |(i, name): (usize, &&'static str)| TestGateway {
            name,
            side: GatewaySide::new((*name).into(), Incarnation(100 + i as u128), config),
            tokens: BTreeMap::new(),
            ended: BTreeMap::new(),
            released: BTreeSet::new(),
            acknowledged: BTreeMap::new(),
            asked: Vec::new(),
            events: Vec::new(),
            next_number: 0,
        };
        let gateways: Vec<TestGateway> = gateways.iter().enumerate().map(gateway).collect();
        let worker = TestWorker::new(1, config);
        let now = Time(1_000_000);
        let (down, up) = (VecDeque::new(), VecDeque::new());
        let mut world = World { now, config, worker, gateways, down, up, random: 9, loss: 0, doubled: 0, reorder: false, cut: false };
        (0..world.gateways.len()).for_each(|g| world.open(g));
        world
    }

    fn chance(&mut self, of_hundred: u64) -> bool {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % 100 < of_hundred
    }

    /// A connection is opened and its first two words get through.
    fn open(&mut self, g: usize) {
        let hello = self.gateways[g].side.hello(self.now);
        let (welcome, effects) = self.worker.side.hello(&hello, self.now).expect("there is room");
        let frames = self.worker.carry(effects, self.now);
        let effects = self.gateways[g].side.welcome(&welcome, self.now);
        self.take_up(g, effects);
        self.put_up(frames);
    }

    fn close(&mut self, g: usize) {
        let (name, side) = (self.gateways[g].name, &mut self.gateways[g].side);
        side.closed();
        self.worker.side.closed(name, self.gateways[g].next_session());
        self.down.retain(|(to, _)| *to != g);
        self.up.retain(|(to, _)| *to != g);
    }

    fn put_up(&mut self, frames: Vec<(String, Frame<Up>)>) {
        for (name, frame) in frames {
            let g = self.gateways.iter().position(|g| g.name == name).expect("a gateway of this test");
            for _ in 0..self.copies() {
                self.up.push_back((g, frame.clone()));
            }
        }
    }

    fn copies(&mut self) -> usize {
        if self.cut || self.chance(self.loss) { 0 } else { 1 + usize::from(self.chance(self.doubled)) }
    }

    fn take_up(&mut self, g: usize, effects: Vec<GatewayEffect>) {
        for effect in effects {
            let gateway = &mut self.gateways[g];
            match effect {
                GatewayEffect::Send(frame) => {
                    for _ in 0..self.copies() {
                        self.down.push_back((g, (*frame).clone()));
                    }
                }
                GatewayEffect::Deliver(up) => gateway.take(up),
                GatewayEffect::Here { .. } => gateway.events.push("here"),
                GatewayEffect::Silent => gateway.events.push("silent"),
                GatewayEffect::Refused { .. } => gateway.events.push("refused"),
                GatewayEffect::Back => gateway.events.push("back"),
                GatewayEffect::Lost { .. } => gateway.events.push("lost"),
                GatewayEffect::Close { .. } => gateway.events.push("close"),
            }
        }
    }

    fn say(&mut self, g: usize, message: Down) {
        let (sent, effects) = self.gateways[g].side.send(message, self.now);
        assert!(sent, "no worker is known");
        self.take_up(g, effects);
    }

    fn submit(&mut self, g: usize, run: &str) -> u64 {
        let number = self.gateways[g].next_number + 1;
        self.gateways[g].next_number = number;
        let worker = self.gateways[g].side.worker().expect("a worker is here");
        let submit = Submit {
            attempt: id(run, 1),
            worker,
            number,
            model: "".into(),
            prompt: Prompt::Tokens(vec![1]),
            params: Params::default(),
            deadlines: vec![],
        };
        self.say(g, Down::Submit(Box::new(submit)));
        number
    }

    fn cancel(&mut self, g: usize, run: &str, number: u64) {
        self.say(g, Down::Cancel { attempt: id(run, 1), cause: Cause::ClientClosed, number, observed_ago: MS });
    }

    /// A millisecond: what was on its way arrives, and clocks are looked at.
    fn pass(&mut self, ms: u32) {
        for _ in 0..ms {
            self.now = self.now.after(MS);
            let mut down: Vec<_> = std::mem::take(&mut self.down).into();
            let mut up: Vec<_> = std::mem::take(&mut self.up).into();
            if self.reorder {
                (0..down.len()).for_each(|i| {
                    if self.chance(50) {
                        down.swap(0, i)
                    }
                });
                (0..up.len()).for_each(|i| {
                    if self.chance(50) {
                        up.swap(0, i)
                    }
                });
            }
            for (g, frame) in down {
                let effects = self.worker.side.hear(self.gateways[g].name, frame, self.now);
                let frames = self.worker.carry(effects, self.now);
                self.put_up(frames);
            }
            for (g, frame) in up {
                let effects = self.gateways[g].side.hear(frame, self.now);
                self.take_up(g, effects);
            }
            let effects = self.worker.side.tick(self.now);
            let frames = self.worker.carry(effects, self.now);
            self.put_up(frames);
            for g in 0..self.gateways.len() {
                let effects = self.gateways[g].side.tick(self.now);
                self.take_up(g, effects);
            }
        }
    }

    fn step(&mut self) {
        let frames = self.worker.step(self.now);
        self.put_up(frames);
    }

    fn ran(&self, run: &str) -> &Ran {
        &self.worker.ran[&id(run, 1)]
    }

    fn at_rest(&self) {
        for (what, count) in self.worker.side.held() {
            assert!(what == "gateways" || count == 0, "{what}: {count}");
        }
    }
}

impl TestGateway {
    fn next_session(&mut self) -> u64 {
        // The next hello counts on from the open one.
        self.side.clone().hello(Time::ZERO).session - 1
    }

    fn take(&mut self, up: Up) {
        match up {
            Up::Step { deltas, .. } => {
                for d in deltas {
                    self.tokens.entry(d.attempt).or_default().extend(d.tokens);
                }
            }
            Up::Ended { attempt, outcome, .. } => {
                let before = self.ended.insert(attempt, outcome.cause);
                assert_eq!(before, None, "a second end");
            }
            Up::Released { attempt, .. } => assert!(self.released.insert(attempt), "a second release"),
            Up::CancelAcknowledged { attempt, won } => self.acknowledged.entry(attempt).or_default().push(won),
            Up::Ask { attempts } => self.asked.push(attempts),
            _ => {}
        }
    }
}

#[test]
fn what_is_sent_arrives_once_and_in_order() {
    let mut w = World::new(&["a"]);
    w.submit(0, "r");
    w.pass(2);
    for _ in 0..5 {
        w.step();
        w.pass(1);
    }
    w.cancel(0, "r", 1);
    w.pass(3);
    assert_eq!(w.gateways[0].tokens[&id("r", 1)], [1, 2, 3, 4, 5]);
    assert_eq!(w.gateways[0].ended[&id("r", 1)], Cause::ClientClosed);
    assert_eq!(w.gateways[0].acknowledged[&id("r", 1)], [Some(Cause::ClientClosed)]);
    assert!(w.gateways[0].released.contains(&id("r", 1)));
    w.at_rest();
}

// contract: C-2 C-9
// field: F-30
#[test]
fn a_network_that_loses_doubles_and_reorders_changes_nothing() {
    for seed in 0..20 {
        let mut w = World::new(&["a", "b"]);
        (w.random, w.loss, w.doubled, w.reorder) = (seed, 10, 10, true);
        for run in 0..20 {
            w.submit(run % 2, &format!("r{run}"));
            w.step();
            w.pass(3);
        }
        for run in (0..20).step_by(2) {
            w.cancel(run % 2, &format!("r{run}"), run as u64 / 2 + 1);
            w.step();
            w.pass(5);
        }
        w.pass(3000);
        assert_eq!(w.worker.submitted, 20);
        for run in 0..20 {
            let (attempt, g) = (id(&format!("r{run}"), 1), run % 2);
            let ran = w.worker.ran[&attempt].clone();
            let tokens = w.gateways[g].tokens.get(&attempt).cloned().unwrap_or_default();
            assert_eq!(tokens, (1..=ran.tokens).collect::<Vec<_>>(), "{attempt}, seed {seed}");
            assert_eq!(
                w.gateways[g].released.contains(&attempt),
                run % 2 == 0,
                "{attempt}, seed {seed}: {:#?} {:#?}",
                w.worker.side,
                w.gateways[g].side
            );
        }
        assert_eq!(w.gateways[0].events, ["here"], "no session was lost: {seed}");
    }
}

// contract: C-10
#[test]
fn a_cut_connection_suspends_and_the_next_one_goes_on_from_the_same_token() {
    let mut w = World::new(&["a", "b"]);
    w.submit(0, "r");
    w.submit(1, "neighbour");
    w.pass(2);
    w.step();
    // The step's tokens go down with the connection.
    w.close(0);
    w.pass(240);
    w.step();
    w.pass(20);
    for _ in 0..7 {
        w.step();
    }
    assert_eq!((w.ran("r").tokens, w.ran("r").suspended), (2, true), "not scheduled, and not ended");
    assert_eq!(w.ran("neighbour").tokens, 9);
    w.open(0);
    w.pass(2);
    assert!(!w.ran("r").suspended);
    w.step();
    w.pass(2);
    assert_eq!(w.gateways[0].tokens[&id("r", 1)], [1, 2, 3]);
    assert_eq!(w.gateways[0].events, ["here", "silent", "back"]);
}

// contract: C-9 C-23
#[test]
fn the_lease_ends_what_a_silent_gateway_owns_and_the_gateway_concludes_later() {
    let mut w = World::new(&["a"]);
    w.submit(0, "r");
    w.pass(2);
    w.cut = true;
    let mut ended_first = false;
    for _ in 0..2200 {
        w.pass(1);
        let lost = w.gateways[0].events.contains(&"lost");
        assert!(!lost || w.ran("r").released, "the gateway concluded while the worker might still have computed");
        ended_first |= w.ran("r").released && !lost;
    }
    assert!(ended_first && w.gateways[0].events.contains(&"lost"));
    assert_eq!(w.ran("r").cause, Some(Cause::Orphaned));
    // The gateway has given it up, so it begins anew, and hears nothing of what it has concluded about.
    w.cut = false;
    w.open(0);
    w.pass(5);
    assert_eq!(w.gateways[0].ended.len(), 0);
    w.submit(0, "s");
    w.pass(2);
    w.step();
    assert_eq!(w.ran("s").tokens, 1);
}

// contract: C-9
#[test]
fn a_gateway_that_was_stopped_for_longer_than_its_lease_learns_the_truth() {
    let mut w = World::new(&["a"]);
    w.submit(0, "r");
    w.pass(2);
    w.step();
    // It is stopped: nothing is taken in, nothing is looked at, and what is sent to it waits.
    for _ in 0..2100 {
        w.now = w.now.after(MS);
        let effects = w.worker.side.tick(w.now);
        let frames = w.worker.carry(effects, w.now);
        w.put_up(frames);
    }
    assert_eq!(w.ran("r").cause, Some(Cause::Orphaned));
    // It reads what has waited before it looks at its clock.
    for (g, frame) in std::mem::take(&mut w.up) {
        let effects = w.gateways[g].side.hear(frame, w.now);
        w.take_up(g, effects);
    }
    assert_eq!(w.gateways[0].ended[&id("r", 1)], Cause::Orphaned);
    assert!(w.gateways[0].released.contains(&id("r", 1)));
    w.pass(5);
    w.submit(0, "s");
    w.pass(2);
    w.step();
    assert_eq!(w.ran("s").tokens, 1, "a new lease has begun");
    assert_eq!(w.gateways[0].events, ["here"]);
}

// contract: C-3 C-20
#[test]
fn a_new_life_of_the_worker_fences_the_old_one() {
    let mut w = World::new(&["a"]);
    w.submit(0, "r");
    w.pass(2);
    w.step();
    let late = w.up.clone();
    w.worker = TestWorker::new(2, w.config);
    w.close(0);
    w.open(0);
    assert_eq!(w.gateways[0].events, ["here", "lost", "here"]);
    for (g, frame) in late {
        let effects = w.gateways[g].side.hear(frame, w.now);
        w.take_up(g, effects);
    }
    assert!(w.gateways[0].tokens.is_empty() && w.gateways[0].side.stale() > 0);
    assert_eq!(w.gateways[0].side.worker(), Some(Incarnation(2)));
}

// contract: C-3 C-23
#[test]
fn a_new_life_of_a_gateway_is_asked_and_only_its_answer_counts() {
    let mut w = World::new(&["a"]);
    for run in ["kept", "given-up", "unnamed"] {
        w.submit(0, run);
    }
    w.pass(2);
    let late = w.down.clone();
    w.gateways[0].side = GatewaySide::new("a".into(), Incarnation(200), w.config);
    w.open(0);
    w.pass(2);
    let mut asked = w.gateways[0].asked.concat();
    asked.sort();
    assert_eq!(asked, [id("given-up", 1), id("kept", 1), id("unnamed", 1)]);
    assert!(["kept", "given-up", "unnamed"].iter().all(|run| w.ran(run).suspended && w.ran(run).cause.is_none()));
    w.say(0, Down::Claim { attempts: vec![id("kept", 1)] });
    w.say(0, Down::Disclaim { attempts: vec![id("given-up", 1), id("never-heard-of", 1)] });
    w.pass(2);
    assert_eq!((w.ran("kept").suspended, w.ran("kept").cause), (false, None));
    assert_eq!(w.ran("given-up").cause, Some(Cause::Orphaned));
    assert_eq!((w.ran("unnamed").suspended, w.ran("unnamed").cause), (true, None), "absence from a list means nothing");
    w.pass(2000);
    assert_eq!(w.ran("unnamed").cause, Some(Cause::Orphaned), "the former life's lease is over");
    assert_eq!(w.ran("kept").cause, None);
    for (g, frame) in late {
        let name = w.gateways[g].name;
        assert!(matches!(w.worker.side.hear(name, frame, w.now)[..], [WorkerEffect::Stale]));
    }
}

// contract: C-23
#[test]
fn a_claim_that_was_made_before_a_submit_and_comes_after_it_harms_nobody() {
    let mut w = World::new(&["a"]);
    w.submit(0, "old");
    w.pass(2);
    w.submit(0, "new");
    w.say(0, Down::Claim { attempts: vec![id("old", 1)] });
    w.pass(2);
    assert!(["old", "new"].iter().all(|run| w.ran(run).cause.is_none() && !w.ran(run).suspended));
}

// contract: C-8 C-11
#[test]
fn a_cancel_from_another_gateway_counts_before_and_after_the_submit_and_twice() {
    let mut w = World::new(&["a", "b"]);
    w.cancel(1, "early", 0);
    w.pass(2);
    assert_eq!(w.gateways[1].acknowledged[&id("early", 1)], [None]);
    w.submit(0, "early");
    w.submit(0, "late");
    w.pass(2);
    assert_eq!((w.ran("early").tokens, w.ran("early").cause), (0, Some(Cause::ClientClosed)));
    w.cancel(1, "late", 0);
    w.cancel(0, "late", 2);
    w.cancel(1, "late", 0);
    w.pass(2);
    for run in ["early", "late"] {
        for g in [0, 1] {
            assert!(w.gateways[g].released.contains(&id(run, 1)), "{run} at {}", w.gateways[g].name);
        }
    }
    w.cancel(1, "late", 0);
    w.pass(2);
    w.cancel(0, "late", 2);
    w.pass(2);
    assert_eq!(w.gateways[0].acknowledged[&id("late", 1)].last(), Some(&None), "released long ago, no tombstone");
}

// contract: C-2
#[test]
fn a_tombstone_that_there_is_no_room_for_is_not_acknowledged() {
    let mut w = World::new(&["a", "b"]);
    w.worker = TestWorker::new(2, SessionConfig { tombstones_max: 1, ..w.config });
    (0..2).for_each(|g| w.open(g));
    w.cancel(1, "x", 0);
    w.cancel(1, "y", 0);
    w.pass(2);
    assert_eq!(w.gateways[1].acknowledged.keys().collect::<Vec<_>>(), [&id("x", 1)]);
}

// contract: C-8
#[test]
fn a_repeated_cancel_is_sent_again_and_not_added() {
    let mut w = World::new(&["a"]);
    w.submit(0, "r");
    w.pass(2);
    w.cut = true;
    for _ in 0..5 {
        w.cancel(0, "r", 1);
        w.pass(10);
    }
    assert_eq!(w.gateways[0].side.waiting(), 1);
    w.cut = false;
    w.cancel(0, "r", 1);
    w.pass(3);
    assert_eq!(w.gateways[0].acknowledged[&id("r", 1)].len(), 1, "a lost acknowledgement costs a repetition, and nothing else");
    w.at_rest();
}

#[test]
fn a_run_of_the_same_name_waits_until_the_earlier_life_s_is_released() {
    let mut w = World::new(&["a"]);
    w.submit(0, "r");
    w.pass(2);
    w.step();
    w.gateways[0].side = GatewaySide::new("a".into(), Incarnation(200), w.config);
    w.gateways[0].next_number = 0;
    w.open(0);
    w.submit(0, "r");
    w.pass(2);
    assert_eq!((w.worker.submitted, w.ran("r").cause, w.ran("r").tokens), (2, None, 0));
    w.step();
    w.pass(2);
    assert_eq!(w.gateways[0].tokens[&id("r", 1)], [1], "none of the former life's tokens");
}

#[test]
fn a_late_hello_and_an_old_life_are_refused() {
    let mut w = World::new(&["a"]);
    let late = w.gateways[0].side.hello(w.now);
    w.open(0);
    w.submit(0, "r");
    w.pass(2);
    assert!(matches!(w.worker.side.hello(&late, w.now), Err(Refused::OldSession { .. })));
    let mut old = GatewaySide::new("a".into(), Incarnation(7), w.config);
    assert!(matches!(w.worker.side.hello(&old.hello(w.now), w.now), Err(Refused::OldGateway { .. })));
    assert_eq!((w.ran("r").cause, w.ran("r").suspended), (None, false));
}

#[test]
fn gateways_are_limited_and_those_whose_lease_is_over_make_room() {
    let mut w = World::new(&["a"]);
    w.worker = TestWorker::new(2, SessionConfig { gateways_max: 1, ..w.config });
    w.open(0);
    let mut other = GatewaySide::new("b".into(), Incarnation(7), w.config);
    assert!(matches!(w.worker.side.hello(&other.hello(w.now), w.now), Err(Refused::TooManyGateways { limit: 1 })));
    w.close(0);
    w.pass(4001);
    assert!(w.worker.side.hello(&other.hello(w.now), w.now).is_ok());
}

#[test]
fn one_that_does_not_acknowledge_is_suspended_and_its_neighbour_is_not() {
    let mut w = World::new(&["a", "b"]);
    let config = SessionConfig { outbox_max: 8, suspend_after: MS * 100_000, lease: MS * 200_000, ..w.config };
    w.worker = TestWorker::new(2, config);
    w.close(0);
    (0..2).for_each(|g| w.open(g));
    w.submit(0, "slow");
    w.submit(1, "neighbour");
    w.pass(2);
    for _ in 0..30 {
        w.step();
        w.up.retain(|(to, _)| *to != 0);
        w.pass(1);
    }
    assert_eq!(w.ran("neighbour").tokens, 30);
    assert!(w.ran("slow").suspended && w.ran("slow").tokens <= 10, "{:?}", w.ran("slow"));
    w.pass(500);
    w.step();
    w.pass(1);
    assert!(!w.ran("slow").suspended);
    let tokens = &w.gateways[0].tokens[&id("slow", 1)];
    assert_eq!(*tokens, (1..=w.ran("slow").tokens).collect::<Vec<_>>());
}

// contract: C-10
#[test]
fn a_gateway_that_speaks_and_does_not_hear_is_suspended_too() {
    let mut w = World::new(&["a"]);
    w.submit(0, "r");
    w.pass(2);
    for _ in 0..1100 {
        w.up.clear();
        w.pass(1);
    }
    assert!(w.ran("r").suspended && w.ran("r").cause.is_none());
}

// contract: C-24
#[test]
fn stamps_give_the_peer_s_clock_and_how_wrong_it_may_be() {
    let echo = |stamp, held_us| Echo { stamp: Time(stamp), held: Duration::from_micros(held_us) };
    // Our 1000 goes there in 40, is held for 500, comes back in 60; their clock is 7000 ahead.
    let sample = ClockSample::of(Time(8540), echo(1000, 500), Time(1600)).expect("consistent");
    assert_eq!((sample.offset_us, sample.error), (6990, Duration::from_micros(50)));
    assert_eq!(ClockSample::of(Time(0), echo(1000, 700), Time(1600)), None, "held for longer than it was away");
    assert_eq!(ClockSample::of(Time(0), echo(1000, 0), Time(999)), None, "an echo of a stamp that was not made yet");
    let worse = ClockSample { offset_us: 0, error: Duration::from_micros(90), at: Time(2000) };
    assert_eq!(sample.better(worse), sample);
    assert_eq!(sample.better(ClockSample { at: Time(60_000_000), ..worse }).error, worse.error, "an old sample counts no more");
}

#[test]
fn a_lane_takes_no_word_about_what_it_never_had() {
    let config = SessionConfig::default();
    let mut lane = Lane::<char, char>::default();
    lane.push('a');
    lane.acknowledge(7, false, &config, Time(1));
    assert_eq!(lane.waiting(), 1);
    assert_eq!(lane.pop_due(&config, Time(1)), Some((1, 'a')));
    assert_eq!(lane.pop_due(&config, Time(1)), None);
    lane.acknowledge(1, false, &config, Time(1));
    lane.acknowledge(0, true, &config, Time(u64::MAX));
    assert_eq!((lane.waiting(), lane.pop_due(&config, Time(u64::MAX))), (0, None));
}

#[test]
fn a_lane_keeps_within_its_window_and_repeats_what_is_missing_at_once_and_all_after_a_while() {
    let config = SessionConfig { window: 3, ..SessionConfig::default() };
    let mut lane = Lane::<u64, ()>::default();
    (1..=5).for_each(|n| lane.push(n));
    let sent = |lane: &mut Lane<u64, ()>, now: Time| {
        let pop = || lane.pop_due(&config, now);
        std::iter::from_fn(pop).take(9).map(|(n, m)| if n == m { n } else { 0 }).collect::<Vec<_>>()
    };
    assert_eq!(sent(&mut lane, Time(0)), [1, 2, 3]);
    lane.acknowledge(1, false, &config, Time(10));
    assert_eq!(sent(&mut lane, Time(10)), [4]);
    assert_eq!(lane.resend_at(&config), Some(Time(10).after(config.resend_after)));
    lane.acknowledge(1, true, &config, Time(20));
    lane.acknowledge(1, true, &config, Time(30));
    assert_eq!(sent(&mut lane, Time(30)), [2], "once");
    lane.acknowledge(1, true, &config, Time(40));
    assert_eq!(sent(&mut lane, Time(40)), [], "that was asked for just now");
    let later = Time(10).after(config.resend_after);
    assert_eq!(sent(&mut lane, later), [2, 3, 4]);
    assert_eq!(lane.resent(), 4);
}

#[test]
fn of_what_comes_early_only_so_much_is_kept_and_the_rest_is_asked_for() {
    let config = SessionConfig { early_max: 2, ..SessionConfig::default() };
    let mut lane = Lane::<(), u64>::default();
    for number in [3, 4, 5] {
        assert_eq!(lane.accept(number, number, &config), []);
    }
    assert_eq!((lane.accept(1, 1, &config), lane.take_missing()), (vec![1], true));
    assert_eq!((lane.accept(2, 2, &config), lane.take_missing()), (vec![2, 3, 4], false), "5 was thrown away");
    assert_eq!((lane.accept(6, 6, &config), lane.take_missing()), (vec![], true));
    assert_eq!(lane.accept(5, 5, &config), [5, 6]);
}

// contract: C-9
#[test]
fn a_gateway_gets_a_longer_lease_than_the_worker_s_up_to_the_worker_s_limit() {
    let config = SessionConfig { lease: MS * 2000, lease_max: MS * 5000, ..SessionConfig::default() };
    for (asked, held) in [(1000, 2000), (3000, 3000), (900_000, 5000)] {
        let mut worker = WorkerSide::new("w".into(), Incarnation(1), config);
        let mut gateway = GatewaySide::new("a".into(), Incarnation(2), SessionConfig { lease: MS * asked, ..config });
        let (welcome, _) = worker.hello(&gateway.hello(Time(5)), Time(5)).expect("there is room");
        assert_eq!(welcome.lease, MS * held, "{asked}");
    }
}

#[test]
fn what_comes_early_waits_for_its_turn() {
    let config = SessionConfig { window: 3, ..SessionConfig::default() };
    let mut lane = Lane::<(), char>::default();
    assert_eq!(lane.accept(2, 'b', &config), []);
    assert!(lane.take_missing() && !lane.take_missing());
    assert_eq!(lane.accept(4, 'd', &config), [], "beyond the window");
    assert_eq!(lane.accept(1, 'a', &config), ['a', 'b']);
    assert!(!lane.take_missing());
    assert_eq!(lane.accept(2, 'b', &config), []);
    assert_eq!(lane.accept(4, 'd', &config), []);
    assert_eq!((lane.accept(3, 'c', &config), lane.received()), (vec!['c', 'd'], 4));
}

#[test]
fn what_is_asked_for_again_is_what_is_missing_and_nothing_else() {
    let config = SessionConfig { window: 3, ..SessionConfig::default() };
    let mut lane = Lane::<(), char>::default();
    assert_eq!((lane.accept(4, 'd', &config), lane.take_missing()), (vec![], true), "beyond the window, so it and all before it");
    assert_eq!((lane.accept(1, 'a', &config), lane.take_missing()), (vec!['a'], false));
    assert_eq!((lane.accept(1, 'a', &config), lane.take_missing()), (vec![], false), "a doubled one is neither taken nor kept");
    assert_eq!((lane.accept(2, 'b', &config), lane.received(), lane.take_missing()), (vec!['b'], 2, false));
}

#[test]
fn of_what_comes_early_the_nearest_is_kept() {
    let config = SessionConfig { early_max: 2, ..SessionConfig::default() };
    let after = |early: &[u64]| {
        let mut lane = Lane::<(), u64>::default();
        early.iter().for_each(|number| assert_eq!(lane.accept(*number, *number, &config), []));
        [1, 2, 3].map(|number| lane.accept(number, number, &config))
    };
    assert_eq!(after(&[5, 4]), [vec![1], vec![2], vec![3, 4, 5]], "where there is room nothing makes any");
    assert_eq!(after(&[4, 5, 3]), [vec![1], vec![2, 3, 4], vec![]], "5 made room");
    assert_eq!(after(&[3, 4, 5]), [vec![1], vec![2, 3, 4], vec![]], "and 5 makes nobody leave");
}

// A submit that was held on its way until after the lease: the gateway, which heard nothing for as long, has concluded and runs it elsewhere.
// contract: C-9
#[test]
fn a_submit_that_comes_after_the_lease_is_not_scheduled() {
    let mut w = World::new(&["a"]);
    // So patient that the lease is over before anything else suspends.
    w.worker = TestWorker::new(2, SessionConfig { suspend_after: MS * 600, ..w.config });
    w.open(0);
    w.pass(5);
    // The worker hears the gateway, whose echo stays the same: it hears nothing of the worker.
    w.submit(0, "late");
    let (_, late) = w.down.pop_back().expect("the submit is on its way");
    w.cut = true;
    let deaf = Frame { number: 0, message: None, ..late.clone() };
    for _ in 0..40 {
        w.pass(50);
        w.worker.side.hear("a", deaf.clone(), w.now);
        w.step();
    }
    let effects = w.worker.side.hear("a", late, w.now);
    w.worker.carry(effects, w.now);
    w.step();
    assert_eq!(w.ran("late"), &Ran { number: 1, suspended: true, ..Ran::default() });
}

// contract: C-9 C-10
#[test]
fn an_answer_to_a_hello_that_was_given_up_opens_nothing() {
    let mut w = World::new(&["a"]);
    w.submit(0, "r");
    w.pass(5);
    w.close(0);
    let hello = w.gateways[0].side.hello(w.now);
    let (welcome, _) = w.worker.side.hello(&hello, w.now).expect("there is room");
    // It is on its way for longer than the lease.
    w.cut = true;
    w.pass(2100);
    assert_eq!(w.gateways[0].events.last(), Some(&"close"));
    let effects = w.gateways[0].side.welcome(&welcome, w.now);
    assert!(matches!(effects[..], [GatewayEffect::Close { .. }]), "its tenure is over here, and its lanes begin anew: {effects:?}");
    assert_eq!(w.gateways[0].side.worker(), None);
    w.cut = false;
    w.open(0);
    w.pass(10);
    assert_eq!(w.ran("r").cause, Some(Cause::Orphaned));
    w.submit(0, "new");
    w.pass(10);
    assert!(w.ran("new").cause.is_none());
}

// contract: C-11
#[test]
fn a_tombstone_outlives_the_gateway_that_asked_for_it_and_no_longer_than_it_must() {
    let mut w = World::new(&["a", "b"]);
    w.cancel(1, "early", 0);
    w.cancel(1, "never", 0);
    w.pass(2);
    // Another life of the gateway that cancelled, which knows nothing of it; then it is not heard for so long that it is forgotten.
    w.gateways[1].side = GatewaySide::new("b".into(), Incarnation(900), w.config);
    w.open(1);
    w.close(1);
    w.pass(10);
    w.submit(0, "early");
    w.pass(2);
    assert_eq!((w.ran("early").tokens, w.ran("early").cause), (0, Some(Cause::ClientClosed)));
    let tombstones = |w: &World| w.worker.side.held().into_iter().find(|(kind, _)| *kind == "tombstones").map(|(_, n)| n);
    assert_eq!(tombstones(&w), Some(1));
    w.worker.side.tick(w.now.after(w.config.tombstone_keep));
    assert_eq!(tombstones(&w), Some(0));
}

/// What is lost of a whole window does not cost a way there and back for each message: what is asked for after what was asked for comes in
/// ever larger parts.
#[test]
fn a_window_that_was_lost_comes_again_in_few_ways_there_and_back() {
    let config = SessionConfig::default();
    let (mut out, mut into) = (Lane::<u64, ()>::default(), Lane::<(), u64>::default());
    (1..=config.window).for_each(|n| out.push(n));
    let mut now = Time(1_000_000);
    let most = 2 * config.window as usize;
    let sent: Vec<(u64, u64)> = std::iter::from_fn(|| out.pop_due(&config, now)).take(most).collect();
    assert_eq!(sent.len() as u64, config.window);
    // Only the end of it arrives: as much as there is room for, and more.
    let mut taken: Vec<u64> = sent[200..].iter().flat_map(|(number, message)| into.accept(*number, *message, &config)).collect();
    assert!(taken.is_empty());
    let (mut ways, mut again) = (0, 0);
    for round in 0.. {
        if into.received() >= config.window {
            break;
        }
        assert!(round < 1000, "nothing comes any more");
        now = now.after(config.resend_pause);
        let missing = into.take_missing();
        out.acknowledge(into.received(), missing, &config, now);
        let more: Vec<(u64, u64)> = std::iter::from_fn(|| out.pop_due(&config, now)).take(most).collect();
        // Of the end of the window, which was thrown away and forgotten, only `resend_after` tells.
        ways += u32::from(!more.is_empty());
        again += more.len();
        taken.extend(more.into_iter().flat_map(|(number, message)| into.accept(number, message, &config)));
        assert!(ways <= 12, "{ways} ways for {} messages", taken.len());
    }
    assert!(taken.into_iter().eq(1..=config.window));
    assert!(again as u64 <= config.window + 64, "{again} sent again");
}

/// A gateway whose connection is cut, and how its tries to connect go from then on: each so many milliseconds after the one before.
fn tried(tries: &[(u32, bool)]) -> World {
    let mut w = World::new(&["a"]);
    w.pass(20);
    w.cut = true;
    w.close(0);
    for (later, is_refused) in tries {
        w.pass(*later);
        let now = w.now;
        let effects = w.gateways[0].side.tried(*is_refused, now);
        w.take_up(0, effects);
    }
    w
}

// contract: C-7, C-9, C-10
#[test]
fn a_worker_is_refused_once_connections_were_refused_for_long_enough_with_nothing_between() {
    let is_refused = |tries: &[(u32, bool)]| tried(tries).gateways[0].events.contains(&"refused");
    assert!(is_refused(&[(1, true), (1000, true)]));
    assert!(is_refused(&[(1, true), (400, true), (400, true), (200, true)]));
    assert!(!is_refused(&[(1, true), (999, true)]), "not for long enough");
    assert!(!is_refused(&[(1200, true)]), "one alone is no row");
    assert!(!is_refused(&[(1, true), (600, false), (600, true)]), "a try that came to nothing, or to a connection, is between");
    assert!(!is_refused(&[(1, true), (1900, false), (2, true), (900, true)]), "a new row");
    let mut world = tried(&[(1, true)]);
    world.now = world.now.after(MS * 2001);
    assert!(world.gateways[0].side.tried(true, world.now).is_empty(), "nobody looked in between");
}

// contract: C-9, C-10
#[test]
fn a_refused_worker_is_told_once_ends_nothing_and_is_back_when_it_is_heard() {
    let mut w = tried(&[(1, true), (1000, true), (100, true), (100, true)]);
    assert_eq!(w.gateways[0].events, ["here", "silent", "refused"]);
    assert!(w.gateways[0].side.worker().is_some(), "its life is not over");
    assert_eq!(w.gateways[0].side.try_within(w.now), None, "there is nothing more to be told");
    w.cut = false;
    w.open(0);
    assert_eq!(w.gateways[0].events, ["here", "silent", "refused", "back"]);
    w.pass(20);
    w.cut = true;
    w.close(0);
    let _ = w.gateways[0].side.tried(true, w.now);
    assert_eq!(w.gateways[0].side.try_within(w.now.after(MS * 300)), Some(MS * 700));
    w.pass(1000);
    let effects = w.gateways[0].side.tried(true, w.now);
    w.take_up(0, effects);
    assert_eq!(w.gateways[0].events[3..], ["back", "silent", "refused"], "a further row is told again");
    w.pass(2000);
    assert_eq!(w.gateways[0].events[6..], ["lost", "close"], "by its lease, and by nothing before");
    assert!(w.gateways[0].side.tried(true, w.now).is_empty() && w.gateways[0].side.try_within(w.now).is_none());
}

#[test]
fn with_no_time_to_be_refused_for_nothing_is_told() {
    let mut side =
        GatewaySide::new("a".into(), Incarnation(2), SessionConfig { refused_after: Duration::ZERO, ..SessionConfig::default() });
    let mut worker = TestWorker::new(1, SessionConfig::default());
    let (welcome, _) = worker.side.hello(&side.hello(Time(1)), Time(1)).expect("there is room");
    let _ = side.welcome(&welcome, Time(1));
    side.closed();
    for s in 1..9 {
        assert!(side.tried(true, Time(s * 500_000)).is_empty() && side.try_within(Time(s * 500_000)).is_none());
    }
}
