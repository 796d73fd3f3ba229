//! Random numbers as a function of a key and a counter, so that any of them can be computed again at any time:
//! nothing has to be saved to repeat or resume a run. The generator is splitmix64 (Steele, Lea and Flood, 2014).

/// The `counter`th number (from 0) of the stream `key`: splitmix64's output after `counter + 1` increments.
pub fn at(key: u64, counter: u64) -> u64 {
    let mut z = key.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A key from several numbers; changing any of them gives an unrelated stream.
pub fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |key, &part| at(key ^ part, part))
}

/// FNV-1a over the bytes of a name, 64 bits: the key that belongs to a tensor.
pub fn name_key(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_gives_its_published_first_numbers() {
        // Seed 1234567, as in the test vectors that accompany the generator's reference code.
        assert_eq!(at(1_234_567, 0), 6_457_827_717_110_365_317);
        assert_eq!(at(1_234_567, 1), 3_203_168_211_198_807_973);
        assert_eq!(name_key(""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(name_key("a"), 0xAF63_DC4C_8601_EC8C);
    }

    #[test]
    fn every_part_of_a_key_counts() {
        let keys = [key(&[1, 2, 3]), key(&[1, 3, 2]), key(&[1, 2, 4]), key(&[0, 2, 3]), key(&[1, 2])];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|b| a != b));
        }
    }
}
