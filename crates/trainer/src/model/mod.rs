//! Everything about a model that does not depend on training: its shape from a config, its tensors by name
//! from safetensors or GGUF, its rotary tables. Weights are read one tensor at a time.

mod shape;
mod source;

pub use shape::{Family, ModelShape, Projection, Rope};
pub use source::{Table, TensorSource};

/// A model's files are not usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {}
