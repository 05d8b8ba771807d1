//! A future beside a busy one, in the same task: it is looked at when it was woken itself, and not whenever the task is.
//!
//! A connection's task is woken with every token, and what watches the connection has nothing to say then.
//!
//! Invariant: a wake of the future is never lost: whoever polls it is woken by it, and looks.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// A future that is polled only when it has something to say.
pub(crate) struct Quiet<F> {
    future: F,
    bell: Arc<Bell>,
    waker: Waker,
}

struct Bell {
    rang: AtomicBool,
    /// Whoever polls.
    task: Mutex<Option<Waker>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rang.store(true, Ordering::Release);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
        task.into_iter().for_each(Waker::wake);
    }
}

impl<F: Future + Unpin> Quiet<F> {
    /// To be polled in its place.
    pub(crate) fn new(future: F) -> Quiet<F> {
        let bell = Arc::new(Bell { rang: AtomicBool::new(true), task: Mutex::new(None) });
        Quiet { future, waker: bell.clone().into(), bell }
    }
}

impl<F: Future + Unpin> Future for Quiet<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        {
            let mut task = this.bell.task.lock().unwrap_or_else(PoisonError::into_inner);
            if !task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
                *task = Some(cx.waker().clone());
            }
        }
        // Taken back before it is looked at: what rings from here on is looked at again.
        if !this.bell.rang.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        Pin::new(&mut this.future).poll(&mut Context::from_waker(&this.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Notify;

    use super::*;

    /// The task is woken for other reasons a hundred times: the future is looked at once, and again when it was woken itself.
    #[tokio::test]
    async fn it_is_looked_at_when_it_was_woken() {
        let (notify, looks) = (Notify::new(), AtomicUsize::new(0));
        let mut notified = pin!(notify.notified());
        let mut quiet = Quiet::new(std::future::poll_fn(|cx| {
            looks.fetch_add(1, Ordering::Relaxed);
            notified.as_mut().poll(cx)
        }));
        for round in 0..100 {
            tokio::select! {
                biased;
                () = &mut quiet => panic!("nobody woke it"),
                () = tokio::task::yield_now() => {}
            }
            assert_eq!(looks.load(Ordering::Relaxed), 1, "round {round}");
        }
        notify.notify_one();
        quiet.await;
        assert_eq!(looks.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_is_lost() {
        let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            for n in 0..10_000_u32 {
                let _ = send.send(n);
                if n % 7 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        });
        for n in 0..10_000 {
            let next = pin!(receive.recv());
            assert_eq!(Quiet::new(next).await, Some(n));
        }
    }
}
