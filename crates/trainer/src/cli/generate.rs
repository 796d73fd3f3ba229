//! `nibble generate`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use trainer::Event;
use trainer::ask::{self, Question};
use trainer::backend::Storage;

/// Ask a model, with or without an adapter. The answer is the most probable one (greedy).
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Hugging Face directory or GGUF file
    #[arg(long)]
    model: PathBuf,
    /// PEFT adapter directory, as `train` writes it; a checkpoint's will do
    #[arg(long)]
    adapter: Option<PathBuf>,
    /// What to ask; put into the model's chat template, if it has one
    #[arg(long)]
    prompt: String,
    /// Longest answer, in tokens
    #[arg(long, default_value_t = 256)]
    max_tokens: usize,
    /// How to hold the frozen weights; an adapter is best with those that it was trained on
    #[arg(long, value_enum, default_value_t = Weights::Nf4Double)]
    weights: Weights,
    /// Weights that share a scale in NF4
    #[arg(long, default_value_t = 64)]
    block_size: usize,
    /// CPU threads [default: all]
    #[arg(long)]
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
    let mut broken = None;
    let mut out = std::io::stdout();
    ask::answer(&question, &mut |event: Event| eprintln!("note: {event}"), |text| {
        // A reader that went away (as `head` does) ends the answer, not the program.
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        broken = broken.take().or(written.err());
    })?;
    match broken {
        None => println!(),
        Some(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        Some(error) => return Err(trainer::Error::io("write", "the answer")(error).into()),
    }
    Ok(ExitCode::SUCCESS)
}
