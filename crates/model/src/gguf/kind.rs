//! The element types a GGUF tensor may have: number, name, and how many bytes a block of how many elements takes.
//!
//! Every type that ggml has given a layout is here, so that a file can be listed even where the engine cannot compute with it.
//! Invariant: `block_len` and `block_bytes` are never zero.

/// How a tensor's elements are stored. Numbers and layouts are those of ggml (`ggml.h`, `ggml-common.h`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(non_camel_case_types, missing_docs)] // ggml's own names, which say what they are; changed ones would only be harder to find
pub enum TensorKind {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ2_XXS,
    IQ2_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ2_S,
    IQ4_XS,
    I8,
    I16,
    I32,
    I64,
    F64,
    IQ1_M,
    BF16,
    TQ1_0,
    TQ2_0,
    MXFP4,
}

/// A row of the table: kind, ggml's number, name, elements a block, bytes a block.
type Layout = (TensorKind, u32, &'static str, u64, u64);

use TensorKind::*;

/// In the order of the enum, so that a kind's row is at its discriminant.
const TABLE: [Layout; 32] = [
    (F32, 0, "F32", 1, 4),
    (F16, 1, "F16", 1, 2),
    (Q4_0, 2, "Q4_0", 32, 18),
    (Q4_1, 3, "Q4_1", 32, 20),
    (Q5_0, 6, "Q5_0", 32, 22),
    (Q5_1, 7, "Q5_1", 32, 24),
    (Q8_0, 8, "Q8_0", 32, 34),
    (Q8_1, 9, "Q8_1", 32, 36),
    (Q2_K, 10, "Q2_K", 256, 84),
    (Q3_K, 11, "Q3_K", 256, 110),
    (Q4_K, 12, "Q4_K", 256, 144),
    (Q5_K, 13, "Q5_K", 256, 176),
    (Q6_K, 14, "Q6_K", 256, 210),
    (Q8_K, 15, "Q8_K", 256, 292),
    (IQ2_XXS, 16, "IQ2_XXS", 256, 66),
    (IQ2_XS, 17, "IQ2_XS", 256, 74),
    (IQ3_XXS, 18, "IQ3_XXS", 256, 98),
    (IQ1_S, 19, "IQ1_S", 256, 50),
    (IQ4_NL, 20, "IQ4_NL", 32, 18),
    (IQ3_S, 21, "IQ3_S", 256, 110),
    (IQ2_S, 22, "IQ2_S", 256, 82),
    (IQ4_XS, 23, "IQ4_XS", 256, 136),
    (I8, 24, "I8", 1, 1),
    (I16, 25, "I16", 1, 2),
    (I32, 26, "I32", 1, 4),
    (I64, 27, "I64", 1, 8),
    (F64, 28, "F64", 1, 8),
    (IQ1_M, 29, "IQ1_M", 256, 56),
    (BF16, 30, "BF16", 1, 2),
    (TQ1_0, 34, "TQ1_0", 256, 54),
    (TQ2_0, 35, "TQ2_0", 256, 66),
    (MXFP4, 39, "MXFP4", 32, 17),
];

impl TensorKind {
    /// The kind with ggml's number `id`, if it is a known one.
    pub fn from_id(id: u32) -> Option<TensorKind> {
        TABLE.iter().find(|row| row.1 == id).map(|row| row.0)
    }

    /// ggml's number, as it stands in the file.
    pub fn id(self) -> u32 {
        self.row().1
    }

    /// ggml's name.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Elements a block; a row is a whole number of blocks.
    pub fn block_len(self) -> u64 {
        self.row().3
    }

    /// Bytes a block.
    pub fn block_bytes(self) -> u64 {
        self.row().4
    }

    /// Bytes of `elements` elements; `None` where that is no whole number of blocks or overflows.
    pub fn bytes(self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (elements / self.block_len()).checked_mul(self.block_bytes())
    }

    fn row(self) -> &'static Layout {
        &TABLE[self as usize]
    }
}

impl std::fmt::Display for TensorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_at_its_row_and_found_by_its_number() {
        for (at, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, at);
            assert_eq!(TensorKind::from_id(row.1), Some(row.0));
            assert_eq!(row.0.bytes(row.3 * 7), Some(row.4 * 7));
        }
        assert_eq!(TensorKind::from_id(4), None);
        assert_eq!(Q4_1.bytes(33), None);
        assert_eq!(F64.bytes(u64::MAX), None);
    }
}
