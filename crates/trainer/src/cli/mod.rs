//! The command line: what can be asked, and how the answer, good or bad, is shown. The work is the library's.

mod exit;
mod generate;
mod train;

use std::io::Write;
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
        // Whoever closed standard error does not want to know; the code still tells.
        let _ = writeln!(std::io::stderr(), "error: {}", describe(&error));
        ExitCode::from(exit::code(&error))
    })
}

/// Writes to standard output. A reader that went away (as `head` does) wants no more, which is no fault.
fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(trainer::Error::io("write", "the answer")(error).into())
        }
        _ => Ok(()),
    }
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
