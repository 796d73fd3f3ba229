//! The order of an epoch: a permutation that is a function of (seed, epoch) alone, so that a resumed run needs
//! no state of a generator, and equal seeds give equal runs on every machine.
//!
//! The generator is splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014),
//! the shuffle Fisher and Yates' (Durstenfeld's form), a bounded number the high half of a 64 x 64 bit product
//! with rejection (Lemire, "Fast random integer generation in an interval", 2019).

/// Keeps these numbers apart from every other use of the same seed ("order" in ASCII).
const STREAM: u64 = 0x6F_7264_6572;
/// splitmix64's increment, 2^64 over the golden ratio, odd.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// splitmix64's finaliser.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

struct Generator(u64);

impl Generator {
    /// A stream of its own for each pair.
    fn new(seed: u64, epoch: u64) -> Self {
        let seed = mix(seed.wrapping_add(GAMMA) ^ STREAM);
        Self(mix(seed.wrapping_add(epoch.wrapping_mul(GAMMA))))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Uniform in 0..bound.
    fn below(&mut self, bound: u64) -> u64 {
        // Of the 2^64 numbers, 2^64 mod bound are too many for every result to be equally likely.
        let surplus = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next()) * u128::from(bound);
            if product as u64 >= surplus {
                return (product >> 64) as u64;
            }
        }
    }
}

/// The numbers 0..count in the order of an epoch (counted from 0).
///
/// ```
/// use trainer::data::permutation;
/// assert_eq!(permutation(7, 0, 5), permutation(7, 0, 5));
/// assert_ne!(permutation(7, 0, 50), permutation(7, 1, 50));
/// ```
pub fn permutation(seed: u64, epoch: u64, count: usize) -> Vec<usize> {
    let mut generator = Generator::new(seed, epoch);
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, generator.below(last as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The generator's published first outputs for the state 1234567.
    #[test]
    fn the_generator_is_splitmix64() {
        let mut generator = Generator(1234567);
        let first: Vec<u64> = (0..3).map(|_| generator.next()).collect();
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    proptest! {
        #[test]
        fn every_number_stands_once(seed: u64, epoch: u64, count in 0usize..200) {
            let mut order = permutation(seed, epoch, count);
            order.sort_unstable();
            prop_assert_eq!(order, (0..count).collect::<Vec<_>>());
        }
    }

    /// Each number comes to each place about equally often: 6000 epochs of 4 give 1500 expected in each of 16
    /// cells; the standard deviation is sqrt(6000 * 1/4 * 3/4) = 33.5, so 5 of them are 168.
    #[test]
    fn places_are_equally_likely() {
        let mut counts = [[0i32; 4]; 4];
        for epoch in 0..6000 {
            for (place, number) in permutation(3, epoch, 4).into_iter().enumerate() {
                counts[place][number] += 1;
            }
        }
        for count in counts.into_iter().flatten() {
            assert!((count - 1500).abs() <= 168, "{counts:?}");
        }
    }

    /// Neighbouring seeds and epochs must not be shifted copies of each other: seed 1 in epoch 0 is not seed 0
    /// in epoch 1.
    #[test]
    fn seeds_and_epochs_do_not_mix() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..20 {
            for epoch in 0..20 {
                assert!(seen.insert(permutation(seed, epoch, 30)), "seed {seed} epoch {epoch} repeats");
            }
        }
    }
}
