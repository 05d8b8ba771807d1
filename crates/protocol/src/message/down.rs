//! From gateway to worker: submit, cancel, claim, disclaim.
//!
//! Invariant: a submit without a worker's life, a number or a prompt is none (C-2).
// contract: C-2, C-8, C-22, C-23

use std::time::Duration;

use lifecycle::message::{DeadlineLeft, Down, Submit};
use lifecycle::{Cause, OutcomeKind};

use crate::limits::{ATTEMPTS_MAX, DEADLINES_MAX};
use crate::words::word;
use crate::worker_v1::{self as wire, down_frame::Message};
use crate::{Error, field, ids};

impl TryFrom<&Down> for Message {
    type Error = Error;

    fn try_from(down: &Down) -> Result<Message, Error> {
        Ok(match down {
            Down::Submit(submit) => Message::Submit((&**submit).try_into()?),
            Down::Cancel { attempt, cause, number, observed_ago } => Message::Cancel(wire::Cancel {
                attempt: Some(attempt.into()),
                cause: wire::Cause::from(*cause).into(),
                number: *number,
                observed_ago_us: field::micros(*observed_ago),
            }),
            Down::Claim { attempts } => Message::Claim(wire::Claim { attempts: ids::write(attempts, ATTEMPTS_MAX, "Claim.attempts")? }),
            Down::Disclaim { attempts } => {
                Message::Disclaim(wire::Disclaim { attempts: ids::write(attempts, ATTEMPTS_MAX, "Disclaim.attempts")? })
            }
            Down::Snapshot { .. } => return Err(Error::NotInSession { message: "Snapshot" }),
        })
    }
}

impl TryFrom<Message> for Down {
    type Error = Error;

    fn try_from(message: Message) -> Result<Down, Error> {
        Ok(match message {
            Message::Submit(submit) => Down::Submit(Box::new(submit.try_into()?)),
            Message::Cancel(cancel) => Down::Cancel {
                attempt: ids::attempt(cancel.attempt, "Cancel.attempt")?,
                cause: word::<wire::Cause, Cause>(cancel.cause, "Cancel.cause")?,
                number: cancel.number,
                observed_ago: Duration::from_micros(cancel.observed_ago_us),
            },
            Message::Claim(claim) => Down::Claim { attempts: ids::read(claim.attempts, ATTEMPTS_MAX, "Claim.attempts")? },
            Message::Disclaim(disclaim) => Down::Disclaim { attempts: ids::read(disclaim.attempts, ATTEMPTS_MAX, "Disclaim.attempts")? },
        })
    }
}

impl TryFrom<&Submit> for wire::Submit {
    type Error = Error;

    fn try_from(submit: &Submit) -> Result<wire::Submit, Error> {
        field::within(&submit.deadlines, DEADLINES_MAX, "Submit.deadlines")?;
        Ok(wire::Submit {
            attempt: Some((&submit.attempt).into()),
            worker: field::bytes(submit.worker),
            number: submit.number,
            model: submit.model.to_string(),
            prompt: Some((&submit.prompt).into()),
            params: Some((&submit.params).into()),
            deadlines: submit.deadlines.iter().map(wire::Deadline::from).collect(),
        })
    }
}

impl TryFrom<wire::Submit> for Submit {
    type Error = Error;

    fn try_from(submit: wire::Submit) -> Result<Submit, Error> {
        field::within(&submit.deadlines, DEADLINES_MAX, "Submit.deadlines")?;
        Ok(Submit {
            attempt: ids::attempt(submit.attempt, "Submit.attempt")?,
            worker: field::incarnation(&submit.worker, "Submit.worker")?,
            number: field::number(submit.number, "Submit.number")?,
            model: submit.model.into(),
            prompt: field::need(submit.prompt, "Submit.prompt")?.into(),
            params: field::need(submit.params, "Submit.params")?.try_into()?,
            deadlines: submit.deadlines.into_iter().map(DeadlineLeft::try_from).collect::<Result<_, Error>>()?,
        })
    }
}

impl From<&DeadlineLeft> for wire::Deadline {
    fn from(deadline: &DeadlineLeft) -> wire::Deadline {
        wire::Deadline { left_us: field::micros(deadline.left), cause: wire::Cause::from(deadline.cause).into() }
    }
}

impl TryFrom<wire::Deadline> for DeadlineLeft {
    type Error = Error;

    fn try_from(deadline: wire::Deadline) -> Result<DeadlineLeft, Error> {
        let cause = word::<wire::Cause, Cause>(deadline.cause, "Deadline.cause")?;
        if cause.outcome() != OutcomeKind::Expired {
            return Err(Error::Range { field: "Deadline.cause", allowed: "a deadline's" });
        }
        Ok(DeadlineLeft { left: Duration::from_micros(deadline.left_us), cause })
    }
}
