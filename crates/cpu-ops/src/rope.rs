//! Rotary position embedding (Su et al., 2021) with half-split pairing: in every head, elements i and
//! i + head_dim / 2 turn by `position * inv_freq[i]`.
//!
//! ```text
//! forward   x_i' = x_i cos - x_j sin      x_j' = x_j cos + x_i sin        j = i + head_dim / 2
//! inverse   the transpose: sin with the other sign. It is the gradient, and with an attention factor of 1
//!           also the way back.
//! ```

use crate::row_tasks::{expect, row_chunks, rows_per_task};
use crate::simd::{Simd, multiversion};
use crate::{Error, MatMut, Result, Threads};

/// Cosines and sines for positions 0 to some limit.
#[derive(Debug, Clone)]
pub struct RopeTable {
    half: usize,
    positions: usize,
    /// `[positions, half]`, already multiplied by the attention factor.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// The table for `positions` positions and a head dimension of `2 * inv_freq.len()`.
    ///
    /// The angle is `position * inv_freq[i]` rounded to f32, as in transformers; its cosine and sine are
    /// rounded once and multiplied by `attention_factor` (1 except for scalings such as YaRN).
    ///
    /// # Errors
    /// `inv_freq` is empty; it or the factor is not finite; more than 2^24 positions, which f32 cannot count.
    pub fn new(inv_freq: &[f32], attention_factor: f32, positions: usize) -> Result<Self> {
        const NAME: &str = "RopeTable::new";
        let unsupported = |parameter, value: String, supported| {
            Err(Error::Unsupported { operation: NAME, parameter, value, supported })
        };
        if inv_freq.is_empty() {
            return unsupported("number of frequencies", "0".into(), "the head dimension must be at least 2");
        }
        if let Some(index) = inv_freq.iter().position(|x| !x.is_finite()) {
            return Err(Error::NotFinite { operation: NAME, index, value: inv_freq[index] });
        }
        if !attention_factor.is_finite() {
            return unsupported(
                "attention_factor",
                attention_factor.to_string(),
                "a finite number is needed",
            );
        }
        if positions > 1 << 24 {
            return unsupported("positions", positions.to_string(), "at most 2^24 can be told apart in f32");
        }
        let half = inv_freq.len();
        let (mut cos, mut sin) = (Vec::with_capacity(positions * half), Vec::with_capacity(positions * half));
        for position in 0..positions {
            for frequency in inv_freq {
                let (s, c) = f64::from(position as f32 * frequency).sin_cos();
                cos.push(c as f32 * attention_factor);
                sin.push(s as f32 * attention_factor);
            }
        }
        Ok(Self { half, positions, cos, sin })
    }

    /// How many positions the table has.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Size of the heads that it turns.
    pub fn head_dim(&self) -> usize {
        2 * self.half
    }
}

/// Which way to turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// By the angle.
    Forward,
    /// The transpose, for gradients.
    Inverse,
}

/// Turns all heads of every row of `x` (`[tokens, heads * head_dim]`) in place, row `t` by `positions[t]`.
///
/// ```
/// use cpu_ops::{MatMut, Threads, rope};
///
/// let table = rope::RopeTable::new(&[1.0], 1.0, 8)?;
/// let mut x = [1.0, 0.0];
/// let heads = MatMut::new(&mut x, 1, 2)?;
/// rope::rotate(&Threads::new(1)?, &table, &[1], 2, rope::Direction::Forward, heads)?;
/// assert!((x[0] - 0.5403).abs() < 1e-4 && (x[1] - 0.8415).abs() < 1e-4);
/// # Ok::<(), cpu_ops::Error>(())
/// ```
///
/// # Errors
/// `head_dim` is not the table's or does not divide the columns, the number of positions is not that of rows,
/// or a position lies beyond the table; then nothing has been changed.
pub fn rotate(
    threads: &Threads,
    table: &RopeTable,
    positions: &[u32],
    head_dim: usize,
    direction: Direction,
    x: MatMut<'_>,
) -> Result<()> {
    const NAME: &str = "rope::rotate";
    expect(NAME, "head_dim", table.head_dim(), head_dim)?;
    expect(NAME, "columns beyond whole heads", 0, x.cols() % head_dim)?;
    expect(NAME, "number of positions", x.rows(), positions.len())?;
    if let Some(row) = positions.iter().position(|&p| p as usize >= table.positions) {
        return Err(Error::Index {
            operation: NAME,
            what: "position",
            index: positions[row].into(),
            row,
            limit: table.positions,
        });
    }
    if x.rows() == 0 || x.cols() == 0 {
        return Ok(());
    }
    let simd = Simd::detect();
    let rows = rows_per_task(x.cols());
    threads.run_on(row_chunks(x, rows), |task, mut x| {
        for row in 0..x.rows() {
            let at = positions[task * rows + row] as usize * table.half;
            let (cos, sin) = (&table.cos[at..at + table.half], &table.sin[at..at + table.half]);
            rotate_row(simd, cos, sin, direction == Direction::Inverse, x.row_mut(row));
        }
    });
    Ok(())
}

multiversion! {
    fn rotate_row(cos: &[f32], sin: &[f32], inverse: bool, row: &mut [f32]) = rotate_row_body;
}

#[inline(always)]
fn rotate_row_body(cos: &[f32], sin: &[f32], inverse: bool, row: &mut [f32]) {
    let sign = if inverse { -1.0 } else { 1.0 };
    for head in row.chunks_exact_mut(2 * cos.len()) {
        let (first, second) = head.split_at_mut(cos.len());
        for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            let s = s * sign;
            (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference::{self, UNIT_ROUNDOFF};

    fn inv_freq(head_dim: usize) -> Vec<f32> {
        (0..head_dim / 2).map(|i| 10000f64.powf(-2.0 * i as f64 / head_dim as f64) as f32).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn both_directions_equal_the_oracle(
            half in 1usize..40,
            heads in 1usize..4,
            positions in prop::collection::vec(0u32..300, 0..6),
            factor in prop::sample::select(vec![1.0f32, 1.3]),
            inverse in any::<bool>(),
        ) {
            let head_dim = 2 * half;
            let (rows, cols) = (positions.len(), heads * head_dim);
            let x: Vec<f32> = (0..rows * cols).map(|i| ((i * 29 % 83) as f32 - 41.0) * 0.1).collect();
            let frequencies = inv_freq(head_dim);
            let wide: Vec<f64> = x.iter().map(|&x| x.into()).collect();
            let expected =
                reference::rope::rotate(&wide, heads, &frequencies, factor.into(), &positions, inverse);
            let table = RopeTable::new(&frequencies, factor, 300).unwrap();
            let direction = if inverse { Direction::Inverse } else { Direction::Forward };
            let mut first: Option<Vec<f32>> = None;
            for count in 1..=4 {
                let mut y = x.clone();
                let out = MatMut::new(&mut y, rows, cols).unwrap();
                rotate(&Threads::new(count).unwrap(), &table, &positions, head_dim, direction, out).unwrap();
                for i in 0..rows * cols {
                    // Cosine and factor round once each, the product and the sum once more: 4 u for each of
                    // two terms, whose magnitudes are below |x_i| + |x_j| times the factor.
                    let pair = if i % head_dim < half { i + half } else { i - half };
                    let size = f64::from(factor) * (wide[i].abs() + wide[pair].abs());
                    let difference = (f64::from(y[i]) - expected[i]).abs();
                    prop_assert!(difference <= 4.0 * UNIT_ROUNDOFF * size, "{}: {} {}", i, y[i], expected[i]);
                }
                let first = first.get_or_insert_with(|| y.clone());
                prop_assert_eq!(&y, first);
            }
            for simd in Simd::all() {
                let mut y = x.clone();
                for (row, &position) in positions.iter().enumerate() {
                    let at = position as usize * half;
                    let (cos, sin) = (&table.cos[at..at + half], &table.sin[at..at + half]);
                    rotate_row(simd, cos, sin, inverse, &mut y[row * cols..(row + 1) * cols]);
                }
                prop_assert_eq!(Some(&y), first.as_ref());
            }
        }
    }

    #[test]
    fn tables_equal_those_of_transformers() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/rope_tables.json");
        let doc: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).expect(path)).expect(path);
        let floats = |value: &serde_json::Value| -> Vec<f32> {
            let hex = value.as_str().expect("an array in hexadecimal");
            (0..hex.len())
                .step_by(8)
                .map(|i| f32::from_bits(u32::from_str_radix(&hex[i..i + 8], 16).unwrap().swap_bytes()))
                .collect()
        };
        let mut compared = 0;
        for case in doc["cases"].as_array().unwrap() {
            let factor = case["attention_factor"].as_f64().unwrap() as f32;
            let inv_freq = floats(&case["inv_freq"]);
            let table = RopeTable::new(&inv_freq, factor, 3000).unwrap();
            for (position, expected) in case["at"].as_object().unwrap() {
                let position: usize = position.parse().unwrap();
                for (ours, name) in [(&table.cos, "cos"), (&table.sin, "sin")] {
                    let ours = &ours[position * table.half..][..table.half];
                    for (x, y) in ours.iter().zip(floats(&expected[name])) {
                        // Two units in the last place of 1 (theirs) times the factor, and its rounding.
                        let tolerance = 5.0 * UNIT_ROUNDOFF * f64::from(factor);
                        let difference = f64::from(*x) - f64::from(y);
                        assert!(
                            difference.abs() <= tolerance,
                            "{} {name} at {position}: {x} {y}",
                            case["name"]
                        );
                        compared += 1;
                    }
                }
            }
        }
        assert!(compared > 4000, "{compared} values compared");
    }

    /// B66: elements i and i + head_dim / 2 turn together, not 2i and 2i + 1; backward turns by -1.
    #[test]
    fn halves_are_paired_and_not_neighbours() {
        let table = RopeTable::new(&inv_freq(8), 1.0, 2).unwrap();
        let threads = Threads::new(1).unwrap();
        for (direction, sign) in [(Direction::Forward, 1.0), (Direction::Inverse, -1.0)] {
            let mut q = [1.0f32, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
            rotate(&threads, &table, &[1], 8, direction, MatMut::new(&mut q, 1, 8).unwrap()).unwrap();
            let expected = [1f32.cos(), 0.0, 0.0, 0.0, sign * 1f32.sin(), 0.0, 0.0, 0.0];
            for (q, e) in q.iter().zip(expected) {
                assert!((q - e).abs() <= f32::EPSILON, "{q} {e}");
            }
        }
    }

    #[test]
    fn a_position_beyond_the_table_is_named_and_nothing_is_changed() {
        let table = RopeTable::new(&inv_freq(4), 1.0, 8).unwrap();
        let threads = Threads::new(1).unwrap();
        let mut x = [1.0f32; 12];
        let out = MatMut::new(&mut x, 3, 4).unwrap();
        let error = rotate(&threads, &table, &[7, 3, 8], 4, Direction::Forward, out).unwrap_err();
        assert_eq!(error.to_string(), "rope::rotate: position 8 at row 2 is outside of 0..8");
        assert_eq!(x, [1.0; 12]);
        let mut wrong = |positions: &[u32], head_dim, cols| {
            let out = MatMut::new(&mut x, 2, cols).unwrap();
            rotate(&threads, &table, positions, head_dim, Direction::Forward, out)
        };
        assert!(wrong(&[0, 0], 8, 4).is_err());
        assert!(wrong(&[0, 0], 4, 6).is_err());
        assert!(wrong(&[0], 4, 4).is_err());
        assert!(wrong(&[0, 1], 4, 4).is_ok());
    }

    #[test]
    fn tables_that_make_no_sense_are_refused() {
        assert!(RopeTable::new(&[], 1.0, 8).is_err());
        assert!(RopeTable::new(&[f32::NAN], 1.0, 8).is_err());
        assert!(RopeTable::new(&[1.0], f32::INFINITY, 8).is_err());
        assert!(RopeTable::new(&[1.0], 1.0, (1 << 24) + 1).is_err());
        assert_eq!(RopeTable::new(&[1.0], 1.0, 0).unwrap().positions(), 0);
    }
}
