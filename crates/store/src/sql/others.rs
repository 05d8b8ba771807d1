//! The writes that concern effects, webhooks and the lives of gateways.
//!
//! Invariant: an effect's key stands for one effect of its run for ever; a webhook that is over is not due again.

use lifecycle::effect::may_begin;
use lifecycle::{Cause, Incarnation, OutcomeKind, RunKey};

use super::db::{Arg, Row, storable};
use super::rows::{self, effect_columns, life_text, sealed, within};
use super::trouble::Trouble;
use super::writes::{Tx, named};
use crate::{Effect, EffectState, Hook, Wrote};

/// Also holds the run's row, so that effects of one run are numbered one after the other.
const NEXT_EFFECT: &str =
    "UPDATE kvit_run SET last_effect = last_effect + 1 WHERE tenant = $1 AND run = $2 RETURNING id, last_effect, erased, cause, wanted";
const INTEND: &str = concat!(
    "INSERT INTO kvit_effect (run, name, number, kind, description, state, attempt, detail, created_ms, updated_ms) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (run, name) DO NOTHING RETURNING ",
    effect_columns!()
);
const EFFECT: &str = concat!("SELECT ", effect_columns!(), " FROM kvit_effect WHERE run = $1 AND name = $2");
const COUNT: &str = "SELECT COUNT(*) FROM kvit_effect WHERE run = $1";
const RUN_ID: &str = "SELECT id, 0, erased, cause, wanted FROM kvit_run WHERE tenant = $1 AND run = $2";
/// Also holds the run's row: nobody wants the run's end, ends or erases it between this look and the commit of what it allows.
const HELD_RUN_ID: &str =
    "UPDATE kvit_run SET last_effect = last_effect WHERE tenant = $1 AND run = $2 RETURNING id, 0, erased, cause, wanted";
const MOVE: &str = concat!(
    "UPDATE kvit_effect SET state = $3, detail = COALESCE($4, detail), updated_ms = $5 \
     WHERE run = $1 AND name = $2 AND state IN ($6, $7, $8, $9, $10) RETURNING ",
    effect_columns!()
);
const HOOK: &str = "INSERT INTO kvit_hook (id, tenant, run, url, body, due_ms, tries) VALUES ($1, $2, $3, $4, $5, $6, $7) \
    ON CONFLICT (id) DO NOTHING";
const HOOK_TAKEN: &str = "UPDATE kvit_hook SET due_ms = $3 WHERE id = $1 AND due_ms = $2";
const HOOK_AGAIN: &str = "UPDATE kvit_hook SET due_ms = $2, last = $3, tries = tries + 1 WHERE id = $1 AND due_ms IS NOT NULL";
const HOOK_OVER: &str = "UPDATE kvit_hook SET due_ms = NULL, body = $2, last = $3, tries = tries + 1 WHERE id = $1 AND due_ms IS NOT NULL";
/// Its run was deleted before it was over.
const HOOK_ALONE: &str = "DELETE FROM kvit_hook WHERE id = $1 AND due_ms IS NULL AND NOT EXISTS \
    (SELECT 1 FROM kvit_run r WHERE r.tenant = kvit_hook.tenant AND r.run = kvit_hook.run)";
const HOOK_IS: &str = "SELECT id FROM kvit_hook WHERE id = $1";
const BEAT: &str = "INSERT INTO kvit_life (life, name, beat) VALUES ($1, $2, 1) \
    ON CONFLICT (life) DO UPDATE SET beat = kvit_life.beat + 1, name = excluded.name";
const LEAVE: &str = "DELETE FROM kvit_life WHERE life = $1";
const LEAVE_READERS: &str = "DELETE FROM kvit_reader WHERE life = $1";
const LEAVE_RUNS: &str = "UPDATE kvit_run SET owner = $2 WHERE owner = $1 AND cause IS NULL";

/// Whether an effect of the run in this row may begin. What was to be sent for an erased one is not known any more.
fn begins(row: &Row) -> Result<bool, Trouble> {
    let outcome: Option<OutcomeKind> = row.get::<Option<String>>(3)?.map(|word| rows::cause(&word)).transpose()?.map(Cause::outcome);
    let is_erased = row.get::<i64>(2)? != 0;
    Ok(!is_erased && may_begin(outcome, row.get::<Option<String>>(4)?.is_some()))
}

impl Tx<'_> {
    pub async fn intend(&mut self, run: RunKey, mut effect: Effect, max: usize) -> Result<Wrote, Trouble> {
        let Some(row) = self.held.one(NEXT_EFFECT, named(&run)).await? else { return Ok(Wrote::Absent) };
        let (id, number): (i64, i64) = (row.get(0)?, row.get(1)?);
        if row.get::<i64>(2)? != 0 {
            effect.description.clear();
            effect.detail = None;
        }
        // What a text is sealed to is what it is read back by.
        effect.key = storable(&effect.key);
        if let Some(there) = self.effect(id, &run, &effect.key).await? {
            return Ok(Wrote::Effect(there));
        }
        if effect.state.is_begun() && !begins(&row)? {
            return self.stands(&run).await;
        }
        let count = self.held.one(COUNT, vec![id.into()]).await?.map_or(Ok(0), |row| rows::number(&row, 0))?;
        if max <= count {
            return Ok(Wrote::Full);
        }
        let description = self.seal.seal(&within("description", &run, &effect.key), effect.description.as_bytes())?;
        let detail = sealed(self.seal, &within("detail", &run, &effect.key), effect.detail.as_deref())?;
        let args = vec![
            id.into(),
            effect.key.as_str().into(),
            number.into(),
            effect.kind.as_str().into(),
            description.into(),
            effect.state.as_str().into(),
            effect.attempt.into(),
            detail.into(),
            effect.created_ms.into(),
            effect.updated_ms.into(),
        ];
        match self.held.one(INTEND, args).await? {
            Some(row) => Ok(Wrote::Effect(rows::effect(&row, self.seal, &run)?)),
            None => Ok(self.effect(id, &run, &effect.key).await?.map_or(Wrote::Absent, Wrote::Effect)),
        }
    }

    async fn effect(&mut self, id: i64, run: &RunKey, key: &str) -> Result<Option<Effect>, Trouble> {
        let row = self.held.one(EFFECT, vec![id.into(), key.into()]).await?;
        row.map(|row| rows::effect(&row, self.seal, run)).transpose()
    }

    pub async fn move_effect(
        &mut self,
        (run, key): (RunKey, String),
        from: &[EffectState],
        (to, detail): (EffectState, Option<Vec<u8>>),
        now_ms: i64,
    ) -> Result<Wrote, Trouble> {
        let key = storable(&key);
        let is_permission = to == EffectState::Submitted;
        let look = if is_permission { HELD_RUN_ID } else { RUN_ID };
        let Some(row) = self.held.one(look, named(&run)).await? else { return Ok(Wrote::Absent) };
        let id: i64 = row.get(0)?;
        let from = if is_permission && !begins(&row)? { &[] } else { from };
        let detail = detail.filter(|_| row.get::<i64>(2).is_ok_and(|erased| erased == 0));
        let detail = sealed(self.seal, &within("detail", &run, &key), detail.as_deref())?;
        let mut args = vec![id.into(), key.as_str().into(), to.as_str().into(), detail.into(), now_ms.into()];
        args.extend(EffectState::ALL.map(|state| Arg::from(from.contains(&state).then_some(state.as_str()))));
        match self.held.one(MOVE, args).await? {
            Some(row) => Ok(Wrote::Effect(rows::effect(&row, self.seal, &run)?)),
            None => Ok(self.effect(id, &run, &key).await?.map_or(Wrote::Absent, Wrote::EffectStands)),
        }
    }

    pub async fn hook(&mut self, hook: Hook) -> Result<Wrote, Trouble> {
        let id = storable(&hook.id);
        let body = self.seal.seal(&within("hook", &hook.run, &id), &hook.body)?;
        let mut args = vec![id.as_str().into()];
        args.extend(named(&hook.run));
        args.extend([hook.url.as_str().into(), body.into(), hook.due_ms.into(), hook.tries.into()]);
        self.held.execute(HOOK, args).await?;
        Ok(Wrote::Done)
    }

    pub async fn hook_taken(&mut self, id: &str, from_ms: i64, due_ms: i64) -> Result<Wrote, Trouble> {
        let changed = self.held.execute(HOOK_TAKEN, vec![id.into(), from_ms.into(), due_ms.into()]).await?;
        Ok(if changed == 0 { Wrote::Absent } else { Wrote::Done })
    }

    pub async fn hook_tried(&mut self, id: &str, due_ms: Option<i64>, last: &str) -> Result<Wrote, Trouble> {
        let changed = match due_ms {
            Some(due_ms) => self.held.execute(HOOK_AGAIN, vec![id.into(), due_ms.into(), last.into()]).await?,
            None => {
                let changed = self.held.execute(HOOK_OVER, vec![id.into(), Vec::new().into(), last.into()]).await?;
                self.erased |= changed > 0;
                if changed > 0 {
                    self.held.execute(HOOK_ALONE, vec![id.into()]).await?;
                }
                changed
            }
        };
        if changed == 0 && self.held.one(HOOK_IS, vec![id.into()]).await?.is_none() {
            return Ok(Wrote::Absent);
        }
        Ok(Wrote::Done)
    }

    pub async fn beat(&mut self, owner: Incarnation, name: &str) -> Result<Wrote, Trouble> {
        self.held.execute(BEAT, vec![life_text(owner).as_str().into(), name.into()]).await?;
        Ok(Wrote::Done)
    }

    pub async fn leave(&mut self, owner: Incarnation) -> Result<Wrote, Trouble> {
        self.held.execute(LEAVE, vec![life_text(owner).as_str().into()]).await?;
        self.held.execute(LEAVE_READERS, vec![life_text(owner).as_str().into()]).await?;
        let nobody = life_text(Incarnation(0));
        self.held.execute(LEAVE_RUNS, vec![life_text(owner).as_str().into(), nobody.as_str().into()]).await?;
        Ok(Wrote::Done)
    }
}
