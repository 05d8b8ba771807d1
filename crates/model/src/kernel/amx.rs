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

/// From this many tokens on tile registers beat vector instructions: a tile's unpacking must serve more than one group.
const TOKENS_MIN: usize = GROUP + 1;
/// Blocks whose dots are in memory at a time: two being computed, two being used.
const RING: usize = 4;
/// Bytes of a block's dots: 16 tokens x 16 rows of i32.
const DOT_BYTES: usize = 1024;
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
    configure();
    let TileMemory { value, gate: gate_memory, dots } = memory;
    grow(dots, RING * DOT_BYTES / 64);
    for tile in tiles {
        value.unpack(p.matrix, tile);
        if let Some(gate) = gate {
            gate_memory.unpack(gate, tile);
        }
        for token in (0..p.tokens).step_by(GROUP) {
            let v = product(value, p.matrix.kind(), p.acts, token, dots);
            let g = match gate {
                Some(gate) => product(gate_memory, gate.kind(), p.acts, token, dots),
                None => v,
            };
            finish::<Avx512, GROUP>(p, tile, token, p.tokens - token, &v, &g);
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

impl Unpacked {
    #[inline(always)]
    unsafe fn unpack(&mut self, m: &Matrix, tile: usize) {
        let blocks = m.columns() / BLOCK;
        grow(&mut self.words, (blocks + 1) * LINES);
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
///
/// The dots of two blocks are under way in the tile unit while the float steps of the two before are done by the vector units.
#[inline(always)]
unsafe fn product(w: &Unpacked, kind: Kind, acts: ActsView, token: usize, dots: &mut [Line]) -> [<Avx512 as Lanes>::F; GROUP] {
    let blocks = acts.columns / BLOCK;
    let dots = dots.as_mut_ptr().cast::<u8>();
    let mut acc = [Avx512::zero(); GROUP];
    start(w, acts, token, 0, dots);
    for first in (0..blocks).step_by(2) {
        if first + 2 < blocks {
            start(w, acts, token, first + 2, dots);
        }
        for block in first..(first + 2).min(blocks) {
            let at = acts.index(token, block);
            let row_scale = Avx512::load(w.scales.as_ptr().add(block).cast());
            let minimum = Avx512::load(w.minima.as_ptr().add(block).cast());
            let dots = dots.add(block % RING * DOT_BYTES);
            for i in 0..GROUP {
                let dot = Avx512::int_load(dots.add(i * 64));
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

/// Starts the dots of `block` and the one behind it, signed activations times unsigned weights, into their places in the ring. Behind the
/// last block of an odd number lies room (see `unpack` and `Acts::view`) whose dots nobody uses.
#[inline(always)]
unsafe fn start(w: &Unpacked, acts: ActsView, token: usize, block: usize, dots: *mut u8) {
    let a = acts.values.add(acts.index(token, block) * BLOCK);
    let b = w.words.as_ptr().add(block * LINES);
    let c = dots.add(block % RING * DOT_BYTES);
    macro_rules! two {
        ($c:literal, $d:literal) => {
            asm!(
                concat!("tilezero ", $c),
                concat!("tilezero ", $d),
                "tileloadd tmm4, [{a} + {half}*1]",
                "tileloadd tmm6, [{b} + {line}*1]",
                concat!("tdpbsud ", $c, ", tmm4, tmm6"),
                "tileloadd tmm5, [{a} + {half}*1 + 512]",
                "tileloadd tmm7, [{b} + {line}*1 + 512]",
                concat!("tdpbsud ", $d, ", tmm5, tmm7"),
                concat!("tilestored [{c} + {line}*1], ", $c),
                concat!("tilestored [{c} + {line}*1 + 1024], ", $d),
                a = in(reg) a, b = in(reg) b, c = in(reg) c, half = in(reg) BLOCK, line = in(reg) 64usize,
                options(nostack),
            )
        };
    }
    if block.is_multiple_of(RING) { two!("tmm0", "tmm1") } else { two!("tmm2", "tmm3") }
}
