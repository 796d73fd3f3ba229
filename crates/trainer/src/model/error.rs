//! What can be wrong with a model's files. Every message names the file, the tensor or field, what was expected
//! and what was found, and what to do where something can be done.

use std::path::PathBuf;

/// A model's files are not usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The path given is not a model that can be opened.
    #[error("{path} is not a model: {problem}; {remedy}")]
    NotAModel {
        /// What was given.
        path: PathBuf,
        /// What was looked for and not found.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// A field of a JSON file (or a GGUF metadata key) is missing, has the wrong type, or contradicts another.
    #[error("{path}: {field}: {problem}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The field, with its parents: `rope_parameters.factor`.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The file asks for something that changes results and that this program does not do.
    #[error("{path}: {what} is not supported; {remedy}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The field and its value.
        what: String,
        /// What is supported, or how to go on.
        remedy: String,
    },
    /// A file breaks the rules of its format.
    #[error("{path} is not a valid {format} file: {problem} (an interrupted download? fetch it again)")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// `safetensors`, `GGUF`, `JSON`.
        format: &'static str,
        /// What is wrong, and where.
        problem: String,
    },
    /// Two entries have the same name.
    #[error("duplicate tensor {tensor}: in {first} and in {second}; keep one of them")]
    DuplicateTensor {
        /// Name of the tensor.
        tensor: String,
        /// File of the first entry.
        first: PathBuf,
        /// File of the second entry; may be the same file.
        second: PathBuf,
    },
    /// The index of a sharded model names a file that is not there.
    #[error("{index} puts {tensor} into {shard}, which does not exist; fetch the missing file")]
    MissingShard {
        /// The index file.
        index: PathBuf,
        /// The missing file.
        shard: PathBuf,
        /// The first tensor that it should hold.
        tensor: String,
    },
    /// A tensor that the model needs is in none of its files.
    #[error("{path} has no tensor {tensor}, which {reason}")]
    MissingTensor {
        /// The file or directory.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Why it is needed: which field asks for it.
        reason: String,
    },
    /// A tensor has another shape than the config says.
    #[error("{path}: {tensor} is {found:?}, expected {expected:?} ({reason})")]
    WrongShape {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Shape that follows from the config.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
        /// The fields that the expected shape follows from.
        reason: String,
    },
    /// The files hold tensors that a model of this config does not use: the config does not describe them.
    #[error(
        "{path} holds {count} tensors that a model of its config does not use: {names}; the config and the weights \
         do not belong together, or the model has parts that are not supported"
    )]
    UnusedTensors {
        /// The file or directory.
        path: PathBuf,
        /// How many.
        count: usize,
        /// The names, the first few of many.
        names: String,
    },
    /// The type of a tensor's elements cannot be read as floats.
    #[error("{path}: {tensor} has type {dtype}; supported: {supported}")]
    WrongType {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Its type.
        dtype: String,
        /// Types that can be read.
        supported: &'static str,
    },
    /// A weight is NaN or infinite: training with it would make every result NaN.
    #[error("{path}: {tensor} holds {value} at index {index}: the file is damaged or the model diverged")]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Index of the first such element, row-major.
        index: usize,
        /// The value.
        value: f64,
    },
    /// `tie_word_embeddings` says that head and embedding are one, and the files hold two different ones.
    #[error(
        "{path}: tie_word_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight; set \
         \"tie_word_embeddings\": false in config.json if the head is to be used, or delete lm_head.weight"
    )]
    TiedHeadDiffers {
        /// The file or directory.
        path: PathBuf,
    },
    /// The tokenizer could not be loaded or used.
    #[error("{path}: {problem}")]
    Tokenizer {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The tokenizer produces ids that the embedding has no row for.
    #[error(
        "{path} has token ids up to {largest}, but the embedding has {vocab} rows: the tokenizer does not belong to \
         this model, or tokens were added without resizing it"
    )]
    TokenizerTooLarge {
        /// The tokenizer's file.
        path: PathBuf,
        /// Its largest id.
        largest: u32,
        /// Rows of the embedding (`vocab_size`).
        vocab: usize,
    },
}

/// Names for a message: all of a few, the first eight of many.
pub(crate) fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}
