//! From a file of records to batches of tokens. `read` makes records, `template` renders conversations, `mask`
//! turns them into samples and says which tokens are learnt, `batches` puts samples together; nothing here knows a
//! model's weights or a device.

mod batches;
mod error;
mod order;
mod read;
mod sample;
mod template;

pub use batches::{Loader, LoaderOptions, Window};
pub use error::{DataError, Place, TemplateError};
pub use order::permutation;
pub use read::{Content, Conversation, Format, Record, Records, parse, read};
pub use sample::{Batch, IGNORED, Sample};
pub use template::{Moment, Template, Variables};
