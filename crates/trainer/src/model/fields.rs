//! Typed access to the fields of a JSON object, with errors that name the file and the field.

use std::path::Path;

use serde_json::{Map, Value};

use super::ModelError;
use crate::{Error, Result};

/// A JSON object of a file. `null` counts as absent, except for [`Fields::get`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    path: &'a Path,
    /// Name of the object within the file, with a dot at its end; empty for the outermost.
    prefix: &'a str,
    object: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The fields of the outermost object of a file.
    ///
    /// # Errors
    /// The value is no object.
    pub fn new(path: &'a Path, value: &'a Value) -> Result<Self> {
        match value {
            Value::Object(object) => Ok(Self { path, prefix: "", object }),
            other => Err(ModelError::Malformed {
                path: path.into(),
                format: "JSON",
                problem: format!("expected an object, found {}", kind(other)),
            }
            .into()),
        }
    }

    /// The file.
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// The value as it stands; `Some(Null)` is a null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key)
    }

    /// The value, unless it is absent or null.
    pub fn present(&self, key: &str) -> Option<&'a Value> {
        self.get(key).filter(|value| !value.is_null())
    }

    /// The object under a key. `prefix` is its name with a dot.
    ///
    /// # Errors
    /// It is something else.
    pub fn object(&self, key: &str, prefix: &'a str) -> Result<Option<Self>> {
        match self.present(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Self { path: self.path, prefix, object })),
            Some(other) => Err(self.wrong(key, "an object", other)),
        }
    }

    /// A size: a whole number of at least 1 that is small enough to compute with.
    ///
    /// # Errors
    /// It is something else.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        // Products of three sizes must not overflow, whatever a broken file says.
        const LARGEST: u64 = 1 << 21;
        self.present(key)
            .map(|value| match value.as_u64() {
                Some(size) if (1..=LARGEST).contains(&size) => Ok(size as usize),
                _ => Err(self.wrong(key, &format!("a whole number from 1 to {LARGEST}"), value)),
            })
            .transpose()
    }

    /// A size that must be there.
    ///
    /// # Errors
    /// It is absent, or something else.
    pub fn required_size(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| self.problem(key, "is missing"))
    }

    /// A finite number.
    ///
    /// # Errors
    /// It is something else.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.present(key)
            .map(|value| {
                value
                    .as_f64()
                    .filter(|number| number.is_finite())
                    .ok_or_else(|| self.wrong(key, "a number", value))
            })
            .transpose()
    }

    /// A number above 0.
    ///
    /// # Errors
    /// It is something else.
    pub fn positive(&self, key: &str) -> Result<Option<f64>> {
        match self.number(key)? {
            Some(number) if number <= 0.0 => Err(self.problem(key, &format!("must be above 0, is {number}"))),
            number => Ok(number),
        }
    }

    /// A number above 0 that must be there.
    ///
    /// # Errors
    /// It is absent, or something else.
    pub fn required_positive(&self, key: &str) -> Result<f64> {
        self.positive(key)?.ok_or_else(|| self.problem(key, "is missing"))
    }

    /// A truth value.
    ///
    /// # Errors
    /// It is something else.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.present(key)
            .map(|value| value.as_bool().ok_or_else(|| self.wrong(key, "true or false", value)))
            .transpose()
    }

    /// A string.
    ///
    /// # Errors
    /// It is something else.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.present(key)
            .map(|value| value.as_str().ok_or_else(|| self.wrong(key, "a string", value)))
            .transpose()
    }

    /// One token id, a list of them, or none.
    ///
    /// # Errors
    /// It is something else.
    pub fn token_ids(&self, key: &str) -> Result<Option<Vec<u32>>> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        self.present(key)
            .map(|value| {
                match value {
                    Value::Array(ids) => ids.iter().map(id).collect(),
                    one => id(one).map(|id| vec![id]),
                }
                .ok_or_else(|| self.wrong(key, "a token id or a list of token ids", value))
            })
            .transpose()
    }

    /// An error about a field.
    pub fn problem(&self, key: &str, problem: &str) -> Error {
        ModelError::Field {
            path: self.path.into(),
            field: format!("{}{key}", self.prefix),
            problem: problem.to_owned(),
        }
        .into()
    }

    /// An error about a field whose value is understood but not supported.
    pub fn unsupported(&self, key: &str, value: &Value, remedy: &str) -> Error {
        ModelError::Unsupported {
            path: self.path.into(),
            what: format!("{}{key} = {value}", self.prefix),
            remedy: remedy.to_owned(),
        }
        .into()
    }

    fn wrong(&self, key: &str, expected: &str, found: &Value) -> Error {
        self.problem(key, &format!("expected {expected}, found {found}"))
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Reads a JSON file.
///
/// # Errors
/// It cannot be read, is empty, or is not JSON.
pub(crate) fn read_json(path: &Path) -> Result<Value> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    let malformed = |problem: String| ModelError::Malformed { path: path.into(), format: "JSON", problem };
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(malformed("it is empty".to_owned()).into());
    }
    Ok(serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?)
}
