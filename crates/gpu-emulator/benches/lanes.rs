//! How many lane-instructions a second the emulator executes on one core, for the kernel that bounds the time of
//! most tests: `cargo bench -p gpu-emulator`. With `--test` it runs once, small, and is checked.
//!
//! Beside each rate stands that of a plain loop of additions over registers of 32 lanes in the same moment: what an
//! emulator without decoding, checks or memory would reach, and a measure of how fast the machine is just now.

use std::hint::black_box;
use std::time::{Duration, Instant};

use gpu_emulator::exec::{Counts, Launch, Options, run};
use gpu_emulator::memory::DeviceMemory;
use gpu_emulator::ptx::decode::{Addresses, decode};
use gpu_emulator::ptx::parser::parse;

/// What the cast has to reach, with memcheck on.
const GOAL: f64 = 1.5e9;

/// How long each setting runs; the best launch counts.
const TIME: Duration = Duration::from_secs(3);

fn main() {
    // Cargo passes --bench when it benches, and nothing when it tests all targets.
    let given = |flag: &str| std::env::args().any(|a| a == flag);
    let test = given("--test") || !given("--bench");
    let source = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels-ptx/ptx/cast_f32_to_f16.ptx"));
    let module = parse(source).expect("the kernel is PTX");
    let kernel = decode(&module, &module.entries[0], &Addresses::new()).expect("the emulator runs it");
    let elements: usize = if test { 4096 } else { 1 << 20 };
    for (uninitialised, race) in [(false, false), (true, false), (true, true)] {
        let mut memory = DeviceMemory::new(1 << 30, uninitialised);
        let values: Vec<f32> = (0..elements).map(|i| i as f32 * 0.25).collect();
        let from = memory.allocate(4 * elements as u64, "source", true).expect("it fits");
        let to = memory.allocate(2 * elements as u64, "target", true).expect("it fits");
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        memory.write(from, &bytes).expect("it was just allocated");
        let params: Vec<u8> = [from, to, elements as u64].iter().flat_map(|p| p.to_le_bytes()).collect();
        let grid = [elements.div_ceil(2048) as u32, 1, 1];
        let options = Options { uninitialised, race, ..Options::default() };
        let (mut best, mut plain) = (0f64, 0f64);
        let begin = Instant::now();
        for id in 1.. {
            let mut counts = Counts::default();
            let launch =
                Launch { kernel: &kernel, grid, block: [256, 1, 1], params: &params, dynamic_shared: 0, id };
            let start = Instant::now();
            run(&launch, &mut memory, options, &mut counts).expect("the kernel is right");
            best = best.max(counts.lanes as f64 / start.elapsed().as_secs_f64());
            if test || begin.elapsed() > TIME {
                break;
            }
            plain = plain.max(plain_additions());
        }
        let mut out = vec![0; 2 * elements];
        memory.read(to, &mut out, true).expect("all of it was written");
        for (value, bytes) in values.iter().zip(out.chunks_exact(2)) {
            let got = u16::from_le_bytes([bytes[0], bytes[1]]);
            assert_eq!(got, half::f16::from_f32(*value).to_bits(), "{value}");
        }
        let on = |on: bool| if on { "on" } else { "off" };
        let setting = format!("memcheck {}, racecheck {}", on(uninitialised), on(race));
        if test {
            println!("cast_f32_to_f16, {setting}: right");
        } else {
            println!(
                "cast_f32_to_f16, {setting}, {}: {:.2} thousand million lane-instructions a second (goal {:.1}; plain \
                 additions {:.1})",
                options.lanes.name,
                best / 1e9,
                GOAL / 1e9,
                plain / 1e9
            );
        }
    }
}

/// Lanes a second of the loop that does nothing but add.
fn plain_additions() -> f64 {
    const ROUNDS: usize = 20_000;
    let mut registers = [[1u32; 32]; 16];
    let start = Instant::now();
    for round in 0..ROUNDS {
        let [a, b] = [registers[round % 16], registers[(round + 5) % 16]];
        let d = &mut registers[(round + 9) % 16];
        for l in 0..32 {
            d[l] = a[l].wrapping_add(b[l]);
        }
    }
    black_box(&registers);
    (32 * ROUNDS) as f64 / start.elapsed().as_secs_f64()
}
