//! The model's own chat template.

use minijinja::{Environment, context};

use super::tokenizer::TextError;
use crate::gguf::Gguf;

/// A compiled template.
pub struct Template(Environment<'static>, String, String);

impl Template {
    /// Takes it from the metadata.
    pub fn new(gguf: &Gguf) -> Result<Template, TextError> {
        let fail = |e: &dyn std::fmt::Display| TextError::Model(e.to_string());
        let source = gguf.str("tokenizer.chat_template").map_err(|e| fail(&e))?.to_owned();
        let mut env = Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|e| fail(&e))?;
        env.set_syntax(syntax);
        env.set_fuel(Some(10_000_000));
        env.add_template_owned("chat", source).map_err(|e| fail(&e))?;
        let tokens = gguf.strings("tokenizer.ggml.tokens").map_err(|e| fail(&e))?;
        let name = |key: &str| gguf.u32(key).ok().and_then(|i| tokens.get(i as usize)).map(|t| t.to_string()).unwrap_or_default();
        Ok(Template(env, name("tokenizer.ggml.bos_token_id"), name("tokenizer.ggml.eos_token_id")))
    }

    /// Renders turns and the beginning of the answer.
    pub fn render(&self, turns: &[(&str, &str)]) -> Result<String, TextError> {
        let messages: Vec<_> = turns.iter().map(|(r, c)| context! { role => r.to_string(), content => c.to_string() }).collect();
        let t = self.0.get_template("chat").map_err(|e| TextError::Encode(e.to_string()))?;
        t.render(context! { messages, add_generation_prompt => true, bos_token => self.1.clone(), eos_token => self.2.clone() })
            .map_err(|e| TextError::Encode(e.to_string()))
    }
}
