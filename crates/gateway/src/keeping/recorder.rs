//! The recorder: one task that commits what the table decided, in groups, in order, for as long as it takes.
//!
//! Invariant: jobs are committed in the order of their coming, each once for all that can be told; an accept whose asker was told no, or went on without it, has no run, or one
//! that ends by the very commit that would have accepted it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lifecycle::{Cause, Outcome, RunKey};
use store::{StoreError, Survives, Write, Wrote};
use tokio::sync::{mpsc, oneshot};

use super::unsure::Unsure;
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
    /// A commit with it was begun: it may be in the store, whatever the answer was.
    pub(super) tried: bool,
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
    /// Somebody was told that it is not done, or no longer waits.
    Disowned,
}

/// Jobs that were looked at while the store was away, and the way of the others.
struct Waiting<'a> {
    behind: VecDeque<Job>,
    jobs: &'a mut Jobs,
    /// What was committed already and may be to be said again.
    unsure: Unsure,
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
        let mut waiting = Waiting { behind: VecDeque::new(), jobs, unsure: Unsure::default() };
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
            group.retain_mut(|job| {
                let stays = job.is_owned_or_tried();
                if !stays {
                    keeper.waiting.fetch_sub(job.writes.len(), Ordering::Relaxed);
                }
                stays
            });
            if group.is_empty() {
                return;
            }
            let writes: Vec<Write> = group.iter().flat_map(|job| job.writes.iter().cloned()).collect();
            let survives = group.iter().map(|job| job.survives).max().unwrap_or(Survives::Process);
            let why = match waiting.unsure.commit(&*keeper.store, writes, survives).await {
                Ok(wrote) => {
                    keeper.available.store(true, Ordering::Relaxed);
                    return self.committed(keeper, group, wrote);
                }
                Err(why) => why,
            };
            if keeper.available.swap(false, Ordering::Relaxed) {
                tracing::error!(%why, waiting = keeper.waiting(), "the run store does not take what is written; it is tried again");
            }
            // Whoever is behind them and can be refused does not wait for the store to be back, either. They are those who came before anybody
            // was told: who asks again after that is part of the next try.
            while let Ok(job) = waiting.jobs.try_recv() {
                waiting.behind.push_back(job);
            }
            group.iter_mut().chain(&mut waiting.behind).for_each(|job| job.failed(&why));
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
                After::Nothing | After::Disowned => {}
                After::Reply { reply, .. } => {
                    // Whoever asked went on without it just now.
                    if reply.send(Ok(last)).is_err() {
                        job.writes.into_iter().filter_map(disown).for_each(|write| keeper.write(write, job.survives));
                    }
                }
                After::Ended(key) => {
                    self.outcome_kept(&key, last);
                    keeper.ending.kept(&key);
                }
            }
        }
    }
}

/// What takes an accept back. A run that nobody was told of ends without having begun, or never is.
fn disown(write: Write) -> Option<Write> {
    let Write::Accept(new) = write else { return None };
    let outcome = Outcome::because(Cause::QueueFull, "the run store did not answer in time; the request has no run of this id");
    Some(Write::Disown { new, outcome, now_ms: now_ms() })
}

impl Job {
    /// Before a commit: an accept that nobody waits for is taken back if it may be in the store already, and else was never asked for.
    fn is_owned_or_tried(&mut self) -> bool {
        if let After::Reply { reply, .. } = &self.after
            && reply.is_closed()
            && matches!(self.writes.first(), Some(Write::Accept(_)))
        {
            self.after = After::Disowned;
        }
        if matches!(self.after, After::Disowned) {
            if !self.tried {
                return false;
            }
            self.writes = std::mem::take(&mut self.writes).into_iter().map(|write| disown(write.clone()).unwrap_or(write)).collect();
        }
        self.tried = true;
        true
    }

    /// Tells whoever can be refused that it is.
    fn failed(&mut self, why: &StoreError) {
        if let After::Reply { may_be_refused: true, .. } = self.after
            && let After::Reply { reply, .. } = std::mem::replace(&mut self.after, After::Disowned)
        {
            // Whoever no longer waits does not know either.
            let _ = reply.send(Err(why.clone()));
        }
    }
}
