//! Reads a data set: one JSON object a line, in one of five formats, each record with its line. No record is
//! left out: what cannot be read is an error that names file, line and field. Blank lines are no records.
//!
//! | format | fields |
//! |---|---|
//! | `messages` | `messages`: a list of `{role, content}`; further fields of a message and `tools` go to the template |
//! | `prompt_completion` | `prompt`, `completion` |
//! | `text` | `text` |
//! | `sharegpt` | `conversations`: a list of `{from, value}`; `system` |
//! | `alpaca` | `instruction`, `input`, `output`; `system` |
//!
//! The last two are read as messages: Alpaca's instruction and input, a blank line between them, are the user's
//! turn. An empty answer (`""`) means that the answer is its end token alone; an answer of nothing but white
//! space, a null, a number or a list of parts is an error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::{DataError, Place};
use crate::Error;
use crate::event::{Event, EventSink};

type Object = Map<String, Value>;

/// How records are laid out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Whatever the first record shows.
    #[default]
    Auto,
    /// `messages`.
    Messages,
    /// `prompt` and `completion`.
    PromptCompletion,
    /// `text`.
    Text,
    /// `conversations` of `{from, value}`.
    #[serde(rename = "sharegpt")]
    ShareGpt,
    /// `instruction`, `input`, `output`.
    Alpaca,
}

impl Format {
    const NAMES: &str = "auto, messages, prompt_completion, text, sharegpt, alpaca";

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Messages => "messages",
            Self::PromptCompletion => "prompt_completion",
            Self::Text => "text",
            Self::ShareGpt => "sharegpt",
            Self::Alpaca => "alpaca",
        }
    }

    /// Fields that the format reads.
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Auto => &[],
            Self::Messages => &["messages", "tools"],
            Self::PromptCompletion => &["prompt", "completion"],
            Self::Text => &["text"],
            Self::ShareGpt => &["conversations", "system"],
            Self::Alpaca => &["instruction", "input", "output", "system"],
        }
    }
}

impl FromStr for Format {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        [Self::Auto, Self::Messages, Self::PromptCompletion, Self::Text, Self::ShareGpt, Self::Alpaca]
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| DataError::UnknownName {
                key: "data.format",
                found: name.to_string(),
                expected: Self::NAMES,
            })
    }
}

/// One record.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its line in the file, counted from 1.
    pub line: usize,
    /// What it holds.
    pub content: Content,
}

/// What a record holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// A conversation.
    Conversation(Conversation),
    /// A question and its answer.
    Pair {
        /// The question, not empty.
        prompt: String,
        /// The answer; empty means that the answer is its end token alone.
        completion: String,
    },
    /// Text to be learnt as a whole, not empty.
    Text(String),
}

/// The turns of a conversation, as a chat template takes them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// Objects with a string `role`, a string `content` and whatever else the record had.
    pub messages: Vec<Value>,
    /// Tools that the model may call, null where there are none.
    pub tools: Value,
}

impl Conversation {
    /// The role of turn `at`; empty past the end.
    pub fn role(&self, at: usize) -> &str {
        self.messages.get(at).and_then(|message| message["role"].as_str()).unwrap_or_default()
    }

    /// The first `count` turns.
    pub fn first(&self, count: usize) -> Self {
        Self { messages: self.messages[..count].to_vec(), tools: self.tools.clone() }
    }
}

impl From<(String, String)> for Conversation {
    /// A user's turn and the assistant's.
    fn from((prompt, completion): (String, String)) -> Self {
        Self { messages: vec![message("user", prompt), message("assistant", completion)], tools: Value::Null }
    }
}

/// The records of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Records {
    /// The file.
    pub path: PathBuf,
    /// Its format, never `Auto`.
    pub format: Format,
    /// Its records, at least one.
    pub records: Vec<Record>,
}

/// Reads all records of a file. Fields that the format does not read are named in an event.
///
/// # Errors
/// A file that cannot be read, a line that is no record of the format (with line and field), an empty data set.
pub fn read(path: &Path, format: Format, events: &mut dyn EventSink) -> crate::Result<Records> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    Ok(parse(path, &bytes, format, events)?)
}

/// Reads records from the bytes of a file; `path` names it in errors.
///
/// # Errors
/// As [`read`], without those of the file system.
pub fn parse(
    path: &Path,
    bytes: &[u8],
    mut format: Format,
    events: &mut dyn EventSink,
) -> Result<Records, DataError> {
    // Editors on Windows put a byte order mark before the first line; anywhere else the three bytes are text.
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let mut records = Vec::new();
    let mut unread = BTreeMap::<String, usize>::new();
    for (at, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let place = Place::new(path, at + 1);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = std::str::from_utf8(line)
            .map_err(|error| DataError::NotUtf8 { place: place.clone(), column: error.valid_up_to() + 1 })?;
        if text.trim().is_empty() {
            continue;
        }
        let object = object(&place, text)?;
        if format == Format::Auto {
            format = detect(&place, &object)?;
        }
        let record = Fields { place, prefix: String::new(), object: &object, format };
        let content = record.content()?;
        for key in object.keys().filter(|key| !format.fields().contains(&key.as_str())) {
            *unread.entry(key.clone()).or_default() += 1;
        }
        records.push(Record { line: at + 1, content });
    }
    if records.is_empty() {
        return Err(DataError::Empty { path: path.to_path_buf() });
    }
    for (key, count) in unread {
        events.emit(Event::Assumed {
            what: format!(
                "{}: field `{key}` of {count} records is not part of the format {} and has no effect",
                path.display(),
                format.name()
            ),
        });
    }
    Ok(Records { path: path.to_path_buf(), format, records })
}

/// Parses a line, which must hold an object and nothing after it.
fn object(place: &Place, text: &str) -> Result<Object, DataError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(DataError::NotAnObject { place: place.clone(), found: kind(&other) }),
        Err(error) => Err(match lone_surrogate(text) {
            Some((at, escape)) => DataError::Surrogate { place: place.clone(), column: at + 1, escape },
            None => DataError::Json {
                place: place.clone(),
                column: error.column(),
                problem: without_position(&error.to_string()).to_string(),
            },
        }),
    }
}

/// The parser's message ends in its own idea of the line, which is always 1 here.
fn without_position(message: &str) -> &str {
    message.rfind(" at line ").map_or(message, |end| &message[..end])
}

/// The first `\uXXXX` that is half of a pair, with its byte offset. JSON allows backslashes in strings only, so
/// strings need not be told from the rest.
fn lone_surrogate(text: &str) -> Option<(usize, String)> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut at = 0;
    while at < text.len() {
        at += match (text.as_bytes()[at], unit(at)) {
            (_, Some(0xD800..=0xDBFF)) if matches!(unit(at + 6), Some(0xDC00..=0xDFFF)) => 12,
            (_, Some(0xD800..=0xDFFF)) => return Some((at, text[at..at + 6].to_string())),
            (b'\\', _) => 2,
            _ => 1,
        };
    }
    None
}

fn detect(place: &Place, object: &Object) -> Result<Format, DataError> {
    let has = |key: &str| object.contains_key(key);
    let candidates = [
        (has("messages"), Format::Messages),
        (has("prompt") || has("completion"), Format::PromptCompletion),
        (has("text"), Format::Text),
        (has("conversations"), Format::ShareGpt),
        (has("instruction"), Format::Alpaca),
    ];
    let mut found = candidates.iter().filter(|(there, _)| *there).map(|&(_, format)| format);
    match (found.next(), found.next()) {
        (Some(format), None) => Ok(format),
        _ => Err(DataError::UnclearFormat {
            place: place.clone(),
            keys: match object.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>() {
                keys if keys.is_empty() => "no fields".to_string(),
                keys => keys.join(", "),
            },
        }),
    }
}

/// An object within a record, with what an error about it has to name.
struct Fields<'a> {
    place: Place,
    prefix: String,
    object: &'a Object,
    format: Format,
}

impl Fields<'_> {
    fn error(&self, field: &str, problem: impl Into<String>, remedy: impl Into<String>) -> DataError {
        DataError::Field {
            place: self.place.clone(),
            field: format!("{}{field}", self.prefix),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    fn get(&self, field: &str) -> Result<&Value, DataError> {
        self.object.get(field).ok_or_else(|| {
            self.error(
                field,
                "is missing",
                format!("every record of the format {} has it", self.format.name()),
            )
        })
    }

    fn string(&self, field: &str) -> Result<&str, DataError> {
        match self.get(field)? {
            Value::String(text) => Ok(text),
            Value::Null => Err(self.error(field, "is null", "write a string, \"\" where it is empty")),
            Value::Array(_) => {
                Err(self.error(field, "is a list", "lists of parts are not supported, write one string"))
            }
            other => Err(self.error(field, format!("is {}", kind(other)), "write a string")),
        }
    }

    fn list(&self, field: &str) -> Result<&[Value], DataError> {
        match self.get(field)? {
            Value::Array(list) if list.is_empty() => {
                Err(self.error(field, "is empty", "a conversation has at least one assistant turn"))
            }
            Value::Array(list) => Ok(list),
            other => Err(self.error(field, format!("is {}", kind(other)), "write a list of messages")),
        }
    }

    /// A string that may be missing.
    fn optional(&self, field: &str) -> Result<Option<&str>, DataError> {
        if self.object.get(field).is_none_or(Value::is_null) {
            Ok(None)
        } else {
            self.string(field).map(Some)
        }
    }

    /// An answer: empty, or something that can be seen.
    fn answer(&self, field: &str) -> Result<&str, DataError> {
        let text = self.string(field)?;
        if text.trim().is_empty() && !text.is_empty() {
            let remedy = "write \"\" for an answer that is its end token alone";
            return Err(self.error(field, "is nothing but white space", remedy));
        }
        Ok(text)
    }

    /// A question: something that can be seen.
    fn question(&self, field: &str, remedy: &str) -> Result<&str, DataError> {
        let text = self.string(field)?;
        if text.trim().is_empty() { Err(self.error(field, "is empty", remedy)) } else { Ok(text) }
    }

    fn content(&self) -> Result<Content, DataError> {
        Ok(match self.format {
            Format::Auto | Format::Messages => Content::Conversation(self.conversation()?),
            Format::PromptCompletion => {
                let prompt =
                    self.question("prompt", "to learn a text without a prompt use `text`")?.to_string();
                Content::Pair { prompt, completion: self.answer("completion")?.to_string() }
            }
            Format::Text => Content::Text(self.question("text", "take the record out")?.to_string()),
            Format::ShareGpt => Content::Conversation(self.share_gpt()?),
            Format::Alpaca => Content::Conversation(self.alpaca()?),
        })
    }

    fn conversation(&self) -> Result<Conversation, DataError> {
        let mut messages = Vec::new();
        for (at, value) in self.list("messages")?.iter().enumerate() {
            let turn = self.turn("messages", at, value)?;
            turn.role("role")?;
            for weight in ["weight", "train"] {
                if turn.object.contains_key(weight) {
                    let remedy = "choose what is learnt with data.loss_on";
                    return Err(turn.error(weight, "is not supported", remedy));
                }
            }
            if turn.object["role"] == "assistant" {
                turn.answer("content")?
            } else {
                turn.string("content")?
            };
            messages.push(value.clone());
        }
        let tools = match self.object.get("tools") {
            None | Some(Value::Null) => Value::Null,
            Some(Value::Array(tools)) => Value::Array(tools.clone()),
            Some(other) => {
                return Err(self.error("tools", format!("is {}", kind(other)), "write a list of tools"));
            }
        };
        Ok(Conversation { messages, tools })
    }

    fn share_gpt(&self) -> Result<Conversation, DataError> {
        let mut messages = Vec::new();
        messages.extend(self.optional("system")?.map(|text| message("system", text)));
        for (at, value) in self.list("conversations")?.iter().enumerate() {
            let turn = self.turn("conversations", at, value)?;
            let role = match turn.role("from")? {
                "human" | "user" => "user",
                "gpt" | "assistant" => "assistant",
                "system" => "system",
                "tool" => "tool",
                other => {
                    let remedy = "expected human, user, gpt, assistant, system or tool";
                    return Err(turn.error("from", format!("is {other:?}"), remedy));
                }
            };
            let text = if role == "assistant" { turn.answer("value")? } else { turn.string("value")? };
            messages.push(message(role, text));
        }
        Ok(Conversation { messages, tools: Value::Null })
    }

    fn alpaca(&self) -> Result<Conversation, DataError> {
        let mut messages = Vec::new();
        messages.extend(self.optional("system")?.map(|text| message("system", text)));
        let instruction = self.question("instruction", "write what is asked")?;
        messages.push(message(
            "user",
            match self.optional("input")? {
                None | Some("") => instruction.to_string(),
                Some(input) => format!("{instruction}\n\n{input}"),
            },
        ));
        messages.push(message("assistant", self.answer("output")?));
        Ok(Conversation { messages, tools: Value::Null })
    }

    /// One message of a list.
    fn turn<'b>(&self, list: &str, at: usize, value: &'b Value) -> Result<Fields<'b>, DataError> {
        match value {
            Value::Object(object) => {
                let prefix = format!("{list}[{at}].");
                Ok(Fields { place: self.place.clone(), prefix, object, format: self.format })
            }
            other => {
                let field = format!("{list}[{at}]");
                Err(self.error(&field, format!("is {}", kind(other)), "a message is an object"))
            }
        }
    }

    /// Who speaks.
    fn role(&self, field: &str) -> Result<&str, DataError> {
        self.question(field, "name who speaks")
    }
}

fn message(role: &str, text: impl Into<String>) -> Value {
    serde_json::json!({ "role": role, "content": text.into() })
}

/// The JSON type of a value, with its article.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
