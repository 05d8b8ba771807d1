//! What is done row by row between products: RMS norm, quantising, rotary positions and the writing of K and V into blocks.
//!
//! Invariant: a row's result depends on that row alone, by one fixed sequence of operations.
#![allow(unsafe_op_in_unsafe_fn, reason = "each kernel is unsafe as a whole, for the one reason that its Safety section states")]

use super::acts::ActsView;
use super::pack::BLOCK;
use super::simd::{LANES, Lanes};

/// Below this, 127 / max is no finite number; such a block is all zero.
const SMALLEST: f32 = 1e-30;
/// The greatest finite f16: K and V are clamped to it, so that no block ever holds an infinity or a NaN which a masked lane could spread.
const HALF_MAX: f32 = 65504.0;

/// RMS norm: out = x * (1 / sqrt(mean(x^2) + eps)) * weights.
///
/// # Safety
/// The instruction set exists; `x`, `weights` and `out` are valid for `n` floats, a multiple of 16.
#[inline(always)]
pub unsafe fn normalise<S: Lanes>(x: *const f32, weights: *const f32, n: usize, eps: f32, out: *mut f32) {
    let mut squares = S::zero();
    for i in (0..n).step_by(LANES) {
        let v = S::load(x.add(i));
        squares = S::fma(v, v, squares);
    }
    let factor = S::set1(1.0 / (S::sum(squares) / n as f32 + eps).sqrt());
    for i in (0..n).step_by(LANES) {
        S::store(out.add(i), S::mul(S::mul(S::load(x.add(i)), factor), S::load(weights.add(i))));
    }
}

/// Quantises a row into its token's place: per 32 values scale = max / 127, values rounded to even.
///
/// # Safety
/// The instruction set exists; `x` is valid for the view's columns, and the view for the token.
#[inline(always)]
pub unsafe fn quantise<S: Lanes>(acts: ActsView, token: usize, x: *const f32) {
    for block in 0..acts.columns / BLOCK {
        let (lo, hi) = (S::load(x.add(block * BLOCK)), S::load(x.add(block * BLOCK + LANES)));
        let magnitude = |v| S::max(v, S::sub(S::zero(), v));
        let max = S::max_lane(S::max(magnitude(lo), magnitude(hi)));
        let (scale, inverse) = if max > SMALLEST { (max / 127.0, 127.0 / max) } else { (0.0, 0.0) };
        let at = acts.index(token, block);
        let inverse = S::set1(inverse);
        let sum = S::store_i8(acts.values.add(at * BLOCK), S::round(S::mul(lo, inverse)), S::round(S::mul(hi, inverse)));
        *acts.scales.add(at) = scale;
        *acts.scaled_sums.add(at) = scale * sum as f32;
        *acts.sums.add(at) = sum;
    }
}

/// One token's Q, K and V, and where they go.
#[derive(Clone, Copy)]
pub struct Placement {
    /// Q, K and V of the token, heads one after the other.
    pub projected: *const f32,
    /// cos of each dimension of a head.
    pub cos: *const f32,
    /// sin of each dimension, negative in the even ones.
    pub sin: *const f32,
    /// Size of a head, a multiple of 16.
    pub head_dim: usize,
    /// Query heads.
    pub heads: usize,
    /// K and V heads.
    pub kv_heads: usize,
    /// 1 / sqrt(head_dim), multiplied into Q.
    pub scale: f32,
    /// Where the token's queries of K head 0 go; those of one K head lie together.
    pub queries: *mut f32,
    /// Distance between the queries of two K heads.
    pub queries_stride: usize,
    /// The token's lane in its 16 positions, K head 0.
    pub key: *mut u16,
    /// The token's row of V, head 0.
    pub value: *mut u16,
    /// Distance between two heads of a block.
    pub block_stride: usize,
}

/// Rotates Q and K, and writes K (transposed) and V into the token's block.
///
/// # Safety
/// The instruction set exists; the addresses are valid for the sizes given and nobody else writes them meanwhile; `transposing` holds a
/// head.
#[inline(always)]
pub unsafe fn place<S: Lanes>(p: &Placement, transposing: &mut [u16]) {
    let dim = p.head_dim;
    let group = p.heads / p.kv_heads;
    for head in 0..p.heads {
        let out = p.queries.add(head / group * p.queries_stride + head % group * dim);
        for i in (0..dim).step_by(LANES) {
            let v = rotated::<S>(p.projected.add(head * dim + i), p.cos.add(i), p.sin.add(i));
            S::store(out.add(i), S::mul(v, S::set1(p.scale)));
        }
    }
    let (keys, values) = (p.projected.add(p.heads * dim), p.projected.add((p.heads + p.kv_heads) * dim));
    for head in 0..p.kv_heads {
        for i in (0..dim).step_by(LANES) {
            let key = rotated::<S>(keys.add(head * dim + i), p.cos.add(i), p.sin.add(i));
            S::store_half(transposing.as_mut_ptr().add(i), clamped::<S>(key));
            S::store_half(p.value.add(head * p.block_stride + i), clamped::<S>(S::load(values.add(head * dim + i))));
        }
        let key = p.key.add(head * p.block_stride);
        for (i, &bits) in transposing[..dim].iter().enumerate() {
            *key.add(i * LANES) = bits;
        }
    }
}

/// Pairs (a, b) become (a cos - b sin, b cos + a sin).
#[inline(always)]
unsafe fn rotated<S: Lanes>(x: *const f32, cos: *const f32, sin: *const f32) -> S::F {
    let v = S::load(x);
    S::fma(S::swap_pairs(v), S::load(sin), S::mul(v, S::load(cos)))
}

#[inline(always)]
unsafe fn clamped<S: Lanes>(x: S::F) -> S::F {
    S::min(S::max(x, S::set1(-HALF_MAX)), S::set1(HALF_MAX))
}
