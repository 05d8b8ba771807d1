//! Tokens to text, one at a time, never half a character.
//!
//! Invariant: everything handed out, joined, is the lossy UTF-8 of all tokens' bytes, wherever tokens cut a character.

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_join_to_the_lossy_text_of_all_bytes(text in "\\PC{0,12}", noise in prop::collection::vec(any::<u8>(), 0..8), at in any::<prop::sample::Index>(),
                                                      cuts in prop::collection::vec(1usize..5, 1..60)) {
            let mut bytes = text.into_bytes();
            let at = at.index(bytes.len() + 1);
            bytes.splice(at..at, noise);
            let mut rest = &bytes[..];
            let mut pieces: Vec<Box<[u8]>> = Vec::new();
            for n in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at((*n).min(rest.len()));
                pieces.push(piece.into());
                rest = after;
            }
            let count = pieces.len() as u32;
            let mut detokenizer = Detokenizer::new(Arc::new(pieces));
            let mut out: String = (0..count).map(|t| detokenizer.push(t)).collect();
            out.push_str(&detokenizer.push(count)); // A token outside the vocabulary is empty.
            out.push_str(&detokenizer.finish());
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes));
        }
    }
}
