//! Runs as spans in their callers' traces: what a caller says of its trace is kept with its run, whoever is asked for the run is told of it, and
//! when the run is over its spans are exported over OTLP, if a collector is named.
//!
//! Without a collector there are no spans, and a caller's word is passed on as it came.
//!
//! Invariant: nothing that a caller says of a trace refuses its request or changes its run.
// contract: C-1

mod config;
mod exporter;
mod send;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use lifecycle::AttemptId;
use lifecycle::message::Prompt;
use lifecycle::params::Params;
use observe::otlp::{Asked, Incoming, RunTrace};

pub use config::{OtlpConfig, OtlpEndpoint, OtlpHeaders, OtlpProtocol};
pub(crate) use exporter::Exporter;

use crate::calls::{Calls, Entry};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// What the caller of a request says of its trace. What is not as the specification says is as if it had not been sent.
pub(crate) fn incoming(headers: &HeaderMap) -> Option<Incoming> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let parent = parents.next().filter(|_| parents.next().is_none())?.to_str().ok()?;
    // Several are one.
    let states: Option<Vec<&str>> = headers.get_all(TRACESTATE).iter().map(|value| value.to_str().ok()).collect();
    let state = states.filter(|states| !states.is_empty()).map(|states| states.join(","));
    Incoming::parse(parent, state.as_deref())
}

/// A run's place in a trace.
pub(crate) enum Traced {
    /// It makes spans.
    Own { trace: RunTrace, asked: Asked },
    /// It makes none, and its caller's word goes on as it came.
    Passing(Incoming),
}

impl Calls {
    /// The place of a run that begins.
    pub(crate) fn traced(&self, incoming: Option<Incoming>, (prompt, params): (&Prompt, &Params), stream: bool) -> Option<Box<Traced>> {
        if self.exporter.is_none() {
            return incoming.map(|incoming| Box::new(Traced::Passing(incoming)));
        }
        let mut random = [0; 24];
        // Without randomness there is no id that is nobody else's.
        getrandom::fill(&mut random).ok()?;
        let (trace, seed) = random.split_at(16);
        let number = |bytes: &[u8]| bytes.iter().fold(0_u128, |n, byte| n << 8 | u128::from(*byte));
        let trace = RunTrace::of(incoming, self.config.otlp.sample, (number(trace), number(seed) as u64));
        // A cap that nobody could read bounds nothing.
        let max_tokens = params.max_tokens.filter(|cap| *cap < u32::MAX);
        let asked = Asked { operation: operation(prompt), stream, n: params.n, max_tokens };
        Some(Box::new(Traced::Own { trace, asked }))
    }

    /// What an engine is told of the trace that an attempt belongs to.
    pub(crate) fn trace_headers(&self, attempt: &AttemptId) -> Vec<(HeaderName, HeaderValue)> {
        let table = self.lock();
        let Some(traced) = table.entries.get(&attempt.key).and_then(|entry| entry.traced.as_ref()) else { return Vec::new() };
        let (parent, state) = match &**traced {
            Traced::Own { trace, .. } => (trace.traceparent(attempt.attempt), trace.state()),
            Traced::Passing(incoming) => (incoming.traceparent(), incoming.state()),
        };
        let headers = [(TRACEPARENT, Some(parent.as_str())), (TRACESTATE, state)];
        headers.into_iter().filter_map(|(name, value)| Some((name, HeaderValue::from_str(value?).ok()?))).collect()
    }

    /// A run is over: its spans are exported.
    pub(crate) fn export(&self, entry: &Entry) {
        let (Some(exporter), Some(traced)) = (&self.exporter, &entry.traced) else { return };
        let Traced::Own { trace, asked } = &**traced else { return };
        if !trace.is_sampled() {
            return;
        }
        if let Some(run) = self.journal.finished(&entry.key, trace, *asked) {
            exporter.take(run);
        }
    }
}

/// What is done for a prompt, in the words of OpenTelemetry's conventions where they have one.
fn operation(prompt: &Prompt) -> &'static str {
    let path = match prompt {
        Prompt::Chat(_) | Prompt::Worded(_) => return "chat",
        Prompt::Text(_) | Prompt::Tokens(_) => return "text_completion",
        Prompt::Forward(forward) => &*forward.path,
    };
    match path.rsplit('/').next() {
        _ if path.ends_with("/chat/completions") => "chat",
        Some("completions") => "text_completion",
        Some("embeddings") => "embeddings",
        Some("rerank") => "rerank",
        Some("score") => "score",
        Some("moderations") => "moderations",
        _ => "pooling",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn one_traceparent_is_one_and_several_tracestates_are_one() {
        let headers = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
            }
            incoming(&headers).map(|read| (read.traceparent(), read.state().map(str::to_owned)))
        };
        let good = |state: Option<&str>| Some((GOOD.to_owned(), state.map(str::to_owned)));
        assert_eq!(headers(&[("traceparent", GOOD), ("tracestate", "a=1"), ("tracestate", "b=2")]), good(Some("a=1,b=2")));
        assert_eq!(headers(&[("traceparent", GOOD)]), good(None));
        assert_eq!(headers(&[("traceparent", GOOD), ("tracestate", "\u{e9}=1")]), good(None));
        for none in [&[("traceparent", GOOD), ("traceparent", GOOD)][..], &[("tracestate", "a=1")], &[("traceparent", "\u{e9}")], &[]] {
            assert_eq!(headers(none), None, "{none:?}");
        }
    }
}
