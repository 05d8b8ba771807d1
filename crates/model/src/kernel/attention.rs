//! Attention over the block table.
//!
//! A query walks its positions from 0 in groups of 16 lanes, whatever the block size: scores by lane, one maximum, exp, one sum by a fixed
//! tree, then V row by row in ascending order. Several queries and heads are worked on together only to share loads.
//!
//! Invariant: a query's result depends on the keys and values of its positions alone: not on which queries share its group, nor on what lies
//! behind its last position (those lanes are set, and V rows behind the group's last position are not read).
#![allow(unsafe_op_in_unsafe_fn, reason = "each kernel is unsafe as a whole, for the one reason that its Safety section states")]

use kv::BlockId;

use super::simd::{LANES, Lanes};

/// Rows (queries times heads) of one work item at most, unless one query alone has more.
pub const ITEM_ROWS: usize = 24;

/// Consecutive queries of one sequence, over one K head.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// This layer's K: [block][head][16 positions of a group][head_dim][16].
    pub keys: *const u16,
    /// This layer's V: [block][head][position][head_dim].
    pub values: *const u16,
    /// The sequence's blocks.
    pub table: &'a [BlockId],
    /// Positions a block, a multiple of 16.
    pub block_tokens: usize,
    /// K heads.
    pub kv_heads: usize,
    /// Which K head.
    pub head: usize,
    /// Query heads a K head.
    pub group: usize,
    /// Size of a head, a multiple of 16.
    pub head_dim: usize,
    /// Queries: [query][head of the group][head_dim].
    pub queries: *const f32,
    /// Position of the first query.
    pub position: usize,
    /// Number of queries.
    pub count: usize,
    /// The first query's output for query head 0.
    pub out: *mut f32,
    /// Distance between two queries' outputs.
    pub out_stride: usize,
}

impl Attention<'_> {
    /// Offset of a group of 16 positions in `keys`; the same in `values`.
    #[inline(always)]
    unsafe fn offset(&self, group: usize) -> usize {
        let position = group * LANES;
        let block = self.table.get_unchecked(position / self.block_tokens).0 as usize;
        ((block * self.kv_heads + self.head) * self.block_tokens + position % self.block_tokens) * self.head_dim
    }
}

/// Computes the item; `scratch` grows to the scores of its rows.
///
/// # Safety
/// The instruction set exists; the table covers the last query's position with blocks of the pool whose K and V up to it are written; the
/// addresses are valid for the sizes given and nobody else writes `out` meanwhile.
#[inline(always)]
pub unsafe fn attend<S: Lanes>(job: &Attention, scratch: &mut Vec<f32>) {
    let rows = job.count * job.group;
    let mut row = 0;
    macro_rules! rows_of {
        ($m:literal, $c:literal) => {
            while row + $m <= rows {
                rows_together::<S, $m, $c>(job, row, scratch);
                row += $m;
            }
        };
    }
    if S::ROWS >= ITEM_ROWS {
        rows_of!(24, 1);
        rows_of!(12, 2);
        rows_of!(6, 4);
        rows_of!(3, 4);
    } else {
        rows_of!(6, 1);
        rows_of!(3, 2);
    }
    rows_of!(1, 4);
}

/// `M` rows from `row` on, `C` vectors of positions or dimensions at a time.
///
/// Rows lie interleaved by 16 columns, [16 columns][row][16], so that the addresses of one column's rows differ by constants.
#[inline(always)]
unsafe fn rows_together<S: Lanes, const M: usize, const C: usize>(job: &Attention, row: usize, scratch: &mut Vec<f32>) {
    // Up to the last position that a row of these may see: a row that sees fewer has weight 0 there, which adds 0 exactly.
    let last = job.position + (row + M - 1) / job.group + 1;
    let groups = last.div_ceil(LANES);
    let (needed, scores_at) = (M * (job.head_dim + groups * LANES), M * job.head_dim);
    if scratch.len() < needed {
        scratch.resize(needed, 0.0);
    }
    let queries = scratch.as_mut_ptr();
    let scores = queries.add(scores_at);
    for m in 0..M {
        for d in (0..job.head_dim).step_by(LANES) {
            S::store(queries.add(d * M + m * LANES), S::load(job.queries.add((row + m) * job.head_dim + d)));
        }
    }
    score::<S, M, C>(job, queries, groups, scores);
    let mut inverses = [0f32; M];
    for m in 0..M {
        inverses[m] = soften::<S>(scores.add(m * LANES), M * LANES, job.position + (row + m) / job.group + 1, groups);
    }
    weigh::<S, M, C>(job, row, scores, last, &inverses);
}

/// acc[m][c] += a[m][k] * b[c][k] for k ascending below `steps`, at most 16.
#[inline(always)]
unsafe fn outer<S: Lanes, const M: usize, const C: usize>(
    acc: &mut [[S::F; C]; M],
    a: *const f32,
    steps: usize,
    b: [*const u16; C],
    b_stride: usize,
) {
    for k in 0..steps {
        let mut v = [S::zero(); C];
        for c in 0..C {
            v[c] = S::load_half(b[c].add(k * b_stride));
        }
        for m in 0..M {
            let x = S::set1(*a.add(m * LANES + k));
            for c in 0..C {
                acc[m][c] = S::fma(x, v[c], acc[m][c]);
            }
        }
    }
}

/// Scores of `M` rows, `C` groups of positions at a time.
#[inline(always)]
unsafe fn score<S: Lanes, const M: usize, const C: usize>(job: &Attention, queries: *const f32, groups: usize, out: *mut f32) {
    let mut g = 0;
    macro_rules! groups_of {
        ($c:expr) => {
            while g + $c <= groups {
                let mut acc = [[S::zero(); $c]; M];
                let mut keys = [job.keys; $c];
                for c in 0..$c {
                    keys[c] = job.keys.add(job.offset(g + c));
                }
                for d in (0..job.head_dim).step_by(LANES) {
                    outer::<S, M, { $c }>(&mut acc, queries.add(d * M), LANES, keys.map(|k| k.add(d * LANES)), LANES);
                }
                for m in 0..M {
                    for c in 0..$c {
                        S::store(out.add(((g + c) * M + m) * LANES), acc[m][c]);
                    }
                }
                g += $c;
            }
        };
    }
    groups_of!(C);
    if C > 1 {
        groups_of!(1);
    }
}

/// Turns one row's scores of the first `n` positions into exp(score - max), sets the others to 0, and returns 1 / sum. The row's groups of
/// 16 positions are `stride` apart.
#[inline(always)]
unsafe fn soften<S: Lanes>(scores: *mut f32, stride: usize, n: usize, groups: usize) -> f32 {
    let own = n.div_ceil(LANES);
    let tail = scores.add((own - 1) * stride);
    for lane in n - (own - 1) * LANES..LANES {
        *tail.add(lane) = f32::MIN;
    }
    let mut max = S::load(scores);
    for g in 1..own {
        max = S::max(max, S::load(scores.add(g * stride)));
    }
    let max = S::set1(S::max_lane(max));
    let mut sum = S::zero();
    for g in 0..own {
        let at = scores.add(g * stride);
        S::store(at, S::exp(S::sub(S::load(at), max)));
        if g + 1 == own {
            for lane in n - g * LANES..LANES {
                *at.add(lane) = 0.0;
            }
        }
        sum = S::add(sum, S::load(at));
    }
    for g in own..groups {
        S::store(scores.add(g * stride), S::zero());
    }
    1.0 / S::sum(sum)
}

/// Sums V weighted by the softened scores, for `M` rows, `C` times 16 dimensions at a time.
#[inline(always)]
unsafe fn weigh<S: Lanes, const M: usize, const C: usize>(
    job: &Attention,
    row: usize,
    scores: *const f32,
    last: usize,
    inverses: &[f32; M],
) {
    let mut d = 0;
    macro_rules! dims_of {
        ($c:expr) => {
            while d + $c * LANES <= job.head_dim {
                let mut acc = [[S::zero(); $c]; M];
                for g in 0..last.div_ceil(LANES) {
                    let value = job.values.add(job.offset(g) + d);
                    let mut values = [value; $c];
                    for c in 0..$c {
                        values[c] = value.add(c * LANES);
                    }
                    outer::<S, M, { $c }>(&mut acc, scores.add(g * M * LANES), LANES.min(last - g * LANES), values, job.head_dim);
                }
                for m in 0..M {
                    let (query, head) = ((row + m) / job.group, job.head * job.group + (row + m) % job.group);
                    let out = job.out.add(query * job.out_stride + head * job.head_dim + d);
                    for c in 0..$c {
                        // Plus 0: a sum of -0 becomes +0, so that adding weight-0 terms can't show.
                        let v = S::mul(S::add(acc[m][c], S::zero()), S::set1(inverses[m]));
                        S::store(out.add(c * LANES), v);
                    }
                }
                d += $c * LANES;
            }
        };
    }
    dims_of!(C);
    if C > 1 {
        dims_of!(1);
    }
}
