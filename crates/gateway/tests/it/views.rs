//! Models, health, metrics, runs and the KV account.
// contract: C-15 C-30

use lifecycle::event::Event;
use lifecycle::message::{BlockCut, Snapshot};
use lifecycle::{AttemptId, Cause, Outcome, StepId};
use serde_json::json;

use crate::simulated::{default_stand, key, stand};
use crate::wire::{ask, chat_request, get, ms, read_reply, send};

#[tokio::test(flavor = "multi_thread")]
async fn models_and_health() {
    let stand = default_stand().await;
    let model = json!({"id": "tiny", "object": "model", "created": 1_700_000_000, "owned_by": "kvit", "max_model_len": 512});
    assert_eq!(get(stand.addr, "/v1/models").await.json(), json!({"object": "list", "data": [model]}));
    assert_eq!(get(stand.addr, "/v1/models/tiny").await.json(), model);
    assert_eq!(get(stand.addr, "/health/live").await.status, 200);
    assert_eq!(get(stand.addr, "/health/ready").await.status, 200);
}

fn cut() -> Snapshot {
    let attempt = AttemptId { key: key("r1"), attempt: 1 };
    Snapshot {
        step: StepId(1067),
        block_tokens: 16,
        total: 10,
        free: 5,
        active: 3,
        cached: 1,
        draining: 1,
        running: 2,
        stopping: 1,
        stale_releases: 4,
        foreign_releases: 3,
        double_releases: 2,
        reserved_bytes: 1000,
        blocks: vec![BlockCut { block: 17, generation: 42, state: "active", owners: vec![attempt], fence: Some(StepId(1066)) }],
        ..Snapshot::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account() {
    let mut stand = default_stand().await;
    for (path, blocks) in [("/v1/kv", false), ("/v1/kv/blocks", true)] {
        let addr = stand.addr;
        let asked = tokio::spawn(async move { get(addr, path).await });
        assert_eq!(stand.worker.answer(cut()).await, blocks);
        let reply = asked.await.expect("joined").json();
        let expected = json!({"object": "kv", "incarnation": "00000000-0000-0000-0000-000000001111", "step": 1067, "block_tokens": 16,
            "total": 10, "free": 5, "active": 3, "orphaned": 0, "cached": 1, "draining": 1, "quarantined": 0, "conserved": true,
            "runs": {"queued": 0, "running": 2, "stopping": 1}, "stale_releases": 4, "foreign_releases": 3, "double_releases": 2,
            "late_completions": 0, "reserved_bytes": 1000});
        for (name, value) in expected.as_object().expect("an object") {
            assert_eq!(&reply[name], value, "{name}");
        }
        let block = json!([{"block": 17, "generation": 42, "state": "active", "owners": ["r1/1"], "fence": 1066}]);
        assert_eq!(reply["blocks"], if blocks { block } else { json!(null) });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_answer() {
    let mut stand = stand(gateway::GatewayConfig { ask_timeout: ms(10), asks_max: 1, ..Default::default() }).await;
    // Twice: a question that nobody answered does not take the place of the next.
    for _ in 0..2 {
        assert_eq!(get(stand.addr, "/v1/kv").await.error().3, "worker_silent");
    }
    let metrics = get(stand.addr, "/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.body.contains("kvit_worker_up 0"), "{}", metrics.body);
    let _ = stand.worker.next().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_bring_the_account() {
    let mut stand = default_stand().await;
    let addr = stand.addr;
    let asked = tokio::spawn(async move { get(addr, "/metrics").await });
    assert!(!stand.worker.answer(cut()).await);
    let reply = asked.await.expect("joined");
    assert!(reply.header("content-type").is_some_and(|t| t.starts_with("text/plain; version=0.0.4")));
    assert!(reply.body.contains("kvit_worker_up 1"), "{}", reply.body);
    // Of this process: its table is empty and no question is left; the connection that asks is a task.
    assert!(reply.body.contains("\nkvit_gateway_calls 0\n") && reply.body.contains("\nkvit_gateway_questions 0\n"), "{}", reply.body);
    let tasks = reply.body.lines().find_map(|l| l.strip_prefix("kvit_tasks ")?.parse::<u64>().ok());
    assert!(tasks.is_some_and(|n| n >= 1), "{tasks:?}");
}

/// A run's id is its tenant's own; the page needs no key.
// contract: C-1 C-30
#[tokio::test(flavor = "multi_thread")]
async fn exemplars_name_runs_to_those_who_may_know_them() {
    const OPERATOR: &str = "secret-of-the-operator";
    const ALICE: &str = "secret-of-alice-of-one";
    let mut keys = gateway::Keys::default();
    for (name, secret, is_operator) in [("op", OPERATOR, true), ("alice", ALICE, false)] {
        let digest = gateway::SecretDigest::of(secret).expect("a secret");
        keys.add(gateway::Key { name: name.into(), tenant: Default::default(), digest, is_operator }).expect("a key");
    }
    let shows = |secret: &str| format!("Authorization: Bearer {secret}\r\n");
    for (keys, seen_by) in [(gateway::Keys::default(), vec![String::new(), shows(ALICE)]), (keys, vec![shows(OPERATOR)])] {
        let has_keys = !keys.is_empty();
        let stand = stand(gateway::GatewayConfig { ask_timeout: ms(10), keys, ..Default::default() }).await;
        for event in [Event::Queued { prompt_tokens: 3, n: 1, max_tokens: 9 }, Event::PrefillStart] {
            stand.journal.record(Some(&key("the-run")), 1, event);
        }
        let page = async |headers: &str| ask(stand.addr, "GET", "/metrics", headers, "").await;
        const OPEN: &str = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
        for headers in seen_by {
            let reply = page(&format!("{OPEN}{headers}")).await;
            assert!(reply.header("content-type").is_some_and(|t| t.starts_with("application/openmetrics-text; version=1.0.0")));
            assert!(reply.body.contains("# {run_id=\"the-run\"}") && reply.body.ends_with("# EOF\n"), "{}", reply.body);
            assert!(!page(&headers).await.body.contains("the-run"), "the other format has none");
        }
        for headers in [String::new(), shows(ALICE), shows("a-secret-of-nobodys-at-all")].iter().filter(|_| has_keys) {
            let reply = page(&format!("{OPEN}{headers}")).await;
            assert_eq!(reply.status, 200);
            assert!(!reply.body.contains("the-run") && reply.body.ends_with("# EOF\n"), "{headers}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_filtered_and_paged() {
    let mut stand = default_stand().await;
    for (id, cause) in [("a", Cause::Stop), ("b", Cause::CannotFit), ("c", Cause::Stop)] {
        let mut socket = send(stand.addr, &chat_request(id, "")).await;
        let attempt = stand.worker.accept().await.attempt;
        stand.worker.end(&attempt, Outcome::of(cause), 0).await;
        read_reply(&mut socket).await;
        stand.settled(id).await;
    }
    let ids = async |query: &str| {
        let page = get(stand.addr, &format!("/v1/runs{query}")).await.json();
        assert_eq!(page["object"], "list");
        let ids: Vec<String> = page["data"].as_array().expect("data").iter().map(|r| r["id"].as_str().expect("an id").to_owned()).collect();
        (ids.join(" "), page["has_more"] == true)
    };
    assert_eq!(ids("").await, ("c b a".into(), false));
    assert_eq!(ids("?outcome=completed").await, ("c a".into(), false));
    assert_eq!(ids("?cause=cannot_fit").await, ("b".into(), false));
    assert_eq!(ids("?limit=2").await, ("c b".into(), true));
    assert_eq!(ids("?limit=2&after=b").await, ("a".into(), false));
    assert_eq!(ids("?state=decoding").await, (String::new(), false));
    for (query, param) in [("?state=asleep", "state"), ("?limit=0", "limit"), ("?after=zzz", "after"), ("?colour=red", "colour")] {
        let reply = get(stand.addr, &format!("/v1/runs{query}")).await;
        assert_eq!((reply.error().0, reply.error().2), (400, param.into()));
        let message = reply.json()["error"]["message"].to_string();
        assert!(param != "state" || message.contains("queued, prefilling, decoding"), "the words are listed: {message}");
    }
    let one = get(stand.addr, "/v1/runs/a").await.json();
    assert_eq!(one, stand.run("a"));
}
