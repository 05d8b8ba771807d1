//! Text to tokens: byte-level BPE as the GGUF describes it.
//!
//! Merging is that of Hugging Face's `tokenizers`; cutting into words and finding control tokens is done here, so that it is linear, and
//! a caller who left is noticed between words. Same tokens as llama.cpp's: held against it on 223 strings (tests/it/text.rs).
//! Invariant: encoding is a pure function of the text; every token is below the vocabulary's size.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Vocab};

pub use super::TextError;
use super::bytelevel::BYTE_CHARS;
use super::detokenizer::{Detokenizer, Pieces};
use super::pretokenizer::{PreTokenizer, segments};
use crate::gguf::Gguf;

/// `tokenizer.ggml.token_type` of a control token: found only where control tokens are looked for, and no part of an answer's text.
pub(super) const CONTROL: i64 = 3;
/// Of a token that a user of the base tokenizer added: found in any text.
pub(super) const USER_DEFINED: i64 = 4;
/// Words between two looks at whether the result is still wanted: some tens of microseconds.
const WORDS_PER_LOOK: u32 = 256;
/// Bytes that are searched for words at once, at least; some 0.3 ms where there is nothing to be found.
const SEGMENT_BYTES: usize = 8 << 10;
/// Words whose merges are remembered.
const CACHED_WORDS: usize = 10_000;

/// Added tokens that are to be found whole in a text.
struct Added {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

/// A model's tokenizer.
pub struct Tokenizer {
    bpe: BPE,
    words: PreTokenizer,
    /// User-defined tokens.
    user: Added,
    /// Those and control tokens.
    all: Added,
    /// The token of each byte, where it has one: what a word of one byte becomes.
    bytes: Box<[Option<u32>; 256]>,
    pieces: Arc<Pieces>,
    begin: Option<u32>,
    end: Vec<u32>,
}

fn model(e: impl std::fmt::Display) -> TextError {
    TextError::Model(e.to_string())
}

impl Tokenizer {
    /// Builds it from the model's metadata.
    ///
    /// # Errors
    /// A key is absent or of a wrong type, or the tokenizer is of a kind that is not supported; the message names the key.
    pub fn new(gguf: &Gguf) -> Result<Tokenizer, TextError> {
        let kind = gguf.str("tokenizer.ggml.model")?;
        if kind != "gpt2" {
            return Err(model(format_args!("tokenizer.ggml.model is {kind:?}; use a model with a byte-level BPE tokenizer (\"gpt2\")")));
        }
        let words = PreTokenizer::named(gguf.str("tokenizer.ggml.pre")?)?;
        let tokens = gguf.strings("tokenizer.ggml.tokens")?;
        let kinds = gguf.ints("tokenizer.ggml.token_type")?;
        if tokens.is_empty() || kinds.len() != tokens.len() {
            let (n, types) = (tokens.len(), kinds.len());
            return Err(model(format_args!("tokenizer.ggml.tokens has {n} entries and token_type {types}; convert the model again")));
        }
        let token = |key: &str| match gguf.get(key) {
            None => Ok(None),
            Some(_) => match gguf.u32(key)? {
                id if (id as usize) < tokens.len() => Ok(Some(id)),
                id => Err(model(format_args!("{key} is {id}, the vocabulary has {} tokens; convert the model again", tokens.len()))),
            },
        };
        let mut end: Vec<u32> = token("tokenizer.ggml.eos_token_id")?.into_iter().chain(token("tokenizer.ggml.eot_token_id")?).collect();
        end.dedup();
        let adds_begin = gguf.get("tokenizer.ggml.add_bos_token").is_some() && gguf.bool("tokenizer.ggml.add_bos_token")?;
        let bpe = bpe(&tokens, &gguf.strings("tokenizer.ggml.merges")?)?;
        Ok(Tokenizer {
            bytes: Box::new(BYTE_CHARS.map(|c| bpe.token_to_id(c.encode_utf8(&mut [0; 4])))),
            bpe,
            words,
            user: Added::new(&tokens, &kinds, &[USER_DEFINED])?,
            all: Added::new(&tokens, &kinds, &[CONTROL, USER_DEFINED])?,
            pieces: Arc::new(Pieces::new(&tokens, &kinds)),
            begin: token("tokenizer.ggml.bos_token_id")?.filter(|_| adds_begin),
            end,
        })
    }

    /// The tokens of `text`. With `parse_special`, a control token's name in it becomes that token; without, it is text like any other.
    ///
    /// # Errors
    /// The tokenizer's own, for a text that it cannot encode.
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TextError> {
        self.encode_pieces(text, parse_special, &|| false)
    }

    /// The tokens of a whole prompt, a rendered conversation or a plain text, begun by the token that the model wants at the beginning, if
    /// any. `cancelled` is asked every few words, once control tokens were searched for (some 3 ms a megabyte). A text without white
    /// space is searched whole first (some 40 ms a megabyte), and a single word is merged whole (measured: 1.6 s a megabyte at worst).
    ///
    /// Control tokens are found everywhere, as llama.cpp's and vLLM's servers do: the template writes them, and so can a caller,
    /// who thereby puts words into the model's mouth and nobody else's. What a tenant may not say must be checked before it is here.
    ///
    /// # Errors
    /// `Cancelled`, or as `encode`.
    pub fn encode_with(&self, text: &str, cancelled: &dyn Fn() -> bool) -> Result<Vec<u32>, TextError> {
        let mut ids = self.encode_pieces(text, true, cancelled)?;
        if let Some(begin) = self.begin
            && ids.first() != Some(&begin)
        {
            ids.insert(0, begin);
        }
        Ok(ids)
    }

    /// A fresh detokeniser for one sequence.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(self.pieces.clone())
    }

    /// A token's bytes, maybe a part of a character; a control token's are its name. None for an id that is no token.
    pub fn bytes(&self, token: u32) -> Vec<u8> {
        self.pieces.bytes(token).to_vec()
    }

    /// Bytes of the vocabulary's longest token, control tokens' names included.
    pub fn longest_token(&self) -> usize {
        (0..self.pieces.len()).map(|t| self.pieces.bytes(t).len()).max().unwrap_or(0)
    }

    /// The model's own tokens that end a turn.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end
    }

    /// Number of tokens.
    pub fn vocab(&self) -> u32 {
        self.pieces.len()
    }

    fn encode_pieces(&self, text: &str, parse_special: bool, cancelled: &dyn Fn() -> bool) -> Result<Vec<u32>, TextError> {
        let added = if parse_special { &self.all } else { &self.user };
        let mut out = Encoder { tokenizer: self, cancelled, ids: Vec::new(), word: String::new(), until_look: 0 };
        let mut at = 0;
        for found in added.automaton.find_iter(text) {
            out.text(&text[at..found.start()])?;
            out.look()?;
            out.ids.push(added.ids[found.pattern().as_usize()]);
            at = found.end();
        }
        out.text(&text[at..])?;
        Ok(out.ids)
    }
}

impl Added {
    fn new(tokens: &[&str], kinds: &[i64], wanted: &[i64]) -> Result<Added, TextError> {
        let chosen = || tokens.iter().zip(kinds).enumerate().filter(|(_, (t, k))| wanted.contains(k) && !t.is_empty());
        let automaton =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(chosen().map(|(_, (t, _))| t)).map_err(model)?;
        Ok(Added { automaton, ids: chosen().map(|(id, _)| id as u32).collect() })
    }
}

fn bpe(tokens: &[&str], merges: &[&str]) -> Result<BPE, TextError> {
    let vocab: Vocab = tokens.iter().zip(0..).map(|(t, id)| (t.to_string(), id)).collect();
    let pair = |m: &&str| match m.split_once(' ') {
        Some((a, b)) if !a.is_empty() && !b.is_empty() => Ok((a.to_owned(), b.to_owned())),
        _ => Err(model(format_args!("tokenizer.ggml.merges has {m:?}, which is no pair; convert the model again"))),
    };
    let merges = merges.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
    let built = BPE::builder().vocab_and_merges(vocab, merges).cache_capacity(CACHED_WORDS).build();
    built.map_err(|e| model(format_args!("tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: {e}; convert the model again")))
}

/// One encoding under way.
struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    cancelled: &'a dyn Fn() -> bool,
    ids: Vec<u32>,
    /// The word in the vocabulary's spelling; kept for its memory.
    word: String,
    until_look: u32,
}

impl Encoder<'_> {
    fn look(&mut self) -> Result<(), TextError> {
        if self.until_look == 0 {
            if (self.cancelled)() {
                return Err(TextError::Cancelled);
            }
            self.until_look = WORDS_PER_LOOK;
        }
        self.until_look -= 1;
        Ok(())
    }

    /// Text without added tokens.
    fn text(&mut self, text: &str) -> Result<(), TextError> {
        let tokenizer = self.tokenizer;
        segments(text, SEGMENT_BYTES).try_for_each(|segment| tokenizer.words.split(segment, &mut |word| self.word(word)))
    }

    fn word(&mut self, word: &str) -> Result<(), TextError> {
        self.look()?;
        if let [byte] = word.as_bytes() {
            self.ids.extend(self.tokenizer.bytes[*byte as usize]);
            return Ok(());
        }
        self.word.clear();
        self.word.extend(word.bytes().map(|b| BYTE_CHARS[b as usize]));
        // A byte that the vocabulary has no token for is left out, as llama.cpp does.
        let tokens = self.tokenizer.bpe.tokenize(&self.word).map_err(|e| TextError::Encode(e.to_string()))?;
        self.ids.extend(tokens.iter().map(|t| t.id));
        Ok(())
    }
}
