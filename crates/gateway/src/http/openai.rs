//! What an answer looks like on OpenAI's wire: the parts that chat and plain completions share.
//!
//! Invariant: shapes only; nothing here waits, counts or decides.

use std::sync::Arc;

use lifecycle::Cause;
use lifecycle::message::{TokenLogprob, Usage};
use serde_json::{Value, json};

use super::{chat, completions};

/// What stands for minus infinity where JSON has no word for it; OpenAI's own value.
const LOGPROB_FLOOR: f32 = -9999.0;

/// Which endpoint's shapes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// Everything that is the same in all objects of one answer.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    pub(crate) id: String,
    pub(crate) model: Arc<str>,
    pub(crate) created: u64,
    pub(crate) fingerprint: &'static str,
    pub(crate) logprobs: bool,
    pub(crate) include_usage: bool,
}

/// One answer of a run as it grows.
#[derive(Default, Debug)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) logprobs: Vec<TokenLogprob>,
    pub(crate) finish: Option<Cause>,
}

impl Shape {
    /// The first chunk of an answer, if the endpoint has one.
    pub(crate) fn opening(&self, index: u32) -> Option<Value> {
        match self.kind {
            Kind::Chat => Some(self.chunk(vec![chat::chunk_choice(index, json!({"role": "assistant", "content": ""}), Value::Null, None)])),
            Kind::Text => None,
        }
    }

    /// A chunk with text. `offset` is how many characters of this answer came before.
    pub(crate) fn delta(&self, index: u32, text: &str, logprobs: &[TokenLogprob], offset: usize) -> Value {
        self.chunk(vec![match self.kind {
            Kind::Chat => chat::chunk_choice(index, json!({"content": text}), self.logprobs(logprobs, offset), None),
            Kind::Text => completions::choice(index, text, self.logprobs(logprobs, offset), None),
        }])
    }

    /// The chunk that says why an answer ended.
    pub(crate) fn finish(&self, index: u32, cause: Cause) -> Value {
        let reason = Some(finish_reason(cause));
        self.chunk(vec![match self.kind {
            Kind::Chat => chat::chunk_choice(index, json!({}), Value::Null, reason),
            Kind::Text => completions::choice(index, "", Value::Null, reason),
        }])
    }

    /// The usage chunk: no choices.
    pub(crate) fn usage(&self, usage: &Usage) -> Value {
        let mut chunk = self.chunk(Vec::new());
        chunk["usage"] = usage_object(usage);
        chunk
    }

    /// The whole answer as one object.
    pub(crate) fn whole(&self, answers: &[Answer], usage: &Usage) -> Value {
        let choice = |(index, answer): (usize, &Answer)| {
            let index = index as u32;
            let reason = answer.finish.map(finish_reason);
            let logprobs = self.logprobs(&answer.logprobs, 0);
            match self.kind {
                Kind::Chat => chat::whole_choice(index, &answer.text, logprobs, reason),
                Kind::Text => completions::choice(index, &answer.text, logprobs, reason),
            }
        };
        let choices: Vec<Value> = answers.iter().enumerate().map(choice).collect();
        let object = match self.kind {
            Kind::Chat => "chat.completion",
            Kind::Text => "text_completion",
        };
        let mut whole = self.object(object, choices);
        whole["usage"] = usage_object(usage);
        whole
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let object = match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Text => "text_completion",
        };
        let mut chunk = self.object(object, choices);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn object(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": &*self.model, "system_fingerprint": self.fingerprint,
               "choices": choices})
    }

    fn logprobs(&self, entries: &[TokenLogprob], offset: usize) -> Value {
        match (self.logprobs, self.kind) {
            (false, _) => Value::Null,
            (true, Kind::Chat) => chat::logprobs(entries),
            (true, Kind::Text) => completions::logprobs(entries, offset),
        }
    }
}

pub(super) fn finish_reason(cause: Cause) -> &'static str {
    match cause {
        Cause::Length => "length",
        _ => "stop",
    }
}

pub(super) fn usage_object(usage: &Usage) -> Value {
    json!({"prompt_tokens": usage.prompt, "completion_tokens": usage.generated,
           "total_tokens": u64::from(usage.prompt) + u64::from(usage.generated),
           "prompt_tokens_details": {"cached_tokens": usage.cached_prompt}})
}

/// A token's bytes as text; an incomplete character in OpenAI's `bytes:\xNN` form.
pub(crate) fn token_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, b| text + &format!("\\x{b:02x}")),
    }
}

/// A log-probability that JSON can carry.
pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LOGPROB_FLOOR }
}
