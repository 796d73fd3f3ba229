//! Cases of what works element by element or moves rows: exact, as every operation is one rounding.

use half::{bf16, f16};
use kernels_ptx as k;
use kernels_ptx::{Element, Kernel};

use super::case::{Argument, Case, Data, f32, u32, u64};
use super::values::{Random, TINY, U};

const LENGTHS: [usize; 6] = [0, 1, 255, 256, 257, 1003];

/// Every case of this family.
pub fn cases() -> Vec<Case> {
    let mut random = Random::new(3);
    let mut all = Vec::new();
    for len in LENGTHS {
        all.extend(arithmetic(&mut random, len));
        all.extend(swiglu(&mut random, len));
        all.push(dropout(&mut random, len, 0.0));
        all.push(dropout(&mut random, len, 0.5));
        all.extend(non_finite(&mut random, len));
    }
    for (rows, cols, stride) in [(0, 5, 5), (1, 1, 1), (3, 257, 260), (4, 64, 64)] {
        let mut case = Case::new(&k::BIAS_ADD, format!("{rows} rows of {cols}, stride {stride}"));
        let (y, bias) = (random.floats(rows * stride, 3.0), random.floats(cols, 1.0));
        let mut want = y.clone();
        for row in 0..rows {
            for col in 0..cols {
                want[row * stride + col] += bias[col];
            }
        }
        let (y, bias) = (case.buffer(Data::F32(y)), case.buffer(Data::F32(bias)));
        case.launch(&[rows], &[y, bias, u64(cols), u64(stride)]);
        case.expect_exact(y, Data::F32(want));
        all.push(case);
    }
    all.extend(gathers(&mut random));
    all
}

fn arithmetic(random: &mut Random, len: usize) -> Vec<Case> {
    let label = format!("{len} elements");
    let (a, b) = (random.any_floats(len), random.floats(len, 100.0));
    let zip = |f: fn(f32, f32) -> f32| Data::F32(a.iter().zip(&b).map(|(&a, &b)| f(a, b)).collect());
    let mut all = Vec::new();

    let mut case = Case::new(&k::ADD, label.clone());
    let (x, y) = (case.buffer(Data::F32(a.clone())), case.buffer(Data::F32(b.clone())));
    let sum = case.output(Element::F32, len);
    case.launch(&[len], &[x, y, sum, u64(len)]);
    case.expect_exact(sum, zip(|a, b| a + b));
    all.push(case);

    let mut case = Case::new(&k::ADD, format!("{label}, in place"));
    let (x, y) = (case.buffer(Data::F32(a.clone())), case.buffer(Data::F32(b.clone())));
    case.launch(&[len], &[x, y, y, u64(len)]);
    case.expect_exact(y, zip(|a, b| a + b));
    all.push(case);

    let mut case = Case::new(&k::ACCUMULATE, label.clone());
    let (x, y) = (case.buffer(Data::F32(a.clone())), case.buffer(Data::F32(b.clone())));
    case.launch(&[len], &[x, y, u64(len), f32(0.3)]);
    case.expect_exact(y, zip(|a, b| b + 0.3 * a));
    all.push(case);

    let mut case = Case::new(&k::SCALE, label.clone());
    let (x, factor) = (case.buffer(Data::F32(a.clone())), case.buffer(Data::F32(vec![0.7])));
    case.launch(&[len], &[x, factor, u64(len)]);
    case.expect_exact(x, zip(|a, _| 0.7 * a));
    all.push(case);

    let mut case = Case::new(&k::ZERO, label.clone());
    let x = case.output(Element::F32, len + 1);
    case.launch(&[len], &[x, u64(len)]);
    let mut want = vec![0.0; len];
    want.push(f32::NAN); // the element after the last keeps its poison
    case.expect_exact(x, Data::F32(want));
    all.push(case);

    let mut case = Case::new(&k::COPY, label);
    let (x, y) = (case.buffer(Data::F32(a.clone())), case.output(Element::F32, len));
    case.launch(&[len], &[x, y, u64(len)]);
    case.expect_exact(y, Data::F32(a));
    all.push(case);
    all
}

/// `e^x` of the kernels is within 2 units in the last place: 4 u. One rounding each for the sum 1 + e, the division
/// and the product makes 7 u; e^-g overflows below g = -88.7, where the true result is less than |g up| 2^-127.
fn swiglu(random: &mut Random, len: usize) -> Vec<Case> {
    let mut gate = random.floats(len, 12.0);
    for (gate, special) in gate.iter_mut().zip([0.0, -0.0, 88.0, -88.0, 120.0, -120.0, 1e-30, 1e30, f32::NAN])
    {
        *gate = special;
    }
    let (up, dy) = (random.floats(len, 3.0), random.floats(len, 2.0));
    let rows: Vec<[f64; 3]> =
        gate.iter().zip(&up).zip(&dy).map(|((&g, &u), &d)| [f64::from(g), u.into(), d.into()]).collect();
    let lost = 2f64.powi(-127);
    let mut all = Vec::new();

    let mut case = Case::new(&k::SWIGLU_FORWARD, format!("{len} elements"));
    let (g, u) = (case.buffer(Data::F32(gate.clone())), case.buffer(Data::F32(up.clone())));
    let y = case.output(Element::F32, len);
    case.launch(&[len], &[g, u, y, u64(len)]);
    case.expect_within(
        y,
        rows.iter().map(|&[g, u, _]| {
            let want = g / (1.0 + (-g).exp()) * u;
            (want, 8.0 * U * want.abs() + (g * u).abs() * lost + TINY)
        }),
    );
    all.push(case);

    let mut case = Case::new(&k::SWIGLU_BACKWARD, format!("{len} elements, in place"));
    let (g, u) = (case.buffer(Data::F32(gate)), case.buffer(Data::F32(up)));
    let d = case.buffer(Data::F32(dy));
    case.launch(&[len], &[g, u, d, g, u, u64(len)]);
    // s has 6 u. d_gate = d u s (1 + g (1 - s)): 1 - s adds 7 u of at most 1, which g magnifies; 4 more products.
    case.expect_within(
        g,
        rows.iter().map(|&[g, u, d]| {
            let s = 1.0 / (1.0 + (-g).exp());
            let want = d * u * s * (1.0 + g * (1.0 - s));
            (want, 18.0 * U * (d * u).abs() * s * (1.0 + g.abs()) + (d * u * g).abs() * lost + TINY)
        }),
    );
    case.expect_within(
        u,
        rows.iter().map(|&[g, _, d]| {
            let want = d * g / (1.0 + (-g).exp());
            (want, 9.0 * U * want.abs() + (d * g).abs() * lost + TINY)
        }),
    );
    all.push(case);
    all
}

fn dropout(random: &mut Random, len: usize, beta: f32) -> Case {
    let probability = 0.25f32;
    let key = random.bits();
    let (x, y) = (random.floats(len, 2.0), random.floats(len, 2.0));
    let scale = 1.0 / (1.0 - probability);
    let threshold = (f64::from(probability) * 4_294_967_296.0) as u32;
    // The i-th number of a stream is the first of the one whose key is i increments further on.
    let kept = |i: usize| {
        (Random::new(key.wrapping_add((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))).bits() >> 32) as u32
            >= threshold
    };
    let want = (0..len)
        .map(|i| {
            let x = if kept(i) { x[i] * scale } else { 0.0 };
            if beta == 0.0 { x } else { beta * y[i] + x }
        })
        .collect();
    let mut case = Case::new(&k::DROPOUT, format!("{len} elements, beta {beta}"));
    let (x, key) = (case.buffer(Data::F32(x)), case.buffer(Data::U64(vec![key])));
    let y = if beta == 0.0 { case.output(Element::F32, len) } else { case.buffer(Data::F32(y)) };
    case.launch(&[len], &[x, key, y, u64(len), Argument::U32(threshold), f32(scale), f32(beta)]);
    case.expect_exact(y, Data::F32(want));
    case
}

fn non_finite(random: &mut Random, len: usize) -> Vec<Case> {
    let mut all = Vec::new();
    let finite = random.floats(len, 3e38);
    for bad in [
        None,
        Some((0, f32::NAN)),
        Some((len / 2, f32::INFINITY)),
        Some((len.saturating_sub(1), f32::NEG_INFINITY)),
    ] {
        let mut values = finite.clone();
        let mut want = u64::MAX;
        if let Some((index, value)) = bad.filter(|_| len > 0) {
            values[index] = value;
            values[len - 1] = f32::NAN;
            want = index as u64;
        }
        let mut case = Case::new(&k::NON_FINITE, format!("{len} elements, {bad:?}"));
        let (x, first) = (case.buffer(Data::F32(values)), case.buffer(Data::U64(vec![u64::MAX])));
        case.launch(&[len], &[x, first, u64(len)]);
        case.expect_exact(first, Data::U64(vec![want]));
        all.push(case);
    }
    all
}

fn gathers(random: &mut Random) -> Vec<Case> {
    let mut all = Vec::new();
    for (vocab, hidden, tokens) in [(1, 1, 1), (7, 3, 5), (100, 257, 9), (50, 64, 0)] {
        let table = random.any_floats(vocab * hidden);
        let half: Vec<f16> = table.iter().map(|&x| f16::from_f32(x)).collect();
        let brain: Vec<bf16> = table.iter().map(|&x| bf16::from_f32(x)).collect();
        let mut ids: Vec<u32> = (0..tokens).map(|_| random.below(vocab) as u32).collect();
        if let Some(last) = ids.get_mut(3) {
            *last = vocab as u32; // outside: a row of NaN
        }
        let tables: [(&'static Kernel, Data); 3] = [
            (&k::EMBEDDING_GATHER_F32, Data::F32(table)),
            (&k::EMBEDDING_GATHER_F16, Data::F16(half)),
            (&k::EMBEDDING_GATHER_BF16, Data::Bf16(brain)),
        ];
        for (kernel, table) in tables {
            let want = ids
                .iter()
                .flat_map(|&id| (0..hidden).map(move |col| (id as usize, col)))
                .map(|(id, col)| if id < vocab { table.value(id * hidden + col) as f32 } else { f32::NAN })
                .collect();
            let mut case = Case::new(kernel, format!("{vocab} x {hidden}, {tokens} tokens"));
            let (table, ids) = (case.buffer(table), case.buffer(Data::U32(ids.clone())));
            let target = case.output(Element::F32, tokens * hidden);
            case.launch(&[tokens], &[table, ids, target, u64(hidden), u64(vocab)]);
            case.expect_exact(target, Data::F32(want));
            all.push(case);
        }
    }
    // Rows beyond the count are padding: zero when gathered, ignored when scattered.
    for (total, rows, real, cols) in [(10, 4, 3, 5), (5, 5, 5, 300), (3, 4, 0, 7), (1, 1, 1, 1)] {
        let source = random.floats(total * cols, 2.0);
        let mut indices: Vec<u32> = (0..total as u32).rev().take(real).collect();
        indices.resize(rows, u32::MAX);
        let label = format!("{real} of {rows} rows of {cols}");
        let mut case = Case::new(&k::ROWS_GATHER, label.clone());
        let mut want = vec![0.0; rows * cols];
        for row in 0..real {
            want[row * cols..][..cols].copy_from_slice(&source[indices[row] as usize * cols..][..cols]);
        }
        let x = case.buffer(Data::F32(source));
        let (index, count) =
            (case.buffer(Data::U32(indices.clone())), case.buffer(Data::U32(vec![real as u32])));
        let y = case.output(Element::F32, rows * cols);
        case.launch(&[rows], &[x, index, count, y, u64(cols)]);
        case.expect_exact(y, Data::F32(want.clone()));
        all.push(case);

        let mut case = Case::new(&k::ROWS_SCATTER, label);
        let mut back = vec![0.0; total * cols];
        for row in 0..real {
            back[indices[row] as usize * cols..][..cols].copy_from_slice(&want[row * cols..][..cols]);
        }
        let x = case.buffer(Data::F32(want));
        let (index, count) = (case.buffer(Data::U32(indices)), case.buffer(Data::U32(vec![real as u32])));
        let y = case.buffer(Data::F32(vec![0.0; total * cols]));
        case.launch(&[rows], &[x, index, count, y, u64(cols)]);
        case.expect_exact(y, Data::F32(back));
        all.push(case);
    }
    all.extend(heads(random));
    all
}

/// `[tokens, stride]` against `[kv_heads, tokens, group, head_dim]`.
fn heads(random: &mut Random) -> Vec<Case> {
    let mut all = Vec::new();
    for (tokens, kv_heads, group, head_dim, spare) in
        [(1, 1, 1, 2, 0), (5, 2, 3, 8, 4), (3, 4, 1, 66, 0), (0, 1, 1, 4, 0)]
    {
        let heads = kv_heads * group;
        let stride = heads * head_dim + spare;
        let by_token = random.floats(tokens * stride, 2.0);
        let mut by_head = vec![0.0; tokens * heads * head_dim];
        let mut back = vec![f32::NAN; tokens * stride];
        for token in 0..tokens {
            for head in 0..heads {
                for i in 0..head_dim {
                    let x = by_token[token * stride + head * head_dim + i];
                    by_head[by_head_index(token, head, i, [tokens, group, head_dim])] = x;
                    back[token * stride + head * head_dim + i] = x;
                }
            }
        }
        let sizes = [u64(tokens), u64(stride), u32(heads), u32(group), u32(head_dim)];
        let label = format!("{tokens} tokens, {kv_heads} x {group} heads of {head_dim}");
        let cases: [(&'static Kernel, Vec<f32>, Vec<f32>); 2] =
            [(&k::HEADS_SPLIT, by_token, by_head.clone()), (&k::HEADS_MERGE, by_head, back)];
        for (kernel, from, to) in cases {
            let mut case = Case::new(kernel, label.clone());
            let (x, y) = (case.buffer(Data::F32(from)), case.output(Element::F32, to.len()));
            case.launch(&[tokens], &[&[x, y], &sizes[..]].concat());
            case.expect_exact(y, Data::F32(to));
            all.push(case);
        }
    }
    all
}

/// Where element `i` of a head of a token stands in `[kv_heads, tokens, group, head_dim]`.
pub fn by_head_index(token: usize, head: usize, i: usize, [tokens, group, head_dim]: [usize; 3]) -> usize {
    ((head / group * tokens + token) * group + head % group) * head_dim + i
}
