//! Cases of the global norm, AdamW and the sums: AdamW exactly, sums in f64 by their bound.

use anyhow::Context as _;
use cpu_ops::{Threads, optimiser};
use kernels_ptx as k;
use kernels_ptx::Element;
use safetensors::SafeTensors;

use super::case::{Argument, Case, Data, f32, u32, u64};
use super::values::{Random, U, U64, block_sum_roundings};

/// Every case of this family.
pub fn cases() -> anyhow::Result<Vec<Case>> {
    let mut random = Random::new(5);
    let mut all = Vec::new();
    for lengths in [vec![1], vec![300], vec![255, 256, 257, 1], vec![1000; 9]] {
        all.extend(norm(&mut random, &lengths));
        all.extend(adamw(&mut random, &lengths)?);
    }
    all.extend(special_norms());
    for (len, before) in [(0, 1.5), (1, 0.0), (700, -3.0)] {
        let values = random.floats(len, 4.0);
        let mut case = Case::new(&k::SUM, format!("{len} elements"));
        let (x, total) = (case.buffer(Data::F32(values.clone())), case.buffer(Data::F64(vec![before])));
        case.launch(&[1], &[x, total, u64(len)]);
        let sum: f64 = values.iter().map(|&x| f64::from(x)).sum();
        let size: f64 = values.iter().map(|&x| f64::from(x.abs())).sum();
        // The oracle's own sum has one rounding a term.
        let roundings = block_sum_roundings(len) + len as f64 + 1.0;
        case.expect_within(total, [(before + sum, roundings * U64 * (size + before.abs()))]);
        all.push(case);
    }
    all.extend(adamw_8bit(&mut random)?);
    Ok(all)
}

/// Chunks of at most `most` elements: where each begins, how long it is, and the first chunk of each tensor.
fn chunks(lengths: &[usize], most: usize) -> (Vec<u64>, Vec<u32>, Vec<u32>) {
    let (mut first, mut length, mut tensors) = (Vec::new(), Vec::new(), vec![0]);
    let mut at = 0;
    for &len in lengths {
        let mut done = 0;
        while done < len {
            let part = most.min(len - done);
            first.push((at + done) as u64);
            length.push(part as u32);
            done += part;
        }
        at += len;
        tensors.push(first.len() as u32);
    }
    (first, length, tensors)
}

/// sum_of_squares, sum_of_squares_tensors and global_norm, one after another.
fn norm(random: &mut Random, lengths: &[usize]) -> Vec<Case> {
    let values = random.floats(lengths.iter().sum(), 2.0);
    let (first, length, tensors) = chunks(lengths, 300);
    let max_norm = 1.0f32;
    let mut all = Vec::new();
    let mut partials = Vec::new();
    for (&first, &length) in first.iter().zip(&length) {
        partials.push(optimiser::sum_of_squares(&values[first as usize..][..length as usize]));
    }
    let sums: Vec<f64> =
        tensors.windows(2).map(|pair| partials[pair[0] as usize..pair[1] as usize].iter().sum()).collect();
    let count = values.len() as f64;
    // All terms are positive, so a sum errs by the roundings of one term: ours, and those of the oracle.
    let bound = |sum: f64| (2.0 * block_sum_roundings(values.len()) + count / 16.0 + 20.0) * U64 * sum;

    let label = format!("tensors of {lengths:?}");
    let build = |kernel| {
        let mut case = Case::new(kernel, label.clone());
        let x = case.buffer(Data::F32(values.clone()));
        let (at, len) = (case.buffer(Data::U64(first.clone())), case.buffer(Data::U32(length.clone())));
        let parts = case.output(Element::F64, first.len());
        case.launch_of(&k::SUM_OF_SQUARES, &[first.len()], &[x, at, len, parts]);
        (case, parts)
    };
    let (mut case, parts) = build(&k::SUM_OF_SQUARES);
    case.expect_within(parts, partials.iter().map(|&sum| (sum, bound(sum))));
    all.push(case);

    let with_tensors = |kernel| {
        let (mut case, parts) = build(kernel);
        let borders = case.buffer(Data::U32(tensors.clone()));
        let totals = case.output(Element::F64, lengths.len());
        case.launch_of(&k::SUM_OF_SQUARES_TENSORS, &[lengths.len()], &[parts, borders, totals]);
        (case, totals)
    };
    let (mut case, totals) = with_tensors(&k::SUM_OF_SQUARES_TENSORS);
    case.expect_within(totals, sums.iter().map(|&sum| (sum, bound(sum))));
    all.push(case);

    let (mut case, totals) = with_tensors(&k::GLOBAL_NORM);
    let (norm, factor) = (case.output(Element::F32, 1), case.output(Element::F32, 1));
    let bad = case.output(Element::U32, 1);
    case.launch(&[1], &[totals, norm, factor, bad, u32(lengths.len()), f32(max_norm)]);
    let total: f64 = sums.iter().sum::<f64>().sqrt();
    // One rounding to f32; the errors in f64 vanish beside it.
    case.expect_within(norm, [(total, 1.001 * U * total)]);
    let clip = (f64::from(max_norm) / (total + 1e-6)).min(1.0);
    case.expect_within(factor, [(clip, 1.001 * U * clip)]);
    case.expect_exact(bad, Data::U32(vec![u32::MAX]));
    all.push(case);
    all
}

/// Label, sums, limit; norm, factor and first bad tensor that are wanted.
type SpecialNorm = (&'static str, Vec<f64>, f32, f32, f32, u32);

/// What is not finite, no clipping, and no tensor at all.
fn special_norms() -> Vec<Case> {
    let nan = f64::NAN;
    let cases: [SpecialNorm; 5] = [
        ("no clipping", vec![9.0, 16.0], 0.0, 5.0, 1.0, u32::MAX),
        ("below the limit", vec![9.0, 16.0], 6.0, 5.0, 1.0, u32::MAX),
        ("no tensor", vec![], 1.0, 0.0, 1.0, u32::MAX),
        ("NaN in the third", vec![1.0, 2.0, nan, f64::INFINITY], 1.0, f32::NAN, f32::NAN, 2),
        ("infinite first", vec![f64::INFINITY, 1.0], 1.0, f32::INFINITY, 0.0, 0),
    ];
    cases
        .into_iter()
        .map(|(label, sums, max_norm, norm, factor, bad)| {
            let mut case = Case::new(&k::GLOBAL_NORM, label);
            let tensors = sums.len();
            let x = case.buffer(Data::F64(sums));
            let outputs =
                [case.output(Element::F32, 1), case.output(Element::F32, 1), case.output(Element::U32, 1)];
            case.launch(&[1], &[&[x], &outputs[..], &[u32(tensors), f32(max_norm)]].concat());
            case.expect_exact(outputs[0], Data::F32(vec![norm]));
            case.expect_exact(outputs[1], Data::F32(vec![factor]));
            case.expect_exact(outputs[2], Data::U32(vec![bad]));
            case
        })
        .collect()
}

/// The settings of every AdamW case.
const RULE: optimiser::AdamW =
    optimiser::AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };

/// What `adamw_coefficients` should give, in f64.
fn coefficients(update: u64) -> [f64; 4] {
    let rate = 1e-3f64;
    [
        rate / (1.0 - 0.9f64.powf(update as f64)),
        1.0 - rate * 0.01,
        (1.0 - 0.999f64.powf(update as f64)).sqrt(),
        rate * 0.01,
    ]
}

/// Betas and what they leave, and eps.
fn settings() -> [Argument; 5] {
    [f32(0.9), f32(0.1), f32(0.999), f32(0.001), f32(1e-8)]
}

fn adamw(random: &mut Random, lengths: &[usize]) -> anyhow::Result<Vec<Case>> {
    let threads = Threads::new(1)?;
    let mut all = Vec::new();
    for (update, scale, ratio) in [(1, 1.0, None), (2, 0.25, None), (1000, 1.0, Some(16.0f32))] {
        let len = lengths.iter().sum();
        let (p, g) = (random.floats(len, 1.0), random.floats(len, 0.1));
        let m = random.floats(len, 0.1);
        let v: Vec<f32> = random.floats(len, 0.1).iter().map(|x| x * x).collect();
        let (mut want_p, mut want_m, mut want_v) = (p.clone(), m.clone(), v.clone());
        let (first, length, _) = chunks(lengths, 300);
        let shared = coefficients(update).map(|x| x as f32);
        if let Some(ratio) = ratio {
            // The same arithmetic with the rate of the chunk.
            for i in 0..len {
                let g = g[i] * scale;
                want_m[i] = 0.9 * want_m[i] + 0.1 * g;
                want_v[i] = 0.999 * want_v[i] + 0.001 * g * g;
                let step = want_m[i] / (want_v[i].sqrt() / shared[2] + 1e-8);
                want_p[i] = want_p[i] * (1.0 - shared[3] * ratio) - shared[0] * ratio * step;
            }
        } else {
            optimiser::adamw(&threads, &RULE, update, scale, &mut want_p, &g, &mut want_m, &mut want_v)?;
        }
        let mut case =
            Case::new(&k::ADAMW, format!("tensors of {lengths:?}, update {update}, rate {ratio:?}"));
        let (p, g) = (case.buffer(Data::F32(p)), case.buffer(Data::F32(g)));
        let (m, v) = (case.buffer(Data::F32(m)), case.buffer(Data::F32(v)));
        let (at, parts) = (case.buffer(Data::U64(first.clone())), case.buffer(Data::U32(length)));
        let rates = match ratio {
            Some(ratio) => case.buffer(Data::F32(vec![ratio; first.len()])),
            None => Argument::Nothing,
        };
        let shared = case.buffer(Data::F32(shared.to_vec()));
        let factor = case.buffer(Data::F32(vec![scale]));
        case.launch(
            &[first.len()],
            &[&[p, g, m, v, at, parts, rates, shared, factor], &settings()[..]].concat(),
        );
        case.expect_exact(p, Data::F32(want_p));
        case.expect_exact(m, Data::F32(want_m));
        case.expect_exact(v, Data::F32(want_v));
        all.push(case);
    }
    for update in [1u64, 2, 3, 100, 12345, 1 << 40] {
        let mut case = Case::new(&k::ADAMW_COEFFICIENTS, format!("update {update}"));
        let (rate, at) = (case.buffer(Data::F64(vec![1e-3])), case.buffer(Data::U64(vec![update])));
        let out = case.output(Element::F32, 4);
        case.launch(&[1], &[rate, at, out, Argument::F64(0.9), Argument::F64(0.999), Argument::F64(0.01)]);
        // A rounding to f32; beta^t errs by less than 64 u of f64 in either way of computing it, of a difference from
        // 1 that is at least 0.001.
        case.expect_within(out, coefficients(update).map(|x| (x, x.abs() * (U + 1e5 * U64))));
        all.push(case);
    }
    Ok(all)
}

/// What bitsandbytes' rule gives, and its dynamic maps: signed for first moments, unsigned for second.
struct Fixture {
    file: &'static [u8],
}

impl Fixture {
    /// Part of the program, so that it also runs where there is no workspace.
    const fn here() -> Self {
        Self { file: include_bytes!("../../../tests/fixtures/adamw8.safetensors") }
    }

    fn bytes(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        Ok(SafeTensors::deserialize(self.file)?
            .tensor(name)
            .with_context(|| name.to_string())?
            .data()
            .to_vec())
    }

    fn floats(&self, name: &str) -> anyhow::Result<Vec<f32>> {
        let bytes = self.bytes(name)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|&four| f32::from_le_bytes(four)).collect())
    }
}

/// One update of one chunk as adamw_8bit states it, in f32; the state is changed in place.
struct Chunk8<'a> {
    p: &'a mut [f32],
    g: &'a [f32],
    m: &'a mut [u8],
    v: &'a mut [u8],
    absmax: [&'a mut f32; 2],
}

/// How many midpoints of the map lie below the value: the nearest code, a tie taking the lower.
fn nearest(map: &[f32], value: f32) -> u8 {
    map.windows(2).filter(|pair| value > (pair[0] + pair[1]) * 0.5).count() as u8
}

fn update_8bit(chunk: Chunk8<'_>, [m_map, v_map]: [&[f32]; 2], shared: [f32; 4], bound: f32) {
    let mut moments = Vec::new();
    for i in 0..chunk.p.len() {
        let g = chunk.g[i];
        let m = 0.9 * (m_map[usize::from(chunk.m[i])] * *chunk.absmax[0]) + 0.1 * g;
        let v = 0.999 * (v_map[usize::from(chunk.v[i])] * *chunk.absmax[1]) + 0.001 * g * g;
        let step = (m / (v.sqrt() / shared[2] + 1e-8)).clamp(-bound, bound);
        chunk.p[i] = chunk.p[i] * shared[1] - shared[0] * step;
        moments.push([m, v]);
    }
    for (which, (codes, map)) in [(chunk.m, m_map), (chunk.v, v_map)].into_iter().enumerate() {
        let most = moments.iter().fold(0f32, |most, pair| most.max(pair[which].abs()));
        for (code, pair) in codes.iter_mut().zip(&moments) {
            *code = nearest(map, pair[which] * (1.0 / most));
        }
        *chunk.absmax[which] = most;
    }
}

/// Launches one update; returns the buffers of parameters, both codes and both scales.
fn launch_8bit(
    case: &mut Case,
    data: [Data; 6],
    first: &[u64],
    length: &[u32],
    update: u64,
    bound: f32,
) -> [Argument; 5] {
    let [p, g, m, v, m_absmax, v_absmax] = data.map(|data| case.buffer(data));
    let shared = Data::F32(coefficients(update).map(|x| x as f32).to_vec());
    let rest = [
        case.buffer(Data::U64(first.to_vec())),
        case.buffer(Data::U32(length.to_vec())),
        Argument::Nothing,
        case.buffer(shared),
        case.buffer(Data::F32(vec![1.0])),
    ];
    case.launch(
        &[first.len()],
        &[&[p, g, m, v, m_absmax, v_absmax], &rest[..], &settings(), &[f32(bound)]].concat(),
    );
    [p, m, v, m_absmax, v_absmax]
}

/// The steps of the fixture, each from the state before it. Torch may fuse, so moments differ by roundings: codes by
/// one, scales by 4 u, and a step by 12 u of what it is added up from.
fn fixture_8bit(fixture: &Fixture) -> anyhow::Result<Vec<Case>> {
    let len = 64 * 128;
    let (first, length, _) = chunks(&[len], 256);
    let maps = [fixture.floats("map_m")?, fixture.floats("map_v")?];
    let mut all = Vec::new();
    for update in 1..=5u64 {
        let before = update - 1;
        let state = |name: &str| match before {
            0 => Ok(vec![0; len]),
            _ => fixture.bytes(&format!("exact.{name}.{before}")),
        };
        let scales = |name: &str| match before {
            0 => Ok(vec![0.0; first.len()]),
            _ => fixture.floats(&format!("exact.absmax_{name}.{before}")),
        };
        let p = fixture.floats(&if before == 0 {
            "param.0".to_string()
        } else {
            format!("exact.param.{before}")
        })?;
        let g = fixture.floats(&format!("grad.{update}"))?;
        let (m, v, m_absmax, v_absmax) = (state("m")?, state("v")?, scales("m")?, scales("v")?);
        let shared = coefficients(update);
        let want = fixture.floats(&format!("exact.param.{update}"))?;
        let pairs: Vec<_> = (0..len)
            .map(|i| {
                let old_m = f64::from(maps[0][usize::from(m[i])]) * f64::from(m_absmax[i / 256]);
                let old_v = f64::from(maps[1][usize::from(v[i])]) * f64::from(v_absmax[i / 256]);
                let g = f64::from(g[i]);
                let root = (0.999 * old_v + 0.001 * g * g).sqrt() / shared[2] + 1e-8;
                let size = shared[0] * (0.9 * old_m.abs() + 0.1 * g.abs()) / root;
                (f64::from(want[i]), (12.0 * size + 2.0 * f64::from(p[i].abs())) * U)
            })
            .collect();
        let mut case = Case::new(&k::ADAMW_8BIT, format!("fixture, step {update}"));
        let data =
            [Data::F32(p), Data::F32(g), Data::U8(m), Data::U8(v), Data::F32(m_absmax), Data::F32(v_absmax)];
        let [p, m, v, m_absmax, v_absmax] =
            launch_8bit(&mut case, data, &first, &length, update, f32::INFINITY);
        case.expect_within(p, pairs);
        for (codes, name) in [(m, "m"), (v, "v")] {
            let want = fixture.bytes(&format!("exact.{name}.{update}"))?;
            case.expect_within(codes, want.into_iter().map(|code| (f64::from(code), 1.0)));
        }
        for (scales, name) in [(m_absmax, "absmax_m"), (v_absmax, "absmax_v")] {
            let want = fixture.floats(&format!("exact.{name}.{update}"))?;
            case.expect_within(scales, want.into_iter().map(|x| (f64::from(x), 4.0 * U * f64::from(x))));
        }
        all.push(case);
    }
    Ok(all)
}

fn adamw_8bit(random: &mut Random) -> anyhow::Result<Vec<Case>> {
    let fixture = Fixture::here();
    let maps = [fixture.floats("map_m")?, fixture.floats("map_v")?];
    let mut all = fixture_8bit(&fixture)?;
    for (lengths, bound) in [(vec![1], 10.0), (vec![256, 256], f32::INFINITY), (vec![700, 4, 255], 10.0)] {
        let len: usize = lengths.iter().sum();
        let (first, length, _) = chunks(&lengths, 256);
        let mut p = random.floats(len, 1.0);
        let mut g: Vec<f32> =
            (0..len).map(|_| random.unit() * 2f32.powi(-(random.below(10) as i32))).collect();
        let mut m: Vec<u8> = (0..len).map(|_| random.bits() as u8).collect();
        let mut v: Vec<u8> = (0..len).map(|_| random.bits() as u8).collect();
        let mut m_absmax: Vec<f32> = first.iter().map(|_| random.unit().abs()).collect();
        let mut v_absmax: Vec<f32> = first.iter().map(|_| random.unit().abs()).collect();
        if len > 600 {
            // A chunk of zeros without gradient: codes 0 and scales 0 stay.
            g[256..512].fill(0.0);
            m[256..512].fill(0);
            v[256..512].fill(0);
            (m_absmax[1], v_absmax[1]) = (0.0, 0.0);
        }
        let mut case = Case::new(&k::ADAMW_8BIT, format!("tensors of {lengths:?}, bound {bound}"));
        let data = [
            Data::F32(p.clone()),
            Data::F32(g.clone()),
            Data::U8(m.clone()),
            Data::U8(v.clone()),
            Data::F32(m_absmax.clone()),
            Data::F32(v_absmax.clone()),
        ];
        let outputs = launch_8bit(&mut case, data, &first, &length, 7, bound);
        for (chunk, (&first, &length)) in first.iter().zip(&length).enumerate() {
            let range = first as usize..first as usize + length as usize;
            update_8bit(
                Chunk8 {
                    p: &mut p[range.clone()],
                    g: &g[range.clone()],
                    m: &mut m[range.clone()],
                    v: &mut v[range],
                    absmax: [&mut m_absmax[chunk], &mut v_absmax[chunk]],
                },
                [&maps[0], &maps[1]],
                coefficients(7).map(|x| x as f32),
                bound,
            );
        }
        let wanted = [Data::F32(p), Data::U8(m), Data::U8(v), Data::F32(m_absmax), Data::F32(v_absmax)];
        for (output, want) in outputs.into_iter().zip(wanted) {
            case.expect_exact(output, want);
        }
        all.push(case);
    }
    Ok(all)
}
