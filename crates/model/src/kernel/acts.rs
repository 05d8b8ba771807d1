//! Activations as the operand of a product: int8 with a scale per 32 columns for quantised weights, floats for the others.
//!
//! int8 lies in groups of 16 tokens, then blocks of 32 columns, then tokens: one block of a group is 512 contiguous bytes, which is a tile
//! register's shape and a stream for every other instruction set.
//!
//! Invariant: what is stored for a token depends on that token's row alone.

use super::pack::BLOCK;
use super::simd::LANES;

/// Tokens of a group.
pub const GROUP: usize = 16;

/// One cache line, so that operands are aligned to it.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [u8; 64]);

/// The operand's memory; grows to the largest step and stays.
#[derive(Default)]
pub struct Acts {
    columns: usize,
    values: Vec<Line>,
    scales: Vec<Line>,
    scaled_sums: Vec<Line>,
    sums: Vec<Line>,
    floats: Vec<f32>,
}

/// Where kernels read and write it. Copied into closures that run on several threads, each of which owns other tokens.
#[derive(Clone, Copy)]
pub struct ActsView {
    /// Columns; a multiple of 32.
    pub columns: usize,
    /// int8: [group][block][16 tokens][32 columns].
    pub values: *mut i8,
    /// Scale a token and block: [group][block][16 tokens].
    pub scales: *mut f32,
    /// Scale times the sum of the 32 values, in the same places.
    pub scaled_sums: *mut f32,
    /// The sum of the 32 values, in the same places.
    pub sums: *mut i32,
    /// Rows in floats.
    pub floats: *mut f32,
}

// SAFETY: a view is only addresses; whoever uses it on several threads gives each of them other tokens to write (see `forward`).
unsafe impl Send for ActsView {}
// SAFETY: as above.
unsafe impl Sync for ActsView {}

impl ActsView {
    /// Index of (token, block) in the arrays of scales and sums.
    #[inline(always)]
    pub fn index(&self, token: usize, block: usize) -> usize {
        ((token / GROUP) * (self.columns / BLOCK) + block) * GROUP + token % GROUP
    }
}

impl Acts {
    /// Makes room for `tokens` rows of `columns` (a multiple of 32) and returns where they lie. Old contents are void.
    pub fn view(&mut self, tokens: usize, columns: usize) -> ActsView {
        let groups = tokens.div_ceil(GROUP);
        let blocks = groups * (columns / BLOCK);
        grow(&mut self.values, blocks * (GROUP * BLOCK / 64));
        grow(&mut self.scales, blocks);
        grow(&mut self.scaled_sums, blocks);
        grow(&mut self.sums, blocks);
        if self.floats.len() < groups * GROUP * columns {
            self.floats.resize(groups * GROUP * columns, 0.0);
        }
        self.columns = columns;
        ActsView {
            columns,
            values: self.values.as_mut_ptr().cast(),
            scales: self.scales.as_mut_ptr().cast(),
            scaled_sums: self.scaled_sums.as_mut_ptr().cast(),
            sums: self.sums.as_mut_ptr().cast(),
            floats: self.floats.as_mut_ptr(),
        }
    }
}

/// Lengthens with zeros; a line holds the 16 f32 or i32 of a group.
pub fn grow(lines: &mut Vec<Line>, len: usize) {
    const { assert!(LANES * 4 == 64) };
    if lines.len() < len {
        lines.resize(len, Line([0; 64]));
    }
}
