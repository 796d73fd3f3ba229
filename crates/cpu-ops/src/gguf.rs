//! Dequantisers of GGUF's block formats, one function a type: whole blocks in, f32 out, bit for bit the values of
//! gguf's Python package. Finding tensors in a file, and their shapes, is left to whoever reads files.
//!
//! A block holds 32 elements (256 in the K types) with one or two f16 scales. Multiplications and additions are not
//! fused, and in the order written: the reference rounds each. Layouts: ggml's `ggml-common.h`.

use half::f16;

use crate::{Error, Result};

/// A block format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

impl BlockType {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::Q4_0, Self::Q4_1, Self::Q5_0, Self::Q5_1, Self::Q8_0, Self::Q4K, Self::Q5K, Self::Q6K];

    /// The name that GGUF tools use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Elements of a block.
    pub fn elements(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Expands whole blocks: `blocks` is any number of them, `out` has their elements.
    ///
    /// # Errors
    /// `blocks` is no whole number of blocks, or `out` has another length than their elements.
    ///
    /// # Example
    /// ```
    /// use cpu_ops::gguf::BlockType;
    ///
    /// // Q8_0: an f16 scale, here 0.5, and 32 signed bytes.
    /// let mut block = vec![0x00, 0x38];
    /// block.extend((0..32).map(|at| at as u8));
    /// let mut out = [0.0; 32];
    /// BlockType::Q8_0.dequantize(&block, &mut out)?;
    /// assert_eq!(out[3], 1.5);
    /// # Ok::<(), cpu_ops::Error>(())
    /// ```
    pub fn dequantize(self, blocks: &[u8], out: &mut [f32]) -> Result<()> {
        let count = blocks.len() / self.bytes();
        if blocks.len() != count * self.bytes() || out.len() != count * self.elements() {
            return Err(Error::Layout {
                operation: "gguf dequantize",
                what: format!(
                    "{} bytes are not the {} blocks of {} bytes that {} elements of {} take",
                    blocks.len(),
                    out.len() / self.elements(),
                    self.bytes(),
                    out.len(),
                    self.name()
                ),
            });
        }
        match self {
            Self::Q4_0 => each(blocks, out, q4_0),
            Self::Q4_1 => each(blocks, out, q4_1),
            Self::Q5_0 => each(blocks, out, q5_0),
            Self::Q5_1 => each(blocks, out, q5_1),
            Self::Q8_0 => each(blocks, out, q8_0),
            Self::Q4K => each(blocks, out, q4_k),
            Self::Q5K => each(blocks, out, q5_k),
            Self::Q6K => each(blocks, out, q6_k),
        }
        Ok(())
    }
}

/// Calls `expand` for each block of B bytes and N elements.
fn each<const B: usize, const N: usize>(blocks: &[u8], out: &mut [f32], expand: fn(&[u8; B], &mut [f32; N])) {
    for (block, out) in blocks.as_chunks::<B>().0.iter().zip(out.as_chunks_mut::<N>().0) {
        expand(block, out);
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// f16 scale; 16 bytes, byte i holding element i in its low half and element i + 16 in its high half; offset 8.
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    let (low, high) = out.split_at_mut(16);
    for ((&codes, low), high) in block[2..].iter().zip(low).zip(high) {
        *low = scale * (i32::from(codes & 15) - 8) as f32;
        *high = scale * (i32::from(codes >> 4) - 8) as f32;
    }
}

/// As Q4_0, with an f16 minimum in place of the offset.
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    let (low, high) = out.split_at_mut(16);
    for ((&codes, low), high) in block[4..].iter().zip(low).zip(high) {
        *low = scale * f32::from(codes & 15) + minimum;
        *high = scale * f32::from(codes >> 4) + minimum;
    }
}

/// As Q4_0, with the fifth bits of all elements in 32 bits before the codes; offset 16.
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    for (at, code) in five_bits(&block[2..]).enumerate() {
        out[at] = scale * (i32::from(code) - 16) as f32;
    }
}

/// As Q5_0, with an f16 minimum in place of the offset.
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    for (at, code) in five_bits(&block[4..]).enumerate() {
        out[at] = scale * f32::from(code) + minimum;
    }
}

/// The 32 codes of a Q5 block: four bytes of high bits, sixteen of low ones.
fn five_bits(codes: &[u8]) -> impl Iterator<Item = u8> {
    (0..32).map(|at| {
        let low = codes[4 + at % 16] >> (4 * (at / 16)) & 15;
        let high = codes[at / 8] >> (at % 8) & 1;
        low | high << 4
    })
}

/// f16 scale, 32 signed bytes.
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    for (&code, out) in block[2..].iter().zip(out) {
        *out = f32::from(code as i8) * scale;
    }
}

/// The K types with minima: 8 groups of 32, each with a 6-bit scale and a 6-bit minimum, themselves scaled by two
/// f16. In 12 bytes: the first four hold scales of groups 0 to 3 and the upper two bits of those of 4 to 7, the next
/// four the same of minima, the last four the lower four bits of scales and minima of groups 4 to 7.
fn group_scales(block: &[u8]) -> [(f32, f32); 8] {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    let packed = &block[4..16];
    std::array::from_fn(|group| {
        let (own, other, low) = (packed[group % 4], packed[4 + group % 4], packed[8 + group % 4]);
        let (scale_code, minimum_code) = if group < 4 {
            (own & 63, other & 63)
        } else {
            (low & 15 | own >> 2 & 48, low >> 4 | other >> 2 & 48)
        };
        (scale * f32::from(scale_code), minimum * f32::from(minimum_code))
    })
}

/// Group scales; 4 runs of 32 bytes, each with two groups in its low and high halves.
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    for (group, ((scale, minimum), out)) in
        group_scales(block).into_iter().zip(out.chunks_mut(32)).enumerate()
    {
        let codes = &block[16 + group / 2 * 32..][..32];
        for (&codes, out) in codes.iter().zip(out) {
            *out = scale * f32::from(codes >> (group % 2 * 4) & 15) - minimum;
        }
    }
}

/// As Q4_K, with 32 bytes of fifth bits before the codes: bit g of byte i belongs to element i of group g.
fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let high = &block[16..48];
    for (group, ((scale, minimum), out)) in
        group_scales(block).into_iter().zip(out.chunks_mut(32)).enumerate()
    {
        let low = &block[48 + group / 2 * 32..][..32];
        for ((&low, &high), out) in low.iter().zip(high).zip(out) {
            let code = low >> (group % 2 * 4) & 15 | (high >> group & 1) << 4;
            *out = scale * f32::from(code) - minimum;
        }
    }
}

/// 128 bytes of low four bits, 64 of high two, 16 signed scales of 16 elements each, an f16 scale; offset 32. Each
/// half of the block has four runs of 32 elements: runs 0 and 1 in the low halves of 64 bytes, 2 and 3 in the high.
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let scale = half_at(block, 208);
    for (at, out) in out.iter_mut().enumerate() {
        let (part, run, column) = (at / 128, at / 32 % 4, at % 32);
        let low = block[64 * part + 32 * (run % 2) + column] >> (4 * (run / 2)) & 15;
        let high = block[128 + 32 * part + column] >> (2 * run) & 3;
        let group = scale * f32::from(block[192 + at / 16] as i8);
        *out = group * (i32::from(low | high << 4) - 32) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &serde_json::Value) -> Vec<u8> {
        let hex = hex.as_str().unwrap();
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn values_are_those_of_the_reference_bit_for_bit() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/gguf_blocks.json");
        let fixture: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut compared = 0;
        for kind in BlockType::ALL {
            let cases = &fixture["types"][kind.name()];
            assert_eq!(cases["block_elements"], kind.elements());
            assert_eq!(cases["block_bytes"], kind.bytes());
            let (blocks, values) = (cases["blocks"].as_array().unwrap(), cases["values"].as_array().unwrap());
            // Once block by block, once all together.
            let all: Vec<u8> = blocks.iter().flat_map(bytes).collect();
            let mut together = vec![0.0; blocks.len() * kind.elements()];
            kind.dequantize(&all, &mut together).unwrap();
            for (number, (block, expected)) in blocks.iter().zip(values).enumerate() {
                let mut out = vec![0.0; kind.elements()];
                kind.dequantize(&bytes(block), &mut out).unwrap();
                let expected: Vec<u32> =
                    bytes(expected).chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&out), expected, "{} block {number}", kind.name());
                assert_eq!(bits(&together[number * kind.elements()..][..kind.elements()]), expected);
                compared += 1;
            }
        }
        assert_eq!(compared, 32);
    }

    #[test]
    fn lengths_are_checked() {
        let mut out = [0.0; 32];
        BlockType::Q4_0.dequantize(&[], &mut []).unwrap();
        BlockType::Q4_0.dequantize(&[0; 17], &mut out).unwrap_err();
        BlockType::Q4_0.dequantize(&[0; 36], &mut out).unwrap_err();
        BlockType::Q6K.dequantize(&[0; 210], &mut out).unwrap_err();
    }
}
