//! `cargo bench -p model --bench forward -- [MODEL] [--threads N] [--isa NAME] [--repeats N] [--decode-tokens N] [--json]`: prints what `model::bench` measures.
//! The model is the argument or the environment's KVIT_TEST_MODEL; without one it says so and measures nothing.

use std::path::PathBuf;

use model::arch::llama::{Llama, Precision};
use model::bench::{Figure, Options, forward};
use model::gguf::Gguf;
use model::kernel::Isa;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut path = std::env::var_os("KVIT_TEST_MODEL").map(PathBuf::from);
    let (mut options, mut json) = (Options::default(), false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--threads" => options.threads = value()?.parse()?,
            "--repeats" => options.repeats = value()?.parse()?,
            "--decode-tokens" => options.decode_tokens = value()?.parse()?,
            "--isa" => {
                let name = value()?;
                options.isa = Some(Isa::ALL.into_iter().find(|i| i.name() == name).ok_or(format!("no instruction set {name}"))?);
            }
            "--json" => json = true,
            "--bench" => {}
            _ => path = Some(PathBuf::from(arg)),
        }
    }
    let Some(path) = path else {
        println!("no model: give a GGUF file or set KVIT_TEST_MODEL");
        return Ok(());
    };
    let model = Llama::load(&Gguf::open(&path)?, Precision::Fast)?;
    let report = forward(&model, options)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!("instruction set {}, threads {}; tokens/s: median, best, median a CPU second", report.isa, report.threads);
    let line = |what: String, f: Figure| println!("{what:12} {:8.1} {:8.1} {:8.1}", f.median, f.best, f.per_cpu_s);
    line("prefill 512".into(), report.prefill_512);
    for d in &report.decode {
        line(format!("decode b{}", d.batch), d.tokens_per_s);
    }
    Ok(())
}
