//! The tiny models are worth testing with: their text varies and does not end at once.

use std::collections::BTreeSet;

use kv::BlockId;
use lifecycle::params::Sampling;
use model::arch::forward::{Compute, Span, SpanDone};
use model::arch::llama::{Llama, Precision};
use model::gguf::Gguf;
use model::kv_memory::KvMemory;
use model::sampler::sample;
use model::text::template::Template;
use model::text::tokenizer::Tokenizer;
use model::tiny::{self, EOS, TinySpec};

const BLOCK_TOKENS: usize = 16;

/// What the model of `seed` answers to a greeting; may go on over the end of its turn.
fn answer(seed: u64, sampling: &Sampling, count: usize) -> (Vec<u32>, String) {
    let gguf = Gguf::from_bytes(tiny::bytes(&TinySpec { seed, ..TinySpec::default() })).unwrap();
    let tokenizer = Tokenizer::new(&gguf).unwrap();
    let text = Template::new(&gguf).unwrap().render(&[("user", "Hello there")]).unwrap();
    let mut tokens = tokenizer.encode_with(&text, &|| false).unwrap();
    let prompt_len = tokens.len();
    let model = Llama::load(&gguf, Precision::Fast).unwrap();
    let table: Vec<BlockId> = (0..(prompt_len + count).div_ceil(BLOCK_TOKENS) as u32).map(BlockId).collect();
    let mut memory = KvMemory::new(model.shape(), table.len(), BLOCK_TOKENS).unwrap();
    let mut compute = Compute::new(1, None).unwrap();
    let mut detokenizer = tokenizer.detokenizer();
    let mut text = String::new();
    let mut position = 0;
    for _ in 0..count {
        let span = Span { tokens: &tokens[position..], position, table: &table, logits: true, is_dropped: &|| false };
        let done = model.step(&mut compute, &mut memory, &[span]).unwrap();
        let SpanDone::Computed { logits: Some(at) } = done[0] else { panic!("{done:?}") };
        position = tokens.len();
        let chosen = sample(compute.logits(at), &tokens, prompt_len, sampling, 0, &[EOS]).token;
        text += &detokenizer.push(chosen);
        tokens.push(chosen);
    }
    (tokens.split_off(prompt_len), text + &detokenizer.finish())
}

#[test]
fn greedy_and_sampled_text_vary_and_do_not_end_at_once() {
    for seed in 1..=4 {
        for temperature in [0.0, 1.0] {
            let (tokens, text) = answer(seed, &Sampling { temperature, ..Sampling::default() }, 100);
            println!("seed {seed}, temperature {temperature}: {text:?}");
            let distinct = tokens.iter().collect::<BTreeSet<_>>().len();
            assert!(distinct >= 10, "seed {seed}, temperature {temperature}: {distinct} distinct tokens in {tokens:?}");
            assert!(!tokens[..32].contains(&EOS), "seed {seed}, temperature {temperature}: ends early in {tokens:?}");
            assert_eq!(answer(seed, &Sampling { temperature, ..Sampling::default() }, 10).0, tokens[..10]);
        }
    }
}
