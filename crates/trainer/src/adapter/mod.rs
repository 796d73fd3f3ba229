//! Adapter files as PEFT writes and reads them: `adapter_config.json` and `adapter_model.safetensors`. Beside them
//! stands `nibble.json`, which PEFT does not look at, with the date that chat templates saw in training.
//!
//! A file is taken only if it fits: every tensor that the model and the config ask for is there, in its shape, and
//! nothing is left over. PEFT would fill gaps with defaults; an adapter that does nothing is the usual result.

mod config;
mod error;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};

pub use error::AdapterError;

use crate::data::Moment;
use crate::event::EventSink;
use crate::lora::{Adapter, LoraConfig, LoraTensors, modules};
use crate::model::ModelShape;
use crate::{Error, Result, files};

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
pub(crate) const TRAINING: &str = "nibble.json";
/// What PEFT puts before a module's path: its own wrapper, and the model within.
const PREFIX: &str = "base_model.model.";

/// What `nibble.json` holds.
#[derive(Debug, Serialize, Deserialize)]
struct Training {
    /// Seconds since 1970: what `strftime_now` of a chat template showed.
    now: Moment,
}

/// One of the two matrices of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// `[r, in]`
    A,
    /// `[out, r]`
    B,
}

/// Reads the config of an adapter: its rank, scale and targets. Fields that would change the result and that are
/// not implemented are refused; unknown ones with a value become events.
///
/// # Errors
/// The file is not there, is no adapter config, or asks for something that is not supported.
pub fn read_config(directory: &Path, shape: &ModelShape, events: &mut dyn EventSink) -> Result<LoraConfig> {
    let path = directory.join(CONFIG);
    let text = std::fs::read(&path).map_err(Error::io("read", &path))?;
    config::parse(&path, &text, shape, events)
}

/// Reads an adapter that fits a model of this shape. Tensors may be f32, f16 or bf16, each for itself.
///
/// # Errors
/// As [`read_config`]; or the tensors are not those that config and model ask for.
pub fn read(directory: &Path, shape: &ModelShape, events: &mut dyn EventSink) -> Result<Adapter> {
    let config = read_config(directory, shape, events)?;
    let path = directory.join(TENSORS);
    let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
    Ok(from_bytes(&path, &bytes, &config, shape)?)
}

/// The date that chat templates saw while an adapter was trained, or `None` for one that another program made.
///
/// # Errors
/// The file that says it cannot be read or is damaged.
pub fn read_date(directory: &Path) -> Result<Option<Moment>> {
    let path = directory.join(TRAINING);
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read(&path).map_err(Error::io("read", &path))?;
    match serde_json::from_slice::<Training>(&text) {
        Ok(training) => Ok(Some(training.now)),
        Err(error) => Err(AdapterError::Malformed { path, problem: error.to_string() }.into()),
    }
}

/// Writes an adapter. `base_model` is what `base_model_name_or_path` will say, `now` the date that chat templates
/// saw.
///
/// # Errors
/// The system refuses. A file that was there before is then unchanged.
pub fn write(
    directory: &Path,
    adapter: &Adapter,
    base_model: &str,
    now: Moment,
    shape: &ModelShape,
) -> Result<()> {
    std::fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
    for (name, content) in to_files(adapter, base_model, now, shape)? {
        files::replace(&directory.join(name), &content)?;
    }
    Ok(())
}

/// The files of an adapter, by name.
pub(crate) fn to_files(
    adapter: &Adapter,
    base_model: &str,
    now: Moment,
    shape: &ModelShape,
) -> Result<[(&'static str, Vec<u8>); 3]> {
    let r = adapter.config.r;
    let mut tensors = BTreeMap::new();
    let names = modules(&adapter.config, shape);
    for ((module, pair), (_, projection)) in adapter.modules.iter().zip(names) {
        let (out, inputs) = projection.dims(shape);
        tensors.insert(key(module, Side::A), (vec![r, inputs], pair.a.as_slice()));
        tensors.insert(key(module, Side::B), (vec![out, r], pair.b.as_slice()));
    }
    let mut training = serde_json::to_vec_pretty(&Training { now }).expect("a number is always printable");
    training.push(b'\n');
    let config = config::to_json(&adapter.config, base_model);
    Ok([(CONFIG, config), (TRAINING, training), (TENSORS, serialize(&tensors)?)])
}

/// A safetensors file of f32 tensors, keys sorted, marked as PEFT's loader expects.
pub(crate) fn serialize(tensors: &BTreeMap<String, (Vec<usize>, &[f32])>) -> Result<Vec<u8>, AdapterError> {
    let wrong = |source: safetensors::SafeTensorError| AdapterError::Write { problem: source.to_string() };
    let mut bytes = BTreeMap::new();
    for (name, (shape, values)) in tensors {
        // The format is little-endian; so are all machines that this program runs on, and the test says so.
        bytes.insert(name, (shape.clone(), bytemuck::cast_slice::<f32, u8>(values)));
    }
    let mut views = Vec::new();
    for (name, (shape, data)) in bytes {
        views.push((name, TensorView::new(Dtype::F32, shape, data).map_err(wrong)?));
    }
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize(views, Some(metadata)).map_err(wrong)
}

/// The key of one matrix in a file.
pub(crate) fn key(module: &str, side: Side) -> String {
    format!("{PREFIX}{module}.lora_{side:?}.weight")
}

/// The module and side that a file's key means. Only the last parts are interpreted, so that a module may be
/// called anything; `.default.`, which some tools leave in, is understood.
pub(crate) fn parse_key(key: &str) -> Option<(&str, Side)> {
    let rest = key.strip_prefix(PREFIX)?.strip_suffix(".weight")?;
    let rest = rest.strip_suffix(".default").unwrap_or(rest);
    let (module, side) = rest.rsplit_once('.')?;
    match side {
        "lora_A" => Some((module, Side::A)),
        "lora_B" => Some((module, Side::B)),
        _ => None,
    }
}

/// The tensors of a file's bytes, checked against what config and model ask for.
pub(crate) fn from_bytes(
    path: &Path,
    bytes: &[u8],
    config: &LoraConfig,
    shape: &ModelShape,
) -> Result<Adapter, AdapterError> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|source| AdapterError::Malformed { path: path.into(), problem: source.to_string() })?;
    let mut found = BTreeMap::new();
    let mut left = Vec::new();
    for (key, tensor) in file.iter() {
        match parse_key(key) {
            Some((module, side)) if !found.contains_key(&(module.to_owned(), side)) => {
                found.insert((module.to_owned(), side), (key, tensor));
            }
            _ => left.push(key.to_owned()),
        }
    }
    let mut missing = Vec::new();
    let mut result = Vec::new();
    for (layer, projection) in modules(config, shape) {
        let module = projection.module(layer);
        let (out, inputs) = projection.dims(shape);
        let mut take = |side, expected| {
            let Some((key, tensor)) = found.remove(&(module.clone(), side)) else {
                missing.push(key(&module, side));
                return Ok(Vec::new());
            };
            values(path, key, &tensor, expected)
        };
        let pair = LoraTensors { a: take(Side::A, [config.r, inputs])?, b: take(Side::B, [out, config.r])? };
        result.push((module, pair));
    }
    left.extend(found.into_values().map(|(key, _)| key.to_owned()));
    left.sort();
    if !missing.is_empty() || !left.is_empty() {
        return Err(AdapterError::Keys { path: path.into(), missing, left });
    }
    Ok(Adapter { config: config.clone(), modules: result })
}

/// The values of one tensor in f32, whatever its own type.
pub(crate) fn values(
    path: &Path,
    key: &str,
    tensor: &TensorView<'_>,
    expected: [usize; 2],
) -> Result<Vec<f32>, AdapterError> {
    if tensor.shape() != expected {
        return Err(AdapterError::Shape {
            path: path.into(),
            key: key.into(),
            found: tensor.shape().to_vec(),
            expected: expected.to_vec(),
        });
    }
    // Nothing aligns the data of a tensor within a file, so bytes are put together one value at a time.
    let halves = || tensor.data().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let values: Vec<f32> = match tensor.dtype() {
        Dtype::F32 => {
            tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        Dtype::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        Dtype::BF16 => halves().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        other => {
            let dtype = format!("{other:?}");
            return Err(AdapterError::Dtype { path: path.into(), key: key.into(), dtype });
        }
    };
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => {
            Err(AdapterError::NotFinite { path: path.into(), key: key.into(), index, value: values[index] })
        }
        None => Ok(values),
    }
}
