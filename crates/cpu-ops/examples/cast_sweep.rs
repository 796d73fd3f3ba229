//! Compares the narrowing casts with the software conversions of the `half` crate on every one of the 2^32 f32
//! patterns, where the tests of this crate take a sample: `cargo run --release -p cpu-ops --example cast_sweep`.

use cpu_ops::{Threads, cast};
use half::{bf16, f16};

/// Patterns of a task.
const CHUNK: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = Threads::available()?;
    let mut reports = vec![Ok(0); (1usize << 32) / CHUNK];
    threads.run_on(reports.iter_mut().collect(), |task, report| *report = check((task * CHUNK) as u32));
    let mut patterns = 0;
    for report in reports {
        patterns += report?;
    }
    println!("{patterns} patterns: both casts and their overflow counts agree");
    Ok(())
}

/// Checks the chunk of patterns from `first` on; returns how many there were.
fn check(first: u32) -> Result<usize, String> {
    let wide: Vec<f32> = (0..CHUNK as u32).map(|i| f32::from_bits(first + i)).collect();
    let mut halves = vec![f16::ZERO; CHUNK];
    let mut overflows = cast::f32_to_f16(&wide, &mut halves);
    for (x, found) in wide.iter().zip(&halves) {
        let expected = f16::from_f32_const(*x);
        let same = found.to_bits() == expected.to_bits() || (x.is_nan() && found.is_nan());
        if !same || found.is_sign_negative() != x.is_sign_negative() {
            return Err(format!("{:#010x} to f16: {found:?}, expected {expected:?}", x.to_bits()));
        }
        overflows -= usize::from(x.is_finite() && found.is_infinite());
    }
    let mut brains = vec![bf16::ZERO; CHUNK];
    overflows += cast::f32_to_bf16(&wide, &mut brains);
    for (x, found) in wide.iter().zip(&brains) {
        let expected = bf16::from_f32_const(*x);
        let same = found.to_bits() == expected.to_bits() || (x.is_nan() && found.is_nan());
        if !same || found.is_sign_negative() != x.is_sign_negative() {
            return Err(format!("{:#010x} to bf16: {found:?}, expected {expected:?}", x.to_bits()));
        }
        overflows -= usize::from(x.is_finite() && found.is_infinite());
    }
    if overflows != 0 {
        return Err(format!("overflow counts are off by {overflows} from {first:#010x} on"));
    }
    Ok(CHUNK)
}
