//! The part of Perfetto's trace format that a drawing needs, by the published numbers of its fields
//! (perfetto.dev/docs/reference/trace-packet-proto): packets that declare tracks, and packets with events on them.
//!
//! The protobuf form and not Chrome's JSON, because only there may a track have a name, a place among its siblings and a counter without a
//! process and a thread that do not exist; and it is what Perfetto itself documents for files that others write.
//!
//! Invariant: nothing is interned and nothing is incremental, so each packet says by itself what it means.

/// `perfetto.protos.Trace`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Trace {
    /// In the order of the file.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<Packet>,
}

/// `TracePacket`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Packet {
    /// Nanoseconds of the trace's clock.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// Which writer's packet it is; there is one.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// 1 on the writer's first packet: nothing before it is needed.
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// What it says.
    #[prost(oneof = "Data", tags = "6, 11, 60")]
    pub data: Option<Data>,
}

/// What a packet says.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Data {
    /// Which time by one clock is which by another.
    #[prost(message, tag = "6")]
    Clocks(ClockSnapshot),
    /// Something on a track.
    #[prost(message, tag = "11")]
    Event(Event),
    /// A track.
    #[prost(message, tag = "60")]
    Track(Track),
}

/// `ClockSnapshot`
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClockSnapshot {
    /// The same moment by each clock.
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
}

/// `ClockSnapshot.Clock`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Clock {
    /// 1 is the calendar, 6 the trace's own.
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    /// Nanoseconds.
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// `TrackDescriptor`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Track {
    /// By which events name it.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// As it is shown.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The track under which it stands.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    /// Whether it shows numbers.
    #[prost(message, optional, tag = "8")]
    pub counter: Option<Counter>,
    /// 3: those under it stand by their rank.
    #[prost(int32, optional, tag = "11")]
    pub child_ordering: Option<i32>,
    /// Its place among its siblings.
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
    /// What it shows, in a sentence.
    #[prost(string, optional, tag = "14")]
    pub description: Option<String>,
}

/// `CounterDescriptor`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Counter {
    /// What is counted.
    #[prost(string, optional, tag = "6")]
    pub unit_name: Option<String>,
}

/// `TrackEvent`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Event {
    /// Facts about it.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<Annotation>,
    /// See `Kind`.
    #[prost(enumeration = "Kind", optional, tag = "9")]
    pub r#type: Option<i32>,
    /// On which track.
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    /// As it is shown.
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    /// A counter's value from now on.
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
}

/// `TrackEvent.Type`
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum Kind {
    /// A slice begins.
    SliceBegin = 1,
    /// The newest slice of the track that has not ended ends.
    SliceEnd = 2,
    /// Something without a length.
    Instant = 3,
    /// A counter has another value.
    Counter = 4,
}

/// `DebugAnnotation`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Annotation {
    /// What the fact is about.
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
    /// The fact.
    #[prost(oneof = "Fact", tags = "2, 3, 6")]
    pub value: Option<Fact>,
}

/// A fact.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Fact {
    /// Whether it is so.
    #[prost(bool, tag = "2")]
    Bool(bool),
    /// How many.
    #[prost(uint64, tag = "3")]
    Count(u64),
    /// A word.
    #[prost(string, tag = "6")]
    Word(String),
}
