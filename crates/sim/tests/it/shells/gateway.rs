//! A gateway's host: its real links, and behind them a simulated call table, which only carries between the links and each run's `Dispatch`.
//!
//! Invariant: decides nothing; that a run gets a token that it must not get is a failure of the test.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use gateway::{Identity, LinkEvent, SendDown, WireConfig};
use lifecycle::event::Event;
use lifecycle::message::{Down, From, Prompt, Up};
use lifecycle::params::{Params, Sampling};
use lifecycle::{
    AttemptId, Cause, Delivery, Dispatch, DispatchConfig, DispatchEffect, Incarnation, Load, Need, Place, RunKey, Said, Time, Word, Work,
    WorkerIndex, Workers,
};
use observe::Clock;
use tokio::sync::mpsc;

use super::net::{Simulated, time};
use super::world::{PORT, Stage, TICK, key};

struct Link {
    send: SendDown,
    events: mpsc::Receiver<LinkEvent>,
}

struct Gateway {
    stage: Stage,
    index: usize,
    name: String,
    life: Incarnation,
    clock: Clock,
    links: Vec<Link>,
    workers: Workers,
    runs: BTreeMap<usize, Dispatch>,
    numbers: u64,
}

/// One life of a gateway.
pub async fn live(stage: Stage, index: usize) -> turmoil::Result {
    let (name, clock) = (format!("gateway-{index}"), Clock::over(time));
    let life = stage.next_life(&name);
    let who = Identity { name: name.as_str().into(), incarnation: life };
    let config = WireConfig { session: stage.session, ..stage.wire };
    let mut workers = Workers::default();
    let mut links = Vec::new();
    for w in 0..stage.workers {
        workers.add(format!("worker-{w}").into());
        let chance = AtomicU64::new(stage.seed.wrapping_mul(0x100).wrapping_add((index * 16 + w) as u64) << 20);
        let network = Simulated { stage: stage.clone(), name: format!("{name}>worker-{w}"), chance };
        let (send, events) = gateway::link_over(network, &format!("worker-{w}:{PORT}"), &who, clock, config)?;
        links.push(Link { send, events });
    }
    let mut gateway = Gateway { stage: stage.clone(), index, name, life, clock, links, workers, runs: BTreeMap::new(), numbers: 0 };
    loop {
        if stage.is_gateway_stopped(index) {
            // The links are let go of; their tasks end.
            gateway.links.clear();
        }
        if !stage.is_asleep(index) {
            gateway.turn();
        }
        stage.look_at_gateway(index, super::worker::tasks());
        tokio::time::sleep(TICK).await;
    }
}

impl Gateway {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn turn(&mut self) {
        for w in 0..self.links.len() {
            while let Ok(event) = self.links[w].events.try_recv() {
                self.hear(WorkerIndex(w as u32), event);
            }
        }
        for run in self.stage.due(self.index) {
            self.arrive(run);
        }
        for run in self.stage.wants(self.index) {
            self.act(run, |dispatch, now| dispatch.want(Cause::CancelRequested, now));
        }
        let now = self.now();
        let due: Vec<usize> = self.runs.iter().filter(|(_, d)| d.due().is_some_and(|at| at <= now)).map(|(run, _)| *run).collect();
        for run in due {
            self.act(run, Dispatch::tick);
        }
    }

    fn arrive(&mut self, run: usize) {
        let (prompt, cap) = self.stage.work(run);
        let params = Params {
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            max_tokens: Some(cap),
            ignore_eos: true,
            ..Params::default()
        };
        let work = Work { prompt: Prompt::Tokens(prompt), params };
        self.stage.tell(&self.name, format!("run {run} arrives"));
        self.runs.insert(run, Dispatch::new(key(run), work, Vec::new(), DispatchConfig::default(), self.now()));
        self.place_waiting();
    }

    fn place_waiting(&mut self) {
        let waiting: Vec<usize> = self.runs.iter().filter(|(_, d)| d.is_waiting()).map(|(run, _)| *run).collect();
        for run in waiting {
            let mut loads: BTreeMap<WorkerIndex, Load> = BTreeMap::new();
            for (worker, load) in self.runs.values().filter_map(Dispatch::load) {
                *loads.entry(worker).or_default() += load;
            }
            let Some(worker) = self.workers.choose(&Need::of("simulated"), 125, |w| loads.get(&w).copied().unwrap_or_default()) else {
                return;
            };
            let Some((incarnation, model)) = self.workers.get(worker).and_then(|known| known.life.zip(known.model("simulated").cloned()))
            else {
                return;
            };
            self.numbers += 1;
            let place = Place { worker, incarnation, number: self.numbers, model };
            self.act(run, |dispatch, now| dispatch.place(place, now));
        }
    }

    fn hear(&mut self, worker: WorkerIndex, event: LinkEvent) {
        match event {
            LinkEvent::Up(From { incarnation, message }) => {
                if self.workers.is_current(worker, incarnation) {
                    self.take_in((worker, incarnation), message);
                }
            }
            LinkEvent::Here(here) => {
                self.stage.here(&self.name, worker, here.incarnation);
                if let Some(former) = self.workers.here(worker, here.incarnation, here.offer, here.name) {
                    self.lose(worker, former);
                }
                self.place_waiting();
            }
            LinkEvent::Refused { incarnation } => {
                self.stage.tell(&self.name, format!("nobody listens where worker-{} was", worker.0));
                if self.workers.refused(worker, incarnation) {
                    for run in self.runs.keys().copied().collect::<Vec<_>>() {
                        self.act(run, |dispatch, now| dispatch.worker_refused(worker, incarnation, now));
                    }
                }
            }
            LinkEvent::Silent => {
                self.stage.tell(&self.name, format!("worker-{} is silent", worker.0));
                self.workers.heard(worker, false);
            }
            LinkEvent::Back => {
                self.stage.tell(&self.name, format!("worker-{} is back", worker.0));
                self.workers.heard(worker, true);
                self.place_waiting();
            }
            LinkEvent::Lost { incarnation, why } => {
                self.stage.lost(&self.name, worker, incarnation, &why);
                if self.workers.lost(worker, incarnation) {
                    self.lose(worker, incarnation);
                    self.place_waiting();
                }
            }
            LinkEvent::Trial | LinkEvent::Offers(_) => unreachable!("only an engine that others wrote is tried, or becomes another"),
            LinkEvent::Stale | LinkEvent::Clock(_) => {}
        }
    }

    fn lose(&mut self, worker: WorkerIndex, life: Incarnation) {
        for run in self.runs.keys().copied().collect::<Vec<_>>() {
            self.act(run, |dispatch, now| dispatch.worker_lost(worker, life, true, now));
        }
    }

    fn take_in(&mut self, from: (WorkerIndex, Incarnation), message: Up) {
        let mut words: Vec<(AttemptId, Word)> = Vec::new();
        let about_itself = Word::each(message, |attempt, word| words.push((attempt, word)));
        for (attempt, word) in words {
            if let Some(run) = self.run_of(&attempt.key) {
                self.act(run, |dispatch, now| dispatch.take_in(from, attempt.attempt, word, now));
            }
        }
        self.place_waiting();
        if let Some(Up::Ask { attempts }) = about_itself {
            let claims = |id: &AttemptId| {
                self.run_of(&id.key).and_then(|run| self.runs.get(&run)).is_some_and(|d| d.claims(from.0, from.1, id.attempt))
            };
            let (claimed, disclaimed): (Vec<_>, Vec<_>) = attempts.into_iter().partition(claims);
            if !claimed.is_empty() {
                self.send(from.0, Down::Claim { attempts: claimed });
            }
            if !disclaimed.is_empty() {
                self.stage.tell(&self.name, format!("disclaims {}", disclaimed.len()));
                self.send(from.0, Down::Disclaim { attempts: disclaimed });
            }
        }
    }

    fn run_of(&self, name: &RunKey) -> Option<usize> {
        self.runs.keys().copied().find(|run| key(*run) == *name)
    }

    fn send(&self, worker: WorkerIndex, message: Down) {
        if let Some(link) = self.links.get(worker.0 as usize) {
            let _ = (link.send)(From { incarnation: self.life, message });
        }
    }

    fn act(&mut self, run: usize, act: impl FnOnce(&mut Dispatch, Time) -> Vec<DispatchEffect>) {
        let now = self.now();
        let Some(dispatch) = self.runs.get_mut(&run) else { return };
        let effects = act(dispatch, now);
        self.carry_out(run, effects);
    }

    /// The caller has all that it will get.
    fn delivered(&mut self, run: usize, delivery: Delivery) {
        let now = self.now();
        let Some(dispatch) = self.runs.get_mut(&run) else { return };
        let effects = dispatch.delivered(delivery, now);
        self.carry_out(run, effects);
    }

    fn carry_out(&mut self, run: usize, effects: Vec<DispatchEffect>) {
        for effect in effects {
            match effect {
                DispatchEffect::Send { worker, message } => {
                    if let Down::Submit(submit) = &message {
                        self.stage.tell(&self.name, format!("run {run}, attempt {}, to worker-{}", submit.attempt.attempt, worker.0));
                    }
                    self.send(worker, message);
                }
                DispatchEffect::Tell(Said::Delta(delta)) => self.stage.delivered(run, &delta.tokens),
                DispatchEffect::Tell(Said::End { outcome, .. }) => {
                    self.stage.tell(&self.name, format!("run {run} ends: {}", outcome.cause));
                    // The caller reads at once; an end before there is an outcome is not the answer's.
                    let is_outcome = self.runs.get(&run).is_some_and(|d| d.call().outcome().is_some());
                    self.delivered(run, if is_outcome { Delivery::Complete } else { Delivery::Partial });
                }
                DispatchEffect::Journal { event: Event::OutcomeSet { outcome }, .. } => self.stage.ended(run, outcome.cause),
                DispatchEffect::Journal { event: Event::Settled { proven }, .. } => {
                    self.stage.tell(&self.name, format!("run {run} settled, proven: {proven}"));
                    self.stage.settled(run, proven);
                }
                DispatchEffect::Journal { event: Event::Defect { what }, .. } => panic!("run {run}: {what}"),
                DispatchEffect::Settle => drop(self.runs.remove(&run)),
                DispatchEffect::Journal { .. } | DispatchEffect::Wait | DispatchEffect::Tell(Said::Accepted) => {}
            }
        }
    }
}
