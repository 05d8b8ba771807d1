//! The sampler against plain definitions.

use proptest::prelude::*;

use super::*;

fn greedy_params() -> Sampling {
    Sampling { temperature: 0.0, ..Sampling::default() }
}

fn token(logits: &[f32], s: &Sampling) -> u32 {
    sample(logits, &[], 0, s, 0, &[]).token
}

/// How often each token is drawn over `n` seeds.
fn shares(logits: &[f32], s: &Sampling, n: u64) -> Vec<f64> {
    let mut counts = vec![0.0; logits.len()];
    for seed in 0..n {
        counts[token(logits, &Sampling { seed, ..s.clone() }) as usize] += 1.0 / n as f64;
    }
    counts
}

#[test]
fn greedy_takes_the_largest_and_the_first_of_equal_ones() {
    let mut logits = vec![0.0; 100];
    for at in [3, 50, 99] {
        logits[at] = 2.0;
    }
    assert_eq!(token(&logits, &greedy_params()), 3);
    logits[98] = 2.5;
    assert_eq!(token(&logits, &greedy_params()), 98);
}

#[test]
fn no_logit_is_too_strange() {
    let nan = f32::NAN;
    let inf = f32::INFINITY;
    let strange: [&[f32]; 7] =
        [&[], &[nan, nan], &[-inf, -inf], &[nan, 1.0, nan], &[inf, inf, 0.0], &[-inf, nan, inf], &[f32::MIN, f32::MAX]];
    let ways = [
        greedy_params(),
        Sampling::default(),
        Sampling { top_k: 1, ..Sampling::default() },
        Sampling { top_p: 0.5, min_p: 0.1, logprobs: Some(3), repetition_penalty: 1.3, presence_penalty: 1.0, ..Sampling::default() },
    ];
    for logits in strange {
        for way in &ways {
            let got = sample(logits, &[0, 1, 7, u32::MAX], 2, way, 0, &[0, 99]);
            assert!((got.token as usize) < logits.len().max(1), "{logits:?}");
            assert!(got.top.iter().all(|t| t.1.is_finite()) && got.logprob.is_none_or(f32::is_finite), "{logits:?}: {got:?}");
        }
    }
    assert_eq!(token(&[nan, 1.0, 3.0, nan], &greedy_params()), 2);
    assert_eq!(token(&[nan, 1.0, inf, nan], &Sampling::default()), 2);
}

#[test]
fn penalties_follow_their_formulas() {
    let s = Sampling { presence_penalty: 0.5, frequency_penalty: 0.25, repetition_penalty: 2.0, ..Sampling::default() };
    let mut logits = vec![4.0, 4.0, -4.0, 4.0, -4.0];
    // Token 0 in the prompt, 1 generated twice, 2 in both, 4 in the prompt twice; 3 nowhere.
    change(&mut logits, &[0, 2, 4, 4, 1000], &[1, 1, 2, 1000], &s, &[]);
    assert_eq!(logits, [2.0, 2.0 - 0.5 - 0.5, -8.0 - 0.25 - 0.5, 4.0, -8.0]);
}

#[test]
fn bias_comes_before_penalties() {
    let s = Sampling { repetition_penalty: 2.0, logit_bias: vec![(0, 3.0), (9, 1.0)], ..Sampling::default() };
    let mut logits = vec![1.0, 1.0];
    change(&mut logits, &[0], &[], &s, &[]);
    assert_eq!(logits, [2.0, 1.0]);
}

#[test]
fn stop_tokens_wait_for_min_tokens() {
    let s = Sampling { min_tokens: 2, ..greedy_params() };
    let logits = [1.0, 5.0, 2.0];
    let at = |generated: &[u32]| sample(&logits, &[&[0][..], generated].concat(), 1, &s, 0, &[1, 77]).token;
    assert_eq!([at(&[]), at(&[2]), at(&[2, 2])], [2, 2, 1]);
}

#[test]
fn a_draw_depends_on_seed_sequence_and_index_alone() {
    let logits: Vec<f32> = (0..64).map(|i| (i % 7) as f32 * 0.1).collect();
    let s = Sampling { seed: 42, ..Sampling::default() };
    let at = |history: &[u32], prompt: usize, sequence: u32| sample(&logits, history, prompt, &s, sequence, &[]).token;
    assert_eq!(at(&[1, 2, 3], 1, 0), at(&[9, 9, 8, 8, 8], 3, 0));
    let over_index: Vec<u32> = (0..50).map(|n| at(&vec![0; n], 0, 0)).collect();
    let over_sequence: Vec<u32> = (0..50).map(|n| at(&[], 0, n)).collect();
    assert_ne!(over_index, over_sequence);
    assert!(over_index.iter().collect::<std::collections::BTreeSet<_>>().len() > 15);
    assert!(over_sequence.iter().collect::<std::collections::BTreeSet<_>>().len() > 15);
}

#[test]
fn these_draws_never_change() {
    // A recompute on another build must choose the same: whoever changes a draw changes every seed's text, and must mean to.
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 37) % 101) as f32 * 0.05).collect();
    let ways = [
        Sampling { seed: 7, ..Sampling::default() },
        Sampling { seed: 7, temperature: 0.7, top_k: 40, ..Sampling::default() },
        Sampling { seed: 7, temperature: 1.3, top_p: 0.9, min_p: 0.05, ..Sampling::default() },
    ];
    let drawn = ways.map(|s| [0, 1, 2].map(|n| sample(&logits, &vec![5; n], 0, &s, 3, &[]).token));
    assert_eq!(drawn, PINNED);
}

/// What `these_draws_never_change` drew when it was written.
const PINNED: [[u32; 3]; 3] = [[613, 62, 35], [393, 232, 131], [95, 464, 838]];

#[test]
fn draws_have_the_softmax_of_the_logits() {
    let logits = [0.0, 1.0, 2.0, 3.0];
    for temperature in [0.5f32, 1.0, 2.0] {
        let weights: Vec<f64> = logits.iter().map(|x| f64::from(x / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let got = shares(&logits, &Sampling { temperature, ..Sampling::default() }, 20_000);
        for (share, weight) in got.iter().zip(&weights) {
            assert!((share - weight / total).abs() < 0.015, "{temperature}: {got:?}");
        }
    }
}

#[test]
fn truncations_keep_what_they_say() {
    let kept = |s: Sampling| -> Vec<usize> {
        let logits: Vec<f32> = [0.4f32, 0.3, 0.15, 0.1, 0.05].iter().map(|p| p.ln()).collect();
        shares(&logits, &s, 2_000).iter().enumerate().filter(|(_, n)| **n > 0.0).map(|(i, _)| i).collect()
    };
    let base = Sampling::default();
    assert_eq!(kept(base.clone()), [0, 1, 2, 3, 4]);
    assert_eq!(kept(Sampling { top_k: 2, ..base.clone() }), [0, 1]);
    assert_eq!(kept(Sampling { top_k: 9, ..base.clone() }), [0, 1, 2, 3, 4]);
    assert_eq!(kept(Sampling { top_p: 0.75, ..base.clone() }), [0, 1, 2]);
    assert_eq!(kept(Sampling { top_p: 0.01, ..base.clone() }), [0]);
    assert_eq!(kept(Sampling { min_p: 0.3, ..base.clone() }), [0, 1, 2]);
    assert_eq!(kept(Sampling { min_p: 1.0, ..base.clone() }), [0]);
    // Top-p is of what top-k left: 0.4 of 0.7 is more than half.
    assert_eq!(kept(Sampling { top_k: 2, top_p: 0.5, ..base }), [0]);
}

#[test]
fn top_p_beyond_the_first_look_is_the_same_as_a_full_sort() {
    let logits: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 5000) as f32 * 0.0004).collect();
    let mut order: Vec<u32> = (0..5000).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    let weights: Vec<f64> = order.iter().map(|&t| f64::from(logits[t as usize]).exp()).collect();
    let total: f64 = weights.iter().sum();
    let before = weights.iter().scan(0.0, |mass, w| {
        *mass += w;
        Some(*mass - w)
    });
    let kept = before.take_while(|mass| *mass < 0.9 * total).count();
    let allowed = &order[..kept];
    let s = Sampling { top_p: 0.9, ..Sampling::default() };
    for seed in 0..300 {
        let t = token(&logits, &Sampling { seed, ..s.clone() });
        assert!(allowed.contains(&t), "{t} is not among the {kept} kept");
    }
}

#[test]
fn log_probabilities_are_of_the_unmodified_logits() {
    let logits = [1.0f32, 3.0, 2.0, 3.0];
    let s = Sampling { logprobs: Some(3), logit_bias: vec![(0, 50.0)], ..greedy_params() };
    let got = sample(&logits, &[], 0, &s, 0, &[]);
    let total: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
    let log = |x: f32| (f64::from(x) - total.ln()) as f32;
    assert_eq!(got.token, 0);
    assert!((got.logprob.unwrap() - log(1.0)).abs() < 1e-6);
    assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 2]);
    assert!(got.top.iter().all(|(t, p)| (p - log(logits[*t as usize])).abs() < 1e-6));
    let none = sample(&logits, &[], 0, &Sampling { logprobs: Some(0), ..greedy_params() }, 0, &[]);
    assert!(none.logprob.is_some() && none.top.is_empty());
}

#[test]
fn own_exp_is_the_exponential() {
    for i in 0..100_000 {
        let x = -f64::from(i) * 0.007;
        assert!((exp(x) - x.exp()).abs() <= x.exp() * 1e-15, "{x}: {} {}", exp(x), x.exp());
    }
    assert_eq!([exp(0.0), exp(f64::NEG_INFINITY), exp(f64::NAN), exp(-1e300)], [1.0, 0.0, 0.0, 0.0]);
}

proptest! {
    #[test]
    fn probabilities_sum_to_one(logits in prop::collection::vec(-9f32..9.0, 1..50)) {
        let (_, top) = logprobs::of(&logits, 0, logits.len());
        let sum: f64 = top.iter().map(|(_, p)| f64::from(*p).exp()).sum();
        prop_assert!((sum - 1.0).abs() < 1e-4, "{}", sum);
        prop_assert!(top.windows(2).all(|w| w[0].1 >= w[1].1));
    }

    #[test]
    fn a_draw_is_always_a_token_that_may_be_chosen(
        logits in prop::collection::vec(-30f32..30.0, 1..400),
        temperature in 0.01f32..2.0,
        top_k in 0u32..50,
        top_p in 0.01f32..1.0,
        min_p in 0f32..1.0,
        seed: u64,
    ) {
        let s = Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::default() };
        let t = token(&logits, &s);
        let better = logits.iter().enumerate().filter(|(i, x)| **x > logits[t as usize] || (**x == logits[t as usize] && *i < t as usize)).count();
        prop_assert!(top_k == 0 || better < top_k as usize);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        prop_assert!(f64::from((logits[t as usize] - max) / temperature).exp() >= f64::from(min_p) * 0.999);
        prop_assert_eq!(t, token(&logits, &s));
        // Greedy's token is the limit.
        let cold = Sampling { temperature: 0.0, ..s };
        prop_assert_eq!(logits[token(&logits, &cold) as usize], max);
    }
}
