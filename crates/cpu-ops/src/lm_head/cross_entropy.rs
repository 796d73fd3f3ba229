//! Cross-entropy of a frozen head in one pass over the embedding, with the gradient of its input, and
//! without a [rows, vocab] matrix.
//!
//! With the head frozen, the gradient is attention with keys and values both the embedding E. For a row h with
//! target y, over the vocabulary without y:
//!
//! ```text
//! m = max l_v,  s = Σ e^(l_v - m),  O = Σ e^(l_v - m) E[v]         with l_v = h · E[v]
//! loss = ln(s e^m + e^l_y) - l_y
//! grad = (O - s E[y]) e^m / (s e^m + e^l_y)
//! ```
//!
//! The target is left out of s and O and joined at the end, so nothing cancels when its probability is near
//! 1: the gradient is the sum of p_v (E\[v\] - E\[y\]) over the others. Both sides are taken relative to the
//! larger of m and l_y, so nothing overflows.
//!
//! ```text
//! for each task (row tile, vocabulary chunk), on any thread
//! 2    for each tile of the chunk's vocabulary:             (in order)
//!        L = H Eᵀ for the tile; remember l_y and take it out; m' = max(m, max L)
//!        s, O *= e^(m - m');  L = e^(L - m');  s += Σ L;  O += L E
//! for each row                                               join the chunks (in order), then the target
//! ```
//!
//! The tasks are cut by shapes alone, so the number of threads changes nothing. A row tile reads E once.

use std::cell::RefCell;

use super::rows;
use crate::gemm::blocks::{KC, MC, cuts};
use crate::gemm::output::Block;
use crate::gemm::pack::{Aligned, widen_run};
use crate::gemm::product::Job;
use crate::gemm::{Op, Operand};
use crate::simd::Simd;
use crate::{Error, MatMut, MatRef, Result, Threads};

/// Vocabulary rows of a tile: one block of the inner dimension of `O += L E`.
const TILE: usize = KC;

/// Rows of a row tile: what the product packs at a time.
const ROW_TILE: usize = MC;

/// Tasks to cut small inputs into, so that a few threads can share them evenly.
const TASKS: usize = 8;

/// Vocabulary rows under which a chunk of its own does not pay.
const MIN_CHUNK: usize = 4 * TILE;

#[derive(Default)]
struct Buffers {
    /// [row tile, TILE]: logits, then their exponentials.
    logits: Aligned,
    /// [TILE, hidden]: a tile of an embedding that is not f32.
    tile: Aligned,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// What a task knows of one row: the terms over its chunk of the vocabulary, without the target.
#[derive(Clone, Copy)]
struct RowState {
    /// m
    max: f32,
    /// s, in f64: thousands of tiles are added to it.
    sum: f64,
    /// l_y, in the chunk that holds the target.
    target: Option<f32>,
}

/// The loss of each row, `losses[i] = -ln softmax(hidden[i] · embeddingᵀ)[targets[i]]`, and where
/// `grad_hidden` is given, `scale` times the gradient of each row's loss with respect to that row of hidden.
/// Returns the sum of the losses, added in f64 from the first row to the last.
///
/// hidden is [rows, hidden], embedding [vocab, hidden], grad_hidden [rows, hidden]; only rows that count are
/// passed in. For the mean over n tokens, pass `scale` = 1/n and divide the sum by n. No rows give 0.
/// Memory beyond the operands: 8 to 16 partial results of at most 256 rows of `hidden` f32, and tiles of
/// 384 vocabulary rows for each thread.
///
/// A NaN or an infinity among the logits makes the loss and the gradient of its row NaN.
///
/// ```
/// use cpu_ops::{MatMut, MatRef, Threads, lm_head};
/// let hidden = MatRef::new(&[1.0], 1, 1)?;
/// let embedding = MatRef::new(&[10000.0, 10001.0, 9999.0], 3, 1)?; // logits 10000, 10001, 9999
/// let (mut losses, mut grad) = ([0.0], [0.0]);
/// let grad_hidden = Some(MatMut::new(&mut grad, 1, 1)?);
/// let threads = Threads::new(1)?;
/// let sum = lm_head::cross_entropy(&threads, hidden, embedding.into(), &[1], 1.0, &mut losses, grad_hidden)?;
/// assert!((sum - 0.407606).abs() < 1e-6 && losses[0] == sum as f32);
/// # Ok::<(), cpu_ops::Error>(())
/// ```
///
/// # Errors
/// The sizes do not fit each other, or a target is not below vocab; nothing has been computed then.
pub fn cross_entropy(
    threads: &Threads,
    hidden: MatRef<'_>,
    embedding: Operand<'_>,
    targets: &[u32],
    scale: f32,
    losses: &mut [f32],
    grad_hidden: Option<MatMut<'_>>,
) -> Result<f64> {
    cross_entropy_on(Simd::detect(), threads, hidden, embedding, targets, scale, losses, grad_hidden)
}

/// [`cross_entropy`] with given instructions.
#[allow(clippy::too_many_arguments, reason = "the public function's, and the instructions")]
pub(super) fn cross_entropy_on(
    simd: Simd,
    threads: &Threads,
    hidden: MatRef<'_>,
    embedding: Operand<'_>,
    targets: &[u32],
    scale: f32,
    losses: &mut [f32],
    grad_hidden: Option<MatMut<'_>>,
) -> Result<f64> {
    let (rows, vocab, width) = (hidden.rows(), embedding.rows(), embedding.cols());
    check(hidden, &embedding, targets, losses, grad_hidden.as_ref())?;
    if rows == 0 {
        return Ok(0.0);
    }
    let row_tiles = cuts(rows, 1, rows.div_ceil(ROW_TILE));
    let chunks = cuts(vocab, TILE, TASKS.div_ceil(row_tiles.len()).min(vocab.div_ceil(MIN_CHUNK)));

    // Partial results, chunk by chunk: [chunk][row] and [chunk][row][hidden].
    let with_gradient = grad_hidden.is_some();
    let empty = RowState { max: f32::NEG_INFINITY, sum: 0.0, target: None };
    let mut states = vec![empty; chunks.len() * rows];
    let mut outputs = vec![0f32; if with_gradient { chunks.len() * rows * width } else { 0 }];
    {
        let mut tasks = Vec::with_capacity(chunks.len() * row_tiles.len());
        let (mut states, mut outputs) = (&mut states[..], &mut outputs[..]);
        for chunk in &chunks {
            for rows in &row_tiles {
                let state;
                (state, states) = states.split_at_mut(rows.len());
                let output;
                (output, outputs) = outputs.split_at_mut(if with_gradient { rows.len() * width } else { 0 });
                tasks.push((rows.clone(), chunk.clone(), state, output));
            }
        }
        threads.run_on(tasks, |_, (rows, chunk, state, output)| {
            let part = Part { simd, hidden: hidden.rows_range(rows.start, rows.len()), embedding };
            let output = with_gradient.then_some(output);
            part.run(chunk, &targets[rows], state, output);
        });
    }

    let states_of = |row: usize| (0..chunks.len()).map(move |chunk| (chunk, chunk * rows + row));
    let joined: Vec<Joined> =
        (0..rows).map(|row| Joined::new(states_of(row).map(|(_, at)| states[at]))).collect();
    for (loss, joined) in losses.iter_mut().zip(&joined) {
        *loss = joined.loss() as f32;
    }
    if let Some(grad) = grad_hidden {
        let grad =
            Block::new(grad).split(&cuts(rows, 1, rows.div_ceil(16)), std::slice::from_ref(&(0..width)));
        let first_rows: Vec<usize> =
            grad.iter().scan(0, |next, part| Some(std::mem::replace(next, *next + part.rows()))).collect();
        threads.run_on(grad, |index, mut part| {
            let mut target_row = vec![0f32; width];
            for i in 0..part.rows() {
                let row = first_rows[index] + i;
                widen_run(&embedding, targets[row] as usize, 0, &mut target_row);
                let out = part.row_mut(i);
                let scale = f64::from(scale) / joined[row].total();
                let minus = (joined[row].sum * scale) as f32;
                out.iter_mut().zip(&target_row).for_each(|(out, e)| *out = -minus * e);
                for (_, at) in states_of(row) {
                    let factor = (joined[row].weight(&states[at]) * scale) as f32;
                    let terms = &outputs[at * width..][..width];
                    out.iter_mut().zip(terms).for_each(|(out, o)| *out += factor * o);
                }
            }
        });
    }
    Ok(joined.iter().map(Joined::loss).sum())
}

fn check(
    hidden: MatRef<'_>,
    embedding: &Operand<'_>,
    targets: &[u32],
    losses: &[f32],
    grad_hidden: Option<&MatMut<'_>>,
) -> Result<()> {
    let operation = "lm_head::cross_entropy";
    let (rows, vocab, width) = (hidden.rows(), embedding.rows(), embedding.cols());
    let (grad_rows, grad_width) = grad_hidden.map_or((rows, width), |grad| (grad.rows(), grad.cols()));
    for (what, expected, found) in [
        ("columns of hidden", width, hidden.cols()),
        ("length of targets", rows, targets.len()),
        ("length of losses", rows, losses.len()),
        ("rows of grad_hidden", rows, grad_rows),
        ("columns of grad_hidden", width, grad_width),
    ] {
        if expected != found {
            return Err(Error::Shape { operation, what, expected, found });
        }
    }
    match targets.iter().position(|&target| target as usize >= vocab) {
        None => Ok(()),
        Some(row) => {
            Err(Error::Index { operation, what: "target", index: targets[row].into(), row, limit: vocab })
        }
    }
}

/// One task's operands: a row tile of hidden, and the embedding.
struct Part<'a> {
    simd: Simd,
    hidden: MatRef<'a>,
    embedding: Operand<'a>,
}

impl Part<'_> {
    /// Goes over the vocabulary rows `chunk`; `output` is [rows, hidden].
    fn run(
        &self,
        chunk: std::ops::Range<usize>,
        targets: &[u32],
        states: &mut [RowState],
        mut output: Option<&mut [f32]>,
    ) {
        BUFFERS.with(|buffers| {
            let Buffers { logits, tile } = &mut *buffers.borrow_mut();
            for first in chunk.clone().step_by(TILE) {
                let length = TILE.min(chunk.end - first);
                let embedding = self.tile(first, length, tile);
                let logits = logits.take(self.hidden.rows() * length);
                self.logits(embedding, logits);
                let old = if first == chunk.start { None } else { output.as_deref_mut() };
                self.exponentials(first, targets, states, (&mut *logits, length), old);
                if let Some(output) = output.as_deref_mut() {
                    self.weighted_sum(logits, embedding, first != chunk.start, output);
                }
            }
        });
    }

    /// Vocabulary rows from `first` on, in f32.
    fn tile<'t>(&'t self, first: usize, length: usize, buffer: &'t mut Aligned) -> MatRef<'t> {
        if let Operand::F32(embedding) = self.embedding {
            return embedding.rows_range(first, length);
        }
        let width = self.embedding.cols();
        let wide = buffer.take(length * width);
        for (row, out) in wide.chunks_mut(width.max(1)).enumerate() {
            widen_run(&self.embedding, first + row, 0, out);
        }
        MatRef::new(wide, length, width).expect("taken with this length")
    }

    /// `logits = hidden · embeddingᵀ`
    fn logits(&self, embedding: MatRef<'_>, logits: &mut [f32]) {
        let c = MatMut::new(logits, self.hidden.rows(), embedding.rows()).expect("taken with this length");
        self.job(self.hidden, embedding, Op::Transpose, 0.0).run((0, 0), Block::new(c));
    }

    /// `output = exponentials · embedding`, added to the old value where there is one.
    fn weighted_sum(&self, exponentials: &[f32], embedding: MatRef<'_>, add: bool, output: &mut [f32]) {
        let rows = self.hidden.rows();
        let a = MatRef::new(exponentials, rows, embedding.rows()).expect("taken with this length");
        let c = MatMut::new(output, rows, embedding.cols()).expect("split with this length");
        self.job(a, embedding, Op::None, if add { 1.0 } else { 0.0 }).run((0, 0), Block::new(c));
    }

    fn job<'j>(&self, a: MatRef<'j>, b: MatRef<'j>, b_op: Op, beta: f32) -> Job<'j> {
        Job {
            simd: self.simd,
            alpha: 1.0,
            a,
            a_op: Op::None,
            row_map: None,
            first: 0,
            b: b.into(),
            b_op,
            depth: a.cols(),
            beta,
        }
    }

    /// Takes the targets out, raises the maxima, rescales what was summed before (`old` is O, if there is one)
    /// and replaces the logits by their exponentials.
    fn exponentials(
        &self,
        first: usize,
        targets: &[u32],
        states: &mut [RowState],
        (logits, length): (&mut [f32], usize),
        mut old: Option<&mut [f32]>,
    ) {
        let width = self.embedding.cols();
        for (row, (logits, state)) in logits.chunks_exact_mut(length).zip(states).enumerate() {
            let target = targets[row] as usize;
            if (first..first + length).contains(&target) {
                let logit = &mut logits[target - first];
                state.target = Some(*logit);
                *logit = f32::NEG_INFINITY;
            }
            let max = rows::max(self.simd, logits);
            if max > state.max {
                let factor = f64::from(state.max - max).exp();
                state.sum *= factor;
                state.max = max;
                if let Some(old) = old.as_deref_mut() {
                    rows::scale(self.simd, &mut old[row * width..][..width], factor as f32);
                }
            }
            // Where every logit so far is -inf (a target alone, say), there is nothing to subtract.
            let shift = if state.max == f32::NEG_INFINITY { 0.0 } else { state.max };
            state.sum += f64::from(rows::exp_sum(self.simd, logits, shift));
        }
    }
}

/// A row's terms from all chunks, and its target.
struct Joined {
    /// The larger of all m and l_y: what everything here is relative to.
    top: f64,
    target: f64,
    /// s, relative to `top`.
    sum: f64,
}

impl Joined {
    fn new(states: impl Iterator<Item = RowState> + Clone) -> Self {
        let target = states.clone().find_map(|state| state.target).map_or(f64::NAN, f64::from);
        let max = states
            .clone()
            .fold(f32::NEG_INFINITY, |max, state| if state.max > max { state.max } else { max });
        let top = if f64::from(max) > target { f64::from(max) } else { target };
        let mut joined = Self { top, target, sum: 0.0 };
        joined.sum = states.map(|state| state.sum * joined.weight(&state)).sum();
        joined
    }

    /// What a chunk's terms are multiplied by to be relative to `top`.
    fn weight(&self, state: &RowState) -> f64 {
        (f64::from(state.max) - self.top).exp()
    }

    /// The sum over the whole vocabulary, relative to `top`.
    fn total(&self) -> f64 {
        self.sum + (self.target - self.top).exp()
    }

    fn loss(&self) -> f64 {
        if self.target == self.top { self.sum.ln_1p() } else { (self.top - self.target) + self.total().ln() }
    }
}
