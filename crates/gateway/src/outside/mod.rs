//! What kvit does outside for a run, and what it notes of what others do: effects, declared tools, webhooks.
//!
//! Whatever is to be sent stands in the store's outbox first, put there in the same commit as the run's end. One loop takes what is due, by
//! compare-and-set, so that of several gateways one has it; each sending is bounded in time, and all together in number.
//!
//! Invariant: nothing is sent that is not noted before; what was taken and not answered for is due again, after a time.
// contract: C-27 C-28

pub(crate) mod client;
mod effects;
mod end;
mod schedule;
mod sign;
mod tools;
mod urls;
mod webhooks;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use store::{Hook, StoreError, Survives, Write, Wrote};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

pub(crate) use effects::{Intended, NotMoved};
pub(crate) use end::Ending;
pub(crate) use tools::{KIND as TOOL_KIND, Tool};
pub use urls::UrlPrefixes;
pub use webhooks::{HookEvent, Webhook, Webhooks};

use crate::calls::Calls;
use crate::keeping::{Keeper, now_ms};

/// What the outbox holds in place of a URL, where a run's declared tools are to be called.
const TOOLS: &str = "kvit:tools";
/// Entries of the outbox that are looked at at once.
const DUE_MAX: usize = 64;
/// What is added to the longest time that a try may take, until somebody else may take it.
const TAKEN_MARGIN: Duration = Duration::from_secs(5);

/// What is counted of it.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) hooks_delivered: AtomicU64,
    pub(crate) hooks_failed: AtomicU64,
    pub(crate) hooks_given_up: AtomicU64,
    pub(crate) effects_committed: AtomicU64,
    pub(crate) effects_failed: AtomicU64,
    pub(crate) effects_unknown: AtomicU64,
}

impl Counts {
    /// The numbers now.
    pub(crate) fn cut(&self) -> observe::Outside {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        observe::Outside {
            hooks_delivered: of(&self.hooks_delivered),
            hooks_failed: of(&self.hooks_failed),
            hooks_given_up: of(&self.hooks_given_up),
            effects_committed: of(&self.effects_committed),
            effects_failed: of(&self.effects_failed),
            effects_unknown: of(&self.effects_unknown),
        }
    }
}

/// One more.
fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What the gateway has for what it does outside.
pub(crate) struct Outside {
    pub(crate) counts: Counts,
    /// The outbox may have something that is due.
    news: Notify,
    /// Sendings at once.
    room: Arc<Semaphore>,
    room_max: u32,
}

impl Outside {
    pub(crate) fn new(sends_max: usize) -> Outside {
        let room_max = u32::try_from(sends_max.max(1)).unwrap_or(u32::MAX);
        Outside { counts: Counts::default(), news: Notify::new(), room: Arc::new(Semaphore::new(room_max as usize)), room_max }
    }

    /// Something was put into the outbox.
    pub(crate) fn put(&self) {
        self.news.notify_one();
    }

    /// Begins no further sending, and waits for those under way, at most as long.
    pub(crate) async fn finish(&self, wait: Duration) {
        if tokio::time::timeout(wait, self.room.clone().acquire_many_owned(self.room_max)).await.is_err() {
            tracing::warn!("what was being sent outside is not answered yet: it is found again in the outbox");
        }
        self.room.close();
    }
}

impl Calls {
    /// Sends what is due, for as long as the gateway serves.
    pub(crate) async fn send_outside(self: &Arc<Self>, keeper: &Arc<Keeper>) {
        let mut sending = JoinSet::new();
        loop {
            while sending.try_join_next().is_some() {}
            // News that come while this looks are kept.
            match keeper.store.due_hooks(now_ms(), DUE_MAX).await {
                Ok(due) => {
                    let is_more = due.len() == DUE_MAX;
                    for hook in due {
                        if self.take(keeper, hook, &mut sending).await.is_none() {
                            return;
                        }
                    }
                    if is_more {
                        continue;
                    }
                }
                Err(why) => tracing::debug!(%why, "the outbox cannot be looked at"),
            }
            let _ = tokio::time::timeout(keeper.config.poll, self.outside.news.notified()).await;
        }
    }

    /// Takes one thing that is due and sends it in a task of its own. `None` once nothing more is begun.
    async fn take(self: &Arc<Self>, keeper: &Arc<Keeper>, mut hook: Hook, sending: &mut JoinSet<()>) -> Option<()> {
        let permit = self.outside.room.clone().acquire_owned().await.ok()?;
        let longest = if hook.url == TOOLS { self.config.outside.tool_timeout_max } else { self.config.outside.webhook_timeout };
        if keeper.retake(&mut hook, longest).await != Ok(true) {
            return Some(());
        }
        let (calls, keeper) = (self.clone(), keeper.clone());
        sending.spawn(async move {
            match hook.url == TOOLS {
                true => calls.call_tools(&keeper, hook).await,
                false => calls.send_webhook(&keeper, hook).await,
            }
            drop(permit);
        });
        Some(())
    }
}

impl Keeper {
    /// Makes sure that nobody else tries this while one try takes at most so long. False if somebody else has it.
    async fn retake(&self, hook: &mut Hook, longest: Duration) -> Result<bool, StoreError> {
        let from_ms = hook.due_ms;
        let until = now_ms().saturating_add(millis(longest.saturating_add(TAKEN_MARGIN)));
        // Never the same number again, so that who took it before knows.
        let due_ms = until.max(from_ms + 1);
        let take = Write::HookTaken { id: hook.id.clone(), from_ms, due_ms };
        let wrote = self.store.commit(vec![take], Survives::Process).await?.pop();
        hook.due_ms = due_ms;
        Ok(wrote == Some(Wrote::Done))
    }
}

/// A span in the calendar's unit.
fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
