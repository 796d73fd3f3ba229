//! Attention of one layer at SmolLM2-135M's size (9 heads of 64, 3 key heads), causal, both directions.

use anyhow::{Result, ensure};
use cpu_ops::attention::{self, AttentionGrads, AttentionShape};
use cpu_ops::reference::attention as oracle;
use cpu_ops::{MatMut, MatRef, Threads};

use super::{sample, values};
use crate::{Bench, Definition, Peer, Unit};

const SHAPE: AttentionShape = AttentionShape { heads: 9, kv_heads: 3, head_dim: 64, scale: 0.125 };
const Q_COLS: usize = SHAPE.heads * SHAPE.head_dim;
const K_COLS: usize = SHAPE.kv_heads * SHAPE.head_dim;

pub(super) fn definitions() -> Vec<Definition> {
    let mut all = Vec::new();
    for tokens in [256, 2048] {
        for backward in [false, true] {
            let setup = format!(
                "import torch.nn.functional as F; \
                 q, k, v = (torch.randn(1, h, {tokens}, 64, requires_grad={}) for h in (9, 3, 3)); \
                 f = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)",
                if backward { "True" } else { "False" }
            );
            let (setup, call) = if backward {
                let gradient = "; o = f(); g = torch.randn_like(o)";
                (setup + gradient, "torch.autograd.grad(o, (q, k, v), g, retain_graph=True)")
            } else {
                (setup, "f()")
            };
            let direction = if backward { "backward" } else { "forward" };
            all.push(Definition {
                name: format!("attention/{tokens} tokens, {direction}"),
                unit: Unit::GigaFlops,
                peers: vec![Peer::torch(setup, call.to_owned())],
                prepare: Box::new(move |threads, small| {
                    let tokens = if small { 70 } else { tokens };
                    Ok(Box::new(Prepared::new(tokens, backward, threads)?))
                }),
            });
        }
    }
    all
}

struct Prepared {
    tokens: usize,
    backward: bool,
    starts: Vec<u32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    d_out: Vec<f32>,
    out: Vec<f32>,
    log_sum_exp: Vec<f32>,
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
}

impl Prepared {
    fn new(tokens: usize, backward: bool, threads: &Threads) -> Result<Self> {
        let mut prepared = Self {
            tokens,
            backward,
            starts: vec![0; tokens],
            q: values(tokens * Q_COLS, 1),
            k: values(tokens * K_COLS, 2),
            v: values(tokens * K_COLS, 3),
            d_out: values(tokens * Q_COLS, 4),
            out: vec![f32::NAN; tokens * Q_COLS],
            log_sum_exp: vec![f32::NAN; tokens * SHAPE.heads],
            dq: vec![f32::NAN; tokens * Q_COLS],
            dk: vec![f32::NAN; tokens * K_COLS],
            dv: vec![f32::NAN; tokens * K_COLS],
        };
        prepared.forward(threads)?;
        Ok(prepared)
    }

    fn forward(&mut self, threads: &Threads) -> Result<()> {
        let n = self.tokens;
        let (q, k) = (MatRef::new(&self.q, n, Q_COLS)?, MatRef::new(&self.k, n, K_COLS)?);
        let (v, out) = (MatRef::new(&self.v, n, K_COLS)?, MatMut::new(&mut self.out, n, Q_COLS)?);
        attention::forward(threads, SHAPE, &self.starts, q, k, v, out, &mut self.log_sum_exp)?;
        Ok(())
    }

    /// Operands of one query, for the oracle: the query itself and the keys up to it.
    fn query(&self, row: usize) -> [Vec<f64>; 4] {
        let widen = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let keys = (row + 1) * K_COLS;
        let own = row * Q_COLS..(row + 1) * Q_COLS;
        [widen(&self.q[own.clone()]), widen(&self.k[..keys]), widen(&self.v[..keys]), widen(&self.d_out[own])]
    }
}

impl Bench for Prepared {
    fn run(&mut self, threads: &Threads) -> Result<()> {
        if !self.backward {
            return self.forward(threads);
        }
        let n = self.tokens;
        let (q, k) = (MatRef::new(&self.q, n, Q_COLS)?, MatRef::new(&self.k, n, K_COLS)?);
        let (v, out) = (MatRef::new(&self.v, n, K_COLS)?, MatRef::new(&self.out, n, Q_COLS)?);
        let d_out = MatRef::new(&self.d_out, n, Q_COLS)?;
        let grads = AttentionGrads {
            dq: MatMut::new(&mut self.dq, n, Q_COLS)?,
            dk: MatMut::new(&mut self.dk, n, K_COLS)?,
            dv: MatMut::new(&mut self.dv, n, K_COLS)?,
        };
        attention::backward(threads, SHAPE, &self.starts, q, k, v, out, &self.log_sum_exp, d_out, grads)?;
        Ok(())
    }

    /// Products over the pairs of tokens that see each other: two forward, five backward.
    fn work(&self) -> f64 {
        let pairs = (self.tokens * (self.tokens + 1) / 2 * SHAPE.heads) as f64;
        let products = if self.backward { 5.0 } else { 2.0 };
        products * 2.0 * pairs * SHAPE.head_dim as f64
    }

    fn bytes(&self) -> f64 {
        0.0
    }

    fn check(&self) -> Result<()> {
        let shape = oracle::Shape {
            heads: SHAPE.heads,
            kv_heads: SHAPE.kv_heads,
            head_dim: SHAPE.head_dim,
            scale: SHAPE.scale.into(),
        };
        // Values are below 1, so are weights, and there are fewer than 2^12 terms in a sum: errors stay below
        // 2^12 roundings of numbers below 64 (d_out · v); a wrong product is off by far more.
        let tolerance = 4096.0 * 64.0 * f64::from(f32::EPSILON);
        let close = |found: &[f32], exact: &[f64]| {
            found.iter().zip(exact).all(|(&x, y)| (f64::from(x) - y).abs() <= tolerance)
        };
        for row in sample(self.tokens) {
            let [q, k, v, d_out] = self.query(row);
            let own = row * Q_COLS..(row + 1) * Q_COLS;
            let (out, _) = oracle::forward(&shape, &[0], &q, &k, &v);
            ensure!(close(&self.out[own.clone()], &out), "out of token {row}");
            if self.backward {
                // The oracle wants as many queries as starts; a single one gives its own dq.
                let (dq, ..) = oracle::backward(&shape, &[0], &q, &k, &v, &d_out);
                ensure!(close(&self.dq[own], &dq), "dq of token {row}");
            }
        }
        if self.backward {
            // The weights of a query sum to 1, so the gradients of all values sum to those of all outputs.
            for kv_head in 0..SHAPE.kv_heads {
                for d in 0..SHAPE.head_dim {
                    let total = |data: &[f32], cols: usize, column: usize| -> f64 {
                        data.chunks(cols).map(|row| f64::from(row[column])).sum()
                    };
                    let group = SHAPE.heads / SHAPE.kv_heads;
                    let expected: f64 = (kv_head * group..(kv_head + 1) * group)
                        .map(|head| total(&self.d_out, Q_COLS, head * SHAPE.head_dim + d))
                        .sum();
                    let found = total(&self.dv, K_COLS, kv_head * SHAPE.head_dim + d);
                    let tolerance = tolerance * (self.tokens as f64).sqrt();
                    ensure!((found - expected).abs() <= tolerance, "dv, column {d} of head {kv_head}");
                }
            }
        }
        Ok(())
    }
}
