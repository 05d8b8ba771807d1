//! A real engine, where one is: found for what it is, streamed from, left, and the leaving proven by its own counters.
//!
//! `KVIT_TEST_UPSTREAM=http://127.0.0.1:8080 cargo nextest run -p upstream --run-ignored only -j 1 -E 'test(real)' --no-capture`, with nobody
//! else at the engine.
// contract: C-29

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use upstream::abort::{Aborter, Asks, RequestName};
use upstream::client::{Answer, Client, Limits};
use upstream::config::UpstreamConfig;
use upstream::counters;
use upstream::detect::{Detected, detect};
use upstream::evidence::{Ledger, Level, Look, Tokens, Verdict};
use upstream::sse::Scanner;

use crate::script::soon;

/// An engine, and a ledger of what it is asked.
struct Engine {
    config: UpstreamConfig,
    client: Client,
    found: Detected,
    aborter: Aborter,
    ledger: Ledger,
    limits: Limits,
    start: Instant,
    /// What names its requests: another one in every life of this test.
    names: u128,
}

/// One request that is being answered.
struct Stream {
    answer: Answer,
    scanner: Scanner,
    shown: Arc<Tokens>,
    start: Instant,
}

impl Stream {
    /// Reads until it has shown so many more tokens.
    async fn read(&mut self, tokens: u32) {
        let (mut events, mut count) = (Vec::new(), 0);
        while count < tokens {
            let piece = soon(self.answer.next()).await.expect("a body").expect("more of it");
            events.clear();
            self.scanner.push(piece, &mut events).expect("events");
            for event in &events {
                let chunk = event.read();
                assert!(!chunk.unreadable && !chunk.done, "{event:?}");
                if chunk.said.tokens() > 0 {
                    let empty = self.answer.empty_at().into_std().saturating_duration_since(self.start);
                    self.shown.shown(self.start.elapsed(), empty);
                    count += chunk.said.tokens();
                }
            }
        }
    }
}

impl Engine {
    /// `None` without an engine.
    async fn found() -> Option<Engine> {
        let Some(url) = std::env::var("KVIT_TEST_UPSTREAM").ok().filter(|url| !url.is_empty()) else {
            println!("skipped: KVIT_TEST_UPSTREAM names no engine");
            return None;
        };
        let config = UpstreamConfig::at(&url).expect("a URL");
        let client = Client::new(&config).expect("a client");
        let found = soon(detect(&client, &config)).await.expect("an engine");
        println!("{found:?}");
        assert!(found.counters, "its counters are needed: {}", found.why);
        let can = found.kind.capabilities();
        let names = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_nanos() << 8;
        Some(Engine {
            ledger: Ledger::new(can.cancel, can.fresh, config.observe_for),
            limits: Limits {
                head_timeout: config.look_timeout,
                idle_timeout: config.look_timeout,
                answer_bytes_max: config.look_bytes_max,
            },
            aborter: Aborter::new(found.kind),
            start: Instant::now(),
            config,
            client,
            found,
            names,
        })
    }

    async fn ask(&mut self, id: u64) -> Stream {
        let model = &self.found.models[0].id;
        let said = r#"[{"role":"user","content":"Count from one to a thousand, in words."}]"#;
        let body = format!(r#"{{"model":"{model}","stream":true,"max_tokens":2000,"ignore_eos":true,"messages":{said}}}"#);
        let (mut headers, shown) = (HeaderMap::new(), self.ledger.sent(id, self.start.elapsed()));
        let body = self.aborter.name(RequestName(self.names + u128::from(id)), &mut headers, Bytes::from(body));
        let answer = soon(self.client.post("/v1/chat/completions", headers, body)).await.expect("a head");
        assert!(answer.is_event_stream(), "{:?} {:?}", answer.status, answer.content_type);
        let scanner = Scanner::new(self.config.line_bytes_max, self.config.event_bytes_max);
        Stream { answer, scanner, shown, start: self.start }
    }

    async fn leave(&mut self, id: u64, stream: Stream) {
        drop(stream);
        self.ledger.closed(id, self.start.elapsed());
        let told = self.aborter.send(&self.client, RequestName(self.names + u128::from(id)), Asks::Chat, self.limits);
        println!("{id} told by name: {:?}", soon(told).await);
    }

    /// Looks once, and says what is decided by then.
    async fn look(&mut self) -> Vec<Verdict> {
        let began = self.start.elapsed();
        let text = soon(async { self.client.get("/metrics", self.limits).await?.whole().await }).await.expect("counters");
        let reading = counters::read(self.found.kind, std::str::from_utf8(&text).expect("text"));
        if let Some(present) = reading.present() {
            self.ledger.looked(Look { began, ended: self.start.elapsed(), present });
        }
        let verdicts = self.ledger.verdicts(self.start.elapsed());
        for verdict in &verdicts {
            let took = verdict.gone_by.map(|by| by.saturating_sub(verdict.closed));
            println!("{verdict:?}, {took:?} after the close; at the last look {reading:?}");
        }
        verdicts
    }
}

#[tokio::test]
#[ignore = "needs a real engine: KVIT_TEST_UPSTREAM"]
async fn a_real_engine_that_is_left_alone_proves_it() {
    let Some(mut engine) = Engine::found().await else { return };
    // Left before the first token, at the first, and late.
    for (id, tokens) in [(1, 0), (2, 1), (3, 40)] {
        let mut stream = engine.ask(id).await;
        stream.read(tokens).await;
        engine.leave(id, stream).await;
    }
    let pause = engine.found.kind.capabilities().look_every_min.unwrap_or(engine.config.observe_every);
    while engine.ledger.undecided() > 0 {
        tokio::time::sleep(pause).await;
        assert!(engine.look().await.iter().all(|verdict| verdict.level == Level::Observed));
    }
    assert_eq!(engine.ledger.contradictions(), 0);
}

#[tokio::test]
#[ignore = "needs a real engine that bears looks: KVIT_TEST_UPSTREAM"]
async fn a_real_engine_that_is_busy_with_others_of_ours_proves_it_too() {
    let Some(mut engine) = Engine::found().await else { return };
    let (mut stays, mut leaves) = (engine.ask(1).await, engine.ask(2).await);
    tokio::join!(stays.read(5), leaves.read(5));
    assert!(engine.look().await.is_empty());
    engine.leave(2, leaves).await;
    let mut verdicts = Vec::new();
    while engine.ledger.undecided() > 0 {
        stays.read(2).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        verdicts.extend(engine.look().await);
    }
    assert_eq!(verdicts.iter().map(|v| (v.id, v.level)).collect::<Vec<_>>(), [(2, Level::Observed)]);
    assert_eq!(engine.ledger.contradictions(), 0);
    engine.leave(1, stays).await;
}
