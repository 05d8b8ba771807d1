//! The Responses API in front of engines of others: functions and their calls, forms of an answer and log-probabilities in the words of chat
//! completions, and back.
// contract: C-6

use serde_json::{Value, json};
use upstream::kind::Kind;

use crate::engine::Engine;
use crate::script::{Step, chunk, last_chunk, reply, soon, stream_head};
use crate::stand::{self, Reply, Stand, before, of, post, read, read_until};

fn event(choice: &Value) -> Step {
    chunk(&format!("data: {}\n\n", json!({"id": "x", "object": "chat.completion.chunk", "choices": [choice]})))
}

fn part(delta: &Value) -> Step {
    event(&json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}))
}

fn ending(finish: &str) -> Vec<Step> {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15}});
    let last = event(&json!({"index": 0, "delta": {}, "finish_reason": finish}));
    vec![last, chunk(&format!("data: {usage}\n\ndata: [DONE]\n\n")), last_chunk()]
}

/// Two calls as vLLM streams them.
fn calls() -> Vec<Step> {
    let begins = |n: u32| {
        let call = json!({"id": format!("t{n}"), "type": "function", "index": n, "function": {"name": "depth"}});
        json!({"content": null, "tool_calls": [call]})
    };
    let goes_on = |n: u32, part: &str| json!({"content": null, "tool_calls": [{"index": n, "function": {"arguments": part}}]});
    let said = [
        json!({"role": "assistant", "content": ""}),
        json!({"content": "I look."}),
        begins(0),
        goes_on(0, "{\"of\": "),
        goes_on(0, "\"Rhine\"}"),
        begins(1),
        goes_on(1, "{\"of\": \"Elbe\"}"),
    ];
    [vec![stream_head()], said.iter().map(part).collect(), ending("tool_calls")].concat()
}

fn tools() -> Value {
    json!([{"type": "function", "name": "depth", "description": "How deep a river is", "parameters": {"type": "object"}, "strict": false}])
}

async fn ask(stand: &Stand, id: &str, more: &Value) -> Reply {
    let mut body = json!({"model": stand::MODEL, "input": "How deep are they?", "store": false});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    soon(read(post(stand.addr, "/v1/responses", id, &body).await)).await
}

/// What the engine was asked, as JSON.
fn asked(engine: &Engine, number: usize) -> Value {
    let text = engine.hands.asked.lock().expect("what was asked")[number].clone();
    assert!(text.starts_with("POST /v1/chat/completions "), "{text}");
    serde_json::from_str(text.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
}

fn events(reply: &Reply) -> Vec<Value> {
    let data = |frame: &str| frame.split_once("\ndata: ").map(|(_, data)| serde_json::from_str(data).expect("JSON"));
    reply.body.split("\n\n").filter_map(data).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_reach_the_engine_and_its_calls_come_back_as_items() {
    let engine = Engine::always(Kind::OpenAi, calls()).await;
    let stand = before(&engine, of(Kind::OpenAi)).await;
    let more = json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": true, "max_output_tokens": 50});
    let whole = ask(&stand, "r1", &more).await;
    assert_eq!(whole.status, 200, "{whole:?}");
    let response = whole.json();
    let item = |n: u32, river: &str| {
        json!({"id": format!("fc_r1_{}", n + 1), "type": "function_call", "status": "completed", "call_id": format!("t{n}"),
               "name": "depth", "arguments": format!("{{\"of\": \"{river}\"}}")})
    };
    assert_eq!((&response["status"], &response["output"][0]["content"][0]["text"]), (&json!("completed"), &json!("I look.")));
    assert_eq!(response["output"].as_array().expect("items")[1..], [item(0, "Rhine"), item(1, "Elbe")]);
    assert_eq!((&response["tools"], &response["tool_choice"]), (&tools(), &json!("required")));
    assert_eq!(response["usage"]["output_tokens"], 6);
    let sent = asked(&engine, 0);
    let function = json!({"name": "depth", "description": "How deep a river is", "parameters": {"type": "object"}, "strict": false});
    assert_eq!((&sent["tools"], &sent["tool_choice"]), (&json!([{"type": "function", "function": function}]), &json!("required")));
    assert_eq!((&sent["model"], &sent["stream"], &sent["max_tokens"]), (&json!(stand::MODEL), &json!(true), &json!(50)));
    assert!(sent.get("parallel_tool_calls").is_none() && sent.get("response_format").is_none(), "{sent}");
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["kind"], &run["tokens"]["delivered"]), (&json!("completed"), &json!(6)), "{run}");

    let streamed = ask(&stand, "r2", &json!({"tools": tools(), "stream": true})).await;
    let events = events(&streamed);
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().expect("a type").trim_start_matches("response.")).collect();
    let call = ["output_item.added", "function_call_arguments.delta"];
    let done = ["function_call_arguments.done", "output_item.done"];
    let expected = [
        &["created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"][..],
        &["output_text.done", "content_part.done", "output_item.done"],
        &call,
        &call[1..],
        &call,
        &done,
        &done,
        &["completed"],
    ];
    assert_eq!(kinds, expected.concat());
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], i, "{event}");
    }
    let of_last = |kind: &str| events.iter().rfind(|event| event["type"] == kind).expect("one").clone();
    let last = of_last("response.function_call_arguments.done");
    assert_eq!((&last["item_id"], &last["output_index"]), (&json!("fc_r2_2"), &json!(2)));
    assert_eq!((&last["name"], &last["arguments"]), (&json!("depth"), &json!("{\"of\": \"Elbe\"}")));
    assert_eq!(of_last("response.completed")["response"]["output"][2], of_last("response.output_item.done")["item"]);
    stand.settled("r2").await;
    stand.nothing_is_left(&[&engine]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_functions_returned_goes_on_as_messages_of_tools() {
    let engine = Engine::always(Kind::OpenAi, [vec![stream_head(), part(&json!({"content": "12 m"}))], ending("stop")].concat()).await;
    let stand = before(&engine, of(Kind::OpenAi)).await;
    let input = json!([
        {"role": "user", "content": "How deep is the Rhine?"},
        {"type": "function_call", "id": "fc_1", "call_id": "t0", "name": "depth", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "t0", "output": "12 m"},
    ]);
    let reply = ask(&stand, "r1", &json!({"input": input, "tools": tools(), "parallel_tool_calls": false})).await;
    assert_eq!((reply.status, &reply.json()["output"][0]["content"][0]["text"]), (200, &json!("12 m")), "{reply:?}");
    let sent = asked(&engine, 0);
    let call = json!({"id": "t0", "type": "function", "function": {"name": "depth", "arguments": "{}"}});
    assert_eq!(
        sent["messages"],
        json!([
            {"role": "user", "content": "How deep is the Rhine?"}, {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "t0", "content": "12 m"},
        ])
    );
    assert_eq!(sent["parallel_tool_calls"], false);
    stand.nothing_is_left(&[&engine]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_is_asked_for_and_log_probabilities_come_back() {
    let likely = |text: &str| {
        let other = json!({"token": "x", "logprob": -1.5, "bytes": null});
        json!({"token": text, "logprob": -0.5, "bytes": text.as_bytes(), "top_logprobs": [other]})
    };
    // Twice the same, so that nothing tells the second event from the first.
    let said = |text: &str| {
        event(&json!({"index": 0, "delta": {"content": text}, "logprobs": {"content": [likely(text)]}, "finish_reason": null}))
    };
    let engine = Engine::always(Kind::OpenAi, [vec![stream_head(), said("7"), said("7")], ending("stop")].concat()).await;
    let stand = before(&engine, of(Kind::OpenAi)).await;
    let schema = json!({"type": "json_schema", "name": "n", "strict": true, "schema": {"type": "integer"}});
    let more = json!({"text": {"format": schema}, "top_logprobs": 1, "include": ["message.output_text.logprobs"]});
    let reply = ask(&stand, "r1", &more).await;
    let response = reply.json();
    let part = &response["output"][0]["content"][0];
    let entry = json!({"token": "7", "logprob": -0.5, "bytes": [55], "top_logprobs": [{"token": "x", "logprob": -1.5, "bytes": [120]}]});
    assert_eq!((&part["text"], &part["logprobs"]), (&json!("77"), &json!([entry, entry])), "{reply:?}");
    assert_eq!((&response["text"]["format"], &response["top_logprobs"]), (&schema, &json!(1)));
    let sent = asked(&engine, 0);
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": {"type": "integer"}}});
    assert_eq!((&sent["response_format"], &sent["logprobs"], &sent["top_logprobs"]), (&format, &json!(true), &json!(1)));
    stand.nothing_is_left(&[&engine]).await;
}

/// vLLM refuses functions unless it was started with a parser for their calls.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_engine_refuses_is_refused_in_its_words() {
    let words = "\"auto\" tool choice requires --enable-auto-tool-choice";
    let body = json!({"error": {"message": words, "type": "BadRequestError", "code": 400}}).to_string();
    let engine = Engine::always(Kind::OpenAi, vec![reply("400 Bad Request", "application/json", &body)]).await;
    let stand = before(&engine, of(Kind::OpenAi)).await;
    for stream in [false, true] {
        let reply = ask(&stand, if stream { "r1" } else { "r2" }, &json!({"tools": tools(), "stream": stream})).await;
        assert_eq!((reply.status, reply.error().1), (400, format!("the engine answered 400: {words}")), "{reply:?}");
    }
    stand.nothing_is_left(&[&engine]).await;
}

/// Whoever reads a call as done makes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_breaks_off_is_no_call() {
    let steps: Vec<Step> = calls().into_iter().take(5).collect();
    for (steps, cause) in [(steps.clone(), "upstream_error"), ([steps, vec![Step::UntilClosed]].concat(), "cancel_requested")] {
        let engine = Engine::always(Kind::OpenAi, steps).await;
        let stand = before(&engine, of(Kind::OpenAi)).await;
        let body = json!({"model": stand::MODEL, "input": "hi", "store": false, "stream": true, "tools": tools()});
        let mut socket = post(stand.addr, "/v1/responses", "r1", &body).await;
        let rest = if cause == "cancel_requested" {
            read_until(&mut socket, "function_call_arguments.delta").await;
            assert_eq!(stand::cancel(stand.addr, "r1").await, 200);
            let mut text = String::new();
            soon(tokio::io::AsyncReadExt::read_to_string(&mut socket, &mut text)).await.expect("its end");
            text
        } else {
            soon(read(socket)).await.body
        };
        assert!(rest.contains("response.failed") && rest.contains(cause), "{rest}");
        assert!(!rest.contains("function_call_arguments.done") && rest.contains(r#""status":"incomplete""#), "{rest}");
        let told = rest.split("\n\n").filter(|frame| frame.contains("output_item.done") && frame.contains("function_call")).count();
        assert_eq!(told, 0, "{rest}");
        assert_eq!(stand.settled("r1").await["outcome"]["cause"], cause);
        stand.nothing_is_left(&[&engine]).await;
    }
}
