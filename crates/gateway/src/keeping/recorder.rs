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
    /// Nothing is written; somebody waits until all before it is.
    Passed(oneshot::Sender<()>),
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
            if writes.is_empty() {
                return self.committed(keeper, group, Vec::new());
            }
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
            match (job.after, last) {
                (After::Passed(reply), _) => drop(reply.send(())),
                (After::Nothing, _) | (_, None) => {}
                (After::Reply { reply, .. }, Some(last)) => {
                    if let (Err(Ok(wrote)), Some(write)) = (reply.send(Ok(last)), job.writes.first()) {
                        self.accepted_late(keeper, write, &wrote);
                    }
                }
                (After::Ended(key), Some(last)) => self.outcome_kept(keeper, &key, last),
                (After::Refused, Some(last)) => job.writes.first().into_iter().for_each(|write| self.undo(keeper, write, &last)),
            }
        }
    }

    /// A run that went on before its acceptance was written is there now, under the id that it has here; or nobody has that id, and it ends.
    pub(super) fn accepted_late(&self, keeper: &Keeper, write: &Write, wrote: &Wrote) {
        let Write::Accept(new) = write else { return };
        match wrote {
            Wrote::Accepted(run) if self.journal.run(&RunKey { tenant: new.tenant.clone(), run: run.clone() }).is_some() => {}
            Wrote::Accepted(_) => self.undo(keeper, write, wrote),
            _ => tracing::warn!(fresh = %new.fresh, "a run went on while the run store did not answer; now it has no place in it"),
        }
    }

    /// A run whose acceptance was refused while the store was away is there now: it ends without having begun.
    fn undo(&self, keeper: &Keeper, write: &Write, wrote: &Wrote) {
        let (Write::Accept(new), Wrote::Accepted(run)) = (write, wrote) else { return };
        let key = RunKey { tenant: new.tenant.clone(), run: run.clone() };
        let outcome = Outcome::because(Cause::QueueFull, "the run store was not available; the request was refused");
        let attempt = AttemptId { key, attempt: 0 };
        let write = Write::End { attempt, owner: self.incarnation, outcome, usage: Usage::default(), last: None, now_ms: now_ms() };
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
