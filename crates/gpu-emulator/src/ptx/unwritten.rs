//! Which instructions may read a register that nothing has written.
//!
//! A forward data-flow analysis over the code finds the reads that some path reaches without a write. Only those
//! are watched when the kernel runs, lane by lane, so that what is always written first costs nothing:
//!
//! ```text
//! may be unwritten before an instruction = union over the instructions before it of
//!     what may be unwritten before that one, less what it writes without a guard
//! ```

use super::code::{Inst, NO_GUARD, Op, Watch};

/// The registers that one instruction names, by number.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// The predicate of its guard.
    pub guard: Option<usize>,
    /// Its sources, addresses and stored values included.
    pub reads: Vec<usize>,
    /// Its destinations.
    pub writes: Vec<usize>,
}

#[derive(Clone, PartialEq)]
struct Set(Vec<u64>);

impl Set {
    fn holds(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn remove(&mut self, at: usize) {
        self.0[at / 64] &= !(1 << (at % 64));
    }

    /// Adds the other's members; whether there was a new one.
    fn join(&mut self, other: &Self) -> bool {
        let before = self.clone();
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
        *self != before
    }
}

/// For each instruction what has to be watched, and the numbers of the registers that are.
///
/// `named` goes with `code`; `registers` is how many there are.
pub fn watches(code: &[Inst], named: &[Named], registers: usize) -> (Vec<Watch>, Vec<usize>) {
    // One more than there are, which nothing writes.
    let words = (registers + 1).div_ceil(64);
    let mut before = vec![Set(vec![0; words]); code.len()];
    before[0] = Set(vec![u64::MAX; words]);
    let mut open = vec![0];
    while let Some(at) = open.pop() {
        let inst = &code[at];
        let guarded = inst.guard != NO_GUARD;
        let mut after = before[at].clone();
        if !guarded {
            named[at].writes.iter().for_each(|&w| after.remove(w));
        }
        let jump = matches!(inst.op, Op::Branch).then_some(inst.x as usize);
        let falls = guarded || !matches!(inst.op, Op::Branch | Op::Exit | Op::Trap);
        for next in jump.into_iter().chain(falls.then_some(at + 1)).filter(|&n| n < code.len()) {
            // Every instruction is visited once at least: the first set that reaches it is never empty, because
            // a register's number beyond the last is in it.
            if before[next].join(&after) {
                open.push(next);
            }
        }
    }
    let mut watched = Vec::new();
    for (set, named) in before.iter().zip(named) {
        watched.extend(named.guard.iter().chain(&named.reads).copied().filter(|&r| set.holds(r)));
    }
    watched.sort_unstable();
    watched.dedup();
    let number = |r: usize| watched.binary_search(&r).ok().map(|n| n as u16);
    let all = before
        .iter()
        .zip(named)
        .map(|(set, named)| {
            let suspect = |r: &usize| if set.holds(*r) { number(*r) } else { None };
            Watch {
                guard: named.guard.as_ref().and_then(suspect),
                reads: named.reads.iter().filter_map(suspect).collect(),
                writes: named.writes.iter().filter_map(|&r| number(r)).collect(),
            }
        })
        .collect();
    (all, watched)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inst(op: Op, guard: u16, target: u32) -> Inst {
        Inst { op, guard, negated: false, d: 0, a: 0, b: 0, c: 0, x: target, line: 0 }
    }

    fn named(reads: &[usize], writes: &[usize]) -> Named {
        Named { guard: None, reads: reads.to_vec(), writes: writes.to_vec() }
    }

    #[test]
    fn what_is_written_on_every_path_is_not_watched() {
        // 0: write 1; 1: @p bra 3; 2: write 0; 3: read 0, 1
        let code = [
            inst(Op::Nop, NO_GUARD, 0),
            inst(Op::Branch, 0, 3),
            inst(Op::Nop, NO_GUARD, 0),
            inst(Op::Nop, NO_GUARD, 0),
        ];
        let all = [named(&[], &[1]), named(&[], &[]), named(&[], &[0]), named(&[0, 1], &[])];
        let (watches, watched) = watches(&code, &all, 3);
        assert_eq!(watched, [0]);
        assert_eq!((&watches[3].reads[..], &watches[2].writes[..]), (&[0][..], &[0][..]));
        assert!(watches[0].writes.is_empty());
    }

    #[test]
    fn a_guarded_write_is_none_for_the_lanes_outside() {
        let code = [inst(Op::Nop, 0, 0), inst(Op::Nop, NO_GUARD, 0), inst(Op::Nop, NO_GUARD, 0)];
        let all = [named(&[], &[0]), named(&[0], &[1]), named(&[1], &[])];
        assert_eq!(watches(&code, &all, 2).1, [0]);
    }

    #[test]
    fn a_loop_carries_what_its_body_writes() {
        // 0: read 0; 1: write 0; 2: @p bra 0: the first round reads what nothing has written.
        let code = [inst(Op::Nop, NO_GUARD, 0), inst(Op::Nop, NO_GUARD, 0), inst(Op::Branch, 0, 0)];
        let all = [named(&[0], &[]), named(&[], &[0]), named(&[], &[])];
        assert_eq!(watches(&code, &all, 1).1, [0]);
    }
}
