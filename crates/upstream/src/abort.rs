//! What is sent to an engine to cancel one request by its id, beside closing the connection.
//!
//! SGLang takes an id for the beginning of one, and ends every request whose id begins so; so all ids that are given here have one length,
//! and none can be another's beginning. An answer of 200 proves nothing: engines give it for ids that they never had. What proves
//! something is `evidence`; and of another kvit, which is asked by `link/proof`, its record of the run (`record`).
//!
//! Invariant: what is sent can end no request but the one that is meant.
// contract: C-29

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::client::{CallError, Client, Limits};
use super::kind::{CancelBy, Kind};

/// Prompts of one request whose parts are named one by one; of more, closing the connection must do.
const PROMPTS_MAX: u32 = 1024;
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// What a kvit is told that a closed connection means, whatever it takes it for otherwise.
const ON_DISCONNECT: (HeaderName, HeaderValue) = (HeaderName::from_static("x-on-disconnect"), HeaderValue::from_static("cancel"));
/// Where a kvit has its records of runs.
const RUNS: &str = "/v1/runs";

/// What one request is called at its upstream: always 32 digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestName(pub u128);

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl RequestName {
    /// Where a kvit has its record of the request.
    pub fn record(self) -> String {
        format!("{RUNS}/{self}")
    }

    /// Where a kvit is told to cancel it, and answers with that record: at once, or when it is released, at the latest when `wait` is over.
    pub fn cancel(self, wait: Option<Duration>) -> String {
        let wait = wait.map_or(String::new(), |wait| format!("?wait_ms={}", wait.as_millis()));
        format!("{RUNS}/{self}/cancel{wait}")
    }
}

/// Where a kvit would have a run that nobody has: another one each time.
pub(crate) fn nobodys() -> String {
    let any = || u128::from(RandomState::new().build_hasher().finish());
    RequestName(any() << 64 | any()).record()
}

/// What a request asks for, as far as its name at the engine goes by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asks {
    /// `/v1/chat/completions`.
    Chat {
        /// Answers.
        n: u32,
    },
    /// `/v1/completions`.
    Completions {
        /// How many of them in one request.
        prompts: u32,
        /// Answers to each.
        n: u32,
    },
    /// Anything else.
    Other,
}

impl Asks {
    /// Whether it is one request to every engine.
    fn is_one(self) -> bool {
        matches!(self, Asks::Chat { n: 0 | 1 } | Asks::Completions { prompts: 1, n: 0 | 1 })
    }
}

/// What came of a cancel by id. None of it says that the request is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// The engine answered with success.
    Taken,
    /// It has no such endpoint, or it is not enabled there. It is not asked again; nor is one that refuses kvit's key (401, 403).
    NotThere,
    /// This kind, or what was asked for, has no cancel by id, or the configuration wants none.
    NoId,
    /// It answered with another status.
    Refused(u16),
    /// There was no answer.
    Failed(CallError),
}

/// How requests of one upstream are named and cancelled by name.
#[derive(Debug)]
pub struct Aborter {
    kind: Kind,
    by: CancelBy,
    missing: AtomicBool,
}

impl Aborter {
    /// For an upstream of this kind, which is told of cancels like this.
    pub fn new(kind: Kind, by: CancelBy) -> Aborter {
        Aborter { kind, by, missing: AtomicBool::new(false) }
    }

    /// Whether the upstream is still asked.
    pub fn enabled(&self) -> bool {
        let is_told = matches!(self.by, CancelBy::IdWithProof | CancelBy::IdWithoutProof);
        is_told && self.kind.has_cancel_by_id() && !self.missing.load(Ordering::Relaxed)
    }

    /// Gives a request its name: in a header, and for SGLang in its body, where the last of two fields of one name counts. Of a request that is
    /// more than one to it (several prompts, answers or inputs) SGLang makes names of its own, or refuses a single one: such a one gets none.
    pub fn name(&self, name: RequestName, headers: &mut HeaderMap, body: Bytes, asks: impl FnOnce() -> Asks) -> Bytes {
        if let Ok(value) = HeaderValue::from_str(&name.to_string()) {
            headers.insert(X_REQUEST_ID, value);
        }
        if self.kind == Kind::Kvit {
            headers.extend([ON_DISCONNECT]);
        }
        if self.kind == Kind::Sglang && asks().is_one() { with_field(body, "rid", &name.to_string()) } else { body }
    }

    /// What is sent: the path and the body. A kvit's answer is read, so it is asked elsewhere.
    pub fn request(&self, name: RequestName, asks: Asks) -> Option<(&'static str, String)> {
        if !self.enabled() {
            return None;
        }
        match (self.kind, asks) {
            (Kind::Vllm, Asks::Chat { .. }) => Some((VLLM_PATH, format!(r#"{{"request_ids":["chatcmpl-{name}"]}}"#))),
            (Kind::Vllm, Asks::Completions { prompts, .. }) if (1..=PROMPTS_MAX).contains(&prompts) => {
                let ids: Vec<_> = (0..prompts).map(|i| format!(r#""cmpl-{name}-{i}""#)).collect();
                Some((VLLM_PATH, format!(r#"{{"request_ids":[{}]}}"#, ids.join(","))))
            }
            (Kind::Sglang, asks) if asks.is_one() => Some(("/abort_request", format!(r#"{{"rid":"{name}"}}"#))),
            _ => None,
        }
    }

    /// Sends it. A `NotThere` is remembered.
    pub async fn send(&self, client: &Client, name: RequestName, asks: Asks, limits: Limits) -> Told {
        let Some((path, body)) = self.request(name, asks) else { return Told::NoId };
        match client.call(Method::POST, path, HeaderMap::new(), body.into(), limits).await {
            Err(error) => Told::Failed(error),
            Ok(answer) => {
                let told = self.heard(answer.status);
                // Read to its end, so that its connection can be used again; what it says is nothing.
                let _ = answer.whole().await;
                told
            }
        }
    }

    fn heard(&self, status: u16) -> Told {
        match status {
            200..=299 => Told::Taken,
            404 | 405 | 501 => {
                self.missing.store(true, Ordering::Relaxed);
                Told::NotThere
            }
            // SGLang takes it from its administrator only, where it has one.
            401 | 403 => {
                self.missing.store(true, Ordering::Relaxed);
                Told::Refused(status)
            }
            other => Told::Refused(other),
        }
    }
}

const VLLM_PATH: &str = "/inference/v1/abort_requests";

/// Puts a field behind all others of a JSON object. What is none is left as it is: the upstream will say so.
fn with_field(body: Bytes, field: &str, value: &str) -> Bytes {
    let Some(close) = body.iter().rposition(|b| !b.is_ascii_whitespace()).filter(|i| body[*i] == b'}') else { return body };
    let Some(before) = body[..close].iter().rposition(|b| !b.is_ascii_whitespace()) else { return body };
    let comma = if body[before] == b'{' { "" } else { "," };
    let mut named = BytesMut::with_capacity(body.len() + field.len() + value.len() + 7);
    named.extend_from_slice(&body[..close]);
    named.extend_from_slice(format!(r#"{comma}"{field}":"{value}"}}"#).as_bytes());
    named.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: RequestName = RequestName(0x0123_abcd);

    fn by_id(kind: Kind) -> Aborter {
        Aborter::new(kind, CancelBy::IdWithoutProof)
    }

    #[test]
    fn what_each_engine_is_sent() {
        let id = "0000000000000000000000000123abcd";
        let vllm = by_id(Kind::Vllm);
        assert_eq!(vllm.request(NAME, Asks::Chat { n: 2 }), Some((VLLM_PATH, format!(r#"{{"request_ids":["chatcmpl-{id}"]}}"#))));
        let two = format!(r#"{{"request_ids":["cmpl-{id}-0","cmpl-{id}-1"]}}"#);
        assert_eq!(vllm.request(NAME, Asks::Completions { prompts: 2, n: 1 }), Some((VLLM_PATH, two)));
        assert_eq!(vllm.request(NAME, Asks::Completions { prompts: 5000, n: 1 }), None);
        assert_eq!(vllm.request(NAME, Asks::Other), None);
        let sglang = by_id(Kind::Sglang);
        for one in [Asks::Chat { n: 1 }, Asks::Completions { prompts: 1, n: 1 }] {
            assert_eq!(sglang.request(NAME, one), Some(("/abort_request", format!(r#"{{"rid":"{id}"}}"#))));
        }
        let several = [Asks::Chat { n: 2 }, Asks::Completions { prompts: 2, n: 1 }, Asks::Completions { prompts: 1, n: 2 }, Asks::Other];
        for several in several {
            assert_eq!(sglang.request(NAME, several), None);
        }
        for kind in [Kind::Kvit, Kind::LlamaCpp, Kind::OpenAi] {
            assert_eq!(by_id(kind).request(NAME, Asks::Chat { n: 1 }), None);
        }
    }

    #[test]
    fn whoever_is_to_be_told_by_closing_alone_or_not_at_all_is_sent_nothing() {
        for (kind, by) in [(Kind::Vllm, CancelBy::Close), (Kind::Sglang, CancelBy::Close), (Kind::Sglang, CancelBy::Nothing)] {
            let aborter = Aborter::new(kind, by);
            assert!(!aborter.enabled() && aborter.request(NAME, Asks::Chat { n: 1 }).is_none(), "{kind} {by:?}");
        }
    }

    #[test]
    fn an_endpoint_that_is_not_there_is_not_asked_again_and_success_is_only_heard() {
        let vllm = by_id(Kind::Vllm);
        assert_eq!((vllm.heard(200), vllm.heard(503)), (Told::Taken, Told::Refused(503)));
        assert!(vllm.enabled());
        assert_eq!(vllm.heard(404), Told::NotThere);
        assert!(!vllm.enabled() && vllm.request(NAME, Asks::Chat { n: 1 }).is_none());
    }

    // An engine that matches by beginning must not hit a neighbour.
    #[test]
    fn no_name_is_the_beginning_of_another() {
        for value in [0, 1, 16, u128::MAX] {
            assert_eq!(RequestName(value).to_string().len(), 32);
        }
    }

    #[test]
    fn the_name_goes_where_the_engine_looks() {
        let mut headers = HeaderMap::new();
        let sglang = by_id(Kind::Sglang);
        for (body, expect) in [
            ("{}", r#"{"rid":"N"}"#),
            (r#"{"a":{"b":1}} "#, r#"{"a":{"b":1},"rid":"N"}"#),
            (r#"{"rid":"theirs" }"#, r#"{"rid":"theirs" ,"rid":"N"}"#),
            ("nonsense", "nonsense"),
            ("}", "}"),
            ("", ""),
        ] {
            let named = sglang.name(NAME, &mut headers, Bytes::from(body), || Asks::Chat { n: 1 });
            assert_eq!(named, expect.replace('N', &NAME.to_string()), "{body}");
        }
        assert_eq!(headers[X_REQUEST_ID], NAME.to_string());
        assert_eq!(sglang.name(NAME, &mut headers, Bytes::from("{}"), || Asks::Other), "{}");
        assert_eq!(by_id(Kind::Vllm).name(NAME, &mut headers, Bytes::from("{}"), || Asks::Chat { n: 1 }), "{}");
        assert!(!headers.contains_key("x-on-disconnect"));
        assert_eq!(by_id(Kind::Kvit).name(NAME, &mut headers, Bytes::from("{}"), || Asks::Chat { n: 1 }), "{}");
        assert!(headers[X_REQUEST_ID] == NAME.to_string() && headers["x-on-disconnect"] == "cancel");
        let id = "0000000000000000000000000123abcd";
        assert_eq!(NAME.cancel(Some(Duration::from_secs(1))), format!("/v1/runs/{id}/cancel?wait_ms=1000"));
        assert_eq!((NAME.cancel(None), NAME.record()), (format!("/v1/runs/{id}/cancel"), format!("/v1/runs/{id}")));
        assert_ne!(nobodys(), nobodys());
    }
}
