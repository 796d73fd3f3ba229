//! Attention against the f64 oracle with bounds from the data, on every path of this CPU, and its masks.

use proptest::prelude::*;

use super::backward::{Saved, backward_with};
use super::forward::forward_with;
use super::product::{Left, Out, Right, Size, product};
use super::*;
use crate::reference::UNIT_ROUNDOFF as U;
use crate::reference::attention as oracle;
use crate::simd::Simd;
use crate::{MatMut, Threads};

fn wave(count: usize, step: f64, size: f32) -> Vec<f32> {
    (0..count).map(|i| ((i as f64 * step + 0.3).sin() as f32) * size).collect()
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| x.into()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn shape(heads: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt() }
}

/// The operands of one call.
struct Case {
    shape: AttentionShape,
    starts: Vec<u32>,
    keys: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    d_out: Vec<f32>,
}

#[derive(PartialEq)]
struct Results {
    out: Vec<u32>,
    log_sum_exp: Vec<u32>,
    grads: Option<[Vec<u32>; 3]>,
}

impl Case {
    fn new(shape: AttentionShape, starts: Vec<u32>, keys: usize, size: f32) -> Self {
        let (q_cols, k_cols) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let queries = starts.len();
        Self {
            shape,
            keys,
            q: wave(queries * q_cols, 0.7, size),
            k: wave(keys * k_cols, 1.31, size),
            v: wave(keys * k_cols, 1.77, 1.0),
            d_out: wave(queries * q_cols, 2.3, 1.0),
            starts,
        }
    }

    fn view<'a>(&self, data: &'a [f32], heads: usize) -> MatRef<'a> {
        let cols = heads * self.shape.head_dim;
        MatRef::new(data, data.len() / cols, cols).unwrap()
    }

    fn q(&self) -> MatRef<'_> {
        self.view(&self.q, self.shape.heads)
    }

    fn kv(&self) -> (MatRef<'_>, MatRef<'_>) {
        (self.view(&self.k, self.shape.kv_heads), self.view(&self.v, self.shape.kv_heads))
    }

    fn forward(&self, simd: Simd, threads: &Threads) -> (Vec<f32>, Vec<f32>) {
        let queries = self.starts.len();
        let mut out = vec![f32::NAN; self.q.len()];
        let mut log_sum_exp = vec![f32::NAN; self.shape.heads * queries];
        let (k, v) = self.kv();
        let to = MatMut::new(&mut out, queries, self.shape.heads * self.shape.head_dim).unwrap();
        forward_with(simd, threads, self.shape, &self.starts, (self.q(), k, v), to, &mut log_sum_exp)
            .unwrap();
        (out, log_sum_exp)
    }

    fn backward(&self, simd: Simd, threads: &Threads, out: &[f32], log_sum_exp: &[f32]) -> [Vec<f32>; 3] {
        let mut dq = vec![f32::NAN; self.q.len()];
        let (mut dk, mut dv) = (vec![f32::NAN; self.k.len()], vec![f32::NAN; self.v.len()]);
        let (q_cols, k_cols) =
            (self.shape.heads * self.shape.head_dim, self.shape.kv_heads * self.shape.head_dim);
        let grads = AttentionGrads {
            dq: MatMut::new(&mut dq, self.keys, q_cols).unwrap(),
            dk: MatMut::new(&mut dk, self.keys, k_cols).unwrap(),
            dv: MatMut::new(&mut dv, self.keys, k_cols).unwrap(),
        };
        let heads = self.shape.heads;
        let (out, d_out) = (self.view(out, heads), self.view(&self.d_out, heads));
        let saved = Saved { q: self.q(), out, d_out, log_sum_exp };
        backward_with(simd, threads, self.shape, &self.starts, saved, self.kv(), grads).unwrap();
        [dq, dk, dv]
    }

    fn run(&self, simd: Simd, threads: &Threads) -> Results {
        let (out, log_sum_exp) = self.forward(simd, threads);
        let square = self.starts.len() == self.keys;
        let grads = square.then(|| self.backward(simd, threads, &out, &log_sum_exp).map(|g| bits(&g)));
        Results { out: bits(&out), log_sum_exp: bits(&log_sum_exp), grads }
    }

    /// Compares every path with the oracle, and all thread counts with each other.
    fn check(&self) {
        for simd in Simd::all() {
            let first = self.run(simd, &Threads::new(1).unwrap());
            for count in 2..=4 {
                assert!(self.run(simd, &Threads::new(count).unwrap()) == first, "{simd:?}, {count} threads");
            }
            let (out, log_sum_exp) = self.forward(simd, &Threads::new(2).unwrap());
            let bounds = self.bounds();
            assert_close("out", &out, &bounds.out);
            assert_close("log_sum_exp", &log_sum_exp, &bounds.log_sum_exp);
            if self.starts.len() == self.keys {
                let [dq, dk, dv] = self.backward(simd, &Threads::new(2).unwrap(), &out, &log_sum_exp);
                assert_close("dq", &dq, &bounds.dq);
                assert_close("dk", &dk, &bounds.dk);
                assert_close("dv", &dv, &bounds.dv);
            }
        }
    }

    /// The exact results, each with how far f32 may be from it. u is the unit roundoff, n the number of keys.
    ///
    /// A score is a dot product of head_dim terms, scaled, and a maximum is subtracted: its error is at most
    /// E = (head_dim + 4) u scale Σ|q k| at the largest. The exponential is good to 2 u, so a weight (a quotient
    /// of exponentials by a sum of n of them, with rescalings that round once for each of n / 64 tiles) is
    /// wrong by 2 E + (n + 8) u of itself, and the sums of n products that use it by n u more.
    fn bounds(&self) -> Bounds {
        let s = self.shape;
        let wide = oracle::Shape {
            heads: s.heads,
            kv_heads: s.kv_heads,
            head_dim: s.head_dim,
            scale: f64::from(s.scale),
        };
        let (q, k, v, d_out) = (widen(&self.q), widen(&self.k), widen(&self.v), widen(&self.d_out));
        let (out, log_sum_exp) = oracle::forward(&wide, &self.starts, &q, &k, &v);
        let (dq, dk, dv) = if self.starts.len() == self.keys {
            oracle::backward(&wide, &self.starts, &q, &k, &v, &d_out)
        } else {
            (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()])
        };
        let mut b = Bounds {
            out: out.iter().map(|&x| (x, 0.0)).collect(),
            log_sum_exp: log_sum_exp.iter().map(|&x| (x, 0.0)).collect(),
            dq: dq.iter().map(|&x| (x, 0.0)).collect(),
            dk: dk.iter().map(|&x| (x, 0.0)).collect(),
            dv: dv.iter().map(|&x| (x, 0.0)).collect(),
        };
        let (hd, group, queries) = (s.head_dim, s.heads / s.kv_heads, self.starts.len());
        let (n, h) = (self.keys as f64, hd as f64);
        for query in 0..queries {
            for head in 0..s.heads {
                let at = (query * s.heads + head) * hd;
                let range = self.starts[query] as usize..self.keys - queries + query + 1;
                let key = |j: usize| (j * s.kv_heads + head / group) * hd;
                let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
                let abs_dot =
                    |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum() };
                let (q, d_out, out) = (&q[at..at + hd], &d_out[at..at + hd], &out[at..at + hd]);
                let e = range.clone().map(|j| abs_dot(q, &k[key(j)..][..hd])).fold(0.0, f64::max);
                let e = (h + 4.0) * U * wide.scale * e;
                let lse = log_sum_exp[head * queries + query];
                b.log_sum_exp[head * queries + query].1 = e + (n + 8.0) * U + 2.0 * U * lse.abs();
                let weight_error = 2.0 * e + (n + 8.0) * U + 2.0 * U * lse.abs();
                let p = |j: usize| (wide.scale * dot(q, &k[key(j)..][..hd]) - lse).exp();
                let mut out_error = vec![0.0; hd];
                for j in range.clone() {
                    for (error, v) in out_error.iter_mut().zip(&v[key(j)..]) {
                        *error += p(j) * v.abs() * (weight_error + (n + 2.0) * U);
                    }
                }
                // D = Σ dO O inherits the error of O.
                let mean = dot(d_out, out);
                let mean_error = (h + 1.0) * U * abs_dot(d_out, out)
                    + d_out.iter().zip(&out_error).map(|(d, e)| d.abs() * e).sum::<f64>();
                for (bound, error) in b.out[at..].iter_mut().zip(out_error) {
                    bound.1 = error;
                }
                for j in range {
                    let dp = dot(d_out, &v[key(j)..][..hd]);
                    let dp_error = (h + 1.0) * U * abs_dot(d_out, &v[key(j)..][..hd]);
                    let ds = p(j) * (dp - mean).abs() * wide.scale;
                    let ds_error = p(j)
                        * wide.scale
                        * ((weight_error + 4.0 * U) * (dp.abs() + mean.abs()) + dp_error + mean_error);
                    // Sums over keys (dq) and over queries and heads of a group (dk, dv).
                    let terms = (n * group as f64 + 2.0) * U;
                    for d in 0..hd {
                        b.dq[at + d].1 += k[key(j) + d].abs() * (ds_error + terms * ds);
                        b.dk[key(j) + d].1 += q[d].abs() * (ds_error + terms * ds);
                        b.dv[key(j) + d].1 += d_out[d].abs() * p(j) * (weight_error + terms);
                    }
                }
            }
        }
        b
    }
}

/// Values with tolerances.
struct Bounds {
    out: Vec<(f64, f64)>,
    log_sum_exp: Vec<(f64, f64)>,
    dq: Vec<(f64, f64)>,
    dk: Vec<(f64, f64)>,
    dv: Vec<(f64, f64)>,
}

fn assert_close(name: &str, found: &[f32], expected: &[(f64, f64)]) {
    assert_eq!(found.len(), expected.len());
    for (i, (&x, &(exact, tolerance))) in found.iter().zip(expected).enumerate() {
        let tolerance = tolerance + f64::from(f32::MIN_POSITIVE);
        assert!(
            (f64::from(x) - exact).abs() <= tolerance,
            "{name}[{i}]: {x} is not {exact} +- {tolerance:e}"
        );
    }
}

/// Starts of samples with these lengths.
fn packed(lengths: &[usize]) -> Vec<u32> {
    let mut starts = Vec::new();
    for &length in lengths {
        let start = starts.len() as u32;
        starts.extend(std::iter::repeat_n(start, length));
    }
    starts
}

#[test]
fn plain_causal_at_the_edges_of_tiles() {
    for tokens in [1, 7, 8, 9, 63, 64, 65, 130] {
        Case::new(shape(2, 1, 16), vec![0; tokens], tokens, 1.0).check();
    }
}

#[test]
fn grouped_heads_of_many_sizes() {
    for (heads, kv_heads, head_dim) in [(1, 1, 1), (4, 2, 8), (6, 2, 20), (3, 3, 33), (3, 1, 64), (2, 2, 96)]
    {
        Case::new(shape(heads, kv_heads, head_dim), vec![0; 70], 70, 0.8).check();
    }
}

#[test]
fn packed_samples() {
    for lengths in [&[1, 1, 1][..], &[5, 70, 3], &[64, 64], &[63, 2, 66], &[40, 40, 40, 40]] {
        let starts = packed(lengths);
        let tokens = starts.len();
        Case::new(shape(4, 2, 16), starts, tokens, 1.0).check();
    }
}

#[test]
fn decoding_with_a_cache() {
    for (queries, keys) in
        [(1, 1), (1, 64), (1, 65), (1, 200), (2, 90), (3, 70), (4, 70), (5, 100), (70, 150)]
    {
        Case::new(shape(4, 2, 16), vec![0; queries], keys, 1.0).check();
    }
    Case::new(shape(4, 2, 16), vec![37, 37, 38], 100, 1.0).check();
}

#[test]
fn large_scores_do_not_overflow() {
    // Scores up to about ±400: e^400 is far beyond f32.
    Case::new(shape(2, 1, 16), vec![0; 70], 70, 14.0).check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_samples_and_heads(
        lengths in prop::collection::vec(1usize..50, 1..5),
        kv_heads in 1usize..3,
        group in 1usize..4,
        head_dim in 1usize..40,
        window in prop::option::of(1u32..40),
    ) {
        let mut starts = packed(&lengths);
        if let Some(window) = window {
            for (i, start) in starts.iter_mut().enumerate() {
                *start = (*start).max((i as u32 + 1).saturating_sub(window));
            }
        }
        let tokens = starts.len();
        Case::new(shape(kv_heads * group, kv_heads, head_dim), starts, tokens, 1.0).check();
    }

    #[test]
    fn products_equal_the_definition(
        m in 1usize..3, n in 1usize..5, k in 1usize..70, transposed in any::<bool>(), add in any::<bool>(),
    ) {
        let (m, n) = (8 * m, 16 * n);
        let (a, b) = (wave(m * k, 0.9, 1.0), wave(k * (n + 3), 1.7, 1.0));
        let (row, col) = if transposed { (1, m) } else { (k, 1) };
        for simd in Simd::all() {
            let mut c = wave(m * (n + 5), 0.2, 1.0);
            let old = c.clone();
            product(
                simd,
                Size { m, n, k },
                Left { data: &a, row, col },
                Right { data: &b, stride: n + 3 },
                Out { data: &mut c, stride: n + 5, add },
            );
            for i in 0..m {
                for j in 0..n + 5 {
                    let start = f64::from(old[i * (n + 5) + j]);
                    let found = f64::from(c[i * (n + 5) + j]);
                    if j >= n {
                        prop_assert_eq!(found, start);
                        continue;
                    }
                    let term = |p: usize| f64::from(a[i * row + p * col]) * f64::from(b[p * (n + 3) + j]);
                    let start = if add { start } else { 0.0 };
                    let exact = start + (0..k).map(term).sum::<f64>();
                    let size = start.abs() + (0..k).map(|p| term(p).abs()).sum::<f64>();
                    prop_assert!((found - exact).abs() <= (k as f64 + 1.0) * U * size);
                }
            }
        }
    }
}

/// Changing one sample leaves the bits of every other one alone, forward and backward.
#[test]
fn samples_do_not_see_each_other() {
    let (a, b, c) = (21, 50, 33);
    let case = || Case::new(shape(4, 2, 24), packed(&[a, b, c]), a + b + c, 1.0);
    let (plain, mut changed) = (case(), case());
    let (q_cols, k_cols) = (4 * 24, 2 * 24);
    for row in a..a + b {
        for (data, cols) in [(&mut changed.q, q_cols), (&mut changed.k, k_cols), (&mut changed.v, k_cols)] {
            data[row * cols..(row + 1) * cols].iter_mut().for_each(|x| *x = *x * -3.0 + 0.7);
        }
    }
    let threads = Threads::new(2).unwrap();
    for simd in Simd::all() {
        let outputs = |case: &Case| {
            let (out, log_sum_exp) = case.forward(simd, &threads);
            let [dq, dk, dv] = case.backward(simd, &threads, &out, &log_sum_exp);
            [(out, q_cols), (dq, q_cols), (dk, k_cols), (dv, k_cols)]
        };
        for ((x, cols), (y, _)) in outputs(&plain).into_iter().zip(outputs(&changed)) {
            assert_eq!(bits(&x[..a * cols]), bits(&y[..a * cols]));
            assert_ne!(bits(&x[a * cols..(a + b) * cols]), bits(&y[a * cols..(a + b) * cols]));
            assert_eq!(bits(&x[(a + b) * cols..]), bits(&y[(a + b) * cols..]));
        }
    }
}

/// B64: a window of w tokens includes the query itself, forward and backward.
#[test]
fn a_window_counts_the_token_itself() {
    let (tokens, window) = (6, 3);
    let starts: Vec<u32> = (0..tokens).map(|i: u32| (i + 1).saturating_sub(window)).collect();
    let mut case = Case::new(shape(1, 1, 6), starts, 6, 0.5);
    for (i, x) in case.v.iter_mut().enumerate() {
        *x = f32::from(i % 7 == 0); // one-hot by position
    }
    let threads = Threads::new(1).unwrap();
    for simd in Simd::all() {
        let (out, log_sum_exp) = case.forward(simd, &threads);
        let touched: Vec<usize> = (0..6).filter(|&d| out[5 * 6 + d] != 0.0).collect();
        assert_eq!(touched, [3, 4, 5]);
        case.d_out.fill(0.0);
        case.d_out[5 * 6..].copy_from_slice(&[1.0, 2.0, 3.0, 5.0, 7.0, 11.0]);
        let [_, dk, dv] = case.backward(simd, &threads, &out, &log_sum_exp);
        for grad in [dk, dv] {
            let touched: Vec<usize> =
                (0..6).filter(|&row| grad[row * 6..(row + 1) * 6].iter().any(|&x| x != 0.0)).collect();
            assert_eq!(touched, [3, 4, 5]);
        }
    }
}

#[test]
fn a_token_that_sees_only_itself_returns_its_value() {
    let case = Case::new(shape(2, 1, 8), (0..9).collect(), 9, 1.0);
    let (out, _) = case.forward(Simd::detect(), &Threads::new(1).unwrap());
    for (row, values) in out.chunks(16).zip(case.v.chunks(8)) {
        assert_eq!((&row[..8], &row[8..]), (values, values));
    }
}

#[test]
fn gaps_between_rows_are_left_alone() {
    let case = Case::new(shape(1, 1, 8), vec![0; 3], 3, 1.0);
    let threads = Threads::new(1).unwrap();
    let (expected, _) = case.forward(Simd::detect(), &threads);
    let mut out = vec![7.0; 3 * 10];
    let (k, v) = case.kv();
    let to = MatMut::with_stride(&mut out, 3, 8, 10).unwrap();
    forward(&threads, case.shape, &case.starts, case.q(), k, v, to, &mut [0.0; 3]).unwrap();
    for (row, expected) in out.chunks(10).zip(expected.chunks(8)) {
        assert_eq!((&row[..8], &row[8..]), (expected, &[7.0, 7.0][..]));
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let case = Case::new(shape(4, 2, 8), vec![0; 3], 3, 1.0);
    let threads = Threads::new(1).unwrap();
    let (k, v) = case.kv();
    let run = |shape, starts: &[u32], k: MatRef<'_>, sums: usize| {
        let mut out = vec![0.0; 3 * 32];
        let to = MatMut::new(&mut out, 3, 32).unwrap();
        forward(&threads, shape, starts, case.q(), k, v, to, &mut vec![0.0; sums]).map_err(|e| e.to_string())
    };
    let good = case.shape;
    assert_eq!(run(good, &[0, 0, 0], k, 12), Ok(()));
    assert!(run(AttentionShape { kv_heads: 3, ..good }, &[0, 0, 0], k, 12).unwrap_err().contains("kv_heads"));
    assert!(run(AttentionShape { kv_heads: 0, ..good }, &[0, 0, 0], k, 12).unwrap_err().contains("kv_heads"));
    assert!(
        run(AttentionShape { head_dim: 4, ..good }, &[0, 0, 0], k, 12).unwrap_err().contains("columns of q")
    );
    assert!(run(good, &[0, 0], k, 12).unwrap_err().contains("number of starts"));
    assert!(run(good, &[0, 0, 0], k, 11).unwrap_err().contains("log_sum_exp"));
    assert!(run(good, &[0, 0, 0], k.rows_range(0, 2), 12).unwrap_err().contains("rows of"));
    let error = run(good, &[0, 2, 2], k, 12).unwrap_err();
    assert_eq!(error, "attention::forward: start 2 at row 1 is outside of 0..2");
    let error = run(good, &[0, 1, 0], k, 12).unwrap_err();
    assert_eq!(error, "attention::forward: starts must ascend, 0 at row 2 follows 1");
}
