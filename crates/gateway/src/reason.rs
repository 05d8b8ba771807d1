//! Why a run ended, where its cause alone does not say what its caller is told of that.
//!
//! An outcome has one sentence for people, and is kept, sent and shown with that. Which of these it is stands in how the sentence begins, which
//! is nobody's to know but this file's.
//!
//! Invariant: what is written here is read back as what it was.

use std::fmt;

use lifecycle::{Cause, Outcome};

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// An engine's own answer says it to whoever asked: its status, or an error in its stream.
    Theirs(String),
    /// An engine was waited for in vain.
    Late(String),
    /// There was no way to an engine, which has got nothing.
    Unreached(String),
    /// No engine that is known has this model, and none is to come that is not known.
    NoModel(String),
    /// Anything else, of which the cause says enough.
    Plain(String),
}

type Make = fn(String) -> Reason;

/// How each begins. None is the beginning of another.
const BEGINNINGS: [(&str, Make); 4] = [
    ("the engine answered ", Reason::Theirs),
    ("the engine is too slow: ", Reason::Late),
    ("the engine cannot be reached: ", Reason::Unreached),
    ("no engine has the model: ", Reason::NoModel),
];

impl Reason {
    /// What an outcome says.
    pub fn of(outcome: &Outcome) -> Option<Reason> {
        let text = outcome.reason.as_deref()?;
        let known = BEGINNINGS.iter().find_map(|(begins, make)| text.strip_prefix(begins).map(|rest| make(rest.to_owned())));
        Some(known.unwrap_or_else(|| Reason::Plain(text.to_owned())))
    }

    /// An end for this reason.
    pub fn because(self, cause: Cause) -> Outcome {
        Outcome::because(cause, self.to_string())
    }

    fn parts(&self) -> (&'static str, &str) {
        let [(theirs, _), (late, _), (unreached, _), (no_model, _)] = BEGINNINGS;
        match self {
            Reason::Theirs(what) => (theirs, what),
            Reason::Late(what) => (late, what),
            Reason::Unreached(what) => (unreached, what),
            Reason::NoModel(what) => (no_model, what),
            Reason::Plain(text) => ("", text),
        }
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Reason {
        Reason::Plain(text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (begins, what) = self.parts();
        write!(f, "{begins}{what}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let what = || "it hangs".to_owned();
        for make in BEGINNINGS.map(|(_, make)| make).into_iter().chain([Reason::Plain as Make]) {
            let outcome = make(what()).because(Cause::UpstreamError);
            assert_eq!(Reason::of(&outcome), Some(make(what())), "{outcome:?}");
        }
        assert_eq!(Reason::of(&Outcome::of(Cause::Stop)), None);
    }

    /// What is kept of runs of before reads as it did.
    #[test]
    fn each_begins_as_it_always_did() {
        let said = [Reason::Theirs("500".into()), Reason::Late("x".into()), Reason::Unreached("x".into())].map(|reason| reason.to_string());
        assert_eq!(said, ["the engine answered 500", "the engine is too slow: x", "the engine cannot be reached: x"]);
    }
}
