//! From a file of records to batches of tokens. `read` makes records, `template` renders and masks them,
//! `batch` puts samples together; nothing here knows a model's weights or a device.

mod sample;

pub use sample::{Batch, IGNORED, Sample};

/// A data set is not usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {}
