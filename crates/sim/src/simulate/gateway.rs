//! A gateway's process: a session's side and a connection for each worker, and a dispatch for each run, with the thin shell between them.
//!
//! It mirrors the gateway's own shell: what the sessions deliver goes to the runs, what the runs want sent goes to the sessions, connections
//! that break or fall silent are opened anew. It decides nothing that the cores decide.
//!
//! Invariant: only words of the newest connection are heard, but where the seed lets frames of earlier ones come late.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lifecycle::event::Event as Journalled;
use lifecycle::message::{Down, ModelInfo, Prompt, Up};
use lifecycle::params::{Params, Sampling};
use lifecycle::session::{Frame, GatewayEffect, GatewaySide, LinkState, Welcome};
use lifecycle::{
    AttemptId, Cause, Deadline, Delivery, Dispatch, DispatchEffect, Incarnation, Load, Place, Rules, RunKey, Said, Time, Word, Work,
    WorkerIndex, Workers,
};

use super::Sabotage;
use super::event::{Event, Link, Process};
use super::faults::FaultKind;
use super::network::Session;
use super::scenario::{MS, Scenario, called};
use super::world::{Shell, World};

/// How long a gateway waits for a welcome, or for a silent connection, before it opens another.
const CONNECT_TIMEOUT: u64 = 400 * MS;
const SILENCE_MAX: u64 = 300 * MS;
const MODEL: &str = "simulated";

/// A gateway's end of what it has to do with a worker.
#[derive(Debug)]
pub(super) struct GatewayLink {
    pub side: GatewaySide,
    /// The newest connection; number 0 before the first.
    pub session: Session,
    /// Its welcome has come.
    pub open: bool,
}

/// A run in a gateway's table.
#[derive(Debug)]
pub(super) struct Entry<R: Rules> {
    key: RunKey,
    pub dispatch: Dispatch<R>,
    order: u64,
    /// Whether the caller was given anything.
    told: bool,
    gone: bool,
    /// It was told an end before the worker's word came: what comes later has no reader.
    dismissed: bool,
}

/// One process.
#[derive(Debug)]
pub(super) struct GatewayProcess<R: Rules> {
    pub shell: Shell,
    pub name: Arc<str>,
    pub links: Vec<GatewayLink>,
    pub workers: Workers,
    /// Runs that are not settled, by their number in the scenario.
    pub runs: BTreeMap<usize, Entry<R>>,
    last_number: u64,
    last_order: u64,
}

impl<R: Rules> GatewayProcess<R> {
    pub fn new(index: usize, shell: Shell, scenario: &Scenario) -> GatewayProcess<R> {
        let name: Arc<str> = format!("gateway-{}", index + 1).into();
        let mut workers = Workers::default();
        let link = |w: usize| {
            workers.add(format!("worker-{}", w + 1).into());
            let side = GatewaySide::new(name.clone(), shell.life, scenario.session);
            GatewayLink { side, session: (shell.life, 0), open: false }
        };
        let links = (0..scenario.workers).map(link).collect();
        GatewayProcess { name, links, workers, runs: BTreeMap::new(), last_number: 0, last_order: 0, shell }
    }

    /// Whether it wants this attempt to stay on this life of this worker.
    pub fn claims(&self, w: usize, life: Incarnation, attempt: &AttemptId) -> bool {
        let entry = self.runs.values().find(|e| e.key == attempt.key);
        entry.is_some_and(|e| e.dispatch.claims(WorkerIndex(w as u32), life, attempt.attempt))
    }

    fn loads(&self) -> Vec<Load> {
        let mut loads = vec![Load::default(); self.links.len()];
        for (worker, load) in self.runs.values().filter_map(|e| e.dispatch.load()) {
            loads[worker.0 as usize] += load;
        }
        loads
    }
}

impl<R: Rules> World<R> {
    pub fn at_gateway(&mut self, g: usize, event: Event) {
        let life = self.gateways[g].shell.life;
        match event {
            Event::Up { link, session, frame } => self.frame_up(link, session, *frame),
            Event::Welcome { link, session, welcome } => self.welcome(link, session, welcome),
            Event::ClosedAtGateway { link, session } if self.is_newest(link, session) => {
                self.gateways[g].links[link.worker].side.closed();
                self.gateways[g].links[link.worker].open = false;
                self.reconnect(link, 100 * MS);
            }
            Event::Connect { link, session } if self.is_newest(link, session) => self.connect(link),
            Event::GiveUp { link, session } if self.is_newest(link, session) => {
                let known = &self.gateways[g].links[link.worker];
                if !known.open || known.side.state() == LinkState::Silent {
                    self.close(link);
                }
            }
            Event::Arrive(run) => self.arrive(g, run),
            Event::Leave(run, cause) => self.leave(g, run, cause),
            Event::CancelByName(run, _) => self.cancel_by_name(g, run),
            Event::Read { run, life: reader, .. } if reader == life => self.delivered(g, run, Delivery::Complete),
            _ => {}
        }
        self.pump_gateway(g);
    }

    fn is_newest(&self, link: Link, session: Session) -> bool {
        self.gateways[link.gateway].links[link.worker].session == session
    }

    pub fn connect_all(&mut self, g: usize) {
        for worker in 0..self.scenario.workers {
            self.connect(Link { gateway: g, worker });
        }
    }

    fn connect(&mut self, link: Link) {
        let gateway = &mut self.gateways[link.gateway];
        let (life, now) = (gateway.shell.life, gateway.shell.clock.local(self.now));
        let known = &mut gateway.links[link.worker];
        let hello = known.side.hello(now);
        let session = (life, hello.session);
        (known.session, known.open) = (session, false);
        self.transmit(link, false, session, Event::Hello { link, hello: Box::new(hello) });
        self.at(self.now + CONNECT_TIMEOUT, Event::GiveUp { link, session });
    }

    fn reconnect(&mut self, link: Link, pause: u64) {
        let session = self.gateways[link.gateway].links[link.worker].session;
        let at = self.now + self.misc.between(pause / 10, pause);
        self.at(at, Event::Connect { link, session });
    }

    /// The gateway closes its connection and opens another.
    fn close(&mut self, link: Link) {
        let known = &mut self.gateways[link.gateway].links[link.worker];
        known.side.closed();
        known.open = false;
        let is_dark = self.pipe(link).down.dark_until > self.now;
        self.cut(link, None, (!is_dark).then_some(MS));
        self.reconnect(link, 50 * MS);
    }

    fn welcome(&mut self, link: Link, session: Session, welcome: Option<Box<Welcome>>) {
        if !self.is_newest(link, session) || self.gateways[link.gateway].links[link.worker].open {
            return;
        }
        let gateway = &mut self.gateways[link.gateway];
        let (known, now) = (&mut gateway.links[link.worker], gateway.shell.clock.local(self.now));
        let Some(welcome) = welcome else {
            known.side.closed();
            return self.reconnect(link, 100 * MS);
        };
        known.open = true;
        let effects = known.side.welcome(&welcome, now);
        self.gateway_does(link, effects);
    }

    fn frame_up(&mut self, link: Link, session: Session, frame: Frame<Up>) {
        let is_newest = self.is_newest(link, session);
        if !is_newest || !self.gateways[link.gateway].links[link.worker].open {
            if is_newest || !self.is_on(FaultKind::LateFrame) {
                return;
            }
            self.fault(FaultKind::LateFrame);
        }
        let gateway = &mut self.gateways[link.gateway];
        let (me, now) = (gateway.shell.life, gateway.shell.clock.local(self.now));
        self.story.add(self.now, || {
            format!("{link}: up frame {} received {} missing {} tenure {}", frame.number, frame.received, frame.missing, frame.tenure)
        });
        let side = &mut gateway.links[link.worker].side;
        let (meant, due) = (frame.to == me && side.worker() == Some(frame.from), side.next_due());
        let effects = side.hear(frame, now);
        let unchanged = effects.is_empty() && due == side.next_due();
        self.oracle.stale_at_gateway(meant, unchanged);
        self.gateway_does(link, effects);
    }

    /// Carries out what a session's side asks for.
    pub fn gateway_does(&mut self, link: Link, effects: Vec<GatewayEffect>) {
        let (g, w) = (link.gateway, link.worker);
        let index = WorkerIndex(w as u32);
        let now = self.gateways[g].shell.clock.local(self.now);
        for effect in effects {
            match effect {
                GatewayEffect::Send(frame) => {
                    let session = self.gateways[g].links[w].session;
                    self.transmit(link, false, session, Event::Down { link, session, frame });
                }
                GatewayEffect::Deliver(message) => self.deliver(link, message, now),
                GatewayEffect::Here { name, incarnation } => {
                    self.tell(|| format!("{link}: a life of the worker is here"));
                    let (context, default_max_tokens) = (self.scenario.limits.context, self.scenario.engine.default_max_tokens);
                    let model = ModelInfo { id: MODEL.into(), context, default_max_tokens, created: 0 };
                    if let Some(former) = self.gateways[g].workers.here(index, incarnation, model, name) {
                        self.lose(link, former, now);
                    }
                    self.place_waiting(g, now);
                }
                GatewayEffect::Silent => {
                    self.gateways[g].workers.heard(index, false);
                    let session = self.gateways[g].links[w].session;
                    self.at(self.now + SILENCE_MAX, Event::GiveUp { link, session });
                    if self.sabotage == Sabotage::SilenceIsTheEnd
                        && let Some(life) = self.gateways[g].links[w].side.worker()
                    {
                        self.lose(link, life, now);
                    }
                }
                GatewayEffect::Back => {
                    self.gateways[g].workers.heard(index, true);
                    self.place_waiting(g, now);
                }
                GatewayEffect::Lost { incarnation, why } => {
                    self.tell(|| format!("{link}: the worker's life is lost: {why}"));
                    if self.gateways[g].workers.lost(index, incarnation) {
                        self.lose(link, incarnation, now);
                        self.place_waiting(g, now);
                    }
                }
                GatewayEffect::Close { .. } => self.close(link),
            }
        }
    }

    fn lose(&mut self, link: Link, life: Incarnation, now: Time) {
        self.oracle.met.lost += 1;
        let index = WorkerIndex(link.worker as u32);
        let runs: Vec<usize> = self.gateways[link.gateway].runs.keys().copied().collect();
        for run in runs {
            let entry = self.gateways[link.gateway].runs.get(&run);
            if entry.is_some_and(|e| e.dispatch.call().is_at_worker()) {
                self.oracle.fenced(run, link.worker, life);
            }
            self.act(link.gateway, run, |d| d.worker_lost(index, life, true, now));
        }
    }

    fn deliver(&mut self, link: Link, message: Up, now: Time) {
        let (g, w) = (link.gateway, link.worker);
        let Some(life) = self.gateways[g].links[w].side.worker() else { return };
        if !self.gateways[g].workers.is_current(WorkerIndex(w as u32), life) {
            return;
        }
        if let Up::CancelAcknowledged { attempt, won: None } = &message
            && self.oracle.owner(attempt).is_none_or(|(owner, _)| owner != g)
        {
            self.oracle.tombstone(attempt, w, life);
        }
        let mut words = Vec::new();
        let about_itself = Word::each(message, |attempt, word| words.push((attempt, word)));
        for (attempt, word) in words {
            let Some(run) = self.oracle.run(&attempt) else { continue };
            match (&word, self.sabotage) {
                (Word::Delta(_), Sabotage::DeltaTwice) => {
                    let word = word.clone();
                    self.act(g, run, |d| d.take_in((WorkerIndex(w as u32), life), attempt.attempt, word, now));
                }
                (Word::Delta(delta), Sabotage::DeltaIsForgotten) if delta.tokens[0] % 4 == 0 && delta.finish.is_none() => continue,
                _ => {}
            }
            self.act(g, run, |d| d.take_in((WorkerIndex(w as u32), life), attempt.attempt, word, now));
        }
        match about_itself {
            Some(Up::DeviceLost { why }) => self.gateways[g].workers.device_lost(WorkerIndex(w as u32), why),
            Some(Up::Draining) => self.gateways[g].workers.drains(WorkerIndex(w as u32)),
            Some(Up::Ask { attempts }) => {
                let (claimed, disclaimed): (Vec<_>, Vec<_>) = attempts
                    .into_iter()
                    .partition(|id| self.sabotage != Sabotage::EverythingIsDisclaimed && self.gateways[g].claims(w, life, id));
                if !claimed.is_empty() {
                    self.send_down(link, Down::Claim { attempts: claimed }, now);
                }
                if !disclaimed.is_empty() {
                    self.tell(|| format!("{link}: disclaims {disclaimed:?}"));
                    self.send_down(link, Down::Disclaim { attempts: disclaimed }, now);
                }
            }
            _ => {}
        }
    }

    fn send_down(&mut self, link: Link, message: Down, now: Time) {
        let (_, effects) = self.gateways[link.gateway].links[link.worker].side.send(message, now);
        self.gateway_does(link, effects);
    }

    /// Lets a run's machine do something, if the gateway has the run, and carries out what it asks for.
    fn act(&mut self, g: usize, run: usize, act: impl FnOnce(&mut Dispatch<R>) -> Vec<DispatchEffect>) {
        if let Some(entry) = self.gateways[g].runs.get_mut(&run) {
            let effects = act(&mut entry.dispatch);
            self.run_does(g, run, effects);
        }
    }

    fn run_does(&mut self, g: usize, run: usize, effects: Vec<DispatchEffect>) {
        let (now, life) = (self.gateways[g].shell.clock.local(self.now), self.gateways[g].shell.life);
        for effect in effects {
            match effect {
                DispatchEffect::Send { worker, message } => {
                    if let Down::Submit(submit) = &message {
                        self.tell(|| format!("gateway-{}: {} goes to worker-{}", g + 1, submit.attempt, worker.0 + 1));
                        self.oracle.placed(&submit.attempt, worker.0 as usize, submit.worker);
                    }
                    self.send_down(Link { gateway: g, worker: worker.0 as usize }, message, now);
                }
                DispatchEffect::Journal { event, .. } => self.journalled(g, run, &event),
                DispatchEffect::Tell(Said::Accepted) | DispatchEffect::Wait => {}
                DispatchEffect::Tell(Said::Delta(delta)) => {
                    let Some(entry) = self.gateways[g].runs.get_mut(&run).filter(|e| !e.dismissed) else { continue };
                    entry.told = true;
                    self.oracle.delivered(run, delta.sequence, &delta.tokens);
                }
                DispatchEffect::Tell(Said::End { .. }) => {
                    self.oracle.end_told(run);
                    let at = self.now + self.misc.between(100, 20 * MS);
                    self.at(at, Event::Read { run, gateway: g, life });
                }
                DispatchEffect::Dismiss { .. } => {
                    self.oracle.end_told(run);
                    if let Some(entry) = self.gateways[g].runs.get_mut(&run) {
                        entry.dismissed = true;
                    }
                    let at = self.now + self.misc.between(100, 20 * MS);
                    self.at(at, Event::Read { run, gateway: g, life });
                }
                DispatchEffect::Settle => {
                    self.gateways[g].runs.remove(&run);
                }
            }
        }
    }

    fn journalled(&mut self, g: usize, run: usize, event: &Journalled) {
        match event {
            Journalled::OutcomeSet { outcome } => {
                self.tell(|| format!("gateway-{}: {} ended: {}", g + 1, called(run), outcome.cause));
                self.judge_outcome(run, outcome.cause);
                match self.sabotage {
                    Sabotage::OutcomeTwice => self.judge_outcome(run, outcome.cause),
                    Sabotage::RunIsForgotten => drop(self.gateways[g].runs.remove(&run)),
                    _ => {}
                }
            }
            Journalled::Settled { proven } => {
                self.tell(|| format!("gateway-{}: {} settled{}", g + 1, called(run), if *proven { "" } else { ", its release unproven" }));
                self.judge_settled(run, *proven);
            }
            Journalled::Defect { what } => self.oracle.fail("C-4", || format!("{}: the gateway's machine refused: {what}", called(run))),
            _ => {}
        }
    }

    fn place_waiting(&mut self, g: usize, now: Time) {
        let waits = |(run, e): (&usize, &Entry<R>)| e.dispatch.is_waiting().then_some((e.order, *run));
        let mut waiting: Vec<(u64, usize)> = self.gateways[g].runs.iter().filter_map(waits).collect();
        waiting.sort_unstable();
        for (_, run) in waiting {
            let gateway = &mut self.gateways[g];
            let loads = gateway.loads();
            let Some(worker) = gateway.workers.choose(MODEL, |w| loads[w.0 as usize]) else { return };
            let Some(known) = gateway.workers.get(worker) else { return };
            let (Some(incarnation), Some(model)) = (known.life, known.model.clone()) else { return };
            gateway.last_number += 1;
            let place = Place { worker, incarnation, number: gateway.last_number, model };
            self.act(g, run, |d| d.place(place, now));
        }
    }

    fn arrive(&mut self, g: usize, run: usize) {
        let plan = &self.scenario.runs[run];
        let (now, life) = (self.gateways[g].shell.clock.local(self.now), self.gateways[g].shell.life);
        let key = plan.key.clone();
        let params =
            Params { sampling: Sampling::default(), max_tokens: Some(plan.cap), n: plan.n, priority: plan.priority, ..Params::default() };
        let work = Work { prompt: Prompt::Tokens(plan.prompt.clone()), params };
        let part = if self.sabotage == Sabotage::DeadlineIsEarly { 2 } else { 1 };
        let named =
            plan.deadline.map(|left| left / part).map(|left| Deadline::from_left(now, Duration::from_micros(left), Cause::ClientDeadline));
        let dispatch = Dispatch::new(key.clone(), work, named.into_iter().collect(), self.scenario.dispatch, now);
        self.tell(|| format!("gateway-{}: {} accepted", g + 1, called(run)));
        self.oracle.accepted(run, g, life, self.now);
        let gateway = &mut self.gateways[g];
        gateway.last_order += 1;
        gateway.runs.insert(run, Entry { key, dispatch, order: gateway.last_order, told: false, gone: false, dismissed: false });
        self.place_waiting(g, now);
    }

    fn leave(&mut self, g: usize, run: usize, cause: Cause) {
        let now = self.gateways[g].shell.clock.local(self.now);
        let Some(entry) = self.gateways[g].runs.get_mut(&run).filter(|e| !e.gone) else { return };
        // Who cancels by name may go on reading.
        entry.gone = cause != Cause::CancelRequested;
        let (gone, told) = (entry.gone, entry.told);
        self.tell(|| format!("gateway-{}: {} is wanted to end: {cause}", g + 1, called(run)));
        self.oracle.wanted(run, cause);
        self.act(g, run, |d| d.want(cause, now));
        if gone {
            self.delivered(g, run, if told { Delivery::Partial } else { Delivery::None });
        }
    }

    fn delivered(&mut self, g: usize, run: usize, delivery: Delivery) {
        let now = self.gateways[g].shell.clock.local(self.now);
        self.act(g, run, |d| d.delivered(delivery, now));
    }

    /// At the run's own gateway, or at another, which asks every worker that it knows.
    fn cancel_by_name(&mut self, g: usize, run: usize) {
        if self.scenario.runs[run].gateway == g {
            return self.leave(g, run, Cause::CancelRequested);
        }
        self.tell(|| format!("gateway-{}: {}, a run of another gateway, is cancelled by name", g + 1, called(run)));
        self.oracle.wanted(run, Cause::CancelRequested);
        let now = self.gateways[g].shell.clock.local(self.now);
        let attempt = AttemptId { key: self.scenario.runs[run].key.clone(), attempt: 1 };
        for worker in 0..self.scenario.workers {
            let message = Down::Cancel { attempt: attempt.clone(), cause: Cause::CancelRequested, number: 0, observed_ago: Duration::ZERO };
            self.send_down(Link { gateway: g, worker }, message, now);
        }
    }

    pub fn pump_gateway(&mut self, g: usize) {
        if self.oracle.violation().is_some() {
            return;
        }
        let now = self.gateways[g].shell.clock.local(self.now);
        for worker in 0..self.scenario.workers {
            let effects = self.gateways[g].links[worker].side.tick(now);
            self.gateway_does(Link { gateway: g, worker }, effects);
        }
        let is_due = |(run, e): (&usize, &Entry<R>)| e.dispatch.due().is_some_and(|at| at <= now).then_some(*run);
        let due: Vec<usize> = self.gateways[g].runs.iter().filter_map(is_due).collect();
        for run in due {
            self.act(g, run, |d| d.tick(now));
        }
        let gateway = &self.gateways[g];
        let sides = gateway.links.iter().filter_map(|l| l.side.next_due());
        let due = sides.chain(gateway.runs.values().filter_map(|e| e.dispatch.due())).min();
        self.wake_when_due(Process::Gateway(g), due);
    }
}
