//! Several workers, none, one that comes later: who gets a run, how long it waits, and what the pages say of all that.

use gateway::{GatewayConfig, LinkEvent};
use lifecycle::event::Event;
use lifecycle::message::{Down, Snapshot, Up};
use lifecycle::session::ClockSample;
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, Time};
use serde_json::{Value, json};

use crate::simulated::{Simulated, Stand, key, several, soon};
use crate::wire::{ask, cancel, chat_request, get, ms, read_reply, send};

/// Waits until `/v1/workers` shows these states.
async fn states<W>(stand: &Stand<W>, wanted: &[&str]) -> Value {
    soon("the workers' states", async {
        loop {
            let list = get(stand.addr, "/v1/workers").await.json();
            let states: Vec<_> = list["data"].as_array().expect("a list").iter().map(|w| w["state"].as_str().unwrap_or("")).collect();
            if states == wanted {
                return list["data"].clone();
            }
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await
}

/// Both here.
async fn two() -> Stand<Vec<Simulated>> {
    let stand = several(GatewayConfig::default(), 2).await;
    stand.worker[0].come("a").await;
    stand.worker[1].come("b").await;
    states(&stand, &["here", "here"]).await;
    stand
}

/// Sends a request and waits until its run is in the table.
async fn request<W>(stand: &Stand<W>, id: &str, extra: &str) -> tokio::net::TcpStream {
    let socket = send(stand.addr, &chat_request(id, extra)).await;
    stand.until(id, "accepted", |run| run["state"] == "queued").await;
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_go_to_whom_has_the_least_to_do() {
    let mut stand = two().await;
    // 40 tokens, 10, then again 10: the second worker still has less to do.
    let _one = send(stand.addr, &chat_request("r1", r#","max_tokens":40"#)).await;
    assert_eq!(stand.worker[0].submit().await.attempt.key, key("r1"));
    let _two = send(stand.addr, &chat_request("r2", r#","max_tokens":10"#)).await;
    let second = stand.worker[1].submit().await;
    assert_eq!((second.attempt.key, second.worker, second.number), (key("r2"), stand.worker[1].life, 2));
    let _three = send(stand.addr, &chat_request("r3", r#","max_tokens":10"#)).await;
    assert_eq!(stand.worker[1].submit().await.attempt.key, key("r3"));
    let runs: Vec<_> = states(&stand, &["here", "here"]).await.as_array().expect("two").iter().map(|w| w["runs"].clone()).collect();
    assert_eq!(runs, [1, 2]);
    // Whoever drains gets none, and what it has goes on.
    stand.worker[1].say(Up::Draining).await;
    states(&stand, &["here", "draining"]).await;
    let _four = send(stand.addr, &chat_request("r4", r#","max_tokens":100"#)).await;
    let _five = send(stand.addr, &chat_request("r5", "")).await;
    let mut got = [stand.worker[0].submit().await, stand.worker[0].submit().await].map(|submit| submit.attempt.key);
    got.sort();
    assert_eq!(got, [key("r4"), key("r5")]);
    cancel(stand.addr, "r3", 0).await;
    assert!(matches!(stand.worker[1].next().await, Down::Cancel { attempt, .. } if attempt.key == key("r3")));
    assert!(stand.worker[0].try_next().is_none());
    assert_eq!(get(stand.addr, "/health/ready").await.status, 200);
}

// contract: C-10
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_worker_keeps_its_runs_and_gets_no_new_ones() {
    let mut stand = two().await;
    let mut socket = send(stand.addr, &chat_request("r1", "")).await;
    let attempt = stand.worker[0].accept().await.attempt;
    stand.worker[0].tell(LinkEvent::Silent).await;
    states(&stand, &["silent", "here"]).await;
    let mut sockets = Vec::new();
    for id in ["r2", "r3"] {
        sockets.push(request(&stand, id, "").await);
        assert_eq!(stand.worker[1].submit().await.attempt.key, key(id));
    }
    assert_eq!((stand.run("r1")["outcome"].clone(), stand.run("r1")["attempt"].clone()), (Value::Null, 1.into()), "nothing ended");
    stand.worker[1].tell(LinkEvent::Silent).await;
    states(&stand, &["silent", "silent"]).await;
    assert_eq!(get(stand.addr, "/health/ready").await.error().3, "no_worker");
    let _waits = request(&stand, "r4", "").await;
    stand.worker[0].tell(LinkEvent::Back).await;
    assert_eq!(stand.worker[0].submit().await.attempt.key, key("r4"), "heard again, it gets what waits");
    let last = stand.worker[0].delta(&attempt, 0, "fine", &[1], Some(Cause::Stop));
    stand.worker[0].step(vec![last]).await;
    stand.worker[0].end(&attempt, Outcome::of(Cause::Stop), 1).await;
    assert_eq!(read_reply(&mut socket).await.status, 200);
}

// contract: C-6 C-7 C-9
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_worker_keeps_no_caller_and_gets_no_new_runs_but_is_not_over() {
    let mut stand = two().await;
    let mut socket = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
    let attempt = stand.worker[0].accept().await.attempt;
    let first = stand.worker[0].delta(&attempt, 0, "fine", &[1], None);
    stand.worker[0].step(vec![first]).await;
    stand.until("r1", "partly delivered", |run| run["tokens"]["delivered"] == 1).await;
    let life = stand.worker[0].life;
    stand.worker[0].tell(LinkEvent::Refused { incarnation: Incarnation(77) }).await;
    stand.worker[0].tell(LinkEvent::Refused { incarnation: life }).await;
    let reply = read_reply(&mut socket).await;
    assert!(reply.body.contains("worker_lost"), "an error event: {}", reply.body);
    assert_eq!(stand.worker[0].cancelled(&attempt).await, Cause::WorkerLost);
    states(&stand, &["refused", "here"]).await;
    let run = stand.until("r1", "told", |run| run["delivery"] == "partial").await;
    assert_eq!((&run["outcome"], &run["told"], &run["state"]), (&Value::Null, &json!("worker_lost"), &json!("stopping")));
    let mut others = Vec::new();
    for id in ["r2", "r3"] {
        others.push(request(&stand, id, "").await);
        assert_eq!(stand.worker[1].submit().await.attempt.key, key(id));
    }
    // It had done the work meanwhile and says so. The outcome is the engine's; what the caller was told stands beside it.
    stand.worker[0].tell(LinkEvent::Back).await;
    stand.worker[0].end(&attempt, Outcome::of(Cause::Length), 1).await;
    let run = stand.settled("r1").await;
    assert_eq!(
        (&run["outcome"]["cause"], &run["told"], &run["superseded"]),
        (&json!("length"), &json!("worker_lost"), &json!(["worker_lost"]))
    );
    states(&stand, &["here", "here"]).await;
}

// contract: C-4 C-13 C-22
#[tokio::test(flavor = "multi_thread")]
async fn a_run_waits_for_a_worker_and_leaving_costs_nothing() {
    let mut stand = several(GatewayConfig::default(), 2).await;
    let ready = get(stand.addr, "/health/ready").await;
    assert_eq!((ready.error().0, ready.error().3, ready.header("retry-after")), (503, "no_worker".into(), Some("1".into())));
    assert_eq!(get(stand.addr, "/health/live").await.status, 200);
    assert_eq!(get(stand.addr, "/v1/models").await.json()["data"], json!([]));
    // Which model a run without a name means, nobody can say yet.
    let unnamed = ask(stand.addr, "POST", "/v1/completions", "", r#"{"prompt":"x"}"#).await;
    assert_eq!((unnamed.error().0, unnamed.error().3), (503, "no_worker".into()));
    let tiny = r#","model":"tiny""#;
    let mut named = request(&stand, "named", tiny).await;
    let left = request(&stand, "left", tiny).await;
    let mut first = request(&stand, "first", tiny).await;
    let _second = request(&stand, "second", tiny).await;
    assert_eq!(stand.run("named")["attempt"], 0);
    // A cancel by name, and a caller that leaves: decided here, at once.
    let cancelled = cancel(stand.addr, "named", 10_000).await.json();
    assert_eq!((&cancelled["state"], &cancelled["outcome"]["cause"]), (&"ended".into(), &"cancel_requested".into()));
    assert_eq!(read_reply(&mut named).await.error().3, "cancel_requested");
    drop(left);
    for (id, cause) in [("named", "cancel_requested"), ("left", "client_closed")] {
        let run = stand.settled(id).await;
        assert_eq!((&run["outcome"]["cause"], &run["released"], &run["guarantee"]), (&cause.into(), &true.into(), &"confirmed".into()));
        assert_eq!(stand.count(id, |e| matches!(e, Event::CancelSent { .. } | Event::Dispatched { .. })), 0);
    }
    // In the order of their coming, as soon as one is there.
    stand.worker[1].come("b").await;
    let attempt = stand.worker[1].accept().await.attempt;
    assert_eq!((attempt.key.clone(), attempt.attempt), (key("first"), 1));
    assert_eq!(stand.worker[1].submit().await.attempt.key, key("second"));
    stand.worker[1].end(&attempt, Outcome::of(Cause::Stop), 0).await;
    assert_eq!(read_reply(&mut first).await.status, 200);
    assert!(stand.worker[0].try_next().is_none() && stand.worker[1].try_next().is_none());
    assert_eq!(get(stand.addr, "/health/ready").await.status, 200);
    // The other worker may have another model, until it is met.
    let mut waits = request(&stand, "waits", r#","model":"other""#).await;
    assert_eq!((&stand.run("waits")["state"], &stand.run("waits")["attempt"]), (&"queued".into(), &0.into()));
    stand.worker[0].come("a").await;
    let waited = read_reply(&mut waits).await;
    let other = ask(stand.addr, "POST", "/v1/completions", "", r#"{"prompt":"x","model":"other"}"#).await;
    for refused in [waited, other] {
        assert_eq!((refused.error().0, refused.error().3), (404, "model_not_found".into()));
    }
}

// contract: C-22 C-28
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_worker_has_its_limits() {
    let stand = several(GatewayConfig { queue_deadline: ms(20), queue_max: 1, ..GatewayConfig::default() }, 1).await;
    let mut late = send(stand.addr, &chat_request("late", r#","model":"tiny""#)).await;
    let reply = read_reply(&mut late).await;
    assert_eq!((reply.error().0, reply.error().3), (503, "queue_deadline".into()));
    let run = stand.settled("late").await;
    assert_eq!((&run["outcome"]["kind"], &run["phase_at_disconnect"]), (&"expired".into(), &"queued".into()));

    let stand = several(GatewayConfig { queue_max: 1, ..GatewayConfig::default() }, 1).await;
    let mut timed = request(&stand, "timed", r#","model":"tiny","timeout_ms":300"#).await;
    let mut full = send(stand.addr, &chat_request("full", r#","model":"tiny""#)).await;
    assert_eq!(read_reply(&mut full).await.error().3, "queue_full");
    assert_eq!(read_reply(&mut timed).await.error().3, "client_deadline");
}

// contract: C-28
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_what_waits() {
    let mut stand = several(GatewayConfig { drain: ms(10), ..GatewayConfig::default() }, 1).await;
    let mut socket = request(&stand, "r1", r#","model":"tiny""#).await;
    stand.stop.take().expect("once").send(()).expect("it serves");
    assert_eq!(read_reply(&mut socket).await.error().3, "shutdown");
    drop(socket);
    assert!(soon("serve returns", stand.served).await.expect("joined").is_ok());
}

// contract: C-7
#[tokio::test(flavor = "multi_thread")]
async fn when_every_link_is_over_nobody_waits_in_vain() {
    let mut stand = several(GatewayConfig::default(), 2).await;
    let mut waits = request(&stand, "waits", r#","model":"tiny""#).await;
    stand.worker[1].up = None;
    states(&stand, &["unknown", "lost"]).await;
    assert_eq!(stand.run("waits")["outcome"], Value::Null, "the other may still come");
    stand.worker[0].up = None;
    assert_eq!(read_reply(&mut waits).await.error().3, "worker_lost");
    assert_eq!(get(stand.addr, "/health/ready").await.error().3, "worker_lost");
}

// contract: C-3 C-23
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_asks_is_told_which_attempts_are_claimed() {
    let mut stand = two().await;
    let _one = send(stand.addr, &chat_request("r1", "")).await;
    let mine = stand.worker[0].accept().await.attempt;
    let _two = send(stand.addr, &chat_request("r2", "")).await;
    let others = stand.worker[1].accept().await.attempt;
    let later = AttemptId { attempt: 2, ..mine.clone() };
    let unknown = AttemptId { key: key("never"), attempt: 1 };
    stand.worker[0].say(Up::Ask { attempts: vec![mine.clone(), others.clone(), later.clone(), unknown.clone()] }).await;
    assert!(matches!(stand.worker[0].next().await, Down::Claim { attempts } if attempts == [mine]));
    assert!(matches!(stand.worker[0].next().await, Down::Disclaim { attempts } if attempts == [others, later, unknown]));
}

fn cut(free: u32, active: u32) -> Snapshot {
    Snapshot { block_tokens: 16, total: free + active, free, active, running: 1, reserved_bytes: 10, ..Snapshot::default() }
}

// contract: C-15
#[tokio::test(flavor = "multi_thread")]
async fn accounts_of_several_workers_stand_side_by_side_and_are_added_up() {
    let mut stand = two().await;
    let addr = stand.addr;
    for page in ["/v1/kv", "/metrics"] {
        let asked = tokio::spawn(async move { get(addr, page).await });
        stand.worker[0].answer(cut(5, 3)).await;
        stand.worker[1].answer(cut(1, 1)).await;
        let reply = asked.await.expect("joined");
        if page == "/metrics" {
            for line in [
                "kvit_worker_up{worker=\"a\"} 1",
                "kvit_kv_blocks{worker=\"a\",state=\"free\"} 5",
                "kvit_kv_blocks{worker=\"b\",state=\"free\"} 1",
                "kvit_kv_pool_blocks{worker=\"b\"} 2",
                "kvit_worker_held{worker=\"b\",kind=\"attempts\"} 0",
            ] {
                assert!(reply.body.lines().any(|found| found == line), "{line} in {}", reply.body);
            }
            continue;
        }
        let kv = reply.json();
        assert_eq!((&kv["total"], &kv["free"], &kv["active"], &kv["reserved_bytes"]), (&10.into(), &6.into(), &4.into(), &20.into()));
        assert_eq!((&kv["conserved"], &kv["answered"], &kv["runs"]["running"]), (&true.into(), &2.into(), &2.into()));
        let (a, b) = (&kv["workers"][0], &kv["workers"][1]);
        assert_eq!((&a["worker"], &a["free"], &b["worker"], &b["free"]), (&"a".into(), &5.into(), &"b".into(), &1.into()));
        assert_eq!(a["incarnation"], stand.worker[0].life.to_string());
    }
    // One that is lost has no account; the other's is shown, and the sum says of how many it is.
    stand.worker[0].be_lost().await;
    states(&stand, &["lost", "here"]).await;
    let asked = tokio::spawn(async move { get(addr, "/v1/kv").await });
    stand.worker[1].answer(cut(1, 1)).await;
    let kv = asked.await.expect("joined").json();
    assert_eq!((&kv["total"], &kv["answered"], &kv["workers"][0]["answered"]), (&2.into(), &1.into(), &false.into()));
    stand.worker[1].be_lost().await;
    states(&stand, &["lost", "lost"]).await;
    assert_eq!(get(stand.addr, "/v1/kv").await.error().3, "worker_silent");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_workers_says_what_is_known() {
    let stand = several(GatewayConfig::default(), 2).await;
    stand.worker[0].come("a").await;
    stand.worker[0]
        .tell(LinkEvent::Clock(ClockSample { offset_us: -1500, error: std::time::Duration::from_micros(250), at: Time(0) }))
        .await;
    stand.worker[0].say(Up::DeviceLost { why: "it broke".into() }).await;
    let list = soon("the device's loss is seen", async {
        loop {
            let list = states(&stand, &["here", "unknown"]).await;
            if !list[0]["device_lost"].is_null() {
                return list;
            }
        }
    })
    .await;
    let a = json!({"object": "worker", "name": "a", "incarnation": Incarnation(0x1000).to_string(), "state": "here", "kind": "worker",
        "cancel": "id_with_proof",
        "shows": {"requests": "per_request", "kv_usage": "per_request", "tokens": "per_request", "proves_within_ms": 0}, "model": "tiny",
        "models": ["tiny"], "slots": null, "runs": 0,
        "device_lost": "it broke", "clock_offset_ms": -1.5, "clock_error_ms": 0.25});
    let b = json!({"object": "worker", "name": "address-1", "incarnation": null, "state": "unknown", "kind": null,
        "cancel": null, "shows": null, "model": null,
        "models": [], "slots": null, "runs": 0,
        "device_lost": null, "clock_offset_ms": null, "clock_error_ms": null});
    assert_eq!(list, json!([a, b]));
    assert_eq!(get(stand.addr, "/health/ready").await.error().3, "device_lost");
    assert_eq!(get(stand.addr, "/v1/models").await.json()["data"].as_array().map(Vec::len), Some(1));
}
