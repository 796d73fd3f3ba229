//! Text to token ids and back, the special tokens by name, and the chat templates that come with a model. Rendering
//! a template is `data::template`'s part, and so is deciding what is supervised.

mod files;
pub(crate) mod gguf;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenizers::models::ModelWrapper;

use crate::Result;
use crate::event::{Event, EventSink};
use crate::model::ModelError;

/// A tokenizer with what belongs to it.
///
/// # Example
/// ```
/// use trainer::{event::Collected, tokenizer::{Extras, Tokenizer}};
///
/// let json = serde_json::json!({
///     "version": "1.0",
///     "added_tokens": [{"id": 3, "content": "</s>", "special": true, "single_word": false, "lstrip": false,
///                       "rstrip": false, "normalized": false}],
///     "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
///     "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
///     "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "</s>": 3}, "merges": [["a", "b"]]},
/// });
/// let tokenizer = Tokenizer::from_json("tokenizer.json".as_ref(), json, Extras::default(), &mut Collected::default())?;
/// let ids = tokenizer.encode("aba</s>")?;
/// assert_eq!(ids, [2, 0, 3]);
/// assert_eq!(tokenizer.decode(&ids)?, "aba</s>");
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
    special_ids: Vec<u32>,
    largest_id: u32,
    prefixes_pieces: bool,
    extras: Extras,
}

/// What belongs to a tokenizer and is not in its `tokenizer.json`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Extras {
    /// Special tokens by their role: `bos_token`, `eos_token`, `pad_token`, `unk_token` and the like. Templates see
    /// them as variables of these names.
    pub roles: BTreeMap<String, String>,
    /// Chat templates by name; the usual one is `default`.
    pub chat_templates: BTreeMap<String, String>,
}

impl Tokenizer {
    /// Loads the tokenizer of a model directory: tokenizer.json, and from tokenizer_config.json and its like the
    /// special tokens and chat templates.
    ///
    /// # Errors
    /// A file is missing or not valid.
    pub fn open(directory: &Path, events: &mut dyn EventSink) -> Result<Self> {
        let path = directory.join("tokenizer.json");
        if !path.is_file() {
            let problem = if directory.join("tokenizer.model").is_file() {
                "is missing, and tokenizer.model is not read; save the tokenizer as tokenizer.json (transformers: \
                 AutoTokenizer.from_pretrained(...).save_pretrained(...))"
            } else {
                "is missing; fetch it with the model"
            };
            return Err(problem_with(&path, problem));
        }
        let json = crate::model::read_json(&path)?;
        Self::from_json(&path, json, files::extras(directory)?, events)
    }

    /// Makes a tokenizer from the content of a `tokenizer.json`; `path` is for messages.
    ///
    /// Limits and randomness that the file brings along (truncation, padding, dropout of merges) are reset: they
    /// would apply to every call, unseen.
    ///
    /// # Errors
    /// The content is not valid.
    pub fn from_json(path: &Path, json: Value, extras: Extras, events: &mut dyn EventSink) -> Result<Self> {
        check_merges(path, &json)?;
        let mut inner: tokenizers::Tokenizer = serde_json::from_value(json)
            .map_err(|error| problem_with(path, &format!("not a tokenizer: {error}")))?;
        let mut reset = Vec::new();
        if let Some(truncation) = inner.get_truncation() {
            reset.push(format!("truncation to {} tokens", truncation.max_length));
            inner.with_truncation(None).map_err(|error| problem_with(path, &error.to_string()))?;
        }
        if inner.get_padding().is_some() {
            reset.push("padding".to_owned());
            inner.with_padding(None);
        }
        if let ModelWrapper::BPE(bpe) = inner.get_model()
            && let Some(rate) = bpe.dropout
        {
            reset.push(format!("dropout of {rate} of the merges"));
            let mut bpe = bpe.clone();
            bpe.dropout = None;
            inner.with_model(bpe);
        }
        if !reset.is_empty() {
            events.emit(Event::Assumed {
                what: format!("{} asks for {}: not applied", path.display(), reset.join(" and ")),
            });
        }
        let Some(largest_id) = inner.get_vocab(true).into_values().max() else {
            return Err(problem_with(path, "has no tokens"));
        };
        let mut special_ids: Vec<u32> = inner
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, _)| id)
            .collect();
        special_ids.sort_unstable();
        for (role, token) in &extras.roles {
            if inner.token_to_id(token).is_none() {
                // Common in published files (a pad token nobody added), harmless until it is used.
                events.emit(Event::Assumed {
                    what: format!(
                        "{}: {role} is {token:?}, which is no token of this tokenizer",
                        path.display()
                    ),
                });
            }
        }
        let prefixes_pieces = prefixes_pieces(&inner);
        Ok(Self { inner, path: path.into(), special_ids, largest_id, prefixes_pieces, extras })
    }

    /// The ids of a text. Nothing is added to it; special tokens that stand in the text become their ids.
    ///
    /// # Errors
    /// The tokenizer fails, as with a character that it has no token for.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding =
            self.inner.encode_fast(text, false).map_err(|error| self.failed("encode", text, &*error))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of a text as [`encode`](Self::encode) gives them, each with the bytes of the text that it stands for.
    /// Tokens of one character may share its bytes.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_with_offsets(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        let encoding =
            self.inner.encode(text, false).map_err(|error| self.failed("encode", text, &*error))?;
        let offsets = encoding.get_offsets().iter().map(|&(start, end)| start..end);
        Ok(encoding.get_ids().iter().copied().zip(offsets).collect())
    }

    /// Whether the tokenizer puts something before a text (a space, as SentencePiece does): a text cut into pieces
    /// and encoded piece by piece would have one at each cut, so it must be encoded whole and mapped by offsets.
    pub fn prefixes_pieces(&self) -> bool {
        self.prefixes_pieces
    }

    /// The text of ids, special tokens included.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner
            .decode(ids, false)
            .map_err(|error| problem_with(&self.path, &format!("cannot decode {} ids: {error}", ids.len())))
    }

    /// The text of ids without the special tokens among them.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_without_special(&self, ids: &[u32]) -> Result<String> {
        let ids: Vec<u32> = ids.iter().copied().filter(|&id| !self.is_special(id)).collect();
        self.decode(&ids)
    }

    /// The id of a token, given as it stands in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token of an id, as it stands in the vocabulary.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Whether an id is a special token's: one that controls and is not text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.binary_search(&id).is_ok()
    }

    /// The ids of all special tokens, ascending.
    pub fn special_ids(&self) -> &[u32] {
        &self.special_ids
    }

    /// The token that begins a text, if there is one.
    pub fn bos_token(&self) -> Option<&str> {
        self.role("bos_token")
    }

    /// The token that ends a text, if there is one.
    pub fn eos_token(&self) -> Option<&str> {
        self.role("eos_token")
    }

    /// The id of [`eos_token`](Self::eos_token).
    pub fn eos_id(&self) -> Option<u32> {
        self.eos_token().and_then(|token| self.id(token))
    }

    /// The id of [`bos_token`](Self::bos_token), if the tokenizer's own way of encoding puts it before a text.
    pub fn adds_bos(&self) -> Option<u32> {
        let bos = self.bos_token().and_then(|token| self.id(token))?;
        // A tokenizer that refuses to encode nothing puts nothing before it.
        let empty = self.inner.encode_fast("", true).ok()?;
        empty.get_ids().contains(&bos).then_some(bos)
    }

    fn role(&self, name: &str) -> Option<&str> {
        self.extras.roles.get(name).map(String::as_str)
    }

    /// Special tokens by role (`bos_token` and so on): the variables that a chat template may use.
    pub fn roles(&self) -> &BTreeMap<String, String> {
        &self.extras.roles
    }

    /// The usual chat template, if the model has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.extras.chat_templates.get("default").map(String::as_str)
    }

    /// All chat templates by name; the usual one is `default`.
    pub fn chat_templates(&self) -> &BTreeMap<String, String> {
        &self.extras.chat_templates
    }

    /// The largest id that the tokenizer can produce.
    pub fn largest_id(&self) -> u32 {
        self.largest_id
    }

    /// The file that the tokenizer is from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the embedding has a row for each token. More rows than tokens are fine: many models are padded.
    ///
    /// # Errors
    /// It has not; both numbers are named.
    pub fn check_fits(&self, vocab: usize) -> Result<()> {
        if self.largest_id as usize >= vocab {
            let (path, largest) = (self.path.clone(), self.largest_id);
            return Err(ModelError::TokenizerTooLarge { path, largest, vocab }.into());
        }
        Ok(())
    }

    fn failed(&self, action: &str, text: &str, error: &dyn std::error::Error) -> crate::Error {
        let start: String = text.chars().take(40).collect();
        problem_with(&self.path, &format!("cannot {action} {start:?}: {error}"))
    }
}

fn problem_with(path: &Path, problem: &str) -> crate::Error {
    ModelError::Tokenizer { path: path.into(), problem: problem.to_owned() }.into()
}

/// Whether merges are of tokens and make tokens. The library takes this for granted and panics on some that don't.
fn check_merges(path: &Path, json: &Value) -> Result<()> {
    let (Some(vocab), Some(merges)) =
        (json["model"]["vocab"].as_object(), json["model"]["merges"].as_array())
    else {
        return Ok(());
    };
    let prefix = json["model"]["continuing_subword_prefix"].as_str().unwrap_or("");
    for (number, merge) in merges.iter().enumerate() {
        // Two spellings: "a b", and the newer ["a", "b"], which allows spaces in tokens.
        let pair = match merge {
            Value::String(text) => text.split_once(' '),
            Value::Array(pair) => match &pair[..] {
                [Value::String(left), Value::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        let joined = |left: &str, right: &str| {
            let right_end = right.strip_prefix(prefix)?;
            vocab.contains_key(left).then_some(())?;
            vocab.contains_key(right).then_some(())?;
            vocab.contains_key(&format!("{left}{right_end}")).then_some(())
        };
        if pair.and_then(|(left, right)| joined(left, right)).is_none() {
            let problem = format!("model.merges[{number}] = {merge} does not merge two tokens into a third");
            return Err(problem_with(path, &problem));
        }
    }
    Ok(())
}

/// Looks for the parts that put a space before a text.
fn prefixes_pieces(inner: &tokenizers::Tokenizer) -> bool {
    fn found(value: &Value) -> bool {
        let own = match value["type"].as_str() {
            Some("Prepend") => true,
            Some("Metaspace") => value["prepend_scheme"].as_str().is_none_or(|scheme| scheme != "never"),
            Some("ByteLevel") => value["add_prefix_space"].as_bool() == Some(true),
            _ => false,
        };
        own || match value {
            Value::Array(parts) => parts.iter().any(found),
            Value::Object(fields) => fields.values().any(found),
            _ => false,
        }
    }
    let part = |value: serde_json::Result<Value>| value.is_ok_and(|value| found(&value));
    part(serde_json::to_value(inner.get_normalizer()))
        || part(serde_json::to_value(inner.get_pre_tokenizer()))
}

#[cfg(test)]
mod tests;
