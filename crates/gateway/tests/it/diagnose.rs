//! What `/v1/diagnose` asks of a worker, and the shape of its answer.
// contract: C-15 C-24

use lifecycle::StepId;
use lifecycle::message::{BlockCut, Snapshot};
use serde_json::{Value, json};

use crate::simulated::{Stand, default_stand};
use crate::wire::{Reply, get};

/// A block in use, and nobody who has it.
fn lossy() -> Snapshot {
    let block = |block, state| BlockCut { block, generation: 3, state, owners: Vec::new(), fence: None };
    let blocks = vec![block(0, "active"), block(1, "free")];
    Snapshot { step: StepId(7), block_tokens: 16, total: 2, free: 1, active: 1, blocks, ..Snapshot::default() }
}

async fn asked(stand: &mut Stand, path: &str, blocks: bool) -> Reply {
    let (addr, path) = (stand.addr, path.to_owned());
    let asked = tokio::spawn(async move { get(addr, &path).await });
    assert_eq!(stand.worker.answer(lossy()).await, blocks, "whether the blocks are asked for");
    asked.await.expect("joined")
}

#[tokio::test(flavor = "multi_thread")]
async fn one_look_is_judged_and_shown_whole_where_that_is_asked_for() {
    let mut stand = default_stand().await;
    let told = asked(&mut stand, "/v1/diagnose", false).await.json();
    for (name, value) in [
        ("object", json!("diagnosis")),
        ("verdict", json!("accounting_defect")),
        ("fault", json!(true)),
        ("boundary", json!(null)),
        ("also", json!([])),
        ("runs", json!([])),
        ("looks", json!(1)),
        ("look", json!(null)),
        ("tail", json!(null)),
    ] {
        assert_eq!(told[name], value, "{name}: {told:#}");
    }
    for list in ["evidence", "next", "cannot_tell"] {
        assert!(told[list].as_array().is_some_and(|lines| !lines.is_empty() && lines.iter().all(Value::is_string)), "{list}: {told:#}");
    }
    let whole = asked(&mut stand, "/v1/diagnose?look=true&tail=5", true).await.json();
    let account = &whole["look"]["workers"][0]["account"];
    assert_eq!((&account["unowned"], &account["total"], &account["touched"]), (&json!(1), &json!(2), &json!(2)), "{whole:#}");
    assert_eq!((&whole["look"]["workers"][0]["presence"], &whole["tail"], whole["config"].is_object()), (&json!("here"), &json!([]), true));
    for (path, param) in [("look=maybe", "look"), ("tail=-1", "tail"), ("tail=1001", "tail"), ("colour=red", "colour")] {
        let reply = get(stand.addr, &format!("/v1/diagnose?{path}")).await;
        assert_eq!((reply.status, reply.error().2), (400, json!(param)), "{path}");
    }
}
