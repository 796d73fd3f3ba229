//! Tokenizers made up for the purpose; the real one of a GGUF file is compared where that is read.

use serde_json::{Value, json};

use super::*;
use crate::event::Collected;
use crate::model::testing::tokenizer as small;

fn load(json: Value) -> (Tokenizer, Vec<String>) {
    let mut events = Collected::default();
    let tokenizer = Tokenizer::from_json("tokenizer.json".as_ref(), json, Extras::default(), &mut events)
        .unwrap_or_else(|error| panic!("{error}"));
    (tokenizer, events.0.iter().map(ToString::to_string).collect())
}

fn error(json: Value) -> String {
    Tokenizer::from_json("tokenizer.json".as_ref(), json, Extras::default(), &mut Collected::default())
        .unwrap_err()
        .to_string()
}

#[test]
fn encodes_pieces_and_decodes_them() {
    let (tokenizer, events) = load(small());
    assert!(events.is_empty() && !tokenizer.prefixes_pieces());
    let ids = tokenizer.encode("abc ab<|end|><tool>!").unwrap();
    assert_eq!(ids, [6, 3, 5, 8, 9, 4]);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "abc ab<|end|><tool>!");
    assert_eq!(tokenizer.decode_without_special(&ids).unwrap(), "abc ab<tool>!");
    assert_eq!(tokenizer.special_ids(), [8]);
    assert!(tokenizer.is_special(8) && !tokenizer.is_special(9) && !tokenizer.is_special(0));
    assert_eq!((tokenizer.id("<tool>"), tokenizer.id("x")), (Some(9), None));
    assert_eq!(tokenizer.token(6).as_deref(), Some("abc"));
    assert_eq!(tokenizer.encode("").unwrap(), [0; 0]);
    let offsets = tokenizer.encode_with_offsets("abc ab<|end|>").unwrap();
    assert_eq!(offsets.iter().map(|(_, range)| range.clone()).collect::<Vec<_>>(), [0..3, 3..4, 4..6, 6..13]);
}

/// B87
#[test]
fn truncation_and_padding_of_the_file_are_reset() {
    let mut json = small();
    json["truncation"] =
        json!({"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null,
                             "pad_id": 0, "pad_type_id": 0, "pad_token": "a"});
    json["model"]["dropout"] = json!(0.5);
    let (tokenizer, events) = load(json);
    assert_eq!(tokenizer.encode(&"c".repeat(20)).unwrap().len(), 20);
    assert_eq!(tokenizer.encode("ccc").unwrap().len(), 3);
    for _ in 0..20 {
        assert_eq!(tokenizer.encode("abc").unwrap(), [6]);
    }
    assert_eq!(
        events,
        [
            "tokenizer.json asks for truncation to 8 tokens and padding and dropout of 0.5 of the merges: not applied"
        ]
    );
}

/// B33
#[test]
fn a_tokenizer_larger_than_the_embedding_is_refused() {
    let (tokenizer, _) = load(small());
    assert_eq!(tokenizer.largest_id(), 9);
    tokenizer.check_fits(16).unwrap();
    tokenizer.check_fits(10).unwrap();
    assert_eq!(
        tokenizer.check_fits(9).unwrap_err().to_string(),
        "tokenizer.json has token ids up to 9, but the embedding has 9 rows: the tokenizer does not belong to this \
         model, or tokens were added without resizing it"
    );
}

#[test]
fn tokenizers_that_prefix_are_recognised() {
    let with = |key: &str, value: Value| {
        let mut json = small();
        json[key] = value;
        load(json).0.prefixes_pieces()
    };
    assert!(with(
        "normalizer",
        json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]})
    ));
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    assert!(with("pre_tokenizer", metaspace("always")));
    assert!(with("pre_tokenizer", metaspace("first")));
    assert!(!with("pre_tokenizer", metaspace("never")));
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    assert!(with("pre_tokenizer", json!({"type": "Sequence", "pretokenizers": [byte_level]})));
}

/// Offsets of a tokenizer that puts a space first are those of the text as given.
#[test]
fn offsets_are_of_the_text_as_given() {
    let mut json = small();
    json["pre_tokenizer"] =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true});
    let (tokenizer, _) = load(json);
    let offsets = tokenizer.encode_with_offsets("a!").unwrap();
    assert_eq!(offsets, [(7, 0..1), (4, 1..2)]);
}

#[test]
fn merges_that_make_no_token_are_refused() {
    for (merge, shown) in [
        (json!(["abc", "abc"]), "[\"abc\",\"abc\"]"),
        (json!("a z"), "\"a z\""),
        (json!("a"), "\"a\""),
        (json!(7), "7"),
    ] {
        let mut json = small();
        json["model"]["merges"][1] = merge;
        assert_eq!(
            error(json),
            format!("tokenizer.json: model.merges[1] = {shown} does not merge two tokens into a third")
        );
    }
    assert!(error(json!({})).starts_with("tokenizer.json: not a tokenizer"));
    assert!(error(json!({"model": {"type": "BPE", "vocab": {}, "merges": []}})).contains("tokenizer.json"));
}

fn directory(files: &[(&str, Value)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
        std::fs::write(path, text).unwrap();
    }
    directory
}

fn open(files: &[(&str, Value)]) -> Result<Tokenizer> {
    let mut all = vec![("tokenizer.json", small())];
    all.extend_from_slice(files);
    Tokenizer::open(directory(&all).path(), &mut Collected::default())
}

#[test]
fn roles_are_strings_or_objects() {
    let tokenizer = open(&[
        ("special_tokens_map.json", json!({"bos_token": "a", "eos_token": "b", "pad_token": "c"})),
        (
            "tokenizer_config.json",
            json!({"eos_token": {"content": "<|end|>", "lstrip": false}, "pad_token": null, "add_bos_token": true}),
        ),
    ])
    .unwrap();
    assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (Some("a"), Some("<|end|>")));
    assert_eq!(tokenizer.eos_id(), Some(8));
    assert_eq!(tokenizer.roles().keys().collect::<Vec<_>>(), ["bos_token", "eos_token"]);
}

#[test]
fn chat_templates_from_every_place() {
    assert_eq!(open(&[]).unwrap().chat_template(), None);
    let config = ("tokenizer_config.json", json!({"chat_template": "one"}));
    assert_eq!(open(std::slice::from_ref(&config)).unwrap().chat_template(), Some("one"));
    let old = ("chat_template.json", json!({"chat_template": "two"}));
    assert_eq!(open(&[config.clone(), old.clone()]).unwrap().chat_template(), Some("two"));
    let newest = ("chat_template.jinja", json!("three\n"));
    assert_eq!(open(&[config, old, newest]).unwrap().chat_template(), Some("three\n"));
    let named = json!({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]});
    let tokenizer =
        open(&[("tokenizer_config.json", named), ("additional_chat_templates/rag.jinja", json!("r"))])
            .unwrap();
    let all: Vec<(&str, &str)> =
        tokenizer.chat_templates().iter().map(|(name, template)| (&name[..], &template[..])).collect();
    assert_eq!(all, [("default", "d"), ("rag", "r"), ("tool_use", "t")]);
    let bad = open(&[("tokenizer_config.json", json!({"chat_template": [{"name": "x"}]}))])
        .unwrap_err()
        .to_string();
    assert!(bad.ends_with("tokenizer_config.json: chat_template[0] has no name and template"), "{bad}");
}

#[test]
fn a_directory_without_a_tokenizer_says_what_to_do() {
    let message = |files: &[(&str, Value)]| {
        let directory = directory(files);
        Tokenizer::open(directory.path(), &mut Collected::default()).unwrap_err().to_string()
    };
    assert!(message(&[]).ends_with("tokenizer.json: is missing; fetch it with the model"));
    assert!(message(&[("tokenizer.model", json!(""))]).contains("tokenizer.model is not read"));
}
