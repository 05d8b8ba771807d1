//! What kvit reads of an answer's JSON, streamed or whole: leniently, and borrowing where it can.
//!
//! An engine may send a null, a number or a list where another sends a text, and fields that nobody knows. None of that makes the rest
//! unreadable.
//!
//! Invariant: reading changes nothing of what is forwarded; what cannot be read is as if it were not there.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::plain;
pub use super::usage::Usage;
use super::usage::{RawUsage, Timings};

/// Most choices of one answer that are read.
const CHOICES_MAX: usize = 256;

/// What one piece of JSON says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Said<'a> {
    /// What it says of each choice that it names.
    pub choices: Vec<Choice<'a>>,
    /// What was used, if it says that: as `usage`, else as llama.cpp's `timings`, which stand in the last piece of an answer.
    pub usage: Option<Usage>,
    /// What it complains of, if it is an error.
    pub error: Option<Complaint<'a>>,
}

/// What is said of one choice.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Choice<'a> {
    /// Which one.
    pub index: u32,
    /// Its visible text.
    pub text: Cow<'a, str>,
    /// What it thinks, where the engine keeps that apart.
    pub reasoning: Cow<'a, str>,
    /// Whether anything in it was generated: text, reasoning, a refusal, a tool call.
    pub generated: bool,
    /// Why it ended, in the engine's word, if it did.
    pub finish_reason: Option<Cow<'a, str>>,
}

/// What an error says. Its message may quote the caller's own words: it is for the caller, never for a log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Complaint<'a> {
    /// For people.
    pub message: Cow<'a, str>,
    /// `type`, where it has one.
    pub kind: Option<Cow<'a, str>>,
    /// `code`, where it has one; a number as it is written.
    pub code: Option<Cow<'a, str>>,
}

impl<'a> Said<'a> {
    /// Reads it. `None` if it is no JSON object, and nothing that most readers of JSON take for one.
    pub fn read(json: &'a [u8]) -> Option<Said<'a>> {
        plain::read(json).or_else(|| Said::leniently(json)).or_else(|| {
            let mended = gateway::mended(json)?.to_string();
            Said::leniently(mended.as_bytes()).map(Said::into_owned)
        })
    }

    fn into_owned<'b>(self) -> Said<'b> {
        let own = |text: Cow<'a, str>| Cow::Owned(text.into_owned());
        let choice = |choice: Choice<'a>| Choice {
            index: choice.index,
            text: own(choice.text),
            reasoning: own(choice.reasoning),
            generated: choice.generated,
            finish_reason: choice.finish_reason.map(own),
        };
        let error = self.error.map(|e| Complaint { message: own(e.message), kind: e.kind.map(own), code: e.code.map(own) });
        Said { choices: self.choices.into_iter().map(choice).collect(), usage: self.usage, error }
    }

    /// The same, whatever is in it.
    pub(crate) fn leniently(json: &'a [u8]) -> Option<Said<'a>> {
        let body: Body<'a> = serde_json::from_slice::<Object<Body<'a>>>(json).ok()?.0?;
        let flat = body.object.0.as_deref() == Some("error");
        let error = body
            .error
            .0
            .or_else(|| flat.then(|| Complaint { message: body.message.0.unwrap_or_default(), kind: body.kind.0, code: body.code.0 }));
        let usage = body.usage.0.map(Usage::from).or_else(|| body.timings.0.and_then(|timings| timings.usage()));
        Some(Said { choices: body.choices.0.into_iter().map(Choice::from).collect(), usage, error })
    }

    /// How many tokens it shows at the least: one for each choice that something was generated of.
    pub fn tokens(&self) -> u32 {
        self.choices.iter().filter(|c| c.generated).count() as u32
    }
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Body<'a> {
    choices: List<RawChoice<'a>>,
    usage: Object<RawUsage>,
    timings: Object<Timings>,
    error: Trouble<'a>,
    object: Text<'a>,
    message: Text<'a>,
    #[serde(rename = "type")]
    kind: Text<'a>,
    code: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct RawChoice<'a> {
    index: Number,
    delta: Object<Parts<'a>>,
    message: Object<Parts<'a>>,
    text: Text<'a>,
    finish_reason: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Parts<'a> {
    content: Text<'a>,
    reasoning_content: Text<'a>,
    reasoning: Text<'a>,
    refusal: Text<'a>,
    tool_calls: Something,
    function_call: Something,
    audio: Something,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct RawComplaint<'a> {
    message: Text<'a>,
    #[serde(rename = "type")]
    kind: Text<'a>,
    code: Text<'a>,
}

impl<'a> From<RawChoice<'a>> for Choice<'a> {
    fn from(raw: RawChoice<'a>) -> Choice<'a> {
        let parts = raw.delta.0.or(raw.message.0).unwrap_or_default();
        let text = parts.content.0.or(raw.text.0).unwrap_or_default();
        let reasoning = parts.reasoning_content.0.or(parts.reasoning.0).unwrap_or_default();
        let refusal = parts.refusal.0.is_some_and(|r| !r.is_empty());
        let called = parts.tool_calls.0 || parts.function_call.0 || parts.audio.0;
        Choice {
            index: raw.index.0.and_then(|i| u32::try_from(i).ok()).unwrap_or(0),
            generated: !text.is_empty() || !reasoning.is_empty() || refusal || called,
            text,
            reasoning,
            finish_reason: raw.finish_reason.0.filter(|reason| !reason.is_empty()),
        }
    }
}

/// Every kind of JSON value that a visitor does not want is read and forgotten.
macro_rules! else_nothing {
    ($($visit:ident),*) => { else_nothing!(@ $($visit)*); };
    (@) => {};
    (@ scalar $($rest:ident)*) => {
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> { Ok(Default::default()) }
        else_nothing!(@ $($rest)*);
    };
    (@ number $($rest:ident)*) => {
        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> { Ok(Default::default()) }
        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> { Ok(Default::default()) }
        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> { Ok(Default::default()) }
        else_nothing!(@ $($rest)*);
    };
    (@ text $($rest:ident)*) => {
        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> { Ok(Default::default()) }
        else_nothing!(@ $($rest)*);
    };
    (@ list $($rest:ident)*) => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(Default::default())
        }
        else_nothing!(@ $($rest)*);
    };
    (@ object $($rest:ident)*) => {
        fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
            while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok(Default::default())
        }
        else_nothing!(@ $($rest)*);
    };
    (@ null $($rest:ident)*) => {
        fn visit_unit<E>(self) -> Result<Self::Value, E> { Ok(Default::default()) }
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str("anything") }
        else_nothing!(@ $($rest)*);
    };
}

/// A text, or a number as it is written.
#[derive(Default)]
pub(crate) struct Text<'a>(pub(crate) Option<Cow<'a, str>>);

struct TextVisitor<'a>(PhantomData<&'a str>);

impl<'de: 'a, 'a> Visitor<'de> for TextVisitor<'a> {
    type Value = Text<'a>;
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'a>, E> {
        Ok(Text(Some(Cow::Borrowed(text))))
    }
    fn visit_str<E>(self, text: &str) -> Result<Text<'a>, E> {
        Ok(Text(Some(Cow::Owned(text.to_owned()))))
    }
    fn visit_u64<E>(self, number: u64) -> Result<Text<'a>, E> {
        Ok(Text(Some(Cow::Owned(number.to_string()))))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Text<'a>, E> {
        Ok(Text(Some(Cow::Owned(number.to_string()))))
    }
    fn visit_f64<E>(self, _: f64) -> Result<Text<'a>, E> {
        Ok(Text(None))
    }
    else_nothing!(null, scalar, list, object);
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor(PhantomData))
    }
}

/// A number that counts something.
#[derive(Clone, Copy, Default)]
pub(crate) struct Number(pub(crate) Option<u64>);

struct NumberVisitor;

impl<'de> Visitor<'de> for NumberVisitor {
    type Value = Number;
    fn visit_u64<E>(self, number: u64) -> Result<Number, E> {
        Ok(Number(Some(number)))
    }
    fn visit_i64<E>(self, _: i64) -> Result<Number, E> {
        Ok(Number(None))
    }
    fn visit_f64<E>(self, number: f64) -> Result<Number, E> {
        // Exact below 2^53, which no count of tokens reaches.
        Ok(Number((number.fract() == 0.0 && (0.0..9e15).contains(&number)).then_some(number as u64)))
    }
    else_nothing!(null, scalar, text, list, object);
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

/// Whether there is anything: a list or an object that is not empty.
#[derive(Default)]
struct Something(bool);

struct SomethingVisitor;

impl<'de> Visitor<'de> for SomethingVisitor {
    type Value = Something;
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Something, A::Error> {
        let mut any = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            any = true;
        }
        Ok(Something(any))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Something, A::Error> {
        let mut any = false;
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            any = true;
        }
        Ok(Something(any))
    }
    else_nothing!(null, scalar, number, text);
}

impl<'de> Deserialize<'de> for Something {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SomethingVisitor)
    }
}

/// A list of objects. What is none of them is passed over.
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        List(Vec::new())
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<List<T>, A::Error> {
        let mut all = Vec::new();
        while all.len() < CHOICES_MAX {
            let Some(Object(item)) = list.next_element::<Object<T>>()? else { return Ok(List(all)) };
            all.extend(item);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(List(all))
    }
    else_nothing!(null, scalar, number, text, object);
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListVisitor(PhantomData))
    }
}

/// An object, or nothing.
pub(crate) struct Object<T>(pub(crate) Option<T>);

impl<T> Default for Object<T> {
    fn default() -> Self {
        Object(None)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;
    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(object)).map(|item| Object(Some(item)))
    }
    else_nothing!(null, scalar, number, text, list);
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ObjectVisitor(PhantomData))
    }
}

/// An error: an object, or only its message.
#[derive(Default)]
struct Trouble<'a>(Option<Complaint<'a>>);

struct TroubleVisitor<'a>(PhantomData<&'a str>);

impl<'de: 'a, 'a> Visitor<'de> for TroubleVisitor<'a> {
    type Value = Trouble<'a>;
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Trouble<'a>, E> {
        Ok(Trouble(Some(Complaint { message: Cow::Borrowed(text), ..Complaint::default() })))
    }
    fn visit_str<E>(self, text: &str) -> Result<Trouble<'a>, E> {
        Ok(Trouble(Some(Complaint { message: Cow::Owned(text.to_owned()), ..Complaint::default() })))
    }
    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Trouble<'a>, A::Error> {
        let raw = RawComplaint::deserialize(MapAccessDeserializer::new(object))?;
        Ok(Trouble(Some(Complaint { message: raw.message.0.unwrap_or_default(), kind: raw.kind.0, code: raw.code.0 })))
    }
    else_nothing!(null, scalar, number, list);
}

impl<'de: 'a, 'a> Deserialize<'de> for Trouble<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TroubleVisitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(json: &str) -> Said<'_> {
        Said::read(json.as_bytes()).expect("an object")
    }

    #[test]
    fn a_chat_chunk_borrows_its_text() {
        let json = r#"{"id":"x","choices":[{"index":1,"delta":{"role":"assistant","content":"hi"},"logprobs":null,"finish_reason":null}]}"#;
        let said = said(json);
        assert_eq!(said.tokens(), 1);
        assert_eq!((said.choices[0].index, &*said.choices[0].text), (1, "hi"));
        assert!(matches!(said.choices[0].text, Cow::Borrowed(_)));
        assert_eq!(said.choices[0].finish_reason, None);
    }

    #[test]
    fn what_counts_as_generated() {
        for (delta, counts) in [
            (r#"{"content":""}"#, false),
            (r#"{"role":"assistant","content":null}"#, false),
            (r#"{"reasoning_content":"hm"}"#, true),
            (r#"{"reasoning":"hm"}"#, true),
            (r#"{"refusal":"no"}"#, true),
            (r#"{"tool_calls":[]}"#, false),
            (r#"{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}"#, true),
            (r#"{"function_call":{"name":"f"}}"#, true),
            (r#"{"content":" "}"#, true),
            (r#"{"content":"\u0041\n"}"#, true),
            ("7", false),
        ] {
            let json = format!(r#"{{"choices":[{{"delta":{delta}}}]}}"#);
            assert_eq!(said(&json).tokens(), u32::from(counts), "{delta}");
        }
        assert_eq!(said(r#"{"choices":[{"index":0,"text":"a"},{"index":1,"text":""},{"index":2,"text":"b"}]}"#).tokens(), 2);
    }

    #[test]
    fn strange_values_spoil_nothing_else() {
        let json = r#"{"choices":[null,3,{"index":"0","text":["a"],"finish_reason":7},{"index":2,"text":"b","finish_reason":"stop"}],
            "usage":{"prompt_tokens":3.0,"completion_tokens":-1,"total_tokens":"9","prompt_tokens_details":[1]},"error":null,"object":{}}"#;
        let said = said(json);
        assert_eq!(said.choices.len(), 2);
        assert_eq!((said.choices[1].index, said.choices[1].finish_reason.as_deref()), (2, Some("stop")));
        assert_eq!(said.usage, Some(Usage { prompt_tokens: Some(3), ..Usage::default() }));
        assert_eq!(said.error, None);
        // What Python writes, or a careless hop.
        let json = r#"{"choices":[{"index":0,"delta":{"content":"a\ud83d"},"logprobs":{"x":[NaN,-Infinity]},"finish_reason":"stop"}],"id":1,
            "usage":{"prompt_tokens":1},"usage":{"prompt_tokens":4}}"#;
        let read = Said::read(json.as_bytes()).expect("an object");
        assert_eq!((&*read.choices[0].text, read.choices[0].finish_reason.as_deref()), ("a\u{fffd}", Some("stop")));
        assert_eq!(read.usage.and_then(|usage| usage.prompt_tokens), Some(4));
        for json in ["", "[]", "\"x\"", "{", "{\"a\":}", "nul", "{}x"] {
            assert_eq!(Said::read(json.as_bytes()), None, "{json}");
        }
        assert_eq!(Said::read(b"{}"), Some(Said::default()));
    }

    #[test]
    fn errors_in_every_dress() {
        let complaint = |json: &str| said(json).error.map(|e| (e.message.into_owned(), e.code.map(Cow::into_owned)));
        assert_eq!(complaint(r#"{"error":{"message":"m","type":"t","code":500}}"#), Some(("m".into(), Some("500".into()))));
        assert_eq!(complaint(r#"{"error":"only text"}"#), Some(("only text".into(), None)));
        assert_eq!(complaint(r#"{"object":"error","message":"flat","code":404}"#), Some(("flat".into(), Some("404".into()))));
        assert_eq!(complaint(r#"{"object":"list","message":"no error"}"#), None);
    }
}
