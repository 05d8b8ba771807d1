//! What kvit does outside for a run, and what it notes of what others do: effects, declared tools, webhooks.
//!
//! Whatever is to be sent stands in the store's outbox first, put there in the same commit as the run's end. One loop takes what is due, by
//! compare-and-set, so that of several gateways one has it; each sending is bounded in time, and all together in number. When a webhook is due
//! is a time of the calendar, for to send it twice harms nobody. A run's tools are called by the gateway that had the run, and by another only
//! when that has done nothing about them for a whole lease of that one's clock.
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
mod watch;
mod webhooks;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use store::{Hook, HookQuery, StoreError, Survives, Write, Wrote};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub(crate) use effects::{Intended, NotMoved};
pub(crate) use end::Ending;
pub(crate) use tools::{KIND as TOOL_KIND, Tool};
pub use urls::UrlPrefixes;
pub(crate) use urls::plain;
pub use webhooks::{HookEvent, Webhook, Webhooks};

use crate::calls::Calls;
use crate::keeping::{Keeper, now_ms};
use watch::Watch;

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
    /// Entries of the outbox whose tools are being called here.
    driven: Mutex<HashSet<String>>,
    /// Sendings at once.
    room: Arc<Semaphore>,
    room_max: u32,
}

impl Outside {
    pub(crate) fn new(sends_max: usize) -> Outside {
        let room_max = u32::try_from(sends_max.max(1)).unwrap_or(u32::MAX);
        let room = Arc::new(Semaphore::new(room_max as usize));
        Outside { counts: Counts::default(), news: Notify::new(), driven: Mutex::default(), room, room_max }
    }

    fn driven_here(&self) -> MutexGuard<'_, HashSet<String>> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_driven(&self, id: &str) -> bool {
        self.driven_here().contains(id)
    }

    fn drive(&self, id: &str) -> String {
        self.driven_here().insert(id.to_owned());
        id.to_owned()
    }

    fn driven(&self, id: &str) {
        self.driven_here().remove(id);
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
        let (mut sending, mut watch) = (JoinSet::new(), Watch::default());
        loop {
            while sending.try_join_next().is_some() {}
            // News that come while this looks are kept.
            match self.look(keeper, &mut watch).await {
                Ok((due, is_more)) => {
                    let mut taken = 0;
                    for hook in due {
                        match self.take(keeper, hook, &mut sending).await {
                            Some(is_taken) => taken += u32::from(is_taken),
                            None => return,
                        }
                    }
                    // Where nothing can be taken there is no more to find.
                    if is_more && taken > 0 {
                        continue;
                    }
                }
                Err(why) => {
                    watch.forget();
                    tracing::debug!(%why, "the outbox cannot be looked at");
                }
            }
            let _ = tokio::time::timeout(keeper.config.poll, self.outside.news.notified()).await;
        }
    }

    /// What is due and this gateway's to send, and whether there may be more of it.
    async fn look(&self, keeper: &Keeper, watch: &mut Watch) -> Result<(Vec<Hook>, bool), StoreError> {
        let (now, config) = (now_ms(), &self.config.outside);
        let lease = config.tool_timeout_max.saturating_add(TAKEN_MARGIN);
        // Also those that somebody works on, to see whether anybody still does.
        let seen_ms = now.saturating_add(millis(lease.saturating_mul(2)));
        let tools = HookQuery { now_ms: seen_ms, urls: vec![TOOLS.to_owned()], any_since_ms: i64::MIN, limit: DUE_MAX };
        let tools = keeper.store.due_hooks(&tools).await?;
        watch.see(&tools, Instant::now());
        let mut is_more = tools.len() == DUE_MAX;
        let mut due = Vec::new();
        for hook in tools {
            if !self.outside.is_driven(&hook.id)
                && (watch.is_left(&hook, lease, Instant::now()) || (hook.due_ms <= now && self.drives(keeper, &hook).await?))
            {
                due.push(hook);
            }
        }
        // One that is not configured here may be at another gateway; what nobody took for so long is taken by whoever sees it.
        let any_since_ms = now.saturating_sub(millis(config.webhook_retry_max.max(TAKEN_MARGIN)));
        let hooks = HookQuery { now_ms: now, urls: config.webhooks.urls(), any_since_ms, limit: DUE_MAX };
        let mut hooks = keeper.store.due_hooks(&hooks).await?;
        is_more |= hooks.len() == DUE_MAX;
        hooks.retain(|hook| hook.url != TOOLS);
        due.append(&mut hooks);
        Ok((due, is_more))
    }

    /// Whether a run's tools are this gateway's to call, once that is due: it had the run, or no other gateway can live.
    async fn drives(&self, keeper: &Keeper, hook: &Hook) -> Result<bool, StoreError> {
        Ok(keeper.store.is_exclusive() || keeper.store.glance(&hook.run).await?.is_none_or(|run| run.owner == self.incarnation))
    }

    /// Takes one thing that is due and sends it in a task of its own. False if it could not be taken, `None` once nothing more is begun.
    async fn take(self: &Arc<Self>, keeper: &Arc<Keeper>, mut hook: Hook, sending: &mut JoinSet<()>) -> Option<bool> {
        let permit = self.outside.room.clone().acquire_owned().await.ok()?;
        let longest = if hook.url == TOOLS { self.config.outside.tool_timeout_max } else { self.config.outside.webhook_timeout };
        let Ok(Some(until)) = keeper.retake(&mut hook, longest).await else { return Some(false) };
        let (calls, keeper) = (self.clone(), keeper.clone());
        let driven = (hook.url == TOOLS).then(|| self.outside.drive(&hook.id));
        sending.spawn(async move {
            match driven {
                Some(driven) => {
                    calls.call_tools(&keeper, hook, until).await;
                    calls.outside.driven(&driven);
                }
                None => calls.send_webhook(&keeper, hook).await,
            }
            drop(permit);
        });
        Some(true)
    }
}

impl Keeper {
    /// Makes sure that nobody else tries this while one try takes at most so long: until when, by this process's clock. `None` if somebody else
    /// has it.
    async fn retake(&self, hook: &mut Hook, longest: Duration) -> Result<Option<Instant>, StoreError> {
        let (from_ms, lease) = (hook.due_ms, longest.saturating_add(TAKEN_MARGIN));
        let until = Instant::now() + lease;
        // Never the same number again, so that who took it before knows.
        let due_ms = now_ms().saturating_add(millis(lease)).max(from_ms.saturating_add(1));
        let take = Write::HookTaken { id: hook.id.clone(), from_ms, due_ms };
        let wrote = self.store.commit(vec![take], Survives::Process).await?.pop();
        hook.due_ms = due_ms;
        Ok((wrote == Some(Wrote::Done)).then_some(until))
    }
}

/// A span in the calendar's unit.
fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
