//! Where Python and minijinja differ: the methods of strings, lists and dictionaries, what counts as white space,
//! which values are sequences, how numbers are written.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::json;

/// Methods that are there, and what a loop has.
pub(super) const METHODS: &[&str] = &[
    "capitalize",
    "center",
    "changed",
    "count",
    "cycle",
    "endswith",
    "find",
    "format",
    "get",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdigit",
    "islower",
    "isspace",
    "isupper",
    "items",
    "join",
    "keys",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "title",
    "upper",
    "values",
    "zfill",
];

/// Makes an environment behave as Python's.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, _state, value| {
        write!(out, "{}", text(value))
            .map_err(|_| Error::new(ErrorKind::WriteFailure, "the rendered text cannot be written"))
    });
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("dictsort", dictsort);
    environment.add_filter("indent", indent);
    environment.add_filter("int", int);
    environment.add_filter("float", |value: &Value, default: Option<f64>| {
        as_float(value).unwrap_or(default.unwrap_or(0.0))
    });
    environment.add_filter("string", |value: &Value| text(value));
    environment.add_filter("trim", |value: &Value, characters: Option<&str>| {
        strip(&text(value), characters, true, true).to_string()
    });
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_test("iterable", |value: &Value| {
        let kind = value.kind();
        kind == ValueKind::String
            || kind == ValueKind::Undefined
            || value.try_iter().is_ok() && kind != ValueKind::None
    });
    environment
        .add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
}

/// `str(value)`.
fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().unwrap_or_default().to_string(),
        _ => repr(value),
    }
}

/// `repr(value)`.
fn repr(value: &Value) -> String {
    let joined = |items: Vec<String>| items.join(", ");
    match value.kind() {
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => match json::number(value).as_str() {
            "NaN" => "nan".to_string(),
            infinite if infinite.contains("Infinity") => infinite.replace("Infinity", "inf"),
            finite => finite.to_string(),
        },
        ValueKind::Map => {
            let pair = |key: Value| {
                let item = value.get_item(&key).unwrap_or(Value::UNDEFINED);
                format!("{}: {}", repr(&key), repr(&item))
            };
            format!("{{{}}}", joined(value.try_iter().into_iter().flatten().map(pair).collect()))
        }
        ValueKind::Seq if value.is_tuple() => value.to_string(),
        ValueKind::Seq => {
            let items = value.try_iter().into_iter().flatten();
            format!("[{}]", joined(items.map(|item| repr(&item)).collect()))
        }
        _ => value.to_string(),
    }
}

/// A text in Python's quotes: single ones unless it holds these and no double ones.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c < ' ' || c == '\u{7F}' => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// What `str.isspace` takes for white space: Unicode's, and four separators of ASCII.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1C'..='\x1F').contains(&character)
}

fn strip<'a>(text: &'a str, characters: Option<&str>, start: bool, end: bool) -> &'a str {
    let gone = |c: char| characters.map_or_else(|| is_space(c), |characters| characters.contains(c));
    let text = if start { text.trim_start_matches(gone) } else { text };
    if end { text.trim_end_matches(gone) } else { text }
}

fn strings<'a>(texts: impl IntoIterator<Item = &'a str>) -> Value {
    texts.into_iter().map(Value::from).collect()
}

fn wrong(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem.into())
}

/// `int(value, default)`: what is no number is the default.
fn int(value: &Value, default: Option<i64>) -> Value {
    let whole = match value.as_str() {
        Some(text) => text.trim_matches(is_space).replace('_', "").parse::<i64>().ok(),
        None => i64::try_from(value.clone()).ok().filter(|_| value.is_integer()),
    };
    let cut = || as_float(value).filter(|number| number.is_finite()).map(|number| number.trunc() as i64);
    Value::from(whole.or_else(cut).unwrap_or(default.unwrap_or(0)))
}

fn as_float(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some(text) => text.trim_matches(is_space).parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    }
}

/// `indent(text, width=4, first=false, blank=false)`; a width may be the text to indent with.
fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?);
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let by = match width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(by) => by.to_string(),
            None => " ".repeat(usize::try_from(i64::try_from(width)?.min(1 << 16)).unwrap_or(0)),
        },
    };
    // The newline is Jinja's: it keeps an empty last line through splitlines.
    let text = format!("{}\n", text(value));
    let mut out = String::new();
    for (at, line) in lines(&text, false).into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if if at == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&by);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// `dictsort(map, case_sensitive=false, by='key', reverse=false)`.
fn dictsort(
    map: &Value,
    case_sensitive: Option<bool>,
    by: Option<String>,
    reverse: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let case_sensitive = case_sensitive.or(kwargs.get("case_sensitive")?).unwrap_or(false);
    let by = by.or(kwargs.get("by")?);
    let reverse = reverse.or(kwargs.get("reverse")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let which = match by.as_deref() {
        None | Some("key") => 0,
        Some("value") => 1,
        Some(other) => return Err(wrong(format!("dictsort: by is key or value, not {other:?}"))),
    };
    if map.kind() != ValueKind::Map {
        return Err(wrong(format!("dictsort: expected a map, found {}", map.kind())));
    }
    let fold = |value: &Value| match value.as_str() {
        Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
        _ => value.clone(),
    };
    let pair = |key: Value| Ok([key.clone(), map.get_item(&key)?]);
    let mut pairs = map.try_iter()?.map(pair).collect::<Result<Vec<_>, Error>>()?;
    pairs.sort_by_key(|pair| fold(&pair[which]));
    if reverse {
        pairs.reverse();
    }
    Ok(pairs.into_iter().map(|pair| Value::from(Tuple::from(pair))).collect())
}

fn method(_: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => of_text(text, name, args),
        (ValueKind::Map, _) => of_map(value, name, args),
        (ValueKind::Seq | ValueKind::Iterable, _) => of_list(value, name, args),
        _ => Err(ErrorKind::UnknownMethod.into()),
    }
}

fn of_map(map: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == "get" {
        let (key, default): (&Value, Option<Value>) = from_args(args)?;
        let found = map.get_item(key)?;
        return Ok(if found.is_undefined() { default.unwrap_or_else(|| Value::from(())) } else { found });
    }
    let keys = map.try_iter()?;
    let list: Vec<Value> = match name {
        "keys" => keys.collect(),
        "values" => keys.map(|key| map.get_item(&key)).collect::<Result<_, _>>()?,
        "items" => {
            let pair = |key: Value| Ok(Value::from(Tuple::from([key.clone(), map.get_item(&key)?])));
            keys.map(pair).collect::<Result<_, Error>>()?
        }
        _ => return Err(ErrorKind::UnknownMethod.into()),
    };
    let () = from_args(args)?;
    Ok(Value::from(list))
}

fn of_list(list: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (what,): (&Value,) = match name {
        "count" | "index" => from_args(args)?,
        _ => return Err(ErrorKind::UnknownMethod.into()),
    };
    let mut items = list.try_iter()?;
    match name {
        "count" => Ok(Value::from(items.filter(|item| item == what).count())),
        _ => items
            .position(|item| item == *what)
            .map(Value::from)
            .ok_or_else(|| wrong("index: not in the list")),
    }
}

fn of_text(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let none = || from_args::<()>(args);
    let all = |part: fn(char) -> bool| Value::from(!text.is_empty() && text.chars().all(part));
    Ok(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (characters,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(text, characters, name != "rstrip", name != "lstrip"))
        }
        "split" | "rsplit" => split(text, args, name == "rsplit")?,
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(kwargs.get("keepends")?).unwrap_or(false);
            kwargs.assert_all_used()?;
            strings(lines(text, keep))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(wrong(format!("{name}: empty separator")));
            }
            let parts: Option<[&str; 3]> = match name {
                "partition" => text.split_once(separator).map(|(a, b)| [a, separator, b]),
                _ => text.rsplit_once(separator).map(|(a, b)| [a, separator, b]),
            };
            let whole = if name == "partition" { [text, "", ""] } else { ["", "", text] };
            Value::from(Tuple::from(parts.unwrap_or(whole).map(Value::from)))
        }
        "startswith" | "endswith" => {
            let (affix,): (&Value,) = from_args(args)?;
            let has = |affix: &Value| match affix.as_str() {
                Some(affix) if name == "startswith" => Ok(text.starts_with(affix)),
                Some(affix) => Ok(text.ends_with(affix)),
                None => Err(wrong(format!("{name}: expected a string or a tuple of strings"))),
            };
            if affix.kind() == ValueKind::Seq {
                let found = affix.try_iter()?.map(|affix| has(&affix)).collect::<Result<Vec<_>, _>>()?;
                Value::from(found.contains(&true))
            } else {
                Value::from(has(affix)?)
            }
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "replace" => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
            Value::from(match count.map(usize::try_from) {
                Some(Ok(count)) => text.replacen(old, new, count),
                _ => text.replace(old, new),
            })
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let (what,): (&str,) = from_args(args)?;
            let at = if name.starts_with('r') { text.rfind(what) } else { text.find(what) };
            match at.map(|at| text[..at].chars().count()) {
                _ if name == "count" => Value::from(text.matches(what).count()),
                Some(at) => Value::from(at),
                None if name.ends_with("find") => Value::from(-1),
                None => return Err(wrong(format!("{name}: substring not found"))),
            }
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let item = |(at, item): (usize, Value)| match item.as_str() {
                Some(text) => Ok(text.to_string()),
                None => Err(wrong(format!("join: item {at} is {}, not a string", item.kind()))),
            };
            Value::from(items.try_iter()?.enumerate().map(item).collect::<Result<Vec<_>, _>>()?.join(text))
        }
        "format" => Value::from(format(FormatStyle::StrFormat, text, args)?),
        "zfill" | "ljust" | "rjust" | "center" => pad(text, name, args)?,
        "upper" => none().map(|()| Value::from(text.to_uppercase()))?,
        "lower" => none().map(|()| Value::from(text.to_lowercase()))?,
        "capitalize" => none().map(|()| Value::from(title(text, false)))?,
        "title" => none().map(|()| Value::from(title(text, true)))?,
        "isspace" => none().map(|()| all(is_space))?,
        "isalpha" => none().map(|()| all(char::is_alphabetic))?,
        "isalnum" => none().map(|()| all(char::is_alphanumeric))?,
        "isdigit" => none().map(|()| all(|c| c.is_ascii_digit() || c.is_numeric() && !c.is_alphabetic()))?,
        "isascii" => none().map(|()| Value::from(text.is_ascii()))?,
        "islower" => none().map(|()| {
            Value::from(text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase))
        })?,
        "isupper" => none().map(|()| {
            Value::from(text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase))
        })?,
        _ => return Err(ErrorKind::UnknownMethod.into()),
    })
}

/// Upper case at the beginning of the text, or of every run of letters, and lower case elsewhere.
fn title(text: &str, words: bool) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if inside {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
        inside = if words { character.is_alphabetic() } else { true };
    }
    out
}

fn pad(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<char>) = from_args(args)?;
    let length = text.chars().count();
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(length);
    if missing > 1 << 20 {
        return Err(wrong(format!("{name}: a width of {width} is too large")));
    }
    let fill = |count: usize| String::from(fill.unwrap_or(' ')).repeat(count);
    Ok(Value::from(match name {
        "ljust" => format!("{text}{}", fill(missing)),
        "rjust" => format!("{}{text}", fill(missing)),
        "center" => {
            // Python puts the odd one to the left where the width is odd.
            let left = missing / 2 + (missing & width as usize & 1);
            format!("{}{text}{}", fill(left), fill(missing - left))
        }
        _ => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
    }))
}

/// `split` and `rsplit`: at a separator, or at runs of white space.
fn split(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (separator, limit, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        None => kwargs.get::<Option<&str>>("sep")?,
        given => given,
    };
    let limit = limit.or(kwargs.get("maxsplit")?);
    kwargs.assert_all_used()?;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let parts: Vec<&str> = match (separator, from_right) {
        (Some(""), _) => return Err(wrong("split: empty separator")),
        (Some(separator), false) => text.splitn(limit.saturating_add(1), separator).collect(),
        (Some(separator), true) => {
            let mut parts: Vec<&str> = text.rsplitn(limit.saturating_add(1), separator).collect();
            parts.reverse();
            parts
        }
        (None, false) => {
            let mut parts = Vec::new();
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = if parts.len() == limit { None } else { rest.find(is_space) };
                let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
                parts.push(part);
                rest = after.trim_start_matches(is_space);
            }
            parts
        }
        (None, true) => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let start = match rest.char_indices().rev().find(|&(_, c)| is_space(c)) {
                    Some((at, space)) if parts.len() < limit => at + space.len_utf8(),
                    _ => 0,
                };
                parts.push(&rest[start..]);
                rest = rest[..start].trim_end_matches(is_space);
            }
            parts.reverse();
            parts
        }
    };
    Ok(strings(parts))
}

/// `splitlines`: at every line end that Python knows.
fn lines(text: &str, keep: bool) -> Vec<&str> {
    const ENDS: [char; 10] =
        ['\n', '\r', '\x0B', '\x0C', '\x1C', '\x1D', '\x1E', '\u{85}', '\u{2028}', '\u{2029}'];
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(ENDS).unwrap_or(rest.len());
        let width = match rest[end..].chars().next() {
            Some('\r') if rest[end..].starts_with("\r\n") => 2,
            found => found.map_or(0, char::len_utf8),
        };
        lines.push(&rest[..if keep { end + width } else { end }]);
        rest = &rest[end + width..];
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::scan::{FILTERS, FUNCTIONS, TESTS};
    use super::*;

    /// The lists that templates are checked against promise nothing that is not there.
    #[test]
    fn every_listed_name_exists() {
        let mut environment = Environment::new();
        install(&mut environment);
        let fails_as_unknown = |expression: String, kind: ErrorKind| {
            let source = expression.clone();
            let compiled = environment.compile_expression_owned(expression).expect(&source);
            matches!(compiled.eval(minijinja::context! {}), Err(error) if error.kind() == kind)
        };
        for name in FILTERS {
            assert!(!fails_as_unknown(format!("'x'|{name}"), ErrorKind::UnknownFilter), "filter {name}");
        }
        for name in TESTS {
            assert!(!fails_as_unknown(format!("'x' is {name}"), ErrorKind::UnknownTest), "test {name}");
        }
        for name in METHODS.iter().filter(|name| !["changed", "cycle"].contains(name)) {
            let of = ["''", "[]", "{}"];
            let unknown = |of: &&str| fails_as_unknown(format!("{of}.{name}()"), ErrorKind::UnknownMethod);
            assert!(!of.iter().all(unknown), "method {name}");
        }
        for name in
            FUNCTIONS.iter().filter(|name| !["loop", "raise_exception", "strftime_now"].contains(name))
        {
            assert!(!fails_as_unknown(format!("{name}()"), ErrorKind::UnknownFunction), "function {name}");
        }
        assert!(fails_as_unknown("'x'|nothing".into(), ErrorKind::UnknownFilter));
        assert!(fails_as_unknown("'x' is nothing".into(), ErrorKind::UnknownTest));
        assert!(fails_as_unknown("''.nothing()".into(), ErrorKind::UnknownMethod));
        assert!(fails_as_unknown("nothing()".into(), ErrorKind::UnknownFunction));
    }
}
