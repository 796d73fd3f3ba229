//! Where lanes that part at a branch meet again: the immediate post-dominator of each branch.
//!
//! Basic blocks, then the iterative dominator algorithm of Cooper, Harvey and Kennedy ("A simple,
//! fast dominance algorithm") on the reversed graph with one virtual exit.

use super::code::{Inst, NEVER, NO_GUARD, Op};

/// For each instruction, the instruction at which its diverging lanes meet ([`NEVER`]: at the end).
pub fn reconvergence(code: &[Inst]) -> Vec<u32> {
    let n = code.len();
    // Block starts: the entry, branch targets, and what follows a branch or an exit.
    let mut leader = vec![false; n + 1];
    leader[0] = true;
    for (at, inst) in code.iter().enumerate() {
        match inst.op {
            Op::Branch => {
                leader[inst.x as usize] = true;
                leader[at + 1] = true;
            }
            Op::Exit | Op::Trap => leader[at + 1] = true,
            _ => {}
        }
    }
    let starts: Vec<usize> = (0..n).filter(|&i| leader[i]).collect();
    let blocks = starts.len();
    let exit = blocks;
    let block_of = |at: usize| if at >= n { exit } else { starts.partition_point(|&s| s <= at) - 1 };
    let last_exit = code.iter().rposition(|i| i.op == Op::Exit && i.guard == NO_GUARD);
    let mut successors: Vec<Vec<usize>> = Vec::with_capacity(blocks);
    for b in 0..blocks {
        let last = starts.get(b + 1).copied().unwrap_or(n) - 1;
        let inst = &code[last];
        let mut out = Vec::new();
        let guarded = inst.guard != NO_GUARD;
        match inst.op {
            Op::Branch => {
                out.push(block_of(inst.x as usize));
                if guarded {
                    out.push(block_of(last + 1));
                }
            }
            // A guarded exit parts nobody: the lanes that leave are gone, so the others' path is the
            // only one that counts for meeting again. For the same reason an early return is no way
            // out here: only the last exit is.
            Op::Exit | Op::Trap if guarded => out.push(block_of(last + 1)),
            Op::Exit if Some(last) == last_exit => out.push(exit),
            Op::Exit | Op::Trap => {}
            _ => out.push(block_of(last + 1)),
        }
        successors.push(out);
    }
    let post = post_dominators(&successors, exit);
    let mut out = vec![NEVER; n];
    for (at, inst) in code.iter().enumerate() {
        if inst.op == Op::Branch && inst.guard != NO_GUARD {
            let meet = post[block_of(at)];
            out[at] = match meet {
                Some(block) if block != exit => starts[block] as u32,
                _ => NEVER,
            };
        }
    }
    out
}

/// Immediate post-dominator of each block; `None` where no path leads to the exit.
fn post_dominators(successors: &[Vec<usize>], exit: usize) -> Vec<Option<usize>> {
    let n = successors.len();
    let mut predecessors = vec![Vec::new(); n + 1];
    for (b, list) in successors.iter().enumerate() {
        for &s in list {
            predecessors[s].push(b);
        }
    }
    // Postorder of the reversed graph from the exit.
    let mut order = Vec::new();
    let mut seen = vec![false; n + 1];
    let mut stack = vec![(exit, 0usize)];
    seen[exit] = true;
    while let Some(&mut (block, ref mut next)) = stack.last_mut() {
        if let Some(&p) = predecessors[block].get(*next) {
            *next += 1;
            if !seen[p] {
                seen[p] = true;
                stack.push((p, 0));
            }
        } else {
            order.push(block);
            stack.pop();
        }
    }
    let mut number = vec![usize::MAX; n + 1];
    for (i, &b) in order.iter().enumerate() {
        number[b] = i;
    }
    let mut idom: Vec<Option<usize>> = vec![None; n + 1];
    idom[exit] = Some(exit);
    let mut changed = true;
    while changed {
        changed = false;
        for &b in order.iter().rev().skip(1) {
            let mut new: Option<usize> = None;
            for &s in &successors[b] {
                if idom[s].is_none() {
                    continue;
                }
                new = Some(match new {
                    None => s,
                    Some(mut x) => {
                        let mut y = s;
                        while x != y {
                            while number[x] < number[y] {
                                x = idom[x].unwrap_or(exit);
                            }
                            while number[y] < number[x] {
                                y = idom[y].unwrap_or(exit);
                            }
                        }
                        x
                    }
                });
            }
            if new.is_some() && idom[b] != new {
                idom[b] = new;
                changed = true;
            }
        }
    }
    idom
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inst(op: Op, guard: u16, target: u32) -> Inst {
        Inst { op, guard, negated: false, d: 0, a: 0, b: 0, c: 0, x: target, line: 0 }
    }

    #[test]
    fn both_sides_of_an_if_meet_after_it() {
        // 0: @p bra 3; 1: nop; 2: bra 4; 3: nop; 4: exit
        let code = [
            inst(Op::Branch, 0, 3),
            inst(Op::Nop, NO_GUARD, 0),
            inst(Op::Branch, NO_GUARD, 4),
            inst(Op::Nop, NO_GUARD, 0),
            inst(Op::Exit, NO_GUARD, 0),
        ];
        assert_eq!(reconvergence(&code)[0], 4);
    }

    #[test]
    fn a_loop_meets_behind_its_branch() {
        // 0: nop; 1: @p bra 0; 2: exit
        let code = [inst(Op::Nop, NO_GUARD, 0), inst(Op::Branch, 0, 0), inst(Op::Exit, NO_GUARD, 0)];
        assert_eq!(reconvergence(&code)[1], 2);
    }

    #[test]
    fn an_early_return_does_not_keep_the_others_apart() {
        // 0: @p bra 4; 1: @q bra 3; 2: exit; 3: nop; 4: nop; 5: exit
        let code = [
            inst(Op::Branch, 0, 4),
            inst(Op::Branch, 1, 3),
            inst(Op::Exit, NO_GUARD, 0),
            inst(Op::Nop, NO_GUARD, 0),
            inst(Op::Nop, NO_GUARD, 0),
            inst(Op::Exit, NO_GUARD, 0),
        ];
        assert_eq!(reconvergence(&code)[..2], [4, 3]);
    }

    #[test]
    fn an_endless_loop_never_meets() {
        let code = [inst(Op::Branch, 0, 2), inst(Op::Exit, NO_GUARD, 0), inst(Op::Branch, NO_GUARD, 2)];
        // The only way out is the fall-through, so that is where the branch's lanes would meet.
        assert_eq!(reconvergence(&code)[0], 1);
        assert_eq!(reconvergence(&code)[2], NEVER);
    }
}
