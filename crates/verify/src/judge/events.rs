//! Server-sent events of OpenAI's endpoints, as far as a judge counts them.
//!
//! Invariant: an event counts as one token if it adds something to an answer, whatever it adds; so a stack that puts several tokens into one
//! event is counted too low, which its own usage shows.

use serde_json::Value;

/// Answers of one request that are told apart.
pub const CHOICES_MAX: usize = 128;
/// Longest event, in bytes; the rest of one that is longer is thrown away.
const EVENT_BYTES_MAX: usize = 8 << 20;
/// Most that is kept of what is said of a failure, in characters.
const ERROR_CHARS_MAX: usize = 200;

/// What an event says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// An answer goes on.
    Said {
        /// Which.
        index: usize,
        /// The text that it gains.
        text: String,
        /// Whether it is a token.
        counts: bool,
    },
    /// What was computed.
    Usage {
        /// Tokens of the prompt.
        prompt: u64,
        /// Tokens generated.
        generated: u64,
    },
    /// Something went wrong, and what is said of it.
    Error(String),
    /// The stream's proper end.
    Done,
}

/// Cuts bytes into events.
#[derive(Default)]
pub struct Splitter {
    line: Vec<u8>,
    data: Vec<u8>,
}

impl Splitter {
    /// Takes more bytes, and gives the events that are whole now.
    pub fn push(&mut self, bytes: &[u8], events: &mut Vec<Event>) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + piece.len() <= EVENT_BYTES_MAX {
                self.line.extend_from_slice(piece);
            }
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.take(line.trim_ascii_end(), events);
            }
        }
    }

    fn take(&mut self, line: &[u8], events: &mut Vec<Event>) {
        if let Some(data) = line.strip_prefix(b"data:") {
            if self.data.len() + data.len() <= EVENT_BYTES_MAX {
                self.data.extend_from_slice(data.trim_ascii_start());
            }
        } else if line.is_empty() && !self.data.is_empty() {
            read(&std::mem::take(&mut self.data), events);
        }
    }
}

/// What an answer says of its failure, in one line that is not long.
pub fn error(answer: &Value) -> String {
    let places = ["/error/message", "/error", "/message", "/detail"];
    let said = places.iter().find_map(|place| answer.pointer(place)?.as_str()).unwrap_or_default();
    said.split_whitespace().collect::<Vec<_>>().join(" ").chars().filter(|c| !c.is_control()).take(ERROR_CHARS_MAX).collect()
}

fn read(data: &[u8], events: &mut Vec<Event>) {
    if data == b"[DONE]" {
        return events.push(Event::Done);
    }
    let Ok(chunk) = serde_json::from_slice::<Value>(data) else { return };
    if chunk.get("error").is_some_and(|error| !error.is_null()) {
        return events.push(Event::Error(error(&chunk)));
    }
    for choice in chunk["choices"].as_array().into_iter().flatten() {
        let index = choice["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
        let delta = &choice["delta"];
        let text = delta["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
        let other =
            ["reasoning_content", "reasoning", "refusal"].iter().any(|name| delta[*name].as_str().is_some_and(|text| !text.is_empty()));
        let calls = delta["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
        let counts = !text.is_empty() || other || calls;
        if counts {
            events.push(Event::Said { index, text: text.to_owned(), counts });
        }
    }
    let usage = &chunk["usage"];
    if let Some((prompt, generated)) = usage["prompt_tokens"].as_u64().zip(usage["completion_tokens"].as_u64()) {
        events.push(Event::Usage { prompt, generated });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Event {
        Event::Said { index: 0, text: text.to_owned(), counts: true }
    }

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let stream = concat!(
            ": a comment\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\\n\"}}]}\n\n",
            "event: x\ndata:{\"choices\":[{\"index\":0,\"text\":\"b\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
        );
        let expected = vec![said("a\n"), said("b"), Event::Usage { prompt: 3, generated: 2 }, Event::Done];
        for size in [1, 2, 7, 1000] {
            let (mut splitter, mut events) = (Splitter::default(), Vec::new());
            stream.as_bytes().chunks(size).for_each(|piece| splitter.push(piece, &mut events));
            assert_eq!(events, expected, "{size}");
        }
    }

    #[test]
    fn errors_and_what_is_nothing() {
        let mut events = Vec::new();
        let mut splitter = Splitter::default();
        splitter
            .push(b"data: {\"error\":{\"message\":\"x\\n\\u001by\"}}\n\ndata: junk\n\ndata: {}\n\ndata: {\"choices\":7}\n\n", &mut events);
        assert_eq!(events, [Event::Error("x y".to_owned())]);
        splitter.push(b"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{}]}}]}\n\n", &mut events);
        assert_eq!(events.len(), 2);
    }
}
