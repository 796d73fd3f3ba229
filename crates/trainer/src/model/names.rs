//! Which tensors a model of a given shape has, by their Hugging Face names, and how GGUF names map to them. A new
//! family that differs by biases or norms is added here and in `config.rs`.

use std::collections::BTreeMap;
use std::path::Path;

use super::ModelError;
use super::error::some_of;
use super::shape::{ModelShape, Projection};
use crate::Result;

/// The token embedding, `[vocab, hidden]`.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// The norm after the last block, `[hidden]`.
pub const FINAL_NORM: &str = "model.norm.weight";
/// The head, `[vocab, hidden]`; absent where it is tied to the embedding.
pub const HEAD: &str = "lm_head.weight";

/// Name of the norm before attention in a block, `[hidden]`.
pub fn attention_norm(layer: usize) -> String {
    format!("model.layers.{layer}.input_layernorm.weight")
}

/// Name of the norm before the MLP in a block, `[hidden]`.
pub fn mlp_norm(layer: usize) -> String {
    format!("model.layers.{layer}.post_attention_layernorm.weight")
}

/// Name of Qwen3's norm of each query head, `[head_dim]`.
pub fn q_norm(layer: usize) -> String {
    format!("model.layers.{layer}.self_attn.q_norm.weight")
}

/// Name of Qwen3's norm of each key head, `[head_dim]`.
pub fn k_norm(layer: usize) -> String {
    format!("model.layers.{layer}.self_attn.k_norm.weight")
}

/// Name of a projection's weight, of the shape of [`Projection::dims`].
pub fn weight(projection: Projection, layer: usize) -> String {
    format!("{}.weight", projection.module(layer))
}

/// Name of a projection's bias, `[out]`.
pub fn bias(projection: Projection, layer: usize) -> String {
    format!("{}.bias", projection.module(layer))
}

/// One tensor that a model has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expected {
    pub name: String,
    pub shape: Vec<usize>,
    /// The config's fields that the shape follows from.
    pub reason: &'static str,
}

/// Every tensor of a model of this shape.
pub(crate) fn expected(shape: &ModelShape) -> Vec<Expected> {
    let mut all = Vec::new();
    let mut add = |name: String, dims: &[usize], reason| {
        all.push(Expected { name, shape: dims.to_vec(), reason });
    };
    add(EMBEDDING.into(), &[shape.vocab, shape.hidden], "vocab_size, hidden_size");
    for layer in 0..shape.layers {
        for projection in Projection::ALL {
            let (rows, columns) = projection.dims(shape);
            let reason = match projection {
                Projection::Q => "num_attention_heads * head_dim, hidden_size",
                Projection::K | Projection::V => "num_key_value_heads * head_dim, hidden_size",
                Projection::O => "hidden_size, num_attention_heads * head_dim",
                Projection::Gate | Projection::Up => "intermediate_size, hidden_size",
                Projection::Down => "hidden_size, intermediate_size",
            };
            add(weight(projection, layer), &[rows, columns], reason);
            if projection.has_bias(shape) {
                add(bias(projection, layer), &[rows], "rows of the weight, and this model has biases");
            }
        }
        add(attention_norm(layer), &[shape.hidden], "hidden_size");
        add(mlp_norm(layer), &[shape.hidden], "hidden_size");
        if shape.qk_norm {
            add(q_norm(layer), &[shape.head_dim], "head_dim");
            add(k_norm(layer), &[shape.head_dim], "head_dim");
        }
    }
    add(FINAL_NORM.into(), &[shape.hidden], "hidden_size");
    if !shape.tied {
        add(
            HEAD.into(),
            &[shape.vocab, shape.hidden],
            "vocab_size, hidden_size; tie_word_embeddings is not true",
        );
    }
    all
}

/// Compares the tensors of a model's files with those that its shape asks for, before anything is read. A head
/// beside a tied embedding is left to the caller, which compares their values.
///
/// # Errors
/// A tensor is missing, has another shape, or is not one that the model uses.
pub(crate) fn check(path: &Path, shape: &ModelShape, found: &BTreeMap<String, Vec<usize>>) -> Result<()> {
    let expected = expected(shape);
    // What does not belong is looked for first: with GPT-2's names in a file, everything else is missing too.
    let mut left: BTreeMap<&str, &[usize]> =
        found.iter().map(|(name, dims)| (name.as_str(), &dims[..])).collect();
    let missing =
        expected.iter().filter(|tensor| left.remove(tensor.name.as_str()).is_none()).collect::<Vec<_>>();
    let unused: Vec<String> = left
        .into_keys()
        .filter(|name| !(ignorable(name) || shape.tied && *name == HEAD))
        .map(str::to_owned)
        .collect();
    if !unused.is_empty() {
        return Err(unused_error(path, &unused));
    }
    if let Some(tensor) = missing.first() {
        let reason = match missing.len() {
            1 => format!("a model of its config has, with shape {:?} ({})", tensor.shape, tensor.reason),
            count => format!("a model of its config has ({}), nor {} others", tensor.reason, count - 1),
        };
        return Err(
            ModelError::MissingTensor { path: path.into(), tensor: tensor.name.clone(), reason }.into()
        );
    }
    for tensor in &expected {
        if let Some(dims) = found.get(&tensor.name).filter(|dims| **dims != tensor.shape) {
            return Err(wrong_shape(path, tensor, dims));
        }
    }
    if shape.tied
        && let (Some(head), Some(embedding)) = (found.get(HEAD), found.get(EMBEDDING))
        && head != embedding
    {
        let reason = "the shape of model.embed_tokens.weight, to which tie_word_embeddings ties it";
        let tensor = Expected { name: HEAD.into(), shape: embedding.clone(), reason };
        return Err(wrong_shape(path, &tensor, head));
    }
    Ok(())
}

/// The error about tensors that nothing uses.
pub(crate) fn unused_error(path: &Path, unused: &[String]) -> crate::Error {
    ModelError::UnusedTensors { path: path.into(), count: unused.len(), names: some_of(unused) }.into()
}

fn wrong_shape(path: &Path, tensor: &Expected, found: &[usize]) -> crate::Error {
    ModelError::WrongShape {
        path: path.into(),
        tensor: tensor.name.clone(),
        expected: tensor.shape.clone(),
        found: found.to_vec(),
        reason: tensor.reason.to_owned(),
    }
    .into()
}

/// Whether a tensor is a buffer that old checkpoints carry and that follows from the config.
pub(crate) fn ignorable(name: &str) -> bool {
    name.starts_with("model.") && name.ends_with(".rotary_emb.inv_freq")
        || name == "model.rotary_emb.inv_freq"
}

/// The Hugging Face name of a tensor in a GGUF file; `None` if it has none.
pub(crate) fn from_gguf(name: &str) -> Option<String> {
    match name {
        "token_embd.weight" => return Some(EMBEDDING.to_owned()),
        "output_norm.weight" => return Some(FINAL_NORM.to_owned()),
        "output.weight" => return Some(HEAD.to_owned()),
        _ => {}
    }
    let mut parts = name.split('.');
    let (Some("blk"), Some(layer), Some(part), Some(leaf), None) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    // As written by number formatting: no sign, no leading zeros, so that two names are never one.
    let layer = layer.parse::<usize>().ok().filter(|number| number.to_string() == layer)?;
    let projection = match part {
        "attn_q" => Projection::Q,
        "attn_k" => Projection::K,
        "attn_v" => Projection::V,
        "attn_output" => Projection::O,
        "ffn_gate" => Projection::Gate,
        "ffn_up" => Projection::Up,
        "ffn_down" => Projection::Down,
        _ => {
            let name = match part {
                "attn_norm" => attention_norm(layer),
                "ffn_norm" => mlp_norm(layer),
                "attn_q_norm" => q_norm(layer),
                "attn_k_norm" => k_norm(layer),
                _ => return None,
            };
            return (leaf == "weight").then_some(name);
        }
    };
    match leaf {
        "weight" => Some(weight(projection, layer)),
        "bias" => Some(bias(projection, layer)),
        _ => None,
    }
}
