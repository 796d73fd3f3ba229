//! The transformer block, defined once for every family and device: forward, and backward for the adapters and
//! the block's input. Frozen weights get no gradient.
//!
//! ```text
//! h   = norm(x)                      q, k, v = project(h)
//! q,k = rotate(head norm(q, k))      att = attention(q, k, v)
//! mid = x + o(att)
//! h   = norm(mid)                    act = silu(gate(h)) * up(h)
//! y   = mid + down(act)
//! ```
//!
//! Backward needs x, q, k, v, att, mid, gate, up (and q, k before the head norm where there is one); `h` and
//! `act` are cheap and computed again. [`Saved`] holds them: one for every block where memory allows, or one for
//! all, filled again by running forward inside backward. Both give the same bytes.

use crate::Result;
use crate::backend::{AttentionInputs, AttentionShape, Backend, DeviceTensor, Direction, DropoutKey};
use crate::lora::{Lora, LoraRule};
use crate::model::{ModelShape, Projection};
use crate::random;

/// The frozen weights of one block.
#[derive(Debug)]
pub struct BlockWeights<B: Backend> {
    /// Weights of the norm before attention, one row.
    pub input_norm: B::Tensor,
    /// Weights of the norm before the MLP, one row.
    pub mlp_norm: B::Tensor,
    /// Weights of the norms of each query and key head, where the family has them.
    pub head_norms: Option<[B::Tensor; 2]>,
    /// Weight and bias of each [`Projection`].
    pub linears: [(B::Weight, Option<B::Tensor>); 7],
}

/// The adapters of one block, by [`Projection`].
pub type BlockAdapter<B> = [Option<Lora<B>>; 7];

/// What backward needs of a block's forward pass; `tokens` rows each.
#[derive(Debug)]
pub struct Saved<B: Backend> {
    /// q and k before their head norm.
    unnormed: Option<[B::Tensor; 2]>,
    q: B::Tensor,
    k: B::Tensor,
    v: B::Tensor,
    att: B::Tensor,
    log_sum_exp: B::Tensor,
    mid: B::Tensor,
    gate: B::Tensor,
    up: B::Tensor,
    /// `x Aᵀ` of each adapter.
    xa: [Option<B::Tensor>; 7],
}

/// Values that forward needs for a moment; one for all blocks.
#[derive(Debug)]
pub struct ForwardScratch<B: Backend> {
    h: B::Tensor,
    act: B::Tensor,
    dropped: Dropped<B>,
}

/// Values that backward needs for a moment; one for all blocks.
#[derive(Debug)]
pub struct BackwardScratch<B: Backend> {
    dh: B::Tensor,
    dq: B::Tensor,
    dk: B::Tensor,
    dv: B::Tensor,
    d_unnormed: Option<[B::Tensor; 2]>,
    d_att: B::Tensor,
    d_act: B::Tensor,
    d_gate: B::Tensor,
    d_up: B::Tensor,
    dxa: B::Tensor,
}

/// An adapter's input after dropout, for each width of input; absent without dropout.
#[derive(Debug)]
struct Dropped<B: Backend>([Option<B::Tensor>; 3]);

impl<B: Backend> Dropped<B> {
    fn of(&mut self, projection: Projection) -> Option<&mut B::Tensor> {
        let slot = match projection {
            Projection::O => 1,
            Projection::Down => 2,
            _ => 0,
        };
        self.0[slot].as_mut()
    }
}

impl<B: Backend> Saved<B> {
    /// Room for `tokens` tokens; `r` is the rank of the projections that have an adapter.
    pub fn new(
        backend: &mut B,
        shape: &ModelShape,
        adapted: &[Projection],
        r: usize,
        tokens: usize,
    ) -> Result<Self> {
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let mut xa = [const { None }; 7];
        for &projection in adapted {
            xa[projection as usize] = Some(backend.tensor(tokens, r)?);
        }
        Ok(Self {
            unnormed: if shape.qk_norm {
                Some([backend.tensor(tokens, q)?, backend.tensor(tokens, kv)?])
            } else {
                None
            },
            q: backend.tensor(tokens, q)?,
            k: backend.tensor(tokens, kv)?,
            v: backend.tensor(tokens, kv)?,
            att: backend.tensor(tokens, q)?,
            log_sum_exp: backend.tensor(tokens, shape.heads)?,
            mid: backend.tensor(tokens, shape.hidden)?,
            gate: backend.tensor(tokens, shape.intermediate)?,
            up: backend.tensor(tokens, shape.intermediate)?,
            xa,
        })
    }

    /// Bytes that [`new`](Self::new) takes, without taking them.
    pub fn bytes(shape: &ModelShape, adapted: usize, r: usize, tokens: usize) -> usize {
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let unnormed = if shape.qk_norm { q + kv } else { 0 };
        let floats = unnormed + 2 * q + 2 * kv + shape.heads + shape.hidden + 2 * shape.intermediate;
        tokens * (floats + adapted * r) * size_of::<f32>()
    }

    /// Sets the rows in use of everything.
    pub fn set_rows(&mut self, tokens: usize) {
        let Self { unnormed, q, k, v, att, log_sum_exp, mid, gate, up, xa } = self;
        let optional = unnormed.iter_mut().flatten().chain(xa.iter_mut().flatten());
        for tensor in [q, k, v, att, log_sum_exp, mid, gate, up].into_iter().chain(optional) {
            tensor.set_rows(tokens);
        }
    }
}

impl<B: Backend> ForwardScratch<B> {
    /// Room for `tokens` tokens.
    pub fn new(backend: &mut B, shape: &ModelShape, dropout: bool, tokens: usize) -> Result<Self> {
        let mut dropped = Dropped([None, None, None]);
        if dropout {
            let widths = [shape.hidden, shape.heads * shape.head_dim, shape.intermediate];
            for (slot, width) in dropped.0.iter_mut().zip(widths) {
                *slot = Some(backend.tensor(tokens, width)?);
            }
        }
        Ok(Self {
            h: backend.tensor(tokens, shape.hidden)?,
            act: backend.tensor(tokens, shape.intermediate)?,
            dropped,
        })
    }

    /// Sets the rows in use of everything.
    pub fn set_rows(&mut self, tokens: usize) {
        let dropped = self.dropped.0.iter_mut().flatten();
        [&mut self.h, &mut self.act].into_iter().chain(dropped).for_each(|tensor| tensor.set_rows(tokens));
    }
}

impl<B: Backend> BackwardScratch<B> {
    /// Room for `tokens` tokens.
    pub fn new(backend: &mut B, shape: &ModelShape, r: usize, tokens: usize) -> Result<Self> {
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        Ok(Self {
            dh: backend.tensor(tokens, shape.hidden)?,
            dq: backend.tensor(tokens, q)?,
            dk: backend.tensor(tokens, kv)?,
            dv: backend.tensor(tokens, kv)?,
            d_unnormed: if shape.qk_norm {
                Some([backend.tensor(tokens, q)?, backend.tensor(tokens, kv)?])
            } else {
                None
            },
            d_att: backend.tensor(tokens, q)?,
            d_act: backend.tensor(tokens, shape.intermediate)?,
            d_gate: backend.tensor(tokens, shape.intermediate)?,
            d_up: backend.tensor(tokens, shape.intermediate)?,
            dxa: backend.tensor(tokens, r)?,
        })
    }

    /// Sets the rows in use of everything.
    pub fn set_rows(&mut self, tokens: usize) {
        let Self { dh, dq, dk, dv, d_unnormed, d_att, d_act, d_gate, d_up, dxa } = self;
        for tensor in [dh, dq, dk, dv, d_att, d_act, d_gate, d_up, dxa]
            .into_iter()
            .chain(d_unnormed.iter_mut().flatten())
        {
            tensor.set_rows(tokens);
        }
    }
}

/// Where an incremental forward pass keeps the keys and values of one block.
#[derive(Debug)]
pub struct KvCache<B: Backend> {
    k: B::Tensor,
    v: B::Tensor,
    used: usize,
}

impl<B: Backend> KvCache<B> {
    /// Room for `tokens` tokens in all.
    pub fn new(backend: &mut B, shape: &ModelShape, tokens: usize) -> Result<Self> {
        let kv = shape.kv_heads * shape.head_dim;
        Ok(Self { k: backend.tensor(tokens, kv)?, v: backend.tensor(tokens, kv)?, used: 0 })
    }

    /// Tokens that it holds.
    pub fn used(&self) -> usize {
        self.used
    }

    fn append(&mut self, backend: &mut B, k: &B::Tensor, v: &B::Tensor) -> Result<()> {
        let all = self.used + k.rows();
        self.k.set_rows(all);
        self.v.set_rows(all);
        backend.copy_rows(k, self.used, &mut self.k)?;
        backend.copy_rows(v, self.used, &mut self.v)?;
        self.used = all;
        Ok(())
    }
}

/// Everything about one pass through one block that is neither weights nor activations.
#[derive(Debug)]
pub struct Pass<'a, B: Backend> {
    /// The model.
    pub shape: &'a ModelShape,
    /// Rotary table.
    pub rope: &'a B::Rope,
    /// Position of each token.
    pub positions: &'a B::Index,
    /// First key that each token sees, this block's window applied.
    pub starts: &'a B::Index,
    /// Number of the block.
    pub layer: usize,
    /// Scale of the adapters.
    pub lora_scale: f32,
    /// Dropout of the adapters: probability, and the key of this micro-batch.
    pub dropout: Option<DropoutKey>,
}

impl<B: Backend> Pass<'_, B> {
    fn rule(&self, projection: Projection) -> LoraRule {
        let dropout = self.dropout.map(|DropoutKey { key, probability }| DropoutKey {
            key: random::key(&[key, self.layer as u64, projection as u64]),
            probability,
        });
        LoraRule { scale: self.lora_scale, dropout }
    }

    fn attention_shape(&self) -> AttentionShape {
        let ModelShape { heads, kv_heads, head_dim, .. } = *self.shape;
        AttentionShape { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt() }
    }

    /// `y = x Wᵀ + bias`, and the adapter's part.
    #[allow(clippy::too_many_arguments)]
    fn project(
        &self,
        backend: &mut B,
        (weights, adapter): (&BlockWeights<B>, &BlockAdapter<B>),
        projection: Projection,
        x: &B::Tensor,
        dropped: &mut Dropped<B>,
        xa: &mut [Option<B::Tensor>; 7],
        y: &mut B::Tensor,
    ) -> Result<()> {
        let (weight, bias) = &weights.linears[projection as usize];
        backend.linear(x, weight, y)?;
        if let Some(bias) = bias {
            backend.add_bias(bias, y)?;
        }
        if let (Some(lora), Some(xa)) = (&adapter[projection as usize], &mut xa[projection as usize]) {
            lora.forward(backend, self.rule(projection), x, dropped.of(projection), xa, y)?;
        }
        Ok(())
    }

    /// `dx = beta dx + dy W` and the adapter's part; adds to the adapter's gradients.
    #[allow(clippy::too_many_arguments)]
    fn project_d(
        &self,
        backend: &mut B,
        (weights, adapter): (&BlockWeights<B>, &mut BlockAdapter<B>),
        projection: Projection,
        (x, xa): (&B::Tensor, &[Option<B::Tensor>; 7]),
        dy: &B::Tensor,
        (dropped, dxa): (&mut Dropped<B>, &mut B::Tensor),
        beta: f32,
        dx: &mut B::Tensor,
    ) -> Result<()> {
        backend.linear_dx(dy, &weights.linears[projection as usize].0, beta, dx)?;
        if let (Some(lora), Some(xa)) = (&mut adapter[projection as usize], &xa[projection as usize]) {
            let dropped = dropped.of(projection);
            lora.backward(backend, self.rule(projection), x, xa, dy, dropped, dxa, dx)?;
        }
        Ok(())
    }

    /// `y = block(x)`, leaving in `saved` what [`backward`](Self::backward) needs. With a cache, the tokens
    /// continue those that it holds, and join them.
    #[allow(clippy::too_many_arguments)]
    pub fn forward(
        &self,
        backend: &mut B,
        weights: &BlockWeights<B>,
        adapter: &BlockAdapter<B>,
        x: &B::Tensor,
        cache: Option<&mut KvCache<B>>,
        (saved, scratch): (&mut Saved<B>, &mut ForwardScratch<B>),
        y: &mut B::Tensor,
    ) -> Result<()> {
        use Projection::{Down, Gate, K, O, Q, Up, V};
        let both = (weights, adapter);
        let eps = self.shape.rms_norm_eps;
        let Saved { unnormed, q, k, v, att, log_sum_exp, mid, gate, up, xa } = saved;
        let ForwardScratch { h, act, dropped } = scratch;

        backend.rms_norm(x, &weights.input_norm, eps, h)?;
        match (unnormed, &weights.head_norms) {
            (Some([q_raw, k_raw]), Some([q_norm, k_norm])) => {
                self.project(backend, both, Q, h, dropped, xa, q_raw)?;
                self.project(backend, both, K, h, dropped, xa, k_raw)?;
                backend.rms_norm(q_raw, q_norm, eps, q)?;
                backend.rms_norm(k_raw, k_norm, eps, k)?;
            }
            _ => {
                self.project(backend, both, Q, h, dropped, xa, q)?;
                self.project(backend, both, K, h, dropped, xa, k)?;
            }
        }
        self.project(backend, both, V, h, dropped, xa, v)?;
        backend.rope(self.rope, self.positions, Direction::Forward, q)?;
        backend.rope(self.rope, self.positions, Direction::Forward, k)?;

        let (shape, starts) = (self.attention_shape(), self.starts);
        let (k, v) = match cache {
            Some(cache) => {
                cache.append(backend, k, v)?;
                (&cache.k, &cache.v)
            }
            None => (&*k, &*v),
        };
        backend.attention(AttentionInputs { shape, starts, q, k, v }, att, log_sum_exp)?;
        self.project(backend, both, O, att, dropped, xa, mid)?;
        backend.add(x, mid)?;

        backend.rms_norm(mid, &weights.mlp_norm, eps, h)?;
        self.project(backend, both, Gate, h, dropped, xa, gate)?;
        self.project(backend, both, Up, h, dropped, xa, up)?;
        backend.swiglu(gate, up, act)?;
        self.project(backend, both, Down, act, dropped, xa, y)?;
        backend.add(mid, y)
    }

    /// Turns `d`, the gradient of the block's output, into the gradient of its input `x`, and adds to the
    /// gradients of its adapters. `saved` is what [`forward`](Self::forward) left for this `x`.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &self,
        backend: &mut B,
        weights: &BlockWeights<B>,
        adapter: &mut BlockAdapter<B>,
        x: &B::Tensor,
        saved: &Saved<B>,
        (forward, backward): (&mut ForwardScratch<B>, &mut BackwardScratch<B>),
        d: &mut B::Tensor,
    ) -> Result<()> {
        use Projection::{Down, Gate, K, O, Q, Up, V};
        let eps = self.shape.rms_norm_eps;
        let Saved { unnormed, q, k, v, att, log_sum_exp, mid, gate, up, xa } = saved;
        let ForwardScratch { h, act, dropped } = forward;
        let BackwardScratch { dh, dq, dk, dv, d_unnormed, d_att, d_act, d_gate, d_up, dxa } = backward;

        // y = mid + down(act)
        backend.swiglu(gate, up, act)?;
        self.project_d(backend, (weights, adapter), Down, (act, xa), d, (dropped, dxa), 0.0, d_act)?;
        backend.swiglu_d(gate, up, d_act, [d_gate, d_up])?;
        backend.rms_norm(mid, &weights.mlp_norm, eps, h)?;
        self.project_d(backend, (weights, adapter), Gate, (h, xa), d_gate, (dropped, dxa), 0.0, dh)?;
        self.project_d(backend, (weights, adapter), Up, (h, xa), d_up, (dropped, dxa), 1.0, dh)?;
        backend.rms_norm_dx(mid, &weights.mlp_norm, eps, dh, 1.0, d)?;

        // mid = x + o(att)
        self.project_d(backend, (weights, adapter), O, (att, xa), d, (dropped, dxa), 0.0, d_att)?;
        let inputs = AttentionInputs { shape: self.attention_shape(), starts: self.starts, q, k, v };
        backend.attention_d(inputs, att, log_sum_exp, d_att, [dq, dk, dv])?;
        backend.rope(self.rope, self.positions, Direction::Inverse, dq)?;
        backend.rope(self.rope, self.positions, Direction::Inverse, dk)?;
        let (dq, dk) = match (unnormed, &weights.head_norms, d_unnormed) {
            (Some([q_raw, k_raw]), Some([q_norm, k_norm]), Some([dq_raw, dk_raw])) => {
                backend.rms_norm_dx(q_raw, q_norm, eps, dq, 0.0, dq_raw)?;
                backend.rms_norm_dx(k_raw, k_norm, eps, dk, 0.0, dk_raw)?;
                (&*dq_raw, &*dk_raw)
            }
            _ => (&*dq, &*dk),
        };
        backend.rms_norm(x, &weights.input_norm, eps, h)?;
        self.project_d(backend, (weights, adapter), Q, (h, xa), dq, (dropped, dxa), 0.0, dh)?;
        self.project_d(backend, (weights, adapter), K, (h, xa), dk, (dropped, dxa), 1.0, dh)?;
        self.project_d(backend, (weights, adapter), V, (h, xa), dv, (dropped, dxa), 1.0, dh)?;
        backend.rms_norm_dx(x, &weights.input_norm, eps, dh, 1.0, d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::CpuBackend;
    use crate::model::{Family, Rope};

    // B38: the estimate by which a run decides what it keeps is what is really taken, to the byte.
    #[test]
    fn the_estimate_of_activations_is_what_they_take() {
        let mut backend = CpuBackend::new(cpu_ops::Threads::new(1).unwrap());
        for (qk_norm, head_dim) in [(false, 4), (true, 16)] {
            let shape = ModelShape {
                family: if qk_norm { Family::Qwen3 } else { Family::Llama },
                vocab: 32,
                hidden: 24,
                layers: 1,
                heads: 6,
                kv_heads: 2,
                head_dim,
                intermediate: 40,
                rms_norm_eps: 1e-5,
                qkv_bias: false,
                o_bias: false,
                mlp_bias: false,
                qk_norm,
                tied: true,
                rope: Rope { inv_freq: vec![1.0; head_dim / 2], attention_factor: 1.0 },
                max_positions: 64,
                windows: vec![None],
                eos: vec![2],
            };
            for adapted in [&Projection::ALL[..], &[Projection::Q], &[]] {
                let saved = Saved::new(&mut backend, &shape, adapted, 5, 7).unwrap();
                let Saved { unnormed, q, k, v, att, log_sum_exp, mid, gate, up, xa } = &saved;
                let optional = unnormed.iter().flatten().chain(xa.iter().flatten());
                let all = [q, k, v, att, log_sum_exp, mid, gate, up].into_iter().chain(optional);
                let taken: usize = all.map(DeviceTensor::bytes).sum();
                assert_eq!(Saved::<CpuBackend>::bytes(&shape, adapted.len(), 5, 7), taken);
            }
        }
    }
}
