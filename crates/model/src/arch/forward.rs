//! The forward pass: spans of many sequences, prefill chunks and decodes alike, in one step over the paged pool.
//!
//! Threads divide tokens, heads and rows of matrices, never a sum. A span whose flag is seen at a layer boundary is taken out of the step;
//! the other spans' rows close up and go on.
//!
//! Invariant: K, V and logits of a token depend on its sequence's tokens up to it alone: not on the other spans, on how the sequence was cut
//! into spans, on threads, on the instruction set or on what blocks held before.
// contract: C-14, C-12

use kv::BlockId;

use crate::arch::head::{self, Rows};
use crate::arch::llama::{Layer, Llama};
use crate::arch::work::{
    At, CHUNKS_A_THREAD, Needs, by_token, check_written_once, linear, needs, operand, product, store_operand, with_scratch,
};
use crate::error::ModelError;
use crate::kernel::acts::{Acts, ActsView};
use crate::kernel::attention::{Attention, ITEM_ROWS};
use crate::kernel::elementwise::Placement;
use crate::kernel::matmul::Epilogue;
use crate::kernel::pack::Matrix;
use crate::kernel::simd::LANES;
use crate::kernel::{Isa, Kernels};
use crate::kv_memory::KvMemory;
use crate::threads::Threads;

/// Consecutive tokens of one sequence in a step.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    /// The tokens; at least one.
    pub tokens: &'a [u32],
    /// Position of the first. K and V of all positions before it are in the table's blocks, written by earlier steps.
    pub position: usize,
    /// The sequence's blocks, up to the last token's position.
    pub table: &'a [BlockId],
    /// Whether the last token's logits are wanted.
    pub logits: bool,
    /// Asked before each layer and before the logits; once it says yes the span is dropped.
    pub is_dropped: &'a (dyn Fn() -> bool + Sync),
}

/// What became of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpanDone {
    /// All its layers were computed; where its logits lie, if they were wanted.
    Computed {
        /// For `Compute::logits`.
        logits: Option<usize>,
    },
    /// Taken out before this layer.
    Dropped {
        /// Layers computed in vain.
        layers: u32,
    },
}

/// Threads, kernels and the memory that steps work in.
pub struct Compute {
    threads: Threads,
    kernels: &'static Kernels,
    residual: Vec<f32>,
    projected: Vec<f32>,
    queries: Vec<f32>,
    attended: Vec<f32>,
    hidden: Vec<f32>,
    angles: Vec<f32>,
    acts: Acts,
    hidden_acts: Acts,
    logits: Vec<f32>,
    vocab: usize,
    logits_stride: usize,
}

impl Compute {
    /// With `threads` threads, this one included, and the instruction set asked for, or the best there is.
    pub fn new(threads: usize, isa: Option<Isa>) -> Result<Compute, ModelError> {
        Ok(Compute {
            threads: Threads::new(threads)?,
            kernels: Kernels::of(isa.unwrap_or_else(Isa::best)),
            residual: Vec::new(),
            projected: Vec::new(),
            queries: Vec::new(),
            attended: Vec::new(),
            hidden: Vec::new(),
            angles: Vec::new(),
            acts: Acts::default(),
            hidden_acts: Acts::default(),
            logits: Vec::new(),
            vocab: 0,
            logits_stride: 0,
        })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads.count()
    }

    /// Logits of the last step, by the index that its `SpanDone` gave.
    pub fn logits(&self, index: usize) -> &[f32] {
        &self.logits[index * self.logits_stride..][..self.vocab]
    }
}

/// A token of the step: which span, and its index there.
#[derive(Clone, Copy)]
struct Token {
    span: usize,
    index: usize,
}

/// A step on its way through the layers.
struct Pass<'a> {
    model: &'a Llama,
    compute: &'a mut Compute,
    memory: &'a mut KvMemory,
    spans: &'a [Span<'a>],
    done: Vec<SpanDone>,
    live: Vec<usize>,
    tokens: Vec<Token>,
}

impl Llama {
    /// Computes a step: writes K and V of every token into its block, and the logits that were asked for.
    ///
    /// Errors: `ModelError::Step` where a span does not fit the model or the pool; nothing was computed then.
    pub fn step(&self, compute: &mut Compute, memory: &mut KvMemory, spans: &[Span]) -> Result<Vec<SpanDone>, ModelError> {
        for (i, span) in spans.iter().enumerate() {
            self.check(memory, span).map_err(|what| ModelError::Step(format!("span {i}: {what}")))?;
        }
        check_written_once(memory.block_tokens(), spans)?;
        let done = vec![SpanDone::Computed { logits: None }; spans.len()];
        let mut pass = Pass { model: self, compute, memory, spans, done, live: (0..spans.len()).collect(), tokens: Vec::new() };
        pass.run();
        Ok(pass.done)
    }

    fn check(&self, memory: &KvMemory, span: &Span) -> Result<(), String> {
        let end = span.position.saturating_add(span.tokens.len());
        if span.tokens.is_empty() || end > self.shape.context {
            return Err(format!("{} tokens at position {} of {}", span.tokens.len(), span.position, self.shape.context));
        }
        if let Some(token) = span.tokens.iter().find(|&&t| t as usize >= self.shape.vocab) {
            return Err(format!("token {token} of {}", self.shape.vocab));
        }
        let needed = end.div_ceil(memory.block_tokens());
        if span.table.len() < needed {
            return Err(format!("{} blocks where {needed} are needed", span.table.len()));
        }
        match span.table[..needed].iter().find(|b| b.0 as usize >= memory.blocks()) {
            Some(block) => Err(format!("block {} of {}", block.0, memory.blocks())),
            None => Ok(()),
        }
    }
}

impl Pass<'_> {
    fn run(&mut self) {
        self.drop_flagged(0);
        self.begin();
        for layer in 0..self.model.layers.len() {
            if layer > 0 {
                self.drop_flagged(layer);
            }
            if self.tokens.is_empty() {
                return;
            }
            self.layer(layer);
        }
        self.drop_flagged(self.model.layers.len());
        self.logits();
    }

    /// Takes out the spans whose flag is set; the others' rows of the residual close up.
    fn drop_flagged(&mut self, layers: usize) {
        let (spans, done) = (self.spans, &mut self.done);
        let before = self.live.len();
        self.live.retain(|&span| {
            let dropped = (spans[span].is_dropped)();
            if dropped {
                done[span] = SpanDone::Dropped { layers: layers as u32 };
            }
            !dropped
        });
        if self.live.len() == before && layers > 0 {
            return;
        }
        let dim = self.model.shape.dim;
        let mut kept = 0;
        for (row, token) in self.tokens.iter().enumerate() {
            if matches!(done[token.span], SpanDone::Computed { .. }) {
                self.compute.residual.copy_within(row * dim..(row + 1) * dim, kept * dim);
                kept += 1;
            }
        }
        self.tokens.clear();
        for &span in &self.live {
            self.tokens.extend((0..spans[span].tokens.len()).map(|index| Token { span, index }));
        }
        self.angles();
    }

    /// Room for the step, and the embeddings.
    fn begin(&mut self) {
        let (shape, count, compute) = (&self.model.shape, self.tokens.len(), &mut *self.compute);
        let heads = shape.heads * shape.head_dim;
        let make_room = |v: &mut Vec<f32>, len: usize| {
            if v.len() < len {
                v.resize(len, 0.0);
            }
        };
        make_room(&mut compute.residual, count * shape.dim);
        make_room(&mut compute.projected, count * (heads + 2 * shape.kv_heads * shape.head_dim));
        make_room(&mut compute.queries, count * heads);
        make_room(&mut compute.attended, count * heads);
        make_room(&mut compute.hidden, count * shape.feed_forward);
        for (token, row) in self.tokens.iter().zip(compute.residual.chunks_exact_mut(shape.dim)) {
            self.model.embed(self.spans[token.span].tokens[token.index], row);
        }
    }

    /// The rotary angles of every token, for all layers.
    fn angles(&mut self) {
        let width = 2 * self.model.shape.head_dim;
        self.compute.angles.resize(self.tokens.len() * width, 0.0);
        for (token, out) in self.tokens.iter().zip(self.compute.angles.chunks_exact_mut(width)) {
            self.model.rope.write(self.spans[token.span].position + token.index, out);
        }
    }

    fn layer(&mut self, index: usize) {
        let model = self.model;
        let (layer, shape, count) = (&model.layers[index], &model.shape, self.tokens.len());
        let heads = shape.heads * shape.head_dim;
        let residual = At(self.compute.residual.as_mut_ptr());
        let projected = At(self.compute.projected.as_mut_ptr());

        let acts = self.normalised(&layer.attention_norm, &layer.qkv.parts, count);
        let c = &mut *self.compute;
        linear(&mut c.threads, c.kernels, &layer.qkv, acts, count, (projected, layer.qkv.width()), Epilogue::Store);
        self.place(index, layer.qkv.width());
        self.attend(index);

        let c = &mut *self.compute;
        let acts = c.acts.view(count, heads);
        operand(&mut c.threads, c.kernels, acts, needs(&layer.output.parts), count, At(c.attended.as_mut_ptr()));
        linear(&mut c.threads, c.kernels, &layer.output, acts, count, (residual, shape.dim), Epilogue::Add);
        self.feed_forward(layer);
    }

    fn feed_forward(&mut self, layer: &Layer) {
        let (shape, count) = (&self.model.shape, self.tokens.len());
        let both = needs([&layer.gate, &layer.up]);
        let acts = self.normalised_for(&layer.feed_forward_norm, both, count);
        let c = &mut *self.compute;
        let hidden = At(c.hidden.as_mut_ptr());
        product(&mut c.threads, c.kernels, &layer.up, acts, count, (hidden, shape.feed_forward), Epilogue::Gated(&layer.gate));
        let acts = c.hidden_acts.view(count, shape.feed_forward);
        operand(&mut c.threads, c.kernels, acts, needs(&layer.down.parts), count, hidden);
        let residual = At(c.residual.as_mut_ptr());
        linear(&mut c.threads, c.kernels, &layer.down, acts, count, (residual, shape.dim), Epilogue::Add);
    }

    fn normalised(&mut self, weights: &[f32], matrices: &[Matrix], count: usize) -> ActsView {
        self.normalised_for(weights, needs(matrices), count)
    }

    /// The residual's first `count` rows, normalised, as an operand.
    fn normalised_for(&mut self, weights: &[f32], needs: Needs, count: usize) -> ActsView {
        let (dim, epsilon, c) = (self.model.shape.dim, self.model.shape.epsilon, &mut *self.compute);
        let (acts, kernels, residual) = (c.acts.view(count, dim), c.kernels, At(c.residual.as_mut_ptr()));
        by_token(&mut c.threads, count, &|token, scratch| {
            scratch.row.resize(dim, 0.0);
            let row = scratch.row.as_mut_ptr();
            // SAFETY: the residual has `count` rows of `dim`; the token's place in the operand is this thread's.
            unsafe {
                (kernels.normalise)(residual.add(token * dim), weights.as_ptr(), dim, epsilon, row);
                store_operand(kernels, acts, needs, token, row);
            }
        });
        acts
    }

    /// Rotates Q and K and writes K and V into the blocks.
    fn place(&mut self, layer: usize, stride: usize) {
        let (shape, spans, tokens, c) = (self.model.shape, self.spans, &self.tokens, &mut *self.compute);
        let (dim, group, count) = (shape.head_dim, shape.heads / shape.kv_heads, tokens.len());
        let block_tokens = self.memory.block_tokens();
        let (keys, values) = self.memory.layer(layer);
        let (keys, values) = (At(keys), At(values));
        let (projected, queries, angles) = (At(c.projected.as_mut_ptr()), At(c.queries.as_mut_ptr()), At(c.angles.as_mut_ptr()));
        let (kernels, scale) = (c.kernels, 1.0 / (dim as f32).sqrt());
        by_token(&mut c.threads, count, &|token, scratch| {
            let Token { span, index } = tokens[token];
            let position = spans[span].position + index;
            let block = spans[span].table[position / block_tokens].0 as usize * shape.kv_heads * block_tokens * dim;
            let (in_block, lane) = (position % block_tokens, position % LANES);
            // SAFETY: the span was checked to fit the pool, the buffers have `count` rows, and a token's queries and its place in its block
            // are this thread's: no two tokens of a step share a position of a block.
            unsafe {
                let placement = Placement {
                    projected: projected.add(token * stride),
                    cos: angles.add(token * 2 * dim),
                    sin: angles.add((token * 2 + 1) * dim),
                    head_dim: dim,
                    heads: shape.heads,
                    kv_heads: shape.kv_heads,
                    scale,
                    queries: queries.add(token * group * dim),
                    queries_stride: count * group * dim,
                    key: keys.add(block + (in_block - lane) * dim + lane),
                    value: values.add(block + in_block * dim),
                    block_stride: block_tokens * dim,
                };
                (kernels.place)(&placement, scratch);
            }
        });
    }

    fn attend(&mut self, layer: usize) {
        let (shape, spans, c) = (self.model.shape, self.spans, &mut *self.compute);
        let (dim, group, count) = (shape.head_dim, shape.heads / shape.kv_heads, self.tokens.len());
        let block_tokens = self.memory.block_tokens();
        let (keys, values) = self.memory.layer(layer);
        let (keys, values) = (At(keys), At(values));
        let (queries, attended) = (At(c.queries.as_mut_ptr()), At(c.attended.as_mut_ptr()));
        let step = (ITEM_ROWS / group).max(1);
        let mut items = Vec::new();
        let mut first = 0;
        for &span in &self.live {
            let len = spans[span].tokens.len();
            for index in (0..len).step_by(step) {
                items.extend((0..shape.kv_heads).map(|head| (span, head, first + index, index, step.min(len - index))));
            }
            first += len;
        }
        let (kernels, out_stride) = (c.kernels, shape.heads * dim);
        let per = items.len().div_ceil(c.threads.count() * CHUNKS_A_THREAD).max(1);
        c.threads.run(items.len().div_ceil(per), &|chunk| {
            with_scratch(|scratch| {
                for &(span, head, row, index, count_here) in &items[chunk * per..(chunk * per + per).min(items.len())] {
                    // SAFETY: the span was checked to fit the pool and this step wrote K and V up to its end; the buffers have `count`
                    // rows; the item's rows and heads of the output are this thread's.
                    unsafe {
                        let job = Attention {
                            keys: keys.add(0),
                            values: values.add(0),
                            table: spans[span].table,
                            block_tokens,
                            kv_heads: shape.kv_heads,
                            head,
                            group,
                            head_dim: dim,
                            queries: queries.add((head * count + row) * group * dim),
                            position: spans[span].position + index,
                            count: count_here,
                            out: attended.add(row * out_stride),
                            out_stride,
                        };
                        (kernels.attend)(&job, scratch);
                    }
                }
            });
        });
    }

    /// The last tokens' logits, for the spans that want them.
    fn logits(&mut self) {
        let (model, dim) = (self.model, self.model.shape.dim);
        let (mut count, mut end) = (0, 0);
        for &span in &self.live {
            end += self.spans[span].tokens.len();
            if self.spans[span].logits {
                self.compute.residual.copy_within((end - 1) * dim..end * dim, count * dim);
                self.done[span] = SpanDone::Computed { logits: Some(count) };
                count += 1;
            }
        }
        if count == 0 {
            return;
        }
        let (c, stride) = (&mut *self.compute, model.head.tiles() * LANES);
        (c.vocab, c.logits_stride) = (model.shape.vocab, stride);
        let rows = Rows { residual: &c.residual, count, norm: (&model.norm, model.shape.epsilon) };
        head::logits(&mut c.threads, c.kernels, &model.head, &rows, &mut c.acts, (&mut c.logits, stride));
    }
}
