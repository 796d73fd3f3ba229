//! `cargo xtask ci`: the list of everything that must hold, cheapest first. A workflow file or a bare machine
//! runs this and nothing else; see `.ci/run`.
//!
//! To add a check, add a [`Step`] to [`STEPS`]. The list plans its builds so that the large dependency tree is
//! compiled few times: clippy and the documentation share what `cargo check` makes, and all tests and the run
//! of the benchmarks share the `dev` profile.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{cargo, output, run as run_command, run_tests};

/// The whole workspace with the CUDA backend left out, and what tests and compares it: the emulator and this program.
const WITHOUT_CUDA: &str =
    "--workspace --exclude gpu-driver --exclude gpu-emulator --exclude xtask --no-default-features";

#[derive(clap::Args)]
pub struct Arguments {
    /// Prints the names of the steps and stops
    #[arg(long)]
    list: bool,
    /// Runs these steps only
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
    /// Leaves these steps out
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    skip: Vec<String>,
}

/// One check.
struct Step {
    name: &'static str,
    what: &'static str,
    run: fn() -> Result<()>,
}

const STEPS: &[Step] = &[
    Step { name: "fmt", what: "the source is formatted", run: || run_command(cargo("fmt --all --check")) },
    Step { name: "tidy", what: "the invariants that a program can check", run: crate::tidy::run },
    Step {
        name: "deny",
        what: "licences, sources and bans of the dependencies",
        run: || run_command(cargo("deny --workspace --all-features check bans licenses sources")),
    },
    Step { name: "no-cuda-crate", what: "no CUDA crate without the feature", run: no_cuda_crate },
    Step {
        name: "clippy",
        what: "lints, with CUDA",
        run: || run_command(cargo("clippy --workspace --all-targets -- -D warnings")),
    },
    Step {
        name: "clippy-cpu",
        what: "lints, without CUDA",
        run: || run_command(cargo(&format!("clippy {WITHOUT_CUDA} --all-targets -- -D warnings"))),
    },
    Step { name: "doc", what: "the documentation builds without a warning", run: documentation },
    Step {
        name: "ptx",
        what: "the kernels assemble without spills, and what is generated from them agrees",
        run: || run_task("ptx --check --require-ptxas"),
    },
    Step { name: "parity", what: "the kernels agree with their CPU oracles", run: || run_task("parity") },
    Step {
        name: "parity-captured",
        what: "as graphs, and with blocks and warps shuffled",
        run: || run_task("parity --captured --seed 1"),
    },
    Step { name: "test", what: "all tests, with CUDA", run: || run_tests(cargo("test --workspace")) },
    Step {
        name: "bench",
        what: "every benchmark once, checked and not timed",
        run: || run_command(cargo("test --workspace --bench all -- --test")),
    },
    Step { name: "fetch", what: "a real model is here", run: || run_task("fetch smollm2") },
    Step {
        name: "agreement",
        what: "training the real model gives the reference's losses and norms",
        run: || run_tests(cargo("test --workspace --test smollm2 -- --ignored")),
    },
    Step {
        name: "test-cpu",
        what: "all tests, without CUDA",
        run: || run_tests(cargo(&format!("test {WITHOUT_CUDA}"))),
    },
];

pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.list {
        for step in STEPS {
            println!("{:12} {}", step.name, step.what);
        }
        return Ok(());
    }
    let steps = chosen(STEPS, &arguments.only, &arguments.skip)?;
    let mut results: Vec<(&'static str, Duration, Result<()>)> = Vec::new();
    for step in steps {
        println!("== {}: {}", step.name, step.what);
        let start = Instant::now();
        let result = (step.run)();
        let failed = result.is_err();
        results.push((step.name, start.elapsed(), result));
        // What follows is dearer and mostly fails for the same reason.
        if failed {
            break;
        }
    }
    for (name, time, result) in &results {
        println!("{}", timing(name, *time, result.is_ok()));
    }
    let failed = results.iter().filter(|(_, _, result)| result.is_err()).count();
    println!("ci: {} passed, {failed} failed", results.len() - failed);
    results.into_iter().try_for_each(|(name, _, result)| result.with_context(|| format!("step {name}")))
}

/// The steps to run, in the order of the list.
fn chosen<'a>(steps: &'a [Step], only: &[String], skip: &[String]) -> Result<Vec<&'a Step>> {
    for name in only.iter().chain(skip) {
        if !steps.iter().any(|step| step.name == name) {
            let names: Vec<_> = steps.iter().map(|step| step.name).collect();
            bail!("there is no step {name:?}; the steps are {}", names.join(", "));
        }
    }
    let chosen: Vec<_> = steps
        .iter()
        .filter(|step| only.is_empty() || only.iter().any(|name| name == step.name))
        .filter(|step| !skip.iter().any(|name| name == step.name))
        .collect();
    ensure!(!chosen.is_empty(), "no step is left to run");
    Ok(chosen)
}

/// One line of the closing table, an object that a program can read.
fn timing(name: &str, time: Duration, passed: bool) -> String {
    serde_json::json!({ "step": name, "seconds": (time.as_secs_f64() * 10.0).round() / 10.0, "passed": passed })
        .to_string()
}

/// Another task of this program, as a user would call it.
fn run_task(arguments: &str) -> Result<()> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(arguments.split_whitespace());
    run_command(command)
}

fn no_cuda_crate() -> Result<()> {
    let tree = output(cargo(&format!("tree {WITHOUT_CUDA} --edges all --prefix none --format {{p}}")))?;
    without_cuda(&tree)
}

/// Whether `tree`, one package a line, is free of CUDA crates, and really is the tree of this workspace.
fn without_cuda(tree: &str) -> Result<()> {
    let names = || tree.lines().filter_map(|line| line.split_whitespace().next());
    ensure!(names().any(|name| name == "trainer"), "the tree does not hold trainer: nothing was checked");
    for name in names() {
        ensure!(
            name != "cudarc" && name != "gpu-driver",
            "{name} is in the tree without the cuda feature: `cargo tree {WITHOUT_CUDA} --invert {name}` says why"
        );
    }
    Ok(())
}

fn documentation() -> Result<()> {
    let mut command = cargo("doc --workspace --no-deps --document-private-items");
    command.env("RUSTDOCFLAGS", "-D warnings");
    run_command(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(steps: &[&Step]) -> Vec<&'static str> {
        steps.iter().map(|step| step.name).collect()
    }

    #[test]
    fn steps_keep_their_order_and_unknown_names_are_refused() {
        let only = ["tidy".to_owned(), "fmt".to_owned()];
        assert_eq!(names(&chosen(STEPS, &only, &[]).unwrap()), ["fmt", "tidy"]);
        assert_eq!(names(&chosen(STEPS, &only, &only[..1]).unwrap()), ["fmt"]);
        assert!(chosen(STEPS, &only, &only).is_err());
        let error = chosen(STEPS, &["clipy".to_owned()], &[]).err().expect("no such step");
        assert!(error.to_string().contains("clippy"), "{error}");
    }

    #[test]
    fn a_cuda_crate_in_the_tree_is_found() {
        assert!(without_cuda("trainer v0.1.0\nhalf v2.0.0\n").is_ok());
        assert!(without_cuda("trainer v0.1.0\ncudarc v0.19.0\n").is_err());
        assert!(without_cuda("").is_err());
    }

    #[test]
    fn timings_are_json() {
        let line = timing("fmt", Duration::from_millis(1240), true);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value, serde_json::json!({ "step": "fmt", "seconds": 1.2, "passed": true }));
    }
}
