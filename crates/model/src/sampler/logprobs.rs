//! Log-probabilities: log-softmax of the logits as the model gave them, before bias, penalties and temperature.
//!
//! Invariant: sums are f64 and by rising id, so the numbers are the same after a recompute.

use super::exp;
use super::order::{best_first, largest, ranks, tame};

/// Reported instead of a lower log-probability, as OpenAI's API reference has it: JSON has no minus infinity.
const UNLIKELY: f32 = -9999.0;

/// The log-probability of `token`, and the `k` most likely tokens with theirs, best first.
pub(super) fn of(logits: &[f32], token: u32, k: usize) -> (Option<f32>, Vec<(u32, f32)>) {
    let max = largest(logits);
    let powers: Vec<f64> = logits.iter().map(|&x| exp(f64::from(tame(x)) - f64::from(max))).collect();
    let normaliser = f64::from(max) + powers.iter().sum::<f64>().ln();
    // Where every logit is minus infinity the difference is NaN, and `max` takes the other number.
    let log = |x: f32| ((f64::from(x) - normaliser) as f32).max(UNLIKELY);
    let logprob = logits.get(token as usize).map(|&x| log(tame(x)));
    let mut best = Vec::new();
    if k > 0 {
        best = ranks(logits);
        best_first(&mut best, k);
        best.truncate(k);
    }
    (logprob, best.iter().map(|r| (r.token(), log(r.logit()))).collect())
}
