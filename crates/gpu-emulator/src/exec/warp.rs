//! One warp: its registers, the stack of diverged paths, and the loop that executes.

use std::collections::VecDeque;

use super::block::{Context, Launch};
use super::registers::{FULL, LANES, POISON_WORD, Registers};
use super::{Fault, ILLEGAL_INSTRUCTION, LAUNCH_FAILED};
use crate::ptx::code::{Barrier, Inst, MixOp, NEVER, NO_GUARD, Op, PredOp, Reduce, Special};

/// Lanes that run together: where, until where, and which.
#[derive(Clone, Copy, Debug)]
struct Path {
    pc: u32,
    /// Where these lanes meet the ones below on the stack.
    meet: u32,
    mask: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Waiting { barrier: u32, destination: u16, reduce: Option<Reduce> },
    Done,
}

/// Why a warp stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Its turn is over, or it has ended.
    Turn,
    /// It came to the barrier instruction with this index.
    Barrier(usize),
}

/// A `cp.async` on its way: offset in shared memory and the bytes.
pub(super) type Copy = (usize, Vec<u8>);

/// One warp.
#[derive(Debug)]
pub(super) struct Warp {
    pub registers: Registers,
    /// Which warp of the block.
    pub index: u32,
    paths: Vec<Path>,
    live: u32,
    present: u32,
    state: State,
    /// The lanes that have written each watched register.
    written: Vec<u32>,
    /// Warp barriers passed.
    pub epoch: u32,
    /// Local memory, lane after lane, and which bytes were written.
    pub local: Vec<u8>,
    pub local_written: Vec<bool>,
    /// `cp.async` not yet committed, and committed groups, a lane each.
    pub open_copies: Vec<Vec<Copy>>,
    pub copy_groups: Vec<VecDeque<Vec<Copy>>>,
}

fn broadcast(value: u32) -> [u32; LANES] {
    [value; LANES]
}

impl Warp {
    /// Warp `index` of a block of `launch`, with what stays the same in every block filled in.
    pub fn new(launch: &Launch<'_>, index: u32) -> Self {
        let kernel = launch.kernel;
        let threads = launch.block.iter().product::<u32>();
        let here = (threads - index * 32).min(32);
        let mut warp = Self {
            registers: Registers {
                w: vec![broadcast(POISON_WORD); kernel.slots[0]],
                d: vec![[u64::from(POISON_WORD) << 32 | u64::from(POISON_WORD); LANES]; kernel.slots[1]],
                p: vec![0; kernel.slots[2]],
                carry: 0,
            },
            index,
            paths: Vec::new(),
            live: 0,
            present: if here == 32 { FULL } else { (1 << here) - 1 },
            state: State::Done,
            written: vec![0; kernel.watched.len()],
            epoch: 0,
            local: vec![0; kernel.local_bytes * LANES],
            local_written: vec![false; kernel.local_bytes * LANES],
            open_copies: Vec::new(),
            copy_groups: Vec::new(),
        };
        let r = &mut warp.registers;
        for &(slot, bits) in &kernel.words {
            r.w[slot as usize] = broadcast(bits);
        }
        for &(slot, bits) in &kernel.doubles {
            r.d[slot as usize] = [bits; LANES];
        }
        for &slot in &kernel.truths {
            r.p[slot as usize] = FULL;
        }
        for &(slot, special) in &kernel.specials {
            if !matches!(special, Special::Ctaid(_)) {
                r.w[slot as usize] = special_value(launch, index, special);
            }
        }
        warp
    }

    /// Ready to run the block of `context`.
    pub fn reset(&mut self, context: &Context<'_>) {
        let launch = context.launch;
        for &(slot, special) in &launch.kernel.specials {
            if let Special::Ctaid(axis) = special {
                self.registers.w[slot as usize] = broadcast(context.ctaid[axis as usize]);
            }
        }
        self.paths.clear();
        self.paths.push(Path { pc: 0, meet: NEVER, mask: self.present });
        self.live = self.present;
        self.written.iter_mut().for_each(|lanes| *lanes = 0);
        self.state = State::Ready;
        self.epoch = 0;
        // Filling nothing is slow: the masked store of an empty range ends in an assist of the processor.
        if !self.local.is_empty() {
            self.local.fill(crate::memory::POISON);
            self.local_written.fill(false);
        }
        self.open_copies = vec![Vec::new(); if launch.kernel.copies.is_empty() { 0 } else { LANES }];
        self.copy_groups = vec![VecDeque::new(); self.open_copies.len()];
    }

    pub fn ready(&self) -> bool {
        self.state == State::Ready
    }

    pub fn done(&self) -> bool {
        self.state == State::Done
    }

    /// The lanes that are threads.
    pub fn present(&self) -> u32 {
        self.present
    }

    /// The lanes that have not ended.
    pub fn live(&self) -> u32 {
        self.live
    }

    pub fn wait(&mut self, barrier: u32, destination: u16, reduce: Option<Reduce>) {
        self.state = State::Waiting { barrier, destination, reduce };
    }

    /// Wakes the warp if it waits for `barrier`; `result` is that of a reduction.
    pub fn release(&mut self, barrier: u32, result: impl Fn(Reduce) -> u32) {
        let State::Waiting { barrier: mine, destination, reduce } = self.state else { return };
        if mine != barrier {
            return;
        }
        self.state = State::Ready;
        let mask = self.paths.last().map_or(0, |p| p.mask);
        match reduce {
            Some(Reduce::Popc) => self.registers.put_w(destination, &broadcast(result(Reduce::Popc)), mask),
            Some(op) => self.registers.put_p(destination, result(op).wrapping_neg(), mask),
            None => {}
        }
    }

    /// Number and thread count of a barrier, which must be the same in all lanes.
    pub fn barrier_operands(
        &self,
        context: &Context<'_>,
        barrier: &Barrier,
    ) -> Result<(u32, Option<u32>), Fault> {
        let lane = self.live.trailing_zeros().min(31) as usize;
        let id = self.registers.w[barrier.id as usize][lane];
        let count = barrier.threads.map(|slot| self.registers.w[slot as usize][lane]);
        if id > 15 {
            return Err(self.fault(
                context,
                ILLEGAL_INSTRUCTION,
                None,
                format!("barrier {id}; there are 16"),
            ));
        }
        if let Some(count) = count
            && (count == 0 || count % 32 != 0)
        {
            return Err(self.fault(
                context,
                ILLEGAL_INSTRUCTION,
                None,
                format!("a barrier for {count} threads, which are no whole warps"),
            ));
        }
        Ok((id, count))
    }

    /// A fault of this warp; `inst` is the instruction (the current one where absent).
    pub fn fault(&self, context: &Context<'_>, code: i32, inst: Option<usize>, what: String) -> Fault {
        let pc = inst.unwrap_or_else(|| self.paths.last().map_or(0, |p| p.pc as usize));
        let line = context.kernel.code.get(pc).map_or(0, |i| i.line);
        let [x, y, z] = context.ctaid;
        Fault {
            code,
            message: format!(
                "kernel `{}`, ptx line {line}, block ({x},{y},{z}), warp {}: {what}",
                context.kernel.name, self.index
            ),
        }
    }

    /// A fault of one lane.
    pub fn lane_fault(
        &self,
        context: &Context<'_>,
        code: i32,
        inst: &Inst,
        lane: usize,
        what: &str,
    ) -> Fault {
        let [x, y, z] = context.ctaid;
        let [bx, by, _] = context.launch.block;
        let thread = self.index * 32 + lane as u32;
        let (tx, ty, tz) = (thread % bx, thread / bx % by, thread / bx / by);
        Fault {
            code,
            message: format!(
                "kernel `{}`, ptx line {}, block ({x},{y},{z}), thread ({tx},{ty},{tz}), lane {lane}: {what}",
                context.kernel.name, inst.line
            ),
        }
    }

    /// Runs for at most `turn` instructions; how it stopped and how many were executed.
    pub fn run(&mut self, context: &mut Context<'_>, turn: u64) -> Result<(Stop, u64), Fault> {
        let kernel = context.kernel;
        let lanes = context.options.lanes;
        let watched = context.options.uninitialised && !kernel.watches.is_empty();
        let mut executed = 0u64;
        let mut lane_count = 0u64;
        let Some(&top) = self.paths.last() else { return Ok((Stop::Turn, 0)) };
        let mut path = top;
        let result = loop {
            if path.pc == path.meet {
                self.paths.pop();
                match self.paths.last() {
                    Some(&below) => path = below,
                    None => {
                        self.state = State::Done;
                        break Ok(Stop::Turn);
                    }
                }
                continue;
            }
            if executed >= turn {
                break Ok(Stop::Turn);
            }
            let at = path.pc as usize;
            let inst = &kernel.code[at];
            let mask = if inst.guard == NO_GUARD {
                path.mask
            } else {
                let p = self.registers.p[inst.guard as usize];
                path.mask & if inst.negated { !p } else { p }
            };
            executed += 1;
            lane_count += if mask == FULL { 32 } else { u64::from(mask.count_ones()) };
            if mask == 0 {
                if watched && let Err(fault) = self.watch(context, at, path.mask, 0) {
                    break Err(fault);
                }
                path.pc += 1;
                continue;
            }
            path.pc += 1;
            if watched && let Err(fault) = self.watch(context, at, path.mask, mask) {
                break Err(fault);
            }
            match inst.op {
                Op::Int32(_) | Op::Int16(_) => (lanes.word)(&mut self.registers, inst, mask),
                Op::F32(..) | Op::F64(..) => (lanes.float)(&mut self.registers, inst, mask),
                Op::Mix(MixOp::Unpack2x16 | MixOp::Unpack2x32 | MixOp::Pack4x16 | MixOp::Unpack4x16) => {
                    self.unpack(inst, mask, kernel.lists[inst.x as usize]);
                }
                Op::Int64(_) | Op::Mix(_) => (lanes.double)(&mut self.registers, inst, mask),
                Op::Convert(_) | Op::ConvertPair(..) | Op::Setp(..) | Op::Set(..) | Op::Testp(..) => {
                    (lanes.convert)(&mut self.registers, inst, mask);
                }
                Op::Half(..) | Op::Half2(..) | Op::HalfRelu(..) => {
                    (lanes.half)(&mut self.registers, inst, mask)
                }
                Op::Pred(op) => self.predicate(inst, mask, op),
                Op::Branch => {
                    let rest = path.mask & !mask;
                    if rest == 0 {
                        path.pc = inst.x;
                    } else {
                        // The lanes part. What is below waits where they meet again; a path that
                        // would start there has nothing to do.
                        let meet = kernel.reconverge[at];
                        let below = Path { pc: meet, meet: path.meet, mask: path.mask };
                        let fall = Path { pc: at as u32 + 1, meet, mask: rest };
                        let taken = Path { pc: inst.x, meet, mask };
                        self.paths.pop();
                        if meet != path.meet {
                            self.paths.push(below);
                        }
                        if fall.pc != meet {
                            self.paths.push(fall);
                        }
                        self.paths.push(taken);
                        path = taken;
                    }
                }
                Op::Exit => {
                    self.live &= !mask;
                    for p in &mut self.paths {
                        p.mask &= !mask;
                    }
                    let last = self.paths.len() - 1;
                    self.paths[last] = Path { mask: path.mask & !mask, ..path };
                    while self.paths.last().is_some_and(|p| p.mask == 0) {
                        self.paths.pop();
                    }
                    match self.paths.last() {
                        Some(&next) => path = next,
                        None => {
                            self.state = State::Done;
                            break Ok(Stop::Turn);
                        }
                    }
                }
                Op::Load
                | Op::Store
                | Op::Atomic
                | Op::CpAsync
                | Op::CpAsyncCommit
                | Op::CpAsyncWait
                | Op::Ldmatrix => {
                    if let Err(fault) = self.memory(context, inst, mask) {
                        break Err(fault);
                    }
                }
                Op::Nop | Op::Sleep => {}
                Op::Barrier => {
                    if let Err(fault) = self.check_barrier(context, inst, mask) {
                        break Err(fault);
                    }
                    break Ok(Stop::Barrier(at));
                }
                Op::Trap => {
                    let lane = mask.trailing_zeros() as usize;
                    break Err(self.lane_fault(context, LAUNCH_FAILED, inst, lane, "trap"));
                }
                _ => {
                    if let Err(fault) = self.collective(context, inst, mask) {
                        break Err(fault);
                    }
                }
            }
        };
        if let Some(last) = self.paths.last_mut() {
            *last = path;
        }
        context.counts.lanes += lane_count;
        context.counts.warps += executed;
        result.map(|stop| (stop, executed))
    }

    /// Reads of registers that nothing has written are faults; writes are noted. `path`: the lanes that come here,
    /// `mask`: those whose guard holds.
    fn watch(&mut self, context: &Context<'_>, at: usize, path: u32, mask: u32) -> Result<(), Fault> {
        let watch = &context.kernel.watches[at];
        let guard = watch.guard.map(|register| (register, path));
        for (register, lanes) in guard.into_iter().chain(watch.reads.iter().map(|&register| (register, mask)))
        {
            let missing = lanes & !self.written[register as usize];
            if missing != 0 {
                let name = &context.kernel.watched[register as usize];
                let lane = missing.trailing_zeros() as usize;
                let what = format!("reads the register `{name}`, which nothing has written");
                return Err(self.lane_fault(context, LAUNCH_FAILED, &context.kernel.code[at], lane, &what));
            }
        }
        for &register in &watch.writes {
            self.written[register as usize] |= mask;
        }
        Ok(())
    }

    fn check_barrier(&self, context: &Context<'_>, inst: &Inst, mask: u32) -> Result<(), Fault> {
        let missing = self.present & !mask;
        if missing == 0 {
            return Ok(());
        }
        let barrier = context.kernel.barriers[inst.x as usize];
        let lane = missing.trailing_zeros() as usize;
        let gone = if self.live >> lane & 1 == 0 { "has ended" } else { "is elsewhere" };
        let name = if barrier.aligned {
            "a barrier"
        } else {
            "a barrier without .aligned (which the emulator runs only when all lanes come together)"
        };
        Err(self.lane_fault(
            context,
            LAUNCH_FAILED,
            inst,
            mask.trailing_zeros() as usize,
            &format!(
                "divergent bar.sync: {name} reached by lanes {mask:#010x} of {:#010x}; lane {lane} {gone}",
                self.present
            ),
        ))
    }

    fn predicate(&mut self, inst: &Inst, mask: u32, op: PredOp) {
        let r = &mut self.registers;
        let a = r.p[inst.a as usize] ^ (inst.x & 1).wrapping_neg();
        let b = r.p[inst.b as usize] ^ (inst.x >> 1 & 1).wrapping_neg();
        let bits = match op {
            PredOp::Mov => a,
            PredOp::And => a & b,
            PredOp::Or => a | b,
            PredOp::Xor => a ^ b,
            PredOp::Not => !a,
        };
        r.put_p(inst.d, bits, mask);
    }

    /// The vector moves that name more registers than an instruction has fields.
    fn unpack(&mut self, inst: &Inst, mask: u32, list: [u16; 4]) {
        let r = &mut self.registers;
        match inst.op {
            Op::Mix(MixOp::Unpack2x16) => {
                let a = r.w[inst.a as usize];
                r.put_w(list[0], &a.map(|a| a & 0xffff), mask);
                r.put_w(list[1], &a.map(|a| a >> 16), mask);
            }
            Op::Mix(MixOp::Unpack2x32) => {
                let a = r.d[inst.a as usize];
                r.put_w(list[0], &a.map(|a| a as u32), mask);
                r.put_w(list[1], &a.map(|a| (a >> 32) as u32), mask);
            }
            Op::Mix(MixOp::Unpack4x16) => {
                let a = r.d[inst.a as usize];
                for (part, &slot) in list.iter().enumerate() {
                    r.put_w(slot, &a.map(|a| (a >> (16 * part)) as u32 & 0xffff), mask);
                }
            }
            _ => {
                let mut t = [0u64; LANES];
                for (part, &slot) in list.iter().enumerate() {
                    for (l, t) in t.iter_mut().enumerate() {
                        *t |= u64::from(r.w[slot as usize][l] & 0xffff) << (16 * part);
                    }
                }
                r.put_d(inst.d, &t, mask);
            }
        }
    }
}

/// A special register; the block's number, the only one that changes from block to block, is `reset`'s.
fn special_value(launch: &Launch<'_>, warp: u32, special: Special) -> [u32; LANES] {
    let block = launch.block;
    let threads = block.iter().product::<u32>();
    let lane: [u32; LANES] = std::array::from_fn(|l| l as u32);
    let thread = |l: u32| warp * 32 + l;
    match special {
        Special::Tid(0) => lane.map(|l| thread(l) % block[0]),
        Special::Tid(1) => lane.map(|l| thread(l) / block[0] % block[1]),
        Special::Tid(_) => lane.map(|l| thread(l) / block[0] / block[1]),
        Special::Ntid(c) => broadcast(block[c as usize]),
        Special::Ctaid(_) => broadcast(0),
        Special::Nctaid(c) => broadcast(launch.grid[c as usize]),
        Special::Laneid => lane,
        Special::Warpid => broadcast(warp),
        Special::Nwarpid => broadcast(threads.div_ceil(32)),
        Special::Smid => broadcast(0),
        Special::Nsmid => broadcast(1),
        Special::Gridid => broadcast(launch.id),
        Special::LanemaskEq => lane.map(|l| 1 << l),
        Special::LanemaskLt => lane.map(|l| (1u32 << l) - 1),
        Special::LanemaskLe => lane.map(|l| (1u32 << l) | ((1u32 << l) - 1)),
        Special::LanemaskGt => lane.map(|l| !((1u32 << l) | ((1u32 << l) - 1))),
        Special::LanemaskGe => lane.map(|l| !((1u32 << l) - 1)),
        Special::DynamicSmemSize => broadcast(launch.dynamic_shared as u32),
        Special::TotalSmemSize => broadcast((launch.kernel.shared_bytes + launch.dynamic_shared) as u32),
    }
}
