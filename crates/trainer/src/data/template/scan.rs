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
        let unsupported = |feature| {
            let line = source[..tag.start].matches('\n').count() + 1;
            TemplateError::Unsupported { line, feature }
        };
        if let Some(feature) = missing(tag, &macros) {
            return Err(unsupported(feature));
        }
        for (text, at) in &tag.texts {
            if let Some(written) = escapes(text).map_err(unsupported)? {
                // Joined lines come back behind the closing quote, so that errors name the right ones.
                let lines = text.matches("\\\n").count();
                out.extend([&source[copied..*at], &written, &source[at + text.len()..=at + text.len()]]);
                out.push_str(&"\n".repeat(lines));
                copied = at + text.len() + 1;
            }
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
    /// The quoted texts and where they begin in the source, quotes left out.
    texts: Vec<(&'a str, usize)>,
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
    let (mut tokens, mut texts) = (Vec::new(), Vec::new());
    loop {
        let rest = source.get(at..)?;
        let first = rest.chars().next()?;
        let signed = rest[1.min(rest.len())..].starts_with(close) && matches!(first, '-' | '+');
        if depth == 0 && (rest.starts_with(close) || signed) {
            let end = at + usize::from(signed) + 2;
            return Some((Tag { start, inner: begin..at, block, tokens, texts }, end));
        }
        let length = match first {
            '\'' | '"' => {
                let length = text_length(rest)?;
                tokens.push(Token::Text(&rest[1..length - 1]));
                texts.push((&rest[1..length - 1], at + 1));
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

/// A quoted text for minijinja, where Python reads its escapes otherwise: a backslash before the end of a line joins
/// the lines, `\a`, `\v` and `\U` stand for characters, `\/` for both of its own. `None` where nothing differs.
///
/// # Errors
/// `\N`, which names a character.
fn escapes(text: &str) -> Result<Option<String>, String> {
    let mut out = String::new();
    let mut changed = false;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        out.push(character);
        if character != '\\' {
            continue;
        }
        let escape = characters.next().unwrap_or('\\');
        let replacement = match escape {
            '\n' => Some(String::new()),
            'a' => Some("\\x07".to_string()),
            'v' => Some("\\x0b".to_string()),
            '/' => Some("\\\\/".to_string()),
            'U' => {
                let digits: String = characters.by_ref().take(8).collect();
                let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                let character = code.ok_or_else(|| format!("the escape `\\U{digits}`"))?;
                let units =
                    character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
                Some(units)
            }
            'N' => return Err("the escape `\\N`".to_string()),
            _ => None,
        };
        match replacement {
            Some(replacement) => {
                changed = true;
                out.pop();
                out.push_str(&replacement);
            }
            None => out.push(escape),
        }
    }
    Ok(changed.then_some(out))
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
        assert_eq!(source("{{ 'a\\\nb\\\n' ~ c\n}}"), "{{ 'ab'\n\n ~ c\n}}");
        assert_eq!(source(r"{{ '\U0001f600\a\\a\/' }}"), r"{{ '\ud83d\ude00\x07\\a\\/' }}");
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
