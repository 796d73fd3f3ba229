//! What a user should know although the run goes on: fallbacks, skipped steps, truncated samples. Events are
//! typed, written to `events.jsonl`, and shown by whoever watches the run; nothing is reported any other way.

use serde::{Deserialize, Serialize};

/// One thing that happened and that the user should know, with its cost where it has one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// Samples longer than `data.max_length` were cut at their end.
    SamplesTruncated {
        /// How many samples.
        samples: usize,
        /// The limit in tokens.
        max_length: usize,
        /// Tokens that were cut off, in all samples together.
        tokens_lost: usize,
    },
    /// Samples were left out.
    SamplesDropped {
        /// How many samples.
        samples: usize,
        /// Why, and what to do about it.
        reason: String,
    },
    /// A training step changed nothing.
    StepSkipped {
        /// The step, counted from 1.
        step: u64,
        /// Why, naming the tensor where one is at fault.
        reason: String,
    },
    /// A run goes on from a checkpoint.
    Resumed {
        /// Steps done.
        step: u64,
        /// The checkpoint.
        checkpoint: String,
        /// Settings that differ and may: the result is then not that of an uninterrupted run.
        changes: Vec<String>,
    },
    /// Something was taken from a default that a file did not state, or was set aside on loading.
    Assumed {
        /// What was assumed, from where, and what it affects.
        what: String,
    },
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SamplesTruncated { samples, max_length, tokens_lost } => write!(
                f,
                "{samples} samples are longer than data.max_length = {max_length} tokens and were cut at their \
                 end ({tokens_lost} tokens lost)"
            ),
            Self::SamplesDropped { samples, reason } => write!(f, "{samples} samples left out: {reason}"),
            Self::StepSkipped { step, reason } => write!(f, "step {step} skipped: {reason}"),
            Self::Resumed { step, checkpoint, changes } => {
                write!(f, "going on after step {step}, from {checkpoint}")?;
                if !changes.is_empty() {
                    let changes = changes.join("; ");
                    write!(
                        f,
                        "; the result will differ from an uninterrupted run's, for settings changed: {changes}"
                    )?;
                }
                Ok(())
            }
            Self::Assumed { what } => f.write_str(what),
        }
    }
}

/// Where events go. A closure `|event| ...` is a sink, [`Collected`] keeps them.
pub trait EventSink {
    /// Takes note of one event.
    fn emit(&mut self, event: Event);
}

impl<F: FnMut(Event)> EventSink for F {
    fn emit(&mut self, event: Event) {
        self(event);
    }
}

/// Collects events, for tests and for callers that report later.
#[derive(Debug, Default)]
pub struct Collected(pub Vec<Event>);

impl EventSink for Collected {
    fn emit(&mut self, event: Event) {
        self.0.push(event);
    }
}
