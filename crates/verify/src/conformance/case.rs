//! What a case is, and how its body says what came of it.
//!
//! Invariant: a body that found nothing out says so (`Fault::Skipped`); only what was seen passes.

use std::pin::Pin;

use super::bench::Bench;

/// Why a case did not pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The worker breaks the protocol: what was seen.
    Failed(String),
    /// Nothing can be said: why.
    Skipped(String),
}

/// What was seen, in words, or why the case did not pass.
pub(super) type Found = Result<String, Fault>;

/// A case's body.
pub(super) type Body = fn(Bench) -> Pin<Box<dyn Future<Output = Found> + Send>>;

/// When a case is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Length {
    /// Takes a second or two.
    Short,
    /// Waits for a lease or for a question.
    Long,
    /// Leaves the worker of no use.
    Last,
}

/// One case.
pub(super) struct Case {
    pub group: &'static str,
    pub name: &'static str,
    /// The sentence of the .proto file, or the clause of the contract.
    pub proves: &'static str,
    pub length: Length,
    pub body: Body,
}

impl Case {
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.group, self.name)
    }
}

/// Fails unless something holds.
pub(super) fn must(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault::Failed(otherwise())) }
}

/// A case without the ceremony.
macro_rules! case {
    ($group:literal, $body:ident, $length:ident, $proves:literal) => {
        $crate::conformance::case::Case {
            group: $group,
            name: stringify!($body),
            proves: $proves,
            length: $crate::conformance::case::Length::$length,
            body: |bench| Box::pin($body(bench)),
        }
    };
}
pub(super) use case;
