//! Weight matrices, repacked at load into tiles of 16 rows, so that one vector instruction works on 16 rows and no horizontal sum is needed.
//!
//! Per tile, blocks of 32 columns follow each other:
//!   Q4_1  16 f16 scales, 16 f16 minima, 4 x 64 bytes (row r's bytes 4g .. 4g + 4 at 64 g + 4 r; low nibbles are columns 0 .. 16)
//!   Q8_0  16 f16 scales, 8 x 64 bytes, stored xor 0x80 (unsigned for the dot instruction, corrected exactly afterwards)
//!   F16, F32  32 columns of 16 rows
//!
//! Invariant: packing loses nothing; `Matrix::row` gives back each value. Rows are padded with zero rows to whole tiles.

use half::f16;

use super::memory::Buffer;
use super::simd::LANES;

/// Columns of a quantised block, and the unit of every matrix's width.
pub const BLOCK: usize = 32;

/// How a matrix's values are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// 4 bits with a scale and a minimum per 32.
    Q4_1,
    /// 8 bits with a scale per 32.
    Q8_0,
    /// Half floats.
    F16,
    /// Floats.
    F32,
}

impl Kind {
    /// Bytes of 32 values in a row of the file.
    pub fn block_bytes(self) -> usize {
        match self {
            Kind::Q4_1 => 20,
            Kind::Q8_0 => 34,
            Kind::F16 => 64,
            Kind::F32 => 128,
        }
    }

    /// Whether activations are multiplied as int8.
    pub fn is_quantised(self) -> bool {
        matches!(self, Kind::Q4_1 | Kind::Q8_0)
    }
}

/// A packed matrix of `rows` by `columns`; a product has one output a row.
pub struct Matrix {
    kind: Kind,
    rows: usize,
    columns: usize,
    data: Buffer,
}

impl Matrix {
    /// Packs matrices of equal width, one below the other. Each source is row-major as in a GGUF file; `columns` is a multiple of 32 and
    /// all but the last have a multiple of 16 rows.
    pub fn pack(kind: Kind, columns: usize, sources: &[&[u8]]) -> std::io::Result<Matrix> {
        assert!(columns > 0 && columns.is_multiple_of(BLOCK), "a packed matrix has whole blocks");
        let row_bytes = columns / BLOCK * kind.block_bytes();
        let rows = sources.iter().map(|s| s.len() / row_bytes).sum::<usize>();
        let mut data = Buffer::new(rows.div_ceil(LANES) * LANES * row_bytes, true)?;
        let mut tiles = data.bytes_mut().chunks_exact_mut(LANES * row_bytes);
        for (i, source) in sources.iter().enumerate() {
            assert!(i + 1 == sources.len() || (source.len() / row_bytes).is_multiple_of(LANES), "stacked matrices have whole tiles");
            for rows in source.chunks(LANES * row_bytes) {
                let Some(tile) = tiles.next() else { break };
                pack_tile(kind, row_bytes, rows, tile);
            }
        }
        Ok(Matrix { kind, rows, columns, data })
    }

    /// How values are stored.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Rows, without padding.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Tiles of 16 rows, the last padded.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Bytes of a tile.
    pub fn tile_bytes(&self) -> usize {
        self.columns / BLOCK * self.kind.block_bytes() * LANES
    }

    /// The packed bytes of a tile.
    pub fn tile(&self, index: usize) -> *const u8 {
        assert!(index < self.tiles(), "a tile of the matrix");
        self.data.bytes()[index * self.tile_bytes()..].as_ptr()
    }

    /// Reads one row back as floats.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let (tile_bytes, lane) = (self.tile_bytes(), row % LANES);
        let tile = &self.data.bytes()[row / LANES * tile_bytes..][..tile_bytes];
        let half = |b: &[u8], i: usize| f16::from_le_bytes([b[2 * i], b[2 * i + 1]]).to_f32();
        for (block, out) in tile.chunks_exact(self.kind.block_bytes() * LANES).zip(out.chunks_exact_mut(BLOCK)) {
            for (column, out) in out.iter_mut().enumerate() {
                *out = match self.kind {
                    Kind::Q4_1 => {
                        let byte = block[64 + 64 * (column % 16 / 4) + 4 * lane + column % 4];
                        let nibble = if column < 16 { byte & 15 } else { byte >> 4 };
                        half(block, lane) * f32::from(nibble) + half(&block[32..], lane)
                    }
                    Kind::Q8_0 => half(block, lane) * f32::from((block[32 + 64 * (column / 4) + 4 * lane + column % 4] ^ 0x80) as i8),
                    Kind::F16 => half(block, column * LANES + lane),
                    Kind::F32 => {
                        let at = 4 * (column * LANES + lane);
                        f32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
                    }
                };
            }
        }
    }

    /// The same matrix in floats, for the reference mode.
    pub fn to_float(&self) -> std::io::Result<Matrix> {
        let mut bytes = vec![0u8; self.rows * self.columns * 4];
        let mut row = vec![0f32; self.columns];
        for (i, out) in bytes.chunks_exact_mut(self.columns * 4).enumerate() {
            self.row(i, &mut row);
            for (x, out) in row.iter().zip(out.chunks_exact_mut(4)) {
                out.copy_from_slice(&x.to_le_bytes());
            }
        }
        Matrix::pack(Kind::F32, self.columns, &[&bytes])
    }
}

/// Interleaves up to 16 rows into a tile; missing rows stay zero.
fn pack_tile(kind: Kind, row_bytes: usize, rows: &[u8], tile: &mut [u8]) {
    let block_bytes = kind.block_bytes();
    for (b, out) in tile.chunks_exact_mut(block_bytes * LANES).enumerate() {
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            let block = &row[b * block_bytes..][..block_bytes];
            match kind {
                Kind::Q4_1 => {
                    out[2 * r..2 * r + 2].copy_from_slice(&block[0..2]);
                    out[32 + 2 * r..34 + 2 * r].copy_from_slice(&block[2..4]);
                    interleave(&block[4..], 4, r, &mut out[64..], |b| b);
                }
                Kind::Q8_0 => {
                    out[2 * r..2 * r + 2].copy_from_slice(&block[0..2]);
                    interleave(&block[2..], 4, r, &mut out[32..], |b| b ^ 0x80);
                }
                Kind::F16 => interleave(block, 2, r, out, |b| b),
                Kind::F32 => interleave(block, 4, r, out, |b| b),
            }
        }
    }
}

/// Writes row `r`'s units of `size` bytes 16 units apart.
fn interleave(row: &[u8], size: usize, r: usize, out: &mut [u8], change: impl Fn(u8) -> u8) {
    for (i, unit) in row.chunks_exact(size).enumerate() {
        for (j, &byte) in unit.iter().enumerate() {
            out[(i * LANES + r) * size + j] = change(byte);
        }
    }
}
