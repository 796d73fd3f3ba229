//! Cases of the operations of a transformer block: norms and softmax by derived bounds, the rotation exactly.

use cpu_ops::{MatMut, Threads, reference, rope};
use kernels_ptx as k;
use kernels_ptx::{Element, Kernel};

use super::case::{Argument, Case, Data, f32, u32, u64};
use super::elements::by_head_index;
use super::values::{Random, TINY, U, block_sum_roundings, widen};

/// Every case of this family.
pub fn cases() -> anyhow::Result<Vec<Case>> {
    let mut random = Random::new(4);
    let mut all = Vec::new();
    for (rows, cols, scale) in [
        (0, 4, 1.0),
        (1, 1, 1.0),
        (2, 64, 1e-6),
        (3, 255, 1.0),
        (3, 256, 1e4),
        (2, 257, 1.0),
        (2, 1536, 3.0),
        (1, 4097, 1.0),
    ] {
        all.extend(norm(&mut random, rows, cols, scale));
    }
    all.extend(rotation(&mut random)?);
    all.extend(softmax(&mut random));
    Ok(all)
}

/// The sum of squares has positive terms, so its relative error is that of one term: `block_sum_roundings` and one
/// for the product, u each. The division by cols, eps and the root: half of the sum's error, and 1/2 + 1/2 + 1 u; its
/// reciprocal 1 u more. That is `r`'s.
fn r_roundings(cols: usize) -> f64 {
    (block_sum_roundings(cols) + 1.0) / 2.0 + 3.0
}

fn norm(random: &mut Random, rows: usize, cols: usize, scale: f32) -> Vec<Case> {
    let eps = 1e-6f32;
    let x = random.floats(rows * cols, scale);
    let weight: Vec<f32> = random.floats(cols, 0.5).iter().map(|w| 1.0 + w).collect();
    let (dy, dx) = (random.floats(rows * cols, 2.0), random.floats(rows * cols, 2.0));
    let (wide, wide_weight) = (widen(&x), widen(&weight));
    let label = format!("{rows} rows of {cols}, values to {scale}");
    let mut all = Vec::new();

    let mut case = Case::new(&k::RMS_NORM_FORWARD, label.clone());
    let (in_x, in_w) = (case.buffer(Data::F32(x.clone())), case.buffer(Data::F32(weight.clone())));
    let y = case.output(Element::F32, rows * cols);
    case.launch(&[rows], &[in_x, in_w, y, u64(cols), f32(eps)]);
    let want = reference::norm::rms_norm(&wide, cols, &wide_weight, eps.into());
    // Two more products.
    let roundings = r_roundings(cols) + 2.0;
    case.expect_within(y, want.iter().map(|&y| (y, roundings * U * y.abs() + TINY)));
    all.push(case);

    for beta in [0.0, 1.0, 0.5] {
        let mut case = Case::new(&k::RMS_NORM_BACKWARD, format!("{label}, beta {beta}"));
        let (in_x, in_w) = (case.buffer(Data::F32(x.clone())), case.buffer(Data::F32(weight.clone())));
        let in_dy = case.buffer(Data::F32(dy.clone()));
        let out = if beta == 0.0 {
            case.output(Element::F32, rows * cols)
        } else {
            case.buffer(Data::F32(dx.clone()))
        };
        case.launch(&[rows], &[in_x, in_w, in_dy, out, u64(cols), f32(eps), f32(beta)]);
        let mut pairs = Vec::new();
        for row in 0..rows {
            let range = row * cols..(row + 1) * cols;
            let terms = || wide[range.clone()].iter().zip(&wide_weight).zip(&dy[range.clone()]);
            let square: f64 = wide[range.clone()].iter().map(|x| x * x).sum::<f64>() / cols as f64;
            let r = 1.0 / (square + f64::from(eps)).sqrt();
            let dot: f64 = terms().map(|((x, w), &d)| x * w * f64::from(d)).sum();
            let size: f64 = terms().map(|((x, w), &d)| (x * w * f64::from(d)).abs()).sum();
            let share = r * r / cols as f64;
            // The dot product errs by (block_sum_roundings + 2) u of the sum of its magnitudes, and r^2 / cols by twice
            // r's error and three operations; the last line has four operations and r once more.
            let in_dot = block_sum_roundings(cols) + 2.0 + 2.0 * r_roundings(cols) + 3.0;
            let after = r_roundings(cols) + 4.0;
            for (at, ((x, w), &d)) in range.clone().zip(terms()) {
                let old = if beta == 0.0 { 0.0 } else { f64::from(beta) * f64::from(dx[at]) };
                let (along, across) = (r * w * f64::from(d), r * x * share);
                let want = old + along - across * dot;
                let bound = after * (along.abs() + across.abs() * size)
                    + in_dot * across.abs() * size
                    + 2.0 * old.abs();
                pairs.push((want, bound * U + TINY));
            }
        }
        case.expect_within(out, pairs);
        all.push(case);
    }
    all
}

/// The rotation has two products and a sum an element, each rounded, on both sides: equal bits.
fn rotation(random: &mut Random) -> anyhow::Result<Vec<Case>> {
    let threads = Threads::new(1)?;
    let mut all = Vec::new();
    for (tokens, kv_heads, group, head_dim, spare) in
        [(0, 1, 1, 2, 0), (1, 1, 1, 2, 0), (5, 2, 3, 8, 4), (3, 4, 1, 66, 0), (4, 2, 2, 128, 0)]
    {
        let (heads, half, limit) = (kv_heads * group, head_dim / 2, 300);
        let stride = heads * head_dim + spare;
        let frequencies: Vec<f32> = (0..half).map(|i| 1e4f32.powf(-(i as f32) / half as f32)).collect();
        let table = rope::RopeTable::new(&frequencies, 1.0, limit)?;
        let angle = |position: usize, i: usize| f64::from(position as f32 * frequencies[i]);
        let entries = |f: fn(f64) -> f64| -> Vec<f32> {
            (0..limit * half).map(|at| f(angle(at / half, at % half)) as f32).collect()
        };
        let (cosines, sines) = (entries(f64::cos), entries(f64::sin));
        let positions: Vec<u32> = (0..tokens).map(|_| random.below(limit) as u32).collect();
        let x = random.floats(tokens * stride, 2.0);
        let directions: [(&'static Kernel, rope::Direction); 2] =
            [(&k::ROPE_FORWARD, rope::Direction::Forward), (&k::ROPE_INVERSE, rope::Direction::Inverse)];
        for (kernel, direction) in directions {
            let mut turned = x.clone();
            let view = MatMut::with_stride(&mut turned, tokens, heads * head_dim, stride)?;
            rope::rotate(&threads, &table, &positions, head_dim, direction, view)?;
            let sort = |by_token: &[f32]| {
                let mut by_head = vec![0.0; tokens * heads * head_dim];
                for (token, head, i) in (0..tokens)
                    .flat_map(|t| (0..heads).flat_map(move |h| (0..head_dim).map(move |i| (t, h, i))))
                {
                    by_head[by_head_index(token, head, i, [tokens, group, head_dim])] =
                        by_token[token * stride + head * head_dim + i];
                }
                by_head
            };
            // What is beyond the heads of a token is not written.
            let (from, to) = match direction {
                rope::Direction::Forward => (x.clone(), sort(&turned)),
                rope::Direction::Inverse => {
                    for token in 0..tokens {
                        turned[token * stride + heads * head_dim..][..spare].fill(f32::NAN);
                    }
                    (sort(&x), turned)
                }
            };
            let mut case =
                Case::new(kernel, format!("{tokens} tokens, {kv_heads} x {group} heads of {head_dim}"));
            let input = case.buffer(Data::F32(from));
            let places = case.buffer(Data::U32(positions.clone()));
            let (cos, sin) = (case.buffer(Data::F32(cosines.clone())), case.buffer(Data::F32(sines.clone())));
            let output = case.output(Element::F32, to.len());
            let sizes = [u64(tokens), u64(stride), u32(heads), u32(group), u32(head_dim)];
            case.launch(&[tokens], &[&[input, places, cos, sin, output], &sizes[..]].concat());
            case.expect_exact(output, Data::F32(to));
            all.push(case);
        }
    }
    Ok(all)
}

/// Sizes of a tile of scores.
#[derive(Clone, Copy)]
struct Tile {
    kv_heads: usize,
    queries: usize,
    group: usize,
    first_query: usize,
    key_offset: usize,
    keys: usize,
    stride: usize,
}

fn softmax(random: &mut Random) -> Vec<Case> {
    let mut all = Vec::new();
    let scale = 0.125f32;
    let tile = |kv_heads, queries, group, first_query, key_offset, keys, stride| Tile {
        kv_heads,
        queries,
        group,
        first_query,
        key_offset,
        keys,
        stride,
    };
    for (tile, samples) in [
        (tile(1, 1, 1, 0, 0, 1, 1), vec![0]),
        (tile(2, 5, 3, 0, 0, 5, 8), vec![0, 2]),
        (tile(1, 4, 2, 3, 0, 7, 7), vec![0, 5]),
        (tile(1, 3, 1, 300, 0, 303, 304), vec![0, 40, 301]),
        (tile(1, 2, 2, 0, 513, 515, 515), vec![0]),
        // Keys end before the last query does: the caller's tile of keys.
        (tile(1, 4, 1, 0, 0, 2, 2), vec![0]),
    ] {
        let rows = tile.kv_heads * tile.queries * tile.group;
        let starts: Vec<u32> = (0..tile.first_query + tile.queries)
            .map(|query| *samples.iter().rev().find(|&&start| start as usize <= query).unwrap_or(&0))
            .collect();
        let query = |row: usize| tile.first_query + row / tile.group % tile.queries;
        let visible = |row: usize| {
            let to = (tile.key_offset + query(row) + 1).min(tile.keys);
            (starts[query(row)] as usize).min(to)..to
        };
        let mut scores = random.floats(rows * tile.stride, 40.0);
        if rows > 3 {
            scores[visible(3).start + 3 * tile.stride] = 2000.0; // the others of this row underflow
        }
        let grad = random.floats(rows * tile.stride, 3.0);
        let label =
            format!("{rows} rows of {} keys, samples at {samples:?}, offset {}", tile.keys, tile.key_offset);
        let tail = |case: &mut Case| -> Vec<Argument> {
            let starts = case.buffer(Data::U32(starts.clone()));
            vec![
                starts,
                u64(tile.stride),
                u32(tile.keys),
                u32(tile.queries),
                u32(tile.group),
                u32(tile.first_query),
                u32(tile.key_offset),
                f32(scale),
            ]
        };
        // Forward: z = scale (s - max) has two roundings, so e^z errs by 2 u |z|, and 4 u of its own; the sum by the
        // mean of that over the row and block_sum_roundings; then a reciprocal and a product.
        let mut forward = Vec::new();
        let mut probabilities = vec![0f32; rows * tile.stride];
        for row in 0..rows {
            let seen = visible(row);
            let line = &scores[row * tile.stride..][..tile.stride];
            let most = line[seen.clone()].iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let z = |key: usize| f64::from(scale) * (f64::from(line[key]) - f64::from(most));
            let sum: f64 = seen.clone().map(|key| z(key).exp()).sum();
            let mean: f64 = seen.clone().map(|key| z(key).exp() / sum * (2.0 * z(key).abs() + 4.0)).sum();
            for key in 0..tile.stride {
                let pair = if key >= tile.keys {
                    (f64::NAN, 0.0) // beyond the keys nothing is written
                } else if seen.contains(&key) {
                    let p = z(key).exp() / sum;
                    let roundings = 2.0 * z(key).abs() + 4.0 + mean + block_sum_roundings(tile.keys) + 2.0;
                    probabilities[row * tile.stride + key] = p as f32;
                    (p, roundings * U * p + 2.0 * TINY)
                } else {
                    (0.0, 0.0)
                };
                forward.push(pair);
            }
        }
        let mut case = Case::new(&k::SOFTMAX_FORWARD, label.clone());
        let (x, y) = (case.buffer(Data::F32(scores.clone())), case.output(Element::F32, rows * tile.stride));
        let rest = tail(&mut case);
        case.launch(&[rows], &[&[x, rest[0], y], &rest[1..]].concat());
        case.expect_within(y, forward.clone());
        all.push(case);

        let mut case = Case::new(&k::SOFTMAX_FORWARD, format!("{label}, in place"));
        for (at, pair) in forward.iter_mut().enumerate().filter(|(at, _)| at % tile.stride >= tile.keys) {
            *pair = (scores[at].into(), 0.0);
        }
        let x = case.buffer(Data::F32(scores.clone()));
        let rest = tail(&mut case);
        case.launch(&[rows], &[&[x, rest[0], x], &rest[1..]].concat());
        case.expect_within(x, forward);
        all.push(case);

        // Backward: the dot product errs by (block_sum_roundings + 1) u of its magnitudes; a difference and two
        // products follow.
        let mut backward = Vec::new();
        for row in 0..rows {
            let seen = visible(row);
            let p = |key: usize| f64::from(probabilities[row * tile.stride + key]);
            let d = |key: usize| f64::from(grad[row * tile.stride + key]);
            let dot: f64 = seen.clone().map(|key| p(key) * d(key)).sum();
            let size: f64 = seen.clone().map(|key| (p(key) * d(key)).abs()).sum();
            for key in 0..tile.stride {
                backward.push(if key >= tile.keys {
                    (f64::NAN, 0.0)
                } else if seen.contains(&key) {
                    let want = f64::from(scale) * p(key) * (d(key) - dot);
                    let in_dot = (block_sum_roundings(tile.keys) + 1.0) * size;
                    let bound = f64::from(scale) * p(key) * (in_dot + 3.0 * (d(key).abs() + size));
                    (want, bound * U + 2.0 * TINY)
                } else {
                    (0.0, 0.0)
                });
            }
        }
        let mut case = Case::new(&k::SOFTMAX_BACKWARD, label);
        let (p, d) = (case.buffer(Data::F32(probabilities)), case.buffer(Data::F32(grad)));
        let y = case.output(Element::F32, rows * tile.stride);
        let rest = tail(&mut case);
        case.launch(&[rows], &[&[p, d, rest[0], y], &rest[1..]].concat());
        case.expect_within(y, backward);
        all.push(case);
    }
    // A NaN that is seen makes its row NaN; one that is hidden does nothing.
    let mut case = Case::new(&k::SOFTMAX_FORWARD, "NaN among the scores");
    let x = case.buffer(Data::F32(vec![1.0, f32::NAN, 2.0, f32::NAN]));
    let (starts, y) = (case.buffer(Data::U32(vec![0, 0])), case.output(Element::F32, 4));
    case.launch(&[2], &[x, starts, y, u64(2), u32(2), u32(2), u32(1), u32(0), u32(0), f32(1.0)]);
    case.expect_exact(y, Data::F32(vec![1.0, 0.0, f32::NAN, f32::NAN]));
    all.push(case);
    all
}
