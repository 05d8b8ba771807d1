//! Exactness (C-14): a sequence's tokens and the bits of all its logits are the same alone and in company, cut into any chunks, with
//! neighbours that are dropped in mid-step, after its own blocks were taken away and all was computed again into others, over recycled blocks
//! full of NaN, over a shared prefix, on any number of threads and any instruction set. On tiny models here; on the real one (KVIT_TEST_MODEL) when asked for with `--ignored`.
// contract: C-14, C-12

use std::sync::atomic::{AtomicUsize, Ordering};

use kv::BlockId;
use model::arch::forward::{Compute, Span, SpanDone};
use model::arch::llama::{Llama, Precision};
use model::gguf::{Gguf, TensorKind};
use model::kernel::Isa;
use model::kv_memory::KvMemory;
use model::tiny::{TinySpec, bytes};

use crate::real_model;

/// f16 NaN.
const NAN: u16 = 0x7e00;
const BLOCKS: usize = 256;

/// Tokens chosen greedily, and a hash of the logits' bits at each.
type Trace = Vec<(u32, u64)>;

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

struct Sequence {
    tokens: Vec<u32>,
    prompt: usize,
    done: usize,
    table: Vec<BlockId>,
    trace: Trace,
}

impl Sequence {
    fn new(prompt: &[u32]) -> Sequence {
        Sequence { tokens: prompt.to_vec(), prompt: prompt.len(), done: 0, table: Vec::new(), trace: Vec::new() }
    }

    fn left(&self) -> usize {
        self.tokens.len() - self.done
    }
}

/// A model with threads and a pool whose blocks are handed out in a shuffled order, each filled with NaN first.
struct Bed<'a> {
    model: &'a Llama,
    compute: Compute,
    memory: KvMemory,
    free: Vec<BlockId>,
    numbers: Numbers,
}

impl<'a> Bed<'a> {
    fn new(model: &'a Llama, threads: usize, isa: Option<Isa>, block_tokens: usize) -> Bed<'a> {
        let memory = KvMemory::new(model.shape(), BLOCKS, block_tokens).unwrap();
        let free = (0..BLOCKS as u32).map(BlockId).collect();
        Bed { model, compute: Compute::new(threads, isa).unwrap(), memory, free, numbers: Numbers(99) }
    }

    fn prepare(&mut self, sequence: &mut Sequence, count: usize) {
        while sequence.table.len() * self.memory.block_tokens() < sequence.done + count {
            let block = self.free.swap_remove(self.numbers.below(self.free.len()));
            self.memory.fill(&[block], NAN);
            sequence.table.push(block);
        }
    }

    /// One step: `count` tokens of each sequence named. A sequence for which `is_dropped` says yes loses its blocks.
    fn step(&mut self, sequences: &mut [Sequence], which: &[(usize, usize)], is_dropped: &(dyn Fn(usize) -> bool + Sync)) -> Vec<SpanDone> {
        for &(i, count) in which {
            self.prepare(&mut sequences[i], count);
        }
        let checks: Vec<_> = which.iter().map(|&(i, _)| move || is_dropped(i)).collect();
        let spans: Vec<Span> = which
            .iter()
            .zip(&checks)
            .map(|(&(i, count), check)| {
                let s = &sequences[i];
                let tokens = &s.tokens[s.done..s.done + count];
                Span { tokens, position: s.done, table: &s.table, logits: count == s.left(), is_dropped: check }
            })
            .collect();
        let done = self.model.step(&mut self.compute, &mut self.memory, &spans).unwrap();
        for (&(i, count), done) in which.iter().zip(&done) {
            let s = &mut sequences[i];
            match done {
                SpanDone::Dropped { .. } => self.free.append(&mut s.table),
                SpanDone::Computed { logits } => {
                    s.done += count;
                    if let Some(index) = logits {
                        let logits = self.compute.logits(*index);
                        assert_eq!(logits.len(), self.model.shape().vocab);
                        assert!(logits.iter().all(|x| x.is_finite()));
                        let best = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
                        let hash = logits
                            .iter()
                            .fold(0xcbf2_9ce4_8422_2325, |h: u64, x| (h ^ u64::from(x.to_bits())).wrapping_mul(0x100_0000_01b3));
                        s.trace.push((best as u32, hash));
                        s.tokens.push(best as u32);
                    }
                }
            }
        }
        done
    }

    /// `n` tokens after `prompt`, alone, the prompt in chunks of `chunk`.
    fn alone(&mut self, prompt: &[u32], n: usize, chunk: usize) -> Trace {
        let mut one = [Sequence::new(prompt)];
        while one[0].trace.len() < n {
            let count = chunk.min(one[0].left());
            self.step(&mut one, &[(0, count)], &|_| false);
        }
        let [mut one] = one;
        self.free.append(&mut one.table);
        one.trace
    }

    /// All prompts at once with random neighbours, in random mixes of chunks and decodes; a neighbour is dropped now and then, at a random
    /// layer.
    fn in_company(&mut self, prompts: &[Vec<u32>], n: usize) -> Vec<Trace> {
        let (vocab, layers) = (self.model.shape().vocab, self.model.shape().layers);
        let mut all: Vec<Sequence> = prompts.iter().map(|p| Sequence::new(p)).collect();
        let mut drops = 0;
        for _ in 0..400 {
            if all[..prompts.len()].iter().all(|s| s.trace.len() >= n) {
                break;
            }
            while all.len() < prompts.len() + 4 {
                let len = 1 + self.numbers.below(60);
                let noise: Vec<u32> = (0..len).map(|_| self.numbers.below(vocab) as u32).collect();
                all.push(Sequence::new(&noise));
            }
            let mut which = Vec::new();
            for (i, s) in all.iter().enumerate() {
                if (i < prompts.len() && s.trace.len() >= n) || self.numbers.below(4) == 0 {
                    continue;
                }
                which.push((i, 1 + self.numbers.below(s.left())));
            }
            if which.is_empty() {
                continue;
            }
            let victim = prompts.len() + self.numbers.below(6);
            let (at, asked) = (self.numbers.below(layers + 1), AtomicUsize::new(0));
            let is_dropped = |i: usize| i == victim && asked.fetch_add(1, Ordering::Relaxed) >= at;
            let done = self.step(&mut all, &which, &is_dropped);
            for (&(i, _), done) in which.iter().zip(&done) {
                if let SpanDone::Dropped { layers } = done {
                    assert_eq!((i, *layers as usize), (victim, at), "only the victim is dropped, at the layer it was flagged before");
                    drops += 1;
                }
            }
            // Dropped neighbours leave, and old ones too.
            let mut i = prompts.len();
            while i < all.len() {
                if all[i].table.is_empty() && all[i].done > 0 || all[i].done > 90 || done_dropped(&which, &done, i) {
                    let mut gone = all.remove(i);
                    self.free.append(&mut gone.table);
                    break;
                }
                i += 1;
            }
        }
        assert!(drops > 0, "no neighbour was dropped: the test shows nothing");
        let own = all.drain(..prompts.len()).collect::<Vec<_>>();
        all.into_iter().for_each(|mut s| self.free.append(&mut s.table));
        own.into_iter()
            .map(|mut s| {
                self.free.append(&mut s.table);
                assert_eq!(s.tokens.len(), s.prompt + n);
                s.trace
            })
            .collect()
    }

    /// Loses all its blocks twice, in mid-step at some layer: once after the first chunk of its prompt, and once when half of the answer is
    /// there. What it had, prompt and generated tokens alike, is then computed again, in chunks of `chunk` and into other blocks.
    fn with_preemptions(&mut self, prompt: &[u32], n: usize, chunk: usize) -> Trace {
        let layers = self.model.shape().layers;
        let mut one = [Sequence::new(prompt)];
        let mut lost: Vec<BlockId> = Vec::new();
        for generated in [0, n / 2] {
            while one[0].trace.len() < generated || one[0].done == 0 {
                let count = chunk.min(one[0].left());
                self.step(&mut one, &[(0, count)], &|_| false);
            }
            // It is dropped where a step has written some layers of its rows.
            let held = one[0].table.clone();
            let (at, asked) = (self.numbers.below(layers + 1), AtomicUsize::new(0));
            let count = chunk.min(one[0].left());
            let done = self.step(&mut one, &[(0, count)], &|_| asked.fetch_add(1, Ordering::Relaxed) >= at);
            assert!(matches!(done[..], [SpanDone::Dropped { layers }] if layers as usize == at), "{done:?}");
            // Nobody else may have what it had, nor it again: what it finds there now is NaN.
            self.free.retain(|block| !held.contains(block));
            self.memory.fill(&held, NAN);
            lost.extend(held);
            one[0].table.clear();
            one[0].done = 0;
        }
        while one[0].trace.len() < n {
            let count = chunk.min(one[0].left());
            self.step(&mut one, &[(0, count)], &|_| false);
            assert!(one[0].table.iter().all(|block| !lost.contains(block)), "computed into other blocks");
        }
        let [mut one] = one;
        self.free.append(&mut one.table);
        self.free.append(&mut lost);
        one.trace
    }

    /// The full blocks of the prompt are taken from another sequence's table; only the rest is computed.
    fn with_shared_prefix(&mut self, prompt: &[u32], n: usize) -> Trace {
        let mut first = [Sequence::new(prompt)];
        self.step(&mut first, &[(0, prompt.len())], &|_| false);
        let shared = (prompt.len() - 1) / self.memory.block_tokens();
        let mut second = [Sequence::new(prompt)];
        second[0].table = first[0].table[..shared].to_vec();
        second[0].done = shared * self.memory.block_tokens();
        while second[0].trace.len() < n {
            let count = second[0].left();
            self.step(&mut second, &[(0, count)], &|_| false);
        }
        self.free.append(&mut first[0].table);
        let own = second[0].table.split_off(shared);
        self.free.extend(own);
        let [second] = second;
        second.trace
    }
}

fn done_dropped(which: &[(usize, usize)], done: &[SpanDone], i: usize) -> bool {
    which.iter().zip(done).any(|(w, d)| w.0 == i && matches!(d, SpanDone::Dropped { .. }))
}

fn tiny(spec: &TinySpec) -> Llama {
    Llama::load(&Gguf::from_bytes(bytes(spec)).unwrap(), Precision::Fast).unwrap()
}

fn prompts(vocab: usize, lengths: &[usize]) -> Vec<Vec<u32>> {
    let mut numbers = Numbers(5);
    lengths.iter().map(|&len| (0..len).map(|_| numbers.below(vocab) as u32).collect()).collect()
}

fn specs() -> Vec<TinySpec> {
    let base = TinySpec::default();
    let kinds = [TensorKind::Q8_0, TensorKind::F16, TensorKind::F32];
    let mut specs = vec![
        base.clone(),
        TinySpec { embedding: 96, heads: 3, kv_heads: 1, head_dim: 32, layers: 3, vocab_extra: 5, seed: 2, ..base.clone() },
        TinySpec { heads: 2, kv_heads: 2, head_dim: 128, tied: false, seed: 3, ..base.clone() },
        TinySpec { embedding: 192, heads: 9, kv_heads: 3, head_dim: 64, embeddings: TensorKind::F16, seed: 4, ..base.clone() },
    ];
    specs.extend(kinds.map(|weights| TinySpec { weights, tied: false, seed: 6, ..base.clone() }));
    specs
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

fn check(model: &Llama, lengths: &[usize], n: usize, isas: &[Isa], chunks: &[usize]) {
    let prompts = prompts(model.shape().vocab, lengths);
    let mut bed = Bed::new(model, 1, Some(isas[0]), 16);
    let expected: Vec<Trace> = prompts.iter().map(|p| bed.alone(p, n, p.len())).collect();
    for &isa in isas {
        for threads in 1..=3 {
            let mut bed = Bed::new(model, threads, Some(isa), if threads == 2 { 32 } else { 16 });
            for (prompt, expected) in prompts.iter().zip(&expected) {
                let chunk = chunks[threads % chunks.len()];
                assert_eq!(&bed.alone(prompt, n, chunk), expected, "{isa}, {threads} threads, chunks of {chunk}");
                assert_eq!(&bed.with_shared_prefix(prompt, n), expected, "{isa}, {threads} threads, shared prefix");
                assert_eq!(&bed.with_preemptions(prompt, n, chunk), expected, "{isa}, {threads} threads, preempted, chunks of {chunk}");
            }
            assert_eq!(bed.in_company(&prompts, n), expected, "{isa}, {threads} threads, in company");
            assert_eq!(bed.free.len(), BLOCKS, "every block came back");
        }
    }
    for &chunk in chunks {
        assert_eq!(bed.alone(&prompts[0], n, chunk), expected[0], "chunks of {chunk}");
    }
}

#[test]
fn tiny_models_are_exact_in_every_setting() {
    let isas: Vec<Isa> = isas().collect();
    for spec in specs() {
        check(&tiny(&spec), &[75, 33, 16, 1], 8, &isas, &[7, 16, 33]);
    }
}

#[test]
fn every_chunk_size_gives_the_same_bits() {
    let model = tiny(&TinySpec { embedding: 96, heads: 3, kv_heads: 1, head_dim: 32, ..TinySpec::default() });
    let prompt = &prompts(model.shape().vocab, &[70])[0];
    let mut bed = Bed::new(&model, 1, None, 16);
    let expected = bed.alone(prompt, 4, 70);
    for chunk in 1..70 {
        assert_eq!(bed.alone(prompt, 4, chunk), expected, "chunks of {chunk}");
    }
}

#[test]
fn different_prompts_give_different_logits() {
    let model = tiny(&TinySpec::default());
    let mut bed = Bed::new(&model, 1, None, 16);
    let (a, b) = (bed.alone(&[40, 41, 42], 1, 3), bed.alone(&[40, 43, 42], 1, 3));
    assert_ne!(a[0].1, b[0].1, "the trace sees a change of one early token");
}

#[test]
fn the_reference_mode_is_close_to_the_fast_one() {
    let gguf = Gguf::from_bytes(bytes(&TinySpec::default())).unwrap();
    let prompt = &prompts(288, &[40])[0];
    let logits = |precision| {
        let model = Llama::load(&gguf, precision).unwrap();
        let mut bed = Bed::new(&model, 1, None, 16);
        bed.step(&mut [Sequence::new(prompt)], &[(0, 40)], &|_| false);
        bed.compute.logits(0).to_vec()
    };
    let (fast, reference) = (logits(Precision::Fast), logits(Precision::Reference));
    let rms = |x: &[f32]| (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32).sqrt();
    let difference: Vec<f32> = fast.iter().zip(&reference).map(|(a, b)| a - b).collect();
    let ratio = rms(&difference) / rms(&reference);
    assert!(ratio > 0.0 && ratio < 0.1, "int8 activations differ a little: {ratio}");
}

#[test]
fn models_that_do_not_fit_are_refused_by_name() {
    let load = |spec: TinySpec| Llama::load(&Gguf::from_bytes(bytes(&spec)).unwrap(), Precision::Fast).map(drop).unwrap_err().to_string();
    let base = TinySpec { weights: TensorKind::F32, embeddings: TensorKind::F32, ..TinySpec::default() };
    assert!(load(TinySpec { head_dim: 24, ..base.clone() }).contains("llama.attention.key_length"));
    assert!(load(TinySpec { embedding: 48, ..base.clone() }).contains("llama.embedding_length"));
    assert!(load(TinySpec { ffn: 80, ..base }).contains("llama.feed_forward_length"));
}

#[test]
#[ignore = "needs the real model (KVIT_TEST_MODEL) and minutes"]
fn the_real_model_is_exact_in_every_setting() {
    let isas: Vec<Isa> = isas().filter(|&isa| isa != Isa::Scalar).collect();
    check(&real_model(Precision::Fast), &[247, 60, 17], 8, &isas, &[1, 16, 100, 512]);
}

#[test]
#[ignore = "needs the real model (KVIT_TEST_MODEL)"]
fn the_real_model_is_the_same_without_vector_instructions() {
    let model = real_model(Precision::Fast);
    let prompt = &prompts(model.shape().vocab, &[24])[0];
    let expected = Bed::new(&model, 1, Some(Isa::Scalar), 16).alone(prompt, 3, 24);
    assert_eq!(Bed::new(&model, 2, None, 16).alone(prompt, 3, 24), expected);
}
