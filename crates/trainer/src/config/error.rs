//! What can be wrong with a configuration. Each message names the place, the key and a remedy.

use std::path::PathBuf;

/// A configuration is not usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{place}: not valid TOML: {message}")]
    Syntax {
        /// File, line and column.
        place: String,
        /// What the parser said.
        message: String,
    },
    /// A key that does not exist.
    #[error("{place}: unknown key `{key}`{hint}")]
    UnknownKey {
        /// File, line and column, or the command line.
        place: String,
        /// The key with its section.
        key: String,
        /// "; did you mean ...", or the keys of the section.
        hint: String,
    },
    /// A value that the key does not take.
    #[error("{place}: {key} = {value}: {problem}")]
    Value {
        /// File, line and column, or the command line.
        place: String,
        /// The key with its section.
        key: String,
        /// The value, as TOML.
        value: String,
        /// What is wrong and what would be accepted.
        problem: String,
    },
    /// A key that must be given is not.
    #[error("{file}: `{key}` is missing ({about}); add it to the file or give --set {key}=...")]
    Missing {
        /// The file.
        file: String,
        /// The key with its section.
        key: &'static str,
        /// What the key is for.
        about: &'static str,
    },
    /// An argument of `--set` is not `section.key=value`.
    #[error("--set {argument}: expected section.key=value, as in --set train.seed=1")]
    Set {
        /// The argument.
        argument: String,
    },
    /// Two keys do not go together.
    #[error("{place}: {problem}")]
    Conflict {
        /// File, line and column of the one to change.
        place: String,
        /// What is wrong and what to do.
        problem: String,
    },
}
