//! OpenAI's objects and chunks, and what of a request reaches the worker.

use lifecycle::message::{Prompt, TokenLogprob};
use lifecycle::{Cause, Outcome};
use serde_json::{Value, json};

use crate::simulated::{Stand, default_stand};
use crate::wire::{Reply, chat, read_reply, request_text, send};

/// One request, its answer made of these pieces: (sequence, text, tokens, finish).
async fn generate(stand: &mut Stand, path: &str, body: &str, pieces: &[(u32, &str, usize, Option<Cause>)]) -> Reply {
    let mut socket = send(stand.addr, &request_text("POST", path, "X-Request-Id: r\r\n", body)).await;
    let attempt = stand.worker.accept().await.attempt;
    let mut generated = 0;
    for (sequence, text, tokens, finish) in pieces {
        let ids: Vec<u32> = (0..*tokens as u32).collect();
        generated += *tokens as u32;
        let mut delta = stand.worker.delta(&attempt, *sequence, text, &ids, *finish);
        if body.contains("logprobs") {
            delta.logprobs = ids.iter().map(|t| logprob(*t, text)).collect();
        }
        stand.worker.step(vec![delta]).await;
    }
    stand.worker.end(&attempt, Outcome::of(Cause::Stop), generated).await;
    let reply = read_reply(&mut socket).await;
    let run = stand.settled(attempt.key.run.as_str()).await;
    assert_eq!((&run["delivery"], &run["tokens"]["delivered"]), (&"complete".into(), &generated.into()));
    reply
}

fn logprob(token: u32, text: &str) -> TokenLogprob {
    let top = vec![(9, b"\xe2\x82".to_vec(), -0.5), (token, text.as_bytes().to_vec(), f32::NEG_INFINITY)];
    TokenLogprob { token, bytes: text.as_bytes().to_vec(), logprob: -1.5, top }
}

fn chunks(reply: &Reply) -> Vec<Value> {
    let mut events = reply.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    events.iter().map(|e| serde_json::from_str(e).expect("JSON")).collect()
}

/// Takes out what differs from run to run, after a look at it.
fn fixed(mut object: Value) -> Value {
    let map = object.as_object_mut().expect("an object");
    assert!(map.remove("created").is_some_and(|c| c.as_u64().is_some_and(|c| c > 1_600_000_000)));
    assert!(map.remove("system_fingerprint").is_some_and(|f| f.as_str().is_some_and(|f| f.starts_with("kvit-"))));
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_stream() {
    let mut stand = default_stand().await;
    let body = chat(r#","stream":true,"stream_options":{"include_usage":true}"#);
    // The second token's text is held back and comes with the third.
    let pieces = [(0, "He", 1, None), (0, "", 1, None), (0, "llo", 1, Some(Cause::Stop))];
    let reply = generate(&mut stand, "/v1/chat/completions", &body, &pieces).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type").as_deref(), Some("text/event-stream; charset=utf-8"));
    let choice = |delta: Value, reason: Value| {
        json!({"id": "chatcmpl-r", "object": "chat.completion.chunk", "model": "tiny", "usage": null,
               "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]})
    };
    let expected = [
        choice(json!({"role": "assistant", "content": ""}), Value::Null),
        choice(json!({"content": "He"}), Value::Null),
        choice(json!({"content": "llo"}), Value::Null),
        choice(json!({}), "stop".into()),
        json!({"id": "chatcmpl-r", "object": "chat.completion.chunk", "model": "tiny", "choices": [],
               "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6, "prompt_tokens_details": {"cached_tokens": 1}}}),
    ];
    assert_eq!(chunks(&reply).into_iter().map(fixed).collect::<Vec<_>>(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_chat_with_two_answers() {
    let mut stand = default_stand().await;
    let pieces = [(1, "B", 1, None), (0, "A", 1, Some(Cause::Length)), (1, "b", 1, Some(Cause::Stop))];
    let reply = generate(&mut stand, "/v1/chat/completions", &chat(r#","n":2"#), &pieces).await;
    assert_eq!(reply.header("content-type").as_deref(), Some("application/json"));
    let choice = |index: u32, text: &str, reason: &str| json!({"index": index, "message": {"role": "assistant", "content": text, "refusal": null}, "logprobs": null, "finish_reason": reason});
    let expected = json!({"id": "chatcmpl-r", "object": "chat.completion", "model": "tiny",
        "choices": [choice(0, "A", "length"), choice(1, "Bb", "stop")],
        "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6, "prompt_tokens_details": {"cached_tokens": 1}}});
    assert_eq!(fixed(reply.json()), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_answers_in_one_stream() {
    let mut stand = default_stand().await;
    let pieces = [(1, "B", 1, Some(Cause::Stop)), (0, "A", 1, Some(Cause::Stop))];
    let reply = generate(&mut stand, "/v1/chat/completions", &chat(r#","n":2,"stream":true"#), &pieces).await;
    let chunks = chunks(&reply);
    let seen: Vec<(u64, &Value, &Value)> = chunks
        .iter()
        .map(|c| &c["choices"][0])
        .map(|c| (c["index"].as_u64().expect("an index"), &c["delta"]["content"], &c["finish_reason"]))
        .collect();
    let (null, stop, empty) = (Value::Null, Value::from("stop"), Value::from(""));
    let expected =
        [(0, &empty, &null), (1, &empty, &null), (1, &"B".into(), &null), (1, &null, &stop), (0, &"A".into(), &null), (0, &null, &stop)];
    assert_eq!(seen, expected);
    assert!(chunks.iter().all(|c| c.get("usage").is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_completions() {
    let mut stand = default_stand().await;
    let pieces = [(0, "ab", 1, None), (0, "c", 1, Some(Cause::Length))];
    let reply = generate(&mut stand, "/v1/completions", r#"{"prompt":"x","model":"tiny"}"#, &pieces).await;
    let expected = json!({"id": "cmpl-r", "object": "text_completion", "model": "tiny",
        "choices": [{"text": "abc", "index": 0, "logprobs": null, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}}});
    assert_eq!(fixed(reply.json()), expected);
    let reply = generate(&mut stand, "/v1/completions", r#"{"prompt":[1,2],"stream":true}"#, &pieces).await;
    let texts: Vec<Value> =
        chunks(&reply).iter().map(|c| json!([c["object"], c["choices"][0]["text"], c["choices"][0]["finish_reason"]])).collect();
    assert_eq!(
        texts,
        [json!(["text_completion", "ab", null]), json!(["text_completion", "c", null]), json!(["text_completion", "", "length"])]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities() {
    let mut stand = default_stand().await;
    let pieces = [(0, "hé", 1, None), (0, "y", 1, Some(Cause::Stop))];
    let reply = generate(&mut stand, "/v1/chat/completions", &chat(r#","logprobs":true,"top_logprobs":2"#), &pieces).await;
    let logprobs = &reply.json()["choices"][0]["logprobs"];
    let top = |token: &str, bytes: &[u8]| json!([{"token": "bytes:\\xe2\\x82", "logprob": -0.5, "bytes": [226, 130]}, {"token": token, "logprob": -9999.0, "bytes": bytes}]);
    let entry =
        |token: &str| json!({"token": token, "logprob": -1.5, "bytes": token.as_bytes(), "top_logprobs": top(token, token.as_bytes())});
    assert_eq!(*logprobs, json!({"content": [entry("hé"), entry("y")], "refusal": null}));

    // Offsets are counted in characters, over all chunks.
    let reply = generate(&mut stand, "/v1/completions", r#"{"prompt":"x","logprobs":2,"stream":true}"#, &pieces).await;
    let chunks = chunks(&reply);
    let top = |token: &str| json!({"bytes:\\xe2\\x82": -0.5, token: -9999.0});
    let object =
        |at: u32, token: &str| json!({"text_offset": [at], "token_logprobs": [-1.5], "tokens": [token], "top_logprobs": [top(token)]});
    assert_eq!(chunks[0]["choices"][0]["logprobs"], object(0, "hé"));
    assert_eq!(chunks[1]["choices"][0]["logprobs"], object(2, "y"));
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_asked_for_reaches_the_worker() {
    let mut stand = default_stand().await;
    let body = r#"{"model":"tiny","messages":[{"role":"developer","content":"be brief"},{"role":"user","name":"x","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
        "temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"presence_penalty":0.2,"frequency_penalty":0.3,"repetition_penalty":1.1,
        "logit_bias":{"7":-100,"3":2.5},"seed":-1,"max_tokens":9,"max_completion_tokens":10,"n":2,"stop":"end","stop_token_ids":[5],
        "ignore_eos":true,"min_tokens":2,"cache_salt":"s","priority":-3,"logprobs":true,"timeout_ms":60000,
        "user":"u","metadata":{"a":1},"store":false,"tools":[],"response_format":{"type":"text"},"tool_choice":null}"#;
    let _socket = send(stand.addr, &request_text("POST", "/v1/chat/completions", "", body)).await;
    let submit = stand.worker.submit().await;
    let Prompt::Chat(turns) = &submit.prompt else { panic!("a chat was expected") };
    let turns: Vec<(&str, &str)> = turns.iter().map(|t| (t.role.as_str(), t.content.as_str())).collect();
    assert_eq!(turns, [("system", "be brief"), ("user", "ab")]);
    let (p, s) = (&submit.params, &submit.params.sampling);
    assert_eq!((s.temperature, s.top_p, s.top_k, s.min_p, s.presence_penalty), (0.5, 0.9, 40, 0.1, 0.2));
    assert_eq!((s.frequency_penalty, s.repetition_penalty, s.seed, s.min_tokens, s.logprobs), (0.3, 1.1, u64::MAX, 2, Some(0)));
    assert_eq!(s.logit_bias, [(3, 2.5), (7, -100.0)]);
    assert_eq!((p.max_tokens, p.n, p.ignore_eos, &*p.cache_salt, p.priority), (Some(10), 2, true, "s", -3));
    assert_eq!((&p.stop[..], &p.stop_token_ids[..]), (&["end".to_owned()][..], &[5][..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_are_openais_and_seeds_differ() {
    let mut stand = default_stand().await;
    let mut seeds = std::collections::HashSet::new();
    let mut sockets = Vec::new();
    for prompt in [r#"["only one"]"#, r#"[[1,2,3]]"#] {
        sockets.push(send(stand.addr, &request_text("POST", "/v1/completions", "", &format!(r#"{{"prompt":{prompt}}}"#))).await);
        let submit = stand.worker.submit().await;
        match submit.prompt {
            Prompt::Text(text) => assert_eq!(text, "only one"),
            Prompt::Tokens(ids) => assert_eq!(ids, [1, 2, 3]),
            Prompt::Chat(_) | Prompt::Forward(_) | Prompt::Worded(_) => panic!("no chat"),
        }
        let s = &submit.params.sampling;
        assert_eq!((s.temperature, s.top_p, submit.params.max_tokens, submit.params.n), (1.0, 1.0, None, 1));
        assert!(seeds.insert(s.seed));
    }
}
