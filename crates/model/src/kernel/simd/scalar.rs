//! Sixteen lanes in plain Rust: the definition of what each method means, the twin of every kernel in the tests, and the way to run on a
//! CPU without AVX2.
//!
//! Invariant: no `std::arch` here; `mul_add` is a true fused multiply-add.
#![allow(unsafe_op_in_unsafe_fn, reason = "see the parent module")]

use std::array::from_fn;

use half::f16;

use super::{LANES, Lanes};

/// Plain Rust.
#[derive(Clone, Copy)]
pub struct Scalar;

impl Lanes for Scalar {
    type F = [f32; LANES];
    type I = [i32; LANES];
    const TOKENS: usize = 4;
    const ROWS: usize = 6;

    #[inline(always)]
    unsafe fn zero() -> Self::F {
        [0.0; LANES]
    }
    #[inline(always)]
    unsafe fn set1(x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        p.cast::<Self::F>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        p.cast::<Self::F>().write_unaligned(v);
    }
    #[inline(always)]
    unsafe fn load_half(p: *const u16) -> Self::F {
        p.cast::<[u16; LANES]>().read_unaligned().map(|bits| f16::from_bits(bits).to_f32_const())
    }
    #[inline(always)]
    unsafe fn store_half(p: *mut u16, v: Self::F) {
        p.cast::<[u16; LANES]>().write_unaligned(v.map(|x| f16::from_f32_const(x).to_bits()));
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn swap_pairs(a: Self::F) -> Self::F {
        from_fn(|i| a[i ^ 1])
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::F) -> Self::F {
        n.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn max_lane(a: Self::F) -> f32 {
        a.into_iter().fold(a[0], |m, x| if x > m { x } else { m })
    }
    #[inline(always)]
    unsafe fn int_set1(x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn int_add(a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    unsafe fn int_load(p: *const u8) -> Self::I {
        p.cast::<Self::I>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn int_store(p: *mut u8, v: Self::I) {
        p.cast::<Self::I>().write_unaligned(v);
    }
    #[inline(always)]
    unsafe fn to_float(x: Self::I) -> Self::F {
        x.map(|x| x as f32)
    }
    #[inline(always)]
    unsafe fn low_nibbles(x: Self::I) -> Self::I {
        x.map(|x| x & 0x0f0f_0f0f)
    }
    #[inline(always)]
    unsafe fn high_nibbles(x: Self::I) -> Self::I {
        x.map(|x| (x >> 4) & 0x0f0f_0f0f)
    }
    #[inline(always)]
    unsafe fn dot<const SMALL: bool>(acc: Self::I, w: Self::I, a: i32) -> Self::I {
        let a = a.to_le_bytes();
        from_fn(|r| {
            let w = w[r].to_le_bytes();
            (0..4).fold(acc[r], |sum, i| sum.wrapping_add(i32::from(w[i]) * i32::from(a[i] as i8)))
        })
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: Self::F, b: Self::F) -> i32 {
        let mut sum = 0;
        for (i, x) in a.into_iter().chain(b).enumerate() {
            let whole = x as i32;
            sum += whole;
            p.add(i).write(whole as i8);
        }
        sum
    }
}
