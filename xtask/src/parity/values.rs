//! Values for cases: a seeded generator, and the ones that rounding, counting and comparing go wrong at.

/// Largest relative error of one rounding to f32: 2^-24.
pub const U: f64 = 5.960_464_477_539_063e-8;
/// Largest relative error of one rounding to f64: 2^-53.
pub const U64: f64 = 1.110_223_024_625_156_5e-16;
/// Largest error of one rounding to a subnormal f32: half of 2^-149.
pub const TINY: f64 = 7.006_492_321_624_085e-46;

/// splitmix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In -1 to 1.
    pub fn unit(&mut self) -> f32 {
        ((self.bits() >> 40) as f32) / 8_388_608.0 - 1.0
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    /// `len` values in -`scale` to `scale`.
    pub fn floats(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.unit() * scale).collect()
    }

    /// `len` f32 of any bits, the special values first.
    pub fn any_floats(&mut self, len: usize) -> Vec<f32> {
        let special = SPECIAL.iter().map(|&bits| f32::from_bits(bits));
        let mut values: Vec<f32> = special.take(len).collect();
        while values.len() < len {
            values.push(f32::from_bits(self.bits() as u32));
        }
        values
    }
}

/// Bits of f32 at which a conversion to f16 or bf16 changes its behaviour, with both signs where that matters.
pub const SPECIAL: &[u32] = &[
    0x0000_0000,
    0x8000_0000, // zeros
    0x3F80_0000,
    0xBF80_0000, // one
    0x3F80_1000,
    0x3F80_1001,
    0x3F80_3000, // half-way between two f16, just above, half-way from odd
    0x3F80_8000,
    0x3F80_8001,
    0x3F81_8000, // the same for bf16
    0x477F_E000,
    0x477F_EFFF,
    0x477F_F000,
    0xC77F_F000, // largest f16, below and at its overflow
    0x7F7F_7FFF,
    0x7F7F_8000,
    0x7F7F_FFFF,
    0xFF7F_8000, // the same for bf16, and the largest f32
    0x3880_0000,
    0x387F_E000,
    0x387F_F000, // smallest normal f16 and what rounds up to it
    0x3380_0000,
    0x3300_0000,
    0x3300_0001,
    0x3380_0001,
    0xB300_0001, // smallest subnormal f16, half of it, above
    0x0080_0000,
    0x007F_FFFF,
    0x0000_0001,
    0x8000_0001,
    0x0000_8000, // subnormal f32
    0x7F80_0000,
    0xFF80_0000, // infinities
    0x7FC0_0000,
    0xFFC0_0000,
    0x7F80_0001,
    0x7FFF_FFFF,
    0xFFFF_FFFF, // NaN of several payloads
];

/// f32 widened, for the oracles in f64.
pub fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| x.into()).collect()
}

/// Roundings on the way of one term through the sum of a block of 256 threads over `terms` terms: its thread's
/// chain, then the eight levels of lanes and warps.
pub fn block_sum_roundings(terms: usize) -> f64 {
    terms.div_ceil(256) as f64 + 8.0
}
