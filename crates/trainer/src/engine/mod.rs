//! The training engine: one optimiser step as a transaction, and evaluation.
//!
//! A step has two phases. Phase 1 runs every micro-batch forward and backward, sums gradients and tests their
//! norm; it writes gradients and scratch only. Phase 2 clips and updates the adapters; nothing in it allocates or
//! depends on input, so that a step either happens or leaves everything as it was.

mod error;
mod model;

pub use error::EngineError;
pub use model::{Model, Rows};

use crate::backend::{AdamW, Backend, DeviceTensor, DropoutKey, Parameter, Storage};
use crate::block::{BackwardScratch, ForwardScratch, Saved};
use crate::data::Batch;
use crate::event::{Event, EventSink};
use crate::lora::{Adapter, LoraConfig, LoraTensors, Trainable, modules};
use crate::model::{ModelShape, Projection, TensorSource};
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

/// The optimiser's state on the host: what a checkpoint holds beside the adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizerState {
    /// Updates made so far; AdamW's bias corrections depend on it.
    pub updates: u64,
    /// Steps in a row whose gradient was not finite.
    pub non_finite: u32,
    /// Moments of A and B by module, in the adapter's order.
    pub moments: Vec<(String, Moments)>,
}

/// First and second moments of one module's two matrices.
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    /// First and second moment of A, `[r, in]` each.
    pub a: [Vec<f32>; 2],
    /// First and second moment of B, `[out, r]` each.
    pub b: [Vec<f32>; 2],
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

    /// The losses of a batch's supervised tokens, in order, without dropout and without gradients.
    ///
    /// # Errors
    /// The batch is larger than [`EngineOptions`] said.
    pub fn losses(&mut self, batch: &Batch) -> Result<Vec<f32>> {
        self.run_forward(batch, None)?;
        self.run_head(batch, None)?;
        self.backend.download(&self.losses)
    }

    /// Sum of the losses of a batch's supervised tokens, and their number.
    ///
    /// # Errors
    /// As [`losses`](Self::losses).
    pub fn evaluate(&mut self, batch: &Batch) -> Result<(f64, usize)> {
        let losses = self.losses(batch)?;
        Ok((losses.iter().map(|&loss| f64::from(loss)).sum(), losses.len()))
    }

    /// The logits of all tokens of a batch, `[tokens, vocab]`: for a few tokens only, to compare and inspect.
    ///
    /// # Errors
    /// As [`losses`](Self::losses).
    pub fn logits(&mut self, batch: &Batch) -> Result<Vec<f32>> {
        self.run_forward(batch, None)?;
        let mut logits = self.backend.tensor(batch.tokens(), self.model.shape.vocab)?;
        self.backend.head_logits(&self.normed, self.model.head(), &mut logits)?;
        self.backend.download(&logits)
    }

    /// The residual stream before block `layer`, `[tokens, hidden]`, of the last batch that ran; for `layer` =
    /// number of blocks, what the last one left.
    pub fn hidden(&mut self, layer: usize) -> Result<Vec<f32>> {
        self.backend.download(&self.stream[layer])
    }

    /// Adds `scale` times the gradient of the summed loss of one batch to the adapters' gradients. Returns
    /// that sum.
    fn accumulate(&mut self, batch: &Batch, scale: f32, dropout: Option<DropoutKey>) -> Result<f64> {
        self.run_forward(batch, dropout)?;
        self.run_head(batch, Some(scale))?;
        let losses = self.backend.download(&self.losses)?;
        self.run_backward(dropout)?;
        Ok(losses.iter().map(|&loss| f64::from(loss)).sum())
    }

    fn run_forward(&mut self, batch: &Batch, dropout: Option<DropoutKey>) -> Result<()> {
        let tokens = batch.tokens();
        if tokens > self.options.max_tokens {
            return Err(EngineError::BatchTooLarge { tokens, limit: self.options.max_tokens }.into());
        }
        if let Some(&longest) =
            batch.positions.iter().max().filter(|&&p| p as usize >= self.model.positions())
        {
            let tokens = longest as usize + 1;
            return Err(EngineError::TooLong { tokens, limit: self.model.positions() }.into());
        }
        self.set_rows(tokens);
        let Self { backend, model, rows, stream, saved, forward, normed, .. } = self;
        rows.fill(backend, (&batch.ids, &batch.positions, &batch.starts), 0)?;
        backend.embed(&model.embedding, &rows.ids, &mut stream[0])?;
        for layer in 0..model.shape.layers {
            let slot = slot(layer, model.shape.layers, saved.len());
            let (before, after) = stream.split_at_mut(layer + 1);
            let room = (&mut saved[slot], &mut *forward);
            model.block_forward(
                backend,
                layer,
                rows,
                dropout,
                (&before[layer], &mut after[0]),
                None,
                room,
            )?;
        }
        backend.rms_norm(&stream[model.shape.layers], &model.final_norm, model.shape.rms_norm_eps, normed)
    }

    /// Losses of the supervised rows and, with a scale, the gradient of the final norm's output in `d_normed`.
    fn run_head(&mut self, batch: &Batch, scale: Option<f32>) -> Result<()> {
        let Self { backend, model, normed, supervised, d_supervised, losses, .. } = self;
        let rows = batch.rows.len();
        [&mut *supervised, d_supervised, losses].into_iter().for_each(|tensor| tensor.set_rows(rows));
        backend.upload_index(&batch.rows, &mut self.target_rows)?;
        backend.upload_index(&batch.targets, &mut self.targets)?;
        backend.gather_rows(normed, &self.target_rows, supervised)?;
        let gradient = scale.map(|scale| (scale, &mut *d_supervised));
        backend.head_loss(supervised, model.head(), &self.targets, losses, gradient)
    }

    fn run_backward(&mut self, dropout: Option<DropoutKey>) -> Result<()> {
        let Self { backend, model, rows, stream, saved, forward, backward, normed, d_supervised, d, .. } =
            self;
        let layers = model.shape.layers;
        // The normed hidden states are not needed any more: their place takes their gradient.
        backend.scatter_rows(d_supervised, &self.target_rows, normed)?;
        let eps = model.shape.rms_norm_eps;
        backend.rms_norm_dx(&stream[layers], &model.final_norm, eps, normed, 0.0, d)?;
        for layer in (0..layers).rev() {
            let slot = slot(layer, layers, saved.len());
            let (before, after) = stream.split_at_mut(layer + 1);
            let x = &before[layer];
            // The shared slot holds the activations of the last block that used it; earlier ones run again.
            if layer + saved.len() < layers {
                let room = (&mut saved[slot], &mut *forward);
                model.block_forward(backend, layer, rows, dropout, (x, &mut after[0]), None, room)?;
            }
            let Model { shape, rope, config, blocks, adapters, .. } = &mut *model;
            let pass = crate::block::Pass {
                shape,
                rope,
                positions: &rows.positions,
                starts: rows.starts(layer),
                layer,
                lora_scale: config.scale(),
                dropout,
            };
            let scratch = (&mut *forward, &mut *backward);
            pass.backward(backend, &blocks[layer], &mut adapters[layer], x, &saved[slot], scratch, d)?;
        }
        Ok(())
    }

    fn set_rows(&mut self, tokens: usize) {
        self.stream.iter_mut().chain([&mut self.normed, &mut self.d]).for_each(|t| t.set_rows(tokens));
        self.saved.iter_mut().for_each(|saved| saved.set_rows(tokens));
        self.forward.set_rows(tokens);
        self.backward.set_rows(tokens);
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

    /// The adapter's values, on the host.
    ///
    /// # Errors
    /// The device fails.
    pub fn adapter(&mut self) -> Result<Adapter> {
        self.model.adapter(&mut self.backend)
    }

    /// Replaces the adapter's values.
    ///
    /// # Errors
    /// As [`Model::set_adapter`].
    pub fn set_adapter(&mut self, adapter: &Adapter) -> Result<()> {
        self.model.set_adapter(&mut self.backend, adapter)
    }

    /// The gradients of the last [`step`](Self::step) or [`gradients_of`](Self::gradients_of), in the form of an
    /// adapter.
    ///
    /// # Errors
    /// The device fails.
    pub fn gradients(&mut self) -> Result<Adapter> {
        let Self { backend, model, .. } = self;
        model
            .collect(backend, |backend, lora| {
                let (a, b) = (backend.download(&lora.a.gradient)?, backend.download(&lora.b.gradient)?);
                Ok(LoraTensors { a, b })
            })
            .map(|modules| Adapter { config: model.config.clone(), modules })
    }

    /// Loss (mean over the batch's supervised tokens) and gradients without an update; also the gradient of
    /// the embeddings' output, `[tokens, hidden]`.
    ///
    /// # Errors
    /// As [`losses`](Self::losses).
    pub fn gradients_of(&mut self, batch: &Batch) -> Result<(f64, Vec<f32>)> {
        self.zero_gradients()?;
        let supervised = batch.rows.len();
        let sum = self.accumulate(batch, 1.0 / supervised as f32, None)?;
        Ok((sum / supervised as f64, self.backend.download(&self.d)?))
    }

    /// The optimiser's state, on the host.
    ///
    /// # Errors
    /// The device fails.
    pub fn optimizer_state(&mut self) -> Result<OptimizerState> {
        let Self { backend, model, .. } = self;
        let moments = model.collect(backend, |backend, lora| {
            let a = [backend.download(&lora.a.m)?, backend.download(&lora.a.v)?];
            let b = [backend.download(&lora.b.m)?, backend.download(&lora.b.v)?];
            Ok(Moments { a, b })
        })?;
        Ok(OptimizerState { updates: self.updates, non_finite: self.non_finite, moments })
    }

    /// Replaces the optimiser's state.
    ///
    /// # Errors
    /// Its modules or sizes are not those of this adapter.
    pub fn set_optimizer_state(&mut self, state: &OptimizerState) -> Result<()> {
        let wanted: Vec<(usize, Projection)> = modules(&self.model.config, &self.model.shape).collect();
        let names = wanted.iter().map(|(layer, projection)| projection.module(*layer));
        if !names.eq(state.moments.iter().map(|(name, _)| name.clone())) {
            return Err(EngineError::OptimizerModules.into());
        }
        for ((layer, projection), (name, moments)) in wanted.into_iter().zip(&state.moments) {
            let Some(lora) = &mut self.model.adapters[layer][projection as usize] else { continue };
            for (values, to) in [
                (&moments.a[0], &mut lora.a.m),
                (&moments.a[1], &mut lora.a.v),
                (&moments.b[0], &mut lora.b.m),
                (&moments.b[1], &mut lora.b.v),
            ] {
                let expected = to.rows() * to.cols();
                if values.len() != expected {
                    let (module, found) = (name.clone(), values.len());
                    return Err(EngineError::AdapterShape { module, side: "moment", found, expected }.into());
                }
                self.backend.upload(values, to)?;
            }
        }
        self.updates = state.updates;
        self.non_finite = state.non_finite;
        self.checked_training = state.updates > 0;
        Ok(())
    }
}

/// Which of `slots` activations block `layer` uses: the last `slots - 1` blocks have their own, all before them
/// share the first.
fn slot(layer: usize, layers: usize, slots: usize) -> usize {
    (layer + slots).saturating_sub(layers)
}

/// What gradients are multiplied with: min(1, max / (norm + 1e-6)), as PyTorch's `clip_grad_norm_`.
fn clip_coefficient(norm: f64, max_grad_norm: f64) -> f32 {
    if max_grad_norm > 0.0 { (max_grad_norm / (norm + 1e-6)).min(1.0) as f32 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_without_a_slot_of_their_own_share_the_first() {
        assert_eq!((0..4).map(|layer| slot(layer, 4, 4)).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!((0..4).map(|layer| slot(layer, 4, 2)).collect::<Vec<_>>(), [0, 0, 0, 1]);
        assert_eq!((0..4).map(|layer| slot(layer, 4, 1)).collect::<Vec<_>>(), [0, 0, 0, 0]);
    }

    #[test]
    fn clipping_never_enlarges_and_zero_is_no_limit() {
        assert_eq!(clip_coefficient(0.9, 1.0), 1.0);
        assert_eq!(clip_coefficient(1e30, 0.0), 1.0);
        let clipped = f64::from(clip_coefficient(4.0, 1.0)) * 4.0;
        assert!((clipped - 1.0).abs() < 1e-6);
    }
}
