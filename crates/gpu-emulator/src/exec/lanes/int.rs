//! Integer arithmetic, logic, shifts and bit fields, for 16, 32 and 64 bits.
//!
//! Words of 16 bits are read from the low half of a lane, whatever the high half holds, and written
//! zero-extended.

use super::super::registers::{LANES, Registers};
use crate::ptx::code::{Inst, IntOp};

#[inline(always)]
fn s(x: u32) -> i32 {
    x as i32
}

#[inline(always)]
fn h(x: u32) -> i16 {
    x as u16 as i16
}

/// Division by zero gives all ones: what the hardware's routine returns; PTX leaves it open.
#[inline(always)]
fn div_u(a: u64, b: u64) -> u64 {
    if b == 0 { u64::MAX } else { a / b }
}

#[inline(always)]
fn rem_u(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { a % b }
}

#[inline(always)]
fn div_s(a: i64, b: i64) -> i64 {
    if b == 0 { -1 } else { a.wrapping_div(b) }
}

#[inline(always)]
fn rem_s(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { a.wrapping_rem(b) }
}

/// Bytes of `a` and `b` picked by the nibbles of `selector`; bit 3 of a nibble spreads the sign.
#[inline(always)]
fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    let pool = u64::from(a) | u64::from(b) << 32;
    let mut out = 0;
    for byte in 0..4 {
        let nibble = (selector >> (4 * byte)) & 0xf;
        let value = (pool >> (8 * (nibble & 7))) as u32 & 0xff;
        let sign = ((value >> 7) & 1) * 0xff;
        out |= (if nibble & 8 != 0 { sign } else { value }) << (8 * byte);
    }
    out
}

#[inline(always)]
fn lop3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    let mut out = 0;
    for entry in 0..8 {
        if table >> entry & 1 != 0 {
            out |= (if entry & 4 != 0 { a } else { !a })
                & (if entry & 2 != 0 { b } else { !b })
                & (if entry & 1 != 0 { c } else { !c });
        }
    }
    out
}

/// `bfe`: `length` bits from `position`, sign-extended where `signed`; the sign beyond the top.
#[inline(always)]
fn bfe(value: u64, position: u32, length: u32, width: u32, signed: bool) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let top = width - 1;
    let sign_at = (position + length).saturating_sub(1).min(top);
    let sign = if signed && length > 0 { value >> sign_at & 1 } else { 0 };
    let fill = sign.wrapping_neg();
    let field = if position > top { fill } else { value >> position };
    // Bits past the value's own top are the sign.
    let available = width.saturating_sub(position);
    let kept = length.min(available);
    let mask = if kept >= 64 { u64::MAX } else { (1u64 << kept) - 1 };
    let out = (field & mask) | (fill & !mask);
    if width == 64 { out } else { out & 0xffff_ffff }
}

#[inline(always)]
fn bfi(insert: u64, base: u64, position: u32, length: u32, width: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if position >= width || length == 0 {
        return base;
    }
    let field = if length >= 64 { u64::MAX } else { (1u64 << length) - 1 };
    let mask = field << position;
    (base & !mask) | (insert << position & mask)
}

#[inline(always)]
fn dp4a(a: u32, b: u32, c: u32, signed_a: bool, signed_b: bool) -> u32 {
    let mut sum = c as i32;
    for byte in 0..4 {
        let (x, y) = ((a >> (8 * byte)) as u8, (b >> (8 * byte)) as u8);
        let x = if signed_a { i32::from(x as i8) } else { i32::from(x) };
        let y = if signed_b { i32::from(y as i8) } else { i32::from(y) };
        sum = sum.wrapping_add(x.wrapping_mul(y));
    }
    sum as u32
}

#[inline(always)]
fn select_w(r: &mut Registers, i: &Inst, m: u32) {
    let p = r.p[i.c as usize] ^ i.x.wrapping_neg();
    let (a, b) = (&r.w[i.a as usize], &r.w[i.b as usize]);
    let mut t = [0; LANES];
    for l in 0..LANES {
        let keep = ((p >> l) & 1).wrapping_neg();
        t[l] = (a[l] & keep) | (b[l] & !keep);
    }
    r.put_w(i.d, &t, m);
}

/// Add or subtract with the carry flag. `carry_in`: uses it; `carry_out`: sets it.
#[inline(always)]
fn carry_w(r: &mut Registers, i: &Inst, m: u32, subtract: bool, carry_in: bool, carry_out: bool) {
    let (a, b) = (&r.w[i.a as usize], &r.w[i.b as usize]);
    let mut t = [0; LANES];
    let mut out = 0u32;
    for l in 0..LANES {
        let c = if carry_in { u64::from(r.carry >> l & 1) } else { 0 };
        let wide = if subtract {
            u64::from(a[l]).wrapping_sub(u64::from(b[l])).wrapping_sub(c)
        } else {
            u64::from(a[l]) + u64::from(b[l]) + c
        };
        t[l] = wide as u32;
        out |= ((wide >> 32) as u32 & 1) << l;
    }
    if carry_out {
        r.carry = (r.carry & !m) | (out & m);
    }
    r.put_w(i.d, &t, m);
}

#[inline(always)]
fn carry_d(r: &mut Registers, i: &Inst, m: u32, subtract: bool, carry_in: bool, carry_out: bool) {
    let (a, b) = (&r.d[i.a as usize], &r.d[i.b as usize]);
    let mut t = [0; LANES];
    let mut out = 0u32;
    for l in 0..LANES {
        let c = if carry_in { u128::from(r.carry >> l & 1) } else { 0 };
        let wide = if subtract {
            u128::from(a[l]).wrapping_sub(u128::from(b[l])).wrapping_sub(c)
        } else {
            u128::from(a[l]) + u128::from(b[l]) + c
        };
        t[l] = wide as u64;
        out |= ((wide >> 64) as u32 & 1) << l;
    }
    if carry_out {
        r.carry = (r.carry & !m) | (out & m);
    }
    r.put_d(i.d, &t, m);
}

/// 32-bit operations.
#[inline(always)]
pub fn int32(r: &mut Registers, i: &Inst, m: u32, op: IntOp) {
    match op {
        IntOp::Mov => r.w1(i, m, |a| a),
        IntOp::Add => r.w2(i, m, u32::wrapping_add),
        IntOp::AddSat => r.w2(i, m, |a, b| s(a).saturating_add(s(b)) as u32),
        IntOp::Sub => r.w2(i, m, u32::wrapping_sub),
        IntOp::SubSat => r.w2(i, m, |a, b| s(a).saturating_sub(s(b)) as u32),
        IntOp::MulLo => r.w2(i, m, u32::wrapping_mul),
        IntOp::MulHiU => r.w2(i, m, |a, b| (u64::from(a) * u64::from(b) >> 32) as u32),
        IntOp::MulHiS => r.w2(i, m, |a, b| (i64::from(s(a)) * i64::from(s(b)) >> 32) as u32),
        IntOp::MadLo => r.w3(i, m, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        IntOp::MadHiU => r.w3(i, m, |a, b, c| ((u64::from(a) * u64::from(b) >> 32) as u32).wrapping_add(c)),
        IntOp::MadHiS => {
            r.w3(i, m, |a, b, c| ((i64::from(s(a)) * i64::from(s(b)) >> 32) as u32).wrapping_add(c))
        }
        IntOp::Mul24LoU => r.w2(i, m, |a, b| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff)),
        IntOp::Mul24LoS => r.w2(i, m, |a, b| (s(a << 8) >> 8).wrapping_mul(s(b << 8) >> 8) as u32),
        IntOp::SadU => r.w3(i, m, |a, b, c| c.wrapping_add(a.abs_diff(b))),
        IntOp::SadS => r.w3(i, m, |a, b, c| c.wrapping_add(s(a).abs_diff(s(b)))),
        IntOp::DivU => r.w2(i, m, |a, b| div_u(a.into(), b.into()) as u32),
        IntOp::DivS => r.w2(i, m, |a, b| div_s(s(a).into(), s(b).into()) as u32),
        IntOp::RemU => r.w2(i, m, |a, b| rem_u(a.into(), b.into()) as u32),
        IntOp::RemS => r.w2(i, m, |a, b| rem_s(s(a).into(), s(b).into()) as u32),
        IntOp::Abs => r.w1(i, m, |a| s(a).wrapping_abs() as u32),
        IntOp::Neg => r.w1(i, m, u32::wrapping_neg),
        IntOp::MinU => r.w2(i, m, u32::min),
        IntOp::MinS => r.w2(i, m, |a, b| s(a).min(s(b)) as u32),
        IntOp::MaxU => r.w2(i, m, u32::max),
        IntOp::MaxS => r.w2(i, m, |a, b| s(a).max(s(b)) as u32),
        IntOp::And => r.w2(i, m, |a, b| a & b),
        IntOp::Or => r.w2(i, m, |a, b| a | b),
        IntOp::Xor => r.w2(i, m, |a, b| a ^ b),
        IntOp::Not => r.w1(i, m, |a| !a),
        IntOp::Cnot => r.w1(i, m, |a| u32::from(a == 0)),
        IntOp::Shl => r.w2(i, m, |a, b| if b > 31 { 0 } else { a << (b & 31) }),
        IntOp::ShrU => r.w2(i, m, |a, b| if b > 31 { 0 } else { a >> (b & 31) }),
        IntOp::ShrS => r.w2(i, m, |a, b| (s(a) >> b.min(31)) as u32),
        IntOp::Brev => r.w1(i, m, u32::reverse_bits),
        IntOp::Selp => select_w(r, i, m),
        IntOp::BfeU => r.w3(i, m, |a, b, c| bfe(a.into(), b, c, 32, false) as u32),
        IntOp::BfeS => r.w3(i, m, |a, b, c| bfe(a.into(), b, c, 32, true) as u32),
        IntOp::Bfi => {
            let length = r.w[i.x as usize];
            let (a, b, c) = (&r.w[i.a as usize], &r.w[i.b as usize], &r.w[i.c as usize]);
            let mut t = [0; LANES];
            for l in 0..LANES {
                t[l] = bfi(a[l].into(), b[l].into(), c[l], length[l], 32) as u32;
            }
            r.put_w(i.d, &t, m);
        }
        IntOp::Lop3 => r.w3(i, m, |a, b, c| lop3(a, b, c, i.x)),
        IntOp::ShfLeftClamp => {
            r.w3(i, m, |a, b, c| ((u64::from(b) << 32 | u64::from(a)) << c.min(32) >> 32) as u32)
        }
        IntOp::ShfLeftWrap => {
            r.w3(i, m, |a, b, c| ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32)
        }
        IntOp::ShfRightClamp => {
            r.w3(i, m, |a, b, c| ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32)
        }
        IntOp::ShfRightWrap => r.w3(i, m, |a, b, c| ((u64::from(b) << 32 | u64::from(a)) >> (c & 31)) as u32),
        IntOp::Prmt => r.w3(i, m, prmt),
        IntOp::Dp4aUU => r.w3(i, m, |a, b, c| dp4a(a, b, c, false, false)),
        IntOp::Dp4aSS => r.w3(i, m, |a, b, c| dp4a(a, b, c, true, true)),
        IntOp::Dp4aUS => r.w3(i, m, |a, b, c| dp4a(a, b, c, false, true)),
        IntOp::Dp4aSU => r.w3(i, m, |a, b, c| dp4a(a, b, c, true, false)),
        IntOp::AddCarryOut => carry_w(r, i, m, false, false, true),
        IntOp::AddWithCarry => carry_w(r, i, m, false, true, i.x != 0),
        IntOp::SubBorrowOut => carry_w(r, i, m, true, false, true),
        IntOp::SubWithBorrow => carry_w(r, i, m, true, true, i.x != 0),
    }
}

/// 16-bit operations.
#[inline(always)]
pub fn int16(r: &mut Registers, i: &Inst, m: u32, op: IntOp) {
    let u = |x: u32| x & 0xffff;
    let z = |x: i16| u32::from(x as u16);
    match op {
        IntOp::Mov => r.w1(i, m, u),
        IntOp::Add => r.w2(i, m, |a, b| u(a.wrapping_add(b))),
        IntOp::Sub => r.w2(i, m, |a, b| u(a.wrapping_sub(b))),
        IntOp::MulLo => r.w2(i, m, |a, b| u(a.wrapping_mul(b))),
        IntOp::MulHiU => r.w2(i, m, |a, b| u(a) * u(b) >> 16),
        IntOp::MulHiS => r.w2(i, m, |a, b| u((i32::from(h(a)) * i32::from(h(b)) >> 16) as u32)),
        IntOp::MadLo => r.w3(i, m, |a, b, c| u(a.wrapping_mul(b).wrapping_add(c))),
        IntOp::MadHiU => r.w3(i, m, |a, b, c| u((u(a) * u(b) >> 16).wrapping_add(c))),
        IntOp::MadHiS => {
            r.w3(i, m, |a, b, c| u(((i32::from(h(a)) * i32::from(h(b)) >> 16) as u32).wrapping_add(c)))
        }
        IntOp::SadU => r.w3(i, m, |a, b, c| u(c.wrapping_add(u(a).abs_diff(u(b))))),
        IntOp::SadS => r.w3(i, m, |a, b, c| u(c.wrapping_add(u32::from(h(a).abs_diff(h(b)))))),
        IntOp::DivU => r.w2(i, m, |a, b| u(div_u(u(a).into(), u(b).into()) as u32)),
        IntOp::DivS => r.w2(i, m, |a, b| u(div_s(h(a).into(), h(b).into()) as u32)),
        IntOp::RemU => r.w2(i, m, |a, b| u(rem_u(u(a).into(), u(b).into()) as u32)),
        IntOp::RemS => r.w2(i, m, |a, b| u(rem_s(h(a).into(), h(b).into()) as u32)),
        IntOp::Abs => r.w1(i, m, |a| z(h(a).wrapping_abs())),
        IntOp::Neg => r.w1(i, m, |a| u(a.wrapping_neg())),
        IntOp::MinU => r.w2(i, m, |a, b| u(a).min(u(b))),
        IntOp::MinS => r.w2(i, m, |a, b| z(h(a).min(h(b)))),
        IntOp::MaxU => r.w2(i, m, |a, b| u(a).max(u(b))),
        IntOp::MaxS => r.w2(i, m, |a, b| z(h(a).max(h(b)))),
        IntOp::And => r.w2(i, m, |a, b| u(a & b)),
        IntOp::Or => r.w2(i, m, |a, b| u(a | b)),
        IntOp::Xor => r.w2(i, m, |a, b| u(a ^ b)),
        IntOp::Not => r.w1(i, m, |a| u(!a)),
        IntOp::Cnot => r.w1(i, m, |a| u32::from(u(a) == 0)),
        IntOp::Shl => r.w2(i, m, |a, b| if b > 15 { 0 } else { u(a << (b & 15)) }),
        IntOp::ShrU => r.w2(i, m, |a, b| if b > 15 { 0 } else { u(a) >> (b & 15) }),
        IntOp::ShrS => r.w2(i, m, |a, b| z(h(a) >> b.min(15))),
        IntOp::Selp => {
            select_w(r, i, m);
        }
        // The decoder gives these to wider types only.
        IntOp::AddSat
        | IntOp::SubSat
        | IntOp::Mul24LoU
        | IntOp::Mul24LoS
        | IntOp::Brev
        | IntOp::BfeU
        | IntOp::BfeS
        | IntOp::Bfi
        | IntOp::Lop3
        | IntOp::ShfLeftClamp
        | IntOp::ShfLeftWrap
        | IntOp::ShfRightClamp
        | IntOp::ShfRightWrap
        | IntOp::Prmt
        | IntOp::Dp4aUU
        | IntOp::Dp4aSS
        | IntOp::Dp4aUS
        | IntOp::Dp4aSU
        | IntOp::AddCarryOut
        | IntOp::AddWithCarry
        | IntOp::SubBorrowOut
        | IntOp::SubWithBorrow => unreachable!("no 16-bit form"),
    }
}

/// 64-bit operations.
#[inline(always)]
pub fn int64(r: &mut Registers, i: &Inst, m: u32, op: IntOp) {
    let s = |x: u64| x as i64;
    match op {
        IntOp::Mov => r.d1(i, m, |a| a),
        IntOp::Add => r.d2(i, m, u64::wrapping_add),
        IntOp::Sub => r.d2(i, m, u64::wrapping_sub),
        IntOp::MulLo => r.d2(i, m, u64::wrapping_mul),
        IntOp::MulHiU => r.d2(i, m, |a, b| (u128::from(a) * u128::from(b) >> 64) as u64),
        IntOp::MulHiS => r.d2(i, m, |a, b| (i128::from(s(a)) * i128::from(s(b)) >> 64) as u64),
        IntOp::MadLo => r.d3(i, m, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        IntOp::MadHiU => r.d3(i, m, |a, b, c| ((u128::from(a) * u128::from(b) >> 64) as u64).wrapping_add(c)),
        IntOp::MadHiS => {
            r.d3(i, m, |a, b, c| ((i128::from(s(a)) * i128::from(s(b)) >> 64) as u64).wrapping_add(c))
        }
        IntOp::SadU => r.d3(i, m, |a, b, c| c.wrapping_add(a.abs_diff(b))),
        IntOp::SadS => r.d3(i, m, |a, b, c| c.wrapping_add(s(a).abs_diff(s(b)))),
        IntOp::DivU => r.d2(i, m, div_u),
        IntOp::DivS => r.d2(i, m, |a, b| div_s(s(a), s(b)) as u64),
        IntOp::RemU => r.d2(i, m, rem_u),
        IntOp::RemS => r.d2(i, m, |a, b| rem_s(s(a), s(b)) as u64),
        IntOp::Abs => r.d1(i, m, |a| s(a).wrapping_abs() as u64),
        IntOp::Neg => r.d1(i, m, u64::wrapping_neg),
        IntOp::MinU => r.d2(i, m, u64::min),
        IntOp::MinS => r.d2(i, m, |a, b| s(a).min(s(b)) as u64),
        IntOp::MaxU => r.d2(i, m, u64::max),
        IntOp::MaxS => r.d2(i, m, |a, b| s(a).max(s(b)) as u64),
        IntOp::And => r.d2(i, m, |a, b| a & b),
        IntOp::Or => r.d2(i, m, |a, b| a | b),
        IntOp::Xor => r.d2(i, m, |a, b| a ^ b),
        IntOp::Not => r.d1(i, m, |a| !a),
        IntOp::Cnot => r.d1(i, m, |a| u64::from(a == 0)),
        IntOp::Shl => r.dw2(i, m, |a, b| if b > 63 { 0 } else { a << (b & 63) }),
        IntOp::ShrU => r.dw2(i, m, |a, b| if b > 63 { 0 } else { a >> (b & 63) }),
        IntOp::ShrS => r.dw2(i, m, |a, b| (s(a) >> b.min(63)) as u64),
        IntOp::Brev => r.d1(i, m, u64::reverse_bits),
        IntOp::Selp => {
            let p = r.p[i.c as usize] ^ i.x.wrapping_neg();
            let (a, b) = (&r.d[i.a as usize], &r.d[i.b as usize]);
            let mut t = [0; LANES];
            for l in 0..LANES {
                let keep = u64::from((p >> l) & 1).wrapping_neg();
                t[l] = (a[l] & keep) | (b[l] & !keep);
            }
            r.put_d(i.d, &t, m);
        }
        IntOp::BfeU | IntOp::BfeS => {
            let (a, b, c) = (&r.d[i.a as usize], &r.w[i.b as usize], &r.w[i.c as usize]);
            let mut t = [0; LANES];
            for l in 0..LANES {
                t[l] = bfe(a[l], b[l], c[l], 64, op == IntOp::BfeS);
            }
            r.put_d(i.d, &t, m);
        }
        IntOp::Bfi => {
            let (a, b) = (&r.d[i.a as usize], &r.d[i.b as usize]);
            let (c, n) = (&r.w[i.c as usize], &r.w[i.x as usize]);
            let mut t = [0; LANES];
            for l in 0..LANES {
                t[l] = bfi(a[l], b[l], c[l], n[l], 64);
            }
            r.put_d(i.d, &t, m);
        }
        IntOp::AddCarryOut => carry_d(r, i, m, false, false, true),
        IntOp::AddWithCarry => carry_d(r, i, m, false, true, i.x != 0),
        IntOp::SubBorrowOut => carry_d(r, i, m, true, false, true),
        IntOp::SubWithBorrow => carry_d(r, i, m, true, true, i.x != 0),
        IntOp::AddSat
        | IntOp::SubSat
        | IntOp::Mul24LoU
        | IntOp::Mul24LoS
        | IntOp::Lop3
        | IntOp::ShfLeftClamp
        | IntOp::ShfLeftWrap
        | IntOp::ShfRightClamp
        | IntOp::ShfRightWrap
        | IntOp::Prmt
        | IntOp::Dp4aUU
        | IntOp::Dp4aSS
        | IntOp::Dp4aUS
        | IntOp::Dp4aSU => unreachable!("no 64-bit form"),
    }
}

/// `popc`, `clz`, `bfind` and the wide products.
#[inline(always)]
pub fn mix(r: &mut Registers, i: &Inst, m: u32, op: crate::ptx::code::MixOp) {
    use crate::ptx::code::MixOp;
    let find = |from_top: u32, none: bool, width: u32| {
        // `from_top` leading zeros; `.shiftamt` wants the shift that brings the bit to the top.
        if none {
            u32::MAX
        } else if i.x == u32::MAX {
            width - 1 - from_top
        } else {
            from_top
        }
    };
    match op {
        MixOp::MulWideU16 => r.w2(i, m, |a, b| (a & 0xffff) * (b & 0xffff)),
        MixOp::MulWideS16 => r.w2(i, m, |a, b| (i32::from(h(a)) * i32::from(h(b))) as u32),
        MixOp::MulWideU32 => r.dww(i, m, |a, b| u64::from(a) * u64::from(b)),
        MixOp::MulWideS32 => r.dww(i, m, |a, b| (i64::from(s(a)) * i64::from(s(b))) as u64),
        MixOp::MadWideU16 => r.w3(i, m, |a, b, c| ((a & 0xffff) * (b & 0xffff)).wrapping_add(c)),
        MixOp::MadWideS16 => {
            r.w3(i, m, |a, b, c| ((i32::from(h(a)) * i32::from(h(b))) as u32).wrapping_add(c))
        }
        MixOp::MadWideU32 => r.dwwd(i, m, |a, b, c| (u64::from(a) * u64::from(b)).wrapping_add(c)),
        MixOp::MadWideS32 => {
            r.dwwd(i, m, |a, b, c| ((i64::from(s(a)) * i64::from(s(b))) as u64).wrapping_add(c));
        }
        MixOp::Popc32 => r.w1(i, m, u32::count_ones),
        MixOp::Popc64 => r.wd1(i, m, u64::count_ones),
        MixOp::Clz32 => r.w1(i, m, u32::leading_zeros),
        MixOp::Clz64 => r.wd1(i, m, u64::leading_zeros),
        MixOp::BfindU32 => r.w1(i, m, |a| find(a.leading_zeros(), a == 0, 32)),
        MixOp::BfindS32 => r.w1(i, m, |a| {
            let a = if s(a) < 0 { !a } else { a };
            find(a.leading_zeros(), a == 0, 32)
        }),
        MixOp::BfindU64 => r.wd1(i, m, |a| find(a.leading_zeros(), a == 0, 64)),
        MixOp::BfindS64 => r.wd1(i, m, |a| {
            let a = if (a as i64) < 0 { !a } else { a };
            find(a.leading_zeros(), a == 0, 64)
        }),
        MixOp::Pack2x16 => r.w2(i, m, |a, b| (a & 0xffff) | b << 16),
        MixOp::Pack2x32 => r.dww(i, m, |a, b| u64::from(a) | u64::from(b) << 32),
        // These name more than three registers; the warp executes them with its lists.
        MixOp::Unpack2x16 | MixOp::Unpack2x32 | MixOp::Pack4x16 | MixOp::Unpack4x16 => {
            unreachable!("moved by the warp")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_fields_follow_the_definition() {
        assert_eq!(bfe(0xabcd_1234, 8, 12, 32, false), 0xd12);
        assert_eq!(bfe(0x0000_0f00, 8, 4, 32, true), 0xffff_ffff);
        assert_eq!(bfe(0x8000_0000, 28, 8, 32, true), 0xffff_fff8);
        assert_eq!(bfe(0x8000_0000, 40, 8, 32, true), 0xffff_ffff);
        assert_eq!(bfe(0x8000_0000, 4, 0, 32, true), 0);
        assert_eq!(bfi(0xf, 0, 28, 8, 32) as u32, 0xf000_0000);
        assert_eq!(bfi(0xff, 0x1234, 4, 4, 32), 0x12f4);
        assert_eq!(prmt(0x3322_1100, 0x7766_5544, 0x7610), 0x7766_1100);
        assert_eq!(prmt(0x0000_0080, 0, 0x8888), 0xffff_ffff);
        assert_eq!(lop3(0xf0, 0xcc, 0xaa, 0x80) & 0xff, 0x80);
        assert_eq!(lop3(0xf0, 0xcc, 0xaa, 0x96) & 0xff, 0x96);
    }
}
