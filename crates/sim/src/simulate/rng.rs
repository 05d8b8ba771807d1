//! A small generator of random numbers, so that a seed means the same on every machine and in every version of every library.
//!
//! Invariant: a stream depends on its seed and its number alone; what is drawn from one stream moves no other.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// Mixes two words into one that shows nothing of either.
pub fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(23) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 29)
}

impl Rng {
    /// One of a seed's streams.
    pub fn of(seed: u64, stream: u64) -> Rng {
        Rng(mix(mix(0x6b76_6974, seed), stream))
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.word() % (high.max(low) - low + 1)
    }

    /// An index below `len`, which is at least 1.
    pub fn below(&mut self, len: usize) -> usize {
        self.between(0, len.max(1) as u64 - 1) as usize
    }

    /// True so many times in a thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.word() % 1000 < u64::from(per_mille)
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
