//! What can be wrong with a checkpoint, or with going on from it.

use std::path::PathBuf;

/// A run cannot go on from a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The path holds no complete checkpoint.
    #[error("{} is no checkpoint: it has no state.json; checkpoints are OUTPUT_DIR/checkpoints/step-NNNNNN", path.display())]
    NotACheckpoint {
        /// What was given.
        path: PathBuf,
    },
    /// A file of a checkpoint cannot be used.
    #[error("{} is damaged: {problem}; resume from an older checkpoint", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// It was written by a version of the program that this one does not know.
    #[error("{} has version {found} of the format, this program reads {known}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The version that is known.
        known: u64,
    },
    /// The run that is to go on is another one.
    #[error(
        "cannot resume from {}, because the run has changed:\n  {}\ntake these back, or train anew in another \
         output_dir",
        path.display(), differences.join("\n  ")
    )]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// Each setting that differs, with both values.
        differences: Vec<String>,
    },
    /// The output directory is ahead of the checkpoint.
    #[error(
        "{} is older than {}: going on from it would overwrite later steps; resume from the newest, or move the \
         later ones away, or give another output_dir",
        path.display(), newest.display()
    )]
    NotTheNewest {
        /// The checkpoint that was asked for.
        path: PathBuf,
        /// The newest of the output directory.
        newest: PathBuf,
    },
    /// There is nothing left to do.
    #[error("{} is at step {step} of {total}: the run is finished; to go on, raise train.max_steps or train.epochs", path.display())]
    Finished {
        /// The checkpoint.
        path: PathBuf,
        /// Its step.
        step: u64,
        /// Steps of the run.
        total: u64,
    },
}
