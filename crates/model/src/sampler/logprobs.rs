//! Log-probabilities: log-softmax of the logits as the model gave them, before bias, penalties and temperature.
//!
//! Invariant: sums are f64 and by rising id, so the numbers are the same after a recompute.

use super::{exp, tame};

/// The log-probability of `token`, and the `k` most likely tokens with theirs, best first.
pub(super) fn of(logits: &[f32], token: u32, k: usize) -> (Option<f32>, Vec<(u32, f32)>) {
    let max = logits.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(tame(x)));
    let sum: f64 = logits.iter().map(|&x| exp(f64::from(tame(x)) - f64::from(max))).sum();
    let normaliser = f64::from(max) + sum.ln();
    // Nothing is likely where every logit is minus infinity; the difference would be NaN.
    let log = |x: f32| if max == f32::NEG_INFINITY { x } else { (f64::from(x) - normaliser) as f32 };
    let logprob = logits.get(token as usize).map(|&x| log(tame(x)));
    let mut best: Vec<(u32, f32)> = Vec::new();
    if k > 0 {
        best = (0..).zip(logits.iter().map(|&x| tame(x))).collect();
        let by = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if k < best.len() {
            best.select_nth_unstable_by(k - 1, by);
            best.truncate(k);
        }
        best.sort_unstable_by(by);
    }
    (logprob, best.into_iter().map(|(t, x)| (t, log(x))).collect())
}
