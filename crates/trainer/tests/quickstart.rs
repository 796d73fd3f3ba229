//! The first command of the README, through the binary: a small bundled model learns facts about a town that does
//! not exist. Before, it answers none of the questions; afterwards, all.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{NIBBLE, Ran};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn nibble(arguments: &[&str]) -> Ran {
    Command::new(NIBBLE).args(arguments).current_dir(root()).output().unwrap().into()
}

#[test]
fn the_quickstart_teaches_its_model_every_answer() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let output_dir = format!("output_dir={}", out.display());
    let said = nibble(&["train", "examples/quickstart.toml", "--set", &output_dir]).ok();
    let adapter = out.join("adapter");
    assert!(
        said.contains(&format!("generate --model examples/quickstart-model --adapter {}", adapter.display())),
        "{said}"
    );

    let records = common::lines(&root().join("examples/data/quickstart.jsonl"));
    assert!(records.len() >= 20, "{} questions", records.len());
    let ask = |question: &str, adapter: &[&str]| {
        let arguments =
            ["generate", "--model", "examples/quickstart-model", "--max-tokens", "64", "--prompt", question];
        nibble(&[&arguments[..], adapter].concat()).ok()
    };
    for record in records {
        let (question, answer) = (record["prompt"].as_str().unwrap(), record["completion"].as_str().unwrap());
        assert_ne!(ask(question, &[]).trim_end(), answer, "the base knows it already");
        assert_eq!(ask(question, &["--adapter", adapter.to_str().unwrap()]).trim_end(), answer, "{question}");
    }
}
