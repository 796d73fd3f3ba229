//! Asking a model a question, with or without an adapter.

use std::path::{Path, PathBuf};

use cpu_ops::Threads;

use crate::backend::{CpuBackend, Storage};
use crate::data::{Encoder, EncoderOptions, LossOn, Moment};
use crate::engine::Model;
use crate::event::EventSink;
use crate::generate::Generator;
use crate::lora::{Adapter, LoraConfig};
use crate::model::{self, Opened};
use crate::{Result, adapter};

/// Tokens of a prompt that run at once: enough for fast products, few enough for little memory.
const CHUNK: usize = 256;

/// What is asked of which model.
#[derive(Debug, Clone)]
pub struct Question {
    /// Hugging Face directory or GGUF file.
    pub model: PathBuf,
    /// PEFT adapter directory.
    pub adapter: Option<PathBuf>,
    /// How the frozen weights are held; an adapter is best with those that it was trained on.
    pub storage: Storage,
    /// CPU threads; `None` is all.
    pub threads: Option<usize>,
    /// The user's words. They go through the model's chat template, if it has one.
    pub prompt: String,
    /// Longest answer.
    pub max_tokens: usize,
}

/// The most probable answer, without special tokens. `on_text` gets it piece by piece as it comes.
///
/// ```no_run
/// use trainer::{ask::{Question, answer}, backend::Storage, event::Collected};
///
/// let question = Question {
///     model: "examples/quickstart-model".into(),
///     adapter: Some("runs/quickstart/adapter".into()),
///     storage: Storage::Nf4 { block_size: 64, double: true },
///     threads: None,
///     prompt: "Where is Tarnwick?".into(),
///     max_tokens: 64,
/// };
/// println!("{}", answer(&question, &mut Collected::default(), |_| {})?);
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// # Errors
/// The model or the adapter cannot be used, or the prompt is too long for it.
pub fn answer(
    question: &Question,
    events: &mut dyn EventSink,
    mut on_text: impl FnMut(&str),
) -> Result<String> {
    let threads = question.threads.map_or_else(Threads::available, Threads::new)?;
    let Opened { shape, mut source, tokenizer, .. } = model::open(&question.model, events)?;
    let adapter = match &question.adapter {
        Some(directory) => Some(adapter::read(directory, &shape, events)?),
        None => None,
    };
    let positions = shape.max_positions;
    let now = date(question.adapter.as_deref())?;
    let options = EncoderOptions { loss_on: LossOn::Assistant, max_length: positions, positions, now };
    let prompt = Encoder::new(&tokenizer, options).question(&question.prompt)?;
    // An answer may not be longer than the model can hold, whatever was asked for.
    let limit = positions.min(prompt.len().saturating_add(question.max_tokens));
    let mut backend = CpuBackend::new(threads);
    let lora = adapter.as_ref().map_or_else(no_adapter, |adapter: &Adapter| adapter.config.clone());
    let mut model = Model::load(&mut backend, &shape, &mut *source, question.storage, (&lora, 0), limit)?;
    drop(source);
    if let Some(adapter) = &adapter {
        model.set_adapter(&mut backend, adapter)?;
    }
    let mut end = shape.eos.clone();
    end.extend(tokenizer.eos_id());

    let (mut ids, mut shown) = (Vec::new(), String::new());
    let mut generator = Generator::new(&mut backend, &model, CHUNK, limit)?;
    let mut failed = None;
    generator.greedy(&prompt, question.max_tokens, &end, |id| {
        ids.push(id);
        match tokenizer.decode_without_special(&ids) {
            Ok(text) => show(&text, &mut shown, &mut on_text),
            Err(error) => failed = Some(error),
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let text = tokenizer.decode_without_special(&ids)?;
    if let Some(rest) = text.strip_prefix(&shown) {
        on_text(rest);
    }
    Ok(text)
}

/// The date that the chat template sees: an adapter's training saw one, and is asked with the same.
fn date(adapter: Option<&Path>) -> Result<Moment> {
    let of_training = adapter.map(adapter::read_date).transpose()?.flatten();
    Ok(of_training.unwrap_or_else(Moment::now))
}

/// Passes on what is new in `text`, unless it ends within a character: then the next token completes it.
fn show(text: &str, shown: &mut String, on_text: &mut impl FnMut(&str)) {
    let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
    if let Some(new) = whole.strip_prefix(shown.as_str())
        && !new.is_empty()
    {
        on_text(new);
        whole.clone_into(shown);
    }
}

/// An adapter of no module at all.
fn no_adapter() -> LoraConfig {
    LoraConfig { r: 1, alpha: 1.0, dropout: 0.0, rslora: false, targets: Vec::new() }
}
