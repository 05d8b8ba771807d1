//! A gateway's runs: from their arrival to their settlement, between the sessions that bring words about them and the machines that decide.
//!
//! Invariant: what a worker's life says reaches a run only while the gateway takes that life for the one that is there (C-3).

use std::time::Duration;

use lifecycle::event::Event as Journalled;
use lifecycle::message::{Down, Prompt, Up};
use lifecycle::params::{Params, Sampling};
use lifecycle::{
    AttemptId, Cause, Deadline, Delivery, Dispatch, DispatchEffect, Need, OnDisconnect, Place, Rules, Said, Time, Word, Work, WorkerIndex,
};

use super::Sabotage;
use super::event::{Event, Link};
use super::gateway::{Entry, MODEL};
use super::scenario::{MS, called};
use super::world::World;

impl<R: Rules> World<R> {
    pub fn deliver(&mut self, link: Link, message: Up, now: Time) {
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

    /// Lets a run's machine do something, if the gateway has the run, and carries out what it asks for.
    pub fn act(&mut self, g: usize, run: usize, act: impl FnOnce(&mut Dispatch<R>) -> Vec<DispatchEffect>) {
        if let Some(entry) = self.gateways[g].runs.get_mut(&run) {
            let effects = act(&mut entry.dispatch);
            self.run_does(g, run, effects);
        }
    }

    pub fn run_does(&mut self, g: usize, run: usize, effects: Vec<DispatchEffect>) {
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
                    if let Some(entry) = self.gateways[g].runs.get_mut(&run) {
                        entry.told = true;
                    }
                    self.oracle.delivered(run, delta.sequence, &delta.tokens);
                }
                DispatchEffect::Tell(Said::End { .. }) => {
                    self.oracle.end_told(run);
                    if let Some(entry) = self.gateways[g].runs.get_mut(&run) {
                        entry.ended = true;
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
            Journalled::Dismissed { cause } => {
                self.tell(|| format!("gateway-{}: {}'s readers are told {cause}", g + 1, called(run)));
                self.oracle.met.dismissed += 1;
            }
            Journalled::HandedBack => self.oracle.handed_back(run),
            Journalled::Defect { what } => self.oracle.fail("C-4", || format!("{}: the gateway's machine refused: {what}", called(run))),
            _ => self.journalled_leaving(run, event),
        }
    }

    pub fn place_waiting(&mut self, g: usize, now: Time) {
        let waits = |(run, e): (&usize, &Entry<R>)| e.dispatch.is_waiting().then_some((e.order, *run));
        let mut waiting: Vec<(u64, usize)> = self.gateways[g].runs.iter().filter_map(waits).collect();
        waiting.sort_unstable();
        for (_, run) in waiting {
            let gateway = &mut self.gateways[g];
            let loads = gateway.loads();
            let Some(worker) = gateway.workers.choose(&Need::of(MODEL), 125, |w| loads[w.0 as usize]) else { return };
            let Some(known) = gateway.workers.get(worker) else { return };
            let (Some(incarnation), Some(model)) = (known.life, known.model(MODEL).cloned()) else { return };
            gateway.last_number += 1;
            let place = Place { worker, incarnation, number: gateway.last_number, model };
            self.act(g, run, |d| d.place(place, now));
        }
    }

    pub fn arrive(&mut self, g: usize, run: usize) {
        let plan = &self.scenario.runs[run];
        let (now, life) = (self.gateways[g].shell.clock.local(self.now), self.gateways[g].shell.life);
        let key = plan.key.clone();
        let params =
            Params { sampling: Sampling::default(), max_tokens: Some(plan.cap), n: plan.n, priority: plan.priority, ..Params::default() };
        let work = Work { prompt: Prompt::Tokens(plan.prompt.clone()), params };
        let part = if self.sabotage == Sabotage::DeadlineIsEarly { 2 } else { 1 };
        let named =
            plan.deadline.map(|left| left / part).map(|left| Deadline::from_left(now, Duration::from_micros(left), Cause::ClientDeadline));
        let lie = if self.sabotage == Sabotage::GraceIsShort { 2 } else { 1 };
        let policy = match plan.policy {
            OnDisconnect::Grace(grace) => OnDisconnect::Grace(grace / lie),
            other => other,
        };
        let dispatch = Dispatch::new(key.clone(), work, named.into_iter().collect(), self.scenario.dispatch, now).on_disconnect(policy);
        let unread = plan.unread;
        let dispatch = if unread { dispatch.nobody_reads() } else { dispatch };
        self.tell(|| format!("gateway-{}: {} accepted", g + 1, called(run)));
        self.oracle.accepted(run, g, life, self.now);
        self.oracle.met.unread += u64::from(unread);
        let gateway = &mut self.gateways[g];
        gateway.last_order += 1;
        gateway.runs.insert(run, Entry { key, dispatch, order: gateway.last_order, told: false, ended: false, gone: unread });
        self.place_waiting(g, now);
    }

    pub fn delivered(&mut self, g: usize, run: usize, delivery: Delivery) {
        let now = self.gateways[g].shell.clock.local(self.now);
        // Who has left has not read on.
        if self.gateways[g].runs.get(&run).is_some_and(|e| !e.gone) {
            self.act(g, run, |d| d.delivered(delivery, now));
        }
    }

    /// At the run's own gateway, or at another, which asks every worker that it knows.
    pub fn cancel_by_name(&mut self, g: usize, run: usize) {
        if self.scenario.runs[run].gateway == g {
            return self.cancel_here(g, run);
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
}
