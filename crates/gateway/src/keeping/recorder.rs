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
/// Why a run ends that was refused.
const AWAY: &str = "the run store was not available; the request was refused";
/// The same, where the caller was served under another id.
const LATE: &str = "the run store did not answer in time; the request went on as another run";

/// What the recorder works on.
pub(crate) type Jobs = mpsc::UnboundedReceiver<Job>;

/// Some writes that belong together, and who wants to know.
pub(crate) struct Job {
    pub(super) writes: Vec<Write>,
    pub(super) survives: Survives,
    pub(super) after: After,
    /// A commit with it was tried and failed. It may have been done all the same.
    tried: bool,
}

/// Who wants to know what became of a job's (one) write.
pub(super) enum After {
    Nothing,
    /// Somebody waits.
    Reply {
        reply: oneshot::Sender<Result<Wrote, StoreError>>,
        refusal: Refusal,
    },
    /// It was a run's outcome: its readers may be told now.
    Ended(RunKey),
    /// It was refused for this reason, and is to be undone.
    Refused(&'static str),
}

/// When a write that somebody waits for is not to be done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Never,
    /// When the store is away.
    Away,
    /// When nobody waits for it any more.
    Late,
}

/// Jobs that were looked at while the store was away, and the way of the others.
struct Waiting<'a> {
    behind: VecDeque<Job>,
    jobs: &'a mut Jobs,
}

impl Waiting<'_> {
    fn at_once(&mut self) -> Option<Job> {
        self.behind.pop_front().or_else(|| self.jobs.try_recv().ok())
    }

    async fn next(&mut self) -> Option<Job> {
        match self.behind.pop_front() {
            Some(job) => Some(job),
            None => self.jobs.recv().await,
        }
    }
}

impl Calls {
    /// Commits what comes until nothing can come any more.
    pub(crate) async fn record(self: &Arc<Self>, keeper: &Keeper, jobs: &mut Jobs) {
        let mut waiting = Waiting { behind: VecDeque::new(), jobs };
        while let Some(first) = waiting.next().await {
            let mut group = VecDeque::from([first]);
            let mut writes = group.iter().map(|job| job.writes.len()).sum::<usize>();
            while writes < GROUP_MAX
                && let Some(job) = waiting.at_once()
            {
                writes += job.writes.len();
                group.push_back(job);
            }
            self.commit(keeper, group, &mut waiting).await;
        }
    }

    async fn commit(self: &Arc<Self>, keeper: &Keeper, mut group: VecDeque<Job>, waiting: &mut Waiting<'_>) {
        let mut wait = RETRY;
        loop {
            group.retain_mut(|job| job.is_still_wanted(keeper));
            let writes: Vec<Write> = group.iter().flat_map(|job| job.writes.iter().cloned()).collect();
            if writes.is_empty() {
                return;
            }
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
            for job in &mut group {
                job.tried = true;
                job.refuse(&why);
            }
            // Those behind must not wait for the store to be back, either.
            while let Ok(mut job) = waiting.jobs.try_recv() {
                job.refuse(&why);
                if job.is_still_wanted(keeper) {
                    waiting.behind.push_back(job);
                }
            }
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
                After::Reply { reply, refusal } => {
                    if let Err(Ok(last)) = reply.send(Ok(last))
                        && refusal == Refusal::Late
                    {
                        self.undo(keeper, &job.writes, last, LATE);
                    }
                }
                After::Ended(key) => self.outcome_kept(&key, last),
                After::Refused(why) => self.undo(keeper, &job.writes, last, why),
            }
        }
    }

    /// A run whose acceptance was refused before the store said that it has it: it ends without having begun.
    fn undo(&self, keeper: &Keeper, writes: &[Write], wrote: Wrote, why: &str) {
        let (Some(Write::Accept(new)), Wrote::Accepted(run)) = (writes.first(), wrote) else { return };
        let key = RunKey { tenant: new.tenant.clone(), run };
        let outcome = Outcome::because(Cause::QueueFull, why);
        let attempt = AttemptId { key, attempt: 0 };
        let write = Write::End { attempt, owner: self.incarnation, outcome, usage: Usage::default(), last: None, now_ms: now_ms() };
        keeper.write(write, Survives::Process);
    }
}

impl Job {
    pub(super) fn new(writes: Vec<Write>, survives: Survives, after: After) -> Job {
        Job { writes, survives, after, tried: false }
    }

    /// Tells whoever can be refused that it is.
    fn refuse(&mut self, why: &StoreError) {
        if let After::Reply { refusal: Refusal::Away, .. } = self.after
            && let After::Reply { reply, .. } = std::mem::replace(&mut self.after, After::Refused(AWAY))
        {
            // Whoever no longer waits does not know either.
            let _ = reply.send(Err(why.clone()));
        }
    }

    /// Whether it is to be committed. What was refused is not, unless it may have been done already: then it must be known, to be undone.
    fn is_still_wanted(&mut self, keeper: &Keeper) -> bool {
        if let After::Reply { refusal: Refusal::Late, reply } = &self.after
            && reply.is_closed()
        {
            self.after = After::Refused(LATE);
        }
        let wanted = self.tried || !matches!(self.after, After::Refused(_));
        if !wanted {
            keeper.waiting.fetch_sub(self.writes.len(), Ordering::Relaxed);
        }
        wanted
    }
}
