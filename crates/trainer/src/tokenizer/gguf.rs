//! The tokenizer in a GGUF file's metadata, as the `tokenizer.json` that a Hugging Face directory would have.
//! Byte-level BPE with one of the pre-tokenizers that are known by name; everything else is refused.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Extras, Tokenizer};
use crate::Result;
use crate::event::EventSink;
use crate::model::Metadata;

/// How a text is cut into words before merging: by the name in `tokenizer.ggml.pre`.
struct PreTokenizer {
    normalizer: Value,
    parts: Value,
    /// Whether a word that is a token is taken whole, whatever the merges say.
    ignore_merges: bool,
    /// Class that a tokenizer_config.json names.
    class: &'static str,
}

/// Cuts of Llama 3 and Qwen2: contractions, letters with one sign before, digits, signs, line ends, spaces. They
/// differ in how many digits stay together.
fn split(digits: &str) -> Value {
    let pattern = format!(
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{{L}}\\p{{N}}]?\\p{{L}}+|{digits}| ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n]*\
         |\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
    );
    json!([
        { "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false },
        { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
    ])
}

fn pre_tokenizer(metadata: &Metadata) -> Result<PreTokenizer> {
    let key = "tokenizer.ggml.pre";
    let own = "PreTrainedTokenizerFast";
    Ok(match metadata.text(key)? {
        Some("smollm") => PreTokenizer {
            normalizer: Value::Null,
            parts: json!([
                { "type": "Digits", "individual_digits": true },
                { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
            ]),
            ignore_merges: false,
            class: "GPT2Tokenizer",
        },
        Some("qwen2") => PreTokenizer {
            normalizer: json!({ "type": "NFC" }),
            parts: split("\\p{N}"),
            ignore_merges: false,
            class: own,
        },
        Some("llama-bpe") => PreTokenizer {
            normalizer: Value::Null,
            parts: split("\\p{N}{1,3}"),
            ignore_merges: true,
            class: own,
        },
        Some(other) => {
            let remedy = "supported: smollm, qwen2, llama-bpe; use the model's Hugging Face directory";
            return Err(metadata.unsupported(key, &format!("{other:?}"), remedy));
        }
        None => return Err(metadata.problem(key, "is missing: how text is cut into words is not known")),
    })
}

/// Kinds of tokens, by the number in `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    Normal,
    /// Controls, and is matched before anything else.
    Special,
    /// Text, and is matched before anything else.
    Added,
    /// Fills a row of the embedding; never matched.
    Unused,
}

/// The tokens with their kinds.
fn tokens(metadata: &Metadata) -> Result<Vec<(&str, TokenKind)>> {
    let key = "tokenizer.ggml.model";
    match metadata.text(key)? {
        Some("gpt2") => {}
        Some(other) => {
            let remedy = "supported: gpt2 (byte-level BPE); use the model's Hugging Face directory";
            return Err(metadata.unsupported(key, &format!("{other:?}"), remedy));
        }
        None => return Err(metadata.problem(key, "is missing: the file has no tokenizer")),
    }
    let tokens = metadata.required_texts("tokenizer.ggml.tokens")?;
    let key = "tokenizer.ggml.token_type";
    let kinds = metadata.required_numbers(key)?;
    if tokens.is_empty() || kinds.len() != tokens.len() {
        let problem = format!("has {} entries for {} tokens", kinds.len(), tokens.len());
        return Err(metadata.problem(key, &problem));
    }
    let mut seen = BTreeMap::new();
    let mut all = Vec::with_capacity(tokens.len());
    for (id, (token, kind)) in tokens.into_iter().zip(kinds).enumerate() {
        let kind = match kind {
            1 => TokenKind::Normal,
            3 => TokenKind::Special,
            4 => TokenKind::Added,
            5 => TokenKind::Unused,
            other => {
                let problem = format!("token {id} ({token:?}) is of kind {other}; supported: 1, 3, 4, 5");
                return Err(metadata.problem(key, &problem));
            }
        };
        if kind != TokenKind::Unused
            && let Some(first) = seen.insert(token, id)
        {
            let problem = format!("{token:?} is there twice, with ids {first} and {id}");
            return Err(metadata.problem("tokenizer.ggml.tokens", &problem));
        }
        all.push((token, kind));
    }
    Ok(all)
}

/// Tokens that are matched before anything else, as tokenizer.json lists them.
fn added(tokens: &[(&str, TokenKind)]) -> Vec<Value> {
    tokens
        .iter()
        .enumerate()
        .filter(|(_, (_, kind))| matches!(kind, TokenKind::Special | TokenKind::Added))
        .map(|(id, (token, kind))| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind == TokenKind::Special,
            })
        })
        .collect()
}

/// The content of a tokenizer.json.
///
/// # Errors
/// The metadata has no tokenizer, or one that is not supported.
pub(crate) fn tokenizer_json(metadata: &Metadata) -> Result<Value> {
    let tokens = tokens(metadata)?;
    let pre = pre_tokenizer(metadata)?;
    let key = "tokenizer.ggml.merges";
    let merges: Vec<Value> = metadata
        .required_texts(key)?
        .into_iter()
        .map(|merge| match merge.split_once(' ') {
            Some((left, right)) => Ok(json!([left, right])),
            None => Err(metadata.problem(key, &format!("{merge:?} are not two tokens"))),
        })
        .collect::<Result<_>>()?;
    let vocab: Map<String, Value> = tokens
        .iter()
        .enumerate()
        .filter(|(_, (_, kind))| *kind != TokenKind::Unused)
        .map(|(id, (token, _))| ((*token).to_owned(), id.into()))
        .collect();
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added(&tokens),
        "normalizer": pre.normalizer,
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": pre.parts },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre.ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    }))
}

/// The content of a tokenizer_config.json; `positions` is the model's longest sequence.
///
/// # Errors
/// As [`tokenizer_json`].
pub(crate) fn tokenizer_config(metadata: &Metadata, positions: usize) -> Result<Value> {
    let tokens = tokens(metadata)?;
    let Extras { roles, chat_templates } = extras(metadata)?;
    let decoder: Map<String, Value> = added(&tokens)
        .into_iter()
        .filter_map(|token| match token {
            Value::Object(mut fields) => {
                fields.shift_remove("id").map(|id| (id.to_string(), Value::Object(fields)))
            }
            _ => None,
        })
        .collect();
    let role = |name: &str| roles.get(name).map_or(Value::Null, |token| token.as_str().into());
    let special: Vec<Value> =
        ["bos_token", "eos_token"].map(role).into_iter().filter(|token| !token.is_null()).collect();
    let mut config = Map::new();
    let mut set = |name: &str, value: Value| config.insert(name.to_owned(), value);
    set("add_prefix_space", false.into());
    set("added_tokens_decoder", decoder.into());
    set("additional_special_tokens", special.into());
    for name in ["bos_token", "eos_token", "pad_token", "unk_token"] {
        set(name, role(name));
    }
    set("clean_up_tokenization_spaces", false.into());
    set("model_max_length", positions.into());
    set("tokenizer_class", pre_tokenizer(metadata)?.class.into());
    if let Some(template) = chat_templates.get("default") {
        set("chat_template", template.as_str().into());
    }
    Ok(Value::Object(config))
}

/// Special tokens by role, and chat templates.
///
/// # Errors
/// An id is no token's, or a value has the wrong type.
pub(crate) fn extras(metadata: &Metadata) -> Result<Extras> {
    let tokens = metadata.required_texts("tokenizer.ggml.tokens")?;
    let mut extras = Extras::default();
    for (role, name) in [
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("pad_token", "padding"),
        ("unk_token", "unknown"),
        ("sep_token", "seperator"),
        ("cls_token", "cls"),
        ("mask_token", "mask"),
    ] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        if let Some(id) = metadata.token_id(&key)? {
            let token = tokens.get(id as usize).ok_or_else(|| {
                metadata.problem(&key, &format!("{id} is not among the {} tokens", tokens.len()))
            })?;
            extras.roles.insert(role.to_owned(), (*token).to_owned());
        }
    }
    let key = "tokenizer.chat_template";
    for name in metadata.keys() {
        let template_name = match name.strip_prefix(key) {
            Some("") => "default",
            // tokenizer.chat_templates lists the names of these.
            Some(rest) => match rest.strip_prefix('.') {
                Some(template_name) => template_name,
                None => continue,
            },
            None => continue,
        };
        if let Some(template) = metadata.text(name)? {
            extras.chat_templates.insert(template_name.to_owned(), template.to_owned());
        }
    }
    Ok(extras)
}

impl Tokenizer {
    /// The tokenizer of a GGUF file.
    ///
    /// # Errors
    /// The metadata has none, or one that is not supported.
    pub(crate) fn from_gguf(metadata: &Metadata, events: &mut dyn EventSink) -> Result<Self> {
        Self::from_json(metadata.path(), tokenizer_json(metadata)?, extras(metadata)?, events)
    }
}
