//! Chooses a token from logits: a pure function of (logits, history, parameters, sequence), so that a recompute chooses the same.
//!
//! Order of application, which is vLLM's (vllm/v1/sample/sampler.py): logit bias, stop tokens masked before `min_tokens`, penalties
//! (repetition, frequency, presence), then greedy, or temperature, min-p, top-k, top-p and a draw. Top-p counts mass among what min-p and
//! top-k left.
//!
//! - Bias, presence and frequency: OpenAI's API reference; `mu[j] -> mu[j] - c[j] * frequency - (c[j] > 0) * presence`, over generated
//!   tokens.
//! - Repetition: Keskar et al., CTRL (2019), section 4.1, over prompt and generated tokens; as everywhere, a negative logit is multiplied.
//! - Top-p: Holtzman et al., The curious case of neural text degeneration (2019). Top-k: Fan et al., Hierarchical neural story
//!   generation (2018).
//! - Min-p: Nguyen et al., Turning up the heat: min-p sampling (2024).
//!
//! Invariant: no two tokens are ever equal in order (ties go to the lower id), sums run in a fixed order, and no choice depends on threads,
//! time or the machine's libm. NaN counts as minus infinity, plus infinity as the largest number.
// contract: C-14

mod draw;
mod logprobs;
mod order;
#[cfg(test)]
mod tests;

use engine::Sampled;
use lifecycle::params::Sampling;

/// Chooses the token after `history`, which is the prompt (`prompt_len` tokens) and what was generated since. `stop_tokens` may not be
/// chosen before `sampling.min_tokens` were generated. Ids in `history`, `stop_tokens` or the bias that are no tokens are passed over.
/// Without logits the token is 0.
pub fn sample(logits: &[f32], history: &[u32], prompt_len: usize, sampling: &Sampling, sequence: u32, stop_tokens: &[u32]) -> Sampled {
    let (prompt, generated) = history.split_at(prompt_len.min(history.len()));
    let index = generated.len();
    let masked: &[u32] = if index < sampling.min_tokens as usize { stop_tokens } else { &[] };
    let token = if is_plain(sampling) && masked.is_empty() {
        choose(logits, sampling, sequence, index)
    } else {
        let mut changed = logits.to_vec();
        change(&mut changed, prompt, generated, sampling, masked);
        choose(&changed, sampling, sequence, index)
    };
    let (logprob, top) = match sampling.logprobs {
        None => (None, Vec::new()),
        Some(k) => logprobs::of(logits, token, k as usize),
    };
    Sampled { token, logprob, top }
}

/// Whether the logits are used as they are.
fn is_plain(s: &Sampling) -> bool {
    s.presence_penalty == 0.0 && s.frequency_penalty == 0.0 && s.repetition_penalty == 1.0 && s.logit_bias.is_empty()
}

/// Bias, mask and penalties.
fn change(logits: &mut [f32], prompt: &[u32], generated: &[u32], s: &Sampling, masked: &[u32]) {
    for &(token, bias) in &s.logit_bias {
        if let Some(x) = logits.get_mut(token as usize) {
            *x += bias;
        }
    }
    for &token in masked {
        if let Some(x) = logits.get_mut(token as usize) {
            *x = f32::NEG_INFINITY;
        }
    }
    if s.presence_penalty == 0.0 && s.frequency_penalty == 0.0 && s.repetition_penalty == 1.0 {
        return;
    }
    let mut counts = vec![0u32; logits.len()];
    for &token in generated {
        if let Some(n) = counts.get_mut(token as usize) {
            *n += 1;
        }
    }
    for (x, &n) in logits.iter_mut().zip(&counts) {
        if n > 0 {
            *x = repeated(*x, s.repetition_penalty) - n as f32 * s.frequency_penalty - s.presence_penalty;
        }
    }
    for &token in prompt {
        let token = token as usize;
        if counts.get(token) == Some(&0) {
            logits[token] = repeated(logits[token], s.repetition_penalty);
            counts[token] = 1;
        }
    }
}

fn repeated(x: f32, penalty: f32) -> f32 {
    if x > 0.0 { x / penalty } else { x * penalty }
}

fn choose(logits: &[f32], s: &Sampling, sequence: u32, index: usize) -> u32 {
    if s.temperature == 0.0 { greedy(logits) } else { draw::draw(logits, s, draw::uniform(s.seed, sequence, index as u64)) }
}

/// The token of the largest logit; the first of equal ones.
fn greedy(logits: &[f32]) -> u32 {
    let max = order::largest(logits);
    logits.iter().position(|&x| order::tame(x) == max).unwrap_or(0) as u32
}

/// `e` to the power of `x`, `x` at most 0: the same bits on every machine, within an ulp or two. Cody and Waite's reduction and Taylor's
/// series, without a branch or a call, so that loops over it become vector instructions.
fn exp(x: f64) -> f64 {
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    /// Adding it leaves a number rounded to an integer in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    /// Reciprocal factorials from 13 down.
    const SERIES: [f64; 13] = [
        1.0 / 479001600.0,
        1.0 / 39916800.0,
        1.0 / 3628800.0,
        1.0 / 362880.0,
        1.0 / 40320.0,
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        1.0 / 2.0,
        1.0,
        1.0,
    ];
    // Below this the result is subnormal and matters to no sum; NaN is 0, too.
    let is_enough = x > -708.0;
    let x = if is_enough { x } else { -708.0 };
    let rounded = x * std::f64::consts::LOG2_E + ROUND;
    let k = rounded - ROUND;
    let r = (x - k * LN2_HIGH) - k * LN2_LOW;
    let sum = SERIES.iter().fold(1.0 / 6_227_020_800.0, |sum, c| sum * r + c);
    let power = f64::from_bits(rounded.to_bits().wrapping_add(1023) << 52);
    if is_enough { sum * power } else { 0.0 }
}
