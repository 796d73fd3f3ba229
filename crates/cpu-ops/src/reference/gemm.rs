//! Oracle of [`crate::gemm::gemm`]: three loops in f64.

use crate::MatRef;
use crate::gemm::{Factor, Op, Operand};
use crate::nf4::{CODE, Nf4};

/// What a product should be, and how large the numbers were that it was added up from.
#[derive(Debug, Clone, PartialEq)]
pub struct Product {
    /// `alpha * sum + beta * c`, row-major.
    pub values: Vec<f64>,
    /// `|alpha| * sum |a b| + |beta c|`, row-major: what a rounding error bound is relative to.
    pub magnitudes: Vec<f64>,
}

/// An element of a stored matrix, exactly.
pub fn element(matrix: &Operand<'_>, row: usize, col: usize) -> f64 {
    match matrix {
        Operand::F32(m) => f64::from(m.row(row)[col]),
        Operand::F16(m) => m.row(row)[col].to_f64(),
        Operand::Bf16(m) => m.row(row)[col].to_f64(),
        Operand::Nf4(m) => f64::from(nf4_element(m, row, col)),
    }
}

/// An element of an NF4 matrix: its code times the scale of its block, rounded to f32.
fn nf4_element(matrix: &Nf4<'_>, row: usize, col: usize) -> f32 {
    let at = row * matrix.cols() + col;
    let pair = matrix.codes()[at / 2];
    let index = if at.is_multiple_of(2) { pair >> 4 } else { pair & 15 };
    CODE[usize::from(index)] * matrix.scale(at / matrix.block_size())
}

/// `alpha op(A) op(B) + beta C`, with A [rows, inner], B [inner, cols] and C [rows, cols]. `beta = 0` leaves C
/// out. The sizes must fit.
pub fn gemm(alpha: f32, a: Factor<MatRef<'_>>, b: Factor<Operand<'_>>, beta: f32, c: MatRef<'_>) -> Product {
    let a_matrix = Operand::F32(a.matrix);
    let inner = if a.op == Op::None { a.matrix.cols() } else { a.matrix.rows() };
    let at = |matrix: &Operand<'_>, op: Op, row: usize, col: usize| match op {
        Op::None => element(matrix, row, col),
        Op::Transpose => element(matrix, col, row),
    };
    let (mut values, mut magnitudes) = (Vec::new(), Vec::new());
    for row in 0..c.rows() {
        for col in 0..c.cols() {
            let (mut sum, mut magnitude) = (0.0, 0.0);
            for p in 0..inner {
                let term = at(&a_matrix, a.op, row, p) * at(&b.matrix, b.op, p, col);
                sum += term;
                magnitude += term.abs();
            }
            let old = if beta == 0.0 { 0.0 } else { f64::from(beta) * f64::from(c.row(row)[col]) };
            values.push(f64::from(alpha) * sum + old);
            magnitudes.push(f64::from(alpha.abs()) * magnitude + old.abs());
        }
    }
    Product { values, magnitudes }
}
