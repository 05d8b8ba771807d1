//! The clauses that can be broken in a moment, asked in every state and at every effect.
//!
//! Invariant: a check reads the worker's own account, the device's memory and what was said; it never asks the core whether it was right.
// contract: C-2, C-4, C-5, C-11, C-12, C-14, C-15, C-16, C-17, C-18, C-19, C-20, C-31

use engine::{Row, StepPlan};
use lifecycle::{Cause, OutcomeKind, Rules};

use super::marks::Mark;
use super::setup::Stop;
use super::words::Try;
use super::world::World;

impl<R: Rules> World<R> {
    /// Everything that must hold in a state.
    pub(super) fn check(&mut self) {
        if self.violation.is_some() {
            return;
        }
        self.look();
        self.marks_of_state();
        self.check_account();
        self.check_fates();
        self.check_gate();
    }

    fn check_account(&mut self) {
        let cut = self.cut.clone();
        if !cut.is_conserved() {
            self.violate("C-15", "the account does not add up".into());
        }
        if let Err(defect) = self.worker.engine.audit() {
            self.violate("C-15", format!("the audit disagrees: {defect}"));
        }
        if cut.stale_releases + cut.foreign_releases + cut.double_releases > 0 {
            self.violate("C-17", "the engine released what it did not hold".into());
        }
        for block in &cut.blocks {
            let contents = self.worker.device.block(block.block);
            let complete = contents.iter().all(|content| self.scene.truth.contents.contains(content));
            if block.state == "cached" && !complete {
                self.violate("C-19", format!("the prefix index offers block {}, which no row has filled to its last layer", block.block));
            }
        }
        self.check_tables();
        // A row that ended was flagged, so that a step that waits drops it before its first layer.
        let unflagged = self.worker.device.queue.iter().flat_map(|q| q.plan.rows.iter().zip(&q.whose).map(|(r, of)| (q.plan.id, r, *of)));
        let ended = unflagged.filter(|(_, row, of)| !row.is_dropped() && self.fates_of(*of).cancelled).map(|(id, _, of)| (id, of)).next();
        if let Some((step, of)) = ended {
            let n = self.scene.setup.runs[usize::from(of.run)].n;
            let clause = if n > 1 { "C-31" } else { "C-12" };
            let what = format!("{} has ended, and its row in step {step} is not flagged: it goes on computing", self.scene.word(of));
            self.violate(clause, what);
        }
    }

    /// A row that goes on uses no block that was taken from its attempt.
    // contract: C-18
    fn check_tables(&mut self) {
        let cut = self.cut.clone();
        let rows = self.worker.device.queue.iter().flat_map(|q| q.plan.rows.iter().zip(&q.whose).map(|(r, of)| (q.plan.id, r, *of)));
        let lost = rows.filter(|(_, row, _)| !row.is_dropped()).find_map(|(step, row, of)| {
            let id = of.id(&self.scene.names);
            let block = row.table.iter().find(|b| !cut.blocks[b.0 as usize].owners.contains(&id))?;
            Some((step, of, block.0))
        });
        if let Some((step, of, block)) = lost {
            let word = self.scene.word(of);
            self.violate("C-18", format!("block {block} is taken from {word}, which goes on using it in step {step}"));
        }
    }

    fn check_fates(&mut self) {
        for at in 0..self.fates.len() {
            let of = Try { run: (at / super::world::TRIES) as u8, attempt: (at % super::world::TRIES) as u8 + 1 };
            let word = self.scene.word(of);
            let fate = &self.fates[at];
            let (clause, what) = if fate.taken_on > 1 {
                ("C-2", format!("{word} is executed twice"))
            } else if fate.ends > 1 {
                ("C-4", format!("{word} ends twice"))
            } else if fate.released > 1 || fate.journalled > 1 {
                ("C-20", format!("{word} is released twice"))
            } else if fate.early && fate.taken_on > 0 {
                ("C-11", format!("{word} is executed, although its cancel came before its submit"))
            } else {
                continue;
            };
            self.violate(clause, what);
        }
    }

    fn check_gate(&mut self) {
        for run in 0..self.gate.runs.len() {
            let name = self.scene.setup.runs[run].name;
            let state = &self.gate.runs[run];
            let call = state.dispatch().call();
            if state.outcomes > 1 {
                self.violate("C-5", format!("{name} has two outcomes"));
            } else if state.settled > 1 {
                self.violate("C-6", format!("{name} is settled twice"));
            } else if call.is_released() && state.voided {
                self.violate("C-20", format!("{name} counts as released, although an attempt of it is void"));
            } else if call.is_released() && state.number > 0 {
                let of = self.current_try(run as u8);
                let proven = self.fates_of(of).released > 0;
                let holds = self.worker.engine.knows(&of.id(&self.scene.names)) && self.fates_of(of).life == self.worker.life;
                if !proven || holds {
                    let how = if holds { "still holds blocks or rows of it" } else { "has not said so" };
                    self.violate("C-6", format!("the gateway counts {name} as released, and the worker {how}"));
                }
            }
        }
    }

    /// A row of a plan: whose it is, if it may be computed.
    // contract: C-16
    pub(super) fn check_row(&mut self, plan: &StepPlan, row: &Row) -> Option<Try> {
        let bt = self.scene.setup.block_tokens;
        let written: Vec<u32> = (row.position / bt..=(row.position + row.count() - 1) / bt).map(|b| row.table[b as usize].0).collect();
        let owners = self.cut.blocks[written[0] as usize].owners.clone();
        let [owner] = owners.as_slice() else {
            self.violate("C-16", format!("step {} writes block {}, which has {} owners", plan.id, written[0], owners.len()));
            return None;
        };
        let of = Try::of(owner, &self.scene.names)?;
        for step in &self.worker.device.queue {
            for (other, whose) in step.plan.rows.iter().zip(&step.whose) {
                let hit = written.iter().find(|b| other.table.iter().any(|t| t.0 == **b));
                if let Some(block) = hit.filter(|_| !other.flag.is_same(&row.flag)) {
                    let (taker, giver) = (self.scene.word(of), self.scene.word(*whose));
                    let id = step.plan.id;
                    self.violate("C-16", format!("block {block} is handed to {taker} while step {id} still has it for {giver}"));
                    return None;
                }
            }
        }
        let id = of.id(&self.scene.names);
        if let Some(block) = row.table.iter().find(|b| !self.cut.blocks[b.0 as usize].owners.contains(&id)) {
            let taker = self.scene.word(of);
            self.violate("C-18", format!("{taker} goes on using block {}, which was taken from it", block.0));
            return None;
        }
        Some(of)
    }

    /// A token that the engine gives out.
    // contract: C-12, C-14
    pub(super) fn check_token(&mut self, of: Try, sequence: u32, token: u32, finish: Option<Cause>) {
        let (run, s) = (usize::from(of.run), sequence as usize);
        let word = self.scene.word(of);
        let at = usize::from(self.fates_of(of).tokens[s]);
        self.note(|_| format!("{word} gets token {token}"));
        let right = self.scene.truth.answers[run][s].get(at).copied();
        if right != Some(token) {
            self.violate("C-14", format!("token {} of {word} is {token}, alone it is {right:?}", at + 1));
        }
        if self.fates_of(of).ended.is_some() {
            self.violate("C-12", format!("{word} has ended and is given a further token"));
        }
        let n = self.scene.setup.runs[run].n;
        let fate = self.fate(of);
        fate.tokens[s] += 1;
        if finish.is_some() && n > 1 {
            fate.half = !fate.half;
        }
        if finish.is_some() && n > 1 && !self.fates_of(of).half {
            self.marks.add(Mark::SecondSequence);
        }
    }

    /// Tokens whose rows were flagged before they were done.
    // contract: C-12
    pub(super) fn check_late(&mut self, of: Try, late: u32) {
        let n = self.scene.setup.runs[usize::from(of.run)].n;
        let fate = self.fate(of);
        if fate.cancelled {
            fate.late += late as u8;
        }
        if u32::from(self.fates_of(of).late) > n {
            let word = self.scene.word(of);
            self.violate("C-12", format!("more than one token of an answer of {word} is computed after its cancel was received"));
        }
    }

    /// The engine says that it holds nothing of an attempt.
    // contract: C-20, C-31
    pub(super) fn check_release(&mut self, of: Try) {
        self.fate(of).released += 1;
        let id = of.id(&self.scene.names);
        let word = self.scene.word(of);
        let step = self.worker.device.queue.iter().find(|q| q.whose.contains(&of)).map(|q| q.plan.id);
        if let Some(step) = step {
            self.violate("C-20", format!("{word} is called released while step {step} still has a row of it"));
        }
        let cut = self.worker.engine.snapshot(true, &|_| false);
        if let Some(block) = cut.blocks.iter().find(|b| b.owners.contains(&id)) {
            self.violate("C-20", format!("{word} is called released and still owns block {}", block.block));
        }
    }

    /// A cancel was applied: nothing of its attempt may be scheduled any more.
    // contract: C-13
    pub(super) fn check_cancelled(&mut self, of: Try) {
        let id = of.id(&self.scene.names);
        let cut = self.worker.engine.snapshot(false, &|_| false);
        // Nobody else ends by it.
        let mut others = (0..self.scene.names.len() as u8).filter(|run| *run != of.run).map(|run| self.current_try(run));
        let wrong = others.find(|o| self.fates_of(*o).ended == Some(Cause::CancelRequested) && !self.asked(*o));
        if let Some(other) = wrong {
            let (word, name) = (self.scene.word(other), self.scene.word(of));
            self.violate("C-1", format!("the cancel of {name} ends {word}"));
        }
        let state = cut.attempts.iter().find(|a| a.attempt == id).map(|a| a.state);
        if let Some(state) = state.filter(|s| !matches!(*s, "stopping" | "ended")) {
            let word = self.scene.word(of);
            self.violate("C-13", format!("a cancel of {word} leaves it {state}"));
        }
    }

    fn asked(&self, of: Try) -> bool {
        let setup = &self.scene.setup;
        let run = usize::from(of.run);
        let by_name = setup.runs[run].leaves.iter().position(|c| *c == Cause::CancelRequested);
        by_name.is_some_and(|i| self.gate.runs[run].left >> i & 1 == 1) || self.fates_of(of).named
    }

    /// A piece of an answer that the readers are told.
    pub(super) fn check_told(&mut self, run: u8, sequence: usize, tokens: &[u32]) {
        let at = usize::from(run);
        if self.gate.runs[at].end.is_some() {
            let name = self.scene.setup.runs[at].name;
            self.violate("C-12", format!("{name}'s readers are told a token after the end"));
        }
        self.gate.runs[at].told[sequence].extend_from_slice(tokens);
        let (told, right) = (&self.gate.runs[at].told[sequence], &self.scene.truth.answers[at][sequence]);
        if !right.starts_with(told) {
            let name = self.scene.setup.runs[at].name;
            self.violate("C-14", format!("{name}'s readers are told other tokens than it would get alone"));
        }
    }

    /// The outcome, which is what its readers are told, or were told otherwise by a record.
    // contract: C-6
    pub(super) fn check_outcome(&mut self, run: u8, cause: Cause) {
        let state = &self.gate.runs[usize::from(run)];
        match state.end.filter(|told| *told != cause) {
            Some(_) if state.dismissed => self.marks.add(Mark::ToldOtherwise),
            Some(told) => {
                let name = self.scene.setup.runs[usize::from(run)].name;
                self.violate("C-6", format!("{name}'s readers were told {told}, its outcome is {cause}, and no record says so"));
            }
            None => {}
        }
    }

    /// The end that the readers are told.
    pub(super) fn check_end(&mut self, run: u8, cause: Cause) {
        if self.gate.runs[usize::from(run)].end.is_some() {
            let name = self.scene.setup.runs[usize::from(run)].name;
            self.violate("C-6", format!("{name}'s readers are told a second end"));
        }
        let setup = &self.scene.setup.runs[usize::from(run)];
        let whole = self.gate.runs[usize::from(run)].told.iter().all(|told| match setup.stop {
            Stop::Never => told.len() == setup.cap as usize,
            Stop::Token | Stop::Text => !told.is_empty(),
        });
        if cause.outcome() == OutcomeKind::Completed && !whole {
            let name = setup.name;
            self.violate("C-14", format!("{name} is completed, and its readers lack tokens of it"));
        }
    }

    fn marks_of_state(&mut self) {
        let cut = self.cut.clone();
        let distinct = |owners: &[lifecycle::AttemptId]| owners.iter().any(|o| *o != owners[0]);
        if cut.blocks.iter().any(|b| distinct(&b.owners)) {
            self.marks.add(Mark::Shared);
        }
        if cut.draining > 0 && cut.queued > 0 {
            self.marks.add(Mark::DrainingWaited);
        }
        if cut.quarantined > 0 {
            self.marks.add(Mark::Quarantined);
        }
        for a in &cut.attempts {
            let Some(of) = Try::of(&a.attempt, &self.scene.names) else { continue };
            let waits = a.state == "prefilling" && a.blocks == 0;
            if waits && self.others_compute_prefix(of) {
                self.marks.add(Mark::Follows);
                self.fate(of).followed = true;
            }
        }
    }

    fn others_compute_prefix(&self, of: Try) -> bool {
        let bt = self.scene.setup.block_tokens as usize;
        let first = |run: u8| self.scene.setup.runs[usize::from(run)].prompt.get(..bt);
        let whose = self.worker.device.queue.iter().flat_map(|q| &q.whose);
        whose.into_iter().any(|o| o.run != of.run && first(o.run).is_some() && first(o.run) == first(of.run))
    }
}
