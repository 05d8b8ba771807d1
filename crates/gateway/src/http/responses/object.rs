//! The response object: what a run looks like at one moment, in OpenAI's shape.
//!
//! Invariant: it says what is true at that moment; a response that did not end well never has the status `completed`.
// contract: C-6

use std::sync::Arc;

use lifecycle::message::Usage;
use lifecycle::{Cause, OnDisconnect, Outcome, OutcomeKind, RunId};
use serde_json::{Map, Value, json};

use super::asked::{Asked, Item, Message, Role};
use crate::http::error::ApiError;

/// What a response's id begins with; the run's id follows.
const RESPONSE: &str = "resp_";

/// A run's id as the response that it is.
pub(super) fn response_id(run: &RunId) -> String {
    format!("{RESPONSE}{run}")
}

/// The run of a response's id, if it can be one.
pub(super) fn run_of(id: &str) -> Option<RunId> {
    RunId::parse(id.strip_prefix(RESPONSE)?).ok()
}

/// What never changes of a response.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) run: RunId,
    pub(crate) model: Arc<str>,
    pub(crate) on_disconnect: OnDisconnect,
    pub(crate) asked: Asked,
}

/// OpenAI's words for where a response stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    /// No worker has taken it on.
    Queued,
    InProgress,
    Completed,
    /// It came to its end because it may say no more.
    Incomplete,
    Failed,
    Cancelled,
}

impl Status {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Status::Queued => "queued",
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Incomplete => "incomplete",
            Status::Failed => "failed",
            Status::Cancelled => "cancelled",
        }
    }

    /// How an outcome looks. `finish` is why the answer came to its own end, if it did.
    pub(crate) fn of(outcome: &Outcome, finish: Option<Cause>) -> Status {
        match outcome.kind() {
            OutcomeKind::Completed if finish.unwrap_or(outcome.cause) == Cause::Length => Status::Incomplete,
            OutcomeKind::Completed => Status::Completed,
            OutcomeKind::Cancelled => Status::Cancelled,
            OutcomeKind::Expired | OutcomeKind::Failed | OutcomeKind::Rejected => Status::Failed,
        }
    }
}

/// What changes of a response.
pub(super) struct Moment<'a> {
    pub(super) status: Status,
    /// The answer's items so far.
    pub(super) output: Vec<Value>,
    /// How it ended.
    pub(super) end: Option<(&'a Outcome, &'a Usage)>,
    /// When, in seconds of the calendar. Known of what is kept; a stream does not say it, so that every reader reads the same.
    pub(super) ended: Option<i64>,
}

/// The object.
pub(super) fn object(head: &Head, moment: &Moment<'_>) -> Value {
    let asked = &head.asked;
    let incomplete = (moment.status == Status::Incomplete).then(|| json!({"reason": "max_output_tokens"}));
    let error = moment.end.filter(|_| moment.status == Status::Failed).map(|(outcome, _)| error(outcome));
    let mut object = json!({
        "id": response_id(&head.run),
        "object": "response",
        "created_at": asked.created_at,
        "status": moment.status.as_str(),
        "background": asked.background,
        "error": error,
        "incomplete_details": incomplete,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "metadata": asked.metadata,
        "model": &*head.model,
        "output": moment.output,
        "parallel_tool_calls": asked.parallel_tool_calls,
        "previous_response_id": asked.previous_response_id,
        "prompt_cache_key": asked.prompt_cache_key,
        "reasoning": {"effort": null, "summary": null},
        "safety_identifier": asked.safety_identifier,
        "service_tier": "default",
        "store": asked.store,
        "temperature": asked.temperature,
        "text": {"format": asked.format},
        "tool_choice": asked.tool_choice,
        "tools": asked.tools,
        "top_logprobs": asked.top_logprobs,
        "top_p": asked.top_p,
        // Nothing is ever dropped from the input, whatever was asked for.
        "truncation": "disabled",
    });
    // These may be absent, but not null.
    if let Some((_, usage)) = moment.end {
        object["usage"] = usage_object(usage);
    }
    if let Some(user) = &asked.user {
        object["user"] = json!(user);
    }
    if let Some(ended) = moment.ended.filter(|_| moment.status == Status::Completed) {
        object["completed_at"] = json!(ended);
    }
    let cause = moment.end.map(|(outcome, _)| outcome.cause.as_str());
    object["kvit"] = json!({"run": head.run.as_str(), "cause": cause, "on_disconnect": head.on_disconnect.to_string(),
                            "expires_at": asked.expires_at});
    object
}

/// OpenAI's words for failures are few; the contract's word is in `kvit.cause`.
fn error(outcome: &Outcome) -> Value {
    let code = match (outcome.cause, outcome.kind()) {
        (Cause::QueueFull, _) => "rate_limit_exceeded",
        (Cause::DeadlineUnreachable, _) => "server_error",
        (_, OutcomeKind::Rejected) => "invalid_prompt",
        _ => "server_error",
    };
    json!({"code": code, "message": ApiError::of_outcome(outcome).message()})
}

fn usage_object(usage: &Usage) -> Value {
    json!({"input_tokens": usage.prompt,
           // What was written is not counted: whether a block enters the prefix index is decided when it is full, by whoever fills it.
           "input_tokens_details": {"cached_tokens": usage.cached_prompt, "cache_write_tokens": 0},
           "output_tokens": usage.generated, "output_tokens_details": {"reasoning_tokens": 0},
           "total_tokens": u64::from(usage.prompt) + u64::from(usage.generated)})
}

/// A part of the answer, with its log-probabilities if they were asked for.
pub(super) fn output_part(text: &str, logprobs: &[Value]) -> Value {
    json!({"type": "output_text", "annotations": [], "logprobs": logprobs, "text": text})
}

/// A message of the answer's side.
pub(super) fn output_message(id: &str, status: &str, content: &[Value]) -> Value {
    json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
}

/// A call of a function.
pub(super) fn function_call(id: &str, status: &str, (call_id, name, arguments): (&str, &str, &str)) -> Value {
    json!({"id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name, "arguments": arguments})
}

/// An item of the input as it is listed. One that came without an id is named after its place.
pub(super) fn input_item(run: &RunId, place: usize, item: &Item) -> Value {
    let id = |kind: &str| item.id().map_or_else(|| format!("{kind}_{run}:{place}"), str::to_owned);
    match item {
        Item::Message(Message { role: Role::Assistant, parts, .. }) => {
            let parts: Vec<Value> = parts.iter().map(|text| output_part(text, &[])).collect();
            output_message(&id("msg"), "completed", &parts)
        }
        Item::Message(Message { role, parts, .. }) => {
            let parts: Vec<Value> = parts.iter().map(|text| json!({"type": "input_text", "text": text})).collect();
            Value::Object(Map::from_iter([
                ("id".to_owned(), json!(id("msg"))),
                ("type".to_owned(), json!("message")),
                ("status".to_owned(), json!("completed")),
                ("role".to_owned(), json!(role.as_str())),
                ("content".to_owned(), json!(parts)),
            ]))
        }
        Item::Call(call) => function_call(&id("fc"), "completed", (&call.call_id, &call.name, &call.arguments)),
        Item::Output(output) => {
            let (id, said) = (id("fco"), output.output.concat());
            json!({"id": id, "type": "function_call_output", "status": "completed", "call_id": output.call_id, "output": said})
        }
    }
}
