//! Checks of the documents: links lead somewhere, commands exist, the tables are complete.

use clap::CommandFactory;

use super::{Problem, Tree, line_of};

/// Every relative link of a Markdown file leads to a tracked file; every `cargo xtask NAME` in a text is a task;
/// every `examples/…` file that one names is there.
pub fn links_and_commands(tree: &Tree) -> Vec<Problem> {
    let tasks = crate::Cli::command();
    let is_task = |name: &str| tasks.get_subcommands().any(|task| task.get_name() == name);
    let mut problems = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".md")) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut report = |at: usize, message: String| {
            problems.push(Problem { path: path.to_owned(), line: line_of(text, at), message });
        };
        for (at, target) in links(text) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !target.contains("://") && !tree.has(&resolve(folder, file)) {
                report(at, format!("the link to {target} leads nowhere"));
            }
        }
        for (at, name) in following(text, "cargo xtask ") {
            if !is_task(name) {
                report(at, format!("there is no task `cargo xtask {name}`"));
            }
        }
        for (at, name) in following(text, "examples/") {
            if name.contains('.') && !tree.has(&format!("examples/{name}")) {
                report(at, format!("there is no examples/{name}"));
            }
        }
    }
    problems
}

/// The README's table has a row for each crate, and no other.
pub fn crate_table(tree: &Tree) -> Vec<Problem> {
    let Some(readme) = tree.text("README.md") else {
        return vec![Problem { path: "README.md".to_owned(), line: 0, message: "is missing".to_owned() }];
    };
    let row = |name: &str| format!("| [{name}](crates/{name}) |");
    tree.texts()
        .filter_map(|(path, _)| path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"))
        .filter(|name| !readme.contains(&row(name)))
        .map(|name| Problem {
            path: "README.md".to_owned(),
            line: 0,
            message: format!("the table of the crates lacks `{}`", row(name)),
        })
        .collect()
}

/// Every fixture is named in the file that says how each was made.
pub fn fixtures(tree: &Tree) -> Vec<Problem> {
    const FOLDER: &str = "tests/fixtures/";
    let readme = tree.text("tests/fixtures/README.md").unwrap_or_default();
    let mut missing: Vec<_> = tree
        .files
        .iter()
        .filter_map(|file| file.path.strip_prefix(FOLDER))
        .map(|rest| rest.split_once('/').map_or(rest, |(folder, _)| folder))
        .filter(|name| *name != "README.md" && !named(readme, name))
        .collect();
    missing.dedup();
    missing
        .into_iter()
        .map(|name| Problem {
            path: "tests/fixtures/README.md".to_owned(),
            line: 0,
            message: format!("must say how `{name}` was made"),
        })
        .collect()
}

/// Whether a word in backquotes is `name`, as it is, as a folder or with one `*` for some letters.
fn named(text: &str, name: &str) -> bool {
    text.split('`').skip(1).step_by(2).map(|word| word.split('/').next().unwrap_or(word)).any(|word| {
        match word.split_once('*') {
            None => word == name,
            Some((start, end)) => name.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)),
        }
    })
}

/// The targets of the links `[text](target)`, with their positions.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices("](").filter_map(|(at, found)| {
        let rest = &text[at + found.len()..];
        Some((at, &rest[..rest.find(')')?]))
    })
}

/// The words of letters, digits, `-`, `_`, `.` and `/` that follow `lead`, with their positions.
fn following<'a>(text: &'a str, lead: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    text.match_indices(lead).filter_map(move |(at, _)| {
        let rest = &text[at + lead.len()..];
        let length =
            rest.find(|c: char| !(c.is_ascii_alphanumeric() || "-_./".contains(c))).unwrap_or(rest.len());
        let word = rest[..length].trim_end_matches(['.', '/']);
        (!word.is_empty()).then_some((at, word))
    })
}

/// The path that `target` means in a file of `folder`.
fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<_> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_and_unknown_commands_are_found() {
        let tree = |text: &str| Tree::of(&[("docs/a.md", text), ("README.md", ""), ("examples/x.toml", "")]);
        for good in [
            "[r](../README.md) [web](https://example.com/x) [here](#part)",
            "run `cargo xtask ci` or `cargo xtask tidy`.",
            "`nibble train examples/x.toml`",
        ] {
            assert_eq!(links_and_commands(&tree(good)), [], "{good}");
        }
        for bad in ["[r](README.md)", "`cargo xtask polish`", "`nibble train examples/y.toml`"] {
            assert_eq!(links_and_commands(&tree(bad)).len(), 1, "{bad}");
        }
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let row = "| [a](crates/a) | does things |\n";
        assert_eq!(crate_table(&Tree::of(&[("README.md", row), ("crates/a/Cargo.toml", "")])), []);
        assert_eq!(crate_table(&Tree::of(&[("README.md", row), ("crates/b/Cargo.toml", "")])).len(), 1);
        assert_eq!(crate_table(&Tree::of(&[])).len(), 1);
    }

    #[test]
    fn a_fixture_without_an_origin_is_found() {
        let readme = ("tests/fixtures/README.md", "| `a.json` | made by a script |\n");
        assert_eq!(fixtures(&Tree::of(&[readme, ("tests/fixtures/a.json", "")])), []);
        for (named_as, missing) in [("b/c.json", 0), ("b/", 0), ("*", 0), ("b*", 0), ("c", 1), ("b*c", 1)] {
            let readme = format!("- `{named_as}`: made by a script");
            let tree = Tree::of(&[("tests/fixtures/README.md", &readme), ("tests/fixtures/b/c.json", "")]);
            assert_eq!(fixtures(&tree).len(), missing, "{named_as}");
        }
        assert_eq!(fixtures(&Tree::of(&[readme, ("tests/fixtures/b/c.json", "")])).len(), 1);
    }
}
