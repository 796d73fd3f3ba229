//! The training loop: from a step's number to its window of batches, through the engine, to whoever watches.
//!
//! A run is a sequence of steps, each a function of its number and the state after the step before. So a run that
//! was stopped after any step goes on from its checkpoint as if it had never stopped.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::Result;
use crate::backend::{AdamW, Backend};
use crate::checkpoint::{self, Checkpoint, Settings};
use crate::data::{Batch, Loader, Moment};
use crate::engine::{Engine, Update};
use crate::report::{Observers, StepRecord, peak_rss_bytes};
use crate::schedule::Schedule;

/// What a run does at which step.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The rate of each step, and the number of steps.
    pub schedule: Schedule,
    /// AdamW's decay.
    pub weight_decay: f64,
    /// Gradients are scaled down to this norm; 0 does not clip.
    pub max_grad_norm: f64,
    /// Steps between measurements on the held-out samples; 0 is at the end only.
    pub eval_steps: u64,
    /// When and where checkpoints are written.
    pub saving: Saving,
}

/// When and where checkpoints are written.
#[derive(Debug, Clone)]
pub struct Saving {
    /// The directory of checkpoints.
    pub directory: PathBuf,
    /// Steps between them; 0 is none but that of an interrupted run.
    pub every: u64,
    /// How many are kept; 0 is all.
    pub keep: usize,
    /// What the adapter's config calls the base model.
    pub base_model: String,
    /// What a run that resumes is compared with.
    pub settings: Settings,
    /// The date that chat templates see.
    pub now: Moment,
}

/// A wish to stop after the current step, which any thread may utter.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks for it. Returns whether it was asked for before.
    pub fn ask(&self) -> bool {
        self.0.swap(true, Ordering::Relaxed)
    }

    /// Whether it was asked for.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// All steps are done.
    Finished {
        /// The last loss on the held-out samples, if there are any.
        eval_loss: Option<f64>,
    },
    /// It was asked to stop.
    Interrupted {
        /// Steps done.
        step: u64,
        /// Where to go on from; `None` if no step was done.
        checkpoint: Option<PathBuf>,
    },
}

/// Everything that a run needs.
pub struct Trainer<'a, B: Backend> {
    /// The model.
    pub engine: &'a mut Engine<B>,
    /// The samples of each step.
    pub data: &'a Loader,
    /// Held-out samples; may be none.
    pub eval: &'a [Batch],
    /// What is done when.
    pub rules: &'a Rules,
    /// Who is told.
    pub watch: &'a mut Observers,
    /// Whether to stop early.
    pub stop: &'a Stop,
}

impl<B: Backend> Trainer<'_, B> {
    /// Does the steps after `done`, to the end or until asked to stop.
    ///
    /// # Errors
    /// A step failed, or what happened could not be written down. The last checkpoint stands.
    pub fn run(&mut self, done: u64) -> Result<Outcome> {
        let total = self.rules.schedule.total;
        let mut saved = None;
        let mut eval_loss = None;
        for step in done + 1..=total {
            if self.stop.is_asked() {
                return self.interrupted(step - 1, done, saved);
            }
            let record = self.step(step)?;
            eval_loss = record.eval_loss;
            self.watch.step(&record)?;
            if self.rules.saving.every > 0 && self.is_due(step, self.rules.saving.every) {
                saved = Some((step, self.save(step)?));
            }
        }
        Ok(Outcome::Finished { eval_loss })
    }

    fn step(&mut self, step: u64) -> Result<StepRecord> {
        let started = Instant::now();
        let window = self.data.step(step);
        let update = self.rules.update(step);
        let outcome = self.engine.step(&window.batches, &update, self.watch)?;
        let seconds = started.elapsed().as_secs_f64();
        let measure = !self.eval.is_empty() && self.is_due(step, self.rules.eval_steps);
        Ok(StepRecord {
            step,
            epoch: window.epoch,
            loss: if outcome.supervised == 0 { f64::NAN } else { outcome.loss },
            grad_norm: outcome.grad_norm,
            learning_rate: self.rules.schedule.rate(step),
            tokens: outcome.supervised,
            tokens_per_second: outcome.tokens as f64 / seconds,
            peak_rss_bytes: peak_rss_bytes(),
            eval_loss: if measure { Some(self.measure()?) } else { None },
            skipped: outcome.skipped,
        })
    }

    /// Mean loss over the supervised tokens of the held-out samples.
    fn measure(&mut self) -> Result<f64> {
        let (mut sum, mut tokens) = (0.0, 0);
        for batch in self.eval {
            let (loss, supervised) = self.engine.evaluate(batch)?;
            sum += loss;
            tokens += supervised;
        }
        Ok(sum / tokens as f64)
    }

    fn save(&mut self, step: u64) -> Result<PathBuf> {
        let saving = &self.rules.saving;
        let checkpoint = Checkpoint {
            step,
            adapter: self.engine.adapter()?,
            optimizer: self.engine.optimizer_state()?,
            settings: saving.settings.clone(),
            now: saving.now,
        };
        let path = checkpoint.save(&saving.directory, &saving.base_model, self.engine.model().shape())?;
        checkpoint::prune(&saving.directory, saving.keep)?;
        self.watch.saved(&path)?;
        Ok(path)
    }

    /// Whether something that happens every so many steps, and at the end, happens now; 0 is only at the end.
    fn is_due(&self, step: u64, every: u64) -> bool {
        step == self.rules.schedule.total || (every > 0 && step.is_multiple_of(every))
    }

    fn interrupted(&mut self, step: u64, done: u64, saved: Option<(u64, PathBuf)>) -> Result<Outcome> {
        let checkpoint = match saved {
            Some((at, path)) if at == step => Some(path),
            _ if step == done => None,
            _ => Some(self.save(step)?),
        };
        Ok(Outcome::Interrupted { step, checkpoint })
    }
}

impl Rules {
    fn update(&self, step: u64) -> Update {
        let adamw =
            AdamW { lr: self.schedule.rate(step), weight_decay: self.weight_decay, ..AdamW::default() };
        Update { step, adamw, max_grad_norm: self.max_grad_norm }
    }
}
