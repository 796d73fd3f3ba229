//! The products themselves.
//!
//! Matrices are column-major: element (i, j) of a matrix with leading dimension ld is at i + j ld.
//!
//! ```text
//! 1. for each product of the batch
//! 2.   read op(A) as rows of m x k and op(B) as columns of k x n, widened to f64
//! 3.   for each column j of C
//! 4.     for each p in 0..k: sum[0..m] += A[.., p] * B[p, j]
//! 5.     C[.., j] = alpha * sum + beta * C[.., j], rounded once
//! ```
//!
//! Sums are in f64, so a result is the exact one rounded to C's type up to f64's own error. cuBLAS sums in
//! binary32 (or the compute type) in an order of its own: compare by bound.

use crate::driver::state::{Driver, Handle};
use crate::exec::numeric::{BF16, F16, F32, f16_to_f32, narrow};
use crate::exec::{Fault, ILLEGAL_ADDRESS, LAUNCH_FAILED};
use crate::memory::BadAccess;
use crate::ptx::code::Round;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Element {
    F16,
    Bf16,
    F32,
    F64,
}

impl Element {
    /// From `cudaDataType_t`.
    pub fn from_code(code: i32) -> Option<Self> {
        match code {
            0 => Some(Self::F32),
            1 => Some(Self::F64),
            2 => Some(Self::F16),
            14 => Some(Self::Bf16),
            _ => None,
        }
    }

    /// Bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    fn value(self, bytes: &[u8]) -> f64 {
        match self {
            Self::F16 => {
                f64::from(f32::from_bits(f16_to_f32(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])))))
            }
            Self::Bf16 => {
                f64::from(f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16))
            }
            Self::F32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            Self::F64 => {
                let mut eight = [0; 8];
                eight.copy_from_slice(&bytes[..8]);
                f64::from_le_bytes(eight)
            }
        }
    }

    fn store(self, value: f64, out: &mut Vec<u8>) {
        match self {
            Self::F16 => out.extend_from_slice(&(narrow(value, F16, Round::Near) as u16).to_le_bytes()),
            Self::Bf16 => out.extend_from_slice(&(narrow(value, BF16, Round::Near) as u16).to_le_bytes()),
            Self::F32 => out.extend_from_slice(&narrow(value, F32, Round::Near).to_le_bytes()),
            Self::F64 => out.extend_from_slice(&value.to_le_bytes()),
        }
    }
}

/// A scalar argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// Read at the call.
    Value(f64),
    /// Read on the device when the work runs.
    Device(u64, Element),
}

/// A matrix operand.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Address.
    pub at: u64,
    /// Type.
    pub element: Element,
    /// Leading dimension.
    pub ld: usize,
    /// Elements from one matrix of a batch to the next.
    pub stride: i64,
    /// Transposed.
    pub transposed: bool,
}

/// What to compute.
#[derive(Clone, Debug)]
pub enum Operation {
    /// C = alpha op(A) op(B) + beta C.
    Gemm {
        /// Rows of C, columns of C, depth.
        shape: [usize; 3],
        /// Products.
        batch: usize,
        /// Factor.
        alpha: Scalar,
        /// A, B and C.
        matrices: [Matrix; 3],
        /// Factor of C.
        beta: Scalar,
    },
    /// y = alpha op(A) x + beta y.
    Gemv {
        /// Rows and columns of A as stored.
        shape: [usize; 2],
        /// Factor.
        alpha: Scalar,
        /// A.
        a: Matrix,
        /// Address and step of x.
        x: (u64, i64),
        /// Factor of y.
        beta: Scalar,
        /// Address and step of y.
        y: (u64, i64),
    },
    /// result = sum |x|.
    Asum {
        /// Elements.
        n: usize,
        /// Type.
        element: Element,
        /// Address and step of x.
        x: (u64, i64),
        /// Where the result goes: device or pinned memory.
        result: u64,
    },
}

/// A product, ready to run.
#[derive(Clone, Debug)]
pub struct Product {
    /// Its cuBLAS function, for messages.
    pub name: &'static str,
    /// The handle it was called on.
    pub handle: Handle,
    /// The workspace that it uses.
    pub workspace: Option<(u64, u64)>,
    /// What it does.
    pub operation: Operation,
}

struct Reader<'a> {
    driver: &'a mut Driver,
    name: &'static str,
}

impl Reader<'_> {
    fn fault(&self, what: &str, bad: BadAccess) -> Fault {
        match bad {
            BadAccess::Address(text) => {
                Fault { code: ILLEGAL_ADDRESS, message: format!("{}: {what}: {text}", self.name) }
            }
            BadAccess::Uninitialised(text) => Fault {
                code: LAUNCH_FAILED,
                message: format!("{}: {what} has elements that nothing has written: {text}", self.name),
            },
        }
    }

    fn bytes(&mut self, at: u64, len: usize, what: &str) -> Result<Vec<u8>, Fault> {
        let mut out = vec![0; len];
        let check = self.driver.config.exec.uninitialised;
        self.driver.memory.read(at, &mut out, check).map_err(|bad| self.fault(what, bad))?;
        Ok(out)
    }

    /// A column-major matrix of `rows` x `columns` as columns of f64, each contiguous.
    fn matrix(
        &mut self,
        m: &Matrix,
        rows: usize,
        columns: usize,
        number: usize,
        what: &str,
    ) -> Result<Vec<f64>, Fault> {
        let size = m.element.bytes();
        let start = m.at.wrapping_add_signed(m.stride * number as i64 * size as i64);
        let mut out = Vec::with_capacity(rows * columns);
        for j in 0..columns {
            let column = self.bytes(start + (j * m.ld * size) as u64, rows * size, what)?;
            out.extend(column.chunks_exact(size).map(|c| m.element.value(c)));
        }
        Ok(out)
    }

    fn scalar(&mut self, s: Scalar) -> Result<f64, Fault> {
        match s {
            Scalar::Value(v) => Ok(v),
            Scalar::Device(at, element) => Ok(element.value(&self.bytes(at, element.bytes(), "a scalar")?)),
        }
    }

    fn vector(
        &mut self,
        (at, step): (u64, i64),
        n: usize,
        element: Element,
        what: &str,
    ) -> Result<Vec<f64>, Fault> {
        let size = element.bytes() as i64;
        // A negative step walks back from the last element, as BLAS has it.
        let first = if step < 0 { (1 - n as i64) * step } else { 0 };
        (0..n as i64)
            .map(|i| {
                let bytes =
                    self.bytes(at.wrapping_add_signed((first + i * step) * size), size as usize, what)?;
                Ok(element.value(&bytes))
            })
            .collect()
    }

    fn write(&mut self, at: u64, data: &[u8], what: &str) -> Result<(), Fault> {
        self.driver.memory.write(at, data).map_err(|bad| self.fault(what, bad))
    }
}

fn transpose(x: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    let mut out = vec![0.0; x.len()];
    for j in 0..columns {
        for i in 0..rows {
            out[i * columns + j] = x[j * rows + i];
        }
    }
    out
}

impl Product {
    /// Computes it.
    ///
    /// # Errors
    /// Memory that is not there, and operands that nothing has written.
    pub fn run(&self, driver: &mut Driver) -> Result<(), Fault> {
        if let Some((at, len)) = self.workspace
            && !driver.memory.holds(at, len)
        {
            let what = driver.memory.describe(at);
            return Err(Fault {
                code: ILLEGAL_ADDRESS,
                message: format!("{}: the workspace of {len} bytes at {what} is gone", self.name),
            });
        }
        let mut r = Reader { driver, name: self.name };
        match &self.operation {
            Operation::Gemm { shape, batch, alpha, matrices, beta } => {
                let (alpha, beta) = (r.scalar(*alpha)?, r.scalar(*beta)?);
                (0..*batch).try_for_each(|number| gemm(&mut r, *shape, alpha, matrices, beta, number))
            }
            Operation::Gemv { shape: [rows, columns], alpha, a, x, beta, y } => {
                let (alpha, beta) = (r.scalar(*alpha)?, r.scalar(*beta)?);
                let values = r.matrix(a, *rows, *columns, 0, "A")?;
                let (n_in, n_out) = if a.transposed { (*rows, *columns) } else { (*columns, *rows) };
                let x = r.vector(*x, n_in, a.element, "x")?;
                let old = if beta == 0.0 { vec![0.0; n_out] } else { r.vector(*y, n_out, a.element, "y")? };
                for (i, old) in old.iter().enumerate() {
                    let sum: f64 = (0..n_in)
                        .map(|j| {
                            x[j] * if a.transposed { values[i * rows + j] } else { values[j * rows + i] }
                        })
                        .sum();
                    let first = if y.1 < 0 { (1 - n_out as i64) * y.1 } else { 0 };
                    let mut out = Vec::new();
                    a.element.store(alpha * sum + beta * old, &mut out);
                    let offset = (first + i as i64 * y.1) * a.element.bytes() as i64;
                    r.write(y.0.wrapping_add_signed(offset), &out, "y")?;
                }
                Ok(())
            }
            Operation::Asum { n, element, x, result } => {
                let sum = r.vector(*x, *n, *element, "x")?.iter().map(|v| v.abs()).sum();
                let mut out = Vec::new();
                element.store(sum, &mut out);
                r.write(*result, &out, "the result")
            }
        }
    }
}

fn gemm(
    r: &mut Reader<'_>,
    [m, n, k]: [usize; 3],
    alpha: f64,
    [ma, mb, mc]: &[Matrix; 3],
    beta: f64,
    number: usize,
) -> Result<(), Fault> {
    // A as columns of length m: column p is A[.., p].
    let a = if ma.transposed {
        transpose(&r.matrix(ma, k, m, number, "A")?, k, m)
    } else {
        r.matrix(ma, m, k, number, "A")?
    };
    let b = if mb.transposed {
        transpose(&r.matrix(mb, n, k, number, "B")?, n, k)
    } else {
        r.matrix(mb, k, n, number, "B")?
    };
    // C is not read where beta is zero: it may hold anything.
    let c = if beta == 0.0 { vec![0.0; m * n] } else { r.matrix(mc, m, n, number, "C")? };
    let size = mc.element.bytes();
    let start = mc.at.wrapping_add_signed(mc.stride * number as i64 * size as i64);
    let mut sum = vec![0.0f64; m];
    for j in 0..n {
        sum.fill(0.0);
        for p in 0..k {
            let factor = b[j * k + p];
            for (s, x) in sum.iter_mut().zip(&a[p * m..(p + 1) * m]) {
                *s += factor * x;
            }
        }
        let mut out = Vec::with_capacity(m * size);
        for (s, old) in sum.iter().zip(&c[j * m..(j + 1) * m]) {
            mc.element.store(alpha * s + if beta == 0.0 { 0.0 } else { beta * old }, &mut out);
        }
        r.write(start + (j * mc.ld * size) as u64, &out, "C")?;
    }
    Ok(())
}
