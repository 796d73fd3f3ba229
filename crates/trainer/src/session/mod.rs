//! From a configuration to a trained adapter: opens everything a run needs, in an order that finds mistakes before
//! it costs time, and hands it to the loop. The binary and the agreement tests both go through here.

mod settings;

use std::path::{Path, PathBuf};

use crate::adapter;
use crate::backend::{CpuBackend, Storage};
use crate::checkpoint::{self, Checkpoint, CheckpointError, Settings};
use crate::config::{Config, ConfigError, Length, Weights};
use crate::data::{Batch, Content, Encoder, EncoderOptions, Loader, LoaderOptions, Moment, Record, Sample};
use crate::engine::{Engine, EngineOptions};
use crate::event::{Collected, Event, EventSink};
use crate::lora::{Adapter, LoraConfig, modules};
use crate::model::{self, ModelShape, Opened, Projection};
use crate::output::Output;
use crate::report::{JsonFiles, Observers, Run, available_bytes};
use crate::schedule::Schedule;
use crate::train::{Outcome, Rules, Saving, Stop, Trainer};
use crate::{Result, data, device};

/// What came of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// How it ended.
    pub outcome: Outcome,
    /// Where the adapter is, if the run is finished.
    pub adapter: PathBuf,
    /// The first question of the training data, to ask the adapter.
    pub question: Option<String>,
}

/// Trains as `config` says. Everything is checked before `output_dir` is touched.
///
/// ```no_run
/// use trainer::{config::Config, report::{Lines, Observers}, session, train::Stop};
///
/// let config = Config::load("examples/quickstart.toml".as_ref(), &["train.max_steps=20".into()])?;
/// let mut watch = Observers::new(vec![Box::new(Lines::new(std::io::stderr(), config.train.logging_steps))]);
/// let summary = session::train(&config, &mut watch, &Stop::default())?;
/// println!("the adapter is in {}", summary.adapter.display());
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// # Errors
/// Anything from a missing file to a diverged run; see the variants of [`Error`](crate::Error).
pub fn train(config: &Config, watch: &mut Observers, stop: &Stop) -> Result<Summary> {
    let output = Output::check(&config.output_dir, config.train.resume.as_ref())?;
    let (threads, device) = device::choose(config)?;
    let earlier = output.resume.as_deref().map(checkpoint::read_header).transpose()?;
    let now = earlier.map_or_else(Moment::now, |header| header.now);

    let Opened { shape, mut source, tokenizer, identity, name } = model::open(&config.model, watch)?;
    let (lora, start) = starting_point(config, &shape, watch)?;
    let encoder = Encoder::new(&tokenizer, encoder_options(config, &shape, now));
    let records = data::read(&config.data.train, config.data.format, watch)?;
    let question = records.records.first().and_then(question);
    let loader = loader(config, encoder.samples(&records, watch)?.samples)?;
    let eval = match &config.data.eval {
        Some(path) => {
            let records = data::read(path, config.data.format, watch)?;
            eval_batches(&encoder.samples(&records, watch)?.samples, config.train.batch_size)
        }
        None => Vec::new(),
    };
    let schedule = schedule(config, &loader)?;
    let settings = settings::of(config, &lora, &schedule, &identity, loader.samples());
    let resumed = match &output.resume {
        Some(path) => Some(resume(path, &shape, &settings, schedule.total, &output, watch)?),
        None => None,
    };

    let facts = facts(config, (&name, &shape), &lora, &loader, &schedule, device);
    let options = engine_options(config, &lora, &loader, &eval);
    let mut engine = Engine::new(CpuBackend::new(threads), &shape, &mut *source, options)?;
    // The weights are where they will be used; a mapped file would only take up memory.
    drop(source);
    if let Some(checkpoint) = &resumed {
        engine.set_adapter(&checkpoint.adapter)?;
        engine.set_optimizer_state(&checkpoint.optimizer)?;
    } else if let Some(adapter) = start {
        engine.set_adapter(&adapter)?;
    }

    let done = resumed.map_or(0, |checkpoint| checkpoint.step);
    if stop.is_asked() {
        // While the model was loading: leave no directory that would pass for a run.
        let outcome = Outcome::Interrupted { step: done, checkpoint: None };
        return Ok(Summary { outcome, adapter: output.adapter(), question });
    }
    let _lock = output.create(watch)?;
    checkpoint::clear_unfinished(&output.checkpoints())?;
    watch.add(Box::new(JsonFiles::open(output.path(), done)?))?;
    watch.started(&Run { done, steps: schedule.total, facts })?;
    let rules = rules(config, schedule, &output, &name, settings, now);
    let (data, engine) = (&loader, &mut engine);
    let outcome = Trainer { engine, data, eval: &eval, rules: &rules, watch, stop }.run(done);
    watch.finished();
    let outcome = outcome?;
    if let Outcome::Finished { .. } = outcome {
        adapter::write(&output.adapter(), &engine.adapter()?, &rules.saving.base_model, now, &shape)?;
    }
    Ok(Summary { outcome, adapter: output.adapter(), question })
}

/// The adapters' config, and their values where they do not start fresh. With `lora.adapter`, that adapter's own
/// rank, scale and targets hold; a key that says otherwise is refused.
fn starting_point(
    config: &Config,
    shape: &ModelShape,
    watch: &mut Observers,
) -> Result<(LoraConfig, Option<Adapter>)> {
    let asked = LoraConfig {
        r: config.lora.r,
        alpha: config.lora.alpha as f32,
        dropout: config.lora.dropout as f32,
        rslora: config.lora.rslora,
        targets: config.lora.target_modules.clone(),
    };
    let Some(path) = &config.lora.adapter else { return Ok((asked, None)) };
    let mut adapter = adapter::read(path, shape, watch)?;
    let own = &adapter.config;
    let agree = [
        ("lora.r", asked.r == own.r),
        ("lora.alpha", asked.alpha == own.alpha),
        ("lora.rslora", asked.rslora == own.rslora),
        ("lora.target_modules", asked.targets == own.targets),
    ];
    for (key, agrees) in agree {
        if let (Some(place), false) = (config.place(key), agrees) {
            let problem = format!(
                "{key} differs from the adapter in lora.adapter = {}, whose own value holds; leave {key} out",
                path.display()
            );
            return Err(ConfigError::Conflict { place: place.into(), problem }.into());
        }
    }
    // Dropout belongs to a training, not to the adapter.
    adapter.config.dropout = asked.dropout;
    Ok((adapter.config.clone(), Some(adapter)))
}

fn encoder_options(config: &Config, shape: &ModelShape, now: Moment) -> EncoderOptions {
    EncoderOptions {
        loss_on: config.data.loss_on,
        max_length: config.data.max_length,
        positions: shape.max_positions,
        now,
    }
}

fn loader(config: &Config, samples: Vec<Sample>) -> Result<Loader> {
    let options = LoaderOptions {
        batch_size: config.train.batch_size,
        accumulation: config.train.gradient_accumulation_steps,
        pack: config.data.packing.then_some(config.data.max_length),
        shuffle: config.data.shuffle,
        seed: config.train.seed,
    };
    Ok(Loader::new(samples, options)?)
}

/// Held-out samples in their order, as many at once as in training.
fn eval_batches(samples: &[Sample], batch_size: usize) -> Vec<Batch> {
    samples.chunks(batch_size).map(Batch::new).collect()
}

/// The rates of all steps.
///
/// # Errors
/// No step would have a rate above 0.
fn schedule(config: &Config, loader: &Loader) -> Result<Schedule> {
    let total = match config.train.length {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => loader.steps_per_epoch().saturating_mul(epochs),
    };
    let schedule = Schedule {
        shape: config.train.lr_scheduler,
        peak: config.train.learning_rate,
        warmup: config.train.warmup_steps.steps(total),
        total,
    };
    if schedule.is_zero() {
        let place = config.place("train.warmup_steps").unwrap_or("train.warmup_steps").to_owned();
        let problem = format!(
            "every one of the {total} steps would have learning rate 0, for the first step of a warmup has; lower \
             train.warmup_steps or train longer"
        );
        return Err(ConfigError::Conflict { place, problem }.into());
    }
    Ok(schedule)
}

/// The checkpoint to go on from, if it is one of this run.
fn resume(
    path: &Path,
    shape: &ModelShape,
    settings: &Settings,
    total: u64,
    output: &Output,
    watch: &mut Observers,
) -> Result<Checkpoint> {
    let checkpoint = Checkpoint::load(path, shape)?;
    let (differences, changes) = checkpoint.settings.differences(settings);
    if !differences.is_empty() {
        return Err(CheckpointError::OtherRun { path: path.into(), differences }.into());
    }
    let step = checkpoint.step;
    // A run that was stopped between its last checkpoint and its adapter has the adapter still to write; what is in
    // its place may be a part, or of a shorter run.
    let adapter = adapter::read(&output.adapter(), shape, &mut Collected::default());
    if step > total || (step == total && adapter.is_ok_and(|adapter| adapter == checkpoint.adapter)) {
        return Err(CheckpointError::Finished { path: path.into(), step, total }.into());
    }
    watch.emit(Event::Resumed { step, checkpoint: path.display().to_string(), changes });
    Ok(checkpoint)
}

fn engine_options(config: &Config, lora: &LoraConfig, loader: &Loader, eval: &[Batch]) -> EngineOptions {
    let storage = match config.quantization.weights {
        Weights::None => Storage::AsIs,
        Weights::Nf4 => {
            Storage::Nf4 { block_size: config.quantization.block_size, double: config.quantization.double }
        }
    };
    let longest = loader.samples().iter().map(|sample| sample.ids.len()).max().unwrap_or(0);
    let longest_eval = eval.iter().flat_map(|batch| &batch.positions).max().map_or(0, |&at| at as usize + 1);
    EngineOptions {
        storage,
        lora: lora.clone(),
        seed: config.train.seed,
        max_tokens: most_tokens(config, loader).max(eval.iter().map(Batch::tokens).max().unwrap_or(0)),
        max_positions: longest.max(longest_eval),
        activation_bytes: activation_bytes(available_bytes()),
    }
}

/// The most tokens that a micro-batch can have, whatever the order of samples.
fn most_tokens(config: &Config, loader: &Loader) -> usize {
    let mut rows: Vec<usize> = loader.samples().iter().map(|sample| sample.ids.len()).collect();
    rows.sort_unstable_by(|a, b| b.cmp(a));
    let all: usize = rows.iter().sum();
    if config.data.packing {
        let row = config.data.max_length.max(rows[0]);
        return all.min(row.saturating_mul(config.train.batch_size));
    }
    rows.iter().take(config.train.batch_size).sum()
}

/// Half of the memory that is free now, for activations: they save a second forward pass. The rest is for the
/// model, which is about to be loaded, and for others. Where the system does not say, 1 GiB.
fn activation_bytes(available: Option<u64>) -> usize {
    usize::try_from(available.map_or(1 << 30, |bytes| bytes / 2)).unwrap_or(usize::MAX)
}

fn rules(
    config: &Config,
    schedule: Schedule,
    output: &Output,
    model: &str,
    settings: Settings,
    now: Moment,
) -> Rules {
    // PEFT loads the base model by this: a directory by its path, but a GGUF file, which it cannot load, and a copy
    // from a hub by their names.
    let by_path = config.model.is_dir() && !model.contains('/');
    let base_model = if by_path { config.model.display().to_string() } else { model.to_owned() };
    Rules {
        schedule,
        weight_decay: config.train.weight_decay,
        max_grad_norm: config.train.max_grad_norm,
        eval_steps: config.train.eval_steps,
        saving: Saving {
            directory: output.checkpoints(),
            every: config.train.save_steps,
            keep: config.train.save_total_limit,
            base_model,
            settings,
            now,
        },
    }
}

/// What is shown before the first step.
fn facts(
    config: &Config,
    opened: (&str, &ModelShape),
    lora: &LoraConfig,
    loader: &Loader,
    schedule: &Schedule,
    device: String,
) -> Vec<(&'static str, String)> {
    let (name, shape) = opened;
    let adapted: Vec<_> = modules(lora, shape).map(|(_, projection)| projection.dims(shape)).collect();
    let parameters: usize = adapted.iter().map(|(out, inputs)| lora.r * (out + inputs)).sum();
    let targets: Vec<_> = lora.targets.iter().map(|target| target.name()).collect();
    let targets =
        if targets.len() == Projection::ALL.len() { "all linear".into() } else { targets.join(", ") };
    let supervised: usize = loader.samples().iter().map(Sample::supervised).sum();
    let weights = match config.quantization.weights {
        Weights::None => "weights as in the files",
        Weights::Nf4 => "weights in NF4",
    };
    vec![
        ("model", format!("{name}: {} blocks of width {}, {weights}", shape.layers, shape.hidden)),
        ("device", device),
        (
            "adapter",
            format!(
                "r {}, scale {}, {parameters} parameters in {} modules ({})",
                lora.r,
                lora.scale(),
                adapted.len(),
                targets
            ),
        ),
        ("data", format!("{} samples, {supervised} supervised tokens", loader.samples().len())),
        (
            "run",
            format!(
                "{} steps of {} x {} samples, {} an epoch, into {}",
                schedule.total,
                config.train.gradient_accumulation_steps,
                config.train.batch_size,
                loader.steps_per_epoch(),
                config.output_dir.display()
            ),
        ),
    ]
}

/// What a record asks, to show how the adapter can be asked.
fn question(record: &Record) -> Option<String> {
    match &record.content {
        Content::Conversation(conversation) => {
            let user = (0..conversation.messages.len()).find(|&at| conversation.role(at) == "user")?;
            conversation.messages[user]["content"].as_str().map(str::to_owned)
        }
        Content::Pair { prompt, .. } => Some(prompt.clone()),
        Content::Text(_) => None,
    }
}
