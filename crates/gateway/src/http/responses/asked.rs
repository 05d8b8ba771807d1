//! What a response was asked for, as its object repeats it and as it is kept: versioned JSON beside the run.
//!
//! Invariant: what is kept can be read again by this version and every later one, or is refused as a whole; no text of it is ever logged.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The version that is written.
const VERSION: u32 = 1;

/// Who says a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    System,
    /// OpenAI's newer word for the same place.
    Developer,
    User,
    Assistant,
}

impl Role {
    /// The word on OpenAI's wire.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }

    /// The word that a model's template knows.
    pub(crate) const fn in_template(self) -> &'static str {
        match self {
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// One item of a conversation. Which it is, its fields say.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Item {
    Message(Message),
    Call(Call),
    Output(Output),
}

/// Somebody says something.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Message {
    /// As the caller gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    pub(crate) role: Role,
    pub(crate) parts: Vec<String>,
}

/// The model calls a function.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Call {
    /// As the caller gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    pub(crate) call_id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// What a function has returned.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Output {
    /// As the caller gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    pub(crate) call_id: String,
    pub(crate) output: Vec<String>,
}

impl Item {
    /// A message without an id.
    pub(crate) fn message(role: Role, text: String) -> Item {
        Item::Message(Message { id: None, role, parts: vec![text] })
    }

    /// As the caller gave it.
    pub(crate) fn id(&self) -> Option<&str> {
        let (Item::Message(Message { id, .. }) | Item::Call(Call { id, .. }) | Item::Output(Output { id, .. })) = self;
        id.as_deref()
    }

    /// Bytes of what it says.
    pub(crate) fn bytes(&self) -> usize {
        let all = |parts: &[String]| parts.iter().map(String::len).sum();
        match self {
            Item::Message(message) => all(&message.parts),
            Item::Call(call) => call.name.len() + call.arguments.len(),
            Item::Output(output) => all(&output.output),
        }
    }
}

/// Everything about a request that its answers say again. What the engine needs of it besides is in the order's own prompt and parameters.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) input: Vec<Item>,
    pub(crate) instructions: Option<String>,
    pub(crate) previous_response_id: Option<String>,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) background: bool,
    pub(crate) store: bool,
    pub(crate) max_output_tokens: Option<u32>,
    /// As it was written, so that 0.2 does not come back as 0.20000000298.
    pub(crate) temperature: f64,
    /// As it was written.
    pub(crate) top_p: f64,
    /// A word, or an object that names a function.
    pub(crate) tool_choice: Value,
    pub(crate) parallel_tool_calls: bool,
    /// Functions that the model may call, as they were written.
    #[serde(default)]
    pub(crate) tools: Vec<Value>,
    /// What form the answer has, as it was written.
    #[serde(default = "plain")]
    pub(crate) format: Value,
    #[serde(default)]
    pub(crate) top_logprobs: u8,
    pub(crate) max_tool_calls: Option<u32>,
    pub(crate) user: Option<String>,
    pub(crate) safety_identifier: Option<String>,
    pub(crate) prompt_cache_key: Option<String>,
    /// When it was asked for, in seconds of the calendar. Kept with it, so that every reader is told the same.
    pub(crate) created_at: i64,
    /// When it is to be deleted, in seconds of the calendar, once it has ended. `None` if it is not kept.
    pub(crate) expires_at: Option<i64>,
}

/// The form of an answer that is text.
pub(crate) fn plain() -> Value {
    json!({"type": "text"})
}

#[derive(Serialize)]
struct Written<'a> {
    v: u32,
    asked: &'a Asked,
}

#[derive(Deserialize)]
struct Read {
    v: u32,
    asked: Value,
}

/// Why kept bytes are no request.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    /// They are of another kind or damaged. Where, and nothing of what stands there.
    #[error("not a kept request (line {line}, column {column})")]
    Broken { line: usize, column: usize },
    /// A newer kvit wrote them.
    #[error("a kept request of version {0}, of which this kvit knows up to {VERSION}")]
    Version(u32),
}

impl Asked {
    /// The bytes to keep.
    pub(crate) fn encode(&self) -> Vec<u8> {
        json!(Written { v: VERSION, asked: self }).to_string().into_bytes()
    }

    /// Reads kept bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Asked, Unreadable> {
        // serde's own message may quote what it found.
        let broken = |e: serde_json::Error| Unreadable::Broken { line: e.line(), column: e.column() };
        let Read { v, asked } = serde_json::from_slice(bytes).map_err(broken)?;
        if v != VERSION {
            return Err(Unreadable::Version(v));
        }
        serde_json::from_value(asked).map_err(broken)
    }
}

impl std::fmt::Debug for Item {
    /// Says the size only: prompts are nobody's business.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Item::Message(message) => write!(f, "Message({}, {} parts)", message.role.as_str(), message.parts.len()),
            Item::Call(_) => write!(f, "Call({} bytes)", self.bytes()),
            Item::Output(_) => write!(f, "Output({} bytes)", self.bytes()),
        }
    }
}

impl std::fmt::Debug for Asked {
    /// Says the size only: prompts are nobody's business.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Asked({} items)", self.input.len())
    }
}
