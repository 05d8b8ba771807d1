//! A model's text side in one place: what prompts become tokens with, and tokens text.

use model::gguf::Gguf;
use model::text::detokenizer::Detokenizer;
use model::text::template::Template;
use model::text::tokenizer::{TextError, Tokenizer};

/// Tokenizer and chat template of one model.
pub struct Text {
    tokenizer: Tokenizer,
    template: Template,
    longest_token: usize,
}

impl Text {
    /// Reads both from the model's metadata.
    ///
    /// # Errors
    /// The metadata names a tokenizer or a template that is not supported, or lacks one.
    pub fn load(gguf: &Gguf) -> Result<Text, TextError> {
        let (tokenizer, template) = (Tokenizer::new(gguf)?, Template::new(gguf)?);
        let longest_token = tokenizer.longest_token();
        Ok(Text { tokenizer, template, longest_token })
    }

    /// Tokens of a plain text.
    ///
    /// # Errors
    /// The text cannot be encoded, or `cancelled` says that nobody wants it any more.
    pub fn encode(&self, text: &str, cancelled: &dyn Fn() -> bool) -> Result<Vec<u32>, TextError> {
        self.tokenizer.encode_with(text, cancelled)
    }

    /// Tokens of a conversation, up to where the model's answer begins.
    ///
    /// # Errors
    /// As `encode`, or the template refuses the turns.
    pub fn encode_chat(&self, turns: &[(&str, &str)], cancelled: &dyn Fn() -> bool) -> Result<Vec<u32>, TextError> {
        self.tokenizer.encode_with(&self.template.render(turns)?, cancelled)
    }

    /// Bytes of the vocabulary's longest token.
    pub fn longest_token(&self) -> usize {
        self.longest_token
    }

    /// The model's own end-of-turn tokens.
    pub fn end_tokens(&self) -> &[u32] {
        self.tokenizer.end_tokens()
    }

    /// A fresh detokeniser for one sequence.
    pub fn detokenizer(&self) -> Detokenizer {
        self.tokenizer.detokenizer()
    }

    /// A token's bytes, which may be a part of a character.
    pub fn token_bytes(&self, token: u32) -> Vec<u8> {
        self.tokenizer.bytes(token)
    }
}
