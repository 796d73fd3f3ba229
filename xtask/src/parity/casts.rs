//! Cases of the casts: exact, also for NaN (as a class), subnormals, ties and overflow.

use cpu_ops::cast;
use half::{bf16, f16};
use kernels_ptx as k;
use kernels_ptx::{Element, Kernel};

use super::case::{Argument, Case, Data, u64};
use super::values::Random;

/// Lengths around the groups of 8 of a thread and the 2048 of a block.
const LENGTHS: [usize; 10] = [0, 1, 7, 8, 9, 255, 2047, 2048, 2049, 5003];

type Narrow = fn(&[f32]) -> (Data, usize);
type Widen = fn(&Data) -> Vec<f32>;

fn to_f16(x: &[f32]) -> (Data, usize) {
    let mut y = vec![f16::ZERO; x.len()];
    let overflows = cast::f32_to_f16(x, &mut y);
    (Data::F16(y), overflows)
}

fn to_bf16(x: &[f32]) -> (Data, usize) {
    let mut y = vec![bf16::ZERO; x.len()];
    let overflows = cast::f32_to_bf16(x, &mut y);
    (Data::Bf16(y), overflows)
}

fn from_f16(x: &Data) -> Vec<f32> {
    let Data::F16(x) = x else { panic!("f16 expected") };
    let mut y = vec![0.0; x.len()];
    cast::f16_to_f32(x, &mut y);
    y
}

fn from_bf16(x: &Data) -> Vec<f32> {
    let Data::Bf16(x) = x else { panic!("bf16 expected") };
    let mut y = vec![0.0; x.len()];
    cast::bf16_to_f32(x, &mut y);
    y
}

fn at(argument: Argument, offset: usize) -> Argument {
    let Argument::Buffer { index, .. } = argument else { panic!("{argument:?} is no buffer") };
    Argument::Buffer { index, offset }
}

/// Every case of this family.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut random = Random::new(1);
    let narrow: [(&'static Kernel, &'static Kernel, Element, Narrow); 2] = [
        (&k::CAST_F32_TO_F16, &k::CAST_F32_TO_F16_COUNTED, Element::F16, to_f16),
        (&k::CAST_F32_TO_BF16, &k::CAST_F32_TO_BF16_COUNTED, Element::Bf16, to_bf16),
    ];
    for (plain, counted, element, oracle) in narrow {
        // With one element before what is cast, no 16-byte access is possible.
        for (len, offset) in LENGTHS.into_iter().flat_map(|len| [(len, 0), (len, 1)]) {
            let x = random.any_floats(len + offset);
            let (mut want, overflows) = oracle(&x[offset..]);
            prepend(&mut want, element, offset);
            let label = format!("{len} elements, offset {offset}");
            let mut case = Case::new(plain, label.clone());
            let (source, target) = (case.buffer(Data::F32(x.clone())), case.output(element, len + offset));
            case.launch(&[len], &[at(source, offset), at(target, offset), u64(len)]);
            case.expect_exact(target, want.clone());
            all.push(case);
            let mut case = Case::new(counted, label);
            let (source, target) = (case.buffer(Data::F32(x)), case.output(element, len + offset));
            let count = case.buffer(Data::U64(vec![3]));
            case.launch(&[len], &[at(source, offset), at(target, offset), count, u64(len)]);
            case.expect_exact(target, want);
            case.expect_exact(count, Data::U64(vec![3 + overflows as u64]));
            all.push(case);
        }
    }
    let every_f16 = Data::F16((0..=u16::MAX).map(f16::from_bits).collect());
    let every_bf16 = Data::Bf16((0..=u16::MAX).map(bf16::from_bits).collect());
    let widen: [(&'static Kernel, Data, Widen); 2] =
        [(&k::CAST_F16_TO_F32, every_f16, from_f16), (&k::CAST_BF16_TO_F32, every_bf16, from_bf16)];
    for (kernel, every, oracle) in widen {
        let want = oracle(&every);
        for (len, offset) in [(0, 0), (1, 0), (9, 1), (2049, 3), (1 << 16, 0), ((1 << 16) - 1, 1)] {
            let mut case = Case::new(kernel, format!("{len} bit patterns, offset {offset}"));
            let (source, target) = (case.buffer(every.clone()), case.output(Element::F32, len));
            case.launch(&[len], &[at(source, offset), target, u64(len)]);
            case.expect_exact(target, Data::F32(want[offset..offset + len].to_vec()));
            all.push(case);
        }
    }
    all.extend(row_cases(&mut random));
    all
}

/// Puts `count` poisoned elements before the others.
fn prepend(data: &mut Data, element: Element, count: usize) {
    match (data, Data::poison(element, count)) {
        (Data::F16(data), Data::F16(poison)) => data.splice(..0, poison).for_each(drop),
        (Data::Bf16(data), Data::Bf16(poison)) => data.splice(..0, poison).for_each(drop),
        (data, _) => panic!("{:?} is no target of a cast", data.element()),
    }
}

/// The exponent that puts the largest magnitude of a row into [2^14, 2^15); 0 where there is none.
fn exponent(row: &[f32]) -> i32 {
    let most = row.iter().fold(0f32, |most, x| if x.is_nan() { f32::INFINITY } else { most.max(x.abs()) });
    if most == 0.0 || most.is_infinite() {
        return 0;
    }
    // f64 has neither subnormals nor overflow here, so its exponent field is the answer.
    14 - ((f64::from(most).to_bits() >> 52) as i32 - 1023)
}

fn row_cases(random: &mut Random) -> Vec<Case> {
    let mut all = Vec::new();
    let kernels: [(&'static Kernel, &'static Kernel, Element, Narrow, Widen); 2] = [
        (&k::CAST_ROWS_F32_TO_F16, &k::CAST_ROWS_F16_TO_F32, Element::F16, to_f16, from_f16),
        (&k::CAST_ROWS_F32_TO_BF16, &k::CAST_ROWS_BF16_TO_F32, Element::Bf16, to_bf16, from_bf16),
    ];
    for (narrow, widen, element, to_half, from_half) in kernels {
        for (cols, source_stride, target_stride) in [
            (1, 1, 1),
            (3, 3, 5),
            (4, 4, 4),
            (255, 256, 256),
            (1024, 1024, 1024),
            (1027, 1028, 1032),
            (2500, 2501, 2500),
        ] {
            // One magnitude a row, from subnormal to almost infinite, then rows of zeros, of an infinity, of NaN.
            let scales = [1e-45, 3e-39, 1.2e-38, 1e-20, 3e-5, 1.0, 32768.0, 65504.0, 1e20, 3.4e38, 0.0];
            let mut x = Vec::new();
            for scale in scales {
                x.extend(random.floats(source_stride, scale));
                // The largest element is first, so that also one column has it.
                let start = x.len() - source_stride;
                x[start] = scale;
            }
            for special in [f32::INFINITY, f32::NAN] {
                x.extend(random.floats(source_stride, 2.0));
                let last = x.len() - source_stride + cols - 1;
                x[last] = special;
            }
            let rows = scales.len() + 2;
            let exponents: Vec<i32> =
                (0..rows).map(|row| exponent(&x[row * source_stride..][..cols])).collect();
            let mut want = Data::poison(element, rows * target_stride);
            let mut back = vec![0f32; rows * cols];
            for (row, &e) in exponents.iter().enumerate() {
                // Scaling in f64 is exact, and so is its rounding to f32 except far below the row's maximum,
                // where two roundings are what the kernel does too.
                let halves = [e >> 1, e - (e >> 1)].map(|e| 2f32.powi(e));
                let scaled: Vec<f32> =
                    x[row * source_stride..][..cols].iter().map(|x| x * halves[0] * halves[1]).collect();
                let (half, _) = to_half(&scaled);
                let inverse = [-e >> 1, -e - (-e >> 1)].map(|e| 2f32.powi(e));
                let wide = from_half(&half);
                for (col, wide) in wide.into_iter().enumerate() {
                    back[row * cols + col] = wide * inverse[0] * inverse[1];
                }
                match (&mut want, half) {
                    (Data::F16(want), Data::F16(half)) => {
                        want[row * target_stride..][..cols].copy_from_slice(&half)
                    }
                    (Data::Bf16(want), Data::Bf16(half)) => {
                        want[row * target_stride..][..cols].copy_from_slice(&half)
                    }
                    _ => unreachable!("both have the type of the kernel"),
                }
            }
            let mut case =
                Case::new(narrow, format!("{rows} rows of {cols}, strides {source_stride}, {target_stride}"));
            let source = case.buffer(Data::F32(x));
            let target = case.output(element, rows * target_stride);
            let e = case.output(Element::I32, rows);
            case.launch(&[rows], &[source, target, e, u64(cols), u64(source_stride), u64(target_stride)]);
            case.expect_exact(target, want.clone());
            case.expect_exact(e, Data::I32(exponents.clone()));
            all.push(case);
            let mut case =
                Case::new(widen, format!("{rows} rows of {cols}, strides {target_stride}, {cols}"));
            let source = case.buffer(want);
            let target = case.output(Element::F32, rows * cols);
            let e = case.buffer(Data::I32(exponents));
            case.launch(&[rows], &[source, target, e, u64(cols), u64(target_stride), u64(cols)]);
            case.expect_exact(target, Data::F32(back));
            all.push(case);
        }
    }
    all
}
