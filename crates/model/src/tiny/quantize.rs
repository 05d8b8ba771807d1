//! f32 rows into the element types a tiny model may have, as ggml's reference quantizers do it (`quantize_row_*_ref` in ggml-quants.c).

use half::f16;

use crate::gguf::TensorKind;

/// Whether `kind` can be written.
pub(super) fn can(kind: TensorKind) -> bool {
    matches!(kind, TensorKind::F32 | TensorKind::F16 | TensorKind::Q4_1 | TensorKind::Q8_0)
}

/// The bytes of `values` in `kind`; none where `can` says no.
pub(super) fn encode(kind: TensorKind, values: &[f32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(kind.bytes(values.len() as u64).unwrap_or(0) as usize);
    match kind {
        TensorKind::F32 => values.iter().for_each(|x| out.extend(x.to_le_bytes())),
        TensorKind::F16 => values.iter().for_each(|&x| out.extend(f16::from_f32(x).to_le_bytes())),
        TensorKind::Q4_1 => values.chunks_exact(32).for_each(|block| q4_1(block, &mut out)),
        TensorKind::Q8_0 => values.chunks_exact(32).for_each(|block| q8_0(block, &mut out)),
        _ => {}
    }
    out
}

/// Scale, minimum, then 16 bytes of two 4-bit numbers: element `i` low, element `i + 16` high.
fn q4_1(block: &[f32], out: &mut Vec<u8>) {
    let min = block.iter().copied().fold(f32::INFINITY, f32::min);
    let max = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = (max - min) / 15.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    out.extend(f16::from_f32(scale).to_le_bytes());
    out.extend(f16::from_f32(min).to_le_bytes());
    let level = |x: f32| ((x - min) * inverse + 0.5).min(15.0) as u8;
    out.extend((0..16).map(|i| level(block[i]) | level(block[i + 16]) << 4));
}

/// Scale, then 32 signed bytes.
fn q8_0(block: &[f32], out: &mut Vec<u8>) {
    let largest = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    out.extend(f16::from_f32(scale).to_le_bytes());
    out.extend(block.iter().map(|x| (x * inverse).round() as i8 as u8));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_back_within_half_a_level() {
        let values: Vec<f32> = (0..32).map(|i| (i as f32 - 11.0) * 0.37).collect();
        let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).to_f32();
        let q8 = encode(TensorKind::Q8_0, &values);
        let q4 = encode(TensorKind::Q4_1, &values);
        assert_eq!((q8.len(), q4.len()), (34, 20));
        for (i, x) in values.iter().enumerate() {
            let byte = q4[4 + i % 16];
            let level = if i < 16 { byte & 15 } else { byte >> 4 };
            assert!((half(&q4) * f32::from(level) + half(&q4[2..]) - x).abs() < half(&q4) * 0.51);
            assert!((half(&q8) * f32::from(q8[2 + i] as i8) - x).abs() < half(&q8) * 0.6);
        }
        assert_eq!(encode(TensorKind::Q8_0, &[0.0; 32]), vec![0; 34]);
    }
}
