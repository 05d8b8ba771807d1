//! A call's deadline: the `grpc-timeout` header, and when a caller that counts it itself may be taken to have given up because of it.
//!
//! Invariant: pure. What is no timeout is told apart from none.
// contract: C-22

use std::time::Duration;

use axum::http::HeaderMap;

use crate::http::error::ApiError;

/// Its name.
const TIMEOUT: &str = "grpc-timeout";
/// Most digits, by gRPC's grammar.
const DIGITS_MAX: usize = 8;
/// What a caller's timer and the way may differ by: clients count from before they send, and round what they say up to two digits more than
/// a hundredth (gRPC's C core), so that by their own clock they give up a little earlier than they said.
const EARLY: (u32, Duration) = (100, Duration::from_millis(20));

/// The time left that the caller gave, at most `max`: a caller that would wait for longer asks for nothing else by that.
pub(super) fn timeout(headers: &HeaderMap, max: Duration) -> Result<Option<Duration>, ApiError> {
    let Some(value) = headers.get(TIMEOUT) else { return Ok(None) };
    let bad = || ApiError::field(TIMEOUT, "must be 1 to 8 digits and one of H, M, S, m, u, n");
    value.to_str().ok().and_then(parse).map(|left| Some(left.min(max))).ok_or_else(bad)
}

fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(n * 3600),
        "M" => Duration::from_secs(n * 60),
        "S" => Duration::from_secs(n),
        "m" => Duration::from_millis(n),
        "u" => Duration::from_micros(n),
        "n" => Duration::from_nanos(n),
        _ => return None,
    })
}

/// The time after which a caller that resets its call does so because its time is over.
pub(super) fn impatient_after(left: Duration) -> Duration {
    left.saturating_sub(left / EARLY.0 + EARLY.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        let ms = |text| parse(text).map(|left| left.as_micros());
        assert_eq!([ms("1H"), ms("2M"), ms("3S")], [Some(3_600_000_000), Some(120_000_000), Some(3_000_000)]);
        assert_eq!([ms("250m"), ms("40u"), ms("5000n"), ms("0n")], [Some(250_000), Some(40), Some(5), Some(0)]);
        assert_eq!(ms("99999999H"), Some(99_999_999 * 3_600_000_000));
        for bad in ["", "m", "12", "123456789m", "1 S", "-1S", "+1S", "1s", "1.5S", "é"] {
            assert_eq!(ms(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_far_deadline_is_the_farthest_and_a_bad_one_names_its_field() {
        let read = |text: &str| {
            let headers = HeaderMap::from_iter([(TIMEOUT.parse().expect("a name"), text.parse().expect("a value"))]);
            timeout(&headers, Duration::from_secs(9)).map_err(|e| e.message().to_owned())
        };
        assert_eq!(read("99999999H"), Ok(Some(Duration::from_secs(9))));
        assert!(read("soon").is_err_and(|e| e.starts_with(TIMEOUT)));
        assert_eq!(timeout(&HeaderMap::new(), Duration::ZERO).map_err(|e| e.message().to_owned()), Ok(None));
    }

    #[test]
    fn a_caller_is_impatient_a_little_before_its_deadline_and_never_long_before() {
        assert_eq!(impatient_after(Duration::from_millis(10)), Duration::ZERO);
        assert_eq!(impatient_after(Duration::from_secs(2)), Duration::from_millis(1960));
    }
}
