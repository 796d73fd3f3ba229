//! One way in: a path that a user gave becomes a shape, weights and a tokenizer.

use std::path::Path;

use super::directory::Directory;
use super::gguf::{GgufSource, is_gguf};
use super::{ModelError, ModelShape, TensorSource};
use crate::Result;
use crate::event::EventSink;
use crate::tokenizer::Tokenizer;

/// A model's shape and weights.
pub struct Weights {
    /// Its shape.
    pub shape: ModelShape,
    /// Its tensors.
    pub source: Box<dyn TensorSource + Send>,
    /// A name for its content, `sha256:` and digits: of the config, the table of tensors and some bytes of each.
    pub identity: String,
    /// What to call it: the directory's name, or the file's without its ending.
    pub name: String,
}

/// A model, opened.
pub struct Opened {
    /// Its shape.
    pub shape: ModelShape,
    /// Its tensors.
    pub source: Box<dyn TensorSource + Send>,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// As [`Weights::identity`].
    pub identity: String,
    /// As [`Weights::name`].
    pub name: String,
}

/// Opens a model directory or a GGUF file with its tokenizer.
///
/// # Errors
/// As [`open_weights`], and: there is no tokenizer, it is not valid, or it has tokens that the embedding has not.
pub fn open(path: &Path, events: &mut dyn EventSink) -> Result<Opened> {
    let (Weights { shape, source, identity, name }, tokenizer) = if is_gguf(path) {
        let (shape, source) = GgufSource::open(path, events)?;
        let tokenizer = Tokenizer::from_gguf(source.metadata(), events)?;
        (gguf_weights(path, shape, source), tokenizer)
    } else {
        (open_weights(path, events)?, Tokenizer::open(path, events)?)
    };
    tokenizer.check_fits(shape.vocab)?;
    Ok(Opened { shape, source, tokenizer, identity, name })
}

/// Opens a model directory or a GGUF file, without a tokenizer. No weight is read yet, but names, shapes and types
/// of all are checked.
///
/// # Errors
/// The path is neither, or its files are not valid, not supported, or do not belong together.
pub fn open_weights(path: &Path, events: &mut dyn EventSink) -> Result<Weights> {
    if path.is_dir() {
        let (shape, directory) = Directory::open(path, events)?;
        let identity = directory.identity()?;
        return Ok(Weights { shape, source: Box::new(directory), identity, name: name(path) });
    }
    if is_gguf(path) {
        let (shape, source) = GgufSource::open(path, events)?;
        return Ok(gguf_weights(path, shape, source));
    }
    Err(not_a_model(path).into())
}

fn gguf_weights(path: &Path, shape: ModelShape, source: GgufSource) -> Weights {
    let identity = source.identity();
    Weights { shape, source: Box::new(source), identity, name: name(path) }
}

/// The last part of a path, without the ending of a file. A snapshot in the cache of a model hub
/// (`models--owner--name/snapshots/<hash>`) is called `owner/name`.
fn name(path: &Path) -> String {
    // Links are not followed: in such a cache they lead to files named by their hash.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let part = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let snapshots = absolute.parent().filter(|parent| part(parent).as_deref() == Some("snapshots"));
    if let Some(cached) = snapshots.and_then(Path::parent).and_then(part)
        && let Some(id) = cached.strip_prefix("models--")
    {
        return id.replacen("--", "/", 1);
    }
    let name = if absolute.is_dir() { absolute.file_name() } else { absolute.file_stem() };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn not_a_model(path: &Path) -> ModelError {
    let text = path.to_string_lossy();
    let (problem, remedy) = if path.is_file() {
        (
            "it is a file that is not in GGUF format".to_owned(),
            "give a model directory or a .gguf file".to_owned(),
        )
    } else if looks_like_hub_id(&text) {
        (
            "there is no such directory or file".to_owned(),
            format!(
                "if it is the name of a model on a hub, download it and give the path \
                 (for example: hf download {text} --local-dir {})",
                text.rsplit('/').next().unwrap_or("model")
            ),
        )
    } else {
        (
            "there is no such directory or file".to_owned(),
            "give a Hugging Face model directory (config.json, model.safetensors, tokenizer.json) or a .gguf file"
                .to_owned(),
        )
    };
    ModelError::NotAModel { path: path.into(), problem, remedy }
}

/// `owner/name`, as model hubs write it.
fn looks_like_hub_id(text: &str) -> bool {
    let word = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    matches!(text.split('/').collect::<Vec<_>>()[..], [owner, name] if word(owner) && word(name) && !name.ends_with(".gguf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_last_part_or_the_hub_id() {
        let directory = tempfile::tempdir().unwrap();
        let model = directory.path().join("some.model-1.5B");
        std::fs::create_dir(&model).unwrap();
        assert_eq!(name(&model), "some.model-1.5B");
        assert_eq!(name(&model.join("weights.v2.gguf")), "weights.v2");
        let snapshot = directory.path().join("models--owner--a-model/snapshots/0123abcd");
        std::fs::create_dir_all(&snapshot).unwrap();
        assert_eq!(name(&snapshot), "owner/a-model");
    }
}
