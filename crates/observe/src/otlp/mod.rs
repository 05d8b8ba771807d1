//! A run that is over as a tree of OpenTelemetry spans, and its place in its caller's trace. No network: a gateway sends what is made here.
//!
//! The tree is read off what the journal keeps of the run, the same that its view and its trace in the terminal are read off, so that no two of
//! them disagree. Cancelled and expired runs are in it as every other; only what failed is an error.
//!
//! Invariant: no prompt, no text and no token is in a span; every span names its run; names that a convention has are that convention's, of one
//! release, which each message says.
// contract: C-1 C-6 C-24 C-29

pub mod context;
mod tree;
pub mod wire;

use lifecycle::RunKey;

pub use context::{Incoming, RunTrace, Sample};

use crate::Journal;
use crate::clock::Clock;
use crate::fold::Run;

/// The conventions by which attributes are named that are not kvit's own (`kvit.*`).
pub const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.41.0";

/// A run that is over, with all that its spans say.
#[derive(Clone, Debug)]
pub struct Finished {
    run: Run,
    clock: Clock,
    trace: RunTrace,
    asked: Asked,
}

/// What was asked for, as far as the journal does not know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The operation, in the conventions' words where they have one.
    pub operation: &'static str,
    /// Whether the caller reads a stream.
    pub stream: bool,
    /// Answers.
    pub n: u32,
    /// The cap on each; `None` where the request names none.
    pub max_tokens: Option<u32>,
}

impl Journal {
    /// A run that has just settled, with its place in a trace and what was asked for. `None` if it is not known here, or not settled.
    pub fn finished(&self, key: &RunKey, trace: &RunTrace, asked: Asked) -> Option<Finished> {
        let run = self.folded(key).filter(Run::is_settled)?;
        Some(Finished { run, clock: self.clock(), trace: trace.clone(), asked })
    }
}

/// Which process the spans are of.
#[derive(Clone, Debug)]
pub struct Process<'a> {
    /// What it is called.
    pub name: &'a str,
    /// Its version.
    pub version: &'a str,
    /// Its life.
    pub incarnation: String,
}

/// What a collector is sent.
pub fn request(process: &Process<'_>, spans: Vec<wire::Span>) -> wire::ExportTraceServiceRequest {
    let attributes = vec![
        wire::KeyValue::text("service.name", "kvit"),
        wire::KeyValue::text("service.version", process.version),
        wire::KeyValue::text("service.instance.id", &process.incarnation),
        wire::KeyValue::text("kvit.process.name", process.name),
    ];
    let scope = wire::InstrumentationScope { name: "kvit".to_owned(), version: process.version.to_owned() };
    let scope_spans = vec![wire::ScopeSpans { scope: Some(scope), spans, schema_url: SCHEMA_URL.to_owned() }];
    let resource = Some(wire::Resource { attributes });
    wire::ExportTraceServiceRequest {
        resource_spans: vec![wire::ResourceSpans { resource, scope_spans, schema_url: SCHEMA_URL.to_owned() }],
    }
}
