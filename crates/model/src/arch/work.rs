//! How a step's work is divided: by token for what is done row by row, by tiles of a matrix for products.
//!
//! Invariant: no two threads write the same element, and none divides a sum.

use std::cell::RefCell;

use kv::BlockId;

use crate::arch::forward::Span;
use crate::arch::llama::Linear;
use crate::error::ModelError;
use crate::kernel::acts::{ActsView, GROUP};
use crate::kernel::matmul::{Epilogue, Product};
use crate::kernel::pack::Matrix;
use crate::kernel::simd::LANES;
use crate::kernel::{Kernels, Scratch};
use crate::threads::Threads;

/// Chunks a thread gets of one product: enough that a thread which comes late costs little.
pub(super) const CHUNKS_A_THREAD: usize = 4;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Calls `f` with this thread's scratch memory.
pub(super) fn with_scratch(f: impl FnOnce(&mut Scratch)) {
    SCRATCH.with_borrow_mut(f);
}

/// An address that closures on several threads share, each writing other elements.
#[derive(Clone, Copy)]
pub(super) struct At<T>(pub(super) *mut T);

// SAFETY: only an address; each use says which elements its thread owns.
unsafe impl<T> Send for At<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for At<T> {}

impl<T> At<T> {
    /// The address `n` elements on.
    ///
    /// # Safety
    /// Still inside the allocation.
    pub(super) unsafe fn add(self, n: usize) -> *mut T {
        // SAFETY: the caller's.
        unsafe { self.0.add(n) }
    }
}

/// Which forms of an operand the matrices need.
#[derive(Clone, Copy)]
pub(super) struct Needs {
    pub(super) integers: bool,
    pub(super) floats: bool,
}

pub(super) fn needs<'a>(matrices: impl IntoIterator<Item = &'a Matrix>) -> Needs {
    let mut needs = Needs { integers: false, floats: false };
    for m in matrices {
        needs.integers |= m.kind().is_quantised();
        needs.floats |= !m.kind().is_quantised();
    }
    needs
}

/// Stores a row as a token's operand.
///
/// # Safety
/// `row` has the view's columns; nobody else writes the token's place.
pub(super) unsafe fn store_operand(kernels: &Kernels, acts: ActsView, needs: Needs, token: usize, row: *const f32) {
    // SAFETY: the caller's; the view has room for the token in both forms.
    unsafe {
        if needs.floats {
            std::ptr::copy_nonoverlapping(row, acts.floats.add(token * acts.columns), acts.columns);
        }
        if needs.integers {
            (kernels.quantise)(acts, token, row);
        }
    }
}

/// Makes `count` rows the operand.
pub(super) fn operand(threads: &mut Threads, kernels: &'static Kernels, acts: ActsView, needs: Needs, count: usize, rows: At<f32>) {
    by_token(threads, count, &|token, _| {
        // SAFETY: there are `count` rows of the view's columns; the token's place is this thread's.
        unsafe { store_operand(kernels, acts, needs, token, rows.add(token * acts.columns)) };
    });
}

/// Calls `work` for each token, in groups; a single group (a decode) wakes no other thread.
pub(super) fn by_token(threads: &mut Threads, count: usize, work: &(dyn Fn(usize, &mut Scratch) + Sync)) {
    threads.run(count.div_ceil(GROUP), &|chunk| {
        with_scratch(|scratch| (chunk * GROUP..count.min((chunk + 1) * GROUP)).for_each(|token| work(token, scratch)));
    });
}

pub(super) fn linear(
    threads: &mut Threads,
    kernels: &'static Kernels,
    linear: &Linear,
    acts: ActsView,
    count: usize,
    (out, stride): (At<f32>, usize),
    epilogue: Epilogue,
) {
    let mut column = 0;
    for part in &linear.parts {
        // SAFETY: a row of the output has room for all parts.
        let out = At(unsafe { out.add(column) });
        product(threads, kernels, part, acts, count, (out, stride), epilogue);
        column += part.tiles() * LANES;
    }
}

pub(super) fn product(
    threads: &mut Threads,
    kernels: &'static Kernels,
    matrix: &Matrix,
    acts: ActsView,
    count: usize,
    (out, out_stride): (At<f32>, usize),
    epilogue: Epilogue,
) {
    let tiles = matrix.tiles();
    let per = tiles.div_ceil(threads.count() * CHUNKS_A_THREAD).max(1);
    threads.run(tiles.div_ceil(per), &|chunk| {
        with_scratch(|scratch| {
            // SAFETY: the operand was made for `count` tokens in the forms that this matrix needs; the tiles' columns are this thread's.
            unsafe {
                let p = Product { matrix, acts, tokens: count, out: out.add(0), out_stride, epilogue };
                (kernels.multiply)(&p, chunk * per..((chunk + 1) * per).min(tiles), scratch);
            }
        });
    });
}

/// A block that a span writes is in no other place of any span's table: threads write and read blocks without locks.
pub(super) fn check_written_once(block_tokens: usize, spans: &[Span]) -> Result<(), ModelError> {
    let range = |s: &Span| s.position / block_tokens..(s.position + s.tokens.len()).div_ceil(block_tokens);
    let mut written: Vec<BlockId> = spans.iter().flat_map(|s| &s.table[range(s)]).copied().collect();
    written.sort_unstable();
    let twice = written.windows(2).find(|w| w[0] == w[1]).map(|w| w[0]);
    let mut read = spans.iter().flat_map(|s| &s.table[..range(s).start]);
    match twice.or_else(|| read.find(|b| written.binary_search(b).is_ok()).copied()) {
        Some(block) => Err(ModelError::Step(format!("block {} is written by one span and used by another", block.0))),
        None => Ok(()),
    }
}
