//! `adapter_config.json`: which fields are read, which are refused, which do not matter.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::AdapterError;
use crate::Result;
use crate::config::keys::target;
use crate::event::{Event, EventSink};
use crate::lora::LoraConfig;
use crate::model::{ModelShape, Projection};

/// Fields that change nothing about a finished adapter of plain LoRA.
const HARMLESS: &[&str] = &[
    "peft_version",
    "auto_mapping",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "megatron_config",
    "megatron_core",
    "qalora_group_size",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "ensure_weight_tying",
];

/// Fields that change what an adapter computes and that are accepted only with an empty value.
const UNSUPPORTED: &[&str] = &[
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "velora_config",
    "monteclora_config",
];

struct Reader<'a> {
    path: &'a Path,
    fields: Map<String, Value>,
}

impl Reader<'_> {
    fn wrong<T>(&self, field: &str, problem: impl Into<String>) -> Result<T, AdapterError> {
        Err(AdapterError::Field { path: self.path.into(), field: field.into(), problem: problem.into() })
    }

    /// Takes a field out. Null is as good as absent.
    fn take(&mut self, field: &str) -> Option<Value> {
        self.fields.shift_remove(field).filter(|value| !value.is_null())
    }

    fn number(&mut self, field: &str) -> Result<Option<f64>, AdapterError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(number.as_f64()),
            Some(other) => self.wrong(field, format!("{other} is no number")),
        }
    }

    fn flag(&mut self, field: &str) -> Result<bool, AdapterError> {
        match self.take(field) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => self.wrong(field, format!("{other} is neither true nor false")),
        }
    }
}

/// Reads the text of a config.
pub(super) fn parse(
    path: &Path,
    text: &[u8],
    shape: &ModelShape,
    events: &mut dyn EventSink,
) -> Result<LoraConfig> {
    let malformed = |problem: String| AdapterError::Malformed { path: path.into(), problem };
    let fields = match serde_json::from_slice(text).map_err(|error| malformed(error.to_string()))? {
        Value::Object(fields) => fields,
        _ => return Err(malformed("it holds no JSON object".into()).into()),
    };
    let mut reader = Reader { path, fields };
    let config = known_fields(&mut reader, shape, events)?;
    for (field, value) in std::mem::take(&mut reader.fields) {
        if !is_empty(&value) && !HARMLESS.contains(&field.as_str()) {
            events.emit(Event::Assumed {
                what: format!("{}: {field} = {value} is not known here and was ignored", path.display()),
            });
        }
    }
    Ok(config)
}

fn known_fields(
    reader: &mut Reader<'_>,
    shape: &ModelShape,
    events: &mut dyn EventSink,
) -> Result<LoraConfig, AdapterError> {
    match reader.take("peft_type") {
        Some(Value::String(kind)) if kind == "LORA" => {}
        Some(other) => {
            return reader.wrong("peft_type", format!("{other} is not supported, only \"LORA\" is"));
        }
        None => return reader.wrong("peft_type", "it is missing; \"LORA\" is expected"),
    }
    match reader.take("task_type") {
        Some(Value::String(task)) if task == "CAUSAL_LM" => {}
        Some(other) => {
            return reader.wrong("task_type", format!("{other} is not supported, only \"CAUSAL_LM\" is"));
        }
        None => {}
    }
    match reader.take("bias") {
        Some(Value::String(bias)) if bias == "none" => {}
        Some(other) => return reader.wrong("bias", format!("{other} is not supported, only \"none\" is")),
        None => {}
    }
    for field in UNSUPPORTED {
        if let Some(value) = reader.take(field)
            && !is_empty(&value)
        {
            return reader.wrong(field, format!("{value} is not supported; plain LoRA adapters are"));
        }
    }
    // These start from changed base weights, which PEFT changes again whenever it loads such an adapter.
    if let Some(Value::String(kind)) = reader.take("init_lora_weights")
        && ["pissa", "olora", "corda", "loftq", "lora_ga"].iter().any(|start| kind.starts_with(start))
    {
        let problem =
            format!("\"{kind}\" changes the base model; convert the adapter to plain LoRA with PEFT first");
        return reader.wrong("init_lora_weights", problem);
    }
    let r = match reader.number("r")? {
        Some(r) if r >= 1.0 && r.fract() == 0.0 => r as usize,
        Some(r) => {
            return reader.wrong("r", format!("{r} is no rank; a whole number of at least 1 is expected"));
        }
        None => return reader.wrong("r", "the rank is missing"),
    };
    let alpha = match reader.number("lora_alpha")? {
        Some(alpha) if alpha > 0.0 => alpha as f32,
        Some(alpha) => return reader.wrong("lora_alpha", format!("{alpha} is not above 0")),
        None => return reader.wrong("lora_alpha", "it is missing, and the scale depends on it"),
    };
    let dropout = reader.number("lora_dropout")?.unwrap_or(0.0);
    if !(0.0..1.0).contains(&dropout) {
        return reader.wrong("lora_dropout", format!("{dropout} is not from 0 to below 1"));
    }
    let rslora = reader.flag("use_rslora")?;
    let targets = targets(reader, events)?;
    let config = LoraConfig { r, alpha, dropout: dropout as f32, rslora, targets };
    pattern(reader, "rank_pattern", r as f64, &config, shape)?;
    pattern(reader, "alpha_pattern", f64::from(alpha), &config, shape)?;
    Ok(config)
}

/// The adapted projections. A list names them by the end of their path. A string is a regular expression, and
/// null leaves the choice to the model: then all seven are assumed, and the tensors show whether that is so.
fn targets(reader: &mut Reader<'_>, events: &mut dyn EventSink) -> Result<Vec<Projection>, AdapterError> {
    let all = Projection::ALL.to_vec();
    let names = match reader.take("target_modules") {
        None => {
            events.emit(Event::Assumed {
                what: format!(
                    "{}: target_modules is missing; all linear layers are assumed",
                    reader.path.display()
                ),
            });
            return Ok(all);
        }
        Some(Value::String(text)) if text == "all-linear" => return Ok(all),
        Some(Value::String(text)) => vec![Value::String(text)],
        Some(Value::Array(names)) => names,
        Some(other) => return reader.wrong("target_modules", format!("{other} is no list of names")),
    };
    let mut chosen = Vec::new();
    for name in names {
        let Value::String(name) = name else {
            return reader.wrong("target_modules", format!("{name} is no name"));
        };
        match target(name.rsplit('.').next().unwrap_or_default()) {
            Ok(projection) => chosen.push(projection),
            Err(problem) => return reader.wrong("target_modules", problem),
        }
    }
    Ok(all.into_iter().filter(|projection| chosen.contains(projection)).collect())
}

/// Different ranks or scales for some modules are not supported, but a pattern that says what holds anyway is, and
/// one that matches nothing is a mistake to be told.
fn pattern(
    reader: &mut Reader<'_>,
    field: &str,
    usual: f64,
    config: &LoraConfig,
    shape: &ModelShape,
) -> Result<(), AdapterError> {
    let patterns = match reader.take(field) {
        None => return Ok(()),
        Some(Value::Object(patterns)) => patterns,
        Some(other) => return reader.wrong(field, format!("{other} is no table")),
    };
    for (key, value) in patterns {
        let plain = key.trim_start_matches('^').trim_end_matches('$').replace("\\.", ".");
        let matches = crate::lora::modules(config, shape).any(|(layer, projection)| {
            let module = projection.module(layer);
            module == plain || module.ends_with(&format!(".{plain}"))
        });
        if !matches {
            return reader.wrong(field, format!("\"{key}\" matches no adapted module"));
        }
        if value.as_f64() != Some(usual) {
            let problem = format!(
                "\"{key}\": {value} differs from {usual}; one rank and one alpha for all modules \
                                   are supported"
            );
            return reader.wrong(field, problem);
        }
    }
    Ok(())
}

/// Whether a value says nothing: what a field holds that its writer did not use.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// The text of a config with the fields that PEFT has had for long, so that older readers take it too.
pub(super) fn to_json(config: &LoraConfig, base_model: &str) -> Vec<u8> {
    let mut targets: Vec<&str> = config.targets.iter().map(|projection| projection.name()).collect();
    targets.sort_unstable();
    let fields = json!({
        "alpha_pattern": {},
        "auto_mapping": null,
        "base_model_name_or_path": base_model,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "layers_pattern": null,
        "layers_to_transform": null,
        "lora_alpha": short(config.alpha),
        "lora_dropout": short_float(config.dropout),
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": config.r,
        "rank_pattern": {},
        "revision": null,
        "target_modules": targets,
        "task_type": "CAUSAL_LM",
        "use_rslora": config.rslora,
    });
    let mut text = serde_json::to_vec_pretty(&fields).expect("a JSON value is always printable");
    text.push(b'\n');
    text
}

/// A whole number without a fraction, as PEFT writes alpha.
fn short(value: f32) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e9 { json!(value as i64) } else { short_float(value) }
}

/// The shortest decimals that give the same f32: 0.1 and not 0.10000000149.
fn short_float(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().unwrap_or(f64::from(value)))
}
