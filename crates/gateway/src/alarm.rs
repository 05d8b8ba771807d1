//! A timer that is looked at with every token and hardly ever runs out.
//!
//! Invariant: whoever polls it is woken when its time has come, as by tokio's own, of which it spares the looks that show nothing.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// A timer.
pub struct Alarm {
    sleep: Pin<Box<Sleep>>,
    /// What it is set to.
    at: Instant,
    /// Who is woken.
    woken: Option<Waker>,
}

impl Alarm {
    /// Set to that moment.
    pub fn at(at: Instant) -> Alarm {
        Alarm { sleep: Box::pin(tokio::time::sleep_until(at)), at, woken: None }
    }

    /// Set to so much later than now.
    pub fn after(wait: Duration) -> Alarm {
        Alarm::at(Instant::now() + wait)
    }

    /// Ready, with the time, when `due` has come, which may lie behind what it was set to: then it is set to that. `now` may be a moment ago.
    pub fn poll(&mut self, cx: &mut Context<'_>, now: Instant, due: Instant) -> Poll<Instant> {
        if now < self.at && self.woken.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        loop {
            self.woken = Some(cx.waker().clone());
            // Where a task's budget is used up, tokio's timer says "pending" before it knows whom to wake.
            ready!(std::pin::pin!(tokio::task::unconstrained(self.sleep.as_mut())).poll(cx));
            let now = Instant::now();
            if due <= now {
                return Poll::Ready(now);
            }
            self.set(due);
        }
    }

    /// Sets it anew.
    pub fn set(&mut self, at: Instant) {
        self.at = at;
        self.sleep.as_mut().reset(at);
        self.woken = None;
    }
}
