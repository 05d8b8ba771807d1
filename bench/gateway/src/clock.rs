//! The clock that both sides read, and how a time stands in a token.
//!
//! Invariant: a stamp has one length, so that its end is known wherever a hop cuts it.

use rustix::time::{ClockId, clock_gettime};

/// Digits of a stamp.
pub(crate) const DIGITS: usize = 19;
/// What a stamp begins with; nothing else in an event has it.
pub(crate) const SIGN: u8 = b'@';

/// Nanoseconds of the system's monotonic clock.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Finds stamps in bytes that come in pieces.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    /// Digits of the stamp that has begun, and their value so far.
    begun: Option<(usize, u64)>,
}

impl Stamps {
    /// Takes in a piece; `found` hears of each stamp that ends in it.
    pub(crate) fn push(&mut self, mut bytes: &[u8], mut found: impl FnMut(u64)) {
        loop {
            if self.begun.is_none() {
                let Some(at) = memchr::memchr(SIGN, bytes) else { return };
                bytes = &bytes[at + 1..];
            }
            let (mut count, mut value) = self.begun.take().unwrap_or_default();
            while count < DIGITS {
                match bytes.split_first() {
                    Some((digit @ b'0'..=b'9', rest)) => {
                        value = value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
                        count += 1;
                        bytes = rest;
                    }
                    // A sign that is no stamp's.
                    Some(_) => break,
                    None => {
                        self.begun = Some((count, value));
                        return;
                    }
                }
            }
            if count == DIGITS {
                found(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_found_however_they_are_cut() {
        let text = b"x@0000000000000000012\",@no @12 @0000000000000000345";
        for step in 1..=text.len() {
            let (mut stamps, mut found) = (Stamps::default(), Vec::new());
            text.chunks(step).for_each(|piece| stamps.push(piece, |at| found.push(at)));
            assert_eq!(found, [12, 345], "in pieces of {step}");
        }
    }

    #[test]
    fn a_stamp_is_the_clock() {
        let (before, mut found) = (now(), Vec::new());
        Stamps::default().push(format!("@{:0width$}", now(), width = DIGITS).as_bytes(), |at| found.push(at));
        assert!(found.len() == 1 && (before..=now()).contains(&found[0]), "{before} {found:?}");
    }
}
