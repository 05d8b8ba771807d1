//! Spans of real servers' runs, as a collector gets them: by both protocols, in their callers' traces, through a chain of two servers, and what
//! a collector that is away, or hangs, costs.

mod collector;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::{Value, json};

use crate::grpc_client::{Grpc, chat, model};
use crate::leaving_guest::metrics;
use crate::server::{Caller, Leave, PATIENCE, Server, chat_body, lasting_model, tiny_model};
use collector::{Collector, count, nobody, text};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{CALLER}-{flags}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Flags that export to a collector, soon.
fn to(url: &str, protocol: &str) -> Vec<String> {
    let flags = ["--otlp-endpoint", url, "--otlp-protocol", protocol, "--otlp-every-ms", "5", "--log", "error"];
    flags.map(str::to_owned).to_vec()
}

fn start(model: &std::path::Path, flags: &[String], more: &[&str]) -> Server {
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Server::start(model, &flags)
}

/// Asks for a whole answer under this id and with this `traceparent`. The status.
fn ask(server: &Server, id: &str, traceparent: &str, body: &Value) -> u16 {
    let headers = format!("X-Request-Id: {id}\r\ntraceparent: {traceparent}\r\ntracestate: rojo=1\r\n");
    server.request_with("POST", "/v1/chat/completions", &headers, Some(body)).0
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    spans
        .iter()
        .find(|span| span.name == name)
        .unwrap_or_else(|| panic!("no `{name}` in {:?}", spans.iter().map(|s| &s.name).collect::<Vec<_>>()))
}

fn events(span: &Span) -> Vec<&str> {
    span.events.iter().map(|event| &*event.name).collect()
}

fn is_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error)
}

/// What a run's own span says is what its record says.
fn agrees(root: &Span, record: &Value) {
    for (name, place) in [
        ("gen_ai.usage.input_tokens", "/tokens/prompt"),
        ("gen_ai.usage.output_tokens", "/tokens/generated"),
        ("gen_ai.usage.cache_read.input_tokens", "/tokens/cached_prompt"),
        ("kvit.tokens.delivered", "/tokens/delivered"),
        ("kvit.tokens.after_disconnect", "/tokens/after_disconnect"),
        ("kvit.tokens.after_receipt", "/tokens/after_receipt"),
        ("kvit.tokens.prompt_computed_after_disconnect", "/tokens/prompt_computed_after_disconnect"),
        ("kvit.tokens.overrun", "/tokens/overrun"),
        ("kvit.steps.total", "/steps/total"),
        ("kvit.steps.after_disconnect", "/steps/after_disconnect"),
        ("kvit.steps.layers_dropped", "/steps/layers_dropped"),
        ("kvit.blocks.peak", "/blocks/peak"),
        ("kvit.waste_bound_tokens", "/waste_bound_tokens"),
    ] {
        assert_eq!(count(root, name), record.pointer(place).and_then(Value::as_i64), "{name}: {record:#}");
    }
    for (name, place) in [
        ("gen_ai.request.model", "/model"),
        ("kvit.outcome.kind", "/outcome/kind"),
        ("kvit.outcome.cause", "/outcome/cause"),
        ("kvit.delivery", "/delivery"),
        ("kvit.guarantee", "/guarantee"),
        ("kvit.phase_at_disconnect", "/phase_at_disconnect"),
        ("kvit.told", "/told"),
    ] {
        assert_eq!(text(&root.attributes, name).as_deref(), record.pointer(place).and_then(Value::as_str), "{name}: {record:#}");
    }
    // Every milestone that was reached is an event, as long after the beginning as the record says.
    let mut said: Vec<(String, i64)> =
        root.events.iter().map(|e| (e.name.clone(), ((e.time_unix_nano - root.start_time_unix_nano) / 1000) as i64)).collect();
    let reached = record["milestones"].as_object().expect("milestones");
    let mut reached: Vec<(String, i64)> =
        reached.iter().filter_map(|(name, ms)| Some((name.clone(), (ms.as_f64()? * 1000.0).round() as i64))).collect();
    said.sort();
    reached.sort();
    assert_eq!(said, reached);
}

/// How many spans were exported, rejected, failed and dropped.
fn counted(server: &Server) -> [usize; 4] {
    let all = metrics(server);
    ["exported", "rejected", "failed", "dropped"].map(|result| all[&format!("kvit_otlp_spans_total{{result=\"{result}\"}}")] as usize)
}

/// Waits until it has counted so many; an answer is counted a moment after it was given.
fn until_counted(server: &Server, expected: [usize; 4]) {
    let since = Instant::now();
    while counted(server) != expected {
        assert!(since.elapsed() < PATIENCE, "{:?}, {expected:?} were expected", counted(server));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Nobody's prompt or answer is in what is exported.
fn says_nothing_of_texts(collector: &Collector) {
    assert!(!format!("{:?}", collector.got()).contains("Xyzzy"), "a prompt was exported");
}

// contract: C-1 C-6 C-24
#[test]
fn each_end_is_exported_by_both_protocols_and_only_a_failure_is_an_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("headers");
    std::fs::write(&file, "# for the collector\nAuthorization: Bearer k\n").expect("a file");
    for protocol in ["http/protobuf", "grpc"] {
        let collector = Collector::speaking(protocol);
        let file = file.to_str().expect("a name");
        let server =
            start(&lasting_model(), &to(&collector.url, protocol), &["--otlp-headers-file", file, "--deadline-check-percent", "0"]);
        assert_eq!(ask(&server, "done", &parent("01"), &chat_body("Xyzzy", 3, false)), 200);
        let mut caller = Caller::chat(&server, "left", &chat_body("Xyzzy", 14_000, true));
        caller.read_tokens(3);
        caller.leave(Leave::Close);
        let mut late = chat_body("Xyzzy", 14_000, false);
        late["timeout_ms"] = json!(300);
        assert_eq!(ask(&server, "late", &parent("01"), &late), 499);

        for (id, kind, cause) in
            [("done", "completed", "length"), ("left", "cancelled", "client_closed"), ("late", "expired", "client_deadline")]
        {
            let (record, spans) = (server.settled(id), collector.run(id));
            let root = &spans[0];
            agrees(root, &record);
            assert_eq!((record["outcome"]["kind"].as_str(), record["outcome"]["cause"].as_str()), (Some(kind), Some(cause)));
            assert_eq!((root.kind(), &*root.name), (SpanKind::Server, &*format!("chat {}", record["model"].as_str().expect("a model"))));
            assert!(!spans.iter().any(is_error), "{id}: {spans:#?}");
            assert_eq!(text(&root.attributes, "gen_ai.operation.name").as_deref(), Some("chat"));
            // The caller's trace, or one of its own.
            let (trace, parent) = if id == "left" { (hex(&root.trace_id), "") } else { (TRACE.to_owned(), CALLER) };
            assert_eq!((hex(&root.trace_id), &*hex(&root.parent_span_id)), (trace, parent));
            assert_eq!(id == "left", hex(&root.trace_id) != TRACE);
            let attempt = named(&spans, "attempt 1");
            for (inner, of, begun) in [
                ("queue", root, "accepted"),
                ("attempt 1", root, "accepted"),
                ("prefill", attempt, "prefill_start"),
                ("decode", attempt, "first_token"),
            ] {
                // A deadline may come before it.
                let is_there = record["milestones"][begun].is_number();
                assert!(is_there || id == "late", "{id}: {begun}: {record:#}");
                let span = spans.iter().find(|span| span.name == inner);
                assert_eq!(span.is_some(), is_there, "{id}: {inner}");
                let Some(span) = span else { continue };
                assert_eq!((&span.parent_span_id, &span.trace_id), (&of.span_id, &root.trace_id), "{inner}");
                assert_eq!(span.trace_state, if id == "left" { "" } else { "rojo=1" });
            }
            let after = spans.iter().find(|span| span.name == "after_disconnect");
            assert_eq!(after.is_some(), id != "done");
            let Some(after) = after else { continue };
            assert_eq!(text(&after.attributes, "kvit.cause").as_deref(), Some(cause));
            for event in ["cancel_sent", "cancel_applied", "cancel_acknowledged", "released"] {
                // Whose deadline the worker saw first needs no cancel.
                let reached = record["milestones"][event].is_number();
                assert_eq!(events(after).contains(&event), reached, "{id}: {event}");
                assert!(reached || id == "late", "{id}: {event}: {record:#}");
            }
            assert_eq!(named(&spans, "client-gateway").parent_span_id, after.span_id);
        }
        assert!(collector.got().iter().all(|got| got.key.as_deref() == Some("Bearer k")));
        says_nothing_of_texts(&collector);
        until_counted(&server, [collector.spans().len(), 0, 0, 0]);
        assert!(server.terminate());
    }
}

#[test]
fn what_is_no_traceparent_begins_a_trace_and_what_is_not_recorded_is_not_exported() {
    let collector = Collector::speaking("http/protobuf");
    let server = start(&tiny_model(), &to(&collector.url, "http/protobuf"), &[]);
    let body = chat_body("Xyzzy", 2, false);
    let good = parent("01");
    let bad = [
        "garbage",
        &good.to_uppercase(),
        &good.replace(TRACE, &"0".repeat(32)),
        &good.replace(CALLER, &"0".repeat(16)),
        &format!("ff{}", &good[2..]),
    ];
    for (n, traceparent) in bad.iter().enumerate() {
        assert_eq!(ask(&server, &format!("bad{n}"), traceparent, &body), 200, "{traceparent}");
    }
    assert_eq!(ask(&server, "unrecorded", &parent("00"), &body), 200);
    server.settled("unrecorded");
    assert_eq!(ask(&server, "recorded", &parent("01"), &body), 200);
    // By gRPC as by HTTP.
    let grpc = Grpc::to(&server);
    let asked = grpc.generate(&[("traceparent", &good), ("x-request-id", "grpc")], chat(&model(&server), "Xyzzy", 2));
    grpc.read_to_the_end(&mut asked.expect("a run")).expect("it completes");
    let mut traces: Vec<String> = (0..bad.len())
        .map(|n| {
            let spans = collector.run(&format!("bad{n}"));
            assert!(spans[0].parent_span_id.is_empty() && spans[0].trace_state.is_empty(), "{}", bad[n]);
            hex(&spans[0].trace_id)
        })
        .collect();
    traces.sort();
    traces.dedup();
    assert_eq!((traces.len(), traces.contains(&TRACE.to_owned())), (bad.len(), false));
    for id in ["recorded", "grpc"] {
        assert_eq!((hex(&collector.run(id)[0].trace_id), hex(&collector.run(id)[0].parent_span_id)), (TRACE.to_owned(), CALLER.to_owned()));
    }
    // It was over before them.
    let ids: Vec<_> = collector.spans().iter().filter_map(|(_, span)| text(&span.attributes, "kvit.run.id")).collect();
    assert!(!ids.contains(&"unrecorded".to_owned()), "{ids:?}");
    assert!(server.terminate());

    // Unless somebody wants all.
    let patient = to(&collector.url, "http/protobuf").into_iter().map(|flag| if flag == "5" { "600000".to_owned() } else { flag });
    let server = start(&tiny_model(), &patient.collect::<Vec<_>>(), &["--otlp-sample", "always"]);
    assert_eq!(ask(&server, "always", &parent("00"), &body), 200);
    // What waits at the end of the process is sent.
    assert!(server.terminate());
    let spans = collector.run("always");
    assert_eq!((hex(&spans[0].trace_id), hex(&spans[0].parent_span_id)), (TRACE.to_owned(), CALLER.to_owned()));
}

// contract: C-1
#[test]
fn a_server_behind_a_server_is_in_the_same_trace() {
    let collector = Collector::speaking("grpc");
    let behind = start(&lasting_model(), &to(&collector.url, "grpc"), &[]);
    let upstream = format!("http://127.0.0.1:{},slots=4", behind.port);
    let flags = to(&collector.url, "grpc");
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--upstream", &upstream]).collect();
    let front = Server::gateway(&[], &flags);
    let since = Instant::now();
    while front.json("GET", "/health").0 != 200 {
        assert!(since.elapsed() < PATIENCE, "the gateway does not meet its upstream");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(ask(&front, "whole", &parent("01"), &chat_body("Xyzzy", 3, false)), 200);
    let headers = format!("traceparent: {}\r\n", parent("01"));
    let mut caller = Caller::post_with(&front, "/v1/chat/completions", "left", &headers, &chat_body("Xyzzy", 14_000, true));
    caller.read_tokens(3);
    caller.leave(Leave::Close);
    for (id, kind) in [("whole", "completed"), ("left", "cancelled")] {
        let record = front.settled_whatever(id);
        agrees(&collector.run(id)[0], &record);
        let theirs = record["engine"]["request"].as_str().expect("a name there").to_owned();
        let (ours, theirs) = (collector.run(id), collector.run(&theirs));
        let attempt = named(&ours, "attempt 1");
        assert_eq!((attempt.kind(), attempt.parent_span_id == ours[0].span_id), (SpanKind::Client, true));
        assert_eq!((theirs[0].kind(), &theirs[0].parent_span_id), (SpanKind::Server, &attempt.span_id), "{id}");
        assert_eq!((hex(&ours[0].parent_span_id), hex(&theirs[0].trace_id)), (CALLER.to_owned(), TRACE.to_owned()));
        // What one caller's leaving means goes all the way.
        for root in [&ours[0], &theirs[0]] {
            assert_eq!((text(&root.attributes, "kvit.outcome.kind").as_deref(), is_error(root)), (Some(kind), false));
        }
    }
    let mut lives: Vec<String> = collector.spans().into_iter().map(|(life, _)| life).collect();
    lives.sort();
    lives.dedup();
    assert_eq!(lives.len(), 2);
    assert!(front.terminate() && behind.terminate());
}

/// An engine that names a model, and answers each run with this status. The heads of the runs' requests come back.
fn engine(status: &'static str) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = heads.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let kept = kept.clone();
            std::thread::spawn(move || answer(&stream, status, &kept));
        }
    });
    (url, heads)
}

fn answer(mut stream: &TcpStream, status: &str, kept: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream);
    let head: Vec<String> = reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let head = head.join("\n").to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    let _ = reader.read_exact(&mut body);
    let (status, body) = match head.split(' ').nth(1) {
        Some("/v1/models") => ("200 OK", r#"{"object":"list","data":[{"id":"m","object":"model"}]}"#),
        Some("/v1/chat/completions") => {
            kept.lock().expect("no panic").push(head);
            (status, r#"{"error":{"message":"Xyzzy is broken"}}"#)
        }
        _ => ("404 Not Found", "{}"),
    };
    let length = body.len();
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
}

// contract: C-29
#[test]
fn a_failure_is_an_error_and_an_engine_is_told_whose_run_it_has() {
    let collector = Collector::speaking("http/protobuf");
    let (url, heads) = engine("500 Internal Server Error");
    let upstream = format!("{url},kind=openai,model=m");
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "Xyzzy"}]});
    let told = |at: usize, name: &str| {
        let heads = heads.lock().expect("no panic");
        heads[at].lines().find_map(|line| line.strip_prefix(&format!("{name}: ")).map(str::to_owned))
    };
    let flags = to(&collector.url, "http/protobuf");
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--upstream", &upstream]).collect();
    let front = Server::gateway(&[], &flags);
    assert_eq!(ask(&front, "failed", &parent("01"), &body), 500);
    let (record, spans) = (front.settled_whatever("failed"), collector.run("failed"));
    agrees(&spans[0], &record);
    for (span, why) in [(&spans[0], "upstream_error"), (named(&spans, "attempt 1"), "failed")] {
        assert!(is_error(span), "{span:#?}");
        assert_eq!(span.status.as_ref().map(|status| &*status.message), Some(why));
    }
    assert_eq!(text(&spans[0].attributes, "error.type").as_deref(), Some("upstream_error"));
    let attempt = hex(&named(&spans, "attempt 1").span_id);
    assert_eq!(told(0, "traceparent"), Some(format!("00-{TRACE}-{attempt}-01")));
    assert_eq!(told(0, "tracestate").as_deref(), Some("rojo=1"));
    says_nothing_of_texts(&collector);
    assert!(front.terminate());

    // Who makes no spans passes on what came, and nothing where nothing came.
    let front = Server::gateway(&[], &["--upstream", &upstream, "--log", "error"]);
    assert_eq!(ask(&front, "passed", &parent("00"), &body), 500);
    assert_eq!((told(1, "traceparent"), told(1, "tracestate").as_deref()), (Some(parent("00")), Some("rojo=1")));
    assert_eq!(front.request("POST", "/v1/chat/completions", Some("alone"), Some(&body)).0, 500);
    assert_eq!(told(2, "traceparent"), None);
    assert!(!metrics(&front).keys().any(|name| name.starts_with("kvit_otlp")));
    assert!(front.terminate());
}

// contract: C-28
#[test]
fn a_collector_that_is_away_or_hangs_costs_spans_and_nothing_else() {
    const RUNS: usize = 6;
    let run = |server: &Server| {
        for n in 0..RUNS {
            assert_eq!(ask(server, &format!("r{n}"), &parent("01"), &chat_body("Xyzzy", 2, false)), 200);
            server.settled(&format!("r{n}"));
        }
    };
    for protocol in ["http/protobuf", "grpc"] {
        let server = start(&tiny_model(), &to(&nobody(), protocol), &["--otlp-tries-max", "2", "--otlp-retry-ms", "1"]);
        run(&server);
        // A completed run is six spans: its own, the wait here and there, the attempt, its prefill and its decode.
        until_counted(&server, [0, 0, 6 * RUNS, 0]);
        assert!(server.terminate());
    }
    // It takes connections, and says nothing on them.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let bounds = ["--otlp-queue-max", "1", "--otlp-batch-max", "1", "--otlp-tries-max", "1", "--otlp-timeout-ms", "2000"];
    let server = start(&tiny_model(), &to(&url, "http/protobuf"), &bounds);
    run(&server);
    let since = Instant::now();
    // At most one run is under way and one waits: the others' spans are gone.
    while counted(&server).iter().sum::<usize>() < 6 * (RUNS - 2) {
        assert!(since.elapsed() < PATIENCE, "{:?}", counted(&server));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(counted(&server)[..2], [0, 0]);
    assert!(server.terminate(), "its end does not wait for the collector beyond one sending");
}
