//! Read-modify-write in memory.

use half::f16;

use super::{LaneFault, lanes_of};
use crate::exec::block::Context;
use crate::exec::numeric::{canonical, canonical64, f32_to_f16};
use crate::exec::registers::LANES;
use crate::exec::warp::Warp;
use crate::memory::race::Touch;
use crate::ptx::ast::Space;
use crate::ptx::code::{Access, Atomic, Inst};

impl Warp {
    pub(super) fn atomic(
        &mut self,
        c: &mut Context<'_>,
        inst: &Inst,
        access: &Access,
        space: Space,
        at: &[u64; LANES],
        mask: u32,
    ) -> Result<(), LaneFault> {
        let Some((op, wide)) = access.atomic else { unreachable!("atomics say what they do") };
        let n = access.size;
        let mut old = [0u64; LANES];
        // One lane after the other: any order is allowed, and this one is reproducible.
        for l in lanes_of(mask) {
            let mut bytes = [0; 8];
            self.read_lane(c, space, l, at[l], &mut bytes[..n], Touch::AtomicRead)?;
            old[l] = u64::from_le_bytes(bytes);
            let operand = |slot: u16| {
                if wide {
                    self.registers.d[slot as usize][l]
                } else {
                    u64::from(self.registers.w[slot as usize][l])
                }
            };
            let b = operand(inst.b);
            let third = if op == Atomic::Cas { operand(inst.c) } else { 0 };
            let new = combine(op, wide, old[l], b, third);
            self.write_lane(c, space, l, at[l], &new.to_le_bytes()[..n], true)?;
        }
        if wide {
            self.registers.put_d(inst.d, &old, mask);
        } else {
            self.registers.put_w(inst.d, &old.map(|o| o as u32), mask);
        }
        Ok(())
    }
}

fn combine(op: Atomic, wide: bool, old: u64, b: u64, c: u64) -> u64 {
    let signed = |x: u64| if wide { x as i64 } else { i64::from(x as u32 as i32) };
    let new = match op {
        Atomic::Add => old.wrapping_add(b),
        Atomic::AddF32 => u64::from(canonical(f32::from_bits(old as u32) + f32::from_bits(b as u32))),
        Atomic::AddF64 => canonical64(f64::from_bits(old) + f64::from_bits(b)),
        Atomic::AddF16x2 => {
            let half = |shift: u32| {
                // f32 holds the sum of two f16 closely enough that one rounding follows (24 >= 2 * 11 + 2).
                let value = f16::from_bits((old >> shift) as u16).to_f32()
                    + f16::from_bits((b >> shift) as u16).to_f32();
                u64::from(f32_to_f16(value.to_bits())) << shift
            };
            half(0) | half(16)
        }
        Atomic::MinU => old.min(b),
        Atomic::MaxU => old.max(b),
        Atomic::MinS => {
            if signed(old) <= signed(b) {
                old
            } else {
                b
            }
        }
        Atomic::MaxS => {
            if signed(old) >= signed(b) {
                old
            } else {
                b
            }
        }
        Atomic::And => old & b,
        Atomic::Or => old | b,
        Atomic::Xor => old ^ b,
        Atomic::Exch => b,
        Atomic::Cas => {
            if old == b {
                c
            } else {
                old
            }
        }
        Atomic::Inc => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        Atomic::Dec => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
    };
    if wide { new } else { new & 0xffff_ffff }
}
