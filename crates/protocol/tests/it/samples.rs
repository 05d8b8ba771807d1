//! One full example of everything that crosses: each field is there, and differs from what its absence would mean.

use std::time::Duration;

use lifecycle::event::{Event, Record};
use lifecycle::message::{
    AttemptCut, BlockCut, Called, ChatMessage, DeadlineLeft, Delta, Down, Forward, Held, ModelInfo, Passed, Piece, Prompt, Receipt,
    Snapshot, Submit, TokenLogprob, Up, Usage,
};
use lifecycle::params::{Params, Sampling};
use lifecycle::session::{Echo, Frame, Hello, SessionConfig, Welcome};
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, Phase, RunId, RunKey, StepId, Tenant, Time};
use prost::Message;
use protocol::{Drained, Limits, Opened, Opening, down, snapshot_reply, up};

pub const GATEWAY: Incarnation = Incarnation(0x0199_0000_0000_7000_8000_0000_0000_0001);
pub const WORKER: Incarnation = Incarnation(0x0199_0000_0000_7000_8000_0000_0000_0002);

pub fn attempt(run: &str) -> AttemptId {
    let key = RunKey { tenant: Tenant::parse("acme").expect("a name"), run: RunId::parse(run).expect("an id") };
    AttemptId { key, attempt: 2 }
}

pub fn frame<M>(message: Option<M>) -> Frame<M> {
    Frame {
        from: GATEWAY,
        to: WORKER,
        tenure: 3,
        number: if message.is_some() { 4 } else { 0 },
        received: 5,
        missing: true,
        stamp: Time(6_000),
        echo: Some(Echo { stamp: Time(7_000), held: Duration::from_micros(8) }),
        message,
    }
}

pub fn submit(prompt: Prompt) -> Submit {
    let sampling = Sampling {
        temperature: 0.5,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.05,
        presence_penalty: 0.25,
        frequency_penalty: -0.25,
        repetition_penalty: 1.5,
        logit_bias: vec![(7, -1.0), (9, 2.0)],
        seed: 11,
        logprobs: Some(2),
        min_tokens: 3,
    };
    let params = Params {
        sampling,
        max_tokens: Some(64),
        n: 2,
        stop: vec!["\n\n".into()],
        stop_token_ids: vec![2],
        ignore_eos: true,
        cache_salt: "pepper".into(),
        priority: -5,
    };
    let deadlines = vec![DeadlineLeft { left: Duration::from_micros(1_500_000), cause: Cause::ClientDeadline }];
    Submit { attempt: attempt("r1"), worker: WORKER, number: 12, model: "m".into(), prompt, params, deadlines }
}

pub fn downs() -> Vec<(&'static str, Down)> {
    let chat = Prompt::Chat(vec![ChatMessage { role: "user".into(), content: "Hello".into() }]);
    let forward = Forward { path: "/v1/embeddings".into(), body: "{}".into(), stream: true };
    let attempts = vec![attempt("r1"), attempt("r2")];
    let observed_ago = Duration::from_micros(250);
    vec![
        ("submit_chat", Down::Submit(Box::new(submit(chat)))),
        ("submit_text", Down::Submit(Box::new(submit(Prompt::Text("Once upon".into()))))),
        ("submit_tokens", Down::Submit(Box::new(submit(Prompt::Tokens(vec![1, 300, 70_000]))))),
        ("submit_forward", Down::Submit(Box::new(submit(Prompt::Forward(forward))))),
        ("submit_worded", Down::Submit(Box::new(submit(Prompt::Worded("{\"messages\":[]}".into()))))),
        ("cancel", Down::Cancel { attempt: attempt("r1"), cause: Cause::ClientClosed, number: 12, observed_ago }),
        ("claim", Down::Claim { attempts: attempts.clone() }),
        ("disclaim", Down::Disclaim { attempts }),
    ]
}

pub fn delta() -> Delta {
    let top = vec![(32, b" a".to_vec(), -1.5)];
    let logprobs = vec![TokenLogprob { token: 31, bytes: vec![0xe2, 0x82], logprob: -0.25, top }];
    Delta {
        attempt: attempt("r1"),
        sequence: 1,
        text: " the".into(),
        tokens: vec![31, 32],
        logprobs,
        finish: Some(Cause::Length),
        passed: None,
    }
}

/// An answer that is passed on: its beginning, a piece of it, and its end.
pub fn passed() -> Vec<Delta> {
    let head =
        Piece::Head { status: 200, content_type: Some("text/event-stream".into()), headers: [("retry-after".into(), "7".into())].into() };
    let tail = Piece::Tail("data: [DONE]\n\n".into());
    let pieces = [(0, head), (3, Piece::Body("data: {}\n\n".into())), (1, tail)];
    pieces.map(|(tokens, piece)| Delta { passed: Some(Box::new(Passed { tokens, piece })), ..delta() }).into()
}

/// A part of a call.
pub fn called() -> Delta {
    let called = Called { place: 1, id: Some("call_7".into()), name: Some("look".into()), arguments: "{\"a\":".into() };
    Delta { passed: Some(Box::new(Passed { tokens: 1, piece: Piece::Called(Box::new(called)) })), ..delta() }
}

pub fn ups() -> Vec<(&'static str, Up)> {
    let outcome = Outcome::because(Cause::CancelRequested, "as you wish");
    let usage = Usage { prompt: 37, cached_prompt: 16, generated: 19 };
    let receipt = Receipt { blocks_held: 0, blocks_peak: 4, blocks_shared: 1, steps: 21, fence: StepId(1066) };
    vec![
        ("accepted", Up::Accepted { attempt: attempt("r1"), prompt_tokens: 37 }),
        ("step", Up::Step { step: StepId(1064), deltas: vec![delta()] }),
        ("passed", Up::Step { step: StepId(1065), deltas: passed() }),
        ("called", Up::Step { step: StepId(1065), deltas: vec![called()] }),
        ("cancel_acknowledged", Up::CancelAcknowledged { attempt: attempt("r1"), won: Some(Cause::ClientClosed) }),
        ("ended", Up::Ended { attempt: attempt("r1"), outcome, usage }),
        ("released", Up::Released { attempt: attempt("r1"), receipt }),
        ("device_lost", Up::DeviceLost { why: "a step hangs".into() }),
        ("ask", Up::Ask { attempts: vec![attempt("r1"), attempt("r2")] }),
        ("draining", Up::Draining),
        ("records", Up::Records { records: records() }),
    ]
}

/// One of each that crosses.
pub fn records() -> Vec<Record> {
    let outcome = Outcome::because(Cause::CancelRequested, "as you wish");
    let events = vec![
        Event::Queued { prompt_tokens: 37, n: 2, max_tokens: 64 },
        Event::BlocksAllocated { held: 4, cached_tokens: 16, shared: 1 },
        Event::PrefillStart,
        Event::Computed { step: StepId(1064), prompt_tokens: 21, generated: 2, discarded: 3, late: 1 },
        Event::RowsDropped { step: StepId(1065), layers: 7 },
        Event::FirstToken,
        Event::Preempted,
        Event::CancelReceived { cause: Cause::CancelRequested },
        Event::CancelApplied { cause: Cause::CancelRequested, phase: Phase::Decode },
        Event::Suspended,
        Event::Attached,
        Event::Orphaned,
        Event::AttemptEnded { outcome },
        Event::FenceCompleted { step: StepId(1066) },
        Event::Released { receipt: Receipt { blocks_held: 0, blocks_peak: 4, blocks_shared: 1, steps: 21, fence: StepId(1066) } },
    ];
    let id = attempt("r1");
    let record = |(at, event)| Record { at: Time(at), run: Some(id.key.clone()), attempt: id.attempt, event };
    (8_000..).zip(events).map(record).collect()
}

pub fn opening() -> Opening {
    let hello = Hello {
        gateway: "gateway-1".into(),
        incarnation: GATEWAY,
        session: 2,
        resume: Some((WORKER, 3)),
        received: 5,
        lease: Duration::from_secs(10),
        stamp: Time(6_000),
    };
    Opening { versions: vec![1, 2], hello }
}

pub fn opened() -> Opened {
    let welcome = Welcome {
        worker: "worker-1".into(),
        incarnation: WORKER,
        tenure: 3,
        received: 4,
        lease: Duration::from_secs(10),
        stamp: Time(7_000),
    };
    let model = ModelInfo { id: "smollm2-135m-instruct".into(), context: 8192, default_max_tokens: 512, created: 1_700_000_000 };
    Opened { version: 1, welcome, model, limits: Limits::of(&SessionConfig::default()) }
}

pub fn snapshot() -> Snapshot {
    Snapshot {
        step: StepId(1),
        block_tokens: 16,
        total: 15,
        free: 5,
        active: 4,
        orphaned: 2,
        cached: 3,
        draining: 2,
        quarantined: 1,
        queued: 6,
        running: 7,
        stopping: 8,
        stale_releases: 9,
        foreign_releases: 10,
        double_releases: 11,
        device_lost: Some("a step hangs".into()),
        late_completions: 12,
        reserved_bytes: 13,
        tombstones: 14,
        held: Held { attempts: 1, owners: 2, waiting: 3, running: 4, deadlines: 5, slots: 6, slots_total: 7, steps: 8, answers: 9 },
        attempts: vec![AttemptCut { attempt: attempt("r1"), state: "suspended", blocks: 4 }],
        blocks: vec![BlockCut { block: 17, generation: 42, state: "active", owners: vec![attempt("r1")], fence: Some(StepId(1066)) }],
        orphaned_attempts: 15,
        suspensions: 16,
        stale_messages: 17,
    }
}

pub fn drained() -> Drained {
    Drained { worker: WORKER, finished: vec![attempt("r1")], handed_back: vec![attempt("r2")], cancelled: vec![attempt("r3")], left_out: 4 }
}

/// Every example as it crosses: its name, its type on the wire, its bytes.
pub fn encoded() -> Vec<(String, &'static str, Vec<u8>)> {
    let mut all = Vec::new();
    let mut add = |name: &str, of: &'static str, bytes: Vec<u8>| all.push((name.to_owned(), of, bytes));
    add("hello", "Down", protocol::worker_v1::Down::from(&opening()).encode_to_vec());
    for (name, message) in downs() {
        add(name, "Down", down(&frame(Some(message))).expect("it can be sent").encode_to_vec());
    }
    add("heartbeat_down", "Down", down(&frame(None)).expect("it can be sent").encode_to_vec());
    add("welcome", "Up", protocol::worker_v1::Up::from(&opened()).encode_to_vec());
    for (name, message) in ups() {
        add(name, "Up", up(&frame(Some(message))).expect("it can be sent").encode_to_vec());
    }
    add("heartbeat_up", "Up", up(&frame(None)).expect("it can be sent").encode_to_vec());
    add("snapshot", "SnapshotReply", snapshot_reply(WORKER, &snapshot()).expect("it can be sent").encode_to_vec());
    add("drained", "DrainReply", protocol::worker_v1::DrainReply::from(&drained()).encode_to_vec());
    all
}
