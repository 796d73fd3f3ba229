//! The syntax tree of a PTX module, as the parser leaves it: names unresolved, opcodes as words.

/// A parsed module.
#[derive(Debug, Default)]
pub struct Module {
    /// `.version`, for example (6, 3).
    pub version: (u32, u32),
    /// The number in `.target sm_NN`.
    pub target: u32,
    /// Variables at module scope.
    pub variables: Vec<Variable>,
    /// Kernels.
    pub entries: Vec<Entry>,
}

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Any of the others, told apart by the address.
    Generic,
    /// Device memory.
    Global,
    /// The memory of a block.
    Shared,
    /// The memory of a thread.
    Local,
    /// Kernel parameters.
    Param,
    /// Constant memory.
    Const,
}

/// A fundamental type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Type {
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
    Pred,
}

/// What a type's bits mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Bits,
    Unsigned,
    Signed,
    Float,
    Pred,
}

impl Type {
    /// The type named by a modifier without its dot.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "pred" => Self::Pred,
            _ => return None,
        })
    }

    /// Its modifier without the dot.
    pub fn name(self) -> &'static str {
        match self {
            Self::B8 => "b8",
            Self::B16 => "b16",
            Self::B32 => "b32",
            Self::B64 => "b64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::S8 => "s8",
            Self::S16 => "s16",
            Self::S32 => "s32",
            Self::S64 => "s64",
            Self::F16 => "f16",
            Self::F16x2 => "f16x2",
            Self::Bf16 => "bf16",
            Self::Bf16x2 => "bf16x2",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Pred => "pred",
        }
    }

    /// Width in bytes (a predicate has none in memory).
    pub fn bytes(self) -> usize {
        match self {
            Self::B8 | Self::U8 | Self::S8 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 2,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 | Self::F16x2 | Self::Bf16x2 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
            Self::Pred => 0,
        }
    }

    /// What its bits mean.
    pub fn kind(self) -> Kind {
        match self {
            Self::B8 | Self::B16 | Self::B32 | Self::B64 => Kind::Bits,
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Kind::Unsigned,
            Self::S8 | Self::S16 | Self::S32 | Self::S64 => Kind::Signed,
            Self::F16 | Self::F16x2 | Self::Bf16 | Self::Bf16x2 | Self::F32 | Self::F64 => Kind::Float,
            Self::Pred => Kind::Pred,
        }
    }
}

/// A variable in memory, or a range of registers.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Where it lives; `None` for registers.
    pub space: Option<Space>,
    /// Element type.
    pub ty: Type,
    /// Name.
    pub name: String,
    /// Elements (1 for a scalar; 0 for an `.extern` array without a size); registers of a `<n>` range.
    pub count: usize,
    /// `.reg .f32 %f<n>` declares `%f0` to `%f(n-1)`.
    pub range: bool,
    /// Alignment in bytes.
    pub align: usize,
    /// Initial bytes.
    pub init: Option<Vec<u8>>,
    /// Source line.
    pub line: u32,
}

/// A kernel.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Variable>,
    /// `.maxntid`, as a number of threads.
    pub max_threads: Option<u32>,
    /// `.reqntid`.
    pub required: Option<[u32; 3]>,
    /// Statements.
    pub body: Vec<Statement>,
    /// Source line.
    pub line: u32,
}

/// A statement of a body.
#[derive(Debug)]
pub enum Statement {
    /// `name:`
    Label(String, u32),
    /// An instruction.
    Instruction(Instruction),
    /// A declaration.
    Declaration(Variable),
    /// `{ … }`, a scope of its own.
    Scope(Vec<Statement>),
}

/// An instruction, unresolved.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// `@p` or `@!p`.
    pub guard: Option<(String, bool)>,
    /// The word before the first dot.
    pub opcode: String,
    /// The words after it.
    pub modifiers: Vec<String>,
    /// Operands.
    pub operands: Vec<Operand>,
    /// Source line.
    pub line: u32,
}

impl Instruction {
    /// Opcode and modifiers as they were written.
    pub fn full_name(&self) -> String {
        let mut name = self.opcode.clone();
        for modifier in &self.modifiers {
            name.push('.');
            name.push_str(modifier);
        }
        name
    }
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register, special register, variable or label; `_` discards.
    Name(String),
    /// `!p`
    Not(String),
    /// `-x` of a register is not PTX; this is an integer literal.
    Int(u64),
    /// Binary32 literal.
    F32(u32),
    /// Binary64 literal.
    F64(u64),
    /// `{a, b, …}`
    Vector(Vec<Operand>),
    /// `[base + offset]`
    Address(Box<Operand>, i64),
    /// `a|b`: a destination and a second one.
    Pair(Box<Operand>, Box<Operand>),
    /// `name + n`: the address of a variable, displaced.
    Displaced(String, i64),
}
