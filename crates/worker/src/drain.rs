//! A worker that is told to stop: it takes nothing more, hands back what waits, lets what runs go on within a limit, and says what became of
//! each attempt that was alive.
//!
//! Invariant: each of those attempts is in one list when the answer is given, and the answer is given once nothing of any is left.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::Input;
use lifecycle::message::Usage;
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, OutcomeKind, Time};
use protocol::Drained;
use tokio::sync::oneshot;

use crate::engine_thread::EngineThread;

/// Askers that wait for one drain; one more takes the first one's place.
const ASKERS_MAX: usize = 64;

/// A drain under way.
pub(crate) struct Draining {
    /// When what still runs is cancelled; `None` once it was.
    until: Option<Time>,
    alive: BTreeSet<AttemptId>,
    drained: Drained,
    over: bool,
    askers: Vec<oneshot::Sender<Drained>>,
}

impl Draining {
    fn new(worker: Incarnation, until: Time, alive: BTreeSet<AttemptId>) -> Draining {
        let drained = Drained { worker, finished: Vec::new(), handed_back: Vec::new(), cancelled: Vec::new(), left_out: 0 };
        Draining { until: Some(until), alive, drained, over: false, askers: Vec::new() }
    }

    /// When what still runs is to be cancelled.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.until.filter(|_| !self.over)
    }

    /// An attempt's end is decided.
    pub(crate) fn ended(&mut self, attempt: &AttemptId, outcome: &Outcome, usage: Usage) {
        let Some(attempt) = self.alive.take(attempt) else { return };
        let list = match outcome.kind() {
            OutcomeKind::Completed => &mut self.drained.finished,
            _ if outcome.cause == Cause::Shutdown && usage.generated == 0 => &mut self.drained.handed_back,
            _ => &mut self.drained.cancelled,
        };
        list.push(attempt);
    }
}

impl EngineThread {
    /// The first call begins it, a further one joins.
    pub(crate) fn drain(&mut self, limit: Duration, reply: oneshot::Sender<Drained>) {
        let until = self.now().after(limit);
        match &mut self.draining {
            Some(draining) => draining.until = draining.until.map(|before| before.min(until)),
            None => {
                let alive: BTreeSet<AttemptId> = self.answers.keys().cloned().collect();
                tracing::info!(alive = alive.len(), limit_ms = limit.as_millis() as u64, "draining");
                self.draining = Some(Draining::new(self.incarnation, until, alive));
                self.say_draining();
                self.hand_back();
            }
        }
        if let Some(draining) = &mut self.draining {
            if draining.askers.len() >= ASKERS_MAX {
                draining.askers.remove(0);
            }
            draining.askers.push(reply);
        }
        self.end_what_is_over_the_limit();
    }

    /// What waits and has generated nothing is as good elsewhere. A suspended attempt without a block is one of those.
    fn hand_back(&mut self) {
        let waits = |state: &str, blocks: u32| state == "queued" || (state == "suspended" && blocks == 0);
        let cut = self.engine.snapshot(false, &|_| false);
        let waiting = cut.attempts.into_iter().filter(|a| waits(a.state, a.blocks)).map(|a| a.attempt);
        let fresh: Vec<AttemptId> = waiting.filter(|id| self.answers.get(id).is_some_and(|live| !live.generated)).collect();
        for attempt in fresh {
            let outcome = Outcome::because(Cause::Shutdown, "this worker is stopping; nothing was generated");
            self.apply(Input::End { attempt, number: 0, outcome });
        }
    }

    /// What still runs at the end of the limit is cancelled.
    pub(crate) fn end_what_is_over_the_limit(&mut self) {
        let now = self.now();
        let Some(draining) = self.draining.as_mut().filter(|d| d.until.is_some_and(|until| until <= now)) else { return };
        draining.until = None;
        let live: Vec<AttemptId> = self.answers.keys().cloned().collect();
        for attempt in live {
            self.apply(Input::End { attempt, number: 0, outcome: Outcome::of(Cause::Shutdown) });
        }
    }

    /// Answers whoever waits for the end of a drain, or for gateways to acknowledge.
    pub(crate) fn answer_waiting(&mut self) {
        let now = self.now();
        self.links.answer_flushes(now);
        let idle = self.engine.is_idle();
        let Some(draining) = self.draining.as_mut().filter(|_| idle) else { return };
        if !std::mem::replace(&mut draining.over, true) {
            let Drained { finished, handed_back, cancelled, .. } = &draining.drained;
            tracing::info!(finished = finished.len(), handed_back = handed_back.len(), cancelled = cancelled.len(), "drained");
        }
        for asker in std::mem::take(&mut draining.askers) {
            let _ = asker.send(draining.drained.clone());
        }
    }
}
