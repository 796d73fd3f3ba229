//! What can be wrong with a data set: each message names the file and the line and says what to do next.

use std::fmt;
use std::path::{Path, PathBuf};

/// A line of a file, shown as `path:line`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
}

impl Place {
    /// The place of a line.
    pub fn new(path: &Path, line: usize) -> Self {
        Self { path: path.to_path_buf(), line }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

/// A chat template cannot be used, or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// It is no valid template.
    #[error("line {line}: {problem}")]
    Syntax {
        /// Line of the template, counted from 1.
        line: usize,
        /// What the parser met.
        problem: String,
    },
    /// It needs something that is not there. Known on loading, before anything is rendered.
    #[error("line {line}: {feature} is not supported")]
    Unsupported {
        /// Line of the template, counted from 1.
        line: usize,
        /// What it needs: "filter `xmlattr`".
        feature: String,
    },
    /// It raised an exception, which is how templates refuse a conversation.
    #[error("{message}")]
    Raised {
        /// The template's own words.
        message: String,
    },
    /// Rendering failed.
    #[error("line {line}: {problem}")]
    Failed {
        /// Line of the template, counted from 1.
        line: usize,
        /// What went wrong.
        problem: String,
    },
}

/// A data set is not usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A line is not valid JSON.
    #[error("{place}:{column}: not valid JSON: {problem}; a data set holds one JSON object a line")]
    Json {
        /// Where.
        place: Place,
        /// Byte within the line, counted from 1.
        column: usize,
        /// What the parser met.
        problem: String,
    },
    /// A string holds half of a surrogate pair, which stands for no character.
    #[error(
        "{place}:{column}: the escape {escape} is half of a surrogate pair: the text was cut inside a character; \
         write the whole pair, or take the half out"
    )]
    Surrogate {
        /// Where.
        place: Place,
        /// Byte within the line, counted from 1.
        column: usize,
        /// The escape as it stands in the file.
        escape: String,
    },
    /// A line is not UTF-8.
    #[error("{place}: not UTF-8 from byte {column} of the line on; save the file as UTF-8")]
    NotUtf8 {
        /// Where.
        place: Place,
        /// First bad byte within the line, counted from 1.
        column: usize,
    },
    /// A line holds something else than an object.
    #[error(
        "{place}: a record is a JSON object, found {found}; write one object a line (JSONL), not one array"
    )]
    NotAnObject {
        /// Where.
        place: Place,
        /// The JSON type found.
        found: &'static str,
    },
    /// A field is missing, or not what it should be.
    #[error("{place}: field `{field}` {problem}; {remedy}")]
    Field {
        /// Where.
        place: Place,
        /// The field, with its path within the record: `messages[2].content`.
        field: String,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// The first record does not show what format the file has.
    #[error(
        "{place}: cannot tell the format: the record has {keys}; expected `messages`, `prompt` with `completion`, \
         `text`, `conversations` (ShareGPT), or `instruction` with `output` (Alpaca); where it has several, set \
         data.format"
    )]
    UnclearFormat {
        /// Where.
        place: Place,
        /// The keys found.
        keys: String,
    },
    /// `data.format` or `data.loss_on` has a value that does not exist.
    #[error("{key} = {found:?} is unknown; expected one of {expected}")]
    UnknownName {
        /// The setting.
        key: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A file holds no record.
    #[error("{}: the data set is empty: no line holds a record", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The model's chat template cannot be used.
    #[error("the model's chat template: {0}")]
    Template(#[from] TemplateError),
    /// The chat template failed on a record.
    #[error("{place}: the chat template fails on this conversation: {source}")]
    Render {
        /// Where.
        place: Place,
        /// What it said.
        source: TemplateError,
    },
    /// A conversation needs a chat template and the model has none.
    #[error(
        "{place}: the record is a conversation and the model has no chat template; use a model that has one (often \
         its \"instruct\" or \"chat\" variant), or `prompt` with `completion`"
    )]
    NoTemplate {
        /// Where.
        place: Place,
    },
    /// It cannot be told which part of the rendered text an assistant turn is.
    #[error(
        "{place}: messages[{turn}]: cannot tell what the chat template makes of this turn: with the generation \
         prompt the turns before it give {prompt:?} where the finished turn has {finished:?} (byte {at}); give the \
         template {{% generation %}} marks around the answer, or set data.loss_on = \"all\""
    )]
    Unmaskable {
        /// Where.
        place: Place,
        /// Index of the turn at fault.
        turn: usize,
        /// Byte of the first difference.
        at: usize,
        /// What the prompt has from there on.
        prompt: String,
        /// What the finished turn has from there on.
        finished: String,
    },
    /// A record has nothing that could be learnt from.
    #[error("{place}: nothing in this record is supervised: {reason}")]
    NothingSupervised {
        /// Where.
        place: Place,
        /// Why, and what to do.
        reason: String,
    },
    /// No sample is left.
    #[error(
        "{}: nothing is left to train on: all {samples} samples lose every supervised token at data.max_length = \
         {max_length}; raise it to {needed} or more, or shorten the prompts", path.display()
    )]
    AllDropped {
        /// The file.
        path: PathBuf,
        /// How many there were.
        samples: usize,
        /// The limit.
        max_length: usize,
        /// The smallest limit that keeps a supervised token of any sample.
        needed: usize,
    },
    /// A sample is longer than the model can place.
    #[error(
        "{place}: {tokens} tokens are more than the {limit} positions of the model; set data.max_length to {limit} \
         or less"
    )]
    TooLong {
        /// Where.
        place: Place,
        /// Tokens of the sample.
        tokens: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// Neither prompt and completion nor text can be ended: the model names no end token.
    #[error(
        "the tokenizer names no end token (eos_token), so a model could not learn where an answer ends; add \
         eos_token to tokenizer_config.json"
    )]
    NoEndToken,
    /// The tokenizer refused a text.
    #[error("{place}: the tokenizer fails: {problem}")]
    Tokenizer {
        /// Where.
        place: Place,
        /// What it said.
        problem: String,
    },
    /// A setting that cannot be.
    #[error("{key} = {found}: {problem}")]
    Setting {
        /// The setting.
        key: &'static str,
        /// Its value.
        found: String,
        /// What it must be.
        problem: &'static str,
    },
}
