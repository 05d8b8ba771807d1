//! The word by which a judge's request is known where no header of its own is passed on: it stands in the prompt, which every stack passes.
//!
//! Invariant: nothing of a body is kept but this word and, while the body passes, the last few bytes before what comes next.

/// Longest word, in bytes.
const WORD: usize = 256;

/// Looks for the last word of a body that begins with a text.
#[derive(Default, Debug)]
pub struct Word {
    tail: Vec<u8>,
    found: Option<String>,
}

impl Word {
    /// Looks at more of the body.
    pub fn look(&mut self, begins: &str, data: &[u8]) {
        if begins.is_empty() {
            return;
        }
        // What stands across two pieces is seen in the tail of the one with the next.
        self.tail.extend_from_slice(data);
        if let Some(at) = memchr::memmem::rfind(&self.tail, begins.as_bytes()) {
            let rest = &self.tail[at + begins.len()..];
            let length = rest.iter().take(WORD - begins.len().min(WORD)).take_while(|byte| is_of_word(**byte)).count();
            self.found = std::str::from_utf8(&self.tail[at..at + begins.len() + length]).ok().map(str::to_owned);
        }
        let gone = self.tail.len().saturating_sub(WORD + begins.len());
        self.tail.drain(..gone);
    }

    /// The word so far.
    pub fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str, size: usize) -> Option<String> {
        let mut word = Word::default();
        text.as_bytes().chunks(size).for_each(|piece| word.look("verify-", piece));
        word.found().map(str::to_owned)
    }

    #[test]
    fn the_last_word_is_found_however_the_body_is_cut() {
        let long = "x".repeat(1000);
        let text = format!("{{\"content\":\"about verify-shared: {long} verify-early-close-7\",\"user\":\"{long}\"}}");
        for size in 1..text.len() {
            assert_eq!(word(&text, size).as_deref(), Some("verify-early-close-7"), "{size}");
        }
        assert_eq!(word("verify-", 3).as_deref(), Some("verify-"));
        assert_eq!((word("verify", 2), word("", 1)), (None, None));
        for size in [1, 100, 10_000] {
            let long = word(&format!("verify-{long}"), size).expect("a word");
            assert!(long.starts_with("verify-xxx") && long.len() <= WORD, "{}", long.len());
        }
        let mut none = Word::default();
        none.look("", b"verify-1");
        assert_eq!(none.found(), None);
    }
}
