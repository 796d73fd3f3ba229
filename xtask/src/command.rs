//! Running programs from the workspace root. Every failure names the command line that failed.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

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

/// Runs `command`, a `cargo test`, as [`run`] does, and makes sure that some test ran.
///
/// # Errors
/// As [`run`], and when no test ran: a filter that matches nothing would pass for good.
pub fn run_tests(mut command: Command) -> Result<()> {
    command.current_dir(root()).stdin(Stdio::null()).stdout(Stdio::piped());
    let line = describe(&command);
    let mut child = command.spawn().with_context(|| format!("cannot start `{line}`"))?;
    let output = child.stdout.take().context("the output was asked for")?;
    let mut ran = 0;
    for text in BufReader::new(output).lines() {
        let text = text.with_context(|| format!("the output of `{line}`"))?;
        println!("{text}");
        ran += passed(&text).unwrap_or(0);
    }
    let status = child.wait()?;
    ensure!(status.success(), "`{line}` failed: {status}");
    ensure!(ran > 0, "`{line}` ran no test");
    Ok(())
}

/// The number of passed tests in a closing line of the test harness.
fn passed(line: &str) -> Option<u64> {
    line.strip_prefix("test result: ok. ")?.split_once(" passed")?.0.parse().ok()
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
    fn a_run_without_a_test_fails() {
        assert_eq!(passed("test result: ok. 12 passed; 0 failed; 1 ignored"), Some(12));
        assert_eq!(passed("running 3 tests"), None);
        let echo = |text: &str| {
            let mut command = Command::new("echo");
            command.arg(text);
            command
        };
        assert!(run_tests(echo("test result: ok. 1 passed; 0 failed")).is_ok());
        let error = run_tests(echo("test result: ok. 0 passed; 0 failed")).expect_err("nothing ran");
        assert!(error.to_string().contains("ran no test"), "{error}");
    }

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
