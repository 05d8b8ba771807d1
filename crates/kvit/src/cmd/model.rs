//! `kvit model pull|list|inspect`: the model files.

use std::path::PathBuf;

use indicatif::HumanBytes;
use serde_json::json;

use crate::cli::ModelCommand;
use crate::failure::Failure;
use crate::model_file::{self, Cache, DEFAULT, Routes};
use crate::out;

mod inspect;

/// Runs one of the three.
///
/// # Errors
/// No route to the model, an unreadable cache, or a file that is no GGUF.
pub fn run(command: ModelCommand, cache: Option<PathBuf>) -> Result<(), Failure> {
    let cache = Cache::locate(cache)?;
    match command {
        ModelCommand::Pull { json } => pull(&cache, json),
        ModelCommand::List { json } => list(&cache, json),
        ModelCommand::Inspect { file, tensors, json } => {
            let file = match file {
                Some(file) if file.is_file() => file,
                Some(file) => return Err(Failure::NotFound(format!("{}: there is no such file", file.display()))),
                None if cache.path(&DEFAULT).is_file() => cache.path(&DEFAULT),
                None => return Err(Failure::NotFound(format!("{} is not in the cache; `kvit model pull` fetches it", DEFAULT.file))),
            };
            inspect::run(&file, tensors, json)
        }
    }
}

fn pull(cache: &Cache, json: bool) -> Result<(), Failure> {
    let fetched = model_file::pull(&DEFAULT, cache, &Routes::from_env())?;
    if json {
        return out::json(&json!({
            "object": "model_file", "path": fetched.path, "bytes": fetched.bytes, "sha256": fetched.sha256, "verified": true,
            "source": fetched.source.as_str(), "moved_aside": fetched.moved_aside,
        }));
    }
    out::line(&fetched.path.display().to_string())
}

fn list(cache: &Cache, json: bool) -> Result<(), Failure> {
    let files = cache.list(&[DEFAULT])?;
    if json {
        let data: Vec<_> = files
            .iter()
            .map(|f| json!({"object": "model_file", "path": f.path, "bytes": f.bytes, "sha256": f.sha256, "verified": f.verified}))
            .collect();
        return out::json(&json!({"object": "list", "data": data}));
    }
    if files.is_empty() {
        return out::line(&format!("no models in {}; `kvit model pull` fetches one", cache.models().display()));
    }
    let rows = files.iter().map(|f| {
        let verified = match f.verified {
            Some(true) => "verified",
            Some(false) => "NOT the expected bytes: `kvit model pull` fetches it anew",
            None => "not a file that kvit knows",
        };
        let name = f.path.file_name().unwrap_or_default().to_string_lossy();
        format!("{name}  {}  sha256 {}  {verified}", HumanBytes(f.bytes), f.sha256)
    });
    out::line(&rows.collect::<Vec<_>>().join("\n"))
}
