//! `mma.sync`: D = A B + C for fragments spread over the lanes of a warp.
//!
//! Fragment layout (PTX ISA, "Matrix fragments for mma.m16n8k8 / m16n8k16"), with g = lane / 4 and
//! t = lane % 4, element pairs packed low half first:
//!
//! ```text
//! A  register 0: row g,     columns 2t, 2t+1        register 1: row g + 8, columns 2t, 2t+1
//!    register 2: row g,     columns 2t+8, 2t+9      register 3: row g + 8, columns 2t+8, 2t+9   (k = 16)
//! B  register 0: rows 2t, 2t+1, column g            register 1: rows 2t+8, 2t+9, column g       (k = 16)
//! C  registers 0, 1: row g, columns 2t, 2t+1        registers 2, 3: row g + 8, columns 2t, 2t+1
//! ```
//!
//! Products of 16-bit floats are exact in f64; they are summed there in the order of k, C first, and
//! rounded once. Hardware sums in an order and with a width of its own that PTX leaves open, so results
//! compare by bound, not bit.

use super::block::Context;
use super::numeric::{F16, F32, f16_to_f32, narrow};
use super::registers::LANES;
use super::warp::Warp;
use super::{Fault, LAUNCH_FAILED};
use crate::ptx::code::{HalfFormat, Inst, Round};

const M: usize = 16;
const N: usize = 8;

impl Warp {
    pub(super) fn mma(&mut self, c: &Context<'_>, inst: &Inst, mask: u32) -> Result<(), Fault> {
        if mask != u32::MAX {
            let lane = mask.trailing_zeros() as usize;
            return Err(self.lane_fault(
                c,
                LAUNCH_FAILED,
                inst,
                lane,
                "mma.sync needs all 32 lanes together",
            ));
        }
        let m = c.kernel.multiplies[inst.x as usize];
        let r = &self.registers;
        let value = |bits: u32| {
            f64::from(f32::from_bits(match m.format {
                HalfFormat::F16 => f16_to_f32(bits & 0xffff),
                HalfFormat::Bf16 => bits << 16,
            }))
        };
        let mut a = [[0f64; 16]; M];
        let mut b = [[0f64; N]; 16];
        let mut sum = [[0f64; N]; M];
        for l in 0..LANES {
            let (g, t) = (l / 4, l % 4);
            for register in 0..m.k / 4 {
                let bits = r.w[m.a[register] as usize][l];
                let (row, column) = (g + 8 * (register % 2), 2 * t + 8 * (register / 2));
                a[row][column] = value(bits);
                a[row][column + 1] = value(bits >> 16);
            }
            for register in 0..m.k / 8 {
                let bits = r.w[m.b[register] as usize][l];
                let row = 2 * t + 8 * register;
                b[row][g] = value(bits);
                b[row + 1][g] = value(bits >> 16);
            }
            for half in 0..2 {
                let (row, column) = (g + 8 * half, 2 * t);
                if m.half_result {
                    let bits = r.w[m.c[half] as usize][l];
                    sum[row][column] = f64::from(f32::from_bits(f16_to_f32(bits & 0xffff)));
                    sum[row][column + 1] = f64::from(f32::from_bits(f16_to_f32(bits >> 16)));
                } else {
                    sum[row][column] = f64::from(f32::from_bits(r.w[m.c[2 * half] as usize][l]));
                    sum[row][column + 1] = f64::from(f32::from_bits(r.w[m.c[2 * half + 1] as usize][l]));
                }
            }
        }
        for (row, sums) in a.iter().zip(&mut sum) {
            for (factor, others) in row.iter().zip(&b).take(m.k) {
                for (s, other) in sums.iter_mut().zip(others) {
                    *s += factor * other;
                }
            }
        }
        for half in 0..2 {
            let at = |l: usize, column: usize| sum[l / 4 + 8 * half][2 * (l % 4) + column];
            if m.half_result {
                let t: [u32; LANES] = std::array::from_fn(|l| {
                    narrow(at(l, 0), F16, Round::Near) | narrow(at(l, 1), F16, Round::Near) << 16
                });
                self.registers.put_w(m.d[half], &t, mask);
            } else {
                for column in 0..2 {
                    let t: [u32; LANES] = std::array::from_fn(|l| narrow(at(l, column), F32, Round::Near));
                    self.registers.put_w(m.d[2 * half + column], &t, mask);
                }
            }
        }
        Ok(())
    }
}
