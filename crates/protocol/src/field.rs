//! Reading single fields: what is required, incarnations, spans and lists.
//!
//! Invariant: each function that can refuse says which field it refused.

use std::sync::Arc;
use std::time::Duration;

use lifecycle::Incarnation;
use lifecycle::id::{IdError, Tenant};

use crate::Error;
use crate::limits::Limit;

/// A field with presence that must be there.
pub(crate) fn need<T>(value: Option<T>, field: &'static str) -> Result<T, Error> {
    value.ok_or(Error::Missing { field })
}

/// A number for which 0 is absence.
pub(crate) fn number<T: Default + PartialEq>(value: T, field: &'static str) -> Result<T, Error> {
    if value == T::default() { Err(Error::Missing { field }) } else { Ok(value) }
}

/// An id: an empty one is absence.
pub(crate) fn id<T>(parsed: Result<T, IdError>, field: &'static str) -> Result<T, Error> {
    parsed.map_err(|problem| match problem {
        IdError::Empty => Error::Missing { field },
        problem => Error::Id { field, problem },
    })
}

/// A process's name: it is made as a tenant's is.
pub(crate) fn name(text: &str, field: &'static str) -> Result<Arc<str>, Error> {
    id(Tenant::parse(text), field).map(|_| text.into())
}

/// 16 bytes, big endian.
pub(crate) fn incarnation(bytes: &[u8], field: &'static str) -> Result<Incarnation, Error> {
    if bytes.is_empty() {
        return Err(Error::Missing { field });
    }
    let sixteen: [u8; 16] = bytes.try_into().map_err(|_| Error::Incarnation { field, len: bytes.len() })?;
    Ok(Incarnation(u128::from_be_bytes(sixteen)))
}

/// The 16 bytes.
pub(crate) fn bytes(incarnation: Incarnation) -> Vec<u8> {
    incarnation.0.to_be_bytes().to_vec()
}

/// Whole microseconds, rounded down; what is too long for them is the longest.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// A list that may not be longer than its limit.
pub(crate) fn within<T>(list: &[T], limit: Limit, field: &'static str) -> Result<(), Error> {
    if list.len() as u64 > limit.default { Err(Error::TooMany { field, len: list.len(), limit }) } else { Ok(()) }
}
