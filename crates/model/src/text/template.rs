//! The model's own chat template: Jinja, as Hugging Face's templates use it.
//!
//! Invariant: a template can refuse or fail, but neither run on nor reach anything outside. There is no `strftime_now`: the same turns are
//! the same prompt on whatever day, so that a recompute computes the same.

use minijinja::{Environment, Error, ErrorKind, context};

use super::tokenizer::TextError;
use crate::gguf::Gguf;

/// Instructions one rendering may take; SmolLM2's takes about twenty for each message.
const FUEL: u64 = 10_000_000;

/// A compiled template.
pub struct Template {
    env: Environment<'static>,
    bos: String,
    eos: String,
}

impl Template {
    /// Takes it from the metadata.
    ///
    /// # Errors
    /// The file has no chat template, or one that cannot be compiled.
    pub fn new(gguf: &Gguf) -> Result<Template, TextError> {
        let fail = |e: &dyn std::fmt::Display| TextError::Model(format!("tokenizer.chat_template: {e}"));
        let source = gguf.str("tokenizer.chat_template").map_err(|e| fail(&e))?.to_owned();
        let mut env = Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|e| fail(&e))?;
        env.set_syntax(syntax);
        env.set_fuel(Some(FUEL));
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", |why: String| -> Result<String, Error> { Err(Error::new(ErrorKind::InvalidOperation, why)) });
        env.add_template_owned("chat", source).map_err(|e| fail(&e))?;
        let tokens = gguf.strings("tokenizer.ggml.tokens").map_err(|e| fail(&e))?;
        let name = |key: &str| gguf.u32(key).ok().and_then(|i| tokens.get(i as usize)).map(|t| t.to_string()).unwrap_or_default();
        Ok(Template { env, bos: name("tokenizer.ggml.bos_token_id"), eos: name("tokenizer.ggml.eos_token_id") })
    }

    /// Renders turns (role, content) and the beginning of the answer.
    ///
    /// # Errors
    /// The template refuses the turns, fails, or takes too long.
    pub fn render(&self, turns: &[(&str, &str)]) -> Result<String, TextError> {
        let fail = |e: Error| TextError::Encode(format!("chat template: {e}"));
        let messages: Vec<_> = turns.iter().map(|(r, c)| context! { role => r.to_string(), content => c.to_string() }).collect();
        let values = context! { messages, add_generation_prompt => true, bos_token => self.bos.clone(), eos_token => self.eos.clone() };
        self.env.get_template("chat").map_err(fail)?.render(values).map_err(fail)
    }
}
