//! A run's events in the gateway that has the run: numbered as they are said, written if they are kept, and not said twice by an attempt
//! that repeats what an earlier one had said.
//!
//! Invariant: numbers go up by one from 1; an event that differs from what was said before ends the run and is not said.
// contract: C-26

use std::collections::{HashMap, VecDeque};

use lifecycle::message::{DeadlineLeft, Delta, Piece, Submit};
use lifecycle::{AttemptId, Incarnation, Outcome, Said, Time, Work};
use protocol::kept;
use store::{StoredEvent, StoredRun};

use crate::outside::{Ending, Tool};

/// What of a delta has to be the same when a run is computed again.
#[derive(Clone, PartialEq, Debug)]
struct Heard {
    text: String,
    tokens: Vec<u32>,
    finish: Option<lifecycle::Cause>,
    /// What an engine that others wrote said itself.
    piece: Option<Piece>,
}

impl Heard {
    fn of(delta: &Delta) -> Heard {
        let mut piece = delta.passed.as_ref().map(|passed| passed.piece.clone());
        // What an engine calls its call is another name each time.
        if let Some(Piece::Called(called)) = &mut piece {
            called.id = None;
        }
        Heard { text: delta.text.clone(), tokens: delta.tokens.clone(), finish: delta.finish, piece }
    }
}

/// Where a run's events stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// They are written to the store.
    pub(crate) keeps: bool,
    /// It goes on without readers.
    pub(crate) is_background: bool,
    /// The run is given to another gateway: nothing more is written of it here.
    pub(crate) parked: bool,
    /// The attempt whose beginning is written.
    pub(crate) begun: u32,
    last: u64,
    accepted: bool,
    /// This attempt said something else than an earlier one: nothing more of its answer is said.
    differs: bool,
    /// What an earlier attempt said and this one has yet to repeat, by sequence.
    before: HashMap<u32, VecDeque<Heard>>,
    /// What matters of it for what is done outside when it ends.
    pub(super) ending: Ending,
    /// The end, until the store has it.
    pub(super) end: Option<End>,
}

/// An end that waits for the store.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// Since when.
    pub(super) since: Time,
    /// What readers are to be told then, if they are to be told anything.
    pub(super) said: Option<Said>,
}

/// What to do with something that was said.
#[derive(Debug, PartialEq)]
pub(crate) enum Fate {
    /// It is the event of this number.
    Event(u64),
    /// It was said before, or is not to be said.
    Known,
    /// Something else was said in its place before.
    Differs,
}

impl Log {
    /// A run that begins now.
    pub(crate) fn new(keeps: bool, is_background: bool) -> Log {
        Log { keeps, is_background, ..Log::default() }
    }

    /// A run that goes on after these events.
    pub(crate) fn after(events: &[(u64, Said)]) -> Log {
        let mut log = Log::new(true, true);
        for (number, said) in events {
            log.last = *number;
            match said {
                Said::Accepted => log.accepted = true,
                Said::Delta(delta) => log.before.entry(delta.sequence).or_default().push_back(Heard::of(delta)),
                Said::End { .. } => {}
            }
        }
        log
    }

    /// With this to be known at its end.
    pub(crate) fn ending(self, ending: Ending) -> Log {
        Log { ending, ..self }
    }

    /// Whether it was said that a worker took the run on.
    pub(crate) fn was_accepted(&self) -> bool {
        self.accepted
    }

    /// The number of what was said last; 0 if nothing was.
    pub(super) fn last_number(&self) -> u64 {
        self.last
    }

    /// The number of its last event.
    pub(super) fn end_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Numbers something that is said.
    pub(crate) fn say(&mut self, said: &Said) -> Fate {
        match said {
            Said::Accepted if std::mem::replace(&mut self.accepted, true) => return Fate::Known,
            // A cancel is on its way to whoever says this.
            Said::Delta(_) if self.differs => return Fate::Known,
            Said::Delta(delta) => {
                let before = self.before.get_mut(&delta.sequence).and_then(VecDeque::pop_front);
                match before {
                    Some(before) if before == Heard::of(delta) => return Fate::Known,
                    Some(_) => {
                        self.differs = true;
                        return Fate::Differs;
                    }
                    None => {}
                }
            }
            Said::Accepted | Said::End { .. } => {}
        }
        self.last += 1;
        Fate::Event(self.last)
    }
}

/// An event as it is stored.
pub(super) fn event(attempt: &AttemptId, number: u64, said: &Said) -> StoredEvent {
    StoredEvent { number, body: kept::said(attempt, said) }
}

/// A run's request as it is stored: what a worker is asked for, the tools that are called at its end, and the front door's own part.
pub(super) fn request(
    work: &Work,
    attempt: &AttemptId,
    deadlines: Vec<DeadlineLeft>,
    tools: &[Tool],
    door: &[u8],
) -> Result<Vec<u8>, protocol::Error> {
    let (prompt, params) = (work.prompt.clone(), work.params.clone());
    let attempt = AttemptId { attempt: attempt.attempt.max(1), ..attempt.clone() };
    let asked = kept::asked(&Submit { attempt, worker: Incarnation(0), number: 1, model: "".into(), prompt, params, deadlines })?;
    let tools = if tools.is_empty() { Vec::new() } else { serde_json::to_vec(tools).unwrap_or_default() };
    let length = |part: &[u8]| u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes();
    Ok([&length(&asked), asked.as_slice(), &length(&tools), tools.as_slice(), door].concat())
}

/// A part with its length before it, and what is behind it.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
}

/// What a worker is asked for, the tools, and the front door's part.
fn parts(run: &StoredRun) -> Option<(&[u8], &[u8], &[u8])> {
    let (asked, rest) = part(run.request.as_deref()?)?;
    let (tools, door) = part(rest)?;
    Some((asked, tools, door))
}

/// The tools that a run declares.
pub(crate) fn tools(run: &StoredRun) -> Vec<Tool> {
    let read = |(_, tools, _): (&[u8], &[u8], &[u8])| serde_json::from_slice(tools).ok();
    parts(run).and_then(read).unwrap_or_default()
}

/// What a worker was asked for, and the deadlines that the caller gave, from the acceptance on.
pub(super) fn work(run: &StoredRun) -> Option<(Work, Vec<DeadlineLeft>)> {
    let Submit { prompt, params, deadlines, .. } = kept::read_asked(parts(run)?.0).ok()?;
    Some((Work { prompt, params }, deadlines))
}

/// The front door's own part of a stored request.
pub(crate) fn door_part(run: &StoredRun) -> Option<&[u8]> {
    Some(parts(run)?.2)
}

/// How a stored run ended, as its last event says it.
pub(super) fn end(run: &StoredRun, outcome: &Outcome) -> Said {
    Said::End { outcome: outcome.clone(), usage: run.usage }
}

#[cfg(test)]
mod tests {
    use lifecycle::message::Usage;
    use lifecycle::{Cause, RunId, RunKey, Tenant};

    use super::*;

    fn delta(sequence: u32, text: &str) -> Said {
        let key = RunKey { tenant: Tenant::default(), run: RunId::parse("r").expect("an id") };
        let tokens = text.bytes().map(u32::from).collect();
        let attempt = AttemptId { key, attempt: 2 };
        Said::Delta(Delta { attempt, sequence, text: text.into(), tokens, logprobs: Vec::new(), finish: None, passed: None })
    }

    fn end() -> Said {
        Said::End { outcome: Outcome::of(Cause::Stop), usage: Usage::default() }
    }

    fn taken_over() -> Log {
        Log::after(&[(1, Said::Accepted), (2, delta(0, "a")), (3, delta(1, "x")), (4, delta(0, "b"))])
    }

    // contract: C-26
    #[test]
    fn what_was_said_before_is_not_said_again_in_whatever_order_the_sequences_come() {
        let mut log = taken_over();
        let said = [Said::Accepted, delta(1, "x"), delta(0, "a"), delta(1, "y"), delta(0, "b"), delta(0, "c")];
        let fates = said.each_ref().map(|said| log.say(said));
        assert_eq!(fates, [Fate::Known, Fate::Known, Fate::Known, Fate::Event(5), Fate::Known, Fate::Event(6)]);
        assert_eq!(log.end_number(), 7);
    }

    // contract: C-26
    #[test]
    fn after_another_story_began_nothing_of_it_is_said_not_even_what_nobody_had_said_before() {
        let mut log = taken_over();
        assert_eq!(log.say(&delta(0, "A")), Fate::Differs);
        for more in [delta(0, "b"), delta(0, "c"), delta(0, "d"), delta(1, "x"), delta(1, "y"), delta(2, "new")] {
            assert_eq!(log.say(&more), Fate::Known, "{more:?}");
        }
        assert_eq!(log.say(&end()), Fate::Event(5), "its end is said");
    }
}
