//! Temperature, min-p, top-k, top-p and the draw.
//!
//! Invariant: a token's weight depends on its logit and the largest one alone; candidates are summed in one order: by id while all are
//! kept, else by falling logit with ties by rising id.

use lifecycle::params::Sampling;

use super::{exp, greedy, tame};

/// How many of the best tokens top-p looks at first; eight times as many when their mass is not enough.
const TOP_P_FIRST: usize = 256;

/// A token that may be drawn.
#[derive(Clone, Copy)]
struct Candidate {
    logit: f32,
    token: u32,
    weight: f64,
}

fn by_logit(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Draws a token by `u`, which is in 0..1.
pub(super) fn draw(logits: &[f32], s: &Sampling, u: f64) -> u32 {
    let max = logits.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(tame(x)));
    if max == f32::NEG_INFINITY {
        return greedy(logits);
    }
    let (max, temperature, least) = (f64::from(max), f64::from(s.temperature), f64::from(s.min_p));
    let candidate = |(token, &x): (usize, &f32)| {
        let logit = tame(x);
        Candidate { logit, token: token as u32, weight: exp((f64::from(logit) - max) / temperature) }
    };
    // The best one has the weight 1, so min-p is a bound on weights.
    let mut kept: Vec<Candidate> = logits.iter().enumerate().map(candidate).filter(|c| c.weight > 0.0 && c.weight >= least).collect();
    let top_k = s.top_k as usize;
    if top_k > 0 && top_k < kept.len() {
        kept.select_nth_unstable_by(top_k - 1, by_logit);
        kept.truncate(top_k);
    }
    if s.top_k > 0 || s.top_p < 1.0 {
        top_p(&mut kept, f64::from(s.top_p));
    }
    pick(&kept, u)
}

/// Leaves the smallest set of the best with at least the share `p` of the mass, best first.
fn top_p(kept: &mut Vec<Candidate>, p: f64) {
    if p >= 1.0 {
        kept.sort_unstable_by(by_logit);
        return;
    }
    // Whoever is left of a selection stands in no defined order: put it in one before it is summed.
    kept.sort_unstable_by_key(|c| c.token);
    let wanted = p * kept.iter().map(|c| c.weight).sum::<f64>();
    let mut look = TOP_P_FIRST;
    loop {
        let n = look.min(kept.len());
        if n < kept.len() {
            kept.select_nth_unstable_by(n - 1, by_logit);
        }
        kept[..n].sort_unstable_by(by_logit);
        let mut mass = 0.0;
        let enough = kept[..n].iter().position(|c| {
            mass += c.weight;
            mass >= wanted
        });
        match enough {
            Some(last) => return kept.truncate(last + 1),
            None if n == kept.len() => return,
            None => look *= 8,
        }
    }
}

/// The candidate at the share `u` of the mass.
fn pick(kept: &[Candidate], u: f64) -> u32 {
    let wanted = u * kept.iter().map(|c| c.weight).sum::<f64>();
    let mut mass = 0.0;
    for c in kept {
        mass += c.weight;
        if mass > wanted {
            return c.token;
        }
    }
    // Rounding can leave `wanted` at the whole mass.
    kept.last().map_or(0, |c| c.token)
}

/// A number in 0..1 from these alone: splitmix64's finaliser (Steele, Lea, Flood 2014), once for each.
pub(super) fn uniform(seed: u64, sequence: u32, index: u64) -> f64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |z: u64| {
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let a = mix(seed.wrapping_add(STEP));
    let b = mix((a ^ u64::from(sequence)).wrapping_add(STEP));
    let c = mix((b ^ index).wrapping_add(STEP));
    (c >> 11) as f64 / (1u64 << 53) as f64
}
