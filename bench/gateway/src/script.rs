//! What a stream is to be like. It stands in the prompt, so that every gateway passes it on, whatever fields it knows.
//!
//! Invariant: what a caller asks for is what the upstream reads; a prompt without a script is an error and no default.

use crate::clock::{DIGITS, SIGN};

/// What a request is for.
pub(crate) const MODEL: &str = "smollm2";
/// What a script begins with.
const SCRIPT: &str = "script: ";

/// One stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// Its tokens.
    pub(crate) tokens: u64,
    /// Microseconds from one to the next.
    pub(crate) gap_us: u64,
    /// Microseconds to the first.
    pub(crate) wait_us: u64,
}

impl Script {
    /// The body of its request.
    pub(crate) fn body(&self) -> String {
        let Script { tokens, gap_us, wait_us } = self;
        format!(
            r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":"{SCRIPT}{tokens} {gap_us} {wait_us}."}}],"stream":true,"max_tokens":{tokens}}}"#
        )
    }

    /// Read from the body of a request.
    pub(crate) fn read(body: &[u8]) -> Option<Script> {
        let at = memchr::memmem::find(body, SCRIPT.as_bytes())? + SCRIPT.len();
        let end = at + memchr::memchr(b'.', &body[at..])?;
        let mut words = std::str::from_utf8(&body[at..end]).ok()?.split(' ').map(|word| word.parse::<u64>().ok());
        let script = Script { tokens: words.next()??, gap_us: words.next()??, wait_us: words.next()?? };
        words.next().is_none().then_some(script)
    }
}

/// One event of a stream, as engines write it, in a chunk of HTTP/1.1.
pub(crate) fn event(out: &mut Vec<u8>, id: u64, content: &str, finish: &str) {
    let head =
        format!(r#"data: {{"id":"chatcmpl-{id:016x}","object":"chat.completion.chunk","created":1764500000,"model":"{MODEL}","choices":"#);
    let rest = format!("[{{\"index\":0,\"delta\":{content},\"logprobs\":null,\"finish_reason\":{finish}}}]}}\n\n");
    chunk(out, &[head.as_bytes(), rest.as_bytes()]);
}

/// One token, sent now.
pub(crate) fn token(out: &mut Vec<u8>, id: u64) {
    let (sign, now) = (char::from(SIGN), crate::clock::now());
    event(out, id, &format!(r#"{{"content":"{sign}{now:0DIGITS$}"}}"#), "null");
}

/// Its end.
pub(crate) fn end(out: &mut Vec<u8>, id: u64) {
    event(out, id, "{}", r#""stop""#);
    chunk(out, &[b"data: [DONE]\n\n"]);
    out.extend_from_slice(b"0\r\n\r\n");
}

fn chunk(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(format!("{length:x}\r\n").as_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_caller_asks_for_is_what_the_upstream_reads() {
        let script = Script { tokens: 12, gap_us: 20_000, wait_us: 7 };
        assert_eq!(Script::read(script.body().as_bytes()), Some(script));
        for none in ["", "script: ", "script: 1 2.", "script: 1 2 x.", "script: 1 2 3 4.", "script: 1 2 3"] {
            assert_eq!(Script::read(none.as_bytes()), None, "{none}");
        }
    }
}
