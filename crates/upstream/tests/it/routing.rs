//! Where a run goes: to an engine that has its model and most likely its beginning, and to none that fails run after run; and what goes with it.
// contract: C-10 C-28 C-30

use std::sync::Arc;
use std::time::Duration;

use gateway::GatewayConfig;
use serde_json::{Value, json};
use tokio::sync::Notify;
use upstream::config::Secret;
use upstream::kind::{DeadlineBy, Kind};

use crate::engine::Engine;
use crate::script::{Step, chunk, last_chunk, reply, send, soon, stream_head};
use crate::stand::{self, Reply, Stand, before, chat, of, read, read_until};
use crate::through::TOKEN;

const WHOLE: &str = r#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],
    "usage":{"prompt_tokens":7,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}}"#;

fn good() -> Vec<Step> {
    vec![reply("200 OK", "application/json", WHOLE)]
}

fn broken() -> Vec<Step> {
    vec![reply("500 Internal Server Error", "application/json", "{}")]
}

async fn ask(stand: &Stand, id: &str, more: &Value) -> Reply {
    read(chat(stand.addr, id, false, more).await).await
}

fn asked(engine: &Engine, number: usize) -> String {
    engine.hands.asked.lock().expect("what was asked")[number].clone()
}

/// A sample of its metrics.
async fn metric(stand: &Stand, name: &str) -> u64 {
    let page = soon(stand::request(stand.addr, "GET", "/metrics", "", "")).await.body;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name}: {page}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_model_of_an_engine_is_served_under_its_own_name() {
    let engine = Engine::always(Kind::OpenAi, good()).await;
    let stand = before(&engine, |config| {
        of(Kind::OpenAi)(config);
        config.models = vec!["tiny".to_owned(), "org/big".to_owned()];
    })
    .await;
    assert_eq!(stand.models().await, ["tiny", "org/big"]);
    for model in ["tiny", "org/big"] {
        assert_eq!(ask(&stand, &format!("r-{}", model.len()), &json!({"model": model})).await.status, 200);
        assert_eq!(stand.settled(&format!("r-{}", model.len())).await["model"], model);
    }
    let body = json!({"model": "org/big", "input": "hi", "store": false}).to_string();
    soon(stand::request(stand.addr, "POST", "/v1/responses", "", &body)).await;
    assert!(asked(&engine, 1).contains(r#""model":"org/big""#) && asked(&engine, 2).contains(r#""model":"org/big""#));
    let none = ask(&stand, "r0", &json!({"model": "other"})).await;
    assert_eq!((none.status, none.error().0.as_str()), (404, "model_not_found"));
    stand.nothing_is_left(&[&engine]).await;
}

/// Fields that kvit's own engine would refuse show that it was not read by kvit.
// contract: C-29
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_before_an_engine_was_met_waits_and_goes_on_as_it_came() {
    let more = json!({"tools": [{"type": "function", "function": {"name": "f"}}], "guided_choice": ["a"], "logit_bias": {"5": "x"}});
    for (named, other) in [(true, false), (true, true), (false, false), (false, true)] {
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
        let mut config = stand::config(port);
        config.kind = Some(Kind::OpenAi);
        config.models.extend(named.then(|| stand::MODEL.to_owned()));
        let first = if other { Some(Engine::always(Kind::OpenAi, good()).await) } else { None };
        let first_config = first.as_ref().map(|engine| {
            let mut config = stand::config(engine.addr);
            (config.kind, config.models) = (Some(Kind::OpenAi), vec!["another".to_owned()]);
            config
        });
        let stand = stand::begin(GatewayConfig::default(), first_config.into_iter().chain([config]).collect()).await;
        if other {
            stand.until_state(&["here"]).await;
        }
        let socket = chat(stand.addr, "r1", false, &more).await;
        let body = json!({"model": stand::MODEL, "input": "a"}).to_string();
        let addr = stand.addr;
        let embedding = tokio::spawn(async move { soon(stand::request(addr, "POST", "/v1/embeddings", "", &body)).await.status });
        stand.until("r1", |run| run["state"] == "queued").await;
        let engine = Engine::at(port, Kind::OpenAi, |_| good()).await;
        assert_eq!((read(socket).await.status, embedding.await.expect("an answer")), (200, 200), "named {named}, other {other}");
        let chats = [0, 1].map(|number| asked(&engine, number)).into_iter().find(|text| text.contains("/v1/chat/completions"));
        let sent: Value = serde_json::from_str(chats.expect("it was asked").split_once("\r\n\r\n").expect("a body").1).expect("JSON");
        for (field, value) in more.as_object().expect("an object") {
            assert_eq!(&sent[field], value, "{sent}");
        }
        let engines: Vec<&Engine> = first.iter().chain([&engine]).collect();
        stand.nothing_is_left(&engines).await;
    }
}

/// However many wait for a model that nobody here has, they keep nobody from an engine that is free.
// contract: C-30
#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_turns_away_whoever_would_wait_and_nobody_who_has_a_slot() {
    let engine = Engine::always(Kind::OpenAi, good()).await;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
    let configs = [engine.addr, nobody].map(|addr| {
        let mut config = stand::config(addr);
        config.kind = Some(Kind::OpenAi);
        config
    });
    let gateway = GatewayConfig { queue_max: 2, ..GatewayConfig::default() };
    let stand = stand::begin(gateway, configs.into_iter().collect()).await;
    stand.until_state(&["here", "unknown"]).await;
    let mut waiting = Vec::new();
    for id in ["w1", "w2"] {
        waiting.push(chat(stand.addr, id, false, &json!({"model": "other"})).await);
        stand.until(id, |run| run["state"] == "queued").await;
    }
    let third = ask(&stand, "w3", &json!({"model": "other"})).await;
    assert_eq!((third.status, third.error().0.as_str()), (429, "queue_full"), "{third:?}");
    assert_eq!(ask(&stand, "r1", &json!({})).await.status, 200);
    drop(waiting);
    for id in ["w1", "w2"] {
        assert_eq!(stand.settled(id).await["outcome"]["cause"], "client_closed");
    }
    stand.nothing_is_left(&[&engine]).await;
}

/// What waits for a model that all upstreams turn out not to have is told so then, and not at the end of its time to wait.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_model_that_nobody_has_is_refused_when_all_are_known() {
    let ports = [0, 1].map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address"));
    let configs = ports.map(|port| {
        let mut config = stand::config(port);
        config.kind = Some(Kind::OpenAi);
        config
    });
    let stand = stand::begin(GatewayConfig::default(), configs.into()).await;
    let wants = json!({"model": "absent"});
    let (whole, stream) = (chat(stand.addr, "r1", false, &wants).await, chat(stand.addr, "r2", true, &wants).await);
    let body = json!({"model": "absent", "input": "hi", "store": false});
    let response = stand::post(stand.addr, "/v1/responses", "r3", &body).await;
    let served = chat(stand.addr, "r4", false, &json!({})).await;
    for id in ["r1", "r2", "r3", "r4"] {
        stand.until(id, |run| run["state"] == "queued").await;
    }
    let first = Engine::at(ports[0], Kind::OpenAi, |_| good()).await;
    // The other may have it.
    assert_eq!(read(served).await.status, 200);
    for id in ["r1", "r2", "r3"] {
        assert_eq!(stand.run(id)["state"], "queued", "{}", stand.run(id));
    }
    let second = Engine::at(ports[1], Kind::OpenAi, |_| good()).await;
    for (id, socket) in [("r1", whole), ("r2", stream), ("r3", response)] {
        let reply = soon(read(socket)).await;
        assert_eq!((reply.status, reply.error().0.as_str()), (404, "model_not_found"), "{reply:?}");
        let run = stand.settled(id).await;
        assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&json!("rejected"), &json!("invalid")), "{run}");
    }
    stand.nothing_is_left(&[&first, &second]).await;
}

/// Nothing is heard of an answer that is not streamed before its end: it is computed all the same, and waits for nothing.
// contract: C-28
#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_has_a_slot_for_takes_no_place_in_the_queue() {
    let ends = Arc::new(Notify::new());
    let told = ends.clone();
    let engine = Engine::each(Kind::OpenAi, move |_| [vec![Step::When(told.clone())], good()].concat()).await;
    let mut config = stand::config(engine.addr);
    (config.kind, config.slots) = (Some(Kind::OpenAi), Some(5));
    let stand = stand::stand(GatewayConfig { queue_max: 2, ..GatewayConfig::default() }, vec![config]).await;
    let mut sockets = Vec::new();
    for n in 0..7 {
        sockets.push(chat(stand.addr, &format!("r{n}"), false, &json!({})).await);
        stand.until(&format!("r{n}"), |run| run["state"] == "queued").await;
    }
    stand::until(|| engine.asked() == 5, || format!("{} were sent", engine.asked())).await;
    let full = ask(&stand, "r7", &json!({})).await;
    assert_eq!((full.status, full.error().0.as_str()), (429, "queue_full"));
    for socket in sockets {
        ends.notify_one();
        // Whichever has a slot ends.
        let ends = ends.clone();
        let reader = tokio::spawn(read(socket));
        while !reader.is_finished() {
            ends.notify_waiters();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(reader.await.expect("an answer").status, 200);
    }
    stand.nothing_is_left(&[&engine]).await;
}

// contract: C-30
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_gets_its_own_key_and_never_the_callers() {
    for own in [Some("sk-engine"), None] {
        let engine = Engine::always(Kind::OpenAi, good()).await;
        let stand = before(&engine, |config| config.api_key = own.map(Secret::new)).await;
        let body = json!({"model": stand::MODEL, "messages": [{"role": "user", "content": "hi"}]}).to_string();
        let headers = "Authorization: Bearer sk-caller\r\n";
        let reply = soon(stand::request(stand.addr, "POST", "/v1/chat/completions", headers, &body)).await;
        assert_eq!(reply.status, 200);
        let head = asked(&engine, 0);
        assert!(!head.contains("sk-caller"), "{head}");
        assert_eq!(head.contains("authorization: Bearer sk-engine"), own.is_some(), "{head}");
        stand.nothing_is_left(&[&engine]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_are_for_the_caller_pass_and_no_others() {
    let text = "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: 2\r\nRetry-After: 7\r\n\
                X-RateLimit-Remaining-Requests: 0\r\nSet-Cookie: a=b\r\nServer: secret-engine\r\nX-Request-Id: theirs\r\n\r\n{}";
    let engine = Engine::always(Kind::OpenAi, vec![send(text)]).await;
    let stand = before(&engine, of(Kind::OpenAi)).await;
    let reply = ask(&stand, "r1", &json!({})).await;
    assert_eq!((reply.status, reply.body.as_str()), (429, "{}"));
    let head = reply.head.to_ascii_lowercase();
    assert!(head.contains("retry-after: 7\r\n") && head.contains("x-ratelimit-remaining-requests: 0"), "{head}");
    assert!(!head.contains("cookie") && !head.contains("secret-engine") && !head.contains("theirs"), "{head}");
    stand.nothing_is_left(&[&engine]).await;
}

// contract: C-10
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_fails_run_after_run_gets_none_and_then_one_to_try() {
    // Two fail and open the circuit; the first trial fails, too; the second goes well.
    let engine = Engine::each(Kind::OpenAi, |number| if number < 3 { broken() } else { good() }).await;
    let stand = before(&engine, |config| {
        of(Kind::OpenAi)(config);
        // It closes behind each answer and does not say so.
        config.idle_connections_max = 0;
        (config.failures_max, config.open, config.open_max) = (2, Duration::from_millis(300), Duration::from_millis(300));
    })
    .await;
    for id in ["r0", "r1"] {
        assert_eq!(ask(&stand, id, &json!({})).await.status, 500);
    }
    stand.until_state(&["silent"]).await;
    assert_eq!(metric(&stand, "kvit_worker_up").await, 0);
    // Five wait; of a circuit that is open they see nothing, and of a trial that fails one does.
    let mut waiting = Vec::new();
    for id in ["r2", "r3", "r4", "r5", "r6"] {
        waiting.push(chat(stand.addr, id, false, &json!({})).await);
    }
    let mut told = Vec::new();
    for socket in waiting {
        told.push(read(socket).await.status);
    }
    told.sort_unstable();
    assert_eq!(told, [200, 200, 200, 200, 500]);
    stand.until_state(&["here"]).await;
    assert_eq!((engine.asked(), metric(&stand, "kvit_worker_up").await, metric(&stand, "kvit_worker_slots").await), (7, 1, 256));
    // Whether it is there again was asked by its models: a gateway's health may be an answer of each model behind it.
    assert_eq!(engine.healths(), 0);
    stand.nothing_is_left(&[&engine]).await;
}

/// One that was sent before is neither what is tried, nor does it keep anybody from being tried, nor does its end say anything.
// contract: C-10
#[tokio::test(flavor = "multi_thread")]
async fn only_the_run_that_is_tried_ends_a_trial() {
    for goes_well in [true, false] {
        let tells = [(); 2].map(|()| Arc::new(Notify::new()));
        let old = tells.clone();
        let engine = Engine::each(Kind::OpenAi, move |number| {
            let when = |told: usize| vec![stream_head(), chunk(TOKEN), Step::When(old[told].clone())];
            match number {
                0 if goes_well => [when(0), vec![chunk("data: [DONE]\n\n"), last_chunk()]].concat(),
                0 => when(0),
                1 => broken(),
                2 => [vec![Step::When(old[1].clone())], good()].concat(),
                _ => good(),
            }
        })
        .await;
        let stand = before(&engine, |config| {
            of(Kind::OpenAi)(config);
            config.idle_connections_max = 0;
            (config.failures_max, config.open, config.open_max) = (1, Duration::from_millis(10), Duration::from_secs(600));
        })
        .await;
        let mut first = chat(stand.addr, "r0", true, &json!({})).await;
        read_until(&mut first, TOKEN).await;
        assert_eq!(ask(&stand, "r1", &json!({})).await.status, 500);
        let tried = chat(stand.addr, "r2", false, &json!({})).await;
        stand::until(|| engine.asked() == 3, || "while one goes on that was sent before, none is tried".to_owned()).await;
        assert_eq!(stand.state().await, "trial");
        let waits = chat(stand.addr, "r3", false, &json!({})).await;
        stand.until("r3", |run| run["state"] == "queued").await;
        tells[0].notify_one();
        assert_eq!(
            stand.until("r0", |run| !run["outcome"].is_null()).await["outcome"]["kind"],
            ["failed", "completed"][usize::from(goes_well)]
        );
        assert_eq!((stand.state().await.as_str(), engine.asked()), ("trial", 3));
        tells[1].notify_one();
        assert_eq!((read(tried).await.status, read(waits).await.status), (200, 200));
        stand.until_state(&["here"]).await;
        drop(first);
        stand.nothing_is_left(&[&engine]).await;
    }
}

// contract: C-28
#[tokio::test(flavor = "multi_thread")]
async fn what_names_no_cap_gets_the_upstreams_own() {
    let engine = Engine::always(Kind::OpenAi, vec![stream_head(), chunk(TOKEN), Step::UntilClosed]).await;
    let stand = before(&engine, |config| {
        of(Kind::OpenAi)(config);
        (config.cap, config.max_tokens_only) = (Some(9), true);
    })
    .await;
    let newer = json!({"max_tokens": null, "max_completion_tokens": 6});
    for (id, named, bound) in [("r0", json!({"max_tokens": null}), 8), ("r1", json!({"max_tokens": 4}), 3), ("r2", newer, 5)] {
        let mut socket = chat(stand.addr, id, true, &named).await;
        read_until(&mut socket, TOKEN).await;
        drop(socket);
        let run = stand.settled(id).await;
        assert_eq!((&run["guarantee"], &run["waste_bound_tokens"]), (&json!("best_effort"), &json!(bound)), "{run}");
    }
    let sent = |number| serde_json::from_str::<Value>(asked(&engine, number).split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    assert_eq!([0, 1, 2].map(|number| sent(number)["max_tokens"].clone()), [9, 4, 6].map(|cap| json!(cap)));
    stand.nothing_is_left(&[&engine]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_engine_says_of_a_prompt_is_in_the_record() {
    let engine = Engine::always(Kind::OpenAi, good()).await;
    let stand = before(&engine, of(Kind::OpenAi)).await;
    assert_eq!(ask(&stand, "r1", &json!({})).await.status, 200);
    let run = stand.settled("r1").await;
    let at = |name: &str| run["milestones"][name].as_f64().unwrap_or_else(|| panic!("no {name}: {run}"));
    assert!(at("queued") <= at("first_token"), "{run}");
    let page = soon(stand::request(stand.addr, "GET", "/metrics", "", "")).await.body;
    assert!(page.contains("kvit_run_guarantees_total{guarantee=\"observed\"} 1\n"), "{page}");
    assert_eq!((&run["tokens"]["prompt"], &run["tokens"]["cached_prompt"], &run["tokens"]["generated"]), (&json!(7), &json!(3), &json!(1)));
    stand.nothing_is_left(&[&engine]).await;
}

/// llama.cpp says how many tokens there were whether or not somebody asked: a piece of a stream may have several, and the prompt has none.
#[tokio::test(flavor = "multi_thread")]
async fn what_llama_cpp_counted_is_in_the_record_of_who_asked_for_no_usage() {
    let end = concat!(
        r#"data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}],"#,
        r#""timings":{"cache_n":30,"prompt_n":3,"prompt_ms":58.7,"predicted_n":5,"predicted_ms":14.2}}"#,
        "\n\n"
    );
    let engine =
        Engine::always(Kind::LlamaCpp, vec![stream_head(), chunk(TOKEN), chunk(end), chunk("data: [DONE]\n\n"), last_chunk()]).await;
    let stand = before(&engine, of(Kind::LlamaCpp)).await;
    assert!(read(chat(stand.addr, "r1", true, &json!({})).await).await.body.contains("predicted_n"), "as it came");
    let run = stand.settled("r1").await;
    let tokens = ["prompt", "cached_prompt", "generated"].map(|name| run["tokens"][name].clone());
    assert_eq!(tokens, [json!(33), json!(30), json!(5)], "{run}");
    stand.nothing_is_left(&[&engine]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_stays_at_its_engine_and_many_are_spread() {
    let (first, second) = (Engine::always(Kind::OpenAi, good()).await, Engine::always(Kind::OpenAi, good()).await);
    let configs = [(&first, "a"), (&second, "b")].map(|(engine, name)| {
        let mut config = stand::config(engine.addr);
        of(Kind::OpenAi)(&mut config);
        name.clone_into(&mut config.name);
        config
    });
    let stand = stand::stand(GatewayConfig::default(), configs.into()).await;
    let mut counts = [0, 0];
    for conversation in 0..16 {
        let user = format!("subject {conversation}");
        let mut turns = vec![json!({"role": "system", "content": "be kind"}), json!({"role": "user", "content": user})];
        let mut at = Vec::new();
        for turn in 0..3 {
            let before = (first.asked(), second.asked());
            assert_eq!(ask(&stand, &format!("r-{conversation}-{turn}"), &json!({"messages": turns})).await.status, 200);
            at.push(usize::from(second.asked() > before.1));
            turns.push(json!({"role": "assistant", "content": "a"}));
            turns.push(json!({"role": "user", "content": format!("more {turn}")}));
            stand.settled(&format!("r-{conversation}-{turn}")).await;
        }
        assert!(at.iter().all(|engine| *engine == at[0]), "{conversation}: {at:?}");
        counts[at[0]] += 1;
    }
    assert!(counts.iter().all(|count| *count >= 3), "{counts:?}");
    stand.nothing_is_left(&[&first, &second]).await;
}

/// The time that a run has left goes on to whoever has a word for it, and a little more of it, so that the end is told here.
// contract: C-28
#[tokio::test(flavor = "multi_thread")]
async fn the_time_that_is_left_is_passed_on_to_those_that_take_it() {
    for (owner, deadline, name, unit) in [
        ("kvit", None, "x-request-timeout-ms", 1.0),
        ("kvit", Some(DeadlineBy::Nothing), "", 0.0),
        ("openai", Some(DeadlineBy::LiteLlm), "x-litellm-timeout", 1e3),
        ("openai", None, "", 0.0),
    ] {
        let engine = Engine::always(Kind::OpenAi, good()).await;
        engine.tells(|told| told.owner = owner);
        let stand = before(&engine, |config| {
            of(Kind::OpenAi)(config);
            config.deadline = deadline;
        })
        .await;
        assert_eq!(ask(&stand, "r1", &json!({"timeout_ms": 40_000})).await.status, 200);
        let head = asked(&engine, 0);
        let told = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let names = ["x-request-timeout-ms", "x-litellm-timeout"];
        assert!(names.iter().all(|other| *other == name || told(other).is_none()), "{owner} {deadline:?}: {head}");
        if !name.is_empty() {
            let ms = told(name).and_then(|value| value.parse::<f64>().ok()).expect("a number") * unit;
            assert!((500.0..=40_500.0).contains(&ms), "what was left when it was sent, and half a second: {head}");
        }
        stand.nothing_is_left(&[&engine]).await;
    }
}

/// LiteLLM is known by its word that it is alive, or by the first answer that it puts its headers on.
// contract: C-28
#[tokio::test(flavor = "multi_thread")]
async fn litellm_is_told_the_time_that_is_left_without_being_named() {
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-litellm-version: 1.108.7\r\ncontent-length: {}\r\n\r\n{WHOLE}",
        WHOLE.len()
    );
    for (alive, deadline, told) in
        [(true, None, [true, true]), (false, None, [false, true]), (true, Some(DeadlineBy::Nothing), [false, false])]
    {
        let answer = answer.clone();
        let engine = Engine::each(Kind::OpenAi, move |_| vec![send(&answer)]).await;
        engine.tells(|told| told.litellm = alive);
        let stand = before(&engine, |config| (config.deadline, config.idle_connections_max) = (deadline, 0)).await;
        for (number, told) in told.into_iter().enumerate() {
            assert_eq!(ask(&stand, &format!("r{number}"), &json!({"timeout_ms": 40_000})).await.status, 200);
            let head = asked(&engine, number);
            assert_eq!(head.contains("x-litellm-timeout: "), told, "{alive} {deadline:?} {number}: {head}");
            assert!(!head.contains("x-request-timeout-ms"), "{head}");
        }
        assert_eq!(engine.healths(), 0, "that would be a completion of each of its models");
        stand.nothing_is_left(&[&engine]).await;
    }
}

/// By its name there a line of the engine's log is joined to the run.
// contract: C-1
#[tokio::test(flavor = "multi_thread")]
async fn a_runs_record_says_what_the_engine_calls_it() {
    let engine = Engine::always(Kind::OpenAi, good()).await;
    let stand = before(&engine, |config| {
        of(Kind::OpenAi)(config);
        config.name = "behind".to_owned();
    })
    .await;
    let mut names = Vec::new();
    for (number, id) in ["r1", "r2"].into_iter().enumerate() {
        assert_eq!(ask(&stand, id, &json!({})).await.status, 200);
        let run = soon(stand::request(stand.addr, "GET", &format!("/v1/runs/{id}"), "", "")).await.json();
        let head = asked(&engine, number);
        let name = head.lines().find_map(|line| line.strip_prefix("x-request-id: ")).expect("a name");
        assert_eq!(run["engine"], json!({"upstream": "behind", "request": name}), "{run}");
        let page = observe::timeline::render_timeline(&run, 100, false);
        assert!(page.contains(&format!("engine behind calls it {name}\n")), "{page}");
        names.push(name.to_owned());
    }
    assert_ne!(names[0], names[1]);
    stand.nothing_is_left(&[&engine]).await;
}

/// Whatever completes is `observed`: of cancels there is a count of their own, for each engine.
// contract: C-29
#[tokio::test(flavor = "multi_thread")]
async fn cancels_are_counted_apart_by_how_well_they_are_proven() {
    let waits = |number: usize| if number == 0 { good() } else { vec![Step::UntilClosed] };
    let engine = Engine::each(Kind::OpenAi, waits).await;
    let stand = before(&engine, |config| {
        of(Kind::OpenAi)(config);
        (config.name, config.slots) = ("behind".to_owned(), Some(1));
    })
    .await;
    assert_eq!(ask(&stand, "r0", &json!({})).await.status, 200);
    let sent = chat(stand.addr, "r1", false, &json!({})).await;
    stand::until(|| engine.asked() == 2, || "it was not asked".to_owned()).await;
    let waits = chat(stand.addr, "r2", false, &json!({})).await;
    stand.until("r2", |run| run["state"] == "queued").await;
    drop(waits);
    stand.settled("r2").await;
    drop(sent);
    stand.settled("r1").await;
    for (labels, count) in [
        (r#"upstream="behind",guarantee="best_effort""#, 1),
        (r#"upstream="behind",guarantee="observed""#, 0),
        (r#"upstream="",guarantee="confirmed""#, 1),
    ] {
        assert_eq!(metric(&stand, &format!("kvit_cancel_guarantees_total{{{labels}}}")).await, count, "{labels}");
    }
    assert_eq!(metric(&stand, "kvit_run_guarantees_total{guarantee=\"observed\"}").await, 1, "what completed");
    stand.nothing_is_left(&[&engine]).await;
}

fn crowded(more: &str) -> Vec<Step> {
    let body = r#"{"error":{"message":"busy","code":"rate_limit_exceeded"}}"#;
    vec![send(&format!("HTTP/1.1 429 Busy\r\ncontent-type: application/json\r\n{more}content-length: {}\r\n\r\n{body}", body.len()))]
}

/// It refuses at once, so it has the least to do of all; and it is told so to one caller, not to each.
// contract: C-10
#[tokio::test(flavor = "multi_thread")]
async fn one_that_has_too_much_to_do_is_left_alone_for_as_long_as_it_says() {
    let first = Engine::always(Kind::OpenAi, crowded("retry-after: 40\r\n")).await;
    let second = Engine::always(Kind::OpenAi, good()).await;
    let configs = [&first, &second].map(|engine| {
        let mut config = stand::config(engine.addr);
        of(Kind::OpenAi)(&mut config);
        config
    });
    let gateway = GatewayConfig { affinity_bytes: 0, ..GatewayConfig::default() };
    let stand = stand::stand(gateway, configs.into()).await;
    let told = ask(&stand, "r0", &json!({})).await;
    assert!(told.status == 429 && told.head.contains("retry-after: 40"), "{told:?}");
    assert_eq!(stand.settled("r0").await["outcome"]["cause"], "queue_full");
    for n in 1..=5 {
        assert_eq!(ask(&stand, &format!("r{n}"), &json!({})).await.status, 200);
    }
    assert_eq!((first.asked(), second.asked()), (1, 5));
    stand.nothing_is_left(&[&first, &second]).await;
}

// contract: C-10
#[tokio::test(flavor = "multi_thread")]
async fn one_that_says_no_time_is_left_alone_for_a_short_one_and_then_gets_all_its_runs_again() {
    let engine = Engine::each(Kind::OpenAi, |number| if number == 0 { crowded("") } else { good() }).await;
    let stand = before(&engine, |config| {
        of(Kind::OpenAi)(config);
        config.open = Duration::from_millis(200);
    })
    .await;
    assert_eq!(ask(&stand, "r0", &json!({})).await.status, 429);
    // It waits here until then.
    assert_eq!(ask(&stand, "r1", &json!({})).await.status, 200);
    assert_eq!((stand.state().await.as_str(), engine.asked()), ("here", 2), "it was never on trial: that was no failure");
    stand.nothing_is_left(&[&engine]).await;
}
