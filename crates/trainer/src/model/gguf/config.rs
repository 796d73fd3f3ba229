//! From GGUF metadata to the `config.json` that a Hugging Face directory of the same model would have. The shape is
//! made from that (one place knows what a config means), and exporting writes it.

use serde_json::{Map, Value as Json, json};

use super::read::{Metadata, TensorInfo, Value};
use crate::Result;

/// Keys below `<architecture>.attention.` and `<architecture>.rope.` that are understood. An unknown one there
/// would change results.
const KNOWN: [&str; 14] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
    "attention.key_length",
    "attention.value_length",
    "attention.causal",
    "attention.sliding_window",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
];

/// The config of a model in a GGUF file.
///
/// # Errors
/// A key is missing or has the wrong type, or something is not supported.
pub(crate) fn config(metadata: &Metadata, tensors: &[TensorInfo]) -> Result<Json> {
    let architecture = metadata
        .text("general.architecture")?
        .ok_or_else(|| metadata.problem("general.architecture", "is missing"))?
        .to_owned();
    let class = match architecture.as_str() {
        "llama" => "LlamaForCausalLM",
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        other => {
            let remedy = "supported: llama, qwen2, qwen3";
            return Err(metadata.unsupported("general.architecture", &format!("{other:?}"), remedy));
        }
    };
    let key = |name: &str| format!("{architecture}.{name}");
    refuse_unknown_parts(metadata, &architecture)?;

    let has = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
    let heads = metadata.required_count(&key("attention.head_count"))?;
    let kv_heads = metadata.count(&key("attention.head_count_kv"))?.unwrap_or(heads);
    let hidden = metadata.required_count(&key("embedding_length"))?;
    let head_dim = match metadata.count(&key("attention.key_length"))? {
        Some(length) => length,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let problem = format!("{hidden} is no multiple of attention.head_count = {heads}");
            return Err(metadata.problem(&key("embedding_length"), &problem));
        }
    };
    // Parts of a head that are not rotated, or values of another width than keys.
    for name in ["attention.value_length", "rope.dimension_count"] {
        if let Some(length) = metadata.count(&key(name))?.filter(|&length| length != head_dim) {
            let remedy = format!("only the width of a head, {head_dim}, is");
            return Err(metadata.unsupported(&key(name), &length.to_string(), &remedy));
        }
    }
    let eps_key = key("attention.layer_norm_rms_epsilon");
    let eps = metadata.number(&eps_key)?.ok_or_else(|| metadata.problem(&eps_key, "is missing"))?;
    let vocab = match metadata.count(&key("vocab_size"))? {
        Some(vocab) => Some(vocab),
        None => tensors
            .iter()
            .find(|tensor| tensor.name == "token_embd.weight")
            .map(|tensor| tensor.shape[0] as u64),
    };
    let bos = metadata.token_id("tokenizer.ggml.bos_token_id")?;
    let pad = metadata.token_id("tokenizer.ggml.padding_token_id")?;

    let mut config = Map::new();
    let mut set = |name: &str, value: Json| config.insert(name.to_owned(), value);
    set("architectures", json!([class]));
    if architecture != "qwen2" {
        set("attention_bias", has("blk.0.attn_q.bias").into());
    }
    set("attention_dropout", 0.0.into());
    set("bos_token_id", bos.into());
    set("eos_token_id", eos(metadata)?);
    set("head_dim", head_dim.into());
    set("hidden_act", "silu".into());
    set("hidden_size", hidden.into());
    // Used to initialise a model from nothing, which nobody does with one that has weights.
    set("initializer_range", (1.0 / (hidden as f64).sqrt()).into());
    set("intermediate_size", metadata.required_count(&key("feed_forward_length"))?.into());
    set("max_position_embeddings", metadata.required_count(&key("context_length"))?.into());
    if architecture == "llama" {
        set("mlp_bias", has("blk.0.ffn_gate.bias").into());
    }
    set("model_type", architecture.as_str().into());
    set("num_attention_heads", heads.into());
    set("num_hidden_layers", metadata.required_count(&key("block_count"))?.into());
    set("num_key_value_heads", kv_heads.into());
    set("pad_token_id", pad.into());
    set("rms_norm_eps", six_digits(eps).into());
    set("rope_scaling", rope_scaling(metadata, &architecture)?);
    // 10000 is what ggml assumes where the key is absent.
    set("rope_theta", six_digits(metadata.number(&key("rope.freq_base"))?.unwrap_or(10_000.0)).into());
    set("tie_word_embeddings", (!has("output.weight")).into());
    set("torch_dtype", "bfloat16".into());
    set("use_cache", true.into());
    set("vocab_size", vocab.into());
    Ok(Json::Object(config))
}

/// A number stored as f32, rounded to the six digits that were meant: 1e-5 and not 9.999999747378752e-6.
fn six_digits(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}

fn refuse_unknown_parts(metadata: &Metadata, architecture: &str) -> Result<()> {
    for key in metadata.keys() {
        let Some(name) = key.strip_prefix(architecture).and_then(|rest| rest.strip_prefix('.')) else {
            continue;
        };
        let value = metadata.get(key);
        let unused = match value {
            Some(Value::Unsigned(number)) => *number == 0,
            Some(Value::Signed(number)) => *number == 0,
            Some(Value::Float(number)) => *number == 0.0,
            Some(Value::Flag(flag)) => !flag,
            _ => false,
        };
        let refused = match name {
            "attention.causal" => unused,
            "attention.sliding_window"
            | "logit_scale"
            | "attn_logit_softcapping"
            | "final_logit_softcapping"
            | "embedding_scale"
            | "residual_scale" => !unused,
            _ if name.starts_with("attention.") || name.starts_with("rope.") => !KNOWN.contains(&name),
            _ => name.starts_with("expert") && !unused,
        };
        if refused {
            let shown = match value {
                Some(Value::Unsigned(number)) => number.to_string(),
                Some(Value::Signed(number)) => number.to_string(),
                Some(Value::Float(number)) => number.to_string(),
                Some(Value::Flag(flag)) => flag.to_string(),
                Some(Value::Text(text)) => format!("{text:?}"),
                Some(Value::List(_)) | None => "a list".to_owned(),
            };
            return Err(metadata.unsupported(key, &shown, "a model without it is"));
        }
    }
    Ok(())
}

/// The end of a text, and the end of a turn where that is another token.
fn eos(metadata: &Metadata) -> Result<Json> {
    let eos = metadata.token_id("tokenizer.ggml.eos_token_id")?;
    let turn = metadata.token_id("tokenizer.ggml.eot_token_id")?;
    Ok(match (eos, turn) {
        (Some(eos), Some(turn)) if eos != turn => json!([eos, turn]),
        (eos, turn) => eos.or(turn).into(),
    })
}

fn rope_scaling(metadata: &Metadata, architecture: &str) -> Result<Json> {
    let key = |name: &str| format!("{architecture}.rope.{name}");
    let factor = match metadata.number(&key("scaling.factor"))? {
        Some(factor) => Some(factor),
        None => metadata.number(&key("scale_linear"))?,
    };
    let kind = match metadata.text(&key("scaling.type"))? {
        Some(kind) => kind,
        None if factor.is_some_and(|factor| factor != 0.0 && factor != 1.0) => "linear",
        None => "none",
    };
    let factor =
        || factor.map(six_digits).ok_or_else(|| metadata.problem(&key("scaling.factor"), "is missing"));
    Ok(match kind {
        "none" => Json::Null,
        "linear" => json!({ "rope_type": "linear", "factor": factor()? }),
        "yarn" => {
            let original = metadata.required_count(&key("scaling.original_context_length"))?;
            json!({ "rope_type": "yarn", "factor": factor()?, "original_max_position_embeddings": original })
        }
        other => {
            let remedy = "supported: none, linear, yarn, and rope_freqs.weight";
            return Err(metadata.unsupported(&key("scaling.type"), &format!("{other:?}"), remedy));
        }
    })
}
