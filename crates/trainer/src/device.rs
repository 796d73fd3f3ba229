//! What a run computes on: the wish of the configuration against what this build and this machine have.

use cpu_ops::Threads;

use crate::Result;
use crate::config::{Config, DeviceKind};

/// The device that was asked for is not to be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A GPU was asked for by number.
    #[error("device.kind = \"cuda:{number}\": {reason}; use \"cpu\", or \"auto\"")]
    NoCuda {
        /// The GPU's number.
        number: u32,
        /// Why there is none.
        reason: &'static str,
    },
    /// A key was given that only a GPU gives a meaning.
    #[error(
        "{place}: device.vram_limit_mb limits the memory of a GPU, and this run is on the CPU; leave it out"
    )]
    NoVram {
        /// Where the key stands.
        place: String,
    },
}

/// Why there is no GPU for a run: training has one backend so far.
const REASON: &str = "training on a GPU is not part of this build, which computes on the CPU";

/// What `auto` found, in words: the GPUs that stay unused, or that there are none and why.
#[cfg(feature = "cuda")]
fn found() -> String {
    match gpu_driver::devices() {
        // What to do about it is for who wants a GPU.
        Err(error) => error.to_string().split("; ").next().unwrap_or_default().to_owned(),
        Ok(devices) => {
            let names: Vec<String> = devices.iter().map(ToString::to_string).collect();
            format!("{} is here, but {REASON}", names.join(" and "))
        }
    }
}

/// What `auto` found: a build without the `cuda` feature does not look.
#[cfg(not(feature = "cuda"))]
fn found() -> String {
    REASON.to_owned()
}

/// The threads of a run on the CPU, and a line that says so and why.
///
/// # Errors
/// A GPU was asked for, or a setting that only a GPU has; or the threads cannot be started.
pub fn choose(config: &Config) -> Result<(Threads, String)> {
    if let DeviceKind::Cuda(number) = config.device.kind {
        return Err(DeviceError::NoCuda { number, reason: REASON }.into());
    }
    if let Some(place) = config.place("device.vram_limit_mb") {
        return Err(DeviceError::NoVram { place: place.into() }.into());
    }
    let threads = match config.device.threads {
        Some(count) => Threads::new(count)?,
        None => Threads::available()?,
    };
    let mut line = match threads.count() {
        1 => "CPU, 1 thread".to_owned(),
        count => format!("CPU, {count} threads"),
    };
    if config.device.kind == DeviceKind::Auto {
        line.push_str(&format!(" (auto: {})", found()));
    }
    Ok((threads, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(sets: &[&str]) -> Result<(Threads, String)> {
        let text = "model = \"m\"\noutput_dir = \"o\"\n[data]\ntrain = \"t\"";
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        choose(&Config::parse(text, "run.toml", &sets).unwrap())
    }

    // B106, B119, B122: a GPU that is not there is refused before any other work, and auto says what it took and why.
    #[test]
    fn a_gpu_that_is_not_there_is_refused_and_auto_says_why() {
        let error = chosen(&["device.kind=cuda:7"]).unwrap_err().to_string();
        assert!(error.starts_with("device.kind = \"cuda:7\": ") && error.contains("use \"cpu\""), "{error}");
        let (threads, line) = chosen(&["device.threads=3"]).unwrap();
        assert_eq!(threads.count(), 3);
        assert!(line.starts_with("CPU, 3 threads (auto: "), "{line}");
        assert_eq!(chosen(&["device.kind=cpu", "device.threads=1"]).unwrap().1, "CPU, 1 thread");
    }

    #[test]
    fn a_limit_of_gpu_memory_is_refused_on_the_cpu() {
        let error = chosen(&["device.vram_limit_mb=4000"]).unwrap_err().to_string();
        assert!(error.starts_with("--set device.vram_limit_mb=4000: device.vram_limit_mb limits"), "{error}");
    }
}
