//! The run store: what of a run outlives the process, and what several gateways agree on by compare-and-set.
//!
//! One trait, so that the gateway knows no database: [`RunStore`]. Writes are values ([`Write`]) and are committed in batches, in their order,
//! each batch as a whole or not at all; each says what became of it ([`Wrote`]). So a batch of one and a batch of a hundred are one code
//! path, a naive store in memory is a model of the real ones, and the order of the decisions in the gateway is the order on disk.
//!
//! Invariant: an outcome that is set never changes; an attempt begins and an event is appended only by the run's current owner and attempt.
// contract: C-5

mod config;
#[cfg(feature = "memory")]
pub mod memory;
mod run;
mod seal;
mod sql;
mod write;

use std::sync::Arc;

use async_trait::async_trait;
use lifecycle::{Cause, Incarnation, RunKey, Tenant};
use tokio::sync::broadcast;

pub use config::StoreConfig;
pub use lifecycle::EffectState;
pub use run::{Effect, Hook, HookQuery, HookState, RunQuery, StoredEvent, StoredRun};
pub use write::{NewRun, Write, Wrote};

/// What a commit must survive before it returns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Survives {
    /// The end of this process, whatever ends it. No disk is waited for.
    Process,
    /// The machine's loss of power.
    Machine,
}

/// Something that may concern another gateway than the one that wrote it. Lost ones cost time only: everything is found by looking, too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Somebody asked, at another gateway, for this run's end, or for its events.
    Wanted(RunKey),
    /// This run has further events, or its end.
    Moved(RunKey),
    /// Wakes may have been lost: look at everything.
    Lost,
}

/// Why the store did not do it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached or cannot write now; the same may work later.
    #[error("the run store is not available: {0}")]
    Unavailable(String),
    /// What it holds cannot be read: another key, another schema, damage.
    #[error("the run store's content cannot be read: {0}")]
    Unreadable(String),
    /// It cannot be opened as it is configured.
    #[error("the run store cannot be opened: {0}")]
    Open(String),
}

/// Opens the store that the URL names, makes what is not there, and brings an older schema up to date. A PostgreSQL that cannot be reached is
/// `Unavailable`, and it may be tried again.
///
/// # Errors
/// See [`StoreError`].
pub async fn open(config: &StoreConfig) -> Result<Arc<dyn RunStore>, StoreError> {
    sql::open(config).await
}

/// Where runs are kept. A list for gateways to work on leaves out what cannot be read, and says so once: one damaged row must not keep them from
/// all the others. Whoever asks for one run, or a tenant's, is told.
#[async_trait]
pub trait RunStore: Send + Sync + 'static {
    /// Commits writes in their order, all or none; the answer has an entry for each.
    async fn commit(&self, writes: Vec<Write>, survives: Survives) -> Result<Vec<Wrote>, StoreError>;

    /// One run.
    async fn run(&self, key: &RunKey) -> Result<Option<StoredRun>, StoreError>;

    /// The same without what was asked for and without its record, for whoever looks often how a run stands: nothing is decrypted.
    async fn glance(&self, key: &RunKey) -> Result<Option<StoredRun>, StoreError>;

    /// A tenant's runs, newest first, each without what was asked for: a list of many would hold as many prompts.
    async fn runs(&self, tenant: &Tenant, query: &RunQuery) -> Result<Vec<StoredRun>, StoreError>;

    /// A run's events with numbers above `after`, in their order, at most `limit`.
    async fn events(&self, key: &RunKey, after: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError>;

    /// A run's effects in the order of their intention.
    async fn effects(&self, key: &RunKey) -> Result<Vec<Effect>, StoreError>;

    /// Runs without an outcome that this life of a gateway owns.
    async fn owned(&self, owner: Incarnation, limit: usize) -> Result<Vec<StoredRun>, StoreError>;

    /// Of these runs, those whose end somebody asked for at another gateway, with the cause.
    async fn wanted(&self, owner: Incarnation) -> Result<Vec<(RunKey, Cause)>, StoreError>;

    /// Of these runs, those whose events somebody asks for at another gateway.
    async fn followed(&self, owner: Incarnation) -> Result<Vec<RunKey>, StoreError>;

    /// The other lives of gateways at which somebody reads one of these runs, each with the number of its last beat (0 if it has left).
    async fn attended(&self, owner: Incarnation) -> Result<Vec<(RunKey, Incarnation, u64)>, StoreError>;

    /// Every life of a gateway that owns runs without an outcome, with the number of its last beat. Whoever sees the same number for a whole
    /// lease by its own clock, while the store answered all the time, may take its runs over.
    async fn owners(&self) -> Result<Vec<(Incarnation, u64)>, StoreError>;

    /// Webhooks that are due, oldest first.
    async fn due_hooks(&self, query: &HookQuery) -> Result<Vec<Hook>, StoreError>;

    /// A run's webhooks in the order of their writing, those that are over included.
    async fn hooks(&self, key: &RunKey) -> Result<Vec<HookState>, StoreError>;

    /// Deletes ended runs whose retention is over, with all that belongs to them; at most `limit`. How many it were.
    async fn expire(&self, now_ms: i64, limit: usize) -> Result<u64, StoreError>;

    /// What other gateways (and this one) have written.
    fn wakes(&self) -> broadcast::Receiver<Wake>;

    /// Whether no other process can have this store open: then every other owner in it is over.
    fn is_exclusive(&self) -> bool;

    /// How often a connection to the store's server was made. What was committed before the newest was may be gone with a server that crashed
    /// in between, if it was to survive the process only. A store without a server never forgets while this process lives.
    fn connected(&self) -> u64 {
        0
    }
}
