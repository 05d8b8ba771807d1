//! What is read: single statements, each bounded by the limit that its asker gives.

use std::sync::PoisonError;

use lifecycle::{Cause, Incarnation, RunKey, Tenant};

use super::SqlStore;
use super::db::{Arg, Row};
use super::rows::{self, effect_columns, hook_columns, life, life_text, run_columns};
use super::trouble::Trouble;
use super::writes::named;
use crate::{Effect, Hook, HookQuery, HookState, RunQuery, StoreError, StoredEvent, StoredRun};

const RUN: &str = concat!("SELECT ", run_columns!(), " FROM kvit_run WHERE tenant = $1 AND run = $2");
const GLANCE: &str =
    concat!("SELECT ", run_columns!("CAST(NULL AS BYTEA)", "CAST(NULL AS BYTEA)"), " FROM kvit_run WHERE tenant = $1 AND run = $2");
const RUNS: &str = concat!(
    "SELECT ",
    run_columns!("CAST(NULL AS BYTEA)"),
    " FROM kvit_run WHERE tenant = $1 AND (CAST($2 AS TEXT) IS NULL OR kind = $2) AND (CAST($3 AS TEXT) IS NULL OR cause = $3) \
     AND ($4 = 0 OR cause IS NOT NULL) ORDER BY id DESC LIMIT $5"
);
const RUNS_AFTER: &str = concat!(
    "SELECT ",
    run_columns!("CAST(NULL AS BYTEA)"),
    " FROM kvit_run WHERE tenant = $1 AND (CAST($2 AS TEXT) IS NULL OR kind = $2) AND (CAST($3 AS TEXT) IS NULL OR cause = $3) \
     AND ($4 = 0 OR cause IS NOT NULL) AND id < (SELECT id FROM kvit_run WHERE tenant = $1 AND run = $6) ORDER BY id DESC LIMIT $5"
);
const EVENTS: &str = "SELECT number, body FROM kvit_event \
    WHERE run = (SELECT id FROM kvit_run WHERE tenant = $1 AND run = $2) AND number > $3 ORDER BY number LIMIT $4";
const EFFECTS: &str = concat!(
    "SELECT ",
    effect_columns!(),
    " FROM kvit_effect WHERE run = (SELECT id FROM kvit_run WHERE tenant = $1 AND run = $2) ORDER BY number"
);
const OWNED: &str = concat!("SELECT ", run_columns!(), " FROM kvit_run WHERE owner = $1 AND cause IS NULL ORDER BY id LIMIT $2");
const WANTED: &str = "SELECT tenant, run, wanted FROM kvit_run WHERE owner = $1 AND cause IS NULL AND wanted IS NOT NULL ORDER BY id";
const FOLLOWED: &str = "SELECT tenant, run FROM kvit_run WHERE owner = $1 AND cause IS NULL AND keeps = 2 ORDER BY id";
const ATTENDED: &str = "SELECT r.tenant, r.run, a.life, COALESCE(l.beat, 0) FROM kvit_run r JOIN kvit_reader a ON a.run = r.id \
    LEFT JOIN kvit_life l ON l.life = a.life WHERE r.owner = $1 AND r.cause IS NULL AND a.life <> $1 ORDER BY r.id, a.life";
const OWNERS: &str = "SELECT r.owner, COALESCE(l.beat, 0) FROM (SELECT DISTINCT owner FROM kvit_run WHERE cause IS NULL) r \
    LEFT JOIN kvit_life l ON l.life = r.owner ORDER BY r.owner";
/// `$4` are URLs, each with a space before and behind it: whatever takes one of them out finds it there.
const DUE_HOOKS: &str = concat!(
    "SELECT ",
    hook_columns!(),
    " FROM kvit_hook WHERE due_ms <= $1 AND (due_ms <= $3 OR replace(CAST($4 AS TEXT), ' ' || url || ' ', '') <> CAST($4 AS TEXT)) \
     ORDER BY due_ms, number LIMIT $2"
);

/// Rows of which is remembered that they cannot be read; of further ones nothing is said.
const ILLEGIBLE_MAX: usize = 1024;

const HOOKS: &str = "SELECT id, url, due_ms, tries, last FROM kvit_hook WHERE tenant = $1 AND run = $2 ORDER BY number";

/// The run that a row begins with.
fn key(row: &Row) -> Result<RunKey, Trouble> {
    rows::key(&row.get::<String>(0)?, &row.get::<String>(1)?)
}

impl SqlStore {
    pub(super) async fn read_run(&self, key: &RunKey) -> Result<Option<StoredRun>, Trouble> {
        self.read_one(RUN, key).await
    }

    pub(super) async fn read_glance(&self, key: &RunKey) -> Result<Option<StoredRun>, Trouble> {
        self.read_one(GLANCE, key).await
    }

    async fn read_one(&self, sql: &'static str, key: &RunKey) -> Result<Option<StoredRun>, Trouble> {
        let rows = self.db.read(sql, || named(key)).await?;
        rows.first().map(|row| Ok(rows::run(row, &self.seal)?.run)).transpose()
    }

    pub(super) async fn read_runs(&self, tenant: &Tenant, query: &RunQuery) -> Result<Vec<StoredRun>, Trouble> {
        let sql = if query.after.is_some() { RUNS_AFTER } else { RUNS };
        let args = || {
            let kind = query.outcome.map(|kind| kind.as_str());
            let cause = query.cause.map(Cause::as_str);
            let after = query.after.iter().map(|after| after.as_str().into());
            [tenant.as_str().into(), kind.into(), cause.into(), query.ended.into(), query.limit.into()].into_iter().chain(after).collect()
        };
        self.db.read(sql, args).await?.iter().map(|row| Ok(rows::run(row, &self.seal)?.run)).collect()
    }

    pub(super) async fn read_events(&self, key: &RunKey, after: u64, limit: usize) -> Result<Vec<StoredEvent>, Trouble> {
        let args = || named(key).into_iter().chain([after.into(), limit.into()]).collect();
        self.db.read(EVENTS, args).await?.iter().map(|row| rows::event(row, &self.seal, key)).collect()
    }

    pub(super) async fn read_effects(&self, key: &RunKey) -> Result<Vec<Effect>, Trouble> {
        self.db.read(EFFECTS, || named(key)).await?.iter().map(|row| rows::effect(row, &self.seal, key)).collect()
    }

    pub(super) async fn read_owned(&self, owner: Incarnation, limit: usize) -> Result<Vec<StoredRun>, Trouble> {
        let args = |limit: usize| vec![life_text(owner).as_str().into(), limit.into()];
        self.legible(OWNED, args, limit, |row| Ok(rows::run(row, &self.seal)?.run)).await
    }

    pub(super) async fn read_wanted(&self, owner: Incarnation) -> Result<Vec<(RunKey, Cause)>, Trouble> {
        self.legible_of(WANTED, owner, |row| Ok((key(row)?, rows::cause(&row.get::<String>(2)?)?))).await
    }

    pub(super) async fn read_followed(&self, owner: Incarnation) -> Result<Vec<RunKey>, Trouble> {
        self.legible_of(FOLLOWED, owner, key).await
    }

    pub(super) async fn read_attended(&self, owner: Incarnation) -> Result<Vec<(RunKey, Incarnation, u64)>, Trouble> {
        self.legible_of(ATTENDED, owner, |row| Ok((key(row)?, life(&row.get::<String>(2)?)?, rows::number(row, 3)?))).await
    }

    pub(super) async fn read_owners(&self) -> Result<Vec<(Incarnation, u64)>, Trouble> {
        self.legible(OWNERS, |_| Vec::new(), usize::MAX, |row| Ok((life(&row.get::<String>(0)?)?, rows::number(row, 1)?))).await
    }

    pub(super) async fn read_due_hooks(&self, query: &HookQuery) -> Result<Vec<Hook>, Trouble> {
        let urls: String = query.urls.iter().map(|url| format!(" {url} ")).collect();
        let args = |limit: usize| vec![query.now_ms.into(), limit.into(), query.any_since_ms.into(), urls.as_str().into()];
        self.legible(DUE_HOOKS, args, query.limit, |row| rows::hook(row, &self.seal)).await
    }

    /// All rows about the runs of one life that can be read.
    async fn legible_of<T>(
        &self,
        sql: &'static str,
        owner: Incarnation,
        read: impl Fn(&Row) -> Result<T, Trouble>,
    ) -> Result<Vec<T>, Trouble> {
        self.legible(sql, |_| vec![life_text(owner).as_str().into()], usize::MAX, read).await
    }

    /// As many of the rows that can be read as are asked for. Those that cannot are left out, and do not stand in the others' way.
    async fn legible<T>(
        &self,
        sql: &'static str,
        args: impl Fn(usize) -> Vec<Arg>,
        limit: usize,
        read: impl Fn(&Row) -> Result<T, Trouble>,
    ) -> Result<Vec<T>, Trouble> {
        let mut asked = limit;
        loop {
            let rows = self.db.read(sql, || args(asked)).await?;
            let mut legible = Vec::new();
            for row in &rows {
                match read(row) {
                    Ok(found) => legible.push(found),
                    Err(Trouble::Store(StoreError::Unreadable(why))) => self.say_illegible(row, &why),
                    Err(trouble) => return Err(trouble),
                }
            }
            let illegible = rows.len() - legible.len();
            if illegible == 0 || rows.len() < asked || legible.len() >= limit {
                legible.truncate(limit);
                return Ok(legible);
            }
            asked = limit.saturating_add(illegible);
        }
    }

    /// Says once of a row that it cannot be read: by its first columns, which are ids.
    fn say_illegible(&self, row: &Row, why: &str) {
        let column = |n| row.get::<String>(n).unwrap_or_default();
        let name = format!("{} {}", column(0), column(1));
        let mut said = self.illegible.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() < ILLEGIBLE_MAX && said.insert(name.clone()) {
            tracing::error!(row = %name, why, "a row of the run store cannot be read; it is left as it is, and nothing is done about it");
        }
    }

    pub(super) async fn read_hooks(&self, key: &RunKey) -> Result<Vec<HookState>, Trouble> {
        let rows = self.db.read(HOOKS, || named(key)).await?;
        let state = |row: &Row| {
            let (tries, last) = (rows::number(row, 3)?, row.get(4)?);
            Ok(HookState { id: row.get(0)?, url: row.get(1)?, due_ms: row.get(2)?, tries, last })
        };
        rows.iter().map(state).collect()
    }
}
