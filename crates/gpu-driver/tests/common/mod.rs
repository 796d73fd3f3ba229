//! A fresh device for each test: the emulator with its settings reset, and the only `Gpu` of the process.
#![allow(dead_code)]

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpu_driver::{Gpu, Stream};
use gpu_emulator::Emulator;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const DEFAULTS: [(&str, &str); 9] = [
    ("GPU_EMULATOR_STREAMS", "lazy"),
    ("GPU_EMULATOR_FAIL", ""),
    ("GPU_EMULATOR_FAIL_ASYNC", ""),
    ("GPU_EMULATOR_VRAM", "8GiB"),
    ("GPU_EMULATOR_POOLS", "on"),
    ("GPU_EMULATOR_COMPUTE", "8.6"),
    ("GPU_EMULATOR_RACECHECK", "on"),
    ("GPU_EMULATOR_CUBLAS_CAPTURE", "fail"),
    ("GPU_EMULATOR_DRIVER_VERSION", "12040"),
];

/// Driver functions whose calls tests count.
const COUNTED: [&str; 6] = [
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuModuleLoadDataEx",
    "cublasSetWorkspace_v2",
    "cuStreamSynchronize",
];

/// The emulator, for one test at a time, because settings, contexts and captures belong to the process.
pub struct Setup {
    pub emulator: Emulator,
    before: Vec<(&'static str, u64)>,
    _turn: MutexGuard<'static, ()>,
}

impl Setup {
    pub fn new() -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let emulator = gpu_emulator::install().unwrap();
        for (name, value) in DEFAULTS {
            emulator.set(name, value).unwrap();
        }
        emulator.clear_reports();
        let before = COUNTED.iter().map(|name| (*name, emulator.counter(name).unwrap())).collect();
        Self { emulator, before, _turn: turn }
    }

    pub fn set(&self, name: &str, value: &str) {
        self.emulator.set(name, value).unwrap();
    }

    /// The device and a stream of it.
    pub fn open(&self) -> (Gpu, Stream) {
        let gpu = Gpu::open(0).unwrap();
        let stream = gpu.stream().unwrap();
        (gpu, stream)
    }

    /// Calls of a driver function since this was made.
    pub fn calls(&self, function: &str) -> u64 {
        let before = self.before.iter().find(|(name, _)| *name == function).map(|(_, calls)| *calls);
        self.emulator.counter(function).unwrap() - before.expect("a function of COUNTED")
    }

    /// The emulator had nothing to complain of.
    #[track_caller]
    pub fn silent(&self) {
        assert_eq!(self.emulator.reports(), Vec::<String>::new());
    }

    /// Some report holds all parts.
    #[track_caller]
    pub fn reported(&self, parts: &[&str]) {
        let reports = self.emulator.reports();
        assert!(reports.iter().any(|r| parts.iter().all(|part| r.contains(part))), "{parts:?}: {reports:?}");
    }
}

/// An error's message holds all parts.
#[track_caller]
pub fn says(error: &dyn std::fmt::Display, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// Runs an ignored test of this file as a process of its own, with these variables, and expects it to pass.
#[track_caller]
pub fn in_a_process(test: &str, variables: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command.env_remove("REQUIRE_GPU").envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
