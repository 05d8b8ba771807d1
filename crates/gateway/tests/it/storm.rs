//! Many callers at once, each leaving in its own way, against a worker that generates by itself: in the end nothing is left of any.
// contract: C-4 C-6 C-20
// field: F-01 F-03 F-21

use std::collections::HashMap;
use std::time::Duration;

use lifecycle::event::Event;
use lifecycle::message::{Down, Up};
use lifecycle::{AttemptId, Cause, Outcome};
use tokio::io::AsyncReadExt;

use crate::simulated::{Simulated, key, soon, stand};
use crate::wire::{Leave, cancel, chat_request, read_reply, send};

const CALLERS: u64 = 200;
const TOKENS: u32 = 20;

/// A step at a time, a token a step for everybody, until all are gone.
async fn generate_by_itself(mut worker: Simulated) {
    let mut live: HashMap<AttemptId, u32> = HashMap::new();
    loop {
        while let Some(message) = worker.try_next() {
            match message {
                Down::Submit(submit) => {
                    worker.say(Up::Accepted { attempt: submit.attempt.clone(), prompt_tokens: 3 }).await;
                    live.insert(submit.attempt, 0);
                }
                Down::Cancel { attempt, cause, .. } => {
                    let known = live.remove(&attempt).is_some();
                    worker.say(Up::CancelAcknowledged { attempt: attempt.clone(), won: known.then_some(cause) }).await;
                    if known {
                        worker.end(&attempt, Outcome::of(cause), 0).await;
                    }
                }
                other => panic!("not expected: {other:?}"),
            }
        }
        let mut deltas = Vec::new();
        for (attempt, tokens) in &mut live {
            *tokens += 1;
            deltas.push(worker.delta(attempt, 0, "word ", &[1], (*tokens == TOKENS).then_some(Cause::Length)));
        }
        worker.step(deltas).await;
        let done: Vec<AttemptId> = live.iter().filter(|(_, tokens)| **tokens == TOKENS).map(|(attempt, _)| attempt.clone()).collect();
        for attempt in done {
            live.remove(&attempt);
            worker.end(&attempt, Outcome::of(Cause::Length), TOKENS).await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What the `i`-th caller does.
async fn call(addr: std::net::SocketAddr, i: u64) {
    // A multiplicative hash: the same spread in every run of the test.
    let dice = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let mut socket = send(addr, &chat_request(&format!("s{i}"), &format!(r#","stream":{}"#, dice.is_multiple_of(2)))).await;
    match dice % 5 {
        0 | 1 => {
            let mut bytes = vec![0; 1 + (dice / 5 % 4000) as usize];
            let _ = tokio::time::timeout(Duration::from_millis(dice / 7 % 30), socket.read_exact(&mut bytes)).await;
            if dice.is_multiple_of(5) { Leave::Close } else { Leave::Reset }.now(socket);
        }
        2 => {
            let _ = cancel(addr, &format!("s{i}"), 0).await;
            read_reply(&mut socket).await;
        }
        _ => assert_eq!(read_reply(&mut socket).await.status, 200),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_anybody() {
    let stand = stand(gateway::GatewayConfig::default()).await;
    let (addr, journal) = (stand.addr, stand.journal.clone());
    let worker = tokio::spawn(generate_by_itself(stand.worker));
    let callers: Vec<_> = (0..CALLERS).map(|i| tokio::spawn(call(addr, i))).collect();
    for caller in callers {
        soon("a caller is done", caller).await.expect("joined");
    }
    // Everything settles, so a shutdown has nothing to wait for or to complain about.
    stand.stop.expect("not used").send(()).expect("it serves");
    soon("serve returns", stand.served).await.expect("joined").expect("settled");
    assert_eq!(journal.defects(), 0);
    let mut kinds = HashMap::new();
    for i in 0..CALLERS {
        let id = format!("s{i}");
        // A caller may have left before its request was read.
        let Some(run) = journal.run(&key(&id)) else { continue };
        assert!(run.settled && run.released, "{id}");
        let once = |wanted: fn(&Event) -> bool| journal.records(&key(&id)).iter().filter(|r| wanted(&r.event)).count() == 1;
        assert!(once(|e| matches!(e, Event::OutcomeSet { .. })) && once(|e| matches!(e, Event::DeliveryEnded { .. })), "{id}");
        assert!(once(|e| matches!(e, Event::Released { .. })) && once(|e| matches!(e, Event::Settled { .. })), "{id}");
        let kind = run.outcome.expect("an outcome").kind;
        // A call that is whole says so, and only it.
        assert!(kind == "completed" || run.delivery != "complete", "{id}");
        *kinds.entry(kind).or_insert(0) += 1;
    }
    assert!(kinds.get("completed").is_some_and(|n| *n >= CALLERS / 5) && kinds.contains_key("cancelled"), "{kinds:?}");
    worker.abort();
}
