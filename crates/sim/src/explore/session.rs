//! What the network and the session do: frames that arrive or are lost, a session that breaks, a worker that is given up.
//!
//! Invariant: a word reaches the gateway through the lanes of the tenure that it was said in, or not at all.

use engine::Input;
use lifecycle::{CallState, Cause, Outcome, Rules};

use super::action::Action;
use super::marks::Mark;
use super::net::{Brought, Message};
use super::words::{Try, Up};
use super::world::{Worker, World};

impl<R: Rules> World<R> {
    pub(super) fn network(&mut self, action: Action) {
        match action {
            Action::Deliver(i) | Action::Double(i) => {
                let frame = self.net.frames[usize::from(i)].clone();
                if matches!(action, Action::Double(_)) {
                    self.budget.doubles -= 1;
                } else {
                    self.net.frames.remove(usize::from(i));
                }
                if self.net.overtakes(&frame) {
                    self.budget.overtakings -= 1;
                    self.marks.add(Mark::FrameEarly);
                }
                self.deliver(frame);
            }
            Action::Lose(i) => {
                self.budget.losses -= 1;
                let frame = self.net.frames.remove(usize::from(i));
                self.note(|s| frame.message.words(s));
            }
            Action::Heartbeat(down) => self.net.heartbeat(down),
            Action::Resend(down) => {
                self.marks.add(Mark::FrameResent);
                self.net.resend(down);
            }
            _ => {}
        }
    }

    fn deliver(&mut self, frame: super::net::Frame) {
        let (down, again) = (frame.is_down(), self.net.is_again(&frame));
        self.note(|s| frame.message.words(s));
        let message = frame.message.clone();
        match self.net.deliver(frame) {
            Brought::Stale => {
                self.note(|_| "its tenure is over: it changes nothing".into());
                self.marks.add(Mark::StaleFrame);
                if let Message::Up(up) = message
                    && up.words(&self.scene.names).iter().any(|(of, _)| self.gate.runs[usize::from(of.run)].voided)
                {
                    self.marks.add(Mark::LateAfterVoid);
                }
            }
            Brought::Messages(messages) => {
                if again {
                    self.marks.add(Mark::FrameAgain);
                }
                if !self.scene.setup.slow_heartbeat {
                    self.net.heartbeat(down);
                }
                for message in messages {
                    match message {
                        Message::Down(down) => self.heard(down),
                        Message::Up(up) => self.take_in(&up, self.gate.life),
                    }
                }
            }
        }
    }

    /// The gateway takes in what a life of the worker says.
    pub(super) fn take_in(&mut self, up: &Up, life: u8) {
        self.gate.stops |= *up == Up::Draining;
        for (of, word) in up.words(&self.scene.names) {
            let effects = self.gate.take_in(usize::from(of.run), life, of.attempt, word);
            self.at_gate(of.run, effects);
        }
    }

    pub(super) fn session(&mut self, action: Action) {
        match action {
            Action::Cut => {
                self.budget.cuts -= 1;
                self.worker.cut = true;
                self.net.break_connection();
                for (of, id) in self.live() {
                    match self.state_before(of) {
                        Some("prefilling") => self.marks.add(Mark::SuspendedPrefill),
                        Some("decoding") => self.marks.add(Mark::SuspendedDecode),
                        _ => {}
                    }
                    self.input(Input::Suspend { attempt: id });
                }
            }
            Action::Attach => self.attach(),
            Action::SessionAgain => {
                self.budget.sessions_again -= 1;
                for (_, attempt) in self.live() {
                    self.input(if self.worker.cut { Input::Suspend { attempt } } else { Input::Attach { attempt } });
                }
            }
            Action::Refused => {
                self.budget.refused -= 1;
                let life = self.gate.life;
                for run in 0..self.gate.runs.len() {
                    let effects = self.gate.refused(run, life);
                    let call = self.gate.runs[run].dispatch().call();
                    if effects.is_empty() && matches!(call.state(), CallState::Dispatched | CallState::Live) {
                        self.marks.add(Mark::RefusedWaits);
                    }
                    self.at_gate(run as u8, effects);
                }
            }
            Action::LeaseOver => {
                self.budget.leases -= 1;
                self.worker.orphaned = true;
                for (of, id) in self.live() {
                    self.input(Input::End { attempt: id, number: 0, outcome: Outcome::of(Cause::Orphaned) });
                    self.check_cancelled(of);
                }
            }
            Action::Conclude => {
                (self.worker.cut, self.worker.orphaned) = (false, false);
                self.held.clear();
                self.net.renew_worker();
                self.lose_worker();
                self.net.renew_gateway();
            }
            Action::Restart => {
                // A drained worker's process ends by itself.
                if !self.is_drained() {
                    self.budget.restarts -= 1;
                }
                let late = self.worker.late;
                self.worker = Worker { late, ..Worker::new(self.worker.life + 1, &self.scene.setup) };
                self.held.clear();
                self.net.renew_worker();
            }
            _ => {
                self.lose_worker();
                self.gate.stops = false;
                self.gate.life = self.worker.life;
                self.net.renew_gateway();
            }
        }
    }

    fn attach(&mut self) {
        let (ups, downs): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held).into_iter().partition(|m| matches!(m, Message::Up(_)));
        (self.worker.cut, self.worker.orphaned) = (false, false);
        for message in ups.into_iter().chain(downs) {
            match message {
                Message::Down(down) => self.heard(down),
                Message::Up(up) => self.take_in(&up, self.gate.life),
            }
        }
        for (of, id) in self.live() {
            if self.state_before(of) == Some("suspended") {
                self.marks.add(Mark::Attached);
            }
            self.input(Input::Attach { attempt: id });
        }
        for down in [true, false] {
            self.net.heartbeat(down);
            self.net.resend(down);
        }
    }

    fn lose_worker(&mut self) {
        let life = self.gate.life;
        for run in 0..self.gate.runs.len() {
            if self.gate.runs[run].dispatch().call().state() == CallState::HandedBack {
                self.marks.add(Mark::HandedBackLost);
            }
            let effects = self.gate.lost(run, life);
            self.at_gate(run as u8, effects);
        }
    }

    /// Attempts that the worker has, with their ids.
    pub(super) fn live(&self) -> Vec<(Try, lifecycle::AttemptId)> {
        let ids = self.cut.attempts.iter().map(|a| a.attempt.clone());
        ids.filter_map(|id| Some((Try::of(&id, &self.scene.names)?, id))).collect()
    }
}
