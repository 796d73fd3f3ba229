//! The files of a run: `metrics.jsonl`, one object a step, and `events.jsonl`, one object an event.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::{Observer, StepRecord};
use crate::event::Event;
use crate::{Error, Result, files};

/// The name of the file of steps.
pub(crate) const METRICS: &str = "metrics.jsonl";
/// The name of the file of events.
pub(crate) const EVENTS: &str = "events.jsonl";

/// Writes both files. Each line reaches the system at once, so that a killed run leaves whole lines behind it.
#[derive(Debug)]
pub struct JsonFiles {
    metrics: Lines,
    events: Lines,
}

#[derive(Debug)]
struct Lines {
    path: PathBuf,
    file: File,
}

#[derive(Serialize)]
struct EventLine<'a> {
    after_step: u64,
    #[serde(flatten)]
    event: &'a Event,
}

impl JsonFiles {
    /// Opens both in `directory`. A resumed run goes on after step `done`: the lines of later steps, which an
    /// interrupted run may have left, are taken out, for these steps will be done again.
    ///
    /// # Errors
    /// The system refuses.
    pub fn open(directory: &Path, done: u64) -> Result<Self> {
        let metrics = directory.join(METRICS);
        keep_lines(&metrics, |line| line["step"].as_u64().is_some_and(|step| step <= done))?;
        let events = directory.join(EVENTS);
        // An event of the step after `done` or of a later one will come again.
        keep_lines(&events, |line| line["after_step"].as_u64().is_some_and(|step| step < done.max(1)))?;
        Ok(Self { metrics: Lines::open(metrics)?, events: Lines::open(events)? })
    }
}

impl Observer for JsonFiles {
    fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.metrics.write(record)
    }

    fn event(&mut self, after: u64, event: &Event) -> Result<()> {
        self.events.write(&EventLine { after_step: after, event })
    }
}

impl Lines {
    fn open(path: PathBuf) -> Result<Self> {
        let file =
            OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io("write", &path))?;
        Ok(Self { path, file })
    }

    fn write(&mut self, object: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(object).expect("numbers and strings are always printable");
        line.push(b'\n');
        self.file.write_all(&line).map_err(Error::io("write", &self.path))
    }
}

/// Leaves only those lines of a file that `keep` wants; a line that a kill cut off is none.
fn keep_lines(path: &Path, keep: impl Fn(&Value) -> bool) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let old = std::fs::read(path).map_err(Error::io("read", path))?;
    let mut new = Vec::with_capacity(old.len());
    for line in old.split_inclusive(|&byte| byte == b'\n') {
        if line.ends_with(b"\n") && serde_json::from_slice(line).is_ok_and(|value| keep(&value)) {
            new.extend_from_slice(line);
        }
    }
    if new != old {
        files::replace(path, &new)?;
    }
    Ok(())
}
