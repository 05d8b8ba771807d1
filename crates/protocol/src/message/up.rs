//! From worker to gateway: accepted, steps, ends, releases, and what concerns the worker as a whole.
//!
//! Invariant: `Released` has its receipt and `Ended` its outcome and counts, or they are errors: a proof is never filled in (C-20, C-29).
// contract: C-20, C-23

use std::sync::Arc;

use lifecycle::event::Record;
use lifecycle::message::{Called, Delta, Passed, Piece, Receipt, TokenLogprob, Up, Usage};
use lifecycle::{Cause, Outcome, OutcomeKind, StepId};

use crate::limits::{ATTEMPTS_MAX, HEADERS_MAX, RECORDS_MAX};
use crate::words::word;
use crate::worker_v1::{self as wire, up_frame::Message};
use crate::{Error, field, ids};

impl TryFrom<&Up> for Message {
    type Error = Error;

    fn try_from(up: &Up) -> Result<Message, Error> {
        Ok(match up {
            Up::Accepted { attempt, prompt_tokens } => {
                Message::Accepted(wire::Accepted { attempt: Some(attempt.into()), prompt_tokens: *prompt_tokens })
            }
            Up::Step { step, deltas } => Message::Step(wire::Step { step: step.0, deltas: deltas.iter().map(wire::Delta::from).collect() }),
            Up::CancelAcknowledged { attempt, won } => Message::CancelAcknowledged(wire::CancelAcknowledged {
                attempt: Some(attempt.into()),
                won: won.map(|cause| wire::Cause::from(cause).into()),
            }),
            Up::Ended { attempt, outcome, usage } => {
                Message::Ended(wire::Ended { attempt: Some(attempt.into()), outcome: Some(outcome.into()), usage: Some((*usage).into()) })
            }
            Up::Released { attempt, receipt } => {
                Message::Released(wire::Released { attempt: Some(attempt.into()), receipt: Some((*receipt).into()) })
            }
            Up::Records { records } => {
                field::within(records, RECORDS_MAX, "Records.records")?;
                Message::Records(wire::Records { records: records.iter().map(TryFrom::try_from).collect::<Result<_, Error>>()? })
            }
            Up::DeviceLost { why } => Message::DeviceLost(wire::DeviceLost { why: why.clone() }),
            Up::Ask { attempts } => Message::Ask(wire::Ask { attempts: ids::write(attempts, ATTEMPTS_MAX, "Ask.attempts")? }),
            Up::Draining => Message::Draining(wire::Draining {}),
            Up::Snapshot { .. } => return Err(Error::NotInSession { message: "Snapshot" }),
            // A worker of this protocol says `Released`.
            Up::LetGo { .. } => return Err(Error::NotInSession { message: "LetGo" }),
            // And sends its records.
            Up::Reported { .. } => return Err(Error::NotInSession { message: "Reported" }),
        })
    }
}

impl TryFrom<Message> for Up {
    type Error = Error;

    fn try_from(message: Message) -> Result<Up, Error> {
        Ok(match message {
            Message::Accepted(accepted) => {
                Up::Accepted { attempt: ids::attempt(accepted.attempt, "Accepted.attempt")?, prompt_tokens: accepted.prompt_tokens }
            }
            Message::Step(step) => {
                Up::Step { step: StepId(step.step), deltas: step.deltas.into_iter().map(Delta::try_from).collect::<Result<_, Error>>()? }
            }
            Message::CancelAcknowledged(acknowledged) => Up::CancelAcknowledged {
                attempt: ids::attempt(acknowledged.attempt, "CancelAcknowledged.attempt")?,
                won: acknowledged.won.map(|won| word::<wire::Cause, Cause>(won, "CancelAcknowledged.won")).transpose()?,
            },
            Message::Ended(ended) => Up::Ended {
                attempt: ids::attempt(ended.attempt, "Ended.attempt")?,
                outcome: field::need(ended.outcome, "Ended.outcome")?.try_into()?,
                usage: field::need(ended.usage, "Ended.usage")?.into(),
            },
            Message::Released(released) => Up::Released {
                attempt: ids::attempt(released.attempt, "Released.attempt")?,
                receipt: field::need(released.receipt, "Released.receipt")?.into(),
            },
            Message::Records(wire) => {
                field::within(&wire.records, RECORDS_MAX, "Records.records")?;
                Up::Records { records: wire.records.into_iter().map(Record::try_from).collect::<Result<_, Error>>()? }
            }
            Message::DeviceLost(lost) => Up::DeviceLost { why: lost.why },
            Message::Ask(ask) => Up::Ask { attempts: ids::read(ask.attempts, ATTEMPTS_MAX, "Ask.attempts")? },
            Message::Draining(wire::Draining {}) => Up::Draining,
        })
    }
}

impl From<&Delta> for wire::Delta {
    fn from(delta: &Delta) -> wire::Delta {
        wire::Delta {
            attempt: Some((&delta.attempt).into()),
            sequence: delta.sequence,
            text: delta.text.clone(),
            tokens: delta.tokens.clone(),
            logprobs: delta.logprobs.iter().map(wire::Logprob::from).collect(),
            finish: delta.finish.map(|cause| wire::Cause::from(cause).into()),
            passed: delta.passed.as_deref().map(wire::Passed::from),
        }
    }
}

impl TryFrom<wire::Delta> for Delta {
    type Error = Error;

    fn try_from(delta: wire::Delta) -> Result<Delta, Error> {
        let finish = delta.finish.map(|finish| word::<wire::Cause, Cause>(finish, "Delta.finish")).transpose()?;
        if finish.is_some_and(|cause| cause.outcome() != OutcomeKind::Completed) {
            return Err(Error::Range { field: "Delta.finish", allowed: "stop or length" });
        }
        Ok(Delta {
            attempt: ids::attempt(delta.attempt, "Delta.attempt")?,
            sequence: delta.sequence,
            text: delta.text,
            tokens: delta.tokens,
            logprobs: delta.logprobs.into_iter().map(TokenLogprob::try_from).collect::<Result<_, Error>>()?,
            finish,
            passed: delta.passed.map(Passed::try_from).transpose()?.map(Box::new),
        })
    }
}

impl From<&Passed> for wire::Passed {
    fn from(passed: &Passed) -> wire::Passed {
        let tail = matches!(passed.piece, Piece::Tail(_));
        let called = match &passed.piece {
            Piece::Called(called) => Some(wire::Called {
                place: called.place,
                id: called.id.clone(),
                name: called.name.clone(),
                arguments: called.arguments.clone(),
            }),
            _ => None,
        };
        let (head, body) = match &passed.piece {
            Piece::Said | Piece::Called(_) => (None, None),
            Piece::Body(bytes) | Piece::Tail(bytes) => (None, Some(bytes.to_vec())),
            Piece::Head { status, content_type, headers } => {
                let content_type = content_type.as_deref().map(str::to_owned);
                let header = |(name, value): &(Arc<str>, Arc<str>)| wire::Header { name: name.to_string(), value: value.to_string() };
                let headers = headers.iter().map(header).collect();
                (Some(wire::AnswerHead { status: Some(u32::from(*status)), content_type, headers }), None)
            }
        };
        wire::Passed { tokens: passed.tokens, head, body, tail, called }
    }
}

impl TryFrom<wire::Passed> for Passed {
    type Error = Error;

    fn try_from(passed: wire::Passed) -> Result<Passed, Error> {
        let piece = match (passed.head, passed.body) {
            (Some(head), _) => {
                let status = field::need(head.status, "AnswerHead.status")?;
                let status = u16::try_from(status).ok().filter(|status| (100..1000).contains(status));
                let status = status.ok_or(Error::Range { field: "AnswerHead.status", allowed: "100 to 999" })?;
                field::within(&head.headers, HEADERS_MAX, "AnswerHead.headers")?;
                let headers = head.headers.into_iter().map(|header| (header.name.into(), header.value.into())).collect();
                Piece::Head { status, content_type: head.content_type.map(Into::into), headers }
            }
            (None, Some(bytes)) if passed.tail => Piece::Tail(bytes.into()),
            (None, Some(bytes)) => Piece::Body(bytes.into()),
            (None, None) => match passed.called {
                Some(wire::Called { place, id, name, arguments }) => Piece::Called(Box::new(Called { place, id, name, arguments })),
                None => Piece::Said,
            },
        };
        Ok(Passed { tokens: passed.tokens, piece })
    }
}

impl From<&TokenLogprob> for wire::Logprob {
    fn from(entry: &TokenLogprob) -> wire::Logprob {
        let alternative = |(token, bytes, logprob): &(u32, Vec<u8>, f32)| wire::Alternative {
            token: *token,
            bytes: bytes.clone(),
            logprob: Some(*logprob),
        };
        wire::Logprob {
            token: entry.token,
            bytes: entry.bytes.clone(),
            logprob: Some(entry.logprob),
            top: entry.top.iter().map(alternative).collect(),
        }
    }
}

impl TryFrom<wire::Logprob> for TokenLogprob {
    type Error = Error;

    fn try_from(entry: wire::Logprob) -> Result<TokenLogprob, Error> {
        let alternative = |a: wire::Alternative| Ok((a.token, a.bytes, field::need(a.logprob, "Alternative.logprob")?));
        Ok(TokenLogprob {
            token: entry.token,
            bytes: entry.bytes,
            logprob: field::need(entry.logprob, "Logprob.logprob")?,
            top: entry.top.into_iter().map(alternative).collect::<Result<_, Error>>()?,
        })
    }
}

impl From<&Outcome> for wire::Outcome {
    fn from(outcome: &Outcome) -> wire::Outcome {
        wire::Outcome {
            cause: wire::Cause::from(outcome.cause).into(),
            kind: wire::OutcomeKind::from(outcome.kind()).into(),
            reason: outcome.reason.clone(),
        }
    }
}

impl TryFrom<wire::Outcome> for Outcome {
    type Error = Error;

    /// The kind follows from the cause; a peer that sees it otherwise has another table, and nothing it says of ends can be relied on.
    fn try_from(outcome: wire::Outcome) -> Result<Outcome, Error> {
        let cause = word::<wire::Cause, Cause>(outcome.cause, "Outcome.cause")?;
        let kind = word::<wire::OutcomeKind, OutcomeKind>(outcome.kind, "Outcome.kind")?;
        if kind != cause.outcome() {
            return Err(Error::OutcomeKind { cause, kind });
        }
        Ok(Outcome { cause, reason: outcome.reason })
    }
}

impl From<Usage> for wire::Usage {
    fn from(usage: Usage) -> wire::Usage {
        wire::Usage { prompt: usage.prompt, cached_prompt: usage.cached_prompt, generated: usage.generated }
    }
}

impl From<wire::Usage> for Usage {
    fn from(usage: wire::Usage) -> Usage {
        Usage { prompt: usage.prompt, cached_prompt: usage.cached_prompt, generated: usage.generated }
    }
}

impl From<Receipt> for wire::Receipt {
    fn from(receipt: Receipt) -> wire::Receipt {
        wire::Receipt {
            blocks_held: receipt.blocks_held,
            blocks_peak: receipt.blocks_peak,
            blocks_shared: receipt.blocks_shared,
            steps: receipt.steps,
            fence: receipt.fence.0,
        }
    }
}

impl From<wire::Receipt> for Receipt {
    fn from(receipt: wire::Receipt) -> Receipt {
        Receipt {
            blocks_held: receipt.blocks_held,
            blocks_peak: receipt.blocks_peak,
            blocks_shared: receipt.blocks_shared,
            steps: receipt.steps,
            fence: StepId(receipt.fence),
        }
    }
}
