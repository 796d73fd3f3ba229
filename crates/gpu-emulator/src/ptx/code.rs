//! The compact form that runs: instructions with register slots, and the tables they refer to.
//!
//! Registers live in three files: words (8, 16 and 32 bits, the low bits of a u32 lane), doubles
//! (64 bits) and predicates (one mask a register). A slot indexes its file. Constants and special
//! registers have slots too, filled before a warp starts, so that an instruction reads slots only.

use super::ast::{Space, Type};

/// No guard.
pub const NO_GUARD: u16 = u16::MAX;
/// A destination that is thrown away.
pub const DISCARD: u16 = u16::MAX - 1;
/// Reconvergence at the end of the kernel only.
pub const NEVER: u32 = u32::MAX;

/// One instruction.
#[derive(Clone, Copy, Debug)]
pub struct Inst {
    /// What it does.
    pub op: Op,
    /// Predicate slot, or [`NO_GUARD`].
    pub guard: u16,
    /// Whether the guard is `@!p`.
    pub negated: bool,
    /// Destination slot.
    pub d: u16,
    /// First source slot.
    pub a: u16,
    /// Second source slot.
    pub b: u16,
    /// Third source slot.
    pub c: u16,
    /// A number that the operation defines: an index into a table, or packed flags.
    pub x: u32,
    /// Source line.
    pub line: u32,
}

/// Rounding of a floating-point result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// To nearest, ties to even.
    Near,
    /// Toward zero.
    Zero,
    /// Toward minus infinity.
    Down,
    /// Toward plus infinity.
    Up,
}

/// Modifiers of floating-point arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatMode {
    /// Rounding.
    pub round: Round,
    /// Subnormal inputs and results become zero.
    pub ftz: bool,
    /// The result is clamped to [0, 1].
    pub sat: bool,
}

/// Integer operations of two or three operands, whatever the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum IntOp {
    Mov,
    Add,
    AddSat,
    Sub,
    SubSat,
    MulLo,
    MulHiU,
    MulHiS,
    MadLo,
    MadHiU,
    MadHiS,
    Mul24LoU,
    Mul24LoS,
    SadU,
    SadS,
    DivU,
    DivS,
    RemU,
    RemS,
    Abs,
    Neg,
    MinU,
    MinS,
    MaxU,
    MaxS,
    And,
    Or,
    Xor,
    Not,
    Cnot,
    Shl,
    ShrU,
    ShrS,
    Brev,
    Selp,
    BfeU,
    BfeS,
    Bfi,
    Lop3,
    ShfLeftClamp,
    ShfLeftWrap,
    ShfRightClamp,
    ShfRightWrap,
    Prmt,
    Dp4aUU,
    Dp4aSS,
    Dp4aUS,
    Dp4aSU,
    AddCarryOut,
    AddWithCarry,
    SubBorrowOut,
    SubWithBorrow,
}

/// Operations whose source and destination widths differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MixOp {
    MulWideU16,
    MulWideS16,
    MulWideU32,
    MulWideS32,
    MadWideU16,
    MadWideS16,
    MadWideU32,
    MadWideS32,
    Popc32,
    Popc64,
    Clz32,
    Clz64,
    BfindU32,
    BfindS32,
    BfindU64,
    BfindS64,
    Pack2x16,
    Unpack2x16,
    Pack2x32,
    Unpack2x32,
    Pack4x16,
    Unpack4x16,
}

/// Binary32 and binary64 operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FloatOp {
    Add,
    Sub,
    Mul,
    Fma,
    Div,
    Rcp,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    Lg2,
    Ex2,
    Tanh,
    Neg,
    Abs,
    Min,
    Max,
    MinNan,
    MaxNan,
    Copysign,
}

/// Formats of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfFormat {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

/// Comparison of `setp` and `set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

/// How `setp` joins its result with a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Join {
    None,
    And,
    Or,
    Xor,
}

/// A conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convert {
    /// Destination type.
    pub to: Type,
    /// Source type.
    pub from: Type,
    /// Rounding of a float result, or of the integral value.
    pub round: Round,
    /// Round to an integral value (`.rni` and its kin).
    pub integral: bool,
    /// Subnormals become zero.
    pub ftz: bool,
    /// Clamp to the destination's range ([0, 1] for floats).
    pub sat: bool,
    /// Negative results become zero.
    pub relu: bool,
}

/// Lane exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Shuffle {
    Up,
    Down,
    Bfly,
    Idx,
}

/// Votes and other warp-wide results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

/// `redux.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Redux {
    Add,
    MinU,
    MinS,
    MaxU,
    MaxS,
    And,
    Or,
    Xor,
}

/// Read-modify-write in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Atomic {
    Add,
    AddF32,
    AddF64,
    AddF16x2,
    MinU,
    MinS,
    MaxU,
    MaxS,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
}

/// Predicate logic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PredOp {
    Mov,
    And,
    Or,
    Xor,
    Not,
}

/// What an instruction does. Categories follow the files that execute them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Op {
    /// Fence, prefetch, and what else has no effect here.
    Nop,
    Int16(IntOp),
    Int32(IntOp),
    Int64(IntOp),
    Mix(MixOp),
    Pred(PredOp),
    F32(FloatOp, FloatMode),
    F64(FloatOp, FloatMode),
    Half(FloatOp, HalfFormat, FloatMode),
    Half2(FloatOp, HalfFormat, FloatMode),
    /// `fma.relu` and its kin: the flag is relu.
    HalfRelu(FloatOp, HalfFormat, bool),
    Convert(Convert),
    /// `cvt.rn.f16x2.f32 d, a, b`.
    ConvertPair(HalfFormat, Round, bool),
    /// Compare words: type, comparison, join. `x` = second destination | source predicate << 16, negation in `c`.
    Setp(Type, Compare, Join, bool),
    /// `set.cmp.dtype.stype`: destination type is F32 (1.0) or an integer (all ones).
    Set(Type, Type, Compare, bool),
    Testp(Type, Testp),
    /// `bfind.shiftamt` and others: flag in `x`.
    Load,
    Store,
    Atomic,
    CpAsync,
    CpAsyncCommit,
    CpAsyncWait,
    Ldmatrix,
    Mma,
    Shuffle(Shuffle),
    Vote(Vote),
    MatchAny,
    MatchAll,
    Activemask,
    Redux(Redux),
    Branch,
    Exit,
    Trap,
    Barrier,
    WarpBarrier,
    /// `isspacep`: the space's number in `x`.
    IsSpace,
    /// `elect` and clocks are refused; `nanosleep` is a no-op.
    Sleep,
}

/// Classes of `testp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Testp {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

/// Where an address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// A 64-bit register.
    Double(u16),
    /// A 32-bit register.
    Word(u16),
    /// The offset is the address.
    Absolute,
}

/// A register of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// Its slot, or [`DISCARD`].
    pub slot: u16,
    /// Whether the slot is in the file of doubles.
    pub wide: bool,
}

/// The memory side of a load, store or atomic.
#[derive(Clone, Debug)]
pub struct Access {
    /// State space.
    pub space: Space,
    /// Address base.
    pub base: Base,
    /// Displacement.
    pub offset: i64,
    /// Bytes of one element.
    pub size: usize,
    /// Sign extension of a load.
    pub signed: bool,
    /// Register of each element.
    pub elements: Vec<Element>,
    /// `ld.global.nc`: the data must be read-only for the launch.
    pub read_only: bool,
    /// `.volatile`, `.relaxed`, `.acquire`, `.release`: an intended communication, not a race.
    pub strong: bool,
    /// For an atomic: what it does, and whether operands are 64 bits wide.
    pub atomic: Option<(Atomic, bool)>,
}

impl Access {
    /// Bytes of the whole access of one lane.
    pub fn bytes(&self) -> usize {
        self.size * self.elements.len().max(1)
    }
}

/// A `cp.async`.
#[derive(Clone, Copy, Debug)]
pub struct CopyAsync {
    /// Shared destination.
    pub to: (Base, i64),
    /// Global source.
    pub from: (Base, i64),
    /// 4, 8 or 16.
    pub bytes: usize,
    /// Slot of `src-size`, where given: the rest is filled with zeros.
    pub source_bytes: Option<u16>,
}

/// An `ldmatrix`.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    /// Row addresses, in shared memory.
    pub from: (Space, Base, i64),
    /// Destination slots.
    pub to: [u16; 4],
    /// 1, 2 or 4.
    pub count: usize,
    /// `.trans`
    pub transposed: bool,
}

/// An `mma.sync`.
#[derive(Clone, Copy, Debug)]
pub struct Multiply {
    /// Depth: 8 or 16 (m is 16, n is 8).
    pub k: usize,
    /// Type of A and B.
    pub format: HalfFormat,
    /// Whether C and D are f16 rather than f32.
    pub half_result: bool,
    /// Slots of the fragments.
    pub d: [u16; 4],
    /// A: k / 4 slots.
    pub a: [u16; 4],
    /// B: k / 8 slots.
    pub b: [u16; 2],
    /// C.
    pub c: [u16; 4],
}

/// A barrier instruction.
#[derive(Clone, Copy, Debug)]
pub struct Barrier {
    /// Slot of the barrier's number.
    pub id: u16,
    /// Slot of the thread count, where given.
    pub threads: Option<u16>,
    /// `bar.arrive`: does not wait.
    pub arrive: bool,
    /// `bar.red`: (operation, source predicate, negated); `d` is the destination.
    pub reduce: Option<(Reduce, u16, bool)>,
    /// Whether all lanes of a warp must come together (`bar.sync`, `.aligned`).
    pub aligned: bool,
}

/// `bar.red`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reduce {
    Popc,
    And,
    Or,
}

/// A special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    Laneid,
    Warpid,
    Nwarpid,
    Smid,
    Nsmid,
    Gridid,
    LanemaskEq,
    LanemaskLe,
    LanemaskLt,
    LanemaskGe,
    LanemaskGt,
    DynamicSmemSize,
    TotalSmemSize,
}

/// What one instruction does to the registers that may be read before they are written, by their place in
/// [`Kernel::watched`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// The predicate of its guard, where it may be unwritten.
    pub guard: Option<u16>,
    /// Sources that may be unwritten.
    pub reads: Vec<u16>,
    /// Destinations that are watched.
    pub writes: Vec<u16>,
}

/// A kernel's parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Name in the PTX.
    pub name: String,
    /// Offset in the parameter buffer.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// A kernel that can run.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// Entry name.
    pub name: String,
    /// Instructions.
    pub code: Vec<Inst>,
    /// For each instruction that can diverge, where its lanes meet again.
    pub reconverge: Vec<u32>,
    /// For each instruction what it does to the watched registers; empty where none is watched.
    pub watches: Vec<Watch>,
    /// Names of the registers that some path reads before it writes them.
    pub watched: Vec<String>,
    /// Slots in each file: words, doubles, predicates.
    pub slots: [usize; 3],
    /// Constants among the words.
    pub words: Vec<(u16, u32)>,
    /// Constants among the doubles.
    pub doubles: Vec<(u16, u64)>,
    /// Constant predicates (true).
    pub truths: Vec<u16>,
    /// Special registers (words).
    pub specials: Vec<(u16, Special)>,
    /// Loads, stores and atomics.
    pub accesses: Vec<Access>,
    /// `cp.async`.
    pub copies: Vec<CopyAsync>,
    /// `ldmatrix`.
    pub matrices: Vec<Matrices>,
    /// `mma.sync`.
    pub multiplies: Vec<Multiply>,
    /// Barriers.
    pub barriers: Vec<Barrier>,
    /// Slot lists of vector moves.
    pub lists: Vec<[u16; 4]>,
    /// Parameters.
    pub params: Vec<Param>,
    /// Bytes of the parameter buffer.
    pub param_bytes: usize,
    /// Static shared memory.
    pub shared_bytes: usize,
    /// Shared variables with their offset, for messages.
    pub shared_variables: Vec<(String, usize, usize)>,
    /// Local memory a thread.
    pub local_bytes: usize,
    /// `.maxntid` in threads.
    pub max_threads: Option<u32>,
    /// `.reqntid`.
    pub required: Option<[u32; 3]>,
    /// Registers declared and used, as an estimate of what `ptxas` would allot.
    pub registers: u32,
    /// `.target` of the module.
    pub target: u32,
}
