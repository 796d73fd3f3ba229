//! What a run is asked to do: a TOML file and `--set section.key=value` over it. Every key is checked here, with
//! its place in the file; what a key means for a model or a data set is checked where those are known.
//!
//! [`keys::KEYS`] is the one list of keys: reading, help, suggestions and tests all go over it. Paths are
//! relative to the current directory.

mod error;
pub mod keys;
mod read;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use error::ConfigError;

use crate::data::{Format, LossOn};
use crate::model::Projection;
use crate::schedule::{Shape, Warmup};

/// A checked configuration. Fields are named as the keys; [`keys::KEYS`] documents them.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Config {
    pub model: PathBuf,
    pub output_dir: PathBuf,
    pub data: Data,
    pub lora: Lora,
    pub quantization: Quantization,
    pub train: Train,
    pub device: Device,
    /// Where each key that was given stands: the file's line, or the command line.
    places: BTreeMap<&'static str, String>,
}

/// `[data]`
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Data {
    pub train: PathBuf,
    pub eval: Option<PathBuf>,
    pub format: Format,
    pub max_length: usize,
    pub packing: bool,
    pub shuffle: bool,
    pub loss_on: LossOn,
}

/// `[lora]`
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Lora {
    pub r: usize,
    pub alpha: f64,
    pub dropout: f64,
    /// In the order of [`Projection::ALL`], each once.
    pub target_modules: Vec<Projection>,
    pub rslora: bool,
    pub adapter: Option<PathBuf>,
}

/// `[quantization]`
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Quantization {
    pub weights: Weights,
    pub double: bool,
    pub block_size: usize,
}

/// How the frozen weights of the blocks are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// 4-bit NF4.
    Nf4,
    /// In the type of the model's files.
    None,
}

/// `[train]`
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Train {
    pub batch_size: usize,
    pub gradient_accumulation_steps: usize,
    /// `max_steps` or `epochs`, whichever is given.
    pub length: Length,
    pub learning_rate: f64,
    pub lr_scheduler: Shape,
    pub warmup_steps: Warmup,
    pub weight_decay: f64,
    pub max_grad_norm: f64,
    pub seed: u64,
    pub logging_steps: u64,
    pub eval_steps: u64,
    pub save_steps: u64,
    pub save_total_limit: usize,
    pub resume: Option<Resume>,
}

/// How long a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// So many optimiser steps.
    Steps(u64),
    /// So many times through the data.
    Epochs(u64),
}

/// Where to go on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// The newest checkpoint of the output directory.
    Auto,
    /// This checkpoint.
    Path(PathBuf),
}

/// `[device]`
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Device {
    pub kind: DeviceKind,
    /// `None` is as many as the machine offers.
    pub threads: Option<usize>,
    pub vram_limit_mb: Option<u64>,
}

/// What to compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A GPU where there is one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The NVIDIA GPU of this number.
    Cuda(u32),
}

impl Default for Config {
    /// The default of every key; `model`, `output_dir` and `data.train` have none and are empty here.
    fn default() -> Self {
        Self {
            model: PathBuf::new(),
            output_dir: PathBuf::new(),
            data: Data {
                train: PathBuf::new(),
                eval: None,
                format: Format::Auto,
                max_length: 1024,
                packing: false,
                shuffle: true,
                loss_on: LossOn::Assistant,
            },
            lora: Lora {
                r: 16,
                alpha: 32.0,
                dropout: 0.0,
                target_modules: Projection::ALL.to_vec(),
                rslora: false,
                adapter: None,
            },
            quantization: Quantization { weights: Weights::Nf4, double: true, block_size: 64 },
            train: Train {
                batch_size: 1,
                gradient_accumulation_steps: 8,
                length: Length::Epochs(1),
                learning_rate: 2e-4,
                lr_scheduler: Shape::Linear,
                warmup_steps: Warmup::Steps(0),
                weight_decay: 0.0,
                max_grad_norm: 1.0,
                seed: 0,
                logging_steps: 10,
                eval_steps: 0,
                save_steps: 100,
                save_total_limit: 3,
                resume: None,
            },
            device: Device { kind: DeviceKind::Auto, threads: None, vram_limit_mb: None },
            places: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Reads a file and puts `sets` (each `section.key=value`) over it.
    ///
    /// # Errors
    /// The file cannot be read or is no TOML, a key is unknown or missing, a value is not accepted, or keys
    /// contradict each other. The message names the place.
    pub fn load(path: &Path, sets: &[String]) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_path_buf(), source })?;
        Self::parse(&text, &path.display().to_string(), sets)
    }

    /// As [`load`](Self::load), from text; `name` stands for the file in messages.
    ///
    /// ```
    /// use trainer::config::Config;
    /// let text = "model = \"m\"\noutput_dir = \"o\"\n[data]\ntrain = \"t.jsonl\"\n[lora]\nrank = 8";
    /// let error = Config::parse(text, "run.toml", &[]).unwrap_err();
    /// assert!(error.to_string().starts_with("run.toml:6:1: unknown key `lora.rank`; "));
    /// ```
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn parse(text: &str, name: &str, sets: &[String]) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        read::document(&mut config, text, name)?;
        read::command_line(&mut config, sets)?;
        validate::check(&config, name)?;
        Ok(config)
    }

    /// Where a key was given, or `None` where its default holds.
    pub fn place(&self, key: &str) -> Option<&str> {
        self.places.get(key).map(String::as_str)
    }
}
