//! What a device must be able to do for a training step. Model, LoRA, loss and optimiser code is written once
//! over [`Backend`]; a backend knows nothing of them.
//!
//! Operations are asynchronous on the backend's queue, allocate nothing and write only their `&mut` operands.
//! Only `download`, `sums_of_squares` and the functions that create storage wait for the device. Sizes come
//! from the operands: every activation is a row-major `[rows, cols]` matrix of f32 whose `rows` may be set
//! anywhere up to what was allocated. Backward stands beside forward, and its results carry a `d`.

mod cpu;

pub use cpu::{CpuBackend, CpuTensor, CpuWeight};
pub use cpu_ops::attention::AttentionShape;
pub use cpu_ops::gemm::Op;
pub use cpu_ops::optimiser::AdamW;
pub use cpu_ops::rope::Direction;

use crate::Result;
use crate::model::{Rope, Table};

/// A matrix of f32 on a device.
pub trait DeviceTensor {
    /// Rows in use.
    fn rows(&self) -> usize;
    /// Columns.
    fn cols(&self) -> usize;
    /// Sets the rows in use; their values are whatever was there.
    ///
    /// # Panics
    /// `rows` is more than what was allocated: a fault of the caller, who knows the largest batch.
    fn set_rows(&mut self, rows: usize);
    /// Bytes allocated.
    fn bytes(&self) -> usize;
}

/// How the frozen weight of a linear layer is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// As it stands in the checkpoint (f32, f16 or bf16).
    AsIs,
    /// NF4 in blocks of `block_size` elements, scales in 8 bits if `double`.
    Nf4 {
        /// Elements that share a scale.
        block_size: usize,
        /// Whether the scales are quantised too.
        double: bool,
    },
}

/// One operand of [`Backend::matmul`]: a matrix, and whether its transpose is meant.
#[derive(Debug)]
pub struct Side<'a, T> {
    /// The matrix.
    pub tensor: &'a T,
    /// Whether it is transposed.
    pub op: Op,
}

impl<'a, T> Side<'a, T> {
    /// The matrix as it is.
    pub fn of(tensor: &'a T) -> Self {
        Self { tensor, op: Op::None }
    }
    /// The transpose.
    pub fn t(tensor: &'a T) -> Self {
        Self { tensor, op: Op::Transpose }
    }
}

/// Queries, keys and values of one attention, and who sees whom.
#[derive(Debug)]
pub struct AttentionInputs<'a, T, I> {
    /// Heads, their width and the scale of the scores.
    pub shape: AttentionShape,
    /// For each query the first key that it sees; the last is its own position.
    pub starts: &'a I,
    /// `[queries, heads * head_dim]`.
    pub q: &'a T,
    /// `[keys, kv_heads * head_dim]`, at least as many rows as `q`: the queries are the last ones.
    pub k: &'a T,
    /// As `k`.
    pub v: &'a T,
}

/// Which random mask a dropout uses: the same key gives the same mask, on every backend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DropoutKey {
    /// Mixed from seed, step, micro-batch, layer and projection.
    pub key: u64,
    /// Probability that an element is dropped; the others are divided by `1 - probability`.
    pub probability: f32,
}

/// A trainable matrix with its gradient and its optimiser state.
#[derive(Debug)]
pub struct Parameter<'a, T> {
    /// The values.
    pub value: &'a mut T,
    /// Their gradient.
    pub gradient: &'a T,
    /// First moment.
    pub m: &'a mut T,
    /// Second moment.
    pub v: &'a mut T,
}

/// A device that can run a training step.
pub trait Backend: std::fmt::Debug {
    /// An f32 matrix.
    type Tensor: DeviceTensor + std::fmt::Debug;
    /// A vector of u32 (token ids, positions, row numbers).
    type Index: std::fmt::Debug;
    /// A frozen weight `[out, in]`.
    type Weight: std::fmt::Debug;
    /// The embedding or head `[vocab, hidden]`.
    type Table: std::fmt::Debug;
    /// Cosines and sines of the rotary embedding.
    type Rope: std::fmt::Debug;

    /// A new matrix of zeros with `rows` rows in use.
    fn tensor(&mut self, rows: usize, cols: usize) -> Result<Self::Tensor>;
    /// A new vector that can hold up to `len` indices.
    fn index(&mut self, len: usize) -> Result<Self::Index>;
    /// Stores a frozen weight `[out, in]`.
    fn weight(&mut self, values: Table, out: usize, inputs: usize, storage: Storage) -> Result<Self::Weight>;
    /// Stores an embedding `[vocab, hidden]` in the type it has.
    fn table(&mut self, values: Table, vocab: usize, hidden: usize) -> Result<Self::Table>;
    /// The rotary table for positions below `positions`.
    fn rope_table(&mut self, rope: &Rope, positions: usize) -> Result<Self::Rope>;

    /// Fills all rows in use from the host.
    fn upload(&mut self, values: &[f32], to: &mut Self::Tensor) -> Result<()>;
    /// Fills a vector of indices from the host; its length becomes that of `values`.
    fn upload_index(&mut self, values: &[u32], to: &mut Self::Index) -> Result<()>;
    /// All rows in use, on the host. Waits.
    fn download(&mut self, from: &Self::Tensor) -> Result<Vec<f32>>;

    /// `y = x Wᵀ`.
    fn linear(&mut self, x: &Self::Tensor, w: &Self::Weight, y: &mut Self::Tensor) -> Result<()>;
    /// `dx = dy W + beta dx`.
    fn linear_dx(
        &mut self,
        dy: &Self::Tensor,
        w: &Self::Weight,
        beta: f32,
        dx: &mut Self::Tensor,
    ) -> Result<()>;
    /// `y += bias` for every row; `bias` is one row.
    fn add_bias(&mut self, bias: &Self::Tensor, y: &mut Self::Tensor) -> Result<()>;
    /// `c = alpha op(a) op(b) + beta c`, for the thin products of LoRA.
    fn matmul(
        &mut self,
        alpha: f32,
        a: Side<'_, Self::Tensor>,
        b: Side<'_, Self::Tensor>,
        beta: f32,
        c: &mut Self::Tensor,
    ) -> Result<()>;

    /// RMSNorm over groups of `weight.cols()` columns of `x` (a whole row, or one head).
    fn rms_norm(
        &mut self,
        x: &Self::Tensor,
        weight: &Self::Tensor,
        eps: f32,
        y: &mut Self::Tensor,
    ) -> Result<()>;
    /// `dx = beta dx +` the gradient of [`rms_norm`](Self::rms_norm) for its input `x`.
    fn rms_norm_dx(
        &mut self,
        x: &Self::Tensor,
        weight: &Self::Tensor,
        eps: f32,
        dy: &Self::Tensor,
        beta: f32,
        dx: &mut Self::Tensor,
    ) -> Result<()>;
    /// Rotates every head of `x` in place by its row's position; `Inverse` is the gradient.
    fn rope(
        &mut self,
        rope: &Self::Rope,
        positions: &Self::Index,
        direction: Direction,
        x: &mut Self::Tensor,
    ) -> Result<()>;
    /// Causal grouped attention; `log_sum_exp` is `[heads, queries]`.
    fn attention(
        &mut self,
        inputs: AttentionInputs<'_, Self::Tensor, Self::Index>,
        out: &mut Self::Tensor,
        log_sum_exp: &mut Self::Tensor,
    ) -> Result<()>;
    /// Gradients of [`attention`](Self::attention) for q, k and v (`d`, in this order), given its results.
    fn attention_d(
        &mut self,
        inputs: AttentionInputs<'_, Self::Tensor, Self::Index>,
        out: &Self::Tensor,
        log_sum_exp: &Self::Tensor,
        d_out: &Self::Tensor,
        d: [&mut Self::Tensor; 3],
    ) -> Result<()>;
    /// `y = silu(gate) * up`.
    fn swiglu(&mut self, gate: &Self::Tensor, up: &Self::Tensor, y: &mut Self::Tensor) -> Result<()>;
    /// Gradients of [`swiglu`](Self::swiglu) for gate and up (`d`, in this order).
    fn swiglu_d(
        &mut self,
        gate: &Self::Tensor,
        up: &Self::Tensor,
        dy: &Self::Tensor,
        d: [&mut Self::Tensor; 2],
    ) -> Result<()>;

    /// `y += x`.
    fn add(&mut self, x: &Self::Tensor, y: &mut Self::Tensor) -> Result<()>;
    /// `y = x`.
    fn copy(&mut self, x: &Self::Tensor, y: &mut Self::Tensor) -> Result<()>;
    /// Rows `at..` of `y` become the rows of `x`.
    fn copy_rows(&mut self, x: &Self::Tensor, at: usize, y: &mut Self::Tensor) -> Result<()>;
    /// All rows in use become 0.
    fn zero(&mut self, y: &mut Self::Tensor) -> Result<()>;
    /// `y = beta y + x` with elements of `x` dropped and the rest scaled; linear, so also its own gradient.
    fn dropout(&mut self, x: &Self::Tensor, key: DropoutKey, beta: f32, y: &mut Self::Tensor) -> Result<()>;
    /// Row i of `y` becomes row `rows[i]` of `x`.
    fn gather_rows(&mut self, x: &Self::Tensor, rows: &Self::Index, y: &mut Self::Tensor) -> Result<()>;
    /// Row `rows[i]` of `y` becomes row i of `x`; all others become 0.
    fn scatter_rows(&mut self, x: &Self::Tensor, rows: &Self::Index, y: &mut Self::Tensor) -> Result<()>;

    /// Row i of `y` becomes row `ids[i]` of the table.
    fn embed(&mut self, table: &Self::Table, ids: &Self::Index, y: &mut Self::Tensor) -> Result<()>;
    /// Cross-entropy of `hidden` against `targets`, a row each: `losses` (one column) and, where wanted,
    /// `scale` times the gradient for `hidden`. Never holds the logits of all rows.
    fn head_loss(
        &mut self,
        hidden: &Self::Tensor,
        table: &Self::Table,
        targets: &Self::Index,
        losses: &mut Self::Tensor,
        gradient: Option<(f32, &mut Self::Tensor)>,
    ) -> Result<()>;
    /// `logits = hidden tableᵀ`, for a few rows.
    fn head_logits(
        &mut self,
        hidden: &Self::Tensor,
        table: &Self::Table,
        logits: &mut Self::Tensor,
    ) -> Result<()>;

    /// The sum of squares of each tensor, widened before squaring, in fixed order. Waits.
    fn sums_of_squares(&mut self, tensors: &[&Self::Tensor]) -> Result<Vec<f64>>;
    /// One AdamW update, the `update`th of this parameter (from 1), with gradients times `grad_scale`.
    fn adamw(
        &mut self,
        rule: &AdamW,
        update: u64,
        grad_scale: f32,
        parameter: Parameter<'_, Self::Tensor>,
    ) -> Result<()>;
}
