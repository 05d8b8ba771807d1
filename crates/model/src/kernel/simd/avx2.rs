//! Sixteen lanes in two AVX2 registers; integer dots by widening pair sums.
//!
//! Invariant: the same operation as the scalar twin in every lane (see the parent module).
#![allow(unsafe_op_in_unsafe_fn, reason = "see the parent module")]

use std::arch::x86_64::*;

use super::{LANES, Lanes};

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx2;

macro_rules! both {
    ($f:ident, $($a:expr),+) => { [$f($($a[0]),+), $f($($a[1]),+)] };
}

impl Lanes for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    const TOKENS: usize = 4;
    const ROWS: usize = 6;

    #[inline(always)]
    unsafe fn zero() -> Self::F {
        [_mm256_setzero_ps(); 2]
    }
    #[inline(always)]
    unsafe fn set1(x: f32) -> Self::F {
        [_mm256_set1_ps(x); 2]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))]
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        _mm256_storeu_ps(p, v[0]);
        _mm256_storeu_ps(p.add(8), v[1]);
    }
    #[inline(always)]
    unsafe fn load_half(p: *const u16) -> Self::F {
        [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))]
    }
    #[inline(always)]
    unsafe fn store_half(p: *mut u16, v: Self::F) {
        _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
        _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(_mm256_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        a.map(|v| _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v))
    }
    #[inline(always)]
    unsafe fn swap_pairs(a: Self::F) -> Self::F {
        a.map(|v| _mm256_permute_ps::<0b10_11_00_01>(v))
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::F) -> Self::F {
        n.map(|v| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127)))))
    }
    #[inline(always)]
    unsafe fn max_lane(a: Self::F) -> f32 {
        let mut lanes = [0f32; LANES / 2];
        _mm256_storeu_ps(lanes.as_mut_ptr(), _mm256_max_ps(a[0], a[1]));
        lanes.into_iter().fold(lanes[0], |m, x| if x > m { x } else { m })
    }
    #[inline(always)]
    unsafe fn int_set1(x: i32) -> Self::I {
        [_mm256_set1_epi32(x); 2]
    }
    #[inline(always)]
    unsafe fn int_add(a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_add_epi32, a, b)
    }
    #[inline(always)]
    unsafe fn int_load(p: *const u8) -> Self::I {
        [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())]
    }
    #[inline(always)]
    unsafe fn int_store(p: *mut u8, v: Self::I) {
        _mm256_storeu_si256(p.cast(), v[0]);
        _mm256_storeu_si256(p.add(32).cast(), v[1]);
    }
    #[inline(always)]
    unsafe fn to_float(x: Self::I) -> Self::F {
        both!(_mm256_cvtepi32_ps, x)
    }
    #[inline(always)]
    unsafe fn low_nibbles(x: Self::I) -> Self::I {
        x.map(|v| _mm256_and_si256(v, _mm256_set1_epi8(15)))
    }
    #[inline(always)]
    unsafe fn high_nibbles(x: Self::I) -> Self::I {
        x.map(|v| _mm256_and_si256(_mm256_srli_epi16::<4>(v), _mm256_set1_epi8(15)))
    }
    #[inline(always)]
    unsafe fn dot<const SMALL: bool>(acc: Self::I, w: Self::I, a: i32) -> Self::I {
        let (a, ones) = (_mm256_set1_epi32(a), _mm256_set1_epi16(1));
        let pairs = |w: __m256i| _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), ones);
        let mut out = acc;
        for i in 0..2 {
            let sum = if SMALL {
                pairs(w[i])
            } else {
                // The low seven bits and the top bit apart, or a 16-bit sum of two products could saturate.
                let low = pairs(_mm256_and_si256(w[i], _mm256_set1_epi8(0x7f)));
                let top = pairs(_mm256_and_si256(_mm256_srli_epi16::<7>(w[i]), _mm256_set1_epi8(1)));
                _mm256_add_epi32(low, _mm256_slli_epi32::<7>(top))
            };
            out[i] = _mm256_add_epi32(out[i], sum);
        }
        out
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: Self::F, b: Self::F) -> i32 {
        let [a0, a1] = a.map(|v| _mm256_cvtps_epi32(v));
        let [b0, b1] = b.map(|v| _mm256_cvtps_epi32(v));
        // The packs work inside 128-bit halves; the last permutation restores the order.
        let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a0, a1), _mm256_packs_epi32(b0, b1));
        let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256(p.cast(), bytes);
        let mut sums = [0i32; 8];
        _mm256_storeu_si256(sums.as_mut_ptr().cast(), _mm256_add_epi32(_mm256_add_epi32(a0, a1), _mm256_add_epi32(b0, b1)));
        sums.iter().sum()
    }
}
