//! Requests: what is taken, what is refused and by which name.

use lifecycle::OnDisconnect;
use lifecycle::message::Prompt;
use serde_json::{Value, json};

use super::super::asked::{Asked, Item, Role, Unreadable};
use super::super::parse::{Request, Retention, parse};
use super::super::{chain, words};
use super::asked;
use crate::http::error::ApiError;
use crate::http::fields::Fields;

const NOW_S: i64 = 1_700_000_000;
const RETENTION: Retention = Retention { now: NOW_S, usual: None, max: 30 * 24 * 3600 };

fn read(body: &Value) -> Result<Request, ApiError> {
    parse(Fields::parse(body.to_string().as_bytes())?, RETENTION, false)
}

/// The same, of a model whose engine is another's.
fn read_for_engine(body: &Value) -> Result<Request, ApiError> {
    parse(Fields::parse(body.to_string().as_bytes())?, RETENTION, true)
}

fn with(name: &str, value: &Value) -> Value {
    let mut body = json!({"input": "hi"});
    body[name] = value.clone();
    body
}

/// What an error says: its field and its code.
fn refusal(body: &Value) -> (Value, Value) {
    let error = read(body).expect_err("is refused").to_json();
    (error["error"]["param"].clone(), error["error"]["code"].clone())
}

#[test]
fn defaults_are_openais() {
    let Request { asked, params, stream, timeout, on_disconnect } = read(&json!({"input": "hi"})).expect("is taken");
    assert!(asked.store && !asked.background && !stream && asked.parallel_tool_calls);
    assert_eq!((asked.temperature, asked.top_p, asked.tool_choice), (1.0, 1.0, json!("auto")));
    assert_eq!((asked.max_output_tokens, asked.expires_at, timeout, on_disconnect), (None, None, None, None));
    assert_eq!((params.n, params.max_tokens), (1, None));
    assert!(asked.input == [Item::message(Role::User, "hi".into())]);
}

#[test]
fn what_changes_nothing_is_taken() {
    let body = json!({
        "model": null, "input": "hi", "instructions": null, "tools": [], "tool_choice": "none", "parallel_tool_calls": false,
        "max_tool_calls": 3, "text": {"format": {"type": "text"}, "verbosity": "medium"}, "truncation": "auto", "user": "u",
        "safety_identifier": "s", "service_tier": "auto", "include": [], "stream": true, "stream_options": {"include_obfuscation": false},
        "reasoning": {"effort": null, "summary": null}, "metadata": {"a": "b"}, "previous_response_id": null, "conversation": null,
        "prompt_cache_key": "p", "prompt_cache_retention": "24h", "top_logprobs": 0, "prompt": null, "background": false, "store": null,
    });
    let Request { asked, stream, .. } = read(&body).expect("is taken");
    assert!(stream && asked.store && !asked.parallel_tool_calls);
    assert_eq!((asked.tool_choice, asked.max_tool_calls), (json!("none"), Some(3)));
    assert_eq!(
        (asked.user.as_deref(), asked.safety_identifier.as_deref(), asked.prompt_cache_key.as_deref()),
        (Some("u"), Some("s"), Some("p"))
    );
}

#[test]
fn numbers_come_back_as_they_were_written_and_rule_the_sampler() {
    let Request { asked, params, .. } =
        read(&json!({"input": "hi", "temperature": 0.2, "top_p": 0.9, "max_output_tokens": 5, "seed": 7, "ignore_eos": true}))
            .expect("is taken");
    assert_eq!(json!([asked.temperature, asked.top_p]).to_string(), "[0.2,0.9]");
    assert_eq!((params.sampling.temperature, params.max_tokens, params.sampling.seed, params.ignore_eos), (0.2, Some(5), 7, true));
}

#[test]
fn what_is_not_here_is_refused_by_its_name() {
    let long = "x".repeat(65);
    let many: Value = (0..17).map(|i| (format!("k{i}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    let table = [
        ("conversation", json!("conv_1")),
        ("prompt", json!({"id": "p"})),
        ("moderation", json!({})),
        ("context_management", json!([{"type": "compaction"}])),
        ("tools", json!([{"type": "function", "name": "f"}])),
        ("tool_choice", json!("required")),
        ("tool_choice", json!({"type": "function", "name": "f"})),
        ("text.format", json!({"format": {"type": "json_object"}})),
        ("text.verbosity", json!({"verbosity": "low"})),
        ("text.other", json!({"other": 1})),
        ("truncation", json!("middle")),
        ("service_tier", json!("flex")),
        ("include", json!(["reasoning.encrypted_content"])),
        ("reasoning.effort", json!({"effort": "low"})),
        ("top_logprobs", json!(21)),
        ("include", json!("message.output_text.logprobs")),
        ("metadata", json!({long.as_str(): "v"})),
        ("metadata", json!({"k": "v".repeat(513)})),
        ("metadata", json!({"k": 1})),
        ("metadata", many),
        ("safety_identifier", json!(long)),
        ("stream_options", json!({"include_obfuscation": false})),
        ("max_output_tokens", json!(0)),
        ("temperature", json!(2.5)),
        ("n", json!(2)),
        ("max_tokens", json!(5)),
        ("nonsense", json!(1)),
        ("on_disconnect", json!("stay")),
        ("expires_in_s", json!(0)),
        ("expires_in_s", json!(31 * 24 * 3600)),
        ("expires_at", json!(NOW_S - 1)),
        ("background", json!("yes")),
    ];
    for (name, value) in table {
        let field = name.split('.').next().expect("a name");
        assert_eq!(refusal(&with(field, &value)).0, name, "{value}");
    }
    assert_eq!(refusal(&json!({})).0, "input");
    assert_eq!(
        refusal(&json!({"input": "hi", "stream": true, "stream_options": {"include_obfuscation": true}})).0,
        "stream_options.include_obfuscation"
    );
}

// contract: C-25
#[test]
fn a_background_response_is_kept_and_goes_on() {
    let body = |more: Value| {
        let mut body = with("background", &json!(true));
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    assert_eq!(refusal(&body(json!({"store": false}))).0, "background");
    assert_eq!(refusal(&body(json!({"on_disconnect": "cancel"}))).0, "on_disconnect");
    assert_eq!(read(&body(json!({"on_disconnect": "continue"}))).expect("is taken").on_disconnect, Some(OnDisconnect::Continue));
    let Request { asked, on_disconnect, .. } = read(&body(json!({"stream": true}))).expect("is taken");
    assert_eq!((asked.background, on_disconnect), (true, Some(OnDisconnect::Continue)));
    assert_eq!(read(&body(json!({"expires_in_s": 60}))).expect("is taken").asked.expires_at, Some(NOW_S + 60));
    assert_eq!(read(&body(json!({"expires_at": NOW_S + 60}))).expect("is taken").asked.expires_at, Some(NOW_S + 60));
    assert_eq!(refusal(&body(json!({"expires_at": NOW_S + 60, "expires_in_s": 60}))).0, "expires_in_s");
    assert_eq!(refusal(&json!({"input": "hi", "store": false, "expires_in_s": 60})).0, "expires_in_s");
    // Where it says nothing, the operator's retention holds for what is kept.
    let usual = |body: &Value| {
        let fields = Fields::parse(body.to_string().as_bytes()).expect("an object");
        parse(fields, Retention { usual: Some(100), ..RETENTION }, false).expect("is taken").asked.expires_at
    };
    assert_eq!(usual(&body(json!({}))), Some(NOW_S + 100));
    assert_eq!(usual(&json!({"input": "hi", "store": false})), None);
}

#[test]
fn messages_are_read_in_each_of_their_forms() {
    let input = json!([
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "phase": null,
         "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}]},
        {"role": "assistant", "content": "d"},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "e"}]},
    ]);
    let asked = read(&json!({"input": input})).expect("is taken").asked;
    let items = chain::said(&asked, vec![Item::message(Role::Assistant, "f".into())]);
    let Ok(Prompt::Chat(turns)) = words::prompt(items, &asked, false, false) else { panic!("turns for a template") };
    let turns: Vec<_> = turns.into_iter().map(|turn| (turn.role, turn.content)).collect();
    let turn = |role: &str, text: &str| (role.to_owned(), text.to_owned());
    let expected = [
        turn("system", "Be brief."),
        turn("user", "ab"),
        turn("assistant", "c"),
        turn("assistant", "d"),
        turn("system", "e"),
        turn("assistant", "f"),
    ];
    assert_eq!(turns, expected);
    assert_eq!(asked.input[2].id(), Some("msg_1"));
}

#[test]
fn items_that_are_no_messages_of_text_are_refused_by_their_place() {
    let table = [
        (json!([]), "input"),
        (json!(7), "input"),
        (json!(["hi"]), "input[0]"),
        (json!([{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]), "input[0].type"),
        (json!([{"type": "function_call_output", "call_id": "c", "output": "1"}]), "input[0].type"),
        (json!([{"type": "reasoning", "summary": []}]), "input[0].type"),
        (json!([{"type": "item_reference", "id": "msg_1"}]), "input[0].type"),
        (json!([{"role": "tool", "content": "x"}]), "input[0].role"),
        (json!([{"content": "x"}]), "input[0].role"),
        (json!([{"role": "user"}]), "input[0].content"),
        (json!([{"role": "user", "content": []}]), "input[0].content"),
        (json!([{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]), "input[0].content[0].type"),
        (json!([{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]), "input[0].content[0].type"),
        (json!([{"role": "assistant", "content": [{"type": "refusal", "refusal": "x"}]}]), "input[0].content[0].type"),
        (json!([{"role": "user", "content": [{"type": "input_text"}]}]), "input[0].content[0].text"),
        (json!([{"role": "user", "content": [{"type": "input_text", "text": "x", "detail": "y"}]}]), "input[0].content[0].detail"),
        (json!([{"role": "user", "content": "x", "name": "y"}]), "input[0].name"),
        (json!([{"role": "user", "content": "x", "status": "odd"}]), "input[0].status"),
        (json!([{"role": "user", "content": "x", "id": "a"}, {"role": "user", "content": "y", "id": "a"}]), "input[1].id"),
    ];
    for (input, param) in table {
        assert_eq!(refusal(&json!({"input": input})).0, param, "{input}");
    }
}

const TOOL: &str = r#"{"type":"function","name":"depth","description":null,"parameters":{"type":"object"},"strict":true}"#;

/// A request with a function to call, and with this instead of one of its fields.
fn with_tools(name: &str, value: &Value) -> Value {
    let tool: Value = serde_json::from_str(TOOL).expect("JSON");
    let mut body = json!({"input": "hi", "tools": [tool], "tool_choice": {"type": "function", "name": "depth"}, "parallel_tool_calls": false,
        "text": {"format": {"type": "json_schema", "name": "river", "schema": {"type": "object"}, "strict": null}}});
    body[name] = value.clone();
    body
}

/// What an engine is asked.
fn worded(request: &Request) -> Value {
    let items = chain::said(&request.asked, Vec::new());
    let with_logprobs = request.params.sampling.logprobs.is_some();
    let prompt = words::prompt(items, &request.asked, with_logprobs, true).expect("a prompt");
    let Prompt::Worded(fields) = prompt else { panic!("{prompt:?} has no words") };
    serde_json::from_slice(&fields).expect("JSON")
}

#[test]
fn what_an_engine_has_words_for_is_said_in_them() {
    let request = read_for_engine(&with_tools("stream", &json!(false))).expect("is taken");
    let function = json!({"name": "depth", "parameters": {"type": "object"}, "strict": true});
    assert_eq!(
        worded(&request),
        json!({
            "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": "depth"}}, "parallel_tool_calls": false,
            "response_format": {"type": "json_schema", "json_schema": {"name": "river", "schema": {"type": "object"}}},
        })
    );
    let object = read_for_engine(&with("text", &json!({"format": {"type": "json_object"}}))).expect("is taken");
    assert_eq!(worded(&object)["response_format"], json!({"type": "json_object"}));
    let likely = read_for_engine(&with("top_logprobs", &json!(3))).expect("is taken");
    assert_eq!((likely.params.sampling.logprobs, worded(&likely)), (Some(3), json!({"messages": [{"role": "user", "content": "hi"}]})));
    let included = read(&with("include", &json!(["message.output_text.logprobs"]))).expect("kvit's own model has them, too");
    assert_eq!((included.params.sampling.logprobs, included.asked.top_logprobs), (Some(0), 0));
    // What needs no words of an engine's own goes in kvit's.
    let plain = read_for_engine(&json!({"input": "hi", "tools": [], "text": {"format": {"type": "text"}}})).expect("is taken").asked;
    assert!(matches!(words::prompt(plain.input.clone(), &plain, false, true), Ok(Prompt::Chat(_))));
}

#[test]
fn calls_and_what_they_returned_are_messages_of_the_chat() {
    let call =
        |id: &str| json!({"type": "function_call", "id": null, "call_id": id, "name": "depth", "arguments": "{}", "status": "completed"});
    let body = json!({"input": [
        {"role": "user", "content": "How deep?"}, {"role": "assistant", "content": "I look."}, call("a"), call("b"),
        {"type": "function_call_output", "call_id": "a", "output": "1 m"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2 "}, {"type": "input_text", "text": "m"}]},
        call("c"), {"type": "function_call_output", "id": "o", "call_id": "c", "output": ""},
    ]});
    let request = read_for_engine(&body).expect("is taken");
    let made = |id: &str| json!({"id": id, "type": "function", "function": {"name": "depth", "arguments": "{}"}});
    assert_eq!(
        worded(&request)["messages"],
        json!([
            {"role": "user", "content": "How deep?"},
            {"role": "assistant", "content": "I look.", "tool_calls": [made("a"), made("b")]},
            {"role": "tool", "tool_call_id": "a", "content": "1 m"}, {"role": "tool", "tool_call_id": "b", "content": "2 m"},
            {"role": "assistant", "content": null, "tool_calls": [made("c")]}, {"role": "tool", "tool_call_id": "c", "content": ""},
        ])
    );
    // What is kept is read again, and a model of kvit's own is told nothing of it.
    assert!(Asked::decode(&request.asked.encode()).expect("is read") == request.asked);
    let error = words::prompt(request.asked.input.clone(), &request.asked, false, false).expect_err("is refused").to_json();
    assert_eq!(error["error"]["param"], "previous_response_id");
}

#[test]
fn what_no_engine_is_told_is_refused_by_its_name() {
    let tool = |more: &Value| {
        let mut tool = json!({"type": "function", "name": "f"});
        tool.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!([tool])
    };
    let format = |more: Value| json!({"format": more});
    let table = [
        ("tools", json!("all"), "tools"),
        ("tools", json!([7]), "tools[0]"),
        ("tools", json!([{"type": "web_search"}]), "tools[0].type"),
        ("tools", tool(&json!({"name": "no blank"})), "tools[0].name"),
        ("tools", tool(&json!({"parameters": []})), "tools[0].parameters"),
        ("tools", tool(&json!({"defer": 1})), "tools[0].defer"),
        ("tool_choice", json!("all"), "tool_choice"),
        ("tool_choice", json!({"type": "function", "name": "other"}), "tool_choice.name"),
        ("tool_choice", json!({"type": "web_search"}), "tool_choice"),
        ("text", format(json!({"type": "grammar"})), "text.format"),
        ("text", format(json!({"type": "json_schema", "name": "n"})), "text.format.schema"),
        ("text", format(json!({"type": "json_schema", "schema": {}})), "text.format.name"),
        ("text", format(json!({"type": "json_object", "more": 1})), "text.format.more"),
        ("input", json!([{"type": "function_call", "call_id": "c", "name": "f"}]), "input[0].arguments"),
        ("input", json!([{"type": "function_call", "call_id": "", "name": "f", "arguments": ""}]), "input[0].call_id"),
        ("input", json!([{"type": "function_call_output", "call_id": "c"}]), "input[0].output"),
        ("input", json!([{"type": "function_call_output", "call_id": "c", "output": "", "more": 1}]), "input[0].more"),
        ("input", json!([{"type": "web_search_call", "id": "w"}]), "input[0].type"),
    ];
    for (name, value, param) in table {
        let error = read_for_engine(&with_tools(name, &value)).expect_err(param).to_json();
        assert_eq!(error["error"]["param"], param, "{value}");
    }
    let error = read_for_engine(&with("tool_choice", &json!("required"))).expect_err("without tools").to_json();
    assert_eq!(error["error"]["param"], "tool_choice");
}

#[test]
fn what_was_asked_for_is_kept_and_read_again() {
    let asked = Asked { user: Some("u".into()), expires_at: Some(5), temperature: 0.2, ..asked(true) };
    let bytes = asked.encode();
    assert_eq!(Asked::decode(&bytes), Ok(asked));
    let newer = String::from_utf8(bytes).expect("JSON").replacen("\"v\":1", "\"v\":2", 1);
    assert_eq!(Asked::decode(newer.as_bytes()), Err(Unreadable::Version(2)));
    for broken in [&b""[..], b"{}", b"[1]", b"{\"v\":1,\"asked\":{}}", b"\xff"] {
        assert!(matches!(Asked::decode(broken), Err(Unreadable::Broken { .. })));
    }
}

/// Prompts are in no log line, however somebody prints a request.
#[test]
fn no_text_is_printed() {
    let shown = format!("{:?}", read(&json!({"input": "secret", "instructions": "secret"})).expect("is taken"));
    assert!(!shown.contains("secret"), "{shown}");
    let error = Asked::decode(br#"{"v":1,"asked":{"input":"secret"}}"#).expect_err("is broken");
    assert!(!format!("{error} {error:?}").contains("secret"));
}
