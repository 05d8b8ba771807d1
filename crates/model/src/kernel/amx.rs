//! Products by the tile registers of AMX int8: 16 rows x 16 tokens x 32 columns in one instruction.
//!
//! The integer dots are exact and the float steps are those of `matmul`, so the bits are the same. A weight tile is unpacked once into a
//! buffer in the first cache and used for all tokens.
//!
//! Invariant: tile registers are configured and released inside one call; between calls a thread holds none.
#![allow(unsafe_op_in_unsafe_fn, reason = "each kernel is unsafe as a whole, for the one reason that its Safety section states")]

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::ops::Range;
use std::sync::OnceLock;

use super::acts::{ActsView, GROUP, Line, grow};
use super::matmul::{Epilogue, Product, finish, multiply, prefetch, scaled};
use super::pack::{BLOCK, Kind, Matrix};
use super::simd::avx512::Avx512;
use super::simd::{LANES, Lanes};

/// From this many tokens on tile registers beat vector instructions.
const TOKENS_MIN: usize = 4;
/// Blocks whose dots are computed before their float steps; their results stay in the first cache.
const STRIP: usize = 8;
/// Lines of an unpacked block.
const LINES: usize = GROUP * BLOCK / 64;
/// How far ahead of the tile being unpacked its memory is asked for, in bytes.
const AHEAD: usize = 4096;

/// A thread's unpacked tiles and dots.
#[derive(Default)]
pub struct TileMemory {
    value: Unpacked,
    gate: Unpacked,
    dots: Vec<Line>,
}

/// A tile of a quantised matrix as the tile registers read it.
#[derive(Default)]
struct Unpacked {
    words: Vec<Line>,
    scales: Vec<Line>,
    minima: Vec<Line>,
}

/// Whether the CPU has AMX int8 and the kernel lets this process use it; asks once.
pub fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| cpu_has_it() && permitted())
}

fn cpu_has_it() -> bool {
    const AMX_TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & AMX_TILE_AND_INT8 == AMX_TILE_AND_INT8
}

#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: a system call that takes two numbers and no address.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// As `matmul::multiply`; matrices that are not quantised, and few tokens, go there.
///
/// # Safety
/// As `matmul::multiply`, and `available()`.
#[inline(always)]
pub unsafe fn multiply_tiles(p: &Product, tiles: Range<usize>, memory: &mut TileMemory) {
    let gate = match p.epilogue {
        Epilogue::Gated(gate) => Some(gate),
        Epilogue::Store | Epilogue::Add => None,
    };
    if p.tokens < TOKENS_MIN || !p.matrix.kind().is_quantised() || gate.is_some_and(|g| !g.kind().is_quantised()) {
        return multiply::<Avx512>(p, tiles);
    }
    match p.tokens {
        ..=4 => run::<4>(p, gate, tiles, memory),
        ..=8 => run::<8>(p, gate, tiles, memory),
        _ => run::<16>(p, gate, tiles, memory),
    }
}

#[inline(always)]
unsafe fn run<const N: usize>(p: &Product, gate: Option<&Matrix>, tiles: Range<usize>, memory: &mut TileMemory) {
    configure(N as u8);
    let TileMemory { value, gate: gate_memory, dots } = memory;
    grow(dots, STRIP * N);
    for tile in tiles {
        value.unpack(p.matrix, tile);
        if let Some(gate) = gate {
            gate_memory.unpack(gate, tile);
        }
        for token in (0..p.tokens).step_by(GROUP) {
            let v = product::<N>(value, p.matrix.kind(), p.acts, token, dots);
            let g = match gate {
                Some(gate) => product::<N>(gate_memory, gate.kind(), p.acts, token, dots),
                None => v,
            };
            finish::<Avx512, N>(p, tile, token, p.tokens - token, &v, &g);
        }
    }
    asm!("tilerelease", options(nostack, nomem));
}

/// Tiles 0, 1: dots (N tokens x 16 rows of i32); 4, 5: activations (N x 32 bytes); 6, 7: weights (8 x 64 bytes).
#[inline(always)]
unsafe fn configure(tokens: u8) {
    let mut config = Line([0; 64]);
    config.0[0] = 1;
    for (tile, bytes, rows) in [(0, 64, tokens), (1, 64, tokens), (4, 32, tokens), (5, 32, tokens), (6, 64, 8), (7, 64, 8)] {
        config.0[16 + 2 * tile] = bytes;
        config.0[48 + tile] = rows;
    }
    asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly));
}

impl Unpacked {
    #[inline(always)]
    unsafe fn unpack(&mut self, m: &Matrix, tile: usize) {
        let blocks = m.columns() / BLOCK;
        grow(&mut self.words, blocks * LINES);
        grow(&mut self.scales, blocks);
        grow(&mut self.minima, blocks);
        let step = m.kind().block_bytes() * LANES;
        let mut w = m.tile(tile);
        let mut words = self.words.as_mut_ptr().cast::<u8>();
        for block in 0..blocks {
            prefetch(w.wrapping_add(AHEAD), step);
            Avx512::store(self.scales.as_mut_ptr().add(block).cast(), Avx512::load_half(w.cast()));
            if m.kind() == Kind::Q4_1 {
                Avx512::store(self.minima.as_mut_ptr().add(block).cast(), Avx512::load_half(w.add(32).cast()));
                for g in 0..4 {
                    let both = Avx512::int_load(w.add(64 + 64 * g));
                    Avx512::int_store(words.add(64 * g), Avx512::low_nibbles(both));
                    Avx512::int_store(words.add(64 * (g + 4)), Avx512::high_nibbles(both));
                }
            } else {
                for g in 0..8 {
                    Avx512::int_store(words.add(64 * g), Avx512::int_load(w.add(32 + 64 * g)));
                }
            }
            w = w.add(step);
            words = words.add(64 * LINES);
        }
    }
}

/// One tile for the group of tokens that begins at `token`; of the results behind the last token nothing is used.
#[inline(always)]
unsafe fn product<const N: usize>(w: &Unpacked, kind: Kind, acts: ActsView, token: usize, dots: &mut [Line]) -> [<Avx512 as Lanes>::F; N] {
    let blocks = acts.columns / BLOCK;
    let dots = dots.as_mut_ptr().cast::<u8>();
    let mut acc = [Avx512::zero(); N];
    for strip in (0..blocks).step_by(STRIP) {
        let end = (strip + STRIP).min(blocks);
        let mut block = strip;
        while block < end {
            let a = acts.values.add(acts.index(token, block) * BLOCK).cast::<u8>();
            let b = w.words.as_ptr().add(block * LINES).cast::<u8>();
            let c = dots.add((block - strip) * N * 64);
            if block + 1 < end {
                dot_two(a, b, c, N * 64);
            } else {
                dot_one(a, b, c);
            }
            block += 2;
        }
        for block in strip..end {
            let at = acts.index(token, block);
            let row_scale = Avx512::load(w.scales.as_ptr().add(block).cast());
            let minimum = Avx512::load(w.minima.as_ptr().add(block).cast());
            let c = dots.add((block - strip) * N * 64);
            for i in 0..N {
                let dot = Avx512::int_load(c.add(i * 64));
                if kind == Kind::Q4_1 {
                    acc[i] = scaled::<Avx512>(acc[i], dot, row_scale, *acts.scales.add(at + i));
                    acc[i] = Avx512::fma(minimum, Avx512::set1(*acts.scaled_sums.add(at + i)), acc[i]);
                } else {
                    let dot = Avx512::int_add(dot, Avx512::int_set1(-128 * *acts.sums.add(at + i)));
                    acc[i] = scaled::<Avx512>(acc[i], dot, row_scale, *acts.scales.add(at + i));
                }
            }
        }
    }
    acc
}

/// Signed activations times unsigned weights of one block: c = a b.
#[inline(always)]
unsafe fn dot_one(a: *const u8, b: *const u8, c: *mut u8) {
    asm!(
        "tilezero tmm0",
        "tileloadd tmm4, [{a} + {half}*1]",
        "tileloadd tmm6, [{b} + {line}*1]",
        "tdpbsud tmm0, tmm4, tmm6",
        "tilestored [{c} + {line}*1], tmm0",
        a = in(reg) a, b = in(reg) b, c = in(reg) c, half = in(reg) BLOCK, line = in(reg) 64usize,
        options(nostack),
    );
}

/// Two blocks that follow each other; the second's dots go `stride` bytes behind the first's.
#[inline(always)]
unsafe fn dot_two(a: *const u8, b: *const u8, c: *mut u8, stride: usize) {
    asm!(
        "tilezero tmm0",
        "tilezero tmm1",
        "tileloadd tmm4, [{a} + {half}*1]",
        "tileloadd tmm6, [{b} + {line}*1]",
        "tileloadd tmm5, [{a} + {half}*1 + 512]",
        "tileloadd tmm7, [{b} + {line}*1 + 512]",
        "tdpbsud tmm0, tmm4, tmm6",
        "tdpbsud tmm1, tmm5, tmm7",
        "tilestored [{c} + {line}*1], tmm0",
        "tilestored [{d} + {line}*1], tmm1",
        a = in(reg) a, b = in(reg) b, c = in(reg) c, d = in(reg) c.add(stride), half = in(reg) BLOCK, line = in(reg) 64usize,
        options(nostack),
    );
}
