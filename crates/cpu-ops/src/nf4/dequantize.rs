//! NF4 to f32, f16 and bf16.
//!
//! Within a block only 16 values exist: `CODE[i] * scale`, rounded to the wanted type. They are computed once
//! for each block, and an element is a lookup. That is the same arithmetic as multiplying every element, so
//! the bits do not depend on it.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::Nf4;
use super::code_book::CODE;
use crate::simd::Simd;
use crate::{Error, Result, Threads, cast};

/// Elements of a task; even, so that no two tasks share a byte.
const CHUNK: usize = 1 << 16;

impl Nf4<'_> {
    /// Writes all elements, row-major, as f32.
    ///
    /// # Errors
    /// `out` has another length than `rows * cols`.
    pub fn dequantize(&self, threads: &Threads, out: &mut [f32]) -> Result<()> {
        self.check_out("Nf4::dequantize", out.len())?;
        threads.run_on(out.chunks_mut(CHUNK).collect(), |task, out| self.expand_run(task * CHUNK, out));
        Ok(())
    }

    /// Writes all elements, row-major, as f16, rounded to the nearest, ties to even. Returns how many became
    /// infinite.
    ///
    /// # Errors
    /// `out` has another length than `rows * cols`.
    pub fn dequantize_f16(&self, threads: &Threads, out: &mut [f16]) -> Result<usize> {
        self.check_out("Nf4::dequantize_f16", out.len())?;
        Ok(self.expand_halves(threads, out.reinterpret_cast_mut(), HalfType::F16))
    }

    /// Writes all elements, row-major, as bf16, rounded to the nearest, ties to even. Returns how many became
    /// infinite.
    ///
    /// # Errors
    /// `out` has another length than `rows * cols`.
    pub fn dequantize_bf16(&self, threads: &Threads, out: &mut [bf16]) -> Result<usize> {
        self.check_out("Nf4::dequantize_bf16", out.len())?;
        Ok(self.expand_halves(threads, out.reinterpret_cast_mut(), HalfType::Bf16))
    }

    /// Writes the elements `start..start + out.len()` of the row-major order.
    ///
    /// # Panics
    /// The run reaches beyond the matrix.
    pub(crate) fn expand_run(&self, start: usize, out: &mut [f32]) {
        self.expand_run_with(Simd::detect(), start, out);
    }

    /// [`expand_run`](Self::expand_run) on a chosen path.
    pub(super) fn expand_run_with(&self, simd: Simd, start: usize, out: &mut [f32]) {
        match simd {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512(proof) => super::avx512::expand_run(proof, self, start, out),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2(proof) => super::avx2::expand_run(proof, self, start, out),
            _ => self.for_each_block(start, out, |scale, at, out| {
                let table = CODE.map(|code| code * scale);
                expand_block(self.codes, &table, at, out);
            }),
        }
    }

    fn check_out(&self, operation: &'static str, found: usize) -> Result<()> {
        let expected = self.rows * self.cols;
        if expected == found {
            return Ok(());
        }
        Err(Error::Shape { operation, what: "length of the output", expected, found })
    }

    fn expand_halves(&self, threads: &Threads, out: &mut [u16], to: HalfType) -> usize {
        let simd = Simd::detect();
        let mut overflows = vec![0; out.len().div_ceil(CHUNK)];
        let parts = out.chunks_mut(CHUNK).zip(&mut overflows).collect();
        threads.run_on(parts, |task, (out, overflows): (_, &mut usize)| {
            *overflows = self.expand_halves_run(simd, task * CHUNK, out, to);
        });
        overflows.iter().sum()
    }

    /// One task of the 16-bit expansion; returns how many elements became infinite.
    pub(super) fn expand_halves_run(&self, simd: Simd, start: usize, out: &mut [u16], to: HalfType) -> usize {
        #[cfg(target_arch = "x86_64")]
        if let Simd::Avx512(proof) = simd {
            return super::avx512::expand_halves(proof, self, start, out, to);
        }
        let mut overflows = 0;
        self.for_each_block(start, out, |scale, at, out| {
            let mut table = [0; 16];
            to.narrow(simd, &CODE.map(|code| code * scale), &mut table);
            match simd {
                #[cfg(target_arch = "x86_64")]
                Simd::Avx2(proof) => super::avx2::expand_halves(proof, self.codes, &table, at, out),
                _ => expand_block(self.codes, &table, at, out),
            }
            if table.iter().any(|&bits| to.is_infinite(bits)) {
                overflows += out.iter().filter(|&&bits| to.is_infinite(bits)).count();
            }
        });
        overflows
    }

    /// Cuts the run into its blocks and hands out each with its scale and its first element's index.
    #[inline(always)]
    pub(super) fn for_each_block<T>(
        &self,
        start: usize,
        out: &mut [T],
        mut expand: impl FnMut(f32, usize, &mut [T]),
    ) {
        assert!(
            start.checked_add(out.len()).is_some_and(|end| end <= self.rows * self.cols),
            "elements {start}.. of {} x {}: {} asked for",
            self.rows,
            self.cols,
            out.len()
        );
        let (mut at, mut out) = (start, out);
        while !out.is_empty() {
            let block = at >> self.block_shift;
            let count = (((block + 1) << self.block_shift) - at).min(out.len());
            let (run, rest) = out.split_at_mut(count);
            expand(self.scale(block), at, run);
            at += count;
            out = rest;
        }
    }
}

/// A 16-bit type to expand to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum HalfType {
    F16,
    Bf16,
}

impl HalfType {
    fn narrow(self, simd: Simd, wide: &[f32], narrow: &mut [u16]) {
        match self {
            Self::F16 => cast::narrow_f16(simd, wide, narrow),
            Self::Bf16 => cast::narrow_bf16(simd, wide, narrow),
        };
    }

    /// The bits of infinity.
    pub(super) fn infinity(self) -> u16 {
        match self {
            Self::F16 => 0x7c00,
            Self::Bf16 => 0x7f80,
        }
    }

    /// Whether these bits are an infinity of either sign.
    pub(super) fn is_infinite(self, bits: u16) -> bool {
        bits & 0x7fff == self.infinity()
    }
}

/// Looks the elements from `at` on up in their block's table.
#[inline(always)]
pub(super) fn expand_block<T: Copy>(codes: &[u8], table: &[T; 16], at: usize, out: &mut [T]) {
    let out = if at % 2 == 1 {
        let (first, rest) = out.split_first_mut().expect("a block's run is not empty");
        *first = table[(codes[at / 2] & 15) as usize];
        rest
    } else {
        out
    };
    let codes = &codes[at.div_ceil(2)..][..out.len().div_ceil(2)];
    let (pairs, last) = out.as_chunks_mut::<2>();
    for (pair, &code) in pairs.iter_mut().zip(codes) {
        *pair = [table[(code >> 4) as usize], table[(code & 15) as usize]];
    }
    if let ([last], Some(code)) = (last, codes.last()) {
        *last = table[(code >> 4) as usize];
    }
}
