//! A progress bar, for terminals: loss, tokens per second, time left and memory.

use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::lines::memory;
use super::{Observer, Run, StepRecord};
use crate::Result;
use crate::event::Event;

/// Draws on standard error. Events and measurements appear above the bar and stay.
pub struct Bar {
    bar: ProgressBar,
    steps: u64,
}

impl Default for Bar {
    fn default() -> Self {
        Self::on(ProgressDrawTarget::stderr())
    }
}

impl Bar {
    /// A bar that draws on `target`.
    pub fn on(target: ProgressDrawTarget) -> Self {
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} steps  {msg}  {eta} left");
        bar.set_style(style.expect("the template is constant and a test draws it").progress_chars("█▌░"));
        Self { bar, steps: 0 }
    }

    /// Shows a line above the bar, or on its own where no bar is drawn yet.
    fn line(&self, line: &str) {
        self.bar.println(line);
    }
}

impl Observer for Bar {
    fn started(&mut self, run: &Run) -> Result<()> {
        self.steps = run.steps;
        run.facts.iter().for_each(|(what, value)| self.line(&format!("{what:<10} {value}")));
        self.bar.set_length(run.steps);
        self.bar.set_position(run.done);
        self.bar.reset_eta();
        Ok(())
    }

    fn step(&mut self, record: &StepRecord) -> Result<()> {
        let memory = record.peak_rss_bytes.map_or_else(String::new, |bytes| format!("  {}", memory(bytes)));
        self.bar.set_message(format!(
            "loss {:.4}  {:.0} tokens/s{memory}",
            record.loss, record.tokens_per_second
        ));
        self.bar.set_position(record.step);
        if let Some(loss) = record.eval_loss {
            self.line(&format!("step {}/{}  eval_loss {loss:.4}", record.step, self.steps));
        }
        Ok(())
    }

    fn event(&mut self, _: u64, event: &Event) -> Result<()> {
        self.line(&format!("note: {event}"));
        Ok(())
    }

    fn saved(&mut self, checkpoint: &Path) -> Result<()> {
        self.line(&format!("saved {}", checkpoint.display()));
        Ok(())
    }

    fn finished(&mut self) {
        // The last state stays on the screen.
        self.bar.abandon();
    }
}
