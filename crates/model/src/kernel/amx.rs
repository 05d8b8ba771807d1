//! Products by the tile registers of AMX int8: 16 rows x 16 tokens x 32 columns in one instruction.
//!
//! The integer dots are exact and the float steps are those of `matmul`, so the bits are the same. A weight tile is unpacked once into a
//! buffer in the first cache and used for all tokens.
//!
//! Two groups of tokens meet two weight tiles, so that each tile register's load serves two products, and the dots of a few blocks are done
//! before their float steps: loads and stores of tile registers overlap little with vector instructions, so fewer loads are what counts,
//! and with the blocks done in turns one product's sums at a time are in registers.
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

/// From this many tokens on tile registers beat vector instructions: a tile's unpacking must serve more than one group.
const TOKENS_MIN: usize = GROUP + 1;
/// Blocks whose dots are in memory at a time; with those of four products they take 16 KiB, a third of the first cache.
const CHUNK: usize = 4;
/// Products worked on together: two groups of tokens times two weight tiles.
const TOGETHER: usize = 4;
/// Bytes of a block's dots: 16 tokens x 16 rows of i32.
const DOT_BYTES: usize = 1024;
/// Lines of an unpacked block.
const LINES: usize = GROUP * BLOCK / 64;
/// How far ahead of the tile being unpacked its memory is asked for, in bytes.
const AHEAD: usize = 4096;

type F = <Avx512 as Lanes>::F;

/// A thread's unpacked tiles and dots.
#[derive(Default)]
pub struct TileMemory {
    first: Unpacked,
    second: Unpacked,
    dots: Vec<Line>,
}

/// A tile of a quantised matrix as the tile registers read it.
struct Unpacked {
    kind: Kind,
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
    configure();
    let TileMemory { first, second, dots } = memory;
    grow(dots, TOGETHER * CHUNK * DOT_BYTES / 64);
    let step = if gate.is_some() { 1 } else { 2 };
    let mut acc = [[[Avx512::zero(); GROUP]; 2]; 2];
    for tile in tiles.clone().step_by(step) {
        first.unpack(p.matrix, tile);
        // A gated product's second tile is the gate's, another's is the next one.
        let other = match gate {
            Some(gate) => Some((gate, tile)),
            None => (tile + 1 < tiles.end).then_some((p.matrix, tile + 1)),
        };
        if let Some((matrix, tile)) = other {
            second.unpack(matrix, tile);
        }
        let (weights, used) = if other.is_some() { ([&*first, &*second], 2) } else { ([&*first, &*first], 1) };
        for token in (0..p.tokens).step_by(2 * GROUP) {
            products(weights, used, p, token, dots, &mut acc);
            for (g, [v, w]) in acc.iter().enumerate() {
                let token = token + g * GROUP;
                let count = p.tokens.saturating_sub(token);
                finish::<Avx512, GROUP>(p, tile, token, count, v, w);
                if gate.is_none() && used == 2 {
                    finish::<Avx512, GROUP>(p, tile + 1, token, count, w, w);
                }
            }
        }
    }
    asm!("tilerelease", options(nostack, nomem));
}

/// Tiles 0 to 3: dots (16 tokens x 16 rows of i32); 4, 5: activations (16 x 32 bytes); 6, 7: weights (8 x 64 bytes).
#[inline(always)]
unsafe fn configure() {
    const ROWS: u8 = GROUP as u8;
    let mut config = Line([0; 64]);
    config.0[0] = 1;
    let shapes = [(0, 64, ROWS), (1, 64, ROWS), (2, 64, ROWS), (3, 64, ROWS), (4, 32, ROWS), (5, 32, ROWS), (6, 64, 8), (7, 64, 8)];
    for (tile, bytes, rows) in shapes {
        config.0[16 + 2 * tile] = bytes;
        config.0[48 + tile] = rows;
    }
    asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly));
}

impl Default for Unpacked {
    fn default() -> Unpacked {
        Unpacked { kind: Kind::Q4_1, words: Vec::new(), scales: Vec::new(), minima: Vec::new() }
    }
}

impl Unpacked {
    /// Unpacks a tile of a quantised matrix.
    #[inline(always)]
    unsafe fn unpack(&mut self, m: &Matrix, tile: usize) {
        self.kind = m.kind();
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

/// The products of two weight tiles, of which the first `used` count, and the two groups of tokens from `token` on: `acc[group][tile]`.
/// Of results behind the last token nothing is used.
#[inline(always)]
unsafe fn products(w: [&Unpacked; 2], used: usize, p: &Product, token: usize, dots: &mut [Line], acc: &mut [[[F; GROUP]; 2]; 2]) {
    let blocks = p.acts.columns / BLOCK;
    let dots = dots.as_mut_ptr().cast::<u8>();
    let groups = if token + GROUP < p.tokens { 2 } else { 1 };
    let tokens = [token, token + (groups - 1) * GROUP];
    for first in (0..blocks).step_by(CHUNK) {
        let chunk = first..(first + CHUNK).min(blocks);
        for block in chunk.clone() {
            let a = tokens.map(|t| p.acts.values.add(p.acts.index(t, block) * BLOCK));
            let b = w.map(|w| w.words.as_ptr().add(block * LINES));
            // The activations of all tokens are in the second cache: they are asked for a chunk ahead.
            let (ahead, later) = if block + CHUNK < blocks { (block + CHUNK, 0) } else { (block + CHUNK - blocks, 2 * GROUP) };
            for t in tokens {
                prefetch(p.acts.values.wrapping_add(p.acts.index(t + later, ahead) * BLOCK).cast(), GROUP * BLOCK);
            }
            dots_of(a, b, dots.add((block - first) * TOGETHER * DOT_BYTES));
        }
        for g in 0..groups {
            for t in 0..used {
                let dots = dots.add((2 * g + t) * DOT_BYTES);
                match w[t].kind {
                    Kind::Q4_1 => float_steps::<true>(&mut acc[g][t], w[t], p.acts, tokens[g], chunk.clone(), dots),
                    _ => float_steps::<false>(&mut acc[g][t], w[t], p.acts, tokens[g], chunk.clone(), dots),
                }
            }
        }
    }
}

/// The float steps of the blocks `chunk`; a block's dots lie `TOGETHER` times `DOT_BYTES` behind those of the one before.
#[inline(always)]
unsafe fn float_steps<const Q4: bool>(
    acc: &mut [F; GROUP],
    w: &Unpacked,
    acts: ActsView,
    token: usize,
    chunk: Range<usize>,
    mut dots: *const u8,
) {
    let mut sums = if chunk.start == 0 { [Avx512::zero(); GROUP] } else { *acc };
    for block in chunk {
        let at = acts.index(token, block);
        let row_scale = Avx512::load(w.scales.as_ptr().add(block).cast());
        let minimum = Avx512::load(w.minima.as_ptr().add(block).cast());
        let scales = acts.scales.add(at);
        let scaled_sums = acts.scaled_sums.add(at);
        for i in 0..GROUP {
            let mut dot = Avx512::int_load(dots.add(i * 64));
            if !Q4 {
                dot = Avx512::int_add(dot, Avx512::int_set1(-128 * *acts.sums.add(at + i)));
            }
            sums[i] = scaled::<Avx512>(sums[i], dot, row_scale, *scales.add(i));
            if Q4 {
                sums[i] = Avx512::fma(minimum, Avx512::set1(*scaled_sums.add(i)), sums[i]);
            }
        }
        dots = dots.add(TOGETHER * DOT_BYTES);
    }
    *acc = sums;
}

/// One block's dots, signed activations times unsigned weights: 16 tokens x 16 rows of `a[0]` and `b[0]`, then of `a[0]` and `b[1]`, then of
/// `a[1]` with both.
#[inline(always)]
unsafe fn dots_of(a: [*mut i8; 2], b: [*const Line; 2], c: *mut u8) {
    asm!(
        "tilezero tmm0",
        "tilezero tmm1",
        "tilezero tmm2",
        "tilezero tmm3",
        "tileloadd tmm4, [{a} + {half}*1]",
        "tileloadd tmm6, [{b} + {line}*1]",
        "tdpbsud tmm0, tmm4, tmm6",
        "tileloadd tmm7, [{bb} + {line}*1]",
        "tdpbsud tmm1, tmm4, tmm7",
        "tileloadd tmm5, [{aa} + {half}*1]",
        "tdpbsud tmm2, tmm5, tmm6",
        "tdpbsud tmm3, tmm5, tmm7",
        "tilestored [{c} + {line}*1], tmm0",
        "tilestored [{c} + {line}*1 + 1024], tmm1",
        "tilestored [{c} + {line}*1 + 2048], tmm2",
        "tilestored [{c} + {line}*1 + 3072], tmm3",
        a = in(reg) a[0], aa = in(reg) a[1], b = in(reg) b[0], bb = in(reg) b[1], c = in(reg) c,
        half = in(reg) BLOCK, line = in(reg) 64usize, options(nostack),
    );
}
