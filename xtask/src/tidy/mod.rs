//! `cargo xtask tidy`: the invariants of ARCHITECTURE.md and the habits of STYLE.md that a program can check.
//!
//! A check is a function from the [`Tree`] (the tracked files, in memory) or from Cargo's metadata to a list of
//! [`Problem`]s, so that each has tests which show on a small made-up tree that it can fail. All problems are
//! printed; any of them fails the task.

mod documents;
mod faults;
mod layers;
mod rust_code;
mod source;
mod text;

use std::{fmt, process::Command};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{cargo, output, root};

/// Something that does not hold, with its place.
#[derive(Debug, PartialEq)]
pub struct Problem {
    path: String,
    /// Counted from 1; 0 means the whole file.
    line: usize,
    message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// A tracked file. What is not UTF-8 has no text.
pub struct File {
    path: String,
    text: Option<String>,
}

/// The tracked files of the workspace.
pub struct Tree {
    files: Vec<File>,
}

impl Tree {
    /// Reads what git tracks or would track; a file that was deleted but not committed is left out.
    fn load() -> Result<Self> {
        let mut list = Command::new("git");
        list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let mut files = Vec::new();
        for path in output(list)?.split('\0').filter(|path| !path.is_empty()) {
            let full = root().join(path);
            if !full.is_file() {
                continue;
            }
            let bytes = std::fs::read(&full).with_context(|| format!("cannot read {path}"))?;
            files.push(File { path: path.to_owned(), text: String::from_utf8(bytes).ok() });
        }
        ensure!(!files.is_empty(), "git tracks no file here: nothing was checked");
        Ok(Self { files })
    }

    /// Paths and contents of all text files.
    fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|file| Some((file.path.as_str(), file.text.as_deref()?)))
    }

    /// Paths and contents of all Rust files.
    fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// The content of the text file at `path`.
    fn text(&self, path: &str) -> Option<&str> {
        self.texts().find(|(other, _)| *other == path).map(|(_, text)| text)
    }

    /// Whether there is a tracked file at `path`, or one below it.
    fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.files.iter().any(|file| {
            file.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let files = files
            .iter()
            .map(|(path, text)| File { path: (*path).to_owned(), text: Some((*text).to_owned()) })
            .collect();
        Self { files }
    }
}

/// A check over the tracked files.
type Check = fn(&Tree) -> Vec<Problem>;

const CHECKS: &[(&str, Check)] = &[
    ("every Rust file opens with //!", source::headers),
    ("long files give their reason", source::lengths),
    ("unsafe code stays in its files", source::unsafe_code),
    ("crates forbid or deny unsafe code", source::unsafe_lints),
    ("libraries report typed errors and events", source::reporting),
    ("nothing is left unfinished", source::unfinished),
    ("texts stand on their own", text::places),
    ("manifests take versions and lints from the workspace", text::manifests),
    ("docs/faults.md names tests that exist", faults::check),
    ("links and commands in the documents work", documents::links_and_commands),
    ("README's table lists the crates", documents::crate_table),
    ("fixtures say how they were made", documents::fixtures),
];

pub fn run() -> Result<()> {
    let tree = Tree::load()?;
    let metadata = serde_json::from_str(&output(cargo("metadata --format-version 1 --locked"))?)?;
    let mut failed = 0;
    let mut report = |name: &str, problems: Vec<Problem>| {
        println!("{} {name}", if problems.is_empty() { "ok    " } else { "FAILED" });
        failed += usize::from(!problems.is_empty());
        problems.iter().for_each(|problem| println!("       {problem}"));
    };
    report("a lower layer names no higher one", layers::check(&metadata));
    for (name, check) in CHECKS {
        report(name, check(&tree));
    }
    if failed > 0 {
        bail!("{failed} checks failed");
    }
    Ok(())
}

/// The number of the line that holds byte `at` of `text`, from 1.
fn line_of(text: &str, at: usize) -> usize {
    text[..at].bytes().filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_there_when_a_file_is_below_it() {
        let tree = Tree::of(&[("crates/a/src/lib.rs", "")]);
        assert!(tree.has("crates/a") && tree.has("crates/a/") && tree.has("crates/a/src/lib.rs"));
        assert!(!tree.has("crates/a/src/li") && !tree.has("crates/b"));
    }

    #[test]
    fn the_tracked_files_are_read() {
        let tree = Tree::load().expect("the workspace is a git work tree");
        assert!(
            tree.text("xtask/src/tidy/mod.rs")
                .is_some_and(|text| text.contains("fn the_tracked_files_are_read"))
        );
    }
}
