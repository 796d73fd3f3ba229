//! Whole directories: right ones, and those in which something does not fit.

use std::path::Path;

use serde_json::json;

use super::super::testing::{Tensor, Tiny, fixture, safetensors};
use super::*;
use crate::event::Collected;
use crate::model::open_weights;

fn open(path: &Path) -> Result<(ModelShape, Directory)> {
    Directory::open(path, &mut Collected::default())
}

/// The message for a directory, its path shortened to DIR.
fn message(path: &Path) -> String {
    match open(path) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string().replace(&path.display().to_string(), "DIR"),
    }
}

fn written(tiny: &Tiny) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    tiny.write(directory.path());
    directory
}

#[test]
fn the_tiny_models_read_as_the_reference_crate_reads_them() {
    let mut compared = 0;
    for name in ["llama", "llama3", "mistral", "qwen2", "qwen3"] {
        let path = fixture("tiny").join(name);
        let (shape, mut ours) = open(&path).unwrap();
        let bytes = std::fs::read(path.join("model.safetensors")).unwrap();
        let theirs = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for tensor in names::expected(&shape) {
            let values = ours.read_f32(&tensor.name, &tensor.shape).unwrap();
            let view = theirs.tensor(&tensor.name).unwrap();
            let expected: Vec<f32> =
                view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            assert_eq!(values, expected, "{name} {}", tensor.name);
            compared += 1;
        }
        ours.finish().unwrap();
    }
    assert!(compared > 100);
}

#[test]
fn tables_keep_the_type_of_the_file() {
    let mut tiny = Tiny::new("llama");
    let count = 16 * 8;
    let values: Vec<f32> = (0..count).map(|at| at as f32 / 8.0 - 5.0).collect();
    for dtype in ["F16", "BF16", "F32", "F64"] {
        let tensor = tiny.tensor(names::EMBEDDING);
        tensor.dtype = dtype;
        tensor.bytes = match dtype {
            "F16" => values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect(),
            "BF16" => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
            "F32" => values.iter().flat_map(|&v| v.to_le_bytes()).collect(),
            _ => values.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect(),
        };
        let directory = written(&tiny);
        let (_, mut source) = open(directory.path()).unwrap();
        let table = source.read_table(names::EMBEDDING, &[16, 8]).unwrap();
        match (dtype, &table) {
            ("F16", Table::F16(table)) => assert!(table.iter().zip(&values).all(|(a, b)| a.to_f32() == *b)),
            ("BF16", Table::Bf16(table)) => assert!(table.iter().zip(&values).all(|(a, b)| a.to_f32() == *b)),
            ("F32" | "F64", Table::F32(table)) => assert_eq!(table, &values),
            _ => panic!("{dtype} became another type"),
        }
        assert_eq!(source.read_f32(names::EMBEDDING, &[16, 8]).unwrap(), values);
    }
}

#[test]
fn shards_read_as_one_file() {
    let tiny = Tiny::new("qwen3");
    let (one, two) = (written(&tiny), tempfile::tempdir().unwrap());
    tiny.write_sharded(two.path(), 5);
    let ((shape, mut one), (_, mut two)) = (open(one.path()).unwrap(), open(two.path()).unwrap());
    for tensor in names::expected(&shape) {
        let read = |source: &mut Directory| source.read_f32(&tensor.name, &tensor.shape).unwrap();
        assert_eq!(read(&mut one), read(&mut two));
    }
    one.finish().unwrap();
    two.finish().unwrap();
}

/// B57
#[test]
fn a_missing_or_damaged_shard_is_named() {
    let tiny = Tiny::new("llama");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let second = path.join("two.safetensors");
    tiny.write_sharded(path, 5);
    let whole = std::fs::read(&second).unwrap();

    std::fs::remove_file(&second).unwrap();
    assert_eq!(
        message(path),
        "DIR/model.safetensors.index.json puts model.layers.0.mlp.gate_proj.weight into DIR/two.safetensors, which does not exist; fetch \
         the missing file"
    );
    std::fs::write(&second, &whole[..whole.len() / 2]).unwrap();
    assert!(
        message(path).starts_with("DIR/two.safetensors is not a valid safetensors file"),
        "{}",
        message(path)
    );
    // An index that puts a tensor where it is not.
    std::fs::write(&second, safetensors(&tiny.tensors[6..])).unwrap();
    assert_eq!(
        message(path),
        format!(
            "DIR/two.safetensors has no tensor {}, which DIR/model.safetensors.index.json puts there",
            tiny.tensors[5].name
        )
    );
    // B132 across shards.
    std::fs::write(&second, safetensors(&tiny.tensors[4..])).unwrap();
    let name = &tiny.tensors[4].name;
    assert_eq!(
        message(path),
        format!(
            "duplicate tensor {name}: in DIR/one.safetensors and in DIR/two.safetensors; keep one of them"
        )
    );
    std::fs::write(path.join("model.safetensors.index.json"), r#"{"weight_map": {"a": "../x.safetensors"}}"#)
        .unwrap();
    assert_eq!(message(path), "DIR/model.safetensors.index.json: weight_map.a: is not a file name");
}

/// B55
#[test]
fn a_head_is_never_invented() {
    let directory = written(&Tiny::new("llama").without(names::HEAD));
    assert_eq!(
        message(directory.path()),
        "DIR has no tensor lm_head.weight, which a model of its config has, with shape [16, 8] (vocab_size, \
         hidden_size; tie_word_embeddings is not true)"
    );
    let directory =
        written(&Tiny::new("llama").with("tie_word_embeddings", json!(true)).without(names::HEAD));
    open(directory.path()).unwrap();
}

#[test]
fn a_head_beside_a_tied_embedding_must_be_equal_to_it() {
    let mut tiny = Tiny::new("llama").with("tie_word_embeddings", json!(true));
    let embedding = tiny.tensor(names::EMBEDDING).bytes.clone();
    tiny.tensor(names::HEAD).bytes = embedding;
    let directory = written(&tiny);
    let (shape, mut source) = open(directory.path()).unwrap();
    for tensor in names::expected(&shape) {
        source.read_f32(&tensor.name, &tensor.shape).unwrap();
    }
    source.finish().unwrap();

    tiny.tensor(names::HEAD).bytes[17] ^= 1;
    let directory = written(&tiny);
    assert_eq!(
        message(directory.path()),
        "DIR: tie_word_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight; set \
         \"tie_word_embeddings\": false in config.json if the head is to be used, or delete lm_head.weight"
    );
}

/// B68
#[test]
fn tensors_that_do_not_fit_together_are_named() {
    let mut tiny = Tiny::new("llama");
    *tiny.tensor(names::HEAD) = Tensor::f32(names::HEAD, &[15, 8], vec![0.5; 15 * 8]);
    let of = |tiny: &Tiny| message(written(tiny).path());
    assert!(of(&tiny).ends_with(
        ": lm_head.weight is [15, 8], expected [16, 8] (vocab_size, hidden_size; tie_word_embeddings is not true)"
    ));
    let mut tiny = Tiny::new("llama");
    let q = "model.layers.1.self_attn.q_proj.weight";
    *tiny.tensor(q) = Tensor::f32(q, &[8, 16], vec![0.5; 8 * 16]);
    assert!(of(&tiny).ends_with(
        "q_proj.weight is [8, 16], expected [8, 8] (num_attention_heads * head_dim, hidden_size)"
    ));
    let tiny = Tiny::new("llama").with("num_hidden_layers", json!(3));
    assert!(of(&tiny).contains("has no tensor model.layers.2.self_attn.q_proj.weight"), "{}", of(&tiny));
    let tiny = Tiny::new("llama").with("num_hidden_layers", json!(1));
    assert!(of(&tiny).contains("holds 9 tensors that a model of its config does not use"), "{}", of(&tiny));
}

/// B62: a bias that nothing would use is an error.
#[test]
fn tensors_that_nothing_uses_are_named() {
    let mut tiny = Tiny::new("llama");
    tiny.tensors.push(Tensor::f32("model.layers.0.self_attn.k_proj.bias", &[4], [4.0; 4]));
    let error = message(written(&tiny).path());
    assert!(
        error.contains("holds 1 tensors") && error.contains("model.layers.0.self_attn.k_proj.bias"),
        "{error}"
    );
    // Buffers of old checkpoints follow from the config.
    let mut tiny = Tiny::new("llama");
    tiny.tensors.push(Tensor::f32("model.layers.0.self_attn.rotary_emb.inv_freq", &[2], [1.0, 0.1]));
    let (_, source) = open(written(&tiny).path()).unwrap();
    let left = source.finish().unwrap_err().to_string();
    assert!(!left.contains("inv_freq") && left.contains("model.embed_tokens.weight"), "{left}");
}

/// B69
#[test]
fn a_directory_that_is_no_model_says_what_was_looked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    assert_eq!(
        message(path),
        "DIR is not a model: it has no config.json; give a Hugging Face model directory (config.json, \
         model.safetensors, tokenizer.json) or a .gguf file"
    );
    std::fs::write(path.join("config.json"), "").unwrap();
    assert_eq!(
        message(path),
        "DIR/config.json is not a valid JSON file: it is empty (an interrupted download? fetch it again)"
    );
    Tiny::new("llama").write(path);
    std::fs::remove_file(path.join("model.safetensors")).unwrap();
    assert_eq!(
        message(path),
        "DIR is not a model: it has neither model.safetensors nor model.safetensors.index.json; fetch the \
         safetensors files of the model"
    );
    let gpt2 = safetensors(&[Tensor::f32("transformer.h.0.attn.c_attn.weight", &[2], [1.0, 2.0])]);
    std::fs::write(path.join("model.safetensors"), gpt2).unwrap();
    assert!(message(path).contains("transformer.h.0.attn.c_attn.weight"), "{}", message(path));
}

#[test]
fn a_path_that_is_nothing_is_explained() {
    let message = |path: &str| match open_weights(path.as_ref(), &mut Collected::default()) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    };
    assert_eq!(
        message("some-owner/some-model-7B"),
        "some-owner/some-model-7B is not a model: there is no such directory or file; if it is the name of a model \
         on a hub, download it and give the path (for example: hf download some-owner/some-model-7B --local-dir \
         some-model-7B)"
    );
    assert!(message("./models/nothing").contains("give a Hugging Face model directory"));
    assert!(message("Cargo.toml").contains("it is a file that is not in GGUF format"));
}

#[test]
fn the_identity_follows_config_and_weights() {
    let mut tiny = Tiny::new("qwen2");
    let identity = |tiny: &Tiny| open(written(tiny).path()).unwrap().1.identity().unwrap();
    let first = identity(&tiny);
    assert!(first.starts_with("sha256:") && first.len() == 7 + 64);
    assert_eq!(first, identity(&tiny));
    tiny.tensor(names::FINAL_NORM).bytes[0] ^= 1;
    assert_ne!(first, identity(&tiny));
    assert_ne!(first, identity(&Tiny::new("qwen2").with("eos_token_id", json!(3))));
}

/// Reading gives pages back: of a file of 64 MB, read tensor by tensor, next to nothing stays resident.
#[cfg(target_os = "linux")]
#[test]
fn pages_that_were_read_are_given_back() {
    /// Resident pages of mapped files, in kB.
    fn resident() -> i64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssFile:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.safetensors");
    let count = 1 << 23;
    let halves = |name: &str| Tensor {
        name: name.into(),
        dtype: "BF16",
        shape: vec![count],
        bytes: vec![0x3F; 2 * count],
    };
    std::fs::write(&path, safetensors(&[halves("a"), halves("b"), halves("c"), halves("d")])).unwrap();
    let file = SafetensorsFile::open(&path).unwrap();
    let before = resident();
    for entry in file.tensors() {
        assert_eq!(file.read_f32(entry).unwrap().len(), count);
        assert!(matches!(file.read_table(entry).unwrap(), Table::Bf16(_)));
    }
    assert!(file.equal(&file.tensors()[0], &file, &file.tensors()[3]));
    // A quarter of the file is far above what other tests of this process map meanwhile.
    let grown = resident() - before;
    assert!(grown < 16 << 10, "{grown} kB stayed resident");
}
