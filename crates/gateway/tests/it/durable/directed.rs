//! One interleaving each, for what the histories found and for what they seldom meet.
// contract: C-5 C-25 C-26

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gateway::{GatewayConfig, KeepConfig};
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, Tenant};
use serde_json::json;
use store::memory::Memory;
use store::{RunQuery, RunStore, StoreConfig, StoredRun, Write};

use super::flaky::{Flaky, Weather};
use super::life::Life;
use super::rng::Rng;
use super::worker::Worker;
use crate::simulated::{Stand, default_stand, kept_stand, key, soon};
use crate::wire::{ask, chat, get, ms, read_reply, read_until, request_text, send};

pub fn flaky() -> (Arc<Memory>, Arc<Weather>, Arc<Flaky>) {
    let (memory, weather) = (Memory::new(StoreConfig::at("memory"), true), Arc::new(Weather::default()));
    (memory.clone(), weather.clone(), Flaky::new(memory, weather))
}

pub fn quick() -> GatewayConfig {
    let keep = KeepConfig { patience: ms(30), poll: ms(20), lease: ms(60), ..KeepConfig::default() };
    GatewayConfig { keep, drain: ms(0), ..GatewayConfig::default() }
}

async fn all(store: &Arc<Memory>) -> Vec<StoredRun> {
    let query = RunQuery { ended: false, outcome: None, cause: None, after: None, limit: 100 };
    store.runs(&Tenant::default(), &query).await.expect("it is there")
}

/// Waits until the store has as many runs as `count`, all with an outcome.
async fn ended(store: &Arc<Memory>, count: usize) -> Vec<StoredRun> {
    soon("every run has an end", async {
        loop {
            let runs = all(store).await;
            if runs.len() == count && runs.iter().all(|run| run.outcome.is_some()) {
                return runs;
            }
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await
}

pub async fn finish(stand: &mut Stand, attempt: &AttemptId) {
    let last = stand.worker.delta(attempt, 0, "done", &[8], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(attempt, Outcome::of(Cause::Stop), 1).await;
}

pub fn background(id: &str, stream: bool) -> String {
    let body = json!({"input": "hi", "background": true, "stream": stream}).to_string();
    request_text("POST", "/v1/responses", &format!("X-Request-Id: {id}\r\nIdempotency-Key: {id}\r\n"), &body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_goes_on_without_the_store_is_there_later_under_the_id_that_was_told() {
    for wish in ["X-Request-Id: mine\r\n", ""] {
        let (memory, weather, store) = flaky();
        weather.away.store(true, Ordering::SeqCst);
        let mut stand = kept_stand(quick(), Some(store)).await;
        let extra = r#","stream":true"#;
        let mut socket = send(stand.addr, &request_text("POST", "/v1/chat/completions", wish, &chat(extra))).await;
        let attempt = stand.worker.accept().await.attempt;
        finish(&mut stand, &attempt).await;
        let answer = read_until(&mut socket, "[DONE]").await;
        let id = attempt.key.run.as_str();
        assert!(answer.to_lowercase().contains(&format!("x-request-id: {id}")), "{answer}");
        assert_eq!(all(&memory).await.len(), 0);
        weather.away.store(false, Ordering::SeqCst);
        let runs = ended(&memory, 1).await;
        assert_eq!((runs[0].key.run.as_str(), runs[0].outcome.clone()), (id, Some(Outcome::of(Cause::Stop))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_background_run_whose_acceptance_was_committed_without_an_answer_is_never_computed() {
    let (memory, weather, store) = flaky();
    let mut stand = kept_stand(quick(), Some(store)).await;
    *weather.lose.lock().expect("no panic") = Some(|write| matches!(write, Write::Accept(_)));
    let refused = read_reply(&mut send(stand.addr, &background("r1", false)).await).await;
    assert_eq!((refused.status, refused.error().3), (503, "store_unavailable".into()));
    let runs = ended(&memory, 1).await;
    assert_eq!(runs[0].outcome.as_ref().map(|outcome| outcome.cause), Some(Cause::QueueFull));
    assert!(stand.worker.try_next().is_none(), "no submit");
    // Its key is free for the retry.
    let again = read_reply(&mut send(stand.addr, &background("r1", false)).await).await;
    assert_eq!((again.status, again.header("x-request-id").as_deref()), (200, Some("r1~2")));
    assert_eq!(stand.worker.submit().await.attempt.key.run.as_str(), "r1~2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_background_run_that_was_accepted_is_answered_though_the_store_cannot_be_read() {
    for stream in [false, true] {
        let (_memory, weather, store) = flaky();
        let mut stand = kept_stand(quick(), Some(store)).await;
        weather.mute.store(true, Ordering::SeqCst);
        let mut socket = send(stand.addr, &background("r1", stream)).await;
        let attempt = stand.worker.accept().await.attempt;
        let begin = read_until(&mut socket, if stream { "response.queued" } else { "\"queued\"" }).await;
        assert!(begin.starts_with("HTTP/1.1 200"), "{begin}");
        finish(&mut stand, &attempt).await;
        weather.mute.store(false, Ordering::SeqCst);
        if stream {
            read_until(&mut socket, "response.completed").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_that_was_committed_without_an_answer_or_could_not_be_read_is_seen_through() {
    for mute in [false, true] {
        let (memory, weather, store) = flaky();
        let life = Life::begin(Incarnation(1), quick(), store);
        let mut worker = Worker { life: 1 << 32, ..Worker::default() };
        worker.come(&life).await;
        let known = async { while !get(life.addr, "/v1/models").await.body.contains("tiny") {} };
        soon("the worker is known", known).await;
        let mut socket = send(life.addr, &background("r1", false)).await;
        assert_eq!(soon("an answer", read_reply(&mut socket)).await.status, 200);
        life.kill().await;
        *weather.lose.lock().expect("no panic") = Some(|write| matches!(write, Write::TakeOver { .. }));
        let store = Flaky::new(memory.clone(), weather.clone());
        let mut life = Life::begin(Incarnation(2), quick(), store);
        let taken = async {
            while memory.run(&key("r1")).await.expect("it is there").expect("it is there").owner != Incarnation(2) {
                tokio::time::sleep(ms(1)).await;
            }
        };
        soon("it is taken over", taken).await;
        weather.mute.store(mute, Ordering::SeqCst);
        tokio::time::sleep(ms(100)).await;
        weather.mute.store(false, Ordering::SeqCst);
        (worker.attempts, worker.here) = (Vec::new(), false);
        worker.come(&life).await;
        let done = async {
            while all(&memory).await[0].outcome.is_none() {
                worker.work(&mut life, &mut Rng(1), true).await;
                tokio::time::sleep(ms(1)).await;
            }
        };
        soon("it goes on to its end", done).await;
        assert_eq!(all(&memory).await[0].outcome, Some(Outcome::of(Cause::Length)));
        life.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_is_shown_when_the_store_has_it() {
    let (_memory, weather, store) = flaky();
    let mut stand = kept_stand(quick(), Some(store)).await;
    assert_eq!(read_reply(&mut send(stand.addr, &background("r1", false)).await).await.status, 200);
    let attempt = stand.worker.accept().await.attempt;
    weather.away.store(true, Ordering::SeqCst);
    finish(&mut stand, &attempt).await;
    stand.settled("r1").await;
    for _ in 0..2 {
        let view = get(stand.addr, "/v1/runs/r1").await;
        assert_eq!((view.status, view.error().3), (503, "store_unavailable".into()));
        let cancel = ask(stand.addr, "POST", "/v1/runs/r1/cancel", "", "").await;
        assert_eq!(cancel.status, 503);
    }
    weather.away.store(false, Ordering::SeqCst);
    let shown = async {
        loop {
            let view = get(stand.addr, "/v1/runs/r1").await;
            if view.status == 200 {
                return view.json();
            }
        }
    };
    assert_eq!(soon("it is shown", shown).await["outcome"]["kind"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_what_comes_behind_the_end_is_told_nothing() {
    let mut stand = default_stand().await;
    let mut one = send(stand.addr, &request_text("POST", "/v1/chat/completions", "X-Request-Id: r1\r\n", &chat(r#","stream":true"#))).await;
    let attempt = stand.worker.submit().await.attempt;
    let mut readers = Vec::new();
    for after in [3, 9] {
        let mut behind = send(stand.addr, &request_text("GET", &format!("/v1/runs/r1/events?after={after}"), "", "")).await;
        read_until(&mut behind, "\r\n\r\n").await;
        readers.push(behind);
    }
    stand.worker.say(lifecycle::message::Up::Accepted { attempt: attempt.clone(), prompt_tokens: 3 }).await;
    finish(&mut stand, &attempt).await;
    read_until(&mut one, "[DONE]").await;
    for mut behind in readers {
        assert_eq!(read_until(&mut behind, "0\r\n\r\n").await, "0\r\n\r\n");
    }
    stand.settled("r1").await;
}

// contract: C-26
// field: F-65
#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_a_key_is_refused_while_only_the_store_could_say_whether_it_has_a_run() {
    let (memory, weather, store) = flaky();
    let mut stand = kept_stand(quick(), Some(store)).await;
    weather.away.store(true, Ordering::SeqCst);
    let request = request_text("POST", "/v1/chat/completions", "Idempotency-Key: k\r\n", &chat(""));
    let refused = read_reply(&mut send(stand.addr, &request).await).await;
    assert_eq!((refused.status, refused.error().3), (503, "store_unavailable".into()));
    assert!(refused.header("retry-after").is_some() && stand.worker.try_next().is_none());
    weather.away.store(false, Ordering::SeqCst);
    let mut socket = send(stand.addr, &request).await;
    let attempt = stand.worker.accept().await.attempt;
    finish(&mut stand, &attempt).await;
    assert_eq!(read_reply(&mut socket).await.status, 200);
    let completed = ended(&memory, 1).await;
    assert_eq!(completed[0].outcome, Some(Outcome::of(Cause::Stop)));
}

// contract: C-5 C-30
#[tokio::test(flavor = "multi_thread")]
async fn a_list_has_the_runs_of_every_life_and_no_outcome_before_the_store_has_it() {
    let (memory, weather, store) = flaky();
    let mut stand = kept_stand(quick(), Some(store)).await;
    assert_eq!(read_reply(&mut send(stand.addr, &background("r1", false)).await).await.status, 200);
    let attempt = stand.worker.accept().await.attempt;
    finish(&mut stand, &attempt).await;
    ended(&memory, 1).await;
    assert_eq!(read_reply(&mut send(stand.addr, &background("r2", false)).await).await.status, 200);
    let attempt = stand.worker.accept().await.attempt;
    weather.read_only.store(true, Ordering::SeqCst);
    finish(&mut stand, &attempt).await;
    stand.settled("r2").await;
    let list = async |addr, query: &str| {
        let list = get(addr, &format!("/v1/runs{query}")).await.json();
        let runs = list["data"].as_array().expect("a list").clone();
        let ids: Vec<String> =
            runs.iter().map(|run| format!("{} {}", run["id"].as_str().unwrap_or_default(), run["outcome"]["kind"])).collect();
        (ids, list["has_more"].clone())
    };
    assert_eq!(list(stand.addr, "").await, (vec!["r2 null".to_owned(), "r1 \"completed\"".to_owned()], json!(false)));
    assert_eq!(list(stand.addr, "?state=ended").await.0, ["r1 \"completed\""]);
    // A further gateway has recorded nothing of them.
    let other = kept_stand(quick(), Some(memory.clone())).await;
    assert_eq!(list(other.addr, "?limit=1").await, (vec!["r2 null".to_owned()], json!(true)));
    assert_eq!(list(other.addr, "?after=r2&outcome=completed").await.0, ["r1 \"completed\""]);
    assert_eq!(get(other.addr, "/v1/runs?after=nobody").await.status, 400);
    weather.away.store(true, Ordering::SeqCst);
    assert_eq!(get(stand.addr, "/v1/runs").await.status, 503);
}

// contract: C-5 C-7
#[tokio::test(flavor = "multi_thread")]
async fn what_was_recorded_here_of_a_run_that_another_took_over_is_shown_to_nobody() {
    let (memory, weather) = (Memory::new(StoreConfig::at("memory"), false), Arc::new(Weather::default()));
    // The other one is not over here.
    let keep = KeepConfig { lease: ms(60_000), ..quick().keep };
    let mut stand = kept_stand(GatewayConfig { keep, ..quick() }, Some(Flaky::new(memory.clone(), weather.clone()))).await;
    assert_eq!(read_reply(&mut send(stand.addr, &background("r1", false)).await).await.status, 200);
    let attempt = stand.worker.accept().await.attempt;
    weather.read_only.store(true, Ordering::SeqCst);
    finish(&mut stand, &attempt).await;
    stand.settled("r1").await;
    let owner = all(&memory).await[0].owner;
    let take = Write::TakeOver { run: key("r1"), from: owner, to: Incarnation(99), skip: 2 };
    memory.commit(vec![take], store::Survives::Process).await.expect("it is there");
    weather.read_only.store(false, Ordering::SeqCst);
    let shown = async {
        loop {
            let view = get(stand.addr, "/v1/runs/r1").await;
            if view.status == 200 {
                return view.json();
            }
        }
    };
    let shown = soon("it is shown", shown).await;
    assert_eq!((&shown["outcome"], &shown["owner"]), (&serde_json::Value::Null, &Incarnation(99).to_string().into()), "{shown}");
    assert_eq!(get(stand.addr, "/v1/runs").await.json()["data"][0]["outcome"], serde_json::Value::Null);
}

/// The number of the attempt that the worker is given next.
async fn next_attempt(worker: &mut Worker, life: &mut Life) -> u32 {
    let next = async {
        loop {
            worker.hear(life).await;
            if let Some(attempt) = worker.attempts.last() {
                return attempt.id.attempt;
            }
            tokio::time::sleep(ms(1)).await;
        }
    };
    soon("an attempt", next).await
}

// contract: C-2
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_was_begun_and_never_written_has_no_twin_in_the_next_life() {
    let (memory, weather, store) = flaky();
    let life = Life::begin(Incarnation(1), quick(), store);
    let mut worker = Worker { life: 1 << 32, ..Worker::default() };
    worker.come(&life).await;
    let known = async { while !get(life.addr, "/v1/models").await.body.contains("tiny") {} };
    soon("the worker is known", known).await;
    let mut socket = send(life.addr, &background("r1", false)).await;
    assert_eq!(soon("an answer", read_reply(&mut socket)).await.status, 200);
    let mut begun = Vec::new();
    // Three lives, each of which is lost before it can write what it begins.
    let mut life = life;
    for number in 2..5 {
        begun.push(next_attempt(&mut worker, &mut life).await);
        weather.read_only.store(true, Ordering::SeqCst);
        worker.be_lost(&life).await;
        worker.come(&life).await;
        // This one cannot be written.
        begun.push(next_attempt(&mut worker, &mut life).await);
        life.kill().await;
        weather.read_only.store(false, Ordering::SeqCst);
        life = Life::begin(Incarnation(number), quick(), Flaky::new(memory.clone(), weather.clone()));
        (worker.attempts, worker.here) = (Vec::new(), false);
        worker.come(&life).await;
    }
    life.kill().await;
    let mut sorted = begun.clone();
    sorted.dedup();
    assert!(sorted.len() == 6 && sorted.is_sorted(), "{begun:?}");
}

// contract: C-25 C-26
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_a_response_that_goes_on_elsewhere_breaks_off_without_a_last_event() {
    let (memory, _weather, store) = flaky();
    let mut stand = kept_stand(quick(), Some(store)).await;
    let body = json!({"input": "hi", "stream": true}).to_string();
    let request = request_text("POST", "/v1/responses", "X-Request-Id: r1\r\nX-On-Disconnect: continue\r\n", &body);
    let mut socket = send(stand.addr, &request).await;
    let attempt = stand.worker.accept().await.attempt;
    read_until(&mut socket, "response.in_progress").await;
    stand.stop.take().map(|stop| stop.send(()));
    assert!(matches!(stand.worker.next().await, lifecycle::message::Down::Cancel { .. }));
    stand.worker.end(&attempt, Outcome::of(Cause::Shutdown), 0).await;
    let mut rest = String::new();
    use tokio::io::AsyncReadExt;
    soon("the stream closes", socket.read_to_string(&mut rest)).await.expect("text");
    assert!(!rest.contains("event: response."), "{rest}");
    soon("the end", &mut stand.served).await.expect("no panic").expect("a stop in good order");
    assert_eq!(memory.run(&key("r1")).await.expect("it is there").expect("a run").outcome, None);
}

// contract: C-25 C-28
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_leaves_what_was_answered_to_the_next_life_and_ends_what_it_refuses() {
    let (memory, _weather, store) = flaky();
    let mut stand = kept_stand(quick(), Some(store)).await;
    let headers = |id: &str| format!("X-Request-Id: {id}\r\nX-On-Disconnect: continue\r\n");
    let request = |id: &str| request_text("POST", "/v1/chat/completions", &headers(id), &chat(r#","stream":true"#));
    let mut answered = send(stand.addr, &request("answered")).await;
    let first = stand.worker.accept().await.attempt;
    read_until(&mut answered, "\r\n\r\n").await;
    let mut waiting = send(stand.addr, &request("waiting")).await;
    let second = stand.worker.submit().await.attempt;
    stand.stop.take().map(|stop| stop.send(()));
    let both = [stand.worker.next().await, stand.worker.next().await];
    assert!(both.iter().all(|message| matches!(message, lifecycle::message::Down::Cancel { .. })), "{both:?}");
    for attempt in [&first, &second] {
        stand.worker.end(attempt, Outcome::of(Cause::Shutdown), 0).await;
    }
    let told = read_until(&mut answered, "\"error\"").await;
    assert!(told.contains("the run goes on"), "{told}");
    let refused = read_reply(&mut waiting).await;
    assert_eq!((refused.status, refused.error().3), (503, "shutdown".into()));
    soon("the end", &mut stand.served).await.expect("no panic").expect("a stop in good order");
    let outcome = async |id: &str| memory.run(&key(id)).await.expect("it is there").expect("a run").outcome;
    assert_eq!((outcome("answered").await, outcome("waiting").await), (None, Some(Outcome::of(Cause::Shutdown))));
}
