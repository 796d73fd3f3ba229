//! Loads, stores, atomics and asynchronous copies of one warp, with every check they carry.
//!
//! The lanes' addresses are resolved together: where all lie in one page of device memory (nearly
//! always) one lookup serves the warp. Generic addresses are sorted into their spaces first.
//!
//! Long because every kind of access goes through the same checks, which are read together.

use half::f16;

use super::block::{Context, PENDING, UNWRITTEN, WRITTEN};
use super::registers::{LANES, Registers};
use super::warp::Warp;
use super::{Fault, ILLEGAL_ADDRESS, LAUNCH_FAILED, MISALIGNED_ADDRESS};
use crate::memory::race::{Epoch, RaceCells, Touch};
use crate::memory::{BadAccess, LOCAL_WINDOW, PAGE, PageData, SHARED_WINDOW, WINDOW};
use crate::ptx::ast::Space;
use crate::ptx::code::{Access, Atomic, Base, Inst, Op};

/// The most bytes that a lane moves with one instruction.
const MOST: usize = 16;

/// A lane's fault before it has its kernel, line and thread.
type LaneFault = (usize, i32, String);

pub(super) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |l| mask >> l & 1 != 0)
}

pub(super) fn addresses(r: &Registers, base: Base, offset: i64) -> [u64; LANES] {
    match base {
        Base::Double(slot) => r.d[slot as usize].map(|a| a.wrapping_add_signed(offset)),
        Base::Word(slot) => r.w[slot as usize].map(|a| u64::from(a).wrapping_add_signed(offset)),
        Base::Absolute => [offset as u64; LANES],
    }
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

/// Whether all active lanes lie in the page of the first, and the OR of their addresses.
fn one_page(at: &[u64; LANES], mask: u32) -> (bool, u64) {
    let first = at[mask.trailing_zeros() as usize & 31];
    let mut apart = 0;
    let mut bits = 0;
    for l in 0..LANES {
        let keep = u64::from(mask >> l & 1).wrapping_neg();
        apart |= (at[l] ^ first) & keep;
        bits |= at[l] & keep;
    }
    (apart < PAGE, bits)
}

impl Warp {
    /// Executes an instruction of the memory family.
    pub(super) fn memory(&mut self, c: &mut Context<'_>, inst: &Inst, mask: u32) -> Result<(), Fault> {
        let kernel = c.kernel;
        let done = match inst.op {
            Op::Load | Op::Store | Op::Atomic => {
                let access = &kernel.accesses[inst.x as usize];
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
        let (together, bits) = one_page(at, mask);
        if bits & (n as u64 - 1) != 0 {
            let lane = lanes_of(mask).find(|&l| at[l] % n as u64 != 0).unwrap_or(0);
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
                    Space::Global | Space::Const if together => {
                        self.load_page(c, access, at, mask, &mut data)?
                    }
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
                            let touch = touch_of(access, false);
                            self.read_lane(c, space, l, at[l], &mut data[l][..n], touch)?;
                        }
                    }
                }
                self.deliver(access, &data, mask);
            }
            Op::Store => {
                let data = self.collect(access);
                if together
                    && matches!(space, Space::Global)
                    && self.store_page(c, access, at, mask, &data)?
                {
                    return Ok(());
                }
                for l in lanes_of(mask) {
                    self.write_lane(c, space, l, at[l], &data[l][..n], touch_of(access, true))?;
                }
            }
            _ => self.atomic(c, inst, access, space, at, mask)?,
        }
        Ok(())
    }

    /// A load whose lanes share a page.
    fn load_page(
        &mut self,
        c: &mut Context<'_>,
        access: &Access,
        at: &[u64; LANES],
        mask: u32,
        data: &mut [[u8; MOST]; LANES],
    ) -> Result<(), LaneFault> {
        let n = access.bytes();
        let first = mask.trailing_zeros() as usize;
        let check = c.options.uninitialised;
        let Some(page) = c.memory.touch(at[first]) else {
            for l in lanes_of(mask) {
                self.read_lane(c, Space::Global, l, at[l], &mut data[l][..n], touch_of(access, false))?;
            }
            return Ok(());
        };
        // A fixed width makes each lane one load.
        let done = match n {
            1 => load_rows::<1>(page, at, mask, data, check),
            2 => load_rows::<2>(page, at, mask, data, check),
            4 => load_rows::<4>(page, at, mask, data, check),
            8 => load_rows::<8>(page, at, mask, data, check),
            _ => load_rows::<16>(page, at, mask, data, check),
        };
        match done {
            Ok(()) => {}
            Err((l, Trouble::Outside)) => {
                return Err((
                    l,
                    ILLEGAL_ADDRESS,
                    format!("load of {n} bytes: {}", text(c.memory.bad(at[l], n as u64))),
                ));
            }
            Err((l, Trouble::Unwritten)) => {
                let what = c.memory.describe(at[l]);
                return Err((
                    l,
                    LAUNCH_FAILED,
                    format!("load of {n} bytes that nothing has written: {what}"),
                ));
            }
        }
        if c.options.race {
            for l in lanes_of(mask) {
                self.global_race(c, l, at[l], n, touch_of(access, false), false)?;
            }
        }
        Ok(())
    }

    /// A store whose lanes share a page; `false` where it is no device page.
    fn store_page(
        &mut self,
        c: &mut Context<'_>,
        access: &Access,
        at: &[u64; LANES],
        mask: u32,
        data: &[[u8; MOST]; LANES],
    ) -> Result<bool, LaneFault> {
        let n = access.bytes();
        let first = mask.trailing_zeros() as usize;
        if c.options.race {
            // Whether a store changes what is there decides if two of them race: one lane at a time.
            return Ok(false);
        }
        let Some(page) = c.memory.touch(at[first]) else { return Ok(false) };
        let done = match n {
            1 => store_rows::<1>(page, at, mask, data),
            2 => store_rows::<2>(page, at, mask, data),
            4 => store_rows::<4>(page, at, mask, data),
            8 => store_rows::<8>(page, at, mask, data),
            _ => store_rows::<16>(page, at, mask, data),
        };
        match done {
            Ok(()) => Ok(true),
            Err(l) => Err((
                l,
                ILLEGAL_ADDRESS,
                format!("store of {n} bytes: {}", text(c.memory.bad(at[l], n as u64))),
            )),
        }
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

    fn epoch(&self, c: &Context<'_>, lane: usize) -> Epoch {
        Epoch { block: c.epoch, warp: self.epoch, thread: (self.index * 32) as u16 + lane as u16 }
    }

    /// Where a lane's access to shared memory lies, checked against its end.
    fn shared_range(c: &Context<'_>, lane: usize, at: u64, n: usize, what: &str) -> Result<usize, LaneFault> {
        let size = c.shared.len();
        match usize::try_from(at).ok().filter(|a| a.checked_add(n).is_some_and(|end| end <= size)) {
            Some(at) => Ok(at),
            None => Err((
                lane,
                ILLEGAL_ADDRESS,
                format!("{what} of {n} bytes at shared byte {at}; the block has {size} bytes"),
            )),
        }
    }

    /// Reads for one lane, in any space.
    pub(super) fn read_lane(
        &mut self,
        c: &mut Context<'_>,
        space: Space,
        lane: usize,
        at: u64,
        out: &mut [u8],
        touch: Touch,
    ) -> Result<(), LaneFault> {
        let n = out.len();
        match space {
            Space::Shared => {
                let from = Self::shared_range(c, lane, at, n, "load")?;
                out.copy_from_slice(&c.shared[from..from + n]);
                let state = &c.shared_state[from..from + n];
                if state.contains(&PENDING) {
                    return Err((
                        lane,
                        LAUNCH_FAILED,
                        format!(
                            "load of {n} bytes at shared byte {from}{}, which a cp.async still fills",
                            variable(c, from)
                        ),
                    ));
                }
                if c.options.uninitialised && state.contains(&UNWRITTEN) {
                    return Err((
                        lane,
                        LAUNCH_FAILED,
                        format!(
                            "load of {n} bytes at shared byte {from}{}, which nothing has written",
                            variable(c, from)
                        ),
                    ));
                }
                if c.options.race {
                    let now = self.epoch(c, lane);
                    if let Some(conflict) = c.shared_race.touch((from, n), touch, false, now) {
                        return Err((
                            lane,
                            LAUNCH_FAILED,
                            race_text(
                                "load",
                                n,
                                &format!("shared byte {from}{}", variable(c, from)),
                                &conflict.earlier,
                            ),
                        ));
                    }
                }
                Ok(())
            }
            Space::Local => {
                let from = self.local_range(c, lane, at, n, "load")?;
                out.copy_from_slice(&self.local[from..from + n]);
                if c.options.uninitialised && self.local_written[from..from + n].contains(&false) {
                    return Err((
                        lane,
                        LAUNCH_FAILED,
                        format!("load of {n} bytes at local byte {at}, which nothing has written"),
                    ));
                }
                Ok(())
            }
            _ => {
                c.memory.read(at, out, c.options.uninitialised).map_err(|bad| match bad {
                    BadAccess::Address(what) => (lane, ILLEGAL_ADDRESS, format!("load of {n} bytes: {what}")),
                    BadAccess::Uninitialised(what) => {
                        (lane, LAUNCH_FAILED, format!("load of {n} bytes that nothing has written: {what}"))
                    }
                })?;
                self.global_race(c, lane, at, n, touch, false)
            }
        }
    }

    /// Writes for one lane, in any space.
    pub(super) fn write_lane(
        &mut self,
        c: &mut Context<'_>,
        space: Space,
        lane: usize,
        at: u64,
        data: &[u8],
        touch: Touch,
    ) -> Result<(), LaneFault> {
        let n = data.len();
        match space {
            Space::Shared => {
                let to = Self::shared_range(c, lane, at, n, "store")?;
                let same = &c.shared[to..to + n] == data;
                c.shared[to..to + n].copy_from_slice(data);
                c.shared_state[to..to + n].fill(WRITTEN);
                if c.options.race {
                    let now = self.epoch(c, lane);
                    if let Some(conflict) = c.shared_race.touch((to, n), touch, same, now) {
                        return Err((
                            lane,
                            LAUNCH_FAILED,
                            race_text(
                                "store",
                                n,
                                &format!("shared byte {to}{}", variable(c, to)),
                                &conflict.earlier,
                            ),
                        ));
                    }
                }
                Ok(())
            }
            Space::Local => {
                let to = self.local_range(c, lane, at, n, "store")?;
                self.local[to..to + n].copy_from_slice(data);
                self.local_written[to..to + n].fill(true);
                Ok(())
            }
            _ => {
                let mut before = [0; MOST];
                let same = c.options.race
                    && c.memory.read(at, &mut before[..n], false).is_ok()
                    && &before[..n] == data;
                c.memory
                    .write(at, data)
                    .map_err(|bad| (lane, ILLEGAL_ADDRESS, format!("store of {n} bytes: {}", text(bad))))?;
                self.global_race(c, lane, at, n, touch, same)
            }
        }
    }

    fn local_range(
        &self,
        c: &Context<'_>,
        lane: usize,
        at: u64,
        n: usize,
        what: &str,
    ) -> Result<usize, LaneFault> {
        let size = c.kernel.local_bytes;
        match usize::try_from(at).ok().filter(|a| a.checked_add(n).is_some_and(|end| end <= size)) {
            Some(at) => Ok(lane * size + at),
            None => Err((
                lane,
                ILLEGAL_ADDRESS,
                format!("{what} of {n} bytes at local byte {at}; a thread has {size} bytes"),
            )),
        }
    }

    fn global_race(
        &self,
        c: &mut Context<'_>,
        lane: usize,
        at: u64,
        n: usize,
        touch: Touch,
        same: bool,
    ) -> Result<(), LaneFault> {
        if !c.options.race {
            return Ok(());
        }
        let (launch, block) = (c.launch.id, c.block_number);
        // Pinned host memory has no cells.
        let Some(page) = c.memory.touch(at) else { return Ok(()) };
        let cells = page.race.get_or_insert_with(|| Box::new(RaceCells::new(page.bytes.len())));
        match cells.touch(((at % PAGE) as usize, n), touch, same, launch, block) {
            None => Ok(()),
            Some(conflict) => {
                let what = if matches!(touch, Touch::Read | Touch::ReadOnly) { "load" } else { "store" };
                Err((lane, LAUNCH_FAILED, race_text(what, n, &c.memory.describe(at), &conflict.earlier)))
            }
        }
    }

    fn atomic(
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
            self.read_lane(c, space, l, at[l], &mut bytes[..n], Touch::Strong)?;
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
            self.write_lane(c, space, l, at[l], &new.to_le_bytes()[..n], Touch::Strong)?;
        }
        if wide {
            self.registers.put_d(inst.d, &old, mask);
        } else {
            self.registers.put_w(inst.d, &old.map(|o| o as u32), mask);
        }
        Ok(())
    }

    fn copy_async(&mut self, c: &mut Context<'_>, inst: &Inst, mask: u32) -> Result<(), LaneFault> {
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
            if c.options.race {
                let now = self.epoch(c, l);
                if let Some(conflict) = c.shared_race.touch((at, n), Touch::Write, false, now) {
                    return Err((
                        l,
                        LAUNCH_FAILED,
                        race_text(
                            "cp.async",
                            n,
                            &format!("shared byte {at}{}", variable(c, at)),
                            &conflict.earlier,
                        ),
                    ));
                }
            }
            self.open_copies[l].push((at, data));
        }
        Ok(())
    }

    /// Waits until at most `left` groups are on their way (`u32::MAX`: for all, committed or not).
    fn copy_wait(&mut self, c: &mut Context<'_>, left: u32, mask: u32) -> Result<(), LaneFault> {
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
                    let now = self.epoch(c, l);
                    let n = data.len();
                    c.shared[at..at + n].copy_from_slice(&data);
                    c.shared_state[at..at + n].fill(WRITTEN);
                    if c.options.race
                        && let Some(conflict) = c.shared_race.touch((at, n), Touch::Write, false, now)
                    {
                        return Err((
                            l,
                            LAUNCH_FAILED,
                            race_text(
                                "cp.async",
                                n,
                                &format!("shared byte {at}{}", variable(c, at)),
                                &conflict.earlier,
                            ),
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    fn ldmatrix(&mut self, c: &mut Context<'_>, inst: &Inst, mask: u32) -> Result<(), LaneFault> {
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

enum Trouble {
    Outside,
    Unwritten,
}

fn load_rows<const N: usize>(
    page: &PageData,
    at: &[u64; LANES],
    mask: u32,
    data: &mut [[u8; MOST]; LANES],
    check: bool,
) -> Result<(), (usize, Trouble)> {
    for l in 0..LANES {
        if mask >> l & 1 == 0 {
            continue;
        }
        let offset = (at[l] % PAGE) as usize;
        let Some(bytes) = page.bytes.get(offset..offset + N) else { return Err((l, Trouble::Outside)) };
        data[l][..N].copy_from_slice(bytes);
        if check && !page.all_written::<N>(offset) {
            return Err((l, Trouble::Unwritten));
        }
    }
    Ok(())
}

fn store_rows<const N: usize>(
    page: &mut PageData,
    at: &[u64; LANES],
    mask: u32,
    data: &[[u8; MOST]; LANES],
) -> Result<(), usize> {
    for l in 0..LANES {
        if mask >> l & 1 == 0 {
            continue;
        }
        let offset = (at[l] % PAGE) as usize;
        let Some(bytes) = page.bytes.get_mut(offset..offset + N) else { return Err(l) };
        bytes.copy_from_slice(&data[l][..N]);
        page.mark_aligned::<N>(offset);
    }
    Ok(())
}

fn noun(inst: &Inst) -> &'static str {
    match inst.op {
        Op::Load => "load",
        Op::Store => "store",
        _ => "atomic",
    }
}

fn touch_of(access: &Access, write: bool) -> Touch {
    match (access.strong, write, access.read_only) {
        (true, true, _) => Touch::Strong,
        // A relaxed or volatile load may meet any writer, so it leaves no trace but its own.
        (true, false, _) => Touch::Strong,
        (false, true, _) => Touch::Write,
        (false, false, true) => Touch::ReadOnly,
        (false, false, false) => Touch::Read,
    }
}

fn text(bad: BadAccess) -> String {
    match bad {
        BadAccess::Address(text) | BadAccess::Uninitialised(text) => text,
    }
}

fn race_text(what: &str, n: usize, at: &str, earlier: &str) -> String {
    format!("race: {what} of {n} bytes at {at}: {earlier}")
}

/// ` (4 bytes into `tile`)` where a shared variable is there.
fn variable(c: &Context<'_>, at: usize) -> String {
    c.kernel
        .shared_variables
        .iter()
        .find(|(_, start, len)| (*start..start + len).contains(&at))
        .map_or_else(String::new, |(name, start, _)| format!(" ({} bytes into `{name}`)", at - start))
}

fn combine(op: Atomic, wide: bool, old: u64, b: u64, c: u64) -> u64 {
    let signed = |x: u64| if wide { x as i64 } else { i64::from(x as u32 as i32) };
    let new = match op {
        Atomic::Add => old.wrapping_add(b),
        Atomic::AddF32 => {
            u64::from(super::numeric::canonical(f32::from_bits(old as u32) + f32::from_bits(b as u32)))
        }
        Atomic::AddF64 => super::numeric::canonical64(f64::from_bits(old) + f64::from_bits(b)),
        Atomic::AddF16x2 => {
            let half = |shift: u32| {
                // f32 holds the sum of two f16 closely enough that one rounding follows (24 >= 2 * 11 + 2).
                let value = f16::from_bits((old >> shift) as u16).to_f32()
                    + f16::from_bits((b >> shift) as u16).to_f32();
                u64::from(super::numeric::f32_to_f16(value.to_bits())) << shift
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
