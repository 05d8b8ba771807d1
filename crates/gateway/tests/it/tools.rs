//! Declared tools against a scripted payment service that counts calls and keys: called once when the answer is complete, never again once
//! they may have arrived, and again with the same key where they say that it makes no difference.
// contract: C-2 C-8 C-27
// field: F-83

use std::sync::Arc;

use gateway::{GatewayConfig, OutsideConfig, Webhook, Webhooks};
use lifecycle::message::Usage;
use lifecycle::{AttemptId, Cause, Incarnation, Outcome};
use serde_json::{Value, json};
use store::memory::Memory;
use store::{Effect, Hook, NewRun, RunStore, StoredRun, Survives, Write};

use crate::durable::flaky::{Flaky, Weather};
use crate::durable::life::Life;
use crate::effects::{memory, states};
use crate::outside::{Answer, Asked, Service};
use crate::simulated::{Stand, kept_stand, key, soon};
use crate::wire::{Reply, ask, cancel, get, ms};

fn config(service: &Service) -> GatewayConfig {
    let outside = OutsideConfig {
        tool_urls: service.url("/pay").parse().expect("a prefix"),
        tool_timeout_max: ms(400),
        tool_tries_max: 3,
        ..OutsideConfig::default()
    };
    let keep = gateway::KeepConfig { poll: ms(20), ..gateway::KeepConfig::default() };
    GatewayConfig { outside, keep, ..GatewayConfig::default() }
}

async fn kept(service: &Service, store: &Arc<Memory>) -> Stand {
    kept_stand(config(service), Some(store.clone())).await
}

fn tool(service: &Service, name: &str, more: Value) -> Value {
    let mut tool = json!({"type": "kvit_http", "name": name, "url": service.url("/pay"), "arguments": {"amount": 7}});
    tool.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    tool
}

async fn create(stand: &Stand, id: &str, tools: &[Value]) -> Reply {
    let body = json!({"input": "hi", "background": true, "tools": tools});
    ask(stand.addr, "POST", "/v1/responses", &format!("X-Request-Id: {id}\r\n"), &body.to_string()).await
}

/// The answer comes to its end.
async fn complete(stand: &mut Stand) {
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "the ").await;
    let last = stand.worker.delta(&attempt, 0, "Rhine", &[8], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Stop), 2).await;
}

async fn until(stand: &Stand, id: &str, wanted: &[&str]) -> Value {
    soon("the effects as wanted", async {
        loop {
            let list = get(stand.addr, &format!("/v1/runs/{id}/effects")).await.json()["data"].clone();
            if states(&list) == wanted {
                return list;
            }
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await
}

/// Nothing of the run waits in the outbox any more.
async fn over(store: &Arc<Memory>, id: &str) {
    soon("the entry is over", async {
        while store.hooks(&key(id)).await.expect("known").iter().any(|hook| hook.due_ms.is_some()) {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

fn keys(asked: &[Asked]) -> Vec<String> {
    asked.iter().map(|asked| asked.header("idempotency-key")).collect()
}

// contract: C-27
#[tokio::test(flavor = "multi_thread")]
async fn tools_are_called_once_when_the_answer_is_complete() {
    let service = Service::start(&[]).await;
    let store = memory();
    let mut stand = kept(&service, &store).await;
    let created = create(&stand, "r1", &[tool(&service, "charge", json!({})), tool(&service, "mail", json!({"method": "PUT"}))]).await;
    assert_eq!(created.status, 200, "{}", created.body);
    // Noted before anything else happens, and nothing is sent while the answer grows.
    assert_eq!(states(&get(stand.addr, "/v1/runs/r1/effects").await.json()["data"]), ["tool:charge intended", "tool:mail intended"]);
    assert!(service.asked().is_empty());
    complete(&mut stand).await;
    let list = until(&stand, "r1", &["tool:charge committed", "tool:mail committed"]).await;
    assert_eq!(
        (&list[0]["kind"], list[0]["description"].as_str()),
        (&"kvit_http".into(), Some(format!("POST {}", service.url("/pay")).as_str()))
    );
    let detail: Value = serde_json::from_str(list[0]["detail"].as_str().expect("a detail")).expect("JSON");
    assert_eq!(detail, json!({"status": 200, "body": "{\"id\":\"ch_1\"}"}));
    let asked = service.asked();
    assert_eq!(asked.len(), 2);
    assert!(asked[0].head.starts_with("POST /pay HTTP/1.1") && asked[1].head.starts_with("PUT /pay HTTP/1.1"));
    assert_eq!(asked[0].json(), json!({"run": "r1", "tool": "charge", "arguments": {"amount": 7}, "text": "the Rhine"}));
    let keys = keys(&asked);
    assert!(keys[0].starts_with("kvit-") && keys[0] != keys[1], "{keys:?}");
    // A caller may not say what kvit knows better.
    let meddled = ask(stand.addr, "PATCH", "/v1/runs/r1/effects/tool:charge", "", r#"{"state":"failed"}"#).await;
    assert_eq!(meddled.status, 409);

    // Another entry for the same run, as a crash behind the last answer leaves one: what is committed is not sent again.
    let again =
        Hook { id: "again".to_owned(), run: key("r1"), url: "kvit:tools".to_owned(), body: vec![], due_ms: 0, tries: 0, last: None };
    store.commit(vec![Write::Hook(again)], Survives::Machine).await.expect("written");
    over(&store, "r1").await;
    assert_eq!(service.asked().len(), 2);
    let page = get(stand.addr, "/metrics").await.body;
    assert!(page.contains("kvit_tool_calls_total{state=\"committed\"} 2"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_does_not_complete_calls_nothing() {
    let service = Service::start(&[]).await;
    let mut stand = kept(&service, &memory()).await;
    create(&stand, "r1", &[tool(&service, "charge", json!({}))]).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "the ").await;
    let addr = stand.addr;
    let cancelling = tokio::spawn(async move { cancel(addr, "r1", 5_000).await.json() });
    stand.worker.obey(&attempt).await;
    let run = cancelling.await.expect("answered");
    assert_eq!((states(&run["effects"]), &run["outcome"]["kind"]), (vec!["tool:charge failed".to_owned()], &"cancelled".into()));
    assert!(service.asked().is_empty());
}

/// F-83: a cancel while a tool is being called. One call; the next tool is not begun; the late answer is noted as what it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_in_the_middle_of_a_call_begins_no_other_and_does_not_repeat_it() {
    let service = Service::start(&[Answer::Held]).await;
    let mut stand = kept_stand(
        GatewayConfig { outside: OutsideConfig { tool_timeout_max: ms(30_000), ..config(&service).outside }, ..config(&service) },
        Some(memory()),
    )
    .await;
    let safe = json!({"safe_to_repeat": true});
    create(&stand, "r1", &[tool(&service, "charge", safe), tool(&service, "mail", json!({}))]).await;
    complete(&mut stand).await;
    service.until_asked(1).await;
    let run = cancel(stand.addr, "r1", 100).await.json();
    assert_eq!(states(&run["effects"]), ["tool:charge unknown", "tool:mail failed"]);
    assert_eq!(run["outcome"]["kind"], "completed", "the answer had been complete; a cancel does not undo it");
    service.release();
    until(&stand, "r1", &["tool:charge committed", "tool:mail failed"]).await;
    assert_eq!(service.asked().len(), 1);
}

/// The same by the response's own cancel, which is answered with what was done outside.
// contract: C-8 C-27
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_a_response_that_is_complete_stops_its_tools_too() {
    let service = Service::start(&[Answer::Held]).await;
    let outside = OutsideConfig { tool_timeout_max: ms(30_000), ..config(&service).outside };
    let store = memory();
    let mut stand = kept_stand(GatewayConfig { outside, cancel_wait: ms(100), ..config(&service) }, Some(store.clone())).await;
    create(&stand, "r1", &[tool(&service, "charge", json!({})), tool(&service, "mail", json!({}))]).await;
    complete(&mut stand).await;
    service.until_asked(1).await;
    let answer = ask(stand.addr, "POST", "/v1/responses/resp_r1/cancel", "", "").await;
    let response = answer.json();
    assert_eq!((answer.status, &response["status"]), (200, &"completed".into()), "{}", answer.body);
    assert_eq!(states(&response["kvit"]["effects"]), ["tool:charge unknown", "tool:mail failed"]);
    service.release();
    let list = until(&stand, "r1", &["tool:charge committed", "tool:mail failed"]).await;
    assert_eq!(list[1]["detail"], "not begun: the run was cancelled");
    over(&store, "r1").await;
    assert_eq!(service.asked().len(), 1, "no further tool after the cancel was answered");
}

async fn delete(stand: &Stand, id: &str) {
    let deleted = ask(stand.addr, "DELETE", &format!("/v1/responses/resp_{id}"), "", "").await;
    assert_eq!(deleted.status, 200, "{}", deleted.body);
}

/// Deleted while its first tool is being called: that one's answer is noted, and no other is begun.
// contract: C-27
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_deleted_while_its_tools_are_called_calls_no_further_one() {
    let service = Service::start(&[Answer::Held]).await;
    let store = memory();
    let mut stand = kept(&service, &store).await;
    create(&stand, "r1", &[tool(&service, "charge", json!({})), tool(&service, "mail", json!({}))]).await;
    complete(&mut stand).await;
    service.until_asked(1).await;
    delete(&stand, "r1").await;
    service.release();
    until(&stand, "r1", &["tool:charge committed", "tool:mail failed"]).await;
    over(&store, "r1").await;
    assert_eq!(service.asked().len(), 1);
}

/// Deleted while one that is safe to repeat waits to be sent again: it is not sent again, and what became of its tries is said.
// contract: C-27
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_deleted_between_two_tries_of_a_tool_sends_no_second_one() {
    for (answer, state) in [(Answer::Status(500, ""), "tool:charge unknown"), (Answer::Status(429, ""), "tool:charge failed")] {
        let service = Service::start(&[answer]).await;
        let store = memory();
        let mut stand = kept(&service, &store).await;
        create(&stand, "r1", &[tool(&service, "charge", json!({"safe_to_repeat": true}))]).await;
        complete(&mut stand).await;
        service.until_asked(1).await;
        delete(&stand, "r1").await;
        until(&stand, "r1", &[state]).await;
        over(&store, "r1").await;
        assert_eq!(service.asked().len(), 1);
    }
}

/// The gateway is gone between submitted and committed. The next one does not send it again: nobody can say.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_the_middle_of_a_call_makes_it_unknown() {
    let service = Service::start(&[Answer::Held]).await;
    let store = memory();
    let mut first = kept(&service, &store).await;
    create(&first, "r1", &[tool(&service, "charge", json!({"timeout_ms": 300})), tool(&service, "mail", json!({}))]).await;
    complete(&mut first).await;
    service.until_asked(1).await;
    first.served.abort();
    let _ = (&mut first.served).await;
    let effects = store.effects(&key("r1")).await.expect("known");
    assert_eq!([effects[0].state.as_str(), effects[1].state.as_str()], ["submitted", "intended"]);
    due_now(&store).await;
    let second = kept(&service, &store).await;
    let list = until(&second, "r1", &["tool:charge unknown", "tool:mail committed"]).await;
    assert_eq!(list[0]["detail"], "the gateway that sent it is gone");
    let asked = service.asked();
    assert_eq!(asked.iter().filter(|asked| asked.json()["tool"] == "charge").count(), 1, "never twice");
    // Somebody looks at the service's books, and says so.
    let found = ask(second.addr, "PATCH", "/v1/runs/r1/effects/tool:charge", "", r#"{"state":"committed"}"#).await;
    assert_eq!((found.status, &found.json()["state"]), (200, &"committed".into()));
}

/// While one gateway calls a tool, another one whose clock is far ahead looks at the same entry: it is not due for it, whatever the calendar says.
// contract: C-27
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_clock_is_ahead_takes_no_tool_from_one_that_is_calling_it() {
    let (service, told) = (Service::start(&[Answer::Held]).await, Service::start(&[]).await);
    let store = Memory::new(store::StoreConfig::at("memory"), false);
    let long = OutsideConfig { tool_timeout_max: ms(30_000), ..config(&service).outside };
    let mut first = kept_stand(GatewayConfig { outside: long.clone(), ..config(&service) }, Some(store.clone())).await;
    let mut webhooks = Webhooks::default();
    let webhook = Webhook::new(&told.url("/hook"), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", vec![], vec![]).expect("a webhook");
    webhooks.add(webhook).expect("added");
    let config = GatewayConfig { outside: OutsideConfig { webhooks, ..long }, ..config(&service) };
    let second = Life::begin(Incarnation(2), config, Flaky::new(store.clone(), Arc::new(Weather::default())));
    create(&first, "r1", &[tool(&service, "charge", json!({})), tool(&service, "mail", json!({}))]).await;
    complete(&mut first).await;
    service.until_asked(1).await;
    // For a clock that is ahead it has been due for long.
    due_now(&store).await;
    // When the second one has sent these, it has looked at the whole outbox since then.
    for number in 1..4 {
        let (id, run, url) = (format!("look{number}"), key("gone"), told.url("/hook"));
        // Due for a moment: one that is due for long is anybody's.
        let look = Write::Hook(Hook { id, run, url, body: vec![], due_ms: crate::webhooks::now_ms(), tries: 0, last: None });
        store.commit(vec![look], Survives::Machine).await.expect("written");
        told.until_asked(number).await;
    }
    let effects = store.effects(&key("r1")).await.expect("known");
    assert_eq!([effects[0].state.as_str(), effects[1].state.as_str()], ["submitted", "intended"]);
    assert_eq!(service.asked().len(), 1);
    service.release();
    until(&first, "r1", &["tool:charge committed", "tool:mail committed"]).await;
    assert_eq!(service.asked().len(), 2);
    second.kill().await;
}

/// The operator takes a URL off the list between a run's acceptance and its end: what was declared is not sent.
// contract: C-28
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_whose_url_is_no_longer_listed_is_not_called() {
    let service = Service::start(&[]).await;
    let store = memory();
    let mut first = kept(&service, &store).await;
    create(&first, "r1", &[tool(&service, "charge", json!({}))]).await;
    first.served.abort();
    let _ = (&mut first.served).await;
    let like = store.run(&key("r1")).await.expect("it is there").expect("it is there");
    let outside = OutsideConfig { tool_urls: service.url("/other").parse().expect("a prefix"), ..config(&service).outside };
    let second = kept_stand(GatewayConfig { outside, ..config(&service) }, Some(store.clone())).await;
    // One like it that has completed, and of which its gateway has called nothing yet.
    let mut writes = completed("r2", like, store.effects(&key("r1")).await.expect("known"));
    let entry = Hook { id: "r2".into(), run: key("r2"), url: "kvit:tools".into(), body: vec![], due_ms: 0, tries: 0, last: None };
    writes.push(Write::Hook(entry));
    store.commit(writes, Survives::Machine).await.expect("written");
    let list = until(&second, "r2", &["tool:charge failed"]).await;
    assert!(list[0]["detail"].as_str().is_some_and(|detail| detail.contains("tool_urls")), "{list}");
    assert!(service.asked().is_empty());
}

/// A run that another one is like, from its acceptance to its end.
fn completed(id: &str, like: StoredRun, effects: Vec<Effect>) -> Vec<Write> {
    let run = key(id);
    let attempt = AttemptId { key: run.clone(), attempt: 0 };
    let new = NewRun {
        tenant: run.tenant.clone(),
        wish: None,
        fresh: run.run.clone(),
        door: like.door,
        model: like.model,
        caller: like.caller,
        on_disconnect: like.on_disconnect,
        keeps: true,
        owner: like.owner,
        created_ms: like.created_ms,
        expires_ms: None,
        request: like.request,
        joining: None,
    };
    let (outcome, usage, now_ms) = (Outcome::of(Cause::Stop), Usage::default(), like.created_ms);
    let end = Write::End { attempt, owner: like.owner, outcome, usage, last: None, hooks: Vec::new(), now_ms };
    let effects = effects.into_iter().map(|effect| Write::Intend { run: run.clone(), effect, max: 9 });
    [Write::Accept(Box::new(new))].into_iter().chain(effects).chain([end]).collect()
}

/// The same with a tool that is safe to repeat: it is sent again, with the same key.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_the_middle_of_a_safe_call_repeats_it_with_its_key() {
    let service = Service::start(&[Answer::Held]).await;
    let store = memory();
    let mut first = kept(&service, &store).await;
    create(&first, "r1", &[tool(&service, "charge", json!({"safe_to_repeat": true}))]).await;
    complete(&mut first).await;
    service.until_asked(1).await;
    first.served.abort();
    let _ = (&mut first.served).await;
    due_now(&store).await;
    let second = kept(&service, &store).await;
    until(&second, "r1", &["tool:charge committed"]).await;
    let keys = keys(&service.asked());
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]), "two calls, one key");
}

/// Whoever took an entry and is gone has it for a while; here that time is over.
async fn due_now(store: &Arc<Memory>) {
    let hooks = store.hooks(&key("r1")).await.expect("known");
    for hook in hooks {
        let write = Write::HookTried { id: hook.id, due_ms: Some(0), last: "test".to_owned() };
        store.commit(vec![write], Survives::Process).await.expect("written");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_safe_is_repeated_and_what_is_certain_is_said() {
    let script = [
        Answer::Status(500, "who knows"),
        Answer::Status(503, ""),
        Answer::Closed,
        Answer::Status(200, "done"),
        Answer::Status(402, "no money"),
        Answer::Redirect("http://127.0.0.1:9/".to_owned()),
        Answer::Status(429, ""),
        Answer::Status(200, "done"),
    ];
    let service = Service::start(&script).await;
    let mut stand = kept(&service, &memory()).await;
    let safe = || json!({"safe_to_repeat": true});
    let tools = [
        tool(&service, "a", json!({})),
        tool(&service, "b", safe()),
        tool(&service, "c", json!({})),
        tool(&service, "d", safe()),
        tool(&service, "e", safe()),
    ];
    create(&stand, "r1", &tools).await;
    complete(&mut stand).await;
    let wanted = ["tool:a unknown", "tool:b committed", "tool:c failed", "tool:d failed", "tool:e committed"];
    let list = until(&stand, "r1", &wanted).await;
    let details: Vec<&str> = list.as_array().expect("a list").iter().map(|effect| effect["detail"].as_str().expect("a detail")).collect();
    assert!(details[0].contains("500") && details[2].contains("no money") && details[3].contains("302"), "{details:?}");
    let names: String = service.asked().iter().map(|asked| asked.json()["tool"].as_str().expect("a name").to_owned()).collect();
    assert_eq!(names, "abbbcdee");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_listed_urls_are_called_and_only_for_background_runs() {
    let service = Service::start(&[]).await;
    let stand = kept(&service, &memory()).await;
    let refused = async |tools: Value, background: bool| {
        let body = json!({"input": "hi", "background": background, "tools": tools});
        let answer = ask(stand.addr, "POST", "/v1/responses", "", &body.to_string()).await;
        assert_eq!(answer.status, 400, "{}", answer.body);
        let error = answer.json()["error"].clone();
        (error["param"].as_str().unwrap_or_default().to_owned(), error["code"].as_str().unwrap_or_default().to_owned())
    };
    let with = |more: Value| json!([tool(&service, "a", more)]);
    let said = |param: &str, code: &str| (param.to_owned(), code.to_owned());
    for url in ["http://127.0.0.1:1/pay", &service.url("/payments"), &service.url("/pay/../admin"), "http://169.254.169.254/latest"] {
        assert_eq!(refused(with(json!({"url": url})), true).await, said("tools[0].url", "url_not_allowed"), "{url}");
    }
    assert_eq!(refused(with(json!({})), false).await, said("tools", "tools_need_background"));
    assert_eq!(refused(with(json!({"name": "a b"})), true).await.0, "tools[0].name");
    assert_eq!(refused(with(json!({"method": "TRACE"})), true).await.0, "tools[0].method");
    assert_eq!(refused(with(json!({"timeout_ms": 401})), true).await.0, "tools[0].timeout_ms");
    assert_eq!(refused(with(json!({"headers": {}})), true).await.0, "tools[0].headers");
    assert_eq!(refused(json!([tool(&service, "a", json!({})), tool(&service, "a", json!({}))]), true).await.0, "tools");
    assert_eq!(refused(json!([{"type": "web_search"}]), true).await.0, "tools");
    assert!(service.asked().is_empty());
}
