//! Connections that wait for a next request.
//!
//! Invariant: at most `max` of them, none for longer than `keep`; one that its other end closed is closed here within `keep`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::conn::Conn;

/// The pool of one upstream.
pub(crate) struct Pool {
    idle: Mutex<Vec<Conn>>,
    max: usize,
    keep: Duration,
    sweeping: AtomicBool,
}

/// Who sweeps. One that ends with its runtime leaves it to whoever puts a connection back next.
struct Sweeper(Weak<Pool>);

impl Sweeper {
    /// Nothing is left, and another may sweep by now.
    fn done(mut self) {
        self.0 = Weak::new();
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(pool) = self.0.upgrade() {
            pool.sweeping.store(false, Ordering::Release);
        }
    }
}

impl Pool {
    pub(crate) fn new(max: usize, keep: Duration) -> Arc<Pool> {
        Arc::new(Pool { idle: Mutex::default(), max, keep, sweeping: AtomicBool::new(false) })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Conn>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of those that wake the runtime that asks, the one that was put back last: the likeliest to be alive. One of another runtime would wake
    /// its thread and this one for everything that comes.
    pub(crate) fn take(&self) -> Option<Conn> {
        let here = Handle::current().id();
        loop {
            let mut conn = {
                let mut idle = self.idle();
                let at = idle.iter().rposition(|conn| conn.home == here)?;
                idle.remove(at)
            };
            if conn.idle_since.elapsed() < self.keep && conn.usable() {
                conn.look_first();
                return Some(conn);
            }
        }
    }

    /// Puts one back that can take a request, in place of the one that waits longest if there are too many.
    pub(crate) fn put(self: &Arc<Self>, mut conn: Conn) {
        if !conn.usable() {
            return;
        }
        conn.idle_since = Instant::now();
        if self.max == 0 {
            return;
        }
        let oldest = {
            let mut idle = self.idle();
            let oldest = (idle.len() >= self.max).then(|| idle.remove(0));
            idle.push(conn);
            oldest
        };
        drop(oldest);
        if !self.sweeping.swap(true, Ordering::AcqRel) {
            let (sweeper, pause) = (Sweeper(Arc::downgrade(self)), self.keep / 2);
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(pause).await;
                    let Some(pool) = sweeper.0.upgrade() else { return };
                    if pool.sweep() {
                        return sweeper.done();
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
