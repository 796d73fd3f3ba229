//! Binary32, binary64 and 16-bit arithmetic.
//!
//! `.rn` results are the IEEE ones; NaN results are the hardware's canonical NaN. Directed rounding
//! goes through exact sums and products in f64. The approximate functions (`rcp`, `rsqrt`, `ex2`,
//! `lg2`, `sin`, `cos`, `tanh`, `div.approx`) return the exact value rounded once from f64, which
//! lies within the error that PTX documents for each; hardware may return another value within it.

use super::super::numeric::{
    self, BF16, F16, F32, Format, add_odd, canonical, flush, fma_odd, narrow, saturate, widen,
};
use super::super::registers::{LANES, Registers};
use crate::ptx::code::{FloatMode, FloatOp, HalfFormat, Inst, Round};

#[inline(always)]
fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

/// min or max as PTX has it: the other operand where one is NaN, and -0 below +0.
#[inline(always)]
fn extreme32(a: f32, b: f32, largest: bool, nan: bool) -> u32 {
    // Ordered by sign and magnitude, so that the zeros are told apart.
    let key = |x: f32| {
        let bits = x.to_bits() as i32;
        bits ^ (bits >> 31 & 0x7fff_ffff)
    };
    let pick_a = if largest { key(a) >= key(b) } else { key(a) <= key(b) };
    let ordered = if pick_a { a } else { b };
    let out = if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        ordered
    };
    if nan && (a.is_nan() || b.is_nan()) { numeric::NAN32 } else { canonical(out) }
}

fn extreme64(a: f64, b: f64, largest: bool, nan: bool) -> f64 {
    let key = |x: f64| {
        let bits = x.to_bits() as i64;
        bits ^ (bits >> 63 & i64::MAX)
    };
    if a.is_nan() || b.is_nan() {
        return if nan || (a.is_nan() && b.is_nan()) {
            f64::from_bits(numeric::NAN64)
        } else if a.is_nan() {
            b
        } else {
            a
        };
    }
    if (key(a) >= key(b)) == largest { a } else { b }
}

/// Quotient rounded to odd in f64: exact enough for one rounding to f32 in any direction.
fn div_odd(a: f64, b: f64) -> f64 {
    let q = a / b;
    if !q.is_finite() || q == 0.0 {
        return q;
    }
    // The remainder a - q b is exact; its sign tells on which side of q the quotient lies.
    let remainder = q.mul_add(-b, a);
    step_odd(q, remainder * b.signum())
}

fn sqrt_odd(a: f64) -> f64 {
    let q = a.sqrt();
    if !q.is_finite() || q == 0.0 {
        return q;
    }
    step_odd(q, q.mul_add(-q, a))
}

fn step_odd(value: f64, error: f64) -> f64 {
    if error == 0.0 || value.to_bits() & 1 == 1 {
        return value;
    }
    let bits = value.to_bits();
    f64::from_bits(if (error > 0.0) == (value > 0.0) { bits + 1 } else { bits - 1 })
}

/// An exact sum of zero takes the sign that the rounding gives it.
fn zero_sign(sum: f64, a: f64, b: f64, round: Round) -> f64 {
    if sum == 0.0
        && round == Round::Down
        && !(a == 0.0 && b == 0.0 && !a.is_sign_negative() && !b.is_sign_negative())
    {
        return -0.0;
    }
    sum
}

/// Directed rounding, the slow way.
fn directed32(op: FloatOp, a: f32, b: f32, c: f32, round: Round) -> f32 {
    let (a, b, c) = (f64::from(a), f64::from(b), f64::from(c));
    let exact = match op {
        FloatOp::Add => zero_sign(add_odd(a, b), a, b, round),
        FloatOp::Sub => zero_sign(add_odd(a, -b), a, -b, round),
        FloatOp::Mul => a * b,
        FloatOp::Fma => zero_sign(fma_odd(a, b, c), a * b, c, round),
        FloatOp::Div => div_odd(a, b),
        FloatOp::Rcp => div_odd(1.0, a),
        _ => sqrt_odd(a),
    };
    f32::from_bits(narrow(exact, F32, round))
}

/// 2^x, log2 and the trigonometric functions from f64.
fn transcendental(op: FloatOp, x: f32) -> f32 {
    let x = f64::from(x);
    (match op {
        FloatOp::Sin => x.sin(),
        FloatOp::Cos => x.cos(),
        FloatOp::Lg2 => x.log2(),
        FloatOp::Ex2 => x.exp2(),
        _ => x.tanh(),
    }) as f32
}

#[inline(always)]
fn finish(x: f32, ftz: bool, sat: bool) -> u32 {
    let bits = canonical(x);
    let bits = if ftz { flush(f32::from_bits(bits)).to_bits() } else { bits };
    if sat { saturate(f32::from_bits(bits)).to_bits() } else { bits }
}

/// Binary32.
#[inline(always)]
pub fn f32_op(r: &mut Registers, i: &Inst, m: u32, op: FloatOp, mode: FloatMode) {
    let near = mode.round == Round::Near;
    if near && !mode.ftz && !mode.sat {
        // The common case, without the flags inside the loops.
        match op {
            FloatOp::Add => return r.w2(i, m, |a, b| canonical(f(a) + f(b))),
            FloatOp::Sub => return r.w2(i, m, |a, b| canonical(f(a) - f(b))),
            FloatOp::Mul => return r.w2(i, m, |a, b| canonical(f(a) * f(b))),
            FloatOp::Fma => return r.w3(i, m, |a, b, c| canonical(f(a).mul_add(f(b), f(c)))),
            FloatOp::Div => return r.w2(i, m, |a, b| canonical(f(a) / f(b))),
            FloatOp::Sqrt => return r.w1(i, m, |a| canonical(f(a).sqrt())),
            FloatOp::Rcp => return r.w1(i, m, |a| canonical(1.0 / f(a))),
            _ => {}
        }
    }
    let (ftz, sat) = (mode.ftz, mode.sat);
    let input = move |x: u32| if ftz { flush(f(x)) } else { f(x) };
    let round = mode.round;
    match op {
        FloatOp::Add | FloatOp::Sub | FloatOp::Mul | FloatOp::Div if !near => {
            r.w2(i, m, |a, b| finish(directed32(op, input(a), input(b), 0.0, round), ftz, sat));
        }
        FloatOp::Fma if !near => {
            r.w3(i, m, |a, b, c| finish(directed32(op, input(a), input(b), input(c), round), ftz, sat));
        }
        FloatOp::Rcp | FloatOp::Sqrt if !near => {
            r.w1(i, m, |a| finish(directed32(op, input(a), 0.0, 0.0, round), ftz, sat));
        }
        FloatOp::Add => r.w2(i, m, |a, b| finish(input(a) + input(b), ftz, sat)),
        FloatOp::Sub => r.w2(i, m, |a, b| finish(input(a) - input(b), ftz, sat)),
        FloatOp::Mul => r.w2(i, m, |a, b| finish(input(a) * input(b), ftz, sat)),
        FloatOp::Div => r.w2(i, m, |a, b| finish(input(a) / input(b), ftz, sat)),
        FloatOp::Fma => r.w3(i, m, |a, b, c| finish(input(a).mul_add(input(b), input(c)), ftz, sat)),
        FloatOp::Rcp => r.w1(i, m, |a| finish(1.0 / input(a), ftz, sat)),
        FloatOp::Sqrt => r.w1(i, m, |a| finish(input(a).sqrt(), ftz, sat)),
        FloatOp::Rsqrt => r.w1(i, m, |a| finish((1.0 / f64::from(input(a)).sqrt()) as f32, ftz, sat)),
        FloatOp::Sin | FloatOp::Cos | FloatOp::Lg2 | FloatOp::Ex2 | FloatOp::Tanh => {
            r.w1(i, m, |a| finish(transcendental(op, input(a)), ftz, sat));
        }
        FloatOp::Neg => r.w1(i, m, |a| if ftz { flush(f(a)).to_bits() ^ 1 << 31 } else { a ^ 1 << 31 }),
        FloatOp::Abs => r.w1(i, m, |a| if ftz { flush(f(a)).to_bits() & !(1 << 31) } else { a & !(1 << 31) }),
        FloatOp::Min => r.w2(i, m, |a, b| extreme32(input(a), input(b), false, false)),
        FloatOp::Max => r.w2(i, m, |a, b| extreme32(input(a), input(b), true, false)),
        FloatOp::MinNan => r.w2(i, m, |a, b| extreme32(input(a), input(b), false, true)),
        FloatOp::MaxNan => r.w2(i, m, |a, b| extreme32(input(a), input(b), true, true)),
        FloatOp::Copysign => r.w2(i, m, |a, b| (a & 1 << 31) | (b & !(1 << 31))),
    }
}

/// Binary64, to nearest only: the decoder's caller refuses the rest.
#[inline(always)]
pub fn f64_op(r: &mut Registers, i: &Inst, m: u32, op: FloatOp) {
    let f = f64::from_bits;
    let out = numeric::canonical64;
    match op {
        FloatOp::Add => r.d2(i, m, |a, b| out(f(a) + f(b))),
        FloatOp::Sub => r.d2(i, m, |a, b| out(f(a) - f(b))),
        FloatOp::Mul => r.d2(i, m, |a, b| out(f(a) * f(b))),
        FloatOp::Fma => r.d3(i, m, |a, b, c| out(f(a).mul_add(f(b), f(c)))),
        FloatOp::Div => r.d2(i, m, |a, b| out(f(a) / f(b))),
        FloatOp::Rcp => r.d1(i, m, |a| out(1.0 / f(a))),
        FloatOp::Sqrt => r.d1(i, m, |a| out(f(a).sqrt())),
        FloatOp::Neg => r.d1(i, m, |a| a ^ 1 << 63),
        FloatOp::Abs => r.d1(i, m, |a| a & !(1 << 63)),
        FloatOp::Min => r.d2(i, m, |a, b| extreme64(f(a), f(b), false, false).to_bits()),
        FloatOp::Max => r.d2(i, m, |a, b| extreme64(f(a), f(b), true, false).to_bits()),
        FloatOp::MinNan => r.d2(i, m, |a, b| extreme64(f(a), f(b), false, true).to_bits()),
        FloatOp::MaxNan => r.d2(i, m, |a, b| extreme64(f(a), f(b), true, true).to_bits()),
        FloatOp::Copysign => r.d2(i, m, |a, b| (a & 1 << 63) | (b & !(1 << 63))),
        FloatOp::Rsqrt | FloatOp::Sin | FloatOp::Cos | FloatOp::Lg2 | FloatOp::Ex2 | FloatOp::Tanh => {
            unreachable!("no binary64 form")
        }
    }
}

/// One 16-bit operation on bits.
fn half_value(op: FloatOp, format: HalfFormat, mode: FloatMode, relu: bool, a: u32, b: u32, c: u32) -> u32 {
    let f: Format = if format == HalfFormat::F16 { F16 } else { BF16 };
    let sign = 0x8000;
    let (a, b, c) = (a & 0xffff, b & 0xffff, c & 0xffff);
    let input = |bits: u32| if mode.ftz && bits & 0x7c00 == 0 { bits & sign } else { bits };
    match op {
        FloatOp::Neg => return input(a) ^ sign,
        FloatOp::Abs => return input(a) & !sign,
        _ => {}
    }
    let wide = |bits| widen(input(bits), format);
    let (x, y, z) = (wide(a), wide(b), wide(c));
    let exact = match op {
        FloatOp::Add => add_odd(x, y),
        FloatOp::Sub => add_odd(x, -y),
        FloatOp::Mul => x * y,
        FloatOp::Fma => fma_odd(x, y, z),
        FloatOp::Ex2 => x.exp2(),
        FloatOp::Tanh => x.tanh(),
        FloatOp::Min => extreme64(x, y, false, false),
        FloatOp::Max => extreme64(x, y, true, false),
        FloatOp::MinNan => extreme64(x, y, false, true),
        FloatOp::MaxNan => extreme64(x, y, true, true),
        _ => unreachable!("no 16-bit form"),
    };
    let bits = narrow(exact, f, Round::Near);
    let bits = if mode.ftz && bits & 0x7c00 == 0 { bits & sign } else { bits };
    if relu {
        // max(x, 0), NaN stays.
        return if bits & sign != 0 && !exact.is_nan() { 0 } else { bits };
    }
    if mode.sat {
        let value = widen(bits, format);
        let one = if format == HalfFormat::F16 { 0x3c00 } else { 0x3f80 };
        // False for NaN, which becomes +0 as for binary32.
        return if value > 0.0 { bits.min(one) } else { 0 };
    }
    bits
}

/// f16 or bf16, one a lane.
#[inline(always)]
pub fn half_op(
    r: &mut Registers,
    i: &Inst,
    m: u32,
    op: FloatOp,
    format: HalfFormat,
    mode: FloatMode,
    relu: bool,
) {
    lanes3(r, i, m, op, |a, b, c| half_value(op, format, mode, relu, a, b, c));
}

/// f16x2 or bf16x2, two a lane.
#[inline(always)]
pub fn half2_op(
    r: &mut Registers,
    i: &Inst,
    m: u32,
    op: FloatOp,
    format: HalfFormat,
    mode: FloatMode,
    relu: bool,
) {
    lanes3(r, i, m, op, |a, b, c| {
        half_value(op, format, mode, relu, a, b, c)
            | half_value(op, format, mode, relu, a >> 16, b >> 16, c >> 16) << 16
    });
}

/// Reads only the operands that the operation has; slots of absent ones mean nothing.
#[inline(always)]
fn lanes3(r: &mut Registers, i: &Inst, m: u32, op: FloatOp, f: impl Fn(u32, u32, u32) -> u32) {
    let operands = match op {
        FloatOp::Fma => 3,
        FloatOp::Neg | FloatOp::Abs | FloatOp::Ex2 | FloatOp::Tanh => 1,
        _ => 2,
    };
    let mut t = [0; LANES];
    for (l, t) in t.iter_mut().enumerate() {
        if m >> l & 1 != 0 {
            let a = r.w[i.a as usize][l];
            let b = if operands > 1 { r.w[i.b as usize][l] } else { 0 };
            let c = if operands > 2 { r.w[i.c as usize][l] } else { 0 };
            *t = f(a, b, c);
        }
    }
    r.put_w(i.d, &t, m);
}
