//! Retention: what is over is deleted, in bounded batches, with everything that belongs to it.
//!
//! Events, effects and the `Idempotency-Key` go with their run's row; webhooks that are still due stay until they are over.
//!
//! Invariant: a run without an outcome is never deleted.

use super::SqlStore;
use super::rows;
use super::trouble::Trouble;
use super::writes::{Tx, named};
use crate::Survives;

const SAID: &str = "DELETE FROM kvit_run WHERE id IN (SELECT id FROM kvit_run WHERE ended_ms IS NOT NULL AND expires_ms IS NOT NULL \
    AND expires_ms <= $1 ORDER BY expires_ms, id LIMIT $2) RETURNING tenant, run";
const DEFAULT: &str = "DELETE FROM kvit_run WHERE id IN (SELECT id FROM kvit_run WHERE ended_ms IS NOT NULL AND expires_ms IS NULL \
    AND ended_ms <= $1 ORDER BY ended_ms, id LIMIT $2) RETURNING tenant, run";
const HOOKS: &str = "DELETE FROM kvit_hook WHERE tenant = $1 AND run = $2 AND due_ms IS NULL";

impl SqlStore {
    pub(super) async fn delete_expired(&self, now_ms: i64, limit: usize) -> Result<u64, Trouble> {
        let mut tx = self.begin(Survives::Process).await?;
        match self.delete_in(&mut tx, now_ms, limit).await {
            Ok(deleted) => {
                tx.erased = deleted > 0;
                self.commit_tx(tx).await?;
                Ok(deleted)
            }
            Err(trouble) => {
                tx.held.roll_back().await;
                Err(trouble)
            }
        }
    }

    async fn delete_in(&self, tx: &mut Tx<'_>, now_ms: i64, limit: usize) -> Result<u64, Trouble> {
        let retention = i64::try_from(self.config.retention.as_millis()).unwrap_or(i64::MAX);
        let mut deleted = tx.held.query(SAID, vec![now_ms.into(), limit.into()]).await?;
        let left = limit.saturating_sub(deleted.len());
        deleted.extend(tx.held.query(DEFAULT, vec![now_ms.saturating_sub(retention).into(), left.into()]).await?);
        for row in &deleted {
            let key = rows::key(&row.get::<String>(0)?, &row.get::<String>(1)?)?;
            tx.held.execute(HOOKS, named(&key)).await?;
        }
        Ok(deleted.len() as u64)
    }
}
