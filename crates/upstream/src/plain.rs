//! The ordinary event of a stream, read in one pass: a piece of text for one choice, or a choice's end.
//!
//! Such an event comes with every token, and the lenient reader (`json`), which takes whatever an engine may send, costs more than all else
//! that is done for a token. This one knows the common shape only. Whatever it does not know (a usage, an error, a tool call, an escape of a
//! character's number, a number with a fraction where a count is meant) it leaves to the other.
//!
//! Invariant: where it says something, the lenient reader says the same; a test holds them against each other.
// contract: C-28

use std::borrow::Cow;

use super::json::{Choice, Number, Said};
use super::usage::Timings;

/// Most choices of one event.
const CHOICES_MAX: usize = 8;
/// How deep values lie that are passed over.
const DEPTH_MAX: usize = 8;

/// Reads it, if it is ordinary.
pub(crate) fn read(json: &[u8]) -> Option<Said<'_>> {
    let mut at = At { json, next: 0 };
    let mut choices = Once::default();
    let (mut usage, mut error, mut object, mut timings) = (Once::default(), Once::default(), Once::default(), Once::default());
    at.object(|key, at| match key {
        b"choices" => choices.put(at.choices()?),
        // What these say is the other's to read.
        b"usage" => usage.put(at.null()?),
        b"error" => error.put(at.null()?),
        b"message" | b"type" | b"code" => None,
        b"timings" => timings.put(at.timings()?),
        b"object" => object.put((&*at.text()? != "error").then_some(())?),
        _ => at.skip(0),
    })?;
    at.blank();
    let usage = timings.0.and_then(|timings: Timings| timings.usage());
    (at.next == json.len()).then(|| Said { choices: choices.0.unwrap_or_default(), usage, error: None })
}

/// A value whose key may come once: a second one is an error, which the other reader tells.
struct Once<T>(Option<T>);

impl<T> Default for Once<T> {
    fn default() -> Self {
        Once(None)
    }
}

impl<T> Once<T> {
    fn put(&mut self, value: T) -> Option<()> {
        self.0.replace(value).is_none().then_some(())
    }
}

/// What one choice says of its piece.
#[derive(Default)]
struct Parts<'a> {
    content: Option<Cow<'a, str>>,
    thought: Option<Cow<'a, str>>,
    thought_else: Option<Cow<'a, str>>,
    refused: bool,
}

/// A place in the text.
struct At<'a> {
    json: &'a [u8],
    next: usize,
}

impl<'a> At<'a> {
    fn peek(&self) -> Option<u8> {
        self.json.get(self.next).copied()
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\t' | b'\r')) {
            self.next += 1;
        }
    }

    /// The next byte that is not blank is this one.
    fn sign(&mut self, sign: u8) -> Option<()> {
        self.blank();
        self.take(sign)
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.next += 1)
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.json.get(self.next..)?.starts_with(word).then(|| self.next += word.len())
    }

    fn null(&mut self) -> Option<()> {
        self.blank();
        self.word(b"null")
    }

    fn is_null(&mut self) -> bool {
        self.blank();
        self.peek() == Some(b'n')
    }

    /// Each member of an object: its key, with `self` before its value.
    fn object(&mut self, mut member: impl FnMut(&'a [u8], &mut Self) -> Option<()>) -> Option<()> {
        self.sign(b'{')?;
        self.blank();
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            self.sign(b'"')?;
            let (key, plain) = self.raw()?;
            if !plain || !key.is_ascii() {
                return None;
            }
            self.sign(b':')?;
            member(key, self)?;
            self.blank();
            if self.take(b',').is_none() {
                return self.take(b'}');
            }
        }
    }

    /// Each item of a list, with `self` before it.
    fn list(&mut self, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.sign(b'[')?;
        self.blank();
        if self.take(b']').is_some() {
            return Some(());
        }
        loop {
            item(self)?;
            self.blank();
            if self.take(b',').is_none() {
                return self.take(b']');
            }
        }
    }

    /// The inside of a text whose opening quote was taken, as it is written, and whether that is what it says.
    fn raw(&mut self) -> Option<(&'a [u8], bool)> {
        let (begin, mut plain) = (self.next, true);
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => {
                    plain = false;
                    self.next += 1;
                    // The number of a character may be half of a pair.
                    unescaped(self.peek()?)?;
                }
                0..0x20 => return None,
                _ => {}
            }
            self.next += 1;
        }
        let raw = &self.json[begin..self.next];
        self.next += 1;
        Some((raw, plain))
    }

    fn text(&mut self) -> Option<Cow<'a, str>> {
        self.sign(b'"')?;
        let (raw, plain) = self.raw()?;
        let raw = std::str::from_utf8(raw).ok()?;
        if plain {
            return Some(Cow::Borrowed(raw));
        }
        let mut text = String::with_capacity(raw.len());
        let mut rest = raw;
        while let Some((before, escape)) = rest.split_once('\\') {
            text.push_str(before);
            text.push(unescaped(*escape.as_bytes().first()?)?);
            rest = &escape[1..];
        }
        text.push_str(rest);
        Some(Cow::Owned(text))
    }

    fn text_or_null(&mut self) -> Option<Option<Cow<'a, str>>> {
        if self.is_null() { self.null().map(|()| None) } else { self.text().map(Some) }
    }

    /// A small whole number.
    fn count(&mut self) -> Option<u32> {
        self.blank();
        let begin = self.next;
        self.number()?;
        let digits = &self.json[begin..self.next];
        let is_small = digits.len() < 9 && digits.iter().all(u8::is_ascii_digit);
        is_small.then(|| digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0')))
    }

    fn digits(&mut self) -> Option<()> {
        let begin = self.next;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.next += 1;
        }
        (self.next > begin).then_some(())
    }

    fn number(&mut self) -> Option<()> {
        let _ = self.take(b'-');
        if self.take(b'0').is_none() {
            self.digits()?;
        } else if self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            return None;
        }
        if self.take(b'.').is_some() {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.next += 1;
            if self.take(b'-').is_none() {
                let _ = self.take(b'+');
            }
            self.digits()?;
        }
        Some(())
    }

    /// Passes over a value.
    fn skip(&mut self, depth: usize) -> Option<()> {
        self.blank();
        match self.peek()? {
            b'"' => {
                self.next += 1;
                self.raw().map(|_| ())
            }
            b'n' => self.word(b"null"),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'{' if depth < DEPTH_MAX => self.object(|_, at| at.skip(depth + 1)),
            b'[' if depth < DEPTH_MAX => self.list(|at| at.skip(depth + 1)),
            b'-' | b'0'..=b'9' => self.number(),
            _ => None,
        }
    }

    fn timings(&mut self) -> Option<Timings> {
        let (mut prompt, mut cache, mut predicted) = (Once::default(), Once::default(), Once::default());
        self.object(|key, at| match key {
            b"prompt_n" => prompt.put(at.count()?),
            b"cache_n" => cache.put(at.count()?),
            b"predicted_n" => predicted.put(at.count()?),
            _ => at.skip(1),
        })?;
        let number = |count: Once<u32>| Number(count.0.map(u64::from));
        Some(Timings { prompt_n: number(prompt), cache_n: number(cache), predicted_n: number(predicted) })
    }

    fn choices(&mut self) -> Option<Vec<Choice<'a>>> {
        let mut choices = Vec::new();
        self.list(|at| {
            choices.push(at.choice()?);
            (choices.len() <= CHOICES_MAX).then_some(())
        })?;
        Some(choices)
    }

    fn choice(&mut self) -> Option<Choice<'a>> {
        let (mut index, mut parts, mut text, mut finish) = (Once::default(), Once::default(), Once::default(), Once::default());
        self.object(|key, at| match key {
            b"index" => index.put(at.count()?),
            b"delta" => parts.put(at.parts()?),
            b"text" => text.put(at.text_or_null()?),
            b"finish_reason" => finish.put(at.text_or_null()?),
            b"message" => None,
            _ => at.skip(0),
        })?;
        let parts = parts.0.unwrap_or_default();
        let text = parts.content.or(text.0.flatten()).unwrap_or_default();
        let reasoning = parts.thought.or(parts.thought_else).unwrap_or_default();
        Some(Choice {
            index: index.0.unwrap_or(0),
            generated: !text.is_empty() || !reasoning.is_empty() || parts.refused,
            text,
            reasoning,
            finish_reason: finish.0.flatten().filter(|reason| !reason.is_empty()),
        })
    }

    fn parts(&mut self) -> Option<Parts<'a>> {
        let (mut content, mut thought, mut thought_else, mut refusal) =
            (Once::default(), Once::default(), Once::default(), Once::default());
        self.object(|key, at| match key {
            b"content" => content.put(at.text_or_null()?),
            b"reasoning_content" => thought.put(at.text_or_null()?),
            b"reasoning" => thought_else.put(at.text_or_null()?),
            b"refusal" => refusal.put(at.text_or_null()?),
            b"tool_calls" | b"function_call" | b"audio" => None,
            _ => at.skip(0),
        })?;
        Some(Parts {
            content: content.0.flatten(),
            thought: thought.0.flatten(),
            thought_else: thought_else.0.flatten(),
            refused: refusal.0.flatten().is_some_and(|text| !text.is_empty()),
        })
    }
}

/// What an escape of one letter stands for.
fn unescaped(letter: u8) -> Option<char> {
    Some(match letter {
        b'"' | b'\\' | b'/' => char::from(letter),
        b'n' => '\n',
        b't' => '\t',
        b'r' => '\r',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        _ => return None,
    })
}

#[cfg(test)]
#[path = "plain_tests.rs"]
mod tests;
