//! `ldmatrix`: 8x8 matrices of 16-bit elements from shared memory into the fragments of `mma.sync`.

use super::{LaneFault, resolve};
use crate::exec::block::Context;
use crate::exec::lanes::memory::addresses;
use crate::exec::registers::LANES;
use crate::exec::warp::Warp;
use crate::exec::{ILLEGAL_ADDRESS, LAUNCH_FAILED, MISALIGNED_ADDRESS};
use crate::memory::race::Touch;
use crate::ptx::ast::Space;
use crate::ptx::code::Inst;

impl Warp {
    pub(super) fn ldmatrix(&mut self, c: &mut Context<'_>, inst: &Inst, mask: u32) -> Result<(), LaneFault> {
        if mask != u32::MAX {
            return Err((
                mask.trailing_zeros() as usize,
                LAUNCH_FAILED,
                "ldmatrix needs all 32 lanes together".into(),
            ));
        }
        let m = c.kernel.matrices[inst.x as usize];
        let (space, base, offset) = m.from;
        let at = addresses(&self.registers, base, offset);
        let mut rows = [[0u16; 8]; LANES];
        // Lane i names row i % 8 of matrix i / 8; the lanes past the last matrix name nothing.
        for l in 0..8 * m.count {
            let (space, address) = if space == Space::Generic { resolve(at[l]) } else { (space, at[l]) };
            if space != Space::Shared {
                return Err((
                    l,
                    ILLEGAL_ADDRESS,
                    format!("ldmatrix from {:#x}, which is not shared memory", at[l]),
                ));
            }
            if address % 16 != 0 {
                return Err((
                    l,
                    MISALIGNED_ADDRESS,
                    format!("ldmatrix row at shared byte {address}, which is not a multiple of 16"),
                ));
            }
            let mut bytes = [0; 16];
            self.read_lane(c, space, l, address, &mut bytes, Touch::Read)?;
            rows[l] = std::array::from_fn(|i| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]));
        }
        for matrix in 0..m.count {
            let row = |r: usize| &rows[8 * matrix + r];
            let t: [u32; LANES] = std::array::from_fn(|l| {
                let (major, minor) = (l / 4, 2 * (l % 4));
                let (low, high) = if m.transposed {
                    (row(minor)[major], row(minor + 1)[major])
                } else {
                    (row(major)[minor], row(major)[minor + 1])
                };
                u32::from(low) | u32::from(high) << 16
            });
            self.registers.put_w(m.to[matrix], &t, mask);
        }
        Ok(())
    }
}
