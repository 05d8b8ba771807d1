//! What is exported, byte for byte: the messages of OpenTelemetry's protocol (OTLP 1.x, traces) that kvit says, and its answer.
//!
//! Written out, for these are ten small messages that never change, and the published crate brings the SDK along. The tests read what kvit sends
//! with that crate.
//!
//! Invariant: numbers and types of fields are those of `opentelemetry/proto/trace/v1/trace.proto`; nothing is here that kvit does not say.

use prost::{Enumeration, Message, Oneof};

/// The method of a collector that takes traces.
pub const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Where a collector takes them over HTTP.
pub const TRACES_PATH: &str = "/v1/traces";

/// What is sent.
#[derive(Clone, PartialEq, Message)]
pub struct ExportTraceServiceRequest {
    /// Spans by who made them.
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// What is answered.
#[derive(Clone, PartialEq, Message)]
pub struct ExportTraceServiceResponse {
    /// What was not taken.
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<ExportTracePartialSuccess>,
}

/// What a collector did not take of a request that it took otherwise.
#[derive(Clone, PartialEq, Message)]
pub struct ExportTracePartialSuccess {
    /// How many spans.
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    /// Why, for a person.
    #[prost(string, tag = "2")]
    pub error_message: String,
}

/// The spans of one process.
#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    /// Which process.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// Its spans by the part of it that made them.
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
    /// By which version of the conventions the resource's attributes are named.
    #[prost(string, tag = "3")]
    pub schema_url: String,
}

/// A process.
#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    /// What is known of it.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// Spans of one part of a process.
#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    /// Which part.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<InstrumentationScope>,
    /// The spans.
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
    /// By which version of the conventions the spans' attributes are named.
    #[prost(string, tag = "3")]
    pub schema_url: String,
}

/// A part of a process that makes spans.
#[derive(Clone, PartialEq, Message)]
pub struct InstrumentationScope {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// Something that began and ended.
#[derive(Clone, PartialEq, Message)]
pub struct Span {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// What came with the trace in `tracestate`.
    #[prost(string, tag = "3")]
    pub trace_state: String,
    /// 8 bytes, or none for the first span of a trace.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    /// What it is.
    #[prost(string, tag = "5")]
    pub name: String,
    /// Where it is between caller and callee.
    #[prost(enumeration = "SpanKind", tag = "6")]
    pub kind: i32,
    /// Nanoseconds since 1970.
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    /// Nanoseconds since 1970.
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    /// What is known of it.
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    /// What happened in it.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
    /// Whether it failed.
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
    /// The trace's flags, and whether its parent is in another process.
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

/// A moment in a span.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// Nanoseconds since 1970.
    #[prost(fixed64, tag = "1")]
    pub time_unix_nano: u64,
    /// What it is.
    #[prost(string, tag = "2")]
    pub name: String,
    /// What is known of it.
    #[prost(message, repeated, tag = "3")]
    pub attributes: Vec<KeyValue>,
}

/// Whether a span failed.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// Why, if it failed.
    #[prost(string, tag = "2")]
    pub message: String,
    /// Whether.
    #[prost(enumeration = "StatusCode", tag = "3")]
    pub code: i32,
}

/// Whether a span failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum StatusCode {
    /// Nobody says so.
    Unset = 0,
    /// Somebody says that it did not.
    Ok = 1,
    /// It did.
    Error = 2,
}

/// Where a span is between caller and callee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum SpanKind {
    /// Nobody says so.
    Unspecified = 0,
    /// Within one process.
    Internal = 1,
    /// The callee's.
    Server = 2,
    /// The caller's.
    Client = 3,
}

/// An attribute.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// A value of any type.
#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    /// The value.
    #[prost(oneof = "Value", tags = "1, 2, 3, 5")]
    pub value: Option<Value>,
}

/// The types that kvit's attributes have.
#[derive(Clone, PartialEq, Oneof)]
pub enum Value {
    /// A text.
    #[prost(string, tag = "1")]
    Text(String),
    /// A truth value.
    #[prost(bool, tag = "2")]
    Bool(bool),
    /// A whole number.
    #[prost(int64, tag = "3")]
    Int(i64),
    /// A list.
    #[prost(message, tag = "5")]
    List(ArrayValue),
}

/// A list.
#[derive(Clone, PartialEq, Message)]
pub struct ArrayValue {
    /// What is in it.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<AnyValue>,
}

impl From<Value> for AnyValue {
    fn from(value: Value) -> Self {
        AnyValue { value: Some(value) }
    }
}

impl KeyValue {
    /// An attribute.
    pub fn new(key: &str, value: Value) -> KeyValue {
        KeyValue { key: key.to_owned(), value: Some(value.into()) }
    }

    /// An attribute that is a text.
    pub fn text(key: &str, value: &str) -> KeyValue {
        KeyValue::new(key, Value::Text(value.to_owned()))
    }

    /// An attribute that is a number.
    pub fn count(key: &str, value: u64) -> KeyValue {
        KeyValue::new(key, Value::Int(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    /// An attribute that is true or false.
    pub fn flag(key: &str, value: bool) -> KeyValue {
        KeyValue::new(key, Value::Bool(value))
    }

    /// An attribute that is a list of texts.
    pub fn list<'a>(key: &str, values: impl IntoIterator<Item = &'a str>) -> KeyValue {
        let values = values.into_iter().map(|text| Value::Text(text.to_owned()).into()).collect();
        KeyValue::new(key, Value::List(ArrayValue { values }))
    }
}
