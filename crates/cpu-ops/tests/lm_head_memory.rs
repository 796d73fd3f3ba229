//! B40 and the promise of the one-pass loss: neither [vocab, hidden] nor [rows, vocab] floats are ever allocated.
//! In a process of its own, because it reads the process's peak memory.
#![cfg(target_os = "linux")]

use cpu_ops::{MatMut, MatRef, Threads, lm_head};
use half::bf16;

/// Peak resident bytes of this process so far.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the peak is listed");
    let kib: usize = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number");
    kib * 1024
}

#[test]
fn the_frozen_head_allocates_no_vocabulary_sized_buffer() {
    let (rows, vocab, width) = (96, 151_936, 64);
    let embedding: Vec<bf16> = (0..vocab * width).map(|i| bf16::from_f32((i % 13) as f32 * 0.01)).collect();
    let hidden = vec![0.5f32; rows * width];
    let targets: Vec<u32> = (0..rows as u32).map(|i| i * 1500).collect();
    let (mut losses, mut grad) = (vec![1f32; rows], vec![1f32; rows * width]);
    let threads = Threads::new(2).unwrap();
    let before = peak();
    let sum = lm_head::cross_entropy(
        &threads,
        MatRef::new(&hidden, rows, width).unwrap(),
        MatRef::new(&embedding, vocab, width).unwrap().into(),
        &targets,
        1.0,
        &mut losses,
        Some(MatMut::new(&mut grad, rows, width).unwrap()),
    )
    .unwrap();
    let grown = peak() - before;
    assert!(sum.is_finite() && sum > 0.0);
    // Each thread has packing buffers of up to 1.3 MiB and tiles of 384 vocabulary rows; then eight partial
    // results. Both forbidden buffers would be over 38 MB.
    let allowed = 2 * (1_400_000 + 4 * 384 * (rows + width)) + 8 * rows * width * 4 + 2_000_000;
    assert!(allowed < vocab * width * 4 / 4 && allowed < vocab * rows * 4 / 4);
    assert!(grown <= allowed, "peak grew by {grown}, allowed {allowed}");
}
