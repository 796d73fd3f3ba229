//! `nibble generate`.

use std::path::PathBuf;
use std::process::ExitCode;

use trainer::Event;
use trainer::ask::{self, Question};
use trainer::backend::Storage;

use super::say;

/// Ask a model, with or without an adapter. The answer is the most probable one (greedy).
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Hugging Face directory or GGUF file
    #[arg(long)]
    model: PathBuf,
    /// PEFT adapter directory, as `train` writes it; a checkpoint's will do
    #[arg(long)]
    adapter: Option<PathBuf>,
    /// What to ask; put into the model's chat template, if it has one, with the date that the adapter was trained with
    #[arg(long)]
    prompt: String,
    /// Longest answer, in tokens
    #[arg(long, default_value_t = 256)]
    max_tokens: usize,
    /// How to hold the frozen weights; an adapter is best with those that it was trained on
    #[arg(long, value_enum, default_value_t = Weights::Nf4Double)]
    weights: Weights,
    /// Weights that share a scale in NF4
    #[arg(long, default_value_t = 64, value_parser = block_size)]
    block_size: usize,
    /// CPU threads [default: all]
    #[arg(long, value_parser = threads)]
    threads: Option<usize>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Weights {
    /// NF4, its scales quantised too
    Nf4Double,
    /// NF4
    Nf4,
    /// As in the files
    None,
}

/// Asks, and prints the answer as it comes.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let block_size = arguments.block_size;
    let question = Question {
        model: arguments.model.clone(),
        adapter: arguments.adapter.clone(),
        storage: match arguments.weights {
            Weights::Nf4Double => Storage::Nf4 { block_size, double: true },
            Weights::Nf4 => Storage::Nf4 { block_size, double: false },
            Weights::None => Storage::AsIs,
        },
        threads: arguments.threads,
        prompt: arguments.prompt.clone(),
        max_tokens: arguments.max_tokens,
    };
    let mut said = Ok(());
    ask::answer(&question, &mut |event: Event| eprintln!("note: {event}"), |text| {
        if said.is_ok() {
            said = say(text);
        }
    })?;
    said.and_then(|()| say("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn block_size(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(size) if size.is_power_of_two() && (32..=4096).contains(&size) => Ok(size),
        _ => Err("expected a power of two from 32 to 4096".into()),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "expected an integer of at least 1".into())
}
