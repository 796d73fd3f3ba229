//! The registers of one warp: three files of slots, each slot 32 lanes wide.
//!
//! Every operation computes all 32 lanes and then keeps those of the active mask. Results go
//! through a local array first, so that sources may be read in place whatever the destination is,
//! and the loops have a fixed length that the compiler turns into vector code.

use crate::ptx::code::Inst;

/// Lanes of a warp.
pub const LANES: usize = 32;
/// All lanes active.
pub const FULL: u32 = u32::MAX;
/// What an unwritten register holds: a NaN whose bits are easy to recognise.
pub const POISON_WORD: u32 = 0xffff_dead;

/// A word register: the low bits of 32 lanes.
pub type Words = [u32; LANES];
/// A 64-bit register.
pub type Doubles = [u64; LANES];

/// The register files of a warp.
#[derive(Clone, Debug, Default)]
pub struct Registers {
    /// Registers of up to 32 bits.
    pub w: Vec<Words>,
    /// Registers of 64 bits.
    pub d: Vec<Doubles>,
    /// Predicates.
    pub p: Vec<u32>,
    /// The carry flag of `add.cc` and its kin.
    pub carry: u32,
}

impl Registers {
    /// Writes the lanes of `mask`; a slot outside the file (the discarded destination) takes nothing.
    #[inline(always)]
    pub fn put_w(&mut self, slot: u16, values: &Words, mask: u32) {
        if let Some(d) = self.w.get_mut(slot as usize) {
            if mask == FULL {
                *d = *values;
            } else {
                for l in 0..LANES {
                    let keep = ((mask >> l) & 1).wrapping_neg();
                    d[l] = (values[l] & keep) | (d[l] & !keep);
                }
            }
        }
    }

    /// As [`Self::put_w`] for 64-bit registers.
    #[inline(always)]
    pub fn put_d(&mut self, slot: u16, values: &Doubles, mask: u32) {
        if let Some(d) = self.d.get_mut(slot as usize) {
            if mask == FULL {
                *d = *values;
            } else {
                for l in 0..LANES {
                    let keep = u64::from((mask >> l) & 1).wrapping_neg();
                    d[l] = (values[l] & keep) | (d[l] & !keep);
                }
            }
        }
    }

    /// As [`Self::put_w`] for predicates.
    #[inline(always)]
    pub fn put_p(&mut self, slot: u16, bits: u32, mask: u32) {
        if let Some(p) = self.p.get_mut(slot as usize) {
            *p = (*p & !mask) | (bits & mask);
        }
    }

    /// A word from one word.
    #[inline(always)]
    pub fn w1(&mut self, i: &Inst, mask: u32, f: impl Fn(u32) -> u32) {
        let a = &self.w[i.a as usize];
        let mut t = [0; LANES];
        for l in 0..LANES {
            t[l] = f(a[l]);
        }
        self.put_w(i.d, &t, mask);
    }

    /// A word from two words.
    #[inline(always)]
    pub fn w2(&mut self, i: &Inst, mask: u32, f: impl Fn(u32, u32) -> u32) {
        let (a, b) = (&self.w[i.a as usize], &self.w[i.b as usize]);
        let mut t = [0; LANES];
        for l in 0..LANES {
            t[l] = f(a[l], b[l]);
        }
        self.put_w(i.d, &t, mask);
    }

    /// A word from three words.
    #[inline(always)]
    pub fn w3(&mut self, i: &Inst, mask: u32, f: impl Fn(u32, u32, u32) -> u32) {
        let (a, b, c) = (&self.w[i.a as usize], &self.w[i.b as usize], &self.w[i.c as usize]);
        let mut t = [0; LANES];
        for l in 0..LANES {
            t[l] = f(a[l], b[l], c[l]);
        }
        self.put_w(i.d, &t, mask);
    }

    /// A double from one double.
    #[inline(always)]
    pub fn d1(&mut self, i: &Inst, mask: u32, f: impl Fn(u64) -> u64) {
        let a = &self.d[i.a as usize];
        let mut t = [0; LANES];
        for l in 0..LANES {
            t[l] = f(a[l]);
        }
        self.put_d(i.d, &t, mask);
    }

    /// A double from two doubles.
    #[inline(always)]
    pub fn d2(&mut self, i: &Inst, mask: u32, f: impl Fn(u64, u64) -> u64) {
        let (a, b) = (&self.d[i.a as usize], &self.d[i.b as usize]);
        let mut t = [0; LANES];
        for l in 0..LANES {
            t[l] = f(a[l], b[l]);
        }
        self.put_d(i.d, &t, mask);
    }

    /// A double from three doubles.
    #[inline(always)]
    pub fn d3(&mut self, i: &Inst, mask: u32, f: impl Fn(u64, u64, u64) -> u64) {
        let (a, b, c) = (&self.d[i.a as usize], &self.d[i.b as usize], &self.d[i.c as usize]);
        let mut t = [0; LANES];
        for l in 0..LANES {
            t[l] = f(a[l], b[l], c[l]);
        }
        self.put_d(i.d, &t, mask);
    }

    /// A double from a double and a word (shifts).
    #[inline(always)]
    pub fn dw2(&mut self, i: &Inst, mask: u32, f: impl Fn(u64, u32) -> u64) {
        let (a, b) = (&self.d[i.a as usize], &self.w[i.b as usize]);
        let mut t = [0; LANES];
        for l in 0..LANES {
            t[l] = f(a[l], b[l]);
        }
        self.put_d(i.d, &t, mask);
    }

    /// A double from a word.
    #[inline(always)]
    pub fn dw1(&mut self, i: &Inst, mask: u32, f: impl Fn(u32) -> u64) {
        let a = &self.w[i.a as usize];
        let mut t = [0; LANES];
        for l in 0..LANES {
            t[l] = f(a[l]);
        }
        self.put_d(i.d, &t, mask);
    }

    /// A double from two words.
    #[inline(always)]
    pub fn dww(&mut self, i: &Inst, mask: u32, f: impl Fn(u32, u32) -> u64) {
        let (a, b) = (&self.w[i.a as usize], &self.w[i.b as usize]);
        let mut t = [0; LANES];
        for l in 0..LANES {
            t[l] = f(a[l], b[l]);
        }
        self.put_d(i.d, &t, mask);
    }

    /// A double from two words and a double.
    #[inline(always)]
    pub fn dwwd(&mut self, i: &Inst, mask: u32, f: impl Fn(u32, u32, u64) -> u64) {
        let (a, b, c) = (&self.w[i.a as usize], &self.w[i.b as usize], &self.d[i.c as usize]);
        let mut t = [0; LANES];
        for l in 0..LANES {
            t[l] = f(a[l], b[l], c[l]);
        }
        self.put_d(i.d, &t, mask);
    }

    /// A word from a double.
    #[inline(always)]
    pub fn wd1(&mut self, i: &Inst, mask: u32, f: impl Fn(u64) -> u32) {
        let a = &self.d[i.a as usize];
        let mut t = [0; LANES];
        for l in 0..LANES {
            t[l] = f(a[l]);
        }
        self.put_w(i.d, &t, mask);
    }

    /// A mask from two words.
    #[inline(always)]
    pub fn test_w(&self, i: &Inst, f: impl Fn(u32, u32) -> bool) -> u32 {
        let (a, b) = (&self.w[i.a as usize], &self.w[i.b as usize]);
        let mut bits = 0;
        for l in 0..LANES {
            bits |= u32::from(f(a[l], b[l])) << l;
        }
        bits
    }

    /// A mask from two doubles.
    #[inline(always)]
    pub fn test_d(&self, i: &Inst, f: impl Fn(u64, u64) -> bool) -> u32 {
        let (a, b) = (&self.d[i.a as usize], &self.d[i.b as usize]);
        let mut bits = 0;
        for l in 0..LANES {
            bits |= u32::from(f(a[l], b[l])) << l;
        }
        bits
    }
}
