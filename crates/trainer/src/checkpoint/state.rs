//! The two files that a checkpoint has beside the adapter's: `state.json` and `optimizer.safetensors`.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use super::{Checkpoint, CheckpointError, Settings};
use crate::adapter::{self, Side};
use crate::data::Moment;
use crate::engine::{Moments, OptimizerState};
use crate::lora::{LoraConfig, modules};
use crate::model::ModelShape;
use crate::{Error, Result};

/// Raised whenever an older program could not go on exactly.
const VERSION: u64 = 1;

/// What `state.json` holds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    version: u64,
    pub(super) step: u64,
    pub(super) updates: u64,
    pub(super) non_finite: u32,
    pub(super) now: Moment,
    pub(super) settings: Settings,
}

pub(super) fn to_json(checkpoint: &Checkpoint) -> Vec<u8> {
    let state = State {
        version: VERSION,
        step: checkpoint.step,
        updates: checkpoint.optimizer.updates,
        non_finite: checkpoint.optimizer.non_finite,
        now: checkpoint.now,
        settings: checkpoint.settings.clone(),
    };
    let mut text = serde_json::to_vec_pretty(&state).expect("numbers and strings are always printable");
    text.push(b'\n');
    text
}

/// Reads the state of a checkpoint's directory.
pub(super) fn read(checkpoint: &Path) -> Result<State> {
    let path = &checkpoint.join(super::STATE);
    if !path.is_file() {
        return Err(CheckpointError::NotACheckpoint { path: checkpoint.into() }.into());
    }
    let damaged = |problem: serde_json::Error| CheckpointError::Damaged {
        path: path.clone(),
        problem: problem.to_string(),
    };
    let text = std::fs::read(path).map_err(Error::io("read", path))?;
    // The version first: a newer file may have other fields.
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(damaged)?;
    match value.get("version").and_then(serde_json::Value::as_u64) {
        Some(VERSION) => Ok(serde_json::from_value(value).map_err(damaged)?),
        found => {
            let found = found.unwrap_or(0);
            Err(CheckpointError::Version { path: path.clone(), found, known: VERSION }.into())
        }
    }
}

/// The name of a moment: the parameter's key in an adapter, and which of the two.
fn key(module: &str, side: Side, moment: usize) -> String {
    format!("{}.{}", adapter::key(module, side), ["m", "v"][moment])
}

pub(super) fn moments_to_bytes(
    state: &OptimizerState,
    config: &LoraConfig,
    shape: &ModelShape,
) -> Result<Vec<u8>> {
    let mut tensors = BTreeMap::new();
    for ((module, moments), (_, projection)) in state.moments.iter().zip(modules(config, shape)) {
        let (out, inputs) = projection.dims(shape);
        for which in 0..2 {
            tensors
                .insert(key(module, Side::A, which), (vec![config.r, inputs], moments.a[which].as_slice()));
            tensors.insert(key(module, Side::B, which), (vec![out, config.r], moments.b[which].as_slice()));
        }
    }
    Ok(adapter::serialize(&tensors)?)
}

pub(super) fn read_moments(
    path: &Path,
    config: &LoraConfig,
    shape: &ModelShape,
) -> Result<Vec<(String, Moments)>> {
    let damaged = |problem: String| Error::from(CheckpointError::Damaged { path: path.into(), problem });
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.to_string()))?;
    let mut expected = 0;
    let mut read = |key: String, shape: [usize; 2]| {
        expected += 1;
        let tensor = file.tensor(&key).map_err(|error| damaged(error.to_string()))?;
        if tensor.dtype() != Dtype::F32 {
            return Err(damaged(format!("{key} has type {:?} instead of F32", tensor.dtype())));
        }
        Ok(adapter::values(path, &key, &tensor, shape)?)
    };
    let mut moments = Vec::new();
    for (layer, projection) in modules(config, shape) {
        let module = projection.module(layer);
        let (out, inputs) = projection.dims(shape);
        let mut pair = |side, shape| -> Result<[Vec<f32>; 2]> {
            Ok([read(key(&module, side, 0), shape)?, read(key(&module, side, 1), shape)?])
        };
        let of = Moments { a: pair(Side::A, [config.r, inputs])?, b: pair(Side::B, [out, config.r])? };
        moments.push((module, of));
    }
    if file.len() != expected {
        return Err(damaged(format!("it holds {} tensors, the adapter has {expected} moments", file.len())));
    }
    Ok(moments)
}
