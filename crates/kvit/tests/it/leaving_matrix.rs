//! Each way to leave, streaming and not, in each phase, through real sockets: the cause is the right one, at most one token is computed
//! after the cancel was received, none is delivered, and everything comes back.
//!
//! A run is left when its own record, or what came of its answer, says that it is where it should be. The run goes on meanwhile, so it may
//! be further by the time the caller is gone; the server's record decides, and then the cell is tried again.
// contract: C-6, C-12, C-13, C-15, C-20, C-22, C-24
// field: F-01, F-03, F-05, F-08, F-13, F-23, F-29, F-34, F-45, F-82

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::leaving_client::{Client, Way, cancel};
use crate::server::{Server, rest, tiny_model};

/// Times that a cell is tried.
const TRIES: u32 = 25;
/// Tokens of a prompt whose computing takes a while, in how many steps, and in which of them its second half begins.
const LONG: u32 = 3000;
const STEP: u32 = 128;
const LATER_HALF: u64 = (LONG / STEP / 2) as u64;
/// Tokens that have come when a caller goes in decode.
const SOME: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It waits behind a full engine.
    Queued,
    /// Its prompt is being computed, from the first step on.
    Prefill,
    /// Its caller has the head of the answer, or most of its prompt is computed; no token has come.
    BeforeFirstToken,
    /// Tokens have come.
    Decode,
}

const PHASES: [Phase; 4] = [Phase::Queued, Phase::Prefill, Phase::BeforeFirstToken, Phase::Decode];

/// A tiny model that is slow enough to be met in the middle of a prompt.
pub fn model() -> PathBuf {
    static PATH: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    PATH.get_or_init(|| {
        let path = tiny_model().with_file_name("leaving.gguf");
        let (layers, embedding, heads, kv_heads, head_dim, ffn) = (4, 256, 8, 4, 32, 512);
        let spec = model::tiny::TinySpec { layers, embedding, heads, kv_heads, head_dim, ffn, context: 16_384, ..Default::default() };
        model::tiny::write(&path, &spec).expect("the model can be written");
        path
    })
    .clone()
}

struct Stand {
    server: Server,
    runs: u32,
    /// Milliseconds that a long prompt takes, by the server's own record.
    prefill_ms: f64,
}

impl Stand {
    fn start(more: &[&str]) -> Stand {
        let step = STEP.to_string();
        let args = ["--max-running", "1", "--kv-blocks", "1024", "--step-tokens", &step, "--log", "warn"];
        let mut stand = Stand { server: Server::start(&model(), &[&args, more].concat()), runs: 0, prefill_ms: 0.0 };
        let body = stand.body(LONG, 1, false);
        let mut client = Client::start(&stand.server, Way::Cancel, "clock", None, &body);
        client.read_to_the_end();
        let run = stand.server.settled("clock");
        stand.prefill_ms = run["milestones"]["first_token"].as_f64().expect("a token came");
        stand
    }

    /// A request whose prompt nobody had before.
    fn body(&mut self, prompt: u32, tokens: u32, stream: bool) -> Value {
        self.runs += 1;
        let mut dice = u64::from(self.runs) * 0x9e37_79b9;
        let ids: Vec<u64> = (0..prompt)
            .map(|_| {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                32 + (dice >> 33) % 220
            })
            .collect();
        json!({"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": stream, "logprobs": 0})
    }

    /// A run that has the only place on the engine for as long as it is not left.
    fn holder(&mut self) -> (Client, String) {
        let body = self.body(8, 8000, true);
        let id = format!("holder-{}", self.runs);
        let mut holder = Client::start(&self.server, Way::Close, &id, None, &body);
        assert!(holder.read_tokens(1), "it decodes: {}", holder.heard);
        (holder, id)
    }

    /// Waits until a run is where it should be, or has ended.
    fn steer(&self, id: &str, phase: Phase, stream: bool, client: &mut Client) {
        let milestone = |run: &Value, name: &str| run["milestones"][name].is_number();
        let reach = |what: &str, there: &dyn Fn(&Value) -> bool| {
            self.server.wait_run(id, what, |run| run["object"] == "run" && (there(run) || run["state"] == "ended"));
        };
        match phase {
            Phase::Queued => reach("wait", &|run| milestone(run, "queued")),
            Phase::Prefill => reach("begin", &|run| milestone(run, "prefill_start")),
            Phase::BeforeFirstToken => {
                if stream {
                    client.head();
                }
                reach("compute half of its prompt", &|run| run["steps"]["total"].as_u64() >= Some(LATER_HALF));
            }
            Phase::Decode if stream => assert!(client.read_tokens(SOME), "{}", client.heard),
            Phase::Decode => reach("decode", &|run| run["tokens"]["generated"].as_u64() >= Some(SOME as u64)),
        }
    }

    /// The deadline with which a run is probably met in this phase: a part of what a prompt takes here.
    fn deadline_ms(&self, phase: Phase) -> f64 {
        self.prefill_ms
            * match phase {
                Phase::Queued => 0.2,
                Phase::Prefill => 0.3,
                Phase::BeforeFirstToken => 0.8,
                Phase::Decode => 0.1,
            }
    }
}

/// Whether a run came less far than it should have before its deadline.
fn is_short(run: &Value, phase: Phase) -> bool {
    let steps = run["steps"]["total"].as_u64();
    match phase {
        Phase::Queued => false,
        Phase::Prefill => steps == Some(0),
        Phase::BeforeFirstToken => steps < Some(LATER_HALF),
        Phase::Decode => true,
    }
}

/// Whether the server saw the run where it was aimed at.
fn is_met(run: &Value, phase: Phase) -> bool {
    let seen = run["phase_at_disconnect"].as_str().unwrap_or("none");
    let later = run["steps"]["total"].as_u64() >= Some(LATER_HALF);
    match phase {
        Phase::Queued => seen == "queued",
        Phase::Prefill => seen == "prefill",
        Phase::BeforeFirstToken => (seen == "prefill" && later) || seen == "before_first_token",
        Phase::Decode => seen == "decode" && run["tokens"]["generated"].as_u64() > Some(0),
    }
}

fn causes(way: Way) -> (&'static str, &'static [&'static str]) {
    match way {
        Way::Close | Way::HalfClose => ("cancelled", &["client_closed"]),
        Way::Reset => ("cancelled", &["client_reset"]),
        // The kernel closes for it: a reset if something lay unread.
        Way::Sigkill => ("cancelled", &["client_closed", "client_reset"]),
        Way::Cancel => ("cancelled", &["cancel_requested"]),
        Way::Deadline => ("expired", &["client_deadline"]),
    }
}

/// What holds of every run that was left, wherever it was.
fn check(run: &Value, way: Way, phase: Phase, stream: bool, client: &Client) {
    let (kind, causes) = causes(way);
    assert_eq!(run["outcome"]["kind"], kind, "{run:#}");
    assert!(causes.contains(&run["outcome"]["cause"].as_str().unwrap_or("none")), "{run:#}");
    assert_eq!((&run["state"], &run["guarantee"]), (&json!("ended"), &json!("confirmed")), "{run:#}");
    let n = |path: &str| run.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}: {run:#}"));
    assert!(n("/tokens/after_receipt") <= 1, "{run:#}");
    // None of those computed too late is delivered: to nobody who went, from the moment on in which that was seen; to one who stayed, from
    // the receipt on.
    let stays = matches!(way, Way::Cancel | Way::Deadline);
    let late = n(if stays { "/tokens/after_receipt" } else { "/tokens/after_disconnect" });
    assert!(n("/tokens/delivered") + late <= n("/tokens/generated"), "{run:#}");
    assert_eq!(n("/blocks/held"), 0, "{run:#}");
    let m = &run["milestones"];
    let fired = if way == Way::Deadline { "deadline_fired" } else { "disconnect_observed" };
    for name in ["accepted", "cancel_sent", "cancel_received", "cancel_applied", "released", "settled"] {
        assert!(m[name].is_number(), "{name} is missing: {run:#}");
    }
    assert!(way == Way::Cancel || m[fired].is_number(), "{fired} is missing: {run:#}");
    match phase {
        Phase::Queued => assert_eq!((n("/blocks/peak"), n("/steps/total")), (0, 0), "{run:#}"),
        Phase::Prefill | Phase::BeforeFirstToken => assert_eq!(n("/tokens/delivered"), 0, "{run:#}"),
        Phase::Decode => {}
    }
    let delivered = stream && phase == Phase::Decode;
    assert_eq!(run["delivery"], if delivered { "partial" } else { "none" }, "{run:#}");
    assert!(!client.heard.contains("[DONE]"), "an answer that was cut short looks as if it was whole: {}", client.heard);
    if stays {
        assert!(client.heard.contains(causes[0]), "whoever stays is told: {}", client.heard);
    }
}

/// One cell: tried until the server saw the run in that phase. Gives the line for the list.
fn cell(stand: &mut Stand, way: Way, stream: bool, phase: Phase) -> String {
    let mut deadline_ms = stand.deadline_ms(phase);
    for attempt in 1..=TRIES {
        let holder = (phase == Phase::Queued).then(|| stand.holder());
        let long = matches!(phase, Phase::Prefill | Phase::BeforeFirstToken);
        let body = stand.body(if long { LONG } else { 16 }, 8000, stream);
        let id = format!("{way:?}-{stream}-{phase:?}-{attempt}").to_lowercase();
        let deadline = (way == Way::Deadline).then_some(deadline_ms.max(1.0) as u64);
        let mut client = Client::start(&stand.server, way, &id, deadline, &body);
        if way != Way::Deadline {
            stand.steer(&id, phase, stream, &mut client);
        }
        client.leave(way);
        if way == Way::Cancel {
            cancel(&stand.server, &id);
        }
        if matches!(way, Way::Cancel | Way::Deadline | Way::HalfClose) {
            client.read_to_the_end();
        }
        let run = stand.server.settled(&id);
        if let Some((mut holder, id)) = holder {
            assert!(holder.read_tokens(holder.tokens + 1), "the run in front noticed nothing: {}", holder.heard);
            holder.leave(Way::Close);
            stand.server.settled(&id);
        }
        // A token that came between the last look and the close lies unread, and then a close is a reset: that is TCP.
        let raced = way == Way::Close && stream && phase == Phase::Decode && run["outcome"]["cause"] == "client_reset";
        if !is_met(&run, phase) || raced {
            deadline_ms *= if is_short(&run, phase) { 1.4 } else { 0.75 };
            continue;
        }
        check(&run, way, phase, stream, &client);
        let n = |key: &str| run["tokens"][key].as_u64().unwrap_or(0);
        let cause = run["outcome"]["cause"].as_str().unwrap_or("none");
        let seen = run["phase_at_disconnect"].as_str().unwrap_or("none");
        return format!(
            "{:<11} {:<10} {:<17} {cause:<17} seen in {seen:<19} generated {:>3}  delivered {:>3}  after receipt {}  tries {attempt}",
            format!("{way:?}"),
            if stream { "streaming" } else { "whole" },
            format!("{phase:?}"),
            n("generated"),
            n("delivered"),
            n("after_receipt"),
        );
    }
    panic!("{way:?}, stream {stream}: in {TRIES} tries no run was left in {phase:?}")
}

fn every_cell(way: Way) {
    let mut stand = Stand::start(&[]);
    let baseline = rest(&stand.server.kv());
    for stream in [true, false] {
        for phase in PHASES {
            println!("{}", cell(&mut stand, way, stream, phase));
        }
    }
    assert_eq!(rest(&stand.server.kv()), baseline);
    assert!(stand.server.terminate());
}

#[test]
fn by_close_in_every_phase() {
    every_cell(Way::Close);
}

#[test]
fn by_reset_in_every_phase() {
    every_cell(Way::Reset);
}

#[test]
fn by_half_close_in_every_phase() {
    every_cell(Way::HalfClose);
}

#[test]
fn by_the_end_of_its_process_in_every_phase() {
    every_cell(Way::Sigkill);
}

#[test]
fn by_cancel_in_every_phase() {
    every_cell(Way::Cancel);
}

#[test]
fn by_deadline_in_every_phase() {
    every_cell(Way::Deadline);
}

/// Where the operator says so, a caller that closes its sending side is served to the end, wherever its run was.
#[test]
fn a_half_close_that_is_allowed_is_no_leaving_in_any_phase() {
    let mut stand = Stand::start(&["--allow-half-close", "true"]);
    let baseline = rest(&stand.server.kv());
    for stream in [true, false] {
        for phase in PHASES {
            let holder = (phase == Phase::Queued).then(|| stand.holder());
            let long = matches!(phase, Phase::Prefill | Phase::BeforeFirstToken);
            let body = stand.body(if long { LONG } else { 16 }, 24, stream);
            let id = format!("allowed-{stream}-{phase:?}").to_lowercase();
            let mut client = Client::start(&stand.server, Way::HalfClose, &id, None, &body);
            stand.steer(&id, phase, stream, &mut client);
            client.leave(Way::HalfClose);
            if let Some((mut holder, id)) = holder {
                holder.leave(Way::Close);
                stand.server.settled(&id);
            }
            client.read_to_the_end();
            let run = stand.server.settled(&id);
            assert_eq!((&run["outcome"]["kind"], &run["delivery"]), (&json!("completed"), &json!("complete")), "{run:#}");
            assert_eq!(run["tokens"]["delivered"], 24, "{run:#}");
            assert!(run["milestones"]["disconnect_observed"].is_null(), "{run:#}");
            assert_eq!((client.head(), client.heard.contains("[DONE]")), (Some(200), stream), "{}", client.heard);
            println!(
                "HalfClose, allowed: {:<10} {:<17} served to the end",
                if stream { "streaming" } else { "whole" },
                format!("{phase:?}")
            );
        }
    }
    assert_eq!(rest(&stand.server.kv()), baseline);
    assert!(stand.server.terminate());
}
