//! Accepting a run: which id it gets, and whether its `Idempotency-Key` leads to another run.
//!
//! A commit may have happened although its answer was lost, and then the same write comes again. So a run keeps the id that its gateway made
//! for it (`fresh`), whatever it is called, and the same `fresh` is the same run.
//!
//! Invariant: of two accepts with one key at any two gateways, at most one begins a run while that run may still be joined.

use std::collections::HashSet;
use std::sync::LazyLock;

use lifecycle::message::Usage;
use lifecycle::{AttemptId, Outcome, OutcomeKind, RunId, RunKey};

use super::db::Arg;
use super::rows::{self, RunRow, life_text, of_run, run_columns, sealed};
use super::trouble::Trouble;
use super::writes::Tx;
use crate::{NewRun, StoreError, StoredRun, Wrote};

/// The last `~k` that is tried for an id that is taken.
pub(crate) const TAKEN_MAX: u32 = 100;

const OF_KEY: &str = "SELECT digest, run FROM kvit_key WHERE tenant = $1 AND name = $2";
const BY_ID: &str = concat!("SELECT ", run_columns!(), " FROM kvit_run WHERE id = $1");
const INSERT: &str = "INSERT INTO kvit_run (tenant, run, fresh, door, model, caller, on_disconnect, keeps, owner, attempt, prompt_tokens, \
    cached_tokens, generated_tokens, last_event, last_effect, created_ms, expires_ms, request, erased) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0, 0, 0, 0, 0, 0, $10, $11, $12, 0) ON CONFLICT (tenant, run) DO NOTHING RETURNING id";
const KEY: &str = "INSERT INTO kvit_key (tenant, name, digest, run) VALUES ($1, $2, $3, $4) \
    ON CONFLICT (tenant, name) DO UPDATE SET digest = excluded.digest, run = excluded.run";
/// Which of the names that a run may get are taken.
static TAKEN: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<String> = (0..=TAKEN_MAX).map(|i| format!("${}", i + 2)).collect();
    format!("SELECT run, fresh FROM kvit_run WHERE tenant = $1 AND run IN ({})", names.join(", "))
});

/// Whether a run is what a request with its key wants, too.
pub(crate) fn joinable(run: &StoredRun) -> bool {
    let stands = match &run.outcome {
        None => run.wanted.is_none(),
        Some(outcome) => outcome.kind() == OutcomeKind::Completed,
    };
    stands && !run.erased
}

/// The names that a run may get, in their order.
pub(crate) fn names(new: &NewRun) -> impl Iterator<Item = RunId> {
    let wished = new.wish.iter().flat_map(|wish| std::iter::once(wish.clone()).chain((2..=TAKEN_MAX).map(|k| wish.taken(k))));
    wished.chain(std::iter::once(new.fresh.clone()))
}

/// The name under which this very accept was committed before, given the names that are taken and by which `fresh`.
fn own(new: &NewRun, taken: &[(String, String)]) -> Option<RunId> {
    names(new).find(|name| taken.iter().any(|(run, fresh)| run == name.as_str() && fresh == new.fresh.as_str()))
}

impl Tx<'_> {
    pub async fn accept(&mut self, new: &NewRun) -> Result<Wrote, Trouble> {
        if let Some((name, digest)) = &new.joining {
            // No other gateway may look at this key between our look and our commit.
            self.held.lock(&format!("kvit key {} {name}", new.tenant.as_str())).await?;
            if let Some(wrote) = self.joined(new, name, digest).await? {
                return Ok(wrote);
            }
        }
        let mut taken = HashSet::new();
        for name in names(new) {
            if taken.contains(name.as_str()) {
                continue;
            }
            let key = RunKey { tenant: new.tenant.clone(), run: name };
            if let Some(id) = self.insert(new, &key).await? {
                if let Some((name, digest)) = &new.joining {
                    let args = vec![key.tenant.as_str().into(), name.as_str().into(), digest.to_vec().into(), id.into()];
                    self.held.execute(KEY, args).await?;
                }
                return Ok(Wrote::Accepted(key.run));
            }
            // One look at all of them, so that a name that everybody asks for is no hundred statements.
            let rows = self.taken(new).await?;
            if let Some(again) = own(new, &rows) {
                return Ok(Wrote::Accepted(again));
            }
            taken.extend(rows.into_iter().map(|(run, _)| run));
        }
        self.stands(&RunKey { tenant: new.tenant.clone(), run: new.fresh.clone() }).await
    }

    pub async fn disown(&mut self, new: &NewRun, outcome: Outcome, now_ms: i64) -> Result<Wrote, Trouble> {
        let rows = self.taken(new).await?;
        let Some(run) = own(new, &rows) else { return Ok(Wrote::Absent) };
        let attempt = AttemptId { key: RunKey { tenant: new.tenant.clone(), run }, attempt: 0 };
        self.end((attempt, new.owner), (outcome, Usage::default()), (None, Vec::new()), now_ms).await
    }

    async fn taken(&mut self, new: &NewRun) -> Result<Vec<(String, String)>, Trouble> {
        let names = names(new).map(|name| Arg::from(name.as_str()));
        let nobody = std::iter::repeat_with(|| Arg::Text(None));
        let names = names.chain(nobody).take(TAKEN_MAX as usize + 1);
        let args = std::iter::once(new.tenant.as_str().into()).chain(names).collect();
        let rows = self.held.query(TAKEN.as_str(), args).await?;
        rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    /// What became of the key before, unless it goes to the new run.
    async fn joined(&mut self, new: &NewRun, name: &str, digest: &[u8; 32]) -> Result<Option<Wrote>, Trouble> {
        let Some(row) = self.held.one(OF_KEY, vec![new.tenant.as_str().into(), name.into()]).await? else { return Ok(None) };
        let (asked, id): (Vec<u8>, i64) = (row.get(0)?, row.get(1)?);
        let run = self.held.one(BY_ID, vec![id.into()]).await?;
        let Some(RunRow { run, fresh, .. }) = run.map(|row| rows::run(&row, self.seal)).transpose()? else { return Ok(None) };
        Ok(match (fresh == new.fresh.as_str(), joinable(&run), asked == digest) {
            (true, _, _) => Some(Wrote::Accepted(run.key.run)),
            (_, true, true) => Some(Wrote::Joined(Box::new(run))),
            // Whatever became of it: a key is for one request.
            (_, _, false) if !run.erased => Some(Wrote::OtherBody),
            _ => None,
        })
    }

    async fn insert(&mut self, new: &NewRun, key: &RunKey) -> Result<Option<i64>, Trouble> {
        let request: Result<Option<Vec<u8>>, StoreError> = sealed(self.seal, &of_run("request", key), new.request.as_deref());
        let args: Vec<Arg> = vec![
            key.tenant.as_str().into(),
            key.run.as_str().into(),
            new.fresh.as_str().into(),
            new.door.as_str().into(),
            new.model.as_str().into(),
            new.caller.as_str().into(),
            new.on_disconnect.to_string().as_str().into(),
            new.keeps.into(),
            life_text(new.owner).as_str().into(),
            new.created_ms.into(),
            new.expires_ms.into(),
            request?.into(),
        ];
        self.held.one(INSERT, args).await?.map(|row| row.get(0)).transpose()
    }
}
