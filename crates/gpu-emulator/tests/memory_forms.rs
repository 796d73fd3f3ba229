//! Every form of load, store and reduction that the workspace's kernels use, each with the bytes that it must move.
//! Widths and forms beyond those are in `cooperation.rs`, addresses and masks of every kind in `access.rs`.

mod common;

use common::{Case, PROLOGUE};
use gpu_emulator::memory::{BASE, PAGE};

/// A form, the registers of an element, and how many there are.
const LOADS: [(&str, &str, usize); 17] = [
    ("ld.global.b16", "h", 1),
    ("ld.global.u8", "r", 1),
    ("ld.global.b32", "r", 1),
    ("ld.global.u32", "r", 1),
    ("ld.global.f32", "f", 1),
    ("ld.global.u64", "l", 1),
    ("ld.global.f64", "d", 1),
    ("ld.global.v2.b32", "r", 2),
    ("ld.global.v4.b32", "r", 4),
    ("ld.global.v4.f32", "f", 4),
    ("ld.shared.b16", "h", 1),
    ("ld.shared.b32", "r", 1),
    ("ld.shared.f32", "f", 1),
    ("ld.shared.f64", "d", 1),
    ("ld.shared.v2.f64", "d", 2),
    ("ld.shared.v4.b32", "r", 4),
    ("ld.shared.v4.f32", "f", 4),
];

const STORES: [(&str, &str, usize); 15] = [
    ("st.global.b16", "h", 1),
    ("st.global.b32", "r", 1),
    ("st.global.u32", "r", 1),
    ("st.global.f32", "f", 1),
    ("st.global.u64", "l", 1),
    ("st.global.f64", "d", 1),
    ("st.global.v2.b32", "r", 2),
    ("st.global.v4.b32", "r", 4),
    ("st.global.v4.f32", "f", 4),
    ("st.shared.b16", "h", 1),
    ("st.shared.b32", "r", 1),
    ("st.shared.f32", "f", 1),
    ("st.shared.f64", "d", 1),
    ("st.shared.v2.f32", "f", 2),
    ("st.shared.v4.b32", "r", 4),
];

const REGISTERS: &str = ".reg .b16 %h<4>; .reg .b64 %l<4>; .reg .f64 %d<4>; .shared .align 16 .b8 s[512];
    mul.wide.u32 %rd0, %tid, 16; add.u64 %rd1, %in, %rd0; add.u64 %rd2, %out, %rd0; mov.u64 %rd3, s; add.u64 %rd3, %rd3, %rd0;
    ld.global.v4.u32 {%r8, %r9, %r10, %r11}, [%rd1]; mov.u32 %r12, 0;";

fn width(register: &str) -> usize {
    match register {
        "h" => 2,
        "l" | "d" => 8,
        _ => 4,
    }
}

fn list(register: &str, elements: usize) -> String {
    let all: Vec<String> = (0..elements).map(|e| format!("%{register}{e}")).collect();
    if elements == 1 { all[0].clone() } else { format!("{{{}}}", all.join(", ")) }
}

/// One element at a time, by untyped accesses, whose own tests are in `cooperation.rs`.
fn one_by_one(what: &str, register: &str, elements: usize, at: &str) -> String {
    let bits = 8 * width(register);
    (0..elements)
        .map(|e| {
            let place = format!("[{at}+{}]", e * width(register));
            match what {
                "ld" => format!("ld.global.b{bits} %{register}{e}, {place};"),
                _ => format!("st.global.b{bits} {place}, %{register}{e};"),
            }
        })
        .collect()
}

fn input() -> Vec<u32> {
    (0..128u32).map(|i| i.wrapping_mul(0x9e37_79b9) ^ 0x8123_4567).collect()
}

/// What a lane's first `n` bytes of 16 are, the others being zero.
fn kept(n: usize) -> Vec<u32> {
    let mask = |word: usize| match n.saturating_sub(4 * word) {
        0 => 0,
        bytes @ 1..=3 => (1u32 << (8 * bytes)) - 1,
        _ => u32::MAX,
    };
    input().iter().enumerate().map(|(i, &word)| word & mask(i % 4)).collect()
}

fn run(text: &str) -> Vec<u32> {
    let text = format!("{PROLOGUE}{REGISTERS}{text} ret;");
    Case { body: &text, input: input(), output: 128, ..Case::default() }
        .run()
        .unwrap_or_else(|f| panic!("{}\n{text}", f.message))
}

const CLEAR: &str = "st.global.v4.b32 [%rd2], {%r12, %r12, %r12, %r12};";

#[test]
fn every_load_of_the_kernels_brings_the_bytes_that_are_there() {
    for (form, register, elements) in LOADS {
        let from = if form.contains("shared") {
            format!(
                "st.shared.v4.b32 [%rd3], {{%r8, %r9, %r10, %r11}}; {form} {}, [%rd3];",
                list(register, elements)
            )
        } else {
            format!("{form} {}, [%rd1];", list(register, elements))
        };
        let out = run(&format!("{CLEAR} {from} {}", one_by_one("st", register, elements, "%rd2")));
        let n = if form.ends_with("u8") { 1 } else { elements * width(register) };
        assert_eq!(out, kept(n), "{form}");
    }
}

#[test]
fn every_store_of_the_kernels_leaves_the_bytes_of_its_registers() {
    for (form, register, elements) in STORES {
        let values = one_by_one("ld", register, elements, "%rd1");
        let registers = list(register, elements);
        let out = if form.contains("shared") {
            run(&format!(
                "st.shared.v4.u32 [%rd3], {{%r12, %r12, %r12, %r12}}; {values} {form} [%rd3], {registers};
                 ld.shared.v4.u32 {{%r8, %r9, %r10, %r11}}, [%rd3]; st.global.v4.u32 [%rd2], {{%r8, %r9, %r10, %r11}};"
            ))
        } else {
            run(&format!("{CLEAR} {values} {form} [%rd2], {registers};"))
        };
        assert_eq!(out, kept(elements * width(register)), "{form}");
    }
}

#[test]
fn parameters_of_every_type_are_the_bits_that_were_passed() {
    // The second allocation starts behind the page of the first and its guard.
    let address = BASE + 2 * PAGE;
    for (form, register) in
        [("ld.param.u32", "r"), ("ld.param.f32", "f"), ("ld.param.u64", "l"), ("ld.param.f64", "d")]
    {
        let out =
            run(&format!("{CLEAR} {form} %{register}0, [out]; {}", one_by_one("st", register, 1, "%rd2")));
        let high = if width(register) == 8 { (address >> 32) as u32 } else { 0 };
        assert!(out.chunks(4).all(|lane| lane == [address as u32, high, 0, 0]), "{form}: {out:x?}");
    }
}

#[test]
fn reductions_in_global_memory_take_all_lanes() {
    let reduced = |form: &str, start: u64| {
        let out = run(&format!(
            "setp.eq.u32 %p0, %tid, 0; @%p0 st.global.u64 [%out], {start}; bar.warp.sync -1;
             add.u32 %r0, %tid, 3; cvt.u64.u32 %l0, %r0; shl.b64 %l0, %l0, 32; {form} [%out], %l0;"
        ));
        u64::from(out[0]) | u64::from(out[1]) << 32
    };
    assert_eq!(reduced("red.global.min.u64", u64::MAX), 3 << 32);
    assert_eq!(reduced("red.global.min.u64", 7), 7);
    // The sum of 3 to 34.
    assert_eq!(reduced("red.global.add.u64", 7), (592 << 32) + 7);
}
