//! Content at rest: sealed with a key from a file, or plain.
//!
//! XChaCha20-Poly1305 with a random nonce of 192 bits before each text. What a text is sealed to (its column, tenant, run and number) is
//! authenticated with it, so that whoever can write to the database cannot move a text to where it does not belong.
//!
//! Invariant: without the key nothing of a request, an answer, a record, an effect's or a webhook's text can be read from the database.

use std::path::Path;

use base64::Engine;
use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

use crate::StoreError;

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
/// A key file is read up to here.
const KEY_FILE_BYTES_MAX: u64 = 1024;
/// What the schema keeps sealed, to know the key by.
const CHECK: &[u8] = b"kvit run store";

/// How content is kept.
pub(crate) enum Seal {
    /// As it is.
    Plain,
    /// Encrypted.
    Key(Box<XChaCha20Poly1305>),
}

/// Where a text stands: its column, and what its row is called.
pub(crate) struct Place<'a>(pub &'static str, pub [&'a str; 3]);

impl Place<'_> {
    /// Each part with its length, so that no two places read the same.
    fn bytes(&self) -> Vec<u8> {
        let parts = std::iter::once(self.0).chain(self.1);
        parts.flat_map(|part| (part.len() as u64).to_be_bytes().into_iter().chain(part.bytes())).collect()
    }
}

impl Seal {
    /// Reads the key, if there is to be one.
    pub fn read(file: Option<&Path>) -> Result<Seal, StoreError> {
        let Some(path) = file else { return Ok(Seal::Plain) };
        let open = |what: String| StoreError::Open(format!("key file {}: {what}", path.display()));
        let read = std::fs::File::open(path).and_then(|file| {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut std::io::Read::take(file, KEY_FILE_BYTES_MAX), &mut bytes)?;
            Ok(bytes)
        });
        let key = key(&read.map_err(|e| open(e.to_string()))?)
            .ok_or_else(|| open(format!("must hold {KEY_BYTES} bytes: as they are, in hexadecimal or in base64")))?;
        Ok(Seal::Key(Box::new(XChaCha20Poly1305::new(&key.into()))))
    }

    /// Seals a text to its place.
    pub fn seal(&self, place: &Place<'_>, text: &[u8]) -> Result<Vec<u8>, StoreError> {
        let Seal::Key(cipher) = self else { return Ok(text.to_vec()) };
        let nonce = XNonce::try_generate().map_err(|e| StoreError::Unavailable(format!("no random numbers: {e}")))?;
        let sealed = cipher.encrypt(&nonce, Payload { msg: text, aad: &place.bytes() });
        let sealed = sealed.map_err(|_| StoreError::Unavailable("a text is too long to be encrypted".to_owned()))?;
        Ok([nonce.as_slice(), &sealed].concat())
    }

    /// Opens what was sealed to this place.
    pub fn open(&self, place: &Place<'_>, sealed: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        let Seal::Key(cipher) = self else { return Ok(sealed) };
        let opened = sealed.split_at_checked(NONCE_BYTES).and_then(|(nonce, text)| {
            let nonce = XNonce::try_from(nonce).ok()?;
            cipher.decrypt(&nonce, Payload { msg: text, aad: &place.bytes() }).ok()
        });
        opened.ok_or_else(|| StoreError::Unreadable(format!("{} of {:?} was not sealed with this key", place.0, place.1)))
    }

    /// What the schema keeps of this key.
    pub fn check_value(&self) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Seal::Plain => Ok(None),
            Seal::Key(_) => self.seal(&Place("check", [""; 3]), CHECK).map(Some),
        }
    }

    /// Whether this is the key that the store was made with.
    pub fn check(&self, value: Option<Vec<u8>>) -> Result<(), StoreError> {
        let why = match (self, value) {
            (Seal::Plain, None) => return Ok(()),
            (Seal::Plain, Some(_)) => "it is encrypted, and no key file is given",
            (Seal::Key(_), None) => "it was made without a key, and a key file is given",
            (Seal::Key(_), Some(value)) => match self.open(&Place("check", [""; 3]), value) {
                Ok(text) if text == CHECK => return Ok(()),
                _ => "it is encrypted with another key",
            },
        };
        Err(StoreError::Unreadable(why.to_owned()))
    }
}

/// The key in a file's bytes.
fn key(bytes: &[u8]) -> Option<[u8; KEY_BYTES]> {
    if let Ok(raw) = bytes.try_into() {
        return Some(raw);
    }
    let text = bytes.trim_ascii();
    let digits: Option<Vec<u8>> = text.iter().map(|b| char::from(*b).to_digit(16).map(|d| d as u8)).collect();
    if let Some(digits) = digits.filter(|d| d.len() == 2 * KEY_BYTES) {
        return digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect::<Vec<u8>>().try_into().ok();
    }
    base64::engine::general_purpose::STANDARD.decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_in_three_ways_and_in_no_other() {
        let raw: Vec<u8> = (0..32).collect();
        let hex: String = raw.iter().map(|b| format!("{b:02x}")).collect();
        let base64 = base64::engine::general_purpose::STANDARD.encode(&raw);
        for text in [raw.clone(), hex.clone().into_bytes(), format!("{hex}\n").into_bytes(), format!("{base64}\n").into_bytes()] {
            assert_eq!(key(&text).map(|k| k.to_vec()), Some(raw.clone()));
        }
        for text in ["", "short", &hex[1..], &base64[4..], &format!("{hex}00")] {
            assert_eq!(key(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_text_opens_in_its_place_with_its_key_only_and_never_looks_the_same_twice() {
        let seal = |byte: u8| Seal::Key(Box::new(XChaCha20Poly1305::new(&[byte; 32].into())));
        let here = Place("event", ["t", "run", "1"]);
        let sealed = seal(1).seal(&here, b"text").unwrap();
        assert_ne!(sealed, seal(1).seal(&here, b"text").unwrap());
        assert_eq!(seal(1).open(&here, sealed.clone()), Ok(b"text".to_vec()));
        for place in [Place("event", ["t", "run", "2"]), Place("event", ["tr", "un", "1"]), Place("record", ["t", "run", "1"])] {
            assert!(seal(1).open(&place, sealed.clone()).is_err());
        }
        assert!(seal(2).open(&here, sealed.clone()).is_err());
        assert!(seal(1).open(&here, sealed[..20].to_vec()).is_err());
        let mut other = sealed;
        other[30] ^= 1;
        assert!(seal(1).open(&here, other).is_err());
    }
}
