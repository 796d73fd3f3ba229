//! From a file of records to batches of tokens. `read` makes records, `template` renders conversations, `mask` says
//! what of them is learnt, `encode` makes samples, `order` and `batches` put samples together; nothing here knows a
//! model's weights or a device.

mod batches;
mod encode;
mod error;
mod mask;
mod order;
mod read;
mod sample;
mod template;

pub use batches::{Loader, LoaderOptions, Window};
pub use encode::{DataSet, Encoder, EncoderOptions};
pub use error::{DataError, Place, TemplateError};
pub use mask::{LossOn, Masked, Mode, Refusal, Rendering, mask};
pub use order::permutation;
pub use read::{Content, Conversation, Format, Record, Records, parse, read};
pub use sample::{Batch, IGNORED, Sample};
pub use template::{Moment, Template, Variables};
