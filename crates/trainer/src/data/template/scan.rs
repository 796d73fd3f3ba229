//! Looks through a template's source before minijinja compiles it. Two things come of it: generation tags become
//! a filter block that minijinja knows, and everything that a template names is checked against what there is, so
//! that a missing feature shows on loading and not in the middle of a data set.
//!
//! Names are checked by the tokens around them (`| name`, `is name`, `.name(`, `name(`), which needs no syntax
//! tree; what is no template at all, minijinja says.

use std::collections::HashSet;

use crate::data::error::TemplateError;

/// The filter that generation blocks become. No template can use the name by accident.
pub(super) const GENERATION: &str = "nibble_generation_block";

/// Filters of Jinja that are there. The rest (`xmlattr`, `wordwrap`, ...) is for web pages.
pub(super) const FILTERS: &[&str] = &[
    "abs",
    "batch",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "first",
    "float",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
];

/// Tests of Jinja that are there.
pub(super) const TESTS: &[&str] = &[
    "boolean",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "even",
    "false",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "true",
    "undefined",
    "upper",
];

/// Functions that are there; `loop` is one in a recursive loop.
pub(super) const FUNCTIONS: &[&str] =
    &["dict", "loop", "namespace", "raise_exception", "range", "strftime_now"];

const TAGS: &[&str] = &[
    "for",
    "endfor",
    "if",
    "elif",
    "else",
    "endif",
    "set",
    "endset",
    "macro",
    "endmacro",
    "call",
    "endcall",
    "filter",
    "endfilter",
    "with",
    "endwith",
    "break",
    "continue",
    "generation",
    "endgeneration",
    "raw",
    "endraw",
];

/// Words that may stand before a parenthesis without being called.
const KEYWORDS: &[&str] =
    &["and", "call", "elif", "else", "filter", "for", "if", "in", "is", "not", "or", "set"];

/// What came of a scan.
pub(super) struct Scanned {
    /// The source for minijinja.
    pub source: String,
    /// Whether it has generation blocks.
    pub marks: bool,
}

/// Scans a template.
///
/// # Errors
/// The first thing in it that is not there, with its line.
pub(super) fn scan(source: &str) -> Result<Scanned, TemplateError> {
    // Jinja reads every line end as \n, minijinja as it stands.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let tags = tags(&source);
    let mut macros = HashSet::new();
    for tag in &tags {
        for pair in tag.tokens.windows(2) {
            if let [Token::Name("macro" | "set"), Token::Name(name)] = pair {
                macros.insert(*name);
            }
        }
    }
    macros.insert("caller");
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let mut marks = false;
    for tag in &tags {
        if let Some(feature) = missing(tag, &macros) {
            let line = source[..tag.start].matches('\n').count() + 1;
            return Err(TemplateError::Unsupported { line, feature });
        }
        if let (true, [Token::Name(name @ ("generation" | "endgeneration"))]) = (tag.block, &tag.tokens[..]) {
            marks = true;
            // A block of Jinja's has a scope of its own, a filter block has none: `with` makes it.
            let inner = match *name {
                "generation" => format!(" with %}}{{% filter {GENERATION} "),
                _ => " endfilter %}{% endwith ".to_string(),
            };
            out.push_str(&source[copied..tag.inner.start]);
            // The tag may reach over several lines, and errors name lines.
            let lines = source[tag.inner.clone()].matches('\n').count();
            out.extend([inner.as_str(), &"\n".repeat(lines)]);
            copied = tag.inner.end;
        }
    }
    out.push_str(&source[copied..]);
    Ok(Scanned { source: out, marks })
}

/// What stands between `{{` and `}}` or `{%` and `%}`.
struct Tag<'a> {
    /// Where the tag begins in the source.
    start: usize,
    /// The source within, without delimiters and their signs.
    inner: std::ops::Range<usize>,
    /// Whether it is a block tag.
    block: bool,
    tokens: Vec<Token<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a str),
    Text(&'a str),
    Sign(char),
    Number,
}

/// All tags of a template, comments and raw blocks left out. An unclosed tag ends the list: minijinja says where.
fn tags(source: &str) -> Vec<Tag<'_>> {
    let mut tags = Vec::new();
    let mut at = 0;
    while let Some(start) = source[at..].find('{').map(|found| at + found) {
        let rest = &source[start..];
        if rest.starts_with("{#") {
            let Some(end) = rest.find("#}") else { break };
            at = start + end + 2;
        } else if rest.starts_with("{{") || rest.starts_with("{%") {
            let block = rest.starts_with("{%");
            let Some((tag, end)) = read_tag(source, start, block) else { break };
            at = end;
            let raw = block && tag.tokens == [Token::Name("raw")];
            tags.push(tag);
            if raw {
                let Some(close) = end_of_raw(source, end) else { break };
                at = close;
            }
        } else {
            at = start + 1;
        }
    }
    tags
}

/// Reads the tag that begins at `start`; `None` where it is not closed.
fn read_tag(source: &str, start: usize, block: bool) -> Option<(Tag<'_>, usize)> {
    let close = if block { "%}" } else { "}}" };
    let bytes = source.as_bytes();
    let mut at = start + 2;
    if matches!(bytes.get(at), Some(b'-' | b'+')) {
        at += 1;
    }
    let begin = at;
    let mut depth = 0usize;
    let mut tokens = Vec::new();
    loop {
        let rest = source.get(at..)?;
        let first = rest.chars().next()?;
        let signed = rest[1.min(rest.len())..].starts_with(close) && matches!(first, '-' | '+');
        if depth == 0 && (rest.starts_with(close) || signed) {
            let end = at + usize::from(signed) + 2;
            return Some((Tag { start, inner: begin..at, block, tokens }, end));
        }
        let length = match first {
            '\'' | '"' => {
                let length = text_length(rest)?;
                tokens.push(Token::Text(&rest[1..length - 1]));
                length
            }
            '0'..='9' => {
                tokens.push(Token::Number);
                span(rest, |c| c.is_ascii_alphanumeric() || c == '_')
            }
            c if c.is_alphabetic() || c == '_' => {
                let length = span(rest, |c| c.is_alphanumeric() || c == '_');
                tokens.push(Token::Name(&rest[..length]));
                length
            }
            c => {
                match c {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                if !c.is_whitespace() {
                    tokens.push(Token::Sign(c));
                }
                c.len_utf8()
            }
        };
        at += length;
    }
}

fn span(text: &str, part: impl Fn(char) -> bool) -> usize {
    text.find(|c| !part(c)).unwrap_or(text.len())
}

/// Length of the quoted text at the beginning of `rest`, quotes included.
fn text_length(rest: &str) -> Option<usize> {
    let quote = rest.chars().next()?;
    let mut escaped = false;
    for (at, character) in rest.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Where the tag that ends a raw block ends.
fn end_of_raw(source: &str, from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let start = at + source[at..].find("{%")?;
        match read_tag(source, start, true) {
            Some((tag, end)) if tag.tokens == [Token::Name("endraw")] => return Some(end),
            _ => at = start + 2,
        }
    }
}

/// The first thing that a tag names and that is not there.
fn missing(tag: &Tag<'_>, defined: &HashSet<&str>) -> Option<String> {
    use Token::{Name, Sign, Text};
    let tokens = &tag.tokens[..];
    let unless = |known: bool, kind: &str, name: &str| (!known).then(|| format!("{kind} `{name}`"));
    if let (true, [Name(name), ..]) = (tag.block, tokens)
        && let Some(feature) = unless(TAGS.contains(name), "tag", name)
    {
        return Some(feature);
    }
    for at in 0..tokens.len() {
        if let Text(text) = tokens[at]
            && let Some(escape) = odd_escape(text)
        {
            return Some(escape);
        }
        let before = if at == 0 { None } else { tokens.get(at - 1) };
        let found = match (before, tokens[at], tokens.get(at + 1)) {
            (Some(Sign('|')), Name(name), _) => unless(FILTERS.contains(&name), "filter", name),
            (Some(Name("filter")), Name(name), _) if tag.block && at == 1 => {
                unless(FILTERS.contains(&name), "filter", name)
            }
            (Some(Name("is")), Name("not"), Some(Name(name))) => unless(TESTS.contains(name), "test", name),
            (Some(Name("is")), Name("not"), _) => None,
            (Some(Name("is")), Name(name), _) => unless(TESTS.contains(&name), "test", name),
            (Some(Sign('.')), Name(name), Some(Sign('('))) => {
                unless(super::python::METHODS.contains(&name), "method", &format!(".{name}"))
            }
            (Some(Sign('.')), Name(_), _) => None,
            // The name after `is not` is a test, the one after `macro` is being defined.
            (Some(Name("not")), Name(_), _) if at > 1 && tokens[at - 2] == Name("is") => None,
            (Some(Name("macro")), Name(_), _) => None,
            (_, Name(name), Some(Sign('('))) => {
                let known = FUNCTIONS.contains(&name) || KEYWORDS.contains(&name) || defined.contains(name);
                unless(known, "function", name)
            }
            _ => None,
        };
        // Some filters take the name of a test or of a filter as a text.
        let named = match &tokens[at..] {
            [Name("select" | "reject"), Sign('('), Text(test), ..] => {
                unless(TESTS.contains(test), "test", test)
            }
            [Name("selectattr" | "rejectattr"), Sign('('), Text(_), Sign(','), Text(test), ..] => {
                unless(TESTS.contains(test), "test", test)
            }
            [Name("map"), Sign('('), Text(filter), ..] => unless(FILTERS.contains(filter), "filter", filter),
            _ => None,
        };
        if found.is_some() || named.is_some() {
            return found.or(named);
        }
    }
    None
}

/// An escape within a text that Python reads otherwise than minijinja does.
fn odd_escape(text: &str) -> Option<String> {
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == '\\' {
            match characters.next() {
                Some('\n') => return Some("a text that goes on in the next line".to_string()),
                Some(c @ ('N' | 'U' | 'a' | 'v' | '/')) => return Some(format!("the escape `\\{c}`")),
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(template: &str) -> String {
        scan(template).expect("a template").source
    }

    #[test]
    fn generation_tags_keep_their_signs_and_lines() {
        assert_eq!(
            source("a{%- generation +%}b{% endgeneration -%}c"),
            format!("a{{%- with %}}{{% filter {GENERATION} +%}}b{{% endfilter %}}{{% endwith -%}}c")
        );
        assert_eq!(source("{%\ngeneration\n%}").matches('\n').count(), 2);
        for other in [
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{% raw %}{% generation %}{% endraw %}",
            "{{ {'a': {'b': '}}'}} }}{{ \"\\\"{%\" }}",
            "{ % generation % }",
        ] {
            assert_eq!(source(other), other);
            assert!(!scan(other).expect("a template").marks);
        }
        assert_eq!(source("a\r\nb\rc\n"), "a\nb\nc\n");
    }

    #[test]
    fn what_is_missing_is_named() {
        for (template, message) in [
            ("a\n{{ x | xmlattr }}", "line 2: filter `xmlattr` is not supported"),
            ("{% filter wordwrap(3) %}{% endfilter %}", "line 1: filter `wordwrap` is not supported"),
            ("{% if x is callable %}{% endif %}", "line 1: test `callable` is not supported"),
            ("{% if x is not callable %}{% endif %}", "line 1: test `callable` is not supported"),
            ("{{ x.encode('a') }}", "line 1: method `.encode` is not supported"),
            ("{{ lipsum(3) }}", "line 1: function `lipsum` is not supported"),
            ("{% include 'a' %}", "line 1: tag `include` is not supported"),
            ("{{ x | select('escaped') }}", "line 1: test `escaped` is not supported"),
            ("{{ x | selectattr('a', 'escaped') }}", "line 1: test `escaped` is not supported"),
            ("{{ '\\\\N' + '\\N{BULLET}' }}", "line 1: the escape `\\N` is not supported"),
            ("{{ 'a\\\nb' }}", "line 1: a text that goes on in the next line is not supported"),
            ("{{ x | map('wordcount') }}", "line 1: filter `wordcount` is not supported"),
        ] {
            assert_eq!(scan(template).err().map(|error| error.to_string()).as_deref(), Some(message));
        }
    }

    #[test]
    fn what_is_there_passes() {
        for template in [
            "{% macro f(a) %}{{ caller() }}{% endmacro %}{% call f(1) %}{% endcall %}{{ f(2) }}",
            "{% if (a) and not (b) or (c in (1, 2)) %}{% elif (d) %}{% endif %}",
            "{{ '| nothing is that.no(' }}{# {{ x | nothing }} #}",
            "{{ x.is_it | trim }}{{ x is not none }}{{ x is in(y) }}{{ m['pad_token'] }}",
            "{% for i in range(3) %}{{ loop.cycle('a', 'b') }}{% endfor %}",
        ] {
            assert!(scan(template).is_ok(), "{template}: {:?}", scan(template).err());
        }
    }
}
