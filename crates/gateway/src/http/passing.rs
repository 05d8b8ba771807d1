//! The stream of an engine that is forwarded to, as its reader gets it: the engine's own events, byte by byte.
//!
//! Behind a long silence the reader was sent comments, and so has a stream with status 200. What the engine answers then that is no stream is
//! told in events: its refusal as the error event that the stream's reader looks for, in the engine's own words; a whole completion as the
//! chunks that say the same.
//!
//! Invariant: a caller that is told an error has a run that did not complete, and the other way round.
// contract: C-6

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use lifecycle::message::{Delta, Piece, Usage};
use lifecycle::{Outcome, OutcomeKind};
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::forward::is_theirs;
use super::generate;
use super::mended::mended;
use super::stream::{Events, Ready, Telling, event};
use crate::feed::Reader;
use crate::reason::Reason;

/// Whether an answer of this status and kind is a stream that is passed on as it comes. Media types are the same in any case.
pub(super) fn is_stream(status: u16, content_type: Option<&str>) -> bool {
    let kind = content_type.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    (200..300).contains(&status) && kind.trim().eq_ignore_ascii_case("text/event-stream")
}

/// The response that passes a stream on, or what has come instead of one.
pub(super) fn begin(reader: Reader, include_usage: bool) -> Response {
    generate::sse(Body::new(Events::of(reader, Passing { fresh: true, tail: Vec::new(), instead: None, include_usage })))
}

/// The engine's own events, as they came.
struct Passing {
    /// Nothing was sent of it yet that is no comment.
    fresh: bool,
    /// What waits for the run's end.
    tail: Vec<(Bytes, u32)>,
    /// What has come in place of a stream.
    instead: Option<Instead>,
    include_usage: bool,
}

/// An answer that is no stream, to whoever has one already.
struct Instead {
    status: u16,
    body: BytesMut,
    tokens: u32,
}

impl Telling for Passing {
    fn delta(&mut self, delta: Delta, ready: &mut Ready) {
        let tokens = delta.count();
        match (delta.passed.map(|passed| passed.piece), &mut self.instead) {
            (Some(Piece::Body(bytes) | Piece::Tail(bytes)), Some(instead)) => {
                instead.body.extend_from_slice(&bytes);
                instead.tokens = instead.tokens.saturating_add(tokens);
            }
            (Some(Piece::Body(bytes)), None) => ready.push(bytes, tokens),
            // Whoever reads the stream's end closes: so it is not told before the run's own end is known.
            (Some(Piece::Tail(bytes)), None) => self.tail.push((bytes, tokens)),
            // The head of an answer that began in silence.
            (Some(Piece::Head { status, content_type, .. }), None) if self.fresh && !is_stream(status, content_type.as_deref()) => {
                self.instead = Some(Instead { status, body: BytesMut::new(), tokens: 0 });
            }
            _ => {}
        }
        self.fresh = false;
    }

    fn end(&mut self, outcome: &Outcome, _: &Usage, ready: &mut Ready) {
        let is_completed = outcome.kind() == OutcomeKind::Completed;
        if let Some(instead) = self.instead.take() {
            return match (is_completed, outcome.kind() == OutcomeKind::Rejected || is_theirs(outcome)) {
                (true, _) => instead.complete(self.include_usage, ready),
                (_, true) => instead.refuse(ready),
                _ => ready.fail(&ApiError::of_outcome(outcome)),
            };
        }
        // What failed was told in the engine's own words.
        if is_completed || (is_theirs(outcome) && !self.fresh) {
            self.tail.drain(..).for_each(|(bytes, tokens)| ready.push(bytes, tokens));
            ready.end(is_completed);
        } else {
            ready.fail(&ApiError::of_outcome(outcome));
        }
    }
}

impl Instead {
    /// A whole completion: its choices as chunks, and a stream's end.
    fn complete(self, include_usage: bool, ready: &mut Ready) {
        // Whoever said that the run is complete has read this.
        let Some(chunks) = mended(&self.body).and_then(|answer| chunks(answer, include_usage)) else { return self.refuse(ready) };
        chunks.iter().for_each(|chunk| ready.push(event(chunk), 0));
        ready.push(Bytes::from_static(b"data: [DONE]\n\n"), self.tokens);
        ready.end(true);
    }

    /// A refusal, in the engine's own words if it has some.
    fn refuse(self, ready: &mut Ready) {
        match mended(&self.body).and_then(own_error) {
            Some(error) => {
                ready.push(event(&error), 0);
                ready.end(false);
            }
            None => {
                let message = Reason::Theirs(format!("{} to a request for a stream", self.status)).to_string();
                ready.fail(&ApiError::new(StatusCode::BAD_GATEWAY, "server_error", message).code("upstream_error"));
            }
        }
    }
}

/// The error that an engine's answer says, in the shape in which a stream's reader looks for it: OpenAI's, whatever the engine's is.
fn own_error(mut answer: Value) -> Option<Value> {
    let error = match answer.get_mut("error").map(Value::take) {
        Some(Value::Object(error)) => error,
        Some(Value::String(message)) => Map::from_iter([("message".to_owned(), Value::String(message))]),
        // Without a shell around it; or as FastAPI says it.
        _ => {
            let message = [answer.get("message"), answer.get("detail")].into_iter().flatten().find(|text| text.is_string())?.clone();
            let mut error = Map::from_iter([("message".to_owned(), message)]);
            for name in ["type", "param", "code"] {
                error.extend(answer.get(name).map(|value| (name.to_owned(), value.clone())));
            }
            error
        }
    };
    Some(json!({"error": error}))
}

/// A whole chat or text completion as the chunks of a stream: one for each choice, and one for the usage if that was asked for. `None` if it is
/// no completion.
fn chunks(answer: Value, include_usage: bool) -> Option<Vec<Value>> {
    let Value::Object(mut answer) = answer else { return None };
    let Some(Value::Array(choices)) = answer.shift_remove("choices") else { return None };
    let usage = answer.shift_remove("usage").filter(|usage| include_usage && !usage.is_null());
    if let Some(object) = answer.get_mut("object").filter(|object| *object == "chat.completion") {
        *object = json!("chat.completion.chunk");
    }
    let chunk = |choices: Vec<Value>| {
        let mut chunk = answer.clone();
        chunk.insert("choices".to_owned(), Value::Array(choices));
        chunk
    };
    let mut all: Vec<Value> = choices.into_iter().map(|choice| Value::Object(chunk(vec![as_delta(choice)]))).collect();
    if let Some(usage) = usage {
        let mut last = chunk(Vec::new());
        last.insert("usage".to_owned(), usage);
        all.push(Value::Object(last));
    }
    (!all.is_empty()).then_some(all)
}

/// A choice whose message is one delta. Calls have a place in a stream.
fn as_delta(choice: Value) -> Value {
    let Value::Object(mut choice) = choice else { return choice };
    if let Some(mut message) = choice.shift_remove("message") {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for (index, call) in calls.into_iter().flatten().enumerate() {
            if let Some(call) = call.as_object_mut() {
                call.entry("index").or_insert(json!(index));
            }
        }
        choice.insert("delta".to_owned(), message);
    }
    Value::Object(choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_known_in_any_case_and_a_refusal_is_none() {
        for (status, kind, is) in [
            (200, Some("text/event-stream"), true),
            (200, Some("Text/Event-Stream ; charset=utf-8"), true),
            (200, Some("text/event-streams"), false),
            (200, None, false),
            (400, Some("text/event-stream"), false),
        ] {
            assert_eq!(is_stream(status, kind), is, "{status} {kind:?}");
        }
    }

    #[test]
    fn errors_of_every_dress_are_told_as_a_reader_of_a_stream_looks_for_them() {
        for (answer, told) in [
            (
                json!({"error": {"message": "m", "type": "t", "code": 400, "param": null}}),
                Some(json!({"message": "m", "type": "t", "code": 400, "param": null})),
            ),
            (json!({"error": "m"}), Some(json!({"message": "m"}))),
            (json!({"object": "error", "message": "m", "type": "t", "code": 40}), Some(json!({"message": "m", "type": "t", "code": 40}))),
            (json!({"detail": "m"}), Some(json!({"message": "m"}))),
            (json!({"detail": [1]}), None),
            (json!([]), None),
        ] {
            assert_eq!(own_error(answer), told.map(|error| json!({"error": error})));
        }
    }

    #[test]
    fn a_whole_completion_is_one_chunk_a_choice() {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let answer = json!({"id": "x", "object": "chat.completion", "created": 1, "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"},
            {"index": 1, "message": {"content": null, "tool_calls": [call]}, "finish_reason": "tool_calls"}], "usage": {"total_tokens": 3}});
        let all = chunks(answer.clone(), true).expect("a completion");
        let first = json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "choices": [
            {"index": 0, "finish_reason": "stop", "delta": {"role": "assistant", "content": "a"}}]});
        assert_eq!(all[0], first);
        assert_eq!(all[1]["choices"][0]["delta"]["tool_calls"][0]["index"], 0);
        assert_eq!((&all[2]["choices"], &all[2]["usage"]["total_tokens"], all.len()), (&json!([]), &json!(3), 3));
        assert_eq!(chunks(answer, false).map(|all| all.len()), Some(2));
        let text = json!({"object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]});
        assert_eq!(chunks(text.clone(), false), Some(vec![text]));
        assert_eq!((chunks(json!({"data": []}), true), chunks(json!({"choices": []}), false)), (None, None));
    }
}
