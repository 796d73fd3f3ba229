//! Every bit of what describes a model, flipped one at a time: whatever comes of it is a model or an error, and never
//! a panic. Weights may become anything, so that only headers are changed, and small files as a whole.

use std::ops::Range;
use std::path::Path;

use super::testing::{Tiny, TinyGguf, flip_each_bit, header_of_safetensors, tokenizer};
use super::{ModelShape, Opened, TensorSource, Weights, names, open, open_weights};
use crate::data::{Encoder, EncoderOptions, LossOn, Moment};
use crate::event::Collected;

/// Whether all weights can be read.
fn weights(path: &Path) -> bool {
    let opened = open_weights(path, &mut Collected::default());
    opened.is_ok_and(|Weights { shape, mut source, .. }| can_be_read(&shape, &mut *source))
}

fn can_be_read(shape: &ModelShape, source: &mut dyn TensorSource) -> bool {
    let tensors = names::expected(shape);
    tensors.iter().all(|tensor| source.read_f32(&tensor.name, &tensor.shape).is_ok())
        && source.finish().is_ok()
}

/// Whether all weights can be read, and a question put into the template and made into tokens: five times slower.
fn everything(path: &Path) -> bool {
    let opened = open(path, &mut Collected::default());
    opened.is_ok_and(|Opened { shape, mut source, tokenizer, .. }| {
        let positions = shape.max_positions;
        let now = Moment::from_unix(1_700_000_000);
        let options = EncoderOptions { loss_on: LossOn::Assistant, max_length: positions, positions, now };
        let asked = Encoder::new(&tokenizer, options).question("abc ab<|end|>");
        let decoded = asked.and_then(|ids| tokenizer.decode_without_special(&ids));
        can_be_read(&shape, &mut *source) && decoded.is_ok()
    })
}

/// Reads and uses what a path holds, and says whether it could.
type Use = fn(&Path) -> bool;

/// Flips the bits of one file of a Hugging Face directory, the others being as they should.
fn flip_in_directory(name: &str, sharded: bool, can_be_used: Use, bytes: impl Fn(&[u8]) -> Range<usize>) {
    let make = || {
        let directory = tempfile::tempdir().unwrap();
        if sharded {
            Tiny::new("llama").write_sharded(directory.path(), 5);
        } else {
            Tiny::new("llama").write(directory.path());
        }
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write("tokenizer.json", &tokenizer().to_string());
        let template =
            r"{% for m in messages %}{{ bos_token }}{{ m['content'] | trim }}{{ eos_token }}{% endfor %}";
        let config =
            serde_json::json!({ "eos_token": "<|end|>", "bos_token": "a", "chat_template": template });
        write("tokenizer_config.json", &config.to_string());
        assert!(everything(directory.path()));
        directory
    };
    let whole = std::fs::read(make().path().join(name)).unwrap();
    let bytes = bytes(&whole);
    let flips = 8 * bytes.len();
    let usable = flip_each_bit(&whole, bytes, || {
        let directory = make();
        move |changed: &[u8]| {
            std::fs::write(directory.path().join(name), changed).unwrap();
            can_be_used(directory.path())
        }
    });
    assert!(flips > 500 && usable < flips / 2, "{usable} of {flips} changed files could be used");
}

#[test]
fn in_config_json() {
    flip_in_directory("config.json", false, weights, |file| 0..file.len());
}

#[test]
fn in_the_header_of_safetensors() {
    flip_in_directory("model.safetensors", false, weights, header_of_safetensors);
}

#[test]
fn in_the_index_of_shards() {
    flip_in_directory("model.safetensors.index.json", true, weights, |file| 0..file.len());
}

#[test]
fn in_tokenizer_json() {
    flip_in_directory("tokenizer.json", false, everything, |file| 0..file.len());
}

#[test]
fn in_tokenizer_config_json() {
    flip_in_directory("tokenizer_config.json", false, everything, |file| 0..file.len());
}

#[test]
fn in_the_header_of_gguf() {
    let tiny = TinyGguf::new("llama");
    let whole = tiny.bytes();
    let name = tiny.tensors[0].1.name.as_bytes();
    // The metadata is everything before the first tensor's name and its length.
    let table = whole.windows(name.len()).position(|window| window == name).unwrap() - 8;
    let data: usize = tiny.tensors.iter().map(|(_, tensor)| tensor.bytes.len().next_multiple_of(32)).sum();
    let header = whole.len() - data;
    for (bytes, can_be_used) in [(0..table, everything as Use), (table..header, weights)] {
        assert!(bytes.len() > 500);
        let flips = 8 * bytes.len();
        let usable = flip_each_bit(&whole, bytes, || {
            let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
            std::fs::write(file.path(), &whole).unwrap();
            assert!(can_be_used(file.path()));
            move |changed: &[u8]| {
                std::fs::write(file.path(), changed).unwrap();
                can_be_used(file.path())
            }
        });
        assert!(usable < flips / 2, "{usable} of {flips} changed files could be used");
    }
}

/// The checker sees a panic, wherever the bit is.
#[test]
#[should_panic(expected = "a flipped bit makes a panic")]
fn a_panic_is_seen() {
    flip_each_bit(&[0; 20], 0..20, || |changed: &[u8]| changed[13] != 32 || panic!("as it should"));
}
