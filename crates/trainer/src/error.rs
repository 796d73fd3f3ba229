//! The error type of this crate. Each area has its own enum beside its code; this one gathers them, so that a
//! caller can match on the area and the binary can choose an exit code.

use std::path::{Path, PathBuf};

/// What every fallible function of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Anything that can go wrong, by area.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be read or written.
    #[error("cannot {action} {path}: {source}{}", remedy(source))]
    Io {
        /// What was tried, as a verb: "read", "write", "create".
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A configuration is not usable.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The output directory cannot be used.
    #[error(transparent)]
    Output(#[from] crate::output::OutputError),
    /// The device is not to be had.
    #[error(transparent)]
    Device(#[from] crate::device::DeviceError),
    /// An adapter's files are not usable.
    #[error(transparent)]
    Adapter(#[from] crate::adapter::AdapterError),
    /// A run cannot go on from a checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] crate::checkpoint::CheckpointError),
    /// An operation refused its operands: a fault in this crate, not in the input.
    #[error(transparent)]
    Ops(#[from] cpu_ops::Error),
    /// A model's files are not usable.
    #[error(transparent)]
    Model(#[from] crate::model::ModelError),
    /// A model could not be put on a device, or a step failed.
    #[error(transparent)]
    Engine(#[from] crate::engine::EngineError),
    /// A data set is not usable.
    #[error(transparent)]
    Data(#[from] crate::data::DataError),
}

/// What can be done about a failure of the system, where that is more than its words say.
fn remedy(source: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            "; make room there; a run goes on from its last checkpoint with train.resume = \"auto\""
        }
        ErrorKind::PermissionDenied => "; change its permissions, or give another path",
        _ => "",
    }
}

impl Error {
    /// An [`Error::Io`] for `map_err`: `fs::read(path).map_err(Error::io("read", path))`.
    pub fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}
