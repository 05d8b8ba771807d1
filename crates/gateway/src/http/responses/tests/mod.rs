//! What the tests here share: a response's head, what its run may say, and a script in place of table and store.

mod fold;
mod parse;
mod script;
mod stored;
mod stream;

use std::sync::Arc;

use lifecycle::message::{Called, Delta, Passed, Piece, Usage};
use lifecycle::{AttemptId, Cause, OnDisconnect, Outcome, RunId, RunKey, Said, Tenant};
use serde_json::{Map, json};

use super::asked::{Asked, Item, Role, plain};
use super::object::Head;

fn run(id: &str) -> RunKey {
    RunKey { tenant: Tenant::default(), run: RunId::parse(id).expect("an id") }
}

fn asked(background: bool) -> Asked {
    Asked {
        input: vec![Item::message(Role::User, "Name a river.".into())],
        instructions: Some("Be brief.".into()),
        previous_response_id: None,
        metadata: Map::from_iter([("k".to_owned(), "v".into())]),
        background,
        store: true,
        max_output_tokens: Some(64),
        temperature: 0.2,
        top_p: 1.0,
        tool_choice: "auto".into(),
        parallel_tool_calls: true,
        tools: Vec::new(),
        format: plain(),
        top_logprobs: 0,
        max_tool_calls: None,
        user: None,
        safety_identifier: None,
        prompt_cache_key: None,
        created_at: 1_700_000_000,
        expires_at: Some(1_700_000_600),
    }
}

fn head(background: bool) -> Arc<Head> {
    let on_disconnect = if background { OnDisconnect::Continue } else { OnDisconnect::Cancel };
    Arc::new(Head { run: run("r1").run, model: "tiny".into(), on_disconnect, asked: asked(background) })
}

/// The same of a response that may call functions, and gives its answer in a form.
fn head_with_tools() -> Arc<Head> {
    let tools = vec![json!({"type": "function", "name": "depth", "parameters": {"type": "object"}, "strict": null})];
    let format = json!({"type": "json_schema", "name": "river", "schema": {"type": "object"}});
    let asked = Asked { tools, format, tool_choice: "required".into(), ..asked(false) };
    Arc::new(Head { run: run("r1").run, model: "tiny".into(), on_disconnect: OnDisconnect::Cancel, asked })
}

/// A part of a call, which is a token.
fn called(place: u32, id: Option<&str>, name: Option<&str>, arguments: &str) -> Said {
    let text = |text: Option<&str>| text.map(str::to_owned);
    let piece = Piece::Called(Box::new(Called { place, id: text(id), name: text(name), arguments: arguments.to_owned() }));
    let Said::Delta(delta) = delta("", 0, None) else { unreachable!("a delta") };
    Said::Delta(Delta { passed: Some(Box::new(Passed { tokens: 1, piece })), ..delta })
}

/// Two calls behind a text, as engines stream them.
fn calls(finish: Option<Cause>) -> Vec<Said> {
    vec![
        Said::Accepted,
        delta("I look.", 1, None),
        called(0, Some("c0"), Some("depth"), ""),
        called(0, None, None, "{\"of\":"),
        called(0, None, None, "\"Rhine\"}"),
        called(1, Some("c1"), Some("depth"), "{\"of\":\"Elbe\"}"),
        delta("", 0, finish),
    ]
}

fn delta(text: &str, tokens: usize, finish: Option<Cause>) -> Said {
    let attempt = AttemptId { key: run("r1"), attempt: 1 };
    Said::Delta(Delta { attempt, sequence: 0, text: text.into(), tokens: vec![7; tokens], logprobs: Vec::new(), finish, passed: None })
}

fn end(cause: Cause, generated: u32) -> Said {
    Said::End { outcome: Outcome::of(cause), usage: Usage { prompt: 9, cached_prompt: 4, generated } }
}

/// An answer in two pieces with a held token between them.
fn answer(finish: Cause) -> Vec<Said> {
    vec![Said::Accepted, delta("The ", 1, None), delta("", 1, None), delta("Rhine", 1, Some(finish)), end(finish, 3)]
}
