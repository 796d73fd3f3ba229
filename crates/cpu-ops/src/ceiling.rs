//! What this machine can do at most, measured: what the rate of a product is put beside.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::Threads;
#[cfg(target_arch = "x86_64")]
use crate::gemm::MultiplyAdds;
use crate::simd::{Simd, multiversion};

/// Rounds of a measurement, about 20 ms.
const ROUNDS: usize = 1 << 21;

/// Floating-point operations a second of fused multiply-adds (two operations each) in f32 on all of `threads`,
/// with the widest vectors that the products use, and no access to memory: the fastest of five tries.
/// Without AVX-512 or AVX2 it is the rate of whatever the compiler makes of a loop of sixteen sums.
pub fn multiply_add_rate(threads: &Threads) -> f64 {
    let mut best = 0f64;
    for _ in 0..5 {
        let operations = AtomicUsize::new(0);
        let start = Instant::now();
        threads.run(threads.count(), |_| {
            operations.fetch_add(multiply_adds(Simd::detect(), ROUNDS), Ordering::Relaxed);
        });
        best = best.max(operations.into_inner() as f64 / start.elapsed().as_secs_f64());
    }
    best
}

/// Runs about `rounds` times a number of independent multiply-adds and returns how many operations these were.
fn multiply_adds(simd: Simd, rounds: usize) -> usize {
    match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512(kernel) => kernel.multiply_adds(rounds),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2(kernel) => kernel.multiply_adds(rounds),
        _ => {
            // Without fused instructions `mul_add` would be a call; this is a multiplication and an addition.
            let factor = black_box(0.999f32);
            let mut sums = [1f32; 16];
            for _ in 0..rounds {
                sums.iter_mut().for_each(|sum| *sum = *sum * factor + factor);
            }
            black_box(sums);
            2 * 16 * rounds
        }
    }
}

/// Bytes a second that `threads` read from a buffer of 256 MiB, larger than most caches: the fastest of three.
pub fn read_rate(threads: &Threads) -> f64 {
    const ELEMENTS: usize = 1 << 26;
    let buffer = vec![1f32; ELEMENTS];
    let tasks = threads.count() * 8;
    let part = ELEMENTS / tasks;
    let mut best = 0f64;
    for _ in 0..3 {
        let start = Instant::now();
        threads.run(tasks, |task| {
            black_box(sum(Simd::detect(), &buffer[task * part..][..part]));
        });
        best = best.max((tasks * part * 4) as f64 / start.elapsed().as_secs_f64());
    }
    best
}

multiversion! {
    fn sum(values: &[f32]) -> f32 = sum_body;
}

#[inline(always)]
fn sum_body(values: &[f32]) -> f32 {
    let mut sums = [0f32; 64];
    for chunk in values.as_chunks::<64>().0 {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += value;
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_positive_numbers() {
        let threads = Threads::new(1).unwrap();
        // A machine that multiplies slower than this does not exist; what matters is that the loop was not
        // removed by the compiler, which would show as an impossible rate.
        let rate = multiply_add_rate(&threads);
        assert!(rate > 1e7 && rate < 1e13, "{rate}");
        let rate = read_rate(&threads);
        assert!(rate > 1e7 && rate < 1e13, "{rate}");
    }
}
