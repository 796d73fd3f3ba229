//! Small tokenizers whose tokens can be told by hand.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use trainer::event::Collected;
use trainer::tokenizer::{Extras, Tokenizer};

/// What a toy tokenizer is to have.
#[derive(Default)]
pub struct Toy<'a> {
    /// Special tokens by role; their ids follow the vocabulary's, in this order.
    pub roles: &'a [(&'a str, &'a str)],
    /// Merges of two tokens.
    pub merges: &'a [(&'a str, &'a str)],
    /// The chat template.
    pub template: Option<&'a str>,
    /// Whether the tokenizer's own way of encoding puts the begin token before a text.
    pub adds_bos: bool,
}

impl Toy<'_> {
    fn make(&self, mut vocab: serde_json::Map<String, Value>, byte_level: bool) -> Tokenizer {
        for (left, right) in self.merges {
            let id = vocab.len();
            vocab.insert(format!("{left}{right}"), json!(id));
        }
        let first = vocab.len();
        let added: Vec<Value> = (first..)
            .zip(self.roles)
            .map(|(id, (_, name))| {
                json!({"id": id, "content": name, "special": true, "single_word": false, "lstrip": false,
                       "rstrip": false, "normalized": false})
            })
            .collect();
        let bos =
            self.roles.iter().position(|role| role.0 == "bos_token").map(|at| (first + at, self.roles[at].1));
        let post_processor = match bos {
            Some((id, name)) if self.adds_bos => json!({
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {name: {"id": name, "ids": [id], "tokens": [name]}},
            }),
            _ => Value::Null,
        };
        let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
        let file = json!({
            "version": "1.0",
            "added_tokens": added,
            "normalizer": if byte_level { Value::Null } else {
                json!({"type": "Sequence", "normalizers": [
                    {"type": "Prepend", "prepend": "▁"},
                    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                ]})
            },
            "pre_tokenizer": if byte_level { level.clone() } else { Value::Null },
            "post_processor": post_processor,
            "decoder": if byte_level { level } else { Value::Null },
            "model": {
                "type": "BPE", "vocab": vocab, "byte_fallback": !byte_level,
                "merges": self.merges.iter().map(|(left, right)| json!([left, right])).collect::<Vec<_>>(),
            },
        });
        let own = |(role, name): &(&str, &str)| (role.to_string(), name.to_string());
        let template = self.template.map(|source| ("default".to_string(), source.to_string()));
        let extras = Extras {
            roles: self.roles.iter().map(own).collect(),
            chat_templates: template.into_iter().collect::<BTreeMap<_, _>>(),
        };
        Tokenizer::from_json("toy.json".as_ref(), file, extras, &mut Collected::default())
            .expect("a tokenizer")
    }

    /// A token for each byte, with the byte as its id, and the merges from 256 on.
    pub fn byte_level(&self) -> Tokenizer {
        let mut next = 256;
        let character = |byte: u8| match byte {
            33..=126 | 161..=172 | 174..=255 => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).expect("a character")
            }
        };
        let vocab =
            (0..=255).map(character).zip(0..).map(|(c, id): (char, usize)| (c.to_string(), json!(id)));
        self.make(vocab.collect(), true)
    }

    /// SentencePiece's way: a `▁` before the text and for each space, letters as they are, other bytes as `<0x..>`.
    pub fn sentence_piece(&self) -> Tokenizer {
        let letters = (0x20..0x7F).map(|byte: u8| char::from(byte).to_string()).chain(["▁".to_string()]);
        let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
        let vocab = letters.chain(bytes).zip(0..).map(|(token, id): (String, usize)| (token, json!(id)));
        self.make(vocab.collect(), false)
    }
}
