//! Chooses a token from logits: a pure function of (logits, history, parameters, sequence), so that a recompute chooses the same.
// contract: C-14

use engine::Sampled;
use lifecycle::params::Sampling;

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
        let mut work = logits.to_vec();
        penalise(&mut work, history, prompt_len, s);
        if masked {
            for t in stop_tokens {
                if let Some(x) = work.get_mut(*t as usize) {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
        if s.temperature == 0.0 { argmax(&work) } else { draw(&work, s, uniform(s.seed, sequence, index as u64)) }
    };
    let (logprob, top) = match s.logprobs {
        None => (None, Vec::new()),
        Some(k) => logprobs(logits, token, k as usize),
    };
    Sampled { token, logprob, top }
}

fn argmax(logits: &[f32]) -> u32 {
    let (mut best, mut value) = (0, f32::NEG_INFINITY);
    for (i, x) in logits.iter().enumerate() {
        if *x > value {
            (best, value) = (i, *x);
        }
    }
    best as u32
}

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

fn draw(work: &[f32], s: &Sampling, u: f64) -> u32 {
    let mut order: Vec<(f32, u32)> =
        work.iter().enumerate().map(|(i, x)| (if x.is_nan() { f32::NEG_INFINITY } else { *x }, i as u32)).collect();
    let by = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    let k = if s.top_k == 0 { order.len() } else { (s.top_k as usize).min(order.len()) };
    if k < order.len() {
        order.select_nth_unstable_by(k, by);
        order.truncate(k);
    }
    order.sort_unstable_by(by);
    let best = order[0].0;
    let p: Vec<f64> = order.iter().map(|(x, _)| f64::from((x - best) / s.temperature).exp()).collect();
    let total: f64 = p.iter().sum();
    let mut keep = p.len();
    if s.top_p < 1.0 {
        let mut mass = 0.0;
        keep = p
            .iter()
            .position(|x| {
                mass += x / total;
                mass >= f64::from(s.top_p)
            })
            .map_or(p.len(), |i| i + 1);
    }
    keep = p[..keep].iter().take_while(|x| **x >= f64::from(s.min_p) * p[0]).count().max(1);
    let mut left = u * p[..keep].iter().sum::<f64>();
    for (x, (_, t)) in p[..keep].iter().zip(&order) {
        left -= x;
        if left < 0.0 {
            return *t;
        }
    }
    order[keep - 1].1
}

fn uniform(seed: u64, sequence: u32, index: u64) -> f64 {
    let mut x = seed ^ (u64::from(sequence) << 40) ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2 {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
    }
    (x >> 11) as f64 / (1u64 << 53) as f64
}

fn logprobs(logits: &[f32], token: u32, k: usize) -> (Option<f32>, Vec<(u32, f32)>) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    let log = |x: f32| (f64::from(x - max) - sum.ln()) as f32;
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let by = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if k > 0 && k < order.len() {
        order.select_nth_unstable_by(k - 1, by);
    }
    order.truncate(k);
    order.sort_unstable_by(by);
    (logits.get(token as usize).map(|x| log(*x)), order.into_iter().map(|t| (t, log(logits[t as usize]))).collect())
}
