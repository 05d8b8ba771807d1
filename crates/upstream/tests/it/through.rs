//! What a caller, the journal and the engine see of each way in which an engine can fail behind a gateway.
// contract: C-2 C-28 C-29

use std::time::Duration;

use gateway::GatewayConfig;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use upstream::config::{Secret, UpstreamConfig};
use upstream::kind::Kind;

use crate::engine::Engine;
use crate::script::{Step, chunk, last_chunk, reply, send, soon, stream_head};
use crate::stand::{self, Reply, Stand, before, cancel, chat, of, read, read_until, until};

pub const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
const END: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
const WHOLE: &str = r#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}"#;

/// The beginning of an answer of 100 bytes of JSON.
pub fn beginning(text: &str) -> Step {
    send(&format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{text}"))
}

fn good(stream: bool) -> Vec<Step> {
    let whole = || vec![reply("200 OK", "application/json", WHOLE)];
    if stream { vec![stream_head(), chunk(TOKEN), chunk(END), last_chunk()] } else { whole() }
}

/// What an engine does with a request, and what the caller is told.
struct Fault {
    name: &'static str,
    stream: bool,
    steps: Vec<Step>,
    status: u16,
    code: &'static str,
    /// What the message says.
    says: &'static str,
}

fn fault(name: &'static str, stream: bool, steps: Vec<Step>, (status, code, says): (u16, &'static str, &'static str)) -> Fault {
    Fault { name, stream, steps, status, code, says }
}

fn quick(config: &mut UpstreamConfig) {
    config.kind = Some(Kind::OpenAi);
    (config.head_timeout, config.idle_timeout) = (Duration::from_millis(400), Duration::from_millis(200));
    (config.line_bytes_max, config.answer_bytes_max) = (4096, 1 << 20);
}

fn faults() -> Vec<Fault> {
    let mut all = Vec::new();
    let error = "upstream_error";
    for stream in [true, false] {
        all.push(fault("dies before the head", stream, Vec::new(), (502, error, "closed before an answer")));
        all.push(fault("hangs before the head", stream, vec![Step::UntilClosed], (504, "upstream_timeout", "no head")));
        all.push(fault("garbage", stream, vec![send("SSH-2.0-OpenSSH_9\r\n"), Step::UntilClosed], (502, error, "no HTTP")));
        let html = vec![reply("200 OK", "text/html", "<html>hello</html>")];
        all.push(fault("a wrong content type", stream, html, (502, error, "text/html")));
        let nothing = vec![reply("200 OK", "application/json", "")];
        all.push(fault("no bytes of JSON", stream, nothing, (502, error, "is empty")));
        let no_json = vec![reply("200 OK", "application/json", "{\"choices\":[")];
        all.push(fault("half of JSON", stream, no_json, (502, error, "no JSON")));
        all.push(fault("half a length", stream, vec![beginning("{")], (502, error, "broke off")));
        let hangs = vec![beginning("{"), Step::UntilClosed];
        all.push(fault("hangs within JSON", stream, hangs, (504, "upstream_timeout", "no byte came")));
        let endless = vec![send("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"), Step::Endless("[[[[[[[[[[[[[[[[")];
        all.push(fault("endless JSON", stream, endless, (502, error, "answer_bytes_max")));
        let moved = vec![reply("307 Temporary Redirect", "text/html", "elsewhere")];
        all.push(fault("a redirect", stream, moved, (502, error, "307")));
        let switched = vec![send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"), Step::UntilClosed];
        all.push(fault("another protocol", stream, switched, (502, error, "101")));
    }
    for stream in [true, false] {
        for body in [r#"{"object":"list","data":[]}"#, "{}", "[]", r#"{"detail":"later"}"#] {
            let other = vec![reply("200 OK", "application/json", body)];
            all.push(fault("JSON that is no completion", stream, other, (502, error, "no completion")));
        }
    }
    let events = |steps: Vec<Step>| [vec![stream_head(), chunk(TOKEN)], steps].concat();
    for (name, steps, code, says) in [
        ("hangs within the stream", events(vec![Step::UntilClosed]), "upstream_timeout", "no byte came"),
        ("half a chunk", events(vec![send("20\r\ndata: {")]), error, "broke off"),
        ("half an event", events(vec![chunk("data: {\"cho"), last_chunk()]), error, "before its end"),
        ("an endless line", events(vec![send("10000000\r\n"), Step::Endless("xxxxxxxxxxxxxxxx")]), error, "line_bytes_max"),
        ("no event at all", vec![stream_head(), last_chunk()], error, "before its end"),
        ("no [DONE]", events(vec![last_chunk()]), error, "before its end"),
        ("garbage in an event", events(vec![chunk("data: \u{fffd}\u{fffd}{{{\n\n"), chunk(END), last_chunk()]), error, "no JSON"),
        ("a chunk that is none", events(vec![send("zz\r\n")]), error, "no HTTP"),
    ] {
        all.push(fault(name, true, steps, (200, code, says)));
    }
    all
}

async fn ask(stand: &Stand, id: &str, stream: bool, more: &Value) -> Reply {
    read(chat(stand.addr, id, stream, more).await).await
}

async fn is_told(fault: Fault) {
    let what = format!("{}, stream: {}", fault.name, fault.stream);
    let engine = Engine::always(Kind::OpenAi, fault.steps).await;
    let stand = before(&engine, quick).await;
    let reply = ask(&stand, "r1", fault.stream, &json!({})).await;
    assert_eq!(reply.status, fault.status, "{what}: {reply:?}");
    let (code, message) = reply.error();
    assert_eq!(code, fault.code, "{what}: {reply:?}");
    assert!(message.contains(fault.says), "{what}: {message}");
    // It may be computing it still: nobody is to ask again by itself.
    assert_eq!(reply.head.contains("x-should-retry: false"), reply.status == 504, "{what}: {reply:?}");
    assert!(!reply.body.contains("[DONE]") && !reply.body.contains("{\"cho\n"), "{what}: {reply:?}");
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&json!("failed"), &json!("upstream_error")), "{what}: {run}");
    assert_eq!((&run["guarantee"], &run["attempt"]), (&json!("best_effort"), &json!(1)), "{what}: {run}");
    assert_eq!(engine.asked(), 1, "{what}: what may have arrived is not sent again");
    stand.nothing_is_left(&[&engine]).await;
}

/// Clients close when they have read `[DONE]`, and a busy engine may end its body later than they do.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_has_read_the_end_has_not_left() {
    for kind in [Kind::Vllm, Kind::LlamaCpp, Kind::OpenAi] {
        let engine = Engine::always(kind, vec![stream_head(), chunk(TOKEN), chunk(END), Step::UntilClosed]).await;
        let stand = before(&engine, of(kind)).await;
        let mut caller = chat(stand.addr, "r1", true, &json!({})).await;
        read_until(&mut caller, "[DONE]").await;
        drop(caller);
        let run = stand.settled("r1").await;
        assert_eq!((&run["outcome"]["kind"], &run["delivery"]), (&json!("completed"), &json!("complete")), "{kind}: {run}");
        stand.nothing_is_left(&[&engine]).await;
    }
}

/// `llama-server` says `Keep-Alive` and closes behind a stream. A next run's request that is on its way then would be lost, and cannot be sent
/// again, for it may have arrived.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_stream_of_llama_cpp_no_run_is_sent_on_the_same_connection() {
    let then_cut_off = [good(true), vec![Step::Request]].concat();
    let engine = Engine::always(Kind::LlamaCpp, then_cut_off).await;
    let stand = before(&engine, of(Kind::LlamaCpp)).await;
    for id in ["r1", "r2", "r3"] {
        let reply = ask(&stand, id, true, &json!({})).await;
        assert!(reply.status == 200 && reply.body.contains("[DONE]"), "{id}: {reply:?}");
        assert_eq!(stand.settled(id).await["outcome"]["kind"], "completed");
    }
    assert_eq!(engine.asked(), 3);
    stand.nothing_is_left(&[&engine]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_is_told_and_leaves_nothing() {
    let mut all = JoinSet::new();
    for fault in faults() {
        all.spawn(is_told(fault));
    }
    while let Some(told) = all.join_next().await {
        told.expect("as it should be");
    }
}

/// vLLM's embeddings come in bytes where that is asked for, with a header that says where each stands.
#[tokio::test(flavor = "multi_thread")]
async fn embeddings_in_bytes_pass_as_they_come_and_a_page_of_text_is_none() {
    let bytes =
        "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\nmetadata: {\"data\":[]}\r\ncontent-length: 4\r\n\r\n\u{1}\u{2}{\u{3}";
    let engine = Engine::always(Kind::OpenAi, vec![send(bytes)]).await;
    let stand = before(&engine, quick).await;
    let body = json!({"model": stand::MODEL, "input": "x", "encoding_format": "bytes"});
    for id in ["r1", "r2", "r3", "r4", "r5", "r6", "r7"] {
        let reply = stand::request(stand.addr, "POST", "/v1/embeddings", &format!("x-request-id: {id}\r\n"), &body.to_string()).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "\u{1}\u{2}{\u{3}"), "{reply:?}");
        assert!(reply.head.contains("application/octet-stream") && reply.head.contains("metadata: {\"data\":[]}"), "{reply:?}");
        assert_eq!(stand.settled(id).await["outcome"]["kind"], "completed");
    }
    let page = Engine::always(Kind::OpenAi, vec![reply("200 OK", "text/html", "<html>hello</html>")]).await;
    let stand = before(&page, quick).await;
    let reply = stand::request(stand.addr, "POST", "/v1/embeddings", "", &body.to_string()).await;
    assert!(reply.status == 502 && reply.body.contains("text/html"), "{reply:?}");
}

/// Another kvit says 499 as soon as it knows that a run is cancelled, and not when it has let go. That proves nothing, and is no failure.
// contract: C-29
#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_behind_the_url_gave_up_proves_nothing_and_opens_no_circuit() {
    let engine = Engine::always(
        Kind::OpenAi,
        vec![reply("499 Client Closed Request", "application/json", r#"{"error":{"code":"cancel_requested"}}"#)],
    )
    .await;
    let stand = before(&engine, quick).await;
    for number in 0..8 {
        let id = format!("r{number}");
        let reply = ask(&stand, &id, number % 2 == 0, &json!({})).await;
        assert!(reply.status == 499 && reply.body.contains("cancel_requested"), "{reply:?}");
        let run = stand.settled(&id).await;
        assert_eq!((&run["outcome"]["kind"], &run["guarantee"]), (&json!("failed"), &json!("best_effort")), "{run}");
    }
    assert_eq!(engine.asked(), 8, "its circuit is closed");
    stand.nothing_is_left(&[&engine]).await;
}

// contract: C-6
#[tokio::test(flavor = "multi_thread")]
async fn an_engines_own_error_is_passed_on_as_it_is() {
    let body = r#"{"error":{"message":"out of memory","code":500}}"#;
    for stream in [true, false] {
        let engine = Engine::always(Kind::OpenAi, vec![reply("500 Internal Server Error", "application/json", body)]).await;
        let stand = before(&engine, quick).await;
        let reply = ask(&stand, "r1", stream, &json!({})).await;
        assert_eq!((reply.status, reply.body.as_str()), (500, body));
        let run = stand.settled("r1").await;
        // It may be the word of a hop before the engine.
        assert_eq!((&run["outcome"]["cause"], &run["guarantee"]), (&json!("upstream_error"), &json!("best_effort")), "{run}");
        stand.nothing_is_left(&[&engine]).await;
    }
    let broken = "data: {\"error\":{\"message\":\"engine died\",\"code\":500}}\n\n";
    let engine = Engine::always(Kind::OpenAi, vec![stream_head(), chunk(TOKEN), chunk(broken), last_chunk()]).await;
    let stand = before(&engine, quick).await;
    let reply = ask(&stand, "r1", true, &json!({})).await;
    assert_eq!((reply.status, reply.body), (200, format!("{TOKEN}{broken}")), "its words, and none behind them");
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["kind"], &run["delivery"]), (&json!("failed"), &json!("partial")), "{run}");
    stand.nothing_is_left(&[&engine]).await;
}

/// Some hops answer 200 and tell the failure in the body.
// contract: C-6
#[tokio::test(flavor = "multi_thread")]
async fn an_error_in_an_answer_of_200_is_a_failure_and_is_passed_on_as_it_came() {
    let body = r#"{"error":{"message":"Provider returned error","code":502},"user_id":"u"}"#;
    for stream in [true, false] {
        let engine = Engine::always(Kind::OpenAi, vec![reply("200 OK", "application/json", body)]).await;
        let stand = before(&engine, |config| {
            quick(config);
            (config.failures_max, config.open) = (2, Duration::from_secs(60));
        })
        .await;
        for id in ["r1", "r2"] {
            let reply = ask(&stand, id, stream, &json!({})).await;
            assert_eq!((reply.status, reply.body.as_str()), (200, body));
            let run = stand.settled(id).await;
            assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&json!("failed"), &json!("upstream_error")), "{run}");
            assert!(run["outcome"]["reason"].as_str().is_some_and(|why| why.contains("in its answer: Provider returned error")), "{run}");
        }
        // Two in a row: the circuit counts them.
        stand.until_state(&["silent"]).await;
        stand.nothing_is_left(&[&engine]).await;
    }
}

/// The key is the gateway's own: no caller can mend it, and none is told what it is.
// contract: C-30
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_gateways_own_key_is_no_fault_of_the_callers() {
    let theirs = r#"{"error":{"message":"Incorrect API key provided: sk-hidden","code":"invalid_api_key"}}"#;
    for (status, key, stream, says) in [
        (401, Some("sk-hidden"), false, "the gateway's key is refused by the upstream behind"),
        (403, Some("sk-hidden"), true, "the gateway's key is refused by the upstream behind"),
        (401, None, true, "the upstream behind wants a key"),
    ] {
        let engine = Engine::always(Kind::OpenAi, vec![reply(&format!("{status} No"), "application/json", theirs)]).await;
        let stand = before(&engine, |config| {
            quick(config);
            (config.api_key, config.name) = (key.map(Secret::new), "behind".to_owned());
            (config.failures_max, config.open) = (1, Duration::from_secs(60));
        })
        .await;
        let reply = ask(&stand, "r1", stream, &json!({})).await;
        let (code, message) = reply.error();
        assert_eq!((reply.status, code.as_str()), (502, "upstream_error"), "{reply:?}");
        assert!(message.contains(says) && message.contains(&status.to_string()), "{message}");
        let run = stand.settled("r1").await;
        assert_eq!((&run["outcome"]["kind"], &run["guarantee"]), (&json!("failed"), &json!("observed")), "{run}");
        assert!(!reply.body.contains("sk-hidden") && !run.to_string().contains("sk-hidden"), "{reply:?} {run}");
        stand.until_state(&["silent"]).await;
        stand.nothing_is_left(&[&engine]).await;
    }
    // What a hosted service says of what was asked is the caller's.
    let flagged = r#"{"error":{"code":403,"message":"moderation","metadata":{"reasons":["x"],"flagged_input":"hi"}}}"#;
    let engine = Engine::always(Kind::OpenAi, vec![reply("403 Forbidden", "application/json", flagged)]).await;
    let stand = before(&engine, quick).await;
    let reply = ask(&stand, "r1", false, &json!({})).await;
    assert_eq!((reply.status, reply.body.as_str()), (403, flagged));
    assert_eq!(stand.settled("r1").await["outcome"]["cause"], "invalid");
    stand.nothing_is_left(&[&engine]).await;
}

/// vLLM and SGLang end a request so that somebody else, or a shutdown, had them abort: with 200, and `[DONE]`.
// contract: C-6
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_the_engine_gave_up_is_no_success() {
    let ends = |word: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{word}\"}}]}}\n\n");
    for word in ["abort", "cancelled", "error"] {
        let whole = WHOLE.replace("stop", word);
        for (n, steps) in [
            (1, vec![stream_head(), chunk(TOKEN), chunk(&format!("{}data: [DONE]\n\n", ends(word))), last_chunk()]),
            (2, vec![stream_head(), chunk(TOKEN), chunk(&ends(word)), chunk("data: [DONE]\n\n"), last_chunk()]),
            (3, vec![reply("200 OK", "application/json", &whole)]),
            (4, vec![reply("200 OK", "application/json", &whole)]),
        ] {
            let engine = Engine::always(Kind::OpenAi, steps).await;
            let stand = before(&engine, quick).await;
            let reply = ask(&stand, "r1", n < 4, &json!({})).await;
            let (code, message) = reply.error();
            assert_eq!((reply.status, code.as_str()), (if n < 3 { 200 } else { 502 }, "upstream_error"), "{word} {n}: {reply:?}");
            assert!(message.contains(&format!("finish reason `{word}`")), "{message}");
            assert!(!reply.body.contains("[DONE]") && (n > 2 || reply.body.contains(TOKEN)), "{reply:?}");
            let run = stand.settled("r1").await;
            assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&json!("failed"), &json!("upstream_error")), "{run}");
            assert_eq!(run["guarantee"], "best_effort", "it may be the word of a hop: {run}");
            stand.nothing_is_left(&[&engine]).await;
        }
        // A response says it as its own end.
        let engine = Engine::always(Kind::OpenAi, vec![stream_head(), chunk(TOKEN), chunk(&ends(word)), last_chunk()]).await;
        let stand = before(&engine, quick).await;
        let body = json!({"model": stand::MODEL, "input": "hi", "store": false, "stream": true}).to_string();
        let reply = soon(stand::request(stand.addr, "POST", "/v1/responses", "X-Request-Id: r1\r\n", &body)).await;
        assert!(reply.body.contains("response.failed") && !reply.body.contains("response.completed"), "{reply:?}");
        stand.settled("r1").await;
        stand.nothing_is_left(&[&engine]).await;
    }
}

// contract: C-6
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_calls_itself_a_stream_is_passed_on_with_nothing_behind_it() {
    let body = "data: {\"error\":{\"message\":\"no such tool\"}}\n\n";
    for stream in [true, false] {
        let engine = Engine::always(Kind::OpenAi, vec![reply("422 Unprocessable Entity", "text/event-stream", body)]).await;
        let stand = before(&engine, quick).await;
        let reply = ask(&stand, "r1", stream, &json!({})).await;
        assert_eq!((reply.status, reply.body.as_str()), (422, body));
        assert_eq!(stand.settled("r1").await["outcome"]["kind"], "rejected");
        stand.nothing_is_left(&[&engine]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_one_in_whatever_letters_its_type_is_written() {
    let head = send("HTTP/1.1 200 OK\r\ncontent-type: Text/Event-Stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n");
    let engine = Engine::always(Kind::OpenAi, vec![head, chunk(TOKEN), Step::UntilClosed]).await;
    let stand = before(&engine, of(Kind::OpenAi)).await;
    let mut caller = chat(stand.addr, "r1", true, &json!({})).await;
    // Nothing follows: whoever waits for all of it waits for ever.
    read_until(&mut caller, "\"a\"").await;
    drop(caller);
    assert_eq!(stand.settled("r1").await["outcome"]["cause"], "client_closed");
    stand.nothing_is_left(&[&engine]).await;
}

/// What most readers of JSON take passes, and is read as well as it can be.
// contract: C-6
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_quite_json_passes_as_it_came() {
    let said = r#"{"logprobs":{"x":[NaN,-Infinity]},"index":0,"index":0,"DELTA":{"content":"a\ud83d"},"finish_reason":"stop"}"#;
    let usage = r#""usage":{"completion_tokens":7},"usage":{"completion_tokens":3}"#;
    let event = format!("data: {{\"choices\":[{}],{usage}}}\n\n", said.replace("DELTA", "delta"));
    let whole = format!("{{\"choices\":[{}],{usage}}}", said.replace("DELTA", "message"));
    for stream in [true, false] {
        let streamed = vec![stream_head(), chunk(&event), chunk("data: [DONE]\n\n"), last_chunk()];
        let steps = if stream { streamed } else { vec![reply("200 OK", "application/json", &whole)] };
        let engine = Engine::always(Kind::OpenAi, steps).await;
        let stand = before(&engine, quick).await;
        let reply = ask(&stand, "r1", stream, &json!({})).await;
        let expect = if stream { format!("{event}data: [DONE]\n\n") } else { whole.clone() };
        assert_eq!((reply.status, reply.body), (200, expect));
        let run = stand.settled("r1").await;
        assert_eq!((&run["outcome"]["kind"], &run["tokens"]["generated"]), (&json!("completed"), &json!(3)), "{run}");
        stand.nothing_is_left(&[&engine]).await;
    }
    // A list is no object, and of an embedding nothing needs to be read.
    let engine = Engine::always(Kind::OpenAi, vec![reply("200 OK", "application/json", "[NaN]")]).await;
    let stand = before(&engine, quick).await;
    let body = json!({"model": stand::MODEL, "input": "x"}).to_string();
    let reply = stand::request(stand.addr, "POST", "/v1/embeddings", "", &body).await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "[NaN]"));
    stand.nothing_is_left(&[&engine]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_answers_each_has_to_end() {
    let end = |index: u32| format!("data: {{\"choices\":[{{\"index\":{index},\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\n");
    for (ends, kind) in [(vec![0, 1], "completed"), (vec![0], "failed")] {
        let ends: Vec<Step> = ends.into_iter().map(|index| chunk(&end(index))).collect();
        let engine = Engine::always(Kind::OpenAi, [vec![stream_head(), chunk(TOKEN)], ends, vec![last_chunk()]].concat()).await;
        let stand = before(&engine, quick).await;
        let reply = ask(&stand, "r1", true, &json!({"n": 2})).await;
        assert_eq!(reply.body.contains("error"), kind == "failed", "{reply:?}");
        assert_eq!(stand.settled("r1").await["outcome"]["kind"], kind);
        stand.nothing_is_left(&[&engine]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_answer_is_the_engines_byte_by_byte() {
    for stream in [true, false] {
        let engine = Engine::always(Kind::OpenAi, good(stream)).await;
        let stand = before(&engine, quick).await;
        let reply = ask(&stand, "r1", stream, &json!({})).await;
        let expect = if stream { format!("{TOKEN}{END}") } else { WHOLE.to_owned() };
        assert_eq!((reply.status, reply.body), (200, expect));
        let run = stand.settled("r1").await;
        assert_eq!((&run["outcome"]["kind"], &run["delivery"]), (&json!("completed"), &json!("complete")), "{run}");
        assert_eq!((&run["tokens"]["generated"], &run["tokens"]["delivered"]), (&json!(1), &json!(1)), "{run}");
        stand.nothing_is_left(&[&engine]).await;
    }
}

// contract: C-10
#[tokio::test(flavor = "multi_thread")]
async fn one_that_refuses_connections_has_got_nothing() {
    for (stream, redispatch_max, cause, told) in [
        (true, 1, "queue_deadline", (503, "queue_deadline")),
        (false, 1, "queue_deadline", (503, "queue_deadline")),
        (true, 0, "worker_lost", (502, "upstream_error")),
        (false, 0, "worker_lost", (502, "upstream_error")),
    ] {
        let engine = Engine::always(Kind::OpenAi, good(stream)).await;
        let gateway = GatewayConfig { redispatch_max, queue_deadline: Duration::from_millis(300), ..GatewayConfig::default() };
        let mut config = stand::config(engine.addr);
        quick(&mut config);
        let stand = stand::stand(gateway, vec![config]).await;
        engine.die().await;
        let reply = ask(&stand, "r1", stream, &json!({})).await;
        assert_eq!((reply.status, reply.error().0.as_str()), told, "{reply:?}");
        let run = stand.settled("r1").await;
        assert_eq!(
            (&run["outcome"]["cause"], &run["guarantee"], &run["attempt"]),
            (&json!(cause), &json!("confirmed"), &json!(1)),
            "{run}"
        );
        stand.nothing_is_left(&[]).await;
    }
}

// contract: C-2
#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_sent_goes_elsewhere_and_what_was_does_not() {
    for refuses in [true, false] {
        let first = Engine::always(Kind::OpenAi, vec![]).await;
        let second = Engine::always(Kind::OpenAi, good(true)).await;
        let configs = [&first, &second].map(|engine| {
            let mut config = stand::config(engine.addr);
            quick(&mut config);
            config
        });
        // The first is the first choice.
        let gateway = GatewayConfig { affinity_bytes: 0, ..GatewayConfig::default() };
        let stand = stand::stand(gateway, configs.into()).await;
        let first = if refuses {
            first.die().await;
            None
        } else {
            Some(first)
        };
        let reply = ask(&stand, "r1", true, &json!({})).await;
        let run = stand.settled("r1").await;
        if refuses {
            assert_eq!((reply.status, second.asked()), (200, 1), "{reply:?}");
            assert!(reply.body.ends_with("data: [DONE]\n\n"), "{reply:?}");
            assert_eq!((&run["outcome"]["kind"], &run["attempt"]), (&json!("completed"), &json!(2)), "{run}");
        } else {
            assert_eq!((reply.status, second.asked()), (502, 0), "{reply:?}");
            assert_eq!((first.as_ref().map(Engine::asked), &run["attempt"]), (Some(1), &json!(1)), "{run}");
        }
        stand.nothing_is_left(&[&second]).await;
    }
}

/// Three are away and nobody knows it yet: none of them has got anything.
// contract: C-2
#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_to_nobody_goes_on_until_somebody_is_there() {
    let mut engines = Vec::new();
    for _ in 0..4 {
        engines.push(Engine::always(Kind::OpenAi, good(true)).await);
    }
    let configs = engines.iter().map(|engine| {
        let mut config = stand::config(engine.addr);
        quick(&mut config);
        config
    });
    let gateway = GatewayConfig { affinity_bytes: 0, ..GatewayConfig::default() };
    let stand = stand::stand(gateway, configs.collect()).await;
    let last = engines.pop().expect("four");
    for engine in engines {
        engine.die().await;
    }
    let reply = ask(&stand, "r1", true, &json!({})).await;
    let run = stand.settled("r1").await;
    assert_eq!((reply.status, last.asked()), (200, 1), "{reply:?}");
    assert_eq!((&run["outcome"]["kind"], &run["attempt"]), (&json!("completed"), &json!(4)), "{run}");
    stand.nothing_is_left(&[&last]).await;
}

// contract: C-8 C-13
#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_cancels_in_the_dispatch_window_leave_nothing_running() {
    for slots in [64, 1000] {
        for kind in [Kind::Vllm, Kind::Sglang, Kind::OpenAi] {
            three_hundred_cancels(kind, slots, false).await;
        }
    }
}

/// One that computes on whatever is closed, and knows nothing of its id then: it has to be told before, and once it has taken the request in.
// contract: C-8
#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_cancels_in_the_dispatch_window_reach_one_that_forgets_ids_with_their_connections() {
    three_hundred_cancels(Kind::Sglang, 8, true).await;
}

async fn three_hundred_cancels(kind: Kind, slots: u32, zombies: bool) {
    let engine = Engine::always(kind, vec![Step::UntilClosed]).await;
    let engine = if zombies { engine.keep_zombies() } else { engine };
    let mut config = stand::config(engine.addr);
    (config.kind, config.slots) = (Some(kind), Some(slots));
    let gateway = GatewayConfig { queue_max: 1000, ..GatewayConfig::default() };
    let stand = stand::stand(gateway, vec![config]).await;
    let (mut callers, addr) = (JoinSet::new(), stand.addr);
    for n in 0..300 {
        callers.spawn(async move {
            let (id, stream) = (format!("r{n}"), n % 2 == 0);
            let socket = chat(addr, &id, stream, &json!({})).await;
            // It may not have been read yet.
            let status = loop {
                match soon(cancel(addr, &id)).await {
                    404 => tokio::time::sleep(Duration::from_millis(5)).await,
                    status => break status,
                }
            };
            assert!(matches!(status, 200 | 202), "{id}: {status}");
            match tokio::time::timeout(Duration::from_secs(20), read(socket)).await {
                Ok(reply) => reply,
                Err(_) => {
                    let run = stand::request(addr, "GET", &format!("/v1/runs/{id}"), "", "").await.body;
                    panic!("{id}, cancelled with {status}, is not answered: {run}")
                }
            }
        });
    }
    while let Some(told) = callers.join_next().await {
        let reply = told.expect("an answer");
        // On a busy machine a stream has its head before its end is known.
        let streams = reply.status == 200 && reply.head.contains("text/event-stream");
        assert!((reply.status == 499 || streams) && reply.body.contains(r#""code":"cancel_requested""#), "{reply:?}");
    }
    let mut levels = std::collections::BTreeMap::<String, u32>::new();
    for n in 0..300 {
        let run = stand.settled(&format!("r{n}")).await;
        assert_eq!(run["outcome"]["cause"], "cancel_requested", "{run}");
        *levels.entry(run["guarantee"].to_string()).or_default() += 1;
    }
    println!("{levels:?}, {} reached the engine", engine.asked());
    let proven = if kind == Kind::Vllm { "\"observed\"" } else { "\"best_effort\"" };
    assert!(levels.keys().all(|level| level == proven || level == "\"confirmed\""), "{levels:?}");
    assert_eq!(engine.computes(), Vec::<String>::new(), "of {} that reached it", engine.asked());
    stand.nothing_is_left(&[&engine]).await;
}

// contract: C-29
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_by_id_names_the_request_and_its_answer_proves_nothing() {
    for zombies in [true, false] {
        let engine = Engine::always(Kind::Vllm, vec![stream_head(), chunk(TOKEN), chunk(TOKEN), Step::UntilClosed]).await;
        let engine = if zombies { engine.keep_zombies() } else { engine };
        let stand = before(&engine, |config| {
            of(Kind::Vllm)(config);
            config.observe_for = Duration::from_millis(if zombies { 300 } else { 20_000 });
        })
        .await;
        let mut socket = chat(stand.addr, "r1", true, &json!({})).await;
        read_until(&mut socket, "\"a\"").await;
        drop(socket);
        let run = stand.settled("r1").await;
        let level = if zombies { "best_effort" } else { "observed" };
        assert_eq!((&run["outcome"]["cause"], &run["guarantee"]), (&json!("client_closed"), &json!(level)), "{run}");
        until(|| engine.aborts().len() == 1, || "no cancel by id".to_owned()).await;
        let asked = engine.hands.asked.lock().expect("what was asked")[0].clone();
        let name = asked.lines().find_map(|line| line.strip_prefix("x-request-id: ")).expect("a name").to_owned();
        let (_, body) = engine.aborts()[0].split_once("\r\n\r\n").map(|(head, body)| (head.to_owned(), body.to_owned())).expect("a body");
        assert_eq!(body, format!(r#"{{"request_ids":["chatcmpl-{name}"]}}"#));
        assert!(engine.looks() > 1, "it was the counters that were asked");
        stand.nothing_is_left(&[&engine]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_wait_is_filled_with_comments_and_what_comes_then_is_an_event() {
    let pause = Duration::from_millis(4);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let late = vec![Step::Drip(head, pause), chunk(TOKEN), chunk(END), last_chunk()];
    let html = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n";
    for (steps, ends) in [
        (late, END),
        (vec![Step::UntilClosed], "upstream_timeout"),
        (vec![Step::Drip("HTTP/1.1 500 Broken\r\ncontent-type: application/json\r\n\r\n{}", pause)], "the engine answered 500"),
        (vec![Step::Drip(html, pause), send("<html>")], "text/html"),
    ] {
        let engine = Engine::always(Kind::OpenAi, steps).await;
        let gateway = GatewayConfig { keepalive_comment: Duration::from_millis(20), ..GatewayConfig::default() };
        let mut config = stand::config(engine.addr);
        quick(&mut config);
        config.head_timeout = Duration::from_secs(2);
        let stand = stand::stand(gateway, vec![config]).await;
        let reply = ask(&stand, "r1", true, &json!({})).await;
        assert!(reply.status == 200 && reply.body.starts_with(": keepalive\n\n"), "{reply:?}");
        assert!(reply.body.contains(ends), "{ends}: {reply:?}");
        let run = stand.settled("r1").await;
        assert_eq!(run["outcome"]["kind"] == "completed", ends == END, "{run}");
        if ends != END {
            assert_eq!(reply.body.matches("data: ").count(), 1, "the error, and nothing behind it: {reply:?}");
        }
        stand.nothing_is_left(&[&engine]).await;
    }
}

/// Who was sent comments has a stream: what is none is told there in the form that its reader knows, and the run ends as its caller was told.
// contract: C-6
#[tokio::test(flavor = "multi_thread")]
async fn behind_comments_a_refusal_keeps_its_words_and_a_whole_answer_becomes_a_stream() {
    let late = |status: &str, body: &str| {
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        vec![Step::Drip(head.leak(), Duration::from_millis(4)), send(body)]
    };
    let refusal = r#"{"error":{"message":"This model's maximum context length is 4096","type":"BadRequestError","param":null,"code":400}}"#;
    let failure = r#"{"error":{"message":"Provider returned error","code":502}}"#;
    let invalid = Some("the engine answered 400");
    for (steps, kind, reason, tells) in [
        (late("400 Bad Request", refusal), "rejected", invalid, format!("data: {refusal}\n\n")),
        (late("400 Bad Request", "{\"detail\":\"no\"}"), "rejected", invalid, "data: {\"error\":{\"message\":\"no\"}}\n\n".to_owned()),
        (
            late("200 OK", failure),
            "failed",
            Some("the engine answered an error in its answer: Provider returned error"),
            format!("data: {failure}\n\n"),
        ),
        (
            late("200 OK", WHOLE),
            "completed",
            None,
            format!("data: {}\n\ndata: [DONE]\n\n", r#"{"choices":[{"index":0,"finish_reason":"stop","delta":{"content":"a"}}]}"#),
        ),
    ] {
        let engine = Engine::always(Kind::OpenAi, steps).await;
        let gateway = GatewayConfig { keepalive_comment: Duration::from_millis(20), ..GatewayConfig::default() };
        let mut config = stand::config(engine.addr);
        quick(&mut config);
        config.head_timeout = Duration::from_secs(20);
        let stand = stand::stand(gateway, vec![config]).await;
        let reply = ask(&stand, "r1", true, &json!({})).await;
        assert!(reply.status == 200 && reply.body.starts_with(": keepalive\n\n"), "{reply:?}");
        assert_eq!(reply.body.replace(": keepalive\n\n", ""), tells);
        let run = stand.settled("r1").await;
        assert_eq!((&run["outcome"]["kind"], &run["outcome"]["reason"]), (&json!(kind), &json!(reason)), "{run}");
        assert_eq!(run["tokens"]["delivered"], u64::from(kind == "completed"), "{run}");
        stand.nothing_is_left(&[&engine]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_by_another_door_is_asked_as_a_stream_and_fails_as_clearly() {
    for (steps, status, says) in [
        (good(true), 200, "\"text\":\"a\""),
        (good(false), 502, "no stream of events"),
        (vec![], 502, "closed before an answer"),
        (vec![stream_head(), chunk(TOKEN), last_chunk()], 502, "before its end"),
        (vec![stream_head(), chunk(TOKEN), Step::UntilClosed], 504, "no byte came"),
        (vec![reply("503 Service Unavailable", "application/json", "{}")], 502, "the engine answered 503"),
    ] {
        let engine = Engine::always(Kind::OpenAi, steps).await;
        let stand = before(&engine, quick).await;
        let asked = json!({"model": stand::MODEL, "input": "hi", "store": false}).to_string();
        let reply = soon(stand::request(stand.addr, "POST", "/v1/responses", "X-Request-Id: r1\r\n", &asked)).await;
        assert_eq!(reply.status, status, "{says}: {reply:?}");
        assert!(reply.body.contains(says), "{says}: {reply:?}");
        let run = stand.settled("r1").await;
        assert_eq!(run["outcome"]["kind"] == "completed", status == 200, "{run}");
        let asked = engine.hands.asked.lock().expect("what was asked")[0].clone();
        assert!(asked.starts_with("POST /v1/chat/completions ") && asked.contains("\"stream\":true"), "{asked}");
        stand.nothing_is_left(&[&engine]).await;
    }
}
