//! Threads that serve connections, each with a runtime of its own: what is awaited on a connection is woken where it is, and no token of a stream
//! wakes a second thread. The engine's side of a forwarded run is started on its caller's thread for the same reason.
//!
//! Invariant: a thread lives until [`Threads::end`], or until this is dropped; what is left on it then is dropped with it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// What connections may be served on.
pub(crate) struct Threads {
    /// At least one.
    each: Vec<Place>,
    /// Each thread ends when its sender is gone.
    running: Vec<(oneshot::Sender<()>, JoinHandle<()>)>,
}

struct Place {
    runtime: Handle,
    open: Arc<AtomicUsize>,
}

/// A connection's place on a thread, until it is dropped.
pub(crate) struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Threads {
    /// As many threads; with 0 the calling runtime is all there is.
    ///
    /// # Errors
    /// The system gives no thread or no descriptor.
    pub(crate) fn start(count: usize) -> io::Result<Threads> {
        let place = |runtime| Place { runtime, open: Arc::default() };
        if count == 0 {
            return Ok(Threads { each: vec![place(Handle::current())], running: Vec::new() });
        }
        let mut threads = Threads { each: Vec::new(), running: Vec::new() };
        for index in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (stop, stopped) = oneshot::channel::<()>();
            threads.each.push(place(runtime.handle().clone()));
            let thread = std::thread::Builder::new().name(format!("connections-{index}")).spawn(move || {
                let _ = runtime.block_on(stopped);
                // A name that is being looked up is waited for by nobody.
                runtime.shutdown_background();
            })?;
            threads.running.push((stop, thread));
        }
        Ok(threads)
    }

    /// The runtime that has the fewest connections, and a place on it.
    pub(crate) fn least_busy(&self) -> (&Handle, Held) {
        let Some(place) = self.each.iter().min_by_key(|place| place.open.load(Ordering::Relaxed)) else {
            unreachable!("there is a runtime to serve on")
        };
        place.open.fetch_add(1, Ordering::Relaxed);
        (&place.runtime, Held(place.open.clone()))
    }

    /// All runtimes that something is served on, the calling one included.
    pub(crate) fn runtimes(&self) -> Vec<Handle> {
        let own = self.each.iter().map(|place| place.runtime.clone()).take(self.running.len());
        std::iter::once(Handle::current()).chain(own).collect()
    }

    /// Ends all and waits for it.
    pub(crate) async fn end(self) {
        let (stops, threads): (Vec<_>, Vec<_>) = self.running.into_iter().unzip();
        drop(stops);
        let join = || threads.into_iter().for_each(|thread| _ = thread.join());
        let _ = tokio::task::spawn_blocking(join).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_are_spread_and_a_task_stays_on_its_thread() {
        let threads = Threads::start(3).expect("threads");
        let mut held = Vec::new();
        let mut ids = Vec::new();
        for _ in 0..6 {
            let (runtime, place) = threads.least_busy();
            held.push(place);
            ids.push(runtime.id());
            let here = || std::thread::current().name().map(str::to_owned);
            let twice = runtime.spawn(async move {
                let first = here();
                tokio::task::yield_now().await;
                let inner = tokio::spawn(async move { here() }).await.expect("it ran");
                (first, inner)
            });
            let (first, inner) = twice.await.expect("it ran");
            assert_eq!(first, inner);
        }
        assert_eq!(ids[..3], ids[3..]);
        // A place that is given up is the next one's.
        drop(held.remove(1));
        assert_eq!(threads.least_busy().0.id(), ids[1]);
        let runtime = threads.each[0].runtime.clone();
        threads.end().await;
        assert!(runtime.spawn(std::future::pending::<()>()).await.expect_err("it is over").is_cancelled());
    }

    #[tokio::test]
    async fn without_threads_the_calling_runtime_serves() {
        let threads = Threads::start(0).expect("nothing is started");
        assert_eq!(threads.least_busy().0.id(), Handle::current().id());
        threads.end().await;
    }

    #[tokio::test]
    async fn what_is_dropped_ends_its_threads() {
        let (gone, was_there) = (Arc::new(()), tokio::sync::oneshot::channel::<()>());
        let threads = Threads::start(1).expect("a thread");
        let (runtime, _place) = threads.least_busy();
        let (kept, (told, heard)) = (gone.clone(), was_there);
        runtime.spawn(async move {
            let _kept = (kept, told);
            std::future::pending::<()>().await;
        });
        drop(threads);
        assert!(heard.await.is_err(), "what was on it is dropped with it");
    }
}
