//! What a gateway keeps of a run for later, as bytes: what was asked for, and each thing that was said of it. Made of the session's own
//! messages, so that what can cross to a worker can be kept, and nothing has a second form.
//!
//! Invariant: a byte ahead of all others says which form the rest has; a form that is not known is an error and never a guess.

use lifecycle::message::{Delta, Submit, Usage};
use lifecycle::{AttemptId, Said};
use prost::Message;

use crate::{Error, field, worker_v1 as wire};

/// The form of everything that is written today.
const FORM: u8 = 1;
const ACCEPTED: u8 = 1;
const DELTA: u8 = 2;
const END: u8 = 3;

/// One thing that was said of an attempt.
pub fn said(attempt: &AttemptId, said: &Said) -> Vec<u8> {
    let (kind, message) = match said {
        Said::Accepted => (ACCEPTED, Vec::new()),
        Said::Delta(delta) => (DELTA, wire::Delta::from(delta).encode_to_vec()),
        Said::End { outcome, usage } => {
            let usage = wire::Usage { prompt: usage.prompt, cached_prompt: usage.cached_prompt, generated: usage.generated };
            let ended = wire::Ended { attempt: Some(attempt.into()), outcome: Some(outcome.into()), usage: Some(usage) };
            (END, ended.encode_to_vec())
        }
    };
    [&[FORM, kind], message.as_slice()].concat()
}

/// What was said, from [`said`]'s bytes.
///
/// # Errors
/// Another form, a kind that is not known, or a message that cannot be read.
pub fn read_said(bytes: &[u8]) -> Result<Said, Error> {
    match bytes {
        [FORM, ACCEPTED] => Ok(Said::Accepted),
        [FORM, DELTA, message @ ..] => Ok(Said::Delta(Delta::try_from(decode::<wire::Delta>(message, "Delta")?)?)),
        [FORM, END, message @ ..] => {
            let ended = decode::<wire::Ended>(message, "Ended")?;
            let usage = field::need(ended.usage, "Ended.usage")?;
            let usage = Usage { prompt: usage.prompt, cached_prompt: usage.cached_prompt, generated: usage.generated };
            Ok(Said::End { outcome: field::need(ended.outcome, "Ended.outcome")?.try_into()?, usage })
        }
        _ => Err(Error::Form { what: "Said" }),
    }
}

/// What was asked for.
///
/// # Errors
/// A list beyond its limit.
pub fn asked(submit: &Submit) -> Result<Vec<u8>, Error> {
    Ok([&[FORM], wire::Submit::try_from(submit)?.encode_to_vec().as_slice()].concat())
}

/// What was asked for, from [`asked`]'s bytes.
///
/// # Errors
/// Another form, or a message that cannot be read.
pub fn read_asked(bytes: &[u8]) -> Result<Submit, Error> {
    match bytes {
        [FORM, message @ ..] => decode::<wire::Submit>(message, "Submit")?.try_into(),
        _ => Err(Error::Form { what: "Submit" }),
    }
}

fn decode<M: Message + Default>(bytes: &[u8], what: &'static str) -> Result<M, Error> {
    // prost names a field and a reason, and no content; the message's name is enough here.
    M::decode(bytes).map_err(|_| Error::Form { what })
}

#[cfg(test)]
mod tests {
    use lifecycle::message::Prompt;
    use lifecycle::params::Params;
    use lifecycle::{Cause, Incarnation, Outcome, RunId, RunKey, Tenant};

    use super::*;

    fn attempt() -> AttemptId {
        AttemptId { key: RunKey { tenant: Tenant::default(), run: RunId::parse("r").expect("an id") }, attempt: 2 }
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let delta = Delta {
            attempt: attempt(),
            sequence: 1,
            text: "é".into(),
            tokens: vec![7, 8],
            logprobs: Vec::new(),
            finish: Some(Cause::Length),
            passed: None,
        };
        let usage = Usage { prompt: 3, cached_prompt: 1, generated: 2 };
        let end = Said::End { outcome: Outcome::because(Cause::DeviceError, "why"), usage };
        for said in [Said::Accepted, Said::Delta(delta), end] {
            assert_eq!(read_said(&super::said(&attempt(), &said)), Ok(said));
        }
        let submit = Submit {
            attempt: attempt(),
            worker: Incarnation(5),
            number: 1,
            model: "m".into(),
            prompt: Prompt::Text("p".into()),
            params: Params { n: 2, ..Params::default() },
            deadlines: Vec::new(),
        };
        let again = read_asked(&asked(&submit).expect("no list is too long")).expect("it is what was written");
        assert_eq!((again.prompt, again.params, again.attempt), (submit.prompt, submit.params, submit.attempt));
    }

    #[test]
    fn another_form_is_an_error() {
        let bad: [&[u8]; 7] = [&[], &[0], &[2, ACCEPTED], &[FORM], &[FORM, 9], &[FORM, ACCEPTED, 0], &[FORM, DELTA, 0xff]];
        for bytes in bad {
            assert!(matches!(read_said(bytes), Err(Error::Form { .. })), "{bytes:?}");
        }
        assert!(matches!(read_asked(&[]), Err(Error::Form { .. })));
        assert!(matches!(read_asked(&[2, 8, 1]), Err(Error::Form { .. })));
        assert!(matches!(read_asked(&[FORM]), Err(Error::Missing { .. })));
    }
}
