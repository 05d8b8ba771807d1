//! What an engine's answer is worth, and what is said of one that is worth nothing.
//!
//! Invariant: what is said here is never told as an answer of the engine's own.
// contract: C-29

use std::sync::Arc;
use std::time::Duration;

use gateway::Reason;
use http::HeaderMap;
use lifecycle::{Cause, Outcome};

use crate::client::{Answer, CallError, Lost, NotSent};
use crate::config::UpstreamConfig;
use crate::sse::Complaint;

/// Most characters of an engine's words that are repeated.
pub(super) const WORDS_MAX: usize = 200;

/// How a request ended.
pub(super) enum End {
    /// The engine said all of it.
    Said(Outcome),
    /// It was given up, for this cause.
    Cancelled(Cause),
    /// The same, before a byte of it was taken.
    Unsent(Cause),
    /// It was told as given up by somebody behind the URL, where nobody here had asked for that: a hop, or another kvit. That is no failure, and
    /// says nothing of the engine.
    GivenUp(Outcome),
    /// Nothing was sent that could have an effect: there was no way to it.
    NotSent(NotSent),
    /// It broke off, or is not what was asked for.
    Lost(Reason),
    /// The upstream refused the gateway itself: its key, or that it has none.
    Unwelcome(String),
}

impl End {
    /// Why it was given up, if it was.
    pub(super) fn cancelled(&self) -> Option<Cause> {
        match self {
            End::Cancelled(cause) => Some(*cause),
            _ => None,
        }
    }

    /// Whether it says itself that the engine has nothing of the request. A failure may be that of a hop before the engine, which gives an error
    /// of its own while the engine goes on.
    // contract: C-29
    pub(super) fn is_proven(&self) -> bool {
        match self {
            End::Said(outcome) => outcome.cause != Cause::UpstreamError,
            End::Unsent(_) | End::NotSent(_) | End::Unwelcome(_) => true,
            End::Cancelled(_) | End::GivenUp(_) | End::Lost(_) => false,
        }
    }
}

/// What is said of an answer that did not come, or broke off.
pub(super) fn broken(why: &Lost) -> Reason {
    match why {
        Lost::HeadTimeout | Lost::IdleTimeout(_) => Reason::Late(why.to_string()),
        why => Reason::Plain(why.to_string()),
    }
}

pub(super) fn broken_off(error: &CallError) -> Reason {
    match error {
        CallError::Lost(why) => broken(why),
        CallError::NotSent(why) => Reason::Plain(why.to_string()),
    }
}

/// Why an answer that is no error cannot be what was asked for, by what it says that it is.
///
/// A path that does not `complete` anything may answer in bytes (vLLM's embeddings with `encoding_format: "bytes"`); a page of text is nobody's
/// answer.
pub(super) fn unfit(answer: &Answer, forwarded: bool, completes: bool) -> Option<String> {
    if answer.status < 200 {
        return Some(format!("the engine's answer is nothing but status {}, which nobody asked it for", answer.status));
    }
    if (300..400).contains(&answer.status) {
        return Some(format!("the engine sends elsewhere (status {}), and nobody follows it", answer.status));
    }
    if !(200..300).contains(&answer.status) || answer.is_event_stream() {
        return None;
    }
    let kind = answer.content_type.as_deref().unwrap_or("none");
    let plain = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = kind == "none" || plain.ends_with("json") || (!completes && !plain.starts_with("text/"));
    let shown = || kind.chars().take(WORDS_MAX).collect::<String>();
    match (forwarded, is_json) {
        (true, true) => None,
        (true, false) => Some(format!("the answer is neither JSON nor a stream of events: its content type is {}", shown())),
        (false, _) => Some(format!("the answer is no stream of events: its content type is {}", shown())),
    }
}

/// What is said of an answer of 401 or 403. The key itself is never said.
// contract: C-30
pub(super) fn unwelcome(config: &UpstreamConfig, status: u16) -> String {
    let name = &config.name;
    match config.api_key {
        Some(_) => format!(
            "the gateway's key is refused by the upstream {name} (status {status}): whoever runs the gateway has to mend its key_file"
        ),
        None => format!("the upstream {name} wants a key, and the gateway has none for it (status {status}): its key_file has to be named"),
    }
}

/// Whether a refusal of 403 says that it is about what the caller asked: hosted services moderate so, and name what they have flagged.
pub(super) fn is_about_content(status: u16, body: &[u8]) -> bool {
    status == 403 && memchr::memmem::find(body, b"\"flagged_input\"").is_some()
}

/// How long whoever answers 429 wants to be left alone, if it says that in a number.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok().filter(|n| (0.0..1e9).contains(n));
    let seconds = number("retry-after-ms").map(|ms| ms / 1e3).or_else(|| number("retry-after"))?;
    Some(Duration::from_secs_f64(seconds))
}

/// What an error says, as far as it is repeated.
pub(super) fn words(error: &Complaint<'_>) -> String {
    error.message.chars().take(WORDS_MAX).collect()
}

/// Most headers of an answer that are passed on, and most bytes of them.
const HEADERS_MAX: (usize, usize) = (32, 8 << 10);

/// The headers that are passed on: those that are text, as far as they are not too many.
pub(super) fn headers(headers: &HeaderMap) -> Arc<[(Arc<str>, Arc<str>)]> {
    let mut left = HEADERS_MAX.1;
    let text = headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    let fit = text.take(HEADERS_MAX.0).take_while(|(name, value)| {
        let bytes = name.len() + value.len();
        let fits = bytes <= left;
        left = left.saturating_sub(bytes);
        fits
    });
    fit.map(|(name, value)| (name.into(), value.into())).collect()
}

/// What an engine's word for an end means; none for one that says that the answer did not come to its own end.
pub(super) fn finish(word: &str) -> Option<Cause> {
    match word {
        "length" => Some(Cause::Length),
        "abort" | "aborted" | "cancel" | "cancelled" | "canceled" | "error" => None,
        _ => Some(Cause::Stop),
    }
}

/// What is said of an answer that the engine ended so. Whoever is passed its bytes has read the word, and behind it that this is no success.
pub(super) fn given_up(word: &str) -> String {
    let word: String = word.chars().take(WORDS_MAX).collect();
    format!("the engine gave the answer up before its end, and nobody here had asked it to (finish reason `{word}`)")
}
