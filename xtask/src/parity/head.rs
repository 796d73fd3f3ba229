//! Cases of the one-pass head: the kernels of a whole pass over vocabulary tiles, against the loss and its gradient in
//! f64.

use cpu_ops::reference;
use half::{bf16, f16};
use kernels_ptx as k;
use kernels_ptx::{Element, Kernel};

use super::case::{Argument, Case, Data, f32, u32, u64};
use super::values::{Random, TINY, U, block_sum_roundings};

/// Every case of this family.
pub fn cases() -> Vec<Case> {
    let mut random = Random::new(7);
    let mut all = Vec::new();
    for (rows, real, vocab, hidden, tile, spread) in [
        (1, 1, 1, 1, 4, 1.0),
        (3, 3, 5, 7, 2, 1.0),
        (4, 2, 700, 33, 300, 0.3),
        (2, 2, 513, 16, 256, 6.0),
        (3, 3, 50, 8, 50, 30.0),
    ] {
        let table: Vec<f32> = random.floats(vocab * hidden, spread);
        let joins: [(&'static Kernel, Data); 3] = [
            (&k::HEAD_JOIN_F32, Data::F32(table.clone())),
            (&k::HEAD_JOIN_F16, Data::F16(table.iter().map(|&x| f16::from_f32(x)).collect())),
            (&k::HEAD_JOIN_BF16, Data::Bf16(table.iter().map(|&x| bf16::from_f32(x)).collect())),
        ];
        for (join, table) in joins {
            let shape = Shape { rows, real, vocab, hidden, tile };
            all.push(pass(&mut random, shape, join, table.clone()));
            // The same pass counts as a case of the tile kernel, which has no result of its own to compare.
            if join.name == k::HEAD_JOIN_F32.name {
                let mut case = pass(&mut random, shape, join, table);
                case.kernel = &k::HEAD_TILE;
                all.push(case);
            }
        }
    }
    all
}

#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    /// Rows that are no padding.
    real: usize,
    vocab: usize,
    hidden: usize,
    tile: usize,
}

/// Logits by tile with the f32 product, the tile kernel, the product with the tile, and the join at the end.
fn pass(random: &mut Random, shape: Shape, join: &'static Kernel, table: Data) -> Case {
    let Shape { rows, real, vocab, hidden, tile } = shape;
    let h = random.floats(rows * hidden, 1.0);
    // The products of the case take the table as f32, whatever the join reads.
    let wide: Vec<f32> = (0..table.len()).map(|i| table.value(i) as f32).collect();
    let targets: Vec<u32> =
        (0..rows).map(|row| if row == 0 { vocab - 1 } else { random.below(vocab) } as u32).collect();
    let factor = 0.25f32;
    let mut case = Case::new(join, format!("{real} of {rows} rows, {vocab} x {hidden} in tiles of {tile}"));
    let in_h = case.buffer(Data::F32(h.clone()));
    let in_table = case.buffer(table);
    let in_wide = case.buffer(Data::F32(wide.clone()));
    let logits = case.output(Element::F32, rows * tile);
    let in_targets = case.buffer(Data::U32(targets.clone()));
    let count = case.buffer(Data::U32(vec![real as u32]));
    let state = [0; 3].map(|_| case.output(Element::F32, rows));
    let accumulated = case.output(Element::F32, rows * hidden);
    let mut first = 0;
    while first < vocab {
        let width = tile.min(vocab - first);
        let Argument::Buffer { index, .. } = in_wide else { unreachable!("just made") };
        let part = Argument::Buffer { index, offset: first * hidden };
        let product = |a, b, c, sizes: [usize; 3], strides: [usize; 3], b_transposed: bool, beta: f32| {
            let mut arguments = vec![a, b, c];
            arguments.extend(sizes.map(u32));
            arguments.extend(strides.map(u64));
            arguments.extend([u64(0), u64(0), u64(0), u32(0), u32(b_transposed.into()), f32(1.0), f32(beta)]);
            arguments
        };
        let arguments = product(in_h, part, logits, [rows, width, hidden], [hidden, hidden, tile], true, 0.0);
        case.launch_of(&k::GEMM_F32, &[rows, width, 1], &arguments);
        let arguments = [
            logits,
            in_targets,
            count,
            state[0],
            state[1],
            state[2],
            accumulated,
            u64(tile),
            u64(hidden),
            u32(width),
            u32(first),
        ];
        case.launch_of(&k::HEAD_TILE, &[rows], &arguments);
        let beta = if first == 0 { 0.0 } else { 1.0 };
        let arguments =
            product(logits, part, accumulated, [rows, hidden, width], [tile, hidden, hidden], false, beta);
        case.launch_of(&k::GEMM_F32, &[rows, hidden, 1], &arguments);
        first += width;
    }
    let in_factor = case.buffer(Data::F32(vec![factor]));
    let losses = case.output(Element::F32, rows);
    let arguments = [
        accumulated,
        state[0],
        state[1],
        state[2],
        in_targets,
        in_table,
        count,
        in_factor,
        losses,
        accumulated,
        u64(hidden),
        u64(vocab),
    ];
    case.launch(&[rows], &arguments);

    let (mut loss_pairs, mut gradient_pairs) = (Vec::new(), Vec::new());
    for row in 0..rows {
        if row >= real {
            loss_pairs.push((0.0, 0.0));
            gradient_pairs.extend(vec![(0.0, 0.0); hidden]);
            continue;
        }
        let line: Vec<f64> = h[row * hidden..][..hidden].iter().map(|&x| x.into()).collect();
        let embedding: Vec<f64> = wide.iter().map(|&x| x.into()).collect();
        let target = targets[row] as usize;
        let (loss, gradient) = reference::lm_head::cross_entropy(&line, &embedding, target);
        let dot = |v: usize, f: fn(f64) -> f64| -> f64 {
            embedding[v * hidden..][..hidden].iter().zip(&line).map(|(e, h)| f(e * h)).sum()
        };
        // A logit errs by hidden u of its magnitudes, and so does its distance from the maximum, which adds a rounding
        // of its own size; e^ adds 4 u. Each later tile rescales: one product, and e^ of a difference of maxima.
        let logits: Vec<f64> = (0..vocab).map(|v| dot(v, |x| x)).collect();
        let magnitude = (0..vocab).map(|v| dot(v, f64::abs)).fold(0.0, f64::max);
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let span = logits.iter().map(|l| most - l).fold(0.0, f64::max);
        let tiles = vocab.div_ceil(tile) as f64;
        let in_logit = 2.0 * hidden as f64 * magnitude;
        let in_weight = |distance: f64| 2.0 * in_logit + distance + 4.0 + tiles * (span.min(104.0) + 6.0);
        // Sums over a tile and of tiles; the product with the tile is one chain over the vocabulary.
        let in_sum = block_sum_roundings(tile) + tiles + 4.0;
        let in_chain = vocab as f64 + 4.0;
        let total: f64 = logits.iter().map(|l| (l - most).exp()).sum();
        // What the weights can err by in all, relative to the total.
        let in_total: f64 = logits
            .iter()
            .map(|l| (l - most).exp() / total * (in_weight((most - l).min(104.0)) + in_sum))
            .sum();
        // ln has 4 u of its own result, and of the difference of the larger of maximum and target from the target.
        let rest = 1.0 - (logits[target] - most).exp() / total;
        let lead = if rest < 0.5 { rest } else { 1.0 };
        let bound =
            (in_total * lead + in_logit + 4.0 * loss.abs() + 2.0 * (most - logits[target]).abs()) * U + TINY;
        loss_pairs.push((loss, bound));
        for (col, want) in gradient.iter().enumerate() {
            // Weights times embedding, with the target on both sides of a difference: (a O - s a E) / D.
            let spread: f64 = logits
                .iter()
                .enumerate()
                .filter(|&(v, _)| v != target)
                .map(|(v, l)| {
                    let p = (l - most).exp() / total;
                    let size = embedding[v * hidden + col].abs() + embedding[target * hidden + col].abs();
                    p * size * (in_weight((most - l).min(104.0)) + in_chain + in_sum + in_total + 8.0)
                })
                .sum();
            let factor = f64::from(factor);
            gradient_pairs.push((want * factor, spread * factor * U + TINY));
        }
    }
    case.expect_within(losses, loss_pairs);
    case.expect_within(accumulated, gradient_pairs);
    case
}
