//! The Responses API over sockets, with a store in memory: left in the background, followed, resumed, cancelled, deleted, gone on from.
// contract: C-6 C-8 C-13 C-25 C-26

use std::net::SocketAddr;
use std::sync::Arc;

use gateway::{GatewayConfig, KeepConfig};
use lifecycle::message::Prompt;
use lifecycle::{AttemptId, Cause, Outcome};
use serde_json::{Value, json};
use store::memory::Memory;
use store::{RunStore, StoreConfig};

use crate::simulated::{Stand, default_stand, kept_stand, key};
use crate::wire::{Leave, Reply, ask, get, ms, read_reply, read_until, request_text, send};

fn memory() -> Arc<Memory> {
    Memory::new(StoreConfig::at("memory"), true)
}

async fn kept() -> Stand {
    kept_stand(GatewayConfig::default(), Some(memory())).await
}

fn body(more: &Value) -> String {
    let mut body = json!({"input": "hi"});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body.to_string()
}

fn post(id: &str, more: &Value) -> String {
    request_text("POST", "/v1/responses", &format!("X-Request-Id: {id}\r\n"), &body(more))
}

async fn create(stand: &Stand, id: &str, more: &Value) -> Reply {
    read_reply(&mut send(stand.addr, &post(id, more)).await).await
}

async fn cancel(addr: SocketAddr, id: &str) -> Reply {
    ask(addr, "POST", &format!("/v1/responses/{id}/cancel"), "", "").await
}

async fn delete(stand: &Stand, id: &str) -> Reply {
    ask(stand.addr, "DELETE", &format!("/v1/responses/{id}"), "", "").await
}

/// The frames of a stream, without its comments.
fn frames(reply: &Reply) -> Vec<Value> {
    let data = |frame: &str| frame.split_once("\ndata: ").map(|(_, data)| serde_json::from_str(data).expect("JSON"));
    reply.body.split("\n\n").filter_map(data).collect()
}

fn kinds(reply: &Reply) -> Vec<String> {
    frames(reply).iter().map(|event| event["type"].as_str().expect("a type").to_owned()).collect()
}

/// Waits until the response is as wanted.
async fn until(stand: &Stand, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..2000 {
        let response = get(stand.addr, &format!("/v1/responses/{id}")).await.json();
        if wanted(&response) {
            return response;
        }
        tokio::time::sleep(ms(5)).await;
    }
    panic!("never as wanted: {}", get(stand.addr, &format!("/v1/responses/{id}")).await.body);
}

async fn finish(stand: &mut Stand, attempt: &AttemptId) {
    let last = stand.worker.delta(attempt, 0, "Rhine", &[8], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(attempt, Outcome::of(Cause::Stop), 2).await;
}

// contract: C-25
#[tokio::test(flavor = "multi_thread")]
async fn a_background_response_grows_without_a_reader_and_is_followed_from_any_event() {
    let mut stand = kept().await;
    let created = create(&stand, "r1", &json!({"background": true, "metadata": {"a": "b"}})).await;
    assert_eq!((created.status, created.header("x-request-id").as_deref()), (200, Some("r1")));
    let object = created.json();
    assert_eq!((&object["id"], &object["status"], &object["metadata"]["a"]), (&json!("resp_r1"), &json!("queued"), &json!("b")));
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "The ").await;
    let now = until(&stand, "resp_r1", |r| r["output"][0]["content"][0]["text"] == "The ").await;
    assert_eq!(now["status"], "in_progress");
    let mut follower = send(stand.addr, &request_text("GET", "/v1/responses/resp_r1?stream=true", "", "")).await;
    let early = read_until(&mut follower, "response.output_text.delta").await;
    assert!(early.contains("response.queued"), "{early}");
    finish(&mut stand, &attempt).await;
    let end = until(&stand, "resp_r1", |r| r["status"] == "completed").await;
    assert_eq!((&end["output"][0]["content"][0]["text"], &end["usage"]["total_tokens"]), (&json!("The Rhine"), &json!(5)));
    assert!(end["completed_at"].is_number());
    let whole = get(stand.addr, "/v1/responses/resp_r1?stream=true").await;
    let all = frames(&whole);
    assert_eq!(all.len(), 11, "{}", whole.body);
    for after in 0..all.len() {
        let rest = get(stand.addr, &format!("/v1/responses/resp_r1?stream=true&starting_after={after}")).await;
        assert_eq!(frames(&rest), all[after + 1..], "{after}");
    }
    let late = read_until(&mut follower, "response.completed").await;
    assert!((early + &late).contains("output_text.done"));
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["kind"], &run["delivery"]), (&json!("completed"), &json!("none")));
    assert!(stand.worker.try_next().is_none(), "one submit, and no cancel");
}

// contract: C-13 C-25
#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_a_background_stream_ends_nothing() {
    for (leave, _) in Leave::BOTH {
        let mut stand = kept().await;
        let mut socket = send(stand.addr, &post("r1", &json!({"background": true, "stream": true}))).await;
        assert!(read_until(&mut socket, "response.queued").await.contains("response.created"));
        let attempt = stand.worker.accept().await.attempt;
        stand.worker.token(&attempt, "The ").await;
        read_until(&mut socket, "The ").await;
        leave.now(socket);
        stand.worker.token(&attempt, "old ").await;
        until(&stand, "resp_r1", |r| r["output"][0]["content"][0]["text"] == "The old ").await;
        finish(&mut stand, &attempt).await;
        until(&stand, "resp_r1", |r| r["status"] == "completed").await;
        stand.settled("r1").await;
        assert!(stand.worker.try_next().is_none(), "no cancel");
    }
}

// contract: C-8
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_it_and_its_streams_and_a_second_one_says_the_same() {
    for background in [true, false] {
        let mut stand = kept().await;
        let mut socket = send(stand.addr, &post("r1", &json!({"background": background, "stream": true}))).await;
        let attempt = stand.worker.accept().await.attempt;
        stand.worker.token(&attempt, "The ").await;
        read_until(&mut socket, "The ").await;
        assert_eq!(delete(&stand, "resp_r1").await.error().3, "response_in_progress");
        let asking = cancel(stand.addr, "resp_r1");
        let obeying = stand.worker.obey(&attempt);
        let (first, cause) = tokio::join!(asking, obeying);
        assert_eq!((first.status, cause), (200, Cause::CancelRequested));
        let object = first.json();
        assert_eq!(
            (&object["status"], &object["error"], &object["kvit"]["cause"]),
            (&json!("cancelled"), &Value::Null, &json!("cancel_requested"))
        );
        assert_eq!(object["output"][0]["status"], "incomplete");
        let rest = read_until(&mut socket, "\r\n0\r\n\r\n").await;
        assert!(rest.contains("event: response.failed\n") && rest.contains(r#""status":"cancelled""#), "{rest}");
        let again = cancel(stand.addr, "resp_r1").await;
        assert_eq!((again.status, again.json()), (200, object.clone()));
        // A cancel says beside it what was done outside.
        let mut shown = get(stand.addr, "/v1/responses/resp_r1").await.json();
        shown["kvit"]["effects"] = json!([]);
        assert_eq!(shown, object);
        stand.settled("r1").await;
    }
}

/// With `store: false` and a key: the answer for whoever asks again, for a while; what was asked not at all; and nothing once it is deleted.
// contract: C-26
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_to_be_stored_is_kept_for_its_key_alone_and_can_be_deleted() {
    let memory = memory();
    let keep = KeepConfig { rejoin: ms(60_000), ..KeepConfig::default() };
    let config = GatewayConfig { keep, gateway_deadline: ms(30_000), ..GatewayConfig::default() };
    let mut stand = kept_stand(config, Some(memory.clone())).await;
    let request = |id: &str| {
        let headers = format!("X-Request-Id: {id}\r\nIdempotency-Key: k\r\n");
        request_text("POST", "/v1/responses", &headers, &body(&json!({"store": false, "input": "a secret"})))
    };
    let mut socket = send(stand.addr, &request("r1")).await;
    let attempt = stand.worker.accept().await.attempt;
    assert_eq!(delete(&stand, "resp_r1").await.error().3, "response_in_progress");
    finish(&mut stand, &attempt).await;
    let first = read_reply(&mut socket).await.json();
    assert_eq!(first["output"][0]["content"][0]["text"], "Rhine");
    stand.settled("r1").await;
    let again = read_reply(&mut send(stand.addr, &request("r2")).await).await;
    assert_eq!((again.header("x-request-id").as_deref(), &again.json()["output"]), (Some("r1"), &first["output"]));
    let run = memory.run(&key("r1")).await.expect("it is there").expect("it is there");
    assert_eq!((run.request, run.expires_ms), (None, Some(run.created_ms + 90_000)));
    assert_eq!(get(stand.addr, "/v1/responses/resp_r1").await.status, 404);

    let deleted = delete(&stand, "resp_r1").await;
    assert_eq!((deleted.status, &deleted.json()["deleted"]), (200, &json!(true)), "{}", deleted.body);
    assert_eq!(memory.events(&key("r1"), 0, 100).await.expect("it is there"), []);
    assert_eq!(delete(&stand, "resp_r1").await.status, 404);
    let mut socket = send(stand.addr, &request("r3")).await;
    let attempt = stand.worker.accept().await.attempt;
    assert_eq!(attempt.key.run.as_str(), "r3", "its key is free");
    finish(&mut stand, &attempt).await;
    assert_eq!(read_reply(&mut socket).await.status, 200);
}

// contract: C-30
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_behind_a_response_until_that_is_deleted() {
    let mut stand = kept().await;
    let addr = stand.addr;
    let mut socket = send(addr, &post("r1", &json!({"instructions": "Be brief."}))).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "The ").await;
    finish(&mut stand, &attempt).await;
    let first = read_reply(&mut socket).await.json();
    assert_eq!((&first["status"], &first["output"][0]["content"][0]["text"]), (&json!("completed"), &json!("The Rhine")));
    assert_eq!(stand.settled("r1").await["delivery"], "complete");

    let next = json!({"previous_response_id": "resp_r1", "input": "more", "background": true});
    assert_eq!(create(&stand, "r2", &next).await.status, 200);
    let submit = stand.worker.accept().await;
    let Prompt::Chat(turns) = submit.prompt else { panic!("turns were expected") };
    let turns: Vec<_> = turns.iter().map(|turn| (turn.role.as_str(), turn.content.as_str())).collect();
    assert_eq!(turns, [("user", "hi"), ("assistant", "The Rhine"), ("user", "more")]);
    assert_eq!(create(&stand, "r3", &json!({"previous_response_id": "resp_r2"})).await.error().3, "response_in_progress");
    finish(&mut stand, &submit.attempt).await;
    until(&stand, "resp_r2", |r| r["status"] == "completed").await;

    let items = get(addr, "/v1/responses/resp_r2/input_items").await.json();
    assert_eq!((&items["data"][0]["content"][0]["text"], &items["has_more"]), (&json!("more"), &json!(false)));
    assert_eq!(delete(&stand, "resp_r1").await.json(), json!({"id": "resp_r1", "object": "response", "deleted": true}));
    for gone in [get(addr, "/v1/responses/resp_r1").await, cancel(stand.addr, "resp_r1").await, delete(&stand, "resp_r1").await] {
        assert_eq!((gone.status, gone.error().3), (404, json!("response_not_found")));
    }
    assert_eq!(create(&stand, "r4", &next).await.error().3, "previous_response_not_found");
    // What went on from it is there.
    assert_eq!(get(addr, "/v1/responses/resp_r2").await.status, 200);
    assert!(stand.worker.try_next().is_none(), "what was refused was not computed");
}

/// A phone that loses its network comes back within its grace, to the same response, behind the last event that it has.
// contract: C-25 C-26
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_within_the_grace_goes_on_where_it_was() {
    let mut stand = kept().await;
    let mut socket = send(stand.addr, &post("r1", &json!({"stream": true, "on_disconnect": "grace(60000)"}))).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "The ").await;
    read_until(&mut socket, "The ").await;
    Leave::Close.now(socket);
    stand.until("r1", "without readers", |run| run["milestones"]["disconnect_observed"].is_number()).await;
    let mut back = send(stand.addr, &request_text("GET", "/v1/responses/resp_r1?stream=true&starting_after=4", "", "")).await;
    // It has its seat when it has its head.
    let head = read_until(&mut back, "\r\n\r\n").await;
    finish(&mut stand, &attempt).await;
    let rest = head + &read_until(&mut back, "\r\n0\r\n\r\n").await;
    assert!(rest.contains(r#""sequence_number":5"#) && !rest.contains(r#""sequence_number":4"#), "{rest}");
    assert!(rest.contains("event: response.completed\n"), "{rest}");
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["kind"], &run["delivery"]), (&json!("completed"), &json!("complete")));
    assert_eq!(run["tokens"]["delivered"], 2);
}

// contract: C-13
#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_an_interactive_stream_cancels_it_and_finds_it_cancelled() {
    let mut stand = kept().await;
    let mut socket = send(stand.addr, &post("r1", &json!({"stream": true}))).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "The ").await;
    read_until(&mut socket, "The ").await;
    Leave::Close.now(socket);
    assert_eq!(stand.worker.obey(&attempt).await, Cause::ClientClosed);
    let response = until(&stand, "resp_r1", |r| r["status"] == "cancelled").await;
    assert_eq!((&response["kvit"]["cause"], &response["output"][0]["content"][0]["text"]), (&json!("client_closed"), &json!("The ")));
    assert_eq!(stand.settled("r1").await["delivery"], "partial");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_keeps_its_status_or_is_a_failed_response() {
    let mut stand = kept().await;
    let rejected = Outcome { cause: Cause::CannotFit, reason: Some("too long".into()) };
    let mut socket = send(stand.addr, &post("r1", &json!({"stream": true}))).await;
    let attempt = stand.worker.submit().await.attempt;
    stand.worker.end(&attempt, rejected.clone(), 0).await;
    assert_eq!(read_reply(&mut socket).await.error().3, "cannot_fit");
    assert_eq!(create(&stand, "r2", &json!({"background": true})).await.status, 200);
    let attempt = stand.worker.submit().await.attempt;
    stand.worker.end(&attempt, rejected, 0).await;
    let failed = until(&stand, "resp_r2", |r| r["status"] == "failed").await;
    assert_eq!(failed["error"], json!({"code": "invalid_prompt", "message": "too long"}));
    let stream = get(stand.addr, "/v1/responses/resp_r2?stream=true").await;
    assert_eq!(kinds(&stream), ["response.created", "response.queued", "response.failed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_store_an_answer_is_given_and_nothing_is_kept() {
    let mut stand = default_stand().await;
    assert_eq!(create(&stand, "r0", &json!({"background": true})).await.error().3, "no_run_store");
    let mut socket = send(stand.addr, &post("r1", &json!({}))).await;
    let attempt = stand.worker.accept().await.attempt;
    finish(&mut stand, &attempt).await;
    assert_eq!(read_reply(&mut socket).await.json()["status"], "completed");
    for gone in [get(stand.addr, "/v1/responses/resp_r1").await, get(stand.addr, "/v1/responses/resp_r1?stream=true").await] {
        assert_eq!((gone.status, gone.error().3), (404, json!("response_not_found")));
    }
    stand.settled("r1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_store_is_away_nothing_is_left_in_the_background() {
    let store = memory();
    let mut stand = kept_stand(GatewayConfig::default(), Some(store.clone())).await;
    store.set_away(true);
    let refused = create(&stand, "r1", &json!({"background": true})).await;
    assert_eq!((refused.status, refused.error().3, refused.header("retry-after").as_deref()), (503, json!("store_unavailable"), Some("1")));
    assert_eq!(get(stand.addr, "/v1/responses/resp_r1").await.error().3, "store_unavailable");
    store.set_away(false);
    assert_eq!(create(&stand, "r2", &json!({"background": true})).await.status, 200);
    let attempt = stand.worker.accept().await.attempt;
    assert_eq!(attempt.key.run.as_str(), "r2", "what was refused is never computed");
    finish(&mut stand, &attempt).await;
    until(&stand, "resp_r2", |r| r["status"] == "completed").await;
}

// contract: C-25
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_cannot_be_kept_is_refused() {
    let stand = kept().await;
    let asked = |header: &str, more: &Value| request_text("POST", "/v1/responses", header, &body(more));
    let table = [
        (asked("", &json!({"on_disconnect": "continue", "store": false})), "on_disconnect"),
        (asked("X-On-Disconnect: continue\r\n", &json!({"store": false})), "on_disconnect"),
        (asked("X-On-Disconnect: stay\r\n", &json!({})), "X-On-Disconnect"),
        (asked("", &json!({"background": true, "on_disconnect": "grace(5)"})), "on_disconnect"),
        (asked("X-On-Disconnect: cancel\r\n", &json!({"background": true})), "on_disconnect"),
        (asked("", &json!({"background": true, "store": false})), "background"),
    ];
    for (text, name) in table {
        let (status, _, param, _) = read_reply(&mut send(stand.addr, &text).await).await.error();
        assert_eq!((status, param), (400, json!(name)), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_that_are_not_known_are_refused_by_name() {
    let stand = kept().await;
    let table = [
        ("?starting_after=1", "starting_after"),
        ("?stream=maybe", "stream"),
        ("?stream=true&starting_after=-1", "starting_after"),
        ("?include[]=x", "include"),
        ("?include_obfuscation=true&stream=true", "include_obfuscation"),
        ("?odd=1", "odd"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?before=x", "before"),
    ];
    for (query, name) in table {
        let (status, _, param, _) = get(stand.addr, &format!("/v1/responses/resp_x{query}")).await.error();
        assert_eq!((status, param), (400, json!(name)), "{query}");
    }
}
