//! A caller that vanishes without a word: its cable is pulled. In every phase, streaming or not, over HTTP/1.1 and HTTP/2, its run ends as
//! `client_lost` within the documented time, and every block comes back.
// contract: C-10, C-12, C-13, C-15, C-28

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::grpc_client::{self, Grpc};
use crate::http2::{Http2, Stream};
use crate::lab::{Lab, in_lab};
use crate::server::{Caller, SLOW, Server, chat_body, long_prompt, rest, slow_model};

/// The least that `client_lost_after_ms` may be.
const LOST_AFTER: Duration = Duration::from_secs(2);
/// What a busy machine may take on top of it.
const SLACK: Duration = Duration::from_secs(8);
/// Longer than any wait here is `unread_max_ms`: whoever is found, is found as lost.
const LIMITS: &str =
    "--client-lost-after-ms=2000 --keepalive-comment-ms=700 --unread-max-ms=600000 --header-timeout-ms=600000 --log=warn --host=0.0.0.0";

/// A slow server on the lab's one host.
fn start(more: &str) -> Server {
    let words: Vec<&str> = LIMITS.split(' ').chain(SLOW).chain(more.split_whitespace()).collect();
    Server::start(&slow_model(), &words)
}

/// Somebody who waits on the other side of the cable. What it holds open is what must be found dead.
#[allow(dead_code)]
enum Waiting {
    One(Caller),
    Two(Http2, Stream),
}

#[derive(Clone, Copy)]
enum Http {
    One,
    Two,
}

impl Http {
    /// Asks from the client's host; with `tokens`, waits until that much of the answer has been read.
    fn ask(self, lab: &Lab, server: &Server, id: &str, body: &Value, reads: bool) -> Waiting {
        let stream = lab.connect(server.port);
        match self {
            Http::One => {
                let mut caller = Caller::over(stream, "/v1/chat/completions", id, body);
                if reads {
                    caller.read_tokens(2);
                }
                Waiting::One(caller)
            }
            Http::Two => {
                let mut http = Http2::over(stream);
                let mut stream = http.chat(id, body);
                if reads {
                    http.read_until(&mut stream, "\"content\":\"");
                }
                Waiting::Two(http, stream)
            }
        }
    }
}

/// Waits as long as is documented, and what a busy machine may need.
fn lost(server: &Server, id: &str, phase: &str) {
    let since = Instant::now();
    let run = loop {
        let run = server.run(id);
        if run["released"] == true && run["settled"] == true {
            break run;
        }
        assert!(since.elapsed() < LOST_AFTER + SLACK, "{id} was not found lost within {:?}: {run:#}", LOST_AFTER + SLACK);
        std::thread::sleep(Duration::from_millis(10));
    };
    println!("{id}: settled as {} after {:?}, delivered {}", run["outcome"]["cause"], since.elapsed(), run["tokens"]["delivered"]);
    assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&"cancelled".into(), &"client_lost".into()), "{run:#}");
    assert_eq!((&run["phase_at_disconnect"], &run["guarantee"]), (&phase.into(), &"confirmed".into()), "{run:#}");
    assert!(run["tokens"]["after_receipt"].as_u64().is_some_and(|n| n <= 1), "{run:#}");
    assert_eq!(run["blocks"]["held"], 0, "{run:#}");
}

/// Every phase over one protocol. "Before the first token" is no row: up to the first token a stream and a whole answer hold the same thing,
/// a prompt's later steps and a connection on which at most a head and comments were sent, and what finds the peer lost asks the kernel, not
/// the engine. The moment between the last step of a prompt and its token cannot be aimed at from a cut cable, seconds before.
fn every_phase(lab: &Lab, http: Http) {
    let server = start("");
    let baseline = rest(&server.kv());
    let descriptors = server.descriptors();
    // One connection is idle: it has had its answer.
    let idle = http.ask(lab, &server, "idle", &chat_body("hello", 3, true), true);
    server.settled("idle");
    let stream = http.ask(lab, &server, "stream", &chat_body("go", 3000, true), true);
    let whole = http.ask(lab, &server, "whole", &chat_body("go on", 3000, false), false);
    server.wait_run("whole", "decode", |run| run["tokens"]["generated"].as_u64() > Some(2));
    let prefill = http.ask(lab, &server, "prefill", &chat_body(&long_prompt("p"), 10, true), false);
    server.wait_run("prefill", "reach prefill", |run| run["milestones"]["prefill_start"].is_number());
    // One long prompt at a time takes all of a step: the other is computed by another server.
    let second = start("");
    let prefill_whole = http.ask(lab, &second, "prefill-whole", &chat_body(&long_prompt("w"), 10, false), false);
    second.wait_run("prefill-whole", "reach prefill", |run| run["milestones"]["prefill_start"].is_number());
    // Elsewhere somebody who stays has the only place, and two wait.
    let full = start("--max-running 1");
    let mut holder = Caller::chat(&full, "holder", &chat_body("go", 6000, true));
    holder.read_tokens(1);
    let queued = http.ask(lab, &full, "queued", &chat_body("hello", 10, true), false);
    let queued_whole = http.ask(lab, &full, "queued-whole", &chat_body("hello", 10, false), false);
    for id in ["queued", "queued-whole"] {
        full.wait_run(id, "queue", |run| run["milestones"]["queued"].is_number());
    }
    lab.cut();
    for (server, id, phase) in [
        (&server, "stream", "decode"),
        (&server, "whole", "decode"),
        (&server, "prefill", "prefill"),
        (&second, "prefill-whole", "prefill"),
        (&full, "queued", "queued"),
        (&full, "queued-whole", "queued"),
    ] {
        lost(server, id, phase);
    }
    assert_eq!(rest(&server.kv()), baseline);
    server.wait_descriptors(descriptors);
    // Who did not vanish noticed nothing.
    assert!(!holder.read_tokens(2).is_empty());
    drop((idle, stream, whole, prefill, prefill_whole, queued, queued_whole));
    lab.mend();
    // Whoever comes back is served.
    let again = http.ask(lab, &server, "again", &chat_body("hello", 3, true), true);
    assert_eq!(server.settled("again")["outcome"]["kind"], "completed");
    drop(again);
}

// field: F-01, F-03
#[test]
fn an_http1_caller_that_vanishes_is_lost_in_every_phase() {
    in_lab("lost::an_http1_caller_that_vanishes_is_lost_in_every_phase", |lab| every_phase(lab, Http::One));
}

// field: F-78
#[test]
fn an_http2_caller_that_vanishes_is_lost_in_every_phase() {
    in_lab("lost::an_http2_caller_that_vanishes_is_lost_in_every_phase", |lab| every_phase(lab, Http::Two));
}

/// A call is an HTTP/2 stream, and so it is with what finds its caller lost: PINGs, and what is sent and not acknowledged.
// field: F-78
#[test]
fn a_grpc_caller_that_vanishes_is_lost_in_every_phase() {
    in_lab("lost::a_grpc_caller_that_vanishes_is_lost_in_every_phase", |lab| {
        let (server, full) = (start(""), start("--max-running 1"));
        let (model, baseline) = (grpc_client::model(&server), rest(&server.kv()));
        let ask = |server: &Server, id: &str, content: &str| {
            let caller = Grpc::over(lab.connect(server.port), None);
            let call = caller.generate(&[("x-request-id", id)], grpc_client::chat(&model, content, 3000)).expect("it is taken on");
            (caller, call)
        };
        let (one, mut decode) = ask(&server, "decode", "go");
        one.read_tokens(&mut decode, 2);
        let prefill = ask(&server, "prefill", &long_prompt("p"));
        server.wait_run("prefill", "reach prefill", |run| run["milestones"]["prefill_start"].is_number());
        // Elsewhere somebody who stays has the only place.
        let mut holder = Caller::chat(&full, "holder", &chat_body("go", 6000, true));
        holder.read_tokens(1);
        let queued = ask(&full, "queued", "hello");
        full.wait_run("queued", "queue", |run| run["milestones"]["queued"].is_number());
        lab.cut();
        for (server, phase) in [(&full, "queued"), (&server, "prefill"), (&server, "decode")] {
            lost(server, phase, phase);
        }
        assert_eq!(rest(&server.kv()), baseline);
        assert!(!holder.read_tokens(2).is_empty(), "who did not vanish noticed nothing");
        drop((one, decode, prefill, queued));
    });
}

/// The server's host asks who has the address, nobody answers, and what was silence becomes an error: the cause is the same.
#[test]
fn a_caller_whose_host_is_unreachable_is_lost() {
    in_lab("lost::a_caller_whose_host_is_unreachable_is_lost", |lab| {
        let server = start("");
        let caller = Http::One.ask(lab, &server, "r", &chat_body("go", 3000, true), true);
        lab.cut();
        lab.forget_neighbour();
        lost(&server, "r", "decode");
        drop(caller);
    });
}

/// A caller that does not read and then vanishes: its closed window is probed, and the probes stay unanswered.
// field: F-80
#[test]
fn a_caller_that_vanishes_behind_a_closed_window_is_lost() {
    in_lab("lost::a_caller_that_vanishes_behind_a_closed_window_is_lost", |lab| {
        // Time judges here, not the number of events that wait.
        let server = start("--send-buffer-bytes 16384 --stream-buffer-events 100000");
        let stream = lab.connect(server.port);
        socket2::SockRef::from(&stream).set_recv_buffer_size(2048).expect("a small buffer");
        // Never read.
        let caller = Caller::over(stream, "/v1/chat/completions", "r", &chat_body("go", 3000, true));
        let unread = |run: &Value| run["tokens"]["generated"].as_u64() > run["tokens"]["delivered"].as_u64().map(|n| n + 20);
        server.wait_run("r", "run ahead of its reader", unread);
        lab.cut();
        lost(&server, "r", "decode");
        drop(caller);
    });
}
