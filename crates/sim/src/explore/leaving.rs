//! Readers that leave and come back, and what their run's policy promises about that.
//!
//! Invariant: the oracle knows who reads and which grace was let pass, and never asks the dispatch whether somebody did.
// contract: C-25

use lifecycle::event::Event;
use lifecycle::{Cause, OnDisconnect, OutcomeKind, Rules};

use super::marks::Mark;
use super::world::World;

impl<R: Rules> World<R> {
    pub(super) fn come_back(&mut self, run: u8) {
        self.budget.returns -= 1;
        let (there, effects) = self.gate.returned(usize::from(run));
        self.at_gate(run, effects);
        if there {
            self.gate.runs[usize::from(run)].late = false;
            self.take_end_at_once(run);
        }
    }

    pub(super) fn grace_over(&mut self, run: u8) {
        let effects = self.gate.grace_over(usize::from(run));
        self.at_gate(run, effects);
        let state = &self.gate.runs[usize::from(run)];
        let call = state.dispatch().call();
        if state.dispatch().grace_until().is_some() || (call.wanted().is_none() && !call.is_settled()) {
            let name = self.scene.setup.runs[usize::from(run)].name;
            self.violate("C-25", format!("nobody came back to {name} within its grace, and it goes on"));
        }
    }

    /// A reader that takes no time takes its answer's end in the moment in which it is told.
    pub(super) fn take_end_at_once(&mut self, run: u8) {
        let state = &self.gate.runs[usize::from(run)];
        let is_due = state.end.is_some() && state.reads && state.dispatch().call().delivery().is_none();
        if is_due && !self.scene.setup.slow_reader {
            self.take_end(run);
        }
    }

    /// What a gateway writes of a run, against its policy.
    pub(super) fn check_leaving(&mut self, run: u8, event: &Event) {
        let (policy, name) = (self.scene.setup.runs[usize::from(run)].policy, self.scene.setup.runs[usize::from(run)].name);
        let state = &self.gate.runs[usize::from(run)];
        let (reads, late, in_grace) = (state.reads, state.late || self.gate.late, matches!(policy, OnDisconnect::Grace(_)) && !state.reads);
        match event {
            Event::AbandonmentWithdrawn => self.marks.add(Mark::CameBack),
            Event::GraceRanOut if late => self.marks.add(Mark::RanOut),
            Event::LeftRunning { .. } => self.marks.add(Mark::LeftRunning),
            Event::OutcomeSet { outcome } if in_grace && outcome.kind() == OutcomeKind::Completed => self.marks.add(Mark::EndedInGrace),
            Event::CancelSent { cause, .. } if cause.is_disconnect() => {
                let why = match policy {
                    _ if reads => "although somebody reads it",
                    OnDisconnect::Continue => "although it goes on without a reader",
                    OnDisconnect::Grace(_) if !late && !self.is_wanted_otherwise(run, *cause) => "although its grace has not passed",
                    _ => return,
                };
                self.violate("C-25", format!("{name} is cancelled for {cause}, {why}"));
            }
            _ => {}
        }
    }

    fn is_wanted_otherwise(&self, run: u8, cause: Cause) -> bool {
        self.gate.runs[usize::from(run)].dispatch().call().wanted_all().iter().any(|wanted| *wanted != cause)
    }
}
