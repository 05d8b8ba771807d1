//! Webhooks of background runs' ends: signed, tried again with the same id, ended by 410, never redirected, and shown.
// contract: C-27

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gateway::{GatewayConfig, HookEvent, KeepConfig, OutsideConfig, Webhook, Webhooks};
use hmac::{Hmac, KeyInit, Mac};
use lifecycle::{Cause, Outcome};
use serde_json::{Value, json};
use store::memory::Memory;
use store::{Hook, RunStore, Survives, Write};

use crate::durable::flaky::{Flaky, Weather};
use crate::effects::memory;
use crate::outside::{Answer, Asked, Service};
use crate::simulated::{Stand, kept_stand, key, soon};
use crate::wire::{ask, chat_request, get, ms, read_reply, send};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

async fn kept(services: &[(&Service, &[HookEvent])], tries: u32) -> Stand {
    let mut webhooks = Webhooks::default();
    for (service, events) in services {
        webhooks.add(Webhook::new(&service.url("/hook"), SECRET, vec![], events.to_vec()).expect("a webhook")).expect("added");
    }
    let outside = OutsideConfig { webhooks, webhook_retry: ms(1), webhook_tries_max: tries, ..OutsideConfig::default() };
    let keep = KeepConfig { poll: ms(20), ..KeepConfig::default() };
    kept_stand(GatewayConfig { outside, keep, ..GatewayConfig::default() }, Some(memory())).await
}

async fn background(stand: &Stand, id: &str) {
    let headers = format!("X-Request-Id: {id}\r\n");
    let created = ask(stand.addr, "POST", "/v1/responses", &headers, r#"{"input":"hi","background":true}"#).await;
    assert_eq!(created.status, 200, "{}", created.body);
}

async fn end(stand: &mut Stand, cause: Cause) {
    let attempt = stand.worker.accept().await.attempt;
    let last = stand.worker.delta(&attempt, 0, "Rhine", &[8], Some(cause));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(cause), 1).await;
}

/// As a receiver checks it, by the standard's text.
fn is_signed(asked: &Asked) -> bool {
    let secret = STANDARD.decode(&SECRET["whsec_".len()..]).expect("base64");
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&secret).expect("a key");
    mac.update(format!("{}.{}.{}", asked.header("webhook-id"), asked.header("webhook-timestamp"), asked.body).as_bytes());
    asked.header("webhook-signature") == format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

async fn shown(stand: &Stand, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    soon("the webhooks as wanted", async {
        loop {
            let hooks = get(stand.addr, &format!("/v1/runs/{id}")).await.json()["webhooks"].clone();
            if wanted(&hooks) {
                return hooks;
            }
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_told_until_it_is_taken_with_the_same_id_and_a_good_signature() {
    let service = Service::start(&[Answer::Status(500, ""), Answer::Redirect("http://127.0.0.1:9/".to_owned()), Answer::Closed]).await;
    let mut stand = kept(&[(&service, &[])], 10).await;
    background(&stand, "r1").await;
    end(&mut stand, Cause::Stop).await;
    let hooks = shown(&stand, "r1", |hooks| hooks[0]["state"] == "delivered").await;
    let asked = service.until_asked(4).await;
    assert_eq!(
        (asked.len(), hooks[0]["tries"].as_u64(), hooks[0]["id"].as_str()),
        (4, Some(4), Some(asked[0].header("webhook-id").as_str()))
    );
    for one in &asked {
        assert!(one.head.starts_with("POST /hook HTTP/1.1") && is_signed(one), "{one:?}");
        assert_eq!((one.header("webhook-id"), &one.body), (asked[0].header("webhook-id"), &asked[0].body));
    }
    let body = asked[0].json();
    assert_eq!((&body["type"], &body["object"], &body["data"]["id"]), (&"response.completed".into(), &"event".into(), &"resp_r1".into()));
    assert_eq!(body["data"]["outcome"], json!({"kind": "completed", "cause": "stop"}));
    assert!(!asked[0].body.contains("Rhine"), "nothing of the answer");
    let page = get(stand.addr, "/metrics").await.body;
    assert!(page.contains("kvit_webhook_tries_total{result=\"delivered\"} 1"), "{page}");
    assert!(page.contains("kvit_webhook_tries_total{result=\"failed\"} 3"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_end_is_told_to_whom_it_concerns_and_an_interactive_runs_to_nobody() {
    let (all, cancelled) = (Service::start(&[]).await, Service::start(&[]).await);
    let mut stand = kept(&[(&all, &[]), (&cancelled, &[HookEvent::Cancelled])], 10).await;
    for (id, cause) in [("r1", Cause::Stop), ("r2", Cause::Length), ("r3", Cause::WorkerError)] {
        background(&stand, id).await;
        end(&mut stand, cause).await;
        shown(&stand, id, |hooks| hooks[0]["state"] == "delivered").await;
    }
    background(&stand, "r4").await;
    let attempt = stand.worker.accept().await.attempt;
    let addr = stand.addr;
    let cancelling = tokio::spawn(async move { crate::wire::cancel(addr, "r4", 5_000).await });
    stand.worker.obey(&attempt).await;
    cancelling.await.expect("answered");
    let both = shown(&stand, "r4", |hooks| hooks[0]["state"] == "delivered" && hooks[1]["state"] == "delivered").await;
    assert_eq!(both.as_array().map(Vec::len), Some(2));
    let mut socket = send(stand.addr, &chat_request("r5", "")).await;
    end(&mut stand, Cause::Stop).await;
    assert_eq!(read_reply(&mut socket).await.status, 200);
    assert_eq!(shown(&stand, "r5", |hooks| hooks.is_array()).await, json!([]));
    let types =
        |service: &Service| service.asked().iter().map(|one| one.json()["type"].as_str().unwrap_or("").to_owned()).collect::<Vec<_>>();
    assert_eq!(types(&all), ["response.completed", "response.incomplete", "response.failed", "response.cancelled"]);
    assert_eq!(types(&cancelled), ["response.cancelled"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_given_up_after_its_tries_and_at_once_by_410() {
    let service = Service::start(&[Answer::Status(410, "")]).await;
    let mut stand = kept(&[(&service, &[])], 10).await;
    background(&stand, "r1").await;
    end(&mut stand, Cause::Stop).await;
    let hooks = shown(&stand, "r1", |hooks| hooks[0]["state"] == "given_up").await;
    assert_eq!((&hooks[0]["tries"], &hooks[0]["last"], service.asked().len()), (&1.into(), &"answered 410".into(), 1));

    let service = Service::start(&[Answer::Closed, Answer::Status(404, ""), Answer::Status(500, "")]).await;
    let mut stand = kept(&[(&service, &[])], 3).await;
    background(&stand, "r1").await;
    end(&mut stand, Cause::Stop).await;
    let hooks = shown(&stand, "r1", |hooks| hooks[0]["state"] == "given_up").await;
    assert_eq!((&hooks[0]["tries"], &hooks[0]["last"], service.asked().len()), (&3.into(), &"answered 500".into(), 3));
}

/// Two gateways look into one outbox: each end is told once, for whoever takes it first has it.
#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_with_one_outbox_tell_each_end_once() {
    let service = Service::start(&[]).await;
    let store = memory();
    let mut webhooks = Webhooks::default();
    webhooks.add(Webhook::new(&service.url("/hook"), SECRET, vec![], vec![]).expect("a webhook")).expect("added");
    let outside = OutsideConfig { webhooks, ..OutsideConfig::default() };
    let keep = KeepConfig { poll: ms(1), ..KeepConfig::default() };
    let config = GatewayConfig { outside, keep, ..GatewayConfig::default() };
    let mut first = kept_stand(config.clone(), Some(store.clone())).await;
    let second = kept_stand(config, Some(store)).await;
    for n in 0..10 {
        background(&first, &format!("r{n}")).await;
        end(&mut first, Cause::Stop).await;
    }
    for n in 0..10 {
        shown(&second, &format!("r{n}"), |hooks| hooks[0]["state"] == "delivered").await;
    }
    let ids: std::collections::HashSet<String> = service.asked().iter().map(|one| one.header("webhook-id")).collect();
    assert_eq!((service.asked().len(), ids.len()), (10, 10));
}

fn entry(id: &str, url: &str, due_ms: i64) -> Write {
    let (id, url) = (id.to_owned(), url.to_owned());
    Write::Hook(Hook { id, run: key("gone"), url, body: b"{}".to_vec(), due_ms, tries: 0, last: None })
}

pub fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a calendar").as_millis();
    i64::try_from(now).expect("a date")
}

/// A gateway that does not know a webhook's URL leaves it, and more of them than it looks at at once, to those that do; and what nobody took for
/// long it counts as tries that failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_not_configured_here_is_left_to_another_gateway() {
    let (service, elsewhere) = (Service::start(&[]).await, Service::start(&[]).await);
    let stand = async |known: &Service, store: Arc<Memory>| {
        let mut webhooks = Webhooks::default();
        webhooks.add(Webhook::new(&known.url("/hook"), SECRET, vec![], vec![]).expect("a webhook")).expect("added");
        let outside = OutsideConfig { webhooks, webhook_retry: ms(1), webhook_retry_max: ms(3_600_000), ..OutsideConfig::default() };
        let keep = KeepConfig { poll: ms(5), ..KeepConfig::default() };
        kept_stand(GatewayConfig { outside, keep, ..GatewayConfig::default() }, Some(store)).await
    };
    let store = memory();
    let now = now_ms();
    let mut writes: Vec<Write> = (0..70).map(|n| entry(&format!("theirs{n}"), &elsewhere.url("/hook"), now - 100)).collect();
    writes.extend([entry("ours", &service.url("/hook"), now), entry("nobodys", "http://127.0.0.1:9/old", 0)]);
    store.commit(writes, Survives::Process).await.expect("written");
    let _first = stand(&service, store.clone()).await;
    assert_eq!(service.until_asked(1).await[0].header("webhook-id"), "ours");
    let hooks = soon("the old one is given up", async {
        loop {
            let hooks = store.hooks(&key("gone")).await.expect("known");
            // Its run is not there, so that nothing is left of it once it is over.
            if hooks.iter().all(|hook| hook.id != "nobodys") {
                return hooks;
            }
            // Its next time, long ago again.
            let again = Write::HookTried { id: "nobodys".to_owned(), due_ms: Some(0), last: "test".to_owned() };
            store.commit(vec![again], Survives::Process).await.expect("written");
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
    let theirs: Vec<_> = hooks.iter().filter(|hook| hook.id.starts_with("theirs")).collect();
    assert_eq!((theirs.len(), elsewhere.asked().len()), (70, 0));
    assert!(theirs.iter().all(|hook| hook.tries == 0 && hook.due_ms == Some(now - 100)), "{theirs:?}");
    let _second = stand(&elsewhere, store.clone()).await;
    elsewhere.until_asked(70).await;
}

/// A store that can be read and not written to is not asked again and again for what cannot be taken.
#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_of_which_nothing_can_be_taken_is_looked_at_once_and_then_waited_for() {
    let service = Service::start(&[]).await;
    let (store, weather) = (memory(), Arc::new(Weather::default()));
    let many = (0..200).map(|n| entry(&format!("h{n}"), &service.url("/hook"), 0)).collect();
    store.commit(many, Survives::Process).await.expect("written");
    weather.read_only.store(true, Ordering::SeqCst);
    let mut webhooks = Webhooks::default();
    webhooks.add(Webhook::new(&service.url("/hook"), SECRET, vec![], vec![]).expect("a webhook")).expect("added");
    let outside = OutsideConfig { webhooks, ..OutsideConfig::default() };
    let keep = KeepConfig { poll: ms(600_000), ..KeepConfig::default() };
    let config = GatewayConfig { outside, keep, ..GatewayConfig::default() };
    let stand = kept_stand(config, Some(Flaky::new(store, weather.clone()))).await;
    soon("it has looked", async {
        while weather.outbox.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(ms(1)).await;
        }
    })
    .await;
    for _ in 0..200 {
        assert_eq!(get(stand.addr, "/v1/models").await.status, 200);
    }
    // A look is two reads: one for tools, one for webhooks.
    assert_eq!(weather.outbox.load(Ordering::SeqCst), 2);
    assert!(service.asked().is_empty());
}
