//! Each kernel against a plain twin, to the bit, on every instruction set that this machine has.

use half::f16;
use kv::BlockId;

use super::acts::{Acts, ActsView};
use super::attention::{Attention, ITEM_ROWS};
use super::elementwise::Placement;
use super::matmul::{Epilogue, Product};
use super::pack::{BLOCK, Kind, Matrix};
use super::simd::LANES;
use super::{Isa, Kernels, Scratch};

/// xorshift: the tests need the same numbers at each run, not good ones.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Within -1 .. 1.
    fn float(&mut self) -> f32 {
        (self.next() % 200_001) as f32 / 100_000.0 - 1.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    /// `rows` rows of a GGUF tensor.
    fn tensor(&mut self, kind: Kind, rows: usize, columns: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..rows * columns / BLOCK {
            let scales = match kind {
                Kind::Q4_1 => 2,
                Kind::Q8_0 => 1,
                Kind::F16 => 32,
                Kind::F32 => 0,
            };
            (0..scales).for_each(|_| out.extend_from_slice(&f16::from_f32(self.float()).to_le_bytes()));
            match kind {
                Kind::Q4_1 => (0..16).for_each(|_| out.push(self.next() as u8)),
                Kind::Q8_0 => (0..32).for_each(|_| out.push(self.next() as u8)),
                Kind::F16 => {}
                Kind::F32 => (0..32).for_each(|_| out.extend_from_slice(&self.float().to_le_bytes())),
            }
        }
        out
    }
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// The operand of `rows`, made by `kernels`.
fn acts(memory: &mut Acts, kernels: &Kernels, rows: &[f32], columns: usize) -> ActsView {
    let view = memory.view(rows.len() / columns, columns);
    for (token, row) in rows.chunks_exact(columns).enumerate() {
        // SAFETY: the view was made for these tokens and columns.
        unsafe {
            (kernels.quantise)(view, token, row.as_ptr());
            std::ptr::copy_nonoverlapping(row.as_ptr(), view.floats.add(token * columns), columns);
        }
    }
    view
}

fn multiply(isa: Isa, matrix: &Matrix, epilogue: Epilogue, x: &[f32], old: f32) -> Vec<f32> {
    let (kernels, columns) = (Kernels::of(isa), matrix.columns());
    let (tokens, width) = (x.len() / columns, matrix.tiles() * LANES);
    let mut memory = Acts::default();
    let acts = acts(&mut memory, kernels, x, columns);
    let mut out = vec![old; tokens * width];
    let product = Product { matrix, acts, tokens, out: out.as_mut_ptr(), out_stride: width, epilogue };
    // SAFETY: the operand was just made, the output has room for whole tiles of all tokens.
    unsafe { (kernels.multiply)(&product, 0..matrix.tiles(), &mut Scratch::default()) };
    out
}

/// The definition of a quantised row: values and scale of a block.
fn quantised(block: &[f32]) -> (f32, Vec<i32>) {
    let max = block.iter().fold(0f32, |m, x| m.max(x.abs()));
    if max <= 1e-30 {
        return (0.0, vec![0; BLOCK]);
    }
    (max / 127.0, block.iter().map(|x| (x * (127.0 / max)).round_ties_even() as i32).collect())
}

/// One output element by its definition, from the file's bytes.
fn element(kind: Kind, row: &[u8], x: &[f32]) -> f32 {
    let mut acc = 0f32;
    for (block, x) in row.chunks_exact(kind.block_bytes()).zip(x.chunks_exact(BLOCK)) {
        let half = |i: usize| f16::from_le_bytes([block[i], block[i + 1]]).to_f32();
        let (scale, values) = quantised(x);
        match kind {
            Kind::Q4_1 => {
                let nibble = |i: usize| i32::from(if i < 16 { block[4 + i] & 15 } else { block[4 + i - 16] >> 4 });
                let dot: i32 = (0..BLOCK).map(|i| nibble(i) * values[i]).sum();
                acc = (dot as f32).mul_add(half(0) * scale, acc);
                acc = half(2).mul_add(scale * values.iter().sum::<i32>() as f32, acc);
            }
            Kind::Q8_0 => {
                let dot: i32 = (0..BLOCK).map(|i| i32::from(block[2 + i] as i8) * values[i]).sum();
                acc = (dot as f32).mul_add(half(0) * scale, acc);
            }
            Kind::F16 => x.iter().enumerate().for_each(|(i, &x)| acc = half(2 * i).mul_add(x, acc)),
            Kind::F32 => {
                let weight = |i: usize| f32::from_le_bytes([block[4 * i], block[4 * i + 1], block[4 * i + 2], block[4 * i + 3]]);
                x.iter().enumerate().for_each(|(i, &x)| acc = weight(i).mul_add(x, acc));
            }
        }
    }
    acc
}

const KINDS: [Kind; 4] = [Kind::Q4_1, Kind::Q8_0, Kind::F16, Kind::F32];

// contract: C-14
#[test]
fn products_equal_their_definition_on_every_instruction_set() {
    let mut numbers = Numbers(7);
    for kind in KINDS {
        for columns in [32, 96, 576] {
            let rows = 35; // two whole tiles and a padded one
            let bytes = numbers.tensor(kind, rows, columns);
            let matrix = Matrix::pack(kind, columns, &[&bytes]).unwrap();
            for tokens in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33] {
                let x = numbers.floats(tokens * columns);
                let expected: Vec<f32> = x
                    .chunks_exact(columns)
                    .flat_map(|x| bytes.chunks_exact(columns / BLOCK * kind.block_bytes()).map(move |row| element(kind, row, x)))
                    .collect();
                for isa in isas() {
                    let out = multiply(isa, &matrix, Epilogue::Store, &x, f32::NAN);
                    let out: Vec<f32> = out.chunks_exact(48).flat_map(|row| row[..rows].to_vec()).collect();
                    assert_eq!(bits(&out), bits(&expected), "{kind:?} {columns} columns, {tokens} tokens, {isa}");
                }
            }
        }
    }
}

#[test]
fn epilogues_are_equal_on_every_instruction_set() {
    let mut numbers = Numbers(8);
    let columns = 64;
    for kind in KINDS {
        for gate_kind in KINDS {
            let pack = |numbers: &mut Numbers, kind| Matrix::pack(kind, columns, &[&numbers.tensor(kind, 32, columns)]).unwrap();
            let (matrix, gate) = (pack(&mut numbers, kind), pack(&mut numbers, gate_kind));
            for tokens in [1, 6, 16, 21] {
                let x = numbers.floats(tokens * columns);
                let plain = multiply(Isa::Scalar, &matrix, Epilogue::Store, &x, 0.0);
                let added: Vec<f32> = plain.iter().map(|v| 0.25 + v).collect();
                let gated = multiply(Isa::Scalar, &matrix, Epilogue::Gated(&gate), &x, 0.0);
                for ((g, v), h) in multiply(Isa::Scalar, &gate, Epilogue::Store, &x, 0.0).iter().zip(&plain).zip(&gated) {
                    let silu = g / (1.0 + (-g).exp()) * v;
                    assert!((silu - h).abs() <= 1e-5 * (1.0 + silu.abs()), "{silu} {h}");
                }
                for isa in isas() {
                    assert_eq!(bits(&multiply(isa, &matrix, Epilogue::Add, &x, 0.25)), bits(&added), "{kind:?} {isa}");
                    let out = multiply(isa, &matrix, Epilogue::Gated(&gate), &x, 0.0);
                    assert_eq!(bits(&out), bits(&gated), "{kind:?} {gate_kind:?} {tokens} {isa}");
                }
            }
        }
    }
}

#[test]
fn extreme_values_saturate_nothing() {
    let columns = 64;
    // All weights at the ends of their range, all activations at +-127.
    for (kind, scale_bytes, fill) in [(Kind::Q4_1, 4, 0xff), (Kind::Q8_0, 2, 0x80), (Kind::Q8_0, 2, 0x7f)] {
        let mut bytes = vec![fill; 16 * columns / BLOCK * kind.block_bytes()];
        for block in bytes.chunks_exact_mut(kind.block_bytes()) {
            block[..scale_bytes].copy_from_slice(&[0x00, 0x3c, 0x00, 0x3c][..scale_bytes]);
        }
        let matrix = Matrix::pack(kind, columns, &[&bytes]).unwrap();
        for sign in [1.0, -1.0] {
            let x = vec![sign; columns * 16];
            let expected = element(kind, &bytes[..columns / BLOCK * kind.block_bytes()], &x[..columns]);
            for isa in isas() {
                assert!(
                    multiply(isa, &matrix, Epilogue::Store, &x, 0.0).iter().all(|v| v.to_bits() == expected.to_bits()),
                    "{kind:?} {isa}"
                );
            }
        }
    }
}

#[test]
fn packing_loses_nothing() {
    let mut numbers = Numbers(9);
    for kind in KINDS {
        let (a, b) = (numbers.tensor(kind, 16, 64), numbers.tensor(kind, 5, 64));
        let matrix = Matrix::pack(kind, 64, &[&a, &b]).unwrap();
        assert_eq!((matrix.rows(), matrix.tiles()), (21, 2));
        let float = matrix.to_float().unwrap();
        let mut one_hot = vec![0f32; 64];
        let (mut row, mut again) = (vec![0f32; 64], vec![0f32; 64]);
        for r in 0..21 {
            matrix.row(r, &mut row);
            float.row(r, &mut again);
            assert_eq!(bits(&row), bits(&again));
            let source = if r < 16 { &a[r * a.len() / 16..][..a.len() / 16] } else { &b[(r - 16) * b.len() / 5..][..b.len() / 5] };
            for c in 0..64 {
                // One activation of 127 quantises to itself, so the product is the weight times 127.
                one_hot.fill(0.0);
                one_hot[c] = 127.0;
                let product = element(kind, source, &one_hot);
                assert!((product - row[c] * 127.0).abs() <= 1e-3, "{kind:?} row {r} column {c}: {product} {}", row[c] * 127.0);
            }
        }
    }
}

#[test]
fn norms_and_quantised_rows_are_equal() {
    let mut numbers = Numbers(10);
    let columns = 96;
    for round in 0..20 {
        let mut x = numbers.floats(columns);
        if round % 4 == 0 {
            x[..32].fill(0.0);
        }
        let weights = numbers.floats(columns);
        let mut seen: Option<(Vec<u32>, Vec<i8>, Vec<u32>)> = None;
        for isa in isas() {
            let (kernels, mut memory, mut out) = (Kernels::of(isa), Acts::default(), vec![0f32; columns]);
            let view = memory.view(18, columns);
            // SAFETY: all rows have `columns` values and the view has room for token 17.
            let (values, scales) = unsafe {
                (kernels.normalise)(x.as_ptr(), weights.as_ptr(), columns, 1e-5, out.as_mut_ptr());
                (kernels.quantise)(view, 17, x.as_ptr());
                let blocks = (0..3).map(|b| view.index(17, b));
                let values = blocks.clone().flat_map(|at| (0..32).map(move |i| *view.values.add(at * 32 + i))).collect();
                let scales =
                    blocks.flat_map(|at| [*view.scales.add(at), *view.scaled_sums.add(at), *view.sums.add(at) as f32]).collect::<Vec<_>>();
                (values, bits(&scales))
            };
            let expected: Vec<i8> = x.chunks_exact(32).flat_map(|b| quantised(b).1).map(|v| v as i8).collect();
            assert_eq!(values, expected, "{isa}");
            let result = (bits(&out), values, scales);
            assert_eq!(seen.get_or_insert_with(|| result.clone()), &result, "{isa}");
        }
        let mean = x.iter().map(|x| f64::from(x * x)).sum::<f64>() / columns as f64;
        let expected = f64::from(x[40] * weights[40]) / (mean + 1e-5).sqrt();
        let out = seen.unwrap().0;
        assert!((f64::from(f32::from_bits(out[40])) - expected).abs() < 1e-5);
    }
}

/// A pool of one layer that is NaN where nothing was written, a sequence in it, and its queries.
struct Sequence {
    block_tokens: usize,
    kv_heads: usize,
    group: usize,
    dim: usize,
    keys: Vec<u16>,
    values: Vec<u16>,
    table: Vec<BlockId>,
    queries: Vec<f32>,
    len: usize,
}

impl Sequence {
    /// Written by the kernels' own `place`, token by token.
    fn new(isa: Isa, numbers: &mut Numbers, block_tokens: usize, (kv_heads, group, dim): (usize, usize, usize), len: usize) -> Sequence {
        let blocks = len.div_ceil(block_tokens);
        let table: Vec<BlockId> = (0..blocks).map(|b| BlockId(((b * 7 + 3) % (blocks + 8)) as u32)).collect();
        let size = (blocks + 8) * block_tokens * kv_heads * dim;
        let queries = vec![0f32; kv_heads * len * group * dim];
        let mut s =
            Sequence { block_tokens, kv_heads, group, dim, keys: vec![0x7e00; size], values: vec![0x7e00; size], table, queries, len };
        for token in 0..len {
            let projected = numbers.floats((group + 2) * kv_heads * dim);
            let angles = numbers.floats(2 * dim);
            s.place(isa, token, &projected, &angles);
        }
        s
    }

    fn place(&mut self, isa: Isa, token: usize, projected: &[f32], angles: &[f32]) {
        let (bt, dim) = (self.block_tokens, self.dim);
        let block = self.table[token / bt].0 as usize * self.kv_heads * bt * dim;
        // SAFETY: the table's blocks are inside the planes.
        unsafe {
            let placement = Placement {
                projected: projected.as_ptr(),
                cos: angles.as_ptr(),
                sin: angles.as_ptr().add(dim),
                head_dim: dim,
                heads: self.kv_heads * self.group,
                kv_heads: self.kv_heads,
                scale: 0.25,
                queries: self.queries.as_mut_ptr().add(token * self.group * dim),
                queries_stride: self.len * self.group * dim,
                key: self.keys.as_mut_ptr().add(block + (token % bt / LANES * LANES) * dim + token % LANES),
                value: self.values.as_mut_ptr().add(block + token % bt * dim),
                block_stride: bt * dim,
            };
            (Kernels::of(isa).place)(&placement, &mut Scratch::default());
        }
    }

    /// Output of queries `from .. from + count` of a head.
    fn attend(&self, isa: Isa, head: usize, from: usize, count: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; count * self.kv_heads * self.group * self.dim];
        let job = Attention {
            keys: self.keys.as_ptr(),
            values: self.values.as_ptr(),
            table: &self.table,
            block_tokens: self.block_tokens,
            kv_heads: self.kv_heads,
            head,
            group: self.group,
            head_dim: self.dim,
            queries: self.queries[(head * self.len + from) * self.group * self.dim..].as_ptr(),
            position: from,
            count,
            out: out.as_mut_ptr(),
            out_stride: self.kv_heads * self.group * self.dim,
        };
        // SAFETY: all positions up to the last query's are written.
        unsafe { (Kernels::of(isa).attend)(&job, &mut Scratch::default()) };
        let width = self.group * self.dim;
        out.chunks_exact(self.kv_heads * width).flat_map(|row| row[head * width..][..width].to_vec()).collect()
    }

    /// The same in f64 by the textbook.
    fn textbook(&self, head: usize, query: usize, member: usize) -> Vec<f64> {
        let (bt, dim) = (self.block_tokens, self.dim);
        let value = |plane: &[u16], at: usize| f64::from(f16::from_bits(plane[at]).to_f32());
        let start = |p: usize| (self.table[p / bt].0 as usize * self.kv_heads + head) * bt * dim;
        let key = |p: usize, d: usize| value(&self.keys, start(p) + (p % bt / LANES * LANES) * dim + d * LANES + p % LANES);
        let q = &self.queries[((head * self.len + query) * self.group + member) * dim..][..dim];
        let scores: Vec<f64> = (0..=query).map(|p| (0..dim).map(|d| f64::from(q[d]) * key(p, d)).sum()).collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        (0..dim).map(|d| (0..=query).map(|p| weights[p] / sum * value(&self.values, start(p) + p % bt * dim + d)).sum()).collect()
    }
}

// contract: C-14
#[test]
fn attention_of_a_query_is_the_same_in_any_group_on_any_instruction_set() {
    let mut numbers = Numbers(11);
    for (kv_heads, group, dim) in [(3, 3, 64), (1, 1, 16), (2, 2, 32), (2, 4, 48), (1, 7, 128), (1, 25, 16)] {
        let len = 83;
        let sequence = Sequence::new(Isa::Scalar, &mut numbers, 16, (kv_heads, group, dim), len);
        let width = group * dim;
        for head in 0..kv_heads {
            let alone: Vec<f32> = (0..len).flat_map(|i| sequence.attend(Isa::Scalar, head, i, 1)).collect();
            for member in 0..group {
                let expected = sequence.textbook(head, 77, member);
                for (d, e) in expected.iter().enumerate() {
                    assert!((f64::from(alone[77 * width + member * dim + d]) - e).abs() < 1e-4);
                }
            }
            for isa in isas() {
                for step in [1, 2, 5, (ITEM_ROWS / group).max(1), 83] {
                    for from in (0..len).step_by(step) {
                        let count = step.min(len - from);
                        let out = sequence.attend(isa, head, from, count);
                        assert_eq!(bits(&out), bits(&alone[from * width..][..count * width]), "{isa} group {group} dim {dim} step {step}");
                    }
                }
            }
        }
    }
}

#[test]
fn blocks_of_32_positions_and_every_instruction_sets_writes_give_the_same() {
    let shape = (2, 3, 32);
    let reference = Sequence::new(Isa::Scalar, &mut Numbers(12), 16, shape, 70);
    let expected: Vec<f32> = (0..2).flat_map(|head| reference.attend(Isa::Scalar, head, 0, 70)).collect();
    for isa in isas() {
        for block_tokens in [16, 32, 48] {
            let sequence = Sequence::new(isa, &mut Numbers(12), block_tokens, shape, 70);
            assert_eq!(bits(&sequence.queries), bits(&reference.queries), "{isa}");
            let out: Vec<f32> = (0..2).flat_map(|head| sequence.attend(isa, head, 0, 70)).collect();
            assert_eq!(bits(&out), bits(&expected), "{isa}, blocks of {block_tokens}");
        }
    }
}

#[test]
fn k_and_v_stay_finite() {
    for isa in isas() {
        let mut sequence = Sequence::new(isa, &mut Numbers(13), 16, (1, 1, 16), 1);
        sequence.place(isa, 0, &[[0.0; 16], [f32::INFINITY; 16], [-1e30; 16]].concat(), &[[1.0; 16], [0.0; 16]].concat());
        assert_eq!(f16::from_bits(sequence.values[sequence.table[0].0 as usize * 256]).to_f32(), -65504.0, "{isa}");
        let keys = &sequence.keys[sequence.table[0].0 as usize * 256..][..256];
        assert!((0..16).all(|d| f16::from_bits(keys[d * 16]).is_finite()), "{isa}");
    }
}
