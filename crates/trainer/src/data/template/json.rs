//! `tojson` as transformers has it: Python's `json.dumps` with its separators, its numbers, and its options
//! `indent`, `separators`, `sort_keys` and `ensure_ascii`, which is off. Nothing is escaped for HTML.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

struct Style {
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

/// The filter, `tojson(value, ensure_ascii, indent, separators=.., sort_keys=..)`.
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let option = |given: Option<Value>, name| -> Result<Option<Value>, Error> {
        let option = if given.is_some() { given } else { kwargs.get::<Option<Value>>(name)? };
        Ok(option.filter(|option| !option.is_none()))
    };
    let indent = match option(indent, "indent")? {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_string),
        Some(count) => Some(" ".repeat(usize::try_from(i64::try_from(count)?.min(1 << 16)).unwrap_or(0))),
    };
    let separators = match option(None, "separators")? {
        None => None,
        Some(pair) => Some(pair.try_iter()?.map(|text| text.to_string()).collect::<Vec<_>>()),
    };
    let (item, key) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators are two texts"));
        }
    };
    let flag = |given, name| Ok::<_, Error>(option(given, name)?.is_some_and(|flag| flag.is_true()));
    let sort_keys = flag(None, "sort_keys")?;
    let ensure_ascii = flag(ensure_ascii, "ensure_ascii")?;
    let style = Style { indent, item, key, sort_keys, ensure_ascii };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(out)
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect::<Vec<_>>();
                self.list(('[', ']'), items.iter(), depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    let name = match key.kind() {
                        ValueKind::String => key.to_string(),
                        ValueKind::Number => number(&key),
                        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_string(),
                        ValueKind::None => "null".to_string(),
                        other => return Err(unserializable(&format!("{other} as a key"))),
                    };
                    pairs.push((name, value.get_item(&key)?));
                }
                if self.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.list(('{', '}'), pairs.iter(), depth, out, |(name, item), out| {
                    self.string(name, out);
                    out.push_str(&self.key);
                    self.write(item, depth + 1, out)
                })?;
            }
            other => return Err(unserializable(&other.to_string())),
        }
        Ok(())
    }

    fn list<T>(
        &self,
        (open, close): (char, char),
        items: impl ExactSizeIterator<Item = T>,
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let some = items.len() > 0;
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(indent.as_str(), depth));
            }
        };
        out.push(open);
        for (at, item) in items.enumerate() {
            if at > 0 {
                out.push_str(&self.item);
            }
            line(depth + 1, out);
            write(item, out)?;
        }
        if some {
            line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{C}' => out.push_str("\\f"),
                // json.dumps escapes DEL with ensure_ascii off and on alike: not at all.
                control if control < ' ' => out.push_str(&format!("\\u{:04x}", control as u32)),
                other if self.ensure_ascii && !other.is_ascii() => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                other => out.push(other),
            }
        }
        out.push('"');
    }
}

fn unserializable(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson cannot write {what}"))
}

/// A number as Python's `repr` and `json.dumps` write it.
pub(super) fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(number) => float(number),
        Err(_) => value.to_string(),
    }
}

/// The shortest digits that give the number back, with an exponent from 1e16 up and below 1e-4.
fn float(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() {
            "NaN"
        } else if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_string();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}
