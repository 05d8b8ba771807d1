//! What each action does: the pumps around the cores, one input at a time.
//!
//! Invariant: nothing is decided here that a core decides; a shell's duties are done at once, as the serving shells do them.

use std::sync::Arc;

use engine::{DeviceError, Input, StepDone, Submission};
use lifecycle::event::Event;
use lifecycle::message::Down as RealDown;
use lifecycle::params::Sampling;
use lifecycle::{Cause, Delivery, DispatchEffect, Outcome, OutcomeKind, Rules, Said, Time};

use super::action::Action;
use super::gate::LATE;
use super::marks::Mark;
use super::net::Message;
use super::setup::Stop;
use super::words::{Down, Try};
use super::world::World;

impl<R: Rules> World<R> {
    /// Takes one action and checks what became of the world.
    pub fn apply(&mut self, action: Action) {
        match action {
            Action::Place(run) => {
                if self.gate.runs[usize::from(run)].number > 0 {
                    self.marks.add(Mark::Redispatched);
                }
                let effects = self.gate.place(usize::from(run));
                self.at_gate(run, effects);
            }
            Action::Leave(run, cause) => self.leave(run, cause),
            Action::Return(run) => self.come_back(run),
            Action::GraceOver(run) => self.grace_over(run),
            Action::TakeEnd(run) => self.take_end(run),
            Action::Repeat(run) => {
                self.budget.repeats -= 1;
                let effects = self.gate.tick(usize::from(run), true);
                self.at_gate(run, effects);
            }
            Action::GatewayDeadlines => {
                self.gate.late = true;
                for run in 0..self.gate.runs.len() {
                    let effects = self.gate.tick(run, false);
                    self.at_gate(run as u8, effects);
                }
            }
            Action::WorkerDeadlines => {
                self.worker.late = true;
                self.input(Input::Tick);
            }
            Action::Deliver(_) | Action::Double(_) | Action::Lose(_) | Action::Heartbeat(_) | Action::Resend(_) => self.network(action),
            Action::Cut
            | Action::Attach
            | Action::SessionAgain
            | Action::Refused
            | Action::LeaseOver
            | Action::Conclude
            | Action::Restart
            | Action::Learn => self.session(action),
            Action::Drain => self.drain(),
            Action::DrainOver => self.drain_over(),
            _ => self.at_worker(action),
        }
        self.check();
    }

    fn leave(&mut self, run: u8, cause: u8) {
        let at = usize::from(run);
        let why = self.scene.setup.runs[at].leaves[usize::from(cause)];
        self.note(|_| why.to_string());
        self.gate.runs[at].left |= 1 << cause;
        let effects = if why.is_disconnect() {
            let told = self.gate.runs[at].told.iter().any(|answer| !answer.is_empty());
            self.gate.abandoned(at, why, if told { Delivery::Partial } else { Delivery::None })
        } else {
            self.gate.want(at, why)
        };
        self.at_gate(run, effects);
    }

    pub(super) fn take_end(&mut self, run: u8) {
        let at = usize::from(run);
        let Some(cause) = self.gate.runs[at].end else { return };
        let complete = cause.outcome() == OutcomeKind::Completed;
        let effects = self.gate.delivered(at, if complete { Delivery::Complete } else { Delivery::Partial });
        self.at_gate(run, effects);
    }

    /// Does what a dispatch asks for.
    pub(super) fn at_gate(&mut self, run: u8, effects: Vec<DispatchEffect>) {
        let at = usize::from(run);
        for effect in effects {
            match effect {
                DispatchEffect::Send { message, .. } => self.send(run, message),
                DispatchEffect::Journal { attempt, event } => self.journal_of_gate(Try { run, attempt: attempt as u8 }, event),
                DispatchEffect::Tell(Said::Delta(delta)) => {
                    self.check_told(run, delta.sequence as usize, &delta.tokens);
                }
                DispatchEffect::Tell(Said::End { outcome, .. }) => {
                    self.check_end(run, outcome.cause);
                    self.gate.runs[at].end = Some(outcome.cause);
                    self.take_end_at_once(run);
                }
                DispatchEffect::Settle => self.gate.runs[at].settled += 1,
                DispatchEffect::Tell(Said::Accepted) | DispatchEffect::Wait => {}
            }
        }
    }

    fn journal_of_gate(&mut self, of: Try, event: Event) {
        let run = usize::from(of.run);
        self.check_leaving(of.run, &event);
        match event {
            Event::Dismissed { cause } => {
                self.note(|s| format!("{}'s readers are told {cause}", s.setup.runs[run].name));
                self.marks.add(Mark::Dismissed);
                self.gate.runs[run].dismissed = true;
            }
            Event::OutcomeSet { outcome } => {
                self.check_outcome(of.run, outcome.cause);
                self.note(|s| format!("{} is {}: {}", s.setup.runs[run].name, outcome.kind(), outcome.cause));
                self.gate.runs[run].outcomes += 1;
                if self.gate.runs[run].number == 0 {
                    self.marks.add(Mark::NoWorker);
                }
            }
            Event::Superseded { .. } => self.marks.add(Mark::OutcomeRace),
            Event::AbandonmentObserved { cause: Cause::ClientDeadline } => self.marks.add(Mark::GatewayDeadline),
            Event::HandedBack => {
                self.note(|s| format!("{} waits for another worker", s.word(of)));
                let ran = self.fates_of(of).tokens.iter().any(|tokens| *tokens > 0) || self.worker.drained;
                self.marks.add(if ran { Mark::RunningHandedBack } else { Mark::HandedBack });
            }
            Event::Void { .. } => {
                self.note(|s| format!("{} is void", s.word(of)));
                self.gate.runs[run].voided = true;
                self.marks.add(Mark::Voided);
            }
            Event::Defect { what } => self.violate("C-4", format!("the call's machine cannot be told `{what}` in its state")),
            _ => {}
        }
    }

    /// A message of the gateway goes to its lane, or to the worker itself where they share a process.
    fn send(&mut self, run: u8, message: RealDown) {
        let names = &self.scene.names;
        let small = match message {
            RealDown::Submit(submit) => {
                let late = submit.deadlines.iter().any(|d| d.left.is_zero());
                Try::of(&submit.attempt, names).map(|of| Down::Submit { of, number: submit.number, late })
            }
            RealDown::Cancel { attempt, cause, number, .. } => Try::of(&attempt, names).map(|of| Down::Cancel { of, cause, number }),
            RealDown::Claim { .. } | RealDown::Disclaim { .. } | RealDown::Snapshot { .. } => None,
        };
        let Some(small) = small else { return };
        self.note(|s| match &small {
            Down::Submit { of, .. } => format!("submit {} is sent", s.word(*of)),
            Down::Cancel { of, cause, .. } => format!("cancel {} ({cause}) is sent", s.word(*of)),
        });
        if !self.scene.setup.near {
            self.net.send(Message::Down(small));
            return;
        }
        if self.gate.runs[usize::from(run)].life != self.worker.life {
            return; // the process that would hear it is gone
        }
        if self.worker.cut { self.held.push(Message::Down(small)) } else { self.heard(small) }
    }

    /// The worker hears a message.
    pub(super) fn heard(&mut self, message: Down) {
        match message {
            Down::Submit { of, number, late } => self.submitted(of, number, late),
            Down::Cancel { of, cause, number } => self.cancelled(of, number, cause),
        }
    }

    pub(super) fn submission(&self, of: Try, number: u64, late: bool) -> Submission {
        let setup = &self.scene.setup;
        let run = &setup.runs[usize::from(of.run)];
        let at = if late { self.worker.now() } else { Time(self.worker.now().0 + LATE.0) };
        Submission {
            attempt: of.id(&self.scene.names),
            number,
            n: run.n,
            max_tokens: Some(run.cap),
            sampling: Sampling::default(),
            stop_tokens: if run.stop == Stop::Token { vec![self.scene.truth.first_token(usize::from(of.run))] } else { Vec::new() },
            cache_salt: String::new(),
            priority: 0,
            deadlines: if setup.deadlines { vec![(at, Cause::ClientDeadline)] } else { Vec::new() },
        }
    }

    fn submitted(&mut self, of: Try, number: u64, late: bool) {
        let (life, tenure) = (self.worker.life, self.net.worker_tenure);
        let fate = self.fate(of);
        (fate.life, fate.tenure) = (life, tenure);
        if self.worker.draining {
            return self.turn_away(of);
        }
        let submission = self.submission(of, number, late);
        self.input(Input::Submit(Box::new(submission)));
        if self.worker.engine.knows(&of.id(&self.scene.names)) {
            self.worker.prompts.push(of);
            if !self.scene.setup.slow_tokeniser {
                self.tokenised(of);
            }
        }
    }

    pub(super) fn tokenised(&mut self, of: Try) {
        self.worker.prompts.retain(|p| *p != of);
        let tokens = self.scene.setup.runs[usize::from(of.run)].prompt.clone();
        self.input(Input::Tokenised { attempt: of.id(&self.scene.names), tokens });
    }

    pub(super) fn cancelled(&mut self, of: Try, number: u64, cause: Cause) {
        self.marks_of_cancel(of);
        let stray = self.stray;
        let fate = self.fate(of);
        fate.early |= fate.life == 0;
        fate.named |= stray;
        self.input(Input::End { attempt: of.id(&self.scene.names), number, outcome: Outcome::of(cause) });
        self.check_cancelled(of);
    }

    fn at_worker(&mut self, action: Action) {
        match action {
            Action::Stray(run) => {
                self.budget.strays -= 1;
                let of = self.current_try(run);
                let number = self.gate.runs[usize::from(run)].number;
                self.stray = true;
                self.cancelled(of, number, Cause::CancelRequested);
                self.stray = false;
            }
            Action::SubmitAgain(run) => {
                self.budget.submits_again -= 1;
                self.marks.add(Mark::SubmitAgain);
                let of = self.current_try(run);
                let submission = self.submission(of, self.gate.runs[usize::from(run)].number, false);
                self.input(Input::Submit(Box::new(submission)));
                let tokens = self.scene.setup.runs[usize::from(run)].prompt.clone();
                if !self.worker.prompts.contains(&of) {
                    self.input(Input::Tokenised { attempt: of.id(&self.scene.names), tokens });
                }
            }
            Action::Tokenised(run) => {
                let found = self.worker.prompts.iter().copied().find(|p| p.run == run);
                found.into_iter().for_each(|of| self.tokenised(of));
            }
            Action::Refuse(run) => {
                self.budget.refusals -= 1;
                let of = self.current_try(run);
                self.worker.prompts.retain(|p| p.run != run);
                self.input(Input::Refused { attempt: of.id(&self.scene.names), outcome: Outcome::of(Cause::Invalid) });
            }
            Action::Plan => self.plan(),
            _ => self.at_device(action),
        }
    }

    fn at_device(&mut self, action: Action) {
        let device = &mut self.worker.device;
        let done = match action {
            Action::Begin => {
                if let Some(at) = device.next_to_begin() {
                    device.begin(at);
                    if !self.scene.setup.fine_steps {
                        device.end(at, false);
                    }
                }
                None
            }
            Action::End(noticed) => {
                if let Some(at) = device.running() {
                    device.end(at, noticed);
                }
                None
            }
            Action::Fence => device.fence(),
            Action::Fail => {
                self.budget.failures -= 1;
                device.fail(DeviceError::Step("simulated".into()))
            }
            Action::Hang => {
                self.budget.hangs -= 1;
                device.fail(DeviceError::Hung("simulated".into()))
            }
            Action::LoseDevice => {
                self.budget.losses_of_device -= 1;
                device.fail(DeviceError::Lost("simulated".into()))
            }
            Action::GhostWrites => {
                device.ghost_writes();
                self.marks.add(Mark::GhostWrite);
                None
            }
            Action::LateFence => device.late.pop().map(|id| StepDone { id, result: Ok(Vec::new()) }),
            _ => None,
        };
        if let Some(done) = done {
            if action == Action::LateFence {
                self.marks.add(Mark::LateFence);
            }
            self.input(Input::StepDone(done));
        }
    }

    pub(super) fn current_try(&self, run: u8) -> Try {
        let attempt = self.gate.runs[usize::from(run)].dispatch().call().attempt().max(1);
        Try { run, attempt: attempt as u8 }
    }

    /// Where the worker's account stands now.
    pub(super) fn look(&mut self) {
        self.cut = Arc::new(self.worker.engine.snapshot(true, &|_| false));
    }
}
