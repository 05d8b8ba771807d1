//! The run store on SQLite and on PostgreSQL: one set of statements for both.
//!
//! Invariant: a batch is one transaction; what others are told of it they are told if and when it is committed.

pub(crate) mod accept;
pub(crate) mod db;
mod expire;
mod others;
mod postgres;
mod reads;
mod rows;
mod schema;
mod sqlite;
mod trouble;
mod writes;

use std::collections::HashSet;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use lifecycle::{Cause, Incarnation, RunKey, Tenant};
use tokio::sync::broadcast;

use db::Db;
use trouble::Trouble;
use writes::Tx;

use crate::seal::Seal;
use crate::{
    Effect, Hook, HookQuery, HookState, RunQuery, RunStore, StoreConfig, StoreError, StoredEvent, StoredRun, Survives, Wake, Write, Wrote,
};

/// How often a transaction that gave way to another is tried.
const TRIES_MAX: u32 = 4;

/// A store in a database.
pub(crate) struct SqlStore {
    db: Db,
    seal: Seal,
    config: StoreConfig,
    wakes: broadcast::Sender<Wake>,
    /// Rows that cannot be read, of which that was said.
    illegible: Mutex<HashSet<String>>,
    /// SQLite's file is this process's alone, and somebody carries its log over.
    file: Option<sqlite::File>,
    /// Whoever listens to PostgreSQL ends with this.
    _listener: Option<postgres::Listener>,
}

/// Opens the store that the URL names.
pub(crate) async fn open(config: &StoreConfig) -> Result<Arc<dyn RunStore>, StoreError> {
    let seal = Seal::read(config.key_file.as_deref())?;
    let opened = async {
        let (wakes, _) = broadcast::channel(config.wakes_max.max(1));
        let store = if config.url.starts_with("postgres://") || config.url.starts_with("postgresql://") {
            let (db, listener) = postgres::open(config, &seal, wakes.clone()).await?;
            SqlStore { db, seal, config: config.clone(), wakes, illegible: Mutex::default(), file: None, _listener: listener }
        } else {
            let (db, file) = sqlite::open(config, &seal).await?;
            SqlStore { db, seal, config: config.clone(), wakes, illegible: Mutex::default(), file: Some(file), _listener: None }
        };
        Ok(Arc::new(store) as Arc<dyn RunStore>)
    };
    within(config, opened).await
}

/// Whatever is asked of the store ends within the configured limit. What was open then is undone with its connection.
async fn within<T>(config: &StoreConfig, asked: impl Future<Output = Result<T, Trouble>>) -> Result<T, StoreError> {
    match tokio::time::timeout(config.operation, asked).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(StoreError::Unavailable(format!("no answer within {} ms", config.operation.as_millis()))),
    }
}

impl SqlStore {
    async fn begin(&self, survives: Survives) -> Result<Tx<'_>, Trouble> {
        Ok(Tx { held: self.db.begin(survives).await?, seal: &self.seal, wakes: Vec::new(), erased: false })
    }

    async fn commit_all(&self, writes: &[Write], survives: Survives) -> Result<Vec<Wrote>, Trouble> {
        let mut tries = 1;
        loop {
            match self.try_commit(writes, survives).await {
                Err(Trouble::Again(_)) if tries < TRIES_MAX => tries += 1,
                done => return done,
            }
        }
    }

    async fn try_commit(&self, writes: &[Write], survives: Survives) -> Result<Vec<Wrote>, Trouble> {
        let mut tx = self.begin(survives).await?;
        let mut wrote = Vec::with_capacity(writes.len());
        for write in writes {
            match tx.apply(write.clone()).await {
                Ok(done) => wrote.push(done),
                Err(trouble) => {
                    tx.held.roll_back().await;
                    return Err(trouble);
                }
            }
        }
        self.commit_tx(tx).await?;
        Ok(wrote)
    }

    /// Commits, and tells those who wait for it.
    async fn commit_tx(&self, mut tx: Tx<'_>) -> Result<(), Trouble> {
        if let Db::Postgres { channel: Some(channel), .. } = &self.db
            && !tx.wakes.is_empty()
        {
            tx.held.notify(channel, tx.wakes.iter().filter_map(postgres::payload).collect()).await?;
        }
        tx.held.commit().await?;
        if let Some(file) = &self.file {
            file.written(tx.erased);
            // Nobody receiving is no error.
            tx.wakes.into_iter().filter(|_| self.config.notify).for_each(|wake| drop(self.wakes.send(wake)));
        }
        Ok(())
    }
}

impl Tx<'_> {
    async fn apply(&mut self, write: Write) -> Result<Wrote, Trouble> {
        match write {
            Write::Accept(new) => self.accept(&new).await,
            Write::Disown { new, outcome, now_ms } => self.disown(&new, outcome, now_ms).await,
            Write::Begin { run, from, owner } => self.begin(run, from, owner).await,
            Write::Append { attempt, owner, events } => self.append(attempt, owner, events).await,
            Write::End { attempt, owner, outcome, usage, last, hooks, now_ms } => {
                self.end((attempt, owner), (outcome, usage), (last, hooks), now_ms).await
            }
            Write::Record { run, owner, delivery, record } => self.record((run, owner), delivery, &record).await,
            Write::Want { run, cause } => self.want(run, cause).await,
            Write::Follow { run } => self.follow(run).await,
            Write::Attend { run, by } => self.attend(run, by).await,
            Write::Depart { run, by } => self.depart(run, by).await,
            Write::Keep { run, owner, keeps } => self.keep(run, owner, keeps).await,
            Write::TakeOver { run, from, to, skip } => self.take_over(run, from, to, skip).await,
            Write::Beat { owner, name } => self.beat(owner, &name).await,
            Write::Leave { owner } => self.leave(owner).await,
            Write::Erase { run } => self.erase(run).await,
            Write::Intend { run, effect, max } => self.intend(run, effect, max).await,
            Write::Move { run, key, from, to, detail, now_ms } => self.move_effect((run, key), &from, (to, detail), now_ms).await,
            Write::Hook(hook) => self.hook(hook).await,
            Write::HookTaken { id, from_ms, due_ms } => self.hook_taken(&id, from_ms, due_ms).await,
            Write::HookTried { id, due_ms, last } => self.hook_tried(&id, due_ms, &last).await,
        }
    }
}

#[async_trait]
impl RunStore for SqlStore {
    async fn commit(&self, writes: Vec<Write>, survives: Survives) -> Result<Vec<Wrote>, StoreError> {
        within(&self.config, self.commit_all(&writes, survives)).await
    }

    async fn run(&self, key: &RunKey) -> Result<Option<StoredRun>, StoreError> {
        within(&self.config, self.read_run(key)).await
    }

    async fn glance(&self, key: &RunKey) -> Result<Option<StoredRun>, StoreError> {
        within(&self.config, self.read_glance(key)).await
    }

    async fn runs(&self, tenant: &Tenant, query: &RunQuery) -> Result<Vec<StoredRun>, StoreError> {
        within(&self.config, self.read_runs(tenant, query)).await
    }

    async fn events(&self, key: &RunKey, after: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        within(&self.config, self.read_events(key, after, limit)).await
    }

    async fn effects(&self, key: &RunKey) -> Result<Vec<Effect>, StoreError> {
        within(&self.config, self.read_effects(key)).await
    }

    async fn owned(&self, owner: Incarnation, limit: usize) -> Result<Vec<StoredRun>, StoreError> {
        within(&self.config, self.read_owned(owner, limit)).await
    }

    async fn wanted(&self, owner: Incarnation) -> Result<Vec<(RunKey, Cause)>, StoreError> {
        within(&self.config, self.read_wanted(owner)).await
    }

    async fn followed(&self, owner: Incarnation) -> Result<Vec<RunKey>, StoreError> {
        within(&self.config, self.read_followed(owner)).await
    }

    async fn attended(&self, owner: Incarnation) -> Result<Vec<(RunKey, Incarnation, u64)>, StoreError> {
        within(&self.config, self.read_attended(owner)).await
    }

    async fn owners(&self) -> Result<Vec<(Incarnation, u64)>, StoreError> {
        within(&self.config, self.read_owners()).await
    }

    async fn due_hooks(&self, query: &HookQuery) -> Result<Vec<Hook>, StoreError> {
        within(&self.config, self.read_due_hooks(query)).await
    }

    async fn hooks(&self, key: &RunKey) -> Result<Vec<HookState>, StoreError> {
        within(&self.config, self.read_hooks(key)).await
    }

    async fn expire(&self, now_ms: i64, limit: usize) -> Result<u64, StoreError> {
        within(&self.config, self.delete_expired(now_ms, limit)).await
    }

    fn wakes(&self) -> broadcast::Receiver<Wake> {
        self.wakes.subscribe()
    }

    fn is_exclusive(&self) -> bool {
        self.file.is_some()
    }

    fn connected(&self) -> u64 {
        match &self.db {
            Db::Sqlite { .. } => 0,
            Db::Postgres { connected, .. } => connected.load(Ordering::SeqCst),
        }
    }
}
