//! `docs/faults.md`: its rows stand in order, say what came of each fault, and name tests that exist; and every
//! fault that a test cites has its row.

use std::collections::BTreeSet;

use super::{
    Problem, Tree, line_of,
    rust_code::{numbered_words, without_comments_and_literals},
};

const TABLE: &str = "docs/faults.md";

/// What a row may say came of a fault. `open` names no test and gives its reason instead.
const OUTCOMES: &[&str] = &["handled", "refused", "open"];

/// One row of the table.
struct Row<'a> {
    line: usize,
    id: u32,
    test: &'a str,
    outcome: &'a str,
}

pub fn check(tree: &Tree) -> Vec<Problem> {
    let Some(text) = tree.text(TABLE) else {
        return vec![Problem { path: TABLE.to_owned(), line: 0, message: "is missing".to_owned() }];
    };
    let mut problems = Vec::new();
    let mut report = |path: &str, line: usize, message: String| {
        problems.push(Problem { path: path.to_owned(), line, message });
    };
    let rows = rows(text);
    if rows.is_empty() {
        report(TABLE, 0, "has no row: nothing was checked".to_owned());
    }
    for pair in rows.windows(2).filter(|pair| pair[0].id >= pair[1].id) {
        report(TABLE, pair[1].line, format!("B{:02} is out of order or there twice", pair[1].id));
    }
    for row in &rows {
        let outcome = row.outcome.split([':', ' ', ',']).next().unwrap_or_default();
        if !OUTCOMES.contains(&outcome) {
            report(TABLE, row.line, format!("the outcome must begin with one of {}", OUTCOMES.join(", ")));
        }
        let tests: Vec<_> = row.test.split('`').skip(1).step_by(2).collect();
        if (outcome == "open") != tests.is_empty() {
            report(TABLE, row.line, "a row names a test unless it is open".to_owned());
        }
        if outcome == "open" && row.outcome.trim() == "open" {
            report(TABLE, row.line, "an open row gives its reason".to_owned());
        }
        for test in tests.iter().filter(|test| !exists(tree, test)) {
            report(TABLE, row.line, format!("there is no test {test}"));
        }
    }
    let known: BTreeSet<_> = rows.iter().map(|row| row.id).collect();
    for (path, text) in tree.rust().filter(|(path, _)| !path.starts_with("xtask/src/tidy/")) {
        for (at, id) in cited(text).filter(|(_, id)| !known.contains(id)) {
            report(path, line_of(text, at), format!("fault B{id:02} has no row in {TABLE}"));
        }
    }
    problems
}

/// The rows of the form `| B01 | fault | test | outcome |`.
fn rows(text: &str) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let ["", id, _, test, outcome, ""] = cells[..] else { continue };
        let Some(id) = id.strip_prefix('B').and_then(|digits| digits.parse().ok()) else { continue };
        rows.push(Row { line: index + 1, id, test, outcome });
    }
    rows
}

/// Whether `test`, written `file.rs::name`, is a function of that file with a test attribute, or an item of a
/// `proptest!` block.
fn exists(tree: &Tree, test: &str) -> bool {
    let Some((path, name)) = test.split_once("::") else { return false };
    let Some(text) = tree.text(path) else { return false };
    let name = name.rsplit("::").next().unwrap_or(name);
    let Some(at) = text.find(&format!("fn {name}(")) else { return false };
    // Attributes and comments stand between the last blank or closing line and the function.
    text[..at]
        .lines()
        .rev()
        .skip(usize::from(!text[..at].ends_with('\n')))
        .map(str::trim)
        .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
        .any(|line| line == "#[test]")
}

/// The faults that comments and texts of `text` cite, as `B` and two or three digits, with their positions. In
/// code the same letters name something else.
fn cited(text: &str) -> impl Iterator<Item = (usize, u32)> + '_ {
    let code = without_comments_and_literals(text);
    numbered_words(text, 'B')
        .filter(|(_, digits)| (2..=3).contains(&digits.len()))
        .filter(move |(at, _)| code.as_bytes()[*at] == b' ')
        .filter_map(|(at, digits)| Some((at, digits.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str =
        "//! T.\n/// B02 in words.\n#[test]\nfn tail_block() {}\nfn helper() {}\nenum Size { B16 }\n";

    fn problems(table: &str) -> Vec<String> {
        let tree = Tree::of(&[(TABLE, table), ("crates/a/tests/nf4.rs", TEST)]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_true_table_passes() {
        let table = "| id | fault | test | outcome |\n|---|---|---|---|\n\
                     | B02 | tail | `crates/a/tests/nf4.rs::tail_block` | handled |\n\
                     | B10 | later | | open: no such feature yet |\n";
        assert_eq!(problems(table), Vec::<String>::new());
    }

    #[test]
    fn each_kind_of_false_row_is_found() {
        let row = |test: &str, outcome: &str| format!("| B02 | tail | {test} | {outcome} |\n");
        let good = row("`crates/a/tests/nf4.rs::tail_block`", "handled");
        for (table, expected) in [
            (row("`crates/a/tests/nf4.rs::no_such`", "handled"), "there is no test"),
            (row("`crates/a/tests/nf4.rs::helper`", "handled"), "there is no test"),
            (row("`crates/a/tests/no_file.rs::tail_block`", "handled"), "there is no test"),
            (row("", "handled"), "names a test unless"),
            (row("`crates/a/tests/nf4.rs::tail_block`", "open: why"), "names a test unless"),
            (row("", "open"), "gives its reason"),
            (row("`crates/a/tests/nf4.rs::tail_block`", "fine"), "must begin with"),
            (format!("{good}{good}"), "out of order"),
            (good.replace("B02", "B03"), "B02 has no row"),
            (String::new(), "has no row: nothing"),
        ] {
            let found = problems(&table);
            assert!(found.iter().any(|problem| problem.contains(expected)), "{table}{expected}: {found:?}");
        }
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }
}
