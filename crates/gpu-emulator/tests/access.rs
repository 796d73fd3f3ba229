//! Loads and stores of a whole warp do what the same accesses do lane by lane: the same values, the same first fault.
//!
//! Volatile accesses always go lane by lane, so each case runs once as it is and once as volatile, over addresses
//! that follow each other, step, repeat, scatter, run out of the memory, or meet bytes that nothing has written.

mod common;

use common::{Case, PROLOGUE};

/// splitmix64
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % n
    }
}

/// Type, elements, bytes of the whole, and the register of an element.
const SHAPES: [(&str, usize, u64, &str); 13] = [
    ("u8", 1, 1, "%r"),
    ("s8", 1, 1, "%r"),
    ("b16", 1, 2, "%h"),
    ("s16", 1, 2, "%r"),
    ("b16", 2, 4, "%h"),
    ("b16", 4, 8, "%h"),
    ("u32", 1, 4, "%r"),
    ("f32", 2, 8, "%f"),
    ("b32", 4, 16, "%r"),
    ("s32", 1, 4, "%rd"),
    ("u64", 1, 8, "%rd"),
    ("b64", 2, 16, "%rd"),
    ("u8", 4, 4, "%r"),
];

/// Offsets of the 32 lanes from the start of a memory of 512 bytes.
fn offsets(random: &mut Random, n: u64) -> Vec<u32> {
    let first = random.below(8) * n;
    let step = [n, n, 2 * n, 0, 4 * n, 1][random.below(6) as usize];
    let mut at: Vec<u32> = (0..32).map(|l| (first + l * step) as u32).collect();
    match random.below(5) {
        0 => at.reverse(),
        1 => at.iter_mut().for_each(|a| *a = (random.below(512 / n) * n) as u32),
        // One lane far away, at no multiple, or just behind the end.
        2 => at[random.below(32) as usize] = [1 << 21, 3, 512][random.below(3) as usize],
        _ => {}
    }
    at
}

fn list(register: &str, elements: usize) -> String {
    let all: Vec<String> = (0..elements).map(|e| format!("{register}{}", e + 1)).collect();
    if elements == 1 { all[0].clone() } else { format!("{{{}}}", all.join(", ")) }
}

/// Puts the registers into the lane's 16 bytes of the output.
fn results(register: &str, elements: usize) -> String {
    let mut text = String::from("mul.wide.u32 %rd6, %tid, 16; add.u64 %rd6, %out, %rd6;");
    for e in 0..elements {
        let (ty, size) = match register {
            "%h" => ("b16", 2),
            "%rd" => ("b64", 8),
            _ => ("b32", 4),
        };
        text.push_str(&format!("st.global.{ty} [%rd6+{}], {register}{};", e * size, e + 1));
    }
    text
}

fn agree(text: &str, input: &[u32], output: usize) -> Result<(), i32> {
    let run = |kind: &str| {
        let text = format!("{PROLOGUE}{}", text.replace("ACCESS", kind));
        Case { body: &text, input: input.to_vec(), output, race: false, ..Case::default() }.run()
    };
    let (together, one_by_one) = (run(""), run(".volatile"));
    assert_eq!(together, one_by_one, "{text}\noffsets {:?}", &input[..32]);
    together.map(drop).map_err(|fault| fault.code)
}

#[test]
fn a_warp_at_once_does_what_its_lanes_do_one_by_one() {
    let mut random = Random(7);
    let mut outcomes = std::collections::BTreeMap::new();
    for round in 0..3000 {
        let (ty, elements, n, register) = SHAPES[round % SHAPES.len()];
        let (space, declare, base) = if random.below(2) == 0 {
            ("global", "", "add.u64 %rd5, %in, 128;")
        } else {
            // Each lane fills 16 bytes, or the last of them nothing.
            let filled = [32, 32, 32, 20][random.below(4) as usize];
            (
                "shared",
                ".shared .align 16 .b8 s[512];",
                &*format!(
                    "mov.u64 %rd5, s; mul.wide.u32 %rd6, %tid, 16; add.u64 %rd6, %rd5, %rd6; mov.u32 %r9, %tid;
                     setp.lt.u32 %p1, %tid, {filled}; @%p1 st.volatile.shared.v4.b32 [%rd6], {{%r9, %tid, %r9, %tid}};
                     bar.warp.sync -1;"
                ),
            )
        };
        // All lanes, or those of an odd number, or the first few.
        let guard = [
            "setp.ge.u32 %p0, %tid, 0;",
            "and.b32 %r8, %tid, 1; setp.eq.u32 %p0, %r8, 1;",
            "setp.lt.u32 %p0, %tid, 5;",
        ][random.below(3) as usize];
        let vector = ["", ".v2", "", ".v4"][elements - 1];
        let registers = list(register, elements);
        let common = format!(
            ".reg .b16 %h<8>; {declare} ld.global.u32 %r7, [%from]; cvt.u64.u32 %rd4, %r7; {base} add.u64 %rd5, %rd5, %rd4; {guard}"
        );
        let clear: String = (1..=elements)
            .map(|e| match register {
                "%f" => format!("mov.f32 {register}{e}, 0f3F800000;"),
                "%h" => format!("mov.b16 {register}{e}, 77;"),
                "%rd" => format!("mov.b64 {register}{e}, 78;"),
                _ => format!("mov.b32 {register}{e}, 79;"),
            })
            .collect();
        let mut input = offsets(&mut random, n);
        input.extend((0..128).map(|_| random.below(1 << 32) as u32));
        let load = format!(
            "{common} {clear} @%p0 ldACCESS.{space}{vector}.{ty} {registers}, [%rd5]; {} ret;",
            results(register, elements)
        );
        let result = agree(&load, &input, 128);
        *outcomes.entry(("load", space, result.err())).or_insert(0) += 1;
        // A store into the same memory, of which all is read back afterwards.
        let values: String = (1..=elements)
            .map(|e| match register {
                "%f" => format!("cvt.rn.f32.u32 {register}{e}, %tid;"),
                "%h" => format!("cvt.u16.u32 {register}{e}, %tid;"),
                "%rd" => {
                    format!("cvt.u64.u32 {register}{e}, %tid; add.u64 {register}{e}, {register}{e}, {e};")
                }
                _ => format!("add.u32 {register}{e}, %tid, {e};"),
            })
            .collect();
        let start = if space == "global" { "add.u64 %rd3, %in, 128;" } else { "mov.u64 %rd3, s;" };
        let store = format!(
            "{common} {values} @%p0 stACCESS.{space}{vector}.{ty} [%rd5], {registers}; bar.warp.sync -1; {start}
             mul.wide.u32 %rd6, %tid, 16; add.u64 %rd3, %rd3, %rd6; ld.volatile.{space}.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd3];
             {} ret;",
            results("%r", 4)
        );
        let result = agree(&store, &input, 128);
        *outcomes.entry(("store", space, result.err())).or_insert(0) += 1;
    }
    // The cases were of every kind: right, outside, misaligned, unwritten.
    for space in ["global", "shared"] {
        for what in ["load", "store"] {
            for code in [None, Some(700), Some(716)] {
                assert!(
                    outcomes.get(&(what, space, code)) > Some(&50),
                    "{what} {space} {code:?}: {outcomes:?}"
                );
            }
        }
        assert!(space == "global" || outcomes.get(&("load", space, Some(719))) > Some(&50), "{outcomes:?}");
    }
}

/// Unwritten bytes among the lanes' rows are found to the byte, wherever they lie.
#[test]
fn one_unwritten_byte_is_found_whoever_reads_it() {
    for missing in [0, 1, 63, 64, 200, 511] {
        let lane = missing / 16;
        // All but one byte of 512 are written, each by the lane that reads it, then all are loaded at once.
        let text = format!(
            "{PROLOGUE}.reg .b32 %i; mul.wide.u32 %rd0, %tid, 16; add.u64 %rd0, %out, %rd0; mul.lo.u32 %r1, %tid, 16; mov.u32 %i, 0;
L: setp.ne.u32 %p0, %r1, {missing}; @%p0 st.global.u8 [%rd0], %tid;
add.u64 %rd0, %rd0, 1; add.u32 %r1, %r1, 1; add.u32 %i, %i, 1; setp.lt.u32 %p1, %i, 16; @%p1 bra L;
ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd0+-16]; ret;"
        );
        let fault = Case { body: &text, output: 128, ..Case::default() }.run().unwrap_err();
        assert!(
            fault.message.contains(&format!("lane {lane}: load of 16 bytes that nothing has written")),
            "{}",
            fault.message
        );
        assert!(
            fault.message.contains(&format!("byte {missing} of the 512-byte output")),
            "{}",
            fault.message
        );
    }
}
