//! A worker is lost: who is dispatched again, who is told that it is over, and what the lost worker's last words do.
// contract: C-5 C-7 C-20

use gateway::GatewayConfig;
use lifecycle::event::Event;
use lifecycle::message::{Up, Usage};
use lifecycle::{AttemptId, Cause, Outcome};
use serde_json::Value;

use crate::simulated::{Simulated, Stand, several, soon};
use crate::wire::{cancel, chat_request, get, ms, read_reply, read_until, send};

/// Two workers, of which the first is here and will get the run.
async fn first_of_two(config: GatewayConfig) -> Stand<Vec<Simulated>> {
    let stand = several(config, 2).await;
    stand.worker[0].come("a").await;
    soon("the worker is here", async { while get(stand.addr, "/health/ready").await.status != 200 {} }).await;
    stand
}

/// Both are here, and the first has the run.
async fn at_first(config: GatewayConfig, extra: &str) -> (Stand<Vec<Simulated>>, tokio::net::TcpStream, AttemptId) {
    let mut stand = first_of_two(config).await;
    let socket = send(stand.addr, &chat_request("r1", extra)).await;
    let attempt = stand.worker[0].accept().await.attempt;
    stand.worker[1].come("b").await;
    soon("the second is here", async { while get(stand.addr, "/v1/workers").await.json()["data"][1]["state"] != "here" {} }).await;
    (stand, socket, attempt)
}

/// The run's end at the second worker, and what the record says of it.
async fn finish(stand: &mut Stand<Vec<Simulated>>, attempt: &AttemptId) -> Value {
    let worker = &mut stand.worker[1];
    let last = worker.delta(attempt, 0, "from the second", &[1], Some(Cause::Stop));
    worker.step(vec![last]).await;
    worker.end(attempt, Outcome::of(Cause::Stop), 1).await;
    stand.until("r1", "completed", |run| run["outcome"]["kind"] == "completed").await
}

// contract: C-3
#[tokio::test(flavor = "multi_thread")]
async fn nothing_was_delivered_so_another_worker_does_it_anew() {
    for extra in ["", r#","stream":true"#] {
        let (mut stand, mut socket, one) = at_first(GatewayConfig::default(), extra).await;
        let old = stand.worker[0].life;
        stand.worker[0].be_lost().await;
        let submit = stand.worker[1].submit().await;
        let two = submit.attempt.clone();
        assert_eq!((two.key.clone(), two.attempt, submit.worker), (one.key.clone(), 2, stand.worker[1].life));
        assert_eq!(stand.count("r1", |e| matches!(e, Event::Void { worker } if *worker == old)), 1);
        // The last words of the old attempt, from its old life, from the next one, and by the name of the new attempt.
        let fresh = stand.worker[0].life;
        stand.worker[0].come("a").await;
        for life in [old, fresh] {
            for attempt in [&one, &two] {
                let worker = &stand.worker[0];
                let late = worker.delta(attempt, 0, "LATE", &[9], None);
                worker.say_as(life, Up::Accepted { attempt: attempt.clone(), prompt_tokens: 99 }).await;
                worker.say_as(life, Up::Step { step: lifecycle::StepId(7), deltas: vec![late] }).await;
                let (outcome, usage) = (Outcome::of(Cause::DeviceError), Usage { prompt: 99, cached_prompt: 0, generated: 99 });
                worker.say_as(life, Up::Ended { attempt: attempt.clone(), outcome, usage }).await;
                worker.say_as(life, Up::Released { attempt: attempt.clone(), receipt: Default::default() }).await;
            }
        }
        // It has been heard once it has answered this, which only one that is here is asked.
        let addr = stand.addr;
        soon("its next life is here", async { while get(addr, "/v1/workers").await.json()["data"][0]["state"] != "here" {} }).await;
        let asked = tokio::spawn(async move { get(addr, "/v1/kv").await });
        stand.worker[0].answer(Default::default()).await;
        stand.worker[1].answer(Default::default()).await;
        assert_eq!(asked.await.expect("joined").status, 200);
        assert_eq!((&stand.run("r1")["outcome"], &stand.run("r1")["attempt"]), (&Value::Null, &2.into()));
        let run = finish(&mut stand, &two).await;
        let reply = read_reply(&mut socket).await;
        assert!(reply.status == 200 && reply.body.contains("from the second") && !reply.body.contains("LATE"), "{}", reply.body);
        assert_eq!((&run["attempt"], &run["outcome"]["cause"]), (&2.into(), &"stop".into()));
        drop(socket);
        let run = stand.settled("r1").await;
        // What became of the first attempt's blocks, nobody has said.
        assert_eq!((&run["delivery"], &run["guarantee"], &run["released"]), (&"complete".into(), &"best_effort".into(), &false.into()));
        // Its prompt, as that worker told its length, and its cap.
        assert_eq!(run["waste_bound_tokens"], 67);
        assert!(stand.worker[0].try_next().is_none(), "nobody speaks of it with the lost worker");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn something_was_delivered_so_it_is_over() {
    for stream in [true, false] {
        let (mut stand, mut socket, attempt) = at_first(GatewayConfig::default(), &format!(r#","stream":{stream}"#)).await;
        stand.worker[0].token(&attempt, "first").await;
        if stream {
            read_until(&mut socket, "first").await;
        }
        stand.worker[0].be_lost().await;
        if stream {
            assert!(read_until(&mut socket, "\r\n0\r\n\r\n").await.contains(r#""code":"worker_lost""#));
        } else {
            // Told to its handler is told: it may be on its way already.
            assert_eq!(read_reply(&mut socket).await.error().3, "worker_lost");
        }
        let run = stand.settled("r1").await;
        assert_eq!(
            (&run["outcome"]["cause"], &run["attempt"], &run["guarantee"]),
            (&"worker_lost".into(), &1.into(), &"best_effort".into())
        );
        assert!(stand.worker[1].try_next().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_was_wanted_to_end_so_it_ends() {
    let (mut stand, mut socket, _) = at_first(GatewayConfig::default(), "").await;
    cancel(stand.addr, "r1", 0).await;
    stand.worker[0].be_lost().await;
    assert_eq!(read_reply(&mut socket).await.error().3, "cancel_requested");
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["kind"], &run["guarantee"]), (&"cancelled".into(), &"best_effort".into()));
    assert!(stand.worker[1].try_next().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_allows_none_or_no_more() {
    for redispatch_max in [0, 1] {
        let (mut stand, mut socket, _) = at_first(GatewayConfig { redispatch_max, ..GatewayConfig::default() }, "").await;
        stand.worker[0].come("a").await;
        stand.worker[0].be_lost().await;
        if redispatch_max == 1 {
            assert_eq!(stand.worker[1].submit().await.attempt.attempt, 2);
            stand.worker[0].come("a").await;
            stand.worker[1].be_lost().await;
        }
        assert_eq!(read_reply(&mut socket).await.error().3, "worker_lost");
        let run = stand.settled("r1").await;
        assert_eq!(run["attempt"], redispatch_max + 1);
        let voids = stand.count("r1", |e| matches!(e, Event::Void { .. }));
        assert_eq!(voids as u32, redispatch_max + 1, "each attempt once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_worker_is_here_so_it_waits() {
    let mut stand = first_of_two(GatewayConfig::default()).await;
    let mut socket = send(stand.addr, &chat_request("r1", "")).await;
    stand.worker[0].accept().await;
    let mut other = send(stand.addr, &chat_request("r2", "")).await;
    stand.worker[0].submit().await;
    stand.worker[0].be_lost().await;
    let waits = stand.until("r1", "waiting", |run| run["state"] == "queued").await;
    assert_eq!((&waits["attempt"], &waits["outcome"], &waits["guarantee"]), (&1.into(), &Value::Null, &Value::Null));
    let unready = async {
        loop {
            // The run may be back in the queue a moment before it is known of the last worker that it is gone.
            let ready = get(stand.addr, "/health/ready").await;
            if ready.status != 200 {
                return ready;
            }
        }
    };
    assert_eq!(soon("no worker is here", unready).await.error().3, "no_worker");
    // One is cancelled meanwhile: nobody has to be told, and what the lost worker held stays unproven.
    assert_eq!(cancel(stand.addr, "r2", 10_000).await.json()["outcome"]["cause"], "cancel_requested");
    assert_eq!(read_reply(&mut other).await.error().3, "cancel_requested");
    assert_eq!(stand.settled("r2").await["guarantee"], "best_effort");
    assert_eq!(stand.count("r2", |e| matches!(e, Event::CancelSent { .. })), 0);
    // The same worker, in its next life.
    stand.worker[0].come("a").await;
    let submit = stand.worker[0].accept().await;
    assert_eq!((submit.attempt.attempt, submit.worker), (2, stand.worker[0].life));
    stand.worker[0].end(&submit.attempt, Outcome::of(Cause::Stop), 0).await;
    assert_eq!(read_reply(&mut socket).await.status, 200);
    stand.settled("r1").await;
    assert!(stand.worker[0].try_next().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_for_a_second_worker_waits_its_time_and_no_longer() {
    let config = GatewayConfig { queue_deadline: ms(30), ..GatewayConfig::default() };
    let mut stand = first_of_two(config).await;
    let mut socket = send(stand.addr, &chat_request("r1", "")).await;
    stand.worker[0].accept().await;
    stand.worker[0].be_lost().await;
    assert_eq!(read_reply(&mut socket).await.error().3, "queue_deadline");
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["kind"], &run["guarantee"]), (&"expired".into(), &"best_effort".into()));
}

/// Of two workers one is lost: the other's runs notice nothing.
// contract: C-14
#[tokio::test(flavor = "multi_thread")]
async fn the_others_notice_nothing() {
    let (mut stand, _socket, _) = at_first(GatewayConfig::default(), "").await;
    let mut beside = send(stand.addr, &chat_request("r2", r#","stream":true"#)).await;
    let two = stand.worker[1].accept().await.attempt;
    stand.worker[1].token(&two, "before").await;
    read_until(&mut beside, "before").await;
    stand.worker[0].be_lost().await;
    assert_eq!(stand.worker[1].submit().await.attempt.attempt, 2, "the lost one's run comes here");
    let last = stand.worker[1].delta(&two, 0, "after", &[1], Some(Cause::Stop));
    stand.worker[1].step(vec![last]).await;
    stand.worker[1].end(&two, Outcome::of(Cause::Stop), 2).await;
    assert!(read_until(&mut beside, "[DONE]").await.contains("after"));
    assert_eq!(stand.until("r2", "ended", |run| run["released"] == true).await["attempt"], 1);
}
