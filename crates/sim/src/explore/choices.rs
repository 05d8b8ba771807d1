//! Which actions a world allows, and the one that a fair network and a fair scheduler would choose.
//!
//! Invariant: the fair one is among those that are allowed and costs no budget, so "everything ends well" is a property of the graph.

use lifecycle::{CallState, Rules};

use super::action::Action;
use super::device::Stage;
use super::words::Try;
use super::world::World;

impl<R: Rules> World<R> {
    /// All that may happen next.
    pub fn choices(&self) -> Vec<Action> {
        let mut all = Vec::new();
        self.choices_of_runs(&mut all);
        self.choices_of_network(&mut all);
        self.choices_of_worker(&mut all);
        all
    }

    fn current(&self, run: usize) -> Try {
        Try { run: run as u8, attempt: self.gate.runs[run].dispatch().call().attempt().max(1) as u8 }
    }

    fn may_place(&self, run: usize) -> bool {
        let is_here = self.gate.life == self.worker.life && !self.worker.cut && !self.gate.stops;
        let before = |r: usize| self.gate.runs[r].dispatch().is_waiting() && self.gate.runs[r].number == 0;
        is_here && self.gate.runs[run].dispatch().is_waiting() && !(0..run).any(before)
    }

    fn choices_of_runs(&self, all: &mut Vec<Action>) {
        let (setup, b) = (&self.scene.setup, &self.budget);
        for (i, run) in self.gate.runs.iter().enumerate() {
            let (at, call) = (i as u8, run.dispatch().call());
            if self.may_place(i) {
                all.push(Action::Place(at));
            }
            for (cause, why) in setup.runs[i].leaves.iter().enumerate() {
                let is_there = run.reads || !why.is_disconnect();
                if run.left >> cause & 1 == 0 && is_there && !call.is_settled() {
                    all.push(Action::Leave(at, cause as u8));
                }
            }
            if b.returns > 0 && !run.reads && !call.is_settled() {
                all.push(Action::Return(at));
            }
            if run.dispatch().grace_until().is_some() {
                all.push(Action::GraceOver(at));
            }
            if run.end.is_some() && run.reads && call.delivery().is_none() {
                all.push(Action::TakeEnd(at));
            }
            if b.repeats > 0 && call.needs_retry() {
                all.push(Action::Repeat(at));
            }
            let of = self.current(i);
            if run.number > 0 && b.strays > 0 {
                all.push(Action::Stray(at));
            }
            let was_here = self.fates[i * super::world::TRIES + usize::from(of.attempt) - 1].life == self.worker.life;
            if b.submits_again > 0 && run.number > 0 && was_here {
                all.push(Action::SubmitAgain(at));
            }
        }
        let open = self.gate.runs.iter().any(|run| !run.dispatch().call().is_settled());
        if setup.deadlines && !self.gate.late && open {
            all.push(Action::GatewayDeadlines);
        }
        if setup.deadlines && !self.worker.late && self.worker.engine.next_deadline().is_some() {
            all.push(Action::WorkerDeadlines);
        }
    }

    fn choices_of_network(&self, all: &mut Vec<Action>) {
        let (b, cut) = (&self.budget, self.worker.cut);
        for (i, frame) in self.net.frames.iter().enumerate() {
            let same = i > 0 && self.net.frames[i - 1] == *frame;
            if same || cut {
                continue;
            }
            if b.overtakings > 0 || !self.net.overtakes(frame) {
                all.push(Action::Deliver(i as u8));
                if b.doubles > 0 {
                    all.push(Action::Double(i as u8));
                }
            }
            if b.losses > 0 {
                all.push(Action::Lose(i as u8));
            }
        }
        for down in [true, false] {
            if !cut && self.net.owes_heartbeat(down) {
                all.push(Action::Heartbeat(down));
            }
            if !cut && self.net.may_resend(down) {
                all.push(Action::Resend(down));
            }
        }
        if b.sessions_again > 0 && !self.cut.attempts.is_empty() {
            all.push(Action::SessionAgain);
        }
        if b.refused > 0 && (cut || self.gate.life != self.worker.life) && self.gate.runs.iter().any(|r| r.dispatch().call().is_at_worker())
        {
            all.push(Action::Refused);
        }
        if cut {
            all.push(Action::Attach);
            if self.worker.orphaned {
                all.push(Action::Conclude);
            } else if b.leases > 0 {
                all.push(Action::LeaseOver);
            }
        } else if b.cuts > 0 && self.gate.life == self.worker.life && !self.cut.attempts.is_empty() {
            all.push(Action::Cut);
        }
        // A worker that has stopped begins anew if anybody still waits for one; any other may, while a run that was sent is open.
        let has_stopped = self.is_drained() && !self.gate.is_settled();
        let may_die = b.restarts > 0 && self.gate.runs.iter().any(|r| r.number > 0 && !r.dispatch().call().is_settled());
        if self.gate.life != self.worker.life {
            all.push(Action::Learn);
        } else if has_stopped || may_die {
            all.push(Action::Restart);
        }
    }

    fn choices_of_worker(&self, all: &mut Vec<Action>) {
        let (b, worker, device) = (&self.budget, &self.worker, &self.worker.device);
        for prompt in &worker.prompts {
            all.push(Action::Tokenised(prompt.run));
            if b.refusals > 0 {
                all.push(Action::Refuse(prompt.run));
            }
        }
        if worker.plan_due {
            all.push(Action::Plan);
        }
        if device.next_to_begin().is_some() {
            all.push(Action::Begin);
        }
        if let Some(at) = device.running() {
            all.push(Action::End(false));
            if device.has_flagged_row(at) {
                all.push(Action::End(true));
            }
        }
        match device.queue.front().map(|step| step.stage) {
            Some(Stage::Done) => all.push(Action::Fence),
            Some(_) => {
                let faults = [(b.failures, Action::Fail), (b.hangs, Action::Hang), (b.losses_of_device, Action::LoseDevice)];
                all.extend(faults.into_iter().filter(|(left, _)| *left > 0).map(|(_, action)| action));
            }
            None => {}
        }
        if b.drains > 0 && !worker.draining && self.gate.life == worker.life {
            all.push(Action::Drain);
        }
        if worker.draining && !worker.drained && !self.cut.attempts.is_empty() {
            all.push(Action::DrainOver);
        }
        if device.has_ghost() {
            all.push(Action::GhostWrites);
        }
        if !device.late.is_empty() {
            all.push(Action::LateFence);
        }
    }

    /// What happens next once nothing goes wrong any more and everybody does his part; `None` where nobody has one.
    pub fn fair(&self) -> Option<Action> {
        if self.is_at_rest() {
            return None;
        }
        let all = self.choices();
        let next = |f: &dyn Fn(&Action) -> bool| all.iter().copied().find(|a| f(a));
        let in_order = |i: u8| self.net.frames.get(usize::from(i)).is_some_and(|f| self.net.is_next(f));
        next(&|a| matches!(a, Action::Fence | Action::End(false)))
            .or_else(|| next(&|a| matches!(a, Action::Begin | Action::Plan | Action::Tokenised(_))))
            .or_else(|| next(&|a| matches!(a, Action::Learn | Action::Attach)))
            .or_else(|| next(&|a| matches!(a, Action::Deliver(i) if in_order(*i))))
            .or_else(|| next(&|a| matches!(a, Action::Deliver(_) | Action::Heartbeat(_))))
            .or_else(|| next(&|a| matches!(a, Action::Resend(_) | Action::Place(_) | Action::TakeEnd(_) | Action::GraceOver(_))))
            .or_else(|| next(&|a| matches!(a, Action::Restart) && self.is_drained()))
            .filter(|_| self.violation.is_none())
    }

    /// Whether a run waits for a worker.
    pub fn waits(&self, run: usize) -> bool {
        self.gate.runs[run].dispatch().call().state() == CallState::Accepted
    }
}
