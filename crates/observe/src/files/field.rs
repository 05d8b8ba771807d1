//! Values of records as JSON: each has its own way to be written and to be read back.
//!
//! Invariant: what is written is read back as what it was, but for an outcome's sentence and a defect's, which are not anybody's to read here.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use lifecycle::message::{Receipt, Reported};
use lifecycle::session::PeerState;
use lifecycle::{Cause, Delivery, Guarantee, Incarnation, OnDisconnect, Outcome, Phase, StepId};
use serde_json::Value;

/// A value in a line.
pub(super) trait Field: Sized {
    /// Appends it as JSON.
    fn put(&self, out: &mut String);
    /// Reads it; `None` if it is no such value.
    fn take(value: &Value) -> Option<Self>;
}

/// Appends what is formatted.
pub(super) fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a String cannot fail");
}

/// Appends a text that callers or configurations choose.
pub(super) fn put_text(out: &mut String, text: &str) {
    put(out, format_args!("{}", Value::from(text)));
}

macro_rules! numbers {
    ($($kind:ty),+) => {
        $(impl Field for $kind {
            fn put(&self, out: &mut String) {
                put(out, format_args!("{self}"));
            }
            fn take(value: &Value) -> Option<Self> {
                value.as_u64()?.try_into().ok()
            }
        })+
    };
}

/// What has a word of its own, which needs no escape, and is known by it.
macro_rules! words {
    ($($kind:ty = $word:ident, $parse:path;)+) => {
        $(impl Field for $kind {
            fn put(&self, out: &mut String) {
                put(out, format_args!("\"{}\"", self.$word()));
            }
            fn take(value: &Value) -> Option<Self> {
                $parse(value.as_str()?)
            }
        })+
    };
}

macro_rules! objects {
    ($($kind:ident { $first:ident $(, $field:ident)* })+) => {
        $(impl Field for $kind {
            fn put(&self, out: &mut String) {
                out.push_str(concat!("{\"", stringify!($first), "\":"));
                self.$first.put(out);
                $(out.push_str(concat!(",\"", stringify!($field), "\":"));
                self.$field.put(out);)*
                out.push('}');
            }
            fn take(value: &Value) -> Option<Self> {
                Some($kind {
                    $first: Field::take(value.get(stringify!($first))?)?,
                    $($field: Field::take(value.get(stringify!($field))?)?,)*
                })
            }
        })+
    };
}

numbers!(u32, u64);

words! {
    Cause = as_str, Cause::parse;
    Delivery = as_str, Delivery::parse;
    Guarantee = as_str, Guarantee::parse;
    Phase = as_str, Phase::parse;
    PeerState = as_str, peer_state;
    OnDisconnect = to_string, on_disconnect;
    Incarnation = to_string, incarnation;
}

objects! {
    Receipt { blocks_held, blocks_peak, blocks_shared, steps, fence }
    Reported { prompt, cached_prompt, generated, after, prompt_after, after_receipt, steps, steps_after, waste_bound }
}

fn peer_state(word: &str) -> Option<PeerState> {
    PeerState::ALL.into_iter().find(|state| state.as_str() == word)
}

fn on_disconnect(word: &str) -> Option<OnDisconnect> {
    word.parse().ok()
}

/// Reads one back from the digits of a UUID.
pub(super) fn incarnation(text: &str) -> Option<Incarnation> {
    let digits: String = text.split('-').collect();
    (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok())?.map(Incarnation)
}

/// Its cause; its sentence stays out.
impl Field for Outcome {
    fn put(&self, out: &mut String) {
        self.cause.put(out);
    }

    fn take(value: &Value) -> Option<Self> {
        Cause::take(value).map(Outcome::of)
    }
}

impl Field for bool {
    fn put(&self, out: &mut String) {
        put(out, format_args!("{self}"));
    }

    fn take(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

impl Field for StepId {
    fn put(&self, out: &mut String) {
        self.0.put(out);
    }

    fn take(value: &Value) -> Option<Self> {
        u64::take(value).map(StepId)
    }
}

/// In whole microseconds, as the journal's clock counts.
impl Field for Duration {
    fn put(&self, out: &mut String) {
        put(out, format_args!("{}", u64::try_from(self.as_micros()).unwrap_or(u64::MAX)));
    }

    fn take(value: &Value) -> Option<Self> {
        u64::take(value).map(Duration::from_micros)
    }
}

impl Field for Arc<str> {
    fn put(&self, out: &mut String) {
        put_text(out, self);
    }

    fn take(value: &Value) -> Option<Self> {
        value.as_str().map(Arc::from)
    }
}

/// A defect's words are the program's own, which that of another release need not have: the file says them, and a replay counts them.
impl Field for &'static str {
    fn put(&self, out: &mut String) {
        put_text(out, self);
    }

    fn take(value: &Value) -> Option<Self> {
        value.is_string().then_some("a defect that the journal's file names")
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut String) {
        match self {
            Some(value) => value.put(out),
            None => out.push_str("null"),
        }
    }

    fn take(value: &Value) -> Option<Self> {
        if value.is_null() { Some(None) } else { T::take(value).map(Some) }
    }
}

impl<T: Field> Field for Box<T> {
    fn put(&self, out: &mut String) {
        (**self).put(out);
    }

    fn take(value: &Value) -> Option<Self> {
        T::take(value).map(Box::new)
    }
}
