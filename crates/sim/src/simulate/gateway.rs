//! A gateway's process: a session's side and a connection for each worker, and a dispatch for each run, with the thin shell between them.
//!
//! It mirrors the gateway's own shell: what the sessions deliver goes to the runs, what the runs want sent goes to the sessions, connections
//! that break or fall silent are opened anew. It decides nothing that the cores decide.
//!
//! Invariant: only words of the newest connection are heard, but where the seed lets frames of earlier ones come late.

use std::collections::BTreeMap;
use std::sync::Arc;

use lifecycle::message::{Down, ModelInfo, Up};
use lifecycle::session::{Frame, GatewayEffect, GatewaySide, LinkState, Welcome};
use lifecycle::{AttemptId, Delivery, Dispatch, Incarnation, Load, Rules, RunKey, Time, WorkerIndex, Workers};

use super::Sabotage;
use super::event::{Event, Link, Process};
use super::faults::FaultKind;
use super::network::Session;
use super::scenario::{MS, Scenario};
use super::world::{Shell, World};

/// How long a gateway waits for a welcome, or for a silent connection, before it opens another.
const CONNECT_TIMEOUT: u64 = 400 * MS;
const SILENCE_MAX: u64 = 300 * MS;
pub(super) const MODEL: &str = "simulated";

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
    pub key: RunKey,
    pub dispatch: Dispatch<R>,
    pub order: u64,
    /// Whether the caller was given anything.
    pub told: bool,
    /// Whether its readers were told an end.
    pub ended: bool,
    /// Nobody reads it.
    pub gone: bool,
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
    pub last_number: u64,
    pub last_order: u64,
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

    pub fn loads(&self) -> Vec<Load> {
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
            Event::Refused { link, session } if self.is_newest(link, session) => self.refused(link),
            Event::ClosedAtGateway { link, session } if self.is_newest(link, session) => {
                self.gateways[g].links[link.worker].side.closed();
                self.gateways[g].links[link.worker].open = false;
                self.reconnect(link, 100 * MS);
            }
            Event::Connect { link, session } if self.is_newest(link, session) => self.connect(link),
            Event::GiveUp { link, session } if self.is_newest(link, session) => {
                let known = &self.gateways[g].links[link.worker];
                if !known.open {
                    // Neither a welcome nor a refusal came: that is between two refusals.
                    self.tried(link, false);
                }
                let known = &self.gateways[g].links[link.worker];
                if !known.open || known.side.state() == LinkState::Silent {
                    self.close(link);
                }
            }
            Event::Arrive(run) => self.arrive(g, run),
            Event::Leave(run, cause) => self.leave(g, run, cause),
            Event::ComeBack(run) => self.come_back(g, run),
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

    /// A try to connect came to an end.
    fn tried(&mut self, link: Link, is_refused: bool) {
        let gateway = &mut self.gateways[link.gateway];
        let now = gateway.shell.clock.local(self.now);
        let effects = gateway.links[link.worker].side.tried(is_refused, now);
        self.gateway_does(link, effects);
    }

    fn refused(&mut self, link: Link) {
        self.gateways[link.gateway].links[link.worker].side.closed();
        self.tried(link, true);
        self.reconnect(link, 100 * MS);
    }

    fn welcome(&mut self, link: Link, session: Session, welcome: Option<Box<Welcome>>) {
        if !self.is_newest(link, session) || self.gateways[link.gateway].links[link.worker].open {
            return;
        }
        self.tried(link, false);
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
                    if let Some(former) = self.gateways[g].workers.here(index, incarnation, model.into(), name) {
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
                GatewayEffect::Refused { incarnation } => {
                    self.tell(|| format!("{link}: nobody listens where the worker was"));
                    self.oracle.met.refused += 1;
                    if self.gateways[g].workers.refused(index, incarnation) {
                        let runs: Vec<usize> = self.gateways[g].runs.keys().copied().collect();
                        for run in runs {
                            self.act(g, run, |d| d.worker_refused(index, incarnation, now));
                        }
                    }
                    if self.sabotage == Sabotage::RefusedIsTheEnd {
                        self.lose(link, incarnation, now);
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

    pub fn send_down(&mut self, link: Link, message: Down, now: Time) {
        let (_, effects) = self.gateways[link.gateway].links[link.worker].side.send(message, now);
        self.gateway_does(link, effects);
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
