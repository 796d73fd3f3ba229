//! Small GGUF files: right ones, and damaged ones.

use std::path::Path;

use cpu_ops::gguf::BlockType;
use proptest::prelude::*;

use super::super::source::{Table, TensorSource};
use super::super::testing::{Meta, Tensor, TinyGguf, bytes_from_hex, f32_from_hex, fixture};
use super::super::{Family, ModelShape, names, open, open_weights};
use super::read::read_header;
use super::*;
use crate::Result;
use crate::event::Collected;

fn written(tiny: &TinyGguf) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    tiny.write(file.path());
    file
}

fn open_gguf(tiny: &TinyGguf) -> Result<(ModelShape, GgufSource)> {
    GgufSource::open(written(tiny).path(), &mut Collected::default())
}

/// The message for a file, without its path.
fn message(tiny: &TinyGguf) -> String {
    let file = written(tiny);
    let message = match open(file.path(), &mut Collected::default()) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    };
    message.replace(&file.path().display().to_string(), "FILE")
}

fn problem(bytes: &[u8]) -> String {
    match read_header(Path::new("FILE"), bytes) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn shapes_and_tensors_of_the_three_architectures() {
    for (architecture, family) in
        [("llama", Family::Llama), ("qwen2", Family::Qwen2), ("qwen3", Family::Qwen3)]
    {
        for version in [2, 3] {
            let tiny = TinyGguf { version, ..TinyGguf::new(architecture) };
            let (shape, mut source) = open_gguf(&tiny).unwrap();
            assert_eq!(shape.family, family);
            assert_eq!((shape.vocab, shape.hidden, shape.layers, shape.intermediate), (16, 32, 2, 64));
            assert_eq!((shape.heads, shape.kv_heads, shape.head_dim), (4, 2, 8));
            assert_eq!((shape.rms_norm_eps, shape.max_positions, shape.tied), (1e-6, 64, false));
            assert_eq!((shape.qkv_bias, shape.qk_norm), (family == Family::Qwen2, family == Family::Qwen3));
            assert_eq!((shape.eos, shape.windows), (vec![6], vec![None; 2]));
            let expected = {
                let (shape, _) = open_gguf(&tiny).unwrap();
                names::expected(&shape)
            };
            assert_eq!(expected.len(), tiny.tensors.len());
            for tensor in expected {
                source.read_f32(&tensor.name, &tensor.shape).unwrap();
            }
            source.finish().unwrap();
        }
    }
}

/// The rows of q and k of the Llama architecture, and of no other, are put back into half-split order.
#[test]
fn rows_of_q_and_k_are_put_in_order_for_llama_only() {
    // The value of each element is its row as stored.
    let by_row = |name: &str, rows: usize| {
        Tensor::f32(name, &[rows, 32], (0..rows).flat_map(|row| std::iter::repeat_n(row as f32, 32)))
    };
    let rows = |architecture: &str, gguf: &str, hf: &str, rows: usize| -> Vec<usize> {
        let mut tiny = TinyGguf::new(architecture);
        *tiny.tensor(gguf) = by_row(gguf, rows);
        let (_, mut source) = open_gguf(&tiny).unwrap();
        let values = source.read_f32(hf, &[rows, 32]).unwrap();
        values.chunks(32).map(|row| row[0] as usize).collect()
    };
    // Heads of 8 rows: pairs (i, i + 4) are stored at 2i and 2i + 1.
    let head = |start: usize| [0, 2, 4, 6, 1, 3, 5, 7].map(|row| start + row);
    let permuted: Vec<usize> = [0, 8, 16, 24].into_iter().flat_map(head).collect();
    let (q, k) = ("model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight");
    assert_eq!(rows("llama", "blk.1.attn_q.weight", q, 32), permuted);
    assert_eq!(rows("llama", "blk.1.attn_k.weight", k, 16), permuted[..16]);
    let v = "model.layers.1.self_attn.v_proj.weight";
    assert_eq!(rows("llama", "blk.1.attn_v.weight", v, 16), (0..16).collect::<Vec<_>>());
    for architecture in ["qwen2", "qwen3"] {
        assert_eq!(rows(architecture, "blk.1.attn_q.weight", q, 32), (0..32).collect::<Vec<_>>());
        assert_eq!(rows(architecture, "blk.1.attn_k.weight", k, 16), (0..16).collect::<Vec<_>>());
    }
}

/// Blocks of each type inside of a file; that they expand right is also tested in cpu-ops.
#[test]
fn every_type_reads_as_the_reference() {
    let text = std::fs::read_to_string(fixture("gguf_blocks.json")).unwrap();
    let fixture: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (number, name) in [
        (1, "F16"),
        (30, "BF16"),
        (2, "Q4_0"),
        (3, "Q4_1"),
        (6, "Q5_0"),
        (7, "Q5_1"),
        (8, "Q8_0"),
        (12, "Q4_K"),
        (13, "Q5_K"),
        (14, "Q6_K"),
    ] {
        let case = &fixture["types"][name];
        let all = |key: &str| -> String {
            case[key].as_array().unwrap().iter().map(|part| part.as_str().unwrap()).collect()
        };
        let (blocks, values) = (bytes_from_hex(&all("blocks")), f32_from_hex(&all("values")));
        // [16, 32] takes 512 elements: the fixture's, over and over.
        let (bytes, expected): (Vec<u8>, Vec<f32>) = (
            blocks.iter().copied().cycle().take(blocks.len() * 512 / values.len()).collect(),
            values.iter().copied().cycle().take(512).collect(),
        );
        let mut tiny = TinyGguf::new("qwen2");
        let wide = name.ends_with("_K");
        // Rows of 256 for the K types: a hidden size of 32 is too narrow, so that the MLP is looked at there.
        if wide {
            tiny = tiny.with("qwen2.feed_forward_length", Meta::U32(256));
            for layer in 0..2 {
                for part in ["gate", "up"] {
                    let name = format!("blk.{layer}.ffn_{part}.weight");
                    *tiny.tensor(&name) = Tensor::f32(&name, &[256, 32], vec![0.5; 8192]);
                }
                let name = format!("blk.{layer}.ffn_down.weight");
                *tiny.tensor(&name) = Tensor::f32(&name, &[32, 256], vec![0.5; 8192]);
            }
        }
        let (gguf, hf, rows, columns) = if wide {
            ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight", 32, 256)
        } else {
            ("output.weight", "lm_head.weight", 16, 32)
        };
        let repeat = rows * columns / 512;
        let at = tiny.tensors.iter().position(|(_, tensor)| tensor.name == gguf).unwrap();
        tiny.tensors[at] = (
            number,
            Tensor { name: gguf.into(), dtype: "", shape: vec![rows, columns], bytes: bytes.repeat(repeat) },
        );
        let (_, mut source) = open_gguf(&tiny).unwrap();
        let read = source.read_f32(hf, &[rows, columns]).unwrap();
        assert_eq!(read, expected.repeat(repeat), "{name}");
        match (name, source.read_table(hf, &[rows, columns]).unwrap()) {
            ("F16", Table::F16(table)) => assert!(table.iter().zip(&expected).all(|(a, b)| a.to_f32() == *b)),
            ("BF16", Table::Bf16(table)) => {
                assert!(table.iter().zip(&expected).all(|(a, b)| a.to_f32() == *b))
            }
            (_, Table::F32(table)) => assert_eq!(table, read),
            (name, _) => panic!("{name} became another type"),
        }
    }
}

#[test]
fn rope_factors_divide_the_frequencies() {
    let mut tiny = TinyGguf::new("llama");
    let plain = open_gguf(&tiny).unwrap().0.rope.inv_freq;
    tiny.tensors.push((0, Tensor::f32("rope_freqs.weight", &[4], [1.0, 2.0, 8.0, 32.0])));
    let divided = open_gguf(&tiny).unwrap().0.rope.inv_freq;
    assert_eq!(divided, [plain[0], plain[1] / 2.0, plain[2] / 8.0, plain[3] / 32.0]);
    *tiny.tensor("rope_freqs.weight") = Tensor::f32("rope_freqs.weight", &[3], [1.0; 3]);
    assert_eq!(message(&tiny), "FILE: rope_freqs.weight is [3], expected [4] (half of the width of a head)");
    *tiny.tensor("rope_freqs.weight") = Tensor::f32("rope_freqs.weight", &[4], [1.0, 0.0, 1.0, 1.0]);
    assert!(message(&tiny).contains("rope_freqs.weight holds 0 at index 1"));
}

#[test]
fn rope_scaling_of_the_metadata_is_that_of_a_config() {
    let linear = TinyGguf::new("llama")
        .with("llama.rope.scaling.type", Meta::Text("linear".into()))
        .with("llama.rope.scaling.factor", Meta::F32(4.0));
    let plain = open_gguf(&TinyGguf::new("llama")).unwrap().0.rope.inv_freq;
    let quarter: Vec<f32> = plain.iter().map(|frequency| frequency / 4.0).collect();
    assert_eq!(open_gguf(&linear).unwrap().0.rope.inv_freq, quarter);
    let yarn = TinyGguf::new("qwen2")
        .with("qwen2.rope.scaling.type", Meta::Text("yarn".into()))
        .with("qwen2.rope.scaling.factor", Meta::F32(4.0))
        .with("qwen2.rope.scaling.original_context_length", Meta::U32(64));
    let shape = open_gguf(&yarn).unwrap().0;
    assert_eq!((shape.rope.attention_factor, shape.max_positions), (1.138_629_4, 256));
}

#[test]
fn what_changes_results_is_refused_by_name() {
    let refused = |key: &str, value: Meta| message(&TinyGguf::new("llama").with(key, value));
    assert_eq!(
        refused("general.architecture", Meta::Text("gemma2".into())),
        "FILE: general.architecture = \"gemma2\" is not supported; supported: llama, qwen2, qwen3"
    );
    for (key, value) in [
        ("llama.expert_count", Meta::U32(8)),
        ("llama.attention.sliding_window", Meta::U32(4096)),
        ("llama.attn_logit_softcapping", Meta::F32(50.0)),
        ("llama.rope.dimension_count", Meta::U32(4)),
        ("llama.attention.value_length", Meta::U32(4)),
        ("llama.attention.something_new", Meta::U32(1)),
        ("llama.rope.scaling.attn_factor", Meta::F32(1.5)),
        ("llama.rope.scaling.type", Meta::Text("longrope".into())),
        ("tokenizer.ggml.model", Meta::Text("llama".into())),
        ("tokenizer.ggml.pre", Meta::Text("deepseek-llm".into())),
    ] {
        let message = refused(key, value);
        assert!(
            message.starts_with(&format!("FILE: {key} = ")) && message.contains("is not supported"),
            "{message}"
        );
    }
    for (key, value) in [
        ("llama.expert_count", Meta::U32(0)),
        ("llama.rope.dimension_count", Meta::U32(8)),
        ("llama.vocab_size", Meta::U32(16)),
        ("llama.something_else", Meta::U32(1)),
        ("general.name", Meta::Text("tiny".into())),
    ] {
        open_gguf(&TinyGguf::new("llama").with(key, value)).unwrap();
    }
    assert_eq!(
        message(&TinyGguf::new("llama").without("llama.block_count")),
        "FILE: llama.block_count: is missing"
    );
    assert_eq!(
        refused("llama.block_count", Meta::Text("2".into())),
        "FILE: llama.block_count: expected a whole number, found the text \"2\""
    );
}

#[test]
fn tensors_that_do_not_belong_are_named() {
    let mut tiny = TinyGguf::new("llama");
    tiny.tensors.push((0, Tensor::f32("blk.0.ffn_gate_exps.weight", &[2], [1.0, 2.0])));
    assert!(
        message(&tiny).contains("holds 1 tensors") && message(&tiny).contains("blk.0.ffn_gate_exps.weight")
    );
    let mut tiny = TinyGguf::new("llama");
    tiny.tensors.retain(|(_, tensor)| tensor.name != "blk.1.ffn_up.weight");
    assert!(message(&tiny).contains("has no tensor model.layers.1.mlp.up_proj.weight"));
    let mut tiny = TinyGguf::new("llama");
    tiny.tensors.retain(|(_, tensor)| tensor.name != "output.weight");
    assert!(open_gguf(&tiny).unwrap().0.tied);
    let mut tiny = TinyGguf::new("llama");
    tiny.tensors.push(tiny.tensors[3].clone());
    assert!(message(&tiny).starts_with("duplicate tensor blk.0.attn_v.weight"), "{}", message(&tiny));
    let mut tiny = TinyGguf::new("llama");
    tiny.tensors[0].0 = 10;
    assert_eq!(
        message(&tiny),
        "FILE: token_embd.weight has type number 10 (Q2_K); supported: F32 F16 BF16 F64 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 \
         Q4_K Q5_K Q6_K"
    );
}

#[test]
fn a_value_that_is_not_finite_is_named() {
    let mut tiny = TinyGguf::new("llama");
    // Q8_0 with an infinite scale in the second block.
    let mut bytes = vec![0; 16 * 34];
    bytes[34..36].copy_from_slice(&[0x00, 0x7C]);
    bytes[36..68].fill(1);
    let at = tiny.tensors.iter().position(|(_, tensor)| tensor.name == "output.weight").unwrap();
    tiny.tensors[at] = (8, Tensor { name: "output.weight".into(), dtype: "", shape: vec![16, 32], bytes });
    let (_, mut source) = open_gguf(&tiny).unwrap();
    let message = source.read_f32("lm_head.weight", &[16, 32]).unwrap_err().to_string();
    assert!(message.contains("output.weight holds inf at index 32"), "{message}");
}

#[test]
fn the_tokenizer_of_the_metadata() {
    for architecture in ["llama", "qwen2"] {
        let file = written(&TinyGguf::new(architecture));
        let opened = open(file.path(), &mut Collected::default()).unwrap();
        let tokenizer = &opened.tokenizer;
        // Unused tokens are never matched; added ones are, and are not special.
        assert_eq!(tokenizer.encode("ab<|end|><tool>abc").unwrap(), [4, 6, 7, 5]);
        assert_eq!(tokenizer.special_ids(), [6]);
        assert_eq!((tokenizer.largest_id(), tokenizer.id("[PAD8]")), (7, None));
        assert_eq!((tokenizer.eos_token(), tokenizer.bos_token()), (Some("<|end|>"), None));
        assert_eq!(tokenizer.chat_template(), Some("{{ messages }}"));
        assert_eq!(opened.name, file.path().file_stem().unwrap().to_str().unwrap());
        assert!(opened.identity.starts_with("sha256:"));
    }
}

/// llama-bpe takes a word that is a token whole although no merges make it; the others do not.
#[test]
fn ignore_merges_belongs_to_llama_bpe() {
    let ids = |pre: &str| {
        let tiny = TinyGguf::new("llama")
            .with("tokenizer.ggml.pre", Meta::Text(pre.into()))
            .with("tokenizer.ggml.merges", Meta::Texts(vec!["a b".into()]));
        open(written(&tiny).path(), &mut Collected::default()).unwrap().tokenizer.encode("abc").unwrap()
    };
    assert_eq!(ids("llama-bpe"), [5]);
    assert_eq!(ids("smollm"), [4, 2]);
    assert_eq!(ids("qwen2"), [4, 2]);
}

/// Text is cut as by the Python package, whose regex engine is another one.
#[test]
fn pre_tokenizers_cut_as_the_reference() {
    use tokenizers::{
        NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    };

    let text = std::fs::read_to_string(fixture("pre_tokenizers.json")).unwrap();
    let cases: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut compared = 0;
    for pre in ["smollm", "qwen2", "llama-bpe"] {
        let tiny = TinyGguf::new("llama").with("tokenizer.ggml.pre", Meta::Text(pre.into()));
        let (_, source) = open_gguf(&tiny).unwrap();
        let json = crate::tokenizer::gguf::tokenizer_json(source.metadata()).unwrap();
        let tokenizer: tokenizers::Tokenizer = serde_json::from_value(json).unwrap();
        for case in cases["cases"].as_array().unwrap().iter().filter(|case| case["pre"] == pre) {
            let mut text = NormalizedString::from(case["text"].as_str().unwrap());
            if let Some(normalizer) = tokenizer.get_normalizer() {
                normalizer.normalize(&mut text).unwrap();
            }
            let mut pieces = PreTokenizedString::from(text);
            tokenizer.get_pre_tokenizer().unwrap().pre_tokenize(&mut pieces).unwrap();
            let ours: Vec<&str> = pieces
                .get_splits(OffsetReferential::Original, OffsetType::Byte)
                .into_iter()
                .map(|(piece, ..)| piece)
                .collect();
            let theirs: Vec<&str> =
                case["pieces"].as_array().unwrap().iter().map(|piece| piece.as_str().unwrap()).collect();
            assert_eq!(ours, theirs, "{pre}: {}", case["text"]);
            compared += 1;
        }
    }
    assert!(compared >= 75, "{compared}");
}

#[test]
fn bad_tokenizers_are_named() {
    let tiny = || TinyGguf::new("llama");
    let of = message;
    assert_eq!(
        of(&tiny().with("tokenizer.ggml.token_type", Meta::I32s(vec![1, 1, 1, 6, 1, 1, 3, 4, 5]))),
        "FILE: tokenizer.ggml.token_type: token 3 (\"Ġ\") is of kind 6; supported: 1, 3, 4, 5"
    );
    assert!(
        of(&tiny().with("tokenizer.ggml.token_type", Meta::I32s(vec![1])))
            .contains("has 1 entries for 9 tokens")
    );
    assert!(
        of(&tiny().with("tokenizer.ggml.eos_token_id", Meta::U32(99)))
            .contains("99 is not among the 9 tokens")
    );
    assert!(
        of(&tiny().with("tokenizer.ggml.merges", Meta::Texts(vec!["ab".into()])))
            .contains("\"ab\" are not two tokens")
    );
    assert!(
        of(&tiny().with("tokenizer.ggml.merges", Meta::Texts(vec!["abc abc".into()])))
            .contains("does not merge two tokens into a third")
    );
    assert!(of(&tiny().without("tokenizer.ggml.pre")).contains("tokenizer.ggml.pre: is missing"));
    assert!(of(&tiny().without("tokenizer.ggml.model")).contains("the file has no tokenizer"));
    // Weights alone can be used without one.
    open_weights(written(&tiny().without("tokenizer.ggml.model")).path(), &mut Collected::default()).unwrap();
}

#[test]
fn headers_that_are_no_headers() {
    let whole = TinyGguf::new("llama").bytes();
    let patched = |at: usize, bytes: &[u8]| {
        let mut file = whole.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    assert!(
        problem(b"GG")
            .contains("the magic number should be 4 bytes at byte 0, but the file ends after 2 more")
    );
    assert!(problem(&patched(0, b"GGML")).contains("not with \"GGUF\""));
    assert!(problem(&patched(4, &1u32.to_le_bytes())).contains("version 1 is not supported (2 and 3 are)"));
    assert!(problem(&patched(4, &3u32.to_be_bytes())).contains("it is big-endian"));
    let huge = u64::MAX.to_le_bytes();
    assert!(problem(&patched(8, &huge)).contains("18446744073709551615 tensors are more than a model has"));
    assert!(problem(&patched(16, &huge)).contains("18446744073709551615 metadata values are more"));
    // The length of the first key.
    assert!(
        problem(&patched(24, &huge))
            .contains("metadata value 1 of 16: a key should be 18446744073709551615 bytes at byte 32")
    );
    let more = |count: usize| [&whole[..], &vec![0; count]].concat();
    assert!(problem(&more(32)).contains("32 bytes are left over after the last tensor"));
    read_header(Path::new("FILE"), &more(31)).unwrap();
    assert!(problem(&whole[..whole.len() - 1]).contains("output.weight ends at byte"));
    assert!(
        message(&TinyGguf::new("llama").with("general.alignment", Meta::U32(33)))
            .contains("general.alignment: 33 is no power of two")
    );
}

/// A list whose length is a lie ends with the file, and allocates no more than that.
#[test]
fn a_huge_list_does_not_allocate() {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    file.extend(1u64.to_le_bytes());
    file.extend(1u64.to_le_bytes());
    file.extend(b"k");
    file.extend(9u32.to_le_bytes());
    file.extend(0u32.to_le_bytes());
    file.extend((1u64 << 60).to_le_bytes());
    assert!(problem(&file).contains("metadata k: a value should be 1 bytes"), "{}", problem(&file));
}

#[test]
fn offsets_are_checked() {
    // The last bytes of the table are the offset of the last tensor.
    let tiny = TinyGguf::new("llama");
    let whole = tiny.bytes();
    let (_, last) = tiny.tensors.last().unwrap();
    let name = last.name.as_bytes();
    let at = whole.windows(name.len()).rposition(|window| window == name).unwrap() + name.len() + 4 + 16 + 4;
    let patched = |offset: u64| {
        let mut file = whole.clone();
        file[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        problem(&file)
    };
    let right = u64::from_le_bytes(whole[at..at + 8].try_into().unwrap());
    assert!(patched(right + 1).contains("ends at byte") || patched(right + 1).contains("no multiple of 32"));
    assert!(patched(right - 1).contains("no multiple of 32"), "{}", patched(right - 1));
    assert!(patched(right - 32).contains("overlap"), "{}", patched(right - 32));
    assert!(patched(u64::MAX - 31).contains("overflows"), "{}", patched(u64::MAX - 31));
    assert!(patched(1 << 40).contains("but the file is"), "{}", patched(1 << 40));
    // A row that is no whole number of blocks.
    let mut tiny = TinyGguf::new("llama");
    let at = tiny.tensors.len() - 2;
    tiny.tensors[at].0 = 12;
    assert!(
        message(&tiny).contains("does not consist of rows of whole blocks (256 elements)"),
        "{}",
        message(&tiny)
    );
    assert_eq!(Kind::Blocks(BlockType::Q4K).block(), (256, 144));
}

/// Everything that a header says, read and used: no input may panic.
fn use_file(bytes: &[u8]) -> bool {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    match open(file.path(), &mut Collected::default()) {
        Err(_) => false,
        Ok(mut opened) => {
            for tensor in names::expected(&opened.shape) {
                // Changed weights may be anything.
                let _ = opened.source.read_f32(&tensor.name, &tensor.shape);
            }
            opened.tokenizer.encode("abc <|end|>").is_ok()
        }
    }
}

#[test]
fn a_truncated_file_is_always_refused() {
    let whole = TinyGguf::new("llama").bytes();
    assert!(use_file(&whole));
    let header = whole.len().min(3000);
    for end in (0..header).chain((header..whole.len()).step_by(97)) {
        assert!(!use_file(&whole[..end]), "accepted with {end} of {} bytes", whole.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn changed_headers_never_panic(changes in prop::collection::vec((0usize..3000, any::<u8>()), 1..4)) {
        let mut file = TinyGguf::new("qwen3").bytes();
        for (at, value) in changes {
            file[at] = value;
        }
        use_file(&file);
    }
}
