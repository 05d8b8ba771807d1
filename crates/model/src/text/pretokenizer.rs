//! Cuts a text into the words that BPE may not merge across, by the rule that the model was trained with.
//!
//! A rule is a list of steps; each cuts every piece that the step before left, into its matches and the gaps between them (as
//! `unicode_regex_split` of llama.cpp and `Sequence` of Hugging Face's tokenizers do). The patterns are those of llama.cpp's
//! `llama-vocab.cpp`, but run on a regex engine that is linear in the text: the one lookahead, `\s+(?!\S)`, is done by hand.
//! Invariant: pieces are handed out in order, none empty, and together they are the text.

use regex::Regex;

use super::TextError;

/// GPT-2's words (openai/gpt-2, src/encoder.py) without the lookahead.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

/// The names that are understood, for the message about one that is not.
const KNOWN: &str = "smollm, starcoder, refact, command-r, codeshell, exaone, gpt-2, mpt, olmo, default";

/// Cuts `text` where no rule can match across, into parts of at least `least` bytes: before white space that follows something else. A text
/// without white space stays whole.
///
/// A step looks for its next match before the text up to there is cut any further: to the end of a long text, where it has none.
pub(super) fn segments(text: &str, least: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut before_is_space = true;
        let cut = rest.char_indices().skip_while(|&(at, _)| at < least).find(|&(_, c)| {
            let here = c.is_whitespace() && !before_is_space;
            before_is_space = c.is_whitespace();
            here
        });
        let (segment, after) = rest.split_at(cut.map_or(rest.len(), |(at, _)| at));
        rest = after;
        (!segment.is_empty()).then_some(segment)
    })
}

struct Step {
    pattern: Regex,
    /// A run of white space before a word leaves its last character to the word: `\s+(?!\S)`.
    leaves_space: bool,
}

/// A model's rule.
pub(super) struct PreTokenizer(Vec<Step>);

impl PreTokenizer {
    /// The rule called `name` in `tokenizer.ggml.pre`.
    pub(super) fn named(name: &str) -> Result<PreTokenizer, TextError> {
        let patterns: &[&str] = match name {
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" => &[r"\p{N}", GPT2],
            "gpt-2" | "mpt" | "olmo" => &[GPT2],
            "default" => &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
            other => {
                let text =
                    format!("tokenizer.ggml.pre is {other:?}, which is not supported; use a model whose pre-tokenizer is one of {KNOWN}");
                return Err(TextError::Model(text));
            }
        };
        let step = |p: &&str| Ok(Step { pattern: Regex::new(p)?, leaves_space: *p == GPT2 });
        let steps: Result<Vec<Step>, regex::Error> = patterns.iter().map(step).collect();
        steps.map(PreTokenizer).map_err(|e| TextError::Model(e.to_string()))
    }

    /// Hands every piece of `text` to `each`, until it fails.
    pub(super) fn split(&self, text: &str, each: &mut dyn FnMut(&str) -> Result<(), TextError>) -> Result<(), TextError> {
        split(&self.0, text, each)
    }
}

fn split(steps: &[Step], text: &str, each: &mut dyn FnMut(&str) -> Result<(), TextError>) -> Result<(), TextError> {
    let Some((step, rest)) = steps.split_first() else {
        return if text.is_empty() { Ok(()) } else { each(text) };
    };
    let mut at = 0;
    while at < text.len() {
        let (begin, end) = step.find(text, at).unwrap_or((text.len(), text.len()));
        split(rest, &text[at..begin], each)?;
        split(rest, &text[begin..end], each)?;
        at = end;
    }
    Ok(())
}

impl Step {
    fn find(&self, text: &str, at: usize) -> Option<(usize, usize)> {
        let found = self.pattern.find_at(text, at)?;
        let (begin, mut end) = (found.start(), found.end());
        if self.leaves_space && end < text.len() {
            let mut back = found.as_str().char_indices().rev();
            // Only `\s+` matches white space at its end, and only a run of two or more can give one away.
            if let Some((last, c)) = back.next()
                && c.is_whitespace()
                && back.next().is_some()
            {
                end = begin + last;
            }
        }
        Some((begin, end))
    }
}
