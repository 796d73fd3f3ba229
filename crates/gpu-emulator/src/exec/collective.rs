//! What the lanes of a warp do together: shuffles, votes, matches, reductions, warp barriers.
//!
//! All of them name their members. A lane that is named but elsewhere, or that takes part without
//! being named, makes the result undefined in PTX, so it is an error here.

use super::access::lanes_of;
use super::block::Context;
use super::registers::LANES;
use super::warp::Warp;
use super::{Fault, LAUNCH_FAILED};
use crate::memory::{LOCAL_WINDOW, SHARED_WINDOW, WINDOW};
use crate::ptx::code::{Inst, Op, Redux, Shuffle, Vote};

impl Warp {
    /// Executes an instruction of the collective family.
    pub(super) fn collective(&mut self, c: &mut Context<'_>, inst: &Inst, mask: u32) -> Result<(), Fault> {
        match inst.op {
            Op::Shuffle(mode) => return self.shuffle(c, inst, mask, mode),
            Op::Vote(mode) => {
                self.members(c, inst, mask, inst.b)?;
                let p = self.registers.p[inst.a as usize] ^ inst.x.wrapping_neg();
                let yes = p & mask;
                match mode {
                    Vote::Ballot => self.registers.put_w(inst.d, &[yes; LANES], mask),
                    _ => {
                        let result = match mode {
                            Vote::All => yes == mask,
                            Vote::Any => yes != 0,
                            _ => yes == mask || yes == 0,
                        };
                        self.registers.put_p(inst.d, u32::from(result).wrapping_neg(), mask);
                    }
                }
            }
            Op::MatchAny | Op::MatchAll => {
                self.members(c, inst, mask, inst.b)?;
                let wide = inst.c != 0;
                let r = &self.registers;
                let values: [u64; LANES] = std::array::from_fn(|l| {
                    if wide { r.d[inst.a as usize][l] } else { u64::from(r.w[inst.a as usize][l]) }
                });
                let equal = |l: usize| {
                    lanes_of(mask).filter(|&o| values[o] == values[l]).fold(0u32, |m, o| m | 1 << o)
                };
                let mut t = [0; LANES];
                for l in lanes_of(mask) {
                    t[l] = equal(l);
                }
                if inst.op == Op::MatchAll {
                    let all = lanes_of(mask).all(|l| t[l] == mask);
                    self.registers.put_p(inst.x as u16, u32::from(all).wrapping_neg(), mask);
                    t = [if all { mask } else { 0 }; LANES];
                }
                self.registers.put_w(inst.d, &t, mask);
            }
            Op::Activemask => self.registers.put_w(inst.d, &[mask; LANES], mask),
            Op::Redux(op) => {
                self.members(c, inst, mask, inst.b)?;
                let a = self.registers.w[inst.a as usize];
                let result = lanes_of(mask).map(|l| a[l]).reduce(|x, y| match op {
                    Redux::Add => x.wrapping_add(y),
                    Redux::MinU => x.min(y),
                    Redux::MinS => (x as i32).min(y as i32) as u32,
                    Redux::MaxU => x.max(y),
                    Redux::MaxS => (x as i32).max(y as i32) as u32,
                    Redux::And => x & y,
                    Redux::Or => x | y,
                    Redux::Xor => x ^ y,
                });
                self.registers.put_w(inst.d, &[result.unwrap_or(0); LANES], mask);
            }
            Op::WarpBarrier => {
                self.members(c, inst, mask, inst.a)?;
                self.epoch += 1;
            }
            Op::IsSpace => {
                let a = self.registers.d[inst.a as usize];
                let mut bits = 0;
                for (l, &a) in a.iter().enumerate() {
                    let shared = a.wrapping_sub(SHARED_WINDOW) < WINDOW;
                    let local = a.wrapping_sub(LOCAL_WINDOW) < WINDOW;
                    let yes = match inst.x {
                        0 => !shared && !local,
                        1 => shared,
                        _ => local,
                    };
                    bits |= u32::from(yes) << l;
                }
                self.registers.put_p(inst.d, bits, mask);
            }
            Op::Mma => return self.mma(c, inst, mask),
            other => unreachable!("{other:?} is executed elsewhere"),
        }
        Ok(())
    }

    /// Checks that the lanes named in the word `slot` are the ones that came.
    fn members(&self, c: &Context<'_>, inst: &Inst, mask: u32, slot: u16) -> Result<(), Fault> {
        for l in lanes_of(mask) {
            let named = self.registers.w[slot as usize][l];
            if named >> l & 1 == 0 {
                return Err(self.lane_fault(
                    c,
                    LAUNCH_FAILED,
                    inst,
                    l,
                    &format!("the member mask {named:#010x} does not name the lane itself"),
                ));
            }
            // Lanes that have ended are not waited for; lanes that never were cannot be.
            let missing = named & self.live() & !mask;
            if missing != 0 {
                return Err(self.lane_fault(c, LAUNCH_FAILED, inst, l, &format!(
                    "diverged: the member mask {named:#010x} names lane {}, which is elsewhere (active lanes {mask:#010x})",
                    missing.trailing_zeros()
                )));
            }
            if named & mask != mask {
                return Err(self.lane_fault(c, LAUNCH_FAILED, inst, l, &format!(
                    "lanes with different members execute together (mask {named:#010x}, active {mask:#010x}), which the emulator does not implement"
                )));
            }
        }
        Ok(())
    }

    fn shuffle(&mut self, c: &Context<'_>, inst: &Inst, mask: u32, mode: Shuffle) -> Result<(), Fault> {
        let p = inst.x as u16;
        self.members(c, inst, mask, (inst.x >> 16) as u16)?;
        let r = &self.registers;
        let (a, b, clamp) = (r.w[inst.a as usize], r.w[inst.b as usize], r.w[inst.c as usize]);
        let mut t = [0; LANES];
        let mut valid = 0u32;
        for l in lanes_of(mask) {
            let lane = l as u32;
            let b = b[l] & 31;
            let bound = clamp[l] & 31;
            let segment = clamp[l] >> 8 & 31;
            let most = (lane & segment) | (bound & !segment);
            let least = lane & segment;
            // Signed, because `up` may point below lane 0.
            let (source, inside) = match mode {
                Shuffle::Up => {
                    let j = lane as i32 - b as i32;
                    (j, j >= most as i32)
                }
                Shuffle::Down => ((lane + b) as i32, lane + b <= most),
                Shuffle::Bfly => ((lane ^ b) as i32, lane ^ b <= most),
                Shuffle::Idx => {
                    let j = least | (b & !segment);
                    (j as i32, j <= most)
                }
            };
            let from = if inside { source as usize } else { l };
            if mask >> from & 1 == 0 {
                return Err(self.lane_fault(
                    c,
                    LAUNCH_FAILED,
                    inst,
                    l,
                    &format!("shfl reads lane {from}, which does not take part"),
                ));
            }
            t[l] = a[from];
            valid |= u32::from(inside) << l;
        }
        self.registers.put_w(inst.d, &t, mask);
        self.registers.put_p(p, valid, mask);
        Ok(())
    }
}
