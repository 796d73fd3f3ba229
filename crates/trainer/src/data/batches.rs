//! From samples to the batches of each step. What a step runs on is a function of its number and of the settings:
//! there is no cursor to save, and a run resumed at step k goes on exactly as if it had never stopped.
//!
//! Samples stand in rows: one sample a row, or with packing as many as fit into `pack` tokens, filled in order. A
//! micro-batch is `batch_size` rows, a window (one optimiser step) `accumulation` micro-batches. Rows are put
//! together once and shuffled anew each epoch, so every epoch has the same number of steps. No window crosses the
//! end of an epoch: its last micro-batch and its last window are as small as what is left, and the loss is the
//! mean over the tokens that are there.

use std::sync::Mutex;

use super::error::DataError;
use super::order::permutation;
use super::sample::{Batch, Sample};

/// The epoch whose number makes the order in which samples are packed; no run gets there.
const PACKING: u64 = u64::MAX;

/// How samples become batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Rows of a micro-batch.
    pub batch_size: usize,
    /// Micro-batches of an optimiser step.
    pub accumulation: usize,
    /// Tokens of a row that several samples share; none puts each sample into a row of its own.
    pub pack: Option<usize>,
    /// Whether each epoch has an order of its own; otherwise it is the file's.
    pub shuffle: bool,
    /// What orders depend on.
    pub seed: u64,
}

/// What one optimiser step runs on.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// Epochs done when the step is: 1.5 is half-way through the second, counted in samples.
    pub epoch: f64,
    /// The micro-batches.
    pub batches: Vec<Batch>,
    /// Indices of each micro-batch's samples.
    pub samples: Vec<Vec<usize>>,
}

impl Window {
    /// Supervised tokens of all micro-batches: what the sum of their losses is divided by.
    pub fn supervised(&self) -> usize {
        self.batches.iter().map(|batch| batch.targets.len()).sum()
    }

    /// Tokens of all micro-batches.
    pub fn tokens(&self) -> usize {
        self.batches.iter().map(Batch::tokens).sum()
    }
}

/// Samples and the way they are put together.
///
/// ```
/// use trainer::data::{Loader, LoaderOptions, Sample};
/// let sample = Sample { ids: vec![5, 6, 7], labels: vec![-100, 6, 7] };
/// let options = LoaderOptions { batch_size: 2, accumulation: 2, pack: None, shuffle: false, seed: 0 };
/// let loader = Loader::new(vec![sample; 5], options)?;
/// assert_eq!(loader.steps_per_epoch(), 2);
/// assert_eq!(loader.step(2).samples, [[4]]);
/// # Ok::<(), trainer::data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Loader {
    samples: Vec<Sample>,
    options: LoaderOptions,
    rows: Vec<Vec<usize>>,
    /// The order of the epoch that was asked for last: making it takes time that grows with the data set.
    order: Mutex<Option<(u64, Vec<usize>)>>,
}

impl Loader {
    /// Takes the samples.
    ///
    /// # Errors
    /// No samples, or a setting of 0.
    pub fn new(samples: Vec<Sample>, options: LoaderOptions) -> Result<Self, DataError> {
        let at_least_one = |key, value: usize| {
            let error = DataError::Setting { key, found: value.to_string(), problem: "must be at least 1" };
            if value == 0 { Err(error) } else { Ok(()) }
        };
        at_least_one("train.batch_size", options.batch_size)?;
        at_least_one("train.gradient_accumulation_steps", options.accumulation)?;
        at_least_one("data.max_length", options.pack.unwrap_or(1))?;
        at_least_one("samples", samples.len())?;
        let rows = match options.pack {
            None => (0..samples.len()).map(|sample| vec![sample]).collect(),
            Some(tokens) => {
                let order = order(&options, PACKING, samples.len());
                pack(&samples, order, tokens)
            }
        };
        Ok(Self { samples, options, rows, order: Mutex::new(None) })
    }

    /// The samples, in the order of the file.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Optimiser steps of one epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.rows.len().div_ceil(self.window_rows()) as u64
    }

    /// Optimiser steps of a number of epochs; a fraction of an epoch is rounded up to whole steps.
    ///
    /// # Errors
    /// A number that is not above 0, or not finite.
    pub fn steps(&self, epochs: f64) -> Result<u64, DataError> {
        if !(epochs > 0.0 && epochs.is_finite()) {
            let problem = "must be a number above 0";
            return Err(DataError::Setting { key: "train.epochs", found: epochs.to_string(), problem });
        }
        Ok((epochs * self.steps_per_epoch() as f64).ceil() as u64)
    }

    /// What step `step`, counted from 1, runs on.
    ///
    /// # Panics
    /// For step 0, which does not exist.
    pub fn step(&self, step: u64) -> Window {
        assert!(step > 0, "steps are counted from 1");
        let epoch = (step - 1) / self.steps_per_epoch();
        let first = ((step - 1) % self.steps_per_epoch()) as usize * self.window_rows();
        let mut cached = self.order.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let rows = match &mut *cached {
            Some((of, rows)) if *of == epoch => rows,
            other => &mut other.insert((epoch, order(&self.options, epoch, self.rows.len()))).1,
        };
        let end = rows.len().min(first + self.window_rows());
        let samples: Vec<Vec<usize>> = rows[first..end]
            .chunks(self.options.batch_size)
            .map(|rows| rows.iter().flat_map(|&row| &self.rows[row]).copied().collect())
            .collect();
        let batches = samples.iter().map(|of| Batch::new(of.iter().map(|&at| &self.samples[at]))).collect();
        let done: usize = rows[..end].iter().map(|&row| self.rows[row].len()).sum();
        Window { epoch: epoch as f64 + done as f64 / self.samples.len() as f64, batches, samples }
    }

    fn window_rows(&self) -> usize {
        self.options.batch_size.saturating_mul(self.options.accumulation)
    }
}

fn order(options: &LoaderOptions, epoch: u64, count: usize) -> Vec<usize> {
    if options.shuffle { permutation(options.seed, epoch, count) } else { (0..count).collect() }
}

/// Fills rows of `tokens` tokens in the given order: a sample that does not fit opens the next row. One that is
/// longer than a row has a row of its own.
fn pack(samples: &[Sample], order: Vec<usize>, tokens: usize) -> Vec<Vec<usize>> {
    let mut rows = Vec::<Vec<usize>>::new();
    let mut left = 0;
    for sample in order {
        let length = samples[sample].ids.len();
        match rows.last_mut() {
            Some(row) if length <= left => row.push(sample),
            _ => {
                rows.push(vec![sample]);
                left = tokens;
            }
        }
        left = left.saturating_sub(length);
    }
    rows
}
