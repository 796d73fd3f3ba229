//! The registers that each instruction names, for the search for reads of unwritten ones.

use std::collections::HashMap;

use super::super::PtxError;
use super::super::ast::{Instruction, Operand};
use super::super::unwritten::{Named, watches};
use super::{Decoder, File};

/// Registers by number, and what each instruction of the code names.
#[derive(Default)]
pub(super) struct Names {
    numbers: HashMap<(File, u16), usize>,
    names: Vec<String>,
    code: Vec<Named>,
}

/// Instructions without a destination; `bar.red` has one.
const NO_DESTINATION: [&str; 14] = [
    "st",
    "red",
    "bra",
    "ret",
    "exit",
    "trap",
    "bar",
    "barrier",
    "cp",
    "membar",
    "fence",
    "prefetch",
    "prefetchu",
    "nanosleep",
];

impl Decoder<'_> {
    /// Notes what `inst`, whose code starts at `first`, reads and writes.
    pub(super) fn note_names(&mut self, inst: &Instruction, first: usize) -> Result<(), PtxError> {
        self.names.code.resize(self.kernel.code.len(), Named::default());
        let last = self.kernel.code.len();
        if last == first {
            return Ok(());
        }
        let reduces = inst.modifiers.iter().any(|m| m == "red");
        let results = usize::from(!NO_DESTINATION.contains(&inst.opcode.as_str()) || reduces);
        let (writes, reads) = inst.operands.split_at(results.min(inst.operands.len()));
        let mut named = [Vec::new(), Vec::new()];
        for (list, operands) in named.iter_mut().zip([reads, writes]) {
            for operand in operands {
                self.registers_of(operand, inst.line, list)?;
            }
        }
        let [reads, writes] = named;
        self.names.code[first].reads = reads;
        self.names.code[last - 1].writes = writes;
        if let Some((name, _)) = &inst.guard {
            let mut guard = Vec::new();
            self.registers_of(&Operand::Name(name.clone()), inst.line, &mut guard)?;
            self.names.code[first].guard = guard.first().copied();
        }
        Ok(())
    }

    fn registers_of(&mut self, operand: &Operand, line: u32, out: &mut Vec<usize>) -> Result<(), PtxError> {
        match operand {
            Operand::Name(name) | Operand::Not(name) if name != "_" => {
                // What is no register is a label, a variable or a special register.
                if let Some((ty, slot)) = self.register(name, line)? {
                    let next = self.names.names.len();
                    let number = *self.names.numbers.entry((Self::file_of(ty), slot)).or_insert(next);
                    if number == next {
                        self.names.names.push(name.clone());
                    }
                    out.push(number);
                }
            }
            Operand::Vector(list) => {
                for one in list {
                    self.registers_of(one, line, out)?;
                }
            }
            Operand::Address(base, _) => self.registers_of(base, line, out)?,
            Operand::Pair(a, b) => {
                self.registers_of(a, line, out)?;
                self.registers_of(b, line, out)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Marks the instructions that have to be watched.
    pub(super) fn watch_unwritten(&mut self) {
        self.names.code.resize(self.kernel.code.len(), Named::default());
        let (all, watched) = watches(&self.kernel.code, &self.names.code, self.names.names.len());
        if !watched.is_empty() {
            self.kernel.watches = all;
            self.kernel.watched = watched.into_iter().map(|n| self.names.names[n].clone()).collect();
        }
    }
}
