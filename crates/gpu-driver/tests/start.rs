//! The program at the start of the crate's documentation, run on the emulator, with the text compared.

mod common;

use common::Setup;

/// What stands in the documentation, line for line.
#[rustfmt::skip]
fn program() -> Result<(), gpu_driver::DriverError> {
// begin
use gpu_driver::{Capture, Gpu, arguments};

let gpu = Gpu::open(0)?;
println!("{}", gpu.device());
let accumulate = gpu.load(&kernels_ptx::ACCUMULATE)?; // y = y + factor x
let stream = gpu.stream()?;

// Run it.
let x = stream.buffer(&[1.0f32, 2.0, 3.0])?;
let mut y = stream.buffer(&[10.0f32; 3])?;
accumulate.launch(&stream, &[3], &arguments![&x, &mut y, 3u64, 0.5f32])?;
assert_eq!(stream.read(&y)?, [10.5, 11.0, 11.5]);

// Capture it, twice in a row, and replay that ten times.
let capture = Capture::begin(&stream, &[])?;
accumulate.launch(&stream, &[3], &arguments![&x, &mut y, 3u64, 0.5f32])?;
accumulate.launch(&stream, &[3], &arguments![&x, &mut y, 3u64, 0.5f32])?;
let graph = capture.end()?.instantiate()?;
for _ in 0..10 {
    graph.launch(&stream)?;
}
assert_eq!(stream.read(&y)?, [20.5, 31.0, 41.5]);
// end
    Ok(())
}

#[test]
fn the_first_program_of_the_documentation_runs() {
    let setup = Setup::new();
    program().unwrap();
    setup.silent();
}

#[test]
fn the_documentation_shows_the_program_that_runs() {
    let between = |text: &'static str, begin: &str, end: &str| -> Vec<&'static str> {
        let lines = text.lines().map(|line| line.trim_start_matches("//!").trim_end());
        let lines: Vec<_> = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        let start = lines.iter().position(|line| *line == begin).unwrap() + 1;
        let len = lines[start..].iter().position(|line| *line == end).unwrap();
        lines[start..start + len].to_vec()
    };
    let shown = between(
        include_str!("../src/lib.rs"),
        "# fn main() -> Result<(), gpu_driver::DriverError> {",
        "# Ok(()) }",
    );
    let run = between(include_str!("start.rs"), "// begin", "// end");
    let trim = |lines: &[&'static str]| lines.iter().map(|line| line.trim()).collect::<Vec<_>>();
    assert_eq!(trim(&shown), trim(&run));
    assert!(run.len() >= 20);
}
