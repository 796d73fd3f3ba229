//! AdamW over as many parameters as a rank-16 adapter of SmolLM2-135M has, and the norm's sum of squares.

use anyhow::{Result, ensure};
use cpu_ops::Threads;
use cpu_ops::optimiser::{self, AdamW};

use super::{sample, values};
use crate::{Bench, Definition, Peer, Unit};

const PARAMETERS: usize = 4_884_480;

pub(super) fn definitions() -> Vec<Definition> {
    let setup = format!(
        "p = torch.nn.Parameter(torch.randn({PARAMETERS})); p.grad = torch.randn({PARAMETERS}); \
         o = torch.optim.AdamW([p], lr=1e-3, weight_decay=0.0, fused=True)"
    );
    vec![Definition {
        name: "optimiser/adamw".into(),
        unit: Unit::GigaBytes,
        peers: vec![Peer::torch(setup, "o.step()".into())],
        prepare: Box::new(|_, small| Ok(Box::new(Prepared::new(if small { 101 } else { PARAMETERS })))),
    }]
}

struct Prepared {
    start: Vec<f32>,
    parameters: Vec<f32>,
    gradients: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
    updates: u64,
}

impl Prepared {
    fn new(count: usize) -> Self {
        let start = values(count, 1);
        Self {
            parameters: start.clone(),
            start,
            gradients: values(count, 2),
            m: vec![0.0; count],
            v: vec![0.0; count],
            updates: 0,
        }
    }
}

impl Bench for Prepared {
    fn run(&mut self, threads: &Threads) -> Result<()> {
        self.updates += 1;
        let Self { parameters, gradients, m, v, .. } = self;
        optimiser::adamw(threads, &AdamW::default(), self.updates, 1.0, parameters, gradients, m, v)?;
        Ok(())
    }

    fn work(&self) -> f64 {
        self.bytes()
    }

    /// Parameters and both moments are read and written, gradients read.
    fn bytes(&self) -> f64 {
        (self.start.len() * 7 * size_of::<f32>()) as f64
    }

    fn check(&self) -> Result<()> {
        // With the same gradient in every update both corrected moments are exact: a step is the rate with the
        // gradient's sign, but for eps. Each update rounds a handful of times relative to the rate, and the
        // parameter once relative to itself (it stays below 1 plus the way it went).
        let updates = self.updates as f32;
        for i in sample(self.start.len()).into_iter().filter(|&i| self.gradients[i].abs() > 1e-3) {
            let expected = self.start[i] - updates * 1e-3 * self.gradients[i].signum();
            let tolerance = updates * (1e-3 * 1e-4 + f32::EPSILON * (1.0 + updates * 1e-3));
            let difference = (self.parameters[i] - expected).abs();
            ensure!(difference <= tolerance, "parameter {i}: {} {expected}", self.parameters[i]);
        }
        Ok(())
    }
}
