//! Kernels: what runs for every layer and token, written once over sixteen lanes and compiled for each instruction set.
//!
//! Invariant: for equal operands every instruction set gives equal bits (the tests compare them with the scalar one).
// contract: C-14
#![allow(clippy::needless_range_loop, reason = "arrays of registers are indexed by constants, which iterators hide from the compiler")]
#![allow(clippy::int_plus_one, reason = "macros over how many are taken at a time have a case of one")]
#![allow(clippy::missing_safety_doc, reason = "the trait Lanes states it once for its methods")]

pub mod acts;
#[cfg(target_arch = "x86_64")]
pub mod amx;
pub mod attention;
pub mod elementwise;
pub mod matmul;
pub mod memory;
pub mod pack;
pub mod simd;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use acts::ActsView;
use attention::Attention;
use elementwise::Placement;
use matmul::Product;

/// Which instructions the kernels use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Isa {
    /// Plain Rust; runs everywhere.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 with VNNI.
    Avx512,
    /// AVX-512 with VNNI, and AMX int8 for products of several tokens.
    Amx,
}

impl Isa {
    /// All, slowest first.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Amx];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512-vnni",
            Isa::Amx => "avx512-vnni+amx-int8",
        }
    }

    /// Whether this machine can run it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => avx2,
            Isa::Avx512 => avx512,
            Isa::Amx => avx512 && amx::available(),
        }
    }

    /// Whether this machine can run it.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        self == Isa::Scalar
    }

    /// The fastest that this machine can run.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a thread keeps between kernels.
#[derive(Default)]
pub struct Scratch {
    /// Attention scores.
    pub scores: Vec<f32>,
    /// A row between two kernels.
    pub row: Vec<f32>,
    /// A head of K before it is transposed.
    pub transposing: Vec<u16>,
    #[cfg(target_arch = "x86_64")]
    tiles: amx::TileMemory,
}

/// The kernels of one instruction set. Calling one is unsafe for the reasons its function states; that the instruction set exists is
/// settled by `Kernels::of`.
pub struct Kernels {
    /// Which.
    pub isa: Isa,
    /// `matmul::multiply`.
    pub multiply: unsafe fn(&Product, Range<usize>, &mut Scratch),
    /// `attention::attend`.
    pub attend: unsafe fn(&Attention, &mut Scratch),
    /// `elementwise::normalise`.
    pub normalise: unsafe fn(*const f32, *const f32, usize, f32, *mut f32),
    /// `elementwise::quantise`.
    pub quantise: unsafe fn(ActsView, usize, *const f32),
    /// `elementwise::place`.
    pub place: unsafe fn(&Placement, &mut Scratch),
}

macro_rules! compiled {
    ($module:ident, $lanes:ty, $isa:expr, $features:literal, |$p:ident, $t:ident, $s:ident| $multiply:expr) => {
        mod $module {
            use super::{ActsView, Attention, Isa, Kernels, Placement, Product, Range, Scratch, attention, elementwise, simd};

            #[cfg_attr(target_arch = "x86_64", target_feature(enable = $features))]
            unsafe fn multiply($p: &Product, $t: Range<usize>, $s: &mut Scratch) {
                // SAFETY: the caller keeps the kernel's conditions; the instruction set is this function's own.
                unsafe { $multiply }
            }
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = $features))]
            unsafe fn attend(job: &Attention, scratch: &mut Scratch) {
                // SAFETY: as above.
                unsafe { attention::attend::<$lanes>(job, &mut scratch.scores) }
            }
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = $features))]
            unsafe fn normalise(x: *const f32, weights: *const f32, n: usize, eps: f32, out: *mut f32) {
                // SAFETY: as above.
                unsafe { elementwise::normalise::<$lanes>(x, weights, n, eps, out) }
            }
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = $features))]
            unsafe fn quantise(acts: ActsView, token: usize, x: *const f32) {
                // SAFETY: as above.
                unsafe { elementwise::quantise::<$lanes>(acts, token, x) }
            }
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = $features))]
            unsafe fn place(p: &Placement, scratch: &mut Scratch) {
                scratch.transposing.resize(p.head_dim, 0);
                // SAFETY: as above; the scratch row was just made long enough.
                unsafe { elementwise::place::<$lanes>(p, &mut scratch.transposing) }
            }
            pub static KERNELS: Kernels = Kernels { isa: $isa, multiply, attend, normalise, quantise, place };
        }
    };
}

compiled!(scalar, simd::scalar::Scalar, Isa::Scalar, "sse2", |p, t, _s| super::matmul::multiply::<simd::scalar::Scalar>(p, t));
#[cfg(target_arch = "x86_64")]
compiled!(avx2, simd::avx2::Avx2, Isa::Avx2, "avx2,fma,f16c", |p, t, _s| super::matmul::multiply::<simd::avx2::Avx2>(p, t));
#[cfg(target_arch = "x86_64")]
compiled!(avx512, simd::avx512::Avx512, Isa::Avx512, "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c", |p, t, _s| {
    super::matmul::multiply::<simd::avx512::Avx512>(p, t)
});
#[cfg(target_arch = "x86_64")]
compiled!(tiles, simd::avx512::Avx512, Isa::Amx, "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c", |p, t, s| {
    super::amx::multiply_tiles(p, t, &mut s.tiles)
});

impl Kernels {
    /// The kernels of `isa`, or of the best one that this machine can run if it can't run that.
    pub fn of(isa: Isa) -> &'static Kernels {
        match if isa.is_available() { isa } else { Isa::best() } {
            Isa::Scalar => &scalar::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => &tiles::KERNELS,
            #[cfg(not(target_arch = "x86_64"))]
            _ => &scalar::KERNELS,
        }
    }
}
