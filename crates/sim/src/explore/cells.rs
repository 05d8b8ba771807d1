//! Which cells of the two machines' tables (state x event, `lifecycle/snapshots`) an exploration meets, and why the others cannot be met.
//!
//! The machines are total: they answer every event in every state. What stands around them (engine, `Dispatch`) never asks some of that.
//!
//! Invariant: a cell that is met is not excused, and one that is not met is: `holes` and `lies` are both empty, or the test fails.

use std::cell::RefCell;

use lifecycle::{AttemptEvent, AttemptState, CallEvent, CallState, Resumable, Rules};

/// States of an attempt, as in its table.
pub const ATTEMPT_STATES: [&str; 14] = [
    "unknown",
    "tombstoned",
    "tokenising",
    "queued",
    "prefilling",
    "decoding",
    "preempted",
    "suspended(tokenising)",
    "suspended(queued)",
    "suspended(prefilling)",
    "suspended(decoding)",
    "suspended(preempted)",
    "stopping",
    "released",
];
/// Its events.
pub const ATTEMPT_EVENTS: [&str; 9] = ["submit", "tokenised", "scheduled", "first_token", "preempt", "suspend", "attach", "end", "drained"];
/// States of a call; `waiting again` is accepted after a lost attempt.
pub const CALL_STATES: [&str; 11] = [
    "accepted",
    "waiting again",
    "dispatched",
    "live",
    "stopping",
    "ended",
    "released",
    "void",
    "settled(proven)",
    "settled(void)",
    "handed_back",
];
/// Its events; `other_attempt` is any word about another attempt than the current one.
pub const CALL_EVENTS: [&str; 11] = [
    "dispatch",
    "worker_accepted",
    "want",
    "worker_ended",
    "worker_released",
    "worker_lost",
    "worker_lost(again)",
    "delivered",
    "retry",
    "other_attempt",
    "worker_handed_back",
];

/// Cells that were met, as bits by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cells {
    attempt: [u16; ATTEMPT_STATES.len()],
    call: [u16; CALL_STATES.len()],
}

thread_local! {
    static MET: RefCell<Cells> = const { RefCell::new(Cells { attempt: [0; ATTEMPT_STATES.len()], call: [0; CALL_STATES.len()] }) };
}

/// The sound rules, which note the cells that are met on this thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Listening;

impl Rules for Listening {
    fn attempt_meets(state: AttemptState, event: AttemptEvent) {
        MET.with_borrow_mut(|met| met.attempt[attempt_row(state)] |= 1 << attempt_column(event));
    }

    fn call_meets(state: CallState, current: u32, event: CallEvent) {
        MET.with_borrow_mut(|met| met.call[call_row(state, current)] |= 1 << call_column(current, event));
    }
}

fn attempt_row(state: AttemptState) -> usize {
    use AttemptState as S;
    match state {
        S::Unknown => 0,
        S::Tombstoned { .. } => 1,
        S::Tokenising => 2,
        S::Queued => 3,
        S::Prefilling => 4,
        S::Decoding => 5,
        S::Preempted => 6,
        S::Suspended { was: Resumable::Tokenising } => 7,
        S::Suspended { was: Resumable::Queued } => 8,
        S::Suspended { was: Resumable::Prefilling } => 9,
        S::Suspended { was: Resumable::Decoding } => 10,
        S::Suspended { was: Resumable::Preempted } => 11,
        S::Stopping { .. } => 12,
        S::Released { .. } => 13,
    }
}

fn attempt_column(event: AttemptEvent) -> usize {
    ATTEMPT_EVENTS.iter().position(|label| *label == event.label()).unwrap_or(0)
}

fn call_row(state: CallState, current: u32) -> usize {
    match state {
        CallState::Accepted if current == 0 => 0,
        CallState::Accepted => 1,
        CallState::Dispatched => 2,
        CallState::Live => 3,
        CallState::Stopping { .. } => 4,
        CallState::Ended { .. } => 5,
        CallState::Released { .. } => 6,
        CallState::Void { .. } => 7,
        CallState::Settled { proven: true, .. } => 8,
        CallState::Settled { proven: false, .. } => 9,
        CallState::HandedBack => 10,
    }
}

fn call_column(current: u32, event: CallEvent) -> usize {
    use CallEvent as E;
    match event {
        E::WorkerEnded { attempt, .. }
        | E::WorkerHandedBack { attempt, .. }
        | E::WorkerReleased { attempt }
        | E::WorkerAccepted { attempt }
        | E::WorkerLost { attempt, .. }
            if attempt != current =>
        {
            9
        }
        E::Dispatch { .. } => 0,
        E::WorkerAccepted { .. } => 1,
        E::Want(_) => 2,
        E::WorkerEnded { .. } => 3,
        E::WorkerReleased { .. } => 4,
        E::WorkerLost { again: false, .. } => 5,
        E::WorkerLost { again: true, .. } => 6,
        E::Delivered(_) => 7,
        E::Retry => 8,
        E::WorkerHandedBack { .. } => 10,
    }
}

impl Cells {
    /// Forgets what this thread has met.
    pub(super) fn reset() {
        MET.set(Cells::default());
    }

    /// What this thread has met since.
    pub(super) fn taken() -> Cells {
        MET.take()
    }

    /// Adds all of another set.
    pub fn union(&mut self, other: &Cells) {
        self.attempt.iter_mut().zip(other.attempt).for_each(|(mine, theirs)| *mine |= theirs);
        self.call.iter_mut().zip(other.call).for_each(|(mine, theirs)| *mine |= theirs);
    }

    /// Every cell: machine, state, event, and whether it was met.
    pub fn all(&self) -> Vec<(&'static str, &'static str, &'static str, bool)> {
        let rows = |machine, states: &'static [&'static str], events: &'static [&'static str], met: &[u16]| {
            let met = met.to_vec();
            let cells = states.iter().enumerate().flat_map(move |(s, state)| {
                let row = met[s];
                events.iter().enumerate().map(move |(e, event)| (machine, *state, *event, row >> e & 1 == 1))
            });
            cells.collect::<Vec<_>>()
        };
        let mut all = rows("attempt", &ATTEMPT_STATES, &ATTEMPT_EVENTS, &self.attempt);
        all.extend(rows("call", &CALL_STATES, &CALL_EVENTS, &self.call));
        all
    }

    /// Cells met, cells excused, and those that are neither or both.
    pub fn account(&self) -> CellAccount {
        let mut account = CellAccount::default();
        for (machine, state, event, met) in self.all() {
            let cell = format!("{machine}: {event} in {state}");
            match (met, excuse(machine, state, event)) {
                (true, None) => account.met += 1,
                (false, Some(_)) => account.excused += 1,
                (false, None) => account.holes.push(cell),
                (true, Some(_)) => account.lies.push(cell),
            }
        }
        account
    }
}

/// Where every cell is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CellAccount {
    /// Cells that were met.
    pub met: usize,
    /// Cells that cannot be, with a reason.
    pub excused: usize,
    /// Cells that were not met and have no reason.
    pub holes: Vec<String>,
    /// Cells that were met although they have a reason why they cannot be.
    pub lies: Vec<String>,
}

/// Why a cell cannot be met.
pub fn excuse(machine: &str, state: &str, event: &str) -> Option<&'static str> {
    super::excuses::EXCUSES.iter().find(|e| e.machine == machine && e.holds(state, event)).map(|e| e.why)
}
