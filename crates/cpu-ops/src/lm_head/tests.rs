//! The head against its oracle: tiles that do not divide the vocabulary, large logits, NaN, thread counts,
//! storage types, and finite differences.

use half::{bf16, f16};
use proptest::prelude::*;

use super::cross_entropy::cross_entropy_on;
use super::*;
use crate::nf4::Nf4Matrix;
use crate::reference;

fn values(len: usize, seed: u64, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next() * scale).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// Loss and gradient of rows of hidden [rows, width] with an f32 embedding [vocab, width].
fn run(
    simd: Simd,
    threads: usize,
    hidden: &[f32],
    (embedding, vocab): (Operand, usize),
    targets: &[u32],
) -> (Vec<f32>, Vec<f32>) {
    let (rows, width) = (targets.len(), embedding.cols());
    assert_eq!(embedding.rows(), vocab);
    let hidden = MatRef::new(hidden, rows, width).unwrap();
    let threads = Threads::new(threads).unwrap();
    let (mut losses, mut grad) = (vec![f32::NAN; rows], vec![f32::NAN; rows * width]);
    let out = Some(MatMut::new(&mut grad, rows, width).unwrap());
    let sum = cross_entropy_on(simd, &threads, hidden, embedding, targets, 1.0, &mut losses, out).unwrap();
    let again = losses.iter().map(|&x| f64::from(x)).sum::<f64>();
    assert!((sum - again).abs() <= 1e-6 * again.abs() + 1e-9 || (sum.is_nan() && again.is_nan()));
    let mut only = vec![f32::NAN; rows];
    let alone = cross_entropy_on(simd, &threads, hidden, embedding, targets, 1.0, &mut only, None).unwrap();
    assert_eq!((alone.to_bits(), bits(&only)), (sum.to_bits(), bits(&losses)), "the loss alone is the same");
    (losses, grad)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Losses of given logits: hidden is [1] and the embedding the logits themselves.
fn loss_of(logits: &[f32], target: u32) -> f32 {
    let embedding = MatRef::new(logits, logits.len(), 1).unwrap();
    let mut all: Vec<f32> = Simd::all()
        .into_iter()
        .map(|simd| run(simd, 2, &[1.0], (embedding.into(), logits.len()), &[target]).0[0])
        .collect();
    let first = all.remove(0);
    assert!(all.iter().all(|loss| loss.to_bits() == first.to_bits()));
    first
}

/// B27: a vocabulary that no tile divides has no phantom logits.
#[test]
fn lanes_past_the_vocabulary_do_not_count() {
    assert!((loss_of(&[-20., -20., -20., -20., -19.], 4) - 0.904_832).abs() <= 1e-6);
    for vocab in [151_937, 65_537, 7, 1] {
        let mut logits = vec![-20f32; vocab];
        logits[vocab - 1] = -19.0;
        let exact = (1.0 + (vocab - 1) as f64 * (-1f64).exp()).ln();
        let found = f64::from(loss_of(&logits, vocab as u32 - 1));
        assert!((found - exact).abs() <= 1e-6 * exact.max(1e-6), "{vocab}: {found}, {exact}");
    }
}

/// B28: a target that is no row of the embedding is an error before anything is computed.
#[test]
fn targets_outside_of_the_vocabulary_are_errors() {
    let (hidden, embedding) = ([1f32; 2], [0f32; 5]);
    let threads = Threads::new(1).unwrap();
    for bad in [5, 6, 7, i32::MAX as u32, u32::MAX, -100i32 as u32] {
        let mut losses = [7f32; 2];
        let error = cross_entropy(
            &threads,
            MatRef::new(&hidden, 2, 1).unwrap(),
            MatRef::new(&embedding, 5, 1).unwrap().into(),
            &[4, bad],
            1.0,
            &mut losses,
            None,
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("lm_head::cross_entropy: target {bad} at row 1 is outside of 0..5")
        );
        assert_eq!(losses, [7.0; 2]);
    }
}

/// B30: offsets of elements beyond 2^31 are computed in usize. A stride stands in for the memory: no row here
/// is as long, but the offset of row 14135 of 151936 columns is.
#[test]
fn offsets_beyond_31_bits() {
    for (row, stride) in [(14_135usize, 151_936usize), (16_384, 131_072)] {
        let offset = row * stride;
        assert!(offset > (1 << 31) - stride);
        // A matrix of `row + 1` rows of one column: its last element lies at `offset`; a slice of units (which
        // take no memory) is as long as that.
        let units = vec![(); offset + 1];
        let matrix = MatRef::with_stride(&units, row + 1, 1, stride).unwrap();
        assert_eq!(matrix.row(row).len(), 1);
        assert_eq!(matrix.rows_range(row, 1).data().len(), 1);
        assert!(MatRef::with_stride(&units[..offset], row + 1, 1, stride).is_err());
    }
}

/// B32: an offset that all logits share does not cost precision.
#[test]
fn a_large_common_offset() {
    assert!((loss_of(&[10000., 10001., 9999.], 1) - 0.407_606).abs() <= 1e-6);
    assert!((loss_of(&[-1e6, -1e6 + 1., -1e6 - 1.], 1) - 0.407_606).abs() <= 1e-6);
    // The target far below and far above the others.
    assert_eq!(loss_of(&[1e6, -1e6], 1), 2e6);
    assert_eq!(loss_of(&[1e6, -1e6], 0), 0.0);
    // The target's probability is near 1: the loss is the small rest, not a difference of large numbers.
    let exact = (-20f64).exp().ln_1p();
    assert!((f64::from(loss_of(&[0., 20.], 1)) - exact).abs() <= 1e-6 * exact);
}

/// B39: a quarter of a million equal logits.
#[test]
fn huge_vocabularies_sum_exactly() {
    assert!((loss_of(&vec![0.0; 256_000], 0) - 12.452_933).abs() <= 1e-5);
    let mut logits = vec![0.5f32; 300_000];
    logits[123_456] = 5.5;
    let exact = (299_999.0 + 5f64.exp()).ln();
    assert!((f64::from(loss_of(&logits, 7)) - exact).abs() <= 1e-5);
}

/// B25, for the head's part: no row is no loss, and nothing is divided by their number.
#[test]
fn no_rows_give_zero() {
    let embedding = [1f32; 6];
    let e = MatRef::new(&embedding, 3, 2).unwrap();
    let none = MatRef::new(&[], 0, 2).unwrap();
    let threads = Threads::new(2).unwrap();
    let out = Some(MatMut::new(&mut [], 0, 2).unwrap());
    assert_eq!(cross_entropy(&threads, none, e.into(), &[], f32::NAN, &mut [], out), Ok(0.0));
    let logits = MatRef::new(&[1.0; 3], 1, 3).unwrap();
    let mut grad = [f32::NAN; 2];
    backward(&threads, logits, e.into(), &[true], MatMut::new(&mut grad, 1, 2).unwrap()).unwrap();
    assert_eq!(grad, [0.0; 2]);
}

#[test]
fn a_vocabulary_of_one_has_no_loss_and_no_gradient() {
    for simd in Simd::all() {
        let e = [3f32, -4.0];
        let (losses, grad) = run(simd, 2, &[1.0, 2.0], (MatRef::new(&e, 1, 2).unwrap().into(), 1), &[0]);
        assert_eq!((losses, grad), (vec![0.0], vec![0.0, 0.0]));
    }
}

#[test]
fn nan_and_infinity_reach_the_loss_of_their_row_only() {
    let (rows, vocab, width) = (3, 50, 4);
    let embedding = values(vocab * width, 1, 1.0);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut hidden = values(rows * width, 2, 1.0);
        hidden[width + 1] = bad;
        for simd in Simd::all() {
            let e = MatRef::new(&embedding, vocab, width).unwrap();
            let (losses, grad) = run(simd, 1, &hidden, (e.into(), vocab), &[0, 1, 2]);
            assert_eq!(losses.iter().map(|x| x.is_finite()).collect::<Vec<_>>(), [true, false, true]);
            assert!(grad[..width].iter().chain(&grad[2 * width..]).all(|x| x.is_finite()));
            assert!(grad[width..2 * width].iter().all(|x| x.is_nan()));
        }
    }
    // A NaN in a row of the embedding spoils all rows, wherever it stands.
    let hidden = vec![0f32; width];
    for at in [0, 20 * width, vocab * width - 1] {
        let mut embedding = embedding.clone();
        embedding[at] = f32::NAN;
        let e = MatRef::new(&embedding, vocab, width).unwrap();
        assert!(run(Simd::detect(), 1, &hidden, (e.into(), vocab), &[3]).0[0].is_nan());
    }
}

fn vocabulary() -> impl Strategy<Value = usize> {
    // Around a tile of 384, and around the size from which there are two chunks (4 tiles).
    prop::sample::select(vec![1, 2, 3, 16, 17, 383, 384, 385, 769, 1535, 1536, 1537, 3100])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn loss_and_gradient_agree_with_the_oracle(
        rows in prop::sample::select(vec![1usize, 2, 5, 14, 17, 33]),
        vocab in vocabulary(),
        width in prop::sample::select(vec![1usize, 3, 16, 33]),
        scale in prop::sample::select(vec![0.1f32, 1.0, 8.0]),
        seed in 0u64..1000,
    ) {
        let hidden = values(rows * width, seed, scale);
        let embedding = values(vocab * width, seed + 1, scale);
        let targets: Vec<u32> = (0..rows).map(|i| ((i * 7919 + seed as usize) % vocab) as u32).collect();
        let (hidden_w, embedding_w) = (wide(&hidden), wide(&embedding));
        let e: Operand = MatRef::new(&embedding, vocab, width).unwrap().into();
        for simd in Simd::all() {
            let (losses, grad) = run(simd, 1, &hidden, (e, vocab), &targets);
            for row in 0..rows {
                let h = &hidden_w[row * width..][..width];
                let (loss, gradient) = reference::lm_head::cross_entropy(h, &embedding_w, targets[row] as usize);
                // A logit is off by at most width * u * sum |h e|, and the loss by twice the largest such error;
                // then the exponentials (2 ulp each) and one rounding of the sum for each of its terms in a lane.
                let unit = 2f64.powi(-24);
                let magnitude = f64::from(scale) * h.iter().map(|x| x.abs()).sum::<f64>();
                let logit = (width + 1) as f64 * unit * magnitude;
                let terms = 384.0 / 16.0 + 8.0 + 4.0;
                let bound = 2.0 * logit + terms * unit + unit * loss.abs();
                prop_assert!((f64::from(losses[row]) - loss).abs() <= bound, "{} {loss} {bound}", losses[row]);
                // Each probability is relatively off by the same, and its product with E is summed over the
                // vocabulary: 384 steps a tile, and the tiles.
                let steps = (384 + vocab / 384 + 20) as f64;
                let bound = (2.0 * bound + steps * unit) * 2.0 * f64::from(scale);
                for (found, exact) in grad[row * width..][..width].iter().zip(&gradient) {
                    prop_assert!((f64::from(*found) - exact).abs() <= bound, "{found} {exact} {bound}");
                }
            }
            for threads in 2..=4 {
                let more = run(simd, threads, &hidden, (e, vocab), &targets);
                prop_assert_eq!((bits(&losses), bits(&grad)), (bits(&more.0), bits(&more.1)));
            }
        }
    }

    /// The embedding in half precision gives the bytes of its f32 values.
    #[test]
    fn storage_types_agree_bit_for_bit(vocab in vocabulary(), width in 1usize..20) {
        let hidden = values(3 * width, 1, 2.0);
        let exact = values(vocab * width, 2, 2.0);
        let targets = [0, vocab as u32 / 2, vocab as u32 - 1];
        let f16s: Vec<f16> = exact.iter().map(|&x| f16::from_f32(x)).collect();
        let bf16s: Vec<bf16> = exact.iter().map(|&x| bf16::from_f32(x)).collect();
        let from_f16: Vec<f32> = f16s.iter().map(|x| x.to_f32()).collect();
        let from_bf16: Vec<f32> = bf16s.iter().map(|x| x.to_f32()).collect();
        let threads = Threads::new(1).unwrap();
        let nf4 = Nf4Matrix::quantize(&threads, MatRef::new(&exact, vocab, width).unwrap(), 64, true).unwrap();
        let mut from_nf4 = vec![0f32; vocab * width];
        nf4.view().dequantize(&threads, &mut from_nf4).unwrap();
        let as_f32 = |x| Operand::F32(MatRef::new(x, vocab, width).unwrap());
        for simd in Simd::all() {
            let f16s = Operand::F16(MatRef::new(&f16s, vocab, width).unwrap());
            let bf16s = Operand::Bf16(MatRef::new(&bf16s, vocab, width).unwrap());
            let nf4s = Operand::Nf4(nf4.view());
            for (narrow, wide) in [(f16s, &from_f16), (bf16s, &from_bf16), (nf4s, &from_nf4)] {
                let narrow = run(simd, 2, &hidden, (narrow, vocab), &targets);
                let wide = run(simd, 2, &hidden, (as_f32(wide), vocab), &targets);
                prop_assert_eq!((bits(&narrow.0), bits(&narrow.1)), (bits(&wide.0), bits(&wide.1)));
            }
        }
    }

    /// The oracle's gradient is the derivative of the oracle's loss: central differences in f64.
    #[test]
    fn the_oracle_gradient_is_the_derivative(vocab in 1usize..40, width in 1usize..6, seed in 0u64..1000) {
        let hidden = wide(&values(width, seed, 1.0));
        let embedding = wide(&values(vocab * width, seed + 1, 1.0));
        let target = seed as usize % vocab;
        let (_, gradient) = reference::lm_head::cross_entropy(&hidden, &embedding, target);
        let step = 1e-5;
        for (i, exact) in gradient.iter().enumerate() {
            let at = |delta: f64| {
                let mut moved = hidden.clone();
                moved[i] += delta;
                reference::lm_head::cross_entropy(&moved, &embedding, target).0
            };
            let difference = (at(step) - at(-step)) / (2.0 * step);
            // Truncation: step^2 / 6 times the third derivative, under 8 for |E| <= 1; rounding: the loss, a few
            // units, times 2^-52 over the step.
            prop_assert!((difference - exact).abs() <= 8.0 * step * step + 1e-9, "{difference} {exact}");
        }
    }

    /// Rows that do not count are zero, and the others as if they stood alone.
    #[test]
    fn unsupervised_rows_are_left_out(mask in prop::collection::vec(any::<bool>(), 1..40), vocab in vocabulary()) {
        let (rows, width) = (mask.len(), 5);
        let mut logits = values(rows * vocab, 3, 1.0);
        for (row, &skip) in mask.iter().enumerate() {
            if skip {
                logits[row * vocab..][..vocab].fill(f32::NAN);
            }
        }
        let embedding = values(vocab * width, 4, 1.0);
        let e = MatRef::new(&embedding, vocab, width).unwrap();
        let mut expected: Option<Vec<u32>> = None;
        for threads in 1..=4 {
            let mut grad = vec![f32::NAN; rows * width];
            let out = MatMut::new(&mut grad, rows, width).unwrap();
            let threads = Threads::new(threads).unwrap();
            backward(&threads, MatRef::new(&logits, rows, vocab).unwrap(), e.into(), &mask, out).unwrap();
            for row in 0..rows {
                for col in 0..width {
                    let found = f64::from(grad[row * width + col]);
                    let terms = (0..vocab).map(|v| {
                        f64::from(logits[row * vocab + v]) * f64::from(embedding[v * width + col])
                    });
                    if mask[row] {
                        prop_assert_eq!(found, 0.0);
                    } else {
                        let exact: f64 = terms.clone().sum();
                        let bound = vocab as f64 * 2f64.powi(-24) * terms.map(f64::abs).sum::<f64>();
                        prop_assert!((found - exact).abs() <= bound, "{found} {exact} {bound}");
                    }
                }
            }
            let found = bits(&grad);
            prop_assert_eq!(expected.get_or_insert(found.clone()), &found);
        }
    }
}

/// Zeros in the gradient are multiplied: a NaN in the embedding reaches every supervised row.
#[test]
fn backward_never_skips_zeros() {
    let logits = [0f32; 6];
    let mut embedding = [1f32; 6];
    embedding[5] = f32::NAN;
    let mut grad = [0f32; 4];
    backward(
        &Threads::new(1).unwrap(),
        MatRef::new(&logits, 2, 3).unwrap(),
        MatRef::new(&embedding, 3, 2).unwrap().into(),
        &[],
        MatMut::new(&mut grad, 2, 2).unwrap(),
    )
    .unwrap();
    assert!(grad[0] == 0.0 && grad[1].is_nan() && grad[2] == 0.0 && grad[3].is_nan());
}

#[test]
fn sizes_that_do_not_fit_are_errors() {
    let data = [0f32; 12];
    let threads = Threads::new(1).unwrap();
    let m = |rows, cols| MatRef::new(&data, rows, cols).unwrap();
    let backward = |grad, e: MatRef<'_>, mask: &[bool], rows, cols| {
        let mut out = [0f32; 12];
        backward(&threads, grad, e.into(), mask, MatMut::new(&mut out, rows, cols).unwrap())
            .map_err(|e| e.to_string())
    };
    assert_eq!(backward(m(2, 3), m(3, 4), &[], 2, 4), Ok(()));
    let error = "lm_head::backward: rows of embedding is 4, expected 3";
    assert_eq!(backward(m(2, 3), m(4, 3), &[], 2, 3), Err(error.into()));
    let error = "lm_head::backward: length of unsupervised is 3, expected 2";
    assert_eq!(backward(m(2, 3), m(3, 4), &[false; 3], 2, 4), Err(error.into()));
    let mut losses = [0f32; 2];
    let error = cross_entropy(&threads, m(2, 3), m(4, 3).into(), &[1], 1.0, &mut losses, None).unwrap_err();
    assert_eq!(error.to_string(), "lm_head::cross_entropy: length of targets is 1, expected 2");
    let error =
        cross_entropy(&threads, m(2, 3), m(4, 2).into(), &[1, 1], 1.0, &mut losses, None).unwrap_err();
    assert_eq!(error.to_string(), "lm_head::cross_entropy: columns of hidden is 3, expected 2");
}
