//! Chooses a token from logits: a pure function of (logits, history, parameters, sequence), so that a recompute chooses the same.
//!
//! Invariant: no logits and no parameters make it panic; NaN is the least likely, and ties go to the lowest token.
// contract: C-14

use engine::Sampled;
use lifecycle::params::Sampling;

/// Reported instead of a log-probability that is lower or no number, as the OpenAI API reference has it.
const UNLIKELY: f32 = -9999.0;

/// A logit that can be calculated with.
fn usable(x: f32) -> f32 {
    if x.is_nan() { f32::MIN } else { x.clamp(f32::MIN, f32::MAX) }
}

/// Chooses the token after `history` (the prompt, then what was generated). Order of application: penalties, bias, masking of stop tokens
/// before `min_tokens`, temperature, top-k, top-p, min-p.
pub fn sample(logits: &[f32], history: &[u32], prompt_len: usize, s: &Sampling, sequence: u32, stop_tokens: &[u32]) -> Sampled {
    let index = history.len().saturating_sub(prompt_len);
    let masked = index < s.min_tokens as usize;
    let plain =
        s.presence_penalty == 0.0 && s.frequency_penalty == 0.0 && s.repetition_penalty == 1.0 && s.logit_bias.is_empty() && !masked;
    let token = if plain && s.temperature == 0.0 {
        argmax(logits)
    } else {
        let mut work: Vec<f32> = logits.iter().copied().map(usable).collect();
        penalise(&mut work, history, prompt_len, s);
        if masked {
            for t in stop_tokens {
                if let Some(x) = work.get_mut(*t as usize) {
                    *x = f32::MIN;
                }
            }
        }
        work.iter_mut().for_each(|x| *x = usable(*x));
        if s.temperature == 0.0 { argmax(&work) } else { draw(&work, s, uniform(s.seed, sequence, index as u64)) }
    };
    let (logprob, top) = match s.logprobs {
        None => (None, Vec::new()),
        Some(k) => logprobs(logits, token, k as usize),
    };
    Sampled { token, logprob, top }
}

/// The most likely token, the lowest on ties; 0 if there is none.
fn argmax(logits: &[f32]) -> u32 {
    let (mut best, mut value) = (0, f32::NEG_INFINITY);
    for (i, x) in logits.iter().enumerate() {
        if *x > value {
            (best, value) = (i, *x);
        }
    }
    best as u32
}

/// Repetition penalty (CTRL, Keskar et al. 2019: over prompt and answer), frequency and presence penalties (OpenAI API reference: over the
/// answer), then the bias.
fn penalise(work: &mut [f32], history: &[u32], prompt_len: usize, s: &Sampling) {
    let mut counts = std::collections::BTreeMap::<u32, (bool, u32)>::new();
    for (i, t) in history.iter().enumerate() {
        let entry = counts.entry(*t).or_default();
        entry.1 += u32::from(i >= prompt_len);
    }
    for (t, (_, generated)) in counts {
        let Some(x) = work.get_mut(t as usize) else { continue };
        *x = if *x > 0.0 { *x / s.repetition_penalty } else { *x * s.repetition_penalty };
        *x -= s.frequency_penalty * generated as f32 + if generated > 0 { s.presence_penalty } else { 0.0 };
    }
    for (t, b) in &s.logit_bias {
        if let Some(x) = work.get_mut(*t as usize) {
            *x += b;
        }
    }
}

/// Draws from the softmax after temperature, top-k, top-p and min-p; `u` in 0..1 decides.
fn draw(work: &[f32], s: &Sampling, u: f64) -> u32 {
    let kept = keep_set(work, s);
    let Some(&(_, mut token)) = kept.first() else { return 0 };
    let mut left = u * kept.iter().map(|(p, _)| p).sum::<f64>();
    for (p, t) in kept {
        token = t;
        left -= p;
        if left < 0.0 {
            break;
        }
    }
    token
}

/// The tokens that may be drawn, most likely first, with weights relative to the best one's. Never empty if there are logits.
///
/// Top-p is nucleus sampling (Holtzman et al. 2019), min-p as in Nguyen et al. 2024 ("Turning Up the Heat").
fn keep_set(work: &[f32], s: &Sampling) -> Vec<(f64, u32)> {
    let mut order: Vec<(f32, u32)> = work.iter().zip(0..).map(|(x, i)| (*x, i)).collect();
    let by = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    let k = if s.top_k == 0 { order.len() } else { order.len().min(s.top_k as usize) };
    if k < order.len() {
        order.select_nth_unstable_by(k, by);
        order.truncate(k);
    }
    order.sort_unstable_by(by);
    let best = order.first().map_or(0.0, |o| o.0);
    let weight = |x: f32| if x == best { 1.0 } else { ((f64::from(x) - f64::from(best)) / f64::from(s.temperature)).exp() };
    let mut kept: Vec<(f64, u32)> = order.into_iter().map(|(x, t)| (weight(x), t)).collect();
    if s.top_p < 1.0 {
        let wanted = f64::from(s.top_p) * kept.iter().map(|(p, _)| p).sum::<f64>();
        let mut mass = 0.0;
        let enough = kept.iter().position(|(p, _)| {
            mass += p;
            mass >= wanted
        });
        kept.truncate(enough.map_or(kept.len(), |i| i + 1));
    }
    let likely = kept.iter().take_while(|(p, _)| *p >= f64::from(s.min_p)).count();
    kept.truncate(likely.max(1));
    kept
}

/// A number in 0..1 from (seed, sequence, index) alone: splitmix64's finaliser (Steele, Lea, Flood 2014) over one after the other.
fn uniform(seed: u64, sequence: u32, index: u64) -> f64 {
    let x = mix(mix(mix(seed) ^ u64::from(sequence)) ^ index);
    (x >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The token's log-probability under the unmodified logits, and the `k` most likely tokens with theirs.
fn logprobs(logits: &[f32], token: u32, k: usize) -> (Option<f32>, Vec<(u32, f32)>) {
    let clean: Vec<f32> = logits.iter().copied().map(usable).collect();
    let max = clean.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = clean.iter().map(|x| f64::from(x - max).exp()).sum();
    let log = |x: f32| ((f64::from(x - max) - sum.ln()) as f32).max(UNLIKELY);
    let mut order: Vec<u32> = (0..clean.len() as u32).collect();
    let by = |a: &u32, b: &u32| clean[*b as usize].total_cmp(&clean[*a as usize]).then(a.cmp(b));
    if k > 0 && k < order.len() {
        order.select_nth_unstable_by(k - 1, by);
    }
    order.truncate(k);
    order.sort_unstable_by(by);
    (clean.get(token as usize).map(|x| log(*x)), order.into_iter().map(|t| (t, log(clean[t as usize]))).collect())
}

#[cfg(test)]
mod tests;
