//! The lines of a file: a head, records, and marks where records are missing.
//!
//! ```text
//! {"kvit_journal":1,"release":"0.1.0","life":"0194...","clock_ns":1764547200000000000,"begun_ms":1764547260000,"first":0}
//! {"at_us":1000000,"tenant":"default","run":"demo","event":"accepted","model":"m","n":1,"stream":true,"on_disconnect":"cancel"}
//! {"at_us":1000050,"tenant":"default","run":"demo","attempt":1,"event":"dispatched","tokens_max":8192}
//! {"gap":12}
//! ```
//!
//! Invariant: each line is whole in itself and ends with a newline; a file's head says how many records of its life came before it.

use lifecycle::event::Record;
use lifecycle::{Incarnation, RunId, RunKey, Tenant, Time};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::event;
use super::field::{incarnation, put};

/// The format's number. One that is not known is not read.
pub(super) const FORMAT: u64 = 1;

/// A file's first line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Head {
    kvit_journal: u64,
    /// The program's version.
    pub release: String,
    life: String,
    /// When the clock of its times began, in nanoseconds since 1970.
    pub clock_ns: u64,
    /// When the file was begun, in milliseconds since 1970.
    pub begun_ms: u64,
    /// How many records of this life came before it, written or not.
    pub first: u64,
}

/// What a file's first line is, if it is none of this format.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum NoHead {
    /// Another format.
    Version(u64),
    /// No head.
    Not(String),
}

impl Head {
    pub(super) fn new(release: &str, life: Incarnation, clock_ns: u64, begun_ms: u64, first: u64) -> Head {
        Head { kvit_journal: FORMAT, release: release.to_owned(), life: life.to_string(), clock_ns, begun_ms, first }
    }

    pub(super) fn life(&self) -> Option<Incarnation> {
        incarnation(&self.life)
    }

    /// As it stands in the file.
    pub(super) fn line(&self) -> String {
        format!("{}\n", serde_json::json!(self))
    }

    pub(super) fn read(line: &[u8]) -> Result<Head, NoHead> {
        let not = |why: String| NoHead::Not(format!("is not the head of a journal's file: {why}"));
        let value: Value = serde_json::from_slice(line).map_err(|why| not(why.to_string()))?;
        match value["kvit_journal"].as_u64() {
            Some(FORMAT) => {}
            Some(other) => return Err(NoHead::Version(other)),
            None => return Err(not("it has no `kvit_journal`".to_owned())),
        }
        let head: Head = serde_json::from_value(value).map_err(|why| not(why.to_string()))?;
        head.life().map(|_| head).ok_or_else(|| not("`life` is no UUID".to_owned()))
    }
}

/// Any other line.
#[derive(PartialEq, Debug)]
pub(super) enum Line {
    /// What happened.
    Record(Record),
    /// So many records are missing here.
    Gap(u64),
}

/// Appends a record's line.
pub(super) fn put_record(out: &mut String, record: &Record) {
    put(out, format_args!("{{\"at_us\":{},", record.at.0));
    if let Some(key) = &record.run {
        // Neither has a character that needs an escape.
        put(out, format_args!("\"tenant\":\"{}\",\"run\":\"{}\",", key.tenant, key.run));
    }
    if record.attempt > 0 {
        put(out, format_args!("\"attempt\":{},", record.attempt));
    }
    event::put(&record.event, out);
    out.push_str("}\n");
}

/// A mark for missing records.
pub(super) fn gap(missing: u64) -> String {
    format!("{{\"gap\":{missing}}}\n")
}

/// Reads a line.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub(super) fn read(line: &[u8]) -> Result<Line, String> {
    let value: Value = serde_json::from_slice(line).map_err(|why| format!("is no JSON: {why}"))?;
    if let Some(missing) = value["gap"].as_u64() {
        return Ok(Line::Gap(missing));
    }
    let at = value["at_us"].as_u64().map(Time).ok_or("`at_us` is not there")?;
    let run = match (value["tenant"].as_str(), value["run"].as_str()) {
        (None, None) => None,
        (tenant, run) => {
            let tenant = Tenant::parse(tenant.unwrap_or_default()).map_err(|why| format!("`tenant` {why}"))?;
            let run = RunId::parse(run.unwrap_or_default()).map_err(|why| format!("`run` {why}"))?;
            Some(RunKey { tenant, run })
        }
    };
    let attempt = match &value["attempt"] {
        Value::Null => 0,
        number => number.as_u64().and_then(|n| n.try_into().ok()).ok_or("`attempt` is no number of one")?,
    };
    let event = event::take(value["event"].as_str().ok_or("`event` is not there")?, &value)?;
    Ok(Line::Record(Record { at, run, attempt, event }))
}
