//! What lanes do with memory and with each other: loads and stores, atomics, shuffles, votes, barriers,
//! asynchronous copies, matrix fragments. Expected values follow from the PTX definition.

mod common;

use common::{Case, PROLOGUE};

fn body(text: &str) -> String {
    format!("{PROLOGUE}{text}")
}

fn output(text: &str, input: Vec<u32>, words: usize) -> Vec<u32> {
    let text = body(text);
    Case { body: &text, input, output: words, ..Case::default() }
        .run()
        .unwrap_or_else(|f| panic!("{}", f.message))
}

/// One word a lane, from an instruction sequence that leaves it in `%r0`.
fn lanes(text: &str) -> Vec<u32> {
    output(&format!("{text}\nst.global.u32 [%mine], %r0; ret;"), (0..64).collect(), 32)
}

fn each(f: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..32).map(f).collect()
}

#[test]
fn loads_and_stores_of_every_width() {
    assert_eq!(lanes("ld.global.u32 %r0, [%from];"), each(|l| l));
    assert_eq!(lanes("ld.global.nc.u32 %r0, [%from+4];"), each(|l| l + 1));
    let bytes = |text: &str| output(text, vec![0x8081_8283; 64], 32)[0];
    assert_eq!(bytes("ld.global.u8 %r0, [%in+1]; st.global.u32 [%mine], %r0;"), 0x82);
    assert_eq!(bytes("ld.global.s8 %r0, [%in+1]; st.global.u32 [%mine], %r0;"), 0xffff_ff82);
    assert_eq!(
        bytes(".reg .b16 %h; ld.global.b16 %h, [%in+2]; cvt.u32.u16 %r0, %h; st.global.u32 [%mine], %r0;"),
        0x8081
    );
    assert_eq!(bytes("ld.global.s16 %r0, [%in]; st.global.u32 [%mine], %r0;"), 0xffff_8283);
    assert_eq!(
        bytes("ld.global.u64 %rd0, [%in]; shr.u64 %rd0, %rd0, 8; st.global.u32 [%mine], %rd0;"),
        0x8380_8182
    );
    let words = output(
        "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%in]; mul.wide.u32 %rd0, %tid, 16; add.u64 %rd0, %out, %rd0;
         st.global.v4.b32 [%rd0], {%r4, %r3, %r2, %r1};",
        (10..20).collect(),
        128,
    );
    assert_eq!(words[4..8], [13, 12, 11, 10]);
    let narrow = output(
        "ld.global.v2.u32 {%r1, %r2}, [%in+8]; st.global.u32 [%mine], 0; st.global.u8 [%mine+2], %r2; st.global.u8 [%mine], %r1;",
        (10..20).collect(),
        32,
    );
    assert_eq!(narrow[3], 13 << 16 | 12);
}

#[test]
fn generic_addresses_reach_every_space() {
    let text = ".shared .b32 s[32]; .local .b32 t[2];
        mov.u64 %rd0, s; cvta.shared.u64 %rd0, %rd0; add.u64 %rd0, %rd0, %off; st.u32 [%rd0], %tid;
        mov.u64 %rd1, t; cvta.local.u64 %rd1, %rd1; st.u32 [%rd1+4], 100;
        ld.u32 %r1, [%rd0]; ld.u32 %r2, [%rd1+4]; ld.u32 %r3, [%from];
        ld.shared.u32 %r4, [s+0]; ld.local.u32 %r5, [t+4];
        add.u32 %r0, %r1, %r2; add.u32 %r0, %r0, %r3; add.u32 %r0, %r0, %r5;";
    // Lane 0's word of `s` is read by all without a barrier, which is a race: not looked for here.
    let text = body(&format!("{text}\nst.global.u32 [%mine], %r0; ret;"));
    let case = Case { body: &text, input: (0..32).collect(), race: false, ..Case::default() };
    assert_eq!(case.run().unwrap(), each(|l| 2 * l + 200));
}

#[test]
fn atomics_return_what_was_there() {
    let global = |op: &str, init: u32| {
        output(
            &format!(
                "setp.eq.u32 %p0, %tid, 0; @%p0 st.global.u32 [%out+128], {init}; bar.warp.sync -1; {op} st.global.u32 [%mine], %r0; ret;"
            ),
            vec![0; 32],
            33,
        )
    };
    let add = global("atom.global.add.u32 %r0, [%out+128], 2;", 5);
    assert_eq!((add[3], add[32]), (11, 69));
    assert_eq!(global("atom.global.exch.b32 %r0, [%out+128], %tid;", 7)[..2], [7, 0]);
    assert_eq!(global("atom.global.cas.b32 %r0, [%out+128], 0, 9;", 0)[..2], [0, 9]);
    assert_eq!(global("atom.global.max.s32 %r0, [%out+128], %tid;", u32::MAX)[32], 31);
    assert_eq!(global("atom.global.min.u32 %r0, [%out+128], 3;", 10)[32], 3);
    assert_eq!(global("atom.global.inc.u32 %r0, [%out+128], 3;", 0)[32], 0);
    assert_eq!(global("atom.global.dec.u32 %r0, [%out+128], 3;", 0)[..3], [0, 3, 2]);
    assert_eq!(global("mov.u32 %r0, 0; red.global.or.b32 [%out+128], 6;", 1)[32], 7);
    assert_eq!(global("mov.u32 %r0, 0; red.global.add.f32 [%out+128], 0f3F800000;", 0)[32], 32f32.to_bits());
    let wide = output(
        "setp.eq.u32 %p0, %tid, 0; @%p0 st.global.u64 [%out+128], 0; bar.warp.sync -1; mov.u64 %rd0, 0x100000001; red.global.add.u64 [%out+128], %rd0; ret;",
        vec![0; 32],
        34,
    );
    assert_eq!(wide[32..], [32, 32]);
    let shared = lanes(
        ".shared .b32 s; st.shared.u32 [s], 40; bar.warp.sync -1; red.shared.min.u32 [s], %tid; bar.warp.sync -1; ld.shared.u32 %r0, [s];",
    );
    assert_eq!(shared, each(|_| 0));
}

#[test]
fn shuffles_follow_their_formula() {
    assert_eq!(lanes("shfl.sync.bfly.b32 %r0, %tid, 5, 31, -1;"), each(|l| l ^ 5));
    assert_eq!(
        lanes("shfl.sync.down.b32 %r0, %tid, 3, 31, -1;"),
        each(|l| if l + 3 < 32 { l + 3 } else { l })
    );
    assert_eq!(lanes("shfl.sync.up.b32 %r0, %tid, 3, 0, -1;"), each(|l| if l >= 3 { l - 3 } else { l }));
    assert_eq!(lanes("shfl.sync.idx.b32 %r0, %tid, 9, 31, -1;"), each(|_| 9));
    // Segments of 8: the clamp holds 31 - 7 in bits 8 to 12.
    assert_eq!(lanes("shfl.sync.idx.b32 %r0, %tid, 9, 0x181f, -1;"), each(|l| (l & 24) | 1));
    assert_eq!(
        lanes("shfl.sync.down.b32 %r0|%p0, %tid, 1, 0x181f, -1; selp.u32 %r0, 1, 0, %p0;"),
        each(|l| u32::from(l % 8 < 7))
    );
}

#[test]
fn votes_matches_and_reductions() {
    assert_eq!(lanes("setp.lt.u32 %p0, %tid, 4; vote.sync.ballot.b32 %r0, %p0, -1;"), each(|_| 15));
    assert_eq!(
        lanes("setp.lt.u32 %p0, %tid, 4; vote.sync.any.pred %p1, %p0, -1; selp.u32 %r0, 1, 0, %p1;"),
        each(|_| 1)
    );
    assert_eq!(
        lanes("setp.lt.u32 %p0, %tid, 4; vote.sync.all.pred %p1, !%p0, -1; selp.u32 %r0, 1, 0, %p1;"),
        each(|_| 0)
    );
    assert_eq!(
        lanes("setp.lt.u32 %p0, %tid, 99; vote.sync.uni.pred %p1, %p0, -1; selp.u32 %r0, 1, 0, %p1;"),
        each(|_| 1)
    );
    assert_eq!(
        lanes("and.b32 %r1, %tid, 1; match.any.sync.b32 %r0, %r1, -1;"),
        each(|l| if l % 2 == 0 { 0x5555_5555 } else { 0xaaaa_aaaa })
    );
    assert_eq!(lanes("match.all.sync.b32 %r0|%p0, 5, -1;"), each(|_| u32::MAX));
    assert_eq!(lanes("activemask.b32 %r0;"), each(|_| u32::MAX));
    assert_eq!(lanes("redux.sync.add.u32 %r0, %tid, -1;"), each(|_| 496));
    assert_eq!(lanes("sub.s32 %r1, 5, %tid; redux.sync.min.s32 %r0, %r1, -1;"), each(|_| (-26i32) as u32));
    assert_eq!(lanes("redux.sync.xor.b32 %r0, %tid, -1;"), each(|_| 0));
    assert_eq!(lanes("mov.u32 %r0, %lanemask_lt;"), each(|l| (1 << l) - 1));
}

#[test]
fn lanes_part_and_meet_again() {
    // Even lanes one way, odd lanes another, a loop of tid rounds, and all together behind it.
    let text = "and.b32 %r1, %tid, 1; setp.eq.u32 %p0, %r1, 0; mov.u32 %r0, 0;
        @%p0 bra EVEN; mov.u32 %r2, 100; bra JOIN;
        EVEN: mov.u32 %r2, 200;
        JOIN: mov.u32 %r3, 0;
        LOOP: setp.ge.u32 %p1, %r3, %tid; @%p1 bra OUT; add.u32 %r3, %r3, 1; bra LOOP;
        OUT: add.u32 %r0, %r2, %r3; vote.sync.ballot.b32 %r4, 1, -1; setp.eq.u32 %p2, %r4, -1; @!%p2 trap;";
    assert_eq!(lanes(text), each(|l| l + if l % 2 == 0 { 200 } else { 100 }));
}

#[test]
fn an_early_return_leaves_the_others_together() {
    let text = body(
        "setp.lt.u32 %p0, %tid, 8; @!%p0 bra GO; setp.lt.u32 %p1, %tid, 4; @%p1 ret; st.global.u32 [%mine], 1; ret; GO: activemask.b32 %r0; st.global.u32 [%mine], %r0; ret;",
    );
    let out = Case { body: &text, ..Case::default() }.run().unwrap();
    assert_eq!((out[4], out[8], out[31]), (1, 0xffff_ff00, 0xffff_ff00));
}

#[test]
fn barriers_join_warps_and_reduce() {
    let text = body(".shared .b32 s[128]; mov.u64 %rd0, s; add.u64 %rd1, %rd0, %off; st.shared.u32 [%rd1], %tid; bar.sync 0;
        xor.b32 %r1, %tid, 96; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd0, %rd2; ld.shared.u32 %r0, [%rd2];
        setp.lt.u32 %p0, %tid, 50; bar.red.popc.u32 %r2, 1, %p0; add.u32 %r0, %r0, %r2;
        bar.red.and.pred %p1, 2, %p0; @%p1 trap; bar.red.or.pred %p2, 2, %p0; @!%p2 trap;
        st.global.u32 [%mine], %r0; ret;");
    for seed in [None, Some(1), Some(2)] {
        let out = Case { body: &text, threads: 128, output: 128, seed, ..Case::default() }.run().unwrap();
        assert_eq!(out, (0..128).map(|t| (t ^ 96) + 50).collect::<Vec<u32>>());
    }
}

#[test]
fn asynchronous_copies_arrive_at_the_wait() {
    let text = ".shared .align 16 .b32 s[256]; mov.u64 %rd0, s; mul.wide.u32 %rd1, %tid, 16; add.u64 %rd2, %rd0, %rd1; add.u64 %rd3, %in, %rd1;
        cp.async.cg.shared.global [%rd2], [%rd3], 16; cp.async.commit_group;
        add.u64 %rd4, %rd2, 512; cp.async.ca.shared.global [%rd4], [%rd3], 16, 8; cp.async.commit_group;
        cp.async.wait_group 1; bar.warp.sync -1; ld.shared.u32 %r1, [%rd2+4];
        cp.async.wait_all; bar.warp.sync -1; ld.shared.u32 %r2, [%rd4+4]; ld.shared.u32 %r3, [%rd4+8];
        mul.lo.u32 %r2, %r2, 1000; add.u32 %r0, %r1, %r2; add.u32 %r0, %r0, %r3; st.global.u32 [%mine], %r0; ret;";
    // The third word of the second copy lies past its source size, so it is zero.
    let out = output(text, (0..128).collect(), 32);
    assert_eq!(out, each(|l| (4 * l + 1) * 1001));
}

/// Element (r, c) of an 8 x 8 matrix whose rows lie in shared memory.
#[test]
fn ldmatrix_spreads_rows_over_lanes() {
    for (form, transposed) in [
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", false),
        ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", true),
    ] {
        // 4 matrices of 8 rows of 8 halves: half number i has the value i.
        let text = body(&format!(".shared .align 16 .b16 s[256]; mov.u64 %rd0, s; mul.wide.u32 %rd1, %tid, 16; add.u64 %rd0, %rd0, %rd1; add.u64 %rd1, %in, %rd1;
            ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%rd1]; st.shared.v4.b32 [%rd0], {{%r1, %r2, %r3, %r4}}; bar.warp.sync -1;
            {form} {{%r5, %r6, %r7, %r8}}, [%rd0];
            mul.wide.u32 %rd2, %tid, 16; add.u64 %rd2, %out, %rd2; st.global.v4.b32 [%rd2], {{%r5, %r6, %r7, %r8}}; ret;"));
        let input = (0..128).map(|w| (2 * w) | (2 * w + 1) << 16).collect();
        let out = Case { body: &text, input, output: 128, ..Case::default() }.run().unwrap();
        for lane in 0..32u32 {
            for matrix in 0..4u32 {
                let at = |row: u32, column: u32| {
                    64 * matrix + if transposed { 8 * column + row } else { 8 * row + column }
                };
                let wanted = at(lane / 4, 2 * (lane % 4)) | at(lane / 4, 2 * (lane % 4) + 1) << 16;
                assert_eq!(out[(4 * lane + matrix) as usize], wanted, "lane {lane} matrix {matrix} {form}");
            }
        }
    }
}

/// Every shape and type of `mma.sync`, fragments placed by hand, against a plain product of small integers
/// (exact in every type, so any order of summation gives the same bits).
#[test]
fn mma_is_a_product() {
    let half = |x: f32, bf: bool| {
        u32::from(if bf { half::bf16::from_f32(x).to_bits() } else { half::f16::from_f32(x).to_bits() })
    };
    for (form, k, bf, half_result) in [
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 8, false, false),
        ("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16", 8, false, true),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, false, false),
        ("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", 16, false, true),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16, true, false),
        ("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", 8, true, false),
    ] {
        let a: Vec<f32> = (0..16 * k).map(|i| ((i * 7 + 3) % 11) as f32 - 5.0).collect();
        let b: Vec<f32> = (0..k * 8).map(|i| ((i * 5 + 1) % 13) as f32 - 6.0).collect();
        let c: Vec<f32> = (0..128).map(|i| (i % 17) as f32 - 8.0).collect();
        // Words a lane: A k/4, B k/8, C 2 or 4, in a row.
        let mut input = Vec::new();
        for lane in 0..32 {
            let (g, t) = (lane / 4, lane % 4);
            let mut words = Vec::new();
            for register in 0..k / 4 {
                let (row, column) = (g + 8 * (register % 2), 2 * t + 8 * (register / 2));
                words.push(half(a[row * k + column], bf) | half(a[row * k + column + 1], bf) << 16);
            }
            for register in 0..k / 8 {
                let row = 2 * t + 8 * register;
                words.push(half(b[row * 8 + g], bf) | half(b[(row + 1) * 8 + g], bf) << 16);
            }
            for row in [g, g + 8] {
                let (x, y) = (c[row * 8 + 2 * t], c[row * 8 + 2 * t + 1]);
                if half_result {
                    words.push(half(x, false) | half(y, false) << 16);
                } else {
                    words.extend([x.to_bits(), y.to_bits()]);
                }
            }
            words.resize(12, 0);
            input.extend(words);
        }
        let (results, register) = if half_result { (2, "b32") } else { (4, "f32") };
        let list = |name: &str, from: usize, n: usize| {
            (from..from + n).map(|i| format!("%{name}{i}")).collect::<Vec<_>>().join(", ")
        };
        let mut text = format!(
            ".reg .b32 %x<12>; .reg .{register} %c<4>, %d<4>; mul.wide.u32 %rd0, %tid, 48; add.u64 %rd0, %in, %rd0;\n"
        );
        for w in 0..12 {
            text += &format!("ld.global.b32 %x{w}, [%rd0+{}];\n", 4 * w);
        }
        let (na, nb) = (k / 4, k / 8);
        for r in 0..results {
            text += &format!("mov.b32 %c{r}, %x{};\n", na + nb + r);
        }
        text += &format!(
            "{form} {{{}}}, {{{}}}, {{{}}}, {{{}}};\n",
            list("d", 0, results),
            list("x", 0, na),
            list("x", na, nb),
            list("c", 0, results)
        );
        text += "mul.wide.u32 %rd1, %tid, 16; add.u64 %rd1, %out, %rd1;\n";
        for r in 0..results {
            text += &format!("st.global.b32 [%rd1+{}], %d{r};\n", 4 * r);
        }
        let out = output(&text, input, 128);
        for row in 0..16 {
            for column in 0..8 {
                let wanted: f32 =
                    c[row * 8 + column] + (0..k).map(|p| a[row * k + p] * b[p * 8 + column]).sum::<f32>();
                let lane = 4 * (row % 8) + column / 2;
                let got = if half_result {
                    let word = out[4 * lane + row / 8];
                    half::f16::from_bits((word >> (16 * (column % 2))) as u16).to_f32()
                } else {
                    f32::from_bits(out[4 * lane + 2 * (row / 8) + column % 2])
                };
                assert_eq!(got, wanted, "{form}, row {row} column {column}");
            }
        }
    }
}
