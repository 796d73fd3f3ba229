//! Who touched which bytes: cells for shared memory (by barrier epoch) and for global memory (by
//! launch and block).
//!
//! A cell covers 4 bytes of global memory with a mask of its bytes, and 1 byte of shared memory. It
//! remembers one writer and one reader, so a race among three may be reported once; none is reported
//! that is not there.

use super::PAGE;

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// A plain load.
    Read,
    /// A load through the non-coherent path.
    ReadOnly,
    /// A plain store.
    Write,
    /// An atomic, or a volatile or relaxed access: meant to meet others.
    Strong,
}

/// One word of global memory.
#[derive(Clone, Copy, Debug, Default)]
struct GlobalCell {
    write_launch: u32,
    write_block: u32,
    read_launch: u32,
    read_block: u32,
    write_mask: u8,
    read_mask: u8,
    strong: bool,
    many_readers: bool,
}

/// The cells of one page.
#[derive(Debug)]
pub struct RaceCells {
    cells: Vec<GlobalCell>,
}

/// Two accesses that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What went before, for a message.
    pub earlier: String,
}

impl RaceCells {
    /// Cells for a page of `len` bytes.
    pub fn new(len: usize) -> Self {
        debug_assert!(len as u64 <= PAGE);
        Self { cells: vec![GlobalCell::default(); len.div_ceil(4)] }
    }

    /// Notes an access of `block` in `launch` to `n` bytes at `offset` and says whether it races.
    /// `same`: a store that changes nothing, which may meet another store.
    pub fn touch(
        &mut self,
        at: (usize, usize),
        touch: Touch,
        same: bool,
        launch: u32,
        block: u32,
    ) -> Option<Conflict> {
        let (offset, n) = at;
        let mut found = None;
        let end = offset + n;
        let mut at = offset;
        while at < end {
            let word = at / 4;
            let stop = end.min(word * 4 + 4);
            let mask = (((1u32 << (stop - at)) - 1) << (at % 4)) as u8;
            let cell = &mut self.cells[word];
            let written = cell.write_launch == launch && cell.write_mask & mask != 0;
            let read = cell.read_launch == launch && cell.read_mask & mask != 0;
            let other_writer = written && cell.write_block != block;
            match touch {
                Touch::Read if other_writer && !cell.strong => {
                    found = Some(format!("block {} of the same launch wrote it", cell.write_block));
                }
                Touch::ReadOnly if written => {
                    found = Some(format!("block {} wrote it in this launch", cell.write_block));
                }
                Touch::Write if other_writer && !same => {
                    found = Some(format!("block {} of the same launch wrote it too", cell.write_block));
                }
                Touch::Write if read && (cell.many_readers || cell.read_block != block) => {
                    found = Some(format!("block {} of the same launch read it", cell.read_block));
                }
                Touch::Strong if other_writer && !cell.strong => {
                    found = Some(format!(
                        "block {} of the same launch wrote it, and not atomically",
                        cell.write_block
                    ));
                }
                _ => {}
            }
            match touch {
                Touch::Read | Touch::ReadOnly => {
                    if cell.read_launch == launch {
                        // The first reader is kept: it is the one to name when a later one writes.
                        cell.many_readers |= cell.read_block != block;
                        cell.read_mask |= mask;
                    } else {
                        cell.many_readers = false;
                        cell.read_mask = mask;
                        (cell.read_launch, cell.read_block) = (launch, block);
                    }
                }
                Touch::Write | Touch::Strong => {
                    cell.write_mask = if cell.write_launch == launch && cell.write_block == block {
                        cell.write_mask | mask
                    } else {
                        mask
                    };
                    cell.strong = touch == Touch::Strong;
                    (cell.write_launch, cell.write_block) = (launch, block);
                }
            }
            at = stop;
        }
        found.map(|earlier| Conflict { earlier })
    }
}

/// One byte of shared memory.
#[derive(Clone, Copy, Debug, Default)]
struct SharedCell {
    /// Epoch of the block's barriers, plus 1 (0: never).
    write_epoch: u32,
    read_epoch: u32,
    /// Epoch of the writer's warp barriers.
    write_warp_epoch: u32,
    read_warp_epoch: u32,
    writer: u16,
    reader: u16,
    many_readers: bool,
    strong: bool,
}

/// The cells of a block's shared memory.
#[derive(Debug, Default)]
pub struct SharedRace {
    cells: Vec<SharedCell>,
}

/// Where in the order of barriers a thread stands.
#[derive(Clone, Copy, Debug)]
pub struct Epoch {
    /// Block barriers passed, plus 1.
    pub block: u32,
    /// Warp barriers passed by the thread's warp.
    pub warp: u32,
    /// The thread.
    pub thread: u16,
}

impl SharedRace {
    /// Forgets everything, for a new block with `len` bytes.
    pub fn reset(&mut self, len: usize) {
        self.cells.clear();
        self.cells.resize(len, SharedCell::default());
    }

    /// Notes an access and says whether it races. `same` as in [`RaceCells::touch`].
    pub fn touch(&mut self, at: (usize, usize), touch: Touch, same: bool, now: Epoch) -> Option<Conflict> {
        let (offset, n) = at;
        let mut found = None;
        // Unordered: another thread, in the same block epoch, and either in another warp or with no
        // warp barrier between.
        let unordered = |thread: u16, block: u32, warp: u32| {
            thread != now.thread && block == now.block && (thread / 32 != now.thread / 32 || warp == now.warp)
        };
        for cell in self.cells.iter_mut().skip(offset).take(n) {
            let write = unordered(cell.writer, cell.write_epoch, cell.write_warp_epoch);
            let read = unordered(cell.reader, cell.read_epoch, cell.read_warp_epoch)
                || (cell.many_readers && cell.read_epoch == now.block && cell.read_warp_epoch == now.warp);
            match touch {
                Touch::Read | Touch::ReadOnly if write && !cell.strong => {
                    found = Some(format!("thread {} wrote it and no barrier came between", cell.writer));
                }
                Touch::Write if write && !same => {
                    found = Some(format!("thread {} wrote it too and no barrier came between", cell.writer));
                }
                Touch::Write if read => {
                    found = Some(format!("thread {} read it and no barrier came between", cell.reader));
                }
                Touch::Strong if write && !cell.strong => {
                    found = Some(format!(
                        "thread {} wrote it, not atomically, and no barrier came between",
                        cell.writer
                    ));
                }
                _ => {}
            }
            match touch {
                Touch::Read | Touch::ReadOnly => {
                    let same = cell.read_epoch == now.block && cell.read_warp_epoch == now.warp;
                    if same {
                        cell.many_readers |= cell.reader != now.thread;
                    } else {
                        cell.many_readers = false;
                        (cell.read_epoch, cell.read_warp_epoch, cell.reader) =
                            (now.block, now.warp, now.thread);
                    }
                }
                Touch::Write | Touch::Strong => {
                    cell.strong = touch == Touch::Strong;
                    (cell.write_epoch, cell.write_warp_epoch, cell.writer) =
                        (now.block, now.warp, now.thread);
                }
            }
        }
        found.map(|earlier| Conflict { earlier })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_one_launch_must_not_meet() {
        let mut cells = RaceCells::new(64);
        assert_eq!(cells.touch((0, 2), Touch::Write, false, 1, 0), None);
        assert_eq!(cells.touch((2, 2), Touch::Write, false, 1, 1), None, "other bytes of the same word");
        assert!(cells.touch((2, 2), Touch::Read, false, 1, 2).is_some());
        assert_eq!(cells.touch((2, 2), Touch::Read, false, 2, 2), None, "another launch");
        assert!(cells.touch((2, 2), Touch::Write, false, 2, 3).unwrap().earlier.contains("block 2"));
        assert_eq!(cells.touch((8, 4), Touch::Strong, false, 2, 3), None);
        assert_eq!(cells.touch((8, 4), Touch::Strong, false, 2, 4), None);
        cells.touch((12, 4), Touch::Write, false, 2, 3);
        assert!(cells.touch((12, 4), Touch::ReadOnly, false, 2, 3).is_some());
    }

    #[test]
    fn barriers_order_threads() {
        let mut race = SharedRace::default();
        race.reset(16);
        let at = |block, warp, thread| Epoch { block, warp, thread };
        assert_eq!(race.touch((0, 4), Touch::Write, false, at(1, 0, 0)), None);
        assert!(
            race.touch((0, 4), Touch::Read, false, at(1, 0, 40)).unwrap().earlier.contains("thread 0 wrote")
        );
        assert_eq!(race.touch((0, 4), Touch::Read, false, at(2, 0, 40)), None);
        assert!(race.touch((0, 4), Touch::Write, false, at(2, 0, 0)).is_some());
        race.reset(16);
        race.touch((0, 4), Touch::Write, false, at(1, 0, 0));
        assert!(race.touch((0, 4), Touch::Read, false, at(1, 0, 1)).is_some(), "same warp, no bar.warp.sync");
        race.reset(16);
        race.touch((0, 4), Touch::Write, false, at(1, 0, 0));
        assert_eq!(race.touch((0, 4), Touch::Read, false, at(1, 1, 1)), None, "a warp barrier came between");
    }
}
