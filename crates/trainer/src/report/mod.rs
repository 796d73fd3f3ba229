//! Ways to watch a run. The loop tells [`Observers`] what happens and knows none of them; an observer knows
//! nothing of training. To add one, write a file here and add it where the command line makes the list.

mod lines;
mod memory;
mod metrics;
mod terminal;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde::Serialize;

pub use lines::Lines;
pub use memory::{available_bytes, peak_rss_bytes};
pub use metrics::JsonFiles;
pub(crate) use metrics::{EVENTS, METRICS};
pub use terminal::Bar;

use crate::Result;
use crate::event::{Event, EventSink};

/// What is known of a run before its first step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Steps that are done already: 0, or the checkpoint's.
    pub done: u64,
    /// Steps in all.
    pub steps: u64,
    /// Facts in the order in which to show them: (what, value).
    pub facts: Vec<(&'static str, String)>,
}

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepRecord {
    /// From 1.
    pub step: u64,
    /// Epochs done after this step.
    pub epoch: f64,
    /// Mean cross-entropy over the supervised tokens of the step; null where there are none.
    pub loss: f64,
    /// Global norm before clipping; null where it is not finite.
    pub grad_norm: f64,
    /// The rate that this step used.
    pub learning_rate: f64,
    /// Supervised tokens.
    pub tokens: usize,
    /// Tokens, supervised or not, over the seconds of the step.
    pub tokens_per_second: f64,
    /// Most memory that the process has had so far; null where the system does not say.
    pub peak_rss_bytes: Option<u64>,
    /// Loss on `data.eval` after this step, where it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_loss: Option<f64>,
    /// Why the step changed nothing, where that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// Someone who watches a run. Every method may do nothing.
pub trait Observer {
    /// Before the first step.
    ///
    /// # Errors
    /// What is told cannot be written. This holds for all methods; the run then stops.
    fn started(&mut self, run: &Run) -> Result<()> {
        let _ = run;
        Ok(())
    }

    /// After each step.
    ///
    /// # Errors
    /// See [`started`](Self::started).
    fn step(&mut self, record: &StepRecord) -> Result<()> {
        let _ = record;
        Ok(())
    }

    /// Something that the user should know happened, after step `after` (0 is before the first).
    ///
    /// # Errors
    /// See [`started`](Self::started).
    fn event(&mut self, after: u64, event: &Event) -> Result<()> {
        let _ = (after, event);
        Ok(())
    }

    /// A checkpoint was written.
    ///
    /// # Errors
    /// See [`started`](Self::started).
    fn saved(&mut self, checkpoint: &Path) -> Result<()> {
        let _ = checkpoint;
        Ok(())
    }

    /// There will be no more steps.
    fn finished(&mut self) {}
}

/// All who watch a run. Events can be emitted into it from anywhere; an observer that fails at one makes the next
/// call that can fail do so.
#[derive(Default)]
pub struct Observers {
    all: Vec<Box<dyn Observer>>,
    step: u64,
    /// Events so far, for observers that come later.
    earlier: Vec<(u64, Event)>,
    failed: Option<crate::Error>,
}

impl Observers {
    /// These observers, told in this order.
    pub fn new(all: Vec<Box<dyn Observer>>) -> Self {
        Self { all, ..Self::default() }
    }

    /// One more, who is told of the events so far.
    ///
    /// # Errors
    /// It fails at one of them.
    pub fn add(&mut self, mut observer: Box<dyn Observer>) -> Result<()> {
        self.earlier.iter().try_for_each(|(after, event)| observer.event(*after, event))?;
        self.all.push(observer);
        Ok(())
    }

    /// Tells of the start.
    ///
    /// # Errors
    /// An observer failed, now or at an event before.
    pub fn started(&mut self, run: &Run) -> Result<()> {
        self.step = run.done;
        self.all.iter_mut().try_for_each(|observer| observer.started(run))?;
        self.check()
    }

    /// Tells of a step.
    ///
    /// # Errors
    /// As [`started`](Self::started).
    pub fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.step = record.step;
        self.all.iter_mut().try_for_each(|observer| observer.step(record))?;
        self.check()
    }

    /// Tells of a checkpoint.
    ///
    /// # Errors
    /// As [`started`](Self::started).
    pub fn saved(&mut self, checkpoint: &Path) -> Result<()> {
        self.all.iter_mut().try_for_each(|observer| observer.saved(checkpoint))?;
        self.check()
    }

    /// Tells of the end, however it came.
    pub fn finished(&mut self) {
        self.all.iter_mut().for_each(|observer| observer.finished());
    }

    fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl EventSink for Observers {
    fn emit(&mut self, event: Event) {
        for observer in &mut self.all {
            if let Err(error) = observer.event(self.step, &event) {
                self.failed.get_or_insert(error);
            }
        }
        self.earlier.push((self.step, event));
    }
}
