//! The effects of runs as the gateway notes, moves and shows them. Each change is one compare-and-set in the store, from the states that
//! `lifecycle::effect` allows; nothing of them is kept in this process.
//!
//! Of a run that is over, what somebody had submitted and nobody answered for becomes `unknown` after `effect_wait`, when somebody looks: it
//! needs no watcher, and survives every restart.
//!
//! Invariant: what is answered is what stands in the store after the change, whoever made it.
// contract: C-27

use std::time::Duration;

use lifecycle::effect::{may_begin, not_begun};
use lifecycle::{Cause, EffectEvent, EffectState, Fate, Outcome, Party, RunKey};
use store::{Effect, StoreError, StoredRun, Survives, Write, Wrote};
use tokio::time::Instant;

use super::millis;
use super::tools::KIND;
use crate::calls::Calls;
use crate::keeping::{Keeper, now_ms};

/// How often is looked whether what is in flight has been answered for.
const LOOK: Duration = Duration::from_millis(25);
/// What is noted of an effect that was in flight when its run was over.
const WAITED: &str = "the run was over, and no answer had come in time";

/// What became of an effect that is to be noted.
pub(crate) enum Intended {
    /// It is noted now.
    New(Effect),
    /// Its key is noted already, for the same.
    Stands(Effect),
    /// Its key is noted already, for something else.
    Other,
    /// No effect of the run is begun any more.
    Over(Box<StoredRun>),
    /// The run has as many as it may.
    Full,
    /// There is no such run in the store.
    NoRun,
}

/// Why an effect is not moved.
pub(crate) enum NotMoved {
    /// There is none of that key, or no such run.
    Absent,
    /// It stands like this, from where it may not go there, or not by this party.
    Stands(Effect),
}

/// Whose an effect is.
fn whose(effect: &Effect) -> Party {
    if effect.kind == KIND { Party::Kvit } else { Party::Caller }
}

fn lost(what: &str) -> StoreError {
    StoreError::Unavailable(format!("no word of {what}"))
}

impl Calls {
    /// Notes an effect of a caller's own.
    pub(crate) async fn intend(&self, keeper: &Keeper, run: &RunKey, effect: Effect) -> Result<Intended, StoreError> {
        // A cancel that is decided here and not yet written down.
        let is_wanted = self.lock().entries.get(run).is_some_and(|entry| entry.dispatch.call().wanted().is_some());
        if is_wanted && effect.state.is_begun() {
            let stands = keeper.store.effects(run).await?.into_iter().find(|there| there.key == effect.key);
            let known = keeper.store.run(run).await?;
            return Ok(match (stands, known) {
                (Some(there), _) => same(there, &effect, false),
                (None, Some(known)) => Intended::Over(Box::new(known)),
                (None, None) => Intended::NoRun,
            });
        }
        // Of two that come at once both may be told "new"; it is one effect.
        let is_new = !keeper.store.effects(run).await?.iter().any(|there| there.key == effect.key);
        let asked = effect.clone();
        let write = Write::Intend { run: run.clone(), effect, max: self.config.outside.effects_max };
        Ok(match keeper.store.commit(vec![write], Survives::Machine).await?.pop() {
            Some(Wrote::Effect(there)) => same(there, &asked, is_new),
            Some(Wrote::Stands(run)) => Intended::Over(run),
            Some(Wrote::Full) => Intended::Full,
            _ => Intended::NoRun,
        })
    }

    /// Moves an effect, if the event may move it, and the party may say so.
    pub(crate) async fn move_effect(
        &self,
        keeper: &Keeper,
        (run, key): (&RunKey, &str),
        (event, by): (EffectEvent, Party),
        detail: Option<Vec<u8>>,
    ) -> Result<Result<Effect, NotMoved>, StoreError> {
        let find = async || Ok::<_, StoreError>(keeper.store.effects(run).await?.into_iter().find(|effect| effect.key == key));
        let Some(effect) = find().await? else { return Ok(Err(NotMoved::Absent)) };
        if !effect.state.may(event, by, whose(&effect)) {
            return Ok(Err(NotMoved::Stands(effect)));
        }
        let to = match effect.state.meets(event) {
            Fate::Moved(to) => to,
            Fate::Stands => return Ok(Ok(effect)),
            Fate::Refused => return Ok(Err(NotMoved::Stands(effect))),
        };
        let from = EffectState::that_move(event);
        let write = Write::Move { run: run.clone(), key: key.to_owned(), from, to, detail, now_ms: now_ms() };
        Ok(match keeper.store.commit(vec![write], Survives::Machine).await?.pop() {
            Some(Wrote::Effect(moved)) => Ok(moved),
            Some(Wrote::EffectStands(stands)) if stands.state == to => Ok(stands),
            Some(Wrote::EffectStands(stands)) => Err(NotMoved::Stands(stands)),
            Some(_) => Err(NotMoved::Absent),
            None => return Err(lost("an effect")),
        })
    }

    /// A run's effects as they stand, and none in flight that has been waited for long enough.
    pub(crate) async fn effects(&self, keeper: &Keeper, run: &StoredRun) -> Result<Vec<Effect>, StoreError> {
        let effects = keeper.store.effects(&run.key).await?;
        let outcome = run.outcome.as_ref().map(Outcome::kind);
        let Some(ended_ms) = run.ended_ms.filter(|_| !may_begin(outcome, false)) else { return Ok(effects) };
        let before = now_ms().saturating_sub(millis(self.config.outside.effect_wait));
        let is_due = |effect: &Effect| effect.state == EffectState::Submitted && effect.updated_ms.max(ended_ms) <= before;
        if !effects.iter().any(is_due) {
            return Ok(effects);
        }
        self.settle(keeper, &run.key, effects.iter().filter(|effect| is_due(effect)), EffectEvent::WaitOver, WAITED).await?;
        keeper.store.effects(&run.key).await
    }

    /// After a cancel: no effect of the run is begun any more, and one in flight is waited for until then, when it becomes unknown. What stands.
    pub(crate) async fn end_effects(&self, keeper: &Keeper, run: &RunKey, until: Instant) -> Result<Vec<Effect>, StoreError> {
        // From here on the store begins none, whoever asks, should the run's end not be written yet.
        let want = Write::Want { run: run.clone(), cause: Cause::CancelRequested };
        let wrote = keeper.store.commit(vec![want], Survives::Process).await?.pop();
        let outcome = match wrote {
            Some(Wrote::Stands(run)) => run.outcome.map(|outcome| outcome.kind()),
            _ => None,
        };
        loop {
            let effects = keeper.store.effects(run).await?;
            let in_state = |state| effects.iter().filter(move |effect: &&Effect| effect.state == state);
            if in_state(EffectState::Intended).next().is_some() {
                let intended = in_state(EffectState::Intended);
                self.settle(keeper, run, intended, EffectEvent::RunOver, not_begun(outcome)).await?;
            } else if in_state(EffectState::Submitted).next().is_none() {
                return Ok(effects);
            } else if Instant::now() >= until {
                let submitted = in_state(EffectState::Submitted);
                self.settle(keeper, run, submitted, EffectEvent::WaitOver, WAITED).await?;
                return keeper.store.effects(run).await;
            } else {
                tokio::time::sleep_until(until.min(Instant::now() + LOOK)).await;
            }
        }
    }

    /// Puts an event to several effects of a run.
    async fn settle<'a>(
        &self,
        keeper: &Keeper,
        run: &RunKey,
        effects: impl Iterator<Item = &'a Effect>,
        event: EffectEvent,
        why: &str,
    ) -> Result<(), StoreError> {
        let from = EffectState::that_move(event);
        let moved = effects.filter_map(|effect| match effect.state.meets(event) {
            Fate::Moved(to) => Some(Write::Move {
                run: run.clone(),
                key: effect.key.clone(),
                from: from.clone(),
                to,
                detail: Some(why.as_bytes().to_vec()),
                now_ms: now_ms(),
            }),
            Fate::Stands | Fate::Refused => None,
        });
        keeper.store.commit(moved.collect(), Survives::Machine).await.map(|_| ())
    }
}

/// An effect that stands under the key of one that is to be noted. Where it stands is no part of what must be equal, for that moves.
fn same(there: Effect, asked: &Effect, is_new: bool) -> Intended {
    // Of an erased run no texts are left to compare.
    let is_erased = there.description.is_empty();
    match there.kind == asked.kind && (there.description == asked.description || is_erased) {
        true if is_new => Intended::New(there),
        true => Intended::Stands(there),
        false => Intended::Other,
    }
}
