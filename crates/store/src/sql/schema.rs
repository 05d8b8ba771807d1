//! The schema: numbered migrations, each applied once, and the check of the key.
//!
//! A store is brought to this version when it is opened, in one transaction; of several gateways that open one PostgreSQL at the same moment,
//! one does it and the others wait.
//!
//! Invariant: a store that a newer version has changed is not touched.

use super::db::{Db, Held};
use super::trouble::Trouble;
use crate::seal::Seal;
use crate::{StoreError, Survives};

/// The migrations; the first makes version 1. Never change one that was released: add the next.
const MIGRATIONS: [&str; 3] =
    [include_str!("../../migrations/0001.sql"), include_str!("../../migrations/0002.sql"), include_str!("../../migrations/0003.sql")];

const SQLITE_HAS: &str = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'kvit_schema'";
const POSTGRES_HAS: &str = "SELECT 1::bigint WHERE to_regclass('kvit_schema') IS NOT NULL";
const VERSION: &str = "SELECT version, key_check FROM kvit_schema";
const MADE: &str = "INSERT INTO kvit_schema (one, version, key_check, logs) VALUES (1, $1, $2, 0)";
const MIGRATED: &str = "UPDATE kvit_schema SET version = $1";

/// Brings the schema to this version and checks the key.
pub(crate) async fn migrate(db: &Db, seal: &Seal) -> Result<(), Trouble> {
    let mut held = db.begin(Survives::Machine).await?;
    match migrate_in(&mut held, db.is_postgres(), seal).await {
        Ok(()) => held.commit().await,
        Err(trouble) => {
            held.roll_back().await;
            Err(trouble)
        }
    }
}

async fn migrate_in(held: &mut Held, postgres: bool, seal: &Seal) -> Result<(), Trouble> {
    held.lock("kvit migrate").await?;
    let has = held.one(if postgres { POSTGRES_HAS } else { SQLITE_HAS }, Vec::new()).await?.is_some();
    let mut version = 0;
    if has {
        let row = held.one(VERSION, Vec::new()).await?;
        let row = row.ok_or_else(|| StoreError::Unreadable("its table kvit_schema is empty".to_owned()))?;
        version = row.get(0)?;
        let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
        if version > known {
            let what = format!("its schema has version {version}, and this kvit knows up to {known}: use a newer one");
            return Err(StoreError::Unreadable(what).into());
        }
        seal.check(row.get(1)?)?;
    }
    for (number, migration) in (1_i64..).zip(MIGRATIONS).filter(|(number, _)| *number > version) {
        held.script(&dialect(migration, postgres)).await?;
        if number == 1 {
            held.execute(MADE, vec![number.into(), seal.check_value()?.into()]).await?;
        } else {
            held.execute(MIGRATED, vec![number.into()]).await?;
        }
    }
    Ok(())
}

/// The migration as the database says it.
fn dialect(migration: &str, postgres: bool) -> String {
    if postgres {
        return migration.replace("IDENTITY", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY");
    }
    let words = [("IDENTITY", "INTEGER PRIMARY KEY"), ("BIGINT", "INTEGER"), ("BYTEA", "BLOB"), (")/*table*/", ") STRICT")];
    words.iter().fold(migration.to_owned(), |text, (word, theirs)| text.replace(word, theirs))
}
