//! Four deadlines in four phases, streaming and not, with the real binary: each ends the run with its own cause, tells the caller so, and
//! leaves no block behind. Where a run expires is steered by what is in its way (a full engine, a long prompt, tokenisers that are busy) and
//! by looking for a span that falls into the phase; that a deadline fires at all needs no clock in the test.
// contract: C-6 C-12 C-22
// field: F-30 F-82

use serde_json::{Value, json};

use super::{kvit, said};
use crate::leaving_guest::metrics;
use crate::server::{Caller, SLOW, Server, chat_body, lasting_model, rest};

/// Longest run and longest prompt that the slow model takes, about.
const LONG: u32 = 14_000;
/// Spans that are tried for one phase.
const TRIES: u32 = 14;
/// Steps after which a server knows its pace.
const MEASURED_MIN: u32 = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Tokenising,
    Queue,
    Prefill,
    Decode,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deadline {
    Client,
    Gateway,
    Worker,
    Queue,
}

impl Deadline {
    fn cause(self) -> &'static str {
        match self {
            Deadline::Client => "client_deadline",
            Deadline::Gateway => "gateway_deadline",
            Deadline::Worker => "worker_deadline",
            Deadline::Queue => "queue_deadline",
        }
    }

    /// The status where no answer has begun.
    fn status(self) -> u16 {
        match self {
            Deadline::Client => 499,
            Deadline::Gateway | Deadline::Worker => 504,
            Deadline::Queue => 503,
        }
    }

    /// A server with this deadline; the client's is in the request. It is a new one for each run, which has not seen the eight full steps after
    /// which it would turn away who cannot make it.
    fn server(self, ms: u64, phase: Phase) -> Server {
        let span = ms.to_string();
        let mut args = vec!["--max-running", "1", "--step-tokens", "32", "--tokenise-threads", "1", "--log", "error"];
        match self {
            Deadline::Client => {}
            Deadline::Gateway => args.extend(["--gateway-deadline-ms", &span]),
            Deadline::Worker => args.extend(["--worker-deadline-ms", &span]),
            Deadline::Queue => args.extend(["--queue-deadline-ms", &span]),
        }
        if phase == Phase::Tokenising {
            args.extend(["--queue-limit", "4096", "--calls-max", "4096"]);
        }
        Server::start(&lasting_model(), &args)
    }

    fn body(self, ms: u64, phase: Phase, stream: bool) -> Value {
        let prompt = if phase == Phase::Prefill { "x ".repeat(LONG as usize / 2) } else { "Go on".to_owned() };
        let tokens = if phase == Phase::Decode { LONG } else { 8 };
        let mut body = chat_body(&prompt, tokens, stream);
        if self == Deadline::Client {
            body["timeout_ms"] = json!(ms);
        }
        body
    }
}

/// Fills the engine, so that the run under test waits for its whole life. A deadline of the server's own ends the first of these, too, and
/// earlier; a second, which came later and goes first, then takes its place.
fn fill(server: &Server) -> Caller {
    let first = Caller::chat(server, "first", &chat_body("Go on", LONG, false));
    server.wait_run("first", "be scheduled or over", |r| r["milestones"]["prefill_start"].is_number() || r["settled"] == true);
    first
}

fn fill_again(server: &Server) -> Caller {
    let mut body = chat_body("Go on", LONG, false);
    body["priority"] = json!(-1);
    Caller::chat(server, "second", &body)
}

/// Keeps the one tokenising thread busy with prompts that are too long in the end.
fn busy_tokeniser(server: &Server) -> Vec<Caller> {
    let text = "lorem ipsum dolor ".repeat(5_000);
    (0..40).map(|i| Caller::chat(server, &format!("heavy-{i}"), &chat_body(&text, 1, false))).collect()
}

/// What the caller was told at the end: status, code, and whether it was an event of a stream.
fn told(caller: &mut Caller, stream: bool) -> (u16, Value, bool) {
    let (status, body) = caller.answer_or_events();
    match body {
        Ok(json) => (status, json["error"]["code"].clone(), false),
        Err(events) => {
            assert!(stream && status == 200, "{status}");
            // A stream that looks whole has no code to show.
            let last: Value = serde_json::from_str(events.last().expect("a last event")).unwrap_or(Value::Null);
            (status, last["error"]["code"].clone(), true)
        }
    }
}

/// One run with this deadline; where it expired, if it did.
fn expire(deadline: Deadline, phase: Phase, stream: bool, ms: u64) -> Option<Phase> {
    let server = deadline.server(ms, phase);
    let baseline = rest(&server.kv());
    let mut others = Vec::new();
    match phase {
        Phase::Queue => others.push(fill(&server)),
        Phase::Tokenising => others.extend(busy_tokeniser(&server)),
        Phase::Prefill | Phase::Decode => {}
    }
    let mut caller = Caller::chat(&server, "run", &deadline.body(ms, phase, stream));
    if phase == Phase::Queue {
        others.push(fill_again(&server));
    }
    let (status, code, in_stream) = told(&mut caller, stream);
    let run = server.settled("run");
    if run["outcome"]["kind"] != "expired" {
        assert_eq!((&run["outcome"]["kind"], &code), (&json!("completed"), &Value::Null), "{run:#}");
        return None;
    }
    let case = format!("{deadline:?} {phase:?} stream={stream} ms={ms}: {run:#}");
    assert_eq!((&run["outcome"]["cause"], &code), (&json!(deadline.cause()), &run["outcome"]["cause"]), "{case}");
    assert_eq!(status, if in_stream { 200 } else { deadline.status() }, "{case}");
    assert!(run["tokens"]["after_receipt"].as_u64() <= Some(1) && run["blocks"]["held"] == 0, "{case}");
    let delivered = run["tokens"]["delivered"].as_u64().expect("counted");
    assert_eq!(run["delivery"], if delivered > 0 { "partial" } else { "none" }, "{case}");
    assert!(stream || delivered == 0, "{case}");
    assert_eq!(run["superseded"], json!([]), "{case}");
    let found = match run["phase_at_disconnect"].as_str() {
        Some("queued") if run["milestones"]["queued"].is_null() => Phase::Tokenising,
        Some("queued") => Phase::Queue,
        Some("prefill" | "before_first_token") => Phase::Prefill,
        Some("decode") => Phase::Decode,
        _ => panic!("no phase: {case}"),
    };
    // What never ran has taken nothing.
    if matches!(found, Phase::Tokenising | Phase::Queue) && run["milestones"]["prefill_start"].is_null() {
        assert_eq!((&run["blocks"]["peak"], &run["steps"]["total"]), (&json!(0), &json!(0)), "{case}");
    }
    for id in ["first", "second"] {
        let (status, _) = server.json("POST", &format!("/v1/runs/{id}/cancel?wait_ms=60000"));
        assert!(status == 200 || phase != Phase::Queue, "{case}");
    }
    drop((caller, others));
    let since = std::time::Instant::now();
    while rest(&server.kv()) != baseline {
        assert!(since.elapsed() < crate::server::PATIENCE, "{} is not {baseline:?}: {case}", server.kv());
    }
    Some(found)
}

/// Looks for a span that makes the run expire in this phase: shorter if it got further, longer if it did not get there.
fn find(deadline: Deadline, phase: Phase, stream: bool) {
    let rank = |p: Option<Phase>| p.map_or(4, |p| p as u32);
    let mut span = 200.0_f64;
    let (mut short, mut long) = (0.0, f64::INFINITY);
    for _ in 0..TRIES {
        let found = expire(deadline, phase, stream, span as u64);
        if found == Some(phase) {
            return;
        }
        if rank(found) > phase as u32 {
            long = span
        } else {
            short = span
        }
        span = if long.is_infinite() { span * 2.0 } else { f64::midpoint(short, long).max(1.0) };
    }
    panic!("{deadline:?}: no span between {short} and {long} ms expires in {phase:?}");
}

fn in_phase(phase: Phase) {
    for deadline in [Deadline::Client, Deadline::Gateway, Deadline::Worker, Deadline::Queue] {
        // A queue deadline binds nobody who is scheduled.
        if deadline == Deadline::Queue && matches!(phase, Phase::Prefill | Phase::Decode) {
            continue;
        }
        for stream in [true, false] {
            find(deadline, phase, stream);
        }
    }
}

#[test]
fn while_the_prompt_is_tokenised() {
    in_phase(Phase::Tokenising);
}

#[test]
fn in_the_queue_behind_a_full_engine() {
    in_phase(Phase::Queue);
}

#[test]
fn in_the_prefill_of_a_long_prompt() {
    in_phase(Phase::Prefill);
}

#[test]
fn in_decode() {
    in_phase(Phase::Decode);
}

/// A run with a long prompt that nothing is cached of, and this deadline.
fn long(ms: u64, salt: &str, stream: bool) -> Value {
    let mut body = chat_body(&"x ".repeat(LONG as usize / 2), 8, stream);
    (body["timeout_ms"], body["cache_salt"]) = (json!(ms), json!(salt));
    body
}

/// Spans that are long enough for the tokeniser, whatever else the machine does: one of them.
const SPANS: [u64; 5] = [1000, 2000, 4000, 8000, 16_000];

/// A server that has seen its pace.
fn measured(args: &[&str]) -> Server {
    let args: Vec<&str> = SLOW.iter().chain(args).chain(&["--log", "error"]).copied().collect();
    let server = Server::start(&lasting_model(), &args);
    for i in 0..MEASURED_MIN {
        let id = format!("measured-{i}");
        let mut body = chat_body("Thirty-two tokens and some more, so that a step is full of them.", 1, false);
        body["cache_salt"] = json!(id);
        assert_eq!(Caller::chat(&server, &id, &body).answer().0, 200);
        server.settled(&id);
    }
    server
}

/// Such a server, and what it says that a long prompt takes at the least, in milliseconds.
fn known_pace() -> (Server, u64) {
    let server = measured(&[]);
    for ms in SPANS {
        let id = format!("asks-{ms}");
        let (_, answer) = Caller::chat(&server, &id, &long(ms, &id, false)).answer();
        if answer["error"]["code"] == "deadline_unreachable" {
            let run = server.settled(&id);
            let why = run["outcome"]["reason"].as_str().expect("it says why").to_owned();
            let number = |after: &str| why.split_once(after).and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
            let (steps, need) = (number("at least ").expect(&why), number("steps, ").expect(&why));
            assert!(steps > u64::from(LONG) / 2 / 32, "{why}");
            assert!(number("at most ").is_some_and(|left| left < need / 2), "{why}");
            return (server, need);
        }
        let run = server.settled(&id);
        assert_eq!(run["outcome"]["cause"], "client_deadline", "{run:#}");
        assert_eq!(run["steps"]["total"], 0, "what is let in here never runs: {run:#}");
    }
    panic!("no span was found that cannot be met");
}

// contract: C-15 C-20
#[test]
fn who_cannot_have_a_token_in_time_is_turned_away_at_once_and_who_might_is_not() {
    let (server, need) = known_pace();
    let baseline = rest(&server.kv());
    for stream in [true, false] {
        let id = format!("late-{stream}");
        let mut caller = Caller::chat(&server, &id, &long(need / 4, &id, stream));
        let (status, code, in_stream) = told(&mut caller, stream);
        let run = server.settled(&id);
        assert_eq!((status, &code), (if in_stream { 200 } else { 400 }, &json!("deadline_unreachable")), "{run:#}");
        assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&json!("rejected"), &code), "{run:#}");
        assert_eq!((&run["blocks"]["peak"], &run["blocks"]["held"], &run["steps"]["total"]), (&json!(0), &json!(0), &json!(0)), "{run:#}");
        assert_eq!((&run["tokens"]["generated"], &run["delivery"], &run["guarantee"]), (&json!(0), &json!("none"), &json!("confirmed")));
        assert_eq!((run["superseded"].clone(), &run["milestones"]["prefill_start"]), (json!([]), &Value::Null), "{run:#}");
        assert_eq!(rest(&server.kv()), baseline);
    }
    // SDKs are told not to ask again.
    let body = long(need / 4, "head", false);
    let (status, head, _) = server.request("POST", "/v1/chat/completions", Some("head"), Some(&body));
    assert!(status == 400 && head.contains("\r\nx-should-retry: false") && !head.contains("retry-after"), "{head}");
    // The metrics and the trace say it too: these three, and the one that told what it takes.
    let turned_away = |(line, n): (&String, &f64)| line.contains("deadline_unreachable").then_some(*n);
    assert_eq!(metrics(&server).iter().filter_map(turned_away).sum::<f64>(), 4.0);
    let cache = tempfile::tempdir().expect("a folder");
    let address = format!("http://127.0.0.1:{}", server.port);
    let trace = said(kvit(cache.path(), &["trace", "late-true", "--server", &address]).output().expect("kvit runs"));
    assert!(trace.code == 0 && trace.out.contains("deadline_unreachable"), "{}", trace.out);
    // Who has as long as it takes at the least is taken on.
    let caller = Caller::chat(&server, "might", &long(need, "might", true));
    server.wait_run("might", "be scheduled", |run| run["milestones"]["prefill_start"].is_number());
    drop(caller);
    assert_eq!(server.settled("might")["outcome"]["kind"], "cancelled");
    assert_eq!(rest(&server.kv()), baseline);
}

#[test]
fn where_the_check_is_off_it_is_taken_on_and_expires() {
    let server = measured(&["--deadline-check-percent", "0"]);
    let begun = SPANS.into_iter().any(|ms| {
        let id = format!("run-{ms}");
        let (status, answer) = Caller::chat(&server, &id, &long(ms, &id, false)).answer();
        assert_eq!((status, &answer["error"]["code"]), (499, &json!("client_deadline")));
        let run = server.settled(&id);
        assert_eq!(run["outcome"]["kind"], "expired", "{run:#}");
        run["phase_at_disconnect"] == "prefill"
    });
    assert!(begun, "none was scheduled");
}
