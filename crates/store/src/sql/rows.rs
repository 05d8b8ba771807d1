//! Between rows and what the trait speaks of: which column is which, what is sealed, and to which place.
//!
//! Invariant: what is read equals what was written; a word that this version does not know is an error and never another word.

use lifecycle::message::Usage;
use lifecycle::{Cause, Delivery, Incarnation, Outcome, RunId, RunKey, Tenant};

use super::db::Row;
use super::trouble::Trouble;
use crate::seal::{Place, Seal};
use crate::{Effect, EffectState, Hook, StoreError, StoredEvent, StoredRun};

/// The columns of a run that [`run`] reads.
macro_rules! run_columns {
    () => {
        run_columns!("request")
    };
    ($request:literal) => {
        run_columns!($request, "record")
    };
    ($request:literal, $record:literal) => {
        concat!(
            "tenant, run, fresh, door, model, caller, on_disconnect, keeps, owner, attempt, cause, reason, wanted, prompt_tokens, \
             cached_tokens, generated_tokens, delivery, last_event, created_ms, ended_ms, expires_ms, ",
            $request,
            ", ",
            $record,
            ", erased"
        )
    };
}
/// The columns of an effect that [`effect`] reads.
macro_rules! effect_columns {
    () => {
        "name, kind, description, state, attempt, detail, created_ms, updated_ms"
    };
}
/// The columns of a webhook that [`hook`] reads.
macro_rules! hook_columns {
    () => {
        "id, tenant, run, url, body, due_ms, tries, last"
    };
}
pub(crate) use {effect_columns, hook_columns, run_columns};

/// A run with what only the store knows of it.
pub(crate) struct RunRow {
    /// The id that its gateway made for it.
    pub fresh: String,
    /// Everything else.
    pub run: StoredRun,
}

fn unreadable(what: &str, found: &str) -> Trouble {
    StoreError::Unreadable(format!("{what} {found:?} is not known")).into()
}

fn word<T>(what: &str, text: Option<String>, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, Trouble> {
    text.map(|text| parse(&text).ok_or_else(|| unreadable(what, &text))).transpose()
}

/// A column's number, if it can be one of these.
pub(crate) fn number<T: TryFrom<i64>>(row: &Row, column: usize) -> Result<T, Trouble> {
    let value: i64 = row.get(column)?;
    T::try_from(value).map_err(|_| unreadable("the number", &value.to_string()))
}

/// A life, as it is written.
pub(crate) fn life_text(life: Incarnation) -> String {
    format!("{:032x}", life.0)
}

/// A life, as it was written.
pub(crate) fn life(text: &str) -> Result<Incarnation, Trouble> {
    u128::from_str_radix(text, 16).map(Incarnation).map_err(|_| unreadable("the life", text))
}

/// A cause, as it was written.
pub(crate) fn cause(text: &str) -> Result<Cause, Trouble> {
    Cause::parse(text).ok_or_else(|| unreadable("the cause", text))
}

/// A run's identity.
pub(crate) fn key(tenant: &str, run: &str) -> Result<RunKey, Trouble> {
    let tenant = Tenant::parse(tenant).map_err(|_| unreadable("the tenant", tenant))?;
    let run = RunId::parse(run).map_err(|_| unreadable("the run", run))?;
    Ok(RunKey { tenant, run })
}

/// Where a run's request or record stands.
pub(crate) fn of_run<'a>(column: &'static str, key: &'a RunKey) -> Place<'a> {
    Place(column, [key.tenant.as_str(), key.run.as_str(), ""])
}

/// Where something named within a run stands.
pub(crate) fn within<'a>(column: &'static str, key: &'a RunKey, name: &'a str) -> Place<'a> {
    Place(column, [key.tenant.as_str(), key.run.as_str(), name])
}

/// Seals what is there.
pub(crate) fn sealed(seal: &Seal, place: &Place<'_>, text: Option<&[u8]>) -> Result<Option<Vec<u8>>, StoreError> {
    text.map(|text| seal.seal(place, text)).transpose()
}

fn opened(seal: &Seal, place: &Place<'_>, text: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, StoreError> {
    text.map(|text| seal.open(place, text)).transpose()
}

/// A run.
pub(crate) fn run(row: &Row, seal: &Seal) -> Result<RunRow, Trouble> {
    let key = key(&row.get::<String>(0)?, &row.get::<String>(1)?)?;
    let on_disconnect: String = row.get(6)?;
    let reason: Option<String> = row.get(11)?;
    let request = opened(seal, &of_run("request", &key), row.get(21)?)?;
    let record = opened(seal, &of_run("record", &key), row.get(22)?)?;
    let run = StoredRun {
        door: row.get(3)?,
        model: row.get(4)?,
        caller: row.get(5)?,
        on_disconnect: on_disconnect.parse().map_err(|_| unreadable("the policy", &on_disconnect))?,
        keeps: row.get::<i64>(7)? == 1,
        followed: row.get::<i64>(7)? == 2,
        owner: life(&row.get::<String>(8)?)?,
        attempt: number(row, 9)?,
        outcome: word("the cause", row.get(10)?, Cause::parse)?.map(|cause| Outcome { cause, reason }),
        wanted: word("the cause", row.get(12)?, Cause::parse)?,
        usage: Usage { prompt: number(row, 13)?, cached_prompt: number(row, 14)?, generated: number(row, 15)? },
        delivery: word("the delivery", row.get(16)?, Delivery::parse)?,
        last_event: number(row, 17)?,
        created_ms: row.get(18)?,
        ended_ms: row.get(19)?,
        expires_ms: row.get(20)?,
        request,
        record,
        erased: row.get::<i64>(23)? != 0,
        key,
    };
    Ok(RunRow { fresh: row.get(2)?, run })
}

/// An event: its number and body.
pub(crate) fn event(row: &Row, seal: &Seal, key: &RunKey) -> Result<StoredEvent, Trouble> {
    let number: u64 = number(row, 0)?;
    let body = seal.open(&within("event", key, &number.to_string()), row.get(1)?)?;
    Ok(StoredEvent { number, body })
}

/// An effect of this run.
pub(crate) fn effect(row: &Row, seal: &Seal, run: &RunKey) -> Result<Effect, Trouble> {
    let name: String = row.get(0)?;
    let description = seal.open(&within("description", run, &name), row.get(2)?)?;
    let state: String = row.get(3)?;
    Ok(Effect {
        kind: row.get(1)?,
        description: String::from_utf8(description).map_err(|_| unreadable("the description of", &name))?,
        state: EffectState::parse(&state).ok_or_else(|| unreadable("the effect's state", &state))?,
        attempt: number(row, 4)?,
        detail: opened(seal, &within("detail", run, &name), row.get(5)?)?,
        created_ms: row.get(6)?,
        updated_ms: row.get(7)?,
        key: name,
    })
}

/// A webhook that is due at some time.
pub(crate) fn hook(row: &Row, seal: &Seal) -> Result<Hook, Trouble> {
    let id: String = row.get(0)?;
    let run = key(&row.get::<String>(1)?, &row.get::<String>(2)?)?;
    let body = seal.open(&within("hook", &run, &id), row.get(4)?)?;
    Ok(Hook { url: row.get(3)?, body, due_ms: row.get(5)?, tries: number(row, 6)?, last: row.get(7)?, run, id })
}
