//! A real engine, where one is: found for what it is, streamed from, left, and the leaving proven by its own counters.
//!
//! `KVIT_TEST_UPSTREAM=http://127.0.0.1:8080 cargo nextest run -p upstream --run-ignored only -j 1 -E 'test(real)' --no-capture`, with nobody
//! else at the engine.
// contract: C-29

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use upstream::abort::{Aborter, Asks, RequestName, Told};
use upstream::client::{Answer, Client, Limits};
use upstream::config::UpstreamConfig;
use upstream::counters;
use upstream::detect::{Detected, detect};
use upstream::evidence::{Ledger, Level, Look, Tokens, Verdict};
use upstream::sse::Scanner;

use crate::script::soon;

/// Tokens that each is asked for.
const TOKENS_MAX: u64 = 2000;

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
            aborter: Aborter::new(found.kind, can.cancel),
            start: Instant::now(),
            config,
            client,
            found,
            names,
        })
    }

    fn name(&self, id: u64) -> RequestName {
        RequestName(self.names + u128::from(id))
    }

    /// A request for so many tokens that it does not end by itself while it is looked at.
    fn request(&self, id: u64, stream: bool) -> (HeaderMap, Bytes) {
        let model = &self.found.models[0].id;
        let said = r#"[{"role":"user","content":"Count from one to a thousand, in words."}]"#;
        let body = format!(r#"{{"model":"{model}","stream":{stream},"max_tokens":{TOKENS_MAX},"ignore_eos":true,"messages":{said}}}"#);
        let mut headers = HeaderMap::new();
        let body = self.aborter.name(self.name(id), &mut headers, Bytes::from(body), || Asks::Chat { n: 1 });
        (headers, body)
    }

    async fn ask(&mut self, id: u64) -> Stream {
        let shown = self.ledger.sent(id, self.start.elapsed());
        let (headers, body) = self.request(id, true);
        let answer = soon(self.client.post("/v1/chat/completions", headers, body)).await.expect("a head");
        assert!(answer.is_event_stream(), "{:?} {:?}", answer.status, answer.content_type);
        let scanner = Scanner::new(self.config.line_bytes_max, self.config.event_bytes_max);
        Stream { answer, scanner, shown, start: self.start }
    }

    async fn leave(&mut self, id: u64, stream: Stream) {
        drop(stream);
        self.ledger.closed(id, self.start.elapsed());
        println!("{id} told by name: {:?}", self.tell(id).await);
    }

    /// Tells it of a cancel by id, and nothing else.
    async fn tell(&self, id: u64) -> Told {
        soon(self.aborter.send(&self.client, self.name(id), Asks::Chat { n: 1 }, self.limits)).await
    }

    async fn counters(&self) -> String {
        let text = soon(async { self.client.get("/metrics", self.limits).await?.whole().await }).await.expect("counters");
        String::from_utf8(text.to_vec()).expect("text")
    }

    /// Looks until it has so many requests.
    async fn until_present(&self, wanted: u64) -> String {
        soon(async {
            loop {
                let page = self.counters().await;
                if counters::read(self.found.kind, &page).present() == Some(wanted) {
                    return page;
                }
                tokio::time::sleep(self.config.observe_every).await;
            }
        })
        .await
    }

    /// What shows that a step is over, where somebody waits for that.
    async fn witness(&mut self) {
        let sent = self.start.elapsed();
        if self.ledger.witness_from().is_some_and(|from| from <= sent) {
            let body = format!(r#"{{"model":"{}","prompt":"a","max_tokens":2,"min_tokens":2,"ignore_eos":true}}"#, self.found.models[0].id);
            let asked = async { self.client.post("/v1/completions", HeaderMap::new(), body.into()).await?.whole().await };
            soon(asked).await.expect("two tokens");
            self.ledger.witnessed(sent, self.start.elapsed());
        }
    }

    /// Looks once, and says what is decided by then.
    async fn look(&mut self) -> Vec<Verdict> {
        let began = self.start.elapsed();
        let reading = counters::read(self.found.kind, &self.counters().await);
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
        engine.witness().await;
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

/// No connection is closed: what ends a request here is its id, and the engine's own counters say so. A neighbour goes on.
#[tokio::test]
#[ignore = "needs a real engine with a cancel by id (vllm serve --enable-scale-out): KVIT_TEST_UPSTREAM"]
async fn a_real_engine_ends_a_request_by_its_id_alone() {
    let Some(mut engine) = Engine::found().await else { return };
    if !engine.aborter.enabled() {
        return println!("skipped: {} has no cancel by id", engine.found.kind);
    }
    let mut neighbour = engine.ask(1).await;
    neighbour.read(3).await;
    let before = engine.until_present(1).await;
    // It answers the same for an id that it never had, and nothing ends.
    assert_eq!(engine.tell(99).await, Told::Taken);
    neighbour.read(3).await;

    let mut streamed = engine.ask(2).await;
    streamed.read(5).await;
    engine.until_present(2).await;
    assert_eq!(engine.tell(2).await, Told::Taken);
    let rest = soon(streamed.answer.whole()).await.expect("the stream ends");
    println!("streamed, told by its id: the stream ends with {}", String::from_utf8_lossy(&rest[rest.len().saturating_sub(400)..]));
    // The neighbour alone.
    engine.until_present(1).await;
    neighbour.read(3).await;

    let (client, (headers, body)) = (engine.client.clone(), engine.request(3, false));
    let whole = tokio::spawn(async move { client.post("/v1/chat/completions", headers, body).await?.whole().await });
    engine.until_present(2).await;
    assert_eq!(engine.tell(3).await, Told::Taken);
    let answer = soon(whole).await.expect("no panic").expect("the answer ends");
    let said: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
    println!("not streamed, told by its id: {} {}", said["choices"][0]["finish_reason"], said["usage"]);
    assert!(said["usage"]["completion_tokens"].as_u64().is_none_or(|tokens| tokens < TOKENS_MAX), "{said}");
    engine.until_present(1).await;
    neighbour.read(3).await;
    engine.leave(1, neighbour).await;
    let generated = |page: &str| counters::read(engine.found.kind, page).generated.expect("a count of tokens");
    let generated = generated(&engine.until_present(0).await) - generated(&before);
    println!("running or waiting: 2, 1, 2, 1, 0; generated meanwhile, of 3 times {TOKENS_MAX} asked for: {generated}");
    assert!(generated < TOKENS_MAX, "{generated}");
}
