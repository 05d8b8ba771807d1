//! Readers at another gateway than the one that has the run: there they are readers like any others.
// contract: C-25

use std::sync::Arc;

use gateway::{GatewayConfig, KeepConfig};
use lifecycle::Incarnation;
use serde_json::{Value, json};
use store::StoreConfig;
use store::memory::Memory;
use tokio::net::TcpStream;

use super::flaky::{Flaky, Weather};
use super::life::Life;
use super::rng::Rng;
use super::worker::Worker;
use crate::simulated::{kept_stand, soon};
use crate::wire::{ask, chat, get, ms, read_until, request_text, send};

/// A gateway that has the run, and another one; both write to one store. The worker is the first one's.
struct Two {
    has: Life,
    other: Life,
    worker: Worker,
}

impl Two {
    async fn begin(unread_max: std::time::Duration) -> Two {
        let keep = KeepConfig { poll: ms(20), lease: ms(2000), patience: ms(60_000), ..KeepConfig::default() };
        let config = GatewayConfig { keep, unread_max, send_buffer_bytes: 4096, ..GatewayConfig::default() };
        let store = Memory::new(StoreConfig::at("memory"), false);
        let life = |number| Life::begin(Incarnation(number), config.clone(), Flaky::new(store.clone(), Arc::new(Weather::default())));
        let mut two = Two { has: life(1), other: life(2), worker: Worker { life: 1 << 32, ..Worker::default() } };
        two.worker.come(&two.has).await;
        // Before that a request names a model that nobody has.
        let known = async { while !get(two.has.addr, "/v1/models").await.body.contains("tiny") {} };
        soon("the worker is known", known).await;
        two
    }

    /// A run that whoever leaves may come back to, of which nobody has read the end.
    async fn ask(&mut self, headers: &str) -> TcpStream {
        let body = json!({"messages": [{"role": "user", "content": "r go"}], "max_tokens": 400, "stream": true}).to_string();
        let mut socket = send(self.has.addr, &request_text("POST", "/v1/chat/completions", headers, &body)).await;
        self.work(3).await;
        read_until(&mut socket, "r.1 ").await;
        socket
    }

    async fn work(&mut self, steps: u32) {
        let before = self.worker.step;
        let worked = async {
            while self.worker.step < before + u64::from(steps) && self.worker.attempts.iter().all(|attempt| !attempt.is_over()) {
                self.worker.work(&mut self.has, &mut Rng(1), true).await;
                tokio::time::sleep(ms(1)).await;
            }
        };
        soon("it goes on", worked).await;
    }

    /// Waits until so many graces of the run have begun and were ended by somebody who came back.
    async fn graces(&self, begun: u64, resumed: u64) {
        let graces = async {
            loop {
                let view = get(self.has.addr, "/v1/runs/r1").await.json();
                assert_eq!(view["outcome"], Value::Null, "{view}");
                if view["graces"] == json!({"begun": begun, "resumed": resumed}) {
                    return;
                }
                tokio::time::sleep(ms(5)).await;
            }
        };
        soon("the graces are counted", graces).await;
    }

    async fn come_back(&self, after: u64) -> TcpStream {
        let path = format!("/v1/runs/r1/events?after={after}");
        send(self.other.addr, &request_text("GET", &path, "", "")).await
    }

    async fn end(self) {
        self.has.kill().await;
        self.other.kill().await;
    }
}

const GRACE: &str = "X-Request-Id: r1\r\nX-On-Disconnect: grace(60000)\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_at_another_gateway_ends_the_grace_and_leaves_like_any_reader() {
    let mut two = Two::begin(ms(30_000)).await;
    let first = two.ask(GRACE).await;
    drop(first);
    two.graces(1, 0).await;
    let mut second = two.come_back(0).await;
    two.graces(1, 1).await;
    two.work(2).await;
    read_until(&mut second, "r.3 ").await;
    drop(second);
    two.graces(2, 1).await;
    // Two there are one there, and the one that stays is enough.
    let third = two.come_back(2).await;
    two.graces(2, 2).await;
    let mut fourth = two.come_back(3).await;
    read_until(&mut fourth, "r.3 ").await;
    drop(third);
    two.worker.finish_next();
    two.work(1).await;
    let rest = read_until(&mut fourth, "event: end").await;
    assert!(rest.contains("id: 7\n"), "{rest}");
    let view = soon("the end", async {
        loop {
            let view = get(two.other.addr, "/v1/runs/r1").await.json();
            if view["outcome"] != Value::Null {
                return view;
            }
        }
    });
    assert_eq!(view.await["outcome"]["kind"], "completed");
    let graces = get(two.has.addr, "/v1/runs/r1").await.json()["graces"].clone();
    assert_eq!(graces["resumed"], 2, "{graces}");
    two.end().await;
}

// contract: C-6
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ends_while_it_is_read_elsewhere_is_left_by_nobody() {
    let mut two = Two::begin(ms(30_000)).await;
    let mut first = two.ask(GRACE).await;
    let mut second = two.come_back(0).await;
    read_until(&mut second, "r.2 ").await;
    // Its gateway has heard of the reader.
    let counted = async {
        while two.has.store.truth().attended(Incarnation(1)).await.expect("it is there").is_empty() {
            tokio::time::sleep(ms(5)).await;
        }
        tokio::time::sleep(ms(100)).await;
    };
    soon("it is counted", counted).await;
    two.worker.finish_next();
    two.work(1).await;
    read_until(&mut first, "[DONE]").await;
    read_until(&mut second, "event: end").await;
    let view = soon("it is settled", async {
        loop {
            let view = get(two.has.addr, "/v1/runs/r1").await.json();
            if view["settled"] == true {
                return view;
            }
            tokio::time::sleep(ms(5)).await;
        }
    });
    let view = view.await;
    assert_eq!((&view["delivery"], &view["graces"]), (&json!("complete"), &json!({"begun": 0, "resumed": 0})), "{view}");
    two.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_cancelled_when_its_last_reader_leaves_lives_as_long_as_one_reads_elsewhere() {
    let mut two = Two::begin(ms(30_000)).await;
    let first = two.ask("X-Request-Id: r1\r\nX-On-Disconnect: cancel\r\n").await;
    let mut second = two.come_back(0).await;
    read_until(&mut second, "r.2 ").await;
    drop(first);
    two.work(2).await;
    read_until(&mut second, "r.4 ").await;
    drop(second);
    let ended = async {
        while two.worker.attempts.iter().all(|attempt| !attempt.is_over()) {
            two.worker.work(&mut two.has, &mut Rng(1), true).await;
            tokio::time::sleep(ms(1)).await;
        }
    };
    soon("it is cancelled", ended).await;
    let view = soon("the end", async {
        loop {
            let view = get(two.has.addr, "/v1/runs/r1").await.json();
            if view["outcome"] != Value::Null {
                return view;
            }
        }
    });
    assert_eq!(view.await["outcome"]["cause"], "client_closed");
    two.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_whose_gateway_is_lost_is_gone_with_its_lease() {
    let mut two = Two::begin(ms(30_000)).await;
    drop(two.ask(GRACE).await);
    two.graces(1, 0).await;
    let second = two.come_back(0).await;
    two.graces(1, 1).await;
    let Two { has, other, worker } = two;
    other.kill().await;
    drop(second);
    let other = Life::begin(Incarnation(3), GatewayConfig::default(), Flaky::new(has.store.truth().clone(), Arc::new(Weather::default())));
    two = Two { has, other, worker };
    two.graces(2, 1).await;
    assert_eq!(ask(two.has.addr, "POST", "/v1/runs/r1/cancel?wait_ms=0", "", "").await.status, 200);
    two.end().await;
}

// contract: C-6
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_elsewhere_that_takes_nothing_is_none() {
    let mut two = Two::begin(ms(300)).await;
    drop(two.ask(GRACE).await);
    two.graces(1, 0).await;
    // It reads nothing, and what it is sent fills every buffer on the way.
    two.worker.padding = 1 << 18;
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("SO_RCVBUF");
    let stream = socket.connect(two.other.addr).await.expect("it listens");
    use tokio::io::AsyncWriteExt;
    let mut stream = stream;
    stream.write_all(request_text("GET", "/v1/runs/r1/events?after=0", "", "").as_bytes()).await.expect("sent");
    two.graces(1, 1).await;
    two.work(12).await;
    two.graces(2, 1).await;
    drop(stream);
    two.end().await;
}

/// Joined by its key at another gateway than its own: the newcomer's deadline ends its reading and nothing else.
// contract: C-22 C-26
#[tokio::test(flavor = "multi_thread")]
async fn a_newcomers_own_deadline_ends_its_reading_of_a_run_that_another_gateway_has() {
    let store = Memory::new(StoreConfig::at("memory"), false);
    let (mut has, other) =
        (kept_stand(GatewayConfig::default(), Some(store.clone())).await, kept_stand(GatewayConfig::default(), Some(store)).await);
    for (id, stream) in [("r1", true), ("r2", false)] {
        let body = chat(if stream { r#","stream":true"# } else { "" });
        let headers = format!("X-Request-Id: {id}\r\nIdempotency-Key: {id}\r\n");
        let _first = send(has.addr, &request_text("POST", "/v1/chat/completions", &headers, &body)).await;
        let attempt = has.worker.accept().await.attempt;
        has.worker.token(&attempt, "before").await;
        let headers = format!("Idempotency-Key: {id}\r\nX-Request-Timeout-Ms: 200\r\n");
        let late = soon("an answer", ask(other.addr, "POST", "/v1/chat/completions", &headers, &body)).await;
        assert!(late.status == 499 || (stream && late.body.contains("client_deadline")), "{} {}", late.status, late.body);
        assert!(!late.body.contains("[DONE]"), "{}", late.body);
        assert_eq!(late.header("x-request-id").as_deref(), Some(id), "it had joined");
        assert_eq!(has.run(id)["outcome"], Value::Null, "the run goes on");
        assert!(has.worker.try_next().is_none(), "no cancel");
    }
}
