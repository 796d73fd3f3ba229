//! Greedy generation with a cache of keys and values: the prompt in one pass, then one token at a time.

use crate::Result;
use crate::backend::{Backend, DeviceTensor};
use crate::block::{ForwardScratch, KvCache, Saved};
use crate::engine::{EngineError, Model, Rows};

/// A conversation with a model: holds its caches, and continues where it stopped.
#[derive(Debug)]
pub struct Generator<'a, B: Backend> {
    backend: &'a mut B,
    model: &'a Model<B>,
    caches: Vec<KvCache<B>>,
    rows: Rows<B>,
    /// Input and output of a block, in turns.
    stream: [B::Tensor; 2],
    saved: Saved<B>,
    scratch: ForwardScratch<B>,
    last: B::Tensor,
    last_row: B::Index,
    logits: B::Tensor,
    limit: usize,
}

impl<'a, B: Backend> Generator<'a, B> {
    /// Room for `limit` tokens, prompt and answer together, of which at most `chunk` run at once.
    ///
    /// # Errors
    /// `limit` is more than the model was loaded for, or memory runs out.
    pub fn new(backend: &'a mut B, model: &'a Model<B>, chunk: usize, limit: usize) -> Result<Self> {
        if limit > model.positions() {
            return Err(EngineError::TooLong { tokens: limit, limit: model.positions() }.into());
        }
        let shape = model.shape();
        let mut caches = Vec::with_capacity(shape.layers);
        for _ in 0..shape.layers {
            caches.push(KvCache::new(backend, shape, limit)?);
        }
        let chunk = chunk.clamp(1, limit.max(1));
        Ok(Self {
            caches,
            rows: Rows::new(backend, shape, chunk)?,
            stream: [backend.tensor(chunk, shape.hidden)?, backend.tensor(chunk, shape.hidden)?],
            saved: Saved::new(backend, shape, &model.config.targets, model.config.r, chunk)?,
            scratch: ForwardScratch::new(backend, shape, false, chunk)?,
            last: backend.tensor(chunk, shape.hidden)?,
            last_row: backend.index(1)?,
            logits: backend.tensor(1, shape.vocab)?,
            backend,
            model,
            limit,
        })
    }

    /// Tokens seen so far.
    pub fn used(&self) -> usize {
        self.caches.first().map_or(0, KvCache::used)
    }

    /// Runs `ids` after everything before and returns the logits that follow the last of them, `[vocab]`.
    ///
    /// # Errors
    /// `ids` is empty or does not fit, or an id is outside of the vocabulary.
    pub fn feed(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        if ids.is_empty() {
            return Err(EngineError::EmptyPrompt.into());
        }
        let tokens = self.used() + ids.len();
        if tokens > self.limit {
            return Err(EngineError::TooLong { tokens, limit: self.limit }.into());
        }
        let chunk = self.rows_at_once();
        for part in ids.chunks(chunk) {
            self.run(part)?;
        }
        let Self { backend, model, stream, last, last_row, logits, .. } = self;
        let shape = model.shape();
        let end = &stream[shape.layers % 2];
        backend.upload_index(&[end.rows() as u32 - 1], last_row)?;
        last.set_rows(end.rows());
        backend.rms_norm(end, &model.final_norm, shape.rms_norm_eps, last)?;
        // The stream's other tensor is free: it takes the last row.
        let [a, b] = stream;
        let row = if shape.layers.is_multiple_of(2) { b } else { a };
        row.set_rows(1);
        backend.gather_rows(last, last_row, row)?;
        backend.head_logits(row, model.head(), logits)?;
        backend.download(logits)
    }

    /// Feeds `prompt` and then the most probable token (the lowest id among equals) again and again, until one
    /// of `end` comes (which is not returned), `max_tokens` are there, or the limit is reached. `on_token` sees
    /// each as it comes.
    ///
    /// # Errors
    /// As [`feed`](Self::feed); and logits that are not finite.
    pub fn greedy(
        &mut self,
        prompt: &[u32],
        max_tokens: usize,
        end: &[u32],
        mut on_token: impl FnMut(u32),
    ) -> Result<Vec<u32>> {
        let mut answer = Vec::new();
        if max_tokens == 0 {
            return Ok(answer);
        }
        let mut logits = self.feed(prompt)?;
        loop {
            let token = most_probable(&logits)?;
            if end.contains(&token) {
                return Ok(answer);
            }
            answer.push(token);
            on_token(token);
            if answer.len() == max_tokens || self.used() == self.limit {
                return Ok(answer);
            }
            logits = self.feed(&[token])?;
        }
    }

    fn rows_at_once(&self) -> usize {
        self.stream[0].bytes() / (self.stream[0].cols() * size_of::<f32>())
    }

    fn run(&mut self, ids: &[u32]) -> Result<()> {
        let Self { backend, model, caches, rows, stream, saved, scratch, .. } = self;
        let past = caches.first().map_or(0, KvCache::used);
        let positions: Vec<u32> = (past as u32..(past + ids.len()) as u32).collect();
        rows.fill(*backend, (ids, &positions, &vec![0; ids.len()]), past)?;
        stream.iter_mut().for_each(|tensor| tensor.set_rows(ids.len()));
        saved.set_rows(ids.len());
        scratch.set_rows(ids.len());
        backend.embed(&model.embedding, &rows.ids, &mut stream[0])?;
        for (layer, cache) in caches.iter_mut().enumerate() {
            let [even, odd] = stream;
            let ends = if layer.is_multiple_of(2) { (&*even, odd) } else { (&*odd, even) };
            model.block_forward(*backend, layer, rows, None, ends, Some(cache), (saved, scratch))?;
        }
        Ok(())
    }
}

fn most_probable(logits: &[f32]) -> Result<u32> {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &logit) in logits.iter().enumerate() {
        if !logit.is_finite() {
            return Err(EngineError::LogitNotFinite { id, logit }.into());
        }
        if logit > best.1 {
            best = (id, logit);
        }
    }
    Ok(best.0 as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_id_wins_among_equals_and_nan_is_an_error() {
        assert_eq!(most_probable(&[0.0, 3.0, 3.0, 1.0]).unwrap(), 1);
        assert!(most_probable(&[0.0, f32::NAN]).is_err());
    }
}
