//! `cp.async`: what is read at the instruction arrives at the wait, and must not be read before.

use super::{LaneFault, lanes_of};
use crate::exec::block::{Context, PENDING, WRITTEN};
use crate::exec::lanes::memory::addresses;
use crate::exec::warp::Warp;
use crate::exec::{LAUNCH_FAILED, MISALIGNED_ADDRESS};
use crate::memory::race::Touch;
use crate::ptx::ast::Space;
use crate::ptx::code::Inst;

impl Warp {
    pub(super) fn copy_async(
        &mut self,
        c: &mut Context<'_>,
        inst: &Inst,
        mask: u32,
    ) -> Result<(), LaneFault> {
        let copy = c.kernel.copies[inst.x as usize];
        let to = addresses(&self.registers, copy.to.0, copy.to.1);
        let from = addresses(&self.registers, copy.from.0, copy.from.1);
        for l in lanes_of(mask) {
            let n = copy.bytes;
            for (what, at) in [("destination", to[l]), ("source", from[l])] {
                if at % n as u64 != 0 {
                    return Err((
                        l,
                        MISALIGNED_ADDRESS,
                        format!("cp.async of {n} bytes whose {what} {at:#x} is not a multiple of {n}"),
                    ));
                }
            }
            let wanted = copy.source_bytes.map_or(n, |slot| self.registers.w[slot as usize][l] as usize);
            if wanted > n {
                return Err((
                    l,
                    LAUNCH_FAILED,
                    format!("cp.async of {n} bytes with a source size of {wanted}"),
                ));
            }
            let at = Self::shared_range(c, l, to[l], n, "cp.async")?;
            let mut data = vec![0; n];
            if wanted > 0 {
                self.read_lane(c, Space::Global, l, from[l], &mut data[..wanted], Touch::Read)?;
            }
            // Until the wait, the destination holds nothing that may be read.
            c.shared[at..at + n].fill(crate::memory::POISON);
            c.shared_state[at..at + n].fill(PENDING);
            self.shared_race(c, l, "cp.async", (at, n), Touch::Write { same: false })?;
            self.open_copies[l].push((at, data));
        }
        Ok(())
    }

    /// Waits until at most `left` groups are on their way (`u32::MAX`: for all, committed or not).
    pub(super) fn copy_wait(&mut self, c: &mut Context<'_>, left: u32, mask: u32) -> Result<(), LaneFault> {
        if self.open_copies.is_empty() {
            return Ok(());
        }
        for l in lanes_of(mask) {
            if left == u32::MAX {
                let open = std::mem::take(&mut self.open_copies[l]);
                self.copy_groups[l].push_back(open);
            }
            let left = if left == u32::MAX { 0 } else { left as usize };
            while self.copy_groups[l].len() > left {
                for (at, data) in self.copy_groups[l].pop_front().unwrap_or_default() {
                    let n = data.len();
                    c.shared[at..at + n].copy_from_slice(&data);
                    c.shared_state[at..at + n].fill(WRITTEN);
                    self.shared_race(c, l, "cp.async", (at, n), Touch::Write { same: false })?;
                }
            }
        }
        Ok(())
    }
}
