//! What can be wrong with an adapter's files.

use std::path::PathBuf;

/// An adapter is not usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// A file breaks the rules of its format.
    #[error("{} is damaged: {problem} (an interrupted download? fetch it again)", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the parser met.
        problem: String,
    },
    /// A field of the config is missing, has the wrong type, or asks for something that is not supported.
    #[error("{}: {field}: {problem}", path.display())]
    Field {
        /// The config file.
        path: PathBuf,
        /// The field.
        field: String,
        /// What is wrong, and what would be accepted.
        problem: String,
    },
    /// The tensors are not those that the model and the config ask for.
    #[error("{} does not fit the model: {}", path.display(), difference(missing, left))]
    Keys {
        /// The file.
        path: PathBuf,
        /// Keys that should be there.
        missing: Vec<String>,
        /// Keys that nothing uses.
        left: Vec<String>,
    },
    /// A tensor has another shape than the model and the rank say.
    #[error(
        "{}: {key} is {found:?}, the model and r ask for {expected:?}; the adapter was made for another model",
        path.display()
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        key: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that fits.
        expected: Vec<usize>,
    },
    /// A tensor's type is none that adapters have.
    #[error("{}: {key} has type {dtype}; F32, F16 and BF16 can be read", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        key: String,
        /// Its type.
        dtype: String,
    },
    /// A value is NaN or infinite.
    #[error("{}: {key} holds {value} at index {index}: the file is damaged or its training diverged", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        key: String,
        /// Row-major index of the first such value.
        index: usize,
        /// The value.
        value: f32,
    },
    /// The tensors cannot be put into a file.
    #[error("cannot write the tensors: {problem}")]
    Write {
        /// What the format refuses.
        problem: String,
    },
}

/// The two lists in words, each with its first few names.
fn difference(missing: &[String], left: &[String]) -> String {
    const SHOWN: usize = 6;
    let list = |what: &str, keys: &[String]| {
        let mut text = keys[..keys.len().min(SHOWN)].join(", ");
        if keys.len() > SHOWN {
            text.push_str(&format!(" and {} more", keys.len() - SHOWN));
        }
        (!keys.is_empty()).then(|| format!("{what} {text}"))
    };
    let parts = [list("it lacks", missing), list("nothing uses its", left)];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}
