//! An engine that forgets the id of a request with its connection (SGLang) is told of a cancel before that is closed; whoever reads waits for
//! none of it.
// contract: C-8 C-29

use std::time::Duration;

use serde_json::{Value, json};
use upstream::kind::Kind;

use crate::engine::Engine;
use crate::script::{Step, chunk, stream_head};
use crate::stand::{self, before, cancel, chat, of, post, read_until, until};
use crate::through::TOKEN;

/// Longer than any test waits.
const HOLD: Duration = Duration::from_secs(20);

async fn begun() -> Engine {
    Engine::always(Kind::Sglang, vec![stream_head(), chunk(TOKEN), Step::UntilClosed]).await.keep_zombies()
}

fn held(config: &mut upstream::config::UpstreamConfig) {
    of(Kind::Sglang)(config);
    config.hold = HOLD;
}

/// It does nothing that it is told at first, and may hear later.
// contract: C-22
#[tokio::test(flavor = "multi_thread")]
async fn who_cancels_has_the_end_while_the_engine_is_still_being_told() {
    let engine = begun().await;
    engine.deaf(Some("200 OK"));
    let stand = before(&engine, held).await;
    let mut socket = chat(stand.addr, "r1", true, &json!({})).await;
    read_until(&mut socket, TOKEN).await;
    assert!(matches!(cancel(stand.addr, "r1").await, 200 | 202));
    read_until(&mut socket, "cancel_requested").await;
    let run = stand.run("r1");
    assert_eq!((&run["outcome"]["cause"], &run["settled"], engine.running()), (&json!("cancel_requested"), &json!(false), 1), "{run}");
    until(|| engine.aborts().len() > 1, || "it is not told again".to_owned()).await;
    engine.deaf(None);
    let run = stand.settled("r1").await;
    assert_eq!((&run["guarantee"], engine.computes()), (&json!("best_effort"), vec![]), "{run}");
    stand.nothing_is_left(&[&engine]).await;
}

/// Who may not tell it closes, and does not ask again.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_refuses_cancels_by_id_is_closed_at_once_and_not_told_again() {
    for status in ["401 Unauthorized", "403 Forbidden"] {
        let engine = begun().await;
        engine.deaf(Some(status));
        let stand = before(&engine, held).await;
        for id in ["r1", "r2"] {
            let mut socket = chat(stand.addr, id, true, &json!({})).await;
            read_until(&mut socket, TOKEN).await;
            drop(socket);
            let run = stand.settled(id).await;
            assert_eq!((&run["outcome"]["cause"], &run["guarantee"]), (&json!("client_closed"), &json!("best_effort")), "{run}");
        }
        assert_eq!(engine.aborts().len(), 1, "{status}");
        stand.nothing_is_left(&[&engine]).await;
    }
}

/// SGLang makes names of its own for the parts of such a request, or refuses one name for all of them.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_more_than_one_request_there_has_no_name_and_is_told_by_closing() {
    let engine = begun().await;
    let stand = before(&engine, held).await;
    let chat = json!({"model": stand::MODEL, "messages": [{"role": "user", "content": "hi"}], "n": 2, "stream": true});
    let texts = json!({"model": stand::MODEL, "prompt": ["a", "b"], "stream": true});
    let answers = json!({"model": stand::MODEL, "prompt": "a", "n": 2, "stream": true});
    let inputs = json!({"model": stand::MODEL, "input": ["a", "b"]});
    let one = json!({"model": stand::MODEL, "prompt": "a", "stream": true});
    for (at, (path, body, named)) in [
        ("/v1/chat/completions", &chat, false),
        ("/v1/completions", &texts, false),
        ("/v1/completions", &answers, false),
        ("/v1/embeddings", &inputs, false),
        ("/v1/completions", &one, true),
    ]
    .into_iter()
    .enumerate()
    {
        let (id, told) = (format!("r{at}"), engine.aborts().len());
        let mut socket = post(stand.addr, path, &id, body).await;
        read_until(&mut socket, TOKEN).await;
        drop(socket);
        stand.settled(&id).await;
        let sent = engine.hands.asked.lock().expect("what was asked").last().cloned().expect("a request");
        let sent: Value = serde_json::from_str(sent.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
        assert_eq!((sent["rid"].is_string(), engine.aborts().len() > told), (named, named), "{path} {sent}");
    }
    stand.nothing_is_left(&[&engine]).await;
}
