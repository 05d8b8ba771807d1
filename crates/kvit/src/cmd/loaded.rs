//! What the serving commands have in common: the log, a life's name, the journal, a model that is loaded onto a device.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use engine::Device;
use lifecycle::Incarnation;
use lifecycle::message::ModelInfo;
use model::arch::llama::{Llama, Precision};
use model::cpu::CpuDevice;
use model::error::ModelError;
use model::gguf::Gguf;
use observe::{Clock, FileWriter, Journal};
use worker::Text;

use super::settings;
use crate::config::ServeConfig;

/// Sends the log to stderr. Where nobody reads that any more, a complaint about it would go there, too, and end whatever logs.
pub fn log(config: &ServeConfig) {
    tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_max_level(settings::level(config))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// A fresh one: this life of this process's gateway or worker.
pub fn incarnation() -> Incarnation {
    Incarnation(uuid::Uuid::now_v7().as_u128())
}

/// The process's journal, and what writes it to files where a folder is named: it does so for as long as it is kept.
///
/// # Errors
/// The folder cannot be written to, or is another process's.
pub fn journal(config: &ServeConfig, life: Incarnation) -> anyhow::Result<(Journal, Option<FileWriter>)> {
    let journal = Journal::new(Clock::start(), settings::journal(config));
    let writer = settings::journal_files(config, life).map(|files| journal.write_files(files)).transpose();
    // Its words have the reason in them.
    let writer = writer.map_err(|why| anyhow::anyhow!("journal_dir: {why}"))?;
    Ok((journal, writer))
}

/// A model on its device.
pub struct Loaded {
    /// What computes.
    pub device: Box<dyn Device>,
    /// Its tokenizer and template.
    pub text: Arc<Text>,
    /// What is told of it.
    pub info: ModelInfo,
}

impl Loaded {
    /// Reads the file and packs its weights.
    ///
    /// # Errors
    /// The file is none, or of a kind that is not supported; the pool does not fit into memory.
    pub fn load(config: &ServeConfig, path: &Path) -> anyhow::Result<Loaded> {
        let named = || path.display().to_string();
        let gguf = Gguf::open(path).with_context(named)?;
        let text = Text::load(&gguf).with_context(named)?;
        let llama = Llama::load(&gguf, Precision::Fast).with_context(named)?;
        let device = CpuDevice::new(Arc::new(llama), settings::device(config)).map_err(|e| {
            let option = if matches!(e, ModelError::Pool { .. }) { "; lower kv_blocks" } else { "" };
            anyhow::Error::from(e).context(format!("cannot start the device{option}"))
        })?;
        let id = model_id(path);
        tracing::info!(model = %id, isa = device.isa().name(), threads = config.threads.get(), blocks = config.kv_blocks, "model loaded");
        let info = ModelInfo {
            id: id.as_str().into(),
            context: device.limits().context,
            default_max_tokens: config.default_max_tokens,
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        };
        Ok(Loaded { device: Box::new(device), text: Arc::new(text), info })
    }
}

/// The model's name on the API: the file's, in lower case, without its ending and its quantisation.
fn model_id(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    let quantisation = |tail: &str| {
        let digits = tail.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        ["q", "iq", "f", "bf"].contains(&&tail[..tail.len() - digits.len()]) && digits.starts_with(|c: char| c.is_ascii_digit())
    };
    match stem.rsplit_once(['.', '-']) {
        Some((name, tail)) if quantisation(tail) && !name.is_empty() => name.to_owned(),
        _ => stem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_called_by_its_file_without_the_quantisation() {
        for (file, id) in [
            ("models/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct"),
            ("Qwen2.5-0.5B-Instruct-BF16.gguf", "qwen2.5-0.5b-instruct"),
            ("Qwen2.5-0.5B.gguf", "qwen2.5-0.5b"),
            ("tiny.gguf", "tiny"),
            ("q8_0.gguf", "q8_0"),
        ] {
            assert_eq!(model_id(Path::new(file)), id, "{file}");
        }
    }
}
