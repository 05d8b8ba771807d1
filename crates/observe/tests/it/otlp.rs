//! A run's spans, read back from their bytes with OpenTelemetry's own crate.

use std::collections::{BTreeMap, HashSet};

use lifecycle::event::Event;
use lifecycle::{Cause, Guarantee, Incarnation, Milestone, Outcome, RunKey};
use observe::Journal;
use observe::otlp::{Asked, Incoming, Process, RunTrace, SCHEMA_URL, Sample, request};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message;

use crate::story::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn asked() -> Asked {
    Asked { operation: "chat", stream: true, n: 1, max_tokens: Some(200) }
}

fn trace(parent: Option<&str>) -> RunTrace {
    let incoming = parent.map(|text| Incoming::parse(text, Some("rojo=1")).expect("a traceparent"));
    RunTrace::of(incoming, Sample::Parent(1.0), (0x1111, 0x2222))
}

/// What a collector reads of a run.
fn read(journal: &Journal, key: &RunKey, trace: &RunTrace) -> ResourceSpans {
    let finished = journal.finished(key, trace, asked()).expect("it has settled");
    let process = Process { name: "gateway", version: "0.1.0", incarnation: Incarnation(7).to_string() };
    let bytes = request(&process, finished.spans()).encode_to_vec();
    let mut read = ExportTraceServiceRequest::decode(&*bytes).expect("OTLP");
    assert_eq!(read.encode_to_vec(), bytes, "nothing is in it that the protocol has not");
    assert_eq!(read.resource_spans.len(), 1);
    read.resource_spans.remove(0)
}

fn spans(journal: &Journal, key: &RunKey, trace: &RunTrace) -> Vec<Span> {
    let mut read = read(journal, key, trace);
    let spans = read.scope_spans.remove(0).spans;
    is_a_tree(&spans);
    for span in &spans {
        // contract: C-1
        assert_eq!(text(&span.attributes, "kvit.run.id").as_deref(), Some(key.run.as_str()), "{}", span.name);
    }
    spans
}

/// One root, every other span within the trace below one of them, no id twice, and no time backwards.
fn is_a_tree(spans: &[Span]) {
    let ids: HashSet<&[u8]> = spans.iter().map(|span| &*span.span_id).collect();
    assert_eq!(ids.len(), spans.len());
    for (at, span) in spans.iter().enumerate() {
        assert_eq!((span.trace_id.len(), span.span_id.len(), &span.trace_id), (16, 8, &spans[0].trace_id));
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
        assert_eq!(at > 0, ids.contains(&*span.parent_span_id), "{span:?}");
        assert!(span.events.is_sorted_by_key(|event| event.time_unix_nano), "{span:?}");
        if let Some(parent) = spans.iter().find(|parent| parent.span_id == span.parent_span_id) {
            assert!(parent.start_time_unix_nano <= span.start_time_unix_nano, "{} begins before {}", span.name, parent.name);
        }
    }
}

fn value(attributes: &[KeyValue], key: &str) -> Option<Value> {
    attributes.iter().find(|attribute| attribute.key == key).and_then(|attribute| attribute.value.clone()?.value)
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    match value(attributes, key)? {
        Value::StringValue(text) => Some(text),
        other => panic!("{key}: {other:?}"),
    }
}

fn count(span: &Span, key: &str) -> Option<i64> {
    match value(&span.attributes, key)? {
        Value::IntValue(count) => Some(count),
        other => panic!("{key}: {other:?}"),
    }
}

/// Every span as `parent > name`, with how long after the run's beginning it began and how long it took, in microseconds.
fn shape(spans: &[Span]) -> BTreeMap<String, (u64, u64)> {
    let name = |id: &[u8]| spans.iter().find(|span| span.span_id == id).map_or("", |span| &*span.name);
    let us = |ns: u64| ns.div_ceil(1000);
    let of = |span: &Span| {
        (us(span.start_time_unix_nano - spans[0].start_time_unix_nano), us(span.end_time_unix_nano - span.start_time_unix_nano))
    };
    spans.iter().map(|span| (format!("{} > {}", name(&span.parent_span_id), span.name), of(span))).collect()
}

// contract: C-6 C-24
#[test]
fn a_run_whose_caller_left_is_a_tree_of_what_happened_and_no_error() {
    let (journal, key) = (journal(), key("r"));
    cancelled_run(&journal, &key);
    let spans = spans(&journal, &key, &trace(Some(PARENT)));
    let expected = [
        (" > chat smollm2-135m-instruct", (0, 143_300)),
        ("chat smollm2-135m-instruct > queue", (0, 50)),
        ("chat smollm2-135m-instruct > attempt 1", (50, 143_150)),
        ("attempt 1 > queue", (100, 300)),
        ("attempt 1 > prefill", (400, 21_100)),
        ("attempt 1 > decode", (21_500, 118_850)),
        ("chat smollm2-135m-instruct > after_disconnect", (140_200, 3_000)),
        ("after_disconnect > client-gateway", (140_200, 3_100)),
        ("after_disconnect > gateway-worker", (140_200, 3_000)),
        ("after_disconnect > worker-engine", (140_300, 2_900)),
        ("after_disconnect > engine-allocator", (140_300, 2_900)),
    ];
    assert_eq!(shape(&spans), expected.map(|(name, span)| (name.to_owned(), span)).into());
    assert!(spans.iter().all(|span| span.status.as_ref().is_none_or(|status| status.code() == StatusCode::Unset)));
    let root = &spans[0];
    assert_eq!((root.kind(), &*root.trace_state), (SpanKind::Server, "rojo=1"));
    assert_eq!(root.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes());
    assert_eq!((&*root.parent_span_id, root.flags), (&0xb7ad_6b71_6920_3331_u64.to_be_bytes()[..], 0x301));
    // Every milestone that was reached, when its view says.
    let view = journal.run(&key).expect("known");
    let reached: Vec<_> =
        Milestone::ALL.iter().filter_map(|m| Some((m.as_str(), (view.milestones.ms(*m)? * 1e6).round() as u64))).collect();
    let mut events: Vec<_> = root.events.iter().map(|e| (&*e.name, e.time_unix_nano - root.start_time_unix_nano)).collect();
    events.sort_by_key(|(name, _)| Milestone::ALL.iter().position(|m| m.as_str() == *name));
    assert_eq!(events, reached);
    let after = spans.iter().find(|span| span.name == "after_disconnect").expect("it is there");
    let names: Vec<&str> = after.events.iter().map(|event| &*event.name).collect();
    assert_eq!(
        names,
        ["cancel_sent", "cancel_received", "cancel_applied", "cancel_acknowledged", "last_compute", "fence_completed", "released"]
    );
    assert_eq!(
        (count(after, "kvit.tokens.after_disconnect"), text(&after.attributes, "kvit.cause").as_deref()),
        (Some(1), Some("client_closed"))
    );
}

#[test]
fn the_counts_are_those_of_the_record_and_the_names_those_of_the_convention() {
    let (journal, key) = (journal(), key("r"));
    cancelled_run(&journal, &key);
    let all = read(&journal, &key, &trace(None));
    assert_eq!((&*all.schema_url, &*all.scope_spans[0].schema_url), (SCHEMA_URL, SCHEMA_URL));
    let resource = &all.resource.as_ref().expect("a resource").attributes;
    assert_eq!(text(resource, "service.name").as_deref(), Some("kvit"));
    assert_eq!(text(resource, "service.instance.id"), Some(Incarnation(7).to_string()));
    let root = &all.scope_spans[0].spans[0];
    let view = journal.run(&key).expect("known");
    let of = |name: &str| count(root, name).and_then(|n| u64::try_from(n).ok());
    for (name, in_record) in [
        ("gen_ai.usage.input_tokens", view.tokens.prompt),
        ("gen_ai.usage.output_tokens", view.tokens.generated),
        ("gen_ai.usage.cache_read.input_tokens", view.tokens.cached_prompt),
        ("kvit.tokens.delivered", view.tokens.delivered),
        ("kvit.tokens.after_disconnect", view.tokens.after_disconnect),
        ("kvit.tokens.after_receipt", view.tokens.after_receipt),
        ("kvit.tokens.overrun", view.tokens.overrun),
        ("kvit.steps.total", view.steps.total),
        ("kvit.steps.after_disconnect", view.steps.after_disconnect),
        ("kvit.blocks.peak", view.blocks.peak.into()),
        ("gen_ai.request.max_tokens", 200),
        ("kvit.attempts", 1),
    ] {
        assert_eq!(of(name), Some(in_record), "{name}");
    }
    assert_eq!((view.tokens.generated, view.tokens.delivered, view.tokens.after_disconnect), (19, 18, 1));
    for (name, said) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", "smollm2-135m-instruct"),
        ("kvit.outcome.kind", "cancelled"),
        ("kvit.outcome.cause", "client_closed"),
        ("kvit.guarantee", "confirmed"),
        ("kvit.delivery", "partial"),
        ("kvit.phase_at_disconnect", "decode"),
        ("kvit.on_disconnect", "cancel"),
    ] {
        assert_eq!(text(&root.attributes, name).as_deref(), Some(said), "{name}");
    }
    assert!(value(&root.attributes, "error.type").is_none() && value(&root.attributes, "gen_ai.response.finish_reasons").is_none());
    assert!(root.parent_span_id.is_empty(), "nobody called it");
}

#[test]
fn a_run_that_expires_before_any_worker_had_it_waits_and_is_no_error() {
    let (journal, key) = (journal(), key("r"));
    let cause = Cause::QueueDeadline;
    let rec = |us, event| of_attempt(&journal, &key, 0, us, event);
    rec(0, accepted());
    rec(500, Event::AbandonmentObserved { cause });
    rec(500, outcome_set(cause));
    assert!(journal.finished(&key, &trace(None), asked()).is_none(), "it is not over");
    rec(600, Event::Settled { proven: true });
    let spans = spans(&journal, &key, &trace(None));
    let expected = [
        (" > chat smollm2-135m-instruct", (0, 600)),
        ("chat smollm2-135m-instruct > queue", (0, 600)),
        ("chat smollm2-135m-instruct > after_disconnect", (500, 100)),
        ("after_disconnect > client-gateway", (500, 100)),
    ];
    assert_eq!(shape(&spans), expected.map(|(name, span)| (name.to_owned(), span)).into());
    assert!(spans.iter().all(|span| span.status.is_none()));
    assert_eq!(text(&spans[0].attributes, "kvit.outcome.kind").as_deref(), Some("expired"));
}

// contract: C-7
#[test]
fn what_failed_is_an_error_and_what_went_well_elsewhere_is_none() {
    let engine = |upstream: &str, request: &str| Event::SentAs { upstream: upstream.into(), request: request.into() };
    let tell = |journal: &Journal, key: &RunKey, last: Cause| {
        of_attempt(journal, key, 0, 0, accepted());
        for (attempt, us) in [(1, 10), (2, 110)] {
            let rec = |after: u64, event| of_attempt(journal, key, attempt, us + after, event);
            rec(0, dispatched());
            rec(1, engine(if attempt == 1 { "a" } else { "b" }, "00ff"));
            rec(1, queued(0));
        }
        of_attempt(journal, key, 1, 100, Event::Void { worker: Incarnation(1) });
        let rec = |us, event| of_attempt(journal, key, 2, us, event);
        rec(200, computed(0, 0, 3, 0));
        rec(200, Event::FirstToken);
        rec(300, Event::AttemptEnded { outcome: Outcome::because(last, "the engine answered 500: SECRET") });
        rec(310, Event::LetGo { guarantee: Guarantee::Observed });
        rec(320, outcome_set(last));
        rec(330, Event::Settled { proven: false });
    };
    for (id, last, code) in [("good", Cause::Length, None), ("bad", Cause::UpstreamError, Some("upstream_error"))] {
        let (journal, key) = (journal(), key(id));
        tell(&journal, &key, last);
        let trace = trace(Some(PARENT));
        let spans = spans(&journal, &key, &trace);
        let failed = |name: &str| {
            spans.iter().find(|span| span.name == name).map(|span| span.status.clone().map(|status| (status.code(), status.message)))
        };
        let error = |why: &str| Some(Some((StatusCode::Error, why.to_owned())));
        assert_eq!(failed(&spans[0].name), Some(code.map(|why| (StatusCode::Error, why.to_owned()))));
        assert_eq!(
            (failed("attempt 1"), failed("attempt 2")),
            (error("worker_lost"), if code.is_some() { error("failed") } else { Some(None) })
        );
        assert_eq!(text(&spans[0].attributes, "error.type").as_deref(), code);
        let reasons = value(&spans[0].attributes, "gen_ai.response.finish_reasons").map(|reasons| format!("{reasons:?}"));
        assert_eq!(reasons.is_some_and(|reasons| reasons.contains("length")), code.is_none());
        let attempt = |n: u32| spans.iter().find(|span| span.name == format!("attempt {n}")).expect("it is there");
        for (n, upstream) in [(1, "a"), (2, "b")] {
            assert_eq!(
                (attempt(n).kind(), text(&attempt(n).attributes, "kvit.upstream.name").as_deref()),
                (SpanKind::Client, Some(upstream))
            );
            // What its engine was told is that span.
            let told: String = attempt(n).span_id.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(trace.traceparent(n), format!("00-0af7651916cd43dd8448eb211c80319c-{told}-01"));
        }
        let of_second = |name: &str| shape(&spans).get(&format!("attempt 2 > {name}")).copied();
        assert_eq!((of_second("before_first_token"), of_second("decode"), of_second("prefill")), (Some((111, 89)), Some((200, 100)), None));
        assert!(!format!("{spans:?}").contains("SECRET"), "an engine's words are nobody's");
    }
}
