//! How many lane-instructions a second the emulator executes on one core, for the kernels that bound the
//! time of a test: `cargo bench -p gpu-emulator`. With `--test` each runs once, small, and is checked.

use std::time::Instant;

use gpu_emulator::exec::{Counts, Launch, Options, run};
use gpu_emulator::memory::DeviceMemory;
use gpu_emulator::ptx::decode::{Addresses, decode};
use gpu_emulator::ptx::parser::parse;

/// What the cast has to reach.
const GOAL: f64 = 1.5e9;

fn main() {
    // Cargo passes --bench when it benches, and nothing when it tests all targets.
    let given = |flag: &str| std::env::args().any(|a| a == flag);
    let test = given("--test") || !given("--bench");
    let source = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels-ptx/ptx/cast_f32_to_f16.ptx"));
    let module = parse(source).expect("the kernel is PTX");
    let kernel = decode(&module, &module.entries[0], &Addresses::new()).expect("the emulator runs it");
    let elements: usize = if test { 4096 } else { 1 << 22 };
    for uninitialised in [false, true] {
        let mut memory = DeviceMemory::new(1 << 30, uninitialised);
        let values: Vec<f32> = (0..elements).map(|i| i as f32 * 0.25).collect();
        let from = memory.allocate(4 * elements as u64, "source", true).expect("it fits");
        let to = memory.allocate(2 * elements as u64, "target", true).expect("it fits");
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        memory.write(from, &bytes).expect("it was just allocated");
        let params: Vec<u8> = [from, to, elements as u64].iter().flat_map(|p| p.to_le_bytes()).collect();
        let grid = [elements.div_ceil(2048) as u32, 1, 1];
        let options = Options { uninitialised, ..Options::default() };
        let mut best = 0f64;
        for id in 1..=if test { 1 } else { 7 } {
            let mut counts = Counts::default();
            let launch =
                Launch { kernel: &kernel, grid, block: [256, 1, 1], params: &params, dynamic_shared: 0, id };
            let start = Instant::now();
            run(&launch, &mut memory, options, &mut counts).expect("the kernel is right");
            best = best.max(counts.lanes as f64 / start.elapsed().as_secs_f64());
        }
        let mut out = vec![0; 2 * elements];
        memory.read(to, &mut out, true).expect("all of it was written");
        for (value, bytes) in values.iter().zip(out.chunks_exact(2)) {
            let got = u16::from_le_bytes([bytes[0], bytes[1]]);
            assert_eq!(got, half::f16::from_f32(*value).to_bits(), "{value}");
        }
        let memcheck = if uninitialised { "on" } else { "off" };
        if test {
            println!("cast_f32_to_f16, memcheck {memcheck}: right");
        } else {
            println!(
                "cast_f32_to_f16, memcheck {memcheck}, {}: {:.2} thousand million lane-instructions a second (goal {:.1})",
                options.lanes.name,
                best / 1e9,
                GOAL / 1e9
            );
        }
    }
}
