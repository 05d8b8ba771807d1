//! The real model's text side against llama.cpp, through fixtures made once (bench/fixtures), and long hostile texts.

use std::time::{Duration, Instant};

use model::text::template::Template;
use model::text::tokenizer::{TextError, Tokenizer};

use crate::real_file;
use crate::reference::{fixture, ids};

/// Far above what a linear encoder needs for a megabyte, far below what a quadratic one does.
const LINEAR: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs the real model"]
fn tokens_are_those_of_llama_cpp() {
    let tokenizer = Tokenizer::new(&real_file()).unwrap();
    let all = fixture("tokenizer.json");
    let cases = all["cases"].as_array().unwrap();
    assert!(cases.len() > 200);
    let different: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let got = tokenizer.encode_with(case["text"].as_str().unwrap(), &|| false).unwrap();
            (got != ids(&case["ids"])).then(|| format!("{case}: {got:?}"))
        })
        .collect();
    assert!(different.is_empty(), "{} differ:\n{}", different.len(), different.join("\n"));
}

#[test]
#[ignore = "needs the real model"]
fn the_chat_template_renders_as_llama_cpp_does() {
    let text = Template::new(&real_file()).unwrap().render(&[("user", "What is the capital of France?")]).unwrap();
    let expected = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
        <|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(text, expected);
}

#[test]
#[ignore = "needs the real model"]
fn a_megabyte_of_anything_is_encoded_whole_and_not_in_quadratic_time() {
    let tokenizer = Tokenizer::new(&real_file()).unwrap();
    let megabyte = |unit: &str| unit.repeat(1_000_000 / unit.len());
    let texts = [
        megabyte("a"),
        megabyte(" "),
        megabyte(" ") + "x",
        megabyte("7"),
        megabyte("\u{1f600}"),
        megabyte("\n"),
        megabyte("!"),
        megabyte("a "),
    ];
    for text in texts {
        let begin = Instant::now();
        let tokens = tokenizer.encode_with(&text, &|| false).unwrap();
        let took = begin.elapsed();
        println!("{:?}...: {} tokens in {took:?}", text.chars().take(2).collect::<String>(), tokens.len());
        let back: Vec<u8> = tokens.iter().flat_map(|t| tokenizer.bytes(*t)).collect();
        assert!(back == text.as_bytes(), "{} of {} bytes", back.len(), text.len());
        assert!(took < LINEAR, "{took:?}");
    }
}

#[test]
#[ignore = "needs the real model"]
fn an_unwanted_text_is_not_encoded() {
    let tokenizer = Tokenizer::new(&real_file()).unwrap();
    assert!(matches!(tokenizer.encode_with("hello", &|| true), Err(TextError::Cancelled)));
}

// contract: C-13 (being tokenised)
#[test]
#[ignore = "needs the real model"]
fn a_text_that_is_no_longer_wanted_is_left_within_a_few_words() {
    let tokenizer = Tokenizer::new(&real_file()).unwrap();
    let text = "It is a truth universally acknowledged. ".repeat(25_000);
    let looks = std::cell::Cell::new(0);
    let unwanted = || looks.replace(looks.get() + 1) >= 2;
    let begin = Instant::now();
    assert!(matches!(tokenizer.encode_with(&text, &unwanted), Err(TextError::Cancelled)));
    assert!(begin.elapsed() < Duration::from_millis(100), "{:?}", begin.elapsed());
    assert_eq!(looks.get(), 3);
}
