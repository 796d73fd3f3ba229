//! Shared memory: threads of a block must not meet between two barriers.

use super::{Conflict, Touch};

/// One byte of shared memory.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Epoch of the block's barriers (0: never).
    write_epoch: u32,
    read_epoch: u32,
    /// Epoch of the warp barriers of the writer and of the reader.
    write_warp_epoch: u32,
    read_warp_epoch: u32,
    writer: u16,
    reader: u16,
    /// Other threads of the reader's warp read in the same epoch.
    many: bool,
    /// Threads of several warps read in the same epoch of the block.
    spread: bool,
    strong: bool,
}

/// The cells of a block's shared memory.
#[derive(Debug, Default)]
pub struct SharedRace {
    cells: Vec<Cell>,
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

impl Cell {
    /// Whether a store of `now` meets a load that nothing orders before it.
    fn read_meets(&self, now: Epoch) -> bool {
        self.read_epoch == now.block
            && (self.spread
                || self.reader / 32 != now.thread / 32
                || (self.read_warp_epoch == now.warp && (self.many || self.reader != now.thread)))
    }

    /// Whether the writer is another thread that nothing orders before `now`.
    fn write_meets(&self, now: Epoch) -> bool {
        self.write_epoch == now.block
            && self.writer != now.thread
            && (self.writer / 32 != now.thread / 32 || self.write_warp_epoch == now.warp)
    }

    fn note_read(&mut self, now: Epoch) {
        if self.read_epoch != now.block {
            (self.many, self.spread) = (false, false);
        } else if self.reader / 32 != now.thread / 32 {
            // Any later store in this epoch of the block races with one of the two.
            self.spread = true;
            return;
        } else if self.read_warp_epoch == now.warp {
            self.many |= self.reader != now.thread;
            return;
        } else {
            self.many = false;
        }
        (self.read_epoch, self.read_warp_epoch, self.reader) = (now.block, now.warp, now.thread);
    }
}

impl SharedRace {
    /// Forgets everything, for a new block with `len` bytes.
    pub fn reset(&mut self, len: usize) {
        self.cells.clear();
        self.cells.resize(len, Cell::default());
    }

    /// Notes an access to `n` bytes at `offset` and says whether it races.
    pub fn touch(&mut self, at: (usize, usize), touch: Touch, now: Epoch) -> Option<Conflict> {
        let (offset, n) = at;
        let mut found = None;
        for cell in self.cells.iter_mut().skip(offset).take(n) {
            let written = cell.write_meets(now);
            let (writer, reader) = (cell.writer, cell.reader);
            let earlier = match touch {
                Touch::Read | Touch::ReadOnly if written && !cell.strong => {
                    Some(format!("thread {writer} wrote it and no barrier came between"))
                }
                Touch::Write { same: false } if written => {
                    Some(format!("thread {writer} wrote it too and no barrier came between"))
                }
                Touch::Write { .. } if cell.read_meets(now) => Some(if reader == now.thread {
                    "another thread read it and no barrier came between".into()
                } else {
                    format!("thread {reader} read it and no barrier came between")
                }),
                Touch::StrongRead | Touch::AtomicRead | Touch::StrongWrite if written && !cell.strong => {
                    Some(format!("thread {writer} wrote it, not atomically, and no barrier came between"))
                }
                _ => None,
            };
            if let Some(earlier) = earlier {
                found = Some(Conflict { earlier });
            }
            match touch {
                Touch::Read | Touch::ReadOnly | Touch::StrongRead | Touch::AtomicRead => cell.note_read(now),
                Touch::Write { .. } | Touch::StrongWrite => {
                    let mine = cell.write_epoch == now.block && cell.writer == now.thread;
                    // What this thread wrote plainly stays plain: another's atomic still races with it.
                    cell.strong = touch == Touch::StrongWrite && !(mine && !cell.strong);
                    (cell.write_epoch, cell.write_warp_epoch, cell.writer) =
                        (now.block, now.warp, now.thread);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Touch = Touch::Write { same: false };

    fn at(block: u32, warp: u32, thread: u16) -> Epoch {
        Epoch { block, warp, thread }
    }

    fn fresh() -> SharedRace {
        let mut race = SharedRace::default();
        race.reset(16);
        race
    }

    #[test]
    fn barriers_order_threads() {
        let mut race = fresh();
        assert_eq!(race.touch((0, 4), WRITE, at(1, 0, 0)), None);
        assert!(race.touch((0, 4), Touch::Read, at(1, 0, 40)).unwrap().earlier.contains("thread 0 wrote"));
        assert_eq!(race.touch((0, 4), Touch::Read, at(2, 0, 40)), None);
        assert!(race.touch((0, 4), WRITE, at(2, 0, 0)).is_some());
        let mut race = fresh();
        race.touch((0, 4), WRITE, at(1, 0, 0));
        assert!(race.touch((0, 4), Touch::Read, at(1, 0, 1)).is_some(), "same warp, no bar.warp.sync");
        let mut race = fresh();
        race.touch((0, 4), WRITE, at(1, 0, 0));
        assert_eq!(race.touch((0, 4), Touch::Read, at(1, 1, 1)), None, "a warp barrier came between");
    }

    #[test]
    fn neighbours_of_one_word_do_not_race_and_hide_no_race() {
        let mut race = fresh();
        assert_eq!(race.touch((0, 2), WRITE, at(1, 0, 0)), None);
        assert_eq!(race.touch((2, 2), WRITE, at(1, 0, 1)), None, "the other half of the word");
        assert_eq!(race.touch((0, 2), Touch::Read, at(1, 0, 0)), None, "its own half");
        assert!(race.touch((0, 4), Touch::Read, at(1, 0, 0)).unwrap().earlier.contains("thread 1 wrote"));
        let mut race = fresh();
        race.touch((4, 2), Touch::Read, at(1, 0, 0));
        assert_eq!(race.touch((6, 2), WRITE, at(1, 0, 40)), None);
        assert!(race.touch((4, 1), WRITE, at(1, 0, 40)).unwrap().earlier.contains("thread 0 read"));
    }

    #[test]
    fn readers_of_two_warps_are_both_remembered() {
        let mut race = fresh();
        race.touch((0, 4), Touch::Read, at(1, 0, 0));
        race.touch((0, 4), Touch::Read, at(1, 3, 40));
        // Thread 40's own later store still meets what thread 0 read.
        assert!(race.touch((0, 4), WRITE, at(1, 4, 40)).unwrap().earlier.contains("thread 0 read"));
        // Within one warp, a warp barrier orders all of its readers.
        let mut race = fresh();
        race.touch((0, 4), Touch::Read, at(1, 0, 0));
        race.touch((0, 4), Touch::Read, at(1, 0, 1));
        assert!(race.touch((0, 4), WRITE, at(1, 0, 0)).unwrap().earlier.contains("another thread read"));
        let mut race = fresh();
        race.touch((0, 4), Touch::Read, at(1, 0, 0));
        race.touch((0, 4), Touch::Read, at(1, 0, 1));
        assert_eq!(race.touch((0, 4), WRITE, at(1, 1, 0)), None);
    }
}
