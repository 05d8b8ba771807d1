//! What the tests here share: a response's head, what its run may say, and a script in place of table and store.

mod fold;
mod parse;
mod script;
mod stored;
mod stream;

use std::sync::Arc;

use lifecycle::message::{Delta, Usage};
use lifecycle::{AttemptId, Cause, OnDisconnect, Outcome, RunId, RunKey, Said, Tenant};
use serde_json::Map;

use super::asked::{Asked, Item, Role};
use super::object::Head;

fn run(id: &str) -> RunKey {
    RunKey { tenant: Tenant::default(), run: RunId::parse(id).expect("an id") }
}

fn asked(background: bool) -> Asked {
    Asked {
        input: vec![Item { id: None, role: Role::User, parts: vec!["Name a river.".into()] }],
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
