//! What a database's error means for whoever asked: try again, it is away, or its content cannot be read.
//!
//! Invariant: whatever may pass by itself is `Unavailable`; a batch that can never be committed is not.

use crate::StoreError;

/// Why something was not done.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Two transactions were in each other's way; this one gave way and may be repeated at once.
    Again(String),
    /// The connection turned out to be of no use.
    Broken(String),
    /// As it is told.
    Store(StoreError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Trouble {
        Trouble::Store(error)
    }
}

impl From<Trouble> for StoreError {
    fn from(trouble: Trouble) -> StoreError {
        match trouble {
            Trouble::Again(why) | Trouble::Broken(why) => StoreError::Unavailable(why),
            Trouble::Store(error) => error,
        }
    }
}

impl From<sqlx::Error> for Trouble {
    fn from(error: sqlx::Error) -> Trouble {
        let said = error.to_string();
        match &error {
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default().into_owned();
                let sqlite = database.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some();
                if sqlite { sqlite_means(&code, said) } else { postgres_means(&code, said) }
            }
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::WorkerCrashed | sqlx::Error::Protocol(_) | sqlx::Error::BeginFailed => {
                Trouble::Broken(said)
            }
            sqlx::Error::PoolTimedOut => Trouble::Store(StoreError::Unavailable("no connection became free in time".to_owned())),
            sqlx::Error::PoolClosed => Trouble::Store(StoreError::Unavailable(said)),
            sqlx::Error::Configuration(_) => Trouble::Store(StoreError::Open(said)),
            _ => Trouble::Store(StoreError::Unreadable(said)),
        }
    }
}

/// SQLite's codes; the low byte is the kind.
fn sqlite_means(code: &str, said: String) -> Trouble {
    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;
    const CORRUPT: i32 = 11;
    const NO_MEMORY: i32 = 7;
    const READ_ONLY: i32 = 8;
    const INTERRUPT: i32 = 9;
    const IO: i32 = 10;
    const FULL: i32 = 13;
    const CANNOT_OPEN: i32 = 14;
    const NOT_A_DATABASE: i32 = 26;
    match code.parse::<i32>().map(|code| code & 0xff) {
        Ok(BUSY | LOCKED | NO_MEMORY | READ_ONLY | INTERRUPT | IO | FULL | CANNOT_OPEN) => Trouble::Store(StoreError::Unavailable(said)),
        Ok(CORRUPT | NOT_A_DATABASE) => Trouble::Store(StoreError::Unreadable(said)),
        _ => Trouble::Store(StoreError::Unreadable(format!("{said} ({code})"))),
    }
}

/// PostgreSQL's codes: the first two characters are the class.
fn postgres_means(code: &str, said: String) -> Trouble {
    match (code, code.get(..2).unwrap_or_default()) {
        // Serialization failure, deadlock.
        ("40001" | "40P01", _) => Trouble::Again(said),
        // Told to go: by an administrator, by a crash elsewhere, by a server that is not ready; idle for too long in a transaction.
        ("57P01" | "57P02" | "57P03" | "57P05" | "25P03", _) | (_, "08") => Trouble::Broken(said),
        // Read-only transaction (a standby), lock not available in time, wrong password; resources, operator, system.
        ("25006" | "55P03", _) | (_, "28" | "53" | "57" | "58") => Trouble::Store(StoreError::Unavailable(said)),
        _ => Trouble::Store(StoreError::Unreadable(format!("{said} ({code})"))),
    }
}
