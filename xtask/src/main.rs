//! Development tasks.
#![forbid(unsafe_code)]

mod ptx;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development tasks of nibble")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Checks the PTX kernels, assembles them, and writes their manifest and table
    Ptx(ptx::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Ptx(arguments) => ptx::run(&arguments),
    }
}
