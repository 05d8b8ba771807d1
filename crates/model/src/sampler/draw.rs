//! Temperature, min-p, top-k, top-p and the draw.
//!
//! Invariant: a token's weight depends on its logit and the largest one alone; candidates are summed in one order: by rising id while all
//! are kept, else best first.

use lifecycle::params::Sampling;

use super::exp;
use super::order::{Rank, best_first, largest, ranks};

/// How many of the best tokens top-p looks at first; eight times as many when their mass is not enough.
const TOP_P_FIRST: usize = 256;

/// What turns logits into weights, of which the best token's is 1.
struct Scale {
    max: f64,
    temperature: f64,
}

impl Scale {
    fn weight(&self, rank: Rank) -> f64 {
        exp((f64::from(rank.logit()) - self.max) / self.temperature)
    }

    fn weights(&self, ranks: &[Rank]) -> Vec<f64> {
        ranks.iter().map(|&r| self.weight(r)).collect()
    }
}

/// Draws a token by `u`, which is in 0..1.
pub(super) fn draw(logits: &[f32], s: &Sampling, u: f64) -> u32 {
    let scale = Scale { max: f64::from(largest(logits)), temperature: f64::from(s.temperature) };
    if scale.max == f64::NEG_INFINITY {
        return 0;
    }
    let mut kept = ranks(logits);
    min_p(&mut kept, &scale, f64::from(s.min_p));
    if s.top_k > 0 {
        let k = kept.len().min(s.top_k as usize);
        best_first(&mut kept, k);
        kept.truncate(k);
    }
    if s.top_p < 1.0 {
        top_p(&mut kept, &scale, f64::from(s.top_p));
    }
    pick(&kept, &scale.weights(&kept), u)
}

/// Drops what is less likely than this share of the best one's probability.
fn min_p(kept: &mut Vec<Rank>, scale: &Scale, least: f64) {
    if least <= 0.0 {
        return;
    }
    // Almost all is dropped by this bound without an exponential; it is a little low, so that the machine's logarithm decides nothing.
    let bound = scale.max + scale.temperature * (least.ln() - 1e-6);
    kept.retain(|&r| f64::from(r.logit()) >= bound && scale.weight(r) >= least);
}

/// Leaves the smallest set of the best with at least the share `p` of the mass, best first.
fn top_p(kept: &mut Vec<Rank>, scale: &Scale, p: f64) {
    let wanted = p * scale.weights(kept).iter().sum::<f64>();
    let mut look = TOP_P_FIRST;
    loop {
        best_first(kept, look);
        let mut mass = 0.0;
        let enough = kept.iter().take(look).position(|&r| {
            mass += scale.weight(r);
            mass >= wanted
        });
        match enough {
            Some(last) => return kept.truncate(last + 1),
            None if look >= kept.len() => return,
            None => look *= 8,
        }
    }
}

/// The candidate at the share `u` of the mass.
fn pick(kept: &[Rank], weights: &[f64], u: f64) -> u32 {
    let wanted = u * weights.iter().sum::<f64>();
    let (mut mass, mut last) = (0.0, 0);
    for (rank, &weight) in kept.iter().zip(weights) {
        mass += weight;
        if mass > wanted {
            return rank.token();
        }
        if weight > 0.0 {
            last = rank.token();
        }
    }
    // Rounding can leave `wanted` at the whole mass.
    last
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
