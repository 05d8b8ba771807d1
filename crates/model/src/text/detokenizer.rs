//! Tokens to text, one at a time, never half a character.

use std::sync::Arc;

/// Every token's bytes; empty for special ones.
pub type Pieces = Arc<Vec<Box<[u8]>>>;

/// One sequence's detokeniser.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    pieces: Pieces,
    held: Vec<u8>,
}

impl Detokenizer {
    /// A fresh one.
    pub fn new(pieces: Pieces) -> Detokenizer {
        Detokenizer { pieces, held: Vec::new() }
    }

    /// Complete characters after one more token.
    pub fn push(&mut self, token: u32) -> String {
        self.held.extend_from_slice(self.pieces.get(token as usize).map_or(&[][..], |p| p));
        let mut out = String::new();
        loop {
            match std::str::from_utf8(&self.held) {
                Ok(text) => {
                    out.push_str(text);
                    self.held.clear();
                    return out;
                }
                Err(e) => {
                    let good = e.valid_up_to();
                    out.push_str(&String::from_utf8_lossy(&self.held[..good]));
                    let Some(bad) = e.error_len() else {
                        self.held.drain(..good);
                        return out;
                    };
                    out.push('\u{fffd}');
                    self.held.drain(..good + bad);
                }
            }
        }
    }

    /// The end: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        String::from_utf8_lossy(&rest).into_owned()
    }
}
