//! The worker's shell: inputs into the real engine, its effects out, its plans to the device.
//!
//! Invariant: each plan is checked against the engine's own account and the steps that are not over, before the device sees it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use engine::{Effect, Input, StepPlan};
use lifecycle::event::Event;
use lifecycle::{Cause, OutcomeKind, Rules};

use super::device::Stage;
use super::marks::Mark;
use super::net::Message;
use super::setup::Stop;
use super::words::{Piece, Try, Up};
use super::world::World;

/// The engine under unsound rules may contradict itself so badly that it stops: that is a finding, not an end.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|why| {
        let text = why.downcast_ref::<String>().cloned().or_else(|| why.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        text.unwrap_or_default()
    })
}

impl<R: Rules> World<R> {
    /// One input into the engine, and what comes of it.
    pub(super) fn input(&mut self, input: Input) {
        let now = self.worker.now();
        let engine = &mut self.worker.engine;
        match caught(|| engine.apply(input, now)) {
            Ok(effects) => self.effects(effects),
            Err(why) => return self.violate("C-15", format!("the engine stops: {why}")),
        }
        if self.scene.setup.lazy {
            self.worker.plan_due = true;
        } else {
            self.plan();
        }
    }

    /// Plans until the device is full.
    pub(super) fn plan(&mut self) {
        self.worker.plan_due = false;
        while self.violation.is_none() {
            let engine = &mut self.worker.engine;
            let (plan, effects) = match caught(|| engine.plan()) {
                Ok(planned) => planned,
                Err(why) => return self.violate("C-15", format!("the engine stops: {why}")),
            };
            self.effects(effects);
            let Some(plan) = plan else { return };
            self.planned(plan);
        }
    }

    fn planned(&mut self, plan: StepPlan) {
        self.look();
        let whose: Vec<Option<Try>> = plan.rows.iter().map(|row| self.check_row(&plan, row)).collect();
        let whose: Vec<Try> = whose.into_iter().flatten().collect();
        if whose.len() != plan.rows.len() {
            return; // the violation is noted
        }
        for (row, of) in plan.rows.iter().zip(&whose) {
            let (from, to, step) = (row.position, row.position + row.count(), plan.id);
            let blocks: Vec<String> = row.table.iter().map(|b| b.0.to_string()).collect();
            self.note(|s| {
                format!("step {step} is planned: {} computes positions {from} to {} in block {}", s.word(*of), to - 1, blocks.join(", "))
            });
            if self.fate(*of).followed && from == 0 {
                self.marks.add(Mark::Takeover);
            }
        }
        self.worker.device.submit(plan, whose);
    }

    fn effects(&mut self, effects: Vec<Effect>) {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut stops: Vec<(Try, u32)> = Vec::new();
        for effect in effects {
            match effect {
                Effect::Journal(Some(id), event) => {
                    if let Some(of) = Try::of(&id, &self.scene.names) {
                        self.journal_of_attempt(of, event);
                    }
                }
                Effect::Journal(None, event) => self.journal_of_worker(event),
                Effect::Token { attempt, sequence, sampled, finish } => {
                    let Some(of) = Try::of(&attempt, &self.scene.names) else { continue };
                    self.check_token(of, sequence, sampled.token, finish);
                    let run = &self.scene.setup.runs[usize::from(of.run)];
                    if run.stop == Stop::Text && finish.is_none() && self.fates_of(of).tokens[sequence as usize] == 1 {
                        stops.push((of, sequence));
                    }
                    pieces.push(Piece { of, sequence: sequence as u8, token: sampled.token, finish });
                }
                other => {
                    if !pieces.is_empty() {
                        self.say(Up::Step(std::mem::take(&mut pieces)));
                    }
                    self.said(other);
                }
            }
        }
        if !pieces.is_empty() {
            self.say(Up::Step(pieces));
        }
        for (of, sequence) in stops {
            let busy = self.worker.device.queue.iter().any(|q| q.whose.contains(&of));
            if busy {
                self.marks.add(Mark::StopString);
            }
            self.input(Input::Stop { attempt: of.id(&self.scene.names), sequence });
        }
    }

    fn said(&mut self, effect: Effect) {
        let names = &self.scene.names;
        match effect {
            Effect::Accepted { attempt, .. } => {
                let Some(of) = Try::of(&attempt, names) else { return };
                self.fate(of).taken_on += 1;
                self.say(Up::Accepted(of));
            }
            Effect::CancelAcknowledged { attempt, won } => {
                let Some(of) = Try::of(&attempt, names) else { return };
                if won.is_none() && self.fate(of).released > 0 {
                    self.marks.add(Mark::CancelAfterRelease);
                }
                if !self.stray {
                    self.say(Up::Acknowledged(of, won));
                }
            }
            Effect::Ended { attempt, outcome, .. } => {
                let Some(of) = Try::of(&attempt, names) else { return };
                self.note(|s| format!("{} ends: {}", s.word(of), outcome.cause));
                if outcome.cause == Cause::WorkerLost {
                    self.marks.add(Mark::RefusedLives);
                }
                self.ended(of, outcome.cause);
                self.say(Up::Ended(of, outcome.cause));
            }
            Effect::Released { attempt, .. } => {
                let Some(of) = Try::of(&attempt, names) else { return };
                self.note(|s| format!("{} is released", s.word(of)));
                self.check_release(of);
                self.say(Up::Released(of));
            }
            Effect::DeviceLost(_) => self.marks.add(Mark::DeviceLost),
            Effect::Journal(..) | Effect::Token { .. } => {}
        }
    }

    fn ended(&mut self, of: Try, cause: Cause) {
        let early = {
            let fate = self.fate(of);
            fate.ends += 1;
            fate.ended.get_or_insert(cause);
            fate.cancelled |= !matches!(cause.outcome(), OutcomeKind::Completed);
            fate.early && fate.taken_on == 0
        };
        let mark = match cause {
            Cause::Orphaned => Some(Mark::Orphaned),
            Cause::ClientDeadline if self.worker.late => Some(Mark::WorkerDeadline),
            Cause::DeviceError => Some(Mark::StepFailed),
            Cause::Stop => Some(Mark::StopToken),
            Cause::Length => Some(Mark::Length),
            _ => None,
        };
        mark.into_iter().for_each(|mark| self.marks.add(mark));
        if early {
            self.marks.add(Mark::TombstoneHit);
        }
    }

    /// The worker speaks to the gateway that the attempt is of.
    pub(super) fn say(&mut self, up: Up) {
        let of = match &up {
            Up::Accepted(of) | Up::Acknowledged(of, _) | Up::Ended(of, _) | Up::Released(of) => Some(*of),
            Up::Step(pieces) => pieces.first().map(|piece| piece.of),
            Up::Draining => None,
        };
        if of.is_some_and(|of| self.fate(of).tenure != self.net.worker_tenure && self.fate(of).life > 0) {
            return; // nobody is there any more who could be told
        }
        match (self.scene.setup.near, self.worker.cut) {
            (true, true) => self.held.push(Message::Up(up)),
            (true, false) => self.take_in(&up, self.worker.life),
            (false, _) => self.net.send(Message::Up(up)),
        }
    }

    fn journal_of_attempt(&mut self, of: Try, event: Event) {
        let shares = self.scene.names.get(usize::from(of.run)).is_some_and(|_| {
            let id = of.id(&self.scene.names);
            self.cut.blocks.iter().any(|b| b.owners.len() > 1 && b.owners.contains(&id))
        });
        match event {
            Event::BlocksAllocated { cached_tokens, .. } if cached_tokens > 0 => self.marks.add(Mark::CachedHit),
            Event::Computed { discarded, late, .. } => {
                if late > 0 {
                    self.marks.add(Mark::LateToken);
                }
                let completed = self.fates_of(of).ended.is_some_and(|c| c.outcome() == OutcomeKind::Completed);
                if discarded > 0 && completed {
                    self.marks.add(Mark::Overrun);
                }
                self.check_late(of, late);
            }
            Event::RowsDropped { layers, .. } => self.marks.add(if layers > 0 { Mark::DroppedMidway } else { Mark::DroppedEarly }),
            Event::Preempted => {
                self.note(|s| format!("{} is preempted", s.word(of)));
                self.marks.add(Mark::Preempted);
                if shares {
                    self.marks.add(Mark::PreemptedShared);
                }
            }
            Event::Tombstoned { .. } => self.note(|s| format!("a tombstone is left for {}", s.word(of))),
            Event::Released { .. } => self.fate(of).journalled += 1,
            _ => {}
        }
    }

    fn journal_of_worker(&mut self, event: Event) {
        match event {
            Event::Defect { what } if what.contains("blocks that are not there") => self.violate("C-16", what.into()),
            Event::Defect { what } => self.violate("C-15", format!("the engine reports a defect: {what}")),
            Event::DeviceFailed { quarantined, .. } if quarantined > 0 => self.marks.add(Mark::Quarantined),
            _ => {}
        }
    }

    pub(super) fn fates_of(&self, of: Try) -> &super::world::Fate {
        &self.fates[usize::from(of.run) * super::world::TRIES + usize::from(of.attempt) - 1]
    }

    /// In which situation a cancel meets its attempt.
    pub(super) fn marks_of_cancel(&mut self, of: Try) {
        let tokenising = self.worker.prompts.contains(&of);
        let mark = match self.state_before(of) {
            Some("queued") if tokenising => Some(Mark::CancelTokenising),
            Some("queued") => Some(Mark::CancelQueued),
            Some("prefilling") => Some(Mark::CancelPrefill),
            Some("decoding") => Some(Mark::CancelDecode),
            Some("preempted") => Some(Mark::CancelPreempted),
            Some("suspended") => Some(Mark::CancelSuspended),
            Some("stopping") => Some(Mark::CancelTwice),
            _ => None,
        };
        mark.into_iter().for_each(|mark| self.marks.add(mark));
        let steps = self.worker.device.queue.iter().filter(|q| q.stage != Stage::Done && q.whose.contains(&of)).count();
        if steps > 1 {
            self.marks.add(Mark::CancelTwoSteps);
        }
    }
}
