//! Everything about a model that does not depend on training: its shape from a config, its tensors by name
//! from safetensors or GGUF, its rotary tables. Weights are read one tensor at a time.

mod config;
mod directory;
mod error;
mod export;
mod fields;
#[cfg(test)]
mod flipped_bits;
mod gguf;
mod identity;
mod map;
pub mod names;
mod open;
mod rope;
mod safetensors;
mod shape;
mod source;
#[cfg(test)]
pub(crate) mod testing;
mod values;

pub use error::ModelError;
pub use export::{Exported, export_hf};
pub(crate) use fields::read_json;
pub(crate) use gguf::Metadata;
pub use open::{Opened, Weights, open, open_weights};
pub use shape::{Family, ModelShape, Projection, Rope};
pub use source::{Table, TensorSource};
