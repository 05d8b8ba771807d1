//! What calls itself a kvit, and what is believed of it: its record of the very run, and no acknowledgement.
// contract: C-8 C-12 C-28 C-29
// field: F-01 F-03

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use upstream::config::{Secret, UpstreamConfig};
use upstream::kind::Kind;

use crate::engine::Engine;
use crate::script::{Step, chunk, stream_head};
use crate::stand::{Stand, before, chat, read_until, request, until};
use crate::through::TOKEN;

/// Tokens of its answer before it waits.
const SHOWN: u64 = 2;
const MAX_TOKENS: u64 = 40;

/// A kvit that shows two tokens and then nothing, until its caller closes.
async fn streams() -> Engine {
    Engine::always(Kind::Kvit, vec![stream_head(), chunk(&TOKEN.repeat(SHOWN as usize)), Step::UntilClosed]).await
}

/// The record of the run that was asked for, as a kvit gives it when it has released it, changed.
fn record(question: &str, change: impl FnOnce(&mut Value)) -> Option<(u16, String)> {
    let path = question.split(' ').nth(1).expect("a path").trim_start_matches("/v1/runs/");
    let id = path.split('/').next().expect("an id");
    let mut record = json!({
        "object": "run", "id": id, "tenant": "default", "state": "ended", "released": true, "settled": true, "attempt": 1,
        "outcome": {"kind": "cancelled", "cause": "client_closed", "reason": null}, "guarantee": "confirmed", "waste_bound_tokens": 0,
        "tokens": {"prompt": 9, "cached_prompt": 2, "generated": 7, "delivered": 6, "after_disconnect": 3, "after_receipt": 1,
            "prompt_computed_after_disconnect": 0, "overrun": 0},
        "steps": {"total": 8, "after_disconnect": 3, "layers_dropped": 0}, "blocks": {"held": 0, "peak": 5, "shared": 2},
    });
    change(&mut record);
    Some((200, record.to_string()))
}

/// A run that shows its tokens and is left, as it is when it has settled.
async fn left(stand: &Stand) -> Value {
    let mut caller = chat(stand.addr, "r1", true, &json!({"max_tokens": MAX_TOKENS})).await;
    read_until(&mut caller, &TOKEN.repeat(SHOWN as usize)).await;
    drop(caller);
    stand.settled("r1").await
}

async fn worker(stand: &Stand) -> (Value, Value) {
    let workers = request(stand.addr, "GET", "/v1/workers", "", "").await.json();
    (workers["data"][0]["kind"].clone(), workers["data"][0]["cancel"].clone())
}

fn briefly(config: &mut UpstreamConfig) {
    config.observe_for = Duration::from_millis(300);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kvit_is_found_for_one_and_its_record_proves_the_release_and_brings_its_counts() {
    let engine = streams().await;
    engine.keeps(|question, _| record(question, |_| {}));
    let stand = before(&engine, |_| {}).await;
    assert_eq!(worker(&stand).await, (json!("kvit"), json!("id_with_proof")));
    let run = left(&stand).await;
    assert_eq!((&run["outcome"]["cause"], &run["guarantee"]), (&json!("client_closed"), &json!("confirmed")), "{run}");
    assert_eq!((&run["released"], &run["waste_bound_tokens"]), (&json!(true), &json!(0)), "{run}");
    let tokens = &run["tokens"];
    assert_eq!((&tokens["prompt"], &tokens["cached_prompt"], &tokens["generated"]), (&json!(9), &json!(2), &json!(7)), "{run}");
    assert_eq!((&tokens["after_disconnect"], &tokens["after_receipt"], &tokens["delivered"]), (&json!(3), &json!(1), &json!(2)), "{run}");
    assert_eq!((&run["steps"]["total"], &run["steps"]["after_disconnect"]), (&json!(8), &json!(3)), "{run}");
    assert_eq!((&run["blocks"]["held"], &run["blocks"]["peak"]), (&json!(0), &json!(5)), "{run}");
    // By the name under which it was asked, which says what a close means besides.
    let (questions, name) = (engine.questions(), engine.name());
    assert_eq!(questions.len(), 1);
    assert!(questions[0].starts_with(&format!("POST /v1/runs/{name}/cancel?wait_ms=1000 ")), "{questions:?}");
    assert!(engine.hands.asked.lock().expect("asked")[0].contains("x-on-disconnect: cancel\r\n"));
    stand.nothing_is_left(&[&engine]).await;
}

/// Lost, refused for now, not there yet, not over yet: it is asked again, for to be told twice is to be told once.
// contract: C-8 C-9
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_is_lost_is_asked_again() {
    let engine = streams().await;
    engine.keeps(|question, before| match before {
        0 => None,
        1 => Some((503, "{}".to_owned())),
        2 => Some((400, r#"{"error":{"message":"wait_ms"}}"#.to_owned())),
        3 => record(question, |record| {
            (record["guarantee"], record["released"], record["outcome"]) = (Value::Null, json!(false), Value::Null)
        }),
        _ => record(question, |_| {}),
    });
    let stand = before(&engine, |_| {}).await;
    let run = left(&stand).await;
    assert_eq!(run["guarantee"], "confirmed", "{run}");
    let paths: Vec<_> = engine.questions().iter().map(|text| text.split(' ').nth(1).expect("a path").to_owned()).collect();
    let path = format!("/v1/runs/{}/cancel", engine.name());
    let waits = format!("{path}?wait_ms=1000");
    assert_eq!(paths, [waits.as_str(), &waits, &waits, &path, &path]);
    stand.nothing_is_left(&[&engine]).await;
}

/// A chain proves as much as its last hop.
#[tokio::test(flavor = "multi_thread")]
async fn a_weaker_level_is_passed_on_with_its_bound() {
    for (level, bound, told) in [("observed", 0, 0), ("best_effort", 1234, 1234), ("unsupported", 77, 77)] {
        let engine = streams().await;
        engine.keeps(move |question, before| {
            record(question, |record| {
                (record["guarantee"], record["released"]) = (json!(level), json!(false));
                // It looks for a proof of its own at first.
                record["settled"] = json!(before > 1);
                record["waste_bound_tokens"] = json!(bound);
            })
        });
        let stand = before(&engine, |_| {}).await;
        let run = left(&stand).await;
        assert_eq!((&run["guarantee"], &run["waste_bound_tokens"]), (&json!(level), &json!(told)), "{run}");
        assert_eq!((&run["released"], &run["tokens"]["after_disconnect"]), (&json!(false), &json!(3)), "{run}");
        assert_eq!(engine.questions().len(), 3);
        stand.nothing_is_left(&[&engine]).await;
    }
}

/// Whatever it acknowledges, it does nothing, and shows no record of that run that can be true.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_acknowledges_and_does_nothing_is_not_believed() {
    type Says = fn(&str) -> Option<(u16, String)>;
    let all: [(&str, Says); 7] = [
        ("nothing", |_| Some((200, String::new()))),
        ("an empty object", |_| Some((200, "{}".to_owned()))),
        ("that all went well", |_| Some((200, r#"{"success":true,"released":true,"guarantee":"confirmed"}"#.to_owned()))),
        ("another run's record", |question| record(question, |record| record["id"] = json!("0".repeat(32)))),
        ("fewer tokens than it sent", |question| record(question, |record| record["tokens"]["generated"] = json!(SHOWN - 1))),
        ("confirmed and not released", |question| record(question, |record| record["released"] = json!(false))),
        ("a record without counts", |question| record(question, |record| record["tokens"] = Value::Null)),
    ];
    for (what, says) in all {
        let engine = streams().await.keep_zombies();
        engine.keeps(move |question, _| says(question));
        let stand = before(&engine, briefly).await;
        let run = left(&stand).await;
        assert_eq!((&run["guarantee"], &run["released"]), (&json!("best_effort"), &json!(false)), "{what}: {run}");
        assert_eq!(run["waste_bound_tokens"], MAX_TOKENS - SHOWN, "{what}: by what was asked for and read: {run}");
        assert_eq!(run["tokens"]["generated"], SHOWN, "{what}: {run}");
        stand.nothing_is_left(&[&engine]).await;
    }
}

/// It says yes to whoever asks for a run that nobody has: so it has no record of any.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_knows_every_run_is_no_kvit() {
    for kind in [None, Some(Kind::Kvit)] {
        let engine = streams().await;
        engine.hands.refuses.store(true, Ordering::SeqCst);
        engine.keeps(|question, _| record(question, |_| {}));
        let stand = before(&engine, |config| config.kind = kind).await;
        let named = if kind.is_some() { "kvit" } else { "openai" };
        assert_eq!(worker(&stand).await, (json!(named), json!("close")));
        let run = left(&stand).await;
        assert_eq!((&run["guarantee"], engine.questions().len()), (&json!("best_effort"), 0), "{run}");
        stand.nothing_is_left(&[&engine]).await;
    }
}

/// The key lets the gateway ask for answers and not for runs: it closes, and says that it knows no more.
// contract: C-30
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_may_not_cancel_leaves_the_close() {
    for status in [401, 403] {
        let engine = streams().await;
        engine.keeps(move |_, _| Some((status, "{}".to_owned())));
        let stand = before(&engine, |config| config.api_key = Some(Secret::new("sk-hidden"))).await;
        let run = left(&stand).await;
        assert_eq!((&run["guarantee"], engine.questions().len()), (&json!("best_effort"), 1), "{run}");
        assert!(engine.questions()[0].contains("authorization: Bearer sk-hidden"));
        stand.nothing_is_left(&[&engine]).await;
    }
}

/// It is only to be closed, and what it says of the run is read all the same; or it is known to go on.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_to_be_told_by_closing_is_asked_for_its_record_and_no_cancel() {
    for (by, level, questions) in [("close", "confirmed", 1), ("none", "unsupported", 0)] {
        let engine = streams().await;
        engine.keeps(|question, _| record(question, |_| {}));
        let stand = before(&engine, |config| config.cancel = Some(by.parse().expect("a word"))).await;
        assert_eq!(worker(&stand).await, (json!("kvit"), json!(by)));
        let run = left(&stand).await;
        assert_eq!(run["guarantee"], level, "{by}: {run}");
        let asked = engine.questions();
        assert!(asked.len() == questions && asked.iter().all(|text| text.starts_with("GET ")), "{by}: {asked:?}");
        stand.nothing_is_left(&[&engine]).await;
    }
}

/// A request that was closed before its answer began may never have come: the same life of that kvit, asked for it long enough behind the
/// close, knows. Another life knows nothing of what the one before was given.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_it_never_had_is_gone_if_it_is_still_the_same() {
    for (life, level) in [("1f", "observed"), ("2f", "best_effort")] {
        let engine = Engine::always(Kind::Kvit, vec![Step::UntilClosed]).await;
        engine.keeps(|_, _| Some((404, r#"{"error":{"message":"no run","code":"run_not_found"}}"#.to_owned())));
        let stand = before(&engine, |_| {}).await;
        let caller = chat(stand.addr, "r1", true, &json!({})).await;
        until(|| engine.running() == 1, || "it was not asked".to_owned()).await;
        engine.tells(|told| told.life = life);
        drop(caller);
        let run = stand.settled("r1").await;
        assert_eq!((&run["outcome"]["cause"], &run["guarantee"]), (&json!("client_closed"), &json!(level)), "{run}");
        assert!(engine.questions().len() > 1);
        stand.nothing_is_left(&[&engine]).await;
    }
    // One that had begun to answer it had it.
    let engine = streams().await;
    engine.keeps(|_, _| Some((404, r#"{"error":{"message":"no run","code":"run_not_found"}}"#.to_owned())));
    let stand = before(&engine, |_| {}).await;
    let run = left(&stand).await;
    assert_eq!((&run["guarantee"], engine.questions().len()), (&json!("best_effort"), 1), "{run}");
    stand.nothing_is_left(&[&engine]).await;
}

/// What it answers while the gateway goes away must not keep it.
// contract: C-10
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_ends_does_not_wait_for_a_record_that_may_not_come() {
    let engine = streams().await;
    engine.keeps(|question, _| record(question, |record| record["outcome"] = Value::Null));
    let mut config = crate::stand::config(engine.addr);
    config.observe_for = Duration::from_secs(20);
    let gateway = gateway::GatewayConfig { drain: Duration::from_millis(10), ..gateway::GatewayConfig::default() };
    let mut stand = crate::stand::stand(gateway, vec![config]).await;
    let mut caller = chat(stand.addr, "r1", true, &json!({})).await;
    read_until(&mut caller, TOKEN).await;
    stand.shut_down().await;
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["cause"], &run["guarantee"]), (&json!("shutdown"), &json!("best_effort")), "{run}");
}
