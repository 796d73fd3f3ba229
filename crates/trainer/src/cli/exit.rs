//! Exit codes: scripts can tell what kind of thing went wrong without reading messages.

use trainer::Error;

/// The table of codes, for `--help`.
pub const HELP: &str = "\
Exit codes:
  0    done
  1    anything that has no code of its own
  2    the command line or the configuration is wrong
  3    the model or an adapter cannot be used
  4    the data set cannot be used
  5    files cannot be read or written, output_dir holds another run, or a checkpoint does not fit
  6    the training failed (no gradient, or gradients that stay infinite)
  7    the device cannot be used
  10   stopped by Ctrl-C after a step; the checkpoint that was written can be resumed
  130  stopped at once by a second Ctrl-C";

/// The run was stopped in order.
pub const INTERRUPTED: u8 = 10;
/// The run was stopped at once: what shells show for an interrupt.
pub const KILLED: i32 = 130;

/// The code of an error.
pub fn code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<Error>() {
        Some(Error::Config(_)) => 2,
        Some(Error::Model(_) | Error::Adapter(_)) => 3,
        Some(Error::Data(_)) => 4,
        Some(Error::Io { .. } | Error::Output(_) | Error::Checkpoint(_)) => 5,
        Some(Error::Engine(_)) => 6,
        Some(Error::Device(_)) => 7,
        _ => 1,
    }
}
