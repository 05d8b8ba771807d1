//! The tiny models' vocabulary: three control tokens, all bytes, a few merges; byte-level BPE as SmolLM2's.
//!
//! Invariant: any text can be encoded, and decodes to itself.

use super::Writer;
use crate::text::bytelevel::BYTE_CHARS;

/// Tokens without extra ones.
pub const VOCAB: u32 = 3 + 256 + MERGES.len() as u32;
/// The end-of-turn token, `<|im_end|>`.
pub const EOS: u32 = 2;

const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// By rank; both parts of each are bytes or results of earlier ones.
const MERGES: [&str; 29] = [
    "Ġ t", "Ġ a", "i n", "h e", "r e", "o n", "e r", "Ġt he", "a t", "Ġ s", "Ġ o", "e n", "Ġ w", "n d", "i t", "o r", "i s", "e s", "Ġ c",
    "Ġo f", "Ġa nd", "Ġ in", "in g", "a l", "Ġ f", "Ġt o", "o u", "s t", "a s",
];

/// ChatML, as SmolLM2's template writes it, with a shorter system message.
pub const TEMPLATE: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}\
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Whether the token is a control token or an unused one.
pub(super) fn is_quiet(token: u32) -> bool {
    token < CONTROL.len() as u32 || token >= VOCAB
}

/// Writes the tokenizer's metadata.
pub(super) fn describe(w: &mut Writer, extra: u32) {
    let bytes = BYTE_CHARS.iter().map(char::to_string);
    let merged = MERGES.iter().map(|m| m.replace(' ', ""));
    let unused = (0..extra).map(|i| format!("<|unused_{i}|>"));
    let tokens: Vec<String> = CONTROL.iter().map(|t| t.to_string()).chain(bytes).chain(merged).chain(unused).collect();
    let types: Vec<i32> = (0..tokens.len() as u32)
        .map(|t| {
            if t >= VOCAB {
                5
            } else if is_quiet(t) {
                3
            } else {
                1
            }
        })
        .collect();
    w.str("tokenizer.ggml.model", "gpt2");
    w.str("tokenizer.ggml.pre", "smollm");
    w.strings("tokenizer.ggml.tokens", &tokens);
    w.ints("tokenizer.ggml.token_type", &types);
    w.strings("tokenizer.ggml.merges", &MERGES);
    w.uint("tokenizer.ggml.bos_token_id", 1);
    w.uint("tokenizer.ggml.eos_token_id", EOS);
    w.uint("tokenizer.ggml.unknown_token_id", 0);
    w.uint("tokenizer.ggml.padding_token_id", EOS);
    w.bool("tokenizer.ggml.add_bos_token", false);
    w.bool("tokenizer.ggml.add_space_prefix", false);
    w.str("tokenizer.chat_template", TEMPLATE);
}
