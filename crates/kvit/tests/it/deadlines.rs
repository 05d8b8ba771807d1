//! Four deadlines in four phases, streaming and not, with the real binary: each ends the run with its own cause, tells the caller so, and
//! leaves no block behind. Where a run expires is steered by what is in its way (a full engine, a long prompt, tokenisers that are busy) and
//! by looking for a span that falls into the phase; that a deadline fires at all needs no clock in the test.
// contract: C-6 C-12 C-22
// field: F-30 F-82

use serde_json::{Value, json};

use crate::server::{Caller, Server, chat_body, lasting_model, rest};

/// Longest run and longest prompt that the slow model takes, about.
const LONG: u32 = 14_000;
/// Spans that are tried for one phase.
const TRIES: u32 = 14;

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

    /// A server with this deadline; the client's is in the request.
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
    if matches!(found, Phase::Tokenising | Phase::Queue) {
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
