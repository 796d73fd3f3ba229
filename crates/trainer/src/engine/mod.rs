//! The training engine: one optimiser step as a transaction, and evaluation.
//!
//! A step has two phases. Phase 1 runs every micro-batch forward and backward, sums gradients and tests their
//! norm; it writes gradients and scratch only. Phase 2 clips and updates the adapters; nothing in it allocates or
//! depends on input, so that a step either happens or leaves everything as it was.

mod error;
mod model;
mod pass;
mod state;

pub use error::EngineError;
pub use model::{Model, Rows};
pub use state::{Moments, OptimizerState};

use crate::backend::{AdamW, Backend, DropoutKey, Parameter, Storage};
use crate::block::{BackwardScratch, ForwardScratch, Saved};
use crate::data::Batch;
use crate::event::{Event, EventSink};
use crate::lora::{LoraConfig, Trainable, modules};
use crate::model::{ModelShape, TensorSource};
use crate::{Result, random};

/// Steps in a row that may have a non-finite gradient before the run stops.
const NON_FINITE_LIMIT: u32 = 10;

/// What an [`Engine`] is made with.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// How the seven projections of each block are kept.
    pub storage: Storage,
    /// The adapters.
    pub lora: LoraConfig,
    /// Seed of the initial adapter and of dropout.
    pub seed: u64,
    /// Tokens of the largest micro-batch.
    pub max_tokens: usize,
    /// Tokens of the longest sample.
    pub max_positions: usize,
    /// Bytes that may hold activations between forward and backward. Blocks that do not fit are computed
    /// again inside backward; results are the same to the bit.
    pub activation_bytes: usize,
}

/// The rules of one optimiser step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    /// Number of the step, from 1; picks the dropout masks.
    pub step: u64,
    /// Rate, betas, epsilon and decay.
    pub adamw: AdamW,
    /// Gradients are scaled down so that their global norm is at most this; 0 is no limit.
    pub max_grad_norm: f64,
}

/// What a step did.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutcome {
    /// Sum of the cross-entropy over all supervised tokens of the step, divided by their number.
    pub loss: f64,
    /// Global norm of all adapter gradients before clipping.
    pub grad_norm: f64,
    /// Supervised tokens.
    pub supervised: usize,
    /// All tokens.
    pub tokens: usize,
    /// Why nothing was updated, where that is so.
    pub skipped: Option<String>,
}

/// A model with an adapter that can be trained. See the module's documentation for what a step is.
#[derive(Debug)]
pub struct Engine<B: Backend> {
    backend: B,
    model: Model<B>,
    options: EngineOptions,
    updates: u64,
    non_finite: u32,
    checked_training: bool,
    rows: Rows<B>,
    target_rows: B::Index,
    targets: B::Index,
    /// Input of each block, and the output of the last.
    stream: Vec<B::Tensor>,
    /// Activations of the last blocks, as many as fit; the first entry also serves all blocks that have none.
    saved: Vec<Saved<B>>,
    forward: ForwardScratch<B>,
    backward: BackwardScratch<B>,
    normed: B::Tensor,
    supervised: B::Tensor,
    d_supervised: B::Tensor,
    losses: B::Tensor,
    d: B::Tensor,
}

impl<B: Backend> Engine<B> {
    /// Loads the model and reserves everything that a step needs: nothing is allocated later.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn new(
        mut backend: B,
        shape: &ModelShape,
        source: &mut dyn TensorSource,
        options: EngineOptions,
    ) -> Result<Self> {
        let lora = (&options.lora, options.seed);
        let model = Model::load(&mut backend, shape, source, options.storage, lora, options.max_positions)?;
        let (tokens, hidden) = (options.max_tokens, shape.hidden);
        let (adapted, r) = (&options.lora.targets, options.lora.r);
        let kept = options.activation_bytes / Saved::<B>::bytes(shape, adapted.len(), r, tokens).max(1);
        let kept = kept.clamp(1, shape.layers.max(1));
        let mut saved = Vec::with_capacity(kept);
        for _ in 0..kept {
            saved.push(Saved::new(&mut backend, shape, adapted, r, tokens)?);
        }
        let mut stream = Vec::with_capacity(shape.layers + 1);
        for _ in 0..=shape.layers {
            stream.push(backend.tensor(tokens, hidden)?);
        }
        Ok(Self {
            rows: Rows::new(&mut backend, shape, tokens)?,
            target_rows: backend.index(tokens)?,
            targets: backend.index(tokens)?,
            stream,
            saved,
            forward: ForwardScratch::new(&mut backend, shape, options.lora.dropout > 0.0, tokens)?,
            backward: BackwardScratch::new(&mut backend, shape, r, tokens)?,
            normed: backend.tensor(tokens, hidden)?,
            supervised: backend.tensor(tokens, hidden)?,
            d_supervised: backend.tensor(tokens, hidden)?,
            losses: backend.tensor(tokens, 1)?,
            d: backend.tensor(tokens, hidden)?,
            backend,
            model,
            options,
            updates: 0,
            non_finite: 0,
            checked_training: false,
        })
    }

    /// The model and its adapter.
    pub fn model(&self) -> &Model<B> {
        &self.model
    }

    /// What it was made with.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Updates made so far; skipped steps do not count.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Blocks whose activations are kept from forward to backward; the others are computed again.
    pub fn kept_blocks(&self) -> usize {
        self.saved.len()
    }

    /// One optimiser step over the micro-batches of a window. The loss and its gradient are means over all
    /// supervised tokens of the window, however these are divided among micro-batches.
    ///
    /// # Errors
    /// A batch is larger than [`EngineOptions`] said; the gradient was not finite for ten steps in a row; or the
    /// first step with a rate above 0 finds no gradient at all. The adapter is as it was before the step.
    pub fn step(
        &mut self,
        batches: &[Batch],
        update: &Update,
        events: &mut dyn EventSink,
    ) -> Result<StepOutcome> {
        let supervised: usize = batches.iter().map(|batch| batch.rows.len()).sum();
        let mut outcome = StepOutcome {
            loss: 0.0,
            grad_norm: 0.0,
            supervised,
            tokens: batches.iter().map(Batch::tokens).sum(),
            skipped: None,
        };
        if supervised == 0 {
            outcome.skipped = Some("no token of its samples is supervised".into());
            return self.report_skip(update, outcome, events);
        }
        self.zero_gradients()?;
        let mut loss = 0.0;
        for (micro, batch) in batches.iter().enumerate().filter(|(_, batch)| !batch.rows.is_empty()) {
            let key = random::key(&[self.options.seed, update.step, micro as u64]);
            let probability = self.options.lora.dropout;
            let dropout = (probability > 0.0).then_some(DropoutKey { key, probability });
            loss += self.accumulate(batch, 1.0 / supervised as f32, dropout)?;
        }
        outcome.loss = loss / supervised as f64;

        let squares = self.gradient_squares()?;
        outcome.grad_norm = squares.iter().map(|(_, square)| square).sum::<f64>().sqrt();
        if !outcome.grad_norm.is_finite() {
            let first = squares.into_iter().find(|(_, square)| !square.is_finite());
            let tensor = first.map_or_else(|| "the sum over all tensors".into(), |(name, _)| name);
            self.non_finite += 1;
            if self.non_finite >= NON_FINITE_LIMIT {
                return Err(
                    EngineError::NonFinite { step: update.step, steps: self.non_finite, tensor }.into()
                );
            }
            outcome.skipped = Some(format!("the gradient of {tensor} is not finite"));
            return self.report_skip(update, outcome, events);
        }
        self.non_finite = 0;
        if !self.checked_training && update.adamw.lr > 0.0 {
            self.check_training(update.step, events)?;
        }
        let clip = clip_coefficient(outcome.grad_norm, update.max_grad_norm);
        self.apply(update, clip)?;
        Ok(outcome)
    }

    fn report_skip(
        &mut self,
        update: &Update,
        outcome: StepOutcome,
        events: &mut dyn EventSink,
    ) -> Result<StepOutcome> {
        let reason = outcome.skipped.clone().unwrap_or_default();
        events.emit(Event::StepSkipped { step: update.step, reason });
        Ok(outcome)
    }

    fn zero_gradients(&mut self) -> Result<()> {
        let Self { backend, model, .. } = self;
        for lora in model.adapters.iter_mut().flatten().flatten() {
            backend.zero(&mut lora.a.gradient)?;
            backend.zero(&mut lora.b.gradient)?;
        }
        Ok(())
    }

    /// Sum of squares of each gradient, by tensor name, in the adapter's order.
    fn gradient_squares(&mut self) -> Result<Vec<(String, f64)>> {
        let Self { backend, model, .. } = self;
        let mut names = Vec::new();
        let mut tensors = Vec::new();
        for (layer, projection) in modules(&model.config, &model.shape) {
            if let Some(lora) = &model.adapters[layer][projection as usize] {
                let module = projection.module(layer);
                names.extend([format!("{module}.lora_A"), format!("{module}.lora_B")]);
                tensors.extend([&lora.a.gradient, &lora.b.gradient]);
            }
        }
        let squares = backend.sums_of_squares(&tensors)?;
        Ok(names.into_iter().zip(squares).collect())
    }

    /// Before the first update with a rate above 0: a B whose gradient is zero would stay as it is.
    fn check_training(&mut self, step: u64, events: &mut dyn EventSink) -> Result<()> {
        let squares = self.gradient_squares()?;
        let of_b = squares.into_iter().filter(|(name, _)| name.ends_with("lora_B"));
        let (still, moving): (Vec<_>, Vec<_>) = of_b.partition(|(_, square)| *square == 0.0);
        if moving.is_empty() {
            return Err(EngineError::NoGradient { step }.into());
        }
        if !still.is_empty() {
            let names: Vec<_> = still.iter().map(|(name, _)| name.as_str()).collect();
            let what = format!("step {step} leaves {} as they are: their gradient is zero", names.join(", "));
            events.emit(Event::Assumed { what });
        }
        self.checked_training = true;
        Ok(())
    }

    /// Phase 2.
    fn apply(&mut self, update: &Update, clip: f32) -> Result<()> {
        self.updates += 1;
        let Self { backend, model, updates, .. } = self;
        for lora in model.adapters.iter_mut().flatten().flatten() {
            for Trainable { value, gradient, m, v } in [&mut lora.a, &mut lora.b] {
                backend.adamw(&update.adamw, *updates, clip, Parameter { value, gradient, m, v })?;
            }
        }
        Ok(())
    }
}

/// What gradients are multiplied with: min(1, max / (norm + 1e-6)), as PyTorch's `clip_grad_norm_`.
fn clip_coefficient(norm: f64, max_grad_norm: f64) -> f32 {
    if max_grad_norm > 0.0 { (max_grad_norm / (norm + 1e-6)).min(1.0) as f32 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipping_never_enlarges_and_zero_is_no_limit() {
        assert_eq!(clip_coefficient(0.9, 1.0), 1.0);
        assert_eq!(clip_coefficient(1e30, 0.0), 1.0);
        let clipped = f64::from(clip_coefficient(4.0, 1.0)) * 4.0;
        assert!((clipped - 1.0).abs() < 1e-6);
    }
}
