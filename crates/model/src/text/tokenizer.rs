//! The byte-level BPE tokenizer that a GGUF file describes, with llama.cpp's meaning of its keys.
//!
//! Invariant: the same tokens as llama.cpp with special tokens parsed. A byte that the vocabulary has no token for is left out, as there.

use std::sync::Arc;

use serde_json::json;

use super::bytelevel::byte_of;
use super::detokenizer::{Detokenizer, Pieces};
use crate::gguf::Gguf;

/// Text side errors.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The model's metadata cannot be used.
    #[error("{0}")]
    Model(String),
    /// The text cannot be encoded.
    #[error("{0}")]
    Encode(String),
    /// Nobody wants it any more.
    #[error("cancelled")]
    Cancelled,
}

/// `tokenizer.ggml.token_type`: a special token, which has no text.
const CONTROL: i64 = 3;
/// `tokenizer.ggml.token_type`: a token that is found before any splitting, and is text.
const USER_DEFINED: i64 = 4;

/// Whether each digit is a piece of its own: "smollm" says so; "gpt-2" splits with GPT-2's expression alone.
fn single_digits(gguf: &Gguf) -> Result<bool, TextError> {
    let text = |key: &str| gguf.str(key).map_err(|e| TextError::Model(e.to_string()));
    let model = text("tokenizer.ggml.model")?;
    if model != "gpt2" {
        return Err(TextError::Model(format!("tokenizer.ggml.model is {model:?}; supported is \"gpt2\" (byte-level BPE)")));
    }
    match text("tokenizer.ggml.pre")? {
        "smollm" => Ok(true),
        "gpt-2" => Ok(false),
        other => Err(TextError::Model(format!("tokenizer.ggml.pre is {other:?}; supported are \"smollm\" and \"gpt-2\""))),
    }
}

/// The tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: Pieces,
    end: Vec<u32>,
}

impl Tokenizer {
    /// Builds it from the metadata.
    ///
    /// # Errors
    /// A key is missing or of another type, or names a kind of tokenizer that is not supported.
    pub fn new(gguf: &Gguf) -> Result<Tokenizer, TextError> {
        let fail = |e: &dyn std::fmt::Display| TextError::Model(e.to_string());
        let tokens = gguf.strings("tokenizer.ggml.tokens").map_err(|e| fail(&e))?;
        let kinds = gguf.ints("tokenizer.ggml.token_type").map_err(|e| fail(&e))?;
        if kinds.len() != tokens.len() {
            return Err(TextError::Model(format!("{} token types for {} tokens", kinds.len(), tokens.len())));
        }
        let merges = gguf.strings("tokenizer.ggml.merges").map_err(|e| fail(&e))?;
        let vocab: serde_json::Map<_, _> = tokens.iter().enumerate().map(|(i, t)| (t.to_string(), json!(i))).collect();
        let merges: Vec<_> = merges.iter().filter_map(|m| m.split_once(' ')).map(|(a, b)| json!([a, b])).collect();
        let added: Vec<_> = tokens.iter().zip(&kinds).enumerate().filter(|(_, (_, k))| matches!(**k, CONTROL | USER_DEFINED)).map(|(i, (t, k))| {
            json!({"id": i, "content": t, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": *k == CONTROL})
        }).collect();
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let mut steps = vec![byte_level.clone()];
        if single_digits(gguf)? {
            steps.insert(0, json!({"type": "Digits", "individual_digits": true}));
        }
        let spec = json!({"version": "1.0", "added_tokens": added, "normalizer": null, "post_processor": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "decoder": byte_level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges}});
        let inner = tokenizers::Tokenizer::from_bytes(spec.to_string()).map_err(|e| fail(&e))?;
        let piece = |(t, k): (&&str, &i64)| -> Box<[u8]> {
            if *k == CONTROL {
                return Box::default();
            }
            if *k == USER_DEFINED {
                return t.as_bytes().into();
            }
            t.chars().filter_map(byte_of).collect()
        };
        let pieces = Arc::new(tokens.iter().zip(&kinds).map(piece).collect());
        let end = gguf.u32("tokenizer.ggml.eos_token_id").into_iter().chain(gguf.u32("tokenizer.ggml.eot_token_id")).collect();
        Ok(Tokenizer { inner, pieces, end })
    }

    /// The text's tokens; special tokens' names become them. Looks at `cancelled` before it begins.
    ///
    /// # Errors
    /// The text cannot be encoded, or `cancelled` says that nobody wants it any more.
    pub fn encode_with(&self, text: &str, cancelled: &dyn Fn() -> bool) -> Result<Vec<u32>, TextError> {
        if cancelled() {
            return Err(TextError::Cancelled);
        }
        let e = self.inner.encode_fast(text, false).map_err(|e| TextError::Encode(e.to_string()))?;
        Ok(e.get_ids().to_vec())
    }

    /// A fresh detokeniser for one sequence.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(self.pieces.clone())
    }

    /// A token's bytes; none for special tokens and such as there are not.
    pub fn bytes(&self, token: u32) -> Vec<u8> {
        self.pieces.get(token as usize).map(|p| p.to_vec()).unwrap_or_default()
    }

    /// Bytes of the vocabulary's longest token, special ones included.
    pub fn longest_token(&self) -> usize {
        let longest = self.inner.get_vocab(true).into_keys().map(|t| t.len()).max();
        longest.unwrap_or(0)
    }

    /// Tokens that end a turn.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end
    }
}
