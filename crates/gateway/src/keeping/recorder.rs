//! The recorder: one task that commits what the table decided, in groups, in order, for as long as it takes.
//!
//! Invariant: jobs are committed in the order of their coming, each once; a job that was refused is undone by the next commit that works.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lifecycle::message::Usage;
use lifecycle::{AttemptId, Cause, Outcome, RunKey};
use store::{StoreError, Survives, Write, Wrote};
use tokio::sync::{mpsc, oneshot};

use super::{Keeper, now_ms};
use crate::calls::Calls;

/// Most writes in one commit.
const GROUP_MAX: usize = 256;
/// First wait before a commit is tried again; it doubles up to `RETRY_MAX`.
const RETRY: Duration = Duration::from_millis(50);
/// Longest such wait.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// What the recorder works on.
pub(crate) type Jobs = mpsc::UnboundedReceiver<Job>;

/// Some writes that belong together, and who wants to know.
pub(crate) struct Job {
    pub(super) writes: Vec<Write>,
    pub(super) survives: Survives,
    pub(super) after: After,
}

/// Who wants to know what became of a job's (one) write.
pub(super) enum After {
    Nothing,
    /// Somebody waits.
    Reply {
        reply: oneshot::Sender<Result<Wrote, StoreError>>,
        may_be_refused: bool,
    },
    /// It was a run's outcome: its readers may be told now.
    Ended(RunKey),
    /// It was refused, and is to be undone.
    Refused,
}

impl Calls {
    /// Commits what comes until nothing can come any more.
    pub(crate) async fn record(self: &Arc<Self>, keeper: &Keeper, jobs: &mut Jobs) {
        while let Some(first) = jobs.recv().await {
            let mut group = VecDeque::from([first]);
            let mut writes = group.iter().map(|job| job.writes.len()).sum::<usize>();
            while writes < GROUP_MAX
                && let Ok(job) = jobs.try_recv()
            {
                writes += job.writes.len();
                group.push_back(job);
            }
            self.commit(keeper, group).await;
        }
    }

    async fn commit(self: &Arc<Self>, keeper: &Keeper, mut group: VecDeque<Job>) {
        let mut wait = RETRY;
        loop {
            let writes: Vec<Write> = group.iter().flat_map(|job| job.writes.iter().cloned()).collect();
            let survives = group.iter().map(|job| job.survives).max().unwrap_or(Survives::Process);
            let why = match keeper.store.commit(writes, survives).await {
                Ok(wrote) => {
                    keeper.available.store(true, Ordering::Relaxed);
                    return self.committed(keeper, group, wrote);
                }
                Err(why) => why,
            };
            if keeper.available.swap(false, Ordering::Relaxed) {
                tracing::error!(%why, waiting = keeper.waiting(), "the run store does not take what is written; it is tried again");
            }
            group.iter_mut().for_each(|job| job.refuse(&why));
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    fn committed(self: &Arc<Self>, keeper: &Keeper, group: VecDeque<Job>, wrote: Vec<Wrote>) {
        let mut wrote = wrote.into_iter();
        for job in group {
            keeper.waiting.fetch_sub(job.writes.len(), Ordering::Relaxed);
            let last = job.writes.iter().filter_map(|_| wrote.next()).last();
            let Some(last) = last else { continue };
            match job.after {
                After::Nothing => {}
                After::Reply { reply, .. } => drop(reply.send(Ok(last))),
                After::Ended(key) => self.outcome_kept(&key, last),
                After::Refused => self.undo(keeper, &job.writes, last),
            }
        }
    }

    /// A run whose acceptance was refused while the store was away is there now: it ends without having begun.
    fn undo(&self, keeper: &Keeper, writes: &[Write], wrote: Wrote) {
        let (Some(Write::Accept(new)), Wrote::Accepted(run)) = (writes.first(), wrote) else { return };
        let key = RunKey { tenant: new.tenant.clone(), run };
        let outcome = Outcome::because(Cause::QueueFull, "the run store was not available; the request was refused");
        let attempt = AttemptId { key, attempt: 0 };
        let write = Write::End {
            attempt,
            owner: self.incarnation,
            outcome,
            usage: Usage::default(),
            last: None,
            hooks: Vec::new(),
            now_ms: now_ms(),
        };
        keeper.write(write, Survives::Process);
    }
}

impl Job {
    /// Tells whoever can be refused that it is.
    fn refuse(&mut self, why: &StoreError) {
        if let After::Reply { may_be_refused: true, .. } = self.after
            && let After::Reply { reply, .. } = std::mem::replace(&mut self.after, After::Refused)
        {
            // Whoever no longer waits does not know either.
            let _ = reply.send(Err(why.clone()));
        }
    }
}
