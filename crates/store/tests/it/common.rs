//! A fresh store of each kind, and short ways to say what is written.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lifecycle::message::Usage;
use lifecycle::{AttemptId, Cause, Incarnation, OnDisconnect, Outcome, RunId, RunKey, Tenant};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use store::memory::Memory;
use store::{Effect, EffectState, Hook, NewRun, RunStore, StoreConfig, StoredEvent, StoredRun, Survives, Write, Wrote};

/// Where a store is, which is gone when this is dropped.
pub struct Place {
    pub config: StoreConfig,
    folder: Option<tempfile::TempDir>,
}

impl Place {
    /// A folder of its own.
    pub fn sqlite() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let config = StoreConfig::at(format!("sqlite:{}", folder.path().join("runs.db").display()));
        Place { config, folder: Some(folder) }
    }

    /// A schema of its own; `None`, and a line that says so, without a server.
    pub async fn postgres() -> Option<Place> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let Some(url) = std::env::var("KVIT_TEST_POSTGRES").ok().filter(|url| !url.is_empty()) else {
            println!("skipped: KVIT_TEST_POSTGRES names no PostgreSQL server");
            return None;
        };
        let schema = format!("t{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut connection = PgConnection::connect(&url).await.unwrap();
        connection.execute(AssertSqlSafe(format!("DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}"))).await.unwrap();
        connection.close().await.unwrap();
        let sign = if url.contains('?') { '&' } else { '?' };
        let config = StoreConfig::at(format!("{url}{sign}options[search_path]={schema}&application_name={schema}"));
        Some(Place { config, folder: Some(tempfile::tempdir().unwrap()) })
    }

    /// A file with a key, in this place's folder.
    pub fn key_file(&self, name: &str, byte: u8) -> PathBuf {
        let path = self.folder().join(name);
        std::fs::write(&path, [byte; 32]).unwrap();
        path
    }

    pub async fn open(&self) -> Arc<dyn RunStore> {
        open(&self.config).await
    }

    pub fn file(&self) -> PathBuf {
        self.folder.as_ref().unwrap().path().join("runs.db")
    }

    pub fn folder(&self) -> PathBuf {
        self.folder.as_ref().unwrap().path().to_owned()
    }
}

/// Opens it; the life before may still be closing.
pub async fn open(config: &StoreConfig) -> Arc<dyn RunStore> {
    for _ in 0..500 {
        match store::open(config).await {
            Err(store::StoreError::Open(why)) if why.contains("another process") => tokio::time::sleep(Duration::from_millis(10)).await,
            opened => return opened.unwrap(),
        }
    }
    panic!("the store stays locked");
}

/// A short retention, so that expiry can be seen with small numbers.
pub const RETENTION_MS: i64 = 1000;

/// A store of each kind, made for a test.
pub async fn sqlite() -> Option<(Arc<dyn RunStore>, Place)> {
    let mut place = Place::sqlite();
    place.config.retention = Duration::from_millis(RETENTION_MS as u64);
    Some((place.open().await, place))
}

pub async fn sealed() -> Option<(Arc<dyn RunStore>, Place)> {
    let mut place = Place::sqlite();
    place.config.retention = Duration::from_millis(RETENTION_MS as u64);
    place.config.key_file = Some(place.key_file("key", 7));
    Some((place.open().await, place))
}

pub async fn postgres() -> Option<(Arc<dyn RunStore>, Place)> {
    let mut place = Place::postgres().await?;
    place.config.retention = Duration::from_millis(RETENTION_MS as u64);
    Some((place.open().await, place))
}

pub async fn memory() -> Option<(Arc<dyn RunStore>, Place)> {
    let mut config = StoreConfig::at("memory");
    config.retention = Duration::from_millis(RETENTION_MS as u64);
    Some((Memory::new(config.clone(), false), Place { config, folder: None }))
}

pub const A: Incarnation = Incarnation(0xa);
pub const B: Incarnation = Incarnation(u128::MAX);

pub fn id(text: &str) -> RunId {
    RunId::parse(text).unwrap()
}

pub fn key(run: &str) -> RunKey {
    RunKey { tenant: Tenant::default(), run: id(run) }
}

pub fn attempt(run: &str, attempt: u32) -> AttemptId {
    AttemptId { key: key(run), attempt }
}

pub fn new(fresh: &str) -> NewRun {
    NewRun {
        tenant: Tenant::default(),
        wish: None,
        fresh: id(fresh),
        door: "chat".to_owned(),
        model: "model".to_owned(),
        caller: "anonymous".to_owned(),
        on_disconnect: OnDisconnect::Cancel,
        keeps: true,
        owner: A,
        created_ms: 1,
        expires_ms: None,
        request: Some(b"what was asked".to_vec()),
        joining: None,
    }
}

pub fn accept(new: NewRun) -> Write {
    Write::Accept(Box::new(new))
}

pub fn event(number: u64) -> StoredEvent {
    StoredEvent { number, body: format!("event {number}").into_bytes() }
}

pub fn events(numbers: std::ops::RangeInclusive<u64>) -> Vec<StoredEvent> {
    numbers.map(event).collect()
}

pub fn append(run: &str, number: u32, events: Vec<StoredEvent>) -> Write {
    Write::Append { attempt: attempt(run, number), owner: A, events }
}

pub fn end(run: &str, number: u32, cause: Cause, last: Option<u64>) -> Write {
    let usage = Usage { prompt: 3, cached_prompt: 2, generated: 1 };
    Write::End {
        attempt: attempt(run, number),
        owner: A,
        outcome: Outcome::of(cause),
        usage,
        last: last.map(event),
        hooks: Vec::new(),
        now_ms: 10,
    }
}

pub fn effect(name: &str) -> Effect {
    Effect {
        key: name.to_owned(),
        kind: "payment".to_owned(),
        description: format!("pays {name}"),
        state: EffectState::Intended,
        attempt: 1,
        detail: None,
        created_ms: 5,
        updated_ms: 5,
    }
}

pub fn hook(name: &str, run: &str, due_ms: i64) -> Hook {
    Hook { id: name.to_owned(), run: key(run), url: "http://there/".to_owned(), body: b"told".to_vec(), due_ms, tries: 0, last: None }
}

/// Commits and gives what became of it.
pub async fn commit(store: &Arc<dyn RunStore>, writes: Vec<Write>) -> Vec<Wrote> {
    store.commit(writes, Survives::Process).await.unwrap()
}

/// Commits one write.
pub async fn one(store: &Arc<dyn RunStore>, write: Write) -> Wrote {
    commit(store, vec![write]).await.pop().unwrap()
}

pub async fn run(store: &Arc<dyn RunStore>, name: &str) -> StoredRun {
    store.run(&key(name)).await.unwrap().unwrap()
}

/// Waits for something that comes about by itself.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..1000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}
