//! Tokens to text, one at a time, never half a character.
//!
//! A token of a byte-level vocabulary may end inside a character; its bytes wait for the next token's.
//! Invariant: all pushes and the finish, put together, are the lossy UTF-8 decoding of all tokens' bytes; at most three bytes wait.

use std::sync::Arc;

use super::bytelevel::byte_of;
use super::tokenizer::{CONTROL, USER_DEFINED};

/// `tokenizer.ggml.token_type` of a token that stands for its bytes.
const NORMAL: i64 = 1;

/// Every token's bytes, in one piece of memory.
#[derive(Debug, Default)]
pub struct Pieces {
    bytes: Vec<u8>,
    /// Where each token's bytes end, and whether they are shown in an answer.
    ends: Vec<(usize, bool)>,
}

impl Pieces {
    /// The bytes of `tokens`, which are of `kinds`. Control tokens have a name that no answer shows; unknown and unused ones have nothing.
    pub(super) fn new(tokens: &[&str], kinds: &[i64]) -> Pieces {
        let mut out = Pieces::default();
        for (token, kind) in tokens.iter().zip(kinds) {
            match *kind {
                NORMAL => out.bytes.extend(token.chars().filter_map(byte_of)),
                CONTROL | USER_DEFINED => out.bytes.extend(token.as_bytes()),
                _ => {}
            }
            out.ends.push((out.bytes.len(), *kind != CONTROL));
        }
        out
    }

    /// Number of tokens.
    pub fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A token's bytes; a control token's are its name.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.piece(token).0
    }

    /// A token's bytes in an answer: none for a control token.
    pub fn shown(&self, token: u32) -> &[u8] {
        match self.piece(token) {
            (bytes, true) => bytes,
            (_, false) => &[],
        }
    }

    fn piece(&self, token: u32) -> (&[u8], bool) {
        let token = token as usize;
        let Some(&(end, shown)) = self.ends.get(token) else { return (&[], false) };
        let begin = token.checked_sub(1).map_or(0, |before| self.ends[before].0);
        (&self.bytes[begin..end], shown)
    }
}

/// One sequence's detokeniser.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    pieces: Arc<Pieces>,
    held: Vec<u8>,
}

impl Detokenizer {
    /// A fresh one.
    pub fn new(pieces: Arc<Pieces>) -> Detokenizer {
        Detokenizer { pieces, held: Vec::new() }
    }

    /// The characters that one more token completes; a byte that can begin or go on no character becomes U+FFFD.
    pub fn push(&mut self, token: u32) -> String {
        self.held.extend_from_slice(self.pieces.shown(token));
        let whole = self.held.len() - unfinished(&self.held);
        let text = String::from_utf8_lossy(&self.held[..whole]).into_owned();
        self.held.drain(..whole);
        text
    }

    /// The end: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// How many bytes at the end begin a character that is not complete.
fn unfinished(bytes: &[u8]) -> usize {
    match bytes.utf8_chunks().last() {
        // `error_len` is none exactly where more bytes could complete the character.
        Some(chunk) if std::str::from_utf8(chunk.invalid()).is_err_and(|e| e.error_len().is_none()) => chunk.invalid().len(),
        _ => 0,
    }
}
