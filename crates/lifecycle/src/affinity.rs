//! Which worker of several has most likely computed the beginning of a prompt already.
//!
//! Rendezvous hashing (Thaler and Ravishankar 1998): each worker gets a score from its name and the prompt's beginning, and the highest is the
//! first choice. A worker that comes or goes moves only the prompts that are its own, and gateways that know of the same workers choose alike
//! without a word between them. Nobody is given more than his share of all runs by it, times a factor, as with consistent hashing with bounded
//! loads (Mirrokni, Thorup and Zadimoghaddam 2018).
//!
//! Invariant: the same beginning and the same names give the same order, in every process and every release.

/// What stands for the beginning of a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Affinity(u64);

/// FNV-1a, 64 bits (Fowler, Noll and Vo; RFC 9923).
fn fnv(from: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(from, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

impl Affinity {
    /// Of a beginning that is said in these parts. Where one part ends and the next begins counts, too.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Affinity {
        Affinity(parts.into_iter().fold(BASIS, |hash, part| fnv(fnv(hash, &(part.len() as u64).to_le_bytes()), part)))
    }

    /// How much a worker of this name is preferred. What FNV leaves alike in its upper bits is mixed by the finaliser of splitmix64 (Steele,
    /// Lea and Flood 2014).
    pub fn score(self, worker: &str) -> u64 {
        let mut bits = fnv(self.0, worker.as_bytes());
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}

/// The most runs that a worker may have before the next is preferred: its share of all of them, with the one that is to be placed, times
/// `percent` / 100, and one at least. `weight` is its part of `weights`, by their slots, and a part of a run is a run; where the slots are not
/// known, all have a weight of one and a part of a run is none, for a worker that computes one at a time would let it wait beside an idle one.
pub fn bound(runs: u64, (weight, weights): (Option<u32>, u64), percent: u32) -> u64 {
    let share = u128::from(runs + 1) * u128::from(weight.unwrap_or(1)) * u128::from(percent);
    let whole = 100 * u128::from(weights.max(1));
    let bound = if weight.is_some() { share.div_ceil(whole) } else { share / whole };
    u64::try_from(bound).unwrap_or(u64::MAX).max(1)
}
