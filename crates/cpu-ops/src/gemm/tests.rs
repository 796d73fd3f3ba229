//! Products against the naive oracle: shapes around every tile border, all transposes, strides, storage types,
//! special values, thread counts, and every microkernel that this CPU has.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::nf4::Nf4Matrix;
use crate::reference;

const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// Deterministic values in [-1, 1), exact in bf16 where `coarse`.
fn values(len: usize, seed: u64, coarse: bool) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| if coarse { bf16::from_f32(next()).to_f32() } else { next() }).collect()
}

/// A stored matrix with `gap` unused elements after each row, filled with NaN there.
fn stored(rows: usize, cols: usize, gap: usize, seed: u64) -> (Vec<f32>, usize) {
    let stride = cols + gap;
    let mut data = values(rows * stride, seed, true);
    for row in data.chunks_mut(stride.max(1)) {
        row.iter_mut().skip(cols).for_each(|x| *x = f32::NAN);
    }
    (data, stride)
}

#[derive(Debug, Clone, Copy)]
struct Case {
    m: usize,
    n: usize,
    k: usize,
    a_op: Op,
    b_op: Op,
    gap: usize,
    alpha: f32,
    beta: f32,
}

fn dims(rows: usize, cols: usize, op: Op) -> (usize, usize) {
    applied(rows, cols, op)
}

/// One to four threads.
fn pools() -> &'static [Threads; 4] {
    static POOLS: std::sync::OnceLock<[Threads; 4]> = std::sync::OnceLock::new();
    POOLS.get_or_init(|| [1, 2, 3, 4].map(|count| Threads::new(count).unwrap()))
}

/// Runs one case with an f32 B, compares it with the oracle and, where asked, the bytes of two to four threads.
fn product(simd: Simd, case: &Case, all_threads: bool) {
    let (ar, ac) = dims(case.m, case.k, case.a_op);
    let (br, bc) = dims(case.k, case.n, case.b_op);
    let (a, lda) = stored(ar, ac, case.gap, 1);
    let (b, ldb) = stored(br, bc, case.gap, 2);
    let a = Factor { matrix: MatRef::with_stride(&a, ar, ac, lda).unwrap(), op: case.a_op };
    let b = Factor { matrix: Operand::F32(MatRef::with_stride(&b, br, bc, ldb).unwrap()), op: case.b_op };
    let one = on(simd, &pools()[0], case, a, b);
    for threads in pools()[1..].iter().filter(|_| all_threads) {
        let more = unchecked(simd, threads, case, a, b);
        assert!(same_bits(&one, &more), "{case:?} on {threads:?}, {simd:?}");
    }
}

/// A product compared with the oracle.
fn on(simd: Simd, threads: &Threads, case: &Case, a: Factor<MatRef>, b: Factor<Operand>) -> Vec<f32> {
    let (old, ldc) = old_c(case);
    let old = MatRef::with_stride(&old, case.m, case.n, ldc).unwrap();
    let expected = reference::gemm::gemm(case.alpha, a, b, case.beta, old);
    let out = unchecked(simd, threads, case, a, b);
    for (at, &found) in out.iter().enumerate() {
        // k products and sums, and the three roundings that alpha and beta bring.
        let bound = (case.k + 3) as f64 * UNIT * expected.magnitudes[at];
        let exact = expected.values[at];
        assert!((f64::from(found) - exact).abs() <= bound, "{case:?} at {at}: {found}, {exact} +- {bound}");
    }
    out
}

/// C before the product: NaN all over where it must not be read.
fn old_c(case: &Case) -> (Vec<f32>, usize) {
    let (mut c, ldc) = stored(case.m, case.n, case.gap, 3);
    if case.beta == 0.0 {
        c.fill(f32::NAN);
    }
    (c, ldc)
}

/// C after the product, without its gaps.
fn unchecked(simd: Simd, threads: &Threads, case: &Case, a: Factor<MatRef>, b: Factor<Operand>) -> Vec<f32> {
    let (mut c, ldc) = old_c(case);
    let view = MatMut::with_stride(&mut c, case.m, case.n, ldc).unwrap();
    gemm_on(simd, threads, case.alpha, a, b, case.beta, view).unwrap();
    let mut out = Vec::new();
    for line in c.chunks(ldc.max(1)).take(case.m) {
        out.extend_from_slice(&line[..case.n]);
        assert!(line[case.n..].iter().all(|gap| gap.is_nan()), "{case:?}: wrote between rows");
    }
    out
}

fn ops() -> [(Op, Op); 4] {
    use Op::{None, Transpose};
    [(None, None), (None, Transpose), (Transpose, None), (Transpose, Transpose)]
}

/// B123: with beta 0 the old C, NaN here, is not read, in edge tiles neither.
#[test]
fn beta_zero_never_reads_c() {
    for simd in Simd::all() {
        for (m, n, k) in all3(&[1, 3, 4, 7, 8, 9, 15, 17]) {
            for (a_op, b_op) in ops() {
                product(simd, &Case { m, n, k, a_op, b_op, gap: 0, alpha: 1.0, beta: 0.0 }, false);
            }
        }
    }
}

fn all3(sizes: &[usize]) -> Vec<(usize, usize, usize)> {
    let mut all = Vec::new();
    for &m in sizes {
        for &n in sizes {
            all.extend(sizes.iter().map(|&k| (m, n, k)));
        }
    }
    all
}

/// B125: sizes of zero return at once; with an empty sum, C is beta C.
#[test]
fn zero_sizes() {
    let threads = Threads::new(2).unwrap();
    for simd in Simd::all() {
        for (m, n, k) in all3(&[0, 1, 2]) {
            for (a_op, b_op) in ops() {
                for beta in [0.0, 0.5] {
                    product(simd, &Case { m, n, k, a_op, b_op, gap: 0, alpha: 1.0, beta }, false);
                }
            }
        }
    }
    let empty16: [f16; 0] = [];
    let emptyb: [bf16; 0] = [];
    for (rows, cols) in [(0, 3), (0, 0)] {
        let a = MatRef::new(&[], 2, 0).unwrap();
        let mut c = [f32::NAN; 6];
        let h = MatRef::new(&empty16, rows, cols).unwrap();
        gemm(&threads, 1.0, a, h, 0.0, MatMut::new(&mut c[..2 * cols], 2, cols).unwrap()).unwrap();
        assert!(c[..2 * cols].iter().all(|&x| x == 0.0));
        let b = MatRef::new(&emptyb, rows, cols).unwrap();
        gemm(&threads, 1.0, a, b, 0.0, MatMut::new(&mut c[..2 * cols], 2, cols).unwrap()).unwrap();
    }
}

/// B126: 0 x NaN is NaN in the result: no zero is skipped. alpha = 0 is no shortcut either.
#[test]
fn nan_is_never_hidden() {
    let threads = Threads::new(2).unwrap();
    for simd in Simd::all() {
        for (m, n, k) in [(1, 3, 5), (3, 1, 5), (20, 40, 33), (2, 2, 1)] {
            for (a_op, b_op) in ops() {
                for alpha in [1.0, 0.0] {
                    let (ar, ac) = dims(m, k, a_op);
                    let (br, bc) = dims(k, n, b_op);
                    let a = vec![0f32; m * k];
                    let mut b = vec![1f32; k * n];
                    // op(B)[k - 1][n - 1] is the last element whatever the operation.
                    b[k * n - 1] = f32::NAN;
                    let a = Factor { matrix: MatRef::new(&a, ar, ac).unwrap(), op: a_op };
                    let b = Factor { matrix: Operand::F32(MatRef::new(&b, br, bc).unwrap()), op: b_op };
                    let mut c = vec![7f32; m * n];
                    gemm_on(simd, &threads, alpha, a, b, 0.0, MatMut::new(&mut c, m, n).unwrap()).unwrap();
                    for (i, x) in c.iter().enumerate() {
                        assert_eq!(
                            x.is_nan(),
                            i % n == n - 1,
                            "{m} {n} {k} {a_op:?} {b_op:?} alpha {alpha}: {i}"
                        );
                    }
                }
            }
        }
    }
}

/// Deep products in parts of the inner dimension and blocks of rows, and shallow ones of several blocks of rows,
/// where a plain B is copied by the first tile of each block.
#[test]
fn several_blocks_of_rows_and_parts_of_the_inner_dimension() {
    for simd in Simd::all() {
        for (m, n, k) in [(300, 49, 6161), (257, 16, 6144), (530, 70, 401)] {
            for (a_op, b_op) in [(Op::None, Op::None), (Op::Transpose, Op::None), (Op::None, Op::Transpose)] {
                product(simd, &Case { m, n, k, a_op, b_op, gap: 5, alpha: 1.25, beta: 0.5 }, true);
            }
        }
    }
}

/// B128: every combination of 1, 2 and 5 with strides longer than the rows; a shorter stride is refused.
#[test]
fn dimensions_of_one() {
    for simd in Simd::all() {
        for (m, n, k) in all3(&[1, 2, 5]) {
            for (a_op, b_op) in ops() {
                product(simd, &Case { m, n, k, a_op, b_op, gap: 3, alpha: -1.5, beta: 0.25 }, false);
            }
        }
    }
    assert!(MatRef::with_stride(&[0f32; 20], 2, 5, 4).is_err());
}

/// B130: wrong sizes are errors with both numbers in them, and huge ones do not overflow.
#[test]
fn sizes_that_do_not_fit_are_errors() {
    let threads = Threads::new(1).unwrap();
    let data = [0f32; 12];
    let m = |rows, cols| MatRef::new(&data, rows, cols).unwrap();
    let call = |a: MatRef<'_>, b: MatRef<'_>, rows, cols| {
        let mut c = [0f32; 12];
        gemm(&threads, 1.0, a, b, 0.0, MatMut::new(&mut c, rows, cols).unwrap())
    };
    assert_eq!(call(m(2, 3), m(3, 4), 2, 4), Ok(()));
    assert_eq!(
        call(m(2, 3), m(4, 3), 2, 3).unwrap_err().to_string(),
        "gemm: inner dimension of B is 4, expected 3"
    );
    assert_eq!(call(m(2, 3), m(3, 4), 3, 4).unwrap_err().to_string(), "gemm: rows of C is 3, expected 2");
    assert_eq!(call(m(2, 3), m(3, 4), 2, 3).unwrap_err().to_string(), "gemm: columns of C is 3, expected 4");
    assert!(MatRef::new(&data[..11], 3, 4).is_err());
    assert!(MatRef::with_stride(&data, 1 << 33, 1 << 33, usize::MAX / 2).is_err());
    // 2^33 rows of no columns fit anywhere; the product of the sizes overflows nothing on the way.
    let tall = MatRef::new(&data[..0], 1 << 33, 0).unwrap();
    let wide = MatRef::new(&data[..0], 0, 1 << 33).unwrap();
    let mut none = [0f32; 0];
    let c = MatMut::new(&mut none, 0, 1 << 33).unwrap();
    assert_eq!(gemm(&threads, 1.0, MatRef::new(&[], 0, 0).unwrap(), wide, 0.0, c), Ok(()));
    let c = MatMut::new(&mut none, 1 << 33, 0).unwrap();
    assert_eq!(gemm(&threads, 1.0, tall, MatRef::<f32>::new(&[], 0, 0).unwrap(), 0.0, c), Ok(()));
}

/// B131: views that start at any element of a buffer.
#[test]
fn unaligned_views() {
    let threads = Threads::new(1).unwrap();
    let (m, n, k) = (5, 35, 20);
    let exact: Vec<f32> = values(n * k, 5, true);
    let a = values(m * k + 3, 6, true);
    for offset in 0..4 {
        let a = MatRef::new(&a[offset..], m, k).unwrap();
        for op in [Op::None, Op::Transpose] {
            let (br, bc) = dims(k, n, op);
            // Half-precision elements on odd multiples of two bytes: B131 asks for views into a byte buffer.
            let f16s: Vec<f16> = [f16::ZERO; 3][..offset.min(3)]
                .iter()
                .copied()
                .chain(exact.iter().map(|&x| f16::from_f32(x)))
                .collect();
            let view = MatRef::new(&f16s[offset.min(3)..], br, bc).unwrap();
            let wide: Vec<f32> = view.data()[..n * k].iter().map(|x| x.to_f32()).collect();
            let same = Operand::F32(MatRef::new(&wide, br, bc).unwrap());
            for simd in Simd::all() {
                let case = Case { m, n, k, a_op: Op::None, b_op: op, gap: 0, alpha: 1.0, beta: 0.0 };
                let half = on(simd, &threads, &case, a.into(), Factor { matrix: Operand::F16(view), op });
                assert_eq!(half, on(simd, &threads, &case, a.into(), Factor { matrix: same, op }));
            }
        }
    }
}

fn size() -> impl Strategy<Value = usize> {
    // Around the tiles of all microkernels (6 x 16, 9 x 48) and the blocks along K.
    prop::sample::select(vec![
        0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 97,
    ])
}

fn depth() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![0, 1, 2, 7, 8, 15, 16, 17, 33, 64, 383, 384, 385, 500, 769, 6144])
}

fn op() -> impl Strategy<Value = Op> {
    prop::sample::select(vec![Op::None, Op::Transpose])
}

fn case() -> impl Strategy<Value = Case> {
    let scalars =
        (prop::sample::select(vec![1.0, 0.5, -2.0, 0.0]), prop::sample::select(vec![0.0, 1.0, -0.5]));
    (size(), size(), depth(), op(), op(), 0..4usize, scalars)
        .prop_map(|(m, n, k, a_op, b_op, gap, (alpha, beta))| Case { m, n, k, a_op, b_op, gap, alpha, beta })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Within the derived bound of the oracle, on every microkernel; the same bytes on one to four threads.
    #[test]
    fn products_agree_with_the_oracle_and_do_not_depend_on_threads(case in case()) {
        for simd in Simd::all() {
            product(simd, &case, true);
        }
    }

    /// A B in another storage type gives the bytes of its f32 values, on every path.
    #[test]
    fn storage_types_agree_with_their_values_bit_for_bit(case in case()) {
        let threads = &pools()[1];
        let (ar, ac) = dims(case.m, case.k, case.a_op);
        let (br, bc) = dims(case.k, case.n, case.b_op);
        let (a, lda) = stored(ar, ac, case.gap, 4);
        let a = Factor { matrix: MatRef::with_stride(&a, ar, ac, lda).unwrap(), op: case.a_op };
        let exact = values(br * bc, 5, false);
        let f16s: Vec<f16> = exact.iter().map(|&x| f16::from_f32(x)).collect();
        let bf16s: Vec<bf16> = exact.iter().map(|&x| bf16::from_f32(x)).collect();
        let from_f16: Vec<f32> = f16s.iter().map(|x| x.to_f32()).collect();
        let from_bf16: Vec<f32> = bf16s.iter().map(|x| x.to_f32()).collect();
        let quantised = MatRef::new(&exact, br, bc).unwrap();
        // Blocks of 32 elements straddle rows, and widths that are odd make rows start within a byte.
        let [nf4, double] = [false, true].map(|double| Nf4Matrix::quantize(threads, quantised, 32, double).unwrap());
        let [from_nf4, from_double] = [&nf4, &double].map(|matrix| {
            let mut wide = vec![0f32; br * bc];
            matrix.view().dequantize(threads, &mut wide).unwrap();
            wide
        });
        let pairs = [
            (Operand::Nf4(nf4.view()), &from_nf4),
            (Operand::Nf4(double.view()), &from_double),
            (Operand::F16(MatRef::new(&f16s, br, bc).unwrap()), &from_f16),
            (Operand::Bf16(MatRef::new(&bf16s, br, bc).unwrap()), &from_bf16),
        ];
        for simd in Simd::all() {
            for (stored, wide) in &pairs {
                let narrow = on(simd, threads, &case, a, Factor { matrix: *stored, op: case.b_op });
                let wide = Operand::F32(MatRef::new(wide, br, bc).unwrap());
                let wide = on(simd, threads, &case, a, Factor { matrix: wide, op: case.b_op });
                prop_assert!(same_bits(&narrow, &wide), "{case:?} {simd:?}");
            }
        }
    }
}

fn same_bits(x: &[f32], y: &[f32]) -> bool {
    x.len() == y.len() && x.iter().zip(y).all(|(x, y)| x.to_bits() == y.to_bits())
}

/// Large enough for several blocks in every loop and for more tasks than threads.
#[test]
fn many_blocks_on_any_number_of_threads() {
    for (m, n, k) in [
        (300, 600, 400),
        (16, 700, 300),
        (700, 16, 300),
        (2, 1200, 500),
        (520, 40, 800),
        // Deep enough to be cut along the inner dimension.
        (7, 35, 6200),
        (300, 5, 6200),
    ] {
        for (a_op, b_op) in ops() {
            let case = Case { m, n, k, a_op, b_op, gap: 1, alpha: 1.0, beta: 1.0 };
            for simd in Simd::all() {
                product(simd, &case, true);
            }
        }
    }
}

/// Infinities, subnormals and signed zeros, and sums that overflow, as in the plain loop.
#[test]
fn special_values() {
    let threads = Threads::new(1).unwrap();
    let tiny = f32::from_bits(3);
    let a = [f32::INFINITY, 1.0, f32::MAX, f32::MAX, tiny, 0.0, -0.0, -0.0];
    let b = [1.0, 1.0];
    let expected = [f32::INFINITY, f32::INFINITY, tiny, 0.0];
    for simd in Simd::all() {
        for op in [Op::None, Op::Transpose] {
            let (br, bc) = dims(2, 1, op);
            let b = Factor { matrix: Operand::F32(MatRef::new(&b, br, bc).unwrap()), op };
            let a = MatRef::new(&a, 4, 2).unwrap();
            let mut c = [f32::NAN; 4];
            gemm_on(simd, &threads, 1.0, a.into(), b, 0.0, MatMut::new(&mut c, 4, 1).unwrap()).unwrap();
            assert_eq!(c, expected, "{simd:?} {op:?}");
        }
    }
}
