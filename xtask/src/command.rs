//! Running programs from the workspace root. Every failure names the command line that failed.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// The root of the workspace.
pub fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A command of Cargo with `arguments` separated by spaces.
pub fn cargo(arguments: &str) -> Command {
    // Cargo passes its own path on, so that a toolchain chosen with `cargo +name` stays chosen.
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments.split_whitespace());
    command
}

/// Runs `command` in the root with its output passed through.
///
/// # Errors
/// When it cannot be started or exits with anything but 0.
pub fn run(mut command: Command) -> Result<()> {
    command.current_dir(root()).stdin(Stdio::null());
    let line = describe(&command);
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Runs `command` in the root and returns what it wrote to its standard output.
///
/// # Errors
/// When it cannot be started, exits with anything but 0, or writes what is not UTF-8.
pub fn output(mut command: Command) -> Result<String> {
    command.current_dir(root()).stdin(Stdio::null()).stderr(Stdio::inherit());
    let line = describe(&command);
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed: {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("the output of `{line}`"))
}

fn describe(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    std::iter::once(name)
        .chain(command.get_args().map(|argument| argument.to_string_lossy().into_owned()))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let error = run(cargo("no-such-subcommand-of-cargo")).expect_err("cargo has no such subcommand");
        assert!(error.to_string().contains("cargo no-such-subcommand-of-cargo"), "{error}");
        let mut missing = Command::new("/no/such/program");
        missing.arg("--flag");
        let error = output(missing).expect_err("the program does not exist");
        assert!(error.to_string().contains("program --flag"), "{error}");
    }
}
