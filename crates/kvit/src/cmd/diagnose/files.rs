//! Snapshots in files: written by one `kvit diagnose`, compared by another, perhaps of a later release.
//!
//! Invariant: two files are compared only if they are of the same kind of server.

use std::path::{Path, PathBuf};

use anyhow::Context;
use observe::diagnose::EngineLook;
use serde_json::{Value, json};

use super::{Saw, ask};
use crate::failure::Failure;

/// Writes what was seen.
///
/// # Errors
/// The file cannot be written.
pub fn write(file: &Path, profile: Option<&str>, saw: &Saw) -> Result<(), Failure> {
    let text = format!("{:#}\n", json(profile, saw));
    std::fs::write(file, text).with_context(|| file.display().to_string()).map_err(Failure::Other)
}

/// It as JSON.
pub fn json(profile: Option<&str>, saw: &Saw) -> Value {
    let (source, looks) = match saw {
        Saw::Kvit(looks) => ("kvit", json!(looks)),
        Saw::Engine(looks) => (profile.unwrap_or("engine"), json!(looks)),
    };
    json!({"object": "snapshot", "version": env!("CARGO_PKG_VERSION"), "source": source, "looks": looks})
}

/// Reads files that were written so, the older first.
///
/// # Errors
/// One that is none, or two of different kinds of server.
pub fn compared(files: &[PathBuf]) -> Result<Saw, Failure> {
    let all: Vec<(String, Vec<Value>)> = files.iter().map(|file| read(file)).collect::<Result<_, _>>()?;
    let source = all.first().map_or("", |(source, _)| source).to_owned();
    if let Some((other, _)) = all.iter().find(|(other, _)| *other != source) {
        return Err(Failure::Usage(format!("one file is of {source}, the other of {other}: they have nothing to compare")));
    }
    let looks = all.into_iter().flat_map(|(_, looks)| looks);
    let wrong = || Failure::Usage("a file has a look that cannot be read: was it written by `kvit diagnose --snapshot`?".to_owned());
    if source == "kvit" {
        let mut looks = looks.map(ask::read).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
        looks.sort_by_key(|look| look.at_ms);
        return Ok(Saw::Kvit(looks));
    }
    let looks: Result<Vec<EngineLook>, _> = looks.map(serde_json::from_value).collect();
    let mut looks = looks.map_err(|_| wrong())?;
    looks.sort_by_key(|look| look.at_ms);
    Ok(Saw::Engine(looks))
}

fn read(file: &Path) -> Result<(String, Vec<Value>), Failure> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|why| match why.kind() {
        std::io::ErrorKind::NotFound => Failure::NotFound(format!("{name}: {why}")),
        _ => Failure::Other(anyhow::anyhow!("{name}: {why}")),
    })?;
    let mut json: Value = serde_json::from_str(&text).map_err(|why| Failure::Usage(format!("{name}: {why}")))?;
    let looks = json["looks"].take();
    match (json["object"].as_str(), json["source"].as_str(), looks) {
        (Some("snapshot"), Some(source), Value::Array(looks)) => Ok((source.to_owned(), looks)),
        _ => Err(Failure::Usage(format!("{name}: this is no file that `kvit diagnose --snapshot` wrote"))),
    }
}
