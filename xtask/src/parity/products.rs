//! Cases of the matrix products: the f32 one exactly, those on tensor cores by bound, because the order of summation
//! within an instruction is not specified.

use half::{bf16, f16};
use kernels_ptx as k;
use kernels_ptx::Kernel;

use super::case::{Argument, Case, Data, f32, u32, u64};
use super::values::{Random, U};

/// Sizes, strides and flags of one product.
#[derive(Debug, Clone, Copy)]
struct Shape {
    m: usize,
    n: usize,
    k: usize,
    batch: usize,
    /// Elements between the end of a row and the next, in all three matrices.
    gap: usize,
    a_transposed: bool,
    b_transposed: bool,
    beta: f32,
    scaled: bool,
}

/// Every case of this family.
pub fn cases() -> Vec<Case> {
    let mut random = Random::new(6);
    let mut all = Vec::new();
    let sizes = [
        (1, 1, 1, 1, 0),
        (5, 3, 0, 1, 0),
        (64, 64, 16, 1, 0),
        (65, 63, 17, 2, 0),
        (128, 128, 32, 1, 0),
        (130, 72, 40, 1, 0),
        (16, 200, 96, 2, 8),
        (33, 40, 72, 1, 1),
        (129, 9, 264, 1, 0),
    ];
    for (at, (m, n, k, batch, gap)) in sizes.into_iter().enumerate() {
        for (flags, (a_transposed, b_transposed)) in
            [(false, false), (false, true), (true, false), (true, true)].into_iter().enumerate()
        {
            let beta = [0.0, 1.0, -0.5][(at + flags) % 3];
            let shape = Shape {
                m,
                n,
                k,
                batch,
                gap,
                a_transposed,
                b_transposed,
                beta,
                scaled: (at + flags) % 2 == 0,
            };
            all.push(product(&mut random, shape, &k::GEMM_F32, |x| f64::from(x) as f32, Data::F32));
            let f16_data = |v: Vec<f32>| Data::F16(v.into_iter().map(f16::from_f32).collect());
            let bf16_data = |v: Vec<f32>| Data::Bf16(v.into_iter().map(bf16::from_f32).collect());
            let to_f16 = |x: f32| f16::from_f32(x).to_f32();
            let to_bf16 = |x: f32| bf16::from_f32(x).to_f32();
            all.push(product(&mut random, shape, &k::GEMM_F16_K8, to_f16, f16_data));
            all.push(product(&mut random, shape, &k::GEMM_F16, to_f16, f16_data));
            all.push(product(&mut random, shape, &k::GEMM_BF16, to_bf16, bf16_data));
        }
    }
    all
}

/// One product; `round` gives the values that `store` keeps.
fn product(
    random: &mut Random,
    shape: Shape,
    kernel: &'static Kernel,
    round: impl Fn(f32) -> f32,
    store: impl Fn(Vec<f32>) -> Data,
) -> Case {
    let Shape { m, n, k, batch, gap, a_transposed, b_transposed, beta, scaled } = shape;
    let (a_rows, a_cols) = if a_transposed { (k, m) } else { (m, k) };
    let (b_rows, b_cols) = if b_transposed { (n, k) } else { (k, n) };
    let (a_stride, b_stride, c_stride) = (a_cols + gap, b_cols + gap, n + gap);
    let (a_size, b_size, c_size) = (a_rows * a_stride, b_rows * b_stride, m * c_stride);
    // At least one element, because a buffer has one.
    let mut fill =
        |len: usize| -> Vec<f32> { random.floats(len.max(1), 1.0).into_iter().map(&round).collect() };
    let (a, b) = (fill(batch * a_size), fill(batch * b_size));
    let c = random.floats(batch * c_size, 1.0);
    let alpha = 0.75f32;
    let exact = std::ptr::eq(kernel, &k::GEMM_F32);
    let scaled = scaled && !exact;
    let exponents = |count: usize, step: i32| -> Vec<i32> {
        (0..batch * count).map(|i| if scaled { (i as i32 % 7) * step - 3 * step } else { 0 }).collect()
    };
    // Also exponents whose factor is outside of f32, which those of the other side bring back.
    let (row_e, col_e) = (exponents(m, 45), exponents(n, -45));

    let mut label = format!("{m} x {n} x {k}, batch {batch}, gap {gap}, beta {beta}");
    for (flag, word) in
        [(a_transposed, ", A transposed"), (b_transposed, ", B transposed"), (scaled, ", scaled")]
    {
        label.push_str(if flag { word } else { "" });
    }
    let mut case = Case::new(kernel, label);
    let in_a = case.buffer(store(a.clone()));
    let in_b = case.buffer(store(b.clone()));
    // Where beta is 0, c is not read: NaN in it must not show.
    let before: Vec<f32> = if beta == 0.0 { vec![f32::NAN; c.len()] } else { c.clone() };
    let out = case.buffer(Data::F32(before.clone()));
    let mut arguments = vec![in_a, in_b, out];
    if !exact {
        if scaled {
            arguments.push(case.buffer(Data::I32(row_e.clone())));
            arguments.push(case.buffer(Data::I32(col_e.clone())));
        } else {
            arguments.extend([Argument::Nothing; 2]);
        }
    }
    arguments.extend([u32(m), u32(n), u32(k), u64(a_stride), u64(b_stride), u64(c_stride)]);
    arguments.extend([u64(a_size), u64(b_size), u64(c_size)]);
    arguments.extend([u32(a_transposed.into()), u32(b_transposed.into()), f32(alpha), f32(beta)]);
    case.launch(&[m, n, batch], &arguments);

    let a_at = |z: usize, i: usize, p: usize| {
        a[z * a_size + if a_transposed { p * a_stride + i } else { i * a_stride + p }]
    };
    let b_at = |z: usize, p: usize, j: usize| {
        b[z * b_size + if b_transposed { j * b_stride + p } else { p * b_stride + j }]
    };
    let cells = (0..batch).flat_map(|z| (0..m).flat_map(move |i| (0..n).map(move |j| (z, i, j))));
    if exact {
        let mut want = before;
        for (z, i, j) in cells {
            let chain = (0..k).fold(0f32, |sum, p| a_at(z, i, p).mul_add(b_at(z, p, j), sum));
            let at = z * c_size + i * c_stride + j;
            want[at] = if beta == 0.0 { alpha * chain } else { beta.mul_add(c[at], alpha * chain) };
        }
        case.expect_exact(out, Data::F32(want));
        return case;
    }
    // Products of halves are exact in f32. Each of the k additions rounds or truncates: 2 u of the magnitudes at most
    // (tensor cores may truncate). Then alpha, beta and at most one rounding where the scale ends below 2^-126.
    let mut pairs: Vec<(f64, f64)> = before.iter().map(|&x| (x.into(), 0.0)).collect();
    for (z, i, j) in cells {
        let terms = || (0..k).map(|p| f64::from(a_at(z, i, p)) * f64::from(b_at(z, p, j)));
        let scale = 2f64.powi(-(row_e[z * m + i] + col_e[z * n + j])) * f64::from(alpha);
        let at = z * c_size + i * c_stride + j;
        let old = if beta == 0.0 { 0.0 } else { f64::from(beta) * f64::from(c[at]) };
        let size = terms().map(f64::abs).sum::<f64>() * scale;
        let want = terms().sum::<f64>() * scale + old;
        pairs[at] = if want.abs() > f64::from(f32::MAX) {
            (f64::INFINITY.copysign(want), 0.0)
        } else {
            (want, (2.0 * k as f64 + 4.0) * U * size + 2.0 * U * old.abs() + 1e-44)
        };
    }
    case.expect_within(out, pairs);
    case
}
