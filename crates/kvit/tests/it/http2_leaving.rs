//! HTTP/2 callers that leave a real engine: by resetting their stream, by closing and by resetting the connection; queued, in prefill, before
//! the first token and decoding, streaming and not. And those that say GOAWAY, which is no leaving, and then close.
// contract: C-12, C-13, C-15, C-24
// field: F-78

use serde_json::Value;

use crate::http2::{Http2, Stream};
use crate::server::{SLOW, Server, chat_body, long_prompt, rest, slow_model};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Stream,
    Close,
    Reset,
}

impl How {
    const ALL: [(How, &'static str); 3] = [(How::Stream, "client_reset"), (How::Close, "client_closed"), (How::Reset, "client_reset")];

    /// Goes. What stays open does so until the run is settled.
    fn leave(self, caller: Http2, open: &mut Stream) -> Option<Http2> {
        match self {
            How::Stream => {
                open.request.send_reset(h2::Reason::CANCEL);
                Some(caller)
            }
            How::Close => caller.close(),
            How::Reset => caller.reset(),
        }
    }
}

fn cancelled(server: &Server, id: &str, cause: &str, phases: &[&str]) -> Value {
    let run = server.settled(id);
    assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&"cancelled".into(), &cause.into()), "{id}: {run:#}");
    assert!(run["phase_at_disconnect"].as_str().is_some_and(|phase| phases.contains(&phase)), "{id} was not met in {phases:?}: {run:#}");
    assert_eq!(run["guarantee"], "confirmed", "{id}: {run:#}");
    assert!(run["tokens"]["after_receipt"].as_u64().is_some_and(|n| n <= 1), "{id}: {run:#}");
    assert_eq!(run["blocks"]["held"], 0, "{id}: {run:#}");
    run
}

#[test]
fn http2_callers_leave_in_every_phase() {
    let words = [&SLOW[..], &["--max-running", "2", "--log=warn"]].concat();
    let server = Server::start(&slow_model(), &words);
    let baseline = rest(&server.kv());
    for (how, cause) in How::ALL {
        for stream in [true, false] {
            let id = |phase: &str| format!("{phase}-{how:?}-{stream}");
            // One connection each: what becomes of one is nothing to the others.
            let [mut one, mut two, mut three] = [(); 3].map(|()| Http2::over(server.connect()));
            let mut decode = one.chat(&id("decode"), &chat_body("go", 6000, stream));
            if stream {
                one.read_until(&mut decode, "\"content\":\"");
            }
            server.wait_run(&id("decode"), "decode", |run| run["tokens"]["generated"].as_u64() > Some(2));
            let prefill = two.chat(&id("prefill"), &chat_body(&long_prompt(&id("p")), 10, stream));
            server.wait_run(&id("prefill"), "reach prefill", |run| run["milestones"]["prefill_start"].is_number());
            let queued = three.chat(&id("queued"), &chat_body("hi", 10, stream));
            server.wait_run(&id("queued"), "queue", |run| run["milestones"]["queued"].is_number());
            // The one that waits goes first, so that no place becomes free for it.
            for (phase, caller, mut open) in [("queued", three, queued), ("prefill", two, prefill), ("decode", one, decode)] {
                let stays = how.leave(caller, &mut open);
                let run = cancelled(&server, &id(phase), cause, &[phase]);
                assert_eq!(run["delivery"] == "none", phase != "decode" || !stream, "{run:#}");
                drop(stays);
            }
        }
    }
    assert_eq!(rest(&server.kv()), baseline);
}

/// The later half of a prompt is computed, a stream's caller has the head of its answer, and no token has come.
#[test]
fn http2_callers_leave_before_the_first_token() {
    let server = Server::start(&slow_model(), &[&SLOW[..], &["--log=warn"]].concat());
    let baseline = rest(&server.kv());
    for (how, cause) in How::ALL {
        for stream in [true, false] {
            let id = format!("{how:?}-{stream}");
            let mut caller = Http2::over(server.connect());
            let mut open = caller.chat(&id, &chat_body(&long_prompt(&id)[..PROMPT], 10, stream));
            if stream {
                caller.headers(&mut open);
            }
            let half = |run: &Value| run["steps"]["total"].as_u64() >= Some(HALF);
            server.wait_run(&id, "compute half of its prompt", half);
            let stays = how.leave(caller, &mut open);
            let run = cancelled(&server, &id, cause, &["prefill", "before_first_token"]);
            assert!(half(&run), "{run:#}");
            assert_eq!((&run["tokens"]["delivered"], &run["delivery"]), (&0.into(), &"none".into()), "{run:#}");
            drop(stays);
        }
    }
    assert_eq!(rest(&server.kv()), baseline);
}

/// Tokens of a prompt that is long enough to be met in its later half, and the steps of its first half.
const PROMPT: usize = 512;
const HALF: u64 = PROMPT as u64 / 32 / 2;

/// A GOAWAY, whatever its reason, says that no further request comes: the run goes on to be computed, and the close behind it ends it.
#[test]
fn a_goaway_ends_nothing_and_the_close_after_it_does() {
    let server = Server::start(&slow_model(), &[&SLOW[..], &["--log=warn"]].concat());
    let baseline = rest(&server.kv());
    for reason in [h2::Reason::NO_ERROR, h2::Reason::INTERNAL_ERROR] {
        for stream in [true, false] {
            let id = format!("{reason:?}-{stream}");
            let mut caller = Http2::over(server.connect());
            let mut open = caller.chat(&id, &chat_body("go", 6000, stream));
            let generated = |run: &Value| run["tokens"]["generated"].as_u64().unwrap_or(0);
            let before = generated(&server.wait_run(&id, "decode", |run| generated(run) > 2));
            caller.goaway(reason);
            if stream {
                caller.read_until(&mut open, "\"content\":\"");
            }
            let run = server.wait_run(&id, "go on", |run| generated(run) > before + 5);
            assert!(run["milestones"]["disconnect_observed"].is_null() && run["outcome"].is_null(), "{run:#}");
            caller.close();
            let run = cancelled(&server, &id, "client_closed", &["decode"]);
            assert_eq!(run["delivery"], if stream { "partial" } else { "none" }, "{run:#}");
        }
    }
    assert_eq!(rest(&server.kv()), baseline);
}
