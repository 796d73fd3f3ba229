//! `cargo xtask emulate -- COMMAND`: runs any program with the emulator in place of the NVIDIA driver.
//!
//! The two libraries are built, then linked under the names that programs open into a folder outside the
//! target folder, which comes first on the library path of the command alone. No file called libcuda.so is
//! left behind: the folder is removed when the command has ended.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;

/// Options of `cargo xtask emulate`.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// The program and its arguments. Settings of the emulator are environment variables: see its README
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Names that programs open, and the library behind each.
const NAMES: [(&str, &str); 4] = [
    ("libcuda.so", "libgpu_emulator.so"),
    ("libcuda.so.1", "libgpu_emulator.so"),
    ("libcublas.so", "libgpu_emulator_cublas.so"),
    ("libcublas.so.12", "libgpu_emulator_cublas.so"),
];

/// Runs the command; its exit status becomes ours.
///
/// # Errors
/// Under `REQUIRE_GPU=1`, when the emulator does not build, and when the command fails.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (program, rest) = arguments.command.split_first().context("no command to run")?;
    let mut command = Command::new(program);
    command.args(rest);
    let status = under_emulator(command, Command::status)?;
    if status.success() {
        return Ok(());
    }
    match status.code() {
        Some(code) => std::process::exit(code),
        None => bail!("`{program}` was ended: {status}"),
    }
}

/// Starts a command with the emulator's libraries before all others; they are gone when it has ended.
fn under_emulator<T>(
    mut command: Command,
    start: impl FnOnce(&mut Command) -> std::io::Result<T>,
) -> Result<T> {
    let libraries = Libraries::build()?;
    libraries.apply(&mut command);
    start(&mut command).with_context(|| format!("cannot start `{}`", command.get_program().display()))
}

/// The emulator's libraries under the driver's names, for as long as this lives.
#[derive(Debug)]
pub struct Libraries {
    folder: PathBuf,
}

impl Libraries {
    /// Builds both and links them.
    ///
    /// # Errors
    /// Under `REQUIRE_GPU=1`; with `GPU_EMULATOR_MISSING`, which needs `gpu_emulator::install`; when the
    /// build fails.
    pub fn build() -> Result<Self> {
        if std::env::var("REQUIRE_GPU").is_ok_and(|v| v == "1") {
            bail!("REQUIRE_GPU=1 is set, so the emulator must not stand in for a GPU");
        }
        if std::env::var("GPU_EMULATOR_MISSING").is_ok_and(|v| !v.is_empty()) {
            bail!(
                "GPU_EMULATOR_MISSING works through gpu_emulator::install() in a test, not through emulate"
            );
        }
        command::run(command::cargo("build --quiet -p gpu-emulator -p gpu-emulator-cublas"))?;
        let built = target_folder().join("debug");
        let folder = std::env::temp_dir().join(format!("gpu-emulator-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let libraries = Self { folder };
        for (name, file) in NAMES {
            link(&built.join(file), &libraries.folder.join(name))?;
        }
        Ok(libraries)
    }

    /// Puts the folder first on the command's library path.
    pub fn apply(&self, command: &mut Command) {
        let mut path = self.folder.clone().into_os_string();
        if let Some(old) = std::env::var_os("LD_LIBRARY_PATH") {
            path.push(":");
            path.push(old);
        }
        command.env("LD_LIBRARY_PATH", path);
    }
}

impl Drop for Libraries {
    fn drop(&mut self) {
        // A folder of links in the temporary folder: what is left of it harms nobody.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Where Cargo builds.
pub fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| command::root().join("target"), PathBuf::from)
}

#[cfg(unix)]
fn link(file: &Path, name: &Path) -> Result<()> {
    let file = file.canonicalize().with_context(|| format!("{} was not built", file.display()))?;
    std::os::unix::fs::symlink(&file, name).with_context(|| name.display().to_string())
}

#[cfg(not(unix))]
fn link(file: &Path, _name: &Path) -> Result<()> {
    bail!("{}: the emulator replaces libcuda on Linux only", file.display())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Starts a test of this file as a program of its own, which finds its driver as any program does.
    fn child(name: &str) -> std::process::Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("emulate::tests::{name}"), "--ignored", "--nocapture"]);
        command.env("GPU_EMULATOR_NAME", "Emulated for a test").env_remove("REQUIRE_GPU");
        under_emulator(command, Command::output).unwrap()
    }

    #[test]
    fn a_program_runs_its_kernels_on_the_emulator() {
        let output = child("child_that_adds_on_the_first_device");
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{text}");
        assert!(text.contains("Emulated for a test") && text.contains("sum [11.0, 22.0, 33.0]"), "{text}");
    }

    #[test]
    #[ignore = "a program that a_program_runs_its_kernels_on_the_emulator starts"]
    fn child_that_adds_on_the_first_device() {
        for device in gpu_driver::devices().unwrap() {
            println!("{device}");
        }
        let gpu = gpu_driver::Gpu::open(0).unwrap();
        let kernel = gpu.load(&kernels_ptx::ACCUMULATE).unwrap();
        let stream = gpu.stream().unwrap();
        let x = stream.buffer(&[1.0f32, 2.0, 3.0]).unwrap();
        let mut y = stream.buffer(&[10.0f32, 20.0, 30.0]).unwrap();
        kernel.launch(&stream, &[3], &gpu_driver::arguments![&x, &mut y, 3u64, 1f32]).unwrap();
        println!("sum {:?}", stream.read(&y).unwrap());
    }
}
