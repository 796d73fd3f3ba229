//! Loads, stores, atomics and asynchronous copies of one warp, with every check they carry.
//!
//! ```text
//! 1. resolve the lanes' addresses
//! 2. where all lie in one page or in shared memory: check and move them together (`lanes::memory`)
//! 3. else, or where a check of 2 says no: for each lane, check and move, and name what is wrong
//! ```
//!
//! Step 2 does nothing where it says no, so loop 3 alone decides what is a fault.

mod atomic;
mod copies;
mod lane;
mod matrix;

use super::block::Context;
use super::lanes::memory::{Rules, addresses};
use super::registers::LANES;
use super::warp::Warp;
use super::{Fault, ILLEGAL_ADDRESS, MISALIGNED_ADDRESS};
use crate::memory::race::{Touch, Who};
use crate::memory::{LOCAL_WINDOW, SHARED_WINDOW, WINDOW};
use crate::ptx::ast::Space;
use crate::ptx::code::{Access, Base, Inst, Op};
use lane::MOST;

/// A lane's fault before it has its kernel, line and thread.
type LaneFault = (usize, i32, String);

pub(super) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |l| mask >> l & 1 != 0)
}

/// The space that a generic address means, and the address in it.
fn resolve(address: u64) -> (Space, u64) {
    if address.wrapping_sub(SHARED_WINDOW) < WINDOW {
        (Space::Shared, address - SHARED_WINDOW)
    } else if address.wrapping_sub(LOCAL_WINDOW) < WINDOW {
        (Space::Local, address - LOCAL_WINDOW)
    } else {
        (Space::Global, address)
    }
}

impl Warp {
    /// Executes an instruction of the memory family.
    pub(super) fn memory(&mut self, c: &mut Context<'_>, inst: &Inst, mask: u32) -> Result<(), Fault> {
        let kernel = c.kernel;
        let done = match inst.op {
            Op::Load | Op::Store | Op::Atomic => {
                let access = &kernel.accesses[inst.x as usize];
                if self.together(c, inst, access, mask) {
                    return Ok(());
                }
                let at = addresses(&self.registers, access.base, access.offset);
                if access.space == Space::Generic {
                    self.by_space(c, inst, access, &at, mask)
                } else {
                    self.in_space(c, inst, access, access.space, &at, mask)
                }
            }
            Op::CpAsync => self.copy_async(c, inst, mask),
            Op::CpAsyncCommit => {
                for l in lanes_of(mask) {
                    if !self.open_copies.is_empty() {
                        let open = std::mem::take(&mut self.open_copies[l]);
                        self.copy_groups[l].push_back(open);
                    }
                }
                Ok(())
            }
            Op::CpAsyncWait => self.copy_wait(c, inst.x, mask),
            _ => self.ldmatrix(c, inst, mask),
        };
        done.map_err(|(lane, code, what)| self.lane_fault(c, code, inst, lane, &what))
    }

    /// Moves all lanes at once, where that can be done and no check says no; `false` where it did nothing.
    fn together(&mut self, c: &mut Context<'_>, inst: &Inst, access: &Access, mask: u32) -> bool {
        let (lanes, options) = (c.options.lanes, c.options);
        let r = &mut self.registers;
        if access.strong {
            return false;
        }
        match (inst.op, access.space) {
            (Op::Load, Space::Param) => self.load_parameter(c, access, mask),
            (Op::Load | Op::Store, Space::Global | Space::Const) => {
                let race = options.race.then(|| Who::new(c.launch.id, c.block_number));
                let rules = Rules { uninitialised: options.uninitialised, race };
                let family = if matches!(inst.op, Op::Load) { lanes.load } else { lanes.store };
                family(r, c.memory, access, mask, rules)
            }
            (Op::Load, Space::Shared) if !options.race => {
                (lanes.load_shared)(r, &mut c.shared, &mut c.shared_state, access, mask)
            }
            (Op::Store, Space::Shared) if !options.race => {
                (lanes.store_shared)(r, &mut c.shared, &mut c.shared_state, access, mask)
            }
            _ => false,
        }
    }

    /// A parameter that is the same in all lanes.
    fn load_parameter(&mut self, c: &Context<'_>, access: &Access, mask: u32) -> bool {
        let n = access.bytes();
        let from = access.offset as usize;
        let Some(bytes) = c.launch.params.get(from..from.saturating_add(n)) else { return false };
        if access.base != Base::Absolute || from % n != 0 {
            return false;
        }
        for (element, bytes) in access.elements.iter().zip(bytes.chunks_exact(access.size)) {
            let mut word = [0; 8];
            word[..access.size].copy_from_slice(bytes);
            let shift = 64 - 8 * access.size as u32;
            let value = u64::from_le_bytes(word);
            let value = if access.signed { ((value << shift) as i64 >> shift) as u64 } else { value };
            if element.wide {
                self.registers.put_d(element.slot, &[value; LANES], mask);
            } else {
                self.registers.put_w(element.slot, &[value as u32; LANES], mask);
            }
        }
        true
    }

    fn by_space(
        &mut self,
        c: &mut Context<'_>,
        inst: &Inst,
        access: &Access,
        at: &[u64; LANES],
        mask: u32,
    ) -> Result<(), LaneFault> {
        let mut groups = [(Space::Global, 0u32), (Space::Shared, 0), (Space::Local, 0)];
        let mut local = [0; LANES];
        for l in lanes_of(mask) {
            let (space, address) = resolve(at[l]);
            local[l] = address;
            groups.iter_mut().filter(|g| g.0 == space).for_each(|g| g.1 |= 1 << l);
        }
        for (space, lanes) in groups {
            if lanes != 0 {
                self.in_space(c, inst, access, space, &local, lanes)?;
            }
        }
        Ok(())
    }

    fn in_space(
        &mut self,
        c: &mut Context<'_>,
        inst: &Inst,
        access: &Access,
        space: Space,
        at: &[u64; LANES],
        mask: u32,
    ) -> Result<(), LaneFault> {
        let n = access.bytes();
        if let Some(lane) = lanes_of(mask).find(|&l| at[l] % n as u64 != 0) {
            return Err((
                lane,
                MISALIGNED_ADDRESS,
                format!("{} of {n} bytes at {:#x}, which is not a multiple of {n}", noun(inst), at[lane]),
            ));
        }
        match inst.op {
            Op::Load => {
                let mut data = [[0u8; MOST]; LANES];
                match space {
                    Space::Param => {
                        for l in lanes_of(mask) {
                            let from = at[l] as usize;
                            let bytes = c.launch.params.get(from..from + n).ok_or_else(|| {
                                (
                                    l,
                                    ILLEGAL_ADDRESS,
                                    format!(
                                        "load of {n} bytes at parameter byte {from} of {}",
                                        c.launch.params.len()
                                    ),
                                )
                            })?;
                            data[l][..n].copy_from_slice(bytes);
                        }
                    }
                    _ => {
                        for l in lanes_of(mask) {
                            let row = &mut data[l][..n];
                            self.read_lane(c, space, l, at[l], row, read_touch(access))?;
                        }
                    }
                }
                self.deliver(access, &data, mask);
            }
            Op::Store => {
                let data = self.collect(access);
                for l in lanes_of(mask) {
                    self.write_lane(c, space, l, at[l], &data[l][..n], access.strong)?;
                }
            }
            _ => self.atomic(c, inst, access, space, at, mask)?,
        }
        Ok(())
    }

    /// Registers of a load get their values.
    fn deliver(&mut self, access: &Access, data: &[[u8; MOST]; LANES], mask: u32) {
        for (e, element) in access.elements.iter().enumerate() {
            let from = e * access.size;
            if access.size == 4 && !element.wide {
                let mut t = [0u32; LANES];
                for (t, d) in t.iter_mut().zip(data) {
                    *t = u32::from_le_bytes([d[from], d[from + 1], d[from + 2], d[from + 3]]);
                }
                self.registers.put_w(element.slot, &t, mask);
                continue;
            }
            let mut t = [0u64; LANES];
            for (t, d) in t.iter_mut().zip(data) {
                let mut bytes = [0; 8];
                bytes[..access.size].copy_from_slice(&d[from..from + access.size]);
                let value = u64::from_le_bytes(bytes);
                let shift = 64 - 8 * access.size as u32;
                *t = if access.signed { ((value << shift) as i64 >> shift) as u64 } else { value };
            }
            if element.wide {
                self.registers.put_d(element.slot, &t, mask);
            } else {
                self.registers.put_w(element.slot, &t.map(|t| t as u32), mask);
            }
        }
    }

    /// The bytes that a store writes, lane by lane.
    fn collect(&self, access: &Access) -> [[u8; MOST]; LANES] {
        let mut data = [[0u8; MOST]; LANES];
        for (e, element) in access.elements.iter().enumerate() {
            let to = e * access.size;
            if element.wide {
                for (d, value) in data.iter_mut().zip(&self.registers.d[element.slot as usize]) {
                    d[to..to + access.size].copy_from_slice(&value.to_le_bytes()[..access.size]);
                }
            } else if access.size == 4 {
                for (d, value) in data.iter_mut().zip(&self.registers.w[element.slot as usize]) {
                    d[to..to + 4].copy_from_slice(&value.to_le_bytes());
                }
            } else {
                for (d, value) in data.iter_mut().zip(&self.registers.w[element.slot as usize]) {
                    d[to..to + access.size].copy_from_slice(&value.to_le_bytes()[..access.size]);
                }
            }
        }
        data
    }
}

fn noun(inst: &Inst) -> &'static str {
    match inst.op {
        Op::Load => "load",
        Op::Store => "store",
        _ => "atomic",
    }
}

fn read_touch(access: &Access) -> Touch {
    match (access.strong, access.read_only) {
        (true, _) => Touch::StrongRead,
        (false, true) => Touch::ReadOnly,
        (false, false) => Touch::Read,
    }
}
