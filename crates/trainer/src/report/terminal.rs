//! A progress bar, for terminals: loss, time left, tokens per second and memory, as far as a line has room.

use std::io::Write;
use std::path::Path;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::lines::memory;
use super::{Observer, Run, StepRecord};
use crate::event::Event;
use crate::{Error, Result};

/// Draws on a terminal. Events and measurements appear above the bar and stay.
pub struct Bar<W> {
    bar: ProgressBar,
    steps: u64,
    /// Until the first step there is no bar to draw, and lines go straight to the terminal.
    before: Option<(W, ProgressDrawTarget)>,
}

impl Bar<std::io::Stderr> {
    /// A bar on standard error.
    pub fn stderr() -> Self {
        Self::on(ProgressDrawTarget::stderr(), std::io::stderr())
    }
}

impl<W: Write> Bar<W> {
    /// A bar that is drawn on `target`, after lines that are written to `lines`, the same terminal.
    pub fn on(target: ProgressDrawTarget, lines: W) -> Self {
        let bar = ProgressBar::hidden();
        let style = ProgressStyle::with_template("{bar:12} {wide_msg}");
        bar.set_style(style.expect("the template is constant and a test draws it").progress_chars("█▌░"));
        Self { bar, steps: 0, before: Some((lines, target)) }
    }

    /// The bar itself, on which another thread can show a line once it is drawn.
    pub fn handle(&self) -> ProgressBar {
        self.bar.clone()
    }

    /// Shows a line that stays.
    fn line(&mut self, line: &str) -> Result<()> {
        match &mut self.before {
            Some((lines, _)) => writeln!(lines, "{line}").map_err(Error::io("write", "the terminal")),
            None => {
                self.bar.println(line);
                Ok(())
            }
        }
    }
}

impl<W: Write> Observer for Bar<W> {
    fn started(&mut self, run: &Run) -> Result<()> {
        self.steps = run.steps;
        run.facts.iter().try_for_each(|(what, value)| self.line(&format!("{what:<10} {value}")))?;
        self.bar.set_length(run.steps);
        self.bar.set_position(run.done);
        self.bar.reset_eta();
        self.bar.reset_elapsed();
        if let Some((_, target)) = self.before.take() {
            self.bar.set_draw_target(target);
        }
        Ok(())
    }

    fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.bar.set_position(record.step);
        let memory = record.peak_rss_bytes.map_or_else(String::new, |bytes| format!("  {}", memory(bytes)));
        let time = if record.step == self.steps {
            format!("took {:#}", HumanDuration(self.bar.elapsed()))
        } else {
            format!("{:#} left", HumanDuration(self.bar.eta()))
        };
        // What matters most comes first: a narrow terminal cuts the end off.
        self.bar.set_message(format!(
            "step {}/{}  loss {:.4}  {time}  {:.0} tokens/s{memory}",
            record.step, self.steps, record.loss, record.tokens_per_second
        ));
        if let Some(loss) = record.eval_loss {
            self.line(&format!("step {}/{}  eval_loss {loss:.4}", record.step, self.steps))?;
        }
        Ok(())
    }

    fn event(&mut self, _: u64, event: &Event) -> Result<()> {
        self.line(&format!("note: {event}"))
    }

    fn saved(&mut self, checkpoint: &Path) -> Result<()> {
        self.line(&format!("saved {}", checkpoint.display()))
    }

    fn finished(&mut self) {
        // The last state stays on the screen.
        self.bar.abandon();
    }
}
