//! Tensors of a GGUF file by their Hugging Face names and in Hugging Face's layout.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::super::map::Map;
use super::super::source::{Table, TensorSource};
use super::super::values::{Plain, all_finite, append_bf16, append_f16};
use super::super::{ModelError, ModelShape, identity, names};
use super::config;
use super::read::{Header, Kind, Metadata, TensorInfo, read_header};
use crate::Result;
use crate::event::EventSink;

/// What the rotary frequencies are divided by, in files of Llama 3.1 and later.
const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Bytes, about, that are converted between two calls that give pages back.
const STRETCH: usize = 4 << 20;

/// The tensors of a GGUF file.
#[derive(Debug)]
pub(crate) struct GgufSource {
    map: Map,
    header: Header,
    config: Json,
    /// Hugging Face name to place in the header's table.
    tensors: BTreeMap<String, usize>,
    /// Query and key heads of a model whose q and k rows are stored in another order.
    permuted: Option<(usize, usize)>,
    used: BTreeSet<String>,
}

/// Whether a file begins like a GGUF file.
pub(crate) fn is_gguf(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; 4];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && &magic == b"GGUF"
}

impl GgufSource {
    /// Reads the header and compares it with the shape that follows from it; no weight is read.
    ///
    /// # Errors
    /// The file is not valid, not supported, or metadata and tensors do not belong together.
    pub fn open(path: &Path, events: &mut dyn EventSink) -> Result<(ModelShape, Self)> {
        let map = Map::open(path)?;
        let header = read_header(path, map.bytes())?;
        let config = config(&header.metadata, &header.tensors)?;
        let mut shape = ModelShape::from_config(path, &config, None, events)?;

        let (mut tensors, mut unknown) = (BTreeMap::new(), Vec::new());
        for (at, tensor) in header.tensors.iter().enumerate() {
            match names::from_gguf(&tensor.name) {
                Some(name) => {
                    tensors.insert(name, at);
                }
                None if tensor.name == ROPE_FACTORS => {}
                None => unknown.push(tensor.name.clone()),
            }
        }
        if !unknown.is_empty() {
            return Err(names::unused_error(path, &unknown));
        }
        let found =
            tensors.iter().map(|(name, &at)| (name.clone(), header.tensors[at].shape.clone())).collect();
        names::check(path, &shape, &found)?;
        // ggml rotates neighbouring pairs in this architecture only, and stores q and k in that order.
        let permuted = (shape.family == super::super::Family::Llama).then_some((shape.heads, shape.kv_heads));
        let source = Self { map, header, config, tensors, permuted, used: BTreeSet::new() };
        source.divide_frequencies(&mut shape)?;
        Ok((shape, source))
    }

    /// The file's metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.header.metadata
    }

    /// The config that a Hugging Face directory of this model would have.
    pub fn config(&self) -> &Json {
        &self.config
    }

    /// Whether the rotary frequencies come from a tensor, so that the config alone does not say them.
    pub fn has_rope_factors(&self) -> bool {
        self.rope_factors().is_some()
    }

    fn rope_factors(&self) -> Option<&TensorInfo> {
        self.header.tensors.iter().find(|tensor| tensor.name == ROPE_FACTORS)
    }

    fn divide_frequencies(&self, shape: &mut ModelShape) -> Result<()> {
        let Some(tensor) = self.rope_factors() else { return Ok(()) };
        let frequencies = &mut shape.rope.inv_freq;
        if tensor.shape != [frequencies.len()] {
            return Err(ModelError::WrongShape {
                path: self.map.path().into(),
                tensor: ROPE_FACTORS.into(),
                expected: vec![frequencies.len()],
                found: tensor.shape.clone(),
                reason: "half of the width of a head".into(),
            }
            .into());
        }
        let factors = self.read(tensor, None)?;
        for (index, (frequency, &factor)) in frequencies.iter_mut().zip(&factors).enumerate() {
            if factor <= 0.0 {
                return Err(self.not_finite(tensor, index, f64::from(factor)));
            }
            *frequency /= factor;
        }
        Ok(())
    }

    /// A name for the content: SHA-256 of the header (all metadata and the table of tensors) and of up to 4 KiB at
    /// the start, middle and end of each tensor; what it finds and what not is said at `Directory::identity`.
    pub fn identity(&self) -> String {
        let file = self.map.bytes();
        let mut hash = Sha256::new();
        hash.update(&file[..self.header.length]);
        for tensor in &self.header.tensors {
            identity::sample(&mut hash, &file[tensor.range.clone()]);
        }
        identity::text(hash)
    }

    /// A tensor to be read with this shape, and the number of heads whose rows are to be put in order.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<(usize, Option<usize>)> {
        let path = self.map.path();
        let Some(&at) = self.tensors.get(name) else {
            let (path, tensor) = (path.into(), name.to_owned());
            return Err(ModelError::MissingTensor { path, tensor, reason: "was asked for".into() }.into());
        };
        let tensor = &self.header.tensors[at];
        if tensor.shape != shape {
            return Err(ModelError::WrongShape {
                path: path.into(),
                tensor: name.to_owned(),
                expected: shape.to_vec(),
                found: tensor.shape.clone(),
                reason: "as asked for".into(),
            }
            .into());
        }
        self.used.insert(name.to_owned());
        let heads = self.permuted.and_then(|(heads, kv_heads)| {
            // Weights and biases, but not the norms of heads.
            if name.contains(".q_proj.") {
                Some(heads)
            } else if name.contains(".k_proj.") {
                Some(kv_heads)
            } else {
                None
            }
        });
        Ok((at, heads))
    }

    /// The values of a tensor. With `heads`, the rows of each head are put into half-split order: ggml has the pair
    /// (i, i + half) of a head at 2i and 2i + 1.
    fn read(&self, tensor: &TensorInfo, heads: Option<usize>) -> Result<Vec<f32>> {
        let bytes = &self.map.bytes()[tensor.range.clone()];
        let elements: usize = tensor.shape.iter().product();
        let mut values = Vec::with_capacity(elements);
        // Whole blocks, some megabytes at a time, with the pages behind given back. A block may span rows: a
        // vector may be quantised too, whatever its number of rows.
        let unit = match tensor.kind {
            // A multiple of every element's size.
            Kind::Plain(_) => size_of::<f64>(),
            Kind::Blocks(blocks) => blocks.bytes(),
        };
        let stretch = unit * STRETCH.div_ceil(unit);
        for (number, part) in bytes.chunks(stretch).enumerate() {
            self.append(tensor, part, &mut values)?;
            let start = tensor.range.start + number * stretch;
            self.map.release(start..start + part.len());
        }
        Ok(match heads {
            None => values,
            Some(heads) => half_split(&values, tensor.shape[0], heads),
        })
    }

    fn append(&self, tensor: &TensorInfo, bytes: &[u8], values: &mut Vec<f32>) -> Result<()> {
        let before = values.len();
        let finite = match tensor.kind {
            Kind::Plain(plain) => plain.append_f32(bytes, values),
            Kind::Blocks(blocks) => {
                values.resize(before + bytes.len() / blocks.bytes() * blocks.elements(), 0.0);
                blocks.dequantize(bytes, &mut values[before..])?;
                all_finite(&values[before..])
            }
        };
        finite.map_err(|found| self.not_finite(tensor, before + found.index, found.value))
    }

    fn not_finite(&self, tensor: &TensorInfo, index: usize, value: f64) -> crate::Error {
        ModelError::NotFinite { path: self.map.path().into(), tensor: tensor.name.clone(), index, value }
            .into()
    }
}

/// The `rows` rows of `values` with those of each head in half-split order.
fn half_split(values: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let (cols, head_rows) = (values.len() / rows, rows / heads);
    let half = head_rows / 2;
    let mut ordered = Vec::with_capacity(values.len());
    for row in 0..rows {
        let (head, within) = (row / head_rows, row % head_rows);
        let stored = head * head_rows + 2 * (within % half) + within / half;
        ordered.extend_from_slice(&values[stored * cols..][..cols]);
    }
    ordered
}

impl TensorSource for GgufSource {
    fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn read_f32(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let (at, heads) = self.take(name, shape)?;
        self.read(&self.header.tensors[at], heads)
    }

    fn read_table(&mut self, name: &str, shape: &[usize]) -> Result<Table> {
        let (at, heads) = self.take(name, shape)?;
        let tensor = &self.header.tensors[at];
        let bytes = &self.map.bytes()[tensor.range.clone()];
        let not_finite =
            |found: super::super::values::NotFinite| self.not_finite(tensor, found.index, found.value);
        let table = match (tensor.kind, heads) {
            (Kind::Plain(Plain::F16), None) => {
                let mut values = Vec::with_capacity(bytes.len() / 2);
                append_f16(bytes, &mut values).map_err(not_finite)?;
                Table::F16(values)
            }
            (Kind::Plain(Plain::Bf16), None) => {
                let mut values = Vec::with_capacity(bytes.len() / 2);
                append_bf16(bytes, &mut values).map_err(not_finite)?;
                Table::Bf16(values)
            }
            _ => Table::F32(self.read(tensor, heads)?),
        };
        self.map.release(tensor.range.clone());
        Ok(table)
    }

    fn finish(&self) -> Result<()> {
        let unused: Vec<String> =
            self.tensors.keys().filter(|name| !self.used.contains(*name)).cloned().collect();
        if unused.is_empty() { Ok(()) } else { Err(names::unused_error(self.map.path(), &unused)) }
    }
}
