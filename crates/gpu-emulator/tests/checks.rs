//! The checkers find what they are for, and say where: kernel, line, lane, address.

mod common;

use common::{Case, PROLOGUE};

fn fault(case: Case<'_>, text: &str) -> (i32, String) {
    let text = format!("{PROLOGUE}{text}");
    match (Case { body: &text, ..case }).run() {
        Ok(out) => panic!("nothing was found; the output is {out:?}"),
        Err(fault) => (fault.code, fault.message),
    }
}

#[track_caller]
fn finds(case: Case<'_>, text: &str, code: i32, parts: &[&str]) {
    let (found, message) = fault(case, text);
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in `{message}`");
    }
    assert_eq!(found, code, "{message}");
}

#[test]
fn an_off_by_one_bound_is_named_to_the_lane() {
    finds(
        Case { output: 31, ..Case::default() },
        "st.global.u32 [%mine], %tid; ret;",
        700,
        &[
            "kernel `k`, ptx line 4, block (0,0,0), thread (31,0,0), lane 31",
            "store of 4 bytes",
            "is 0 bytes past the end of the 124-byte output",
        ],
    );
    finds(
        Case::default(),
        "ld.global.u32 %r0, [%in+4]; ret;",
        700,
        &["load of 4 bytes", "0 bytes past the end of the 4-byte input"],
    );
    finds(
        Case::default(),
        ".shared .b32 s[4]; st.shared.u32 [s+16], 1; ret;",
        700,
        &["shared byte 16; the block has 16 bytes"],
    );
    finds(
        Case::default(),
        ".local .b32 s[4]; ld.local.u32 %r0, [s+16]; ret;",
        700,
        &["local byte 16; a thread has 16 bytes"],
    );
    finds(Case::default(), "ld.global.u32 %r0, [0]; ret;", 700, &["0x0 is a null pointer"]);
}

#[test]
fn a_misaligned_access_is_716() {
    finds(
        Case { input: vec![0; 8], ..Case::default() },
        "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%in+4]; ret;",
        716,
        &["lane 0", "not a multiple of 16"],
    );
}

#[test]
fn unwritten_memory_is_found_in_every_space() {
    finds(
        Case::default(),
        "ld.global.u32 %r0, [%mine]; ret;",
        719,
        &["load of 4 bytes that nothing has written", "byte 0 of the 128-byte output"],
    );
    finds(
        Case::default(),
        ".shared .b32 tile[4]; ld.shared.u32 %r0, [tile+4]; ret;",
        719,
        &["shared byte 4 (4 bytes into `tile`), which nothing has written"],
    );
    finds(
        Case::default(),
        ".local .b32 s[4]; ld.local.u32 %r0, [s]; ret;",
        719,
        &["local byte 0, which nothing has written"],
    );
}

const EXCHANGE: &str = ".shared .b32 s[128]; mov.u64 %rd0, s; add.u64 %rd1, %rd0, %off; st.shared.u32 [%rd1], %tid; BARRIER
    xor.b32 %r1, %tid, FLIP; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd0, %rd2; ld.shared.u32 %r0, [%rd2]; st.global.u32 [%mine], %r0; ret;";

#[test]
fn a_missing_barrier_is_a_race() {
    let case = || Case { threads: 128, output: 128, ..Case::default() };
    let with = |barrier: &str, flip: &str| EXCHANGE.replace("BARRIER", barrier).replace("FLIP", flip);
    // Among warps a barrier of the block is needed: the first warp reads what the second will write.
    let (code, message) = fault(case(), &with("", "32"));
    assert_eq!(code, 719, "{message}");
    assert!(
        message.contains("which nothing has written yet (if another warp will, a barrier is missing)"),
        "{message}"
    );
    // Where the bytes were written before, it is seen as a race.
    let warm = format!(
        ".shared .b32 w; {}",
        with("bar.sync 0; ", "32")
            .replace("ld.shared.u32 %r0, [%rd2];", "ld.shared.u32 %r0, [%rd2]; st.shared.u32 [%rd1], 7;")
    );
    finds(case(), &warm, 719, &["race: ", "no barrier came between"]);
    // Within a warp a barrier of the warp.
    finds(
        case(),
        &with("", "1"),
        719,
        &["race: load of 4 bytes at shared byte", "thread 1 wrote it and no barrier came between"],
    );
    for good in [with("bar.sync 0;", "32"), with("bar.warp.sync -1;", "1")] {
        let text = format!("{PROLOGUE}{good}");
        Case { body: &text, ..case() }.run().unwrap();
    }
}

#[test]
fn lanes_that_write_halves_of_one_word_neither_race_nor_hide_a_race() {
    let case = || Case { threads: 64, output: 64, ..Case::default() };
    // Each thread writes its f16 and reads it back; then, behind a barrier, its neighbour's.
    let halves = |barrier: &str, from: &str| {
        format!(
            "{PROLOGUE}.shared .b16 s[64]; .reg .b16 %h<4>; cvt.u16.u32 %h0, %tid; mul.wide.u32 %rd0, %tid, 2;
             mov.u64 %rd1, s; add.u64 %rd1, %rd1, %rd0; st.shared.b16 [%rd1], %h0; ld.shared.b16 %h1, [%rd1]; {barrier}
             xor.b32 %r1, %tid, {from}; mul.wide.u32 %rd2, %r1, 2; mov.u64 %rd3, s; add.u64 %rd3, %rd3, %rd2;
             ld.shared.b16 %h2, [%rd3]; cvt.u32.u16 %r0, %h2; st.global.u32 [%mine], %r0; ret;"
        )
    };
    for (barrier, from) in [("", "0"), ("bar.warp.sync -1;", "1"), ("bar.sync 0;", "33")] {
        let out = Case { body: &halves(barrier, from), ..case() }.run().unwrap();
        assert!(out.iter().zip(0..).all(|(&got, tid)| got == tid ^ from.parse::<u32>().unwrap()), "{out:?}");
    }
    let fault = Case { body: &halves("", "1"), ..case() }.run().unwrap_err();
    assert!(fault.message.contains("race: load of 2 bytes at shared byte 2"), "{}", fault.message);
    // Blocks: each writes one half of a word, which is none; block 2 then reads what block 0 wrote.
    let blocks = |reader: &str| {
        format!(
            "{PROLOGUE}.reg .b16 %h<2>; mov.u32 %r0, %ctaid.x; setp.eq.u32 %p0, %r0, 2; cvt.u16.u32 %h0, %r0;
             mul.wide.u32 %rd0, %r0, 2; add.u64 %rd0, %out, %rd0; st.global.b16 [%rd0], %h0; {reader} ret;"
        )
    };
    let case = || Case { blocks: 3, threads: 1, ..Case::default() };
    let out = Case { body: &blocks(""), ..case() }.run().unwrap();
    assert_eq!(out[0], 1 << 16);
    let fault = Case { body: &blocks("@%p0 ld.global.b16 %h1, [%out];"), ..case() }.run().unwrap_err();
    assert!(fault.message.contains("race: load of 2 bytes"), "{}", fault.message);
    assert!(fault.message.contains("block 0 of the same launch wrote it"), "{}", fault.message);
}

#[test]
fn a_register_that_nothing_has_written_is_named() {
    let what = |name: &str| format!("reads the register `{name}`, which nothing has written");
    for (text, name) in [
        ("add.u32 %r0, %r1, 1; ret;", "%r1"),
        ("st.global.u32 [%mine], %r5; ret;", "%r5"),
        ("ld.global.u32 %r0, [%rd3]; ret;", "%rd3"),
        ("@%p3 mov.u32 %r0, 1; ret;", "%p3"),
        ("selp.u32 %r0, 1, 2, %p4; ret;", "%p4"),
        ("mov.b64 %rd0, {%r7, %tid}; ret;", "%r7"),
        ("shfl.sync.bfly.b32 %r0|%p0, %r6, 1, 31, -1; ret;", "%r6"),
        // The first round of a loop reads what its end writes.
        (
            "mov.u32 %r0, 0; L: add.u32 %r0, %r0, %r2; mov.u32 %r2, 1; setp.lt.u32 %p0, %r0, 3; @%p0 bra L; ret;",
            "%r2",
        ),
    ] {
        finds(Case::default(), text, 719, &["kernel `k`, ptx line 4", "lane 0", &what(name)]);
    }
    // Lanes outside the guard of the only write.
    finds(
        Case::default(),
        "setp.lt.u32 %p0, %tid, 7; @%p0 mov.u32 %r1, 5; st.global.u32 [%mine], %r1; ret;",
        719,
        &["lane 7", &what("%r1")],
    );
    // Written on either side, or read only where it was written, is well.
    for good in [
        "setp.lt.u32 %p0, %tid, 7; @%p0 mov.u32 %r1, 5; @!%p0 mov.u32 %r1, 6; st.global.u32 [%mine], %r1; ret;",
        "setp.lt.u32 %p0, %tid, 7; @%p0 bra A; mov.u32 %r1, 5; bra B; A: mov.u32 %r1, 6; B: st.global.u32 [%mine], %r1; ret;",
        "setp.lt.u32 %p0, %tid, 7; @%p0 mov.u32 %r1, 5; @%p0 st.global.u32 [%mine], %r1; ret;",
    ] {
        let text = format!("{PROLOGUE}{good}");
        Case { body: &text, ..Case::default() }.run().unwrap_or_else(|f| panic!("{good}: {}", f.message));
    }
}

#[test]
fn blocks_of_one_launch_must_not_meet() {
    let case = || Case { blocks: 2, input: vec![0; 32], ..Case::default() };
    finds(
        case(),
        "mov.u32 %r0, %ctaid.x; st.global.u32 [%mine], %r0; ret;",
        719,
        &["race: store", "block 0 of the same launch wrote it too"],
    );
    finds(
        case(),
        "ld.global.u32 %r0, [%from]; mov.u32 %r1, %ctaid.x; setp.eq.u32 %p0, %r1, 1; add.u32 %r0, %r0, 1; @%p0 st.global.u32 [%from], %r0; ret;",
        719,
        &["block 0 of the same launch read it"],
    );
    finds(
        Case { blocks: 1, ..case() },
        "st.global.u32 [%mine], 1; ld.global.nc.u32 %r0, [%mine]; ret;",
        719,
        &["race: load", "wrote it in this launch"],
    );
    // A flag that one block sets and another looks at works only in some order of the blocks.
    for load in ["ld.volatile.global.u32", "ld.relaxed.gpu.global.u32", "ld.acquire.gpu.global.u32"] {
        let flag = format!(
            "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p0, %r1, 0; @%p0 st.volatile.global.u32 [%from], 1; {load} %r0, [%from]; ret;"
        );
        finds(
            case(),
            &flag,
            719,
            &["race: load", "block 0 wrote it in this launch, and blocks of one launch must not communicate"],
        );
    }
    let wait = "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p0, %r1, 1; @%p0 st.volatile.global.u32 [%from], 1;
        L: ld.volatile.global.u32 %r0, [%from]; setp.eq.u32 %p1, %r0, 0; @%p1 bra L; ret;";
    finds(case(), wait, 702, &["a loop without an end, or a block that waits for another one"]);
    // The same value from both, and atomics, are no races.
    for good in ["st.global.u32 [%out], 1; ret;", "red.global.add.u32 [%from], 1; ret;"] {
        let text = format!("{PROLOGUE}{good}");
        Case { body: &text, ..case() }.run().unwrap();
    }
}

#[test]
fn divergence_at_a_barrier_is_reported() {
    finds(
        Case::default(),
        "setp.lt.u32 %p0, %tid, 16; @%p0 bra A; bar.sync 0; A: ret;",
        719,
        &["divergent bar.sync", "reached by lanes 0xffff0000 of 0xffffffff; lane 0 is elsewhere"],
    );
    finds(
        Case::default(),
        "setp.lt.u32 %p0, %tid, 16; @%p0 ret; bar.sync 0; ret;",
        719,
        &["divergent bar.sync", "lane 0 has ended"],
    );
    finds(
        Case { threads: 64, ..Case::default() },
        "setp.lt.u32 %p0, %tid, 32; @%p0 bra A; bar.sync 0; A: ret;",
        719,
        &["the block hangs at a barrier: 1 of its 2 warps wait, 1 have ended"],
    );
    finds(
        Case::default(),
        "setp.lt.u32 %p0, %tid, 16; @%p0 bra A; shfl.sync.bfly.b32 %r0, %tid, 1, 31, -1; A: ret;",
        719,
        &["diverged: the member mask 0xffffffff names lane 0, which is elsewhere"],
    );
    finds(
        Case { threads: 16, ..Case::default() },
        "shfl.sync.bfly.b32 %r0, %tid, 16, 31, -1; ret;",
        719,
        &["shfl reads lane 16, which does not take part"],
    );
}

#[test]
fn a_copy_that_nobody_waited_for_cannot_be_read() {
    let text = ".shared .align 16 .b32 s[4]; mov.u64 %rd0, s; cp.async.ca.shared.global [%rd0], [%in], 4; ld.shared.u32 %r0, [s]; ret;";
    finds(Case { threads: 1, ..Case::default() }, text, 719, &["which a cp.async still fills"]);
}

#[test]
fn traps_and_endless_loops_end() {
    finds(Case::default(), "trap;", 719, &["line 4", "trap"]);
    finds(
        Case::default(),
        "L: bra L;",
        702,
        &["the watchdog stopped the launch after 1000000 warp instructions"],
    );
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    let refused = |body: &str| {
        let source = Case { body, ..Case::default() }.source();
        let module = gpu_emulator::ptx::parser::parse(&source);
        module
            .and_then(|m| {
                gpu_emulator::ptx::decode::decode(&m, &m.entries[0], &Default::default()).map(|_| ())
            })
            .unwrap_err()
            .to_string()
    };
    for (body, message) in [
        (".reg .b32 %r<4>; vadd.u32.u32.u32 %r0, %r1, %r2;", "does not implement `vadd.u32.u32.u32`"),
        (".reg .b32 %r<4>; add.u32 %r0, %r1, %clock;", "the special register `%clock`"),
        (
            ".reg .b32 %r<4>; .reg .f32 %f<2>; add.u32 %r0, %r1, %f0;",
            "`%f0` is .f32, which does not fit an operand of type .u32",
        ),
        (
            ".reg .b32 %r<4>; .reg .b64 %d<2>; add.u64 %d0, %d1, %r0;",
            "`%r0` is .b32, which does not fit an operand of type .u64",
        ),
        (".reg .b32 %r<4>; add.u32 %r0, %r1, %r9;", "line 2: `%r9` is not declared"),
        (".reg .b32 %r<4>; mov.u32 %r0, 1; bra NOWHERE;", "the label `NOWHERE` is not defined"),
        (".reg .f32 %f<4>; fma.f32 %f0, %f1, %f2, %f3;", "needs a rounding modifier"),
        (".reg .f32 %f<4>; add.rn.wild.f32 %f0, %f1, %f2;", "`.wild` in `add.rn.wild.f32`"),
    ] {
        let text = refused(body);
        assert!(text.contains(message), "`{message}` is not in `{text}`");
    }
    let old = ".version 6.3\n.target sm_75\n.address_size 64\n.entry k() { .reg .b32 %r<2>; redux.sync.add.u32 %r0, %r1, -1; }";
    let module = gpu_emulator::ptx::parser::parse(old).unwrap();
    let error =
        gpu_emulator::ptx::decode::decode(&module, &module.entries[0], &Default::default()).unwrap_err();
    assert!(error.to_string().contains("requires .target sm_80 or higher"), "{error}");
}
