//! Puts the keys of a TOML document, and of the command line over it, into a configuration.

use std::ops::Range;

use serde::Deserialize;
use toml::Value;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::keys::{self, KEYS, Key};
use super::{Config, ConfigError};

/// Reads a whole document. `name` stands for the file in messages.
pub(super) fn document(config: &mut Config, text: &str, name: &str) -> Result<(), ConfigError> {
    let at = |span: Range<usize>| place(text, name, span.start);
    let document = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        place: error.span().map_or_else(|| name.to_owned(), at),
        message: error.message().to_owned(),
    })?;
    for (key, value) in document.into_inner() {
        let (section, section_at) = (key.get_ref().to_string(), at(key.span()));
        let is_section = KEYS.iter().any(|k| k.name.split_once('.').is_some_and(|(s, _)| s == section));
        if !is_section {
            let known = known(&section, &section_at)?;
            let value_at = at(value.span());
            store(config, known, &to_value(value, &value_at)?, value_at)?;
            continue;
        }
        let table_at = at(value.span());
        let DeValue::Table(table) = value.into_inner() else {
            return Err(ConfigError::Conflict {
                place: table_at,
                problem: format!("`{section}` is a section: write [{section}] and its keys below"),
            });
        };
        for (key, value) in table {
            let known = known(&format!("{section}.{}", key.get_ref()), &at(key.span()))?;
            let value_at = at(value.span());
            store(config, known, &to_value(value, &value_at)?, value_at)?;
        }
    }
    Ok(())
}

/// Puts each `section.key=value` over what the document gave. Where one of two keys that exclude each other
/// comes from the command line, the file's other one gives way.
pub(super) fn command_line(config: &mut Config, sets: &[String]) -> Result<(), ConfigError> {
    let from_file = config.places.clone();
    for argument in sets {
        let wrong = || ConfigError::Set { argument: argument.clone() };
        let (name, text) = argument.split_once('=').ok_or_else(wrong)?;
        let place = format!("--set {argument}");
        let known = known(name.trim(), &place)?;
        // Bare words are strings, so that paths need no quotes within the shell's.
        let text = text.trim();
        let value: Value = text.parse().unwrap_or_else(|_| Value::String(text.to_owned()));
        let outcome = store(config, known, &value, place.clone());
        // A path or a name that happens to look like a number is still a string.
        match (outcome, &value) {
            (Err(_), Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_))
                if is_text(known) =>
            {
                store(config, known, &Value::String(text.to_owned()), place)?;
            }
            (outcome, _) => outcome?,
        }
    }
    for (one, other) in [("train.max_steps", "train.epochs"), ("train.epochs", "train.max_steps")] {
        let set = config.places.get(one) != from_file.get(one);
        if set && config.places.get(other) == from_file.get(other) {
            config.places.remove(other);
        }
    }
    Ok(())
}

/// Whether a key takes any text.
fn is_text(key: &Key) -> bool {
    (key.set)(&mut Config::default(), &Value::String("some text".into())).is_ok()
}

fn store(config: &mut Config, key: &'static Key, value: &Value, place: String) -> Result<(), ConfigError> {
    (key.set)(config, value).map_err(|problem| ConfigError::Value {
        place: place.clone(),
        key: key.name.into(),
        value: value.to_string(),
        problem,
    })?;
    config.places.insert(key.name, place);
    Ok(())
}

fn to_value(value: toml::Spanned<DeValue<'_>>, place: &str) -> Result<Value, ConfigError> {
    Value::deserialize(ValueDeserializer::from(value))
        .map_err(|error| ConfigError::Syntax { place: place.into(), message: error.message().into() })
}

fn known(name: &str, place: &str) -> Result<&'static Key, ConfigError> {
    keys::find(name).ok_or_else(|| ConfigError::UnknownKey {
        place: place.into(),
        key: name.into(),
        hint: hint(name),
    })
}

/// What the author of an unknown key may have meant: the same key of another section, else one that is spelt
/// alike, else the section's keys.
fn hint(name: &str) -> String {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let keys = |section: Option<&str>| -> Vec<String> {
        let of_section = |key: &&str| key.split_once('.').map(|(section, _)| section) == section;
        KEYS.iter().map(|k| k.name).filter(of_section).map(last).collect()
    };
    let sections = ["data", "lora", "quantization", "train", "device"];
    if sections.contains(&name) {
        return format!("; [{name}] is a section, with the keys {}", keys(Some(name)).join(", "));
    }
    let (section, key) = (name.split_once('.').map(|(section, _)| section), last(name));
    if let Some(elsewhere) = KEYS.iter().find(|k| last(k.name) == key) {
        return match elsewhere.name.split_once('.') {
            Some((section, _)) => format!("; `{key}` belongs into [{section}]"),
            None => format!("; `{key}` stands before all sections"),
        };
    }
    if section.is_none()
        && let Some(close) = keys::nearest(name, sections.into_iter())
    {
        return format!("; did you mean [{close}]?");
    }
    if let Some(close) = keys::nearest(name, KEYS.iter().map(|k| k.name)) {
        return format!("; did you mean `{close}`?");
    }
    let all = keys(section);
    match section {
        Some(section) if !all.is_empty() => format!("; [{section}] has {}", all.join(", ")),
        _ => format!("; there are {} and the sections [{}]", "model, output_dir", sections.join("], [")),
    }
}

/// `file:line:column` of a byte of the text, both counted from 1.
fn place(text: &str, name: &str, byte: usize) -> String {
    let before = &text[..byte.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("{name}:{line}:{column}")
}
