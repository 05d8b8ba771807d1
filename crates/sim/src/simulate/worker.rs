//! A worker's process: its session side, its engine and its device, with the thin shell between them.
//!
//! It mirrors the engine thread of `worker`: what the session lets through goes into the engine, what the engine says goes to the session,
//! and the session is asked for the time before every step. It decides nothing.
//!
//! Invariant: the session's `tick` runs before every plan, on the same moment (C-9).

use std::collections::BTreeMap;
use std::time::Duration;

use engine::{Effect, Engine, Input, Submission};
use lifecycle::event::Event as Journalled;
use lifecycle::message::{Delta, Prompt, Submit, Up};
use lifecycle::session::{Hello, WorkerEffect, WorkerSide};
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, Rules, StepId, Time};

use super::Sabotage;
use super::device::{STOP, SimulatedDevice};
use super::event::{Event, Link, Process};
use super::faults::FaultKind;
use super::network::Session;
use super::scenario::Scenario;
use super::world::{Shell, World};

/// How much later than the gateway the worker enforces a deadline that the gateway watches too, as in `worker`.
const DEADLINE_MARGIN: Duration = Duration::from_millis(100);
/// The worker's own limit on an attempt.
const WORKER_DEADLINE: Duration = Duration::from_secs(600);

/// One process.
#[derive(Debug)]
pub(super) struct WorkerProcess<R: Rules> {
    pub shell: Shell,
    pub side: WorkerSide,
    pub engine: Engine<R>,
    pub device: SimulatedDevice,
    /// Until when its host refuses new connections.
    pub refuses_until: u64,
    /// The newest connection of each gateway, and whose words it has last heard and when, by gateway and life.
    pub sessions: BTreeMap<usize, Session>,
    pub tenures: BTreeMap<usize, u64>,
    pub heard: BTreeMap<(usize, Incarnation), Time>,
    /// The newest of its own stamps that came back, by gateway and life.
    pub echoed: BTreeMap<(usize, Incarnation), Time>,
    /// What this life was told to suffer.
    pub device_faults: u32,
    pub hung: u32,
    pub draining: bool,
    /// The step whose end is on its way.
    pub running: Option<StepId>,
    /// Whose rows are in each step that is not over.
    pub rows: BTreeMap<StepId, Vec<u64>>,
    /// Whose slot each is, as planned.
    pub slots: Vec<u64>,
}

impl<R: Rules> WorkerProcess<R> {
    pub fn new(index: usize, shell: Shell, scenario: &Scenario) -> WorkerProcess<R> {
        let name = format!("worker-{}", index + 1).into();
        WorkerProcess {
            side: WorkerSide::new(name, shell.life, scenario.session),
            engine: Engine::with_rules(scenario.engine.clone(), scenario.limits),
            device: SimulatedDevice::new(scenario.limits.blocks_total, scenario.limits.slots),
            refuses_until: 0,
            sessions: BTreeMap::new(),
            tenures: BTreeMap::new(),
            heard: BTreeMap::new(),
            echoed: BTreeMap::new(),
            device_faults: 0,
            hung: 0,
            draining: false,
            running: None,
            rows: BTreeMap::new(),
            slots: vec![0; scenario.limits.slots as usize],
            shell,
        }
    }
}

impl<R: Rules> World<R> {
    pub fn at_worker(&mut self, w: usize, event: Event) {
        let now = self.workers[w].shell.clock.local(self.now);
        match event {
            Event::Hello { link, hello } => self.hello(link, &hello, now),
            Event::Down { link, session, frame } => {
                if self.workers[w].sessions.get(&link.gateway) != Some(&session) {
                    if !self.is_on(FaultKind::LateFrame) {
                        return;
                    }
                    self.fault(FaultKind::LateFrame);
                }
                self.tell(|| {
                    format!("{link}: frame {} received {} missing {} tenure {}", frame.number, frame.received, frame.missing, frame.tenure)
                });
                let (from, echo, meant) = (frame.from, frame.echo, frame.to == self.workers[w].shell.life);
                let mut frame = frame;
                if self.sabotage == Sabotage::StaleIsTaken && !meant {
                    frame.to = self.workers[w].shell.life;
                    frame.tenure = self.workers[w].tenures.get(&link.gateway).copied().unwrap_or(0);
                }
                let name = self.gateways[link.gateway].name.clone();
                let due = self.workers[w].side.next_due();
                let effects = self.workers[w].side.hear(&name, *frame, now);
                let is_stale = matches!(effects[..], [WorkerEffect::Stale]);
                let newest = self.workers[w].sessions.get(&link.gateway).map(|s| s.0);
                self.oracle.stale_at_worker(meant && newest == Some(from), is_stale, due == self.workers[w].side.next_due());
                if !is_stale {
                    let worker = &mut self.workers[w];
                    worker.heard.insert((link.gateway, from), now);
                    if let Some(echo) = echo.filter(|e| e.stamp <= now) {
                        let newest = worker.echoed.entry((link.gateway, from)).or_default();
                        *newest = (*newest).max(echo.stamp);
                    }
                }
                self.worker_does(w, effects);
            }
            Event::ClosedAtWorker { link, session } => {
                let name = self.gateways[link.gateway].name.clone();
                if self.workers[w].sessions.get(&link.gateway) == Some(&session) {
                    self.workers[w].side.closed(&name, session.1);
                }
            }
            Event::Tokenised { life, attempt, tokens, .. } if life == self.workers[w].shell.life => {
                self.apply(w, Input::Tokenised { attempt, tokens });
            }
            Event::StepEnd { life, step, fate, .. } if life == self.workers[w].shell.life => self.step_ends(w, step, fate),
            _ => {}
        }
        self.pump_worker(w);
    }

    fn hello(&mut self, link: Link, hello: &Hello, now: Time) {
        let session = (hello.incarnation, hello.session);
        let worker = &mut self.workers[link.worker];
        match worker.side.hello(hello, now) {
            Ok((welcome, effects)) => {
                self.story.add(self.now, || format!("{link}: connection {} is welcome, tenure {}", session.1, welcome.tenure));
                worker.sessions.insert(link.gateway, session);
                worker.tenures.insert(link.gateway, welcome.tenure);
                worker.heard.insert((link.gateway, hello.incarnation), now);
                if hello.resume != Some((worker.shell.life, welcome.tenure)) {
                    worker.echoed.insert((link.gateway, hello.incarnation), now);
                }
                let welcome = Some(Box::new(welcome));
                self.transmit(link, true, session, Event::Welcome { link, session, welcome });
                self.worker_does(link.worker, effects);
            }
            Err(refused) => {
                self.tell(|| format!("{link}: hello refused: {refused}"));
                self.transmit(link, true, session, Event::Welcome { link, session, welcome: None });
            }
        }
    }

    /// Carries out what the session's side asks for.
    pub fn worker_does(&mut self, w: usize, effects: Vec<WorkerEffect>) {
        for effect in effects {
            match effect {
                WorkerEffect::Send { gateway, session, frame } => {
                    let Some(g) = self.gateways.iter().position(|g| g.name == gateway) else { continue };
                    let (link, session) = (Link { gateway: g, worker: w }, (frame.to, session));
                    self.transmit(link, true, session, Event::Up { link, session, frame });
                }
                WorkerEffect::Submit(submit) => self.submit(w, *submit),
                WorkerEffect::Cancel { attempt, cause, number } => {
                    self.tell(|| format!("worker-{}: cancel of {attempt} ({cause}) reaches the engine", w + 1));
                    if cause == Cause::Orphaned {
                        self.orphaned(w, &attempt);
                    }
                    let id = attempt.clone();
                    if self.sabotage != Sabotage::CancelIsForgotten {
                        self.apply(w, Input::End { attempt, number, outcome: Outcome::of(cause) });
                    }
                    self.oracle.cancelled(&id, self.workers[w].shell.life);
                }
                WorkerEffect::Suspend(attempt) => {
                    self.tell(|| format!("worker-{}: {attempt} is suspended", w + 1));
                    self.oracle.suspended(&attempt, self.workers[w].shell.life, true);
                    if self.sabotage != Sabotage::SuspendIsForgotten {
                        self.apply(w, Input::Suspend { attempt });
                    }
                }
                WorkerEffect::Attach(attempt) => {
                    self.tell(|| format!("worker-{}: {attempt} goes on", w + 1));
                    self.oracle.suspended(&attempt, self.workers[w].shell.life, false);
                    self.apply(w, Input::Attach { attempt });
                }
                WorkerEffect::Stale => {}
            }
        }
    }

    /// A worker says that nobody claims an attempt: the truth must agree.
    fn orphaned(&mut self, w: usize, attempt: &AttemptId) {
        let Some((g, owner)) = self.oracle.owner(attempt) else { return };
        let (worker, gateway) = (&self.workers[w], &self.gateways[g]);
        let now = worker.shell.clock.local(self.now);
        let claims = gateway.shell.alive && gateway.shell.life == owner && gateway.claims(w, worker.shell.life, attempt);
        let echoed = worker.echoed.get(&(g, owner)).copied().unwrap_or_default();
        let lapsed = now >= echoed.after(self.scenario.session.lease);
        self.oracle.orphaned(attempt, !claims || lapsed);
    }

    fn submit(&mut self, w: usize, submit: Submit) {
        let now = self.workers[w].shell.clock.local(self.now);
        let Submit { attempt, number, prompt, params, deadlines, .. } = submit;
        let (life, tag) = (self.workers[w].shell.life, self.oracle.tag(&attempt));
        self.tell(|| format!("worker-{}: submit of {attempt} reaches the engine", w + 1));
        self.oracle.submitted(&attempt, w, life);
        let margin = |cause| if cause == Cause::QueueDeadline { Duration::ZERO } else { DEADLINE_MARGIN };
        let own = (now.after(WORKER_DEADLINE), Cause::WorkerDeadline);
        let named = deadlines.iter().map(|d| (now.after(d.left + margin(d.cause)), d.cause));
        let submission = Submission {
            attempt: attempt.clone(),
            number,
            n: params.n,
            max_tokens: params.max_tokens,
            // The device is told whose rows it computes.
            sampling: lifecycle::params::Sampling { seed: tag, ..params.sampling },
            stop_tokens: vec![STOP],
            cache_salt: params.cache_salt.to_string(),
            priority: params.priority,
            deadlines: std::iter::once(own).chain(named).collect(),
        };
        if self.sabotage == Sabotage::SubmitTwice && number % 2 == 0 {
            self.oracle.submitted(&attempt, w, life);
        }
        self.apply(w, Input::Submit(Box::new(submission)));
        if self.workers[w].engine.knows(&attempt) {
            let Prompt::Tokens(tokens) = prompt else { return };
            let (low, high) = self.scenario.tokenise;
            let at = self.now + self.misc.between(low, high);
            self.at(at, Event::Tokenised { worker: w, life, attempt, tokens });
        }
    }

    /// One input for the engine, and everything that follows.
    pub fn apply(&mut self, w: usize, input: Input) {
        let worker = &mut self.workers[w];
        let now = worker.shell.clock.local(self.now);
        let effects = worker.engine.apply(input, now);
        self.carry_out(w, effects);
    }

    /// Tokens as one message, then what was decided, in order.
    fn carry_out(&mut self, w: usize, effects: Vec<Effect>) {
        let (life, step) = (self.workers[w].shell.life, self.workers[w].engine.newest_done());
        let mut deltas = Vec::new();
        for effect in &effects {
            match effect {
                Effect::Token { attempt, sequence, sampled, finish } => {
                    let (attempt, tokens) = (attempt.clone(), vec![sampled.token]);
                    deltas.push(Delta {
                        attempt,
                        sequence: *sequence,
                        text: String::new(),
                        tokens,
                        logprobs: Vec::new(),
                        finish: *finish,
                        passed: None,
                    });
                }
                Effect::Journal(attempt, Journalled::Defect { what }) => {
                    let attempt = attempt.clone();
                    self.oracle.fail("C-16", || format!("worker-{}: a core calls it impossible: {what} {attempt:?}", w + 1));
                }
                _ => {}
            }
        }
        if !deltas.is_empty() {
            self.say(w, Up::Step { step, deltas });
        }
        for effect in effects {
            let message = match effect {
                Effect::Journal(..) | Effect::Token { .. } => continue,
                Effect::Accepted { attempt, prompt_tokens } => Up::Accepted { attempt, prompt_tokens },
                Effect::CancelAcknowledged { attempt, won } => Up::CancelAcknowledged { attempt, won },
                Effect::Ended { attempt, outcome, usage } => {
                    self.tell(|| format!("worker-{}: {attempt} ended: {}", w + 1, outcome.cause));
                    self.oracle.ended(&attempt, life);
                    Up::Ended { attempt, outcome, usage }
                }
                Effect::Released { attempt, receipt } => {
                    self.tell(|| format!("worker-{}: {attempt} released", w + 1));
                    self.oracle.released(&attempt, life, receipt.blocks_held);
                    self.judge_released(w, &attempt);
                    if self.sabotage == Sabotage::ReleaseIsForgotten {
                        continue;
                    }
                    Up::Released { attempt, receipt }
                }
                Effect::DeviceLost(why) => Up::DeviceLost { why },
            };
            self.say(w, message);
        }
    }

    pub fn say(&mut self, w: usize, message: Up) {
        let worker = &mut self.workers[w];
        let now = worker.shell.clock.local(self.now);
        let effects = worker.side.said(message, now);
        self.worker_does(w, effects);
    }

    /// What the engine thread does between two waits: looks at the time, plans, keeps the device busy, and says when to be woken.
    pub fn pump_worker(&mut self, w: usize) {
        if self.oracle.violation().is_some() {
            return;
        }
        let now = self.workers[w].shell.clock.local(self.now);
        if self.sabotage != Sabotage::LeaseIsLookedAtLate {
            self.look_at_leases(w, now);
        }
        if self.workers[w].engine.next_deadline().is_some_and(|at| at <= now) {
            self.apply(w, Input::Tick);
        }
        while !self.workers[w].device.lost {
            let (plan, effects) = self.workers[w].engine.plan();
            self.carry_out(w, effects);
            let Some(plan) = plan else { break };
            self.judge_plan(w, &plan, now);
            self.workers[w].device.queue.push_back(plan);
        }
        if self.sabotage == Sabotage::LeaseIsLookedAtLate {
            self.look_at_leases(w, now);
        }
        self.keep_device_busy(w);
        let worker = &self.workers[w];
        let due = worker.side.next_due().into_iter().chain(worker.engine.next_deadline()).min();
        self.wake_when_due(Process::Worker(w), due);
    }

    fn look_at_leases(&mut self, w: usize, now: Time) {
        let effects = self.workers[w].side.tick(now);
        self.worker_does(w, effects);
    }
}
