//! What the emulated device is like and which faults it has, as settings with names.
//!
//! The settings are environment variables, read once when the driver initialises; the same names may be
//! given to [`crate::Emulator::set`] afterwards. [`SETTINGS`] is the table that the README shows.

mod registers;

use crate::exec::Options;
pub use registers::Registers;

/// Name, default and meaning of each setting.
pub const SETTINGS: &[(&str, &str, &str)] = &[
    ("GPU_EMULATOR_DEVICES", "1", "number of devices; 0 makes cuInit fail with 100"),
    ("GPU_EMULATOR_NAME", "Software GPU", "the device's name"),
    ("GPU_EMULATOR_VRAM", "8GiB", "device memory (bytes, or with KiB, MiB, GiB)"),
    ("GPU_EMULATOR_COMPUTE", "8.6", "compute capability"),
    ("GPU_EMULATOR_INTEGRATED", "off", "an integrated device"),
    ("GPU_EMULATOR_DRIVER_VERSION", "12040", "what cuDriverGetVersion says; PTX newer than it is refused"),
    ("GPU_EMULATOR_MISSING", "", "functions, with commas, that the library does not have (read at install)"),
    ("GPU_EMULATOR_POOLS", "on", "memory pools (attribute 115, cuMemAllocAsync)"),
    ("GPU_EMULATOR_PINNED_LIMIT", "", "the most host memory that can be pinned"),
    ("GPU_EMULATOR_SPILL", "off", "allocation beyond VRAM succeeds, and access to it is slow, as on Windows"),
    (
        "GPU_EMULATOR_STREAMS",
        "lazy",
        "lazy (work runs at synchronisation), eager, or a number: lazy in an order from that seed, warps and blocks too",
    ),
    ("GPU_EMULATOR_MEMCHECK", "on", "reads of unwritten memory are errors (bounds are checked always)"),
    ("GPU_EMULATOR_RACECHECK", "off", "unordered accesses are errors"),
    (
        "GPU_EMULATOR_REGISTERS",
        "",
        "a file with the registers of kernels, as a table of `cargo xtask ptx`: a block that needs too many gets 701",
    ),
    ("GPU_EMULATOR_WATCHDOG", "20000000000", "warp instructions of one launch before it is stopped with 702"),
    ("GPU_EMULATOR_FAIL", "", "FUNCTION:NTH:CODE, with commas: the nth call from now on returns the code"),
    ("GPU_EMULATOR_FAIL_ASYNC", "", "NTH:CODE, with commas: the nth piece of stream work fails when it runs"),
    (
        "GPU_EMULATOR_CUBLAS_CAPTURE",
        "fail",
        "cuBLAS under capture without a workspace: fail, or allocate (as reported since 12.2)",
    ),
];

/// A setting that is none, or whose value means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value}: {expected}")]
pub struct SettingError {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
    /// What would be right.
    pub expected: String,
}

/// When stream work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// At synchronisation points only.
    Lazy,
    /// At once.
    Eager,
    /// Lazily, in an order that the seed decides.
    Seeded(u64),
}

/// The settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Devices.
    pub devices: i32,
    /// Name.
    pub name: String,
    /// Bytes of device memory.
    pub vram: u64,
    /// Compute capability times ten.
    pub compute: u32,
    /// Integrated device.
    pub integrated: bool,
    /// Driver version.
    pub driver_version: i32,
    /// Missing functions.
    pub missing: Vec<String>,
    /// Memory pools.
    pub pools: bool,
    /// Limit of pinned memory.
    pub pinned_limit: Option<u64>,
    /// Spilling.
    pub spill: bool,
    /// Stream mode.
    pub streams: Streams,
    /// Registers of a thread, by kernel and capability.
    pub registers: Registers,
    /// How kernels run.
    pub exec: Options,
    /// Calls that fail: function, how many calls from now, code.
    pub fail: Vec<(String, u64, i32)>,
    /// Work that fails: how many items from now, code.
    pub fail_async: Vec<(u64, i32)>,
    /// cuBLAS allocates under capture.
    pub cublas_allocates: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: 1,
            name: "Software GPU".into(),
            vram: 8 << 30,
            compute: 86,
            integrated: false,
            driver_version: 12040,
            missing: Vec::new(),
            pools: true,
            pinned_limit: None,
            spill: false,
            streams: Streams::Lazy,
            registers: Registers::default(),
            exec: Options::default(),
            fail: Vec::new(),
            fail_async: Vec::new(),
            cublas_allocates: false,
        }
    }
}

/// Bytes of `8GiB`, `512MiB`, `4096`.
fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let scale = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(scale)
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "on" | "1" | "true" => Some(true),
        "off" | "0" | "false" => Some(false),
        _ => None,
    }
}

impl Config {
    /// The defaults, changed by the environment.
    ///
    /// # Errors
    /// A variable whose value means nothing.
    pub fn from_env() -> Result<Self, SettingError> {
        let mut config = Self::default();
        for (name, _, _) in SETTINGS {
            if let Ok(value) = std::env::var(name) {
                config.set(name, &value)?;
            }
        }
        Ok(config)
    }

    /// Changes one setting.
    ///
    /// # Errors
    /// An unknown name, or a value that means nothing.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        let error = |expected: &str| SettingError {
            name: name.into(),
            value: value.into(),
            expected: expected.into(),
        };
        let on_off = || switch(value).ok_or_else(|| error("expected on or off"));
        let size = || bytes(value).ok_or_else(|| error("expected bytes, such as 8GiB"));
        let number = || value.parse::<u64>().map_err(|_| error("expected a number"));
        match name {
            "GPU_EMULATOR_DEVICES" => {
                self.devices = match number()? {
                    n @ (0 | 1) => n as i32,
                    _ => return Err(error("the emulator has 0 or 1 devices")),
                }
            }
            "GPU_EMULATOR_NAME" => self.name = value.into(),
            "GPU_EMULATOR_VRAM" => self.vram = size()?,
            "GPU_EMULATOR_COMPUTE" => {
                let parsed = value
                    .split_once('.')
                    .and_then(|(a, b)| Some((a.parse::<u32>().ok()?, b.parse::<u32>().ok()?)));
                self.compute = match parsed {
                    Some((major @ 5..=12, minor @ 0..=9)) => major * 10 + minor,
                    _ => return Err(error("expected a capability, such as 8.6")),
                }
            }
            "GPU_EMULATOR_INTEGRATED" => self.integrated = on_off()?,
            "GPU_EMULATOR_DRIVER_VERSION" => {
                self.driver_version = match number()? {
                    n @ 9000..=20000 => n as i32,
                    _ => return Err(error("expected 1000 * major + 10 * minor, such as 12040")),
                }
            }
            "GPU_EMULATOR_MISSING" => {
                self.missing =
                    value.split(',').map(str::trim).filter(|s| !s.is_empty()).map(Into::into).collect();
            }
            "GPU_EMULATOR_POOLS" => self.pools = on_off()?,
            "GPU_EMULATOR_PINNED_LIMIT" => {
                self.pinned_limit = if value.is_empty() { None } else { Some(size()?) }
            }
            "GPU_EMULATOR_SPILL" => self.spill = on_off()?,
            "GPU_EMULATOR_STREAMS" => {
                self.streams = match value {
                    "lazy" => Streams::Lazy,
                    "eager" => Streams::Eager,
                    _ => Streams::Seeded(value.parse().map_err(|_| error("expected lazy, eager or a seed"))?),
                };
                self.exec.seed = match self.streams {
                    Streams::Seeded(seed) => Some(seed),
                    _ => None,
                };
            }
            "GPU_EMULATOR_MEMCHECK" => self.exec.uninitialised = on_off()?,
            "GPU_EMULATOR_RACECHECK" => self.exec.race = on_off()?,
            "GPU_EMULATOR_REGISTERS" => {
                self.registers = if value.is_empty() {
                    Registers::default()
                } else {
                    let text = std::fs::read_to_string(value)
                        .map_err(|e| error(&format!("expected a file that can be read: {e}")))?;
                    Registers::parse(&text).map_err(|what| error(&what))?
                }
            }
            "GPU_EMULATOR_WATCHDOG" => self.exec.watchdog = number()?,
            "GPU_EMULATOR_FAIL" => {
                self.fail = value
                    .split(',')
                    .filter(|s| !s.trim().is_empty())
                    .map(|one| {
                        let mut parts = one.trim().split(':');
                        let parsed = (|| {
                            let function = parts.next()?.to_string();
                            Some((function, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
                        })();
                        parsed
                            .filter(|p: &(String, u64, i32)| p.1 > 0)
                            .ok_or_else(|| error("expected FUNCTION:NTH:CODE, counting from 1"))
                    })
                    .collect::<Result<_, _>>()?;
            }
            "GPU_EMULATOR_FAIL_ASYNC" => {
                self.fail_async = value
                    .split(',')
                    .filter(|s| !s.trim().is_empty())
                    .map(|one| {
                        let parsed = one
                            .trim()
                            .split_once(':')
                            .and_then(|(n, c)| Some((n.parse().ok()?, c.parse().ok()?)));
                        parsed
                            .filter(|p: &(u64, i32)| p.0 > 0)
                            .ok_or_else(|| error("expected NTH:CODE, counting from 1"))
                    })
                    .collect::<Result<_, _>>()?;
            }
            "GPU_EMULATOR_CUBLAS_CAPTURE" => {
                self.cublas_allocates = match value {
                    "fail" => false,
                    "allocate" => true,
                    _ => return Err(error("expected fail or allocate")),
                }
            }
            _ => return Err(error("no such setting")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_what_the_table_says() {
        let mut config = Config::default();
        for (name, default, _) in SETTINGS {
            config.set(name, default).unwrap();
        }
        assert_eq!((config.vram, config.compute, config.driver_version), (8 << 30, 86, 12040));
    }

    #[test]
    fn the_readme_shows_every_setting() {
        let readme = include_str!("../README.md");
        for (name, default, _) in SETTINGS {
            let row = readme
                .lines()
                .find(|l| l.starts_with(&format!("| `{name}`")))
                .unwrap_or_else(|| panic!("{name}"));
            assert!(row.contains(default), "{name}: the README has another default");
        }
    }

    #[test]
    fn what_means_nothing_is_refused_by_name() {
        let mut config = Config::default();
        for (name, value) in [
            ("GPU_EMULATOR_VRAM", "lots"),
            ("GPU_EMULATOR_FAIL", "cuInit"),
            ("GPU_EMULATOR_FAIL", "cuInit:0:2"),
            ("GPU_EMULATOR_X", "1"),
            ("GPU_EMULATOR_COMPUTE", "8"),
        ] {
            assert!(config.set(name, value).unwrap_err().to_string().starts_with(name));
        }
    }
}
