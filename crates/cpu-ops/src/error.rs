//! The one error type of this crate: an operation was called with operands that do not fit each other.

/// Why an operation refused its operands.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A slice is shorter than the matrix it should hold.
    #[error(
        "{operation}: {operand} needs {expected} elements ({rows} x {cols}, stride {stride}), the slice has {found}"
    )]
    SliceLength {
        /// The function that was called.
        operation: &'static str,
        /// Which of its operands.
        operand: &'static str,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Elements from one row to the next.
        stride: usize,
        /// Elements needed.
        expected: usize,
        /// Elements there.
        found: usize,
    },
    /// Two operands disagree about a size.
    #[error("{operation}: {what} is {found}, expected {expected}")]
    Shape {
        /// The function that was called.
        operation: &'static str,
        /// The size that is wrong, in words.
        what: &'static str,
        /// What the other operands ask for.
        expected: usize,
        /// What was given.
        found: usize,
    },
    /// A stride shorter than a row, or a size whose product overflows `usize`.
    #[error("{operation}: {what}")]
    Layout {
        /// The function that was called.
        operation: &'static str,
        /// What is wrong, in words.
        what: String,
    },
    /// A parameter outside of what is supported.
    #[error("{operation}: {parameter} = {value} is not supported; {supported}")]
    Unsupported {
        /// The function that was called.
        operation: &'static str,
        /// Name of the parameter.
        parameter: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        supported: &'static str,
    },
    /// An index (label, token id, position) points outside of its table.
    #[error("{operation}: {what} {index} at row {row} is outside of 0..{limit}")]
    Index {
        /// The function that was called.
        operation: &'static str,
        /// What kind of index, in words.
        what: &'static str,
        /// The value of the index.
        index: u64,
        /// Row of the operand where it stands.
        row: usize,
        /// First value that is too large.
        limit: usize,
    },
    /// A value that must be finite is not.
    #[error("{operation}: value {value} at element {index} is not finite")]
    NotFinite {
        /// The function that was called.
        operation: &'static str,
        /// Element index, row-major.
        index: usize,
        /// The value.
        value: f32,
    },
    /// The thread pool could not be started.
    #[error("cannot start {threads} threads: {reason}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        reason: String,
    },
}
