//! `cargo xtask gpu-report`: a folder that is copied to a machine with a GPU and no toolchain, and measures there
//! what the emulator cannot tell.
//!
//! The folder holds this program and a script that runs it. What it writes is one JSON file, section by section, so
//! that what was measured is kept when the time is up: the device, parity of every kernel with its CPU oracle, whether
//! a captured case gives the bits of a launched one, memory, copy bandwidth, rates of kernels beside it, and rates of
//! our own products beside cuBLAS's. Every result that is timed is checked.

mod rates;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use gpu_driver::Gpu;
use kernels_ptx::Element;
use serde_json::{Map, Value, json};

use crate::command;
use crate::parity::case::{Argument, Case, Data};
use crate::parity::device::{self, Way};
use crate::parity::{Backend, all_cases, compare_all};
use rates::Effort;

/// Options of `cargo xtask gpu-report`.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// The folder to make, from the root of the workspace
    #[arg(long, default_value = "target/gpu-report")]
    folder: PathBuf,
    /// Measures on this machine and writes this file, instead of making the folder; the folder's script does
    #[arg(long, value_name = "FILE")]
    run: Option<PathBuf>,
    /// Small sizes, which show that all of it works and not how fast
    #[arg(long, requires = "run")]
    quick: bool,
}

/// Seconds after which the script ends the program.
const SECONDS: u32 = 480;

/// Runs the command.
///
/// # Errors
/// The folder cannot be written; there is no device; a result differs, which the file says too.
pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.run {
        Some(file) => {
            let effort = if arguments.quick { Effort::SMALL } else { Effort::LARGE };
            measure(file, Backend::Gpu, effort)
        }
        None => make_folder(&command::root().join(&arguments.folder)),
    }
}

fn script() -> String {
    format!(
        "#!/bin/sh\n\
         # Measures this machine's GPU and writes report.json beside this script. Needs the NVIDIA driver; cuBLAS is\n\
         # measured where it is installed. Ends after {SECONDS} seconds at most; what was measured is in the file.\n\
         cd \"$(dirname \"$0\")\" || exit 1\n\
         exec timeout {SECONDS} ./xtask gpu-report --run report.json \"$@\"\n"
    )
}

fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let copy = folder.join("xtask");
    std::fs::copy(&program, &copy).with_context(|| copy.display().to_string())?;
    let run = folder.join("run.sh");
    std::fs::write(&run, script()).with_context(|| run.display().to_string())?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o755))?;
    }
    println!(
        "{} holds the program and run.sh: copy it to the machine, run run.sh, bring report.json back",
        folder.display()
    );
    Ok(())
}

/// The report so far, written after every section.
struct Report<'a> {
    file: &'a Path,
    sections: Map<String, Value>,
    failures: Vec<String>,
    started: Instant,
}

impl Report<'_> {
    /// Adds a section, or why there is none.
    fn section(&mut self, name: &str, content: Result<Value>) -> Result<()> {
        let content = content.unwrap_or_else(|error| {
            self.failures.push(format!("{name}: {error:#}"));
            json!({ "error": format!("{error:#}") })
        });
        self.sections.insert(name.to_owned(), content);
        self.sections.insert("failures".to_owned(), json!(self.failures));
        self.sections.insert("seconds".to_owned(), json!(self.started.elapsed().as_secs_f64()));
        let text = serde_json::to_string_pretty(&self.sections)?;
        std::fs::write(self.file, text).with_context(|| self.file.display().to_string())
    }
}

fn measure(file: &Path, backend: Backend, effort: Effort) -> Result<()> {
    let mut report = Report { file, sections: Map::new(), failures: Vec::new(), started: Instant::now() };
    {
        let mut device = device::open(backend, Way::default())?;
        let gpu = Gpu::open(0)?;
        report.section("device", describe(&gpu))?;
        report.section("nan", nan_patterns(&mut *device))?;
        report.section("copies", rates::copies(&gpu, effort))?;
        let copy = report.sections["copies"]["device"].as_f64();
        report.section("kernels", rates::kernels(&gpu, effort, copy))?;
        report.section("products", rates::products(&gpu, effort))?;
        report.section("memory", memory(&gpu))?;
        let table = compare_all(&mut *device, all_cases()?, None);
        if let Ok(table) = &table {
            report.failures.extend(table.failures.iter().map(|failure| format!("parity: {failure}")));
        }
        report.section("parity", table.and_then(|table| Ok(serde_json::to_value(table)?)))?;
    }
    let graphs = graphs(backend);
    if let Ok(Value::Object(section)) = &graphs {
        let differing = section["differing"].as_array().into_iter().flatten();
        report.failures.extend(differing.map(|case| format!("graphs: {case}")));
    }
    report.section("graphs", graphs)?;
    report.section("complete", Ok(json!(true)))?;
    println!("{} is written", file.display());
    ensure!(report.failures.is_empty(), "the report names failures:\n{}", report.failures.join("\n"));
    Ok(())
}

fn describe(gpu: &Gpu) -> Result<Value> {
    let device = gpu.device();
    let (free, _) = gpu.free_memory()?;
    let (major, minor) = gpu.driver_version()?;
    Ok(json!({
        "name": device.name,
        "compute": device.compute(),
        "multiprocessors": device.multiprocessors,
        "integrated": device.integrated,
        "memory_pools": device.memory_pools,
        "total_bytes": device.total_memory,
        "free_bytes": free,
        "driver_cuda": format!("{major}.{minor}"),
        "program": env!("CARGO_PKG_VERSION"),
    }))
}

/// The bits that the casts give for NaN of both signs, which the emulator takes from what is written of hardware.
fn nan_patterns(device: &mut dyn device::Device) -> Result<Value> {
    let inputs = [0x7FC0_0000, 0xFFC0_0000, 0x7F80_0001, 0xFFFF_FFFFu32];
    let mut section = Map::new();
    for (kernel, element) in
        [(&kernels_ptx::CAST_F32_TO_F16, Element::F16), (&kernels_ptx::CAST_F32_TO_BF16, Element::Bf16)]
    {
        let mut case = Case::new(kernel, "NaN");
        let source = case.buffer(Data::F32(inputs.map(f32::from_bits).to_vec()));
        let target = case.output(element, inputs.len());
        case.launch(&[inputs.len()], &[source, target, Argument::U64(inputs.len() as u64)]);
        device.run(&mut case.buffers, &case.steps)?;
        let bits = |i: usize| format!("{:#x} -> {:#x}", inputs[i], case.buffers[1].bits(i));
        section.insert(kernel.name.to_owned(), (0..inputs.len()).map(bits).collect());
    }
    Ok(Value::Object(section))
}

/// What a buffer of 64 MiB takes by our account and by the driver's.
fn memory(gpu: &Gpu) -> Result<Value> {
    let (before, total) = gpu.free_memory()?;
    let buffer = gpu.buffer::<u8>(64 << 20)?;
    let accounted = gpu.memory();
    let (during, _) = gpu.free_memory()?;
    drop(buffer);
    let (after, _) = gpu.free_memory()?;
    ensure!(gpu.memory().in_use == 0, "{} bytes are still counted", gpu.memory().in_use);
    Ok(json!({
        "total_bytes": total,
        "context_and_others_bytes": total - before,
        "accounted_bytes": accounted.in_use,
        "taken_bytes": before.saturating_sub(during),
        "given_back_bytes": after.saturating_sub(during),
        "accounted_peak_bytes": accounted.peak,
    }))
}

/// Runs every case as launches and as a graph, on a device opened for each, and compares all buffers bit for bit.
fn graphs(backend: Backend) -> Result<Value> {
    let cases = all_cases()?;
    let run = |captured: bool| -> Result<Vec<Option<Vec<Data>>>> {
        let mut device = device::open(backend, Way { captured, ..Way::default() })?;
        let capability = device.capability();
        let possible = |case: &Case| case.steps.iter().all(|step| step.kernel.min_capability <= capability);
        let one = |case: &Case| {
            let mut buffers = case.buffers.clone();
            possible(case).then(|| device.run(&mut buffers, &case.steps).map(|()| buffers)).transpose()
        };
        cases.iter().map(one).collect()
    };
    let (launched, captured) = (run(false)?, run(true)?);
    let mut compared = 0;
    let mut differing = Vec::new();
    for ((case, launched), captured) in cases.iter().zip(&launched).zip(&captured) {
        let (Some(launched), Some(captured)) = (launched, captured) else { continue };
        compared += 1;
        let same = launched
            .iter()
            .zip(captured)
            .all(|(a, b)| a.len() == b.len() && (0..a.len()).all(|i| a.bits(i) == b.bits(i)));
        if !same {
            differing.push(format!("{}, {}", case.kernel.name, case.label));
        }
    }
    ensure!(compared > 0, "no case ran");
    Ok(json!({ "cases": compared, "differing": differing }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_the_emulated_device_holds_every_section() {
        let folder = std::env::temp_dir().join(format!("nibble-gpu-report-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("report.json");
        measure(&file, Backend::Emulator, Effort::SMALL).unwrap();
        let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(report["failures"], json!([]));
        assert_eq!(report["complete"], json!(true));
        assert_eq!(report["device"]["compute"], json!(90));
        assert_eq!(report["nan"]["cast_f32_to_f16"][0], json!("0x7fc00000 -> 0x7fff"));
        assert_eq!(report["parity"]["rows"].as_array().unwrap().len(), kernels_ptx::KERNELS.len());
        assert!(report["graphs"]["cases"].as_u64().unwrap() > 100);
        for rate in ["device", "to_device", "from_device"] {
            assert!(report["copies"][rate].as_f64().unwrap() > 0.0, "{rate}");
        }
        let products = report["products"]["rates"].as_array().unwrap();
        for provider in ["own", "cublas"] {
            let of = products.iter().filter(|row| row["provider"] == provider);
            assert_eq!(of.filter(|row| row["tflops"].as_f64().is_some_and(|rate| rate > 0.0)).count(), 3);
        }
        assert_eq!(products.iter().filter(|row| row["captured_nodes"] == json!(1)).count(), 3);
        assert_eq!(report["memory"]["accounted_bytes"], json!(64 << 20));
    }

    #[test]
    fn a_section_that_fails_is_named_and_the_others_stay() {
        let file = std::env::temp_dir().join(format!("nibble-gpu-report-{}.json", std::process::id()));
        let mut report =
            Report { file: &file, sections: Map::new(), failures: Vec::new(), started: Instant::now() };
        report.section("first", Ok(json!(1))).unwrap();
        report.section("second", Err(anyhow::anyhow!("no such thing"))).unwrap();
        let read: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!((&read["first"], &read["failures"]), (&json!(1), &json!(["second: no such thing"])));
    }

    #[test]
    fn the_folder_holds_a_program_and_a_script() {
        let folder = std::env::temp_dir().join(format!("nibble-gpu-folder-{}", std::process::id()));
        make_folder(&folder).unwrap();
        let script = std::fs::read_to_string(folder.join("run.sh")).unwrap();
        let size = std::fs::metadata(folder.join("xtask")).unwrap().len();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(script.starts_with("#!/bin/sh\n") && script.contains("./xtask gpu-report --run report.json"));
        assert!(size > 0);
    }
}
