//! The head: its gradient as a product of given logits, and the one-pass loss, at SmolLM2's vocabulary.

use anyhow::{Result, ensure};
use cpu_ops::{MatMut, MatRef, Threads, lm_head, reference};

use super::{sample, values};
use crate::{Bench, Definition, Peer, Unit};

/// (rows, vocabulary, hidden)
const BACKWARD: &[(usize, usize, usize)] = &[(128, 49152, 576), (512, 49152, 576)];
const CROSS_ENTROPY: &[(usize, usize, usize)] = &[(16, 49152, 576), (128, 49152, 576), (256, 49152, 576)];

pub(super) fn definitions() -> Vec<Definition> {
    let backward = BACKWARD.iter().map(|&(rows, vocab, hidden)| Definition {
        name: format!("lm_head/backward/{rows}x{vocab}x{hidden}"),
        unit: Unit::GigaFlops,
        peers: vec![
            Peer::torch(
                format!(
                    "g = torch.randn({rows}, {vocab}); e = torch.randn({vocab}, {hidden}); \
                     out = torch.empty({rows}, {hidden})"
                ),
                "torch.matmul(g, e, out=out)".into(),
            ),
            Peer::numpy(
                format!(
                    "g = random({rows}, {vocab}); e = random({vocab}, {hidden}); \
                     out = numpy.empty(({rows}, {hidden}), numpy.float32)"
                ),
                "numpy.matmul(g, e, out=out)".into(),
            ),
        ],
        prepare: Box::new(move |_, small| {
            let (rows, vocab, hidden) = if small { (9, 401, 35) } else { (rows, vocab, hidden) };
            Ok(Box::new(Backward {
                sizes: (rows, vocab, hidden),
                logits: values(rows * vocab, 1),
                embedding: values(vocab * hidden, 2),
                grad: vec![f32::NAN; rows * hidden],
            }))
        }),
    });
    let loss = CROSS_ENTROPY.iter().map(|&(rows, vocab, hidden)| Definition {
        name: format!("lm_head/cross_entropy/{rows}x{vocab}x{hidden}"),
        unit: Unit::GigaFlops,
        peers: vec![Peer::torch(
            format!(
                "h = (torch.randn({rows}, {hidden}) * 0.1).requires_grad_(); \
                 e = torch.randn({vocab}, {hidden}); y = torch.arange({rows}) * 7 % {vocab}"
            ),
            "torch.autograd.grad(torch.nn.functional.cross_entropy(h @ e.T, y), h)".into(),
        )],
        prepare: Box::new(move |_, small| {
            let (rows, vocab, hidden) = if small { (9, 1601, 35) } else { (rows, vocab, hidden) };
            Ok(Box::new(Loss {
                sizes: (rows, vocab, hidden),
                hidden: values(rows * hidden, 1).iter().map(|x| x * 0.2).collect(),
                embedding: values(vocab * hidden, 2),
                targets: (0..rows).map(|i| (i * 7 % vocab) as u32).collect(),
                losses: vec![f32::NAN; rows],
                grad: vec![f32::NAN; rows * hidden],
            }))
        }),
    });
    backward.chain(loss).collect()
}

struct Backward {
    sizes: (usize, usize, usize),
    logits: Vec<f32>,
    embedding: Vec<f32>,
    grad: Vec<f32>,
}

impl Bench for Backward {
    fn run(&mut self, threads: &Threads) -> Result<()> {
        let (rows, vocab, hidden) = self.sizes;
        let logits = MatRef::new(&self.logits, rows, vocab)?;
        let embedding = MatRef::new(&self.embedding, vocab, hidden)?;
        let grad = MatMut::new(&mut self.grad, rows, hidden)?;
        Ok(lm_head::backward(threads, logits, embedding.into(), &[], grad)?)
    }

    fn work(&self) -> f64 {
        let (rows, vocab, hidden) = self.sizes;
        2.0 * rows as f64 * vocab as f64 * hidden as f64
    }

    fn bytes(&self) -> f64 {
        4.0 * (self.logits.len() + self.embedding.len() + self.grad.len()) as f64
    }

    fn check(&self) -> Result<()> {
        let (rows, vocab, hidden) = self.sizes;
        for row in sample(rows) {
            for col in sample(hidden) {
                let terms = (0..vocab).map(|v| {
                    f64::from(self.logits[row * vocab + v]) * f64::from(self.embedding[v * hidden + col])
                });
                let (exact, magnitude) =
                    terms.fold((0.0, 0.0), |(sum, size), term: f64| (sum + term, size + term.abs()));
                let found = f64::from(self.grad[row * hidden + col]);
                let bound = vocab as f64 * reference::UNIT_ROUNDOFF * magnitude;
                ensure!((found - exact).abs() <= bound, "({row}, {col}): {found}, {exact} +- {bound}");
            }
        }
        Ok(())
    }
}

struct Loss {
    sizes: (usize, usize, usize),
    hidden: Vec<f32>,
    embedding: Vec<f32>,
    targets: Vec<u32>,
    losses: Vec<f32>,
    grad: Vec<f32>,
}

impl Bench for Loss {
    fn run(&mut self, threads: &Threads) -> Result<()> {
        let (rows, vocab, width) = self.sizes;
        let hidden = MatRef::new(&self.hidden, rows, width)?;
        let embedding = MatRef::new(&self.embedding, vocab, width)?.into();
        let grad = MatMut::new(&mut self.grad, rows, width)?;
        let scale = 1.0 / rows as f32;
        lm_head::cross_entropy(
            threads,
            hidden,
            embedding,
            &self.targets,
            scale,
            &mut self.losses,
            Some(grad),
        )?;
        Ok(())
    }

    /// The two products.
    fn work(&self) -> f64 {
        let (rows, vocab, width) = self.sizes;
        4.0 * rows as f64 * vocab as f64 * width as f64
    }

    fn bytes(&self) -> f64 {
        4.0 * (self.embedding.len() + 2 * self.hidden.len()) as f64
    }

    fn check(&self) -> Result<()> {
        let (rows, _, width) = self.sizes;
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let embedding = wide(&self.embedding);
        for row in [0, rows - 1] {
            let hidden = wide(&self.hidden[row * width..][..width]);
            let target = self.targets[row] as usize;
            let (loss, gradient) = reference::lm_head::cross_entropy(&hidden, &embedding, target);
            // A logit is off by at most width * u * sum |h e|, with |e| <= 1; the loss by twice that and the
            // roundings of the sum, which are fewer than 64 (24 in a lane, then pairs).
            let unit = reference::UNIT_ROUNDOFF;
            let magnitude: f64 = hidden.iter().map(|x| x.abs()).sum();
            let bound = (2.0 * (width + 1) as f64 * magnitude + 64.0 + loss) * unit;
            let found = f64::from(self.losses[row]);
            ensure!((found - loss).abs() <= bound, "loss of row {row}: {found}, {loss} +- {bound}");
            // Probabilities are relatively off by the same, and sum to 2 at most with the target's.
            let bound = 4.0 * bound / rows as f64;
            for (col, exact) in gradient.iter().map(|g| g / rows as f64).enumerate() {
                let found = f64::from(self.grad[row * width + col]);
                ensure!(
                    (found - exact).abs() <= bound,
                    "gradient ({row}, {col}): {found}, {exact} +- {bound}"
                );
            }
        }
        Ok(())
    }
}
