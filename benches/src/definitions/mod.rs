//! All benchmarks. To add one: an entry in a file here, or a file and a line in [`all`].

mod attention;
mod gemm;
mod lm_head;
mod nf4;
mod optimiser;

use crate::Definition;

/// Every benchmark, in the order in which they run.
pub fn all() -> Vec<Definition> {
    [
        gemm::definitions(),
        lm_head::definitions(),
        attention::definitions(),
        nf4::definitions(),
        optimiser::definitions(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Values in [-1, 1) that look random and are the same in every run.
fn values(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Up to eight indices of `0..len`, the first and the last among them: what a check looks at where looking at
/// everything would take longer than the benchmark.
fn sample(len: usize) -> Vec<usize> {
    let mut picked: Vec<usize> = (0..8).map(|i| i * len.saturating_sub(1) / 7).collect();
    picked.dedup();
    picked.truncate(len);
    picked
}
