//! A `kvit serve` behind a `kvit gateway`, over HTTP: whoever leaves the gateway has left the kvit, by both records and its own account.
// contract: C-8 C-9 C-12 C-28 C-29
// field: F-01 F-03 F-30 F-82

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

use crate::gateway::until;
use crate::leaving_guest::{metric, metrics};
use crate::server::{Caller, LASTING_CONTEXT, Leave, Server, chat_body, lasting_model, rest};

/// Tokens of an answer that is left, and from which on it is late.
const TOKENS: u32 = 96;
const LATE: u64 = 64;
const EARLY: u64 = 3;
/// Times that a run is begun anew which was not where it was to be left.
const TRIES: u32 = 24;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Queued,
    BeforeFirstToken,
    Early,
    Late,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Close,
    Reset,
    Cancel,
    Deadline,
}

impl Way {
    fn cause(self) -> &'static str {
        match self {
            Way::Close => "client_closed",
            Way::Reset => "client_reset",
            Way::Cancel => "cancel_requested",
            Way::Deadline => "client_deadline",
        }
    }
}

/// A kvit that computes one run at a time, and does not judge what a deadline allows.
fn kvit(more: &[&str]) -> Server {
    let args = ["--max-running", "1", "--threads", "1", "--step-tokens", "32", "--deadline-check-percent", "0"];
    Server::start(&lasting_model(), &[&args[..], &["--log", "error"], more].concat())
}

fn url(server: &Server) -> String {
    format!("http://127.0.0.1:{}", server.port)
}

/// A gateway before what is at this URL, once it has met it.
fn before(upstream: &str, more: &[&str]) -> Server {
    let gateway = Server::gateway(&[], &[&["--upstream", upstream, "--log", "error"][..], more].concat());
    until("the gateway has met it", || (worker(&gateway)["state"] == "here").then_some(()));
    gateway
}

fn worker(gateway: &Server) -> Value {
    gateway.json("GET", "/v1/workers").1["data"][0].clone()
}

fn n(run: &Value, path: &str) -> u64 {
    run.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path}: {run:#}"))
}

/// What the kvit behind calls a run of the gateway's, once it was sent one.
fn name(gateway: &Server, id: &str) -> String {
    let run = gateway.wait_run(id, "be sent", |run| run["engine"]["request"].is_string());
    run["engine"]["request"].as_str().expect("a name").to_owned()
}

/// Whether the kvit's record says that the run was left there.
fn is_met(phase: Phase, theirs: &Value) -> bool {
    let (begun, generated) = (theirs["milestones"]["prefill_start"].is_number(), n(theirs, "/tokens/generated"));
    match phase {
        Phase::Queued => !begun,
        Phase::BeforeFirstToken => begun && generated == 0,
        Phase::Early => (EARLY..LATE).contains(&generated),
        Phase::Late => generated >= LATE && theirs["outcome"]["kind"] != "completed",
    }
}

/// A run that is left like this, whether or not it was in that phase: the gateway's record, and the kvit's.
fn leave(gateway: &Server, kvit: &Server, id: &str, (phase, way, stream): (Phase, Way, bool), deadline_ms: u64) -> (Value, Value) {
    let prompt =
        if phase == Phase::BeforeFirstToken { format!("{id} ") + &"x ".repeat(LASTING_CONTEXT as usize / 3) } else { id.to_owned() };
    // A deadline finds its phase by the clock, so nothing else may end it.
    let tokens = if way == Way::Deadline { LASTING_CONTEXT / 2 } else { TOKENS };
    let mut body = chat_body(&prompt, tokens, stream);
    if way == Way::Deadline {
        body["timeout_ms"] = json!(deadline_ms);
    }
    let mut caller = Caller::chat(gateway, id, &body);
    let name = name(gateway, id);
    if way != Way::Deadline {
        let reached = |least| drop(kvit.wait_run(&name, "come so far", |run| run["tokens"]["generated"].as_u64() >= Some(least)));
        match phase {
            Phase::Queued => drop(kvit.wait_run(&name, "queue", |run| run["milestones"]["queued"].is_number())),
            Phase::BeforeFirstToken => drop(kvit.wait_run(&name, "begin", |run| run["milestones"]["prefill_start"].is_number())),
            Phase::Early if stream => drop(caller.read_tokens(EARLY as usize)),
            Phase::Late if stream => drop(caller.read_tokens(LATE as usize)),
            Phase::Early => reached(EARLY),
            Phase::Late => reached(LATE),
        }
    }
    match way {
        Way::Close => caller.leave(Leave::Close),
        Way::Reset => caller.leave(Leave::Reset),
        Way::Cancel => {
            let (status, run) = gateway.json("POST", &format!("/v1/runs/{id}/cancel"));
            assert_eq!(status, 200, "{run:#}");
            caller.leave(Leave::Reset);
        }
        Way::Deadline => drop(caller.answer_or_events()),
    }
    let ours = gateway.wait_run(id, "settle", |run| run["settled"] == true);
    // On a starved machine a deadline may be over before that kvit has read the request, which is closed by then: no run came of it.
    if kvit.run(&name)["object"] != "run" {
        let is_sure = ["confirmed", "observed"].contains(&ours["guarantee"].as_str().expect("a level"));
        assert!(is_sure && n(&ours, "/tokens/generated") == 0, "{ours:#}");
        return (ours, Value::Null);
    }
    (ours, kvit.settled(&name))
}

/// Whether the gateway read no token after it had seen that nobody wants them: then both have counted the same ones in vain.
fn is_quiet(gateway: &Server, id: &str, ours: &Value) -> bool {
    let seen =
        ["disconnect_observed", "deadline_fired"].iter().filter_map(|name| ours["milestones"][name].as_f64()).fold(f64::MAX, f64::min);
    let steps = gateway.json("GET", &format!("/v1/runs/{id}/steps")).1;
    assert_eq!(steps["columns"][0], "ms", "{steps}");
    steps["rows"].as_array().expect("rows").iter().all(|row| row[0].as_f64() < Some(seen))
}

/// Both records say that it is gone, and the same of what it cost.
fn assert_gone(way: Way, (ours, theirs): (&Value, &Value)) {
    let what = format!("the gateway: {ours:#}\nthe kvit: {theirs:#}");
    assert_eq!(ours["outcome"]["cause"], way.cause(), "{what}");
    assert_eq!(
        (&ours["guarantee"], &ours["released"], &ours["waste_bound_tokens"]),
        (&json!("confirmed"), &json!(true), &json!(0)),
        "{what}"
    );
    assert_eq!((&theirs["guarantee"], &theirs["blocks"]["held"]), (&json!("confirmed"), &json!(0)), "{what}");
    assert!(["cancelled", "expired"].contains(&theirs["outcome"]["kind"].as_str().expect("a word")), "{what}");
    for count in [
        "/tokens/prompt",
        "/tokens/generated",
        "/tokens/after_disconnect",
        "/tokens/after_receipt",
        "/tokens/prompt_computed_after_disconnect",
        "/steps/after_disconnect",
        "/blocks/peak",
    ] {
        assert_eq!(n(ours, count), n(theirs, count), "{count}: {what}");
    }
    assert!(n(ours, "/tokens/delivered") + n(ours, "/tokens/after_disconnect") <= n(ours, "/tokens/generated"), "{what}");
    assert!(n(theirs, "/tokens/after_receipt") <= 1, "{what}");
    for stamp in ["cancel_sent", "cancel_acknowledged", "released", "settled"] {
        assert!(ours["milestones"][stamp].is_number(), "{stamp}: {what}");
    }
}

fn cell(gateway: &Server, kvit: &Server, phase: Phase, way: Way, stream: bool) {
    let mut deadline_ms = if matches!(phase, Phase::Early) { 150 } else { 600 };
    for number in 0..TRIES {
        let id = format!("{phase:?}-{way:?}-{stream}-{number}").to_lowercase();
        let (ours, theirs) = leave(gateway, kvit, &id, (phase, way, stream), deadline_ms);
        let came = theirs.is_object();
        if came && is_met(phase, &theirs) && ours["outcome"]["kind"] != "completed" {
            assert!(n(&ours, "/tokens/after_disconnect") >= n(&theirs, "/tokens/after_disconnect"), "{ours:#}\n{theirs:#}");
            if is_quiet(gateway, &id, &ours) {
                return assert_gone(way, (&ours, &theirs));
            }
        }
        let is_late = came && phase != Phase::Late && n(&theirs, "/tokens/generated") >= EARLY;
        deadline_ms = if is_late { deadline_ms * 2 / 3 } else { deadline_ms * 3 / 2 };
    }
    panic!("{phase:?}, {way:?}, streaming {stream}: in {TRIES} tries no run was met where it was to be left")
}

/// Every way to leave in this phase, streaming and not.
fn all(phase: Phase) {
    let kvit = kvit(&[]);
    let gateway = before(&url(&kvit), &[]);
    let made = worker(&gateway);
    assert_eq!((&made["kind"], &made["cancel"]), (&json!("kvit"), &json!("id_with_proof")), "{made}");
    let baseline = rest(&kvit.kv());
    let blocker = (phase == Phase::Queued).then(|| {
        let mut caller = Caller::chat(&kvit, "blocker", &chat_body("Hello", LASTING_CONTEXT - 100, true));
        assert!(!caller.read_tokens(1).is_empty());
        caller
    });
    for way in [Way::Close, Way::Reset, Way::Cancel, Way::Deadline] {
        for stream in [true, false] {
            cell(&gateway, &kvit, phase, way, stream);
        }
    }
    if let Some(blocker) = blocker {
        assert_eq!(kvit.run("blocker")["outcome"], Value::Null, "nobody else's run was touched");
        blocker.leave(Leave::Reset);
        kvit.settled("blocker");
    }
    until("every block is back", || (rest(&kvit.kv()) == baseline).then_some(()));
    for state in ["active", "draining", "quarantined"] {
        assert_eq!(metric(&kvit, &format!("kvit_kv_blocks{{state=\"{state}\"}}")), 0.0, "{state}");
    }
    let page = metrics(&gateway);
    let level = |level: &str| {
        let of = |name: &str| name.starts_with("kvit_cancel_guarantees_total{") && name.contains(&format!("\"{level}\""));
        page.iter().filter(|(name, _)| of(name)).map(|(_, count)| *count).sum::<f64>()
    };
    assert!(level("confirmed") >= 8.0, "{page:?}");
    assert_eq!(["best_effort", "unsupported"].map(level), [0.0; 2]);
}

#[test]
fn who_leaves_in_the_queue_of_a_kvit_behind_is_gone_with_proof() {
    all(Phase::Queued);
}

#[test]
fn who_leaves_a_kvit_behind_before_the_first_token_is_gone_with_proof() {
    all(Phase::BeforeFirstToken);
}

#[test]
fn who_leaves_a_kvit_behind_in_early_decode_is_gone_with_proof() {
    all(Phase::Early);
}

#[test]
fn who_leaves_a_kvit_behind_in_late_decode_is_gone_with_proof() {
    all(Phase::Late);
}

/// A key of the gateway's own, a run in the background, and a kvit that means something else by a close.
#[test]
fn a_background_run_at_a_kvit_that_wants_a_key_and_goes_on_without_readers_is_cancelled_with_proof() {
    let dir = tempfile::tempdir().expect("a folder");
    let (config, key, store) = (dir.path().join("kvit.toml"), dir.path().join("key"), dir.path().join("runs.db"));
    std::fs::write(&config, "[[key]]\nname = \"gateway\"\ntenant = \"one\"\nsecret = \"secret-of-the-gateway\"\n").expect("a file");
    std::fs::write(&key, "secret-of-the-gateway\n").expect("a file");
    let kvit = kvit(&["--config", config.to_str().expect("a path"), "--on-disconnect", "continue"]);
    let gateway = before(&format!("{},key_file={}", url(&kvit), key.display()), &["--store", store.to_str().expect("a path")]);
    assert_eq!(worker(&gateway)["cancel"], "id_with_proof");
    let body = json!({"input": "Go on", "background": true, "max_output_tokens": 10_000, "temperature": 0, "ignore_eos": true});
    let (status, _, _) = gateway.request("POST", "/v1/responses", Some("behind"), Some(&body));
    assert_eq!(status, 200);
    gateway.wait_run("behind", "decode", |run| run["tokens"]["generated"].as_u64() >= Some(EARLY));
    assert_eq!(gateway.json("POST", "/v1/runs/behind/cancel").0, 200);
    // And one that is only closed: the gateway says there what a close means.
    let mut caller = Caller::chat(&gateway, "closed", &chat_body("Go on", 10_000, true));
    assert!(!caller.read_tokens(1).is_empty());
    caller.leave(Leave::Close);
    for (id, cause) in [("behind", "cancel_requested"), ("closed", "client_closed")] {
        let ours = gateway.settled(id);
        let path = format!("/v1/runs/{}", name(&gateway, id));
        let shown = |run: &[u8]| serde_json::from_slice::<Value>(run).expect("JSON");
        let theirs = shown(&kvit.request_with("GET", &path, "Authorization: Bearer secret-of-the-gateway\r\n", None).2);
        assert_eq!((&ours["outcome"]["cause"], &ours["guarantee"]), (&json!(cause), &json!("confirmed")), "{ours:#}");
        assert_eq!((&theirs["outcome"]["kind"], &theirs["guarantee"]), (&json!("cancelled"), &json!("confirmed")), "{theirs:#}");
        assert_eq!(n(&ours, "/tokens/generated"), n(&theirs, "/tokens/generated"), "{ours:#} {theirs:#}");
    }
}

/// A kvit that stands still takes no cancel; it is asked again until it goes on. One that dies takes its record along.
#[test]
fn a_cancel_that_a_kvit_did_not_take_is_asked_again_and_a_kvit_that_died_proves_nothing() {
    let kvit = kvit(&[]);
    let gateway = before(&format!("{},look_timeout_ms=300,observe_for_ms=20000", url(&kvit)), &[]);
    let begin = |gateway: &Server, id: &str| {
        let mut caller = Caller::chat(gateway, id, &chat_body("Go on", 10_000, true));
        assert!(!caller.read_tokens(1).is_empty());
        caller
    };
    let caller = begin(&gateway, "stands");
    kvit.signal("STOP");
    caller.leave(Leave::Reset);
    let run = gateway.wait_run("stands", "end", |run| run["outcome"].is_object());
    assert_eq!((&run["guarantee"], &run["milestones"]["cancel_acknowledged"]), (&Value::Null, &Value::Null), "{run:#}");
    // Longer than one question may take: what comes then is an answer to another.
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert_eq!(gateway.run("stands")["guarantee"], Value::Null, "nobody has answered");
    kvit.signal("CONT");
    let ours = gateway.settled("stands");
    assert_eq!(
        (&ours["guarantee"], n(&ours, "/tokens/generated")),
        (&json!("confirmed"), n(&kvit.run(&name(&gateway, "stands")), "/tokens/generated"))
    );

    let short = before(&format!("{},observe_for_ms=500", url(&kvit)), &[]);
    let _caller = begin(&short, "dies");
    drop(kvit);
    let run = short.wait_run("dies", "settle", |run| run["settled"] == true);
    assert_eq!(
        (&run["outcome"]["kind"], &run["guarantee"], &run["released"]),
        (&json!("failed"), &json!("best_effort"), &json!(false)),
        "{run:#}"
    );
    assert!(n(&run, "/waste_bound_tokens") > 0, "{run:#}");
}

/// An engine of nobody's make: it names one model, and streams two tokens and then nothing until its caller goes.
fn nobodys() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(std::thread::spawn(move || connection(stream)))));
    url
}

fn connection(mut stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            (reader.read_line(&mut head).ok()? > 0).then_some(())?;
        }
        let length = head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
        std::io::Read::read_exact(&mut reader, &mut vec![0; length]).ok()?;
        if head.starts_with("POST /v1/chat/completions ") {
            let token = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{token}{token}");
            stream.write_all(answer.as_bytes()).ok()?;
            return (reader.read_line(&mut head).ok()? > 0).then_some(());
        }
        let models = json!({"data": [{"id": "theirs", "owned_by": "nobody"}]}).to_string();
        let (status, body) = if head.starts_with("GET /v1/models ") { ("200 OK", models) } else { ("404 Not Found", String::new()) };
        write!(stream, "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).ok()?;
    }
}

/// A chain of two gateways before an engine that shows nothing proves nothing more than the inner one does.
#[test]
fn a_chain_of_gateways_is_as_strong_as_its_last_hop() {
    let engine = nobodys();
    let inner = before(&engine, &[]);
    let outer = before(&url(&inner), &[]);
    let made = [&inner, &outer].map(|gateway| (worker(gateway)["kind"].clone(), worker(gateway)["cancel"].clone()));
    assert_eq!(made, [(json!("openai"), json!("close")), (json!("kvit"), json!("id_with_proof"))]);
    for (number, way) in [Way::Close, Way::Reset, Way::Cancel].into_iter().enumerate() {
        let id = format!("chain-{number}");
        let mut caller = Caller::chat(&outer, &id, &chat_body("Go on", 50, true));
        assert_eq!(caller.read_tokens(2), "aa");
        match way {
            Way::Close => caller.leave(Leave::Close),
            Way::Reset => caller.leave(Leave::Reset),
            _ => assert_eq!(outer.json("POST", &format!("/v1/runs/{id}/cancel")).0, 200),
        }
        let ours = outer.wait_run(&id, "settle", |run| run["settled"] == true);
        let theirs = inner.run(&name(&outer, &id));
        assert_eq!((&ours["outcome"]["cause"], &ours["guarantee"]), (&json!(way.cause()), &json!("best_effort")), "{ours:#}");
        assert_eq!((&theirs["settled"], &theirs["guarantee"]), (&json!(true), &json!("best_effort")), "{theirs:#}");
        assert_eq!((n(&ours, "/waste_bound_tokens"), n(&ours, "/tokens/generated")), (48, 2), "{ours:#}");
        assert_eq!((n(&theirs, "/waste_bound_tokens"), &ours["released"]), (48, &json!(false)), "{theirs:#}");
    }
}
