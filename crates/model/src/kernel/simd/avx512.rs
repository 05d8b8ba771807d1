//! Sixteen lanes in one AVX-512 register; integer dots by VNNI.
//!
//! Invariant: the same operation as the scalar twin in every lane (see the parent module).
#![allow(unsafe_op_in_unsafe_fn, reason = "see the parent module")]

use std::arch::x86_64::*;

use super::Lanes;

/// AVX-512 F, BW, VL and VNNI.
#[derive(Clone, Copy)]
pub struct Avx512;

impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;
    const TOKENS: usize = 16;
    const ROWS: usize = 24;

    #[inline(always)]
    unsafe fn zero() -> Self::F {
        _mm512_setzero_ps()
    }
    #[inline(always)]
    unsafe fn set1(x: f32) -> Self::F {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        _mm512_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        _mm512_storeu_ps(p, v);
    }
    #[inline(always)]
    unsafe fn load_half(p: *const u16) -> Self::F {
        _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_half(p: *mut u16, v: Self::F) {
        _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        _mm512_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        _mm512_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        _mm512_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        _mm512_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
    }
    #[inline(always)]
    unsafe fn swap_pairs(a: Self::F) -> Self::F {
        _mm512_permute_ps::<0b10_11_00_01>(a)
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::F) -> Self::F {
        _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127))))
    }
    #[inline(always)]
    unsafe fn max_lane(a: Self::F) -> f32 {
        _mm512_reduce_max_ps(a)
    }
    #[inline(always)]
    unsafe fn int_set1(x: i32) -> Self::I {
        _mm512_set1_epi32(x)
    }
    #[inline(always)]
    unsafe fn int_add(a: Self::I, b: Self::I) -> Self::I {
        _mm512_add_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn int_load(p: *const u8) -> Self::I {
        _mm512_loadu_si512(p.cast())
    }
    #[inline(always)]
    unsafe fn int_store(p: *mut u8, v: Self::I) {
        _mm512_storeu_si512(p.cast(), v);
    }
    #[inline(always)]
    unsafe fn to_float(x: Self::I) -> Self::F {
        _mm512_cvtepi32_ps(x)
    }
    #[inline(always)]
    unsafe fn low_nibbles(x: Self::I) -> Self::I {
        _mm512_and_si512(x, _mm512_set1_epi8(15))
    }
    #[inline(always)]
    unsafe fn high_nibbles(x: Self::I) -> Self::I {
        _mm512_and_si512(_mm512_srli_epi16::<4>(x), _mm512_set1_epi8(15))
    }
    #[inline(always)]
    unsafe fn dot<const SMALL: bool>(acc: Self::I, w: Self::I, a: i32) -> Self::I {
        _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(a))
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: Self::F, b: Self::F) -> i32 {
        let (a, b) = (_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
        _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(a));
        _mm_storeu_si128(p.add(16).cast(), _mm512_cvtepi32_epi8(b));
        _mm512_reduce_add_epi32(_mm512_add_epi32(a, b))
    }
}
