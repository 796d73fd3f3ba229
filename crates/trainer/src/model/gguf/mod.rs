//! GGUF files: metadata, a table of tensors, then their data, all in one file. `read` parses, `config` turns
//! metadata into the config that a Hugging Face directory would have, `source` gives tensors by their Hugging Face
//! names. The tokenizer in the metadata is `tokenizer::gguf`'s part.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3, little-endian.

mod config;
mod read;
mod source;

use config::config;
pub(crate) use read::Metadata;
pub(crate) use source::{GgufSource, is_gguf};

#[cfg(test)]
pub(crate) use read::Kind;
#[cfg(test)]
mod tests;
