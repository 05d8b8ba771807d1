//! What the events of one stream have in common: all but their text, as a rule.
//!
//! An engine writes the same bytes around every token. Whoever has read one such event knows what the next one says by comparing those bytes,
//! which costs a tenth of reading it.
//!
//! Invariant: an event is said to be like the one before only if nothing in it differs but a text without quotes, escapes and control
//! characters; then every reader of JSON says the same of it but for that text.

use std::borrow::Cow;

use super::json::Choice;
use super::sse::{Chunk, Event};

/// Longest event that is remembered.
const BYTES_MAX: usize = 4 << 10;

/// One event with a text, without the text.
#[derive(Default)]
pub(crate) struct Pattern {
    before: Vec<u8>,
    behind: Vec<u8>,
    index: u32,
}

impl Pattern {
    /// The choice and the text of an event that is like the one before: it says nothing else.
    pub(crate) fn alike<'a>(&self, event: &'a Event) -> Option<(u32, &'a str)> {
        let data = event.data.as_deref().filter(|_| event.name.is_none())?;
        Some((self.index, self.text(data)?))
    }

    /// Reads an event that is not.
    pub(crate) fn read<'a>(&mut self, event: &'a Event) -> Chunk<'a> {
        let chunk = event.read();
        if let Some(data) = event.data.as_deref().filter(|_| event.name.is_none()) {
            self.learn(data, &chunk);
        }
        chunk
    }

    /// The text of an event that is like the one before.
    fn text<'a>(&self, data: &'a [u8]) -> Option<&'a str> {
        if self.before.is_empty() || data.len() <= self.before.len() + self.behind.len() {
            return None;
        }
        let text = data.strip_prefix(&*self.before)?.strip_suffix(&*self.behind)?;
        let is_plain = text.iter().all(|byte| !matches!(byte, 0..0x20 | b'"' | b'\\'));
        std::str::from_utf8(text).ok().filter(|_| is_plain)
    }

    /// Remembers an event that says nothing but a text of one choice.
    fn learn(&mut self, data: &[u8], chunk: &Chunk<'_>) {
        let [Choice { index, text: Cow::Borrowed(text), reasoning, finish_reason: None, .. }] = &chunk.said.choices[..] else { return };
        let says_more = chunk.said.usage.is_some() || chunk.said.error.is_some() || !reasoning.is_empty();
        // A text that was borrowed lies in the event.
        let Some(at) = (text.as_ptr() as usize).checked_sub(data.as_ptr() as usize).filter(|at| at + text.len() <= data.len()) else {
            return;
        };
        if says_more || text.is_empty() || data.len() > BYTES_MAX {
            return;
        }
        self.index = *index;
        self.before.clear();
        self.before.extend_from_slice(&data[..at]);
        self.behind.clear();
        self.behind.extend_from_slice(&data[at + text.len()..]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::Said;
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    /// What whoever uses it knows of an event.
    fn known<'a>(pattern: &mut Pattern, event: &'a Event) -> Chunk<'a> {
        let Some((index, text)) = pattern.alike(event) else { return pattern.read(event) };
        let choice = Choice { index, text: Cow::Borrowed(text), generated: true, ..Choice::default() };
        Chunk { said: Said { choices: vec![choice], ..Said::default() }, ..Chunk::default() }
    }

    fn event(data: &str) -> Event {
        Event { raw: Bytes::new(), data: Some(Bytes::copy_from_slice(data.as_bytes())), name: None }
    }

    fn chunk(text: &str) -> String {
        format!(r#"{{"id":"x","choices":[{{"index":2,"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":null}}]}}"#)
    }

    #[test]
    fn what_is_alike_is_not_read_again() {
        let mut pattern = Pattern::default();
        for text in ["a", " bc", "π"] {
            let event = event(&chunk(text));
            assert_eq!(known(&mut pattern, &event), event.read());
        }
        assert_eq!(pattern.text(chunk("whatever").as_bytes()), Some("whatever"));
        // Empty, with an escape, with a quote, of another choice: each is read.
        for other in [chunk(""), chunk("\\n"), chunk("a\",\"b\":\""), chunk("\n"), chunk("a").replace('2', "3")] {
            assert_eq!(pattern.text(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn what_says_more_is_not_remembered() {
        for more in [
            chunk("a").replace("\"finish_reason\":null", "\"finish_reason\":\"stop\""),
            chunk("a").replace("\"content\"", "\"reasoning\""),
            chunk("a").replacen('{', "{\"usage\":{\"prompt_tokens\":1},", 1),
            chunk("\\u0041"),
            "[DONE]".to_owned(),
            "no JSON".to_owned(),
        ] {
            let mut pattern = Pattern::default();
            assert_eq!(known(&mut pattern, &event(&more)), event(&more).read(), "{more}");
            assert!(pattern.before.is_empty(), "{more}");
        }
        let named = Event { name: Some(Bytes::from_static(b"error")), ..event(&chunk("a")) };
        let mut pattern = Pattern::default();
        assert!(known(&mut pattern, &named).said.error.is_some() && pattern.before.is_empty());
    }

    proptest! {
        /// Whatever comes behind what, each event is read as it is read alone.
        #[test]
        fn a_stream_is_read_as_its_events(texts in prop::collection::vec("[a-cé\\\\\"nu0-9{}:, \u{1}]{0,5}", 1..8), ids in any::<bool>()) {
            let mut pattern = Pattern::default();
            for (i, text) in texts.iter().enumerate() {
                let json = if ids { chunk(text).replace("\"x\"", &format!("\"x{}\"", i / 3)) } else { chunk(text) };
                let event = event(&json);
                prop_assert_eq!(known(&mut pattern, &event), event.read());
            }
        }
    }
}
