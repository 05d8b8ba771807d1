//! Whoever reads what is kept: how often the store is asked for it, and what is said where it does not answer or cannot be read.
// contract: C-26 C-28

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gateway::{GatewayConfig, KeepConfig};
use lifecycle::message::Usage;
use lifecycle::{AttemptId, Cause, Incarnation, OnDisconnect, Outcome, RunId, Tenant};
use serde_json::json;
use store::memory::Memory;
use store::{NewRun, RunStore, StoredEvent, Survives, Write};

use super::directed::{background, finish, flaky, quick};
use super::flaky::Weather;
use crate::simulated::{kept_stand, key, soon};
use crate::wire::{Reply, ask, get, ms, read_reply, read_until, request_text, send};

fn counted(weather: &Weather) -> [u64; 3] {
    weather.reads.each_ref().map(|count| count.load(Ordering::SeqCst))
}

/// A token that comes is one read for whoever follows the run: not the run's whole request with every one of them.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_costs_its_follower_one_read_and_none_of_what_was_asked() {
    const TOKENS: u64 = 20;
    let (_memory, weather, store) = flaky();
    // News come at once; nothing is looked for without them meanwhile.
    let keep = KeepConfig { poll: ms(600_000), ..quick().keep };
    let mut stand = kept_stand(GatewayConfig { keep, ..quick() }, Some(store)).await;
    let mut socket = send(stand.addr, &background("r1", true)).await;
    read_until(&mut socket, "response.queued").await;
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "begin ").await;
    read_until(&mut socket, "begin ").await;
    let before = counted(&weather);
    for number in 0..TOKENS {
        let word = format!("word{number} ");
        stand.worker.token(&attempt, &word).await;
        read_until(&mut socket, &word).await;
    }
    let [runs, glances, pages] = std::array::from_fn(|i| counted(&weather)[i] - before[i]);
    assert_eq!(runs, 0, "no whole run");
    // One more each, should something that is no event have come.
    assert!((TOKENS..=TOKENS + 1).contains(&pages) && glances <= 1, "{pages} pages, {glances} glances for {TOKENS} tokens");
    finish(&mut stand, &attempt).await;
    read_until(&mut socket, "response.completed").await;
}

fn told(reply: &Reply) -> (u16, String) {
    (reply.status, reply.error().3.as_str().unwrap_or_default().to_owned())
}

/// Every answer that is made of what a response said.
async fn snapshots(addr: std::net::SocketAddr, id: &str) -> [(u16, String); 3] {
    let body = json!({"input": "more", "background": true, "previous_response_id": id}).to_string();
    let asked = async {
        let shown = get(addr, &format!("/v1/responses/{id}")).await;
        let cancelled = ask(addr, "POST", &format!("/v1/responses/{id}/cancel"), "", "").await;
        let next = ask(addr, "POST", "/v1/responses", "", &body).await;
        [told(&shown), told(&cancelled), told(&next)]
    };
    soon("answers", asked).await
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_the_store_does_not_give_are_said_and_not_waited_for() {
    let (memory, weather, store) = flaky();
    let mut stand = kept_stand(quick(), Some(store)).await;
    assert_eq!(read_reply(&mut send(stand.addr, &background("r1", false)).await).await.status, 200);
    let attempt = stand.worker.accept().await.attempt;
    finish(&mut stand, &attempt).await;
    stand.settled("r1").await;
    let ended = async {
        while memory.run(&key("r1")).await.expect("it is there").is_none_or(|run| run.outcome.is_none()) {
            tokio::time::sleep(ms(2)).await;
        }
    };
    soon("its end", ended).await;
    weather.mute_events.store(true, Ordering::SeqCst);
    let down = (503, "store_unavailable".to_owned());
    assert_eq!(snapshots(stand.addr, "resp_r1").await, [down.clone(), down.clone(), down]);
    // A stream waits, and goes on when the store is back.
    let mut socket = send(stand.addr, &request_text("GET", "/v1/responses/resp_r1?stream=true", "", "")).await;
    read_until(&mut socket, "response.created").await;
    weather.mute_events.store(false, Ordering::SeqCst);
    read_until(&mut socket, "response.completed").await;

    damaged(&memory).await;
    let unreadable = (500, "store_unreadable".to_owned());
    assert_eq!(snapshots(stand.addr, "resp_bad").await, [unreadable.clone(), unreadable.clone(), unreadable]);
    // What is readable is streamed, and then it ends, without an end of the run that nobody knows.
    let stream = soon("the stream's end", get(stand.addr, "/v1/responses/resp_bad?stream=true")).await;
    assert!(stream.body.contains("response.created") && !stream.body.contains("response.completed"), "{}", stream.body);
}

/// An ended response of which an event is no event.
async fn damaged(memory: &Arc<Memory>) {
    let like = memory.run(&key("r1")).await.expect("it is there").expect("it is there");
    let owner = Incarnation(9);
    let id = |text: &str| RunId::parse(text).expect("an id");
    let new = NewRun {
        tenant: Tenant::default(),
        wish: Some(id("bad")),
        fresh: id("fresh-bad"),
        door: like.door,
        model: like.model,
        caller: like.caller,
        on_disconnect: OnDisconnect::Continue,
        keeps: true,
        owner,
        created_ms: like.created_ms,
        expires_ms: None,
        request: like.request,
        joining: None,
    };
    let attempt = AttemptId { key: key("bad"), attempt: 0 };
    let event = |number| StoredEvent { number, body: b"no event".to_vec() };
    let end = Write::End {
        attempt: attempt.clone(),
        owner,
        outcome: Outcome::of(Cause::Stop),
        usage: Usage::default(),
        last: Some(event(2)),
        hooks: Vec::new(),
        now_ms: like.created_ms,
    };
    let append = Write::Append { attempt, owner, events: vec![event(1)] };
    memory.commit(vec![Write::Accept(Box::new(new)), append, end], Survives::Process).await.expect("it is there");
}
