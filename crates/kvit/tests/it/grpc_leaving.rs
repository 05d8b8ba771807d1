//! gRPC callers that leave a real engine: queued, in prefill and decoding, by dropping their stream, closing or resetting their connection,
//! and by the end of their process; and deadlines, counted by the server alone and by the caller too.
// contract: C-12, C-13, C-15, C-22, C-24
// field: F-78

use std::time::Duration;

use serde_json::Value;
use tonic::Code;

use crate::grpc_client::{Call, Grpc, chat, model, word};
use crate::server::{SLOW, Server, long_prompt, rest, slow_model};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Drop,
    Close,
    Reset,
    Sigkill,
}

impl How {
    const ALL: [(How, &'static [&'static str]); 4] = [
        (How::Drop, &["client_reset"]),
        (How::Close, &["client_closed"]),
        (How::Reset, &["client_reset"]),
        // The kernel closes for it: a reset if something lay unread.
        (How::Sigkill, &["client_closed", "client_reset"]),
    ];

    fn caller(self, server: &Server) -> Grpc {
        if self == How::Sigkill { Grpc::held_by_a_process(server) } else { Grpc::to(server) }
    }

    /// Goes. What stays open does so until the run is settled.
    fn leave(self, caller: Grpc, call: Call) -> (Option<Grpc>, Option<Call>) {
        match self {
            How::Drop => {
                drop(call);
                return (Some(caller), None);
            }
            How::Close => caller.close(),
            How::Reset => caller.reset(),
            How::Sigkill => caller.kill(),
        }
        (None, Some(call))
    }
}

/// What holds of every run that was left.
fn left(server: &Server, id: &str, kind: &str, causes: &[&str], phase: &str) -> Value {
    let run = server.settled(id);
    assert_eq!(run["outcome"]["kind"], kind, "{id}: {run:#}");
    assert!(run["outcome"]["cause"].as_str().is_some_and(|cause| causes.contains(&cause)), "{id}, not in {causes:?}: {run:#}");
    assert_eq!((&run["phase_at_disconnect"], &run["guarantee"]), (&phase.into(), &"confirmed".into()), "{id}: {run:#}");
    assert!(run["tokens"]["after_receipt"].as_u64().is_some_and(|n| n <= 1), "{id}: {run:#}");
    assert_eq!(run["blocks"]["held"], 0, "{id}: {run:#}");
    run
}

#[test]
fn grpc_callers_leave_in_every_phase() {
    let words = [&SLOW[..], &["--max-running", "2", "--log=warn"]].concat();
    let server = Server::start(&slow_model(), &words);
    let model = model(&server);
    let baseline = rest(&server.kv());
    for (how, causes) in How::ALL {
        let id = |phase: &str| format!("{phase}-{how:?}");
        // One connection each: what becomes of one is nothing to the others.
        let [one, two, three] = [(); 3].map(|()| how.caller(&server));
        let asked = |caller: &Grpc, phase: &str, content: &str, max_tokens| {
            caller.generate(&[("x-request-id", &id(phase))], chat(&model, content, max_tokens)).expect("it is taken on")
        };
        let mut decode = asked(&one, "decode", "go", 6000);
        one.read_tokens(&mut decode, 3);
        let prefill = asked(&two, "prefill", &long_prompt(&id("p")), 10);
        server.wait_run(&id("prefill"), "reach prefill", |run| run["milestones"]["prefill_start"].is_number());
        let queued = asked(&three, "queued", "hi", 10);
        server.wait_run(&id("queued"), "queue", |run| run["milestones"]["queued"].is_number());
        // The one that waits goes first, so that no place becomes free for it.
        for (phase, caller, call) in [("queued", three, queued), ("prefill", two, prefill), ("decode", one, decode)] {
            let read = call.tokens as u64;
            let stays = how.leave(caller, call);
            let run = left(&server, &id(phase), "cancelled", causes, phase);
            assert_eq!(run["delivery"], if phase == "decode" { "partial" } else { "none" }, "{run:#}");
            let n = |key: &str| run["tokens"][key].as_u64().expect("a count");
            assert!(read <= n("delivered") && n("delivered") + n("after_disconnect") <= n("generated"), "{run:#}");
            println!("{how:?} in {phase}: {}, generated {}, delivered {}", run["outcome"]["cause"], n("generated"), n("delivered"));
            drop(stays);
        }
    }
    assert_eq!(rest(&server.kv()), baseline);
}

/// Times that a phase is tried, each with a span half as long again.
const TRIES: u32 = 12;
/// The first span.
const SPAN_MS: u64 = 200;

/// The caller says its deadline and listens on: it is told how its run ended, and by which status.
#[test]
fn a_deadline_ends_the_run_in_every_phase_and_the_caller_hears_of_it() {
    let words = [&SLOW[..], &["--max-running", "1", "--deadline-check-percent", "0", "--log=warn"]].concat();
    let server = Server::start(&slow_model(), &words);
    let model = model(&server);
    let baseline = rest(&server.kv());
    for phase in ["queued", "prefill", "decode"] {
        let holder = Grpc::to(&server);
        let held = (phase == "queued").then(|| {
            let mut held = holder.generate(&[("x-request-id", "holder")], chat(&model, "go", 6000)).expect("it is taken on");
            holder.read_tokens(&mut held, 1);
            held
        });
        let mut span = SPAN_MS;
        let met = (0..TRIES).any(|attempt| {
            let id = format!("{phase}-{attempt}");
            let content = if phase == "prefill" { long_prompt(&id) } else { id.clone() };
            let caller = Grpc::to(&server);
            let metadata = [("x-request-id", id.as_str()), ("grpc-timeout", &format!("{span}m"))];
            let status = match caller.generate(&metadata, chat(&model, &content, 6000)) {
                Err(status) => status,
                Ok(mut call) => {
                    let status = caller.read_to_the_end(&mut call).expect_err("it is no whole answer");
                    let ended = call.ended.expect("whoever stays is told").outcome.expect("how it ended");
                    assert_eq!(ended.cause(), protocol::runs_v1::Cause::ClientDeadline);
                    status
                }
            };
            assert_eq!((status.code(), word(&status)), (Code::DeadlineExceeded, "client_deadline"), "{status:?}");
            let seen = server.settled(&id);
            span += span / 2;
            if seen["phase_at_disconnect"] != phase {
                return false;
            }
            let run = left(&server, &id, "expired", &["client_deadline"], phase);
            assert!(run["milestones"]["deadline_fired"].is_number() && run["milestones"]["disconnect_observed"].is_null(), "{run:#}");
            true
        });
        assert!(met, "no span fell into {phase}");
        if held.is_some() {
            drop(held);
            server.settled("holder");
        }
    }
    assert_eq!(rest(&server.kv()), baseline);
}

/// A caller counts its deadline too and lets go when it is over, which is what every gRPC library does: that is the deadline's doing, although
/// what comes is a reset. One that lets go long before has changed its mind.
#[test]
fn a_caller_that_lets_go_at_its_deadline_was_ended_by_it() {
    let server = Server::start(&slow_model(), &[&SLOW[..], &["--log=warn"]].concat());
    let model = model(&server);
    let baseline = rest(&server.kv());
    for (id, timeout_ms, goes_after_ms, kind, cause) in
        [("in-time", 800, 795, "expired", "client_deadline"), ("early", 600_000, 200, "cancelled", "client_reset")]
    {
        let caller = Grpc::to(&server);
        let metadata = [("x-request-id", id), ("grpc-timeout", &format!("{timeout_ms}m"))];
        let since = std::time::Instant::now();
        let call = caller.generate(&metadata, chat(&model, id, 6000)).expect("it is taken on");
        std::thread::sleep(Duration::from_millis(goes_after_ms).saturating_sub(since.elapsed()));
        drop(call);
        let run = server.settled(id);
        assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&kind.into(), &cause.into()), "{run:#}");
        assert!(run["tokens"]["after_receipt"].as_u64().is_some_and(|n| n <= 1), "{run:#}");
    }
    assert_eq!(rest(&server.kv()), baseline);
}

/// What the caller does not take stays in the queue, whatever tonic would put into one frame, and is seen to wait there. Before the first
/// token there is nothing to take, so in the queue and in prefill nobody stalls.
// contract: C-28
// field: F-80
#[test]
fn a_grpc_caller_that_stops_reading_is_stalled() {
    let limits = ["--unread-max-ms=1000", "--send-buffer-bytes=8192", "--stream-buffer-events=100000", "--log=warn"];
    let server = Server::start(&slow_model(), &[&SLOW[..], &limits].concat());
    let model = model(&server);
    let baseline = rest(&server.kv());
    let caller = Grpc::over(server.connect(), Some(1024));
    let mut unread = caller.generate(&[("x-request-id", "unread")], chat(&model, "go", 6000)).expect("it is taken on");
    caller.read_tokens(&mut unread, 3);
    // Another call on the same connection is read to its end.
    let mut other = caller.generate(&[("x-request-id", "read")], chat(&model, "go on", 30)).expect("it is taken on");
    caller.read_to_the_end(&mut other).expect("it is whole");
    let run = left(&server, "unread", "cancelled", &["client_stalled"], "decode");
    assert_eq!(run["delivery"], "partial", "{run:#}");
    assert_eq!(server.settled("read")["delivery"], "complete");
    assert_eq!(rest(&server.kv()), baseline);
}
