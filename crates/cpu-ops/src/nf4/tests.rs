//! NF4 against the reference's vectors, against the naive oracle on every path of this CPU, and the faults
//! that users of other libraries met.

use half::{bf16, f16};
use proptest::prelude::*;
use serde_json::Value;

use super::dequantize::HalfType;
use super::*;
use crate::reference::nf4 as oracle;
use crate::simd::Simd;

const BLOCK_SIZES: [usize; 8] = [32, 64, 128, 256, 512, 1024, 2048, 4096];

fn threads() -> Threads {
    Threads::new(2).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn quantize(values: &[f32], block_size: usize, double: bool) -> Nf4Matrix {
    let matrix = MatRef::new(values, 1, values.len()).unwrap();
    Nf4Matrix::quantize(&threads(), matrix, block_size, double).unwrap()
}

fn dequantize(matrix: &Nf4Matrix) -> Vec<f32> {
    let view = matrix.view();
    let mut out = vec![f32::NAN; view.rows() * view.cols()];
    view.dequantize(&threads(), &mut out).unwrap();
    out
}

fn plain(matrix: &Nf4Matrix) -> &[f32] {
    match matrix.view().scales() {
        Scales::Plain(scales) => {
            let OwnedScales::Plain(own) = &matrix.scales else { unreachable!() };
            assert_eq!(scales, own);
            own
        }
        Scales::Double { .. } => panic!("plain scales expected"),
    }
}

/// Pseudo-random values that look normal enough: the sum of four uniform ones.
fn normal(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| uniform() + uniform() + uniform() + uniform()).collect()
}

// ---- the reference's vectors ----

fn vectors() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/nf4_vectors.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect(path)).expect(path)
}

fn hex_bytes(value: &Value) -> Vec<u8> {
    let hex = value.as_str().expect("an array in hexadecimal");
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn hex_f32(value: &Value) -> Vec<f32> {
    hex_bytes(value).as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

fn hex_u16(value: &Value) -> Vec<u16> {
    hex_bytes(value).as_chunks::<2>().0.iter().map(|&b| u16::from_le_bytes(b)).collect()
}

fn case_input(case: &Value) -> Vec<f32> {
    match case["input_dtype"].as_str().unwrap() {
        "f32" => hex_f32(&case["input"]),
        "bf16" => hex_u16(&case["input"]).iter().map(|&b| bf16::from_bits(b).to_f32()).collect(),
        other => panic!("unknown input type {other}"),
    }
}

#[test]
fn tables_equal_the_reference() {
    let doc = vectors();
    assert_eq!(bits(&CODE), bits(&hex_f32(&doc["nf4_code_hex"])));
    assert_eq!(bits(&MIDPOINTS), bits(&hex_f32(&doc["midpoints_cpu_hex"])));
    assert_eq!(bits(&DYNAMIC_MAP), bits(&hex_f32(&doc["dynamic_map_hex"])));
}

#[test]
fn every_finite_case_of_the_reference_bit_for_bit() {
    let doc = vectors();
    let mut plain_cases = 0;
    let mut double_cases = 0;
    for case in doc["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let input = case_input(case);
        let block_size = case["blocksize"].as_u64().unwrap() as usize;
        if input.iter().any(|x| !x.is_finite()) {
            continue;
        }
        plain_cases += 1;
        let packed = quantize(&input, block_size, false);
        let codes = hex_bytes(&case["packed"]);
        assert_eq!(packed.codes, codes, "{name}");
        assert_eq!(bits(plain(&packed)), bits(&hex_f32(&case["absmax"])), "{name}");
        if !case["dequant_f32"].is_null() {
            let values = hex_f32(&case["dequant_f32"]);
            assert_eq!(bits(&dequantize(&packed)), bits(&values), "{name}");
            let mut half = vec![bf16::NAN; input.len()];
            packed.view().dequantize_bf16(&threads(), &mut half).unwrap();
            let found: Vec<u16> = half.iter().map(|x| x.to_bits()).collect();
            assert_eq!(found, hex_u16(&case["dequant_bf16"]), "{name}");
            // The file has no f16: the definition is one more rounding of its f32 values.
            let mut half = vec![f16::NAN; input.len()];
            let overflows = packed.view().dequantize_f16(&threads(), &mut half).unwrap();
            let expected: Vec<f16> = values.iter().map(|&x| f16::from_f32(x)).collect();
            assert_eq!(half, expected, "{name}");
            assert_eq!(overflows, expected.iter().filter(|x| x.is_infinite()).count(), "{name}");
        }
        for (variant, codes_key) in [("nested", "codes_exact_rule"), ("nested_exact", "codes")] {
            double_cases += 1;
            let nested = &case[variant];
            let offset = hex_f32(&nested["offset"])[0];
            let scales = double::quantize_scales(&threads(), plain(&packed), offset).unwrap();
            assert_eq!(scales.codes, hex_bytes(&nested[codes_key]), "{name} {variant}");
            assert_eq!(bits(&scales.block_absmax), bits(&hex_f32(&nested["absmax2"])), "{name} {variant}");
            // Restoring from the file's own codes, which in "nested" are the library's coarser ones.
            let file_codes = hex_bytes(&nested["codes"]);
            let restored = Scales::Double { codes: &file_codes, block_absmax: &scales.block_absmax, offset };
            let view = Nf4::new(1, input.len(), block_size, &codes, restored).unwrap();
            let back: Vec<f32> = (0..view.blocks()).map(|block| view.scale(block)).collect();
            assert_eq!(bits(&back), bits(&hex_f32(&nested["absmax_restored"])), "{name} {variant}");
            if !nested["dequant_f32"].is_null() {
                let mut out = vec![f32::NAN; input.len()];
                view.dequantize(&threads(), &mut out).unwrap();
                assert_eq!(bits(&out), bits(&hex_f32(&nested["dequant_f32"])), "{name} {variant}");
            }
        }
        // Our own mean: the file's sum is pairwise, so the last bit may differ.
        let offset = hex_f32(&case["nested_exact"]["offset"])[0];
        let ours = double::mean(plain(&packed));
        assert!((ours - offset).abs() <= 1e-6 * offset.abs(), "{name}: {ours} {offset}");
    }
    assert!(plain_cases >= 14 && double_cases >= 28, "{plain_cases} {double_cases}");
}

#[test]
fn values_that_are_not_finite_are_refused_with_their_place() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)] {
        for (count, index) in [(64, 0), (64, 63), (100, 99), (100, 64), (200_000, 131_072), (1, 0)] {
            let mut values = normal(count, 1);
            values[index] = bad;
            if index + 70 < count {
                values[index + 70] = f32::NAN;
            }
            let matrix = MatRef::new(&values, 1, count).unwrap();
            match Nf4Matrix::quantize(&threads(), matrix, 64, false) {
                Err(Error::NotFinite { index: found, value, .. }) => {
                    assert_eq!((found, value.to_bits()), (index, bad.to_bits()));
                }
                other => panic!("{count} values with {bad} at {index}: {other:?}"),
            }
        }
    }
}

// ---- the oracle, on every path ----

/// Runs every path on the same values and compares each with the oracle.
fn assert_paths_equal_oracle(values: &[f32], block_size: usize) {
    let (indices, scales) = oracle::quantize(values, block_size);
    let codes = oracle::pack(&indices);
    let expected = oracle::dequantize(&indices, &scales, block_size);
    for simd in Simd::all() {
        let mut found_codes = vec![0; codes.len()];
        let mut found_scales = vec![f32::NAN; scales.len()];
        assert!(quantize::quantize_run(simd, values, block_size, &mut found_codes, &mut found_scales));
        assert_eq!(found_codes, codes, "{simd:?} block {block_size}");
        assert_eq!(bits(&found_scales), bits(&scales), "{simd:?} block {block_size}");
        let view = Nf4::new(1, values.len(), block_size, &codes, Scales::Plain(&scales)).unwrap();
        let mut out = vec![f32::NAN; values.len()];
        view.expand_run_with(simd, 0, &mut out);
        assert_eq!(bits(&out), bits(&expected), "{simd:?} block {block_size}");
    }
}

fn special() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -1.0f32..1.0,
        1 => any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite()),
        1 => prop::sample::select(vec![0.0, -0.0, 1e-45, -1e-40, 1e-38, 1.2e-38, f32::MAX, f32::MIN, 1.0, -1.0]),
        1 => (0usize..15, -1i32..=1).prop_map(|(i, ulps)| {
            f32::from_bits(MIDPOINTS[i].to_bits().wrapping_add_signed(ulps))
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_values_in_any_blocks(
        values in prop::collection::vec(special(), 1..700),
        block_size in prop::sample::select(&BLOCK_SIZES[..]),
        normal_scale in any::<bool>(),
    ) {
        let values: Vec<f32> = if normal_scale {
            values.iter().map(|x| if x.abs() <= 1.0 { *x } else { 1.0f32.copysign(*x) }).collect()
        } else {
            values
        };
        assert_paths_equal_oracle(&values, block_size);
    }

    #[test]
    fn any_run_equals_the_same_part_of_the_whole(
        count in 1usize..1000,
        start in 0usize..1000,
        length in 0usize..1000,
        block_size in prop::sample::select(&[32usize, 64, 256][..]),
        double in any::<bool>(),
    ) {
        let values = normal(count, count as u64);
        let packed = quantize(&values, block_size, double);
        let whole = dequantize(&packed);
        let start = start % (count + 1);
        let length = length % (count - start + 1);
        for simd in Simd::all() {
            let mut run = vec![f32::NAN; length];
            packed.view().expand_run_with(simd, start, &mut run);
            prop_assert_eq!(bits(&run), bits(&whole[start..start + length]), "{:?}", simd);
            for to in [HalfType::F16, HalfType::Bf16] {
                let mut run = vec![0xffff; length];
                packed.view().expand_halves_run(simd, start, &mut run, to);
                let round = |x: &f32| match to {
                    HalfType::F16 => f16::from_f32(*x).to_bits(),
                    HalfType::Bf16 => bf16::from_f32(*x).to_bits(),
                };
                let expected: Vec<u16> = whole[start..start + length].iter().map(round).collect();
                prop_assert_eq!(run, expected, "{:?}", simd);
            }
        }
    }

    #[test]
    fn double_quantisation_takes_the_nearest_code(
        scales in prop::collection::vec(0.0f32..2.0, 1..600),
        offset in 0.0f32..2.0,
    ) {
        let found = double::quantize_scales(&threads(), &scales, offset).unwrap();
        let (codes, maxima) = oracle::quantize_scales(&scales, offset);
        prop_assert_eq!(found.codes, codes);
        prop_assert_eq!(bits(&found.block_absmax), bits(&maxima));
    }

    #[test]
    fn rows_with_gaps_quantise_as_if_they_stood_together(rows in 1usize..8, cols in 1usize..150, gap in 0usize..5) {
        let stride = cols + gap;
        let values = normal(rows * stride, 7);
        let together: Vec<f32> = values.chunks(stride).flat_map(|row| row[..cols].to_vec()).collect();
        let gaps = MatRef::with_stride(&values, rows, cols, stride).unwrap();
        let packed = Nf4Matrix::quantize(&threads(), gaps, 64, true).unwrap();
        let expected = MatRef::new(&together, rows, cols).unwrap();
        prop_assert_eq!(packed, Nf4Matrix::quantize(&threads(), expected, 64, true).unwrap());
    }
}

#[test]
fn gaps_over_many_tasks() {
    let (rows, cols, stride) = (300, 700, 701);
    let values = normal(rows * stride, 3);
    let together: Vec<f32> = values.chunks(stride).flat_map(|row| row[..cols].to_vec()).collect();
    let gaps = MatRef::with_stride(&values, rows, cols, stride).unwrap();
    let expected = MatRef::new(&together, rows, cols).unwrap();
    assert_eq!(
        Nf4Matrix::quantize(&threads(), gaps, 128, false).unwrap(),
        Nf4Matrix::quantize(&threads(), expected, 128, false).unwrap(),
    );
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let values = normal(200_001, 5);
    let matrix = MatRef::new(&values, 1, values.len()).unwrap();
    let one = Threads::new(1).unwrap();
    let expected = Nf4Matrix::quantize(&one, matrix, 64, true).unwrap();
    let mut expected_values = vec![0.0; values.len()];
    expected.view().dequantize(&one, &mut expected_values).unwrap();
    for count in 2..=4 {
        let threads = Threads::new(count).unwrap();
        assert_eq!(Nf4Matrix::quantize(&threads, matrix, 64, true).unwrap(), expected);
        let mut found = vec![0.0; values.len()];
        expected.view().dequantize(&threads, &mut found).unwrap();
        assert_eq!(bits(&found), bits(&expected_values));
    }
}

#[test]
fn empty_matrices_are_matrices() {
    for (rows, cols) in [(0, 0), (0, 5), (5, 0)] {
        for double in [false, true] {
            let matrix = MatRef::new(&[], rows, cols).unwrap();
            let packed = Nf4Matrix::quantize(&threads(), matrix, 64, double).unwrap();
            assert_eq!((packed.view().rows(), packed.view().cols(), packed.view().blocks()), (rows, cols, 0));
            packed.view().dequantize(&threads(), &mut []).unwrap();
        }
    }
}

#[test]
fn slices_of_another_length_are_refused() {
    let (codes, scales) = ([0u8; 50], [0.0f32; 2]);
    let plain = Scales::Plain(&scales);
    let view = Nf4::new(1, 100, 64, &codes, plain).unwrap();
    assert!(Nf4::new(1, 100, 64, &codes[1..], plain).is_err());
    assert!(Nf4::new(1, 100, 64, &codes, Scales::Plain(&scales[1..])).is_err());
    assert!(Nf4::new(usize::MAX, 2, 64, &codes, plain).is_err());
    let double = |codes, block_absmax| Scales::Double { codes, block_absmax, offset: 0.0 };
    assert!(Nf4::new(1, 100, 64, &codes, double(&[0, 0], &[1.0])).is_ok());
    assert!(Nf4::new(1, 100, 64, &codes, double(&[0], &[1.0])).is_err());
    assert!(Nf4::new(1, 100, 64, &codes, double(&[0, 0], &[])).is_err());
    assert!(view.dequantize(&threads(), &mut [0.0; 99]).is_err());
    assert!(view.dequantize_f16(&threads(), &mut [f16::ZERO; 101]).is_err());
    assert!(view.dequantize_bf16(&threads(), &mut [bf16::ZERO; 101]).is_err());
}

/// Scales that come from elsewhere may be anything: a NaN stays one.
#[test]
fn scales_that_are_not_finite_expand_as_they_are() {
    let (codes, scales) = ([0x0f; 64], [f32::NAN, f32::INFINITY, f32::from_bits(0x7f80_0001), 1.0]);
    let view = Nf4::new(1, 128, 32, &codes, Scales::Plain(&scales)).unwrap();
    for simd in Simd::all() {
        for to in [HalfType::F16, HalfType::Bf16] {
            let mut out = [0; 128];
            assert_eq!(view.expand_halves_run(simd, 0, &mut out, to), 32, "{simd:?} {to:?}");
            for (i, bits) in out.into_iter().enumerate() {
                let is_nan = bits & 0x7fff > to.infinity();
                assert_eq!(is_nan, i / 32 == 0 || i / 32 == 2, "{simd:?} {to:?} {i}: {bits:#06x}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "asked for")]
fn a_run_beyond_the_end_panics() {
    quantize(&normal(100, 1), 64, false).view().expand_run(90, &mut [0.0; 11]);
}

#[test]
fn a_scale_that_eight_bits_cannot_hold_is_refused() {
    // The distance from the mean rounds up, and adding it to the mean again rounds up once more.
    let scales = [f32::MAX, 0.0, 0.0, 0.0];
    let offset = f32::from_bits(0x7e80_0001);
    match double::quantize_scales(&threads(), &scales, offset) {
        Ok(found) => {
            let restored = DYNAMIC_MAP[found.codes[0] as usize] * found.block_absmax[0] + offset;
            assert!(restored.is_finite(), "accepted, so it must be finite: {restored}");
        }
        Err(error) => assert!(error.to_string().contains("without double quantisation"), "{error}"),
    }
    let error = double::quantize_scales(&threads(), &[f32::MAX], -1e32).unwrap_err();
    assert!(error.to_string().contains("without double quantisation"), "{error}");
}

#[test]
fn overflow_into_halves_is_counted() {
    let values = [70000.0f32, -70000.0, 1.0, 65504.0].repeat(20);
    let packed = quantize(&values, 64, false);
    let mut half = vec![f16::ZERO; values.len()];
    assert_eq!(packed.view().dequantize_f16(&threads(), &mut half).unwrap(), 60);
    let mut half = vec![bf16::ZERO; values.len()];
    assert_eq!(packed.view().dequantize_bf16(&threads(), &mut half).unwrap(), 0);
    let packed = quantize(&[f32::MAX; 70], 64, false);
    for simd in Simd::all() {
        for to in [HalfType::F16, HalfType::Bf16] {
            assert_eq!(packed.view().expand_halves_run(simd, 0, &mut [0; 70], to), 70, "{simd:?} {to:?}");
            assert_eq!(packed.view().expand_halves_run(simd, 3, &mut [0; 50], to), 50, "{simd:?} {to:?}");
        }
    }
}

// ---- faults met elsewhere, by their entries in the bank of reports ----

/// Half the widest gap of the code book, which lies between -1 and the next code.
const WORST_ERROR: f32 = 0.15191;

/// B01: the lanes beyond the last element must not count.
#[test]
fn tail_block_is_scaled_by_its_own_values_only() {
    let mut values = vec![0.5f32; 64];
    values.extend((0..36).map(|i| if i % 2 == 0 { 0.01 } else { -0.01 }));
    let fresh = quantize(&values, 64, false);
    drop(vec![1e30f32; 100]);
    drop(vec![0xffu8; 50]);
    let reused = quantize(&values, 64, false);
    assert_eq!(fresh, reused);
    assert_eq!(plain(&fresh), [0.5, 0.01]);
    let back = dequantize(&fresh);
    assert_eq!(back.len(), 100);
    for (i, (x, y)) in values.iter().zip(&back).enumerate() {
        let scale = plain(&fresh)[i / 64];
        assert!((x - y).abs() <= WORST_ERROR * scale, "{i}: {x} {y}");
    }
}

/// B02: unusual block sizes.
#[test]
fn block_sizes_are_supported_exactly_or_refused_by_name() {
    for (count, block_size) in [(16, 1024), (4096, 4096), (1, 4096), (33, 32), (5000, 4096)] {
        assert_paths_equal_oracle(&normal(count, 2), block_size);
    }
    let values = normal(64, 2);
    let matrix = MatRef::new(&values, 1, 64).unwrap();
    for block_size in [0, 1, 16, 48, 63, 96, 8192, usize::MAX] {
        let error = Nf4Matrix::quantize(&threads(), matrix, block_size, false).unwrap_err().to_string();
        assert!(error.contains(&format!("block_size = {block_size} ")), "{error}");
        assert!(Nf4::new(1, 64, block_size, &[0; 32], Scales::Plain(&[1.0])).is_err());
    }
}

/// B03: the error grows gently with the block size.
#[test]
fn error_rises_smoothly_with_the_block_size() {
    let values = normal(4096, 11);
    let mut last = None;
    for block_size in BLOCK_SIZES {
        assert_paths_equal_oracle(&values, block_size);
        let back = dequantize(&quantize(&values, block_size, false));
        let mean = values.iter().zip(&back).map(|(x, y)| f64::from((x - y).abs())).sum::<f64>() / 4096.0;
        if let Some(last) = last.replace(mean) {
            assert!(mean / last <= 1.3 && mean / last >= 0.9, "block {block_size}: {last} then {mean}");
        }
    }
}

/// B04: the layout is part of the type; `[in, out]` is another matrix than `[out, in]`.
#[test]
fn rows_and_columns_come_back_as_given() {
    let values = normal(128 * 64, 4);
    for (rows, cols) in [(128, 64), (64, 128)] {
        let matrix = MatRef::new(&values, rows, cols).unwrap();
        let packed = Nf4Matrix::quantize(&threads(), matrix, 64, false).unwrap();
        let view = packed.view();
        assert_eq!((view.rows(), view.cols()), (rows, cols));
        let back = dequantize(&packed);
        let scales = plain(&packed);
        for row in 0..rows {
            for (col, x) in matrix.row(row).iter().enumerate() {
                let at = row * cols + col;
                assert!((x - back[at]).abs() <= WORST_ERROR * scales[at / 64]);
            }
        }
    }
}

/// B06: vectors of even and of odd length keep it, on every path.
#[test]
fn vectors_keep_their_length_whatever_its_parity() {
    for count in [4095, 4096] {
        let values = normal(count, 6);
        let packed = quantize(&values, 64, false);
        assert_eq!((packed.view().rows(), packed.view().cols()), (1, count));
        assert_eq!(dequantize(&packed).len(), count);
        assert_paths_equal_oracle(&values, 64);
    }
}

/// B07: blocks of zeros and of tiny values.
#[test]
fn zero_and_subnormal_blocks_stay_finite() {
    for zero in [0.0f32, -0.0] {
        for tiny in [1e-42f32, -1e-42, f32::from_bits(1)] {
            let mut values = vec![zero; 64];
            values.extend([tiny; 64]);
            let good = normal(64, 8);
            values.extend(&good);
            assert_paths_equal_oracle(&values, 64);
            for double in [false, true] {
                let back = dequantize(&quantize(&values, 64, double));
                assert!(back.iter().all(|x| x.is_finite()));
                if !double {
                    assert!(back[..64].iter().all(|&x| x == 0.0));
                    assert!(back[64..128].iter().all(|&x| x == 0.0 || x == tiny));
                    assert_eq!(bits(&back[128..]), bits(&dequantize(&quantize(&good, 64, false))));
                }
            }
        }
    }
    // All scales so small that the reciprocal of their spread overflows.
    let values: Vec<f32> = (0..256).map(|i| f32::from_bits(1 + i / 64)).collect();
    assert!(dequantize(&quantize(&values, 64, true)).iter().all(|x| x.is_finite() && *x <= 1e-40));
}

/// B10: an offset kept in a narrower type is converted; expanding at once or in two steps is the same.
#[test]
fn second_level_offset_is_converted_and_both_ways_agree() {
    let packed = quantize(&normal(64 * 300, 9), 64, true);
    let Scales::Double { codes, block_absmax, offset } = packed.view().scales() else { unreachable!() };
    let offsets = [offset, f16::from_f32(offset).to_f32(), bf16::from_f32(offset).to_f32()];
    for offset in offsets {
        let scales = Scales::Double { codes, block_absmax, offset };
        let at_once = Nf4::new(1, 64 * 300, 64, packed.view().codes(), scales).unwrap();
        let restored: Vec<f32> = (0..300).map(|block| at_once.scale(block)).collect();
        let two_steps = Nf4 { scales: Scales::Plain(&restored), ..at_once };
        for simd in Simd::all() {
            let (mut a, mut b) = (vec![0.0; 64 * 300], vec![1.0; 64 * 300]);
            at_once.expand_run_with(simd, 0, &mut a);
            two_steps.expand_run_with(simd, 0, &mut b);
            assert_eq!(bits(&a), bits(&b));
            // 1/512 relative is more than bf16 loses; a reinterpreted offset is off by orders of magnitude.
            let mean = restored.iter().sum::<f32>() / 300.0;
            assert!((mean / offsets[0] - 1.0).abs() <= 1.0 / 256.0 + 0.01, "{mean} {}", offsets[0]);
        }
    }
}

/// B12: equal weights come back equal and not zero, in the shape where they did not.
#[test]
fn narrow_projections_of_a_grouped_model_are_not_lost() {
    let weights = normal(256 * 1536, 10);
    let matrix = MatRef::new(&weights, 256, 1536).unwrap();
    let k = Nf4Matrix::quantize(&threads(), matrix, 64, true).unwrap();
    let v = Nf4Matrix::quantize(&threads(), matrix, 64, true).unwrap();
    let (k, v) = (dequantize(&k), dequantize(&v));
    assert_eq!(bits(&k), bits(&v));
    // What rounds to the zero code lies within its two borders; count that in the source.
    let zeros = k.iter().filter(|&&x| x == 0.0).count();
    let expected = weights.chunks(64).map(|block| {
        let max = block.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        block.iter().filter(|&&x| x / max > MIDPOINTS[6] && x / max <= MIDPOINTS[7]).count()
    });
    let expected: usize = expected.sum();
    assert!(zeros.abs_diff(expected) <= weights.len() / 100, "{zeros} {expected}");
}

/// B13: a merged weight is quantised with scales of its own.
#[test]
fn merging_recomputes_the_scales() {
    let weights = normal(64 * 4, 12);
    let first = quantize(&weights, 64, false);
    let merged: Vec<f32> = dequantize(&first).iter().map(|w| w + 3.0 * w.abs()).collect();
    let second = quantize(&merged, 64, false);
    for (block, scale) in merged.chunks(64).zip(plain(&second)) {
        assert_eq!(*scale, block.iter().fold(0.0f32, |max, x| max.max(x.abs())));
    }
    for (i, (x, y)) in merged.iter().zip(dequantize(&second)).enumerate() {
        assert!((x - y).abs() <= WORST_ERROR * plain(&second)[i / 64]);
    }
}
