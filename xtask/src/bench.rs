//! `cargo xtask bench`: the benchmarks in the release profile, with the arguments after `--` passed to the
//! harness. What they measure and how is in the `benches` package.

use anyhow::Result;

use crate::command::{cargo, run as run_command};

#[derive(clap::Args)]
pub struct Arguments {
    /// Passed to the harness, for example a part of a benchmark's name
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    harness: Vec<String>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let mut command = cargo("bench --package benches --");
    command.args(&arguments.harness);
    run_command(command)
}
