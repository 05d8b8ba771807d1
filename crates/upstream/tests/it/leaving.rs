//! Every way of leaving, at every moment, through the gateway: the engine sees its connection closed, and the run says how well that is proven.
// contract: C-8 C-22 C-29
// field: F-01 F-03

use std::sync::atomic::Ordering;
use std::time::Duration;

use gateway::GatewayConfig;
use serde_json::json;
use tokio::task::JoinSet;
use upstream::kind::{CancelBy, Kind};

use crate::engine::Engine;
use crate::script::{Step, chunk, stream_head};
use crate::stand::{self, Stand, before, cancel, chat, of, read, read_until, until};
use crate::through::{TOKEN, beginning};

/// Long enough to come to any moment before.
const DEADLINE_MS: u64 = 4000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    Queued,
    BeforeHead,
    Head,
    MidStream,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leave {
    Close,
    Reset,
    ByName,
    Deadline,
}

/// What the engine shows of a request that was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shows {
    Gone,
    Zombie,
    Nothing,
}

impl Leave {
    fn cause(self) -> &'static str {
        match self {
            Leave::Close => "client_closed",
            Leave::Reset => "client_reset",
            Leave::ByName => "cancel_requested",
            Leave::Deadline => "client_deadline",
        }
    }
}

fn steps(moment: Moment, stream: bool) -> Vec<Step> {
    let mut steps = match (moment, stream) {
        (Moment::Queued | Moment::BeforeHead, _) => vec![],
        (Moment::Head, true) => vec![stream_head()],
        (Moment::MidStream, true) => vec![stream_head(), chunk(TOKEN)],
        (Moment::Head, false) => vec![beginning("")],
        (Moment::MidStream, false) => vec![beginning("{")],
    };
    steps.push(Step::UntilClosed);
    steps
}

async fn engine(kind: Kind, shows: Shows, moment: Moment, stream: bool) -> (Engine, Stand) {
    let engine = Engine::always(kind, steps(moment, stream)).await;
    let engine = if shows == Shows::Zombie { engine.keep_zombies() } else { engine };
    let mut config = stand::config(engine.addr);
    (config.kind, config.slots) = (Some(kind), Some(1));
    config.observe_for = Duration::from_millis(if shows == Shows::Zombie { 200 } else { 20_000 });
    let stand = stand::stand(GatewayConfig::default(), vec![config]).await;
    (engine, stand)
}

async fn cell(kind: Kind, shows: Shows, (moment, leave, stream): (Moment, Leave, bool)) {
    let what = format!("{kind} shows {shows:?}: {moment:?} {leave:?}, stream: {stream}");
    let (engine, stand) = engine(kind, shows, moment, stream).await;
    // Whoever has the only slot.
    let mut first = None;
    if moment == Moment::Queued {
        first = Some(chat(stand.addr, "r0", true, &json!({})).await);
        until(|| engine.asked() == 1, || what.clone()).await;
    }
    let more = if leave == Leave::Deadline { json!({"timeout_ms": DEADLINE_MS}) } else { json!({}) };
    let mut socket = chat(stand.addr, "r1", stream, &more).await;
    match (moment, stream) {
        (Moment::Queued, _) => drop(stand.until("r1", |run| run["state"] == "queued").await),
        (Moment::BeforeHead, _) => until(|| engine.asked() == 1, || what.clone()).await,
        (Moment::Head, true) => read_until(&mut socket, "\r\n\r\n").await,
        (Moment::MidStream, true) => read_until(&mut socket, "\"a\"").await,
        // Nobody outside sees the beginning of an answer that is not streamed: it is on its way behind the request.
        (Moment::Head | Moment::MidStream, false) => {
            until(|| engine.asked() == 1, || what.clone()).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    match leave {
        Leave::Close => drop(socket),
        Leave::Reset => {
            socket.set_zero_linger().expect("SO_LINGER");
            drop(socket);
        }
        Leave::ByName | Leave::Deadline => {
            if leave == Leave::ByName {
                assert_eq!(cancel(stand.addr, "r1").await, 200, "{what}");
            }
            if stream && matches!(moment, Moment::Head | Moment::MidStream) {
                read_until(&mut socket, leave.cause()).await;
            } else {
                let reply = read(socket).await;
                assert_eq!((reply.status, reply.error().0.as_str()), (499, leave.cause()), "{what}: {reply:?}");
            }
        }
    }
    let run = stand.settled("r1").await;
    assert_eq!(run["outcome"]["cause"], leave.cause(), "{what}: {run}");
    assert_ne!(run["outcome"]["kind"], "completed", "{what}: {run}");
    let level = match (moment, shows) {
        (Moment::Queued, _) => "confirmed",
        (_, Shows::Gone) => "observed",
        _ => "best_effort",
    };
    assert_eq!(run["guarantee"], level, "{what}: {run}");
    assert_eq!(engine.asked(), 1, "{what}: one that waits in kvit is never sent");
    drop(first);
    if moment == Moment::Queued {
        stand.settled("r0").await;
    }
    stand.nothing_is_left(&[&engine]).await;
}

async fn all(kind: Kind, shows: Shows) {
    let mut cells = JoinSet::new();
    for moment in [Moment::Queued, Moment::BeforeHead, Moment::Head, Moment::MidStream] {
        for leave in [Leave::Close, Leave::Reset, Leave::ByName, Leave::Deadline] {
            for stream in [true, false] {
                cells.spawn(cell(kind, shows, (moment, leave, stream)));
            }
        }
    }
    assert_eq!(cells.len(), 32);
    while let Some(cell) = cells.join_next().await {
        cell.expect("as it should be");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_whose_counters_show_that_it_is_gone() {
    all(Kind::Vllm, Shows::Gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_shows_so_and_is_told_by_closing_only() {
    all(Kind::LlamaCpp, Shows::Gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_counters_show_that_it_goes_on() {
    all(Kind::LlamaCpp, Shows::Zombie).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_shows_nothing() {
    all(Kind::OpenAi, Shows::Nothing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_told_by_id_and_shows_nothing() {
    all(Kind::Sglang, Shows::Nothing).await;
}

/// An engine that goes on when its caller closes, and matches ids by their beginning: only the id can end a request, and no id but its own.
// contract: C-1 C-8 C-29
#[tokio::test(flavor = "multi_thread")]
async fn a_leaving_ends_its_own_request_by_its_id_and_no_neighbours() {
    let steps = vec![stream_head(), chunk(TOKEN), Step::UntilClosed];
    let engine = Engine::always(Kind::Sglang, steps).await.keep_zombies();
    let stand = stand::before(&engine, stand::of(Kind::Sglang)).await;
    let mut callers = Vec::new();
    for number in 1..=17 {
        let mut caller = chat(stand.addr, &format!("r{number}"), true, &json!({"rid": "r"})).await;
        read_until(&mut caller, "\"a\"").await;
        callers.push(caller);
    }
    let all = engine.computes();
    assert!(all.len() == 17 && all.iter().all(|id| id.len() == 32), "each has a name of its own, and not its caller's: {all:?}");
    let named = |number: usize| engine.hands.asked.lock().expect("asked")[number].clone();
    // The first, whose name would be the beginning of another's if names were numbers.
    let own = all.iter().find(|id| named(0).contains(&format!("x-request-id: {id}"))).expect("its name").clone();
    drop(callers.remove(0));
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["cause"], &run["guarantee"]), (&json!("client_closed"), &json!("best_effort")), "{run}");
    until(|| engine.computes().len() < 17, || format!("{:?}", engine.computes())).await;
    let others: Vec<String> = all.iter().filter(|id| **id != own).cloned().collect();
    assert_eq!((engine.computes(), engine.aborts().len()), (others.clone(), 1), "its own, and nobody else's");
    // What it would have meant to send less than a whole name.
    let beginning = json!({"rid": &others[0][..31]});
    let met = |id: &&String| id.starts_with(&others[0][..31]);
    read_until(&mut stand::post(engine.addr, "/abort_request", "x", &beginning).await, "Success").await;
    let left: Vec<String> = others.iter().filter(|id| !met(id)).cloned().collect();
    assert!(left.len() < others.len() - 1, "one beginning meets several: {others:?}");
    until(|| engine.computes() == left, || format!("{:?}", engine.computes())).await;
    drop(callers);
    for number in 2..=17 {
        stand.settled(&format!("r{number}")).await;
    }
    until(|| engine.computes().is_empty(), || format!("{:?}", engine.computes())).await;
    stand.nothing_is_left(&[&engine]).await;
}

/// What the configuration says of how an engine is told is what is done.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_to_be_told_by_closing_or_not_at_all_is_sent_no_id() {
    for kind in [Kind::Vllm, Kind::Sglang] {
        for (by, told) in [("id", 1), ("close", 0), ("none", 0)] {
            let engine = Engine::always(kind, steps(Moment::MidStream, true)).await;
            let by = by.parse().expect("a word");
            let stand = stand::before(&engine, |config| (config.kind, config.cancel) = (Some(kind), Some(by))).await;
            let mut caller = chat(stand.addr, "r1", true, &json!({})).await;
            read_until(&mut caller, "\"a\"").await;
            drop(caller);
            let run = stand.settled("r1").await;
            let level = match (by, kind) {
                (CancelBy::Nothing, _) => "unsupported",
                (_, Kind::Vllm) => "observed",
                _ => "best_effort",
            };
            assert_eq!(run["guarantee"], level, "{kind} {by:?}: {run}");
            let (in_hand, hands) = (stand.in_hand[0].clone(), engine.hands.clone());
            until(|| in_hand.tasks() == 0, || "a task goes on".to_owned()).await;
            assert_eq!(hands.aborts.lock().expect("cancels").len(), told, "{kind} {by:?}");
            stand.nothing_is_left(&[&engine]).await;
        }
    }
}

// contract: C-10
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_ends_does_not_wait_for_a_proof_that_may_not_come() {
    let engine = Engine::always(Kind::LlamaCpp, steps(Moment::MidStream, true)).await.keep_zombies();
    let mut config = stand::config(engine.addr);
    // Longer than the gateway waits.
    (config.kind, config.observe_for) = (Some(Kind::LlamaCpp), Duration::from_secs(20));
    let gateway = GatewayConfig { drain: Duration::from_millis(10), ..GatewayConfig::default() };
    let mut stand = stand::stand(gateway, vec![config]).await;
    let mut socket = chat(stand.addr, "r1", true, &json!({})).await;
    read_until(&mut socket, "\"a\"").await;
    stand.shut_down().await;
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["cause"], &run["guarantee"]), (&json!("shutdown"), &json!("best_effort")), "{run}");
    assert_eq!(engine.running(), 0);
}

/// An engine whose counters are those of its last step: what is left before its tokens is proven by a later request's, kvit's own if no
/// caller's comes.
// contract: C-29
#[tokio::test(flavor = "multi_thread")]
async fn what_was_left_before_it_was_counted_needs_a_witness() {
    for witness in [true, false] {
        let engine = Engine::always(Kind::Vllm, vec![Step::UntilClosed]).await;
        let stand = before(&engine, |config| {
            of(Kind::Vllm)(config);
            (config.witness, config.observe_for) = (witness, Duration::from_millis(500));
        })
        .await;
        let socket = chat(stand.addr, "r1", true, &json!({})).await;
        until(|| engine.running() == 1, || "it was not asked".to_owned()).await;
        drop(socket);
        let run = stand.settled("r1").await;
        let level = if witness { "observed" } else { "best_effort" };
        assert_eq!((&run["outcome"]["cause"], &run["guarantee"]), (&json!("client_closed"), &json!(level)), "{run}");
        let witnesses = engine.hands.witnesses.load(Ordering::SeqCst);
        assert_eq!((engine.asked(), witnesses), (1, usize::from(witness)));
        stand.nothing_is_left(&[&engine]).await;
    }
}

/// A picture has to be fetched from elsewhere before the engine has the request: that it counts none yet says nothing, until a token was shown.
// contract: C-29
#[tokio::test(flavor = "multi_thread")]
async fn what_names_a_picture_elsewhere_is_proven_gone_only_if_it_had_come() {
    let picture = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://elsewhere/a.png"}}]}]);
    for (moment, level) in [(Moment::BeforeHead, "best_effort"), (Moment::MidStream, "observed")] {
        let engine = Engine::always(Kind::LlamaCpp, steps(moment, true)).await;
        let stand = before(&engine, of(Kind::LlamaCpp)).await;
        let mut socket = chat(stand.addr, "r1", true, &json!({"messages": picture})).await;
        until(|| engine.running() == 1, || "it was not asked".to_owned()).await;
        if moment == Moment::MidStream {
            read_until(&mut socket, TOKEN).await;
        }
        drop(socket);
        let run = stand.settled("r1").await;
        assert_eq!((&run["outcome"]["cause"], &run["guarantee"]), (&json!("client_closed"), &json!(level)), "{run}");
        stand.nothing_is_left(&[&engine]).await;
    }
}

/// vLLM makes a request of each prompt, and each has a name of its own.
// contract: C-8
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_by_id_names_every_prompt_of_a_completion() {
    let engine = Engine::always(Kind::Vllm, vec![stream_head(), chunk(TOKEN), Step::UntilClosed]).await;
    let stand = before(&engine, of(Kind::Vllm)).await;
    for (id, prompt, prompts) in [
        ("r0", json!("a"), 1),
        ("r1", json!(["a", "b", "c"]), 3),
        ("r2", json!([1, 2, 3]), 1),
        ("r3", json!([[1, 2], [3]]), 2),
        ("r4", json!({"a": 1}), 1),
    ] {
        let before = engine.aborts().len();
        let mut socket = stand::post(stand.addr, "/v1/completions", id, &json!({"model": "tiny", "prompt": prompt, "stream": true})).await;
        read_until(&mut socket, TOKEN).await;
        drop(socket);
        stand.settled(id).await;
        until(|| engine.aborts().len() > before, || "it is told nothing".to_owned()).await;
        let asked = engine.hands.asked.lock().expect("what was asked").last().cloned().expect("a request");
        let name = asked.lines().find_map(|line| line.strip_prefix("x-request-id: ")).expect("a name").to_owned();
        let told = engine.aborts().pop().expect("a cancel");
        let (_, told) = told.split_once("\r\n\r\n").expect("a body");
        let names: Vec<_> = (0..prompts).map(|prompt| format!("cmpl-{name}-{prompt}")).collect();
        assert_eq!(serde_json::from_str::<serde_json::Value>(told).expect("JSON"), json!({"request_ids": names}), "{prompt}");
    }
    stand.nothing_is_left(&[&engine]).await;
}
