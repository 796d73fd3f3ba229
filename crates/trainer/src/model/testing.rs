//! Small models for tests: a directory with a config and weights by formula, to be damaged by the test.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{ModelShape, names};
use crate::event::Collected;

/// A tensor as it stands in a file.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// An F32 tensor.
    pub fn f32(name: &str, shape: &[usize], values: impl IntoIterator<Item = f32>) -> Self {
        let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        Self { name: name.into(), dtype: "F32", shape: shape.to_vec(), bytes }
    }
}

/// A small model: its config and its tensors, in F32 by default.
#[derive(Debug, Clone)]
pub(crate) struct Tiny {
    pub config: Value,
    pub tensors: Vec<Tensor>,
}

impl Tiny {
    /// hidden 8, two blocks, two heads of 4 with one key head, MLP 12, vocabulary 16.
    pub fn new(family: &str) -> Self {
        Self::of(json!({
            "model_type": family, "vocab_size": 16, "hidden_size": 8, "intermediate_size": 12,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "sliding_window": null, "tie_word_embeddings": false, "eos_token_id": 2,
        }))
    }

    /// All tensors that a config asks for.
    pub fn of(config: Value) -> Self {
        let shape = ModelShape::from_config("config.json".as_ref(), &config, None, &mut Collected::default())
            .unwrap();
        let tensors = names::expected(&shape)
            .iter()
            .enumerate()
            .map(|(number, tensor)| {
                let count: usize = tensor.shape.iter().product();
                let values = (0..count).map(|at| ((number * 31 + at * 7) % 97) as f32 / 97.0 - 0.5);
                Tensor::f32(&tensor.name, &tensor.shape, values)
            })
            .collect();
        Self { config, tensors }
    }

    /// The tensor of a name.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    /// Leaves a tensor out.
    pub fn without(mut self, name: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|tensor| tensor.name != name);
        assert_eq!(self.tensors.len() + 1, before, "no tensor {name}");
        self
    }

    /// Sets a field of the config.
    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    /// Writes config.json and model.safetensors.
    pub fn write(&self, directory: &Path) {
        std::fs::create_dir_all(directory).unwrap();
        std::fs::write(directory.join("config.json"), self.config.to_string()).unwrap();
        std::fs::write(directory.join("model.safetensors"), safetensors(&self.tensors)).unwrap();
    }

    /// Writes config.json and the tensors over two shards, the first `split` of them into the first.
    pub fn write_sharded(&self, directory: &Path, split: usize) {
        std::fs::create_dir_all(directory).unwrap();
        std::fs::write(directory.join("config.json"), self.config.to_string()).unwrap();
        let mut index = json!({ "metadata": {}, "weight_map": {} });
        let (first, second) = self.tensors.split_at(split);
        for (shard, tensors) in [("one.safetensors", first), ("two.safetensors", second)] {
            std::fs::write(directory.join(shard), safetensors(tensors)).unwrap();
            for tensor in tensors {
                index["weight_map"][&tensor.name] = shard.into();
            }
        }
        std::fs::write(directory.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
}

/// A safetensors file with these tensors in this order.
pub(crate) fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for tensor in tensors {
        let start = data.len();
        data.extend_from_slice(&tensor.bytes);
        header.insert(
            tensor.name.clone(),
            json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, data.len()] }),
        );
    }
    safetensors_with_header(&Value::Object(header).to_string(), &data)
}

/// A safetensors file with this header, whatever it says.
pub(crate) fn safetensors_with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

/// A file or folder of tests/fixtures.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures")).join(name)
}

/// f32 values from the hexadecimal of their little-endian bytes, as the fixtures have them.
pub(crate) fn f32_from_hex(text: &str) -> Vec<f32> {
    bytes_from_hex(text).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Bytes from hexadecimal digits.
pub(crate) fn bytes_from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
