//! Turns a parsed kernel into compact code: names become slots, labels become indices, and every
//! operand is checked against the type that its instruction names, as `ptxas` would.
//!
//! The submodules decode one family of instructions each; this file holds scopes, registers,
//! constants and the walk over the body.

mod alu;
mod cooperative;
mod memory;
mod modifiers;
mod named;

use std::collections::HashMap;

use super::PtxError;
use super::ast::{Entry, Instruction, Kind, Module, Operand, Space, Statement, Type, Variable};
use super::code::{Base, DISCARD, Inst, Kernel, NO_GUARD, Op, Param, Special};
use super::flow::reconvergence;

/// Where module-scope variables of a loaded module lie.
pub type Addresses = HashMap<String, u64>;

/// Decodes one kernel of a module.
///
/// `addresses` holds the device addresses of the module's `.global` and `.const` variables.
///
/// # Errors
/// Unknown names, operands that don't fit, instructions that the emulator lacks: with their line.
pub fn decode(module: &Module, entry: &Entry, addresses: &Addresses) -> Result<Kernel, PtxError> {
    let mut decoder = Decoder::new(module, entry, addresses)?;
    decoder.statements(&entry.body)?;
    decoder.finish(entry)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum File {
    Word,
    Double,
    Predicate,
}

#[derive(Clone, Debug)]
enum Symbol {
    Register { ty: Type, slot: Option<u16> },
    Range { ty: Type, count: usize },
    Variable { space: Space, at: u64 },
    Param { offset: usize },
}

struct Fixup {
    inst: usize,
    label: String,
    scope: usize,
    line: u32,
}

struct Decoder<'a> {
    module: &'a Module,
    addresses: &'a Addresses,
    kernel: Kernel,
    /// Names by scope; scope 0 is the module and the kernel's parameters.
    scopes: Vec<HashMap<String, Symbol>>,
    parents: Vec<usize>,
    scope: usize,
    labels: HashMap<(usize, String), u32>,
    fixups: Vec<Fixup>,
    constant_words: HashMap<u32, u16>,
    constant_doubles: HashMap<u64, u16>,
    specials: HashMap<Special, u16>,
    truth: Option<u16>,
    registers: [u32; 2],
    /// Registers that instructions name, and what each instruction names.
    names: named::Names,
    dynamic: Vec<(String, usize)>,
}

fn round_up(value: usize, align: usize) -> usize {
    value.div_ceil(align.max(1)) * align.max(1)
}

impl<'a> Decoder<'a> {
    fn new(module: &'a Module, entry: &Entry, addresses: &'a Addresses) -> Result<Self, PtxError> {
        let mut decoder = Self {
            module,
            addresses,
            kernel: Kernel {
                name: entry.name.clone(),
                max_threads: entry.max_threads,
                required: entry.required,
                target: module.target,
                ..Kernel::default()
            },
            scopes: vec![HashMap::new()],
            parents: vec![0],
            scope: 0,
            labels: HashMap::new(),
            fixups: Vec::new(),
            constant_words: HashMap::new(),
            constant_doubles: HashMap::new(),
            specials: HashMap::new(),
            truth: None,
            registers: [0; 2],
            names: named::Names::default(),
            dynamic: Vec::new(),
        };
        for variable in &module.variables {
            decoder.declare_variable(variable)?;
        }
        let mut offset = 0;
        for param in &entry.params {
            let size = param.ty.bytes() * param.count;
            offset = round_up(offset, param.align);
            decoder.kernel.params.push(Param { name: param.name.clone(), offset, size });
            decoder.scopes[0].insert(param.name.clone(), Symbol::Param { offset });
            offset += size;
        }
        if offset > 4096 {
            return Err(PtxError::at(entry.line, format!("{offset} bytes of parameters; 4096 is the limit")));
        }
        decoder.kernel.param_bytes = offset;
        Ok(decoder)
    }

    fn declare_variable(&mut self, variable: &Variable) -> Result<(), PtxError> {
        let bytes = variable.ty.bytes() * variable.count;
        let symbol = match variable.space {
            None => unreachable!("registers are declared by declare"),
            Some(space @ (Space::Global | Space::Const)) => {
                let at = self.addresses.get(&variable.name).copied().ok_or_else(|| {
                    PtxError::unsupported(
                        variable.line,
                        format!("`{}`: a .{space:?} variable inside a body", variable.name),
                    )
                })?;
                Symbol::Variable { space, at }
            }
            Some(Space::Shared) => {
                if variable.init.is_some() {
                    return Err(PtxError::at(variable.line, "shared variables have no initial value"));
                }
                if variable.count == 0 {
                    // Dynamic: placed behind all static ones, when those are known.
                    self.dynamic.push((variable.name.clone(), variable.align));
                    return Ok(());
                }
                let at = round_up(self.kernel.shared_bytes, variable.align);
                self.kernel.shared_bytes = at + bytes;
                self.kernel.shared_variables.push((variable.name.clone(), at, bytes));
                Symbol::Variable { space: Space::Shared, at: at as u64 }
            }
            Some(Space::Local) => {
                let at = round_up(self.kernel.local_bytes, variable.align);
                self.kernel.local_bytes = at + bytes;
                Symbol::Variable { space: Space::Local, at: at as u64 }
            }
            Some(space) => {
                return Err(PtxError::unsupported(variable.line, format!("a variable in {space:?} space")));
            }
        };
        self.scopes[self.scope].insert(variable.name.clone(), symbol);
        Ok(())
    }

    /// Shared variables of the whole body come first, so that dynamic memory starts behind them.
    fn place_shared(&mut self, body: &[Statement], depth: usize) -> Result<(), PtxError> {
        for statement in body {
            match statement {
                Statement::Scope(inner) => self.place_shared(inner, depth + 1)?,
                Statement::Declaration(v) if v.space == Some(Space::Shared) && depth > 0 => {
                    return Err(PtxError::unsupported(v.line, "a shared variable in a nested scope"));
                }
                Statement::Declaration(v) if v.space == Some(Space::Shared) => self.declare_variable(v)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn statements(&mut self, body: &[Statement]) -> Result<(), PtxError> {
        if self.scope == 0 {
            self.place_shared(body, 0)?;
            let dynamic = std::mem::take(&mut self.dynamic);
            let align = dynamic.iter().map(|d| d.1).max().unwrap_or(1);
            if !dynamic.is_empty() {
                self.kernel.shared_bytes = round_up(self.kernel.shared_bytes, align);
            }
            for (name, _) in dynamic {
                let at = self.kernel.shared_bytes as u64;
                self.scopes[0].insert(name, Symbol::Variable { space: Space::Shared, at });
            }
        }
        for statement in body {
            match statement {
                Statement::Label(name, line) => {
                    let at = self.kernel.code.len() as u32;
                    if self.labels.insert((self.scope, name.clone()), at).is_some() {
                        return Err(PtxError::at(*line, format!("the label `{name}` is defined twice")));
                    }
                }
                Statement::Declaration(v) if v.space.is_none() => self.declare_registers(v)?,
                Statement::Declaration(v) if v.space == Some(Space::Shared) => {}
                Statement::Declaration(v) => self.declare_variable(v)?,
                Statement::Scope(inner) => {
                    let outer = self.scope;
                    self.scopes.push(HashMap::new());
                    self.parents.push(outer);
                    self.scope = self.scopes.len() - 1;
                    self.statements(inner)?;
                    self.scope = outer;
                }
                Statement::Instruction(inst) => self.instruction(inst)?,
            }
        }
        Ok(())
    }

    fn declare_registers(&mut self, v: &Variable) -> Result<(), PtxError> {
        let symbol = if v.range {
            Symbol::Range { ty: v.ty, count: v.count }
        } else {
            Symbol::Register { ty: v.ty, slot: None }
        };
        // A range has a name of its own: `%c` and `%c<4>` may stand side by side.
        let key = if v.range { format!("{}<", v.name) } else { v.name.clone() };
        if self.scopes[self.scope].insert(key, symbol).is_some() {
            return Err(PtxError::at(v.line, format!("`{}` is declared twice", v.name)));
        }
        Ok(())
    }

    fn finish(mut self, entry: &Entry) -> Result<Kernel, PtxError> {
        // A body that runs off its end returns.
        let falls_off = self.kernel.code.last().is_none_or(|i| {
            !matches!(i.op, Op::Exit)
                || i.guard != NO_GUARD
                || self.labels.values().any(|&l| l as usize == self.kernel.code.len())
        });
        if falls_off {
            self.emit(entry.line, Op::Exit);
        }
        let fixups = std::mem::take(&mut self.fixups);
        for fixup in fixups {
            let mut scope = fixup.scope;
            let target = loop {
                if let Some(&target) = self.labels.get(&(scope, fixup.label.clone())) {
                    break target;
                }
                if scope == 0 {
                    return Err(PtxError::at(
                        fixup.line,
                        format!("the label `{}` is not defined", fixup.label),
                    ));
                }
                scope = self.parents[scope];
            };
            self.kernel.code[fixup.inst].x = target;
        }
        self.kernel.reconverge = reconvergence(&self.kernel.code);
        self.watch_unwritten();
        // What ptxas would allot is unknown here; live ranges end long before the last register is
        // named, so this only bounds from above and no launch is refused on its account.
        self.kernel.registers = (self.registers[0] + 2 * self.registers[1]).clamp(8, 255);
        Ok(self.kernel)
    }

    fn emit(&mut self, line: u32, op: Op) -> &mut Inst {
        self.kernel.code.push(Inst {
            op,
            guard: NO_GUARD,
            negated: false,
            d: DISCARD,
            a: 0,
            b: 0,
            c: 0,
            x: 0,
            line,
        });
        self.kernel.code.last_mut().expect("just pushed")
    }

    fn instruction(&mut self, inst: &Instruction) -> Result<(), PtxError> {
        let first = self.kernel.code.len();
        let guard = match &inst.guard {
            None => None,
            Some((name, negated)) => Some((self.predicate_named(name, inst.line)?, *negated)),
        };
        self.dispatch(inst)?;
        self.note_names(inst, first)?;
        if let Some((slot, negated)) = guard {
            for emitted in &mut self.kernel.code[first..] {
                emitted.guard = slot;
                emitted.negated = negated;
            }
        }
        Ok(())
    }

    fn dispatch(&mut self, inst: &Instruction) -> Result<(), PtxError> {
        if self.decode_alu(inst)? || self.decode_memory(inst)? || self.decode_cooperative(inst)? {
            return Ok(());
        }
        Err(PtxError::unsupported(inst.line, format!("`{}`", inst.full_name())))
    }

    fn operands<'i>(&self, inst: &'i Instruction, count: usize) -> Result<&'i [Operand], PtxError> {
        if inst.operands.len() != count {
            return Err(PtxError::at(
                inst.line,
                format!("`{}` takes {count} operands, found {}", inst.full_name(), inst.operands.len()),
            ));
        }
        Ok(&inst.operands)
    }

    /// Refuses an instruction that the module's `.target` or `.version` does not have.
    fn needs(&self, inst: &Instruction, sm: u32, version: (u32, u32)) -> Result<(), PtxError> {
        if self.module.target < sm {
            return Err(PtxError::at(
                inst.line,
                format!("`{}` requires .target sm_{sm} or higher", inst.full_name()),
            ));
        }
        if self.module.version < version {
            return Err(PtxError::at(
                inst.line,
                format!(
                    "`{}` requires PTX ISA .version {}.{} or later",
                    inst.full_name(),
                    version.0,
                    version.1
                ),
            ));
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Option<(usize, &str, Option<usize>)> {
        // A name is a symbol itself, or a member of a range: `%f12` of `%f<16>`.
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: Option<usize> = name[stem.len()..].parse().ok();
        let range = format!("{stem}<");
        let mut scope = self.scope;
        loop {
            if let Some((key, _)) = self.scopes[scope].get_key_value(name) {
                return Some((scope, key, None));
            }
            if let Some(n) = number
                && let Some((key, Symbol::Range { count, .. })) = self.scopes[scope].get_key_value(&range)
                && n < *count
            {
                return Some((scope, key, Some(n)));
            }
            if scope == 0 {
                return None;
            }
            scope = self.parents[scope];
        }
    }

    fn new_slot(&mut self, file: File, line: u32) -> Result<u16, PtxError> {
        let counter = match file {
            File::Word => &mut self.kernel.slots[0],
            File::Double => &mut self.kernel.slots[1],
            File::Predicate => &mut self.kernel.slots[2],
        };
        let slot = u16::try_from(*counter).ok().filter(|&s| s < DISCARD);
        *counter += 1;
        slot.ok_or_else(|| PtxError::unsupported(line, "more than 65533 registers of one size"))
    }

    fn file_of(ty: Type) -> File {
        match ty {
            Type::Pred => File::Predicate,
            _ if ty.bytes() == 8 => File::Double,
            _ => File::Word,
        }
    }

    /// The register called `name`: its declared type and slot. `None` where it is no register.
    fn register(&mut self, name: &str, line: u32) -> Result<Option<(Type, u16)>, PtxError> {
        let Some((scope, key, number)) = self.find(name) else { return Ok(None) };
        let key = key.to_string();
        match self.scopes[scope][&key].clone() {
            Symbol::Register { ty, slot: Some(slot) } => Ok(Some((ty, slot))),
            Symbol::Register { ty, slot: None } => {
                let slot = self.new_slot(Self::file_of(ty), line)?;
                self.count_register(ty);
                self.scopes[scope].insert(key, Symbol::Register { ty, slot: Some(slot) });
                Ok(Some((ty, slot)))
            }
            Symbol::Range { ty, .. } => {
                let slot = self.new_slot(Self::file_of(ty), line)?;
                self.count_register(ty);
                let member = format!("{}{}", key.trim_end_matches('<'), number.unwrap_or(0));
                self.scopes[scope].insert(member, Symbol::Register { ty, slot: Some(slot) });
                Ok(Some((ty, slot)))
            }
            _ => Ok(None),
        }
    }

    fn count_register(&mut self, ty: Type) {
        match Self::file_of(ty) {
            File::Word => self.registers[0] += 1,
            File::Double => self.registers[1] += 1,
            File::Predicate => {}
        }
    }

    fn fits(register: Type, wanted: Type) -> bool {
        let (r, w) = (register.kind(), wanted.kind());
        register.bytes() == wanted.bytes()
            && match (r, w) {
                (Kind::Pred, Kind::Pred) => true,
                (Kind::Pred, _) | (_, Kind::Pred) => false,
                (Kind::Bits, _) | (_, Kind::Bits) => true,
                (Kind::Float, Kind::Float) => register == wanted,
                (Kind::Float, _) | (_, Kind::Float) => false,
                _ => true,
            }
    }

    fn mismatch(line: u32, name: &str, found: Type, wanted: Type) -> PtxError {
        PtxError::at(
            line,
            format!(
                "`{name}` is .{}, which does not fit an operand of type .{}",
                found.name(),
                wanted.name()
            ),
        )
    }

    fn unknown(line: u32, name: &str) -> PtxError {
        PtxError::at(line, format!("`{name}` is not declared"))
    }

    /// The slot of a destination of type `ty`.
    fn destination(&mut self, operand: &Operand, ty: Type, line: u32) -> Result<u16, PtxError> {
        let Operand::Name(name) = operand else {
            return Err(PtxError::at(line, "the destination is not a register"));
        };
        if name == "_" {
            return Ok(DISCARD);
        }
        let (found, slot) = self.register(name, line)?.ok_or_else(|| Self::unknown(line, name))?;
        if !Self::fits(found, ty) {
            return Err(Self::mismatch(line, name, found, ty));
        }
        Ok(slot)
    }

    fn constant_word(&mut self, bits: u32, line: u32) -> Result<u16, PtxError> {
        if let Some(&slot) = self.constant_words.get(&bits) {
            return Ok(slot);
        }
        let slot = self.new_slot(File::Word, line)?;
        self.constant_words.insert(bits, slot);
        self.kernel.words.push((slot, bits));
        Ok(slot)
    }

    fn constant_double(&mut self, bits: u64, line: u32) -> Result<u16, PtxError> {
        if let Some(&slot) = self.constant_doubles.get(&bits) {
            return Ok(slot);
        }
        let slot = self.new_slot(File::Double, line)?;
        self.constant_doubles.insert(bits, slot);
        self.kernel.doubles.push((slot, bits));
        Ok(slot)
    }

    fn constant(&mut self, bits: u64, ty: Type, line: u32) -> Result<u16, PtxError> {
        match ty.bytes() {
            8 => self.constant_double(bits, line),
            2 => self.constant_word(bits as u32 & 0xffff, line),
            1 => self.constant_word(bits as u32 & 0xff, line),
            _ => self.constant_word(bits as u32, line),
        }
    }

    /// The slot that holds a source of type `ty`.
    fn source(&mut self, operand: &Operand, ty: Type, line: u32) -> Result<u16, PtxError> {
        let float = ty.kind() == Kind::Float;
        match operand {
            Operand::Name(name) => {
                if let Some((found, slot)) = self.register(name, line)? {
                    return if Self::fits(found, ty) {
                        Ok(slot)
                    } else {
                        Err(Self::mismatch(line, name, found, ty))
                    };
                }
                if name == "WARP_SZ" {
                    return self.constant(32, ty, line);
                }
                if let Some(special) = special(name) {
                    if float || ty.bytes() == 8 {
                        return Err(Self::mismatch(line, name, Type::U32, ty));
                    }
                    return self.special(special, line);
                }
                if name.starts_with('%') && self.find(name).is_none() {
                    if let Some(reason) = refused_special(name) {
                        return Err(PtxError::unsupported(line, reason));
                    }
                    return Err(Self::unknown(line, name));
                }
                let address = self.variable(name, line)?;
                self.constant(address, ty, line)
            }
            Operand::Displaced(name, offset) => {
                let address = self.variable(name, line)?;
                self.constant(address.wrapping_add_signed(*offset), ty, line)
            }
            Operand::Int(value) if !float => self.constant(*value, ty, line),
            Operand::F32(bits) if ty == Type::F32 || ty == Type::B32 => self.constant_word(*bits, line),
            Operand::F64(bits) if ty == Type::F64 || ty == Type::B64 => self.constant_double(*bits, line),
            Operand::F64(bits) if ty == Type::F32 => {
                self.constant_word((f64::from_bits(*bits) as f32).to_bits(), line)
            }
            other => {
                Err(PtxError::at(line, format!("{other:?} does not fit an operand of type .{}", ty.name())))
            }
        }
    }

    fn special(&mut self, special: Special, line: u32) -> Result<u16, PtxError> {
        if let Some(&slot) = self.specials.get(&special) {
            return Ok(slot);
        }
        let slot = self.new_slot(File::Word, line)?;
        self.specials.insert(special, slot);
        self.kernel.specials.push((slot, special));
        Ok(slot)
    }

    /// The address of a variable in its own space.
    fn variable(&self, name: &str, line: u32) -> Result<u64, PtxError> {
        match self.find(name).map(|(scope, key, _)| &self.scopes[scope][key]) {
            Some(Symbol::Variable { at, .. }) => Ok(*at),
            Some(Symbol::Param { .. }) => {
                Err(PtxError::unsupported(line, format!("the address of the parameter `{name}`")))
            }
            _ => Err(Self::unknown(line, name)),
        }
    }

    fn predicate_named(&mut self, name: &str, line: u32) -> Result<u16, PtxError> {
        match self.register(name, line)? {
            Some((Type::Pred, slot)) => Ok(slot),
            Some((found, _)) => Err(Self::mismatch(line, name, found, Type::Pred)),
            None => Err(Self::unknown(line, name)),
        }
    }

    /// A predicate source: slot and whether it is negated. Literals are constants.
    fn predicate(&mut self, operand: &Operand, line: u32) -> Result<(u16, bool), PtxError> {
        match operand {
            Operand::Name(name) => Ok((self.predicate_named(name, line)?, false)),
            Operand::Not(name) => Ok((self.predicate_named(name, line)?, true)),
            Operand::Int(value) => Ok((self.true_predicate(line)?, *value == 0)),
            other => Err(PtxError::at(line, format!("{other:?} is not a predicate"))),
        }
    }

    fn true_predicate(&mut self, line: u32) -> Result<u16, PtxError> {
        if let Some(slot) = self.truth {
            return Ok(slot);
        }
        let slot = self.new_slot(File::Predicate, line)?;
        self.truth = Some(slot);
        self.kernel.truths.push(slot);
        Ok(slot)
    }

    fn predicate_destination(&mut self, operand: &Operand, line: u32) -> Result<u16, PtxError> {
        self.destination(operand, Type::Pred, line)
    }

    /// The base and displacement of `[…]`, and the space of a named variable.
    fn address(&mut self, operand: &Operand, space: Space, line: u32) -> Result<(Base, i64), PtxError> {
        let Operand::Address(base, offset) = operand else {
            return Err(PtxError::at(line, "expected an address in brackets"));
        };
        match &**base {
            Operand::Int(value) => Ok((Base::Absolute, (*value as i64).wrapping_add(*offset))),
            Operand::Name(name) => {
                if let Some((ty, slot)) = self.register(name, line)? {
                    let base = match (ty.bytes(), ty.kind()) {
                        (8, Kind::Bits | Kind::Unsigned | Kind::Signed) => Base::Double(slot),
                        (4, Kind::Bits | Kind::Unsigned | Kind::Signed)
                            if matches!(space, Space::Shared | Space::Local | Space::Const) =>
                        {
                            Base::Word(slot)
                        }
                        _ => {
                            return Err(PtxError::at(
                                line,
                                format!("`{name}` (.{}) is not an address here", ty.name()),
                            ));
                        }
                    };
                    return Ok((base, *offset));
                }
                match self.find(name).map(|(scope, key, _)| &self.scopes[scope][key]) {
                    Some(Symbol::Param { offset: at }) if space == Space::Param => {
                        Ok((Base::Absolute, *at as i64 + offset))
                    }
                    Some(Symbol::Variable { space: found, at }) if *found == space => {
                        Ok((Base::Absolute, *at as i64 + offset))
                    }
                    Some(_) => {
                        Err(PtxError::at(line, format!("`{name}` does not lie in the {space:?} space")))
                    }
                    None => Err(Self::unknown(line, name)),
                }
            }
            other => Err(PtxError::at(line, format!("{other:?} is not an address"))),
        }
    }
}

fn special(name: &str) -> Option<Special> {
    let (stem, component) = match name.rsplit_once('.') {
        Some((stem, "x")) => (stem, 0),
        Some((stem, "y")) => (stem, 1),
        Some((stem, "z")) => (stem, 2),
        Some(_) => return None,
        None => (name, 3),
    };
    Some(match (stem, component) {
        ("%tid", 0..=2) => Special::Tid(component),
        ("%ntid", 0..=2) => Special::Ntid(component),
        ("%ctaid", 0..=2) => Special::Ctaid(component),
        ("%nctaid", 0..=2) => Special::Nctaid(component),
        ("%laneid", 3) => Special::Laneid,
        ("%warpid", 3) => Special::Warpid,
        ("%nwarpid", 3) => Special::Nwarpid,
        ("%smid", 3) => Special::Smid,
        ("%nsmid", 3) => Special::Nsmid,
        ("%gridid", 3) => Special::Gridid,
        ("%lanemask_eq", 3) => Special::LanemaskEq,
        ("%lanemask_le", 3) => Special::LanemaskLe,
        ("%lanemask_lt", 3) => Special::LanemaskLt,
        ("%lanemask_ge", 3) => Special::LanemaskGe,
        ("%lanemask_gt", 3) => Special::LanemaskGt,
        ("%dynamic_smem_size", 3) => Special::DynamicSmemSize,
        ("%total_smem_size", 3) => Special::TotalSmemSize,
        _ => return None,
    })
}

fn refused_special(name: &str) -> Option<String> {
    let known =
        ["%clock", "%globaltimer", "%pm", "%envreg", "%cluster", "%is_explicit_cluster", "%reserved_smem"];
    known.iter().any(|k| name.starts_with(k)).then(|| format!("the special register `{name}`"))
}
