//! Tiny models are good files, the same every time.

use super::*;
use crate::gguf::Gguf;

#[test]
fn the_default_model_is_a_good_file() {
    let spec = TinySpec::default();
    let g = Gguf::from_bytes(bytes(&spec)).unwrap();
    assert_eq!(g.str("general.architecture").unwrap(), "llama");
    assert_eq!(g.strings("tokenizer.ggml.tokens").unwrap().len() as u32, spec.vocab());
    assert_eq!(g.ints("tokenizer.ggml.token_type").unwrap().iter().filter(|&&t| t == 3).count(), 3);
    assert_eq!(g.tensors().count(), 2 + 9 * 2);
    let down = g.tensor("blk.1.ffn_down.weight").unwrap();
    assert_eq!((down.dims, down.kind), (&[128, 64][..], TensorKind::Q4_1));
    assert_eq!(g.tensor("token_embd.weight").unwrap().kind, TensorKind::Q8_0);
    assert_eq!(spec.vocab() % 32, 0);
}

#[test]
fn every_merge_joins_tokens_that_are_there() {
    let g = Gguf::from_bytes(bytes(&TinySpec::default())).unwrap();
    let tokens = g.strings("tokenizer.ggml.tokens").unwrap();
    for merge in g.strings("tokenizer.ggml.merges").unwrap() {
        let (a, b) = merge.split_once(' ').unwrap();
        assert!([a, b, &format!("{a}{b}")].iter().all(|t| tokens.contains(t)), "{merge}");
    }
}

#[test]
fn a_spec_decides_the_bytes_and_a_seed_the_weights() {
    let spec = TinySpec::default();
    let other = TinySpec { seed: 2, ..spec.clone() };
    assert_eq!(bytes(&spec), bytes(&spec));
    assert_ne!(bytes(&spec), bytes(&other));
}

#[test]
fn weights_have_mean_zero_and_the_asked_for_spread() {
    let spec = TinySpec::default();
    let all = values(&spec, "x", 64, 4096, 1.0);
    let mean = all.iter().sum::<f32>() / all.len() as f32;
    let variance = all.iter().map(|x| x * x).sum::<f32>() / all.len() as f32;
    assert!(mean.abs() < 0.001, "{mean}");
    assert!((variance * 64.0 - 1.0).abs() < 0.02, "{variance}");
}

#[test]
fn every_kind_and_both_heads_can_be_written() {
    for weights in [TensorKind::F32, TensorKind::F16, TensorKind::Q4_1, TensorKind::Q8_0] {
        for tied in [true, false] {
            let g =
                Gguf::from_bytes(bytes(&TinySpec { weights, embeddings: weights, tied, vocab_extra: 5, ..TinySpec::default() })).unwrap();
            assert_eq!(g.tensor("output.weight").is_ok(), !tied);
            assert_eq!(g.tensor("token_embd.weight").unwrap().dims, [64, 293]);
        }
    }
}

#[test]
fn a_spec_that_cannot_be_is_refused() {
    let base = TinySpec::default();
    let bad = [
        TinySpec { layers: 0, ..base.clone() },
        TinySpec { kv_heads: 3, ..base.clone() },
        TinySpec { head_dim: 15, ..base.clone() },
        TinySpec { ffn: 100, ..base.clone() },
        TinySpec { weights: TensorKind::Q6_K, ..base.clone() },
    ];
    for spec in bad {
        let error = write(Path::new("/nowhere"), &spec).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{spec:?}");
    }
}
