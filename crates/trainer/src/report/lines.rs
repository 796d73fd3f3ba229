//! Plain lines, for logs and pipes.

use std::io::Write;
use std::path::Path;

use super::{Observer, Run, StepRecord};
use crate::event::Event;
use crate::{Error, Result};

/// Writes a line for every `every`-th step, the first and the last, and for whatever else happens.
pub struct Lines<W> {
    to: W,
    every: u64,
    steps: u64,
    /// Whether the next step is the first that this observer sees.
    first: bool,
}

impl<W: Write> Lines<W> {
    /// Lines to `to`, one for each `every` steps.
    pub fn new(to: W, every: u64) -> Self {
        Self { to, every: every.max(1), steps: 0, first: true }
    }

    fn line(&mut self, line: &str) -> Result<()> {
        writeln!(self.to, "{line}").map_err(Error::io("write", "the output"))
    }
}

impl<W: Write> Observer for Lines<W> {
    fn started(&mut self, run: &Run) -> Result<()> {
        self.steps = run.steps;
        run.facts.iter().try_for_each(|(what, value)| self.line(&format!("{what:<10} {value}")))
    }

    fn step(&mut self, record: &StepRecord) -> Result<()> {
        let ends = std::mem::take(&mut self.first) || record.step == self.steps;
        if !ends && !record.step.is_multiple_of(self.every) && record.eval_loss.is_none() {
            return Ok(());
        }
        let line = describe(record, self.steps);
        self.line(&line)
    }

    fn event(&mut self, _: u64, event: &Event) -> Result<()> {
        self.line(&format!("note: {event}"))
    }

    fn saved(&mut self, checkpoint: &Path) -> Result<()> {
        self.line(&format!("saved {}", checkpoint.display()))
    }
}

/// A step in words.
pub(super) fn describe(record: &StepRecord, steps: u64) -> String {
    let mut line = format!(
        "step {}/{steps}  epoch {:.2}  loss {:.4}  grad_norm {:.4}  rate {:.3e}  {:.0} tokens/s",
        record.step,
        record.epoch,
        record.loss,
        record.grad_norm,
        record.learning_rate,
        record.tokens_per_second
    );
    if let Some(bytes) = record.peak_rss_bytes {
        line.push_str(&format!("  {}", memory(bytes)));
    }
    if let Some(loss) = record.eval_loss {
        line.push_str(&format!("  eval_loss {loss:.4}"));
    }
    line
}

/// Bytes in MiB or GiB.
pub(super) fn memory(bytes: u64) -> String {
    const MIB: f64 = 1024.0 * 1024.0;
    let mib = bytes as f64 / MIB;
    if mib < 1024.0 { format!("{mib:.0} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}
