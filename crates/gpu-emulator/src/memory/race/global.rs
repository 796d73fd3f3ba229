//! Global memory: blocks of one launch must not meet.

use std::ops::Range;

use super::{Conflict, Touch};

/// Bytes whose marks are of one launch.
const GRANULE: usize = 64;
/// Bit of a mark: the writer meant to meet others.
const STRONG: u32 = 1 << 31;
/// Bit of a mark: others read too.
const MANY: u32 = 1 << 31;
/// Bits of a mark that name the block, counted from 1; 0 is nobody.
const BLOCK: u32 = !(1 << 31);

/// The marks of one page: a granule's mean something in the launch that they were made in only.
#[derive(Debug)]
pub struct GlobalRace {
    writers: Marks,
    readers: Marks,
}

/// One mark a byte.
#[derive(Debug)]
struct Marks {
    launches: Vec<u32>,
    marks: Vec<u32>,
}

impl Marks {
    fn new(len: usize) -> Self {
        let granules = len.div_ceil(GRANULE);
        Self { launches: vec![0; granules], marks: vec![0; granules * GRANULE] }
    }

    /// The marks of bytes of one granule, as far as they are of this launch.
    #[inline(always)]
    fn of(&self, part: &Range<usize>, launch: u32) -> &[u32] {
        let fresh = self.launches[part.start / GRANULE] == launch;
        if fresh { &self.marks[part.clone()] } else { &[] }
    }

    #[inline(always)]
    fn at(&self, at: usize, launch: u32) -> u32 {
        if self.launches[at / GRANULE] == launch { self.marks[at] } else { 0 }
    }

    /// Marks bytes of one granule: `mark` where there was none, else what `change` makes of it.
    #[inline(always)]
    fn put(&mut self, part: Range<usize>, launch: u32, mark: u32, change: impl Fn(u32) -> u32) {
        let granule = part.start / GRANULE;
        if self.launches[granule] == launch {
            for m in &mut self.marks[part] {
                *m = if *m == 0 { mark } else { change(*m) };
            }
            return;
        }
        self.launches[granule] = launch;
        if part.len() < GRANULE {
            self.marks[granule * GRANULE..(granule + 1) * GRANULE].fill(0);
        }
        self.marks[part].fill(mark);
    }
}

/// The granules' parts of `n` bytes at `offset`.
#[inline(always)]
fn parts(offset: usize, n: usize) -> impl Iterator<Item = Range<usize>> {
    let end = offset + n;
    (offset / GRANULE..end.div_ceil(GRANULE))
        .map(move |granule| offset.max(granule * GRANULE)..end.min((granule + 1) * GRANULE))
}

/// A block of a launch, as marks name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    launch: u32,
    mark: u32,
}

impl Who {
    /// Block number `block` of launch `launch`. Blocks past 2^31 share a mark, which may hide a race between them.
    pub fn new(launch: u32, block: u32) -> Self {
        Self { launch, mark: block.saturating_add(1).min(BLOCK) }
    }
}

impl GlobalRace {
    /// Marks for a page of `len` bytes.
    pub fn new(len: usize) -> Self {
        Self { writers: Marks::new(len), readers: Marks::new(len) }
    }

    /// Notes a load of `n` bytes that races with nothing; `false` where it may.
    #[inline(always)]
    pub fn plain_read(&mut self, offset: usize, n: usize, read_only: bool, who: Who) -> bool {
        for part in parts(offset, n) {
            let mut bad = false;
            for &w in self.writers.of(&part, who.launch) {
                bad |= w != 0 && (read_only || (w & BLOCK != who.mark && w & STRONG == 0));
            }
            if bad {
                return false;
            }
            self.note_read(part, who);
        }
        true
    }

    /// Whether nobody else has touched these bytes in this launch, so that a plain store races with nothing.
    #[inline(always)]
    pub fn may_write(&self, offset: usize, n: usize, who: Who) -> bool {
        let mut bad = false;
        for part in parts(offset, n) {
            for &w in self.writers.of(&part, who.launch) {
                bad |= w != 0 && w & BLOCK != who.mark;
            }
            for &r in self.readers.of(&part, who.launch) {
                bad |= r != 0 && r != who.mark;
            }
        }
        !bad
    }

    /// Notes a plain store that [`Self::may_write`] has allowed.
    #[inline(always)]
    pub fn mark_written(&mut self, offset: usize, n: usize, who: Who) {
        for part in parts(offset, n) {
            self.writers.put(part, who.launch, who.mark, |_| who.mark);
        }
    }

    /// The first reader is kept: it is the one to name when a later block writes.
    #[inline(always)]
    fn note_read(&mut self, part: Range<usize>, who: Who) {
        self.readers.put(part, who.launch, who.mark, |r| if r & BLOCK == who.mark { r } else { r | MANY });
    }

    /// Notes an access to `n` bytes at `offset` and says whether it races.
    pub fn touch(&mut self, at: (usize, usize), touch: Touch, who: Who) -> Option<Conflict> {
        let (offset, n) = at;
        let mut found = None;
        for at in offset..offset + n {
            let (w, r) = (self.writers.at(at, who.launch), self.readers.at(at, who.launch));
            let (writer, reader) = ((w & BLOCK).wrapping_sub(1), (r & BLOCK).wrapping_sub(1));
            let other = w != 0 && w & BLOCK != who.mark;
            let earlier = match touch {
                Touch::Read if other && w & STRONG == 0 => {
                    format!("block {writer} of the same launch wrote it")
                }
                Touch::ReadOnly if w != 0 => format!("block {writer} wrote it in this launch"),
                Touch::Write { same: false } if other => {
                    format!("block {writer} of the same launch wrote it too")
                }
                Touch::Write { .. } if r != 0 && r & BLOCK != who.mark => {
                    format!("block {reader} of the same launch read it")
                }
                Touch::Write { .. } if r & MANY != 0 => "another block of the same launch read it".into(),
                Touch::StrongRead if other => {
                    format!(
                        "block {writer} wrote it in this launch, and blocks of one launch must not communicate"
                    )
                }
                Touch::AtomicRead | Touch::StrongWrite if other && w & STRONG == 0 => {
                    format!("block {writer} of the same launch wrote it, and not atomically")
                }
                _ => continue,
            };
            found = Some(Conflict { earlier });
        }
        for part in parts(offset, n) {
            match touch {
                Touch::Read | Touch::ReadOnly | Touch::StrongRead | Touch::AtomicRead => {
                    self.note_read(part, who);
                }
                Touch::Write { .. } => self.writers.put(part, who.launch, who.mark, |_| who.mark),
                // What this block wrote plainly stays plain: another's atomic still races with it.
                Touch::StrongWrite => self.writers.put(part, who.launch, who.mark | STRONG, |w| {
                    if w == who.mark { w } else { who.mark | STRONG }
                }),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Touch = Touch::Write { same: false };

    #[test]
    fn blocks_of_one_launch_must_not_meet() {
        let mut race = GlobalRace::new(64);
        let who = Who::new;
        assert_eq!(race.touch((0, 2), WRITE, who(1, 0)), None);
        assert_eq!(race.touch((2, 2), WRITE, who(1, 1)), None, "other bytes of the same word");
        assert!(race.touch((2, 2), Touch::Read, who(1, 2)).is_some());
        assert_eq!(race.touch((2, 2), Touch::Read, who(2, 2)), None, "another launch");
        assert!(race.touch((2, 2), WRITE, who(2, 3)).unwrap().earlier.contains("block 2"));
        assert_eq!(race.touch((8, 4), Touch::StrongWrite, who(2, 3)), None);
        assert_eq!(race.touch((8, 4), Touch::StrongWrite, who(2, 4)), None);
        race.touch((12, 4), WRITE, who(2, 3));
        assert!(race.touch((12, 4), Touch::ReadOnly, who(2, 3)).is_some());
    }

    #[test]
    fn a_neighbour_of_the_same_word_hides_nothing() {
        let mut race = GlobalRace::new(64);
        // Two blocks write the halves of a word, a third reads the first half.
        for (offset, block) in [(0, 0), (2, 1)] {
            assert_eq!(race.touch((offset, 2), WRITE, Who::new(1, block)), None);
        }
        let conflict = race.touch((0, 2), Touch::Read, Who::new(1, 2)).unwrap();
        assert!(conflict.earlier.contains("block 0"), "{}", conflict.earlier);
        // And the halves that two blocks have read.
        for (offset, block) in [(8, 5), (10, 6)] {
            assert_eq!(race.touch((offset, 2), Touch::Read, Who::new(1, block)), None);
        }
        assert_eq!(race.touch((8, 2), WRITE, Who::new(1, 5)), None, "its own half");
        assert!(race.touch((10, 2), WRITE, Who::new(1, 5)).unwrap().earlier.contains("block 6"));
    }

    #[test]
    fn what_was_written_plainly_stays_plain_after_an_atomic() {
        let mut race = GlobalRace::new(64);
        race.touch((0, 4), WRITE, Who::new(1, 0));
        race.touch((0, 4), Touch::AtomicRead, Who::new(1, 0));
        race.touch((0, 4), Touch::StrongWrite, Who::new(1, 0));
        let conflict = race.touch((0, 4), Touch::AtomicRead, Who::new(1, 1)).unwrap();
        assert!(conflict.earlier.contains("not atomically"), "{}", conflict.earlier);
    }

    #[test]
    fn the_quick_questions_agree_with_the_exact_one() {
        // Every pair of accesses of two blocks, after a third access of either.
        let kinds =
            [Touch::Read, Touch::ReadOnly, WRITE, Touch::StrongRead, Touch::AtomicRead, Touch::StrongWrite];
        let mut allowed = 0;
        for before in kinds {
            for middle in kinds {
                for (first, second) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let prepared = || {
                        let mut race = GlobalRace::new(64);
                        race.touch((4, 4), before, Who::new(1, first));
                        race.touch((6, 4), middle, Who::new(1, second));
                        race
                    };
                    let who = Who::new(1, 1);
                    for (offset, n) in [(0, 4), (4, 2), (6, 2), (8, 2), (4, 8)] {
                        for (touch, read_only) in [(Touch::Read, false), (Touch::ReadOnly, true)] {
                            let quick = prepared().plain_read(offset, n, read_only, who);
                            assert_eq!(quick, prepared().touch((offset, n), touch, who).is_none());
                            allowed += u32::from(quick);
                        }
                        let quick = prepared().may_write(offset, n, who);
                        let exact = prepared().touch((offset, n), WRITE, who);
                        assert_eq!(
                            quick,
                            exact.is_none(),
                            "{before:?} {middle:?} {first} {second} {exact:?}"
                        );
                    }
                }
            }
        }
        assert!(allowed > 100);
    }
}
