//! `kvit bench forward`: how fast the forward pass is on this machine, with the instruction set named.

use std::path::PathBuf;

use model::arch::llama::{Llama, Precision};
use model::bench::{Figure, Options, Report, forward};
use model::gguf::Gguf;
use serde_json::json;

use crate::cli::BenchArgs;
use crate::failure::Failure;
use crate::model_file::{self, Cache};
use crate::out;

/// Measures and prints tokens a second: medians, and the best of the repeats.
///
/// # Errors
/// No model, or one that cannot be used.
pub fn run(args: &BenchArgs, cache: Option<PathBuf>) -> Result<(), Failure> {
    let path = model_file::resolve(args.model.as_deref(), &Cache::locate(cache)?)?;
    let gguf = Gguf::open(&path).map_err(anyhow::Error::from)?;
    let llama = Llama::load(&gguf, Precision::Fast).map_err(anyhow::Error::from)?;
    let (threads, repeats) = (usize::from(args.threads), usize::from(args.repeats));
    let options = Options { threads, isa: args.isa.and_then(super::kernel_isa), repeats, ..Options::default() };
    let report = forward(&llama, options).map_err(anyhow::Error::from)?;
    if args.json { out::json(&as_json(&report)) } else { out::line(&as_text(&report)) }
}

fn as_json(report: &Report) -> serde_json::Value {
    let decode: serde_json::Map<_, _> = report.decode.iter().map(|d| (d.batch.to_string(), json!(d.tokens_per_s.median))).collect();
    json!({"isa": report.isa, "threads": report.threads, "prefill_512": report.prefill_512.median, "decode": decode, "detail": report})
}

fn as_text(report: &Report) -> String {
    let line = |what: &str, f: Figure| format!("\n{what:<12} {:>9.1} {:>9.1} {:>9.1}", f.median, f.best, f.per_cpu_s);
    let mut text = format!("instruction set {}, threads {}\ntokens/s        median      best  per CPU s", report.isa, report.threads);
    text += &line("prefill 512", report.prefill_512);
    for d in &report.decode {
        text += &line(&format!("decode b{}", d.batch), d.tokens_per_s);
    }
    text
}
