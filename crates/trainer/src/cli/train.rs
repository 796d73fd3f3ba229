//! `nibble train`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trainer::config::{Config, Quantization, Weights, keys};
use trainer::report::{Bar, Lines, Observer, Observers};
use trainer::session::{self, Summary};
use trainer::train::{Outcome, Stop};

use super::{exit, say};

/// Train a LoRA adapter as a TOML file says.
///
/// Writes into output_dir: adapter/ (PEFT), checkpoints/, metrics.jsonl (one object a step), events.jsonl.
/// Ctrl-C finishes the step, writes a checkpoint and stops; a second one stops at once.
#[derive(Debug, clap::Args)]
#[command(after_long_help = keys::help())]
pub struct Arguments {
    /// The configuration; `--help` lists its keys
    config: PathBuf,
    /// Put a value over the file's, as in --set train.max_steps=10; may be repeated
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
}

/// Trains.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = Config::load(&arguments.config, &arguments.sets).map_err(trainer::Error::from)?;
    let bar = std::io::stderr().is_terminal().then(Bar::stderr);
    let drawn = bar.as_ref().map(Bar::handle);
    let stop = Stop::default();
    let asked = stop.clone();
    ctrlc::set_handler(move || {
        if asked.ask() {
            std::process::exit(exit::KILLED);
        }
        const STOPPING: &str = "stopping after this step; again to stop at once";
        match drawn.as_ref().filter(|bar| !bar.is_hidden()) {
            Some(bar) => bar.println(STOPPING),
            None => eprintln!("{STOPPING}"),
        }
    })?;
    let shown: Box<dyn Observer> = match bar {
        Some(bar) => Box::new(bar),
        None => Box::new(Lines::new(std::io::stderr(), config.train.logging_steps)),
    };
    let mut watch = Observers::new(vec![shown]);
    let summary = session::train(&config, &mut watch, &stop)?;
    conclude(&config, arguments, &summary)
}

/// Says what came of it and what to do next.
fn conclude(config: &Config, arguments: &Arguments, summary: &Summary) -> anyhow::Result<ExitCode> {
    match &summary.outcome {
        Outcome::Finished { eval_loss } => {
            let mut text = format!("The adapter is in {}.\n", summary.adapter.display());
            if let Some(loss) = eval_loss {
                text.push_str(&format!("Its loss on data.eval is {loss:.4}.\n"));
            }
            say(&format!("{text}Ask it:\n  {}\n", ask_command(config, summary)))?;
            Ok(ExitCode::SUCCESS)
        }
        Outcome::Interrupted { step, checkpoint } => {
            say(&match checkpoint {
                Some(path) => format!(
                    "Stopped after step {step}. To go on from {}:\n  {}\n",
                    path.display(),
                    resume_command(arguments)
                ),
                None => "Stopped before any step was done.\n".into(),
            })?;
            Ok(ExitCode::from(exit::INTERRUPTED))
        }
    }
}

/// The command that goes on with this run: the same values over the file's, or it would be another run.
fn resume_command(arguments: &Arguments) -> String {
    let mut command = format!("{} train {}", program(), quoted(&arguments.config.display().to_string()));
    let resume = "train.resume=auto".to_owned();
    let others = arguments.sets.iter().filter(|set| !set.trim_start().starts_with("train.resume"));
    for set in others.chain([&resume]) {
        command.push_str(&format!(" --set {}", quoted(set)));
    }
    command
}

/// The command that asks the adapter what the training data asks first.
fn ask_command(config: &Config, summary: &Summary) -> String {
    let path = |path: &Path| quoted(&path.display().to_string());
    let question = summary.question.as_deref().unwrap_or("Hello");
    let (model, adapter) = (path(&config.model), path(&summary.adapter));
    let mut command = format!("{} generate --model {model} --adapter {adapter}", program());
    // The frozen weights as the adapter knows them.
    match &config.quantization {
        Quantization { weights: Weights::None, .. } => command.push_str(" --weights none"),
        Quantization { double, block_size, .. } => {
            if !double {
                command.push_str(" --weights nf4");
            }
            if *block_size != 64 {
                command.push_str(&format!(" --block-size {block_size}"));
            }
        }
    }
    command + " --prompt " + &quoted(question)
}

/// What the user called, so that the command works as it is shown.
fn program() -> String {
    std::env::args().next().map_or_else(|| "nibble".into(), |name| quoted(&name))
}

/// A word for a POSIX shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        for text in ["plain/path-1.gguf", "two words", "it's", "", "$HOME `x` \"y\" \\ !", "a\nb"] {
            let shell = std::process::Command::new("sh")
                .arg("-c")
                .arg(format!("printf %s {}", quoted(text)))
                .output();
            assert_eq!(String::from_utf8(shell.unwrap().stdout).unwrap(), text);
        }
    }
}
