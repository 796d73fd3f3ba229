//! The bytes of one page and their shadow: which were written, who touched them.

use super::POISON;
use super::race::GlobalRace;

/// The bytes of a page and their shadow.
#[derive(Debug)]
pub struct PageData {
    /// The bytes; shorter than a page at the end of an allocation.
    pub bytes: Vec<u8>,
    /// Which bytes were written.
    pub written: Written,
    race: Option<Box<GlobalRace>>,
}

/// One bit a byte: written. Empty where nothing is tracked, and then everything counts as written.
#[derive(Debug)]
pub struct Written {
    bits: Vec<u8>,
}

impl PageData {
    /// A page of `len` poisoned bytes; `track`: remembers which were written.
    pub fn new(len: usize, track: bool) -> Self {
        let bits = if track { vec![0; len.div_ceil(8)] } else { Vec::new() };
        Self { bytes: vec![POISON; len], written: Written { bits }, race: None }
    }

    /// Who touched what in the current launch.
    #[inline]
    pub fn race(&mut self) -> &mut GlobalRace {
        let len = self.bytes.len();
        self.race.get_or_insert_with(|| Box::new(GlobalRace::new(len)))
    }
}

impl Written {
    /// Whether anything is tracked.
    pub fn tracks(&self) -> bool {
        !self.bits.is_empty()
    }

    /// Whether the byte was written.
    pub fn holds(&self, at: usize) -> bool {
        self.bits.get(at / 8).is_none_or(|bits| bits >> (at % 8) & 1 == 1)
    }

    /// Whether `N` bytes (a power of two up to 16) at `offset`, a multiple of `N`, are all written.
    #[inline(always)]
    pub fn holds_aligned<const N: usize>(&self, offset: usize) -> bool {
        if N == 16 {
            return self.bits.get(offset / 8..offset / 8 + 2).is_none_or(|pair| pair == [0xff, 0xff]);
        }
        // At most 8 bytes, aligned: their bits lie in one byte.
        let wanted = (((1u32 << N) - 1) as u8) << (offset % 8);
        self.bits.get(offset / 8).is_none_or(|bits| bits & wanted == wanted)
    }

    /// Whether the bytes from `start` to `end` are all written, and those that share a shadow byte with
    /// them: `false` is no proof.
    #[inline(always)]
    pub fn surely_holds(&self, start: usize, end: usize) -> bool {
        let Some(bits) = self.bits.get(start / 8..end.div_ceil(8)) else { return !self.tracks() };
        let (words, rest) = bits.as_chunks::<8>();
        let all = words.iter().fold(u64::MAX, |all, word| all & u64::from_ne_bytes(*word));
        all == u64::MAX && rest.iter().all(|&bits| bits == 0xff)
    }

    /// Notes that `N` bytes at `offset`, a multiple of `N`, are written.
    #[inline(always)]
    pub fn mark_aligned<const N: usize>(&mut self, offset: usize) {
        if N == 16 {
            if let Some(pair) = self.bits.get_mut(offset / 8..offset / 8 + 2) {
                pair.copy_from_slice(&[0xff, 0xff]);
            }
        } else if let Some(bits) = self.bits.get_mut(offset / 8) {
            *bits |= (((1u32 << N) - 1) as u8) << (offset % 8);
        }
    }

    /// Notes that `n` bytes from `offset` were written.
    #[inline(always)]
    pub fn mark(&mut self, offset: usize, n: usize) {
        if !self.tracks() || n == 0 {
            return;
        }
        // The bits of the first and the last shadow byte that belong to the range.
        let (first, last) = (offset / 8, (offset + n - 1) / 8);
        let head = 0xffu8 << (offset % 8);
        let tail = 0xffu8 >> (7 - (offset + n - 1) % 8);
        if first == last {
            self.bits[first] |= head & tail;
        } else {
            self.bits[first] |= head;
            self.bits[last] |= tail;
            self.bits[first + 1..last].fill(0xff);
        }
    }

    /// Notes that a byte holds nothing that was written.
    pub fn clear(&mut self, at: usize) {
        if let Some(bits) = self.bits.get_mut(at / 8) {
            *bits &= !(1 << (at % 8));
        }
    }

    /// The first of `n` bytes from `offset` that was not written, counted from `offset`.
    #[inline]
    pub fn first_unwritten(&self, offset: usize, n: usize) -> Option<usize> {
        if self.surely_holds(offset, offset + n) {
            return None;
        }
        (0..n).find(|i| !self.holds(offset + i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_any_start_and_length_are_marked_to_the_byte() {
        for start in 0..20 {
            for n in 0..40 {
                let mut page = PageData::new(77, true);
                page.written.mark(start, n);
                for at in 0..77 {
                    assert_eq!(page.written.holds(at), (start..start + n).contains(&at), "{start} {n} {at}");
                }
                let whole = (0..77 - n).find(|&at| page.written.first_unwritten(at, n.max(1)).is_none());
                assert_eq!(whole, (n > 0).then_some(start));
                assert!(n == 0 || !page.written.surely_holds(start, start + n + 8));
            }
        }
        assert!(PageData::new(77, false).written.surely_holds(3, 70));
    }
}
