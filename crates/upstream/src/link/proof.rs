//! Another kvit, asked for its record of a run that was left: to cancel it by its name, beside the close, until that record says how it ended.
//!
//! A cancel that is lost is asked again, for it changes nothing the second time. What the record says is passed on as it is: its level, what was
//! computed, what may still be.
//!
//! Invariant: it is asked for no longer than proofs are looked for, and a run of whose end nothing believable was heard is `best_effort`.
// contract: C-8 C-9 C-12 C-28 C-29

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use lifecycle::message::Up;
use lifecycle::{AttemptId, Cause, Guarantee};

use super::{Met, Shared, Task, held};
use crate::abort::RequestName;
use crate::counters;
use crate::detect::says_no_run;
use crate::record::{self, Found, Read};

/// First wait before it is asked again; doubles.
const AGAIN: Duration = Duration::from_millis(20);
/// Longest.
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// How long it is asked to wait for the release with its answer.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// A request has come so long after its connection was closed, or never will.
const COME_WITHIN: Duration = Duration::from_secs(2);

/// A run whose connection was closed before the end of its answer.
pub(super) struct Left {
    pub(super) number: u64,
    pub(super) attempt: AttemptId,
    /// What it is called there.
    pub(super) name: RequestName,
    /// Whom it was sent to.
    pub(super) sent: Arc<Met>,
    /// Tokens of its answer that were read.
    pub(super) shown: u32,
    /// It had begun to answer, so it has the run.
    pub(super) taken: bool,
    /// Why nobody wants it, if that is why it was closed.
    pub(super) cancelled: Option<Cause>,
    pub(super) closed: Duration,
}

/// What came of asking.
enum Proof {
    Found(Found),
    /// It never had it.
    NeverCame,
    Nothing,
}

/// What one question was answered with.
enum Heard {
    Record(Read),
    /// It has no such run.
    NoRun,
    /// It does not wait for so long.
    NoWait,
    /// Nothing for now.
    Later,
    /// Nothing, however often it is asked, for this reason.
    Never(String),
}

impl Shared {
    /// Asks for the proof, and says what came of it.
    pub(super) fn prove(self: &Arc<Self>, left: Left) {
        let (task, shared) = (Task::begin(self), self.clone());
        tokio::spawn(async move {
            let _task = task;
            let proof = shared.proof(&left).await;
            let Left { number, attempt, .. } = left;
            held(&shared.unproven).remove(&number);
            let guarantee = match proof {
                Proof::Found(found) => {
                    shared.say(Up::Reported { attempt: attempt.clone(), work: Box::new(found.work) });
                    if found.level == Guarantee::Confirmed {
                        tracing::debug!(run = %attempt.key.run, "released, by its record there");
                        return shared.say(Up::Released { attempt, receipt: found.receipt });
                    }
                    found.level
                }
                Proof::NeverCame => Guarantee::Observed,
                Proof::Nothing => Guarantee::BestEffort,
            };
            tracing::debug!(run = %attempt.key.run, guarantee = guarantee.as_str(), "let go");
            shared.say(Up::LetGo { attempt, guarantee });
        });
    }

    async fn proof(&self, left: &Left) -> Proof {
        let by_id = self.aborter().enabled();
        let (mut again, mut wait) = (AGAIN, Some(WAIT_MAX.min(self.config.look_timeout / 2)));
        let mut acknowledged = false;
        loop {
            let began = self.now();
            let time = self.asked_until(left).saturating_sub(began);
            if time.is_zero() {
                tracing::info!(upstream = %self.config.name, run = %left.attempt.key.run, "its record of the run did not come to an end in time");
                return Proof::Nothing;
            }
            let asked = self.question(left, by_id.then_some(wait));
            let heard = tokio::time::timeout(time, asked).await.unwrap_or(Heard::Later);
            if let (Heard::Record(Read::Live | Read::Over(_)), Some(cause), false) = (&heard, left.cancelled, acknowledged) {
                acknowledged = true;
                self.say(Up::CancelAcknowledged { attempt: left.attempt.clone(), won: Some(cause) });
            }
            match heard {
                Heard::Record(Read::Over(found)) => return Proof::Found(found),
                Heard::Record(Read::Unfit(why)) => return self.unbelieved(left, why),
                Heard::Never(why) => return self.unbelieved(left, &why),
                Heard::NoRun if left.taken => return self.unbelieved(left, "it has no record of a run that it had begun to answer"),
                // contract: C-29. One that has begun anew has forgotten what the one before may have been given.
                Heard::NoRun if began >= left.closed + COME_WITHIN => match self.is_same_life(&left.sent).await {
                    Some(true) => return Proof::NeverCame,
                    Some(false) => return self.unbelieved(left, "it has begun anew since the run was sent"),
                    None => {}
                },
                Heard::NoWait => wait = None,
                Heard::NoRun | Heard::Later | Heard::Record(Read::Live) => {}
            }
            tokio::time::sleep(again.min(self.asked_until(left).saturating_sub(self.now()))).await;
            again = (again * 2).min(AGAIN_MAX);
        }
    }

    /// A kvit may look for a proof of its own behind it for as long as this one would.
    fn asked_until(&self, left: &Left) -> Duration {
        let usual = left.closed.saturating_add(self.config.observe_for * 2);
        held(&self.ledger).ends_by().map_or(usual, |last| usual.min(last))
    }

    fn unbelieved(&self, left: &Left, why: &str) -> Proof {
        tracing::warn!(upstream = %self.config.name, run = %left.attempt.key.run, why, "no proof of its release: it was closed, and nothing more is known");
        Proof::Nothing
    }

    /// Asks once: to cancel it, and to wait for the release, or, where it is not to be told by id, only what it says.
    async fn question(&self, left: &Left, by_id: Option<Option<Duration>>) -> Heard {
        let (method, path) = match by_id {
            Some(wait) => (Method::POST, left.name.cancel(wait)),
            None => (Method::GET, left.name.record()),
        };
        let Ok(answer) = self.client.call(method, &path, HeaderMap::new(), Bytes::new(), self.limits()).await else { return Heard::Later };
        let status = answer.status;
        let Ok(body) = answer.whole().await else { return Heard::Later };
        match status {
            200 => Heard::Record(record::read(&body, left.name, left.shown)),
            400 if by_id.is_some_and(|wait| wait.is_some()) => Heard::NoWait,
            401 | 403 => Heard::Never(format!("the gateway's key there lets it not ask for its own runs (status {status})")),
            404 if says_no_run(&body) => Heard::NoRun,
            408 | 429 | 500.. => Heard::Later,
            _ => Heard::Never(format!("it does not answer for its runs as a kvit does (status {status})")),
        }
    }

    /// Whether it is still in the life in which it was sent a run. `None` where it does not say.
    async fn is_same_life(&self, sent: &Met) -> Option<bool> {
        let answer = self.client.get("/metrics", self.limits()).await.ok().filter(|answer| answer.status == 200)?;
        let page = answer.whole().await.ok()?;
        let page = String::from_utf8_lossy(&page);
        let (_, life) = counters::kvit(&page)?;
        sent.detected.life.as_ref().map(|then| *then == life)
    }
}
