//! `cvt`, `setp`, `set` and `testp`.

use super::super::numeric::{
    BF16, F16, F32, Format, f16_to_f32, f32_to_bf16, f32_to_f16, flush, int_odd, integral, narrow, saturate,
    widen,
};
use super::super::registers::{LANES, Registers};
use crate::ptx::ast::{Kind, Type};
use crate::ptx::code::{Compare, Convert, HalfFormat, Inst, Join, Round, Testp};

fn format(ty: Type) -> Format {
    match ty {
        Type::F16 => F16,
        Type::Bf16 => BF16,
        _ => F32,
    }
}

/// The value of a float of any width.
fn float_value(bits: u64, ty: Type, ftz: bool) -> f64 {
    match ty {
        Type::F16 => widen(bits as u32, HalfFormat::F16),
        Type::Bf16 => widen(bits as u32, HalfFormat::Bf16),
        Type::F32 if ftz => f64::from(flush(f32::from_bits(bits as u32))),
        Type::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

fn int_value(bits: u64, ty: Type) -> i128 {
    match ty {
        Type::S8 => i128::from(bits as i8),
        Type::S16 => i128::from(bits as i16),
        Type::S32 => i128::from(bits as i32),
        Type::S64 => i128::from(bits as i64),
        Type::U8 => i128::from(bits as u8),
        Type::U16 => i128::from(bits as u16),
        Type::U32 => i128::from(bits as u32),
        _ => i128::from(bits),
    }
}

fn range(ty: Type) -> (i128, i128) {
    let bits = 8 * ty.bytes() as u32;
    if ty.kind() == Kind::Signed {
        (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
    } else {
        (0, (1i128 << bits) - 1)
    }
}

/// One conversion: the destination's bits, sign-extended to 64 where it is signed.
fn convert_value(c: &Convert, bits: u64) -> u64 {
    let from_float = c.from.kind() == Kind::Float;
    if c.to.kind() != Kind::Float {
        let (low, high) = range(c.to);
        if !from_float {
            let value = int_value(bits, c.from);
            let value = if c.sat { value.clamp(low, high) } else { value };
            return int_value(value as u64, c.to) as u64;
        }
        let value = float_value(bits, c.from, c.ftz);
        if value.is_nan() {
            // 0 for results of up to 32 bits, the pattern 2^63 for 64.
            return if c.to.bytes() == 8 { 1 << 63 } else { 0 };
        }
        // A float becomes an integer with clamping, whether or not .sat is written.
        let value = integral(value, c.round);
        let clamped = if value >= high as f64 {
            high
        } else if value <= low as f64 {
            low
        } else {
            value as i128
        };
        return clamped as u64;
    }
    let exact = if from_float { float_value(bits, c.from, c.ftz) } else { int_odd(int_value(bits, c.from)) };
    let exact = if c.integral { integral(exact, c.round) } else { exact };
    if c.to == Type::F64 {
        // Widening is exact; an integer rounded to odd is rounded again, in the asked direction.
        let value = if from_float { exact } else { int_to_f64(int_value(bits, c.from), c.round) };
        let value = if c.sat { if value > 0.0 { value.min(1.0) } else { 0.0 } } else { value };
        return if value.is_nan() { super::super::numeric::NAN64 } else { value.to_bits() };
    }
    let round = if c.integral { Round::Near } else { c.round };
    let out = narrow(exact, format(c.to), round);
    let mut out = out;
    if c.to == Type::F32 {
        if c.ftz {
            out = flush(f32::from_bits(out)).to_bits();
        }
        if c.sat {
            out = saturate(f32::from_bits(out)).to_bits();
        }
    } else {
        let one = if c.to == Type::F16 { 0x3c00 } else { 0x3f80 };
        if c.sat {
            out = if exact > 0.0 { out.min(one) } else { 0 };
        }
        if c.relu && !exact.is_nan() && out & 0x8000 != 0 {
            out = 0;
        }
    }
    u64::from(out)
}

fn int_to_f64(value: i128, round: Round) -> f64 {
    let near = value as f64;
    let error = value - near as i128;
    let step = |up: bool| {
        let bits = near.to_bits();
        f64::from_bits(if (near > 0.0) == up { bits + 1 } else { bits - 1 })
    };
    match round {
        Round::Near => near,
        _ if error == 0 => near,
        Round::Up => {
            if error > 0 {
                step(true)
            } else {
                near
            }
        }
        Round::Down => {
            if error < 0 {
                step(false)
            } else {
                near
            }
        }
        Round::Zero => {
            if (error < 0) == (value > 0) {
                step(value < 0)
            } else {
                near
            }
        }
    }
}

/// `cvt d, a`. Bit 0 of `x`: the destination is a double; bit 1: the source is.
#[inline(always)]
pub fn convert(r: &mut Registers, i: &Inst, m: u32, c: &Convert) {
    let plain = c.round == Round::Near && !c.ftz && !c.sat && !c.relu && !c.integral && i.x == 0;
    match (c.to, c.from) {
        (Type::F16, Type::F32) if plain => return r.w1(i, m, f32_to_f16),
        (Type::Bf16, Type::F32) if plain => return r.w1(i, m, f32_to_bf16),
        (Type::F32, Type::F16) if plain => return r.w1(i, m, f16_to_f32),
        (Type::F32, Type::Bf16) if plain => return r.w1(i, m, |a| a << 16),
        (Type::F32, Type::U32) if plain => return r.w1(i, m, |a| (a as f32).to_bits()),
        (Type::F32, Type::S32) if plain => return r.w1(i, m, |a| (a as i32 as f32).to_bits()),
        (Type::U32 | Type::S32, Type::U16) if plain => return r.w1(i, m, |a| a & 0xffff),
        (Type::U32 | Type::S32, Type::U8) if plain => return r.w1(i, m, |a| a & 0xff),
        (Type::U16 | Type::S16, Type::U32 | Type::S32) if plain => return r.w1(i, m, |a| a & 0xffff),
        (Type::U64 | Type::S64, Type::U32) if !c.sat && i.x == 1 => {
            return r.dw1(i, m, u64::from);
        }
        (Type::S64 | Type::U64, Type::S32) if !c.sat && i.x == 1 => {
            return r.dw1(i, m, |a| a as i32 as i64 as u64);
        }
        (Type::U32 | Type::S32, Type::U64 | Type::S64) if !c.sat && i.x == 2 => {
            return r.wd1(i, m, |a| a as u32);
        }
        _ => {}
    }
    general(r, i, m, c);
}

#[inline(never)]
fn general(r: &mut Registers, i: &Inst, m: u32, c: &Convert) {
    let mut t = [0u64; LANES];
    for (l, t) in t.iter_mut().enumerate() {
        if m >> l & 1 != 0 {
            let bits = if i.x & 2 != 0 { r.d[i.a as usize][l] } else { u64::from(r.w[i.a as usize][l]) };
            *t = convert_value(c, bits);
        }
    }
    if i.x & 1 != 0 {
        r.put_d(i.d, &t, m);
    } else {
        // A 16-bit signed result in a 32-bit register keeps its sign; a 16-bit register reads the
        // low half only.
        r.put_w(i.d, &t.map(|t| t as u32), m);
    }
}

/// `cvt.rn.f16x2.f32 d, a, b`: a becomes the high half.
#[inline(always)]
pub fn convert_pair(r: &mut Registers, i: &Inst, m: u32, f: HalfFormat, round: Round, relu: bool) {
    if round == Round::Near && !relu {
        return match f {
            HalfFormat::F16 => r.w2(i, m, |a, b| f32_to_f16(a) << 16 | f32_to_f16(b)),
            HalfFormat::Bf16 => r.w2(i, m, |a, b| f32_to_bf16(a) << 16 | f32_to_bf16(b)),
        };
    }
    let one = |bits: u32| {
        let x = f64::from(f32::from_bits(bits));
        let out = narrow(x, Format::half(f), round);
        if relu && !x.is_nan() && out & 0x8000 != 0 { 0 } else { out }
    };
    r.w2(i, m, |a, b| one(a) << 16 | one(b));
}

#[inline(always)]
fn compare_floats<T: PartialOrd>(a: T, b: T, compare: Compare) -> bool {
    let ordered = a.partial_cmp(&b).is_some();
    match compare {
        Compare::Eq => a == b,
        Compare::Ne => ordered && a != b,
        Compare::Lt => a < b,
        Compare::Le => a <= b,
        Compare::Gt => a > b,
        Compare::Ge => a >= b,
        Compare::Equ => !ordered || a == b,
        Compare::Neu => a != b,
        Compare::Ltu => !ordered || a < b,
        Compare::Leu => !ordered || a <= b,
        Compare::Gtu => !ordered || a > b,
        Compare::Geu => !ordered || a >= b,
        Compare::Num => ordered,
        Compare::Nan => !ordered,
    }
}

/// The lanes where the comparison holds, one loop for each of the six orders of integers.
macro_rules! ordered {
    ($r:expr, $i:expr, $test:ident, $compare:expr, $map:expr) => {
        match $compare {
            Compare::Eq => $r.$test($i, |a, b| $map(a) == $map(b)),
            Compare::Ne => $r.$test($i, |a, b| $map(a) != $map(b)),
            Compare::Lt => $r.$test($i, |a, b| $map(a) < $map(b)),
            Compare::Le => $r.$test($i, |a, b| $map(a) <= $map(b)),
            Compare::Gt => $r.$test($i, |a, b| $map(a) > $map(b)),
            _ => $r.$test($i, |a, b| $map(a) >= $map(b)),
        }
    };
}

#[inline(always)]
fn test(r: &Registers, i: &Inst, ty: Type, compare: Compare, ftz: bool) -> u32 {
    match ty {
        Type::F32 if ftz => {
            r.test_w(i, |a, b| compare_floats(flush(f32::from_bits(a)), flush(f32::from_bits(b)), compare))
        }
        Type::F32 => r.test_w(i, |a, b| compare_floats(f32::from_bits(a), f32::from_bits(b), compare)),
        Type::F64 => r.test_d(i, |a, b| compare_floats(f64::from_bits(a), f64::from_bits(b), compare)),
        Type::F16 => r.test_w(i, |a, b| {
            compare_floats(widen(a & 0xffff, HalfFormat::F16), widen(b & 0xffff, HalfFormat::F16), compare)
        }),
        Type::Bf16 => r.test_w(i, |a, b| {
            compare_floats(widen(a & 0xffff, HalfFormat::Bf16), widen(b & 0xffff, HalfFormat::Bf16), compare)
        }),
        Type::S16 => ordered!(r, i, test_w, compare, |x| x as u16 as i16),
        Type::U16 | Type::B16 => ordered!(r, i, test_w, compare, |x| x & 0xffff),
        Type::S32 => ordered!(r, i, test_w, compare, |x| x as i32),
        Type::S64 => ordered!(r, i, test_d, compare, |x| x as i64),
        Type::U64 | Type::B64 => ordered!(r, i, test_d, compare, |x| x),
        _ => ordered!(r, i, test_w, compare, |x| x),
    }
}

/// `setp`: `x` holds the second destination and the joined predicate, `c` its negation.
#[inline(always)]
pub fn setp(r: &mut Registers, i: &Inst, m: u32, ty: Type, compare: Compare, join: Join, ftz: bool) {
    let holds = test(r, i, ty, compare, ftz);
    let second = i.x as u16;
    let (p, q) = if join == Join::None {
        (holds, !holds)
    } else {
        let c = r.p[(i.x >> 16) as usize] ^ u32::from(i.c).wrapping_neg();
        match join {
            Join::And => (holds & c, !holds & c),
            Join::Or => (holds | c, !holds | c),
            _ => (holds ^ c, !holds ^ c),
        }
    };
    r.put_p(i.d, p, m);
    r.put_p(second, q, m);
}

/// `set`: 1.0 or all ones where the comparison holds.
#[inline(always)]
pub fn set(r: &mut Registers, i: &Inst, m: u32, to: Type, from: Type, compare: Compare, ftz: bool) {
    let holds = test(r, i, from, compare, ftz);
    let truth = if to == Type::F32 { 1f32.to_bits() } else { u32::MAX };
    let mut t = [0; LANES];
    for (l, t) in t.iter_mut().enumerate() {
        *t = truth & (holds >> l & 1).wrapping_neg();
    }
    r.put_w(i.d, &t, m);
}

/// `testp`.
#[inline(always)]
pub fn testp(r: &mut Registers, i: &Inst, m: u32, ty: Type, class: Testp) {
    let mut bits = 0u32;
    for l in 0..LANES {
        // Class by exponent and fraction, which are the same questions in both widths.
        let (exponent, top, fraction) = if ty == Type::F64 {
            let x = r.d[i.a as usize][l];
            (x >> 52 & 0x7ff, 0x7ff, x & ((1 << 52) - 1))
        } else {
            let x = r.w[i.a as usize][l];
            (u64::from(x >> 23 & 0xff), 0xff, u64::from(x & 0x7f_ffff))
        };
        let yes = match class {
            Testp::Finite => exponent != top,
            Testp::Infinite => exponent == top && fraction == 0,
            Testp::Number => exponent != top || fraction == 0,
            Testp::NotANumber => exponent == top && fraction != 0,
            Testp::Normal => exponent != top && exponent != 0,
            Testp::Subnormal => exponent == 0 && fraction != 0,
        };
        bits |= u32::from(yes) << l;
    }
    r.put_p(i.d, bits, m);
}
