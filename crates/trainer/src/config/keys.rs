//! The list of keys: name, meaning, default, and how its value is read. Nothing else knows a key's spelling.

use std::fmt::Write as _;
use std::path::PathBuf;

use toml::Value;

use super::{Config, DeviceKind, Length, Resume, Weights};
use crate::data::{Format, LossOn};
use crate::model::Projection;
use crate::schedule::{Shape, Warmup};

/// One key of a configuration.
pub struct Key {
    /// With its section: `train.seed`.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// What holds when it is not given, as TOML, or in words.
    pub default: &'static str,
    /// Stores a value, or says what is wrong with it.
    pub(super) set: fn(&mut Config, &Value) -> Result<(), String>,
}

/// Makes the list. After a key's name stand its default, what it does, and how a value is stored.
macro_rules! keys {
    ($($name:literal [$default:literal] $about:literal |$config:ident, $value:ident| $store:expr;)*) => {
        /// Every key that exists, in the order in which help shows them.
        pub const KEYS: &[Key] = &[$(Key {
            name: $name,
            default: $default,
            about: $about,
            set: |$config, $value| {
                $store;
                Ok(())
            },
        }),*];
    };
}

keys! {
    "model" ["required"]
        "Hugging Face directory or GGUF file to train"
        |c, v| c.model = path(v)?;
    "output_dir" ["required"]
        "directory for the adapter, checkpoints and metrics"
        |c, v| c.output_dir = path(v)?;
    "data.train" ["required"]
        "JSONL file to train on"
        |c, v| c.data.train = path(v)?;
    "data.eval" ["none"]
        "JSONL file whose loss is measured every train.eval_steps and at the end"
        |c, v| c.data.eval = Some(path(v)?);
    "data.format" ["\"auto\""]
        "auto, messages, prompt_completion, text, sharegpt or alpaca"
        |c, v| {
            let names = [
                ("auto", Format::Auto),
                ("messages", Format::Messages),
                ("prompt_completion", Format::PromptCompletion),
                ("text", Format::Text),
                ("sharegpt", Format::ShareGpt),
                ("alpaca", Format::Alpaca),
            ];
            c.data.format = one_of(v, &names)?;
        };
    "data.max_length" ["1024"]
        "longer samples are cut to so many tokens"
        |c, v| c.data.max_length = integer(v, 2)?;
    "data.packing" ["false"]
        "fill micro-batches up to max_length with whole samples"
        |c, v| c.data.packing = boolean(v)?;
    "data.shuffle" ["true"]
        "a new order in every epoch, from the seed; false keeps the file's"
        |c, v| c.data.shuffle = boolean(v)?;
    "data.loss_on" ["\"assistant\""]
        "assistant: every answer; completion: the last; all: every token"
        |c, v| {
            let names =
                [("assistant", LossOn::Assistant), ("completion", LossOn::Completion), ("all", LossOn::All)];
            c.data.loss_on = one_of(v, &names)?;
        };
    "lora.r" ["16"]
        "rank of the adapters"
        |c, v| c.lora.r = integer(v, 1)?;
    "lora.alpha" ["32"]
        "the adapters' output is scaled by alpha / r"
        |c, v| c.lora.alpha = positive(v)?;
    "lora.dropout" ["0.0"]
        "probability of dropping an input of an adapter, 0 to below 1"
        |c, v| c.lora.dropout = number(v, |x| (0.0..1.0).contains(&x), "a number from 0 to below 1")?;
    "lora.target_modules" ["\"all-linear\""]
        "\"all-linear\" or a list of projections to adapt"
        |c, v| c.lora.target_modules = targets(v)?;
    "lora.rslora" ["false"]
        "scale by alpha / sqrt(r) instead of alpha / r"
        |c, v| c.lora.rslora = boolean(v)?;
    "lora.adapter" ["none"]
        "PEFT adapter directory to start from; its r, alpha and targets hold"
        |c, v| c.lora.adapter = Some(path(v)?);
    "quantization.weights" ["\"nf4\""]
        "nf4: the blocks' weights in 4 bits; none: as in the files"
        |c, v| c.quantization.weights = one_of(v, &[("nf4", Weights::Nf4), ("none", Weights::None)])?;
    "quantization.double" ["true"]
        "quantise the scales of NF4 too"
        |c, v| c.quantization.double = boolean(v)?;
    "quantization.block_size" ["64"]
        "weights that share a scale: a power of two, 32 to 4096"
        |c, v| {
            let size: usize = integer(v, 1)?;
            if !size.is_power_of_two() || !(32..=4096).contains(&size) {
                return Err("expected a power of two from 32 to 4096; 64 is usual".into());
            }
            c.quantization.block_size = size;
        };
    "train.batch_size" ["1"]
        "samples in a micro-batch"
        |c, v| c.train.batch_size = integer(v, 1)?;
    "train.gradient_accumulation_steps" ["8"]
        "micro-batches in a step"
        |c, v| c.train.gradient_accumulation_steps = integer(v, 1)?;
    "train.max_steps" ["none"]
        "length of the run in steps; instead of epochs"
        |c, v| c.train.length = Length::Steps(integer(v, 1)?);
    "train.epochs" ["1"]
        "length of the run in passes through the data; instead of max_steps"
        |c, v| c.train.length = Length::Epochs(integer(v, 1)?);
    "train.learning_rate" ["2e-4"]
        "highest learning rate"
        |c, v| c.train.learning_rate = positive(v)?;
    "train.lr_scheduler" ["\"linear\""]
        "constant, constant_with_warmup, linear or cosine"
        |c, v| c.train.lr_scheduler = one_of(v, &Shape::NAMES)?;
    "train.warmup_steps" ["0"]
        "steps of linear rise, or a share of all steps (below 1); the first has rate 0"
        |c, v| {
            c.train.warmup_steps = match v {
                Value::Float(share) if (0.0..1.0).contains(share) => Warmup::Share(*share),
                Value::Integer(_) => Warmup::Steps(integer(v, 0)?),
                _ => return Err(expected(v, "a number of steps, or a share of all steps from 0.0 to below 1")),
            };
        };
    "train.weight_decay" ["0.0"]
        "AdamW's decoupled decay"
        |c, v| c.train.weight_decay = not_negative(v)?;
    "train.max_grad_norm" ["1.0"]
        "gradients are scaled down to this norm; 0 does not clip"
        |c, v| c.train.max_grad_norm = not_negative(v)?;
    "train.seed" ["0"]
        "of the adapters' start, the order of samples, and dropout"
        |c, v| c.train.seed = integer(v, 0)?;
    "train.logging_steps" ["10"]
        "steps between the lines shown when there is no terminal"
        |c, v| c.train.logging_steps = integer(v, 1)?;
    "train.eval_steps" ["0"]
        "steps between measurements on data.eval; 0: only at the end"
        |c, v| c.train.eval_steps = integer(v, 0)?;
    "train.save_steps" ["100"]
        "steps between checkpoints, one more at the end; 0: none"
        |c, v| c.train.save_steps = integer(v, 0)?;
    "train.save_total_limit" ["3"]
        "checkpoints that are kept, the newest; 0: all"
        |c, v| c.train.save_total_limit = integer(v, 0)?;
    "train.resume" ["none"]
        "\"auto\": from the newest checkpoint of output_dir; or a checkpoint's path"
        |c, v| {
            let path = path(v)?;
            c.train.resume = Some(if path.as_os_str() == "auto" { Resume::Auto } else { Resume::Path(path) });
        };
    "device.kind" ["\"auto\""]
        "auto, cpu, or cuda:N"
        |c, v| {
            let text = string(v)?;
            let number = text.strip_prefix("cuda:").and_then(|n| n.parse().ok());
            c.device.kind = match (text, number) {
                ("auto", _) => DeviceKind::Auto,
                ("cpu", _) => DeviceKind::Cpu,
                (_, Some(number)) => DeviceKind::Cuda(number),
                _ => return Err("expected \"auto\", \"cpu\" or \"cuda:N\", as in \"cuda:0\"".into()),
            };
        };
    "device.threads" ["all"]
        "CPU threads; the results do not depend on it"
        |c, v| c.device.threads = Some(integer(v, 1)?);
    "device.vram_limit_mb" ["none"]
        "MB of GPU memory to use at most"
        |c, v| c.device.vram_limit_mb = Some(integer(v, 1)?);
}

/// The table of keys as text, for `nibble train --help`.
pub fn help() -> String {
    let mut text = String::from(
        "Keys of the configuration (TOML), each of which --set can give, with their defaults.\n\
         Paths are relative to the current directory.\n",
    );
    for key in KEYS {
        writeln!(text, "  {:<37} {} [{}]", key.name, key.about, key.default).expect("a string takes all");
    }
    text
}

/// The key of this name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The name closest to a misspelt one, if any is close.
pub(super) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .map(|candidate| (strsim::normalized_damerau_levenshtein(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity >= 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

fn expected(value: &Value, what: &str) -> String {
    format!("{} is given, expected {what}", kind(value))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Integer(_) => "an integer",
        Value::Float(_) => "a number with a fraction",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}

fn integer<T: TryFrom<i64>>(value: &Value, least: i64) -> Result<T, String> {
    let what = format!("an integer of at least {least}");
    let Value::Integer(found) = value else { return Err(expected(value, &what)) };
    if *found < least {
        return Err(format!("expected {what}"));
    }
    T::try_from(*found).map_err(|_| "the number is too large".into())
}

fn number(value: &Value, accept: impl Fn(f64) -> bool, what: &str) -> Result<f64, String> {
    let found = match value {
        Value::Float(x) => *x,
        Value::Integer(x) => *x as f64,
        _ => return Err(expected(value, what)),
    };
    // NaN fails every range, infinity must not pass an open one.
    if !(found.is_finite() && accept(found)) {
        return Err(format!("expected {what}"));
    }
    Ok(found)
}

fn positive(value: &Value) -> Result<f64, String> {
    number(value, |x| x > 0.0, "a number above 0")
}

fn not_negative(value: &Value) -> Result<f64, String> {
    number(value, |x| x >= 0.0, "a number of at least 0")
}

fn boolean(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| expected(value, "true or false"))
}

fn string(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| expected(value, "a string"))
}

fn path(value: &Value) -> Result<PathBuf, String> {
    let text = string(value)?;
    if text.is_empty() {
        return Err("an empty path is given".into());
    }
    Ok(text.into())
}

fn one_of<T: Copy>(value: &Value, names: &[(&str, T)]) -> Result<T, String> {
    let text = string(value)?;
    if let Some((_, found)) = names.iter().find(|(name, _)| *name == text) {
        return Ok(*found);
    }
    let all: Vec<String> = names.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    let hint = match nearest(text, names.iter().map(|(name, _)| *name)) {
        Some(name) => format!("; did you mean \"{name}\"?"),
        None => String::new(),
    };
    Err(format!("expected one of {}{hint}", all.join(", ")))
}

fn targets(value: &Value) -> Result<Vec<Projection>, String> {
    const WHAT: &str = "\"all-linear\" or a list such as [\"q_proj\", \"v_proj\"]";
    let list = match value {
        Value::String(text) if text == "all-linear" => return Ok(Projection::ALL.to_vec()),
        Value::Array(list) => list,
        // A string that is no list is taken for a module's name, so that its refusal names it.
        Value::String(_) => std::slice::from_ref(value),
        _ => return Err(expected(value, WHAT)),
    };
    let mut chosen = Vec::new();
    for item in list {
        let Value::String(name) = item else {
            return Err(format!("{} in the list, expected {WHAT}", kind(item)));
        };
        chosen.push(target(name)?);
    }
    if chosen.is_empty() {
        return Err(format!("an empty list adapts nothing; expected {WHAT}"));
    }
    Ok(Projection::ALL.into_iter().filter(|p| chosen.contains(p)).collect())
}

/// The projection of this name, or the reason why such a module cannot be adapted.
pub(crate) fn target(name: &str) -> Result<Projection, String> {
    if let Some(found) = Projection::ALL.into_iter().find(|p| p.name() == name) {
        return Ok(found);
    }
    let all = Projection::ALL.map(Projection::name).join(", ");
    let reason = match name {
        "lm_head" | "embed_tokens" => {
            "the head and the embedding stay frozen (with tied weights one adapter \
                                       would change both)"
                .into()
        }
        "norm" | "input_layernorm" | "post_attention_layernorm" | "q_norm" | "k_norm" => {
            "norms are no linear layers and stay frozen".into()
        }
        _ => match nearest(name, Projection::ALL.iter().map(|p| p.name())) {
            Some(close) => format!("no such linear layer; did you mean {close}?"),
            None => "no such linear layer".to_owned(),
        },
    };
    Err(format!("`{name}` cannot be adapted: {reason}. These can: {all}"))
}
