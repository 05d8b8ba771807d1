//! Another engine behind the same URL: it is met anew before it is given runs, and what was known of the one before is not believed of it.
// contract: C-10 C-29

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use upstream::kind::Kind;

use crate::engine::Engine;
use crate::script::{Step, chunk, reply, soon, stream_head};
use crate::stand::{Stand, before, chat, of, read, read_until, until};
use crate::through::TOKEN;

const WHOLE: &str = r#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}"#;

fn good() -> Vec<Step> {
    vec![reply("200 OK", "application/json", WHOLE)]
}

async fn status(stand: &Stand, id: &str, model: &str) -> u16 {
    read(chat(stand.addr, id, false, &json!({"model": model})).await).await.status
}

/// Begins a run whose answer has not begun, and leaves it. Its record.
async fn left(stand: &Stand, engine: &Engine, id: &str) -> Value {
    let before = engine.asked();
    let socket = chat(stand.addr, id, true, &json!({})).await;
    until(|| engine.asked() > before, || "it was not asked".to_owned()).await;
    drop(socket);
    stand.settled(id).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_back_under_a_url_is_asked_who_it_is() {
    let engine = Engine::always(Kind::Vllm, good()).await;
    let stand = before(&engine, |config| config.idle_connections_max = 0).await;
    assert_eq!((status(&stand, "r0", "tiny").await, stand.models().await), (200, vec!["tiny".to_owned()]));
    let addr = engine.addr;
    engine.die().await;
    // Nobody listens: the run waits here, and is the next engine's.
    let waits = chat(stand.addr, "r1", false, &json!({})).await;
    stand.until_state(&["silent"]).await;
    let engine = Engine::at(addr, Kind::LlamaCpp, |_| good()).await;
    engine.tells(|told| told.models = vec!["tiny", "other"]);
    assert_eq!(read(waits).await.status, 200);
    stand.until_state(&["here"]).await;
    assert_eq!(stand.models().await, ["tiny", "other"]);
    assert_eq!(status(&stand, "r2", "other").await, 200);
    // It is cancelled as its own kind is, and has its own counters: vLLM is told by id as well.
    assert_eq!(engine.aborts(), [""; 0]);
    stand.nothing_is_left(&[&engine]).await;
}

/// It was away for so short a time that nobody met a closed door.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_breaks_off_lets_the_gateway_look_who_is_there() {
    let breaks = || vec![stream_head(), chunk(TOKEN)];
    let engine = Engine::each(Kind::OpenAi, move |number| if number == 0 { breaks() } else { good() }).await;
    let stand = before(&engine, of(Kind::OpenAi)).await;
    engine.tells(|told| told.models = vec!["new"]);
    assert!(read(chat(stand.addr, "r0", true, &json!({})).await).await.body.contains("error"));
    soon(async {
        while stand.models().await != ["new"] {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    assert_eq!((status(&stand, "r1", "tiny").await, status(&stand, "r2", "new").await), (404, 200));
    stand.nothing_is_left(&[&engine]).await;
}

/// What was learnt by trying is forgotten with the one that was tried.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_refused_a_witness_and_a_cancel_by_id_may_take_them_when_it_is_back() {
    let engine = Engine::always(Kind::Vllm, vec![Step::UntilClosed]).await;
    engine.hands.refuses.store(true, Ordering::SeqCst);
    let stand = before(&engine, |config| {
        of(Kind::Vllm)(config);
        (config.idle_connections_max, config.observe_for) = (0, Duration::from_millis(500));
    })
    .await;
    let seen = |engine: &Engine| (engine.hands.witnesses.load(Ordering::SeqCst), engine.aborts().len());
    for id in ["r0", "r1"] {
        let run = left(&stand, &engine, id).await;
        assert_eq!(run["guarantee"], "best_effort", "{run}");
    }
    assert_eq!(seen(&engine), (1, 1), "neither is asked for a second time");
    let addr = engine.addr;
    engine.die().await;
    let waits = chat(stand.addr, "r2", true, &json!({})).await;
    stand.until_state(&["silent"]).await;
    drop(waits);
    stand.settled("r2").await;
    let engine = Engine::at(addr, Kind::Vllm, |_| vec![Step::UntilClosed]).await;
    stand.until_state(&["here"]).await;
    let run = left(&stand, &engine, "r3").await;
    assert_eq!((&run["guarantee"], seen(&engine)), (&json!("observed"), (1, 1)), "{run}");
    stand.nothing_is_left(&[&engine]).await;
}

/// The one before may still compute, however empty the counters are of the one that is here.
#[tokio::test(flavor = "multi_thread")]
async fn counters_of_another_process_prove_nothing_of_the_one_before() {
    for is_another in [false, true] {
        let engine = Engine::always(Kind::Vllm, vec![stream_head(), chunk(TOKEN), chunk(TOKEN), Step::UntilClosed]).await;
        engine.tells(|told| told.started = Some(1000));
        let stand = before(&engine, of(Kind::Vllm)).await;
        let mut socket = chat(stand.addr, "r0", true, &json!({})).await;
        read_until(&mut socket, TOKEN).await;
        if is_another {
            engine.tells(|told| told.started = Some(1001));
        }
        drop(socket);
        let run = stand.settled("r0").await;
        let level = if is_another { "best_effort" } else { "observed" };
        assert_eq!(run["guarantee"], level, "{run}");
        // Of its own requests it proves what it always did.
        stand.until_state(&["here"]).await;
        let mut socket = chat(stand.addr, "r1", true, &json!({})).await;
        read_until(&mut socket, TOKEN).await;
        drop(socket);
        let run = stand.settled("r1").await;
        assert_eq!(run["guarantee"], "observed", "{run}");
        stand.nothing_is_left(&[&engine]).await;
    }
}
