//! Watching: a stream that looks at intervals and says what has changed, for runs and for health.
//!
//! It holds nothing of what it watches: the first look is at once, a change between two looks that is taken back is not seen, and to leave
//! ends nothing. It looks only while its caller takes what it says, so a caller that does not read costs nothing.
//!
//! Invariant: at most `watches_max` at once; none outlasts the shutdown's last look.
// contract: C-28

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_stream::Stream;
use tonic::Status;

use super::until::{Stop, stopped};
use crate::config::GatewayConfig;
use crate::http::error::ApiError;

/// What a look found.
pub(super) enum Look<T> {
    /// This, and it may change.
    Now(T),
    /// This, and nothing follows.
    Last(T),
    /// There is nothing to see any more.
    Gone(Status),
}

/// The places of all watches.
#[derive(Clone)]
pub(super) struct Watches {
    places: Arc<Semaphore>,
    max: usize,
    every: Duration,
    stop: watch::Receiver<bool>,
}

impl Watches {
    pub(super) fn new(config: &GatewayConfig, stop: watch::Receiver<bool>) -> Watches {
        let max = config.watches_max.min(Semaphore::MAX_PERMITS);
        Watches { places: Arc::new(Semaphore::new(max)), max, every: config.watch_every, stop }
    }

    /// A watch, if there is a place for it.
    pub(super) fn open<T>(&self, look: impl FnMut() -> Look<T> + Send + 'static) -> Result<Changes<T>, Status> {
        let full = |_| Status::resource_exhausted(format!("{} watches are open already (watches_max)", self.max));
        let place = self.places.clone().try_acquire_owned().map_err(full)?;
        // An interval of zero is none.
        let mut looks = interval(self.every.max(Duration::from_millis(1)));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Changes { look: Box::new(look), looks, said: None, over: None, stop: stopped(self.stop.clone()), _place: place })
    }
}

/// A watch.
pub(super) struct Changes<T> {
    look: Box<dyn FnMut() -> Look<T> + Send>,
    looks: Interval,
    said: Option<T>,
    /// How it ends, once that is known.
    over: Option<Result<(), Status>>,
    stop: Stop,
    _place: OwnedSemaphorePermit,
}

impl<T: Clone + PartialEq + Unpin> Stream for Changes<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(over) = &mut self.over {
                let last = std::mem::replace(over, Ok(()));
                return Poll::Ready(last.err().map(Err));
            }
            if self.looks.poll_tick(cx).is_pending() {
                if self.stop.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.over = Some(Err(super::status::of_error(&ApiError::shutting_down())));
            }
            let (now, is_last) = match (self.look)() {
                Look::Now(now) => (now, false),
                Look::Last(now) => (now, true),
                Look::Gone(status) => {
                    self.over = Some(Err(status));
                    continue;
                }
            };
            if is_last {
                self.over = Some(Ok(()));
            }
            if self.said.as_ref() != Some(&now) {
                self.said = Some(now.clone());
                return Poll::Ready(Some(Ok(now)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    fn watches(max: usize, every: Duration) -> (Watches, watch::Sender<bool>) {
        let config = GatewayConfig { watches_max: max, watch_every: every, ..GatewayConfig::default() };
        let stop = watch::Sender::new(false);
        (Watches::new(&config, stop.subscribe()), stop)
    }

    async fn all(mut changes: Changes<u32>) -> (Vec<u32>, Option<tonic::Code>) {
        let mut said = Vec::new();
        while let Some(next) = changes.next().await {
            match next {
                Ok(n) => said.push(n),
                Err(status) => return (said, Some(status.code())),
            }
        }
        (said, None)
    }

    #[tokio::test]
    async fn only_changes_are_said_and_the_last_one_ends_it() {
        let (watches, _stop) = watches(1, Duration::from_millis(1));
        let mut looks = [1, 1, 2, 2, 2, 3].into_iter();
        let look = move || looks.next().map_or(Look::Last(9), Look::Now);
        assert_eq!(all(watches.open(look).expect("a place")).await, (vec![1, 2, 3, 9], None));
    }

    #[tokio::test]
    async fn what_vanishes_ends_it_with_a_status() {
        let (watches, _stop) = watches(1, Duration::from_millis(1));
        let mut looks = [1].into_iter();
        let look = move || looks.next().map_or_else(|| Look::Gone(Status::not_found("gone")), Look::Now);
        assert_eq!(all(watches.open(look).expect("a place")).await, (vec![1], Some(tonic::Code::NotFound)));
    }

    /// The shutdown ends a watch that would wait for ever, behind one more look.
    #[tokio::test]
    async fn the_shutdown_ends_it_behind_a_last_look() {
        let (watches, stop) = watches(1, Duration::from_secs(3600));
        let mut looks = [1, 2].into_iter();
        let mut changes = watches.open(move || looks.next().map_or(Look::Now(2), Look::Now)).expect("a place");
        assert!(matches!(changes.next().await, Some(Ok(1))));
        stop.send_replace(true);
        assert_eq!(all(changes).await, (vec![2], Some(tonic::Code::Unavailable)));
    }

    #[tokio::test]
    async fn a_place_is_free_again_when_its_watch_is_gone() {
        let (watches, _stop) = watches(1, Duration::from_secs(1));
        let first = watches.open(|| Look::Now(1)).expect("a place");
        assert_eq!(watches.open(|| Look::Now(1)).err().map(|s| s.code()), Some(tonic::Code::ResourceExhausted));
        drop(first);
        assert!(watches.open(|| Look::Now(1)).is_ok());
    }
}
