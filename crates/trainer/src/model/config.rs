//! From `config.json` to a [`ModelShape`]. Defaults are those of transformers, family by family; a default that
//! changes results is an event. What a config asks for and this program does not do is refused by name, because a
//! model that runs with other numbers than it was made for looks fine and learns badly.

use std::path::Path;

use serde_json::Value;

use super::fields::Fields;
use super::rope::{Scaling, Yarn};
use super::shape::{Family, ModelShape, Rope};
use crate::Result;
use crate::event::{Event, EventSink};

/// What messages list as supported families.
pub(crate) const FAMILIES: &str = "supported: llama, mistral, qwen2, qwen3";
/// More blocks than any model has: names are made for each, so that a broken number must not be believed.
const MAX_LAYERS: usize = 10_000;
const DEFAULT_THETA: f64 = 10_000.0;
/// Window of Mistral where the config does not mention one.
const MISTRAL_WINDOW: usize = 4096;

impl ModelShape {
    /// Reads the `config.json` at `path`, whose content is `config`, and the `generation_config.json` beside it,
    /// if there is one, which has the last word on the ids that end a generation.
    ///
    /// # Errors
    /// A field is missing or has the wrong type, fields contradict each other, or something is not supported.
    ///
    /// # Example
    /// ```
    /// use trainer::{event::Collected, model::ModelShape};
    ///
    /// let config = serde_json::json!({
    ///     "model_type": "llama", "vocab_size": 16, "hidden_size": 40, "intermediate_size": 64,
    ///     "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    ///     "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    /// });
    /// let mut events = Collected::default();
    /// let shape = ModelShape::from_config("config.json".as_ref(), &config, None, &mut events)?;
    /// assert_eq!((shape.head_dim, shape.rope.inv_freq.len()), (16, 8));
    /// # Ok::<(), trainer::Error>(())
    /// ```
    pub fn from_config(
        path: &Path,
        config: &Value,
        generation: Option<(&Path, &Value)>,
        events: &mut dyn EventSink,
    ) -> Result<Self> {
        let fields = Fields::new(path, config)?;
        let family = family(&fields)?;
        refuse_unknown_parts(&fields)?;

        let hidden = fields.required_size("hidden_size")?;
        let layers = match fields.required_size("num_hidden_layers")? {
            layers if layers <= MAX_LAYERS => layers,
            layers => {
                return Err(fields.problem("num_hidden_layers", &format!("{layers} (limit {MAX_LAYERS})")));
            }
        };
        let heads = fields.required_size("num_attention_heads")?;
        let kv_heads = kv_heads(&fields, family, heads)?;
        let head_dim = head_dim(&fields, family, hidden, heads, events)?;
        let positions = match fields.size("max_position_embeddings")? {
            Some(positions) => positions,
            None => {
                let positions = match family {
                    Family::Llama => 2048,
                    Family::Mistral => 131_072,
                    Family::Qwen2 | Family::Qwen3 => 32_768,
                };
                assume(events, &fields, "max_position_embeddings", positions);
                positions
            }
        };
        let rms_norm_eps = match fields.positive("rms_norm_eps")? {
            Some(eps) => eps,
            None => {
                assume(events, &fields, "rms_norm_eps", 1e-6);
                1e-6
            }
        };
        let (rope, max_positions) = rope(&fields, head_dim, positions, events)?;
        let attention_bias = fields.flag("attention_bias")?.unwrap_or(false);
        Ok(Self {
            family,
            vocab: fields.required_size("vocab_size")?,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            intermediate: fields.required_size("intermediate_size")?,
            rms_norm_eps: rms_norm_eps as f32,
            qkv_bias: match family {
                Family::Qwen2 => true,
                Family::Llama | Family::Qwen3 => attention_bias,
                Family::Mistral => false,
            },
            o_bias: matches!(family, Family::Llama | Family::Qwen3) && attention_bias,
            mlp_bias: family == Family::Llama && fields.flag("mlp_bias")?.unwrap_or(false),
            qk_norm: family == Family::Qwen3,
            // All four families have separate heads unless the config ties them.
            tied: fields.flag("tie_word_embeddings")?.unwrap_or(false),
            rope,
            max_positions,
            windows: windows(&fields, family, layers, events)?,
            eos: eos(&fields, family, generation)?,
        })
    }
}

fn assume(events: &mut dyn EventSink, fields: &Fields<'_>, key: &str, value: impl std::fmt::Display) {
    events.emit(Event::Assumed {
        what: format!(
            "{} does not state {key}: {value} assumed, the family's default",
            fields.path().display()
        ),
    });
}

fn family(fields: &Fields<'_>) -> Result<Family> {
    // Very old configs have no model_type; the class name says the same.
    let (key, value) = match (fields.present("model_type"), fields.present("architectures")) {
        (Some(value), _) => ("model_type", value),
        (None, Some(value)) => ("architectures", value),
        (None, None) => {
            return Err(fields.problem("model_type", &format!("is missing, as is architectures; {FAMILIES}")));
        }
    };
    let name = match value {
        Value::Array(classes) if classes.len() == 1 => classes[0].as_str(),
        other => other.as_str(),
    };
    match name {
        Some("llama" | "LlamaForCausalLM") => Ok(Family::Llama),
        Some("mistral" | "MistralForCausalLM") => Ok(Family::Mistral),
        Some("qwen2" | "Qwen2ForCausalLM") => Ok(Family::Qwen2),
        Some("qwen3" | "Qwen3ForCausalLM") => Ok(Family::Qwen3),
        _ => Err(fields.unsupported(key, value, FAMILIES)),
    }
}

/// Refuses, by name, what changes a model's results and is not implemented.
fn refuse_unknown_parts(fields: &Fields<'_>) -> Result<()> {
    match fields.present("hidden_act") {
        None => {}
        Some(Value::String(name)) if name == "silu" || name == "swish" => {}
        Some(other) => return Err(fields.unsupported("hidden_act", other, "supported: silu")),
    }
    if let Some(value) = fields.present("quantization_config") {
        let method = value.get("quant_method").unwrap_or(value);
        return Err(fields.unsupported(
            "quantization_config.quant_method",
            method,
            "use the 16-bit checkpoint that it was made from: weights are quantised here",
        ));
    }
    // Each with the value that means "not used".
    let neutral: [(&str, f64); 13] = [
        ("attn_logit_softcapping", 0.0),
        ("final_logit_softcapping", 0.0),
        ("logit_softcapping", 0.0),
        ("num_experts", 0.0),
        ("num_local_experts", 0.0),
        ("n_routed_experts", 0.0),
        ("partial_rotary_factor", 1.0),
        ("rotary_pct", 1.0),
        ("embedding_multiplier", 1.0),
        ("residual_multiplier", 1.0),
        ("logits_scaling", 1.0),
        ("attention_dropout", 0.0),
        ("logit_scale", 1.0),
    ];
    for (key, unused) in neutral {
        if let Some(value) = fields.present(key)
            && value.as_f64() != Some(unused)
        {
            return Err(fields.unsupported(key, value, &format!("only {unused} is (or leaving it out)")));
        }
    }
    for key in ["attention_multiplier", "query_pre_attn_scalar", "no_rope_layers", "kv_lora_rank"] {
        if let Some(value) = fields.present(key) {
            return Err(fields.unsupported(key, value, "no supported family has it"));
        }
    }
    Ok(())
}

fn kv_heads(fields: &Fields<'_>, family: Family, heads: usize) -> Result<usize> {
    let key = "num_key_value_heads";
    let kv_heads = match (fields.size(key)?, fields.get(key).is_some() || family == Family::Llama) {
        (Some(kv_heads), _) => kv_heads,
        (None, true) => heads,
        // transformers' default is that of one model size, a trap for every other.
        (None, false) => return Err(fields.problem(key, "is missing")),
    };
    if !heads.is_multiple_of(kv_heads) {
        return Err(fields.problem(key, &format!("{kv_heads} does not divide num_attention_heads = {heads}")));
    }
    Ok(kv_heads)
}

fn head_dim(
    fields: &Fields<'_>,
    family: Family,
    hidden: usize,
    heads: usize,
    events: &mut dyn EventSink,
) -> Result<usize> {
    let head_dim = match fields.size("head_dim")? {
        Some(head_dim) => head_dim,
        None if family == Family::Qwen3 => {
            if hidden != 128 * heads {
                assume(events, fields, "head_dim", 128);
            }
            128
        }
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            return Err(fields.problem(
                "hidden_size",
                &format!(
                    "{hidden} is no multiple of num_attention_heads = {heads}, and head_dim is not given"
                ),
            ));
        }
    };
    if head_dim % 2 != 0 {
        return Err(fields.problem("head_dim", &format!("{head_dim} is odd; rotary embedding needs pairs")));
    }
    Ok(head_dim)
}

/// For each block, how many positions a token sees.
fn windows(
    fields: &Fields<'_>,
    family: Family,
    layers: usize,
    events: &mut dyn EventSink,
) -> Result<Vec<Option<usize>>> {
    let window = fields.size("sliding_window")?;
    let windows = match family {
        Family::Llama => vec![None; layers],
        Family::Mistral if fields.get("sliding_window").is_none() => {
            assume(events, fields, "sliding_window", MISTRAL_WINDOW);
            vec![Some(MISTRAL_WINDOW); layers]
        }
        Family::Mistral => vec![window; layers],
        Family::Qwen2 | Family::Qwen3 => {
            let window = match fields.flag("use_sliding_window")?.unwrap_or(false) {
                false => None,
                true if fields.get("sliding_window").is_none() => {
                    assume(events, fields, "sliding_window", 4096);
                    Some(4096)
                }
                true => window,
            };
            let first = match fields.present("max_window_layers") {
                None => 28,
                Some(value) => {
                    value.as_u64().and_then(|first| usize::try_from(first).ok()).ok_or_else(|| {
                        fields.problem(
                            "max_window_layers",
                            &format!("expected a number of layers, found {value}"),
                        )
                    })?
                }
            };
            // layer_types, written by newer versions, says the same layer by layer and goes first.
            let sliding: Vec<bool> = match layer_types(fields, layers)? {
                Some(types) => types,
                None => (0..layers).map(|layer| window.is_some() && layer >= first).collect(),
            };
            if window.is_none() && sliding.contains(&true) {
                return Err(fields.problem(
                    "layer_types",
                    "has \"sliding_attention\", but sliding_window is not set or use_sliding_window is not true",
                ));
            }
            return Ok(sliding.into_iter().map(|sliding| window.filter(|_| sliding)).collect());
        }
    };
    if let Some(types) = layer_types(fields, layers)?
        && types.iter().zip(&windows).any(|(&sliding, window)| sliding != window.is_some())
    {
        let value = fields.get("layer_types").unwrap_or(&Value::Null);
        return Err(fields.unsupported("layer_types", value, "in this family all layers attend alike"));
    }
    Ok(windows)
}

/// `layer_types`: whether each layer attends through the window.
fn layer_types(fields: &Fields<'_>, layers: usize) -> Result<Option<Vec<bool>>> {
    let Some(value) = fields.present("layer_types") else { return Ok(None) };
    let Value::Array(types) = value else {
        return Err(fields.problem("layer_types", &format!("expected a list, found {value}")));
    };
    if types.len() != layers {
        let problem = format!("has {} entries for num_hidden_layers = {layers}", types.len());
        return Err(fields.problem("layer_types", &problem));
    }
    types
        .iter()
        .map(|kind| match kind.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(fields.unsupported("layer_types", kind, "supported: full_attention, sliding_attention")),
        })
        .collect::<Result<_>>()
        .map(Some)
}

fn eos(fields: &Fields<'_>, family: Family, generation: Option<(&Path, &Value)>) -> Result<Vec<u32>> {
    if let Some((path, value)) = generation
        && let Some(ids) = Fields::new(path, value)?.token_ids("eos_token_id")?
    {
        return Ok(ids);
    }
    let default = match family {
        Family::Llama | Family::Mistral if fields.get("eos_token_id").is_none() => vec![2],
        _ => Vec::new(),
    };
    Ok(fields.token_ids("eos_token_id")?.unwrap_or(default))
}

/// The rotary table and the longest sequence that it is right for.
fn rope(
    fields: &Fields<'_>,
    head_dim: usize,
    positions: usize,
    events: &mut dyn EventSink,
) -> Result<(Rope, usize)> {
    let new = fields.object("rope_parameters", "rope_parameters.")?;
    let old = fields.object("rope_scaling", "rope_scaling.")?;
    if let (Some(new), Some(old)) = (&new, &old) {
        for key in ROPE_KEYS {
            if let (Some(a), Some(b)) = (new.present(key), old.present(key))
                && a != b
                && a.as_f64().zip(b.as_f64()).is_none_or(|(a, b)| a != b)
            {
                let problem = format!("is {a}, but rope_scaling.{key} is {b}; remove one of them");
                return Err(new.problem(key, &problem));
            }
        }
    }
    // An empty object is what "no scaling" looks like in some files.
    let inner = old.filter(|old| ROPE_KEYS.iter().any(|key| old.present(key).is_some())).or(new);

    let mut theta = None;
    for place in [Some(*fields), new, old].into_iter().flatten() {
        match (theta, place.positive("rope_theta")?) {
            (Some(known), Some(other)) if known != other => {
                let problem =
                    format!("is {other} here and {known} elsewhere in this file; remove the wrong one");
                return Err(place.problem("rope_theta", &problem));
            }
            (known, other) => theta = known.or(other),
        }
    }
    let theta = theta.unwrap_or_else(|| {
        assume(events, fields, "rope_theta", DEFAULT_THETA);
        DEFAULT_THETA
    });
    if theta <= 1.0 {
        return Err(fields.problem("rope_theta", &format!("must be above 1, is {theta}")));
    }
    let Some(inner) = inner else { return Ok((Scaling::Default.table(theta, head_dim), positions)) };
    if let Some(value) = inner.present("partial_rotary_factor")
        && value.as_f64() != Some(1.0)
    {
        return Err(inner.unsupported("partial_rotary_factor", value, "only 1 is (or leaving it out)"));
    }
    let (kind, reach) = scaling(fields, &inner, positions)?;
    Ok((kind.table(theta, head_dim), reach))
}

/// Keys of the rope object that must not differ between its two spellings.
const ROPE_KEYS: [&str; 14] = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "partial_rotary_factor",
];

/// The kind of scaling, and the longest sequence that it is right for.
fn scaling(fields: &Fields<'_>, rope: &Fields<'_>, positions: usize) -> Result<(Scaling, usize)> {
    let kind = match (rope.text("rope_type")?, rope.text("type")?) {
        (Some(new), Some(old)) if new != old => {
            return Err(
                rope.problem("rope_type", &format!("is {new:?}, but type is {old:?}; remove one of them"))
            );
        }
        (new, old) => new.or(old).unwrap_or("default"),
    };
    let original = || -> Result<f64> {
        let original = match fields.size("original_max_position_embeddings")? {
            Some(outer) => outer,
            None => rope.size("original_max_position_embeddings")?.unwrap_or(positions),
        };
        Ok(original as f64)
    };
    Ok(match kind {
        "default" => (Scaling::Default, positions),
        // Up to the config's length this is the default; the caller refuses what is longer.
        "dynamic" => {
            rope.required_positive("factor")?;
            (Scaling::Default, positions)
        }
        "linear" => (Scaling::Linear { factor: rope.required_positive("factor")? }, positions),
        "llama3" => {
            let scaling = Scaling::Llama3 {
                factor: rope.required_positive("factor")?,
                low_freq_factor: rope.required_positive("low_freq_factor")?,
                high_freq_factor: rope.required_positive("high_freq_factor")?,
                original_positions: original()?,
            };
            if let Scaling::Llama3 { low_freq_factor: low, high_freq_factor: high, .. } = scaling
                && low >= high
            {
                let problem = format!("{high} must be above low_freq_factor = {low}");
                return Err(rope.problem("high_freq_factor", &problem));
            }
            (scaling, positions)
        }
        "yarn" => {
            let original_positions = original()?;
            let factor = rope.positive("factor")?.unwrap_or(positions as f64 / original_positions);
            let reach = ((factor * original_positions) as usize).max(positions);
            // As in the reference, 0 counts as not given.
            let given = |key: &str| rope.number(key).map(|number| number.filter(|&number| number != 0.0));
            let yarn = Yarn {
                factor,
                original_positions,
                beta_fast: given("beta_fast")?.unwrap_or(32.0),
                beta_slow: given("beta_slow")?.unwrap_or(1.0),
                attention_factor: rope.positive("attention_factor")?,
                mscale: given("mscale")?,
                mscale_all_dim: given("mscale_all_dim")?,
                truncate: rope.flag("truncate")?.unwrap_or(true),
            };
            (Scaling::Yarn(yarn), reach)
        }
        _ => {
            let key = if rope.present("rope_type").is_some() { "rope_type" } else { "type" };
            let remedy = "supported: default, linear, dynamic, llama3, yarn";
            return Err(rope.unsupported(key, &Value::from(kind), remedy));
        }
    })
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
