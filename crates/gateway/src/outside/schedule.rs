//! When a webhook is tried again.
//!
//! Each wait is four times the one before, from `first` up to `max`, and up to a tenth longer by the webhook's own number, so that many that
//! failed together do not come back together.
//!
//! Invariant: pure; the same webhook has the same schedule wherever it is sent from.

use std::time::Duration;

/// How much longer each wait is than the one before.
const GROWTH: u32 = 4;

/// How long to wait after this many tries; `None` once it is given up.
pub(super) fn wait(id: &str, tries: u32, tries_max: u32, (first, max): (Duration, Duration)) -> Option<Duration> {
    if tries >= tries_max {
        return None;
    }
    let grown = first.saturating_mul(GROWTH.saturating_pow(tries.saturating_sub(1))).min(max);
    // FNV-1a: any number that differs between ids will do.
    let number = id.bytes().fold(0x811c_9dc5_u32, |n, byte| (n ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    Some(grown + grown / 10 * (number % 100) / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_their_limit_and_end() {
        let (first, max) = (Duration::from_secs(5), Duration::from_secs(6 * 3600));
        let waits: Vec<Duration> = (1..10).map(|tries| wait("evt_1", tries, 10, (first, max)).expect("tried again")).collect();
        for (grown, wait) in [5, 20, 80, 320, 1280, 5120, 20_480, 21_600, 21_600].into_iter().zip(&waits) {
            let grown = Duration::from_secs(grown);
            assert!((grown..=grown + grown / 10).contains(wait), "{wait:?} for {grown:?}");
        }
        assert_eq!(wait("evt_1", 10, 10, (first, max)), None);
        assert_eq!(wait("evt_1", u32::MAX - 1, u32::MAX, (first, max)).map(|w| w >= max), Some(true), "no overflow");
        let differ = (0..50).map(|n| wait(&format!("evt_{n}"), 3, 10, (first, max))).collect::<std::collections::HashSet<_>>();
        assert!(differ.len() > 10, "they come back apart");
    }
}
