//! NF4: weights as 4-bit indices into a book of 16 values, with one scale for each block of consecutive
//! elements. The types stand here; [`code_book`](self) holds the tables, and quantising, double quantisation
//! and expansion have a file each.
//!
//! ```text
//! element    0   1   2   3   4   5 ...          block = element / block_size (rows run into each other)
//! byte       0       1       2     ...          element 2i in the high half, 2i + 1 in the low half
//! value      CODE[index] * scale(block)         one multiplication in f32
//! ```
//!
//! Bytes, scales and values equal those of bitsandbytes 0.50 bit for bit, but for the rounding of scales to 8
//! bits, where its CPU code takes a coarser way than its GPU code: here it is the nearest code (see
//! [`Scales::Double`]).

mod code_book;
mod dequantize;
mod double;
mod quantize;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

pub use code_book::{CODE, DYNAMIC_MAP, MIDPOINTS};

use crate::{Error, MatRef, Result, Threads};

/// Scales that share one maximum in double quantisation.
pub const SCALES_PER_BLOCK: usize = 256;

/// The scales of an NF4 matrix, one for each block of its elements: the largest magnitude in the block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scales<'a> {
    /// As they are.
    Plain(&'a [f32]),
    /// Double quantisation: scale `i` is `DYNAMIC_MAP[codes[i]] * block_absmax[i / 256] + offset`, multiplied,
    /// rounded, then added.
    Double {
        /// One index into [`DYNAMIC_MAP`] for each scale.
        codes: &'a [u8],
        /// For each [`SCALES_PER_BLOCK`] scales the largest distance from `offset`.
        block_absmax: &'a [f32],
        /// The mean of all scales. It is an `f32`: whoever reads it from a narrower type converts it.
        offset: f32,
    },
}

/// A borrowed NF4 matrix, stored row after row as `[rows, cols]`: the layout is part of the type, a product
/// with its transpose is another operation and not another view.
///
/// ```
/// use cpu_ops::{MatRef, Threads, nf4::Nf4Matrix};
///
/// let threads = Threads::new(1)?;
/// let weights: Vec<f32> = (0..128).map(|i| (i as f32 - 64.0) * 1e-3).collect();
/// let packed = Nf4Matrix::quantize(&threads, MatRef::new(&weights, 2, 64)?, 64, false)?;
/// assert_eq!(packed.bytes(), 64 + 2 * 4);
/// let mut restored = vec![0.0; 128];
/// packed.view().dequantize(&threads, &mut restored)?;
/// assert_eq!(restored[0], -0.064);
/// # Ok::<(), cpu_ops::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nf4<'a> {
    rows: usize,
    cols: usize,
    block_shift: u32,
    codes: &'a [u8],
    scales: Scales<'a>,
}

/// log2 of a supported block size.
fn block_shift(operation: &'static str, block_size: usize) -> Result<u32> {
    if block_size.is_power_of_two() && (32..=4096).contains(&block_size) {
        return Ok(block_size.trailing_zeros());
    }
    Err(Error::Unsupported {
        operation,
        parameter: "block_size",
        value: block_size.to_string(),
        supported: "a power of two from 32 to 4096 is needed",
    })
}

fn element_count(operation: &'static str, rows: usize, cols: usize) -> Result<usize> {
    rows.checked_mul(cols)
        .ok_or_else(|| Error::Layout { operation, what: format!("{rows} x {cols} elements overflow") })
}

fn expect_len(what: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Shape { operation: "Nf4::new", what, expected, found })
}

impl<'a> Nf4<'a> {
    /// A matrix of `rows * cols` elements over two elements per byte and one scale per `block_size` elements;
    /// the last block may be a partial one.
    ///
    /// # Errors
    /// A block size other than a power of two from 32 to 4096, or a slice with another number of elements than
    /// the shape needs.
    pub fn new(
        rows: usize,
        cols: usize,
        block_size: usize,
        codes: &'a [u8],
        scales: Scales<'a>,
    ) -> Result<Self> {
        let block_shift = block_shift("Nf4::new", block_size)?;
        let elements = element_count("Nf4::new", rows, cols)?;
        let blocks = elements.div_ceil(block_size);
        expect_len("number of code bytes", elements.div_ceil(2), codes.len())?;
        match scales {
            Scales::Plain(absmax) => expect_len("number of scales", blocks, absmax.len())?,
            Scales::Double { codes, block_absmax, .. } => {
                expect_len("number of scale codes", blocks, codes.len())?;
                let expected = blocks.div_ceil(SCALES_PER_BLOCK);
                expect_len("number of second-level scales", expected, block_absmax.len())?;
            }
        }
        Ok(Self { rows, cols, block_shift, codes, scales })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Elements of a block.
    pub fn block_size(&self) -> usize {
        1 << self.block_shift
    }
    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        (self.rows * self.cols).div_ceil(self.block_size())
    }
    /// The indices, two a byte, the first in the high half; the last byte of an odd number ends in 7.
    pub fn codes(&self) -> &'a [u8] {
        self.codes
    }
    /// The scales as stored.
    pub fn scales(&self) -> Scales<'a> {
        self.scales
    }

    /// The scale of one block.
    ///
    /// # Panics
    /// `block` is not below [`blocks`](Self::blocks).
    #[inline(always)]
    pub fn scale(&self, block: usize) -> f32 {
        match self.scales {
            Scales::Plain(absmax) => absmax[block],
            Scales::Double { codes, block_absmax, offset } => {
                DYNAMIC_MAP[codes[block] as usize] * block_absmax[block / SCALES_PER_BLOCK] + offset
            }
        }
    }
}

/// An NF4 matrix that owns its memory. It never changes: other values are another matrix, with scales of
/// their own.
#[derive(Debug, Clone, PartialEq)]
pub struct Nf4Matrix {
    rows: usize,
    cols: usize,
    block_size: usize,
    codes: Vec<u8>,
    scales: OwnedScales,
}

/// [`Scales`] that own their memory.
#[derive(Debug, Clone, PartialEq)]
enum OwnedScales {
    Plain(Vec<f32>),
    Double(double::DoubleScales),
}

impl Nf4Matrix {
    /// Quantises `values` in blocks of `block_size` consecutive elements, `double` with 8-bit scales.
    ///
    /// A full block is multiplied by `1 / max(absmax, 1e-38)`, a partial last one divided by its `absmax`
    /// (which is then at least 1e-38), and each element takes the nearest of [`CODE`], on a border the lower
    /// index.
    ///
    /// # Errors
    /// A block size other than a power of two from 32 to 4096; a value that is NaN or infinite (the first one
    /// is named by its row-major index); scales so large that 8 bits would restore one as infinite.
    pub fn quantize(threads: &Threads, values: MatRef<'_>, block_size: usize, double: bool) -> Result<Self> {
        let (rows, cols) = (values.rows(), values.cols());
        block_shift("Nf4Matrix::quantize", block_size)?;
        element_count("Nf4Matrix::quantize", rows, cols)?;
        let (codes, absmax) = quantize::quantize(threads, values, block_size)?;
        let scales = if double {
            OwnedScales::Double(double::quantize_scales(threads, &absmax, double::mean(&absmax))?)
        } else {
            OwnedScales::Plain(absmax)
        };
        Ok(Self { rows, cols, block_size, codes, scales })
    }

    /// The matrix to compute with.
    pub fn view(&self) -> Nf4<'_> {
        let scales = match &self.scales {
            OwnedScales::Plain(absmax) => Scales::Plain(absmax),
            OwnedScales::Double(d) => {
                Scales::Double { codes: &d.codes, block_absmax: &d.block_absmax, offset: d.offset }
            }
        };
        Nf4 {
            rows: self.rows,
            cols: self.cols,
            block_shift: self.block_size.trailing_zeros(),
            codes: &self.codes,
            scales,
        }
    }

    /// Bytes that codes and scales take.
    pub fn bytes(&self) -> usize {
        self.codes.len()
            + match &self.scales {
                OwnedScales::Plain(absmax) => size_of_val(&absmax[..]),
                OwnedScales::Double(d) => d.codes.len() + size_of_val(&d.block_absmax[..]) + size_of::<f32>(),
            }
    }
}
