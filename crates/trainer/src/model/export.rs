//! Writes a GGUF file as a Hugging Face directory in bf16, for programs that read only those, and to have one set of
//! weights under both. Tensors go through one at a time. The directory appears under its name when it is complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use half::bf16;
use half::slice::HalfFloatSliceExt;
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::gguf::{GgufSource, is_gguf};
use super::identity::hexadecimal;
use super::source::TensorSource;
use super::{ModelError, names};
use crate::event::EventSink;
use crate::tokenizer;
use crate::{Error, Result};

/// What [`export_hf`] wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Tensors written.
    pub tensors: usize,
    /// Their elements.
    pub parameters: usize,
    /// SHA-256 of model.safetensors, in hexadecimal.
    pub model_sha256: String,
    /// SHA-256 of tokenizer.json, in hexadecimal.
    pub tokenizer_sha256: String,
}

/// Writes the model of a GGUF file to a new directory: config.json, generation_config.json, model.safetensors (bf16,
/// rounded to nearest even), tokenizer.json, tokenizer_config.json and chat_template.jinja where there is a template.
/// The same file gives the same bytes.
///
/// # Errors
/// The file cannot be opened as a model, the directory exists, or it cannot be written. Nothing is left behind.
pub fn export_hf(gguf: &Path, directory: &Path, events: &mut dyn EventSink) -> Result<Exported> {
    if !is_gguf(gguf) {
        return Err(ModelError::NotAModel {
            path: gguf.into(),
            problem: "it is no GGUF file".into(),
            remedy: "only GGUF files are exported to Hugging Face directories".into(),
        }
        .into());
    }
    if directory.exists() {
        let exists =
            io::Error::new(io::ErrorKind::AlreadyExists, "it exists; give another name or remove it");
        return Err(Error::io("create", directory)(exists));
    }
    let unfinished = unfinished(directory);
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).map_err(Error::io("remove", &unfinished))?;
    }
    fs::create_dir_all(&unfinished).map_err(Error::io("create", &unfinished))?;
    let written = write_all(gguf, &unfinished, events).and_then(|exported| {
        fs::rename(&unfinished, directory).map_err(Error::io("create", directory)).map(|()| exported)
    });
    if written.is_err() {
        // The error that led here is the one to report.
        if let Err(error) = fs::remove_dir_all(&unfinished) {
            tracing::warn!(path = %unfinished.display(), %error, "an unfinished directory could not be removed");
        }
    }
    written
}

fn unfinished(directory: &Path) -> PathBuf {
    let mut name = directory.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    directory.with_file_name(name)
}

fn write_all(gguf: &Path, directory: &Path, events: &mut dyn EventSink) -> Result<Exported> {
    let (shape, mut source) = GgufSource::open(gguf, events)?;
    if source.has_rope_factors() {
        return Err(ModelError::Unsupported {
            path: gguf.into(),
            what: "exporting rotary frequencies that come from rope_freqs.weight".into(),
            remedy: "a config.json cannot hold them; train on the GGUF file itself".into(),
        }
        .into());
    }
    let config = source.config().clone();
    let tokenizer_json = tokenizer::gguf::tokenizer_json(source.metadata())?;
    let tokenizer_config = tokenizer::gguf::tokenizer_config(source.metadata(), shape.max_positions)?;
    let template = tokenizer::gguf::extras(source.metadata())?.chat_templates.remove("default");

    let mut generation = Map::new();
    for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        generation.insert(key.to_owned(), config[key].clone());
    }
    write_json(&directory.join("config.json"), &config)?;
    write_json(&directory.join("generation_config.json"), &Value::Object(generation))?;
    let tokenizer_sha256 = write_json(&directory.join("tokenizer.json"), &tokenizer_json)?;
    write_json(&directory.join("tokenizer_config.json"), &tokenizer_config)?;
    if let Some(template) = template {
        let path = directory.join("chat_template.jinja");
        fs::write(&path, template).map_err(Error::io("write", &path))?;
    }

    let mut tensors: Vec<(String, Vec<usize>)> =
        names::expected(&shape).into_iter().map(|tensor| (tensor.name, tensor.shape)).collect();
    tensors.sort();
    let path = directory.join("model.safetensors");
    let model_sha256 = write_bf16(&path, &tensors, |name, dims| source.read_f32(name, dims))?;
    source.finish()?;
    let parameters = tensors.iter().map(|(_, dims)| dims.iter().product::<usize>()).sum();
    Ok(Exported { tensors: tensors.len(), parameters, model_sha256, tokenizer_sha256 })
}

/// Writes a safetensors file in bf16, asking for each tensor's values when its turn comes. Gives back the SHA-256 of
/// the file in hexadecimal.
///
/// # Errors
/// The values cannot be had, or the file cannot be written.
pub(crate) fn write_bf16(
    path: &Path,
    tensors: &[(String, Vec<usize>)],
    mut values: impl FnMut(&str, &[usize]) -> Result<Vec<f32>>,
) -> Result<String> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut at = 0;
    for (name, shape) in tensors {
        let end = at + 2 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({ "dtype": "BF16", "shape": shape, "data_offsets": [at, end] }));
        at = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // The data begin at a multiple of 8, as in files of the reference.
    header.resize(header.len().next_multiple_of(8), b' ');

    let mut file = Hashed::create(path)?;
    file.write(&(header.len() as u64).to_le_bytes())?;
    file.write(&header)?;
    for (name, shape) in tensors {
        let values = values(name, shape)?;
        let mut narrow = [bf16::ZERO; 4096];
        for part in values.chunks(narrow.len()) {
            let narrow = &mut narrow[..part.len()];
            narrow.convert_from_f32_slice(part);
            let bytes: Vec<u8> = narrow.iter().flat_map(|value| value.to_le_bytes()).collect();
            file.write(&bytes)?;
        }
    }
    file.finish()
}

/// Writes JSON as Python does with an indent of 2 and without escaping letters, and a line end. Gives back the
/// SHA-256 of the file in hexadecimal.
fn write_json(path: &Path, value: &Value) -> Result<String> {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, PythonFormatter::default());
    value.serialize(&mut serializer).map_err(|error| Error::io("write", path)(io::Error::other(error)))?;
    bytes.push(b'\n');
    let mut file = Hashed::create(path)?;
    file.write(&bytes)?;
    file.finish()
}

/// A file that is hashed while it is written.
struct Hashed<'a> {
    path: &'a Path,
    file: BufWriter<File>,
    hash: Sha256,
}

impl<'a> Hashed<'a> {
    fn create(path: &'a Path) -> Result<Self> {
        let file = File::create(path).map_err(Error::io("create", path))?;
        Ok(Self { path, file: BufWriter::with_capacity(1 << 20, file), hash: Sha256::new() })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hash.update(bytes);
        self.file.write_all(bytes).map_err(Error::io("write", self.path))
    }

    fn finish(self) -> Result<String> {
        let file =
            self.file.into_inner().map_err(|error| Error::io("write", self.path)(error.into_error()))?;
        file.sync_all().map_err(Error::io("write", self.path))?;
        Ok(hexadecimal(self.hash))
    }
}

/// Pretty JSON whose numbers look as Python's: `1e-05`, where Rust would write `1e-5`.
#[derive(Default)]
struct PythonFormatter(serde_json::ser::PrettyFormatter<'static>);

impl serde_json::ser::Formatter for PythonFormatter {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python_float(value).as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

/// A finite number as Python's `repr` writes it: the shortest digits that read back, with an exponent of at least two
/// digits where it is below -4 or above 15.
fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let exponent =
        scientific.split_once('e').and_then(|(_, exponent)| exponent.parse::<i32>().ok()).unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let digits = scientific.split('e').next().unwrap_or_default();
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
