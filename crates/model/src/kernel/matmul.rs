//! Products of activations and packed matrices, by vector instructions. (Tile registers: see `amx`; they use the same float steps.)
//!
//! Invariant: an output element is one fixed sequence of operations: blocks of 32 columns ascending; in each an exact integer dot, then
//! `acc = fma(dot, row scale * token scale, acc)`, then for Q4_1 `acc = fma(row minimum, token scale * token sum, acc)`. How many tokens or
//! tiles are worked on together, by which thread and which instruction set, changes nothing.
// contract: C-14
#![allow(unsafe_op_in_unsafe_fn, reason = "each kernel is unsafe as a whole, for the one reason that its Safety section states")]

use std::ops::Range;

use super::acts::ActsView;
use super::pack::{BLOCK, Kind, Matrix};
use super::simd::{LANES, Lanes};

/// How far ahead of the tile being read its memory is asked for, in bytes.
const AHEAD: usize = 4096;

/// What becomes of a product's value.
#[derive(Clone, Copy)]
pub enum Epilogue<'a> {
    /// out = value.
    Store,
    /// out = out + value.
    Add,
    /// out = silu(value of this matrix) * value: the gate of a feed-forward, of the same shape.
    Gated(&'a Matrix),
}

/// A product: `out[token][row] = sum over columns of acts[token][column] * matrix[row][column]`.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// The matrix.
    pub matrix: &'a Matrix,
    /// The activations.
    pub acts: ActsView,
    /// Number of tokens.
    pub tokens: usize,
    /// Token 0's output for row 0; room for whole tiles.
    pub out: *mut f32,
    /// Distance between two tokens' outputs.
    pub out_stride: usize,
    /// What becomes of the values.
    pub epilogue: Epilogue<'a>,
}

/// Computes the tiles `tiles` of a product.
///
/// # Safety
/// The instruction set exists; the activations of all tokens are there in the form that the matrix's kind needs; `out` is valid and nobody
/// else writes these tiles' columns meanwhile.
#[inline(always)]
pub unsafe fn multiply<S: Lanes>(p: &Product, tiles: Range<usize>) {
    for tile in tiles {
        let mut token = 0;
        macro_rules! tokens_of {
            ($n:literal) => {
                while S::TOKENS >= $n && token + $n <= p.tokens {
                    step::<S, $n>(p, tile, token);
                    token += $n;
                }
            };
        }
        tokens_of!(16);
        tokens_of!(8);
        tokens_of!(4);
        tokens_of!(2);
        tokens_of!(1);
    }
}

/// One tile for `N` tokens. They are of one group: `N` divides 16 and larger ones come first.
#[inline(always)]
unsafe fn step<S: Lanes, const N: usize>(p: &Product, tile: usize, token: usize) {
    let gate = match p.epilogue {
        Epilogue::Gated(gate) => Some(gate),
        Epilogue::Store | Epilogue::Add => None,
    };
    let mut values = [[S::zero(); N]; 2];
    // A loop, so that each kind's code is there once.
    for (value, matrix) in values.iter_mut().zip([Some(p.matrix), gate].into_iter().flatten()) {
        *value = tile_of::<S, N>(matrix, p.acts, tile, token);
    }
    finish::<S, N>(p, tile, token, N, &values[0], &values[1]);
}

/// Applies the epilogue to the first `count` of `N` tokens.
///
/// # Safety
/// As `multiply`.
#[inline(always)]
pub unsafe fn finish<S: Lanes, const N: usize>(p: &Product, tile: usize, token: usize, count: usize, value: &[S::F; N], gate: &[S::F; N]) {
    for i in 0..N {
        if i >= count {
            break;
        }
        let out = p.out.add((token + i) * p.out_stride + tile * LANES);
        let v = match p.epilogue {
            Epilogue::Store => value[i],
            Epilogue::Add => S::add(S::load(out), value[i]),
            Epilogue::Gated(_) => {
                let e = S::exp(S::sub(S::zero(), gate[i]));
                S::mul(S::div(gate[i], S::add(S::set1(1.0), e)), value[i])
            }
        };
        S::store(out, v);
    }
}

#[inline(always)]
unsafe fn tile_of<S: Lanes, const N: usize>(m: &Matrix, acts: ActsView, tile: usize, token: usize) -> [S::F; N] {
    let w = m.tile(tile);
    match m.kind() {
        Kind::Q4_1 => integer_tile::<S, N, true>(w, acts, token),
        Kind::Q8_0 => integer_tile::<S, N, false>(w, acts, token),
        Kind::F16 => float_tile::<S, N, true>(w, acts, token),
        Kind::F32 => float_tile::<S, N, false>(w, acts, token),
    }
}

/// One block's float steps for one token.
///
/// # Safety
/// The instruction set exists.
#[inline(always)]
pub unsafe fn scaled<S: Lanes>(acc: S::F, dot: S::I, row_scale: S::F, token_scale: f32) -> S::F {
    S::fma(S::to_float(dot), S::mul(row_scale, S::set1(token_scale)), acc)
}

/// Asks for the memory of `bytes` from `p` on.
///
/// # Safety
/// None is needed: a prefetch of any address is allowed.
#[inline(always)]
pub unsafe fn prefetch(p: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.wrapping_add(line).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (p, bytes);
}

#[inline(always)]
unsafe fn integer_tile<S: Lanes, const N: usize, const Q4: bool>(mut w: *const u8, acts: ActsView, token: usize) -> [S::F; N] {
    let step = LANES * if Q4 { Kind::Q4_1.block_bytes() } else { Kind::Q8_0.block_bytes() };
    let mut acc = [S::zero(); N];
    for block in 0..acts.columns / BLOCK {
        prefetch(w.wrapping_add(AHEAD), step);
        let row_scale = S::load_half(w.cast());
        let mut words = [S::int_set1(0); 8];
        if Q4 {
            for g in 0..4 {
                let both = S::int_load(w.add(64 + 64 * g));
                words[g] = S::low_nibbles(both);
                words[g + 4] = S::high_nibbles(both);
            }
        } else {
            for (g, word) in words.iter_mut().enumerate() {
                *word = S::int_load(w.add(32 + 64 * g));
            }
        }
        let at = acts.index(token, block);
        let values = acts.values.add(at * BLOCK).cast::<i32>();
        for i in 0..N {
            let a = |g: usize| *values.add(i * (BLOCK / 4) + g);
            let mut dot = S::int_set1(if Q4 { 0 } else { -128 * *acts.sums.add(at + i) });
            if N <= 2 {
                // Two chains: alone, one would wait for itself.
                let mut other = S::int_set1(0);
                for g in 0..4 {
                    dot = S::dot::<Q4>(dot, words[g], a(g));
                    other = S::dot::<Q4>(other, words[g + 4], a(g + 4));
                }
                dot = S::int_add(dot, other);
            } else {
                for (g, &word) in words.iter().enumerate() {
                    dot = S::dot::<Q4>(dot, word, a(g));
                }
            }
            acc[i] = scaled::<S>(acc[i], dot, row_scale, *acts.scales.add(at + i));
            if Q4 {
                acc[i] = S::fma(S::load_half(w.add(32).cast()), S::set1(*acts.scaled_sums.add(at + i)), acc[i]);
            }
        }
        w = w.add(step);
    }
    acc
}

#[inline(always)]
unsafe fn float_tile<S: Lanes, const N: usize, const HALF: bool>(mut w: *const u8, acts: ActsView, token: usize) -> [S::F; N] {
    let step = LANES * if HALF { 2 } else { 4 };
    let x = acts.floats.add(token * acts.columns);
    let mut acc = [S::zero(); N];
    for column in 0..acts.columns {
        let row = if HALF { S::load_half(w.cast()) } else { S::load(w.cast()) };
        for i in 0..N {
            acc[i] = S::fma(row, S::set1(*x.add(i * acts.columns + column)), acc[i]);
        }
        w = w.add(step);
    }
    acc
}
