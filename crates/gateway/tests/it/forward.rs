//! Requests that go on as they came, to a simulated engine that speaks OpenAI's HTTP: what it gets and what its answer becomes.
// contract: C-6 C-28 C-29

use gateway::{GatewayConfig, Here, Key, Keys, LinkEvent, SecretDigest};
use lifecycle::message::{Delta, Forward, Passed, Piece, Prompt, Submit, Up, Usage};
use lifecycle::{AttemptId, Cause, Guarantee, Make, Offer, Outcome, RunId, RunKey, Shows, StepId, Tenant};
use serde_json::{Value, json};

use crate::simulated::{Simulated, Stand, several, tiny};
use crate::wire::{ask, ms, read_reply, read_until, request_text, send};

fn secret(tenant: &str) -> String {
    format!("the-secret-of-tenant-{tenant}")
}

/// An engine with so many slots.
async fn engine(config: GatewayConfig, slots: u32) -> Stand<Vec<Simulated>> {
    engine_for(config, slots, "").await
}

/// The same, where whoever asks has to say who it is.
async fn engine_for(config: GatewayConfig, slots: u32, headers: &str) -> Stand<Vec<Simulated>> {
    let stand = several(config, 1).await;
    let make = Some(Make { kind: "openai", cancel: "close", shows: Shows::NOTHING });
    let offer = Offer { models: vec![tiny()], slots: Some(slots), forwards: true, make };
    let here = Here { incarnation: stand.worker[0].life, offer, name: "engine".into() };
    stand.worker[0].tell(LinkEvent::Here(here)).await;
    while !ask(stand.addr, "GET", "/v1/models", headers, "").await.body.contains("tiny") {}
    stand
}

fn forward(submit: &Submit) -> &Forward {
    match &submit.prompt {
        Prompt::Forward(forward) => forward,
        other => panic!("{other:?}"),
    }
}

async fn say(worker: &Simulated, attempt: &AttemptId, tokens: u32, piece: Piece) {
    let passed = Some(Box::new(Passed { tokens, piece }));
    let delta =
        Delta { attempt: attempt.clone(), sequence: 0, text: String::new(), tokens: vec![], logprobs: vec![], finish: None, passed };
    worker.say(Up::Step { step: StepId(0), deltas: vec![delta] }).await;
}

async fn head(worker: &Simulated, attempt: &AttemptId, status: u16, content_type: &str) {
    worker.say(Up::Accepted { attempt: attempt.clone(), prompt_tokens: 0 }).await;
    say(worker, attempt, 0, Piece::Head { status, content_type: Some(content_type.into()), headers: [].into() }).await;
}

async fn body(worker: &Simulated, attempt: &AttemptId, tokens: u32, bytes: &'static str) {
    say(worker, attempt, tokens, Piece::Body(bytes.into())).await;
}

async fn end(worker: &Simulated, attempt: &AttemptId, outcome: Outcome, guarantee: Guarantee) {
    worker.say(Up::Ended { attempt: attempt.clone(), outcome, usage: Usage { prompt: 5, cached_prompt: 0, generated: 2 } }).await;
    worker.say(Up::LetGo { attempt: attempt.clone(), guarantee }).await;
}

const EVENTS: &str = "text/event-stream";

fn chat(id: &str, extra: &Value) -> String {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": true});
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    request_text("POST", "/v1/chat/completions", &format!("X-Request-Id: {id}\r\n"), &body.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_passes_byte_by_byte_with_fields_that_nobody_here_knows() {
    let mut stand = engine(GatewayConfig::default(), 1).await;
    let extra = json!({"guided_choice": ["a", "b"], "max_tokens": 7, "n": 2, "tools": [{"type": "function", "function": {"name": "f"}}]});
    let mut socket = send(stand.addr, &chat("r1", &extra)).await;
    let submit = stand.worker[0].submit().await;
    let forwarded = forward(&submit);
    let got: Value = serde_json::from_slice(&forwarded.body).expect("JSON");
    assert_eq!((&*forwarded.path, forwarded.stream, &got["guided_choice"]), ("/v1/chat/completions", true, &json!(["a", "b"])));
    assert_eq!((submit.params.n, submit.params.max_tokens), (2, Some(7)));
    let (worker, attempt) = (&stand.worker[0], &submit.attempt);
    head(worker, attempt, 200, EVENTS).await;
    body(worker, attempt, 1, "data: {\"odd\":1}\r\n\r\n").await;
    let first = read_until(&mut socket, "\r\n\r\n\r\n").await;
    assert!(first.starts_with("HTTP/1.1 200") && first.contains("x-request-id: r1") && first.contains("{\"odd\":1}"), "{first}");
    body(worker, attempt, 1, ": theirs\n\ndata: [DONE]\n\n").await;
    end(worker, attempt, Outcome::of(Cause::Stop), Guarantee::Observed).await;
    let rest = read_until(&mut socket, "0\r\n\r\n").await;
    assert!(rest.contains(": theirs\n\ndata: [DONE]\n\n") && !rest.contains("error"), "{rest}");
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["kind"], &run["guarantee"], &run["released"]), (&json!("completed"), &json!("observed"), &json!(false)));
    assert_eq!((&run["tokens"]["delivered"], &run["tokens"]["generated"], &run["delivery"]), (&json!(2), &json!(2), &json!("complete")));
    assert_eq!(run["waste_bound_tokens"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_for_the_gateway_does_not_go_on() {
    let mut stand = engine(GatewayConfig::default(), 1).await;
    let extra = json!({"timeout_ms": 60_000, "on_disconnect": "cancel", "cache_salt": "theirs"});
    let _socket = send(stand.addr, &chat("r1", &extra)).await;
    let submit = stand.worker[0].submit().await;
    let got: Value = serde_json::from_slice(&forward(&submit).body).expect("JSON");
    assert_eq!((&got["timeout_ms"], &got["on_disconnect"], &got["cache_salt"]), (&Value::Null, &Value::Null, &json!("theirs")));
    assert!(submit.deadlines.iter().any(|deadline| deadline.cause == Cause::ClientDeadline));
}

// field: F-17
#[tokio::test(flavor = "multi_thread")]
async fn an_engines_own_error_keeps_its_status_and_its_words() {
    for (status, outcome) in [
        (422, Outcome::because(Cause::Invalid, "the engine answered 422")),
        (503, Outcome::because(Cause::WorkerError, "the engine answered 503")),
    ] {
        let mut stand = engine(GatewayConfig::default(), 1).await;
        let mut socket = send(stand.addr, &chat("r1", &json!({}))).await;
        let attempt = stand.worker[0].submit().await.attempt;
        head(&stand.worker[0], &attempt, status, "application/problem+json").await;
        body(&stand.worker[0], &attempt, 0, "{\"theirs\":true}").await;
        end(&stand.worker[0], &attempt, outcome.clone(), Guarantee::Observed).await;
        let reply = read_reply(&mut socket).await;
        assert_eq!((reply.status, reply.body.as_str()), (status, "{\"theirs\":true}"));
        assert_eq!(reply.header("content-type").as_deref(), Some("application/problem+json"));
        let run = stand.settled("r1").await;
        assert_eq!(run["outcome"]["cause"], outcome.cause.as_str());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_off_ends_with_an_error_and_without_its_proper_end() {
    let mut stand = engine(GatewayConfig::default(), 1).await;
    let mut socket = send(stand.addr, &chat("r1", &json!({}))).await;
    let attempt = stand.worker[0].submit().await.attempt;
    head(&stand.worker[0], &attempt, 200, EVENTS).await;
    body(&stand.worker[0], &attempt, 1, "data: {}\n\n").await;
    end(&stand.worker[0], &attempt, Outcome::because(Cause::WorkerError, "the engine closed the connection"), Guarantee::BestEffort).await;
    let all = read_until(&mut socket, "0\r\n\r\n").await;
    assert!(all.contains("the engine closed the connection") && !all.contains("[DONE]"), "{all}");
    assert_eq!(stand.settled("r1").await["guarantee"], "best_effort");
}

// contract: C-8 C-13
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_slot_waits_here_and_one_that_leaves_never_starts() {
    let mut stand = engine(GatewayConfig::default(), 1).await;
    let _first = send(stand.addr, &chat("r1", &json!({}))).await;
    let first = stand.worker[0].submit().await.attempt;
    let second = send(stand.addr, &chat("r2", &json!({}))).await;
    let _third = send(stand.addr, &chat("r3", &json!({}))).await;
    stand.until("r3", "wait", |run| run["state"] == "queued").await;
    drop(second);
    assert_eq!(stand.settled("r2").await["outcome"]["cause"], "client_closed");
    assert!(stand.worker[0].try_next().is_none(), "one slot, one run");
    head(&stand.worker[0], &first, 200, EVENTS).await;
    end(&stand.worker[0], &first, Outcome::of(Cause::Stop), Guarantee::Observed).await;
    assert_eq!(stand.worker[0].submit().await.attempt.key.run.as_str(), "r3");
    assert_eq!(stand.run("r2")["attempt"], 0);
}

// contract: C-28
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_nobody_confirms_says_so_and_how_much_it_may_waste() {
    let mut stand = engine(GatewayConfig::default(), 1).await;
    let mut socket = send(stand.addr, &chat("r1", &json!({"max_tokens": 40}))).await;
    let attempt = stand.worker[0].submit().await.attempt;
    head(&stand.worker[0], &attempt, 200, EVENTS).await;
    body(&stand.worker[0], &attempt, 1, "data: {}\n\n").await;
    read_until(&mut socket, "data: {}").await;
    drop(socket);
    assert_eq!(stand.worker[0].cancelled(&attempt).await, Cause::ClientClosed);
    end(&stand.worker[0], &attempt, Outcome::of(Cause::ClientClosed), Guarantee::BestEffort).await;
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["cause"], &run["guarantee"]), (&json!("client_closed"), &json!("best_effort")));
    assert!(run["waste_bound_tokens"].as_u64().is_some_and(|bound| bound > 0), "{run}");
    // Closed by the caller: never a success, never the engine's failure.
    assert_eq!(run["outcome"]["kind"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_and_an_embedding_pass_as_they_are() {
    let mut stand = engine(GatewayConfig::default(), 2).await;
    for path in ["/v1/completions", "/v1/embeddings", "/v1/rerank"] {
        let asked = r#"{"model":"tiny","input":["x"],"x":1e400}"#.replace("1e400", "1");
        let mut socket = send(stand.addr, &request_text("POST", path, "", &asked)).await;
        let submit = stand.worker[0].submit().await;
        assert_eq!((&*forward(&submit).path, &*forward(&submit).body), (path, asked.as_bytes()));
        head(&stand.worker[0], &submit.attempt, 200, "application/json").await;
        body(&stand.worker[0], &submit.attempt, 0, "{\"data\":").await;
        body(&stand.worker[0], &submit.attempt, 2, "[1.50]}").await;
        end(&stand.worker[0], &submit.attempt, Outcome::of(Cause::Stop), Guarantee::Observed).await;
        let reply = read_reply(&mut socket).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "{\"data\":[1.50]}"));
    }
    let own = crate::simulated::default_stand().await;
    let refused = ask(own.addr, "POST", "/v1/embeddings", "", r#"{"model":"tiny","input":"x"}"#).await;
    assert_eq!((refused.status, refused.error().3), (404, "unsupported_endpoint".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prefill_is_filled_with_comments_and_an_error_behind_them_is_an_event() {
    let config = GatewayConfig { keepalive_comment: ms(30), ..GatewayConfig::default() };
    let mut stand = engine(config, 1).await;
    let mut socket = send(stand.addr, &chat("r1", &json!({}))).await;
    let attempt = stand.worker[0].submit().await.attempt;
    let silent = read_until(&mut socket, ": keepalive").await;
    assert!(silent.starts_with("HTTP/1.1 200") && silent.contains("text/event-stream"), "{silent}");
    head(&stand.worker[0], &attempt, 500, "application/json").await;
    end(&stand.worker[0], &attempt, Outcome::because(Cause::WorkerError, "the engine answered 500"), Guarantee::Observed).await;
    let rest = read_until(&mut socket, "0\r\n\r\n").await;
    assert!(rest.contains("the engine answered 500"), "{rest}");
}

/// A key each for the tenants `a` and `b`.
fn keys_of_two() -> Keys {
    let mut keys = Keys::default();
    for tenant in ["a", "b"] {
        let digest = SecretDigest::of(&secret(tenant)).expect("a secret");
        keys.add(Key { name: tenant.into(), tenant: Tenant::parse(tenant).expect("a tenant"), digest, is_operator: false }).expect("a key");
    }
    keys
}

// contract: C-30
#[tokio::test(flavor = "multi_thread")]
async fn of_two_tenants_that_wait_each_has_its_turn() {
    let config = GatewayConfig { keys: keys_of_two(), ..GatewayConfig::default() };
    let mut stand = engine_for(config, 1, &format!("Authorization: Bearer {}\r\n", secret("a"))).await;
    let mut sockets = Vec::new();
    for id in ["a1", "a2", "a3", "b1"] {
        let tenant = &id[..1];
        let body = json!({"model": "tiny", "messages": [], "stream": true}).to_string();
        let headers = format!("X-Request-Id: {id}\r\nAuthorization: Bearer {}\r\n", secret(tenant));
        sockets.push(send(stand.addr, &request_text("POST", "/v1/chat/completions", &headers, &body)).await);
        let key = RunKey { tenant: Tenant::parse(tenant).expect("a tenant"), run: RunId::parse(id).expect("an id") };
        while stand.journal.run(&key).is_none() {
            tokio::time::sleep(ms(1)).await;
        }
    }
    let mut order = Vec::new();
    for _ in 0..4 {
        let attempt = stand.worker[0].submit().await.attempt;
        order.push(attempt.key.run.to_string());
        head(&stand.worker[0], &attempt, 200, EVENTS).await;
        end(&stand.worker[0], &attempt, Outcome::of(Cause::Stop), Guarantee::Observed).await;
    }
    assert_eq!(order, ["a1", "b1", "a2", "a3"]);
}

/// However many runs one tenant brings, there is room for another's.
// contract: C-30
#[tokio::test(flavor = "multi_thread")]
async fn no_tenant_fills_the_queue_for_all() {
    let config = GatewayConfig { keys: keys_of_two(), queue_max: 4, ..GatewayConfig::default() };
    let mut stand = engine_for(config, 1, &format!("Authorization: Bearer {}\r\n", secret("a"))).await;
    let (mut told, mut sockets) = (Vec::new(), Vec::new());
    // One has the slot, three wait, which is three quarters of the queue.
    for id in ["a1", "a2", "a3", "a4", "a5", "b1", "b2"] {
        let body = json!({"model": "tiny", "messages": [], "stream": true}).to_string();
        let headers = format!("X-Request-Id: {id}\r\nAuthorization: Bearer {}\r\n", secret(&id[..1]));
        sockets.push(send(stand.addr, &request_text("POST", "/v1/chat/completions", &headers, &body)).await);
        let key = RunKey { tenant: Tenant::parse(&id[..1]).expect("a tenant"), run: RunId::parse(id).expect("an id") };
        let run = loop {
            match stand.journal.run(&key) {
                Some(run) => break serde_json::to_value(run).expect("JSON"),
                None => tokio::time::sleep(ms(1)).await,
            }
        };
        told.push((id, run["outcome"]["cause"].as_str().map(str::to_owned)));
    }
    let full = Some("queue_full".to_owned());
    let waits = |id| (id, None);
    // The last finds the whole queue full.
    assert_eq!(told, [waits("a1"), waits("a2"), waits("a3"), waits("a4"), ("a5", full.clone()), waits("b1"), ("b2", full)]);
    for id in ["a1", "b1", "a2", "a3", "a4"] {
        let attempt = stand.worker[0].submit().await.attempt;
        assert_eq!(attempt.key.run.to_string(), id);
        head(&stand.worker[0], &attempt, 200, EVENTS).await;
        end(&stand.worker[0], &attempt, Outcome::of(Cause::Stop), Guarantee::Observed).await;
    }
}

/// Engines differ in which of several caps they heed: the largest bounds them all, and each answer of each prompt counts.
// contract: C-28
#[tokio::test(flavor = "multi_thread")]
async fn the_bound_is_the_largest_cap_that_the_path_knows_for_every_answer() {
    let mut stand = engine(GatewayConfig::default(), 16).await;
    for (number, (path, extra, cap, n)) in [
        ("chat/completions", json!({"max_tokens": 5, "n_predict": 900}), Some(900), 1),
        ("chat/completions", json!({"max_completion_tokens": 7, "max_tokens": null}), Some(7), 1),
        ("chat/completions", json!({"max_output_tokens": 7}), None, 1),
        ("chat/completions", json!({"max_tokens": "many"}), Some(u32::MAX), 1),
        ("completions", json!({"max_completion_tokens": 5, "max_tokens": 4000, "prompt": "a"}), Some(4000), 1),
        ("completions", json!({"prompt": ["a", "b", "c"], "n": 2}), None, 6),
        ("completions", json!({"prompt": [1, 2, 3]}), None, 1),
        ("completions", json!({"prompt": vec!["a"; 100], "n": 2, "best_of": 3}), None, 300),
        ("chat/completions", json!({"n": 40}), None, 40),
        ("embeddings", json!({"input": vec!["a"; 70]}), None, 70),
        ("embeddings", json!({"input": [1, 2, 3]}), None, 1),
        ("embeddings", json!({"input": [[1, 2], [3]]}), None, 2),
        ("rerank", json!({"query": "q", "documents": vec!["a"; 30]}), None, 31),
        ("rerank", json!({"query": "q", "documents": {"content": [{"type": "text"}, {"type": "text"}]}}), None, 3),
        ("score", json!({"text_1": "q", "text_2": ["a", "b"]}), None, 3),
    ]
    .into_iter()
    .enumerate()
    {
        let mut body = json!({"model": "tiny", "messages": []});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let text = request_text("POST", &format!("/v1/{path}"), &format!("X-Request-Id: r{number}\r\n"), &body.to_string());
        let socket = send(stand.addr, &text).await;
        let submit = stand.worker[0].submit().await;
        assert_eq!((submit.params.max_tokens, submit.params.n), (cap, n), "{body}");
        end(&stand.worker[0], &submit.attempt, Outcome::of(Cause::Stop), Guarantee::Observed).await;
        // Who leaves sooner is cancelled, and the worker hears of that next.
        stand.settled(&format!("r{number}")).await;
        drop(socket);
    }
}
