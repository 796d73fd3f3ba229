//! `cargo xtask`: what developers and CI run besides Cargo itself. This file only dispatches; each task has a
//! module of its own.
#![forbid(unsafe_code)]

mod bench;
mod ci;
mod command;
mod conformance;
mod emulate;
mod fetch;
mod gpu_report;
mod parity;
mod ptx;
mod tidy;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development tasks of nibble")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs every check of the project, cheapest first
    Ci(ci::Arguments),
    /// Checks the invariants of ARCHITECTURE.md and STYLE.md that a program can check
    Tidy,
    /// Runs cudarc's own tests against the emulator
    Conformance(conformance::Arguments),
    /// Runs a program with the emulator in place of the driver
    Emulate(emulate::Arguments),
    /// Runs the benchmarks
    Bench(bench::Arguments),
    /// Compares every kernel with its CPU oracle, on the emulator or a GPU
    Parity(parity::Arguments),
    /// Makes a folder that measures a GPU on a machine without a toolchain
    GpuReport(gpu_report::Arguments),
    /// Downloads the model that tests and benchmarks use
    Fetch(fetch::Arguments),
    /// Checks the PTX kernels, assembles them, and writes their manifest and table
    Ptx(ptx::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Ci(arguments) => ci::run(&arguments),
        Task::Tidy => tidy::run(),
        Task::Conformance(arguments) => conformance::run(&arguments),
        Task::Emulate(arguments) => emulate::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Parity(arguments) => parity::run(&arguments),
        Task::GpuReport(arguments) => gpu_report::run(&arguments),
        Task::Fetch(arguments) => fetch::run(&arguments),
        Task::Ptx(arguments) => ptx::run(&arguments),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
