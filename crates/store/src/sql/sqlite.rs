//! SQLite: one file that is this process's alone, a log beside it, and who carries the log over.
//!
//! A commit that has to survive the process only writes to the log and waits for no disk. SQLite itself would carry the log over within
//! some commit, which waits for the disk; so that is switched off here, and a task does it between commits.
//!
//! Invariant: while a store is open no other process can open it, however this one ends: the lock is the kernel's.

use std::fs::{File as OsFile, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Executor, Sqlite};
use tokio::sync::Notify;

use super::db::Db;
use super::schema;
use super::trouble::Trouble;
use crate::seal::Seal;
use crate::{StoreConfig, StoreError};

/// Statements that a connection keeps prepared; there are about forty.
const STATEMENTS: usize = 128;
/// What is written right after the log was emptied: its first write waits for the disk, and shall not be a commit's. (SQLite would notice an
/// UPDATE that changes nothing, and write nothing.)
const FIRST_WRITE: &str = "UPDATE kvit_schema SET logs = logs + 1";

/// The file, held.
pub(crate) struct File {
    log: Arc<Log>,
}

struct Log {
    path: PathBuf,
    /// Deleted content may still stand in it.
    erased: AtomicBool,
    over: AtomicBool,
    end: Notify,
}

impl Drop for File {
    fn drop(&mut self) {
        self.log.over.store(true, Ordering::SeqCst);
        self.log.end.notify_one();
    }
}

impl File {
    /// Something was committed; deleted content leaves the log with the next look at it.
    pub fn written(&self, erased: bool) {
        if erased {
            self.log.erased.store(true, Ordering::SeqCst);
        }
    }
}

/// The path that a URL names.
fn path(url: &str) -> Result<PathBuf, StoreError> {
    let path = url.strip_prefix("sqlite:").map_or(url, |rest| rest.strip_prefix("//").unwrap_or(rest));
    if path.is_empty() || path.starts_with(':') || path.contains("://") {
        let what = format!("{:?} is no path of a file and no `postgres://` URL", StoreConfig::at(url).place());
        return Err(StoreError::Open(what));
    }
    Ok(PathBuf::from(path))
}

/// `PATH` with something behind it.
fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(what);
    PathBuf::from(name)
}

/// Opens the file, makes it if it is not there, and begins to look after its log.
pub(crate) async fn open(config: &StoreConfig, seal: &Seal) -> Result<(Db, File), Trouble> {
    let path = path(&config.url)?;
    let lock = lock(&path)?;
    let options = SqliteConnectOptions::new()
        .filename(&path)
        .auto_vacuum(SqliteAutoVacuum::Incremental)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(config.acquire)
        .statement_cache_capacity(STATEMENTS)
        .pragma("secure_delete", "ON")
        .pragma("wal_autocheckpoint", "0")
        .disable_statement_logging();
    let pool = |connections: u32| -> PoolOptions<Sqlite> {
        let pool = PoolOptions::new().max_connections(connections).acquire_timeout(config.acquire);
        pool.idle_timeout(None).max_lifetime(None).test_before_acquire(false)
    };
    let writer = pool(1).connect_lazy_with(options.clone());
    let readers = pool(config.connections.max(1)).connect_lazy_with(options.pragma("query_only", "ON"));
    let db = Db::Sqlite { writer, readers };
    schema::migrate(&db, seal).await?;
    // What a death left in the log; and the first commit finds a log that was begun.
    carry_over(&db).await?;
    let log = Log { path: beside(&path, "-wal"), erased: AtomicBool::new(false), over: AtomicBool::new(false), end: Notify::new() };
    let log = Arc::new(log);
    tokio::spawn(look_after(db.clone(), lock, log.clone(), config.clone()));
    Ok((db, File { log }))
}

/// The lock, and the file: readable by its owner only, which its log inherits.
fn lock(path: &Path) -> Result<OsFile, StoreError> {
    let cannot = |what: &Path, e: std::io::Error| StoreError::Open(format!("{}: {e}", what.display()));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let name = beside(path, ".lock");
    let lock = options.open(&name).map_err(|e| cannot(&name, e))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let what = "another process has it open: several gateways need a PostgreSQL store";
            return Err(StoreError::Open(format!("{}: {what}", path.display())));
        }
        Err(TryLockError::Error(e)) => return Err(cannot(&name, e)),
    }
    options.open(path).map_err(|e| cannot(path, e))?;
    Ok(lock)
}

/// Carries the log over whenever it is long, or holds what was deleted; at the end, too. The lock is held until the last connection is closed;
/// whatever else ends this process ends the lock.
async fn look_after(db: Db, lock: OsFile, log: Arc<Log>, config: StoreConfig) {
    loop {
        let _ = tokio::time::timeout(config.checkpoint, log.end.notified()).await;
        let over = log.over.load(Ordering::SeqCst);
        let length = std::fs::metadata(&log.path).map_or(0, |file| file.len());
        let erased = log.erased.swap(false, Ordering::SeqCst);
        if length > config.log_bytes || erased || over {
            let done = tokio::time::timeout(config.operation, carry_over(&db)).await;
            if erased && !matches!(done, Ok(Ok(()))) {
                log.erased.store(true, Ordering::SeqCst);
            }
        }
        if over {
            db.close(Duration::from_secs(1)).await;
            return drop(lock);
        }
    }
}

/// Most of it while others write, the rest while nobody does. Whoever waits for the writer meanwhile waits for that rest.
async fn carry_over(db: &Db) -> Result<(), Trouble> {
    let Db::Sqlite { writer, readers } = db else { return Ok(()) };
    let mut reader = readers.acquire().await?;
    reader.execute("PRAGMA wal_checkpoint(PASSIVE)").await?;
    drop(reader);
    let mut alone = writer.acquire().await?;
    alone.execute("PRAGMA incremental_vacuum(256)").await?;
    alone.execute("PRAGMA wal_checkpoint(TRUNCATE)").await?;
    alone.execute(FIRST_WRITE).await?;
    Ok(())
}
