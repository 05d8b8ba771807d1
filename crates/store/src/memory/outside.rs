//! What the simulated store keeps of what is done outside and elsewhere: effects, the outbox, and readers at other gateways.
//!
//! Invariant: an effect's key stands for one effect of its run for ever; a webhook that is over is not due again.

use std::collections::BTreeSet;

use lifecycle::effect::{may_begin, not_begun};
use lifecycle::{EffectState, Incarnation, Outcome, OutcomeKind, RunKey};

use super::{Kept, Outbox, State};
use crate::sql::db::storable;
use crate::{Effect, Hook, HookQuery, StoredRun, Wrote};

impl Kept {
    /// Whether an effect of this run may begin.
    fn begins(&self) -> bool {
        !self.run.erased && may_begin(self.run.outcome.as_ref().map(Outcome::kind), self.run.wanted.is_some())
    }

    /// What was intended of a run that ends like this, and will not be begun.
    pub(super) fn begin_no_effect(&mut self, outcome: OutcomeKind, now_ms: i64) {
        let intended = self.effects.iter_mut().filter(|effect| effect.state == EffectState::Intended);
        for effect in intended.filter(|_| outcome != OutcomeKind::Completed) {
            (effect.state, effect.updated_ms) = (EffectState::Failed, now_ms);
            effect.detail = Some(not_begun(Some(outcome)).as_bytes().to_vec());
        }
    }
}

impl State {
    pub(super) fn intend(&mut self, run: &RunKey, mut effect: Effect, max: usize) -> Wrote {
        let Some(kept) = self.kept_mut(run) else { return Wrote::Absent };
        (effect.key, effect.kind) = (storable(&effect.key), storable(&effect.kind));
        if kept.run.erased {
            (effect.description, effect.detail) = (String::new(), None);
        }
        if let Some(there) = kept.effects.iter().find(|there| there.key == effect.key) {
            return Wrote::Effect(there.clone());
        }
        if effect.state.is_begun() && !kept.begins() {
            return Wrote::Stands(Box::new(kept.run.clone()));
        }
        if kept.effects.len() >= max {
            return Wrote::Full;
        }
        kept.effects.push(effect.clone());
        Wrote::Effect(effect)
    }

    pub(super) fn move_effect(
        &mut self,
        (run, key): (&RunKey, &str),
        from: &[EffectState],
        (to, detail): (EffectState, Option<Vec<u8>>),
        now_ms: i64,
    ) -> Wrote {
        let Some(kept) = self.kept_mut(run) else { return Wrote::Absent };
        let (erased, begins) = (kept.run.erased, kept.begins());
        let Some(effect) = kept.effects.iter_mut().find(|effect| effect.key == storable(key)) else { return Wrote::Absent };
        if !from.contains(&effect.state) || (to == EffectState::Submitted && !begins) {
            return Wrote::EffectStands(effect.clone());
        }
        (effect.state, effect.updated_ms) = (to, now_ms);
        if detail.is_some() && !erased {
            effect.detail = detail;
        }
        Wrote::Effect(effect.clone())
    }

    pub(super) fn hook(&mut self, mut hook: Hook) {
        (hook.id, hook.url) = (storable(&hook.id), storable(&hook.url));
        hook.last = None;
        if self.hooks.iter().all(|there| there.hook.id != hook.id) {
            self.hooks.push(Outbox { hook, over: false });
        }
    }

    pub(super) fn due_hooks(&self, query: &HookQuery) -> Vec<Hook> {
        let is_asked = |hook: &Hook| hook.due_ms <= query.any_since_ms || query.urls.contains(&hook.url);
        let pending = self.hooks.iter().filter(|there| !there.over).map(|there| &there.hook);
        let mut due: Vec<Hook> = pending.filter(|hook| hook.due_ms <= query.now_ms && is_asked(hook)).cloned().collect();
        due.sort_by_key(|hook| hook.due_ms);
        due.truncate(query.limit);
        due
    }

    pub(super) fn hook_taken(&mut self, id: &str, from_ms: i64, due_ms: i64) -> Wrote {
        let due = |there: &&mut Outbox| there.hook.id == id && !there.over && there.hook.due_ms == from_ms;
        let Some(taken) = self.hooks.iter_mut().find(due) else { return Wrote::Absent };
        taken.hook.due_ms = due_ms;
        Wrote::Done
    }

    pub(super) fn hook_tried(&mut self, id: &str, due_ms: Option<i64>, last: &str) -> Wrote {
        let Some(at) = self.hooks.iter().position(|there| there.hook.id == id) else { return Wrote::Absent };
        if self.hooks[at].over {
            return Wrote::Done;
        }
        self.hooks[at].hook.tries += 1;
        self.hooks[at].hook.last = Some(storable(last));
        match due_ms {
            Some(due_ms) => self.hooks[at].hook.due_ms = due_ms,
            None => {
                self.hooks[at].over = true;
                if self.kept(&self.hooks[at].hook.run).is_none() {
                    self.hooks.remove(at);
                }
            }
        }
        Wrote::Done
    }
}

impl Kept {
    pub(super) fn is_ended_at(&self, owner: Incarnation) -> bool {
        self.run.outcome.is_some() && self.run.owner == owner
    }

    pub(super) fn is_followed_at(&self, owner: Incarnation) -> bool {
        self.run.outcome.is_none() && self.run.owner == owner && self.run.followed
    }
}

impl State {
    pub(super) fn erase(&mut self, run: &RunKey) -> Wrote {
        let Some(kept) = self.kept_mut(run).filter(|kept| kept.run.outcome.is_some()) else { return self.stands(run) };
        (kept.run.request, kept.run.record, kept.run.erased) = (None, None, true);
        kept.events.clear();
        for effect in &mut kept.effects {
            (effect.description, effect.detail) = (String::new(), None);
        }
        Wrote::Done
    }

    /// The readers elsewhere of these open runs of an owner.
    pub(super) fn attended(&self, owner: Incarnation, open: &[StoredRun]) -> Vec<(RunKey, Incarnation, u64)> {
        let beat = |of: Incarnation| self.lives.iter().find(|(life, _)| *life == of).map_or(0, |(_, beat)| *beat);
        let reads = |run: &StoredRun, by: Incarnation| self.readers.contains(&(by, run.key.clone()));
        let lives: BTreeSet<Incarnation> = self.readers.iter().map(|(by, _)| *by).filter(|by| *by != owner).collect();
        let of = |run| lives.iter().filter(move |by| reads(run, **by)).map(move |by| (run.key.clone(), *by, beat(*by)));
        open.iter().flat_map(of).collect()
    }
}
