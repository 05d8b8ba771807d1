//! Signatures of webhooks, as Standard Webhooks has them: HMAC-SHA256 over id, time and body, with a secret that both sides have.
//!
//! Invariant: no secret is printed; what is signed is exactly what is sent.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// What a secret begins with where it is written down.
const PREFIX: &str = "whsec_";
/// Shortest and longest secret in bytes, as the standard has them.
const SECRET_LEN: std::ops::RangeInclusive<usize> = 24..=64;

/// A webhook's secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// Reads `whsec_` and base64. The error never has the text in it.
    pub(crate) fn parse(text: &str) -> Result<Secret, &'static str> {
        let digits = text.strip_prefix(PREFIX).ok_or("must begin with whsec_")?;
        let bytes = STANDARD.decode(digits).map_err(|_| "must be whsec_ and base64")?;
        match SECRET_LEN.contains(&bytes.len()) {
            true => Ok(Secret(bytes)),
            false => Err("must be whsec_ and the base64 of 24 to 64 bytes"),
        }
    }

    /// The value of `webhook-signature`.
    pub(crate) fn sign(&self, id: &str, timestamp_s: i64, body: &[u8]) -> String {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { unreachable!("HMAC takes keys of every length") };
        mac.update(format!("{id}.{timestamp_s}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector that the standard's own libraries are tested with.
    #[test]
    fn the_published_vector_is_signed_as_published() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
        let signature = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn what_is_no_secret_is_refused_and_no_secret_is_shown() {
        for text in ["", "whsec_", "whsec_short", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS!"] {
            let why = Secret::parse(text).expect_err("refused");
            assert!(!why.contains("MfKQ"), "{why}");
        }
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
