//! LoRA (Hu et al., 2021): a frozen linear layer plus `s (x Aᵀ) Bᵀ` with trainable A `[r, in]` and B `[out, r]`,
//! s = alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA (Kalajdzievski, 2023).

use crate::backend::{Backend, DropoutKey, Side};
use crate::model::{ModelShape, Projection};
use crate::{Result, random};

/// Which layers get an adapter, and how it is scaled.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    /// Rank.
    pub r: usize,
    /// Numerator of the scale.
    pub alpha: f32,
    /// Probability that an element of the adapter's input is dropped while training.
    pub dropout: f32,
    /// Whether the scale is alpha / sqrt(r).
    pub rslora: bool,
    /// The linear layers that are adapted, in every block.
    pub targets: Vec<Projection>,
}

impl LoraConfig {
    /// What multiplies `(x Aᵀ) Bᵀ`.
    pub fn scale(&self) -> f32 {
        let r = self.r as f64;
        (f64::from(self.alpha) / if self.rslora { r.sqrt() } else { r }) as f32
    }
}

/// The two matrices of one module, on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraTensors {
    /// A, `[r, in]`.
    pub a: Vec<f32>,
    /// B, `[out, r]`.
    pub b: Vec<f32>,
}

/// A whole adapter on the host: what files hold. Modules are named `model.layers.0.self_attn.q_proj` and stand
/// in the order of blocks, then of [`Projection::ALL`].
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    /// Rank, scale and targets.
    pub config: LoraConfig,
    /// The matrices by module.
    pub modules: Vec<(String, LoraTensors)>,
}

impl Adapter {
    /// A fresh adapter: A uniform in ±1/sqrt(in) (Kaiming uniform with a = sqrt 5, as PEFT), a function of the
    /// module's name and the seed alone; B zero, so that the model is unchanged.
    pub fn initial(config: &LoraConfig, shape: &ModelShape, seed: u64) -> Self {
        let modules = modules(config, shape)
            .map(|(layer, projection)| {
                let (out, inputs) = projection.dims(shape);
                let name = projection.module(layer);
                let tensors =
                    LoraTensors { a: initial_a(&name, config.r, inputs, seed), b: vec![0.0; out * config.r] };
                (name, tensors)
            })
            .collect();
        Self { config: config.clone(), modules }
    }
}

/// The adapted modules of a model: (block, projection).
pub fn modules(config: &LoraConfig, shape: &ModelShape) -> impl Iterator<Item = (usize, Projection)> {
    let targets = Projection::ALL.into_iter().filter(|projection| config.targets.contains(projection));
    let targets: Vec<_> = targets.collect();
    (0..shape.layers).flat_map(move |layer| targets.clone().into_iter().map(move |target| (layer, target)))
}

/// A `[r, in]`: 24 bits of splitmix64 keyed by name and seed, mapped to [-1, 1) and divided by sqrt(in).
fn initial_a(module: &str, r: usize, inputs: usize, seed: u64) -> Vec<f32> {
    let key = random::name_key(module).wrapping_add(seed);
    let bound = 1.0 / (inputs as f64).sqrt();
    (0..(r * inputs) as u64)
        .map(|element| {
            let bits = (random::at(key, element) >> 40) as f64;
            ((bits / 8_388_608.0 - 1.0) * bound) as f32
        })
        .collect()
}

/// A matrix that is trained: values, gradient and the two moments of AdamW.
#[derive(Debug)]
pub struct Trainable<T> {
    /// Values.
    pub value: T,
    /// Gradient of the step so far.
    pub gradient: T,
    /// First moment.
    pub m: T,
    /// Second moment.
    pub v: T,
}

impl<T> Trainable<T> {
    fn new<B: Backend<Tensor = T>>(backend: &mut B, rows: usize, cols: usize) -> Result<Self> {
        Ok(Self {
            value: backend.tensor(rows, cols)?,
            gradient: backend.tensor(rows, cols)?,
            m: backend.tensor(rows, cols)?,
            v: backend.tensor(rows, cols)?,
        })
    }
}

/// The adapter of one linear layer on a device.
#[derive(Debug)]
pub struct Lora<B: Backend> {
    /// A, `[r, in]`.
    pub a: Trainable<B::Tensor>,
    /// B, `[out, r]`.
    pub b: Trainable<B::Tensor>,
}

/// What a product with an adapter needs beside its operands.
#[derive(Debug, Clone, Copy)]
pub struct LoraRule {
    /// See [`LoraConfig::scale`].
    pub scale: f32,
    /// The mask of this micro-batch, layer and projection; `None` without dropout.
    pub dropout: Option<DropoutKey>,
}

impl<B: Backend> Lora<B> {
    /// An adapter of zeros for a layer `[out, in]`.
    pub fn new(backend: &mut B, r: usize, out: usize, inputs: usize) -> Result<Self> {
        Ok(Self { a: Trainable::new(backend, r, inputs)?, b: Trainable::new(backend, out, r)? })
    }

    /// `y += s drop(x) Aᵀ Bᵀ`; `xa` keeps `drop(x) Aᵀ [tokens, r]` for backward, `dropped` is scratch of x's
    /// shape and only used with dropout.
    pub fn forward(
        &self,
        backend: &mut B,
        rule: LoraRule,
        x: &B::Tensor,
        dropped: Option<&mut B::Tensor>,
        xa: &mut B::Tensor,
        y: &mut B::Tensor,
    ) -> Result<()> {
        let x = dropped_input(backend, rule, x, dropped)?;
        backend.matmul(1.0, Side::of(x), Side::t(&self.a.value), 0.0, xa)?;
        backend.matmul(rule.scale, Side::of(xa), Side::t(&self.b.value), 1.0, y)
    }

    /// Adds to the gradients of A and B, and to `dx`:
    /// `dB += s dyᵀ xa`, `dxa = s dy B`, `dA += dxaᵀ drop(x)`, `dx += drop(dxa A)`.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &mut self,
        backend: &mut B,
        rule: LoraRule,
        x: &B::Tensor,
        xa: &B::Tensor,
        dy: &B::Tensor,
        dropped: Option<&mut B::Tensor>,
        dxa: &mut B::Tensor,
        dx: &mut B::Tensor,
    ) -> Result<()> {
        backend.matmul(rule.scale, Side::t(dy), Side::of(xa), 1.0, &mut self.b.gradient)?;
        backend.matmul(rule.scale, Side::of(dy), Side::of(&self.b.value), 0.0, dxa)?;
        match (rule.dropout, dropped) {
            (Some(key), Some(dropped)) => {
                backend.dropout(x, key, 0.0, dropped)?;
                backend.matmul(1.0, Side::t(dxa), Side::of(dropped), 1.0, &mut self.a.gradient)?;
                backend.matmul(1.0, Side::of(dxa), Side::of(&self.a.value), 0.0, dropped)?;
                backend.dropout(dropped, key, 1.0, dx)
            }
            _ => {
                backend.matmul(1.0, Side::t(dxa), Side::of(x), 1.0, &mut self.a.gradient)?;
                backend.matmul(1.0, Side::of(dxa), Side::of(&self.a.value), 1.0, dx)
            }
        }
    }
}

/// The adapter's input: `x` itself, or `dropped` filled with `x` after dropout.
fn dropped_input<'a, B: Backend>(
    backend: &mut B,
    rule: LoraRule,
    x: &'a B::Tensor,
    dropped: Option<&'a mut B::Tensor>,
) -> Result<&'a B::Tensor> {
    match (rule.dropout, dropped) {
        (Some(key), Some(dropped)) => {
            backend.dropout(x, key, 0.0, dropped)?;
            Ok(dropped)
        }
        _ => Ok(x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_stabilised_scale_is_alpha_over_the_root_of_r() {
        let mut config = LoraConfig { r: 64, alpha: 32.0, dropout: 0.0, rslora: true, targets: vec![] };
        assert_eq!(config.scale(), 4.0);
        config.r = 16;
        assert_eq!(config.scale(), 8.0);
        config.rslora = false;
        assert_eq!(config.scale(), 2.0);
    }

    #[test]
    fn the_first_values_of_a_depend_on_name_and_seed_only() {
        let a = initial_a("model.layers.0.self_attn.q_proj", 2, 16, 0);
        assert!(a.iter().all(|v| v.abs() <= 0.25) && a.iter().any(|v| v.abs() > 0.2));
        assert_eq!(a, initial_a("model.layers.0.self_attn.q_proj", 2, 16, 0));
        assert_ne!(a, initial_a("model.layers.0.self_attn.k_proj", 2, 16, 0));
        assert_ne!(a, initial_a("model.layers.0.self_attn.q_proj", 2, 16, 1));
    }
}
