//! One batch through the whole model: forward, the head, and backward into the adapters' gradients.

use super::{Engine, EngineError};
use crate::Result;
use crate::backend::{Backend, DeviceTensor, DropoutKey};
use crate::data::Batch;

impl<B: Backend> Engine<B> {
    /// The losses of a batch's supervised tokens, in order, without dropout and without gradients.
    ///
    /// # Errors
    /// The batch is larger than [`EngineOptions`](super::EngineOptions) said.
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

    /// Loss (mean over the batch's supervised tokens, 0 where there are none) and gradients without an update;
    /// also the gradient of the embeddings' output, `[tokens, hidden]`.
    ///
    /// # Errors
    /// As [`losses`](Self::losses).
    pub fn gradients_of(&mut self, batch: &Batch) -> Result<(f64, Vec<f32>)> {
        self.zero_gradients()?;
        let supervised = batch.rows.len().max(1);
        let sum = self.accumulate(batch, 1.0 / supervised as f32, None)?;
        Ok((sum / supervised as f64, self.backend.download(&self.d)?))
    }

    /// Adds `scale` times the gradient of the summed loss of one batch to the adapters' gradients. Returns
    /// that sum.
    pub(super) fn accumulate(
        &mut self,
        batch: &Batch,
        scale: f32,
        dropout: Option<DropoutKey>,
    ) -> Result<f64> {
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

    /// Losses of the supervised rows and, with a scale, their gradient in `d_supervised`.
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
            let scratch = (&mut *forward, &mut *backward);
            model.block_backward(backend, layer, rows, dropout, (x, d), &saved[slot], scratch)?;
        }
        Ok(())
    }

    fn set_rows(&mut self, tokens: usize) {
        self.stream.iter_mut().chain([&mut self.normed, &mut self.d]).for_each(|t| t.set_rows(tokens));
        self.saved.iter_mut().for_each(|saved| saved.set_rows(tokens));
        self.forward.set_rows(tokens);
        self.backward.set_rows(tokens);
    }
}

/// Which of `slots` activations block `layer` uses: the last `slots - 1` blocks have their own, all before them
/// share the first.
fn slot(layer: usize, layers: usize, slots: usize) -> usize {
    (layer + slots).saturating_sub(layers)
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
}
