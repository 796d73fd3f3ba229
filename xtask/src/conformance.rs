//! `cargo xtask conformance`: cudarc's own unit tests, run against the emulator.
//!
//! The tests are written by others, so they say whether the emulator is a driver or only what we take for
//! one. The source is copied from Cargo's registry at run time and not committed; what must pass is, in
//! `conformance.txt`: a floor that only grows. Each test that does not pass stands there with its reason.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use crate::command;
use crate::emulate::{Libraries, target_folder};

/// Options of `cargo xtask conformance`.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Show the output of the tests that fail
    #[arg(long)]
    verbose: bool,
}

/// The modules whose tests are counted, and the fewest that must pass.
const MODULES: [&str; 3] = ["driver::safe::core", "driver::safe::graph", "cublas"];
const FLOOR: usize = 28;

/// Runs the tests and compares.
///
/// # Errors
/// A test of the floor that fails, one that passes and is listed as failing, one that is not listed.
pub fn run(arguments: &Arguments) -> Result<()> {
    let expected = read_list(include_str!("../conformance.txt"))?;
    let source = cudarc_source()?;
    let copy = target_folder().join("conformance").join("cudarc");
    copy_source(&source, &copy)?;
    let libraries = Libraries::build()?;
    let mut command = command::cargo(
        "test --lib --no-default-features --features std,driver,cublas,nvrtc,dynamic-loading,cuda-12000,f16 -- \
         --test-threads=1 --include-ignored",
    );
    command.args(MODULES);
    command.current_dir(&copy).stdin(Stdio::null()).stderr(Stdio::inherit());
    command.env("CARGO_TARGET_DIR", target_folder().join("conformance").join("target"));
    command.env_remove("RUSTFLAGS");
    libraries.apply(&mut command);
    let output = command.output().context("cannot start the tests of cudarc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if arguments.verbose {
        print!("{text}");
    }
    let found = results(&text);
    ensure!(!found.is_empty(), "no test of cudarc ran (exit status {})", output.status);
    compare(&expected, &found)
}

/// What a test should do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expected {
    Pass,
    Fail(String),
    /// It measures hardware: its outcome is not compared.
    Timing(String),
}

type Outcomes = BTreeMap<String, Expected>;

/// Lines `pass NAME`, `fail NAME: reason` and `timing NAME: reason`; `#` starts a comment.
fn read_list(text: &str) -> Result<Outcomes> {
    let mut out = Outcomes::new();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, outcome) = match (kind, rest.split_once(": ")) {
            ("pass", None) => (rest, Expected::Pass),
            ("fail", Some((name, reason))) => (name, Expected::Fail(reason.into())),
            ("timing", Some((name, reason))) => (name, Expected::Timing(reason.into())),
            _ => bail!(
                "conformance.txt: `{line}` is none of `pass NAME`, `fail NAME: reason`, `timing NAME: reason`"
            ),
        };
        ensure!(out.insert(name.to_string(), outcome).is_none(), "conformance.txt names `{name}` twice");
    }
    Ok(out)
}

/// The results that libtest printed.
fn results(text: &str) -> BTreeMap<String, bool> {
    let mut out = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, result)) = line.strip_prefix("test ").and_then(|l| l.rsplit_once(" ... ")) {
            let name = name.split(" - should panic").next().unwrap_or(name).trim();
            out.insert(name.to_string(), result.trim() == "ok");
        }
    }
    out
}

fn compare(expected: &Outcomes, found: &BTreeMap<String, bool>) -> Result<()> {
    let mut wrong = Vec::new();
    for (name, passed) in found {
        match (expected.get(name), passed) {
            (None, _) => wrong.push(format!("{name}: not in conformance.txt")),
            (Some(Expected::Pass), false) => wrong.push(format!("{name}: passed before and fails now")),
            (Some(Expected::Fail(_)), true) => {
                wrong.push(format!("{name}: passes now; raise the floor in conformance.txt"))
            }
            _ => {}
        }
    }
    wrong.extend(expected.keys().filter(|n| !found.contains_key(*n)).map(|n| format!("{n}: did not run")));
    // A timing test that passes by chance is no merit.
    let passed = found.iter().filter(|(n, p)| **p && expected.get(*n) == Some(&Expected::Pass)).count();
    println!("{passed} of {} tests of cudarc pass on the emulator", found.len());
    for (name, outcome) in &expected_failures(expected) {
        println!("  not counted {name}: {outcome}");
    }
    ensure!(wrong.is_empty(), "differences from conformance.txt:\n  {}", wrong.join("\n  "));
    ensure!(passed >= FLOOR, "{passed} pass; the floor is {FLOOR}");
    Ok(())
}

fn expected_failures(expected: &Outcomes) -> Vec<(&str, &str)> {
    expected
        .iter()
        .filter_map(|(name, outcome)| match outcome {
            Expected::Pass => None,
            Expected::Fail(reason) | Expected::Timing(reason) => Some((name.as_str(), reason.as_str())),
        })
        .collect()
}

/// Where Cargo keeps the source of the cudarc that the workspace uses.
fn cudarc_source() -> Result<PathBuf> {
    let metadata = command::output(command::cargo("metadata --format-version 1"))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).context("the output of cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let manifest = packages
        .iter()
        .find(|p| p["name"] == "cudarc")
        .and_then(|p| p["manifest_path"].as_str())
        .context("the workspace does not use cudarc")?;
    Ok(Path::new(manifest).parent().context("a manifest lies in a folder")?.to_path_buf())
}

/// Copies what the unit tests need, with a manifest that stands alone.
fn copy_source(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to).with_context(|| to.display().to_string())?;
    }
    copy_tree(&from.join("src"), &to.join("src"))?;
    for file in ["build.rs", "Cargo.toml"] {
        std::fs::copy(from.join(file), to.join(file)).with_context(|| format!("copying cudarc's {file}"))?;
    }
    // The examples are not copied, so the manifest must not name them; and it is no member of ours.
    let manifest = std::fs::read_to_string(to.join("Cargo.toml"))?;
    let mut kept = String::from("[workspace]\n\n");
    let mut skip = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            skip = line.starts_with("[[example]]");
        }
        if !skip {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    std::fs::write(to.join("Cargo.toml"), kept)?;
    // The versions of the workspace's lock file, so that nothing else is fetched.
    std::fs::copy(command::root().join("Cargo.lock"), to.join("Cargo.lock")).context("copying Cargo.lock")?;
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regression_an_improvement_and_an_unknown_test_are_all_differences() {
        let expected = read_list("pass a\nfail b: bindings\n# note\n").unwrap();
        let found = |a, b| BTreeMap::from([("a".to_string(), a), ("b".to_string(), b)]);
        let message = |e: Result<()>| e.unwrap_err().to_string();
        assert!(message(compare(&expected, &found(false, false))).contains("a: passed before"));
        assert!(message(compare(&expected, &found(true, true))).contains("b: passes now"));
        assert!(message(compare(&expected, &BTreeMap::from([("c".into(), true)]))).contains("c: not in"));
        assert!(message(compare(&expected, &found(true, false))).contains("the floor is"));
        assert!(read_list("fail b\n").is_err());
    }

    #[test]
    fn libtest_lines_are_read() {
        let text = "test x::y ... ok\ntest p - should panic ... ok\ntest z ... FAILED\nrunning 3 tests\n";
        let all = results(text);
        assert_eq!((all.len(), all["x::y"], all["p"], all["z"]), (3, true, true, false));
    }
}
