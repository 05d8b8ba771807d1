//! The output matrix: from the last tokens' rows to logits.
//!
//! Here an activation's rounding goes straight into the choice of a token, and with few rows a product waits for weights and not for
//! arithmetic. So a quantised output matrix gets each row in two parts: the int8 of the row, and the int8 of what that left over; the
//! logits are the sum of both products.
//!
//! Invariant: a row's logits depend on that row alone.
// contract: C-14

use crate::arch::work::{At, Needs, by_token, needs, store_operand, with_scratch};
use crate::kernel::Kernels;
use crate::kernel::acts::{Acts, ActsView};
use crate::kernel::matmul::{Epilogue, Product};
use crate::kernel::pack::{BLOCK, Matrix};
use crate::kernel::simd::LANES;
use crate::threads::Threads;

/// Tiles a thread takes at a time: their logits stay in its caches until the parts are added.
const TILES: usize = 64;

/// The rows to be multiplied.
pub(super) struct Rows<'a> {
    /// The residual; row `i` begins at `i * norm.len()`.
    pub(super) residual: &'a [f32],
    /// How many.
    pub(super) count: usize,
    /// The last norm's weights, and what is added to the mean square.
    pub(super) norm: (&'a [f32], f32),
}

/// Writes the logits of row `i` at `i * stride` of `out`, which is made long enough; `stride` is the matrix's width with its padding.
pub(super) fn logits(
    threads: &mut Threads,
    kernels: &'static Kernels,
    matrix: &Matrix,
    rows: &Rows,
    acts: &mut Acts,
    (out, stride): (&mut Vec<f32>, usize),
) {
    let needs = needs([matrix]);
    let (count, parts) = (rows.count, if needs.integers { 2 } else { 1 });
    let acts = acts.view(parts * count, matrix.columns());
    if out.len() < parts * count * stride {
        out.resize(parts * count * stride, 0.0);
    }
    operand(threads, kernels, rows, needs, acts);
    let (tiles, out) = (matrix.tiles(), At(out.as_mut_ptr()));
    threads.run(tiles.div_ceil(TILES), &|chunk| {
        let tiles = chunk * TILES..((chunk + 1) * TILES).min(tiles);
        with_scratch(|scratch| {
            // SAFETY: the operand was made for all parts of all rows, in the form that this matrix needs; `out` has room for them; the
            // tiles' columns are this thread's.
            unsafe {
                let p = Product { matrix, acts, tokens: parts * count, out: out.add(0), out_stride: stride, epilogue: Epilogue::Store };
                (kernels.multiply)(&p, tiles.clone(), scratch);
                for row in 0..(parts - 1) * count {
                    let columns = |row: usize| out.add(row * stride + tiles.start * LANES);
                    let (whole, rest) = (columns(row), columns(count + row));
                    for i in 0..tiles.len() * LANES {
                        *whole.add(i) += *rest.add(i);
                    }
                }
            }
        });
    });
}

/// Normalises the rows and stores them as the product's operand: row `i`, and for integers at `count + i` what int8 left over of it.
fn operand(threads: &mut Threads, kernels: &'static Kernels, rows: &Rows, needs: Needs, acts: ActsView) {
    let (weights, epsilon) = rows.norm;
    by_token(threads, rows.count, &|token, scratch| {
        scratch.row.resize(acts.columns, 0.0);
        let row = scratch.row.as_mut_ptr();
        let residual = &rows.residual[token * acts.columns..][..acts.columns];
        // SAFETY: rows are as long as the norm's weights; the token's places in the operand are this thread's.
        unsafe {
            (kernels.normalise)(residual.as_ptr(), weights.as_ptr(), acts.columns, epsilon, row);
            store_operand(kernels, acts, needs, token, row);
            if needs.integers {
                for (block, values) in scratch.row.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
                    let at = acts.index(token, block);
                    for (i, value) in values.iter_mut().enumerate() {
                        *value -= *acts.scales.add(at) * f32::from(*acts.values.add(at * BLOCK + i));
                    }
                }
                (kernels.quantise)(acts, rows.count + token, scratch.row.as_ptr());
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::kernel::Isa;
    use crate::kernel::pack::Kind;

    const COLUMNS: usize = 96;
    const ROWS: usize = 200;

    /// Numbers within -1 .. 1, the same at each run.
    fn numbers(seed: u32) -> impl Iterator<Item = f32> {
        let mut state = seed;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
    }

    fn matrix(kind: Kind) -> Matrix {
        let mut bytes = Vec::new();
        let mut next = numbers(7);
        for _ in 0..ROWS * COLUMNS / BLOCK {
            let halves = match kind {
                Kind::Q4_1 => 2,
                Kind::Q8_0 => 1,
                _ => BLOCK,
            };
            bytes.extend(next.by_ref().take(halves).flat_map(|x| f16::from_f32(x).to_le_bytes()));
            let rest = kind.block_bytes() - 2 * halves;
            bytes.extend(next.by_ref().take(rest).map(|x| (x * 127.0) as i8 as u8));
        }
        Matrix::pack(kind, COLUMNS, &[&bytes]).unwrap()
    }

    fn run(isa: Isa, threads: usize, matrix: &Matrix, residual: &[f32]) -> Vec<Vec<f32>> {
        let (count, stride) = (residual.len() / COLUMNS, matrix.tiles() * LANES);
        let rows = Rows { residual, count, norm: (&[1.0; COLUMNS], 1e-5) };
        let (mut out, mut acts) = (Vec::new(), Acts::default());
        logits(&mut Threads::new(threads).unwrap(), Kernels::of(isa), matrix, &rows, &mut acts, (&mut out, stride));
        (0..count).map(|row| out[row * stride..][..ROWS].to_vec()).collect()
    }

    // contract: C-14
    #[test]
    fn a_rows_logits_are_the_same_bits_alone_and_in_company_on_each_instruction_set() {
        for kind in [Kind::Q4_1, Kind::Q8_0, Kind::F16] {
            let matrix = matrix(kind);
            let residual: Vec<f32> = numbers(1).take(19 * COLUMNS).collect();
            let first = run(Isa::Scalar, 1, &matrix, &residual);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                assert_eq!(run(isa, 2, &matrix, &residual), first, "{isa} {kind:?}");
                for (row, logits) in residual.chunks_exact(COLUMNS).zip(&first) {
                    assert_eq!(&run(isa, 1, &matrix, row)[0], logits, "{isa} {kind:?}");
                }
            }
        }
    }

    #[test]
    fn two_int8_parts_are_near_a_float_product() {
        for kind in [Kind::Q4_1, Kind::Q8_0] {
            let matrix = matrix(kind);
            let residual: Vec<f32> = numbers(2).take(COLUMNS).collect();
            let mean = residual.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / COLUMNS as f64;
            let x: Vec<f64> = residual.iter().map(|x| f64::from(*x) / (mean + 1e-5).sqrt()).collect();
            let largest = x.iter().fold(0f64, |m, x| m.max(x.abs()));
            let mut weights = [0f32; COLUMNS];
            for (i, logit) in run(Isa::best(), 1, &matrix, &residual)[0].iter().enumerate() {
                matrix.row(i, &mut weights);
                let exact: f64 = weights.iter().zip(&x).map(|(w, x)| f64::from(*w) * x).sum();
                let size: f64 = weights.iter().map(|w| f64::from(w.abs())).sum::<f64>() * largest;
                // Half a unit of the second part is 1 / (2 * 127 * 254) of a block's largest value; one part alone would be 254 times that.
                assert!(
                    (f64::from(*logit) - exact).abs() <= size * 2.0 / (2.0 * 127.0 * 254.0),
                    "{kind:?} row {i}: {logit}, exactly {exact}"
                );
            }
        }
    }
}
