//! What the table says of a run, on its way to the readers and to the store.
//!
//! Invariant: no reader is told a run's end before the store has it, but of a run that nobody needs later while the store is away.
// contract: C-5 C-6 C-26

use lifecycle::{AttemptId, Cause, Delivery, Outcome, RunKey, Said, Time};
use store::{Survives, Write, Wrote};

use super::log::{self, End, Fate};
use super::recorder::After;
use super::{Keeper, now_ms};
use crate::calls::{Calls, Entry};

/// What the reader of a background run is told when this gateway stops.
const GOES_ON: &str = "the server is shutting down; the run goes on without its reader and can be followed by its id";

impl Keeper {
    /// A run went on though the store had not answered in time.
    pub(super) fn is_late(&self) {
        self.late.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Calls {
    /// Something is said of a run: it gets its number, is written if the run's events are kept, and is told. An end that is the outcome is told
    /// when the store has it; one that readers are told before there is an outcome is no event of the run.
    pub(crate) fn say(&self, entry: &mut Entry, said: Said) {
        if let Said::End { .. } = &said {
            return match (&mut entry.log.end, entry.log.parked) {
                (Some(end), _) => end.said = Some(said),
                (None, false) => entry.seats.send(&said, self.now()),
                // What became of it at the gateway that has it now.
                (None, true) if !self.is_draining() => entry.seats.send(&said, self.now()),
                // This reading ends, and the run does not.
                (None, true) => {
                    let outcome = Outcome::because(Cause::Shutdown, GOES_ON);
                    entry.seats.part(&Said::End { outcome, usage: entry.dispatch.usage() }, self.now());
                }
            };
        }
        let number = match entry.log.say(&said) {
            Fate::Event(number) => number,
            Fate::Known => return,
            Fate::Differs => {
                tracing::error!(run = %entry.key.run, "computed again, it differs from what was said before");
                return self.want(entry, Cause::WorkerError);
            }
        };
        if let Some(keeper) = self.keeper.as_ref().filter(|_| entry.log.keeps && !entry.log.parked) {
            let attempt = AttemptId { key: entry.key.clone(), attempt: entry.dispatch.call().attempt() };
            let events = vec![log::event(&attempt, number, &said)];
            keeper.write(Write::Append { attempt, owner: self.incarnation, events }, Survives::Process);
        }
        self.tell(entry, said);
    }

    /// Somebody at another gateway asks for the events of a run that kept none: what was said is written down, and what is said from now on.
    /// If not all of it is there any more, whoever asks is told no.
    // contract: C-26
    pub(super) fn keep_from_now_on(&self, keeper: &Keeper, key: &RunKey) {
        let live = self.with(key, |entry| {
            let said = entry.seats.said().filter(|said| said.len() as u64 == entry.log.last_number() && entry.log.end.is_none());
            let keeps = said.is_some() && !entry.log.parked;
            let mut writes = vec![Write::Keep { run: key.clone(), owner: self.incarnation, keeps }];
            if let Some(said) = said.filter(|_| keeps && !entry.log.keeps) {
                let attempt = AttemptId { key: key.clone(), attempt: entry.dispatch.call().attempt() };
                let events: Vec<_> = (1..).zip(&said).map(|(number, said)| log::event(&attempt, number, said)).collect();
                if !events.is_empty() {
                    writes.push(Write::Append { attempt, owner: self.incarnation, events });
                }
                entry.log.keeps = true;
            }
            keeper.send(writes, Survives::Process, After::Nothing);
        });
        // One that has settled has its end on the way to the store.
        if live.is_none() {
            tracing::debug!(run = %key.run, "its events are asked for, and it is over");
        }
    }

    /// A run's outcome is set: it is written, and its readers are told when it is there.
    pub(crate) fn keep_end(&self, entry: &mut Entry, outcome: &Outcome) {
        let Some(keeper) = &self.keeper else { return };
        // One that is left to another gateway does not end: what this one says of it from here on is nobody's.
        keeper.ending.begin(&entry.key, entry.log.is_background);
        if entry.log.parked {
            return;
        }
        // Of a run that was taken over and never began here, the attempt is still the one before.
        let attempt = AttemptId { key: entry.key.clone(), attempt: entry.log.begun };
        let usage = entry.dispatch.usage();
        let said = Said::End { outcome: outcome.clone(), usage };
        let last = entry.log.keeps.then(|| log::event(&attempt, entry.log.end_number(), &said));
        let is_background = entry.log.is_background;
        let hooks = if is_background { self.hooks_of_end(&entry.key, &entry.log.ending, outcome) } else { Vec::new() };
        let end = Write::End { attempt, owner: self.incarnation, outcome: outcome.clone(), usage, last, hooks, now_ms: now_ms() };
        let survives = if is_background { Survives::Machine } else { Survives::Process };
        entry.log.end = Some(End { since: self.now(), said: None });
        keeper.send(vec![end], survives, After::Ended(entry.key.clone()));
    }

    /// The store has a run's outcome: this gateway's, or, if another one had taken the run over, that one's.
    pub(super) fn outcome_kept(&self, key: &RunKey, wrote: Wrote) {
        self.outside.put();
        // Also of one that has left the table: what this process has recorded of it is not what is true.
        if let (Wrote::Stands(run), Some(keeper)) = (&wrote, &self.keeper)
            && (run.owner != self.incarnation || run.outcome.is_none())
        {
            keeper.given_up(key);
        }
        self.with(key, |entry| {
            // Readers who were told already, or wait for nothing, are told nothing.
            let Some(said) = entry.log.end.take().and_then(|end| end.said) else { return };
            let said = match (wrote, said) {
                (Wrote::Stands(run), Said::End { outcome, usage }) => {
                    let stands = run.outcome.unwrap_or_else(|| outcome.clone());
                    if stands.cause != outcome.cause {
                        tracing::error!(run = %key.run, stands = %stands.cause, late = %outcome.cause, "another gateway had ended it");
                    }
                    Said::End { outcome: stands, usage }
                }
                (_, said) => said,
            };
            entry.seats.send(&said, self.now());
        });
    }

    /// Tells an end that the store has not taken in time, if nobody needs it later. When it is to be looked at again.
    pub(crate) fn tell_late_end(&self, entry: &mut Entry, now: Time) -> Option<Time> {
        let keeper = self.keeper.as_ref().filter(|_| !entry.log.is_background)?;
        let due = entry.log.end.as_ref()?.since.after(keeper.config.patience);
        if now < due {
            return Some(due);
        }
        let said = entry.log.end.take()?.said?;
        keeper.is_late();
        entry.seats.send(&said, now);
        None
    }

    /// An attempt of a run begins.
    pub(crate) fn keep_begin(&self, entry: &mut Entry) {
        let Some(keeper) = self.keeper.as_ref().filter(|_| !entry.log.parked) else { return };
        let attempt = entry.dispatch.call().attempt();
        let from = std::mem::replace(&mut entry.log.begun, attempt);
        keeper.write(Write::Begin { run: entry.key.clone(), from, owner: self.incarnation }, Survives::Process);
    }

    /// Background runs that still run at a shutdown's end are written down no further: here they are cancelled, and whoever takes them over
    /// goes on with them. One whose caller still waits for its answer's beginning is refused by that, so it goes on nowhere.
    // contract: C-25
    pub(crate) fn park_background(&self) {
        let is_answered = |entry: &Entry| entry.seats.open() == 0 || entry.log.was_accepted();
        if self.keeper.is_some() {
            self.each(
                |entry| entry.log.is_background && is_answered(entry) && entry.dispatch.call().outcome().is_none(),
                |entry| entry.log.parked = true,
            );
        }
    }

    /// Whether a run's outcome, if the journal has one, may be told to somebody who looks.
    // contract: C-5. What is told once holds for ever, so it is in the store first.
    pub(crate) async fn may_tell_outcome(&self, key: &RunKey) -> bool {
        match &self.keeper {
            Some(keeper) if self.journal.run(key).is_some_and(|run| run.outcome.is_some()) => {
                keeper.ending.may_be_told(key, keeper.config.patience).await
            }
            _ => true,
        }
    }

    /// A run has settled: its record is kept.
    pub(crate) fn keep_record(&self, entry: &Entry) {
        let Some(keeper) = self.keeper.as_ref().filter(|_| !entry.log.parked) else { return };
        let Some(record) = self.journal.run(&entry.key).and_then(|run| serde_json::to_vec(&run).ok()) else { return };
        let delivery = entry.dispatch.call().delivery().unwrap_or(Delivery::None);
        keeper.write(Write::Record { run: entry.key.clone(), owner: self.incarnation, delivery, record }, Survives::Process);
    }
}
