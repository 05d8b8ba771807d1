//! The real model's tokenizer and template against llama.cpp's tokens (bench/fixtures/tokenizer.py) and its own words.

use std::time::Instant;

use model::gguf::Gguf;
use model::text::template::Template;
use model::text::tokenizer::Tokenizer;
use serde_json::Value;

fn fixture() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn gguf() -> Gguf {
    Gguf::open(&super::real_model_path()).unwrap()
}

#[test]
#[ignore = "needs the real model"]
fn tokens_are_llama_cpps_on_every_tricky_string() {
    let tokenizer = Tokenizer::new(&gguf()).unwrap();
    let fixture = fixture();
    let special = fixture["parse_special"].as_bool().unwrap();
    let cases = fixture["cases"].as_array().unwrap();
    assert!(cases.len() >= 200);
    let mut differing = Vec::new();
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let wanted: Vec<u32> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let got = tokenizer.encode(text, special).unwrap();
        if got != wanted {
            differing.push(format!("{text:?}: {got:?}, llama.cpp {wanted:?}"));
        }
        let mut detokenizer = tokenizer.detokenizer();
        let back: String = tokenizer.encode(text, false).unwrap().iter().map(|&id| detokenizer.push(id)).collect();
        // The vocabulary has no token for some control characters; those are left out, as llama.cpp does.
        let has_token = |c: &char| !c.is_control() || !tokenizer.encode(&c.to_string(), false).unwrap().is_empty();
        let held = text.chars().filter(has_token).collect::<String>();
        assert_eq!(back + &detokenizer.finish(), held);
    }
    assert!(differing.is_empty(), "{} of {}:\n{}", differing.len(), cases.len(), differing.join("\n"));
}

#[test]
#[ignore = "needs the real model"]
fn the_real_template_renders_what_transformers_renders() {
    let gguf = gguf();
    let text = Template::new(&gguf).unwrap().render(&[("user", "What is the capital of France?")]).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = Tokenizer::new(&gguf).unwrap().encode_with(&text, &|| false).unwrap();
    assert_eq!((ids[0], ids.iter().filter(|&&id| id == 2).count()), (1, 2));
}

#[test]
#[ignore = "needs the real model"]
fn a_megabyte_is_encoded_in_bounded_time() {
    let tokenizer = Tokenizer::new(&gguf()).unwrap();
    let prose = "The quick brown fox, 1984: it's 'done'.\n\n    def f(x): return x + 1\n";
    for unit in [prose, " ", "\n", "a", "the", "7", "!", "日本語", "é", "<|im_end|>", " a"] {
        let text = unit.repeat((1 << 20) / unit.len());
        let begin = Instant::now();
        let ids = tokenizer.encode(&text, true).unwrap();
        let took = begin.elapsed();
        println!("{:?} times {}: {} tokens in {took:?}", unit, text.len() / unit.len(), ids.len());
        assert!(took.as_secs() < 10, "{unit:?}");
    }
}
