//! Where weights come from, whatever the file format: tensors by their Hugging Face names, in Hugging Face's
//! layout (`[out, in]`, q and k rows in half-split order).

use half::{bf16, f16};

use crate::Result;

/// A large table kept in the type of its file, because widening it would cost memory and gain nothing.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Table {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Table {
    /// The values in f32; exact.
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            Self::F32(values) => values,
            Self::F16(values) => values.into_iter().map(f16::to_f32).collect(),
            Self::Bf16(values) => values.into_iter().map(bf16::to_f32).collect(),
        }
    }
}

/// Tensors by name, read one at a time, so that the peak is what the caller keeps plus one tensor.
pub trait TensorSource {
    /// Whether a tensor of this name exists.
    fn contains(&self, name: &str) -> bool;

    /// The values of a tensor in f32, row-major. Marks it as used. F64 is rounded to nearest.
    ///
    /// # Errors
    /// The tensor is missing, has another shape than `shape`, or holds a value that is NaN or infinite.
    fn read_f32(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>>;

    /// The values of a tensor in its file's type where that is f16 or bf16, else in f32. Marks it as used.
    ///
    /// # Errors
    /// As [`read_f32`](Self::read_f32).
    fn read_table(&mut self, name: &str, shape: &[usize]) -> Result<Table>;

    /// To be called when everything was read.
    ///
    /// # Errors
    /// Tensors are left that nothing used; all of them are named.
    fn finish(&self) -> Result<()>;
}
