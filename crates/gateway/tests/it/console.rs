//! The console's files, who it finds itself to be, and the blocks as it draws them.
// contract: C-15 C-30

use std::time::Duration;

use gateway::{GatewayConfig, MomentsConfig};
use lifecycle::message::{BlockCut, Snapshot};
use lifecycle::{AttemptId, Cause, Outcome, StepId};
use serde_json::{Value, json};

use crate::simulated::{Stand, default_stand, key, stand};
use crate::wire::{Reply, chat_request, get, ms, read_reply, send};

#[tokio::test(flavor = "multi_thread")]
async fn the_page_and_its_files_may_load_nothing_from_elsewhere() {
    let stand = default_stand().await;
    for (path, kind) in [
        ("/console", "text/html; charset=utf-8"),
        ("/console/", "text/html; charset=utf-8"),
        ("/console/main.js", "text/javascript; charset=utf-8"),
        ("/console/console.css", "text/css; charset=utf-8"),
        ("/console/icon.svg", "image/svg+xml"),
    ] {
        let reply = get(stand.addr, path).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(kind.to_owned())), "{path}");
        let policy = reply.header("content-security-policy").unwrap_or_default();
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe") && !policy.contains("http"), "{path}: {policy}");
        assert_eq!(reply.header("x-content-type-options").as_deref(), Some("nosniff"), "{path}");
        assert_eq!(reply.header("referrer-policy").as_deref(), Some("no-referrer"), "{path}");
        assert!(reply.header("x-request-id").is_some(), "as every answer");
    }
    let missing = get(stand.addr, "/console/secrets.js").await;
    assert_eq!((missing.status, missing.error().3), (404, json!("unknown_url")));
    let caller = get(stand.addr, "/v1/caller").await.json();
    assert_eq!(caller, json!({"object": "caller", "keys": false, "name": "anonymous", "tenant": "default", "operator": true}));
}

fn block(block: u32, generation: u64, state: &'static str, owners: &[&str], fence: Option<u64>) -> BlockCut {
    let owners = owners.iter().map(|id| AttemptId { key: key(id), attempt: 1 }).collect();
    BlockCut { block, generation, state, owners, fence: fence.map(StepId) }
}

/// Six blocks: two of r1, one of r1 and r2, one that drains, two free.
fn cut(step: u64) -> Snapshot {
    let blocks = vec![
        block(0, 3, "active", &["r1"], Some(step)),
        block(1, 3, "active", &["r1"], Some(step)),
        block(2, 9, "active", &["r1", "r2"], Some(step)),
        block(3, 1, "draining", &[], Some(step - 1)),
        block(4, 0, "free", &[], None),
        block(5, 0, "free", &[], None),
    ];
    Snapshot { step: StepId(step), block_tokens: 16, total: 6, free: 2, active: 3, draining: 1, blocks, ..Snapshot::default() }
}

/// Asks, and answers for the worker: first the sums alone, then, where they moved, the blocks.
async fn asked(stand: &mut Stand, path: &str, cut: &Snapshot, moved: bool) -> Reply {
    let (addr, path) = (stand.addr, path.to_owned());
    let asked = tokio::spawn(async move { get(addr, &path).await });
    let sums = Snapshot { blocks: Vec::new(), ..cut.clone() };
    assert!(!stand.worker.answer(sums).await, "the sums are asked for first");
    if moved {
        assert!(stand.worker.answer(cut.clone()).await, "then the blocks");
    }
    asked.await.expect("joined")
}

fn config(keep: Duration, bytes_max: usize) -> GatewayConfig {
    GatewayConfig { moments: MomentsConfig { keep, every: ms(0), bytes_max }, ask_timeout: ms(10_000), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_tells_alike_blocks_together_and_each_block_exactly() {
    let mut stand = stand(config(ms(0), 1 << 20)).await;
    let map = asked(&mut stand, "/v1/kv/map", &cut(10), true).await.json();
    let kinds = json!([
        {"state": "active", "owners": ["r1/1"], "fence": 10},
        {"state": "active", "owners": ["r1/1", "r2/1"], "fence": 10},
        {"state": "draining", "owners": [], "fence": 9},
        {"state": "free", "owners": [], "fence": null},
    ]);
    assert_eq!((&map["kinds"], &map["cells"]), (&kinds, &json!([2, 0, 1, 1, 1, 2, 2, 3])));
    for (name, value) in [("object", json!("kv_map")), ("worker", json!("simulated")), ("moment", json!(1)), ("step", json!(10))] {
        assert_eq!(map[name], value, "{name}");
    }
    for (name, value) in [("total", 6), ("free", 2), ("active", 3), ("draining", 1), ("cached", 0), ("block_tokens", 16)] {
        assert_eq!(map[name], value, "{name}");
    }
    for at in cut(10).blocks {
        let one = get(stand.addr, &format!("/v1/kv/blocks/{}?moment=1", at.block)).await.json();
        let owners: Vec<String> = at.owners.iter().map(ToString::to_string).collect();
        let wanted = json!({"object": "kv_block", "worker": "simulated", "moment": 1, "block": at.block, "generation": at.generation,
            "state": at.state, "owners": owners, "fence": at.fence.map(|step| step.0)});
        assert_eq!(one, wanted);
    }
    // A worker whose sums are as before is not asked for its blocks: the newest moment holds.
    let again = asked(&mut stand, "/v1/kv/map", &cut(10), false).await.json();
    assert_eq!(again["moment"], 1);
    for path in ["/v1/kv/map?moment=7", "/v1/kv/map?moment=1&worker=nobody", "/v1/kv/blocks/6?moment=1", "/v1/kv/blocks/x?moment=1"] {
        let reply = get(stand.addr, path).await;
        assert_eq!((reply.status, reply.error().3), (404, json!("moment_not_kept")), "{path}");
    }
    for (path, param) in [("/v1/kv/map?moment=x", "moment"), ("/v1/kv/moments?after=x", "after"), ("/v1/kv/map?colour=red", "colour")] {
        assert_eq!(get(stand.addr, path).await.error().2, param, "{path}");
    }
}

fn numbers(reply: &Reply) -> Vec<u64> {
    let moments = reply.json()["workers"][0]["moments"].as_array().expect("moments").clone();
    moments.iter().map(|moment| moment["moment"].as_u64().expect("a number")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn moments_are_kept_as_long_and_as_many_as_is_said() {
    // Nothing is kept: the newest moment alone.
    let mut one = stand(config(ms(0), 1 << 20)).await;
    for step in 10..13 {
        let reply = asked(&mut one, "/v1/kv/moments", &cut(step), true).await;
        assert_eq!(numbers(&reply), [step - 9]);
    }
    assert_eq!(get(one.addr, "/v1/kv/map?moment=1").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_moments_go_on_by_themselves_and_stay_within_their_bytes() {
    const ROOM: usize = 4096;
    let keep = Duration::from_secs(3600);
    let mut stand = stand(config(keep, ROOM)).await;
    // Nobody asks; the gateway looks by itself.
    for step in 10..40 {
        assert!(!stand.worker.answer(Snapshot { blocks: Vec::new(), ..cut(step) }).await);
        assert!(stand.worker.answer(cut(step)).await);
    }
    // And again and again, until somebody asks for the moments; the worker stands still meanwhile.
    let addr = stand.addr;
    let listing = tokio::spawn(async move { get(addr, "/v1/kv/moments").await });
    while !listing.is_finished() {
        if let Some(ask) = stand.worker.try_next() {
            stand.worker.answer_to(ask, Snapshot { blocks: Vec::new(), ..cut(39) }).await;
        }
        tokio::task::yield_now().await;
    }
    let reply = listing.await.expect("joined");
    let kept = numbers(&reply);
    assert_eq!(kept.last(), Some(&30), "the newest is there");
    assert!(kept.len() > 2 && kept.len() < 12, "what is too much goes: {kept:?}");
    assert!(kept.windows(2).all(|pair| pair[0] < pair[1]), "{kept:?}");
    assert!(kept.iter().filter(|number| **number <= 15).count() < kept.len() / 2, "the older ones lie further apart: {kept:?}");
    let first = reply.json()["workers"][0]["first"].clone();
    assert_eq!(first, kept[0]);
    assert_eq!(get(stand.addr, &format!("/v1/kv/map?moment={}", kept[0])).await.json()["step"], kept[0] + 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runs_steps_are_shown_while_the_journal_has_them() {
    let mut stand = default_stand().await;
    let mut socket = send(stand.addr, &chat_request("r", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.end(&attempt, Outcome::of(Cause::Stop), 0).await;
    read_reply(&mut socket).await;
    let run = stand.settled("r").await;
    let steps = get(stand.addr, "/v1/runs/r/steps").await;
    assert_eq!(steps.header("x-request-id").as_deref(), Some("r"));
    let steps = steps.json();
    assert_eq!((&steps["object"], &steps["id"]), (&json!("run_steps"), &json!("r")));
    assert_eq!(steps["rows"].as_array().map(Vec::len), run["steps"]["total"].as_u64().map(|n| n as usize));
    assert_eq!(get(stand.addr, "/v1/runs/nobody/steps").await.error().3, "run_not_found");
    let live: Value = get(stand.addr, "/v1/runs?state=live").await.json();
    assert_eq!(live["data"], json!([]), "it has ended");
    let ended = get(stand.addr, "/v1/runs?state=ended").await.json();
    assert_eq!((&ended["data"][0]["id"], &ended["data"][0]["tenant"]), (&json!("r"), &json!("default")));
    assert!(ended["data"][0]["created_ms"].as_u64().is_some_and(|ms| ms > 1_600_000_000_000), "{ended}");
}
