//! Parses PTX into its syntax tree.
//!
//! What it does not know it refuses by name. Debug directives (`.loc`, `.file`, `.section`) and
//! `.pragma` are read over: they do not change what a kernel computes.

use super::PtxError;
use super::ast::{Entry, Instruction, Module, Operand, Space, Statement, Type, Variable};
use super::lexer::{Token, tokens};

/// Parses a module.
///
/// # Errors
/// Syntax errors and unsupported directives, with their line.
pub fn parse(source: &str) -> Result<Module, PtxError> {
    let mut parser = Parser { tokens: tokens(source)?, at: 0 };
    parser.module()
}

struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
}

impl Parser {
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.1)
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|t| &t.0)
    }

    fn peek_punct(&self, c: char) -> bool {
        self.peek() == Some(&Token::Punct(c))
    }

    fn next(&mut self, wanted: &str) -> Result<Token, PtxError> {
        let line = self.line();
        let token = self
            .tokens
            .get(self.at)
            .ok_or_else(|| PtxError::at(line, format!("the text ends where {wanted} should be")))?;
        self.at += 1;
        Ok(token.0.clone())
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.peek_punct(c);
        if found {
            self.at += 1;
        }
        found
    }

    fn expect(&mut self, c: char) -> Result<(), PtxError> {
        let line = self.line();
        match self.next(&format!("`{c}`"))? {
            Token::Punct(found) if found == c => Ok(()),
            other => Err(PtxError::at(line, format!("expected `{c}`, found {}", show(&other)))),
        }
    }

    fn word(&mut self, wanted: &str) -> Result<String, PtxError> {
        let line = self.line();
        match self.next(wanted)? {
            Token::Word(word) => Ok(word),
            other => Err(PtxError::at(line, format!("expected {wanted}, found {}", show(&other)))),
        }
    }

    fn integer(&mut self) -> Result<u64, PtxError> {
        let line = self.line();
        let negative = self.take('-');
        match self.next("a number")? {
            Token::Int(value) => Ok(if negative { value.wrapping_neg() } else { value }),
            other => Err(PtxError::at(line, format!("expected a number, found {}", show(&other)))),
        }
    }

    fn module(&mut self) -> Result<Module, PtxError> {
        let mut module = Module::default();
        let line = self.line();
        if self.word("`.version`")? != ".version" {
            return Err(PtxError::at(line, "a module starts with .version"));
        }
        let line = self.line();
        match self.next("a version")? {
            Token::F64(bits) => {
                let value = f64::from_bits(bits);
                // `.version 7.0` reads as a decimal: one digit after the point.
                module.version = (value as u32, ((value * 10.0).round() as u32) % 10);
            }
            other => return Err(PtxError::at(line, format!("expected a version, found {}", show(&other)))),
        }
        let line = self.line();
        if self.word("`.target`")? != ".target" {
            return Err(PtxError::at(line, ".version is followed by .target"));
        }
        let target = self.word("a target")?;
        let digits: String =
            target.strip_prefix("sm_").unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
        module.target =
            digits.parse().map_err(|_| PtxError::unsupported(line, format!("the target `{target}`")))?;
        while self.take(',') {
            let option = self.word("a target option")?;
            if option != "debug" {
                return Err(PtxError::unsupported(line, format!("the target option `{option}`")));
            }
        }
        while self.peek().is_some() {
            self.top(&mut module)?;
        }
        Ok(module)
    }

    fn top(&mut self, module: &mut Module) -> Result<(), PtxError> {
        let line = self.line();
        let word = self.word("a directive")?;
        match word.as_str() {
            ".address_size" => {
                if self.integer()? != 64 {
                    return Err(PtxError::unsupported(line, ".address_size 32"));
                }
            }
            ".visible" | ".weak" | ".extern" => {
                let external = word == ".extern";
                let line = self.line();
                let next = self.word("a directive")?;
                match next.as_str() {
                    ".entry" if !external => module.entries.push(self.entry(line)?),
                    ".func" => return Err(PtxError::unsupported(line, ".func")),
                    _ => {
                        let variables = self.variables(&next, line)?;
                        if external && variables.iter().any(|v| v.space != Some(Space::Shared)) {
                            return Err(PtxError::unsupported(line, ".extern outside shared memory"));
                        }
                        module.variables.extend(variables);
                    }
                }
            }
            ".entry" => module.entries.push(self.entry(line)?),
            ".global" | ".const" | ".shared" => {
                let variables = self.variables(&word, line)?;
                module.variables.extend(variables);
            }
            ".file" => self.skip_line(line),
            ".section" => self.skip_braces()?,
            ".pragma" => self.skip_to_semicolon()?,
            other => return Err(PtxError::unsupported(line, format!("`{other}` at module scope"))),
        }
        Ok(())
    }

    fn skip_line(&mut self, line: u32) {
        while self.peek().is_some() && self.line() == line {
            self.at += 1;
        }
    }

    fn skip_braces(&mut self) -> Result<(), PtxError> {
        while !self.take('{') {
            self.next("`{`")?;
        }
        while !self.take('}') {
            self.next("`}`")?;
        }
        Ok(())
    }

    fn skip_to_semicolon(&mut self) -> Result<(), PtxError> {
        while !self.take(';') {
            self.next("`;`")?;
        }
        Ok(())
    }

    fn entry(&mut self, line: u32) -> Result<Entry, PtxError> {
        let name = self.word("a kernel's name")?;
        let mut entry =
            Entry { name, params: Vec::new(), max_threads: None, required: None, body: Vec::new(), line };
        if self.take('(') {
            while !self.take(')') {
                let line = self.line();
                let space = self.word("`.param`")?;
                if space != ".param" {
                    return Err(PtxError::at(line, format!("expected .param, found `{space}`")));
                }
                entry.params.push(self.variable(Some(Space::Param), line)?);
                if !self.peek_punct(')') {
                    self.expect(',')?;
                }
            }
        }
        while !self.peek_punct('{') {
            let line = self.line();
            let directive = self.word("`{`")?;
            match directive.as_str() {
                ".maxntid" => entry.max_threads = Some(self.triple()?.iter().product()),
                ".reqntid" => entry.required = Some(self.triple()?),
                ".minnctapersm" | ".maxnreg" | ".maxnctapersm" => {
                    self.integer()?;
                }
                ".noreturn" => {}
                ".pragma" => self.skip_to_semicolon()?,
                other => return Err(PtxError::unsupported(line, format!("`{other}` on a kernel"))),
            }
        }
        self.expect('{')?;
        entry.body = self.body()?;
        Ok(entry)
    }

    fn triple(&mut self) -> Result<[u32; 3], PtxError> {
        let mut out = [1; 3];
        for (i, slot) in out.iter_mut().enumerate() {
            if i > 0 && !self.take(',') {
                break;
            }
            *slot = self.integer()? as u32;
        }
        Ok(out)
    }

    fn body(&mut self) -> Result<Vec<Statement>, PtxError> {
        let mut out = Vec::new();
        loop {
            let line = self.line();
            if self.take('}') {
                return Ok(out);
            }
            if self.take('{') {
                out.push(Statement::Scope(self.body()?));
                continue;
            }
            if self.peek_punct('@') {
                out.push(Statement::Instruction(self.instruction()?));
                continue;
            }
            let Some(Token::Word(word)) = self.peek().cloned() else {
                let token = self.next("a statement or `}`")?;
                return Err(PtxError::at(line, format!("expected a statement, found {}", show(&token))));
            };
            if self.tokens.get(self.at + 1).map(|t| &t.0) == Some(&Token::Punct(':')) {
                self.at += 2;
                out.push(Statement::Label(word, line));
                continue;
            }
            match word.as_str() {
                ".reg" | ".local" | ".shared" | ".global" | ".const" | ".param" => {
                    self.at += 1;
                    if word == ".param" {
                        return Err(PtxError::unsupported(line, ".param inside a body"));
                    }
                    out.extend(self.variables(&word, line)?.into_iter().map(Statement::Declaration));
                }
                ".loc" => self.skip_line(line),
                ".pragma" => self.skip_to_semicolon()?,
                _ if word.starts_with('.') => {
                    return Err(PtxError::unsupported(line, format!("`{word}` inside a body")));
                }
                _ => out.push(Statement::Instruction(self.instruction()?)),
            }
        }
    }

    /// `.space [.align n] .type name, name, …;`
    fn variables(&mut self, directive: &str, line: u32) -> Result<Vec<Variable>, PtxError> {
        let space = match directive {
            ".reg" => None,
            ".local" => Some(Space::Local),
            ".shared" => Some(Space::Shared),
            ".global" => Some(Space::Global),
            ".const" => Some(Space::Const),
            other => return Err(PtxError::unsupported(line, format!("`{other}`"))),
        };
        let first = self.variable(space, line)?;
        let (ty, align) = (first.ty, first.align);
        let mut out = vec![first];
        while self.take(',') {
            let line = self.line();
            let next = self.declarator(space, ty, align, line)?;
            out.push(next);
        }
        self.expect(';')?;
        Ok(out)
    }

    fn variable(&mut self, space: Option<Space>, line: u32) -> Result<Variable, PtxError> {
        let mut align = None;
        loop {
            let at = self.line();
            let word = self.word("a type")?;
            if word == ".align" {
                align = Some(self.integer()? as usize);
                continue;
            }
            // Attributes of a pointer parameter carry no meaning for execution.
            if let Some(rest) = word.strip_prefix('.') {
                // `.v4.f32` and `.u64.ptr.global` arrive as one word.
                let mut parts = rest.split('.').peekable();
                let head = parts.next().unwrap_or_default();
                if matches!(head, "v2" | "v4") {
                    return Err(PtxError::unsupported(at, format!("variables of vector type `{word}`")));
                }
                let ty = Type::from_name(head)
                    .ok_or_else(|| PtxError::unsupported(at, format!("the type `{word}`")))?;
                let natural = ty.bytes().max(1);
                let mut align = align.unwrap_or(natural);
                if parts.peek() == Some(&"ptr") {
                    // The `.align` after `.ptr` describes the pointee.
                    while let Some(Token::Word(next)) = self.peek() {
                        if next == ".align" {
                            self.at += 1;
                            self.integer()?;
                        } else if next.starts_with(".ptr")
                            || [".global", ".shared", ".const", ".local"].contains(&next.as_str())
                        {
                            self.at += 1;
                        } else {
                            break;
                        }
                    }
                } else {
                    while let Some(Token::Word(next)) = self.peek() {
                        if next.starts_with(".ptr") {
                            self.at += 1;
                            while let Some(Token::Word(after)) = self.peek() {
                                if after == ".align" {
                                    self.at += 1;
                                    self.integer()?;
                                } else if after.starts_with('.') {
                                    self.at += 1;
                                } else {
                                    break;
                                }
                            }
                        } else if next == ".align" {
                            self.at += 1;
                            align = self.integer()? as usize;
                        } else {
                            break;
                        }
                    }
                }
                return self.declarator(space, ty, align, line);
            }
            return Err(PtxError::at(at, format!("expected a type, found `{word}`")));
        }
    }

    fn declarator(
        &mut self,
        space: Option<Space>,
        ty: Type,
        align: usize,
        line: u32,
    ) -> Result<Variable, PtxError> {
        let name = self.word("a name")?;
        let mut variable = Variable { space, ty, name, count: 1, range: false, align, init: None, line };
        if self.take('<') {
            variable.count = self.integer()? as usize;
            variable.range = true;
            self.expect('>')?;
            return Ok(variable);
        }
        let mut array = false;
        while self.take('[') {
            array = true;
            let n = if self.peek_punct(']') { 0 } else { self.integer()? as usize };
            variable.count = variable
                .count
                .checked_mul(n)
                .ok_or_else(|| PtxError::at(line, format!("`{}` is too large", variable.name)))?;
            self.expect(']')?;
        }
        if self.take('=') {
            let mut bytes = Vec::new();
            let mut elements = 0;
            if self.take('{') {
                let mut depth = 1;
                while depth > 0 {
                    if self.take('{') {
                        depth += 1;
                    } else if self.take('}') {
                        depth -= 1;
                    } else if !self.take(',') {
                        bytes.extend(self.initial(ty)?);
                        elements += 1;
                    }
                }
            } else {
                bytes.extend(self.initial(ty)?);
                elements = 1;
            }
            if array && variable.count == 0 {
                variable.count = elements;
            }
            if elements > variable.count {
                return Err(PtxError::at(line, format!("too many initial values for `{}`", variable.name)));
            }
            bytes.resize(variable.count * ty.bytes(), 0);
            variable.init = Some(bytes);
        }
        Ok(variable)
    }

    fn initial(&mut self, ty: Type) -> Result<Vec<u8>, PtxError> {
        let line = self.line();
        let value = self.operand()?;
        let bits = match value {
            Operand::Int(v) if ty.kind() != super::ast::Kind::Float => v,
            Operand::F32(bits) if ty == Type::F32 || ty == Type::B32 => u64::from(bits),
            Operand::F64(bits) if ty == Type::F64 => bits,
            Operand::F64(bits) if ty == Type::F32 => u64::from((f64::from_bits(bits) as f32).to_bits()),
            other => {
                return Err(PtxError::unsupported(
                    line,
                    format!("the initial value {other:?} for .{}", ty.name()),
                ));
            }
        };
        Ok(bits.to_le_bytes()[..ty.bytes()].to_vec())
    }

    fn instruction(&mut self) -> Result<Instruction, PtxError> {
        let mut guard = None;
        if self.take('@') {
            let negated = self.take('!');
            guard = Some((self.word("a predicate")?, negated));
        }
        let line = self.line();
        let word = self.word("an instruction")?;
        let mut parts = word.split('.');
        let opcode = parts.next().unwrap_or_default().to_string();
        let modifiers = parts.map(str::to_string).collect();
        let mut operands = Vec::new();
        while !self.take(';') {
            operands.push(self.operand()?);
            if !self.peek_punct(';') {
                self.expect(',')?;
            }
        }
        Ok(Instruction { guard, opcode, modifiers, operands, line })
    }

    fn operand(&mut self) -> Result<Operand, PtxError> {
        let line = self.line();
        let first = match self.next("an operand")? {
            Token::Word(word) => {
                if self.peek_punct('+') {
                    self.at += 1;
                    Operand::Displaced(word, self.integer()? as i64)
                } else {
                    Operand::Name(word)
                }
            }
            Token::Int(value) => Operand::Int(value),
            Token::F32(bits) => Operand::F32(bits),
            Token::F64(bits) => Operand::F64(bits),
            Token::Punct('!') => Operand::Not(self.word("a predicate")?),
            Token::Punct('-') => match self.next("a number")? {
                Token::Int(value) => Operand::Int(value.wrapping_neg()),
                Token::F64(bits) => Operand::F64((-f64::from_bits(bits)).to_bits()),
                Token::F32(bits) => Operand::F32(bits ^ 0x8000_0000),
                other => {
                    return Err(PtxError::at(line, format!("expected a number, found {}", show(&other))));
                }
            },
            Token::Punct('{') => {
                let mut list = Vec::new();
                while !self.take('}') {
                    list.push(self.operand()?);
                    if !self.peek_punct('}') {
                        self.expect(',')?;
                    }
                }
                Operand::Vector(list)
            }
            Token::Punct('[') => {
                let base = match self.next("an address")? {
                    Token::Word(word) => Operand::Name(word),
                    Token::Int(value) => Operand::Int(value),
                    other => {
                        return Err(PtxError::at(
                            line,
                            format!("expected an address, found {}", show(&other)),
                        ));
                    }
                };
                let offset = if self.take('+') || self.peek_punct('-') { self.integer()? as i64 } else { 0 };
                self.expect(']')?;
                Operand::Address(Box::new(base), offset)
            }
            other => return Err(PtxError::at(line, format!("expected an operand, found {}", show(&other)))),
        };
        if self.take('|') {
            let second = self.operand()?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }
}

fn show(token: &Token) -> String {
    match token {
        Token::Word(word) => format!("`{word}`"),
        Token::Int(value) => format!("`{value}`"),
        Token::F32(bits) => format!("`0f{bits:08X}`"),
        Token::F64(bits) => format!("`{}`", f64::from_bits(*bits)),
        Token::Text(text) => format!("{text:?}"),
        Token::Punct(c) => format!("`{c}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_with_all_parts() {
        let module = parse(
            ".version 6.3\n.target sm_75\n.address_size 64\n\
             .global .align 4 .f32 table[2] = {0f3F800000, 0f40000000};\n\
             .visible .entry k(.param .u64 .ptr .global .align 16 p, .param .u32 n)\n.maxntid 256, 1, 1\n{\n\
             .reg .pred %p<2>;\n.reg .f32 %f<4>;\n{ .reg .u32 t; mov.u32 t, %tid.x; }\n\
             @!%p1 bra DONE;\nld.global.v2.f32 {%f1, %f2}, [%rd1+-8];\nDONE: ret;\n}\n",
        )
        .unwrap();
        assert_eq!((module.version, module.target), ((6, 3), 75));
        assert_eq!(module.variables[0].init.as_ref().unwrap().len(), 8);
        let entry = &module.entries[0];
        assert_eq!((entry.params.len(), entry.max_threads), (2, Some(256)));
        assert_eq!(entry.body.len(), 7);
        let Statement::Instruction(load) = &entry.body[4] else { panic!() };
        assert_eq!(load.operands[1], Operand::Address(Box::new(Operand::Name("%rd1".into())), -8));
        assert_eq!(load.full_name(), "ld.global.v2.f32");
    }

    #[test]
    fn refusals_name_what_and_where() {
        let start = ".version 6.3\n.target sm_75\n.address_size 64\n";
        for (text, message) in [
            (".func f() { ret; }", "line 4: the emulator does not implement `.func` at module scope"),
            (".entry k() .maxclusterrank 4 { ret; }", "does not implement `.maxclusterrank` on a kernel"),
            (".entry k() { add.u32 %r1 %r2; }", "line 4: expected `,`, found `%r2`"),
            (".entry k() { ret;", "the text ends where"),
        ] {
            let error = parse(&format!("{start}{text}")).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        assert!(parse(".target sm_75").unwrap_err().to_string().contains("starts with .version"));
    }
}
