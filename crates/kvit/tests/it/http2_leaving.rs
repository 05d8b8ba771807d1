//! HTTP/2 callers that leave a real engine: by resetting their stream, by closing and by resetting the connection; queued, in prefill and
//! decoding, streaming and not.
// contract: C-12, C-13, C-15, C-24
// field: F-78

use serde_json::Value;

use crate::http2::Http2;
use crate::server::{SLOW, Server, chat_body, long_prompt, rest, slow_model};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Stream,
    Close,
    Reset,
}

impl How {
    const ALL: [(How, &'static str); 3] = [(How::Stream, "client_reset"), (How::Close, "client_closed"), (How::Reset, "client_reset")];
}

fn cancelled(server: &Server, id: &str, cause: &str, phase: &str) -> Value {
    let run = server.settled(id);
    assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&"cancelled".into(), &cause.into()), "{id}: {run:#}");
    assert_eq!((&run["phase_at_disconnect"], &run["guarantee"]), (&phase.into(), &"confirmed".into()), "{id}: {run:#}");
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
                let stays = match how {
                    How::Stream => {
                        open.request.send_reset(h2::Reason::CANCEL);
                        Some(caller)
                    }
                    How::Close => caller.close(),
                    How::Reset => caller.reset(),
                };
                let run = cancelled(&server, &id(phase), cause, phase);
                assert_eq!(run["delivery"] == "none", phase != "decode" || !stream, "{run:#}");
                drop(stays);
            }
        }
    }
    assert_eq!(rest(&server.kv()), baseline);
}
