//! Logits as integers that sort: larger is better, and of equal logits the lower id is better.
//!
//! Invariant: no two tokens have the same rank, so that selections and sorts have one result, and `logit` and `token` give back what was
//! put in.

/// A token and its logit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Rank(u64);

/// A logit that can be ordered and subtracted: NaN is the least, infinity the largest number.
pub(super) fn tame(x: f32) -> f32 {
    if x.is_nan() { f32::NEG_INFINITY } else { x.min(f32::MAX) }
}

impl Rank {
    pub(super) fn new(token: u32, logit: f32) -> Rank {
        // Adding zero makes minus zero plus zero, which it equals.
        let bits = (tame(logit) + 0.0).to_bits();
        // Negative numbers count down, positive ones lie above them: the bits' order becomes the numbers'.
        let rising = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        Rank(u64::from(rising) << 32 | u64::from(!token))
    }

    pub(super) fn token(self) -> u32 {
        !(self.0 as u32)
    }

    pub(super) fn logit(self) -> f32 {
        let rising = (self.0 >> 32) as u32;
        f32::from_bits(if rising >> 31 == 1 { rising & !(1 << 31) } else { !rising })
    }
}

/// All tokens.
pub(super) fn ranks(logits: &[f32]) -> Vec<Rank> {
    (0..).zip(logits).map(|(token, &x)| Rank::new(token, x)).collect()
}

/// The `n` best come first, best first; the others follow in no order.
pub(super) fn best_first(ranks: &mut [Rank], n: usize) {
    let n = n.min(ranks.len());
    if 0 < n && n < ranks.len() {
        ranks.select_nth_unstable_by(n - 1, |a, b| b.cmp(a));
    }
    ranks[..n].sort_unstable_by(|a, b| b.cmp(a));
}

/// The largest logit, tamed; minus infinity where there is none.
pub(super) fn largest(logits: &[f32]) -> f32 {
    // Eight running maxima: a loop that becomes vector instructions, where one running maximum would wait for itself.
    let mut lanes = [f32::NEG_INFINITY; 8];
    let chunks = logits.chunks_exact(8);
    let rest = chunks.remainder();
    // NaN is never larger.
    let larger = |m: f32, x: f32| if x > m { x } else { m };
    for chunk in chunks {
        for (m, &x) in lanes.iter_mut().zip(chunk) {
            *m = larger(*m, x);
        }
    }
    tame(lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |m, &x| larger(m, x)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_as_logits_and_then_ids() {
        let rising = [f32::NEG_INFINITY, f32::MIN, -1.5, -f32::MIN_POSITIVE, 0.0, 1e-40, 1.0, f32::MAX];
        for (i, &a) in rising.iter().enumerate() {
            let rank = Rank::new(7, a);
            assert_eq!((rank.token(), rank.logit()), (7, a));
            assert!(rising[..i].iter().all(|&b| Rank::new(0, b) < rank));
            assert!(Rank::new(6, a) > rank);
        }
        assert_eq!(Rank::new(1, -0.0), Rank::new(1, 0.0));
        assert_eq!(Rank::new(u32::MAX, f32::NAN).logit(), f32::NEG_INFINITY);
        assert_eq!(Rank::new(u32::MAX, f32::INFINITY).logit(), f32::MAX);
    }

    #[test]
    fn the_largest_is_found_in_every_place() {
        for len in 1..40 {
            for at in 0..len {
                let mut logits = vec![f32::NAN; len];
                logits[at] = -3.0;
                assert_eq!(largest(&logits), -3.0);
            }
        }
        assert_eq!(largest(&[]), f32::NEG_INFINITY);
        assert_eq!(largest(&[f32::INFINITY, 1.0]), f32::MAX);
    }
}
