//! The command line: what can be asked, and how the answer, good or bad, is shown. The work is the library's.

mod exit;
mod generate;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Fine-tunes language models in 4 bits (QLoRA): a model and a JSONL file in, a LoRA adapter out.
#[derive(Debug, Parser)]
#[command(name = "nibble", version, after_help = exit::HELP, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Train(train::Arguments),
    Generate(generate::Arguments),
}

/// Does what the arguments of this process ask for.
pub fn run() -> ExitCode {
    // Wrong usage ends here, with clap's own message and exit code 2.
    let arguments = Arguments::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::WARN).init();
    let outcome = match arguments.command {
        Command::Train(arguments) => train::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {}", describe(&error));
        ExitCode::from(exit::code(&error))
    })
}

/// An error with its causes, each that its message does not already say.
fn describe(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str("\n  because: ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn causes_are_told_once() {
        let cause = std::io::Error::other("disk full");
        let error = anyhow::Error::new(trainer::Error::io("write", "x")(cause));
        assert_eq!(describe(&error), "cannot write x: disk full");
        let error = anyhow::Error::msg("inner").context("outer");
        assert_eq!(describe(&error), "outer\n  because: inner");
    }
}
