//! The two databases behind one thin face: a connection that is held for one transaction or one read, values that go in, rows that come out.
//!
//! `$1` means the same to both, so there is one text of each statement. sqlx keeps them prepared, per connection.
//!
//! Invariant: a connection goes back to its pool only if everything on it came to its end; any other is closed, which undoes what was open.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Executor, PgPool, Postgres, Row as _, Sqlite, SqlitePool, Type};

use super::trouble::Trouble;
use crate::{StoreError, Survives};

/// Which database, with its connections.
#[derive(Clone)]
pub(crate) enum Db {
    /// One connection writes, others read meanwhile.
    Sqlite {
        /// The one that writes.
        writer: SqlitePool,
        /// Those that read.
        readers: SqlitePool,
    },
    /// All are alike.
    Postgres {
        /// The connections.
        pool: PgPool,
        /// Where wakes are sent, if they are.
        channel: Option<String>,
        /// How often one was made.
        connected: Arc<AtomicU64>,
    },
}

enum Connection {
    Sqlite(PoolConnection<Sqlite>),
    Postgres(PoolConnection<Postgres>),
}

/// A connection in use.
pub(crate) struct Held {
    connection: Option<Connection>,
    /// Everything on it has come to its end.
    clean: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        match self.connection.take() {
            _ if self.clean => {}
            Some(Connection::Sqlite(connection)) => drop(connection.detach()),
            Some(Connection::Postgres(connection)) => drop(connection.detach()),
            None => {}
        }
    }
}

/// A value of a statement.
pub(crate) enum Arg {
    /// BIGINT.
    Int(Option<i64>),
    /// TEXT.
    Text(Option<String>),
    /// BYTEA, BLOB.
    Bytes(Option<Vec<u8>>),
}

impl From<i64> for Arg {
    fn from(value: i64) -> Arg {
        Arg::Int(Some(value))
    }
}
impl From<u32> for Arg {
    fn from(value: u32) -> Arg {
        Arg::Int(Some(i64::from(value)))
    }
}
impl From<u64> for Arg {
    fn from(value: u64) -> Arg {
        Arg::Int(Some(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}
impl From<usize> for Arg {
    fn from(value: usize) -> Arg {
        Arg::from(value as u64)
    }
}
impl From<bool> for Arg {
    fn from(value: bool) -> Arg {
        Arg::Int(Some(i64::from(value)))
    }
}
impl From<Option<i64>> for Arg {
    fn from(value: Option<i64>) -> Arg {
        Arg::Int(value)
    }
}
impl From<Vec<u8>> for Arg {
    fn from(value: Vec<u8>) -> Arg {
        Arg::Bytes(Some(value))
    }
}
impl From<Option<Vec<u8>>> for Arg {
    fn from(value: Option<Vec<u8>>) -> Arg {
        Arg::Bytes(value)
    }
}
impl From<&str> for Arg {
    fn from(value: &str) -> Arg {
        Arg::Text(Some(storable(value)))
    }
}
impl From<Option<&str>> for Arg {
    fn from(value: Option<&str>) -> Arg {
        Arg::Text(value.map(storable))
    }
}

/// A text as both databases can keep it: PostgreSQL knows no NUL in one, and a batch with one would never be committed.
pub(crate) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// A row of either.
pub(crate) enum Row {
    /// SQLite's.
    Sqlite(SqliteRow),
    /// PostgreSQL's.
    Postgres(PgRow),
}

impl Row {
    /// The value of a column, counted from 0.
    pub fn get<T>(&self, column: usize) -> Result<T, Trouble>
    where
        T: for<'r> Decode<'r, Sqlite> + Type<Sqlite> + for<'r> Decode<'r, Postgres> + Type<Postgres>,
    {
        match self {
            Row::Sqlite(row) => Ok(row.try_get(column)?),
            Row::Postgres(row) => Ok(row.try_get(column)?),
        }
    }
}

impl Db {
    /// Begins a transaction that writes. A pooled connection may have died unseen: then the next is tried, as nothing was said on it yet.
    pub async fn begin(&self, survives: Survives) -> Result<Held, Trouble> {
        let mut tries = self.connections_max();
        loop {
            let mut held = self.acquire(true).await?;
            match held.begin(survives).await {
                Err(Trouble::Broken(_)) if tries > 0 => tries -= 1,
                begun => return begun.map(|()| held),
            }
        }
    }

    /// One statement that only reads; so it may be said again on the next connection.
    pub async fn read(&self, sql: &'static str, args: impl Fn() -> Vec<Arg>) -> Result<Vec<Row>, Trouble> {
        let mut tries = self.connections_max();
        loop {
            let mut held = self.acquire(false).await?;
            match held.query(sql, args()).await {
                Ok(rows) => {
                    held.clean = true;
                    return Ok(rows);
                }
                Err(Trouble::Broken(_)) if tries > 0 => tries -= 1,
                Err(trouble) => return Err(trouble),
            }
        }
    }

    async fn acquire(&self, writes: bool) -> Result<Held, Trouble> {
        let connection = match self {
            Db::Sqlite { writer, .. } if writes => Connection::Sqlite(writer.acquire().await?),
            Db::Sqlite { readers, .. } => Connection::Sqlite(readers.acquire().await?),
            Db::Postgres { pool, .. } => Connection::Postgres(pool.acquire().await?),
        };
        Ok(Held { connection: Some(connection), clean: false })
    }

    fn connections_max(&self) -> u32 {
        match self {
            Db::Sqlite { .. } => 1,
            Db::Postgres { pool, .. } => pool.options().get_max_connections(),
        }
    }

    /// Whether it is PostgreSQL.
    pub fn is_postgres(&self) -> bool {
        matches!(self, Db::Postgres { .. })
    }

    /// Closes every connection, within a limit.
    pub async fn close(&self, within: Duration) {
        let closed = async {
            match self {
                Db::Sqlite { writer, readers } => {
                    readers.close().await;
                    writer.close().await;
                }
                Db::Postgres { pool, .. } => pool.close().await,
            }
        };
        let _ = tokio::time::timeout(within, closed).await;
    }
}

macro_rules! bound {
    ($sql:expr, $args:expr) => {{
        let mut query = sqlx::query($sql);
        for arg in $args {
            query = match arg {
                Arg::Int(value) => query.bind(value),
                Arg::Text(value) => query.bind(value),
                Arg::Bytes(value) => query.bind(value),
            };
        }
        query
    }};
}

impl Held {
    async fn begin(&mut self, survives: Survives) -> Result<(), Trouble> {
        let begin = match (&self.connection, survives) {
            (Some(Connection::Sqlite(_)), Survives::Process) => "PRAGMA synchronous=NORMAL; BEGIN IMMEDIATE",
            (Some(Connection::Sqlite(_)), Survives::Machine) => "PRAGMA synchronous=FULL; BEGIN IMMEDIATE",
            (_, Survives::Process) => "BEGIN; SET LOCAL synchronous_commit TO off",
            (_, Survives::Machine) => "BEGIN",
        };
        self.script(begin).await
    }

    /// Every row that a statement gives.
    pub async fn query(&mut self, sql: &'static str, args: Vec<Arg>) -> Result<Vec<Row>, Trouble> {
        match &mut self.connection {
            Some(Connection::Sqlite(c)) => Ok(bound!(sql, args).fetch_all(&mut **c).await?.into_iter().map(Row::Sqlite).collect()),
            Some(Connection::Postgres(c)) => Ok(bound!(sql, args).fetch_all(&mut **c).await?.into_iter().map(Row::Postgres).collect()),
            None => Err(StoreError::Unavailable("the connection is closed".to_owned()).into()),
        }
    }

    /// The first row that a statement gives.
    pub async fn one(&mut self, sql: &'static str, args: Vec<Arg>) -> Result<Option<Row>, Trouble> {
        Ok(self.query(sql, args).await?.into_iter().next())
    }

    /// How many rows a statement changed.
    pub async fn execute(&mut self, sql: &'static str, args: Vec<Arg>) -> Result<u64, Trouble> {
        match &mut self.connection {
            Some(Connection::Sqlite(c)) => Ok(bound!(sql, args).execute(&mut **c).await?.rows_affected()),
            Some(Connection::Postgres(c)) => Ok(bound!(sql, args).execute(&mut **c).await?.rows_affected()),
            None => Err(StoreError::Unavailable("the connection is closed".to_owned()).into()),
        }
    }

    /// Statements without values, as a migration is.
    pub async fn script(&mut self, sql: &str) -> Result<(), Trouble> {
        // Only texts of this crate come here.
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()));
        match &mut self.connection {
            Some(Connection::Sqlite(c)) => (&mut **c).execute(sql).await.map(|_| ())?,
            Some(Connection::Postgres(c)) => (&mut **c).execute(sql).await.map(|_| ())?,
            None => {}
        }
        Ok(())
    }

    /// Until the transaction's end nobody else has a lock of this name. SQLite has one writer only.
    pub async fn lock(&mut self, name: &str) -> Result<(), Trouble> {
        if let Some(Connection::Postgres(_)) = self.connection {
            self.query("SELECT 1::bigint FROM (SELECT pg_advisory_xact_lock(hashtextextended($1, 0))) l", vec![name.into()]).await?;
        }
        Ok(())
    }

    /// Sends wakes to every process, if and when the transaction is committed.
    pub async fn notify(&mut self, channel: &str, payloads: Vec<String>) -> Result<(), Trouble> {
        if let Some(Connection::Postgres(c)) = &mut self.connection {
            let query = sqlx::query("SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload");
            query.bind(channel).bind(payloads).execute(&mut **c).await?;
        }
        Ok(())
    }

    /// Commits, or says why nothing is known of it.
    pub async fn commit(mut self) -> Result<(), Trouble> {
        self.end("COMMIT").await
    }

    /// Undoes everything.
    pub async fn roll_back(mut self) {
        // If that fails, closing the connection does it.
        let _ = self.end("ROLLBACK").await;
    }

    async fn end(&mut self, sql: &'static str) -> Result<(), Trouble> {
        self.script(sql).await?;
        self.clean = true;
        Ok(())
    }
}
