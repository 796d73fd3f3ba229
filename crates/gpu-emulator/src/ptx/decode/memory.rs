//! Loads, stores, atomics, asynchronous copies and address conversions.

use super::super::PtxError;
use super::super::ast::{Instruction, Kind, Operand, Space, Type};
use super::super::code::{Access, Atomic, CopyAsync, DISCARD, Element, IntOp, Op};
use super::Decoder;
use super::modifiers::Modifiers;

fn space(m: &mut Modifiers<'_>) -> Option<Space> {
    m.find(|name| {
        Some(match name {
            "global" => Space::Global,
            "shared" | "shared::cta" => Space::Shared,
            "local" => Space::Local,
            "param" | "param::entry" => Space::Param,
            "const" => Space::Const,
            _ => return None,
        })
    })
}

/// Scopes, cache operators and eviction hints: they order or speed up, and change no value here.
fn hints(m: &mut Modifiers<'_>) -> bool {
    let strong =
        ["volatile", "relaxed", "acquire", "release", "acq_rel"].iter().fold(false, |s, n| s | m.take(n));
    m.take("weak");
    let known = |name: &str| {
        matches!(
            name,
            "cta"
                | "gpu"
                | "sys"
                | "ca"
                | "cg"
                | "cs"
                | "lu"
                | "cv"
                | "wb"
                | "wt"
                | "L1::evict_normal"
                | "L1::evict_unchanged"
                | "L1::evict_first"
                | "L1::evict_last"
                | "L1::no_allocate"
                | "L2::64B"
                | "L2::128B"
                | "L2::256B"
        )
        .then_some(())
    };
    while m.find(known).is_some() {}
    strong
}

impl Decoder<'_> {
    pub(super) fn decode_memory(&mut self, inst: &Instruction) -> Result<bool, PtxError> {
        let m = Modifiers::new(inst);
        match inst.opcode.as_str() {
            "ld" | "ldu" => self.load(inst, m)?,
            "st" => self.store(inst, m)?,
            "atom" | "red" => return self.atomic(inst, m),
            "cp" => return self.copy_async(inst, m),
            "cvta" => return self.cvta(inst, m),
            "isspacep" => {
                let mut m = m;
                let Some(space) = space(&mut m) else { return Ok(false) };
                m.finish()?;
                let ops = self.operands(inst, 2)?;
                let d = self.predicate_destination(&ops[0], inst.line)?;
                let a = self.source(&ops[1], Type::U64, inst.line)?;
                let number = match space {
                    Space::Global => 0,
                    Space::Shared => 1,
                    Space::Local => 2,
                    _ => return Ok(false),
                };
                let e = self.emit(inst.line, Op::IsSpace);
                (e.d, e.a, e.x) = (d, a, number);
            }
            "prefetch" | "prefetchu" => {
                self.operands(inst, 1)?;
                self.emit(inst.line, Op::Nop);
            }
            "membar" | "fence" => {
                let mut m = m;
                let known =
                    |n: &str| matches!(n, "sc" | "acq_rel" | "cta" | "gpu" | "sys" | "gl").then_some(());
                while m.find(known).is_some() {}
                m.finish()?;
                self.operands(inst, 0)?;
                self.emit(inst.line, Op::Nop);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A register that may be wider than `ty`: its slot, and whether it is a double. Constants
    /// have the type's own width.
    pub(super) fn relaxed(
        &mut self,
        operand: &Operand,
        ty: Type,
        line: u32,
    ) -> Result<(u16, bool), PtxError> {
        if let Operand::Name(name) = operand {
            if name == "_" {
                return Ok((DISCARD, false));
            }
            if let Some((found, slot)) = self.register(name, line)? {
                let kinds = match (found.kind(), ty.kind()) {
                    (Kind::Pred, _) => false,
                    (Kind::Float, Kind::Float) => found == ty,
                    (Kind::Float, Kind::Unsigned | Kind::Signed) => false,
                    // A float type in a wider untyped register has no defined value.
                    (_, Kind::Float) => found.bytes() == ty.bytes() && found.kind() == Kind::Bits,
                    _ => true,
                };
                if !kinds || found.bytes() < ty.bytes() {
                    return Err(Self::mismatch(line, name, found, ty));
                }
                return Ok((slot, found.bytes() == 8));
            }
        }
        Ok((self.source(operand, ty, line)?, ty.bytes() == 8))
    }

    fn elements(
        &mut self,
        operand: &Operand,
        ty: Type,
        count: usize,
        line: u32,
    ) -> Result<Vec<Element>, PtxError> {
        let list = match operand {
            Operand::Vector(list) if list.len() == count && count > 1 => list.as_slice(),
            single if count == 1 => std::slice::from_ref(single),
            _ => return Err(PtxError::at(line, format!("expected a vector of {count} registers"))),
        };
        list.iter()
            .map(|o| {
                let (slot, wide) = self.relaxed(o, ty, line)?;
                Ok(Element { slot, wide })
            })
            .collect()
    }

    fn load(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<(), PtxError> {
        let read_only = m.take("nc") || inst.opcode == "ldu";
        let space = space(&mut m).unwrap_or(Space::Generic);
        let strong = hints(&mut m);
        let (ty, count) = self.vector_type(inst, m)?;
        if read_only && space != Space::Global {
            return Err(PtxError::at(inst.line, "a non-coherent load reads global memory"));
        }
        let ops = self.operands(inst, 2)?;
        let elements = self.elements(&ops[0], ty, count, inst.line)?;
        let (base, offset) = self.address(&ops[1], space, inst.line)?;
        self.access(
            inst,
            Op::Load,
            Access {
                space,
                base,
                offset,
                size: ty.bytes(),
                signed: ty.kind() == Kind::Signed,
                elements,
                read_only,
                strong,
                atomic: None,
            },
        );
        Ok(())
    }

    fn vector_type(&self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<(Type, usize), PtxError> {
        let count = m
            .find(|name| match name {
                "v2" => Some(2),
                "v4" => Some(4),
                _ => None,
            })
            .unwrap_or(1);
        let ty = m.ty()?;
        m.finish()?;
        if ty == Type::Pred
            || ty.bytes() * count > 16
            || matches!(ty, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2)
        {
            return Err(PtxError::unsupported(inst.line, format!("`{}`", inst.full_name())));
        }
        Ok((ty, count))
    }

    fn access(&mut self, inst: &Instruction, op: Op, access: Access) {
        let x = self.kernel.accesses.len() as u32;
        self.kernel.accesses.push(access);
        self.emit(inst.line, op).x = x;
    }

    fn store(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<(), PtxError> {
        let space = space(&mut m).unwrap_or(Space::Generic);
        let strong = hints(&mut m);
        let (ty, count) = self.vector_type(inst, m)?;
        if matches!(space, Space::Param | Space::Const) {
            return Err(PtxError::at(inst.line, format!("{space:?} space is read-only in a kernel")));
        }
        let ops = self.operands(inst, 2)?;
        let (base, offset) = self.address(&ops[0], space, inst.line)?;
        let elements = self.elements(&ops[1], ty, count, inst.line)?;
        self.access(
            inst,
            Op::Store,
            Access {
                space,
                base,
                offset,
                size: ty.bytes(),
                signed: false,
                elements,
                read_only: false,
                strong,
                atomic: None,
            },
        );
        Ok(())
    }

    fn atomic(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<bool, PtxError> {
        let space = space(&mut m).unwrap_or(Space::Generic);
        if !matches!(space, Space::Generic | Space::Global | Space::Shared) {
            return Ok(false);
        }
        hints(&mut m);
        m.take("noftz");
        let Some(name) = m.find(|n| {
            ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"]
                .into_iter()
                .find(|k| *k == n)
        }) else {
            return Ok(false);
        };
        let ty = m.ty()?;
        m.finish()?;
        let op = match (name, ty) {
            ("add", Type::U32 | Type::S32 | Type::U64) => Atomic::Add,
            ("add", Type::F32) => Atomic::AddF32,
            ("add", Type::F64) => Atomic::AddF64,
            ("add", Type::F16x2) => Atomic::AddF16x2,
            ("min", Type::U32 | Type::U64) => Atomic::MinU,
            ("min", Type::S32 | Type::S64) => Atomic::MinS,
            ("max", Type::U32 | Type::U64) => Atomic::MaxU,
            ("max", Type::S32 | Type::S64) => Atomic::MaxS,
            ("and", Type::B32 | Type::B64) => Atomic::And,
            ("or", Type::B32 | Type::B64) => Atomic::Or,
            ("xor", Type::B32 | Type::B64) => Atomic::Xor,
            ("exch", Type::B32 | Type::B64) => Atomic::Exch,
            ("cas", Type::B32 | Type::B64) => Atomic::Cas,
            ("inc", Type::U32) => Atomic::Inc,
            ("dec", Type::U32) => Atomic::Dec,
            _ => return Ok(false),
        };
        let returns = inst.opcode == "atom";
        if !returns && matches!(op, Atomic::Exch | Atomic::Cas) {
            return Ok(false);
        }
        let sources = if op == Atomic::Cas { 2 } else { 1 };
        let ops = self.operands(inst, usize::from(returns) + 1 + sources)?;
        let (d, rest) =
            if returns { (self.destination(&ops[0], ty, inst.line)?, &ops[1..]) } else { (DISCARD, ops) };
        let (base, offset) = self.address(&rest[0], space, inst.line)?;
        let b = self.source(&rest[1], ty, inst.line)?;
        let c = if sources == 2 { self.source(&rest[2], ty, inst.line)? } else { 0 };
        let wide = ty.bytes() == 8;
        self.access(
            inst,
            Op::Atomic,
            Access {
                space,
                base,
                offset,
                size: ty.bytes(),
                signed: false,
                elements: Vec::new(),
                read_only: false,
                strong: true,
                atomic: Some((op, wide)),
            },
        );
        let e = self.kernel.code.last_mut().expect("just emitted");
        (e.d, e.b, e.c) = (d, b, c);
        Ok(true)
    }

    fn copy_async(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<bool, PtxError> {
        if !m.take("async") {
            return Ok(false);
        }
        self.needs(inst, 80, (7, 0))?;
        let line = inst.line;
        if m.take("commit_group") {
            m.finish()?;
            self.operands(inst, 0)?;
            self.emit(line, Op::CpAsyncCommit);
            return Ok(true);
        }
        if m.take("wait_all") {
            m.finish()?;
            self.operands(inst, 0)?;
            self.emit(line, Op::CpAsyncWait).x = u32::MAX;
            return Ok(true);
        }
        if m.take("wait_group") {
            m.finish()?;
            let Operand::Int(n) = self.operands(inst, 1)?[0] else {
                return Err(PtxError::at(line, "cp.async.wait_group takes a constant"));
            };
            self.emit(line, Op::CpAsyncWait).x = n as u32;
            return Ok(true);
        }
        let all = m.take("ca");
        let global_only = m.take("cg");
        // `.shared.global` in this order: destination, then source.
        let destination = m.take("shared") | m.take("shared::cta");
        let source = m.take("global");
        for hint in ["L2::64B", "L2::128B", "L2::256B"] {
            m.take(hint);
        }
        m.finish()?;
        if all == global_only || !destination || !source {
            return Ok(false);
        }
        if !(3..=4).contains(&inst.operands.len()) {
            return Err(PtxError::at(line, format!("`{}` takes 3 or 4 operands", inst.full_name())));
        }
        let ops = &inst.operands;
        let Operand::Int(bytes @ (4 | 8 | 16)) = ops[2] else {
            return Err(PtxError::at(line, "cp.async copies 4, 8 or 16 bytes"));
        };
        if global_only && bytes != 16 {
            return Err(PtxError::at(line, "cp.async.cg copies 16 bytes"));
        }
        let to = self.address(&ops[0], Space::Shared, line)?;
        let from = self.address(&ops[1], Space::Global, line)?;
        let source_bytes = match ops.get(3) {
            None => None,
            Some(operand) => Some(self.source(operand, Type::U32, line)?),
        };
        let x = self.kernel.copies.len() as u32;
        self.kernel.copies.push(CopyAsync { to, from, bytes: bytes as usize, source_bytes });
        self.emit(line, Op::CpAsync).x = x;
        Ok(true)
    }

    fn cvta(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<bool, PtxError> {
        let to = m.take("to");
        let Some(space) = space(&mut m) else { return Ok(false) };
        let ty = m.ty()?;
        m.finish()?;
        if ty != Type::U64 {
            return Ok(false);
        }
        let ops = self.operands(inst, 2)?;
        let d = self.destination(&ops[0], ty, inst.line)?;
        let a = self.source(&ops[1], ty, inst.line)?;
        let window = match space {
            Space::Global | Space::Const => 0,
            Space::Shared => crate::memory::SHARED_WINDOW,
            Space::Local => crate::memory::LOCAL_WINDOW,
            _ => return Ok(false),
        };
        if window == 0 {
            let e = self.emit(inst.line, Op::Int64(IntOp::Mov));
            (e.d, e.a) = (d, a);
        } else {
            let b = self.constant_double(window, inst.line)?;
            let e = self.emit(inst.line, Op::Int64(if to { IntOp::Sub } else { IntOp::Add }));
            (e.d, e.a, e.b) = (d, a, b);
        }
        Ok(true)
    }
}
