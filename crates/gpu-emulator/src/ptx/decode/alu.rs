//! Arithmetic, logic, comparison, conversion and moves.

use super::super::PtxError;
use super::super::ast::{Instruction, Kind, Operand, Type};
use super::super::code::{
    Compare, Convert, DISCARD, FloatMode, FloatOp, HalfFormat, IntOp, Join, MixOp, Op, PredOp, Round, Testp,
};
use super::Decoder;
use super::modifiers::Modifiers;

fn half_format(ty: Type) -> Option<(HalfFormat, bool)> {
    match ty {
        Type::F16 => Some((HalfFormat::F16, false)),
        Type::Bf16 => Some((HalfFormat::Bf16, false)),
        Type::F16x2 => Some((HalfFormat::F16, true)),
        Type::Bf16x2 => Some((HalfFormat::Bf16, true)),
        _ => None,
    }
}

fn int(ty: Type, op: IntOp) -> Op {
    match ty.bytes() {
        8 => Op::Int64(op),
        2 => Op::Int16(op),
        _ => Op::Int32(op),
    }
}

impl Decoder<'_> {
    pub(super) fn decode_alu(&mut self, inst: &Instruction) -> Result<bool, PtxError> {
        let mut m = Modifiers::new(inst);
        match inst.opcode.as_str() {
            "mov" => self.mov(inst, m)?,
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "abs" | "neg" | "min" | "max" => {
                self.arithmetic(inst, m)?;
            }
            "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" => self.unary_float(inst, m)?,
            "copysign" => {
                let ty = m.ty()?;
                m.finish()?;
                let mode = FloatMode { round: Round::Near, ftz: false, sat: false };
                // copysign d, a, b takes a's sign and b's magnitude.
                let op = match ty {
                    Type::F32 => Op::F32(FloatOp::Copysign, mode),
                    Type::F64 => Op::F64(FloatOp::Copysign, mode),
                    _ => return Ok(false),
                };
                self.simple(inst, op, ty, 2)?;
            }
            "and" | "or" | "xor" | "not" => self.logic(inst, m)?,
            "cnot" => {
                let ty = self.bits_type(inst, &mut m)?;
                m.finish()?;
                self.simple(inst, int(ty, IntOp::Cnot), ty, 1)?;
            }
            "shl" | "shr" => {
                let ty = m.ty()?;
                m.finish()?;
                let op = match (inst.opcode.as_str(), ty.kind()) {
                    ("shl", Kind::Bits) => IntOp::Shl,
                    ("shr", Kind::Signed) => IntOp::ShrS,
                    ("shr", Kind::Bits | Kind::Unsigned) => IntOp::ShrU,
                    _ => return Ok(false),
                };
                if ty.bytes() == 1 {
                    return Ok(false);
                }
                let ops = self.operands(inst, 3)?;
                let d = self.destination(&ops[0], ty, inst.line)?;
                let a = self.source(&ops[1], ty, inst.line)?;
                let b = self.source(&ops[2], Type::B32, inst.line)?;
                let e = self.emit(inst.line, int(ty, op));
                (e.d, e.a, e.b) = (d, a, b);
            }
            "shf" => {
                let left = m.take("l");
                let right = m.take("r");
                let clamp = m.take("clamp");
                let wrap = m.take("wrap");
                let ty = m.ty()?;
                m.finish()?;
                let op = match (left, right, clamp, wrap) {
                    (true, false, true, false) => IntOp::ShfLeftClamp,
                    (true, false, false, true) => IntOp::ShfLeftWrap,
                    (false, true, true, false) => IntOp::ShfRightClamp,
                    (false, true, false, true) => IntOp::ShfRightWrap,
                    _ => return Ok(false),
                };
                if ty != Type::B32 {
                    return Ok(false);
                }
                self.simple(inst, Op::Int32(op), ty, 3)?;
            }
            "prmt" => {
                // The generic mode only; .f4e and its kin are refused by `finish`.
                let ty = m.ty()?;
                m.finish()?;
                if ty != Type::B32 {
                    return Ok(false);
                }
                self.simple(inst, Op::Int32(IntOp::Prmt), ty, 3)?;
            }
            "lop3" => {
                let ty = m.ty()?;
                m.finish()?;
                let ops = self.operands(inst, 5)?;
                let Operand::Int(table) = ops[4] else {
                    return Err(PtxError::at(inst.line, "lop3's table is an immediate"));
                };
                let d = self.destination(&ops[0], ty, inst.line)?;
                let s = self.sources(&ops[1..4], ty, inst.line)?;
                let e = self.emit(inst.line, Op::Int32(IntOp::Lop3));
                (e.d, e.a, e.b, e.c, e.x) = (d, s[0], s[1], s[2], table as u32 & 0xff);
            }
            "bfe" => {
                let ty = m.ty()?;
                m.finish()?;
                let op = if ty.kind() == Kind::Signed { IntOp::BfeS } else { IntOp::BfeU };
                if !matches!(ty, Type::U32 | Type::S32 | Type::U64 | Type::S64) {
                    return Ok(false);
                }
                let ops = self.operands(inst, 4)?;
                let d = self.destination(&ops[0], ty, inst.line)?;
                let a = self.source(&ops[1], ty, inst.line)?;
                let s = self.sources(&ops[2..4], Type::U32, inst.line)?;
                let e = self.emit(inst.line, int(ty, op));
                (e.d, e.a, e.b, e.c) = (d, a, s[0], s[1]);
            }
            "bfi" => {
                let ty = self.bits_type(inst, &mut m)?;
                m.finish()?;
                let ops = self.operands(inst, 5)?;
                let d = self.destination(&ops[0], ty, inst.line)?;
                let s = self.sources(&ops[1..3], ty, inst.line)?;
                let n = self.sources(&ops[3..5], Type::U32, inst.line)?;
                let e = self.emit(inst.line, int(ty, IntOp::Bfi));
                (e.d, e.a, e.b, e.c, e.x) = (d, s[0], s[1], n[0], u32::from(n[1]));
            }
            "brev" => {
                let ty = self.bits_type(inst, &mut m)?;
                m.finish()?;
                self.simple(inst, int(ty, IntOp::Brev), ty, 1)?;
            }
            "popc" | "clz" | "bfind" => {
                let shift = m.take("shiftamt");
                let ty = m.ty()?;
                m.finish()?;
                let wide = ty.bytes() == 8;
                let op = match (inst.opcode.as_str(), ty) {
                    ("popc", Type::B32) => MixOp::Popc32,
                    ("popc", Type::B64) => MixOp::Popc64,
                    ("clz", Type::B32) => MixOp::Clz32,
                    ("clz", Type::B64) => MixOp::Clz64,
                    ("bfind", Type::U32) => MixOp::BfindU32,
                    ("bfind", Type::S32) => MixOp::BfindS32,
                    ("bfind", Type::U64) => MixOp::BfindU64,
                    ("bfind", Type::S64) => MixOp::BfindS64,
                    _ => return Ok(false),
                };
                let ops = self.operands(inst, 2)?;
                let d = self.destination(&ops[0], Type::U32, inst.line)?;
                let a = self.source(&ops[1], ty, inst.line)?;
                let e = self.emit(inst.line, Op::Mix(op));
                (e.d, e.a, e.x) = (d, a, if shift { if wide { 63 } else { 31 } } else { u32::MAX });
            }
            "sad" => {
                let ty = m.ty()?;
                m.finish()?;
                let op = if ty.kind() == Kind::Signed { IntOp::SadS } else { IntOp::SadU };
                self.simple(inst, int(ty, op), ty, 3)?;
            }
            "mul24" => {
                if !m.take("lo") {
                    return Ok(false);
                }
                let ty = m.ty()?;
                m.finish()?;
                let op = if ty == Type::S32 { IntOp::Mul24LoS } else { IntOp::Mul24LoU };
                self.simple(inst, Op::Int32(op), ty, 2)?;
            }
            "addc" | "subc" => {
                let carry_out = m.take("cc");
                let ty = m.ty()?;
                m.finish()?;
                let op = if inst.opcode == "addc" { IntOp::AddWithCarry } else { IntOp::SubWithBorrow };
                if ty.bytes() < 4 {
                    return Ok(false);
                }
                self.simple(inst, int(ty, op), ty, 2)?;
                self.kernel.code.last_mut().expect("just emitted").x = u32::from(carry_out);
            }
            "dp4a" => {
                let (a, b) = (m.ty()?, m.ty()?);
                m.finish()?;
                let op = match (a, b) {
                    (Type::U32, Type::U32) => IntOp::Dp4aUU,
                    (Type::S32, Type::S32) => IntOp::Dp4aSS,
                    (Type::U32, Type::S32) => IntOp::Dp4aUS,
                    (Type::S32, Type::U32) => IntOp::Dp4aSU,
                    _ => return Ok(false),
                };
                self.simple(inst, Op::Int32(op), Type::B32, 3)?;
            }
            "selp" => {
                let ty = m.ty()?;
                m.finish()?;
                let ops = self.operands(inst, 4)?;
                let d = self.destination(&ops[0], ty, inst.line)?;
                let s = self.sources(&ops[1..3], ty, inst.line)?;
                let (p, negated) = self.predicate(&ops[3], inst.line)?;
                let e = self.emit(inst.line, int(ty, IntOp::Selp));
                (e.d, e.a, e.b, e.c, e.x) = (d, s[0], s[1], p, u32::from(negated));
            }
            "setp" | "set" => self.compare(inst, m)?,
            "testp" => {
                let class = m
                    .find(|name| {
                        Some(match name {
                            "finite" => Testp::Finite,
                            "infinite" => Testp::Infinite,
                            "number" => Testp::Number,
                            "notanumber" => Testp::NotANumber,
                            "normal" => Testp::Normal,
                            "subnormal" => Testp::Subnormal,
                            _ => return None,
                        })
                    })
                    .ok_or_else(|| PtxError::at(inst.line, "testp names no class"))?;
                let ty = m.ty()?;
                m.finish()?;
                let ops = self.operands(inst, 2)?;
                let d = self.predicate_destination(&ops[0], inst.line)?;
                let a = self.source(&ops[1], ty, inst.line)?;
                let e = self.emit(inst.line, Op::Testp(ty, class));
                (e.d, e.a) = (d, a);
            }
            "cvt" => self.convert(inst, m)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn bits_type(&self, inst: &Instruction, m: &mut Modifiers<'_>) -> Result<Type, PtxError> {
        let ty = m.ty()?;
        if ty.kind() == Kind::Bits && ty.bytes() > 1 {
            return Ok(ty);
        }
        Err(PtxError::at(inst.line, format!("`{}` takes an untyped size", inst.full_name())))
    }

    fn sources(&mut self, operands: &[Operand], ty: Type, line: u32) -> Result<Vec<u16>, PtxError> {
        operands.iter().map(|o| self.source(o, ty, line)).collect()
    }

    /// One destination and `count` sources, all of type `ty`.
    fn simple(&mut self, inst: &Instruction, op: Op, ty: Type, count: usize) -> Result<(), PtxError> {
        let ops = self.operands(inst, count + 1)?;
        let d = self.destination(&ops[0], ty, inst.line)?;
        let s = self.sources(&ops[1..], ty, inst.line)?;
        let e = self.emit(inst.line, op);
        e.d = d;
        e.a = s[0];
        e.b = s.get(1).copied().unwrap_or(0);
        e.c = s.get(2).copied().unwrap_or(0);
        Ok(())
    }

    fn mov(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<(), PtxError> {
        let ty = m.ty()?;
        m.finish()?;
        let ops = self.operands(inst, 2)?;
        let line = inst.line;
        if ty == Type::Pred {
            let d = self.predicate_destination(&ops[0], line)?;
            let (a, negated) = self.predicate(&ops[1], line)?;
            let e = self.emit(line, Op::Pred(PredOp::Mov));
            (e.d, e.a, e.x) = (d, a, u32::from(negated));
            return Ok(());
        }
        if let Operand::Vector(parts) = &ops[1] {
            let op = match (ty.bytes(), parts.len()) {
                (4, 2) => MixOp::Pack2x16,
                (8, 2) => MixOp::Pack2x32,
                (8, 4) => MixOp::Pack4x16,
                _ => {
                    return Err(PtxError::unsupported(
                        line,
                        format!("`{}` of {} parts", inst.full_name(), parts.len()),
                    ));
                }
            };
            let part = if op == MixOp::Pack2x32 { Type::B32 } else { Type::B16 };
            let d = self.destination(&ops[0], ty, line)?;
            let mut list = [0; 4];
            for (slot, operand) in list.iter_mut().zip(parts) {
                *slot = self.source(operand, part, line)?;
            }
            let x = self.kernel.lists.len() as u32;
            self.kernel.lists.push(list);
            let e = self.emit(line, Op::Mix(op));
            (e.d, e.x) = (d, x);
            (e.a, e.b, e.c) = (list[0], list[1], list[2]);
            return Ok(());
        }
        if let Operand::Vector(parts) = &ops[0] {
            let op = match (ty.bytes(), parts.len()) {
                (4, 2) => MixOp::Unpack2x16,
                (8, 2) => MixOp::Unpack2x32,
                (8, 4) => MixOp::Unpack4x16,
                _ => {
                    return Err(PtxError::unsupported(
                        line,
                        format!("`{}` of {} parts", inst.full_name(), parts.len()),
                    ));
                }
            };
            let part = if op == MixOp::Unpack2x32 { Type::B32 } else { Type::B16 };
            let a = self.source(&ops[1], ty, line)?;
            let mut list = [DISCARD; 4];
            for (slot, operand) in list.iter_mut().zip(parts) {
                *slot = self.destination(operand, part, line)?;
            }
            let x = self.kernel.lists.len() as u32;
            self.kernel.lists.push(list);
            let e = self.emit(line, Op::Mix(op));
            (e.a, e.x) = (a, x);
            return Ok(());
        }
        self.simple(inst, int(ty, IntOp::Mov), ty, 1)
    }

    fn arithmetic(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<(), PtxError> {
        let name = inst.opcode.as_str();
        // The type comes last; modifiers before it depend on it, so look first.
        let ty = inst
            .modifiers
            .iter()
            .rev()
            .find_map(|m| Type::from_name(m))
            .ok_or_else(|| PtxError::at(inst.line, format!("`{}` names no type", inst.full_name())))?;
        m.take(ty.name());
        let unsupported = || PtxError::unsupported(inst.line, format!("`{}`", inst.full_name()));
        if let Some((format, pair)) = half_format(ty) {
            return self.half(inst, m, ty, format, pair);
        }
        if matches!(ty, Type::F32 | Type::F64) {
            if name == "rem" {
                return Err(unsupported());
            }
            let explicit = m.round();
            let approximate = m.take("approx") | m.take("full");
            let nan = m.take("NaN");
            let mut mode = m.float_mode();
            mode.round = explicit.unwrap_or(Round::Near);
            m.finish()?;
            if matches!(name, "fma" | "mad" | "div") && explicit.is_none() && !approximate {
                return Err(PtxError::at(
                    inst.line,
                    format!("`{}` needs a rounding modifier", inst.full_name()),
                ));
            }
            if approximate && (name != "div" || ty == Type::F64) {
                return Err(unsupported());
            }
            if nan {
                self.needs(inst, 80, (7, 0))?;
            }
            if ty == Type::F64 && (mode.round != Round::Near || mode.ftz || mode.sat) {
                return Err(unsupported());
            }
            let (op, count) = match name {
                "add" => (FloatOp::Add, 2),
                "sub" => (FloatOp::Sub, 2),
                "mul" => (FloatOp::Mul, 2),
                "mad" | "fma" => (FloatOp::Fma, 3),
                "div" => (FloatOp::Div, 2),
                "abs" => (FloatOp::Abs, 1),
                "neg" => (FloatOp::Neg, 1),
                "min" if nan => (FloatOp::MinNan, 2),
                "max" if nan => (FloatOp::MaxNan, 2),
                "min" => (FloatOp::Min, 2),
                "max" => (FloatOp::Max, 2),
                _ => return Err(unsupported()),
            };
            let op = if ty == Type::F32 { Op::F32(op, mode) } else { Op::F64(op, mode) };
            return self.simple(inst, op, ty, count);
        }
        if matches!(ty.kind(), Kind::Bits | Kind::Pred) || ty.bytes() == 1 {
            return Err(unsupported());
        }
        let signed = ty.kind() == Kind::Signed;
        let pick = |u, s| if signed { s } else { u };
        let (wide, lo, hi) = (m.take("wide"), m.take("lo"), m.take("hi"));
        let (sat, cc) = (m.take("sat"), m.take("cc"));
        m.finish()?;
        if (sat && (ty != Type::S32 || !matches!(name, "add" | "sub")))
            || (cc && (!matches!(name, "add" | "sub") || ty.bytes() < 4))
            || (wide | lo | hi) != matches!(name, "mul" | "mad")
        {
            return Err(unsupported());
        }
        if wide {
            let result = match ty {
                Type::U16 => Type::U32,
                Type::S16 => Type::S32,
                Type::U32 => Type::U64,
                Type::S32 => Type::S64,
                _ => return Err(unsupported()),
            };
            let op = match (name, ty) {
                ("mul", Type::U16) => MixOp::MulWideU16,
                ("mul", Type::S16) => MixOp::MulWideS16,
                ("mul", Type::U32) => MixOp::MulWideU32,
                ("mul", _) => MixOp::MulWideS32,
                (_, Type::U16) => MixOp::MadWideU16,
                (_, Type::S16) => MixOp::MadWideS16,
                (_, Type::U32) => MixOp::MadWideU32,
                _ => MixOp::MadWideS32,
            };
            let mad = name == "mad";
            let ops = self.operands(inst, if mad { 4 } else { 3 })?;
            let d = self.destination(&ops[0], result, inst.line)?;
            let s = self.sources(&ops[1..3], ty, inst.line)?;
            let c = if mad { self.source(&ops[3], result, inst.line)? } else { 0 };
            let e = self.emit(inst.line, Op::Mix(op));
            (e.d, e.a, e.b, e.c) = (d, s[0], s[1], c);
            return Ok(());
        }
        let (op, count) = match name {
            "add" if sat => (IntOp::AddSat, 2),
            "sub" if sat => (IntOp::SubSat, 2),
            "add" if cc => (IntOp::AddCarryOut, 2),
            "sub" if cc => (IntOp::SubBorrowOut, 2),
            "add" => (IntOp::Add, 2),
            "sub" => (IntOp::Sub, 2),
            "mul" if lo => (IntOp::MulLo, 2),
            "mul" => (pick(IntOp::MulHiU, IntOp::MulHiS), 2),
            "mad" if lo => (IntOp::MadLo, 3),
            "mad" => (pick(IntOp::MadHiU, IntOp::MadHiS), 3),
            "div" => (pick(IntOp::DivU, IntOp::DivS), 2),
            "rem" => (pick(IntOp::RemU, IntOp::RemS), 2),
            "abs" if signed => (IntOp::Abs, 1),
            "neg" if signed => (IntOp::Neg, 1),
            "min" => (pick(IntOp::MinU, IntOp::MinS), 2),
            "max" => (pick(IntOp::MaxU, IntOp::MaxS), 2),
            _ => return Err(unsupported()),
        };
        self.simple(inst, int(ty, op), ty, count)
    }

    fn half(
        &mut self,
        inst: &Instruction,
        mut m: Modifiers<'_>,
        ty: Type,
        format: HalfFormat,
        pair: bool,
    ) -> Result<(), PtxError> {
        let nan = m.take("NaN");
        let relu = m.take("relu");
        let mode = m.float_mode();
        m.finish()?;
        let bf16 = format == HalfFormat::Bf16;
        let unsupported = || PtxError::unsupported(inst.line, format!("`{}`", inst.full_name()));
        let (op, count) = match inst.opcode.as_str() {
            "add" => (FloatOp::Add, 2),
            "sub" => (FloatOp::Sub, 2),
            "mul" => (FloatOp::Mul, 2),
            "fma" => (FloatOp::Fma, 3),
            "abs" => (FloatOp::Abs, 1),
            "neg" => (FloatOp::Neg, 1),
            "min" if nan => (FloatOp::MinNan, 2),
            "max" if nan => (FloatOp::MaxNan, 2),
            "min" => (FloatOp::Min, 2),
            "max" => (FloatOp::Max, 2),
            _ => return Err(unsupported()),
        };
        match (op, bf16) {
            (FloatOp::Add | FloatOp::Sub | FloatOp::Mul, true) => self.needs(inst, 90, (7, 8))?,
            (FloatOp::Min | FloatOp::Max | FloatOp::MinNan | FloatOp::MaxNan, _) | (_, true) => {
                self.needs(inst, 80, (7, 0))?;
            }
            _ => self.needs(inst, 53, (4, 2))?,
        }
        let rounds = matches!(op, FloatOp::Add | FloatOp::Sub | FloatOp::Mul | FloatOp::Fma);
        if mode.round != Round::Near
            || (bf16 && (mode.ftz || mode.sat))
            || (relu && op != FloatOp::Fma)
            || (mode.sat && (!rounds || relu))
        {
            return Err(unsupported());
        }
        if relu {
            self.needs(inst, 80, (7, 0))?;
            return self.simple(inst, Op::HalfRelu(op, format, pair), ty, count);
        }
        let op = if pair { Op::Half2(op, format, mode) } else { Op::Half(op, format, mode) };
        self.simple(inst, op, ty, count)
    }

    fn unary_float(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<(), PtxError> {
        let approximate = m.take("approx");
        let explicit = m.round();
        let ftz = m.take("ftz");
        let ty = m.ty()?;
        m.finish()?;
        let op = match inst.opcode.as_str() {
            "rcp" => FloatOp::Rcp,
            "sqrt" => FloatOp::Sqrt,
            "rsqrt" => FloatOp::Rsqrt,
            "sin" => FloatOp::Sin,
            "cos" => FloatOp::Cos,
            "lg2" => FloatOp::Lg2,
            "ex2" => FloatOp::Ex2,
            _ => FloatOp::Tanh,
        };
        let unsupported = || PtxError::unsupported(inst.line, format!("`{}`", inst.full_name()));
        if approximate == explicit.is_some() {
            return Err(PtxError::at(
                inst.line,
                format!("`{}` needs .approx or a rounding modifier", inst.full_name()),
            ));
        }
        if explicit.is_some() && !matches!(op, FloatOp::Rcp | FloatOp::Sqrt) {
            return Err(unsupported());
        }
        if op == FloatOp::Tanh {
            self.needs(inst, 75, (7, 0))?;
        }
        let mode = FloatMode { round: explicit.unwrap_or(Round::Near), ftz, sat: false };
        let op = match ty {
            Type::F32 => Op::F32(op, mode),
            Type::F64 if !approximate && mode.round == Round::Near && !ftz => Op::F64(op, mode),
            _ => {
                let Some((format, pair)) = half_format(ty) else { return Err(unsupported()) };
                if !matches!(op, FloatOp::Ex2 | FloatOp::Tanh) {
                    return Err(unsupported());
                }
                self.needs(inst, if format == HalfFormat::Bf16 { 90 } else { 75 }, (7, 0))?;
                if pair { Op::Half2(op, format, mode) } else { Op::Half(op, format, mode) }
            }
        };
        self.simple(inst, op, ty, 1)
    }

    fn logic(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<(), PtxError> {
        let ty = m.ty()?;
        m.finish()?;
        let unary = inst.opcode == "not";
        if ty == Type::Pred {
            let ops = self.operands(inst, if unary { 2 } else { 3 })?;
            let d = self.predicate_destination(&ops[0], inst.line)?;
            let (a, not_a) = self.predicate(&ops[1], inst.line)?;
            let (b, not_b) = if unary { (a, false) } else { self.predicate(&ops[2], inst.line)? };
            let op = match inst.opcode.as_str() {
                "and" => PredOp::And,
                "or" => PredOp::Or,
                "xor" => PredOp::Xor,
                _ => PredOp::Not,
            };
            let e = self.emit(inst.line, Op::Pred(op));
            (e.d, e.a, e.b, e.x) = (d, a, b, u32::from(not_a) | u32::from(not_b) << 1);
            return Ok(());
        }
        if ty.kind() != Kind::Bits || ty.bytes() == 1 {
            return Err(PtxError::at(
                inst.line,
                format!("`{}` takes .pred or an untyped size", inst.full_name()),
            ));
        }
        let op = match inst.opcode.as_str() {
            "and" => IntOp::And,
            "or" => IntOp::Or,
            "xor" => IntOp::Xor,
            _ => IntOp::Not,
        };
        self.simple(inst, int(ty, op), ty, if unary { 1 } else { 2 })
    }

    fn compare(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<(), PtxError> {
        let set = inst.opcode == "set";
        let ftz = m.take("ftz");
        let (to, ty) = if set { (m.ty()?, m.ty()?) } else { (Type::Pred, m.ty()?) };
        let unsigned = matches!(ty.kind(), Kind::Unsigned | Kind::Bits);
        let float = ty.kind() == Kind::Float;
        let compare = m
            .find(|name| {
                Some(match name {
                    "eq" => Compare::Eq,
                    "ne" => Compare::Ne,
                    "lt" | "lo" => Compare::Lt,
                    "le" | "ls" => Compare::Le,
                    "gt" | "hi" => Compare::Gt,
                    "ge" | "hs" => Compare::Ge,
                    "equ" => Compare::Equ,
                    "neu" => Compare::Neu,
                    "ltu" => Compare::Ltu,
                    "leu" => Compare::Leu,
                    "gtu" => Compare::Gtu,
                    "geu" => Compare::Geu,
                    "num" => Compare::Num,
                    "nan" => Compare::Nan,
                    _ => return None,
                })
            })
            .ok_or_else(|| PtxError::at(inst.line, format!("`{}` names no comparison", inst.full_name())))?;
        let lower = inst.modifiers.iter().any(|m| matches!(m.as_str(), "lo" | "ls" | "hi" | "hs"));
        let unordered = matches!(
            compare,
            Compare::Equ
                | Compare::Neu
                | Compare::Ltu
                | Compare::Leu
                | Compare::Gtu
                | Compare::Geu
                | Compare::Num
                | Compare::Nan
        );
        let valid = !(lower && !unsigned)
            && !(unordered && !float)
            && !(ty.kind() == Kind::Bits && !matches!(compare, Compare::Eq | Compare::Ne))
            && ty.bytes() > 1
            && !matches!(ty, Type::F16x2 | Type::Bf16x2);
        if !valid {
            return Err(PtxError::unsupported(inst.line, format!("`{}`", inst.full_name())));
        }
        let join = m
            .find(|name| {
                Some(match name {
                    "and" => Join::And,
                    "or" => Join::Or,
                    "xor" => Join::Xor,
                    _ => return None,
                })
            })
            .unwrap_or(Join::None);
        m.finish()?;
        let line = inst.line;
        if set {
            if join != Join::None || !matches!(to, Type::U32 | Type::S32 | Type::F32) {
                return Err(PtxError::unsupported(line, format!("`{}`", inst.full_name())));
            }
            let ops = self.operands(inst, 3)?;
            let d = self.destination(&ops[0], to, line)?;
            let s = self.sources(&ops[1..3], ty, line)?;
            let e = self.emit(line, Op::Set(to, ty, compare, ftz));
            (e.d, e.a, e.b) = (d, s[0], s[1]);
            return Ok(());
        }
        let ops = self.operands(inst, if join == Join::None { 3 } else { 4 })?;
        let (p, q) = match &ops[0] {
            Operand::Pair(p, q) => {
                (self.predicate_destination(p, line)?, self.predicate_destination(q, line)?)
            }
            single => (self.predicate_destination(single, line)?, DISCARD),
        };
        let s = self.sources(&ops[1..3], ty, line)?;
        let (c, negated) = if join == Join::None { (0, false) } else { self.predicate(&ops[3], line)? };
        let e = self.emit(line, Op::Setp(ty, compare, join, ftz));
        (e.d, e.a, e.b) = (p, s[0], s[1]);
        e.x = u32::from(q) | u32::from(c) << 16;
        e.c = u16::from(negated);
        Ok(())
    }

    fn convert(&mut self, inst: &Instruction, mut m: Modifiers<'_>) -> Result<(), PtxError> {
        let line = inst.line;
        let unsupported = || PtxError::unsupported(line, format!("`{}`", inst.full_name()));
        let integral = m.find(|name| {
            Some(match name {
                "rni" => Round::Near,
                "rzi" => Round::Zero,
                "rmi" => Round::Down,
                "rpi" => Round::Up,
                _ => return None,
            })
        });
        let explicit = m.round();
        let (ftz, sat, relu) = (m.take("ftz"), m.take("sat"), m.take("relu"));
        let to = m.ty()?;
        let from = m.ty()?;
        m.finish()?;
        if let Some((format, true)) = half_format(to) {
            let Some(round @ (Round::Near | Round::Zero)) = explicit else { return Err(unsupported()) };
            if from != Type::F32 || sat || ftz || integral.is_some() {
                return Err(unsupported());
            }
            self.needs(inst, 80, (7, 0))?;
            let ops = self.operands(inst, 3)?;
            let d = self.destination(&ops[0], to, line)?;
            let s = self.sources(&ops[1..3], Type::F32, line)?;
            let e = self.emit(line, Op::ConvertPair(format, round, relu));
            (e.d, e.a, e.b) = (d, s[0], s[1]);
            return Ok(());
        }
        let (fk, tk) = (from.kind(), to.kind());
        if matches!(fk, Kind::Bits | Kind::Pred)
            || matches!(tk, Kind::Bits | Kind::Pred)
            || from == Type::F16x2
            || from == Type::Bf16x2
        {
            return Err(unsupported());
        }
        let narrows = tk == Kind::Float
            && fk == Kind::Float
            && (to.bytes() < from.bytes() || (to.bytes() == 2 && to != from));
        let from_int = tk == Kind::Float && fk != Kind::Float;
        let to_int = fk == Kind::Float && tk != Kind::Float;
        let same = fk == Kind::Float && to == from;
        if (narrows || from_int) && explicit.is_none() {
            return Err(PtxError::at(line, format!("`{}` needs a rounding modifier", inst.full_name())));
        }
        if to_int && integral.is_none() {
            return Err(PtxError::at(
                line,
                format!("`{}` needs an integer rounding modifier", inst.full_name()),
            ));
        }
        if (explicit.is_some() && !(narrows || from_int))
            || (integral.is_some() && !(to_int || same))
            || (relu && !(narrows && to.bytes() == 2))
        {
            return Err(unsupported());
        }
        match (to, from) {
            (Type::Bf16, Type::F32) => self.needs(inst, 80, (7, 0))?,
            (Type::F32, Type::Bf16) => self.needs(inst, 80, (7, 1))?,
            (Type::Bf16, _) | (_, Type::Bf16) => self.needs(inst, 90, (7, 8))?,
            _ => {}
        }
        let convert = Convert {
            to,
            from,
            round: explicit.or(integral).unwrap_or(Round::Near),
            integral: integral.is_some(),
            ftz,
            sat,
            relu,
        };
        let ops = self.operands(inst, 2)?;
        // Registers may be wider than the types (relaxed checking): an 8-bit type has no registers
        // of its own.
        let (a, wide_source) = self.relaxed(&ops[1], from, line)?;
        let (d, wide) = self.relaxed(&ops[0], to, line)?;
        let e = self.emit(line, Op::Convert(convert));
        (e.d, e.a, e.x) = (d, a, u32::from(wide) | u32::from(wide_source) << 1);
        Ok(())
    }
}
