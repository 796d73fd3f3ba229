//! Small models for tests, directories and GGUF files with weights by formula, to be damaged by the test.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::{Value, json};

use super::{ModelShape, names};
use crate::event::Collected;

/// A tensor as it stands in a file.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// An F32 tensor.
    pub fn f32(name: &str, shape: &[usize], values: impl IntoIterator<Item = f32>) -> Self {
        let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        Self { name: name.into(), dtype: "F32", shape: shape.to_vec(), bytes }
    }
}

/// A small model: its config and its tensors, in F32 by default.
#[derive(Debug, Clone)]
pub(crate) struct Tiny {
    pub config: Value,
    pub tensors: Vec<Tensor>,
}

impl Tiny {
    /// hidden 8, two blocks, two heads of 4 with one key head, MLP 12, vocabulary 16.
    pub fn new(family: &str) -> Self {
        Self::of(json!({
            "model_type": family, "vocab_size": 16, "hidden_size": 8, "intermediate_size": 12,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "sliding_window": null, "tie_word_embeddings": false, "eos_token_id": 2,
        }))
    }

    /// All tensors that a config asks for.
    pub fn of(config: Value) -> Self {
        let shape = ModelShape::from_config("config.json".as_ref(), &config, None, &mut Collected::default())
            .unwrap();
        let tensors = names::expected(&shape)
            .iter()
            .enumerate()
            .map(|(number, tensor)| {
                let count: usize = tensor.shape.iter().product();
                let values = (0..count).map(|at| ((number * 31 + at * 7) % 97) as f32 / 97.0 - 0.5);
                Tensor::f32(&tensor.name, &tensor.shape, values)
            })
            .collect();
        Self { config, tensors }
    }

    /// The tensor of a name.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    /// Leaves a tensor out.
    pub fn without(mut self, name: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|tensor| tensor.name != name);
        assert_eq!(self.tensors.len() + 1, before, "no tensor {name}");
        self
    }

    /// Sets a field of the config.
    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    /// Writes config.json and model.safetensors.
    pub fn write(&self, directory: &Path) {
        std::fs::create_dir_all(directory).unwrap();
        std::fs::write(directory.join("config.json"), self.config.to_string()).unwrap();
        std::fs::write(directory.join("model.safetensors"), safetensors(&self.tensors)).unwrap();
    }

    /// Writes config.json and the tensors over two shards, the first `split` of them into the first.
    pub fn write_sharded(&self, directory: &Path, split: usize) {
        std::fs::create_dir_all(directory).unwrap();
        std::fs::write(directory.join("config.json"), self.config.to_string()).unwrap();
        let mut index = json!({ "metadata": {}, "weight_map": {} });
        let (first, second) = self.tensors.split_at(split);
        for (shard, tensors) in [("one.safetensors", first), ("two.safetensors", second)] {
            std::fs::write(directory.join(shard), safetensors(tensors)).unwrap();
            for tensor in tensors {
                index["weight_map"][&tensor.name] = shard.into();
            }
        }
        std::fs::write(directory.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
}

/// A safetensors file with these tensors in this order.
pub(crate) fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for tensor in tensors {
        let start = data.len();
        data.extend_from_slice(&tensor.bytes);
        header.insert(
            tensor.name.clone(),
            json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, data.len()] }),
        );
    }
    safetensors_with_header(&Value::Object(header).to_string(), &data)
}

/// A safetensors file with this header, whatever it says.
pub(crate) fn safetensors_with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

/// The bytes of a safetensors file before its data: the length of the header, and the header.
pub(crate) fn header_of_safetensors(file: &[u8]) -> Range<usize> {
    0..8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize
}

/// Calls what `start` makes, once for each thread, with each bit of these bytes of a file flipped. Returns how many
/// of the changed files could be used.
pub(crate) fn flip_each_bit<F: FnMut(&[u8]) -> bool>(
    file: &[u8],
    bytes: Range<usize>,
    start: impl Fn() -> F + Sync,
) -> usize {
    let threads = thread::available_parallelism().map_or(1, |count| count.get().min(8));
    let (start, bytes) = (&start, &bytes);
    let of_thread = |first: usize| {
        move || {
            let (mut use_file, mut changed, mut usable) = (start(), file.to_vec(), 0);
            for at in bytes.clone().skip(first).step_by(threads) {
                for bit in 0..8 {
                    changed[at] ^= 1 << bit;
                    match catch_unwind(AssertUnwindSafe(|| use_file(&changed))) {
                        Ok(used) => usable += usize::from(used),
                        Err(_) => panic!("bit {bit} of byte {at} of {} makes a panic", file.len()),
                    }
                    changed[at] ^= 1 << bit;
                }
            }
            usable
        }
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|first| scope.spawn(of_thread(first))).collect();
        running.into_iter().map(|thread| thread.join().expect("a flipped bit makes a panic")).sum()
    })
}

/// A file or folder of tests/fixtures.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures")).join(name)
}

/// f32 values from the hexadecimal of their little-endian bytes, as the fixtures have them.
pub(crate) fn f32_from_hex(text: &str) -> Vec<f32> {
    bytes_from_hex(text).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Bytes from hexadecimal digits.
pub(crate) fn bytes_from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// A tokenizer.json: byte-level BPE over a few letters, ten tokens in all.
pub(crate) fn tokenizer() -> Value {
    let letters = ["a", "b", "c", "Ġ", "!"];
    let mut vocab: serde_json::Map<String, Value> =
        letters.iter().enumerate().map(|(id, letter)| ((*letter).to_owned(), id.into())).collect();
    for token in ["ab", "abc", "Ġa", "<|end|>", "<tool>"] {
        vocab.insert(token.into(), vocab.len().into());
    }
    let added = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "special": special, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(8, "<|end|>", true), added(9, "<tool>", false)],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [["a", "b"], ["ab", "c"], ["Ġ", "a"]],
        },
    })
}

/// A GGUF metadata value.
#[derive(Debug, Clone)]
pub(crate) enum Meta {
    U32(u32),
    F32(f32),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
}

/// A small model as a GGUF file: metadata, tensors (names, dimensions outermost first, bytes) with their type numbers.
#[derive(Debug, Clone)]
pub(crate) struct TinyGguf {
    pub metadata: Vec<(String, Meta)>,
    pub tensors: Vec<(u32, Tensor)>,
    pub version: u32,
}

impl TinyGguf {
    /// The sizes of [`Tiny::new`] but for a hidden size of 32, so that quantised rows are whole blocks, and a head of
    /// its own. The tokenizer is bytes "a", "b", "c", a space, two merges and an end token.
    pub fn new(architecture: &str) -> Self {
        let key = |name: &str| format!("{architecture}.{name}");
        let tokens = ["a", "b", "c", "Ġ", "ab", "abc", "<|end|>", "<tool>", "[PAD8]"];
        let texts = |texts: &[&str]| Meta::Texts(texts.iter().map(|text| (*text).to_owned()).collect());
        let pre = if architecture == "llama" { "smollm" } else { "qwen2" };
        let metadata = vec![
            ("general.architecture".to_owned(), Meta::Text(architecture.to_owned())),
            (key("context_length"), Meta::U32(64)),
            (key("embedding_length"), Meta::U32(32)),
            (key("block_count"), Meta::U32(2)),
            (key("feed_forward_length"), Meta::U32(64)),
            (key("attention.head_count"), Meta::U32(4)),
            (key("attention.head_count_kv"), Meta::U32(2)),
            (key("attention.layer_norm_rms_epsilon"), Meta::F32(1e-6)),
            (key("rope.freq_base"), Meta::F32(10000.0)),
            ("tokenizer.ggml.model".to_owned(), Meta::Text("gpt2".to_owned())),
            ("tokenizer.ggml.pre".to_owned(), Meta::Text(pre.to_owned())),
            ("tokenizer.ggml.tokens".to_owned(), texts(&tokens)),
            ("tokenizer.ggml.token_type".to_owned(), Meta::I32s(vec![1, 1, 1, 1, 1, 1, 3, 4, 5])),
            ("tokenizer.ggml.merges".to_owned(), texts(&["a b", "ab c"])),
            ("tokenizer.ggml.eos_token_id".to_owned(), Meta::U32(6)),
            ("tokenizer.chat_template".to_owned(), Meta::Text("{{ messages }}".to_owned())),
        ];
        let (hidden, intermediate, vocab) = (32, 64, 16);
        let mut tensors = Vec::new();
        let mut add = |name: String, shape: &[usize]| {
            let number = tensors.len();
            let count: usize = shape.iter().product();
            let values = (0..count).map(|at| ((number * 31 + at * 7) % 97) as f32 / 97.0 - 0.5);
            tensors.push((0, Tensor::f32(&name, shape, values)));
        };
        add("token_embd.weight".into(), &[vocab, hidden]);
        for layer in 0..2 {
            let name = |part: &str| format!("blk.{layer}.{part}");
            for (part, shape) in [
                ("attn_q.weight", vec![hidden, hidden]),
                ("attn_k.weight", vec![hidden / 2, hidden]),
                ("attn_v.weight", vec![hidden / 2, hidden]),
                ("attn_output.weight", vec![hidden, hidden]),
                ("ffn_gate.weight", vec![intermediate, hidden]),
                ("ffn_up.weight", vec![intermediate, hidden]),
                ("ffn_down.weight", vec![hidden, intermediate]),
                ("attn_norm.weight", vec![hidden]),
                ("ffn_norm.weight", vec![hidden]),
            ] {
                add(name(part), &shape);
            }
            if architecture == "qwen2" {
                add(name("attn_q.bias"), &[hidden]);
                add(name("attn_k.bias"), &[hidden / 2]);
                add(name("attn_v.bias"), &[hidden / 2]);
            }
            if architecture == "qwen3" {
                add(name("attn_q_norm.weight"), &[8]);
                add(name("attn_k_norm.weight"), &[8]);
            }
        }
        add("output_norm.weight".into(), &[hidden]);
        add("output.weight".into(), &[vocab, hidden]);
        Self { metadata, tensors, version: 3 }
    }

    /// The tensor of a name.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().map(|(_, tensor)| tensor).find(|tensor| tensor.name == name).unwrap()
    }

    /// Sets a metadata value.
    pub fn with(mut self, key: &str, value: Meta) -> Self {
        match self.metadata.iter_mut().find(|(name, _)| name == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Leaves a metadata value out.
    pub fn without(mut self, key: &str) -> Self {
        let before = self.metadata.len();
        self.metadata.retain(|(name, _)| name != key);
        assert_eq!(self.metadata.len() + 1, before, "no metadata {key}");
        self
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        fn text(out: &mut Vec<u8>, text: &str) {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        }
        fn number(out: &mut Vec<u8>, number: u32) {
            out.extend(number.to_le_bytes());
        }
        let mut out = b"GGUF".to_vec();
        number(&mut out, self.version);
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            text(&mut out, key);
            match value {
                Meta::U32(value) => {
                    number(&mut out, 4);
                    number(&mut out, *value);
                }
                Meta::F32(value) => {
                    number(&mut out, 6);
                    out.extend(value.to_le_bytes());
                }
                Meta::Text(value) => {
                    number(&mut out, 8);
                    text(&mut out, value);
                }
                Meta::Texts(values) => {
                    number(&mut out, 9);
                    number(&mut out, 8);
                    out.extend((values.len() as u64).to_le_bytes());
                    values.iter().for_each(|value| text(&mut out, value));
                }
                Meta::I32s(values) => {
                    number(&mut out, 9);
                    number(&mut out, 5);
                    out.extend((values.len() as u64).to_le_bytes());
                    values.iter().for_each(|value| out.extend(value.to_le_bytes()));
                }
            }
        }
        let mut offset = 0;
        for (kind, tensor) in &self.tensors {
            text(&mut out, &tensor.name);
            number(&mut out, tensor.shape.len() as u32);
            tensor.shape.iter().rev().for_each(|&size| out.extend((size as u64).to_le_bytes()));
            number(&mut out, *kind);
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.bytes.len().next_multiple_of(32);
        }
        for (_, tensor) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(&tensor.bytes);
        }
        out
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).unwrap();
    }
}
