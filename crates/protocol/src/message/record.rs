//! What happened to an attempt, as it crosses to its gateway's journal.
//!
//! Invariant: only a worker's words about an attempt cross, each whole; times stay the sender's until the gateway converts them.
// contract: C-24

use lifecycle::event::{Event, Record};
use lifecycle::{Cause, Phase, StepId, Time};

use crate::words::word;
use crate::worker_v1::{self as wire, record};
use crate::{Error, field, ids};

const ELSEWHERE: Error = Error::NotInSession { message: "Record" };

impl TryFrom<&Record> for wire::Record {
    type Error = Error;

    fn try_from(record: &Record) -> Result<wire::Record, Error> {
        let attempt = record.attempt().ok_or(ELSEWHERE)?;
        Ok(wire::Record { attempt: Some((&attempt).into()), at_us: record.at.0, event: Some((&record.event).try_into()?) })
    }
}

impl TryFrom<wire::Record> for Record {
    type Error = Error;

    fn try_from(record: wire::Record) -> Result<Record, Error> {
        let attempt = ids::attempt(record.attempt, "Record.attempt")?;
        let event = field::need(record.event, "Record.event")?.try_into()?;
        Ok(Record { at: Time(record.at_us), run: Some(attempt.key), attempt: attempt.attempt, event })
    }
}

impl TryFrom<&Event> for record::Event {
    type Error = Error;

    fn try_from(event: &Event) -> Result<record::Event, Error> {
        use record::Event as E;
        let plain = wire::Plain {};
        let number = |cause: Cause| wire::Cause::from(cause).into();
        Ok(match event {
            Event::Queued { prompt_tokens, n, max_tokens } => {
                E::Queued(wire::Queued { prompt_tokens: *prompt_tokens, n: *n, max_tokens: *max_tokens })
            }
            Event::BlocksAllocated { held, cached_tokens, shared } => {
                E::BlocksAllocated(wire::BlocksAllocated { held: *held, cached_tokens: *cached_tokens, shared: *shared })
            }
            Event::PrefillStart => E::PrefillStart(plain),
            Event::Computed { step, prompt_tokens, generated, discarded, late } => E::Computed(wire::Computed {
                step: step.0,
                prompt_tokens: *prompt_tokens,
                generated: *generated,
                discarded: *discarded,
                late: *late,
            }),
            Event::RowsDropped { step, layers } => E::RowsDropped(wire::RowsDropped { step: step.0, layers: *layers }),
            Event::FirstToken => E::FirstToken(plain),
            Event::Preempted => E::Preempted(plain),
            Event::CancelReceived { cause } => E::CancelReceived(wire::CancelReceived { cause: number(*cause) }),
            Event::CancelApplied { cause, phase } => {
                E::CancelApplied(wire::CancelApplied { cause: number(*cause), phase: wire::Phase::from(*phase).into() })
            }
            Event::Suspended => E::Suspended(plain),
            Event::Attached => E::Attached(plain),
            Event::Orphaned => E::Orphaned(plain),
            Event::AttemptEnded { outcome } => E::AttemptEnded(wire::AttemptEnded { outcome: Some(outcome.into()) }),
            Event::FenceCompleted { step } => E::FenceCompleted(wire::FenceCompleted { step: step.0 }),
            Event::Released { receipt } => E::Released((*receipt).into()),
            _ => return Err(ELSEWHERE),
        })
    }
}

impl TryFrom<record::Event> for Event {
    type Error = Error;

    fn try_from(event: record::Event) -> Result<Event, Error> {
        use record::Event as E;
        let cause = |value, field| word::<wire::Cause, Cause>(value, field);
        Ok(match event {
            E::Queued(wire::Queued { prompt_tokens, n, max_tokens }) => Event::Queued { prompt_tokens, n, max_tokens },
            E::BlocksAllocated(wire::BlocksAllocated { held, cached_tokens, shared }) => {
                Event::BlocksAllocated { held, cached_tokens, shared }
            }
            E::PrefillStart(wire::Plain {}) => Event::PrefillStart,
            E::Computed(wire::Computed { step, prompt_tokens, generated, discarded, late }) => {
                Event::Computed { step: StepId(step), prompt_tokens, generated, discarded, late }
            }
            E::RowsDropped(wire::RowsDropped { step, layers }) => Event::RowsDropped { step: StepId(step), layers },
            E::FirstToken(wire::Plain {}) => Event::FirstToken,
            E::Preempted(wire::Plain {}) => Event::Preempted,
            E::CancelReceived(received) => Event::CancelReceived { cause: cause(received.cause, "CancelReceived.cause")? },
            E::CancelApplied(applied) => Event::CancelApplied {
                cause: cause(applied.cause, "CancelApplied.cause")?,
                phase: word::<wire::Phase, Phase>(applied.phase, "CancelApplied.phase")?,
            },
            E::Suspended(wire::Plain {}) => Event::Suspended,
            E::Attached(wire::Plain {}) => Event::Attached,
            E::Orphaned(wire::Plain {}) => Event::Orphaned,
            E::AttemptEnded(ended) => Event::AttemptEnded { outcome: field::need(ended.outcome, "AttemptEnded.outcome")?.try_into()? },
            E::FenceCompleted(wire::FenceCompleted { step }) => Event::FenceCompleted { step: StepId(step) },
            E::Released(receipt) => Event::Released { receipt: receipt.into() },
        })
    }
}
