//! Checkpoints: `checkpoints/step-NNNNNN/` holds all that a run needs to go on as if it had never stopped. The
//! order of samples, dropout masks and rates are functions of the step and the settings, so that the adapter, the
//! optimiser's state, the step and the settings are everything.
//!
//! A checkpoint's directory appears by a rename, whole. It is also an adapter directory that `generate` and PEFT
//! can load.

mod error;
mod settings;
mod state;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

pub use error::CheckpointError;
pub use settings::Settings;

use crate::data::Moment;
use crate::engine::OptimizerState;
use crate::event::Collected;
use crate::lora::Adapter;
use crate::model::ModelShape;
use crate::{Error, Result, adapter, files};

const STATE: &str = "state.json";
const OPTIMIZER: &str = "optimizer.safetensors";

/// Where a run stands after a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Steps done.
    pub step: u64,
    /// The adapter after them.
    pub adapter: Adapter,
    /// The optimiser after them.
    pub optimizer: OptimizerState,
    /// What the run was asked to do, and on what.
    pub settings: Settings,
    /// The date that chat templates see, fixed for a run.
    pub now: Moment,
}

/// What is known of a checkpoint without a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Steps done.
    pub step: u64,
    /// The date that chat templates see.
    pub now: Moment,
    /// What the run was asked to do, and on what.
    pub settings: Settings,
}

impl Checkpoint {
    /// Writes `step-NNNNNN` in `directory` and returns its path.
    ///
    /// # Errors
    /// It exists, or the system refuses; then no checkpoint of that name is left.
    pub fn save(&self, directory: &Path, base_model: &str, shape: &ModelShape) -> Result<PathBuf> {
        let path = directory.join(format!("step-{:06}", self.step));
        let mut content = adapter::to_files(&self.adapter, base_model, self.now, shape)?.to_vec();
        content.push((OPTIMIZER, state::moments_to_bytes(&self.optimizer, &self.adapter.config, shape)?));
        content.push((STATE, state::to_json(self)));
        files::create_directory(&path, &content)?;
        Ok(path)
    }

    /// Reads a checkpoint of a model of this shape.
    ///
    /// # Errors
    /// It is not there, not complete, damaged, or for another model.
    pub fn load(path: &Path, shape: &ModelShape) -> Result<Self> {
        let state = state::read(path)?;
        // We wrote the config ourselves, so that it holds nothing to be told.
        let adapter = adapter::read(path, shape, &mut Collected::default())?;
        if adapter::read_date(path)? != Some(state.now) {
            let problem = "it does not hold the date that state.json has".to_owned();
            return Err(CheckpointError::Damaged { path: path.join(adapter::TRAINING), problem }.into());
        }
        let moments = state::read_moments(&path.join(OPTIMIZER), &adapter.config, shape)?;
        let optimizer = OptimizerState { updates: state.updates, non_finite: state.non_finite, moments };
        Ok(Self { step: state.step, adapter, optimizer, settings: state.settings, now: state.now })
    }
}

/// Reads what is known of a checkpoint without its model.
///
/// # Errors
/// As [`Checkpoint::load`].
pub fn read_header(path: &Path) -> Result<Header> {
    let state = state::read(path)?;
    Ok(Header { step: state.step, now: state.now, settings: state.settings })
}

/// All checkpoints in a directory with their steps, oldest first. Anything of another name is none, an unfinished
/// `step-NNNNNN.tmp` least of all.
///
/// # Errors
/// The directory exists and cannot be read.
pub fn list(directory: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", directory)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io("read", directory))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(step) = step_of(name)
            && path.is_dir()
        {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The step that a checkpoint's name says.
fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    (digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// Removes what interrupted runs left unfinished in a directory of checkpoints.
///
/// # Errors
/// The system refuses.
pub fn clear_unfinished(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(Error::io("read", directory))? {
        let path = entry.map_err(Error::io("read", directory))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // Nothing but what a checkpoint would be called: the directory may hold what is the user's.
        if name.strip_suffix(files::UNFINISHED).and_then(step_of).is_some() {
            fs::remove_dir_all(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}

/// Removes all but the newest `keep` checkpoints; 0 keeps all. Each is renamed first, so that one whose removal
/// is interrupted is not taken for a checkpoint.
///
/// # Errors
/// The system refuses.
pub fn prune(directory: &Path, keep: usize) -> Result<()> {
    let all = list(directory)?;
    let surplus = if keep == 0 { 0 } else { all.len().saturating_sub(keep) };
    for (_, path) in &all[..surplus] {
        let mut doomed = path.clone().into_os_string();
        doomed.push(files::UNFINISHED);
        let doomed = PathBuf::from(doomed);
        if doomed.exists() {
            fs::remove_dir_all(&doomed).map_err(Error::io("remove", &doomed))?;
        }
        fs::rename(path, &doomed).map_err(Error::io("remove", path))?;
        fs::remove_dir_all(&doomed).map_err(Error::io("remove", &doomed))?;
    }
    Ok(())
}
