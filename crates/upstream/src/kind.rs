//! The kinds of upstream, and what each lets kvit do and see.
//!
//! What is declared here is what the engines' own counters and sources show, not what they promise. A wrong `counted_within` or
//! `shown_before` would make a wrong proof, so where nothing is known the capability is missing, and the level stays `best_effort`.
//!
//! Invariant: no kind but kvit's own declares a proof that needs the engine's word on a cancel, and of that one the word is its record of the
//! very run, never that it was told.
// contract: C-29

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use lifecycle::{Shown, Shows};

/// Which engine an upstream is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Another kvit: `kvit serve`, or a `kvit gateway` before whatever it stands before.
    Kvit,
    /// vLLM's OpenAI server.
    Vllm,
    /// SGLang's.
    Sglang,
    /// llama.cpp's `llama-server`.
    LlamaCpp,
    /// Anything else that speaks OpenAI's protocol: another gateway, a hosted API.
    OpenAi,
}

/// How an upstream is told that a run is cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelBy {
    /// By the run's id, and what it answers is its record of that run, released or not. Only another kvit does. The connection is closed as well.
    IdWithProof,
    /// By the run's id; what it answers says nothing. The connection is closed as well.
    IdWithoutProof,
    /// By closing the connection.
    Close,
    /// Not at all: it is known to go on whatever is done. The level of every cancel is `unsupported`.
    Nothing,
}

impl CancelBy {
    /// The API's word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            CancelBy::IdWithProof => "id_with_proof",
            CancelBy::IdWithoutProof => "id",
            CancelBy::Close => "close",
            CancelBy::Nothing => "none",
        }
    }
}

/// How an upstream is told of the time that a run has left, beside the close when it is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeadlineBy {
    /// `X-Request-Timeout-Ms`, as another kvit takes it.
    Kvit,
    /// `x-litellm-timeout`, in seconds, as LiteLLM takes it.
    LiteLlm,
    /// Not at all: it has no word for it.
    Nothing,
}

/// How much later than here a run's time is over there: its end is kvit's to tell, and that of the hop behind must not come before it.
const LATER: Duration = Duration::from_millis(500);

impl DeadlineBy {
    /// The header that says it.
    // contract: C-28
    pub fn header(self, left: Duration) -> Option<(HeaderName, HeaderValue)> {
        let ms = u64::try_from(left.saturating_add(LATER).as_millis()).unwrap_or(u64::MAX);
        let (name, value) = match self {
            DeadlineBy::Kvit => ("x-request-timeout-ms", ms.to_string()),
            DeadlineBy::LiteLlm => ("x-litellm-timeout", format!("{}.{:03}", ms / 1000, ms % 1000)),
            DeadlineBy::Nothing => return None,
        };
        Some((HeaderName::from_static(name), HeaderValue::from_str(&value).ok()?))
    }
}

impl FromStr for DeadlineBy {
    type Err = String;

    fn from_str(text: &str) -> Result<DeadlineBy, String> {
        match text {
            "kvit" => Ok(DeadlineBy::Kvit),
            "litellm" => Ok(DeadlineBy::LiteLlm),
            "none" => Ok(DeadlineBy::Nothing),
            _ => Err(format!("`{text}` is none of kvit, litellm, none")),
        }
    }
}

/// How fresh the counters are: what they are held to by whoever concludes something from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Freshness {
    /// A request that has shown so many tokens, in events of their own, is counted in every later look for as long as it is there. More than
    /// one where a token may be sent before the step that made it is counted.
    pub shown_before: u32,
    /// A request whose connection was closed before it showed as many has come to the engine so long after the close, or never will; and is
    /// counted by then, unless that needs a witness.
    pub counted_within: Duration,
    /// The counters are of the last step that is over, and no bound is known of how long one takes. So such a request is counted only in looks
    /// behind a step that began after it had come: a later request that has shown `shown_before` tokens shows that such a one is over.
    pub needs_witness: bool,
    /// What was generated can be read here so long after it was generated, at the latest.
    pub delivered_within: Duration,
}

/// What a kind of upstream can do, and what can be seen of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// How a cancel is sent.
    pub cancel: CancelBy,
    /// What can be seen of it where it shows its counters.
    pub shows: Shows,
    /// How fresh the running and waiting ones are; `None` where that is not known, so that they prove nothing.
    pub fresh: Option<Freshness>,
    /// Least time between two looks, where looking keeps the engine from noticing a closed connection.
    pub look_every_min: Option<Duration>,
    /// It closes the connection behind a stream although its head says that it does not: whoever sends another request on it may be cut off.
    pub closes_behind_streams: bool,
    /// It may forget the id of a request as soon as its connection is closed, and compute it on: told by that id then, it does nothing.
    pub forgets_closed: bool,
    /// Requests at once where it does not say itself.
    pub slots: u32,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::Kvit, Kind::Vllm, Kind::Sglang, Kind::LlamaCpp, Kind::OpenAi];

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Kvit => "kvit",
            Kind::Vllm => "vllm",
            Kind::Sglang => "sglang",
            Kind::LlamaCpp => "llamacpp",
            Kind::OpenAi => "openai",
        }
    }

    /// Whether it has a call that cancels a request by its id.
    pub fn has_cancel_by_id(self) -> bool {
        matches!(self.capabilities().cancel, CancelBy::IdWithProof | CancelBy::IdWithoutProof)
    }

    /// How it is told of a cancel where the configuration says this of it. What it has no call for is done by closing.
    pub fn cancel(self, wanted: Option<CancelBy>) -> CancelBy {
        match wanted {
            Some(CancelBy::IdWithProof | CancelBy::IdWithoutProof) | None => self.capabilities().cancel,
            Some(by) => by,
        }
    }

    /// What it can do.
    pub fn capabilities(self) -> Capabilities {
        let second = Duration::from_secs(1);
        let shows = |requests, kv_usage, tokens| Shows { requests, kv_usage, tokens, proves_within: None };
        match self {
            // It keeps a record of each run, which says when nothing of it is left and how well that is known. A run that is cancelled in its
            // queue costs nothing, so it may be given many.
            Kind::Kvit => Capabilities {
                cancel: CancelBy::IdWithProof,
                shows: shows(Shown::PerRequest, Shown::InSum, Shown::PerRequest),
                fresh: None,
                look_every_min: None,
                closes_behind_streams: false,
                forgets_closed: false,
                slots: 256,
            },
            // Its gauges are set behind every step, after that step's tokens were handed on, and a step takes as long as its prompts are long. It
            // answers 200 for ids that it never had.
            Kind::Vllm => Capabilities {
                cancel: CancelBy::IdWithoutProof,
                shows: shows(Shown::InSum, Shown::InSum, Shown::InSum),
                fresh: Some(Freshness { shown_before: 2, counted_within: 2 * second, needs_witness: true, delivered_within: second }),
                look_every_min: None,
                closes_behind_streams: false,
                forgets_closed: false,
                slots: 256,
            },
            // Its gauges are set at prefills and every so many steps of decoding (40 unless it was told otherwise), and not when an idle
            // engine drops a request: they are too old to be proofs. A stream that is closed takes its id along, while the request may be
            // computed on (sglang #35255, #34894).
            Kind::Sglang => Capabilities {
                cancel: CancelBy::IdWithoutProof,
                shows: shows(Shown::InSum, Shown::InSum, Shown::InSum),
                fresh: None,
                look_every_min: Some(second / 2),
                closes_behind_streams: false,
                forgets_closed: true,
                slots: 256,
            },
            // The look goes through the same queue as the requests, so it is never old. But the engine looks for closed connections only in
            // moments when that queue is empty, and its token counters move when a request ends. Of an answer that has not begun it looks
            // behind a second in which it answered nobody, which a look that fell into it would begin anew: hence more than that second.
            Kind::LlamaCpp => Capabilities {
                cancel: CancelBy::Close,
                shows: shows(Shown::InSum, Shown::No, Shown::No),
                fresh: Some(Freshness { shown_before: 1, counted_within: second * 3 / 2, needs_witness: false, delivered_within: second }),
                look_every_min: Some(2 * second),
                closes_behind_streams: true,
                forgets_closed: false,
                slots: 4,
            },
            Kind::OpenAi => Capabilities {
                cancel: CancelBy::Close,
                shows: shows(Shown::No, Shown::No, Shown::No),
                fresh: None,
                look_every_min: None,
                closes_behind_streams: false,
                forgets_closed: false,
                slots: 256,
            },
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let known = || Kind::ALL.map(Kind::name).join(", ");
        Kind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| format!("`{text}` is none of {}", known()))
    }
}

impl FromStr for CancelBy {
    type Err = String;

    fn from_str(text: &str) -> Result<CancelBy, String> {
        match text {
            "id" => Ok(CancelBy::IdWithoutProof),
            "close" => Ok(CancelBy::Close),
            "none" => Ok(CancelBy::Nothing),
            _ => Err(format!("`{text}` is none of id, close, none")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("VLLM".parse::<Kind>().is_err_and(|why| why.contains("kvit, vllm, sglang, llamacpp, openai")));
    }

    #[test]
    fn the_time_that_is_left_is_said_in_each_ones_own_unit_and_ends_behind_kvits_own() {
        let said = |by: DeadlineBy, ms| {
            let header = by.header(Duration::from_millis(ms));
            header.map(|(name, value)| format!("{name}: {}", value.to_str().expect("text")))
        };
        assert_eq!(said(DeadlineBy::Kvit, 1500).as_deref(), Some("x-request-timeout-ms: 2000"));
        assert_eq!(said(DeadlineBy::LiteLlm, 1504).as_deref(), Some("x-litellm-timeout: 2.004"));
        assert_eq!(
            (said(DeadlineBy::Nothing, 1), "litellm".parse(), "x".parse::<DeadlineBy>().is_err()),
            (None, Ok(DeadlineBy::LiteLlm), true)
        );
    }

    // contract: C-29
    #[test]
    fn nobody_elses_engine_proves_by_its_word_and_none_proves_what_it_does_not_show() {
        for kind in Kind::ALL {
            let can = kind.capabilities();
            assert_eq!(can.cancel == CancelBy::IdWithProof, kind == Kind::Kvit, "{kind}");
            assert_eq!(can.shows.requests == Shown::PerRequest, kind == Kind::Kvit, "{kind}");
            assert!(can.fresh.is_none() || can.shows.requests != Shown::No, "{kind}");
            assert!(can.slots > 0);
        }
    }
}
