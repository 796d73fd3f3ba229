//! From the bytes of a tensor to floats. Bytes come from a mapped file and have no alignment, so elements are put
//! together from little-endian bytes. NaN and infinities are found on the way.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Element types of plain (not block-quantised) tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plain {
    F16,
    Bf16,
    F32,
    F64,
}

impl Plain {
    /// What messages list as supported.
    pub const SUPPORTED: &str = "F32, F16, BF16, F64";

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Appends the values of `bytes` (a whole number of elements) to `out`. F64 is rounded to nearest.
    ///
    /// # Errors
    /// The index within `bytes` and the value of the first element that is not finite, in f32 or in the file's type.
    pub fn append_f32(self, bytes: &[u8], out: &mut Vec<f32>) -> Result<(), NotFinite> {
        let first = out.len();
        match self {
            Self::F32 => out.extend(elements(bytes).map(f32::from_le_bytes)),
            Self::Bf16 => out.extend(
                elements(bytes).map(|element| f32::from_bits(u32::from(u16::from_le_bytes(element)) << 16)),
            ),
            Self::F16 => {
                // Through an aligned buffer, because the slice conversion uses the CPU's instruction for it.
                let mut buffer = [f16::ZERO; 2048];
                out.reserve(bytes.len() / 2);
                for part in bytes.chunks(2 * buffer.len()) {
                    let narrow = &mut buffer[..part.len() / 2];
                    for (to, from) in narrow.iter_mut().zip(elements(part)) {
                        *to = f16::from_le_bytes(from);
                    }
                    let at = out.len();
                    out.resize(at + narrow.len(), 0.0);
                    narrow.convert_to_f32_slice(&mut out[at..]);
                }
            }
            Self::F64 => {
                // Tested before narrowing: what narrows to infinity is reported with its own value.
                for (index, value) in elements(bytes).map(f64::from_le_bytes).enumerate() {
                    if !value.is_finite() || !(value as f32).is_finite() {
                        return Err(NotFinite { index, value });
                    }
                    out.push(value as f32);
                }
            }
        }
        all_finite(&out[first..])
    }
}

/// An element that is NaN or infinite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NotFinite {
    /// Its index within the values that were looked at.
    pub index: usize,
    /// Its value.
    pub value: f64,
}

const SIGN: u32 = 1 << 31;

/// Whether every value is finite; the first that is not, if there is one.
pub(crate) fn all_finite(values: &[f32]) -> Result<(), NotFinite> {
    const CHUNK: usize = 4096;
    for (chunk, part) in values.chunks(CHUNK).enumerate() {
        // Without the sign, bit patterns of floats are ordered as integers, with infinities and NaN on top.
        let largest = part.iter().fold(0, |largest, value| (value.to_bits() & !SIGN).max(largest));
        if largest >= f32::INFINITY.to_bits() {
            for (index, &value) in part.iter().enumerate() {
                if !value.is_finite() {
                    return Err(NotFinite { index: chunk * CHUNK + index, value: f64::from(value) });
                }
            }
        }
    }
    Ok(())
}

/// The elements of an f16 tensor as they are.
///
/// # Errors
/// The first that is not finite.
pub(crate) fn append_f16(bytes: &[u8], out: &mut Vec<f16>) -> Result<(), NotFinite> {
    let first = out.len();
    out.extend(elements(bytes).map(f16::from_le_bytes));
    match out[first..].iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => Err(NotFinite { index, value: out[first + index].to_f64() }),
    }
}

/// As [`append_f16`], of bf16.
///
/// # Errors
/// The first that is not finite.
pub(crate) fn append_bf16(bytes: &[u8], out: &mut Vec<bf16>) -> Result<(), NotFinite> {
    let first = out.len();
    out.extend(elements(bytes).map(bf16::from_le_bytes));
    match out[first..].iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => Err(NotFinite { index, value: out[first + index].to_f64() }),
    }
}

/// Runs of N bytes. A rest is left out; lengths are checked where headers are read.
fn elements<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
    bytes.as_chunks::<N>().0.iter().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f64_bytes(bits: &[u64]) -> Vec<u8> {
        bits.iter().flat_map(|bits| bits.to_le_bytes()).collect()
    }

    /// B18: a NaN whose set bits are all in the low word stays a NaN, and so is found.
    #[test]
    fn f64_nan_with_low_bits_only_is_not_taken_for_infinity() {
        let mut out = Vec::new();
        let found = Plain::F64.append_f32(&f64_bytes(&[0, 0x7FF0_0000_0000_0001]), &mut out).unwrap_err();
        assert!(found.index == 1 && found.value.is_nan());
        let found = Plain::F64.append_f32(&f64_bytes(&[0xFFF8_0000_0000_0000]), &mut out).unwrap_err();
        assert!(found.index == 0 && found.value.is_nan() && found.value.is_sign_negative());
    }

    #[test]
    fn f64_beyond_f32_is_reported_with_its_value() {
        let mut out = Vec::new();
        let found = Plain::F64.append_f32(&1e300f64.to_le_bytes(), &mut out).unwrap_err();
        assert_eq!(found, NotFinite { index: 0, value: 1e300 });
        Plain::F64.append_f32(&0.1f64.to_le_bytes(), &mut out).unwrap();
        assert_eq!(out, [0.1f32]);
    }

    #[test]
    fn every_half_converts_as_the_half_crate_does() {
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for (index, element) in all.chunks(2).enumerate() {
            let bits = index as u16;
            let (mut from_f16, mut from_bf16) = (Vec::new(), Vec::new());
            let f16_result = Plain::F16.append_f32(element, &mut from_f16);
            let bf16_result = Plain::Bf16.append_f32(element, &mut from_bf16);
            assert_eq!(f16_result.is_ok(), f16::from_bits(bits).is_finite());
            assert_eq!(bf16_result.is_ok(), bf16::from_bits(bits).is_finite());
            if f16_result.is_ok() {
                assert_eq!(from_f16[0].to_bits(), f16::from_bits(bits).to_f32().to_bits());
            }
            if bf16_result.is_ok() {
                assert_eq!(from_bf16[0].to_bits(), bf16::from_bits(bits).to_f32().to_bits());
            }
        }
    }

    #[test]
    fn the_place_of_a_bad_value_is_right_in_every_chunk() {
        for at in [0, 1, 4095, 4096, 4097, 8191, 9999] {
            let mut values = vec![1.0f32; 10_000];
            values[at] = if at % 2 == 0 { f32::NAN } else { f32::NEG_INFINITY };
            assert_eq!(all_finite(&values).unwrap_err().index, at);
        }
        all_finite(&[f32::MAX, f32::MIN, 0.0, -0.0, 1e-45]).unwrap();
    }
}
