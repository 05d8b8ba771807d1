//! Effects that callers note: keys, moves, limits, tenants, and what a cancel does to them. The store is in memory.
// contract: C-8 C-27 C-30

use std::sync::Arc;
use std::time::Duration;

use gateway::{GatewayConfig, Key, Keys, OutsideConfig, SecretDigest};
use lifecycle::{AttemptId, Cause, Outcome, Tenant};
use serde_json::{Value, json};
use store::StoreConfig;
use store::memory::Memory;

use crate::simulated::{Stand, default_stand, kept_stand};
use crate::wire::{Leave, Reply, ask, chat_request, get, ms, send};

pub fn memory() -> Arc<Memory> {
    Memory::new(StoreConfig::at("memory"), true)
}

async fn kept(outside: OutsideConfig) -> Stand {
    kept_stand(GatewayConfig { outside, ..GatewayConfig::default() }, Some(memory())).await
}

async fn note(stand: &Stand, run: &str, body: &Value) -> Reply {
    ask(stand.addr, "POST", &format!("/v1/runs/{run}/effects"), "", &body.to_string()).await
}

async fn change(stand: &Stand, run: &str, key: &str, body: &Value) -> Reply {
    ask(stand.addr, "PATCH", &format!("/v1/runs/{run}/effects/{key}"), "", &body.to_string()).await
}

fn payment(key: &str) -> Value {
    json!({"key": key, "kind": "payment", "description": "7 EUR to Alice"})
}

/// Its effects' states, by key.
pub fn states(list: &Value) -> Vec<String> {
    let one = |effect: &Value| format!("{} {}", effect["key"].as_str().expect("a key"), effect["state"].as_str().expect("a state"));
    list.as_array().expect("a list").iter().map(one).collect()
}

/// A run that a worker has.
async fn live(stand: &mut Stand, id: &str) -> (AttemptId, tokio::net::TcpStream) {
    let socket = send(stand.addr, &chat_request(id, r#","stream":true"#)).await;
    (stand.worker.accept().await.attempt, socket)
}

async fn complete(stand: &mut Stand, attempt: &AttemptId) {
    let last = stand.worker.delta(attempt, 0, "done", &[1], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(attempt, Outcome::of(Cause::Stop), 1).await;
}

// contract: C-27
#[tokio::test(flavor = "multi_thread")]
async fn an_effect_is_noted_once_and_moves_as_it_may() {
    let mut stand = kept(OutsideConfig::default()).await;
    let (attempt, _socket) = live(&mut stand, "r1").await;
    let noted = note(&stand, "r1", &payment("k1")).await;
    let effect = noted.json();
    assert_eq!((noted.status, effect["state"].as_str(), effect["attempt"].as_u64()), (201, Some("intended"), Some(1)), "{effect}");
    assert_eq!(noted.header("x-request-id").as_deref(), Some("r1"));
    // The same again is the same, by body or by header; another under its key is refused.
    assert_eq!((note(&stand, "r1", &payment("k1")).await.status, note(&stand, "r1", &payment("k1")).await.json()), (200, effect));
    let by_header = json!({"kind": "payment", "description": "7 EUR to Alice"}).to_string();
    let again = ask(stand.addr, "POST", "/v1/runs/r1/effects", "Idempotency-Key: k1\r\n", &by_header).await;
    assert_eq!(again.status, 200);
    let other = note(&stand, "r1", &json!({"key": "k1", "kind": "payment", "description": "8 EUR to Alice"})).await;
    assert_eq!((other.status, other.error().3), (422, "idempotency_key_reused".into()));

    // Nothing is committed that was not submitted; and what is submitted is not submitted again.
    let refused = change(&stand, "r1", "k1", &json!({"state": "committed"})).await;
    assert_eq!((refused.status, &refused.json()["effect"]["state"], refused.error().3), (409, &"intended".into(), "effect_stands".into()));
    assert_eq!(change(&stand, "r1", "k1", &json!({"state": "submitted"})).await.json()["state"], "submitted");
    assert_eq!(change(&stand, "r1", "k1", &json!({"state": "submitted"})).await.status, 409);
    let committed = change(&stand, "r1", "k1", &json!({"state": "committed", "detail": "charge ch_1"})).await.json();
    assert_eq!((&committed["state"], &committed["detail"]), (&"committed".into(), &"charge ch_1".into()));
    assert_eq!(change(&stand, "r1", "k1", &json!({"state": "committed"})).await.json(), committed, "again is the same");
    for state in ["intended", "submitted", "failed", "unknown"] {
        let answer = change(&stand, "r1", "k1", &json!({"state": state})).await;
        assert_eq!(
            (answer.status, answer.json()["state"].clone()),
            if state == "intended" { (200, "committed".into()) } else { (409, Value::Null) }
        );
    }
    // A replay of the run's work finds what stands and knows not to send it.
    assert_eq!(note(&stand, "r1", &payment("k1")).await.json(), committed);
    assert_eq!(states(&get(stand.addr, "/v1/runs/r1/effects").await.json()["data"]), ["k1 committed"]);
    assert_eq!(states(&get(stand.addr, "/v1/runs/r1").await.json()["effects"]), ["k1 committed"]);

    // Once it has ended none begins; what was done already is noted.
    complete(&mut stand, &attempt).await;
    stand.settled("r1").await;
    let late = note(&stand, "r1", &payment("k2")).await;
    assert_eq!((late.status, late.error().3), (409, "run_over".into()));
    assert_eq!(note(&stand, "r1", &payment("k1")).await.json(), committed);
    let mut told = payment("k3");
    told["state"] = "committed".into();
    assert_eq!(note(&stand, "r1", &told).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_is_checked_and_bounded() {
    let mut stand = kept(OutsideConfig { effects_max: 2, effect_text_bytes_max: 20, ..OutsideConfig::default() }).await;
    let (_attempt, _socket) = live(&mut stand, "r1").await;
    for (body, param) in [
        (json!({"kind": "a", "description": "b"}), "key"),
        (json!({"key": "a b", "kind": "a", "description": "b"}), "key"),
        (json!({"key": "x".repeat(256), "kind": "a", "description": "b"}), "key"),
        (json!({"key": "a", "description": "b"}), "kind"),
        (json!({"key": "a", "kind": "kvit_http", "description": "b"}), "kind"),
        (json!({"key": "a", "kind": "a"}), "description"),
        (json!({"key": "a", "kind": "a", "description": "x".repeat(21)}), "description"),
        (json!({"key": "a", "kind": "a", "description": "b", "state": "done"}), "state"),
        (json!({"key": "a", "kind": "a", "description": "b", "detail": "x".repeat(21)}), "detail"),
        (json!({"key": "a", "kind": "a", "description": "b", "more": 1}), "more"),
    ] {
        let answer = note(&stand, "r1", &body).await;
        assert_eq!((answer.status, answer.json()["error"]["param"].clone()), (400, param.into()), "{body}");
    }
    assert_eq!(change(&stand, "r1", "a", &json!({})).await.status, 400);
    assert_eq!(change(&stand, "r1", "a", &json!({"state": "submitted"})).await.error().3, "effect_not_found");
    assert_eq!(note(&stand, "nobody", &payment("k")).await.error().3, "run_not_found");
    assert_eq!([note(&stand, "r1", &payment("k1")).await.status, note(&stand, "r1", &payment("k2")).await.status], [201, 201]);
    let full = note(&stand, "r1", &payment("k3")).await;
    assert_eq!((full.status, full.error().3), (409, "too_many_effects".into()));
    assert_eq!(note(&stand, "r1", &payment("k1")).await.status, 200, "one that is there is answered");

    let mut without = default_stand().await;
    let (_attempt, _other) = live(&mut without, "r1").await;
    assert_eq!(note(&without, "r1", &payment("k1")).await.error().3, "no_run_store");
    assert_eq!(get(without.addr, "/v1/runs/r1").await.json().get("effects"), None);
}

// contract: C-30
#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_effects_do_not_exist() {
    let mut keys = Keys::default();
    for (name, secret) in [("one", "the-secret-of-tenant-one"), ("two", "the-secret-of-tenant-two")] {
        let digest = SecretDigest::of(secret).expect("a secret");
        let tenant = Tenant::parse(name).expect("a name");
        keys.add(Key { name: name.into(), tenant, digest, is_operator: false }).expect("a key");
    }
    let mut stand = kept_stand(GatewayConfig { keys, ..GatewayConfig::default() }, Some(memory())).await;
    let auth = |tenant: &str| format!("Authorization: Bearer the-secret-of-tenant-{tenant}\r\n");
    let body = r#"{"messages":[{"role":"user","content":"hi"}],"stream":true}"#;
    let headers = format!("X-Request-Id: r1\r\n{}", auth("one"));
    let _socket = send(stand.addr, &crate::wire::request_text("POST", "/v1/chat/completions", &headers, body)).await;
    let _attempt = stand.worker.accept().await;
    let as_tenant = async |tenant: &str, method: &str, path: &str, body: &Value| {
        let answer = ask(stand.addr, method, path, &auth(tenant), &body.to_string()).await;
        (answer.status, answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(as_tenant("one", "POST", "/v1/runs/r1/effects", &payment("k1")).await.0, 201);
    let submitted = json!({"state": "submitted"});
    for (method, path, body) in [
        ("POST", "/v1/runs/r1/effects", payment("k1")),
        ("PATCH", "/v1/runs/r1/effects/k1", submitted.clone()),
        ("GET", "/v1/runs/r1/effects", json!({})),
    ] {
        assert_eq!(as_tenant("two", method, path, &body).await, (404, "run_not_found".to_owned()), "{method}");
    }
    assert_eq!(as_tenant("one", "PATCH", "/v1/runs/r1/effects/k1", &submitted).await.0, 200);
}

/// A cancel begins nothing, waits for what is in flight, says so when nobody can say, and undoes nothing.
// contract: C-8 C-27
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_tells_what_is_committed_and_what_nobody_can_say() {
    let mut stand = kept(OutsideConfig::default()).await;
    let (attempt, _socket) = live(&mut stand, "r1").await;
    for (key, path) in [("meant", &[][..]), ("flying", &["submitted"]), ("done", &["submitted", "committed"])] {
        assert_eq!(note(&stand, "r1", &payment(key)).await.status, 201);
        for state in path {
            assert_eq!(change(&stand, "r1", key, &json!({"state": state})).await.status, 200);
        }
    }
    let addr = stand.addr;
    let cancelling = tokio::spawn(async move { crate::wire::cancel(addr, "r1", 300).await.json() });
    assert_eq!(stand.worker.obey(&attempt).await, Cause::CancelRequested);
    let run = cancelling.await.expect("answered");
    assert_eq!(states(&run["effects"]), ["meant failed", "flying unknown", "done committed"]);
    assert_eq!(run["effects"][0]["detail"], "not begun: the run was cancelled");
    assert_eq!(run["outcome"]["cause"], "cancel_requested");
    // Whoever was about to send one is told not to; nothing new begins.
    let stopped = change(&stand, "r1", "meant", &json!({"state": "submitted"})).await;
    assert_eq!((stopped.status, &stopped.json()["effect"]["state"]), (409, &"failed".into()));
    assert_eq!(note(&stand, "r1", &payment("new")).await.error().3, "run_over");
    // Somebody finds out later. A second cancel answers the same and changes nothing.
    assert_eq!(change(&stand, "r1", "flying", &json!({"state": "committed"})).await.status, 200);
    let again = crate::wire::cancel(stand.addr, "r1", 300).await.json();
    assert_eq!(states(&again["effects"]), ["meant failed", "flying committed", "done committed"]);
}

/// The answer of what is in flight comes while the cancel waits: then it is what it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_waits_for_what_is_in_flight() {
    let mut stand = kept(OutsideConfig::default()).await;
    let (attempt, _socket) = live(&mut stand, "r1").await;
    assert_eq!(note(&stand, "r1", &payment("flying")).await.status, 201);
    assert_eq!(change(&stand, "r1", "flying", &json!({"state": "submitted"})).await.status, 200);
    let addr = stand.addr;
    let cancelling = tokio::spawn(async move { crate::wire::cancel(addr, "r1", 60_000).await.json() });
    stand.worker.obey(&attempt).await;
    stand.until("r1", "ended", |run| run["outcome"].is_object()).await;
    assert!(!cancelling.is_finished());
    assert_eq!(change(&stand, "r1", "flying", &json!({"state": "committed"})).await.status, 200);
    let run = crate::simulated::soon("the cancel's answer", cancelling).await.expect("answered");
    assert_eq!(states(&run["effects"]), ["flying committed"]);
}

/// Nobody cancelled by name: the caller left. What was meant fails with the run's end, what was in flight is unknown after its time.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_left_begins_nothing_either() {
    let mut stand = kept(OutsideConfig { effect_wait: Duration::from_millis(50), ..OutsideConfig::default() }).await;
    let (attempt, socket) = live(&mut stand, "r1").await;
    for key in ["meant", "flying"] {
        assert_eq!(note(&stand, "r1", &payment(key)).await.status, 201);
    }
    assert_eq!(change(&stand, "r1", "flying", &json!({"state": "submitted"})).await.status, 200);
    Leave::Close.now(socket);
    stand.worker.obey(&attempt).await;
    let list = crate::simulated::soon("both are over", async {
        loop {
            let list = get(stand.addr, "/v1/runs/r1/effects").await.json()["data"].clone();
            if states(&list) == ["meant failed", "flying unknown"] {
                return list;
            }
            tokio::time::sleep(ms(5)).await;
        }
    });
    assert_eq!(list.await[0]["detail"], "not begun: the run was cancelled");
}
