//! The tables of NF4 and of double quantisation, given by their bits: they are constants of the format, and
//! computing them would tie them to a library's rounding.

/// The 16 values of NF4 (Dettmers et al., "QLoRA", 2023, appendix E): quantiles of the normal distribution,
/// normalised to [-1, 1], with an exact zero at index 7.
pub const CODE: [f32; 16] = from_bits([
    0xbf80_0000,
    0xbf32_39b1,
    0xbf06_6b30,
    0xbeca_32a0,
    0xbe91_a24d,
    0xbe3d_353f,
    0xbdba_7871,
    0x0000_0000,
    0x3da2_faff,
    0x3e24_cae3,
    0x3e7c_04dd,
    0x3ead_033a,
    0x3ee1_a4b8,
    0x3f10_07ab,
    0x3f39_13b3,
    0x3f80_0000,
]);

/// The borders between the codes: `(CODE[i] + CODE[i + 1]) / 2` in f32. A value on a border takes the lower
/// index, so the index of `s` is the number of borders strictly below `s`.
pub const MIDPOINTS: [f32; 15] = midpoints(&CODE);

/// The magnitudes of the signed "dynamic" 8-bit map (Dettmers et al., "8-bit optimizers via block-wise
/// quantization", 2022), ascending: 127 that exist with both signs, then 1.
const MAGNITUDES: [f32; 128] = from_bits([
    0x3513_a3b7,
    0x365a_1a94,
    0x3702_05ff,
    0x37b2_4206,
    0x3837_8034,
    0x388a_efb3,
    0x38ba_1f4b,
    0x3923_d70b,
    0x398c_e705,
    0x39c7_e283,
    0x3a01_6f01,
    0x3a1e_ecc1,
    0x3a3c_6a80,
    0x3a59_e83e,
    0x3a77_65ff,
    0x3aa7_ef9d,
    0x3af1_a9fc,
    0x3b1d_b22d,
    0x3b42_8f5c,
    0x3b67_6c8a,
    0x3b86_24dd,
    0x3b98_9374,
    0x3bab_020d,
    0x3bbd_70a4,
    0x3bcf_df3b,
    0x3be2_4dd3,
    0x3bf4_bc6a,
    0x3c03_9581,
    0x3c0c_cccd,
    0x3c16_0418,
    0x3c1f_3b64,
    0x3c3a_e148,
    0x3c68_f5c3,
    0x3c8b_851f,
    0x3ca2_8f5d,
    0x3cb9_999a,
    0x3cd0_a3d7,
    0x3ce7_ae15,
    0x3cfe_b852,
    0x3d0a_e148,
    0x3d16_6667,
    0x3d21_eb85,
    0x3d2d_70a3,
    0x3d38_f5c3,
    0x3d44_7ae1,
    0x3d50_0000,
    0x3d5b_851f,
    0x3d67_0a3d,
    0x3d72_8f5d,
    0x3d7e_147b,
    0x3d84_cccd,
    0x3d8a_8f5d,
    0x3d90_51eb,
    0x3d96_147b,
    0x3d9b_d70a,
    0x3da1_999a,
    0x3da7_5c2a,
    0x3dad_1eb8,
    0x3db2_e148,
    0x3db8_a3d7,
    0x3dbe_6667,
    0x3dc4_28f7,
    0x3dc9_eb85,
    0x3ddb_3334,
    0x3df8_0000,
    0x3e0a_6666,
    0x3e18_cccd,
    0x3e27_3333,
    0x3e35_999a,
    0x3e44_0000,
    0x3e52_6666,
    0x3e60_cccd,
    0x3e6f_3333,
    0x3e7d_9999,
    0x3e86_0000,
    0x3e8d_3334,
    0x3e94_6666,
    0x3e9b_999a,
    0x3ea2_cccc,
    0x3eaa_0000,
    0x3eb1_3333,
    0x3eb8_6666,
    0x3ebf_999a,
    0x3ec6_cccc,
    0x3ece_0000,
    0x3ed5_3333,
    0x3edc_6666,
    0x3ee3_999a,
    0x3eea_cccc,
    0x3ef2_0000,
    0x3ef9_3332,
    0x3f00_3333,
    0x3f03_cccc,
    0x3f07_6666,
    0x3f0b_0000,
    0x3f0e_999a,
    0x3f12_3334,
    0x3f15_cccd,
    0x3f19_6666,
    0x3f1d_0000,
    0x3f20_999a,
    0x3f24_3334,
    0x3f27_cccd,
    0x3f2b_6666,
    0x3f2f_0000,
    0x3f32_999a,
    0x3f36_3334,
    0x3f39_cccd,
    0x3f3d_6666,
    0x3f41_0000,
    0x3f44_999a,
    0x3f48_3333,
    0x3f4b_cccd,
    0x3f4f_6666,
    0x3f53_0000,
    0x3f56_999a,
    0x3f5a_3333,
    0x3f5d_cccd,
    0x3f61_6666,
    0x3f65_0000,
    0x3f68_999a,
    0x3f6c_3333,
    0x3f6f_cccd,
    0x3f73_6666,
    0x3f77_0000,
    0x3f7a_999a,
    0x3f7e_3333,
    0x3f80_0000,
]);

/// The 256 values that double quantisation stores scales with, ascending: minus the first 127 magnitudes, zero, all
/// 128 magnitudes.
pub const DYNAMIC_MAP: [f32; 256] = {
    let mut map = [0.0; 256];
    let mut i = 0;
    while i < 128 {
        map[128 + i] = MAGNITUDES[i];
        if i < 127 {
            map[126 - i] = -MAGNITUDES[i];
        }
        i += 1;
    }
    map
};

/// The borders of [`DYNAMIC_MAP`], to be used as [`MIDPOINTS`].
pub(super) const DYNAMIC_MIDPOINTS: [f32; 255] = midpoints(&DYNAMIC_MAP);

/// The index that stands for zero; pads an odd number of codes to a whole byte.
pub(super) const ZERO_INDEX: u8 = 7;

const fn from_bits<const N: usize>(bits: [u32; N]) -> [f32; N] {
    let mut values = [0.0; N];
    let mut i = 0;
    while i < N {
        values[i] = f32::from_bits(bits[i]);
        i += 1;
    }
    values
}

const fn midpoints<const N: usize, const M: usize>(values: &[f32; N]) -> [f32; M] {
    assert!(M + 1 == N);
    let mut between = [0.0; M];
    let mut i = 0;
    while i < M {
        between[i] = (values[i] + values[i + 1]) * 0.5;
        i += 1;
    }
    between
}
