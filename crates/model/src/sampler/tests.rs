//! The sampler by hand-computed examples and against naive references.

use proptest::prelude::*;

use super::*;

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..Sampling::default() }
}

#[test]
fn greedy_takes_the_lowest_of_the_best() {
    assert_eq!(sample(&[1.0, 3.0, 3.0, f32::NAN], &[], 0, &greedy(), 0, &[]).token, 1);
}

#[test]
fn penalties_by_hand() {
    let s = Sampling {
        repetition_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        logit_bias: vec![(3, 1.5), (9, 1.0)],
        ..greedy()
    };
    let mut work = [4.0, -1.0, 2.0, 0.0];
    // The prompt is [0]; the answer so far [1, 2, 2].
    penalise(&mut work, &[0, 1, 2, 2], 1, &s);
    assert_eq!(work, [2.0, -2.0 - 0.5 - 0.25, 1.0 - 1.0 - 0.25, 1.5]);
}

#[test]
fn stop_tokens_wait_for_min_tokens() {
    let s = Sampling { min_tokens: 2, ..greedy() };
    assert_eq!(sample(&[1.0, 9.0], &[0, 0], 1, &s, 0, &[1]).token, 0);
    assert_eq!(sample(&[1.0, 9.0], &[0, 0, 0], 1, &s, 0, &[1]).token, 1);
}

#[test]
fn draws_follow_the_distribution() {
    let logits = [0.6f32.ln(), 0.3f32.ln(), 0.1f32.ln()];
    let mut counts = [0u32; 3];
    for seed in 0..10_000 {
        counts[sample(&logits, &[], 0, &Sampling { seed, ..Sampling::default() }, 0, &[]).token as usize] += 1;
    }
    // Five standard deviations of the widest binomial are 245.
    assert!(counts.iter().zip([6000u32, 3000, 1000]).all(|(c, e)| c.abs_diff(e) < 245), "{counts:?}");
}

/// The kept tokens, each rule by its definition.
fn naive(logits: &[f32], s: &Sampling) -> Vec<u32> {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|a, b| logits[*b as usize].partial_cmp(&logits[*a as usize]).unwrap());
    if s.top_k > 0 {
        order.truncate(s.top_k as usize);
    }
    let p = |t: u32| f64::from((logits[t as usize] - logits[order[0] as usize]) / s.temperature).exp();
    let total: f64 = order.iter().map(|t| p(*t)).sum();
    let before = |i: usize| order[..i].iter().map(|t| p(*t)).sum::<f64>();
    let kept = |i: &usize| *i == 0 || ((s.top_p >= 1.0 || before(*i) < f64::from(s.top_p) * total) && p(order[*i]) >= f64::from(s.min_p));
    (0..order.len()).filter(kept).map(|i| order[i]).collect()
}

proptest! {
    #[test]
    fn keep_sets_are_the_definitions(logits in prop::collection::vec((-8i8..8).prop_map(f32::from), 1..20), top_k in 0u32..22,
                                     top_p in 0.01f32..1.2, min_p in 0f32..1.0) {
        let s = Sampling { top_k, top_p, min_p, temperature: 2.0, ..Sampling::default() };
        let kept: Vec<u32> = keep_set(&logits, &s).into_iter().map(|(_, t)| t).collect();
        prop_assert_eq!(kept, naive(&logits, &s));
    }

    // contract: C-14
    #[test]
    fn a_choice_depends_on_seed_sequence_and_index_alone(logits in prop::collection::vec(-5f32..5.0, 1..20), seed: u64, sequence in 0u32..4,
                                                         a in prop::collection::vec(0u32..20, 3), b in prop::collection::vec(0u32..20, 3)) {
        let s = Sampling { seed, ..Sampling::default() };
        prop_assert_eq!(sample(&logits, &a, 1, &s, sequence, &[]), sample(&logits, &b, 1, &s, sequence, &[]));
    }

    #[test]
    fn no_logits_make_it_panic(logits in prop::collection::vec(prop_oneof![any::<f32>(), Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY)], 0..9),
                               temperature in prop_oneof![Just(0f32), 1e-6f32..2.0], min_tokens in 0u32..2, penalty in 0.5f32..2.0) {
        let s = Sampling { temperature, min_tokens, repetition_penalty: penalty, logprobs: Some(3), top_p: 0.9, min_p: 0.1, ..Sampling::default() };
        let got = sample(&logits, &[0, 7], 2, &s, 1, &[0]);
        prop_assert!((got.token as usize) < logits.len().max(1));
        prop_assert!(got.logprob.iter().chain(got.top.iter().map(|(_, p)| p)).all(|p| p.is_finite()));
    }

    #[test]
    fn probabilities_sum_to_one(logits in prop::collection::vec(-9f32..9.0, 1..50)) {
        let (_, top) = logprobs(&logits, 0, logits.len());
        let sum: f64 = top.iter().map(|(_, p)| f64::from(*p).exp()).sum();
        prop_assert!((sum - 1.0).abs() < 1e-4, "{}", sum);
        prop_assert!(top.windows(2).all(|w| w[0].1 >= w[1].1));
    }
}
