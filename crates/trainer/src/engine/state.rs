//! What an engine learns and remembers, on the host: the adapter, its gradients, and the optimiser's state.

use super::{Engine, EngineError};
use crate::Result;
use crate::backend::{Backend, DeviceTensor};
use crate::lora::{Adapter, LoraTensors, modules};
use crate::model::Projection;

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

impl<B: Backend> Engine<B> {
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
    /// As [`Model::set_adapter`](super::Model::set_adapter).
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
