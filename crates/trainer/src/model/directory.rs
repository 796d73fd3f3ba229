//! A Hugging Face model directory: `config.json` and one or many safetensors files, with an index if many.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::fields::{Fields, read_json};
use super::safetensors::{Entry, SafetensorsFile};
use super::source::{Table, TensorSource};
use super::{ModelError, ModelShape, names};
use crate::event::EventSink;
use crate::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The weights of a model directory.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    files: Vec<SafetensorsFile>,
    /// Name of a tensor to its file and its entry there.
    tensors: BTreeMap<String, (usize, usize)>,
    used: BTreeSet<String>,
}

impl Directory {
    /// Reads config and headers, and compares them; no weight is read, other than a head beside a tied embedding.
    ///
    /// # Errors
    /// A file is missing or not valid, or config and tensors do not belong together.
    pub fn open(path: &Path, events: &mut dyn EventSink) -> Result<(ModelShape, Self)> {
        let config_path = path.join("config.json");
        if !config_path.is_file() {
            return Err(ModelError::NotAModel {
                path: path.into(),
                problem: "it has no config.json".into(),
                remedy: "give a Hugging Face model directory (config.json, model.safetensors, tokenizer.json) or a \
                         .gguf file"
                    .into(),
            }
            .into());
        }
        let config = read_json(&config_path)?;
        let generation_path = path.join("generation_config.json");
        let generation = generation_path.is_file().then(|| read_json(&generation_path)).transpose()?;
        let generation = generation.as_ref().map(|value| (generation_path.as_path(), value));
        let shape = ModelShape::from_config(&config_path, &config, generation, events)?;
        let mut weights = Self::open_weights(path)?;
        names::check(path, &shape, &weights.shapes())?;
        weights.check_types(&shape)?;
        if shape.tied && weights.contains(names::HEAD) {
            weights.check_tied_head()?;
        }
        Ok((shape, weights))
    }

    /// Maps the safetensors files.
    fn open_weights(path: &Path) -> Result<Self> {
        let (single, index) = (path.join(SINGLE), path.join(INDEX));
        let mut directory =
            Self { path: path.into(), files: Vec::new(), tensors: BTreeMap::new(), used: BTreeSet::new() };
        if index.is_file() {
            directory.add_indexed(&index)?;
        } else if single.is_file() {
            directory.add(SafetensorsFile::open(&single)?)?;
        } else {
            let pickled = path.join("pytorch_model.bin").is_file()
                || path.join("pytorch_model.bin.index.json").is_file();
            return Err(ModelError::NotAModel {
                path: path.into(),
                problem: format!("it has neither {SINGLE} nor {INDEX}"),
                remedy: if pickled {
                    "its pytorch_model.bin is not read (pickled code); convert it to safetensors".into()
                } else {
                    "fetch the safetensors files of the model".into()
                },
            }
            .into());
        }
        Ok(directory)
    }

    fn add_indexed(&mut self, index: &Path) -> Result<()> {
        let value = read_json(index)?;
        let fields = Fields::new(index, &value)?;
        let Some(Value::Object(places)) = fields.present("weight_map") else {
            return Err(fields.problem("weight_map", "is missing"));
        };
        let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, shard) in places {
            // A bare file name: an index must not reach outside of its directory.
            let shard = shard
                .as_str()
                .filter(|shard| Path::new(shard).file_name().is_some_and(|name| name == *shard))
                .ok_or_else(|| fields.problem(&format!("weight_map.{tensor}"), "is not a file name"))?;
            shards.entry(shard).or_default().push(tensor);
        }
        if shards.is_empty() {
            return Err(fields.problem("weight_map", "is empty"));
        }
        for (shard, tensors) in shards {
            let path = self.path.join(shard);
            if !path.is_file() {
                return Err(ModelError::MissingShard {
                    index: index.into(),
                    shard: path,
                    tensor: tensors[0].to_owned(),
                }
                .into());
            }
            let file = SafetensorsFile::open(&path)?;
            if let Some(tensor) =
                tensors.iter().find(|tensor| !file.tensors().iter().any(|entry| entry.name == **tensor))
            {
                return Err(ModelError::MissingTensor {
                    path,
                    tensor: (*tensor).to_owned(),
                    reason: format!("{} puts there", index.display()),
                }
                .into());
            }
            self.add(file)?;
        }
        Ok(())
    }

    fn add(&mut self, file: SafetensorsFile) -> Result<()> {
        let place = self.files.len();
        for (at, entry) in file.tensors().iter().enumerate() {
            if let Some((other, _)) = self.tensors.insert(entry.name.clone(), (place, at)) {
                return Err(ModelError::DuplicateTensor {
                    tensor: entry.name.clone(),
                    first: self.files[other].path().into(),
                    second: file.path().into(),
                }
                .into());
            }
        }
        self.files.push(file);
        Ok(())
    }

    /// Names and shapes of all tensors.
    fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        self.all().map(|(_, entry)| (entry.name.clone(), entry.shape.clone())).collect()
    }

    fn all(&self) -> impl Iterator<Item = (&SafetensorsFile, &Entry)> {
        self.tensors.values().map(|&(file, at)| (&self.files[file], &self.files[file].tensors()[at]))
    }

    fn find(&self, name: &str) -> Option<(&SafetensorsFile, &Entry)> {
        let &(file, at) = self.tensors.get(name)?;
        Some((&self.files[file], &self.files[file].tensors()[at]))
    }

    /// Whether each weight has a type that can be read.
    fn check_types(&self, shape: &ModelShape) -> Result<()> {
        for tensor in names::expected(shape) {
            if let Some((file, entry)) = self.find(&tensor.name) {
                file.plain(entry)?;
            }
        }
        Ok(())
    }

    /// Some programs save the head of a tied model a second time. It is accepted if it is the embedding, byte for
    /// byte. If it differs, one of the two readings of the files is wrong, and only the user knows which.
    fn check_tied_head(&mut self) -> Result<()> {
        if let (Some((head_file, head)), Some((file, embedding))) =
            (self.find(names::HEAD), self.find(names::EMBEDDING))
            && (head.dtype != embedding.dtype || !head_file.equal(head, file, embedding))
        {
            return Err(ModelError::TiedHeadDiffers { path: self.path.clone() }.into());
        }
        self.used.insert(names::HEAD.to_owned());
        Ok(())
    }

    /// A tensor to be read with this shape.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<(&SafetensorsFile, &Entry)> {
        let Some(&(file, at)) = self.tensors.get(name) else {
            return Err(ModelError::MissingTensor {
                path: self.path.clone(),
                tensor: name.to_owned(),
                reason: "was asked for".into(),
            }
            .into());
        };
        let file = &self.files[file];
        let entry = &file.tensors()[at];
        if entry.shape != shape {
            return Err(ModelError::WrongShape {
                path: file.path().into(),
                tensor: name.to_owned(),
                expected: shape.to_vec(),
                found: entry.shape.clone(),
                reason: "as asked for".into(),
            }
            .into());
        }
        self.used.insert(name.to_owned());
        Ok((file, entry))
    }

    /// A name for the content: SHA-256 of config.json, of each tensor's name, type and shape, and of up to 4 KiB at
    /// its start, middle and end. Reads a few megabytes of any model, and changes when weights were trained on or
    /// converted, which touches every tensor; it does not find a single changed bit.
    pub fn identity(&self) -> Result<String> {
        let config = self.path.join("config.json");
        let mut hash = Sha256::new();
        hash.update(std::fs::read(&config).map_err(Error::io("read", &config))?);
        for (file, entry) in self.all() {
            hash.update(format!("\n{} {} {:?}\n", entry.name, entry.dtype, entry.shape));
            super::identity::sample(&mut hash, file.bytes(entry));
        }
        Ok(super::identity::text(hash))
    }
}

impl TensorSource for Directory {
    fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn read_f32(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let (file, entry) = self.take(name, shape)?;
        file.read_f32(entry)
    }

    fn read_table(&mut self, name: &str, shape: &[usize]) -> Result<Table> {
        let (file, entry) = self.take(name, shape)?;
        file.read_table(entry)
    }

    fn finish(&self) -> Result<()> {
        let unused: Vec<String> = self
            .tensors
            .keys()
            .filter(|name| !self.used.contains(*name) && !names::ignorable(name))
            .cloned()
            .collect();
        if unused.is_empty() { Ok(()) } else { Err(names::unused_error(&self.path, &unused)) }
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
