//! A launch, block by block: warps in turn, barriers, and the state that a block shares.

use super::warp::{Stop, Warp};
use super::{Counts, Fault, LAUNCH_FAILED, LAUNCH_TIMEOUT, Options};
use crate::memory::DeviceMemory;
use crate::memory::race::SharedRace;
use crate::ptx::code::{Kernel, Reduce};

/// Warp instructions of one turn.
const TURN: u64 = 4096;

/// A launch.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// The parameter buffer.
    pub params: &'a [u8],
    /// Dynamic shared memory in bytes.
    pub dynamic_shared: usize,
    /// A number that no other launch has.
    pub id: u32,
}

/// What of shared memory was written.
pub(super) const UNWRITTEN: u8 = 0;
pub(super) const WRITTEN: u8 = 1;
/// A `cp.async` that nobody waited for yet.
pub(super) const PENDING: u8 = 2;

#[derive(Clone, Debug, Default)]
struct BarrierState {
    arrived: u32,
    expected: u32,
    count: u32,
    all: bool,
    any: bool,
}

/// What the warps of one block share while it runs.
pub(super) struct Context<'a> {
    pub launch: &'a Launch<'a>,
    pub kernel: &'a Kernel,
    pub memory: &'a mut DeviceMemory,
    pub options: Options,
    pub counts: &'a mut Counts,
    pub shared: Vec<u8>,
    pub shared_state: Vec<u8>,
    pub shared_race: SharedRace,
    pub ctaid: [u32; 3],
    pub block_number: u32,
    /// Barriers that the whole block has passed.
    pub epoch: u32,
    barriers: Vec<BarrierState>,
    pub warps: u32,
    threads: u32,
    /// Warp instructions left before the watchdog bites.
    budget: u64,
}

struct Shuffle(u64);

impl Shuffle {
    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn order(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
        order
    }
}

/// Runs a launch to its end.
///
/// # Errors
/// The first fault; what was written before it stays written, as on hardware.
pub fn run(
    launch: &Launch<'_>,
    memory: &mut DeviceMemory,
    options: Options,
    counts: &mut Counts,
) -> Result<(), Fault> {
    counts.launches += 1;
    let threads = launch.block.iter().product::<u32>();
    let warps = threads.div_ceil(32);
    let shared_bytes = launch.kernel.shared_bytes + launch.dynamic_shared;
    let mut context = Context {
        launch,
        kernel: launch.kernel,
        memory,
        options,
        counts,
        shared: vec![0; shared_bytes],
        shared_state: vec![UNWRITTEN; shared_bytes],
        shared_race: SharedRace::default(),
        ctaid: [0; 3],
        block_number: 0,
        epoch: 1,
        barriers: vec![BarrierState::default(); 16],
        warps,
        threads,
        budget: options.watchdog,
    };
    let mut pool: Vec<Warp> = (0..warps).map(|w| Warp::new(launch, w)).collect();
    let blocks = launch.grid.iter().map(|&g| u64::from(g)).product::<u64>();
    let mut shuffle = options.seed.map(Shuffle);
    // Shuffling needs the list of blocks; a grid too large to list runs in order.
    let order = match &mut shuffle {
        Some(shuffle) if blocks <= 1 << 20 => Some(shuffle.order(blocks as usize)),
        _ => None,
    };
    for n in 0..blocks {
        let number = order.as_ref().map_or(n, |o| o[n as usize] as u64);
        context.start_block(number);
        for warp in &mut pool {
            warp.reset(&context);
        }
        context.run_block(&mut pool, shuffle.as_mut())?;
    }
    Ok(())
}

impl Context<'_> {
    fn start_block(&mut self, number: u64) {
        let [x, y, _] = self.launch.grid.map(u64::from);
        self.ctaid = [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32];
        self.block_number = number as u32;
        if !self.shared.is_empty() {
            self.shared.fill(crate::memory::POISON);
            self.shared_state.fill(UNWRITTEN);
            if self.options.race {
                self.shared_race.reset(self.shared.len());
            }
        }
        self.epoch = 1;
        self.barriers.fill(BarrierState::default());
    }

    fn run_block(&mut self, pool: &mut [Warp], mut shuffle: Option<&mut Shuffle>) -> Result<(), Fault> {
        loop {
            let mut ran = false;
            let order = shuffle.as_mut().map(|s| s.order(pool.len()));
            for n in 0..pool.len() {
                let w = order.as_ref().map_or(n, |o| o[n]);
                if !pool[w].ready() {
                    continue;
                }
                ran = true;
                let turn = TURN.min(self.budget);
                let (stop, used) = pool[w].run(self, turn)?;
                self.budget -= used;
                if self.budget == 0 {
                    return Err(pool[w].fault(self, LAUNCH_TIMEOUT, None, format!(
                        "the watchdog stopped the launch after {} warp instructions (a loop without an end, or a block \
                         that waits for another one)",
                        self.options.watchdog
                    )));
                }
                if let Stop::Barrier(inst) = stop {
                    self.arrive(pool, w, inst)?;
                }
            }
            if pool.iter().all(Warp::done) {
                return Ok(());
            }
            if !ran {
                let waiting = pool.iter().position(|w| !w.done()).unwrap_or(0);
                let ended = pool.iter().filter(|w| w.done()).count();
                return Err(pool[waiting].fault(
                    self,
                    LAUNCH_FAILED,
                    None,
                    format!(
                        "the block hangs at a barrier: {} of its {} warps wait, {ended} have ended",
                        pool.len() - ended,
                        pool.len()
                    ),
                ));
            }
        }
    }

    /// Warp `w` has come to the barrier of instruction `inst`.
    fn arrive(&mut self, pool: &mut [Warp], w: usize, inst: usize) -> Result<(), Fault> {
        let code = self.kernel.code[inst];
        let barrier = self.kernel.barriers[code.x as usize];
        let (id, count) = pool[w].barrier_operands(self, &barrier)?;
        let whole = count.is_none();
        let expected = count.unwrap_or(self.warps * 32);
        let state = &mut self.barriers[id as usize];
        if state.arrived == 0 {
            *state = BarrierState { expected, all: true, ..BarrierState::default() };
        } else if state.expected != expected {
            let other = state.expected;
            return Err(pool[w].fault(
                self,
                LAUNCH_FAILED,
                Some(inst),
                format!("barrier {id} is waited for with {expected} threads here and {other} elsewhere"),
            ));
        }
        let state = &mut self.barriers[id as usize];
        state.arrived += 32;
        if let Some((_, slot, negated)) = barrier.reduce {
            let p = pool[w].registers.p[slot as usize];
            let p = (if negated { !p } else { p }) & pool[w].present();
            state.count += p.count_ones();
            state.all &= p == pool[w].present();
            state.any |= p != 0;
        }
        if !barrier.arrive {
            pool[w].wait(id, code.d, barrier.reduce.map(|r| r.0));
        }
        if state.arrived > state.expected {
            let (arrived, expected) = (state.arrived, state.expected);
            return Err(pool[w].fault(
                self,
                LAUNCH_FAILED,
                Some(inst),
                format!("barrier {id} expects {expected} threads and {arrived} came"),
            ));
        }
        if state.arrived == state.expected {
            let (number, all, any) = (state.count, state.all, state.any);
            *state = BarrierState::default();
            // Any barrier starts a new epoch: one of part of the block may hide a race, none is made up.
            self.epoch += 1;
            for warp in pool.iter_mut() {
                warp.release(id, |op| match op {
                    Reduce::Popc => number,
                    Reduce::And => u32::from(all),
                    Reduce::Or => u32::from(any),
                });
            }
        }
        debug_assert!(!whole || expected >= self.threads);
        Ok(())
    }
}
