//! One safetensors file: a JSON header with name, type, shape and byte range of each tensor, then the data.
//! The header is read here and not by the `safetensors` crate, because a user needs to be told which tensor is
//! wrong and how; what is accepted is compared with that crate by a test. Holes, overlaps, bytes left over,
//! duplicate names and sizes that do not multiply are refused (<https://github.com/huggingface/safetensors>).

use std::ops::Range;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::ModelError;
use super::map::Map;
use super::source::Table;
use super::values::{NotFinite, Plain, append_bf16, append_f16};
use crate::Result;

/// Longest header that is read, as in the reference implementation.
const MAX_HEADER: usize = 100_000_000;
/// More dimensions than any weight has.
const MAX_RANK: usize = 8;
/// Bytes converted between two calls that give pages back.
const STRETCH: usize = 4 << 20;

/// A mapped file and its table of tensors.
#[derive(Debug)]
pub(crate) struct SafetensorsFile {
    map: Map,
    tensors: Vec<Entry>,
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its name.
    pub name: String,
    /// The type as the file spells it.
    pub dtype: String,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Where its bytes are in the file.
    pub range: Range<usize>,
}

impl Entry {
    /// The type of the elements, if they are floats that can be read.
    pub fn plain(&self) -> Option<Plain> {
        match self.dtype.as_str() {
            "F16" => Some(Plain::F16),
            "BF16" => Some(Plain::Bf16),
            "F32" => Some(Plain::F32),
            "F64" => Some(Plain::F64),
            _ => None,
        }
    }
}

impl SafetensorsFile {
    /// Maps a file and checks its header.
    ///
    /// # Errors
    /// The file cannot be read, or breaks a rule of the format.
    pub fn open(path: &Path) -> Result<Self> {
        let map = Map::open(path)?;
        let tensors = read_header(map.bytes()).map_err(|problem| match problem {
            Problem::Duplicate(tensor) => {
                ModelError::DuplicateTensor { tensor, first: path.into(), second: path.into() }
            }
            Problem::Format(problem) => {
                ModelError::Malformed { path: path.into(), format: "safetensors", problem }
            }
        })?;
        Ok(Self { map, tensors })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.map.path()
    }

    /// Its tensors, in the order of their bytes.
    pub fn tensors(&self) -> &[Entry] {
        &self.tensors
    }

    /// The bytes of a tensor of this file.
    pub fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.map.bytes()[entry.range.clone()]
    }

    /// The values of a tensor of this file, in f32.
    ///
    /// # Errors
    /// Its type is not a float type, or a value is not finite.
    pub fn read_f32(&self, entry: &Entry) -> Result<Vec<f32>> {
        let plain = self.plain(entry)?;
        self.convert(entry, plain, |bytes, out| plain.append_f32(bytes, out))
    }

    /// The values of a tensor of this file in its own type; F64 becomes f32.
    ///
    /// # Errors
    /// As [`read_f32`](Self::read_f32).
    pub fn read_table(&self, entry: &Entry) -> Result<Table> {
        Ok(match self.plain(entry)? {
            plain @ Plain::F16 => Table::F16(self.convert(entry, plain, append_f16)?),
            plain @ Plain::Bf16 => Table::Bf16(self.convert(entry, plain, append_bf16)?),
            Plain::F32 | Plain::F64 => Table::F32(self.read_f32(entry)?),
        })
    }

    /// Whether two tensors have the same bytes.
    pub fn equal(&self, entry: &Entry, other_file: &Self, other: &Entry) -> bool {
        let (bytes, other_bytes) = (self.bytes(entry), other_file.bytes(other));
        bytes.len() == other_bytes.len()
            && bytes.chunks(STRETCH).zip(other_bytes.chunks(STRETCH)).enumerate().all(|(at, (a, b))| {
                let equal = a == b;
                let start = at * STRETCH;
                self.map.release(entry.range.start + start..entry.range.start + start + a.len());
                other_file.map.release(other.range.start + start..other.range.start + start + b.len());
                equal
            })
    }

    /// The type of a tensor's elements.
    ///
    /// # Errors
    /// It is not a float type that can be read.
    pub fn plain(&self, entry: &Entry) -> Result<Plain> {
        Ok(entry.plain().ok_or_else(|| ModelError::WrongType {
            path: self.path().into(),
            tensor: entry.name.clone(),
            dtype: entry.dtype.clone(),
            supported: Plain::SUPPORTED,
        })?)
    }

    /// Converts stretch by stretch and gives pages back behind itself: what stays is the result alone.
    fn convert<T>(
        &self,
        entry: &Entry,
        plain: Plain,
        append: impl Fn(&[u8], &mut Vec<T>) -> std::result::Result<(), NotFinite>,
    ) -> Result<Vec<T>> {
        let mut values = Vec::with_capacity(entry.range.len() / plain.bytes());
        let mut at = entry.range.start;
        while at < entry.range.end {
            let stretch = at..entry.range.end.min(at + STRETCH);
            let before = values.len();
            append(&self.map.bytes()[stretch.clone()], &mut values).map_err(|found| {
                ModelError::NotFinite {
                    path: self.path().into(),
                    tensor: entry.name.clone(),
                    index: before + found.index,
                    value: found.value,
                }
            })?;
            self.map.release(stretch.clone());
            at = stretch.end;
        }
        Ok(values)
    }
}

/// What is wrong with a header.
#[derive(Debug, PartialEq, Eq)]
enum Problem {
    Duplicate(String),
    Format(String),
}

/// Reads and checks the header of a file given whole.
fn read_header(file: &[u8]) -> std::result::Result<Vec<Entry>, Problem> {
    let format = |problem: String| Problem::Format(problem);
    let Some(length) = file.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes)) else {
        return Err(format(format!("{} bytes are too few for the length of the header", file.len())));
    };
    let header = usize::try_from(length)
        .ok()
        .filter(|&length| length <= MAX_HEADER)
        .ok_or_else(|| format(format!("the header would be {length} bytes long (limit {MAX_HEADER})")))?;
    let Some(json) = file.get(8..8 + header) else {
        return Err(format(format!(
            "the header should be {header} bytes long, but the file ends after {} of them",
            file.len() - 8
        )));
    };
    let Object(fields) =
        serde_json::from_slice(json).map_err(|error| format(format!("the header: {error}")))?;

    let data = 8 + header;
    let available = file.len() - data;
    let mut tensors = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        if name == "__metadata__" {
            check_metadata(&value).map_err(format)?;
            continue;
        }
        let (dtype, shape, offsets) = read_entry(&name, &value).map_err(format)?;
        check_size(&name, &dtype, &shape, &offsets).map_err(format)?;
        tensors.push((offsets, Entry { name, dtype, shape, range: 0..0 }));
    }

    // Names, then bytes: a duplicate would also be an overlap, and is the better thing to say.
    let mut names: Vec<&str> = tensors.iter().map(|(_, entry)| entry.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Problem::Duplicate(pair[0].to_owned()));
    }
    tensors.sort_by_key(|(offsets, _)| (offsets.start, offsets.end));
    let mut end = 0;
    for (offsets, entry) in &tensors {
        if offsets.start != end {
            return Err(format(format!(
                "{} begins at byte {} of the data, where the tensors before it end at {end}",
                entry.name, offsets.start
            )));
        }
        end = offsets.end;
    }
    if end != available as u64 {
        let problem = match tensors.last() {
            _ if end < available as u64 => {
                format!("{} bytes are left over after the last tensor", available as u64 - end)
            }
            Some((_, last)) => {
                format!("{} ends {} bytes after the end of the file", last.name, end - available as u64)
            }
            None => format!("no tensor, but {available} bytes of data"),
        };
        return Err(format(problem));
    }
    // All offsets are at most `available` now, so that they fit in usize.
    Ok(tensors
        .into_iter()
        .map(|(offsets, entry)| Entry {
            range: data + offsets.start as usize..data + offsets.end as usize,
            ..entry
        })
        .collect())
}

/// The fields of one tensor.
fn read_entry(name: &str, value: &Value) -> std::result::Result<(String, Vec<usize>, Range<u64>), String> {
    let field = |key: &str| value.get(key).ok_or_else(|| format!("{name} has no {key}"));
    let dtype =
        field("dtype")?.as_str().ok_or_else(|| format!("dtype of {name} is not a string"))?.to_owned();
    let shape = field("shape")?
        .as_array()
        .and_then(|sizes| {
            sizes.iter().map(|size| size.as_u64().and_then(|size| usize::try_from(size).ok())).collect()
        })
        .ok_or_else(|| format!("shape of {name} is not a list of sizes: {}", value["shape"]))?;
    let offsets = match field("data_offsets")?.as_array().map(Vec::as_slice) {
        Some([start, end]) => start.as_u64().zip(end.as_u64()),
        _ => None,
    };
    let (start, end) = offsets
        .ok_or_else(|| format!("data_offsets of {name} are not two positions: {}", value["data_offsets"]))?;
    if start > end {
        return Err(format!("data_offsets of {name} end before they begin: [{start}, {end}]"));
    }
    Ok((dtype, shape, start..end))
}

/// Whether the byte range of a tensor has the length that its shape and type ask for.
fn check_size(
    name: &str,
    dtype: &str,
    shape: &[usize],
    offsets: &Range<u64>,
) -> std::result::Result<(), String> {
    if shape.len() > MAX_RANK {
        return Err(format!("{name} has {} dimensions (limit {MAX_RANK})", shape.len()));
    }
    let elements = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size as u64));
    let Some(bits) = bits(dtype) else {
        return Err(format!("{name} has the unknown type {dtype}"));
    };
    let expected = elements
        .and_then(|elements| elements.checked_mul(bits))
        .ok_or_else(|| format!("the size of {name} overflows: shape {shape:?}, type {dtype}"))?;
    let found = offsets.end - offsets.start;
    if !expected.is_multiple_of(8) || expected / 8 != found {
        return Err(format!(
            "{name} of shape {shape:?} and type {dtype} needs {} bytes, its range has {found}",
            expected.div_ceil(8)
        ));
    }
    Ok(())
}

/// Bits of one element of each type that the format knows; which of them are weights is asked later.
fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "C64" | "F64" | "I64" | "U64" => 64,
        _ => return None,
    })
}

/// `__metadata__` maps strings to strings; absent, null and empty are fine.
fn check_metadata(value: &Value) -> std::result::Result<(), String> {
    match value {
        Value::Null => Ok(()),
        Value::Object(fields) => match fields.iter().find(|(_, value)| !value.is_string()) {
            None => Ok(()),
            Some((key, value)) => Err(format!("__metadata__.{key} is {value}, not a string")),
        },
        _ => Err("__metadata__ is not an object".to_owned()),
    }
}

/// A JSON object with all its entries, duplicates included.
struct Object(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Object;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Object, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Object(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
#[path = "safetensors_tests.rs"]
mod tests;
