//! Checks of Rust sources: headers, lengths, unsafe code, how libraries report, leftovers.

use super::{
    Problem, Tree, line_of,
    rust_code::{without_comments_and_literals, words},
};

/// More lines than this want a reason in the file's header: a sentence that begins with [`LENGTH_REASON`].
const LONG: usize = 800;
const LENGTH_REASON: &str = "Long because";

/// Where unsafe code may stand: whole crates end in `/`.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/cpu-ops/src/gemm/microkernel/",
    "crates/cpu-ops/src/nf4/avx2.rs",
    "crates/cpu-ops/src/nf4/avx512.rs",
    "crates/cpu-ops/src/simd.rs",
    "crates/gpu-driver/",
    "crates/gpu-emulator/",
    "crates/gpu-emulator-cublas/",
    "crates/trainer/src/model/map.rs",
];

/// The roots of all crates and the least that they must say of unsafe code.
const UNSAFE_LINTS: &[(&str, &[&str])] = &[
    ("crates/kernels-ptx/src/lib.rs", &["forbid"]),
    ("crates/cpu-ops/src/lib.rs", &["deny", "forbid"]),
    ("crates/trainer/src/lib.rs", &["deny", "forbid"]),
    ("crates/trainer/src/main.rs", &["forbid"]),
    ("xtask/src/main.rs", &["forbid"]),
    ("tests/src/lib.rs", &["forbid"]),
    ("benches/src/lib.rs", &["forbid"]),
];

/// Every Rust file opens with a `//!` comment that says what it is for.
pub fn headers(tree: &Tree) -> Vec<Problem> {
    tree.rust()
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(path, _)| problem(path, 1, "open the file with `//! ` and what it is for"))
        .collect()
}

/// Files of more than 800 lines give the reason in their header.
pub fn lengths(tree: &Tree) -> Vec<Problem> {
    tree.rust()
        .filter(|(_, text)| text.lines().count() > LONG)
        .filter(|(_, text)| {
            !text.lines().take_while(|line| line.starts_with("//!")).any(|line| line.contains(LENGTH_REASON))
        })
        .map(|(path, text)| {
            let lines = text.lines().count();
            problem(path, 0, &format!("{lines} lines: split it, or say \"{LENGTH_REASON} …\" in its header"))
        })
        .collect()
}

/// The keyword `unsafe`, and permission for it, stand only in the files meant for it.
pub fn unsafe_code(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in tree.rust() {
        if UNSAFE_ALLOWED
            .iter()
            .any(|allowed| path == *allowed || allowed.ends_with('/') && path.starts_with(allowed))
        {
            continue;
        }
        let code = without_comments_and_literals(text);
        for at in words(&code, "unsafe") {
            problems.push(problem(path, line_of(text, at), "unsafe code outside the files meant for it"));
        }
    }
    problems
}

/// Each crate root forbids unsafe code, or denies it where single files allow it.
pub fn unsafe_lints(tree: &Tree) -> Vec<Problem> {
    UNSAFE_LINTS
        .iter()
        .filter(|(path, levels)| {
            let Some(text) = tree.text(path) else { return true };
            let code = without_comments_and_literals(text);
            !levels.iter().any(|level| code.contains(&format!("#![{level}(unsafe_code)]")))
        })
        .map(|(path, levels)| problem(path, 0, &format!("must say #![{}(unsafe_code)]", levels[0])))
        .collect()
}

/// Libraries return errors and emit events: they neither print nor drop an error.
pub fn reporting(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in tree.rust() {
        let library = path.starts_with("crates/") && path.contains("/src/");
        let binary = path.ends_with("/main.rs") || path.contains("/src/cli/") || path.contains("/src/bin/");
        if !library || binary {
            continue;
        }
        let code = without_comments_and_literals(text);
        // What a test prints is for whoever runs it.
        let code = &code[..code.find("#[cfg(test)]").unwrap_or(code.len())];
        for name in ["println", "print", "eprintln", "eprint"] {
            for at in words(code, name).filter(|at| code[at + name.len()..].starts_with('!')) {
                let message = format!("{name}! in a library: return an error, emit an event, or use tracing");
                problems.push(problem(path, line_of(text, at), &message));
            }
        }
        for (at, _) in code.match_indices(".ok()?") {
            problems.push(problem(path, line_of(text, at), "an error is dropped: return it"));
        }
    }
    problems
}

/// Nothing says that it is unfinished.
pub fn unfinished(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".rs") || path.ends_with(".ptx")) {
        let code = without_comments_and_literals(text);
        for name in ["todo", "unimplemented", "dbg"] {
            for at in words(&code, name).filter(|at| code[at + name.len()..].starts_with('!')) {
                problems.push(problem(path, line_of(text, at), &format!("{name}! is left")));
            }
        }
        for mark in [concat!("FIX", "ME"), concat!("XX", "X"), concat!("TO", "DO")] {
            for at in words(text, mark) {
                problems.push(problem(path, line_of(text, at), &format!("{mark} is left")));
            }
        }
    }
    problems
}

fn problem(path: &str, line: usize, message: &str) -> Problem {
    Problem { path: path.to_owned(), line, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "crates/cpu-ops/src/norm.rs";

    fn lines(problems: &[Problem]) -> Vec<usize> {
        problems.iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn a_file_without_a_header_is_found() {
        let tree = Tree::of(&[("a.rs", "//! Good.\n"), ("b.rs", "use x;\n"), ("c.md", "# Title\n")]);
        assert_eq!(headers(&tree).iter().map(|problem| problem.path.as_str()).collect::<Vec<_>>(), ["b.rs"]);
    }

    #[test]
    fn a_long_file_without_a_reason_is_found() {
        let body = "\n".repeat(LONG);
        let bad = format!("//! A file.\n{body}");
        let good = format!("//! A file.\n//! {LENGTH_REASON} its table is one piece.\n{body}");
        let tree = Tree::of(&[("bad.rs", &bad), ("good.rs", &good), ("short.rs", "//! Short.\n")]);
        let problems = lengths(&tree);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].path, "bad.rs");
    }

    #[test]
    fn unsafe_code_outside_its_files_is_found() {
        let code = "// unsafe is a word here\nfn f() { unsafe { g() } }\n";
        let tree = Tree::of(&[(LIB, code), ("crates/gpu-driver/src/context.rs", code)]);
        let problems = unsafe_code(&tree);
        assert_eq!((problems.len(), problems[0].line, problems[0].path.as_str()), (1, 2, LIB));
    }

    #[test]
    fn a_root_that_allows_unsafe_code_is_found() {
        let good: Vec<_> = UNSAFE_LINTS
            .iter()
            .map(|(path, levels)| (*path, format!("#![{}(unsafe_code)]", levels[0])))
            .collect();
        let tree = |bad: usize| {
            let files: Vec<_> = good
                .iter()
                .enumerate()
                .map(|(index, (path, text))| (*path, if index == bad { "// none" } else { text.as_str() }))
                .collect();
            Tree::of(&files)
        };
        assert_eq!(unsafe_lints(&tree(usize::MAX)), []);
        assert_eq!(unsafe_lints(&tree(0)).len(), 1);
        assert_eq!(unsafe_lints(&Tree::of(&[])).len(), UNSAFE_LINTS.len());
    }

    #[test]
    fn printing_and_dropped_errors_in_libraries_are_found() {
        let text = "fn f() {\n    eprintln!(\"x\");\n    let y = g().ok()?;\n}\n#[cfg(test)]\nmod tests { fn t() { println!(); } }\n";
        assert_eq!(lines(&reporting(&Tree::of(&[(LIB, text)]))), [2, 3]);
        for path in [
            "crates/trainer/src/main.rs",
            "crates/trainer/src/cli/train.rs",
            "xtask/src/ci.rs",
            "benches/src/lib.rs",
        ] {
            assert_eq!(reporting(&Tree::of(&[(path, text)])), [], "{path}");
        }
    }

    #[test]
    fn leftovers_are_found() {
        let text =
            format!("fn f() {{ to{}!() }}\n// {} later\nlet s = \"dbg!\";\n", "do", concat!("FIX", "ME"));
        assert_eq!(lines(&unfinished(&Tree::of(&[(LIB, &text)]))), [1, 2]);
        assert_eq!(unfinished(&Tree::of(&[(LIB, "// methods to do with todos\n")])), []);
    }
}
