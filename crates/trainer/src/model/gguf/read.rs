//! Parses the header of a GGUF file. Every count, length and offset is checked against the bytes that are there
//! before it is used, and nothing is allocated on the word of a count.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use cpu_ops::gguf::BlockType;

use super::super::ModelError;
use super::super::values::Plain;
use crate::{Error, Result};

/// More metadata values (elements of lists included) and tensors than any model has.
const MAX_VALUES: usize = 1 << 24;
const MAX_TENSORS: u64 = 1 << 20;
const DEFAULT_ALIGNMENT: u64 = 32;

/// A metadata value; widths of numbers do not matter to anyone.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Flag(bool),
    Text(String),
    List(Vec<Value>),
}

/// How the elements of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain(Plain),
    Blocks(BlockType),
}

impl Kind {
    const SUPPORTED: &str = "F32 F16 BF16 F64 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K";

    fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Plain(Plain::F32),
            1 => Self::Plain(Plain::F16),
            28 => Self::Plain(Plain::F64),
            30 => Self::Plain(Plain::Bf16),
            2 => Self::Blocks(BlockType::Q4_0),
            3 => Self::Blocks(BlockType::Q4_1),
            6 => Self::Blocks(BlockType::Q5_0),
            7 => Self::Blocks(BlockType::Q5_1),
            8 => Self::Blocks(BlockType::Q8_0),
            12 => Self::Blocks(BlockType::Q4K),
            13 => Self::Blocks(BlockType::Q5K),
            14 => Self::Blocks(BlockType::Q6K),
            _ => return None,
        })
    }

    /// Elements and bytes of the smallest run that stands alone.
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::Plain(plain) => (1, plain.bytes()),
            Self::Blocks(blocks) => (blocks.elements(), blocks.bytes()),
        }
    }
}

/// Names of the types that are known and not supported, for messages.
fn type_name(number: u32) -> String {
    let known = match number {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16..=23 | 29 => "an IQ type",
        24..=27 => "an integer type",
        34 | 35 => "a ternary type",
        39 => "MXFP4",
        _ => return format!("number {number}"),
    };
    format!("number {number} ({known})")
}

/// One tensor of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub name: String,
    pub kind: Kind,
    /// Dimensions, outermost first, as everywhere else here; the file has them the other way round.
    pub shape: Vec<usize>,
    /// Where its bytes are in the file.
    pub range: Range<usize>,
}

/// What a header holds.
#[derive(Debug)]
pub(crate) struct Header {
    pub metadata: Metadata,
    pub tensors: Vec<TensorInfo>,
    /// Bytes before the data.
    pub length: usize,
}

/// The metadata of a file, by key.
#[derive(Debug)]
pub(crate) struct Metadata {
    path: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// A value, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// A whole number that is not negative.
    ///
    /// # Errors
    /// The value is something else.
    pub fn count(&self, key: &str) -> Result<Option<u64>> {
        self.values
            .get(key)
            .map(|value| match value {
                Value::Unsigned(number) => Ok(*number),
                Value::Signed(number) if *number >= 0 => Ok(*number as u64),
                other => Err(self.wrong(key, "a whole number", other)),
            })
            .transpose()
    }

    /// A whole number that must be there.
    ///
    /// # Errors
    /// It is absent, or something else.
    pub fn required_count(&self, key: &str) -> Result<u64> {
        self.count(key)?.ok_or_else(|| self.problem(key, "is missing"))
    }

    /// A token id.
    ///
    /// # Errors
    /// The value is something else.
    pub fn token_id(&self, key: &str) -> Result<Option<u32>> {
        let id = self.count(key)?;
        id.map(|id| u32::try_from(id).map_err(|_| self.problem(key, &format!("{id} is no token id"))))
            .transpose()
    }

    /// A number.
    ///
    /// # Errors
    /// The value is something else.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.values
            .get(key)
            .map(|value| match value {
                Value::Float(number) => Ok(*number),
                Value::Unsigned(number) => Ok(*number as f64),
                Value::Signed(number) => Ok(*number as f64),
                other => Err(self.wrong(key, "a number", other)),
            })
            .transpose()
    }

    /// A text.
    ///
    /// # Errors
    /// The value is something else.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.values
            .get(key)
            .map(|value| match value {
                Value::Text(text) => Ok(text.as_str()),
                other => Err(self.wrong(key, "a text", other)),
            })
            .transpose()
    }

    /// A list of texts that must be there.
    ///
    /// # Errors
    /// It is absent, or something else.
    pub fn required_texts(&self, key: &str) -> Result<Vec<&str>> {
        self.required_list(key, "a list of texts", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A list of whole numbers that must be there.
    ///
    /// # Errors
    /// It is absent, or something else.
    pub fn required_numbers(&self, key: &str) -> Result<Vec<i64>> {
        self.required_list(key, "a list of whole numbers", |value| match value {
            Value::Unsigned(number) => i64::try_from(*number).ok(),
            Value::Signed(number) => Some(*number),
            _ => None,
        })
    }

    fn required_list<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        element: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Vec<T>> {
        match self.values.get(key) {
            None => Err(self.problem(key, "is missing")),
            Some(Value::List(list)) => {
                let elements = list.iter().map(element).collect::<Option<_>>();
                elements.ok_or_else(|| self.problem(key, &format!("expected {expected}")))
            }
            Some(other) => Err(self.wrong(key, expected, other)),
        }
    }

    /// An error about a key.
    pub fn problem(&self, key: &str, problem: &str) -> Error {
        ModelError::Field { path: self.path.clone(), field: key.to_owned(), problem: problem.to_owned() }
            .into()
    }

    /// An error about a key whose value is understood but not supported.
    pub fn unsupported(&self, key: &str, value: &str, remedy: &str) -> Error {
        ModelError::Unsupported {
            path: self.path.clone(),
            what: format!("{key} = {value}"),
            remedy: remedy.to_owned(),
        }
        .into()
    }

    fn wrong(&self, key: &str, expected: &str, found: &Value) -> Error {
        let found = match found {
            Value::List(list) => format!("a list of {}", list.len()),
            Value::Text(text) => format!("the text {:?}", text.chars().take(40).collect::<String>()),
            Value::Unsigned(number) => number.to_string(),
            Value::Signed(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Flag(flag) => flag.to_string(),
        };
        self.problem(key, &format!("expected {expected}, found {found}"))
    }
}

/// Reads the header of a file given whole.
///
/// # Errors
/// A rule of the format is broken; the message says which and at which byte.
pub(crate) fn read_header(path: &Path, file: &[u8]) -> Result<Header> {
    let malformed = |problem: String| ModelError::Malformed { path: path.into(), format: "GGUF", problem };
    let mut reader = Reader { file, at: 0, values: 0 };
    let (values, tensor_count) = read_metadata(&mut reader).map_err(malformed)?;
    let metadata = Metadata { path: path.into(), values };
    let alignment = metadata.count("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > 1 << 20 {
        return Err(
            metadata.problem("general.alignment", &format!("{alignment} is no power of two up to 1048576"))
        );
    }
    let mut tensors = Vec::new();
    for number in 0..tensor_count {
        let entry = read_tensor(&mut reader)
            .map_err(|problem| malformed(format!("tensor {} of {tensor_count}: {problem}", number + 1)))?;
        let kind = Kind::from_number(entry.type_number).ok_or_else(|| ModelError::WrongType {
            path: path.into(),
            tensor: entry.name.clone(),
            dtype: type_name(entry.type_number),
            supported: Kind::SUPPORTED,
        })?;
        tensors.push((entry, kind));
    }
    // The file's end is at most isize::MAX, so that a position in it rounds up without overflow.
    let length = reader.at.next_multiple_of(alignment as usize);
    let tensors = place(tensors, length, file.len(), alignment).map_err(|problem| match problem {
        Place::Duplicate(tensor) => {
            ModelError::DuplicateTensor { tensor, first: path.into(), second: path.into() }
        }
        Place::Malformed(problem) => malformed(problem),
    })?;
    Ok(Header { metadata, tensors, length: length.min(file.len()) })
}

fn read_metadata(reader: &mut Reader<'_>) -> std::result::Result<(BTreeMap<String, Value>, u64), String> {
    let magic: [u8; 4] = reader.array("the magic number")?;
    if &magic != b"GGUF" {
        return Err(format!("it begins with {magic:02x?}, not with \"GGUF\""));
    }
    let version = reader.u32("the version")?;
    if version.swap_bytes() <= 3 && version != 0 {
        return Err("it is big-endian, which is not supported".to_owned());
    }
    if !(2..=3).contains(&version) {
        return Err(format!("version {version} is not supported (2 and 3 are)"));
    }
    let tensor_count = reader.u64("the number of tensors")?;
    let value_count = reader.u64("the number of metadata values")?;
    if tensor_count > MAX_TENSORS {
        return Err(format!("{tensor_count} tensors are more than a model has"));
    }
    if value_count > MAX_VALUES as u64 {
        return Err(format!("{value_count} metadata values are more than a model has"));
    }
    let mut values = BTreeMap::new();
    for number in 0..value_count {
        let key = reader
            .text("a key")
            .map_err(|problem| format!("metadata value {} of {value_count}: {problem}", number + 1))?;
        let value = reader
            .u32("a type")
            .and_then(|kind| reader.value(kind, 0))
            .map_err(|problem| format!("metadata {key}: {problem}"))?;
        if values.contains_key(&key) {
            return Err(format!("metadata {key} is there twice"));
        }
        values.insert(key, value);
    }
    Ok((values, tensor_count))
}

/// An entry of the table as it stands.
struct Entry {
    name: String,
    type_number: u32,
    /// Outermost first.
    shape: Vec<u64>,
    offset: u64,
}

fn read_tensor(reader: &mut Reader<'_>) -> std::result::Result<Entry, String> {
    let name = reader.text("its name")?;
    let rank = reader.u32("its number of dimensions")?;
    if !(1..=4).contains(&rank) {
        return Err(format!("{name} has {rank} dimensions (1 to 4 are possible)"));
    }
    let mut shape = Vec::new();
    for _ in 0..rank {
        shape.push(reader.u64("a dimension")?);
    }
    shape.reverse();
    Ok(Entry { name, type_number: reader.u32("its type")?, shape, offset: reader.u64("its offset")? })
}

enum Place {
    Duplicate(String),
    Malformed(String),
}

/// Finds each tensor's bytes: aligned, inside of the file, not overlapping, and nothing left over but padding.
fn place(
    entries: Vec<(Entry, Kind)>,
    data: usize,
    file: usize,
    alignment: u64,
) -> std::result::Result<Vec<TensorInfo>, Place> {
    let mut tensors = Vec::with_capacity(entries.len());
    for (Entry { name, shape, offset, .. }, kind) in entries {
        let (elements, bytes) = kind.block();
        let row = shape.last().copied().unwrap_or(0);
        if shape.contains(&0) || !row.is_multiple_of(elements as u64) {
            return Err(Place::Malformed(format!(
                "{name} of shape {shape:?} does not consist of rows of whole blocks ({elements} elements)"
            )));
        }
        let size = shape
            .iter()
            .try_fold(1u64, |product, &dimension| product.checked_mul(dimension))
            .map(|product| product / elements as u64)
            .and_then(|blocks| blocks.checked_mul(bytes as u64));
        let end = size.and_then(|size| (data as u64).checked_add(offset)?.checked_add(size));
        let (Some(size), Some(end)) = (size, end) else {
            return Err(Place::Malformed(format!(
                "the size of {name} overflows: shape {shape:?}, offset {offset}"
            )));
        };
        if end > file as u64 {
            return Err(Place::Malformed(format!(
                "{name} ends at byte {end}, but the file is {file} bytes long"
            )));
        }
        if !offset.is_multiple_of(alignment) {
            return Err(Place::Malformed(format!(
                "the offset {offset} of {name} is no multiple of {alignment}"
            )));
        }
        // At most the file's length, so in usize.
        tensors.push(TensorInfo {
            name,
            kind,
            shape: shape.iter().map(|&dimension| dimension as usize).collect(),
            range: (end - size) as usize..end as usize,
        });
    }
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Place::Duplicate(pair[0].to_owned()));
    }
    tensors.sort_by_key(|tensor| tensor.range.start);
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].range.end > pair[1].range.start) {
        return Err(Place::Malformed(format!("{} and {} overlap", pair[0].name, pair[1].name)));
    }
    let end = tensors.last().map_or(data, |tensor| tensor.range.end);
    if file.saturating_sub(end) as u64 >= alignment {
        return Err(Place::Malformed(format!("{} bytes are left over after the last tensor", file - end)));
    }
    Ok(tensors)
}

/// A position in the bytes of a header.
struct Reader<'a> {
    file: &'a [u8],
    at: usize,
    /// Metadata values read so far.
    values: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: u64, what: &str) -> std::result::Result<&'a [u8], String> {
        let left = &self.file[self.at..];
        match usize::try_from(count).ok().and_then(|count| left.get(..count)) {
            Some(bytes) => {
                self.at += bytes.len();
                Ok(bytes)
            }
            None => Err(format!(
                "{what} should be {count} bytes at byte {}, but the file ends after {} more",
                self.at,
                left.len()
            )),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> std::result::Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N as u64, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: &str) -> std::result::Result<u32, String> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> std::result::Result<u64, String> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn text(&mut self, what: &str) -> std::result::Result<String, String> {
        let length = self.u64(what)?;
        let at = self.at;
        let bytes = self.bytes(length, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(format!("{what} at byte {at} is not UTF-8")),
        }
    }

    /// A value of a type given by number; `depth` counts lists around it.
    fn value(&mut self, kind: u32, depth: usize) -> std::result::Result<Value, String> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(format!("more than {MAX_VALUES} metadata values"));
        }
        let what = "a value";
        Ok(match kind {
            0 => Value::Unsigned(u64::from(u8::from_le_bytes(self.array(what)?))),
            1 => Value::Signed(i64::from(i8::from_le_bytes(self.array(what)?))),
            2 => Value::Unsigned(u64::from(u16::from_le_bytes(self.array(what)?))),
            3 => Value::Signed(i64::from(i16::from_le_bytes(self.array(what)?))),
            4 => Value::Unsigned(u64::from(self.u32(what)?)),
            5 => Value::Signed(i64::from(i32::from_le_bytes(self.array(what)?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.array(what)?))),
            7 => match self.array(what)? {
                [0u8] => Value::Flag(false),
                [1] => Value::Flag(true),
                [other] => return Err(format!("{other} at byte {} is no truth value", self.at - 1)),
            },
            8 => Value::Text(self.text("a text")?),
            9 if depth < 2 => {
                let kind = self.u32("the type of a list")?;
                let count = self.u64("the length of a list")?;
                let mut list = Vec::new();
                for _ in 0..count {
                    list.push(self.value(kind, depth + 1)?);
                }
                Value::List(list)
            }
            9 => return Err(format!("lists of lists of lists at byte {}", self.at)),
            10 => Value::Unsigned(self.u64(what)?),
            11 => Value::Signed(i64::from_le_bytes(self.array(what)?)),
            12 => Value::Float(f64::from_le_bytes(self.array(what)?)),
            other => return Err(format!("type {other} before byte {} is unknown", self.at)),
        })
    }
}
