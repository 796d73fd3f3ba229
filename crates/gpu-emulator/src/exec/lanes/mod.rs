//! The lane loops, compiled for several instruction sets and chosen when the process starts.
//!
//! Each family is one function that is generic text: written once, inlined into one wrapper per
//! instruction set. A [`Lanes`] value proves that the CPU has the set its pointers were compiled for.

mod convert;
mod float;
mod int;
pub mod memory;

use super::registers::Registers;
use crate::memory::DeviceMemory;
use crate::ptx::code::{Access, Inst, Op};
use memory::{load, load_shared, store, store_shared};

/// A family's entry point.
pub type Family = fn(&mut Registers, &Inst, u32);

/// The lane loops for this CPU.
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    /// 16- and 32-bit integers.
    pub word: Family,
    /// 64-bit integers and operations of mixed width.
    pub double: Family,
    /// Binary32 and binary64.
    pub float: Family,
    /// 16-bit floats.
    pub half: Family,
    /// Conversions and comparisons.
    pub convert: Family,
    /// Loads from global memory.
    pub load: memory::Global,
    /// Stores to global memory.
    pub store: memory::Global,
    /// Loads from shared memory.
    pub load_shared: memory::Shared,
    /// Stores to shared memory.
    pub store_shared: memory::Shared,
    /// Which instruction set this is, for reports.
    pub name: &'static str,
}

#[inline(always)]
fn word(r: &mut Registers, i: &Inst, m: u32) {
    match i.op {
        Op::Int32(op) => int::int32(r, i, m, op),
        Op::Int16(op) => int::int16(r, i, m, op),
        _ => unreachable!("not a word operation"),
    }
}

#[inline(always)]
fn double(r: &mut Registers, i: &Inst, m: u32) {
    match i.op {
        Op::Int64(op) => int::int64(r, i, m, op),
        Op::Mix(op) => int::mix(r, i, m, op),
        _ => unreachable!("not a double operation"),
    }
}

#[inline(always)]
fn float(r: &mut Registers, i: &Inst, m: u32) {
    match i.op {
        Op::F32(op, mode) => float::f32_op(r, i, m, op, mode),
        Op::F64(op, _) => float::f64_op(r, i, m, op),
        _ => unreachable!("not a float operation"),
    }
}

#[inline(always)]
fn half(r: &mut Registers, i: &Inst, m: u32) {
    let plain = crate::ptx::code::FloatMode { round: crate::ptx::code::Round::Near, ftz: false, sat: false };
    match i.op {
        Op::Half(op, format, mode) => float::half_op(r, i, m, op, format, mode, false),
        Op::Half2(op, format, mode) => float::half2_op(r, i, m, op, format, mode, false),
        Op::HalfRelu(op, format, false) => float::half_op(r, i, m, op, format, plain, true),
        Op::HalfRelu(op, format, true) => float::half2_op(r, i, m, op, format, plain, true),
        _ => unreachable!("not a half operation"),
    }
}

#[inline(always)]
fn convert(r: &mut Registers, i: &Inst, m: u32) {
    match i.op {
        Op::Convert(c) => convert::convert(r, i, m, &c),
        Op::ConvertPair(format, round, relu) => convert::convert_pair(r, i, m, format, round, relu),
        Op::Setp(ty, compare, join, ftz) => convert::setp(r, i, m, ty, compare, join, ftz),
        Op::Set(to, from, compare, ftz) => convert::set(r, i, m, to, from, compare, ftz),
        Op::Testp(ty, class) => convert::testp(r, i, m, ty, class),
        _ => unreachable!("not a conversion"),
    }
}

macro_rules! instruction_set {
    ($module:ident, $name:literal, $features:literal) => {
        #[cfg(target_arch = "x86_64")]
        mod $module {
            use super::memory::Rules;
            use super::{Access, DeviceMemory, Inst, Lanes, Registers};

            instruction_set!(@compiled $features, word(i: &Inst, m: u32) -> ());
            instruction_set!(@compiled $features, double(i: &Inst, m: u32) -> ());
            instruction_set!(@compiled $features, float(i: &Inst, m: u32) -> ());
            instruction_set!(@compiled $features, half(i: &Inst, m: u32) -> ());
            instruction_set!(@compiled $features, convert(i: &Inst, m: u32) -> ());
            instruction_set!(@compiled $features, load(t: &mut DeviceMemory, a: &Access, m: u32, u: Rules) -> bool);
            instruction_set!(@compiled $features, store(t: &mut DeviceMemory, a: &Access, m: u32, u: Rules) -> bool);
            instruction_set!(@compiled $features, load_shared(t: &mut [u8], s: &mut [u8], a: &Access, m: u32) -> bool);
            instruction_set!(@compiled $features, store_shared(t: &mut [u8], s: &mut [u8], a: &Access, m: u32) -> bool);

            pub(super) const LANES: Lanes = Lanes {
                word,
                double,
                float,
                half,
                convert,
                load,
                store,
                load_shared,
                store_shared,
                name: $name,
            };
        }
    };
    (@compiled $features:literal, $family:ident($($name:ident: $type:ty),*) -> $result:ty) => {
        fn $family(r: &mut Registers, $($name: $type),*) -> $result {
            #[target_feature(enable = $features)]
            fn inner(r: &mut Registers, $($name: $type),*) -> $result {
                super::$family(r, $($name),*)
            }
            // SAFETY: the features must be present; `Lanes::detect`, the only way to reach this
            // pointer, hands it out after asking the CPU for them.
            unsafe { inner(r, $($name),*) }
        }
    };
}

instruction_set!(avx2, "avx2", "avx2,fma,bmi1,bmi2,lzcnt,popcnt");
instruction_set!(
    avx512,
    "avx512",
    "avx2,fma,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512dq,avx512vl,avx512cd"
);

const BASELINE: Lanes =
    Lanes { word, double, float, half, convert, load, store, load_shared, store_shared, name: "baseline" };

impl Lanes {
    /// The best set that this CPU has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt");
            if avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512cd")
            {
                return avx512::LANES;
            }
            if avx2 {
                return avx2::LANES;
            }
        }
        BASELINE
    }

    /// The loops compiled for any CPU of this architecture.
    pub fn baseline() -> Self {
        BASELINE
    }
}
