//! A real store of each kind behind faults that a seed chooses: away, late, an answer that is lost though the commit was done.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lifecycle::{Cause, Incarnation, RunKey, Tenant};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use store::memory::Memory;
use store::{Effect, Hook, HookQuery, RunQuery, RunStore, StoreConfig, StoreError, StoredEvent, StoredRun, Survives, Wake, Write, Wrote};
use tokio::sync::broadcast;

use super::rng::Rng;

/// Which store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Memory,
    Sqlite,
    Postgres,
}

/// Where a store is, which is gone when this is dropped.
pub struct Place {
    config: StoreConfig,
    memory: Option<Arc<Memory>>,
    _folder: Option<tempfile::TempDir>,
}

impl Place {
    /// `None` without a PostgreSQL server.
    pub async fn new(kind: Kind) -> Option<Place> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        match kind {
            Kind::Memory => {
                let config = StoreConfig::at("memory");
                Some(Place { memory: Some(Memory::new(config.clone(), true)), config, _folder: None })
            }
            Kind::Sqlite => {
                let folder = tempfile::tempdir().expect("a folder");
                let config = StoreConfig::at(format!("sqlite:{}", folder.path().join("runs.db").display()));
                Some(Place { config, memory: None, _folder: Some(folder) })
            }
            Kind::Postgres => {
                let url = std::env::var("KVIT_TEST_POSTGRES").ok().filter(|url| !url.is_empty())?;
                let schema = format!("d{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
                let mut connection = PgConnection::connect(&url).await.expect("the server answers");
                let make = format!("DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}");
                connection.execute(AssertSqlSafe(make)).await.expect("a schema");
                connection.close().await.expect("closes");
                let sign = if url.contains('?') { '&' } else { '?' };
                let mut config = StoreConfig::at(format!("{url}{sign}options[search_path]={schema}&application_name={schema}"));
                config.connections = 4;
                Some(Place { config, memory: None, _folder: None })
            }
        }
    }

    /// Opens it; the life before may still be closing.
    pub async fn open(&self) -> Arc<dyn RunStore> {
        if let Some(memory) = &self.memory {
            return memory.clone();
        }
        for _ in 0..2000 {
            match store::open(&self.config).await {
                Err(StoreError::Open(why)) if why.contains("another process") => tokio::time::sleep(Duration::from_millis(5)).await,
                opened => return opened.expect("the store opens"),
            }
        }
        panic!("the store stays locked");
    }
}

/// Picks a write.
pub type Pick = fn(&Write) -> bool;

/// What is wrong with it at the moment.
#[derive(Default)]
pub struct Weather {
    /// Nothing is answered, nothing is done.
    pub away: AtomicBool,
    /// Some commits fail, some answers are lost, some are late.
    pub shaky: AtomicBool,
    /// What is written is not taken.
    pub read_only: AtomicBool,
    /// What is read is not answered.
    pub mute: AtomicBool,
    /// Events are not answered.
    pub mute_events: AtomicBool,
    /// Reads of whole runs, of how a run stands, and of pages of events.
    pub reads: [AtomicU64; 3],
    /// Looks at what is due outside.
    pub outbox: AtomicU64,
    pub rng: AtomicU64,
    /// The answer of the next commit with such a write is lost.
    pub lose: Mutex<Option<Pick>>,
    /// Commits that were done and whose answer was lost.
    pub lost: AtomicU64,
}

/// One life's way to the store.
pub struct Flaky {
    inner: Arc<dyn RunStore>,
    weather: Arc<Weather>,
    /// The process is dead: nothing of it reaches the store any more.
    dead: AtomicBool,
}

fn away() -> StoreError {
    StoreError::Unavailable("the test says so".to_owned())
}

impl Flaky {
    pub fn new(inner: Arc<dyn RunStore>, weather: Arc<Weather>) -> Arc<Flaky> {
        Arc::new(Flaky { inner, weather, dead: AtomicBool::new(false) })
    }

    pub fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    /// The store itself.
    pub fn truth(&self) -> &Arc<dyn RunStore> {
        &self.inner
    }

    fn chance(&self, of: u64) -> u64 {
        Rng(self.weather.rng.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)).below(of)
    }

    fn loses(&self, writes: &[Write]) -> bool {
        let mut lose = self.weather.lose.lock().expect("no panic");
        lose.take_if(|lose| writes.iter().any(*lose)).is_some()
    }

    async fn reads(&self) -> Result<(), StoreError> {
        if self.weather.mute.load(Ordering::SeqCst) { Err(away()) } else { self.there().await }
    }

    async fn there(&self) -> Result<(), StoreError> {
        if self.dead.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.weather.away.load(Ordering::SeqCst) {
            return Err(away());
        }
        if self.weather.shaky.load(Ordering::SeqCst) {
            match self.chance(10) {
                0 | 1 => return Err(away()),
                2 => tokio::time::sleep(Duration::from_millis(1 + self.chance(40))).await,
                _ => {}
            }
        }
        Ok(())
    }
}

#[async_trait]
impl RunStore for Flaky {
    async fn commit(&self, writes: Vec<Write>, survives: Survives) -> Result<Vec<Wrote>, StoreError> {
        self.there().await?;
        if self.weather.read_only.load(Ordering::SeqCst) {
            return Err(away());
        }
        let loses = self.loses(&writes);
        let wrote = self.inner.commit(writes, survives).await?;
        let is_lost = loses || (self.weather.shaky.load(Ordering::SeqCst) && self.chance(8) == 0);
        if is_lost || self.weather.away.load(Ordering::SeqCst) {
            self.weather.lost.fetch_add(1, Ordering::SeqCst);
            return Err(away());
        }
        Ok(wrote)
    }

    async fn run(&self, key: &RunKey) -> Result<Option<StoredRun>, StoreError> {
        self.reads().await?;
        self.weather.reads[0].fetch_add(1, Ordering::SeqCst);
        self.inner.run(key).await
    }

    async fn glance(&self, key: &RunKey) -> Result<Option<StoredRun>, StoreError> {
        self.reads().await?;
        self.weather.reads[1].fetch_add(1, Ordering::SeqCst);
        self.inner.glance(key).await
    }

    async fn runs(&self, tenant: &Tenant, query: &RunQuery) -> Result<Vec<StoredRun>, StoreError> {
        self.reads().await?;
        self.inner.runs(tenant, query).await
    }

    async fn events(&self, key: &RunKey, after: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        self.reads().await?;
        if self.weather.mute_events.load(Ordering::SeqCst) {
            return Err(away());
        }
        self.weather.reads[2].fetch_add(1, Ordering::SeqCst);
        self.inner.events(key, after, limit).await
    }

    async fn effects(&self, key: &RunKey) -> Result<Vec<Effect>, StoreError> {
        self.reads().await?;
        self.inner.effects(key).await
    }

    async fn hooks(&self, key: &RunKey) -> Result<Vec<store::HookState>, StoreError> {
        self.there().await?;
        self.inner.hooks(key).await
    }

    async fn owned(&self, owner: Incarnation, limit: usize) -> Result<Vec<StoredRun>, StoreError> {
        self.reads().await?;
        self.inner.owned(owner, limit).await
    }

    async fn wanted(&self, owner: Incarnation) -> Result<Vec<(RunKey, Cause)>, StoreError> {
        self.reads().await?;
        self.inner.wanted(owner).await
    }

    async fn followed(&self, owner: Incarnation) -> Result<Vec<RunKey>, StoreError> {
        self.there().await?;
        self.inner.followed(owner).await
    }

    async fn attended(&self, owner: Incarnation) -> Result<Vec<(RunKey, Incarnation, u64)>, StoreError> {
        self.there().await?;
        self.inner.attended(owner).await
    }

    async fn owners(&self) -> Result<Vec<(Incarnation, u64)>, StoreError> {
        self.reads().await?;
        self.inner.owners().await
    }

    async fn due_hooks(&self, query: &HookQuery) -> Result<Vec<Hook>, StoreError> {
        self.reads().await?;
        self.weather.outbox.fetch_add(1, Ordering::SeqCst);
        self.inner.due_hooks(query).await
    }

    async fn expire(&self, now_ms: i64, limit: usize) -> Result<u64, StoreError> {
        self.reads().await?;
        self.inner.expire(now_ms, limit).await
    }

    fn wakes(&self) -> broadcast::Receiver<Wake> {
        self.inner.wakes()
    }

    fn is_exclusive(&self) -> bool {
        self.inner.is_exclusive()
    }

    fn connected(&self) -> u64 {
        self.inner.connected()
    }
}
