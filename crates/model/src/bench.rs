//! Measures the forward pass alone: a prefill of 512 tokens, and decode at several batch sizes. Used by `benches/forward.rs` and `kvit bench`.
//!
//! Invariant: every figure comes with the instruction set and the number of threads it was measured with.

use std::time::Instant;

use kv::BlockId;
use serde::Serialize;

use crate::arch::forward::{Compute, Span};
use crate::arch::llama::Llama;
use crate::error::ModelError;
use crate::kernel::Isa;
use crate::kv_memory::KvMemory;

/// Tokens of the prefill.
pub const PREFILL_TOKENS: usize = 512;
/// Batch sizes of the decodes.
pub const BATCHES: [usize; 4] = [1, 4, 8, 16];
/// Prompt length of each decoding sequence.
const PROMPT_TOKENS: usize = 16;
const BLOCK_TOKENS: usize = 16;

/// What to measure with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads, at least 1.
    pub threads: usize,
    /// Instruction set; `None` is the best there is.
    pub isa: Option<Isa>,
    /// How often each figure is measured.
    pub repeats: usize,
    /// Tokens that each decoding sequence makes in one measurement.
    pub decode_tokens: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { threads: 1, isa: None, repeats: 7, decode_tokens: 64 }
    }
}

/// Tokens a second over several measurements.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// The best.
    pub best: f64,
    /// The median a second of the process's CPU time: what is left to compare when other work shares the cores.
    pub per_cpu_s: f64,
}

/// Decode at one batch size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Decode {
    /// Sequences decoded together.
    pub batch: usize,
    /// Tokens a second of all sequences together.
    pub tokens_per_s: Figure,
}

/// The figures.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Instruction set.
    pub isa: &'static str,
    /// Threads.
    pub threads: usize,
    /// Prefill of 512 tokens in one step.
    pub prefill_512: Figure,
    /// Decodes, smallest batch first.
    pub decode: Vec<Decode>,
}

/// Measures. Takes some seconds on a small model.
pub fn forward(model: &Llama, options: Options) -> Result<Report, ModelError> {
    let mut compute = Compute::new(options.threads, options.isa)?;
    let tokens_a_sequence = PROMPT_TOKENS + options.decode_tokens + 1;
    let table_len = tokens_a_sequence.max(PREFILL_TOKENS).div_ceil(BLOCK_TOKENS);
    let mut memory = KvMemory::new(model.shape(), table_len * BATCHES[BATCHES.len() - 1], BLOCK_TOKENS)?;
    let tables: Vec<Vec<BlockId>> =
        (0..BATCHES[BATCHES.len() - 1]).map(|s| (0..table_len).map(|b| BlockId((s * table_len + b) as u32)).collect()).collect();
    let vocab = model.shape().vocab as u32;
    let tokens: Vec<u32> = (0..PREFILL_TOKENS as u32).map(|i| (1000 + i * 37 % 40_000) % vocab).collect();
    let mut bench = Bench { model, compute: &mut compute, memory: &mut memory, tables: &tables, tokens: &tokens };
    let prefill = repeated(options.repeats, |_| bench.step(1, 0, PREFILL_TOKENS).map(|()| PREFILL_TOKENS))?;
    let mut decode = Vec::new();
    for batch in BATCHES {
        let tokens_per_s = repeated(options.repeats, |watch| {
            bench.step(batch, 0, PROMPT_TOKENS)?;
            *watch = Watch::start();
            for i in 0..options.decode_tokens {
                bench.step(batch, PROMPT_TOKENS + i, 1)?;
            }
            Ok(batch * options.decode_tokens)
        })?;
        decode.push(Decode { batch, tokens_per_s });
    }
    Ok(Report { isa: compute.isa().name(), threads: compute.threads(), prefill_512: prefill, decode })
}

struct Bench<'a> {
    model: &'a Llama,
    compute: &'a mut Compute,
    memory: &'a mut KvMemory,
    tables: &'a [Vec<BlockId>],
    tokens: &'a [u32],
}

impl Bench<'_> {
    /// `count` tokens at `position` for each of `batch` sequences, each with its logits.
    fn step(&mut self, batch: usize, position: usize, count: usize) -> Result<(), ModelError> {
        let spans: Vec<Span> = (0..batch)
            .map(|s| {
                let from = (position + s * PROMPT_TOKENS) % (self.tokens.len() - count + 1);
                Span { tokens: &self.tokens[from..from + count], position, table: &self.tables[s], logits: true, is_dropped: &|| false }
            })
            .collect();
        self.model.step(self.compute, self.memory, &spans).map(drop)
    }
}

/// Runs `measure` `times` times; it returns the tokens it made, and may restart the watch after it has set itself up.
fn repeated(times: usize, mut measure: impl FnMut(&mut Watch) -> Result<usize, ModelError>) -> Result<Figure, ModelError> {
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..times.max(1) {
        let mut watch = Watch::start();
        let tokens = measure(&mut watch)? as f64;
        wall.push(tokens / watch.started.elapsed().as_secs_f64());
        cpu.push(tokens / (cpu_s() - watch.cpu_s));
    }
    wall.sort_by(f64::total_cmp);
    cpu.sort_by(f64::total_cmp);
    Ok(Figure { median: wall[wall.len() / 2], best: wall[wall.len() - 1], per_cpu_s: cpu[cpu.len() / 2] })
}

struct Watch {
    started: Instant,
    cpu_s: f64,
}

impl Watch {
    fn start() -> Watch {
        Watch { started: Instant::now(), cpu_s: cpu_s() }
    }
}

/// CPU seconds of all threads of the process so far.
fn cpu_s() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}
