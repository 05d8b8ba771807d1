//! Sixteen lanes, one implementation an instruction set.
//!
//! Invariant: every method is the same IEEE operation lane by lane (fma, mul, add, sub, div, max, min, round to even), or exact integer
//! arithmetic, in each implementation. So a kernel that is written once over `Lanes` gives the same bits from each. No libm, no fast-math.
//!
//! The methods are `unsafe` because an implementation may only run where its instructions exist, and because loads and stores take raw
//! pointers; they are `#[inline(always)]` so that they become part of the `#[target_feature]` function that calls them.
#![allow(unsafe_op_in_unsafe_fn, reason = "each kernel is unsafe as a whole, for the one reason that its Safety section states")]

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
pub mod scalar;

/// Number of lanes of every implementation.
pub const LANES: usize = 16;

/// Sixteen f32 or i32 lanes.
///
/// # Safety
/// Every method may only be called where the implementation's instruction set exists; pointers must be valid for what the method says.
pub trait Lanes: Copy + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32 (or 64 bytes).
    type I: Copy;
    /// Most tokens an integer matmul keeps in registers.
    const TOKENS: usize;
    /// Most rows an attention product keeps in registers.
    const ROWS: usize;

    /// All lanes 0.
    unsafe fn zero() -> Self::F;
    /// All lanes `x`.
    unsafe fn set1(x: f32) -> Self::F;
    /// Loads 16 f32.
    unsafe fn load(p: *const f32) -> Self::F;
    /// Stores 16 f32.
    unsafe fn store(p: *mut f32, v: Self::F);
    /// Loads 16 f16 (exact).
    unsafe fn load_half(p: *const u16) -> Self::F;
    /// Stores 16 f16, rounded to even.
    unsafe fn store_half(p: *mut u16, v: Self::F);
    /// a * b + c, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// a * b.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// a + b.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// a - b.
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// a / b.
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// a if a > b, else b (so b where either is NaN).
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// a if a < b, else b.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// Lanes 2i and 2i + 1 exchanged.
    unsafe fn swap_pairs(a: Self::F) -> Self::F;
    /// 2^n for lanes of whole numbers within -126 ..= 127.
    unsafe fn pow2(n: Self::F) -> Self::F;
    /// The greatest lane.
    unsafe fn max_lane(a: Self::F) -> f32;

    /// All lanes `x`.
    unsafe fn int_set1(x: i32) -> Self::I;
    /// a + b, wrapping.
    unsafe fn int_add(a: Self::I, b: Self::I) -> Self::I;
    /// Loads 64 bytes.
    unsafe fn int_load(p: *const u8) -> Self::I;
    /// Stores 64 bytes.
    unsafe fn int_store(p: *mut u8, v: Self::I);
    /// The value as f32; exact below 2^24.
    unsafe fn to_float(x: Self::I) -> Self::F;
    /// Each byte's low four bits.
    unsafe fn low_nibbles(x: Self::I) -> Self::I;
    /// Each byte's high four bits.
    unsafe fn high_nibbles(x: Self::I) -> Self::I;
    /// Lane r += sum over i < 4 of (byte 4r + i of `w`, unsigned) * (byte i of `a`, signed); exact. `SMALL` promises w <= 15.
    unsafe fn dot<const SMALL: bool>(acc: Self::I, w: Self::I, a: i32) -> Self::I;
    /// Stores two vectors of whole numbers within -128 ..= 127 as 32 i8 and returns their sum.
    unsafe fn store_i8(p: *mut i8, a: Self::F, b: Self::F) -> i32;

    /// e^x with x clamped to -87 ..= 88; about 1 ulp.
    #[inline(always)]
    unsafe fn exp(x: Self::F) -> Self::F {
        const POLY: [f32; 5] = [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 5.0e-1];
        let x = Self::max(Self::min(x, Self::set1(88.0)), Self::set1(-87.0));
        let n = Self::round(Self::mul(x, Self::set1(std::f32::consts::LOG2_E)));
        // ln 2 in two parts, the first with few bits, so that n times it is exact.
        let r = Self::fma(n, Self::set1(-0.693_359_4), x);
        let r = Self::fma(n, Self::set1(2.121_944_4e-4), r);
        let mut p = Self::set1(1.987_569_1e-4);
        for c in POLY {
            p = Self::fma(p, r, Self::set1(c));
        }
        let p = Self::add(Self::fma(Self::mul(r, r), p, r), Self::set1(1.0));
        Self::mul(p, Self::pow2(n))
    }

    /// The sum of all lanes by a fixed tree: halves are added until one lane is left.
    #[inline(always)]
    unsafe fn sum(a: Self::F) -> f32 {
        let mut lanes = [0f32; LANES];
        Self::store(lanes.as_mut_ptr(), a);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
            width /= 2;
        }
        lanes[0]
    }
}
