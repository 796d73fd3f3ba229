//! What keys must hold together. A key that would have no effect is refused, because its author expects one.

use super::{Config, ConfigError, Weights};
use crate::schedule::{Shape, Warmup};

/// Checks what no single key can show. `file` stands for the file in messages.
pub(super) fn check(config: &Config, file: &str) -> Result<(), ConfigError> {
    for (key, about) in [
        ("model", "the Hugging Face directory or GGUF file to train"),
        ("output_dir", "where the adapter, checkpoints and metrics go"),
        ("data.train", "the JSONL file to train on"),
    ] {
        if config.place(key).is_none() {
            return Err(ConfigError::Missing { file: file.into(), key, about });
        }
    }
    if config.place("train.epochs").is_some() {
        refuse(config, "train.max_steps", || {
            "train.max_steps and train.epochs are both given; keep one".into()
        })?;
    }
    if config.train.eval_steps > 0 && config.data.eval.is_none() {
        refuse(config, "train.eval_steps", || {
            "train.eval_steps has no effect without data.eval; give the file to measure on, or leave it out"
                .into()
        })?;
    }
    if config.train.lr_scheduler == Shape::Constant && config.train.warmup_steps != Warmup::Steps(0) {
        refuse(config, "train.warmup_steps", || {
            "lr_scheduler = \"constant\" has no warmup; take \"constant_with_warmup\", or leave warmup_steps out".into()
        })?;
    }
    if config.quantization.weights == Weights::None {
        for key in ["quantization.double", "quantization.block_size"] {
            refuse(config, key, || {
                format!("{key} has no effect with quantization.weights = \"none\"; leave one of them out")
            })?;
        }
    }
    if config.train.save_steps == 0 {
        refuse(config, "train.save_total_limit", || {
            "train.save_total_limit has no effect with train.save_steps = 0; leave one of them out".into()
        })?;
    }
    Ok(())
}

/// An error at the place of `key`, if it was given at all.
fn refuse(config: &Config, key: &str, problem: impl FnOnce() -> String) -> Result<(), ConfigError> {
    match config.place(key) {
        Some(place) => Err(ConfigError::Conflict { place: place.into(), problem: problem() }),
        None => Ok(()),
    }
}
