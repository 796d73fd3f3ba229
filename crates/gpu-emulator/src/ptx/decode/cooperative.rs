//! Control flow, barriers, and what lanes of a warp do together.

use super::super::PtxError;
use super::super::ast::{Instruction, Kind, Operand, Space, Type};
use super::super::code::{
    Barrier, DISCARD, HalfFormat, Matrices, Multiply, Op, Reduce, Redux, Shuffle, Vote,
};
use super::modifiers::Modifiers;
use super::{Decoder, Fixup};

impl Decoder<'_> {
    pub(super) fn decode_cooperative(&mut self, inst: &Instruction) -> Result<bool, PtxError> {
        let mut m = Modifiers::new(inst);
        let line = inst.line;
        match inst.opcode.as_str() {
            "bra" => {
                m.take("uni");
                m.finish()?;
                let [Operand::Name(label)] = self.operands(inst, 1)? else {
                    return Err(PtxError::at(line, "a branch goes to a label"));
                };
                let fixup =
                    Fixup { inst: self.kernel.code.len(), label: label.clone(), scope: self.scope, line };
                self.fixups.push(fixup);
                self.emit(line, Op::Branch);
            }
            "ret" | "exit" => {
                m.take("uni");
                m.finish()?;
                self.operands(inst, 0)?;
                self.emit(line, Op::Exit);
            }
            "trap" => {
                m.finish()?;
                self.emit(line, Op::Trap);
            }
            "nanosleep" => {
                m.ty()?;
                m.finish()?;
                self.operands(inst, 1)?;
                self.emit(line, Op::Sleep);
            }
            "bar" | "barrier" => return self.barrier(inst, m),
            "shfl" => {
                if !m.take("sync") {
                    return Ok(false);
                }
                let mode = m.find(|n| {
                    Some(match n {
                        "up" => Shuffle::Up,
                        "down" => Shuffle::Down,
                        "bfly" => Shuffle::Bfly,
                        "idx" => Shuffle::Idx,
                        _ => return None,
                    })
                });
                let Some(mode) = mode else { return Ok(false) };
                m.take("b32");
                m.finish()?;
                let ops = self.operands(inst, 5)?;
                let (d, p) = match &ops[0] {
                    Operand::Pair(d, p) => (&**d, self.predicate_destination(p, line)?),
                    single => (single, DISCARD),
                };
                let d = self.destination(d, Type::B32, line)?;
                let a = self.source(&ops[1], Type::B32, line)?;
                let b = self.source(&ops[2], Type::B32, line)?;
                let c = self.source(&ops[3], Type::B32, line)?;
                let mask = self.source(&ops[4], Type::B32, line)?;
                let e = self.emit(line, Op::Shuffle(mode));
                (e.d, e.a, e.b, e.c, e.x) = (d, a, b, c, u32::from(p) | u32::from(mask) << 16);
            }
            "vote" => {
                if !m.take("sync") {
                    return Ok(false);
                }
                let mode = m.find(|n| {
                    Some(match n {
                        "all" => Vote::All,
                        "any" => Vote::Any,
                        "uni" => Vote::Uni,
                        "ballot" => Vote::Ballot,
                        _ => return None,
                    })
                });
                let Some(mode) = mode else { return Ok(false) };
                let ty = m.ty()?;
                m.finish()?;
                if ty != (if mode == Vote::Ballot { Type::B32 } else { Type::Pred }) {
                    return Ok(false);
                }
                let ops = self.operands(inst, 3)?;
                let d = self.destination(&ops[0], ty, line)?;
                let (a, negated) = self.predicate(&ops[1], line)?;
                let mask = self.source(&ops[2], Type::B32, line)?;
                let e = self.emit(line, Op::Vote(mode));
                (e.d, e.a, e.b, e.x) = (d, a, mask, u32::from(negated));
            }
            "match" => {
                let (any, all, sync) = (m.take("any"), m.take("all"), m.take("sync"));
                let ty = m.ty()?;
                m.finish()?;
                if any == all || !sync || !matches!(ty, Type::B32 | Type::B64) {
                    return Ok(false);
                }
                self.needs(inst, 70, (6, 0))?;
                let ops = self.operands(inst, 3)?;
                let (d, p) = match &ops[0] {
                    Operand::Pair(d, p) if all => (&**d, self.predicate_destination(p, line)?),
                    single => (single, DISCARD),
                };
                let d = self.destination(d, Type::B32, line)?;
                let a = self.source(&ops[1], ty, line)?;
                let mask = self.source(&ops[2], Type::B32, line)?;
                let e = self.emit(line, if any { Op::MatchAny } else { Op::MatchAll });
                (e.d, e.a, e.b, e.c) = (d, a, mask, u16::from(ty == Type::B64));
                e.x = u32::from(p);
            }
            "activemask" => {
                m.take("b32");
                m.finish()?;
                let ops = self.operands(inst, 1)?;
                let d = self.destination(&ops[0], Type::B32, line)?;
                self.emit(line, Op::Activemask).d = d;
            }
            "redux" => {
                let sync = m.take("sync");
                let name =
                    m.find(|n| ["add", "min", "max", "and", "or", "xor"].into_iter().find(|k| *k == n));
                let (Some(name), true) = (name, sync) else { return Ok(false) };
                let ty = m.ty()?;
                m.finish()?;
                let op = match (name, ty.kind()) {
                    ("add", Kind::Unsigned | Kind::Signed) => Redux::Add,
                    ("min", Kind::Unsigned) => Redux::MinU,
                    ("min", Kind::Signed) => Redux::MinS,
                    ("max", Kind::Unsigned) => Redux::MaxU,
                    ("max", Kind::Signed) => Redux::MaxS,
                    ("and", Kind::Bits) => Redux::And,
                    ("or", Kind::Bits) => Redux::Or,
                    ("xor", Kind::Bits) => Redux::Xor,
                    _ => return Ok(false),
                };
                if ty.bytes() != 4 {
                    return Ok(false);
                }
                self.needs(inst, 80, (7, 0))?;
                let ops = self.operands(inst, 3)?;
                let d = self.destination(&ops[0], ty, line)?;
                let a = self.source(&ops[1], ty, line)?;
                let mask = self.source(&ops[2], Type::B32, line)?;
                let e = self.emit(line, Op::Redux(op));
                (e.d, e.a, e.b) = (d, a, mask);
            }
            "ldmatrix" => return self.ldmatrix(inst, m),
            "mma" => return self.mma(inst, m),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn barrier(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<bool, PtxError> {
        let line = inst.line;
        if m.take("warp") {
            if inst.opcode != "bar" || !m.take("sync") {
                return Ok(false);
            }
            m.finish()?;
            let ops = self.operands(inst, 1)?;
            let mask = self.source(&ops[0], Type::B32, line)?;
            self.emit(line, Op::WarpBarrier).a = mask;
            return Ok(true);
        }
        m.take("cta");
        let aligned = inst.opcode == "bar" || m.take("aligned");
        let (sync, arrive, red) = (m.take("sync"), m.take("arrive"), m.take("red"));
        let reduce = if red {
            let op = m.find(|n| {
                Some(match n {
                    "popc" => Reduce::Popc,
                    "and" => Reduce::And,
                    "or" => Reduce::Or,
                    _ => return None,
                })
            });
            let Some(op) = op else { return Ok(false) };
            let ty = m.ty()?;
            if ty != (if op == Reduce::Popc { Type::U32 } else { Type::Pred }) {
                return Ok(false);
            }
            Some((op, ty))
        } else {
            None
        };
        m.finish()?;
        if usize::from(sync) + usize::from(arrive) + usize::from(red) != 1 {
            return Ok(false);
        }
        let mut ops = inst.operands.as_slice();
        let mut d = DISCARD;
        let mut reduction = None;
        if let Some((op, ty)) = reduce {
            let [first, middle @ .., last] = ops else {
                return Err(PtxError::at(line, format!("`{}` takes 3 or 4 operands", inst.full_name())));
            };
            d = self.destination(first, ty, line)?;
            let (p, negated) = self.predicate(last, line)?;
            reduction = Some((op, p, negated));
            ops = middle;
        }
        if !(1..=2).contains(&ops.len()) || (arrive && ops.len() != 2) {
            return Err(PtxError::at(
                line,
                format!("`{}` has the wrong number of operands", inst.full_name()),
            ));
        }
        let id = self.source(&ops[0], Type::U32, line)?;
        let threads = match ops.get(1) {
            None => None,
            Some(operand) => Some(self.source(operand, Type::U32, line)?),
        };
        let x = self.kernel.barriers.len() as u32;
        self.kernel.barriers.push(Barrier { id, threads, arrive, reduce: reduction, aligned });
        let e = self.emit(line, Op::Barrier);
        (e.d, e.x) = (d, x);
        Ok(true)
    }

    fn list(
        &mut self,
        operand: &Operand,
        count: usize,
        source: bool,
        ty: Type,
        line: u32,
    ) -> Result<[u16; 4], PtxError> {
        let list = match operand {
            Operand::Vector(list) => list.as_slice(),
            single => std::slice::from_ref(single),
        };
        if list.len() != count {
            return Err(PtxError::at(
                line,
                format!("expected a vector of {count} registers, found {}", list.len()),
            ));
        }
        let mut out = [DISCARD; 4];
        for (slot, operand) in out.iter_mut().zip(list) {
            *slot =
                if source { self.source(operand, ty, line)? } else { self.destination(operand, ty, line)? };
        }
        Ok(out)
    }

    fn ldmatrix(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<bool, PtxError> {
        let line = inst.line;
        let shape = m.take("sync") & m.take("aligned") & m.take("m8n8");
        let count = m.find(|n| match n {
            "x1" => Some(1),
            "x2" => Some(2),
            "x4" => Some(4),
            _ => None,
        });
        let transposed = m.take("trans");
        let shared = m.take("shared") | m.take("shared::cta");
        let b16 = m.take("b16");
        m.finish()?;
        let (Some(count), true, true) = (count, shape, b16) else { return Ok(false) };
        self.needs(inst, 75, (6, 5))?;
        let ops = self.operands(inst, 2)?;
        let to = self.list(&ops[0], count, false, Type::B32, line)?;
        let space = if shared { Space::Shared } else { Space::Generic };
        let (base, offset) = self.address(&ops[1], space, line)?;
        let x = self.kernel.matrices.len() as u32;
        self.kernel.matrices.push(Matrices { from: (space, base, offset), to, count, transposed });
        self.emit(line, Op::Ldmatrix).x = x;
        Ok(true)
    }

    fn mma(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<bool, PtxError> {
        let line = inst.line;
        let shape = m.take("sync") & m.take("aligned");
        let k = m.find(|n| match n {
            "m16n8k8" => Some(8),
            "m16n8k16" => Some(16),
            _ => None,
        });
        let layout = m.take("row") & m.take("col");
        let types: Vec<Type> = std::iter::from_fn(|| m.optional_ty()).collect();
        m.finish()?;
        let (Some(k), true, true) = (k, shape, layout) else { return Ok(false) };
        let (format, half_result) = match types.as_slice() {
            [Type::F32, Type::F16, Type::F16, Type::F32] => (HalfFormat::F16, false),
            [Type::F16, Type::F16, Type::F16, Type::F16] => (HalfFormat::F16, true),
            [Type::F32, Type::Bf16, Type::Bf16, Type::F32] => (HalfFormat::Bf16, false),
            _ => return Ok(false),
        };
        if k == 16 || format == HalfFormat::Bf16 {
            self.needs(inst, 80, (7, 0))?;
        } else {
            self.needs(inst, 75, (6, 5))?;
        }
        let ops = self.operands(inst, 4)?;
        let (results, result) = if half_result { (2, Type::B32) } else { (4, Type::F32) };
        let d = self.list(&ops[0], results, false, result, line)?;
        let a = self.list(&ops[1], k / 4, true, Type::B32, line)?;
        let b = self.list(&ops[2], k / 8, true, Type::B32, line)?;
        let c = self.list(&ops[3], results, true, result, line)?;
        let x = self.kernel.multiplies.len() as u32;
        self.kernel.multiplies.push(Multiply { k, format, half_result, d, a, b: [b[0], b[1]], c });
        self.emit(line, Op::Mma).x = x;
        Ok(true)
    }
}
