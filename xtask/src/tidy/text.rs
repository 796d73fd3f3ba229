//! Checks of every tracked text: it means the same to whoever has only the repository, and manifests take what
//! is shared from the workspace.

use super::{Problem, Tree, line_of};

/// Words that only mean something elsewhere: hosts of package registries, and folders of one machine.
/// Spelt in pieces, so that this file passes its own check.
const ELSEWHERE: &[&str] = &[
    concat!("py", "pi.org"),
    concat!("files.python", "hosted.org"),
    concat!("static.", "crates.io"),
    concat!("index.", "crates.io"),
    concat!("registry.", "npmjs.org"),
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
];

/// Texts name no issue, no registry host and no folder outside the repository.
pub fn places(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    // Cargo writes the registry into its lock file.
    for (path, text) in tree.texts().filter(|(path, _)| *path != "Cargo.lock") {
        for word in ELSEWHERE {
            for (at, _) in text.match_indices(word) {
                // As part of a longer path of the repository it is something else: `network/`.
                let message = format!("{word} means nothing to a reader of the repository alone");
                problems.push(Problem { path: path.to_owned(), line: line_of(text, at), message });
            }
        }
        for (index, line) in text.lines().enumerate() {
            if names_an_issue(line) {
                let message = "an issue's number means nothing here: give the reason itself".to_owned();
                problems.push(Problem { path: path.to_owned(), line: index + 1, message });
            }
        }
    }
    problems
}

/// Whether `line` refers to an issue or a pull request by its number.
fn names_an_issue(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    let numbered = |word: &str| {
        lower.match_indices(word).any(|(at, _)| {
            let whole = !lower[..at].ends_with(|before: char| before.is_ascii_alphanumeric());
            whole && lower[at + word.len()..].starts_with(|after: char| after.is_ascii_digit())
        })
    };
    ["issue ", "issue #", "issues #", "pr #", "(#", "fixes #", "closes #", "see #"]
        .iter()
        .any(|word| numbered(word))
}

/// Members take the versions of their dependencies, their edition and their lints from the workspace.
pub fn manifests(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with("/Cargo.toml")) {
        let mut report = |line: usize, message: &str| {
            problems.push(Problem { path: path.to_owned(), line, message: message.to_owned() });
        };
        if !text.contains("[lints]\nworkspace = true") {
            report(0, "must take its lints from the workspace");
        }
        for key in ["version", "edition", "rust-version", "license"] {
            if !text.lines().any(|line| line == format!("{key}.workspace = true")) {
                report(0, &format!("must take its {key} from the workspace"));
            }
        }
        let mut in_dependencies = false;
        for (index, line) in text.lines().enumerate() {
            if line.starts_with('[') {
                in_dependencies = line.trim_end_matches(']').ends_with("dependencies");
            } else if in_dependencies && line.contains('=') && !line.trim_start().starts_with('#') {
                let shared = line.contains(".workspace = true") || line.contains("workspace = true,");
                if !shared {
                    report(index + 1, "the version belongs in [workspace.dependencies]");
                }
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_from_elsewhere_are_found() {
        for word in ELSEWHERE {
            let text = format!("//! A file.\n// see {word} x\n");
            let problems = places(&Tree::of(&[("a.rs", &text), ("Cargo.lock", &text)]));
            assert_eq!(problems.len(), 1, "{word}");
            assert_eq!((problems[0].line, problems[0].path.as_str()), (2, "a.rs"));
        }
    }

    #[test]
    fn issue_numbers_are_found() {
        for (before, after) in [("closes #", ""), ("Issue ", " says"), ("as in (#", ")"), ("see PR #", "")] {
            let line = format!("{before}7{after}");
            assert_eq!(places(&Tree::of(&[("a.md", &line)])).len(), 1, "{line}");
        }
        for line in ["row #3", "the issue is", "tissue 5", "#[test]", "B12", "a colour, #123456"] {
            assert_eq!(places(&Tree::of(&[("a.md", line)])), [], "{line}");
        }
    }

    #[test]
    fn a_manifest_that_goes_its_own_way_is_found() {
        let good = "[package]\nname = \"a\"\nversion.workspace = true\nedition.workspace = true\n\
                    rust-version.workspace = true\nlicense.workspace = true\n\n[lints]\nworkspace = true\n\n\
                    [dependencies]\nhalf.workspace = true\nx = { workspace = true, optional = true }\n";
        assert_eq!(manifests(&Tree::of(&[("crates/a/Cargo.toml", good)])), []);
        for (from, to) in [
            ("[lints]\nworkspace = true\n", ""),
            ("version.workspace = true\n", "version = \"1.0.0\"\n"),
            ("half.workspace = true", "half = \"2\""),
            ("{ workspace = true, optional", "{ version = \"1\", optional"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert!(!manifests(&Tree::of(&[("crates/a/Cargo.toml", &bad)])).is_empty(), "{to}");
        }
    }
}
