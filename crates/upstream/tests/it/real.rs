//! A real engine, where one is: found for what it is, streamed from, left, and the leaving proven by its own counters.
//!
//! `KVIT_TEST_UPSTREAM=http://127.0.0.1:8080 cargo nextest run -p upstream --run-ignored only -E 'test(real)' --no-capture`, with nobody else
//! at the engine.
// contract: C-29

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use upstream::abort::{Aborter, Asks, RequestName};
use upstream::client::{Client, Limits};
use upstream::config::UpstreamConfig;
use upstream::counters;
use upstream::detect::detect;
use upstream::evidence::{Ledger, Level, Look};
use upstream::sse::Scanner;

use crate::script::soon;

#[tokio::test]
#[ignore = "needs a real engine: KVIT_TEST_UPSTREAM"]
async fn a_real_engine_is_found_left_and_judged() {
    let url = std::env::var("KVIT_TEST_UPSTREAM").expect("KVIT_TEST_UPSTREAM is the engine's URL");
    let config = UpstreamConfig::at(&url).expect("a URL");
    let client = Client::new(&config).expect("a client");
    let found = soon(detect(&client, &config)).await.expect("an engine");
    println!("{found:?}");
    assert!(found.counters, "its counters are needed: {}", found.why);
    let can = found.kind.capabilities();
    let (mut ledger, start) = (Ledger::new(can.cancel, can.fresh, config.observe_for), Instant::now());
    let limits = Limits { head_timeout: config.look_timeout, idle_timeout: config.look_timeout, answer_bytes_max: config.look_bytes_max };
    let aborter = Aborter::new(found.kind);
    // Left after so many tokens: before the first one, at the first, and late.
    let mut left = BTreeMap::new();
    for (id, tokens) in [(1, 0), (2, 1), (3, 40)] {
        let text = "Count from one to a thousand, in words.";
        let body = format!(
            r#"{{"model":"{}","stream":true,"max_tokens":2000,"messages":[{{"role":"user","content":"{text}"}}]}}"#,
            found.models[0].id
        );
        let (mut headers, shown, mut count) = (HeaderMap::new(), ledger.sent(id), 0);
        let body = aborter.name(RequestName(u128::from(id)), &mut headers, Bytes::from(body));
        let mut answer = soon(client.post("/v1/chat/completions", headers, body)).await.expect("a head");
        assert!(answer.is_event_stream(), "{:?} {:?}", answer.status, answer.content_type);
        let (mut scanner, mut events) = (Scanner::new(config.line_bytes_max, config.event_bytes_max), Vec::new());
        while count < tokens {
            let piece = soon(answer.next()).await.expect("a body").expect("more of it");
            events.clear();
            scanner.push(piece, &mut events).expect("events");
            for event in &events {
                let chunk = event.read();
                assert!(!chunk.unreadable && !chunk.done, "{event:?}");
                if chunk.said.tokens() > 0 {
                    shown.shown(start.elapsed(), answer.empty_at().into_std().saturating_duration_since(start));
                    count += chunk.said.tokens();
                }
            }
        }
        drop(answer);
        ledger.closed(id, start.elapsed());
        let told = soon(aborter.send(&client, RequestName(u128::from(id)), Asks::Chat, limits)).await;
        left.insert(id, format!("after {count} tokens, told by name: {told:?}"));
    }
    while ledger.undecided() > 0 {
        let pause = can.look_every_min.unwrap_or(config.observe_every);
        tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
        let began = start.elapsed();
        let text = soon(async { client.get("/metrics", limits).await?.whole().await }).await.expect("counters");
        let ended = start.elapsed();
        let reading = counters::read(found.kind, std::str::from_utf8(&text).expect("text"));
        if let Some(present) = reading.present() {
            ledger.looked(Look { began, ended, present });
        }
        for verdict in ledger.verdicts(start.elapsed()) {
            println!("{}: {verdict:?}, {reading:?}", left[&verdict.id]);
            assert_eq!(verdict.level, Level::Observed);
        }
    }
    assert_eq!(ledger.contradictions(), 0);
}
