//! API keys: which tenant and which caller a request is of.
//!
//! A key's secret is known here by its SHA-256 only, and is found by it: to look up a digest tells nothing about the secrets that are there,
//! whatever the look-up's time depends on. The header is taken off the request, so nothing behind this can log it.
//!
//! Invariant: with keys, no handler sees a request without its caller but those of `OPEN`; without keys every request is `anonymous` of the
//! tenant `default`, whatever header it sends. No secret and no digest is printed.
// contract: C-1 C-30

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use lifecycle::Tenant;
use sha2::{Digest, Sha256};

use crate::GatewayError;
use crate::calls::Calls;
use crate::http::error::ApiError;

/// Most keys of one gateway.
pub const KEYS_MAX: usize = 4096;
/// Shortest secret in bytes: what is shorter can be guessed.
pub const SECRET_MIN_LEN: usize = 16;
/// Longest secret in bytes.
pub const SECRET_MAX_LEN: usize = 256;

/// Who a request is of, where there are no keys.
const ANONYMOUS: &str = "anonymous";
/// The scheme of the header that carries a secret.
const SCHEME: &str = "Bearer";

/// What is answered without a key: probes and scrapers have none, and neither shows anything of a run; and whoever has none yet asks who it is.
const OPEN: [&str; 5] = ["/health", "/health/live", "/health/ready", "/metrics", "/v1/caller"];

/// Whose request this is. An extension of every request that is not of `OPEN`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Caller {
    /// Whose runs it sees.
    pub(crate) tenant: Tenant,
    /// Which key it showed.
    pub(crate) name: Arc<str>,
}

impl Caller {
    /// Everybody, where there are no keys.
    pub(crate) fn anonymous() -> Caller {
        Caller { tenant: Tenant::default(), name: ANONYMOUS.into() }
    }
}

/// SHA-256 of a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretDigest([u8; 32]);

impl SecretDigest {
    /// That of a secret.
    ///
    /// # Errors
    /// [`GatewayError::Key`]: it is too short, too long, or has characters that a header's value may not have.
    pub fn of(secret: &str) -> Result<SecretDigest, GatewayError> {
        let wrong = |why: String| Err(GatewayError::Key { why });
        if !(SECRET_MIN_LEN..=SECRET_MAX_LEN).contains(&secret.len()) {
            return wrong(format!("has {} bytes; a secret has {SECRET_MIN_LEN} to {SECRET_MAX_LEN}", secret.len()));
        }
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return wrong("has a character that is not visible ASCII".to_owned());
        }
        Ok(SecretDigest(Sha256::digest(secret).into()))
    }

    /// The digest that these 64 hexadecimal digits say.
    ///
    /// # Errors
    /// [`GatewayError::Key`]: they are something else.
    pub fn from_hex(text: &str) -> Result<SecretDigest, GatewayError> {
        let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
        let bytes = digits.map(|digits| digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect());
        let bytes = bytes.and_then(|bytes: Vec<u8>| if text.len() == 64 { bytes.try_into().ok() } else { None });
        bytes.map(SecretDigest).ok_or_else(|| GatewayError::Key { why: "must be the 64 hexadecimal digits of a SHA-256".to_owned() })
    }

    /// As `from_hex` reads it.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for SecretDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretDigest(..)")
    }
}

/// A key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// Who calls with it.
    pub name: Arc<str>,
    /// Whose runs it sees.
    pub tenant: Tenant,
    /// What it is known by.
    pub digest: SecretDigest,
    /// Whether it sees who owns which block, whichever tenant's run that is.
    pub is_operator: bool,
}

/// All keys. None: nobody is asked for one.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Keys(Arc<HashMap<SecretDigest, Key>>);

impl Keys {
    /// Takes a key in.
    ///
    /// # Errors
    /// [`GatewayError::Key`]: there are too many, or another one has this name or this secret.
    pub fn add(&mut self, key: Key) -> Result<(), GatewayError> {
        let wrong = |why: String| Err(GatewayError::Key { why });
        if self.0.len() >= KEYS_MAX {
            return wrong(format!("is one too many: at most {KEYS_MAX} keys are allowed"));
        }
        // Names first: they may be told.
        if self.0.values().any(|other| other.name == key.name) {
            return wrong(format!("`{}` is the name of another key", key.name));
        }
        match Arc::make_mut(&mut self.0).entry(key.digest) {
            Entry::Occupied(other) => wrong(format!("has the secret of `{}`", other.get().name)),
            Entry::Vacant(place) => {
                place.insert(key);
                Ok(())
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether they are not all of one tenant.
    pub(crate) fn have_several_tenants(&self) -> bool {
        let mut tenants = self.0.values().map(|key| &key.tenant);
        let first = tenants.next();
        tenants.any(|tenant| Some(tenant) != first)
    }

    /// Whether nobody is asked for a key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a caller sees who owns which block, whichever tenant's run that is. Without keys there is nobody to hide anything from.
    pub(crate) fn is_operator(&self, caller: &Caller) -> bool {
        self.is_empty() || self.0.values().any(|key| key.is_operator && key.name == caller.name)
    }

    /// The same of what needs no key: whoever shows none, or a wrong one, sees less and is not turned away.
    pub(crate) fn shows_all(&self, headers: &HeaderMap) -> bool {
        self.caller(headers).is_ok_and(|caller| self.is_operator(&caller))
    }

    /// Whose request has these headers. No error repeats any of what was sent.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        if self.is_empty() {
            return Ok(Caller::anonymous());
        }
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let Some(value) = given.next() else {
            return Err(ApiError::unauthenticated("no API key was sent: this server wants `Authorization: Bearer KEY`"));
        };
        if given.next().is_some() {
            return Err(ApiError::unauthenticated("Authorization was sent more than once"));
        }
        let parts = value.to_str().ok().and_then(|text| text.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME));
        let Some((_, secret)) = parts else {
            return Err(ApiError::unauthenticated("Authorization cannot be read: it must be `Bearer KEY`"));
        };
        // What no key can be is known to be none before anything is computed.
        let key = SecretDigest::of(secret.trim()).ok().and_then(|digest| self.0.get(&digest));
        let unknown = || ApiError::unauthenticated("this API key is not known here");
        key.map(|key| Caller { tenant: key.tenant.clone(), name: key.name.clone() }).ok_or_else(unknown)
    }
}

/// Says whose request it is, or turns it away.
pub(crate) async fn with_caller(State(calls): State<Arc<Calls>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if OPEN.contains(&path) || crate::grpc::is_health(path) || crate::http::console::is_part(path) {
        return next.run(request).await;
    }
    let caller = calls.config.keys.caller(request.headers());
    request.headers_mut().remove(header::AUTHORIZATION);
    match caller {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) if crate::grpc::is_asked(request.headers()) => crate::grpc::refused(error),
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const ALICE: &str = "alices-secret-0123456789";
    const BOB: &str = "bobs-secret-0123456789";

    fn key(name: &str, tenant: &str, secret: &str, is_operator: bool) -> Key {
        let digest = SecretDigest::of(secret).expect("a secret");
        Key { name: name.into(), tenant: Tenant::parse(tenant).expect("a name"), digest, is_operator }
    }

    fn keys() -> Keys {
        let mut keys = Keys::default();
        keys.add(key("alice", "one", ALICE, false)).expect("a key");
        keys.add(key("bob", "two", BOB, true)).expect("a key");
        keys
    }

    fn sent(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    // contract: C-30
    #[test]
    fn a_key_names_its_caller_and_nothing_else_does() {
        let keys = keys();
        let names = |values: &[&str]| keys.caller(&sent(values)).map(|caller| format!("{}/{}", caller.tenant, caller.name));
        assert_eq!(names(&[&format!("Bearer {ALICE}")]).expect("known"), "one/alice");
        assert_eq!(names(&[&format!("bearer   {BOB}")]).expect("known"), "two/bob");
        let both = [format!("Bearer {ALICE}"), format!("Bearer {BOB}")];
        let digest = SecretDigest::of(ALICE).expect("a secret").to_hex();
        for wrong in [
            &[][..],
            &[""],
            &["Bearer"],
            &["Bearer "],
            &[ALICE],
            &[&format!("Basic {ALICE}")],
            &[&format!("Bearer {ALICE}x")],
            &[&format!("Bearer {}", &ALICE[1..])],
            &[&format!("Bearer {}", ALICE.to_uppercase())],
            &[&format!("Bearer {digest}")],
            &[&format!("Bearer {ALICE} {ALICE}")],
            &[&format!("Bearer {}", "x".repeat(60_000))],
            &[&both[0], &both[1]],
        ] {
            let error = names(wrong).expect_err("no key");
            assert_eq!((error.status.as_u16(), error.word()), (401, Some("invalid_api_key")), "{wrong:?}");
            assert!(!error.to_json().to_string().contains("0123456789"), "{error:?}");
        }
    }

    #[test]
    fn without_keys_everybody_is_anonymous_whatever_is_sent() {
        let none = Keys::default();
        for values in [&[][..], &["Bearer sk-anything"], &["nonsense"], &["a", "b"]] {
            assert_eq!(none.caller(&sent(values)).expect("let in"), Caller::anonymous());
        }
        assert!(none.is_operator(&Caller::anonymous()));
    }

    #[test]
    fn an_operator_is_who_has_such_a_key() {
        let keys = keys();
        let is_operator = |secret: &str| keys.is_operator(&keys.caller(&sent(&[&format!("Bearer {secret}")])).expect("known"));
        assert_eq!([is_operator(ALICE), is_operator(BOB)], [false, true]);
        assert!(!keys.is_operator(&Caller::anonymous()));
    }

    #[test]
    fn keys_are_told_apart_and_bounded() {
        let mut keys = keys();
        let mut why = |key| keys.add(key).expect_err("refused").to_string();
        assert_eq!(why(key("alice", "three", "another-secret-of-hers", false)), "`alice` is the name of another key");
        assert_eq!(why(key("carol", "one", ALICE, false)), "has the secret of `alice`");
        for at in keys.len()..KEYS_MAX {
            let name = format!("k{at}");
            keys.add(key(&name, "one", &format!("secret-of-a-caller-{at}"), false)).expect("a key");
        }
        let error = keys.add(key("late", "one", "secret-of-a-late-caller", false)).expect_err("full").to_string();
        assert!(error.contains("4096"), "{error}");
        assert_eq!(keys.len(), KEYS_MAX);
    }

    #[test]
    fn no_secret_and_no_digest_is_shown() {
        let digest = SecretDigest::of(ALICE).expect("a secret");
        let shown = format!("{:?} {digest:?}", crate::GatewayConfig { keys: keys(), ..Default::default() });
        assert!(shown.contains("alice") && !shown.contains(ALICE) && !shown.contains(&digest.to_hex()[..8]), "{shown}");
        assert_eq!(SecretDigest::from_hex(&digest.to_hex().to_uppercase()).expect("hex"), digest);
        for (wrong, what) in [("", "64"), (&digest.to_hex()[1..], "64"), (&format!("{}g", &digest.to_hex()[1..]), "64"), ("é", "64")] {
            assert!(SecretDigest::from_hex(wrong).expect_err("none").to_string().contains(what), "{wrong}");
        }
        for wrong in ["", "short", "with a space in between", &"x".repeat(257)] {
            let error = SecretDigest::of(wrong).expect_err("no secret").to_string();
            assert!(wrong.is_empty() || !error.contains(wrong), "{error}");
        }
    }
}
