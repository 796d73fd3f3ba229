//! Tokens per second of a whole training step (forward, backward, AdamW) and the peak of memory, loading
//! included; beside it the same step in PyTorch, PEFT and bitsandbytes where a Python is named.
//!
//! ```text
//! cargo bench -p benches --bench step -- --model DIR --data FILE.jsonl --quant nf4 \
//!     --peer PYTHON qlora_reference.py --expect-loss 2.66866
//! ```
//!
//! Batch 1, rank 16 on all seven projections, a loss on every token, the first tokens of the data set one after
//! another: what `qlora_reference.py --bench` does. A round is a block of our steps, then the peer's in a process
//! of its own; the ratio is the median over rounds. The first loss is checked against `--expect-loss`, which the
//! peer prints too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde_json::Value;
use trainer::backend::{AdamW, CpuBackend, Storage};
use trainer::data::{self, Batch, Encoder, EncoderOptions, Format, LossOn, Moment, Sample};
use trainer::engine::{Engine, EngineOptions, Update};
use trainer::event::Collected;
use trainer::lora::LoraConfig;
use trainer::model::{self, Opened, Projection, open_weights};

#[derive(Parser)]
struct Arguments {
    /// A model directory or a GGUF file
    #[arg(long)]
    model: Option<PathBuf>,
    /// A data set whose first tokens are trained on
    #[arg(long)]
    data: Option<PathBuf>,
    /// Tokens of a step
    #[arg(long, default_value_t = 256)]
    tokens: usize,
    /// Timed steps of a round
    #[arg(long, default_value_t = 8)]
    steps: u64,
    /// Rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// none, nf4 or nf4-dq
    #[arg(long, default_value = "nf4")]
    quant: String,
    /// Threads of both sides
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// A Python with torch, transformers, PEFT and bitsandbytes, and the script
    #[arg(long, num_args = 2, value_names = ["PYTHON", "SCRIPT"])]
    peer: Vec<PathBuf>,
    /// What the first loss must be, within 1e-3
    #[arg(long)]
    expect_loss: Option<f64>,
    /// Runs once on a tiny model, as a test
    #[arg(long)]
    test: bool,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.test {
        return test();
    }
    let (Some(path), Some(data)) = (&arguments.model, &arguments.data) else {
        println!("step: not run, for it needs --model and --data (see the head of benches/step.rs)");
        return Ok(());
    };
    let storage = storage(&arguments.quant)?;
    let started = Instant::now();
    let (batch, mut engine) = prepare(path, data, &arguments, storage)?;
    println!("loading {:.2} s", started.elapsed().as_secs_f64());

    let (mut number, mut ours, mut ratios) = (0, Vec::new(), Vec::new());
    let first = step(&mut engine, &batch, &mut number)?.0;
    println!("first loss {first:.6}");
    if let Some(expected) = arguments.expect_loss {
        let off = (first - expected).abs();
        ensure!(off <= 1e-3, "the first loss is {first}, expected {expected}: this times something else");
    }
    for _ in 0..arguments.rounds {
        let mut rates = Vec::new();
        for _ in 0..arguments.steps {
            let (_, seconds) = step(&mut engine, &batch, &mut number)?;
            rates.push(batch.tokens() as f64 / seconds);
        }
        let rate = median(&mut rates);
        print!("nibble {rate:.1} tokens/s ({:.1} to {:.1})", rates[0], rates[rates.len() - 1]);
        if let [python, script] = &arguments.peer[..] {
            let peer = peer(python, script, path, data, &arguments)?;
            print!("   peer {peer:.1}   ratio {:.3}", rate / peer);
            ratios.push(rate / peer);
        }
        println!();
        ours.push(rate);
    }
    println!("median {:.1} tokens/s, peak memory {:.0} MiB", median(&mut ours), peak_mib()?);
    if !ratios.is_empty() {
        println!("median ratio to the peer {:.3}", median(&mut ratios));
    }
    Ok(())
}

fn storage(name: &str) -> Result<Storage> {
    Ok(match name {
        "none" => Storage::AsIs,
        "nf4" => Storage::Nf4 { block_size: 64, double: false },
        "nf4-dq" => Storage::Nf4 { block_size: 64, double: true },
        other => bail!("--quant {other}: none, nf4 and nf4-dq are known"),
    })
}

fn options(storage: Storage, tokens: usize) -> EngineOptions {
    let targets = Projection::ALL.to_vec();
    EngineOptions {
        storage,
        lora: LoraConfig { r: 16, alpha: 32.0, dropout: 0.0, rslora: false, targets },
        seed: 0,
        max_tokens: tokens,
        max_positions: tokens,
        activation_bytes: usize::MAX,
    }
}

/// The first `tokens` tokens of the data set as one sample, and an engine.
fn prepare(
    path: &Path,
    data: &Path,
    arguments: &Arguments,
    storage: Storage,
) -> Result<(Batch, Engine<CpuBackend>)> {
    let mut events = Collected::default();
    let Opened { shape, mut source, tokenizer, .. } = model::open(path, &mut events)?;
    let encoder = EncoderOptions {
        loss_on: LossOn::All,
        max_length: arguments.tokens.max(shape.max_positions),
        positions: shape.max_positions,
        now: Moment::now(),
    };
    let records = data::read(data, Format::Auto, &mut events)?;
    let samples = Encoder::new(&tokenizer, encoder).samples(&records, &mut events)?.samples;
    let ids: Vec<u32> = samples.iter().flat_map(|sample| &sample.ids).copied().collect();
    ensure!(!ids.is_empty(), "{} has no tokens", data.display());
    let ids: Vec<u32> = ids.into_iter().cycle().take(arguments.tokens).collect();
    let sample = Sample { labels: ids.iter().map(|&id| id as i32).collect(), ids };
    let backend = CpuBackend::new(cpu_ops::Threads::new(arguments.threads)?);
    let engine = Engine::new(backend, &shape, &mut *source, options(storage, arguments.tokens))?;
    Ok((Batch::new([&sample]), engine))
}

/// One step: its loss, and its seconds.
fn step(engine: &mut Engine<CpuBackend>, batch: &Batch, number: &mut u64) -> Result<(f64, f64)> {
    *number += 1;
    let adamw = AdamW { lr: 2e-4, ..AdamW::default() };
    let update = Update { step: *number, adamw, max_grad_norm: 0.0 };
    let started = Instant::now();
    let outcome = engine.step(std::slice::from_ref(batch), &update, &mut Collected::default())?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(outcome.skipped.is_none() && outcome.loss.is_finite(), "step {number}: {outcome:?}");
    Ok((outcome.loss, seconds))
}

/// The peer's median tokens per second, from a run of its own.
fn peer(python: &Path, script: &Path, model: &Path, data: &Path, arguments: &Arguments) -> Result<f64> {
    let out = std::env::temp_dir().join(format!("nibble-bench-step-{}", std::process::id()));
    let output = Command::new(python)
        .arg(script)
        .args([model, data, &out])
        .args(["--quant", &arguments.quant, "--bench", &arguments.tokens.to_string()])
        .args(["--steps", &arguments.steps.to_string(), "--threads", &arguments.threads.to_string()])
        // Settings for other processors' sake slow a current OpenBLAS.
        .env_remove("OPENBLAS_CORETYPE")
        .env_remove("OPENBLAS_L2_SIZE")
        .output()
        .with_context(|| format!("cannot run {}", python.display()))?;
    ensure!(output.status.success(), "the peer failed:\n{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().rfind(|line| line.starts_with('{')).context("the peer printed no result")?;
    let result: Value = serde_json::from_str(line)?;
    result["tokens_per_s_median"].as_f64().context("the peer's result has no tokens_per_s_median")
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// The most memory that this process ever had resident.
fn peak_mib() -> Result<f64> {
    let status =
        std::fs::read_to_string("/proc/self/status").context("the peak of memory is known on Linux only")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

/// Three steps on one sample of a tiny model: the loss must fall.
fn test() -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny/llama");
    let mut weights = open_weights(&path, &mut Collected::default())?;
    let ids: Vec<u32> = (3..35).collect();
    let sample = Sample { labels: ids.iter().map(|&id| id as i32).collect(), ids };
    let backend = CpuBackend::new(cpu_ops::Threads::new(2)?);
    let options = options(storage("nf4")?, sample.ids.len());
    let mut engine = Engine::new(backend, &weights.shape.clone(), &mut *weights.source, options)?;
    let (batch, mut number) = (Batch::new([&sample]), 0);
    let mut losses = Vec::new();
    for _ in 0..3 {
        losses.push(step(&mut engine, &batch, &mut number)?.0);
    }
    ensure!(losses[2] < losses[0], "the loss does not fall: {losses:?}");
    println!("step: ok");
    Ok(())
}
