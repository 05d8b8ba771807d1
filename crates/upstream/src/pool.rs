//! Connections that wait for a next request.
//!
//! Invariant: at most `max` of them, none for longer than `keep`; one that its other end closed is closed here within `keep`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::conn::Conn;

/// The pool of one upstream.
pub(crate) struct Pool {
    idle: Mutex<Vec<Conn>>,
    max: usize,
    keep: Duration,
    sweeping: AtomicBool,
}

impl Pool {
    pub(crate) fn new(max: usize, keep: Duration) -> Arc<Pool> {
        Arc::new(Pool { idle: Mutex::default(), max, keep, sweeping: AtomicBool::new(false) })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Conn>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that was put back last: the likeliest to be alive.
    pub(crate) fn take(&self) -> Option<Conn> {
        loop {
            let mut conn = self.idle().pop()?;
            if conn.idle_since.elapsed() < self.keep && conn.usable() {
                conn.look_first();
                return Some(conn);
            }
        }
    }

    /// Puts one back that can take a request.
    pub(crate) fn put(self: &Arc<Self>, mut conn: Conn) {
        if !conn.usable() {
            return;
        }
        conn.idle_since = Instant::now();
        let full = {
            let mut idle = self.idle();
            let full = idle.len() >= self.max;
            if !full {
                idle.push(conn);
            }
            full
        };
        if !full && !self.sweeping.swap(true, Ordering::AcqRel) {
            let (pool, pause) = (Arc::downgrade(self), self.keep / 2);
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(pause).await;
                    let Some(pool) = pool.upgrade() else { return };
                    if pool.sweep() {
                        return;
                    }
                }
            });
        }
    }

    /// Closes what is too old or closed. Whether none is left, and nobody sweeps any more.
    fn sweep(&self) -> bool {
        let mut idle = self.idle();
        idle.retain_mut(|conn| conn.idle_since.elapsed() < self.keep / 2 && conn.usable());
        let empty = idle.is_empty();
        // Under the lock: whoever puts one back later sees that nobody sweeps.
        self.sweeping.store(!empty, Ordering::Release);
        empty
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.idle().len()
    }
}
