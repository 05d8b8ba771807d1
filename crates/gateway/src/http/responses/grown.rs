//! One item of an answer as it grows: a message, or a call of a function.
//!
//! Invariant: an item's name is its place in the answer, so that every reader finds the same.

use lifecycle::RunId;
use lifecycle::message::TokenLogprob;
use serde_json::Value;

use super::asked::{Call, Item, Role};
use super::object::{function_call, output_message, output_part};
use crate::http::chat;

/// What it is.
pub(super) enum What {
    Message { text: String, logprobs: Vec<TokenLogprob> },
    Call { place: u32, call_id: String, name: String, arguments: String },
}

/// See the module.
pub(super) struct Grown {
    pub(super) what: What,
    /// How it stands, in OpenAI's word, once nothing comes to it any more.
    pub(super) done: Option<&'static str>,
}

/// Log-probabilities as they stand in an answer.
pub(super) fn logprobs(entries: &[TokenLogprob]) -> Vec<Value> {
    if entries.is_empty() {
        return Vec::new();
    }
    chat::logprobs(entries)["content"].as_array().cloned().unwrap_or_default()
}

impl Grown {
    /// A message of which nothing is there yet.
    pub(super) const fn message() -> Grown {
        Grown { what: What::Message { text: String::new(), logprobs: Vec::new() }, done: None }
    }

    /// What it is called, at this place of the answer.
    pub(super) fn id(&self, run: &RunId, at: usize) -> String {
        match (&self.what, at) {
            (What::Message { .. }, 0) => format!("msg_{run}"),
            (What::Message { .. }, at) => format!("msg_{run}_{at}"),
            (What::Call { .. }, at) => format!("fc_{run}_{at}"),
        }
    }

    /// Whether something may come to it.
    pub(super) const fn is_open(&self) -> bool {
        self.done.is_none()
    }

    /// As it is now; `fresh` for one that was only begun.
    pub(super) fn item(&self, run: &RunId, at: usize, fresh: bool) -> Value {
        let (id, status) = (self.id(run, at), self.done.unwrap_or("in_progress"));
        match &self.what {
            What::Message { .. } if fresh => output_message(&id, status, &[]),
            What::Message { .. } => output_message(&id, status, &[self.part()]),
            What::Call { call_id, name, .. } if fresh => function_call(&id, status, (call_id, name, "")),
            What::Call { call_id, name, arguments, .. } => function_call(&id, status, (call_id, name, arguments)),
        }
    }

    /// A message's one part.
    pub(super) fn part(&self) -> Value {
        match &self.what {
            What::Message { text, logprobs: entries } => output_part(text, &logprobs(entries)),
            What::Call { .. } => output_part("", &[]),
        }
    }

    /// What a conversation that goes on has of it: text, and calls that are whole.
    pub(super) fn said(&self) -> Option<Item> {
        match &self.what {
            What::Message { text, .. } => (!text.is_empty()).then(|| Item::message(Role::Assistant, text.clone())),
            What::Call { call_id, name, arguments, .. } => (self.done == Some("completed"))
                .then(|| Item::Call(Call { id: None, call_id: call_id.clone(), name: name.clone(), arguments: arguments.clone() })),
        }
    }
}
