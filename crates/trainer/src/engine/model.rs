//! A model's frozen weights and its adapters on a device, and the passes through one of its blocks.

use crate::backend::{Backend, DropoutKey, Storage};
use crate::block::{BackwardScratch, BlockAdapter, BlockWeights, ForwardScratch, KvCache, Pass, Saved};
use crate::lora::{Adapter, Lora, LoraConfig, LoraTensors, modules};
use crate::model::{ModelShape, Projection, Table, TensorSource};
use crate::{Result, engine::EngineError};

/// A model on a device: frozen weights, an adapter, and the tables around them.
#[derive(Debug)]
pub struct Model<B: Backend> {
    pub(crate) shape: ModelShape,
    pub(crate) config: LoraConfig,
    pub(crate) blocks: Vec<BlockWeights<B>>,
    pub(crate) adapters: Vec<BlockAdapter<B>>,
    pub(crate) embedding: B::Table,
    /// `None` where the head is the embedding.
    head: Option<B::Table>,
    pub(crate) final_norm: B::Tensor,
    pub(crate) rope: B::Rope,
    positions: usize,
}

impl<B: Backend> Model<B> {
    /// Reads all weights, one tensor at a time, and stores the projections as `storage`. The adapter is fresh:
    /// [`Adapter::initial`] of `seed`. `positions` is the longest sample that will ever run.
    ///
    /// # Errors
    /// A tensor is missing, has a wrong shape, holds NaN or infinity, or is left over; `positions` is more than
    /// the model was made for.
    pub fn load(
        backend: &mut B,
        shape: &ModelShape,
        source: &mut dyn TensorSource,
        storage: Storage,
        (config, seed): (&LoraConfig, u64),
        positions: usize,
    ) -> Result<Self> {
        if positions > shape.max_positions {
            return Err(EngineError::TooLong { tokens: positions, limit: shape.max_positions }.into());
        }
        let embedding = source.read_table("model.embed_tokens.weight", &[shape.vocab, shape.hidden])?;
        let embedding = backend.table(embedding, shape.vocab, shape.hidden)?;
        let mut blocks = Vec::with_capacity(shape.layers);
        for layer in 0..shape.layers {
            blocks.push(load_block(backend, shape, source, storage, layer)?);
        }
        let final_norm = load_row(backend, source, "model.norm.weight", shape.hidden)?;
        let head = if shape.tied {
            None
        } else {
            let head = source.read_table("lm_head.weight", &[shape.vocab, shape.hidden])?;
            Some(backend.table(head, shape.vocab, shape.hidden)?)
        };
        source.finish()?;

        let mut adapters: Vec<BlockAdapter<B>> = Vec::with_capacity(shape.layers);
        adapters.resize_with(shape.layers, || [const { None }; 7]);
        for (layer, projection) in modules(config, shape) {
            let (out, inputs) = projection.dims(shape);
            adapters[layer][projection as usize] = Some(Lora::new(backend, config.r, out, inputs)?);
        }
        let rope = backend.rope_table(&shape.rope, positions)?;
        let mut model = Self {
            shape: shape.clone(),
            config: config.clone(),
            blocks,
            adapters,
            embedding,
            head,
            final_norm,
            rope,
            positions,
        };
        model.set_adapter(backend, &Adapter::initial(config, shape, seed))?;
        Ok(model)
    }

    /// The model's sizes.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// The matrix that hidden states are multiplied with to give logits.
    pub fn head(&self) -> &B::Table {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// The longest sample that may run.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// The adapter's values, on the host.
    pub fn adapter(&self, backend: &mut B) -> Result<Adapter> {
        let modules = self.collect(backend, |backend, lora| {
            Ok(LoraTensors { a: backend.download(&lora.a.value)?, b: backend.download(&lora.b.value)? })
        })?;
        Ok(Adapter { config: self.config.clone(), modules })
    }

    /// Something of every adapted module, by name and in the adapter's order.
    pub(crate) fn collect<T>(
        &self,
        backend: &mut B,
        of: impl Fn(&mut B, &Lora<B>) -> Result<T>,
    ) -> Result<Vec<(String, T)>> {
        let mut found = Vec::new();
        for (layer, projection) in modules(&self.config, &self.shape) {
            if let Some(lora) = &self.adapters[layer][projection as usize] {
                found.push((projection.module(layer), of(backend, lora)?));
            }
        }
        Ok(found)
    }

    /// Replaces the adapter's values.
    ///
    /// # Errors
    /// Its modules, rank or shapes are not those of this model's adapter; all differences are named.
    pub fn set_adapter(&mut self, backend: &mut B, adapter: &Adapter) -> Result<()> {
        let mut left: Vec<&str> = adapter.modules.iter().map(|(name, _)| name.as_str()).collect();
        let mut missing = Vec::new();
        let wanted: Vec<_> = modules(&self.config, &self.shape).collect();
        let mut uploads = Vec::new();
        for (layer, projection) in wanted {
            let name = projection.module(layer);
            let Some((_, tensors)) = adapter.modules.iter().find(|(module, _)| *module == name) else {
                missing.push(name);
                continue;
            };
            left.retain(|module| *module != name);
            let (out, inputs) = projection.dims(&self.shape);
            for (side, found, expected) in [
                ("lora_A", tensors.a.len(), self.config.r * inputs),
                ("lora_B", tensors.b.len(), self.config.r * out),
            ] {
                if found != expected {
                    return Err(EngineError::AdapterShape { module: name, side, found, expected }.into());
                }
            }
            uploads.push((layer, projection, tensors));
        }
        if !(missing.is_empty() && left.is_empty()) {
            let left = left.into_iter().map(String::from).collect();
            return Err(EngineError::AdapterModules { missing, left }.into());
        }
        for (layer, projection, tensors) in uploads {
            if let Some(lora) = &mut self.adapters[layer][projection as usize] {
                backend.upload(&tensors.a, &mut lora.a.value)?;
                backend.upload(&tensors.b, &mut lora.b.value)?;
            }
        }
        Ok(())
    }

    /// One block's forward pass, see [`Pass::forward`].
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn block_forward(
        &self,
        backend: &mut B,
        layer: usize,
        rows: &Rows<B>,
        dropout: Option<DropoutKey>,
        (x, y): (&B::Tensor, &mut B::Tensor),
        cache: Option<&mut KvCache<B>>,
        room: (&mut Saved<B>, &mut ForwardScratch<B>),
    ) -> Result<()> {
        let pass = pass((&self.shape, &self.rope, &self.config), layer, rows, dropout);
        pass.forward(backend, &self.blocks[layer], &self.adapters[layer], x, cache, room, y)
    }

    /// One block's backward pass, see [`Pass::backward`]. `d` holds the gradient of the block's output, and then
    /// that of its input `x`.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn block_backward(
        &mut self,
        backend: &mut B,
        layer: usize,
        rows: &Rows<B>,
        dropout: Option<DropoutKey>,
        (x, d): (&B::Tensor, &mut B::Tensor),
        saved: &Saved<B>,
        scratch: (&mut ForwardScratch<B>, &mut BackwardScratch<B>),
    ) -> Result<()> {
        let pass = pass((&self.shape, &self.rope, &self.config), layer, rows, dropout);
        pass.backward(backend, &self.blocks[layer], &mut self.adapters[layer], x, saved, scratch, d)
    }
}

/// What one block's pass needs to know. Borrows parts of a model, so that backward can write into the adapters.
fn pass<'a, B: Backend>(
    (shape, rope, config): (&'a ModelShape, &'a B::Rope, &LoraConfig),
    layer: usize,
    rows: &'a Rows<B>,
    dropout: Option<DropoutKey>,
) -> Pass<'a, B> {
    Pass {
        shape,
        rope,
        positions: &rows.positions,
        starts: rows.starts(layer),
        layer,
        lora_scale: config.scale(),
        dropout,
    }
}

/// Ids, positions and first visible keys of the tokens that a pass runs on, on the device.
#[derive(Debug)]
pub struct Rows<B: Backend> {
    pub(crate) ids: B::Index,
    pub(crate) positions: B::Index,
    /// One for each distinct window of the model.
    starts: Vec<(Option<usize>, B::Index)>,
    /// Which of `starts` a block uses.
    of_layer: Vec<usize>,
}

impl<B: Backend> Rows<B> {
    /// Room for `tokens` tokens.
    pub fn new(backend: &mut B, shape: &ModelShape, tokens: usize) -> Result<Self> {
        let mut starts: Vec<(Option<usize>, B::Index)> = Vec::new();
        let mut of_layer = Vec::with_capacity(shape.layers);
        for &window in &shape.windows {
            let at = match starts.iter().position(|(known, _)| *known == window) {
                Some(at) => at,
                None => {
                    starts.push((window, backend.index(tokens)?));
                    starts.len() - 1
                }
            };
            of_layer.push(at);
        }
        Ok(Self { ids: backend.index(tokens)?, positions: backend.index(tokens)?, starts, of_layer })
    }

    /// Uploads a batch. `first` is the index among the keys of the first token: 0, or the tokens already in a
    /// cache. A window of w shows a token itself and the w - 1 before it.
    pub fn fill(
        &mut self,
        backend: &mut B,
        (ids, positions, starts): (&[u32], &[u32], &[u32]),
        first: usize,
    ) -> Result<()> {
        backend.upload_index(ids, &mut self.ids)?;
        backend.upload_index(positions, &mut self.positions)?;
        for (window, index) in &mut self.starts {
            match window {
                None => backend.upload_index(starts, index)?,
                Some(window) => {
                    let visible = |(row, &start): (usize, &u32)| {
                        start.max((first + row + 1).saturating_sub(*window) as u32)
                    };
                    let windowed: Vec<u32> = starts.iter().enumerate().map(visible).collect();
                    backend.upload_index(&windowed, index)?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn starts(&self, layer: usize) -> &B::Index {
        &self.starts[self.of_layer[layer]].1
    }
}

fn load_row<B: Backend>(
    backend: &mut B,
    source: &mut dyn TensorSource,
    name: &str,
    len: usize,
) -> Result<B::Tensor> {
    let values = source.read_f32(name, &[len])?;
    let mut row = backend.tensor(1, len)?;
    backend.upload(&values, &mut row)?;
    Ok(row)
}

fn load_block<B: Backend>(
    backend: &mut B,
    shape: &ModelShape,
    source: &mut dyn TensorSource,
    storage: Storage,
    layer: usize,
) -> Result<BlockWeights<B>> {
    let prefix = format!("model.layers.{layer}");
    let mut linears = Vec::with_capacity(7);
    for projection in Projection::ALL {
        let (out, inputs) = projection.dims(shape);
        let module = projection.module(layer);
        let name = format!("{module}.weight");
        let values = match storage {
            Storage::AsIs => source.read_table(&name, &[out, inputs])?,
            Storage::Nf4 { .. } => Table::F32(source.read_f32(&name, &[out, inputs])?),
        };
        let weight = backend.weight(values, out, inputs, storage)?;
        let bias = if projection.has_bias(shape) {
            Some(load_row(backend, source, &format!("{module}.bias"), out)?)
        } else {
            None
        };
        linears.push((weight, bias));
    }
    let head_norms = if shape.qk_norm {
        let mut norm = |side| {
            load_row(backend, source, &format!("{prefix}.self_attn.{side}_norm.weight"), shape.head_dim)
        };
        Some([norm("q")?, norm("k")?])
    } else {
        None
    };
    let Ok(linears) = linears.try_into() else {
        unreachable!("there is one for each of the seven projections")
    };
    Ok(BlockWeights {
        input_norm: load_row(backend, source, &format!("{prefix}.input_layernorm.weight"), shape.hidden)?,
        mlp_norm: load_row(
            backend,
            source,
            &format!("{prefix}.post_attention_layernorm.weight"),
            shape.hidden,
        )?,
        head_norms,
        linears,
    })
}
