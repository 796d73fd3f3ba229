//! Loads and stores of a warp whose lanes all lie in one page of global memory, or in shared memory.
//!
//! ```text
//! 1. for each lane: its distance from the start of the page; the least, the largest, the OR of all
//! 2. one comparison says whether all are inside, one whether all are aligned
//! 3. the shadow of the whole span, or else of each lane, says whether all was written
//! 4. the bytes move: as one run where the lanes follow each other, else lane by lane
//! ```
//!
//! Nothing here is a fault: where a question has the answer no, nothing was done, and the caller goes through
//! the lanes one by one, which names what is wrong.

use super::super::block::WRITTEN;
use super::super::registers::{FULL, LANES, Registers};
use crate::memory::Written;
use crate::memory::race::Who;
use crate::memory::{DeviceMemory, PAGE};
use crate::ptx::code::{Access, Base};

/// What is checked of an access to global memory.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Loads of bytes that nothing has written are refused.
    pub uninitialised: bool,
    /// The block whose accesses are remembered, where races are looked for.
    pub race: Option<Who>,
}

/// Loads or stores a warp's lanes in global memory; `false` where it did nothing.
pub type Global = fn(&mut Registers, &mut DeviceMemory, &Access, u32, Rules) -> bool;
/// As [`Global`] in shared memory: its bytes and their states.
pub type Shared = fn(&mut Registers, &mut [u8], &mut [u8], &Access, u32) -> bool;

/// The addresses of all lanes.
#[inline(always)]
pub fn addresses(r: &Registers, base: Base, offset: i64) -> [u64; LANES] {
    let mut at = [offset as u64; LANES];
    match base {
        Base::Double(slot) => {
            for (at, base) in at.iter_mut().zip(&r.d[slot as usize]) {
                *at = at.wrapping_add(*base);
            }
        }
        Base::Word(slot) => {
            for (at, base) in at.iter_mut().zip(&r.w[slot as usize]) {
                *at = at.wrapping_add(u64::from(*base));
            }
        }
        Base::Absolute => {}
    }
    at
}

/// Where the lanes' rows of `n` bytes lie, counted from a common start.
struct Rows {
    at: [u32; LANES],
    low: usize,
    end: usize,
    /// All lanes take part and follow each other without a gap.
    dense: bool,
}

impl Rows {
    /// `None` where a lane lies elsewhere or is not aligned. Lanes outside the mask get the first lane's place.
    #[inline(always)]
    fn new(address: &[u64; LANES], mask: u32, start: u64, n: usize) -> Option<Self> {
        // Nearly always all lanes take part, at equal steps: then the two ends say it all.
        let step = address[1].wrapping_sub(address[0]);
        let mut uneven = 0;
        for l in 0..LANES {
            uneven |= address[0].wrapping_add(step.wrapping_mul(l as u64)) ^ address[l];
        }
        let [first, last] = [address[0], address[LANES - 1]].map(|a| a.wrapping_sub(start));
        let unaligned = |bits: u64| bits & (n as u64 - 1) != 0;
        if uneven == 0 && mask == FULL {
            // A step beyond the page could wrap around and end inside.
            let inside = first < PAGE && last < PAGE && step.wrapping_add(PAGE) < 2 * PAGE;
            if !inside || unaligned(first | step) {
                return None;
            }
            let mut at = [0; LANES];
            for l in 0..LANES {
                at[l] = address[l].wrapping_sub(start) as u32;
            }
            let (low, end) = (first.min(last) as usize, first.max(last) as usize + n);
            return Some(Self { at, low, end, dense: step == n as u64 });
        }
        let first = address[mask.trailing_zeros() as usize & 31].wrapping_sub(start);
        let mut at = [0; LANES];
        let (mut low, mut top, mut bits) = (u64::MAX, 0, 0);
        for l in 0..LANES {
            let distance = if mask >> l & 1 != 0 { address[l].wrapping_sub(start) } else { first };
            (low, top, bits) = (low.min(distance), top.max(distance), bits | distance);
            at[l] = distance as u32;
        }
        if top >= PAGE || unaligned(bits) {
            return None;
        }
        Some(Self { at, low: low as usize, end: top as usize + n, dense: false })
    }

    /// Whether the span is short enough that a look at all of it is quicker than one at each lane.
    #[inline(always)]
    fn compact(&self, n: usize) -> bool {
        self.end - self.low <= 4 * LANES * n
    }
}

/// The shadow of the bytes that the lanes touch.
trait Shadow {
    fn span_is_written(&self, low: usize, end: usize) -> bool;
    fn row_is_written<const N: usize>(&self, at: usize) -> bool;
    fn mark_span(&mut self, low: usize, end: usize);
    fn mark_row<const N: usize>(&mut self, at: usize);
}

impl Shadow for &mut Written {
    #[inline(always)]
    fn span_is_written(&self, low: usize, end: usize) -> bool {
        self.surely_holds(low, end)
    }

    #[inline(always)]
    fn row_is_written<const N: usize>(&self, at: usize) -> bool {
        self.holds_aligned::<N>(at)
    }

    #[inline(always)]
    fn mark_span(&mut self, low: usize, end: usize) {
        self.mark(low, end - low);
    }

    #[inline(always)]
    fn mark_row<const N: usize>(&mut self, at: usize) {
        self.mark_aligned::<N>(at);
    }
}

/// The states of shared memory, one byte a byte.
struct States<'a>(&'a mut [u8]);

impl Shadow for States<'_> {
    #[inline(always)]
    fn span_is_written(&self, low: usize, end: usize) -> bool {
        self.0[low..end].iter().fold(true, |all, &state| all & (state == WRITTEN))
    }

    #[inline(always)]
    fn row_is_written<const N: usize>(&self, at: usize) -> bool {
        self.0[at..at + N] == [WRITTEN; N]
    }

    #[inline(always)]
    fn mark_span(&mut self, low: usize, end: usize) {
        self.0[low..end].fill(WRITTEN);
    }

    #[inline(always)]
    fn mark_row<const N: usize>(&mut self, at: usize) {
        self.0[at..at + N].fill(WRITTEN);
    }
}

/// Calls `$f::<N>` for the `N` bytes that a lane moves.
macro_rules! by_width {
    ($n:expr, $f:ident ( $($argument:expr),* )) => {
        match $n {
            1 => $f::<1>($($argument),*),
            2 => $f::<2>($($argument),*),
            4 => $f::<4>($($argument),*),
            8 => $f::<8>($($argument),*),
            16 => $f::<16>($($argument),*),
            _ => false,
        }
    };
}

/// A load from global memory.
#[inline(always)]
pub fn load(r: &mut Registers, memory: &mut DeviceMemory, access: &Access, mask: u32, rules: Rules) -> bool {
    let n = access.bytes();
    let address = addresses(r, access.base, access.offset);
    let first = address[mask.trailing_zeros() as usize & 31];
    let Some(rows) = Rows::new(&address, mask, first & !(PAGE - 1), n) else { return false };
    let Some(page) = memory.touch(first).filter(|page| rows.end <= page.bytes.len()) else { return false };
    if rules.uninitialised && !by_width!(n, all_written(&rows, &(&mut page.written))) {
        return false;
    }
    if let Some(block) = rules.race {
        let race = page.race();
        let quiet = if rows.dense {
            race.plain_read(rows.low, LANES * n, access.read_only, block)
        } else {
            rows.at.iter().all(|&at| race.plain_read(at as usize, n, access.read_only, block))
        };
        if !quiet {
            return false;
        }
    }
    read_rows(r, access, &page.bytes, &rows, mask);
    true
}

/// A store to global memory.
#[inline(always)]
pub fn store(r: &mut Registers, memory: &mut DeviceMemory, access: &Access, mask: u32, rules: Rules) -> bool {
    let n = access.bytes();
    let address = addresses(r, access.base, access.offset);
    let first = address[mask.trailing_zeros() as usize & 31];
    let Some(rows) = Rows::new(&address, mask, first & !(PAGE - 1), n) else { return false };
    let Some(page) = memory.touch(first).filter(|page| rows.end <= page.bytes.len()) else { return false };
    if let Some(block) = rules.race {
        let race = page.race();
        // Lanes outside the mask have the place of one inside, so that asking for all asks for no more.
        let quiet = if rows.dense {
            race.may_write(rows.low, LANES * n, block)
        } else {
            rows.at.iter().all(|&at| race.may_write(at as usize, n, block))
        };
        if !quiet {
            return false;
        }
        if rows.dense {
            race.mark_written(rows.low, LANES * n, block);
        } else {
            rows.at.iter().for_each(|&at| race.mark_written(at as usize, n, block));
        }
    }
    by_width!(n, write_rows(r, access, &mut page.bytes, &mut (&mut page.written), &rows, mask))
}

/// A load from shared memory.
#[inline(always)]
pub fn load_shared(
    r: &mut Registers,
    bytes: &mut [u8],
    states: &mut [u8],
    access: &Access,
    mask: u32,
) -> bool {
    let Some(rows) = shared_rows(r, bytes, access, mask) else { return false };
    let written = by_width!(access.bytes(), all_written(&rows, &States(states)));
    if written {
        read_rows(r, access, bytes, &rows, mask);
    }
    written
}

/// A store to shared memory.
#[inline(always)]
pub fn store_shared(
    r: &mut Registers,
    bytes: &mut [u8],
    states: &mut [u8],
    access: &Access,
    mask: u32,
) -> bool {
    let Some(rows) = shared_rows(r, bytes, access, mask) else { return false };
    by_width!(access.bytes(), write_rows(r, access, bytes, &mut States(states), &rows, mask))
}

/// Where the lanes' rows lie in shared memory; `None` where one is outside or not aligned.
#[inline(always)]
fn shared_rows(r: &Registers, bytes: &[u8], access: &Access, mask: u32) -> Option<Rows> {
    let address = addresses(r, access.base, access.offset);
    Rows::new(&address, mask, 0, access.bytes()).filter(|rows| rows.end <= bytes.len())
}

#[inline(always)]
fn all_written<const N: usize>(rows: &Rows, shadow: &impl Shadow) -> bool {
    if rows.compact(N) && shadow.span_is_written(rows.low, rows.end) {
        return true;
    }
    rows.at.iter().all(|&at| shadow.row_is_written::<N>(at as usize))
}

/// Whether all elements have this size and registers of this width.
#[inline(always)]
fn plain(access: &Access, size: usize, wide: bool) -> bool {
    access.size == size && access.elements.iter().all(|e| e.wide == wide)
}

#[inline(always)]
fn read_rows(r: &mut Registers, access: &Access, bytes: &[u8], rows: &Rows, mask: u32) {
    match (access.size, access.elements.len()) {
        (4, 1) if plain(access, 4, false) => read_words::<1>(r, access, bytes, rows, mask),
        (4, 2) if plain(access, 4, false) => read_words::<2>(r, access, bytes, rows, mask),
        (4, 4) if plain(access, 4, false) => read_words::<4>(r, access, bytes, rows, mask),
        (8, 1) if plain(access, 8, true) => read_doubles::<1>(r, access, bytes, rows, mask),
        (8, 2) if plain(access, 8, true) => read_doubles::<2>(r, access, bytes, rows, mask),
        (size, _) => {
            let shift = 64 - 8 * size as u32;
            for (e, element) in access.elements.iter().enumerate() {
                let mut values = [0; LANES];
                for (value, &at) in values.iter_mut().zip(&rows.at) {
                    *value = match size {
                        1 => u64::from(bytes[at as usize + e]),
                        2 => u64::from(u16::from_le_bytes(part(bytes, at, 2 * e))),
                        4 => u64::from(u32::from_le_bytes(part(bytes, at, 4 * e))),
                        _ => u64::from_le_bytes(part(bytes, at, 8 * e)),
                    };
                    if access.signed {
                        *value = ((*value << shift) as i64 >> shift) as u64;
                    }
                }
                if element.wide {
                    r.put_d(element.slot, &values, mask);
                } else {
                    let mut words = [0; LANES];
                    for (word, value) in words.iter_mut().zip(values) {
                        *word = value as u32;
                    }
                    r.put_w(element.slot, &words, mask);
                }
            }
        }
    }
}

/// `N` bytes of the row at `at`, from its byte `from` on.
#[inline(always)]
fn part<const N: usize>(bytes: &[u8], at: u32, from: usize) -> [u8; N] {
    let from = at as usize + from;
    let mut out = [0; N];
    out.copy_from_slice(&bytes[from..from + N]);
    out
}

macro_rules! reader {
    ($name:ident, $word:ty, $put:ident) => {
        /// Rows of K words become K registers. The rows come together first, so that the second loop, which sorts
        /// the words, is one that the compiler turns into shuffles.
        #[inline(always)]
        fn $name<const K: usize>(r: &mut Registers, access: &Access, bytes: &[u8], rows: &Rows, mask: u32) {
            const SIZE: usize = size_of::<$word>();
            let mut data = [[0; SIZE]; 4 * LANES];
            let data = &mut data[..LANES * K];
            if rows.dense {
                let run = &bytes[rows.low..rows.low + LANES * SIZE * K];
                data.as_flattened_mut().copy_from_slice(run);
            } else {
                for (row, &at) in data.chunks_exact_mut(K).zip(&rows.at) {
                    row.as_flattened_mut().copy_from_slice(&bytes[at as usize..at as usize + SIZE * K]);
                }
            }
            let mut t = [[0; LANES]; K];
            for l in 0..LANES {
                for e in 0..K {
                    t[e][l] = <$word>::from_le_bytes(data[l * K + e]);
                }
            }
            for (element, t) in access.elements.iter().zip(&t) {
                r.$put(element.slot, t, mask);
            }
        }
    };
}

reader!(read_words, u32, put_w);
reader!(read_doubles, u64, put_d);

#[inline(always)]
fn write_rows<const N: usize>(
    r: &Registers,
    access: &Access,
    bytes: &mut [u8],
    shadow: &mut impl Shadow,
    rows: &Rows,
    mask: u32,
) -> bool {
    match (access.size, access.elements.len()) {
        (4, 1) if plain(access, 4, false) => write_words::<1>(r, access, bytes, rows, mask),
        (4, 2) if plain(access, 4, false) => write_words::<2>(r, access, bytes, rows, mask),
        (4, 4) if plain(access, 4, false) => write_words::<4>(r, access, bytes, rows, mask),
        (8, 1) if plain(access, 8, true) => write_doubles::<1>(r, access, bytes, rows, mask),
        (8, 2) if plain(access, 8, true) => write_doubles::<2>(r, access, bytes, rows, mask),
        (size, _) => {
            for (e, element) in access.elements.iter().enumerate() {
                let slot = element.slot as usize;
                for l in 0..LANES {
                    if mask >> l & 1 != 0 {
                        let value = if element.wide { r.d[slot][l] } else { u64::from(r.w[slot][l]) };
                        let to = rows.at[l] as usize + e * size;
                        bytes[to..to + size].copy_from_slice(&value.to_le_bytes()[..size]);
                    }
                }
            }
        }
    }
    if rows.dense {
        shadow.mark_span(rows.low, rows.end);
    } else {
        for l in 0..LANES {
            if mask >> l & 1 != 0 {
                shadow.mark_row::<N>(rows.at[l] as usize);
            }
        }
    }
    true
}

macro_rules! writer {
    ($name:ident, $word:ty, $file:ident) => {
        /// K registers become rows of K words, as the readers do it the other way round.
        #[inline(always)]
        fn $name<const K: usize>(r: &Registers, access: &Access, bytes: &mut [u8], rows: &Rows, mask: u32) {
            const SIZE: usize = size_of::<$word>();
            let mut t = [&r.$file[0]; K];
            for (t, element) in t.iter_mut().zip(&access.elements) {
                *t = &r.$file[element.slot as usize];
            }
            let mut data = [[0; SIZE]; 4 * LANES];
            let data = &mut data[..LANES * K];
            for l in 0..LANES {
                for e in 0..K {
                    data[l * K + e] = t[e][l].to_le_bytes();
                }
            }
            if rows.dense {
                let run = &mut bytes[rows.low..rows.low + LANES * SIZE * K];
                run.copy_from_slice(data.as_flattened());
                return;
            }
            for (l, row) in data.chunks_exact(K).enumerate() {
                if mask >> l & 1 != 0 {
                    let at = rows.at[l] as usize;
                    bytes[at..at + SIZE * K].copy_from_slice(row.as_flattened());
                }
            }
        }
    };
}

writer!(write_words, u32, w);
writer!(write_doubles, u64, d);
