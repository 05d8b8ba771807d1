//! PostgreSQL: its connections, and who listens to what other gateways write.
//!
//! Invariant: a wake is sent by the transaction that it tells of. Whoever lost the connection that hears them says so (`Wake::Lost`).

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lifecycle::RunKey;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, Executor, PgPool, Row};
use tokio::sync::{broadcast, oneshot};

use super::db::Db;
use super::trouble::Trouble;
use super::{rows, schema};
use crate::seal::Seal;
use crate::{StoreConfig, StoreError, Wake};

/// Statements that a connection keeps prepared; there are about forty.
const STATEMENTS: usize = 128;
/// The listener's connection is tried when nothing came over it for so long: a peer that vanished says nothing.
const QUIET: Duration = Duration::from_secs(10);
/// How long the listener waits before it connects again, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Ends the task that listens when it is dropped.
pub(crate) struct Listener {
    _end: oneshot::Sender<()>,
}

/// Connects, brings the schema up to date, and listens.
pub(crate) async fn open(config: &StoreConfig, seal: &Seal, wakes: broadcast::Sender<Wake>) -> Result<(Db, Option<Listener>), Trouble> {
    let options = PgConnectOptions::from_str(&config.url).map_err(|e| StoreError::Open(e.to_string()))?;
    let limit_ms = config.operation.as_millis().to_string();
    // The server, too, gives up on whoever is not there any more: a lock must not outlive the gateway that held it.
    let mut options = options
        .options([("statement_timeout", &limit_ms), ("lock_timeout", &limit_ms), ("idle_in_transaction_session_timeout", &limit_ms)])
        .statement_cache_capacity(STATEMENTS)
        .disable_statement_logging();
    if options.get_application_name().is_none() {
        options = options.application_name("kvit");
    }
    let pool = |connections: u32, wait: Duration| {
        let pool = PgPoolOptions::new().max_connections(connections).acquire_timeout(wait).test_before_acquire(false);
        pool.max_lifetime(None).idle_timeout(Duration::from_secs(600))
    };
    // An answer that counts must be on disk, whatever the server's default.
    let durable = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";
    let connected = Arc::new(AtomicU64::new(0));
    let made = connected.clone();
    let connections = pool(config.connections.max(2) - 1, config.acquire)
        .after_connect(move |connection, _| {
            made.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move { connection.execute(durable).await.map(drop) })
        })
        .connect_lazy_with(options.clone());
    let reachable = async {
        let row = connections.fetch_one("SELECT 'kvit_' || left(md5(coalesce(current_schema(), '')), 16)").await?;
        row.try_get::<String, _>(0)
    };
    let channel = tokio::time::timeout(config.connect, reachable).await;
    let channel = channel.map_err(|_| StoreError::Unavailable("no connection in time".to_owned()))??;
    let channel = config.notify.then_some(channel);
    let db = Db::Postgres { pool: connections, channel: channel.clone(), connected };
    schema::migrate(&db, seal).await?;
    let Some(channel) = channel else { return Ok((db, None)) };
    let own = pool(1, config.connect).connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&own).await?;
    listener.listen(&channel).await?;
    let (end, ended) = oneshot::channel::<()>();
    let hear = Hear { pool: own, channel, wakes, connect: config.connect };
    tokio::spawn(async move {
        tokio::select! {
            _ = ended => {}
            () = hear.on(listener) => {}
        }
    });
    Ok((db, Some(Listener { _end: end })))
}

struct Hear {
    pool: PgPool,
    channel: String,
    wakes: broadcast::Sender<Wake>,
    connect: Duration,
}

impl Hear {
    /// Listens, and connects again whenever that breaks.
    async fn on(&self, mut listener: PgListener) {
        loop {
            while self.hear(&mut listener).await {}
            drop(listener);
            listener = self.again().await;
            let _ = self.wakes.send(Wake::Lost);
        }
    }

    /// One wake, or a sign that the connection lives; false if it does not.
    async fn hear(&self, listener: &mut PgListener) -> bool {
        listener.eager_reconnect(false);
        match tokio::time::timeout(QUIET, listener.try_recv()).await {
            Ok(Ok(Some(notification))) => {
                // What this version does not know may concern it, too.
                let _ = self.wakes.send(wake(notification.payload()).unwrap_or(Wake::Lost));
                true
            }
            Ok(Ok(None) | Err(_)) => false,
            Err(_) => matches!(tokio::time::timeout(self.connect, listener.execute("SELECT 1")).await, Ok(Ok(_))),
        }
    }

    async fn again(&self) -> PgListener {
        let mut wait = AGAIN.0;
        loop {
            let connected = async {
                let mut listener = PgListener::connect_with(&self.pool).await?;
                listener.listen(&self.channel).await?;
                Ok::<_, sqlx::Error>(listener)
            };
            if let Ok(Ok(listener)) = tokio::time::timeout(self.connect, connected).await {
                return listener;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(AGAIN.1);
        }
    }
}

/// A wake as it is sent: its kind, the tenant, the run. Neither of these has a space.
pub(crate) fn payload(wake: &Wake) -> Option<String> {
    let say = |kind: &str, key: &RunKey| Some(format!("{kind} {} {}", key.tenant, key.run));
    match wake {
        Wake::Wanted(key) => say("wanted", key),
        Wake::Moved(key) => say("moved", key),
        Wake::Lost => None,
    }
}

fn wake(payload: &str) -> Option<Wake> {
    let mut words = payload.split(' ');
    let (kind, tenant, run) = (words.next()?, words.next()?, words.next()?);
    let key = rows::key(tenant, run).ok()?;
    match kind {
        "wanted" => Some(Wake::Wanted(key)),
        "moved" => Some(Wake::Moved(key)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_is_heard_as_it_was_sent() {
        let key = rows::key("tenant-1", "run~2").unwrap();
        for told in [Wake::Wanted(key.clone()), Wake::Moved(key)] {
            assert_eq!(wake(&payload(&told).unwrap()), Some(told));
        }
        for odd in ["", "moved", "moved t", "moved t ..", "other t r"] {
            assert_eq!(wake(odd), None, "{odd}");
        }
    }
}
