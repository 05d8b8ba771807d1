//! Rotary positions: the angle of each pair of dimensions at a position.
//!
//! Invariant: the same bits on every machine: sine and cosine are computed here, not by a libm.

/// The angles' frequencies.
pub struct Rope {
    frequencies: Vec<f64>,
    head_dim: usize,
}

impl Rope {
    /// Frequencies `base^(-2i / dims)`, each divided by its factor where the model has factors. Dimensions of a head past `dims` do not turn.
    pub fn new(base: f32, dims: usize, head_dim: usize, factors: Option<&[f32]>) -> Rope {
        let factor = |i: usize| factors.and_then(|f| f.get(i)).map_or(1.0, |&f| f64::from(f));
        let frequencies = (0..dims / 2).map(|i| f64::from(base).powf(-2.0 * i as f64 / dims as f64) / factor(i)).collect();
        Rope { frequencies, head_dim }
    }

    /// Writes cos of each dimension, then sin of each, negative in the even ones: `2 * head_dim` floats.
    pub fn write(&self, position: usize, out: &mut [f32]) {
        let (cos, sin) = out.split_at_mut(self.head_dim);
        cos.fill(1.0);
        sin.fill(0.0);
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let (s, c) = sin_cos(position as f64 * frequency);
            cos[2 * i..2 * i + 2].fill(c as f32);
            sin[2 * i] = -s as f32;
            sin[2 * i + 1] = s as f32;
        }
    }
}

/// Sine and cosine of 0 <= x < 10^6, to about 1e-15: the quarter turn is taken off in two parts, the rest by Taylor's series up to x^17.
fn sin_cos(x: f64) -> (f64, f64) {
    // pi / 2 to 33 bits, so that a multiple of it is exact, and the rest.
    const QUARTER: f64 = 1.570_796_326_734_125_6;
    const QUARTER_REST: f64 = 6.077_100_506_506_192e-11;
    let turns = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = (x - turns * QUARTER) - turns * QUARTER_REST;
    let square = r * r;
    let series = |first: u32| {
        let mut sum = 0.0;
        for n in (0..9).rev().map(|k| first + 2 * k) {
            sum = 1.0 - sum * square / f64::from(n * (n + 1));
        }
        sum
    };
    // sin r = r (1 - r^2 / (2 * 3) (1 - r^2 / (4 * 5) (...))), cos r = 1 - r^2 / (1 * 2) (1 - r^2 / (3 * 4) (...)).
    let (sin, cos) = (r * series(2), series(1));
    match turns as i64 & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_system() {
        for i in 0..200_000u32 {
            let x = f64::from(i) * 1.374_1;
            let (s, c) = sin_cos(x);
            assert!((s - x.sin()).abs() < 1e-14 && (c - x.cos()).abs() < 1e-14, "{x}: {s} {c}");
        }
    }

    #[test]
    fn dimensions_past_the_rotary_ones_stay() {
        let mut out = vec![0.0; 64];
        Rope::new(10_000.0, 16, 32, None).write(7, &mut out);
        assert!(out[16..32].iter().all(|&c| c == 1.0) && out[48..].iter().all(|&s| s == 0.0));
        assert_eq!((out[0], out[32], out[33]), (7f32.cos(), -7f32.sin(), 7f32.sin()));
    }
}
