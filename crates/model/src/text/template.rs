//! A conversation as the model was trained to read it: the chat template out of the GGUF, rendered unchanged.
//!
//! The environment is that of Hugging Face's `apply_chat_template` (transformers, utils/chat_template_utils.py): trimmed and stripped
//! blocks, loop controls,
//! `raise_exception`, a `tojson` that escapes no HTML, Python's methods on strings and dicts.
//! There is no `strftime_now`, which templates must do without anyway where it is not defined: the same turns are the same prompt on
//! whatever
//! day, so that another attempt computes the same.
//!
//! Invariant: rendering ends (fuel) and its result is bounded; content of messages is data and never template.

use std::io::Write;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;

use super::TextError;
use crate::gguf::Gguf;

/// Most template instructions one rendering may take; ChatML takes about 20 a message.
pub const FUEL: u64 = 2_000_000;
/// Longest rendered conversation in bytes.
pub const RENDERED_MAX: usize = 16 << 20;
/// Longest template in bytes; the longest of common models are about 20 KB.
pub const TEMPLATE_MAX: usize = 256 << 10;
/// How deep a template may call itself.
const RECURSION_MAX: usize = 64;

const KEY: &str = "tokenizer.chat_template";
const NAME: &str = "chat";

/// A compiled template.
pub struct Template {
    env: Environment<'static>,
    bos: String,
    eos: String,
}

impl Template {
    /// Takes it from the model's metadata.
    ///
    /// # Errors
    /// The file has no template, or one that is too long or no valid Jinja; the message says where.
    pub fn new(gguf: &Gguf) -> Result<Template, TextError> {
        let tokens = gguf.strings("tokenizer.ggml.tokens")?;
        let name = |key: &str| gguf.u32(key).ok().and_then(|id| tokens.get(id as usize)).map(|t| t.to_string()).unwrap_or_default();
        Template::compile(gguf.str(KEY)?, name("tokenizer.ggml.bos_token_id"), name("tokenizer.ggml.eos_token_id"))
    }

    fn compile(source: &str, bos: String, eos: String) -> Result<Template, TextError> {
        if source.len() > TEMPLATE_MAX {
            return Err(TextError::Model(format!("{KEY} has {} bytes, allowed are {TEMPLATE_MAX}; use another model file", source.len())));
        }
        let fail = |e: Error| TextError::Model(format!("{KEY} cannot be compiled: {e}; use another model file"));
        let mut env = Environment::new();
        env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(fail)?);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", |text: String| -> Result<Value, Error> { Err(Error::new(ErrorKind::InvalidOperation, text)) });
        env.add_filter("tojson", to_json);
        env.set_fuel(Some(FUEL));
        env.set_recursion_limit(RECURSION_MAX);
        env.add_template_owned(NAME, source.to_owned()).map_err(fail)?;
        Ok(Template { env, bos, eos })
    }

    /// Renders a conversation, (role, content) each, and the beginning of the model's answer.
    ///
    /// # Errors
    /// The template refuses the conversation (in its own words), or it is too long.
    pub fn render(&self, turns: &[(&str, &str)]) -> Result<String, TextError> {
        let messages: Vec<Value> = turns.iter().map(|&(role, content)| context! { role, content }).collect();
        let values = context! { messages, add_generation_prompt => true, bos_token => &self.bos, eos_token => &self.eos };
        let template = self.env.get_template(NAME).map_err(refused)?;
        let mut out = Bounded(Vec::new());
        template.render_captured_to(values, &mut out).map_err(refused)?;
        String::from_utf8(out.0).map_err(|e| TextError::Encode(e.to_string()))
    }
}

fn refused(e: Error) -> TextError {
    let text = match e.kind() {
        ErrorKind::OutOfFuel => format!("the conversation takes the chat template more than {FUEL} steps; send fewer messages"),
        ErrorKind::WriteFailure => format!("the conversation is longer than {RENDERED_MAX} bytes; send less"),
        _ => format!("the chat template refuses the conversation: {}", e.detail().map_or_else(|| e.to_string(), str::to_owned)),
    };
    TextError::Encode(text)
}

/// Takes only so much.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > RENDERED_MAX {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// `json.dumps` with `ensure_ascii=False`: Python's separators, and nothing escaped that JSON does not ask for.
struct Python;

impl serde_json::ser::Formatter for Python {
    fn begin_array_value<W: Write + ?Sized>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        w.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        w.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, w: &mut W) -> std::io::Result<()> {
        w.write_all(b": ")
    }
}

fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let indent = indent.map(|n| " ".repeat(n.min(16)));
    let mut out = Vec::new();
    let written = match &indent {
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Python)),
        Some(by) => {
            let pretty = serde_json::ser::PrettyFormatter::with_indent(by.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, pretty))
        }
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    String::from_utf8(out).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

#[cfg(test)]
#[path = "tests/template.rs"]
mod tests;
