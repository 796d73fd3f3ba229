//! The head of a language model: the product with the token embedding `[vocab, hidden]`, its gradient, and
//! the loss that needs no logits matrix.

mod cross_entropy;
mod rows;
#[cfg(test)]
mod tests;

pub use cross_entropy::cross_entropy;

use crate::gemm::output::Block;
use crate::gemm::product::Job;
use crate::gemm::{self, Op, Operand};
use crate::simd::Simd;
use crate::{Error, MatMut, MatRef, Result, Threads};

/// The gradient of the head's input: `grad_hidden = grad_logits · embedding`, with grad_logits
/// [rows, vocab], embedding [vocab, hidden] and grad_hidden [rows, hidden].
///
/// Rows for which `unsupervised` is true are not read and come out as zeros; an empty slice means that all
/// rows count. Values that happen to be zero are multiplied like any other, so a NaN in the embedding is
/// never hidden.
///
/// ```
/// use cpu_ops::{MatMut, MatRef, Threads, lm_head};
/// let grad_logits = MatRef::new(&[1.0, -1.0, 9.0, 9.0], 2, 2)?;
/// let embedding = MatRef::new(&[1.0, 2.0, 3.0, 5.0, 7.0, 11.0], 2, 3)?;
/// let mut grad_hidden = [f32::NAN; 6];
/// let out = MatMut::new(&mut grad_hidden, 2, 3)?;
/// lm_head::backward(&Threads::new(1)?, grad_logits, embedding.into(), &[false, true], out)?;
/// assert_eq!(grad_hidden, [-4.0, -5.0, -8.0, 0.0, 0.0, 0.0]);
/// # Ok::<(), cpu_ops::Error>(())
/// ```
///
/// # Errors
/// The sizes do not fit each other.
pub fn backward(
    threads: &Threads,
    grad_logits: MatRef<'_>,
    embedding: Operand<'_>,
    unsupervised: &[bool],
    mut grad_hidden: MatMut<'_>,
) -> Result<()> {
    let operation = "lm_head::backward";
    let rows = grad_logits.rows();
    for (what, expected, found) in [
        ("rows of embedding", grad_logits.cols(), embedding.rows()),
        ("rows of grad_hidden", rows, grad_hidden.rows()),
        ("columns of grad_hidden", embedding.cols(), grad_hidden.cols()),
        ("length of unsupervised", if unsupervised.is_empty() { 0 } else { rows }, unsupervised.len()),
    ] {
        if expected != found {
            return Err(Error::Shape { operation, what, expected, found });
        }
    }
    let job = Job {
        simd: Simd::detect(),
        alpha: 1.0,
        a: grad_logits,
        a_op: Op::None,
        row_map: None,
        first: 0,
        b: embedding,
        b_op: Op::None,
        depth: grad_logits.cols(),
        beta: 0.0,
    };
    if !unsupervised.contains(&true) {
        gemm::run(threads, &job, Block::new(grad_hidden));
        return Ok(());
    }
    let supervised: Vec<usize> = (0..rows).filter(|&row| !unsupervised[row]).collect();
    let hidden = embedding.cols();
    let mut compact = vec![0f32; supervised.len() * hidden];
    let out = MatMut::new(&mut compact, supervised.len(), hidden)?;
    gemm::run(threads, &Job { row_map: Some(&supervised), ..job }, Block::new(out));
    (0..rows).for_each(|row| grad_hidden.row_mut(row).fill(0.0));
    for (index, &row) in supervised.iter().enumerate() {
        grad_hidden.row_mut(row).copy_from_slice(&compact[index * hidden..][..hidden]);
    }
    Ok(())
}
