//! Kernels through the wrapper on the inputs of known faults: casts, NF4, and the head. `cargo xtask parity` compares
//! every kernel over many more.

mod common;

use common::{Setup, says};
use gpu_driver::{Argument, Gpu, Stream, arguments};
use half::{bf16, f16};

/// Codes of the values -1, 0 and 1.
const LOW: u8 = 0;
const ZERO: u8 = 7;
const HIGH: u8 = 15;

fn cast(gpu: &Gpu, stream: &Stream, bits: &[u32]) -> (Vec<f16>, u64) {
    let kernel = gpu.load(&kernels_ptx::CAST_F32_TO_F16_COUNTED).unwrap();
    let source: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
    let source = stream.buffer(&source).unwrap();
    let mut target = gpu.buffer::<f16>(bits.len()).unwrap();
    let mut overflows = stream.buffer(&[0u64]).unwrap();
    let n = bits.len() as u64;
    kernel.launch(stream, &[n], &arguments![&source, &mut target, &mut overflows, n]).unwrap();
    (stream.read(&target).unwrap(), stream.read(&overflows).unwrap()[0])
}

/// B15, on the device: subnormals are kept, NaN stays NaN, infinity is no overflow.
#[test]
fn casts_keep_subnormals_and_nan() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let (got, overflows) = cast(&gpu, &stream, &[0x3380_0000, 0x3800_0000, 0x387F_C000, 0x7F80_0000]);
    assert_eq!(got.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0x0001, 0x0200, 0x03FF, 0x7C00]);
    let (nan, none) = cast(&gpu, &stream, &[0x7F80_0001, 0x7FC0_0000, 0xFF80_0001]);
    assert!(nan.iter().all(|x| x.is_nan()));
    assert_eq!((overflows, none), (0, 0));
    setup.silent();
}

/// B17, on the device: to the nearest, ties to even.
#[test]
fn casts_round_to_the_nearest_even() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let inputs = [0x3F80_1000, 0x3F80_1001, 0x3F80_3000, 0x477F_EFFF, 0x477F_F000, 0x387F_EFFF];
    let (got, overflows) = cast(&gpu, &stream, &inputs);
    let bits: Vec<u16> = got.iter().map(|x| x.to_bits()).collect();
    assert_eq!(bits, [0x3C00, 0x3C01, 0x3C02, 0x7BFF, 0x7C00, 0x0400]);
    assert_eq!(overflows, 1);
    setup.silent();
}

/// B20, on the device: values of bf16 that f16 cannot hold are counted, in one launch after the other.
#[test]
fn values_outside_of_f16_are_counted() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let values = [70000.0f32, -1e9, 1e-30, 400.0].map(|x| bf16::from_f32(x).to_f32().to_bits());
    let (got, overflows) = cast(&gpu, &stream, &values);
    assert_eq!((got[0], got[1], got[2].to_f32()), (f16::INFINITY, f16::NEG_INFINITY, 0.0));
    assert_eq!(overflows, 2);
    setup.silent();
}

/// The elements from `first` on of codes in blocks of `block`, with plain scales.
fn expand(gpu: &Gpu, stream: &Stream, codes: &[u8], scales: &[f32], first: usize, block: u32) -> Vec<f32> {
    let kernel = gpu.load(&kernels_ptx::NF4_DEQUANTIZE_F32).unwrap();
    // Two codes a byte, the first in the high half.
    let packed: Vec<u8> = codes.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).unwrap_or(&0)).collect();
    let packed = stream.buffer(&packed).unwrap();
    let scales = stream.buffer(scales).unwrap();
    let count = codes.len() - first;
    let mut target = gpu.buffer::<f32>(count).unwrap();
    let (from, n, shift) = (first as u64, count as u64, block.trailing_zeros());
    kernel.launch(stream, &[n], &arguments![&packed, &scales, &mut target, from, n, shift]).unwrap();
    stream.read(&target).unwrap()
}

/// B01, B06, on the device: a partly filled last block has its own scale, odd lengths are lengths like others, and
/// nothing beyond the codes and scales is read (the emulator would say so).
#[test]
fn tail_blocks_and_odd_lengths_expand_to_what_is_there() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let mut want = vec![0.5f32; 64];
    want.extend([0.01; 36]);
    assert_eq!(expand(&gpu, &stream, &[HIGH; 100], &[0.5, 0.01], 0, 64), want);
    for len in [1usize, 4095, 4096, 4097] {
        let scales: Vec<f32> = (0..len.div_ceil(64)).map(|i| 1.0 + i as f32).collect();
        let got = expand(&gpu, &stream, &vec![LOW; len], &scales, 0, 64);
        assert!(got.len() == len && got.iter().enumerate().all(|(i, &x)| x == -1.0 - (i / 64) as f32));
    }
    // A part that begins in the middle of a byte and of a block.
    let codes: Vec<u8> = (0..100).map(|i| if i % 3 == 0 { HIGH } else { ZERO }).collect();
    let part = expand(&gpu, &stream, &codes, &[2.0, 3.0], 63, 64);
    assert_eq!(part[..4], [2.0, 0.0, 0.0, 3.0]);
    setup.silent();
}

/// B02, on the device: each block size is its own, also where the tensor is shorter than a block.
#[test]
fn every_block_size_is_its_own() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    for block in [32u32, 64, 128, 256, 512, 1024, 2048, 4096] {
        let len = 2 * block as usize + 16;
        let got = expand(&gpu, &stream, &vec![HIGH; len], &[1.0, 2.0, 3.0], 0, block);
        assert!(got.iter().enumerate().all(|(i, &x)| x == 1.0 + (i / block as usize) as f32), "{block}");
        assert_eq!(expand(&gpu, &stream, &[HIGH; 16], &[7.0], 0, block), [7.0; 16]);
    }
    setup.silent();
}

/// B07, on the device: a block of zeros is zeros, and one of subnormals is finite.
#[test]
fn blocks_of_zero_and_of_subnormals_are_finite() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let got = expand(&gpu, &stream, &[HIGH; 192], &[0.0, 1e-42, 1.0], 0, 64);
    assert_eq!((got[0], got[64], got[191]), (0.0, 1e-42, 1.0));
    assert!(expand(&gpu, &stream, &[LOW; 64], &[0.0], 0, 64).iter().all(|&x| x == 0.0));
    setup.silent();
}

/// B10, on the device: the offset of double quantisation is an f32; what is none is refused, never reinterpreted.
#[test]
fn an_offset_that_is_no_f32_is_refused() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let kernel = gpu.load(&kernels_ptx::NF4_DEQUANTIZE_F32_DOUBLE).unwrap();
    let codes = stream.buffer(&[HIGH << 4 | HIGH; 16]).unwrap();
    let scale_codes = stream.buffer(&[200u8]).unwrap();
    let absmax = stream.buffer(&[1.0f32]).unwrap();
    let mut target = gpu.buffer::<f32>(32).unwrap();
    let mut launch = |offset: Argument<'_>| {
        let mut arguments =
            Vec::from(arguments![&codes, &scale_codes, &absmax, &mut target, 0u64, 32u64, 5u32]);
        arguments.push(offset);
        kernel.launch(&stream, &[32], &arguments)
    };
    let half = u32::from(f16::from_f32(0.25).to_bits());
    says(&launch(half.into()).unwrap_err(), &["(`offset`) must be an f32, and is the u32 13312"]);
    says(&launch(0.25f64.into()).unwrap_err(), &["(`offset`) must be an f32, and is the f64 0.25"]);
    launch(0.25f32.into()).unwrap();
    let with = stream.read(&target).unwrap()[0];
    let mut again = gpu.buffer::<f32>(32).unwrap();
    let zero = arguments![&codes, &scale_codes, &absmax, &mut again, 0u64, 32u64, 5u32, 0.0f32];
    kernel.launch(&stream, &[32], &zero).unwrap();
    // The largest code is 1, so that the values are the scales, and differ by the offset: one rounding each.
    let without = stream.read(&again).unwrap()[0];
    let difference = f64::from(with) - f64::from(without) - 0.25;
    assert!(difference.abs() <= f64::from(f32::EPSILON) * f64::from(with), "{difference}");
    setup.silent();
}

/// Losses of rows that have the same logits, of which `real` count, by the kernels of the one-pass head. The products
/// around them are left out (parity has them), so that the gradient is that of an embedding of zeros.
fn losses(gpu: &Gpu, stream: &Stream, logits: &[f32], targets: &[u32], real: u32, tile: usize) -> Vec<f32> {
    let head = gpu.load(&kernels_ptx::HEAD_TILE).unwrap();
    let join = gpu.load(&kernels_ptx::HEAD_JOIN_F32).unwrap();
    let rows = targets.len();
    let vocabulary = stream.buffer(logits).unwrap();
    let targets = stream.buffer(targets).unwrap();
    let count = stream.buffer(&[real]).unwrap();
    // As wide as a tile, also where the last one is narrower: what lies beyond it is never written.
    let mut scores = gpu.buffer::<f32>(rows * tile).unwrap();
    let [mut maxima, mut sums, mut target_logits, mut out] =
        [(); 4].map(|()| gpu.buffer::<f32>(rows).unwrap());
    let [mut accumulated, table] = [rows, logits.len()].map(|len| stream.buffer(&vec![0.0f32; len]).unwrap());
    for first in (0..logits.len()).step_by(tile) {
        let width = tile.min(logits.len() - first);
        for row in 0..rows {
            let target = scores.view_mut().range(row * tile..row * tile + width).unwrap();
            stream.copy(vocabulary.view().range(first..first + width).unwrap(), target).unwrap();
        }
        let mut arguments = Vec::from(arguments![&mut scores, &targets, &count, &mut maxima, &mut sums]);
        let sizes = arguments![tile as u64, 1u64, width as u32, first as u32];
        arguments.extend(arguments![&mut target_logits, &mut accumulated]);
        arguments.extend(sizes);
        head.launch(stream, &[rows as u64], &arguments).unwrap();
    }
    let factor = stream.buffer(&[1.0f32]).unwrap();
    let mut gradient = gpu.buffer::<f32>(rows).unwrap();
    let mut arguments = Vec::from(arguments![&accumulated, &maxima, &sums, &target_logits, &targets, &table]);
    arguments.extend(arguments![&count, &factor, &mut out, &mut gradient, 1u64, logits.len() as u64]);
    join.launch(stream, &[rows as u64], &arguments).unwrap();
    assert!(stream.read(&gradient).unwrap().iter().all(|&x| x == 0.0));
    stream.read(&out).unwrap()
}

#[track_caller]
fn near(got: f32, want: f64, tolerance: f64) {
    assert!((f64::from(got) - want).abs() <= tolerance, "{got}, not {want}");
}

/// B25, on the device: rows that do not count give 0, also where none counts.
#[test]
fn rows_that_do_not_count_give_nothing() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let logits = [0.0, 1.0, 2.0];
    assert_eq!(losses(&gpu, &stream, &logits, &[1, 1], 0, 2), [0.0, 0.0]);
    let one = losses(&gpu, &stream, &logits, &[1, 1], 1, 2);
    // ln(1 + e + e^2) - 1; a few roundings of values below 3.
    near(one[0], 1.407_605_964_444_380_5, 1e-6);
    assert_eq!(one[1], 0.0);
    setup.silent();
}

/// B27, on the device: what lies past the vocabulary in the last tile counts for nothing. A lane that counted as
/// logit 0 would give about 20.1 here.
#[test]
fn lanes_past_the_vocabulary_do_not_count() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    near(losses(&gpu, &stream, &[-20.0, -20.0, -20.0, -20.0, -19.0], &[4], 1, 8)[0], 0.904_832, 1e-5);
    assert_eq!(losses(&gpu, &stream, &[-20.0], &[0], 1, 8), [0.0]);
    let mut peaked = vec![-30.0f32; 65537];
    peaked[65536] = -10.0;
    // ln(1 + 65536 e^-20)
    near(losses(&gpu, &stream, &peaked, &[65536], 1, 4096)[0], 0.000_135_071_3, 1e-9);
    setup.silent();
}

/// B32, on the device: a large common offset cancels before anything is rounded to it.
#[test]
fn a_large_common_offset_does_not_matter() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    for offset in [10_000.0f32, -1e6] {
        let logits = [offset, offset + 1.0, offset - 1.0];
        for tile in [1, 2, 8] {
            near(losses(&gpu, &stream, &logits, &[1], 1, tile)[0], 0.407_606, 1e-6);
        }
    }
    setup.silent();
}

/// B39, on the device: sums over a huge vocabulary do not drift.
#[test]
fn huge_vocabularies_do_not_drift() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    near(losses(&gpu, &stream, &vec![0.0; 256_000], &[0], 1, 16_384)[0], 12.452_933, 1e-5);
    let mut one_larger = vec![0.0f32; 300_000];
    one_larger[7] = 5.0;
    // ln(299999 + e^5)
    let want = (299_999.0 + 5f64.exp()).ln();
    near(losses(&gpu, &stream, &one_larger, &[299_999], 1, 16_384)[0], want, 1e-5);
    setup.silent();
}
