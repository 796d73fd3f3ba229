//! Where the cases run: on a device behind gpu-driver, as a program's launches do. The device is a GPU, or the
//! emulator in place of its driver, under memcheck and racecheck.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, bail};
use gpu_driver::{Argument as Passed, Buffer, Capture, DeviceType, Gpu, Kernel, Stream, View, ViewMut};
use gpu_emulator::Emulator;
use half::{bf16, f16};
use kernels_ptx::{Access, Element, Kind};

use super::Backend;
use super::case::{Argument, Data, Step, for_each_type};

/// Something that runs launches over buffers.
pub trait Device {
    /// What to print above the table.
    fn name(&self) -> String;

    /// Compute capability, as major * 10 + minor.
    fn capability(&self) -> u32;

    /// Uploads the buffers, runs the launches in order, and brings the buffers back.
    ///
    /// # Errors
    /// A kernel that does not load, or a launch that fails.
    fn run(&mut self, buffers: &mut [Data], steps: &[Step]) -> Result<()>;
}

/// How a device runs its launches.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    /// The emulator shuffles streams, blocks and warps by this seed; none: ascending.
    pub seed: Option<u64>,
    /// Launches are captured and the graph is launched, rather than launching them.
    pub captured: bool,
    /// The emulator looks for races.
    pub racecheck: bool,
}

impl Default for Way {
    fn default() -> Self {
        Self { seed: None, captured: false, racecheck: true }
    }
}

/// The device of a backend.
///
/// # Errors
/// There is no such device here: no driver, no GPU, or no emulator beside this program.
pub fn open(backend: Backend, way: Way) -> Result<Box<dyn Device>> {
    match backend {
        Backend::Emulator => Ok(Box::new(Emulated::open(way)?)),
        Backend::Gpu if way.seed.is_some() => {
            bail!("--seed shuffles the emulator; a GPU has an order of its own")
        }
        Backend::Gpu => Ok(Box::new(Driven::open(way.captured)?)),
    }
}

/// A device behind gpu-driver.
pub struct Driven {
    /// What was loaded, by the text of the kernel.
    kernels: HashMap<*const u8, Kernel>,
    stream: Stream,
    gpu: Gpu,
    captured: bool,
}

impl Driven {
    /// The first device.
    ///
    /// # Errors
    /// There is none, or no driver.
    pub fn open(captured: bool) -> Result<Self> {
        let gpu = Gpu::open(0)?;
        Ok(Self { kernels: HashMap::new(), stream: gpu.stream()?, gpu, captured })
    }

    fn launch(&self, steps: &[Step], device: &mut [Buffer<u8>]) -> Result<()> {
        for step in steps {
            let kernel = &self.kernels[&step.kernel.source.as_ptr()];
            let mut views: Vec<Lent<'_>> = device.iter_mut().map(Lent::new).collect();
            let mut arguments = Vec::new();
            for (argument, parameter) in step.arguments.iter().zip(step.kernel.parameters) {
                arguments.push(match (*argument, parameter.kind) {
                    (Argument::Buffer { index, offset }, Kind::Pointer { element, access, .. }) => views
                        [index]
                        .pass(element, access, offset)
                        .with_context(|| format!("{}: `{}`", step.kernel.name, parameter.name))?,
                    (Argument::Buffer { .. } | Argument::Nothing, _) => Passed::NOTHING,
                    (Argument::U32(value), _) => value.into(),
                    (Argument::U64(value), _) => value.into(),
                    (Argument::F32(value), _) => value.into(),
                    (Argument::F64(value), _) => value.into(),
                });
            }
            kernel.launch(&self.stream, &step.sizes, &arguments)?;
        }
        Ok(())
    }
}

impl Device for Driven {
    fn name(&self) -> String {
        format!("{}{}", self.gpu.device(), if self.captured { ", captured" } else { "" })
    }

    fn capability(&self) -> u32 {
        self.gpu.device().compute()
    }

    fn run(&mut self, buffers: &mut [Data], steps: &[Step]) -> Result<()> {
        for step in steps {
            let text = step.kernel.source.as_ptr();
            if !self.kernels.contains_key(&text) {
                self.kernels.insert(text, self.gpu.load(step.kernel)?);
            }
        }
        let mut device = Vec::new();
        for buffer in buffers.iter() {
            let bytes: &[u8] = for_each_type!(buffer, values => bytemuck::cast_slice(values));
            device.push(self.stream.buffer(bytes)?);
        }
        if self.captured {
            let capture = Capture::begin(&self.stream, &[])?;
            self.launch(steps, &mut device)?;
            capture.end()?.instantiate()?.launch(&self.stream)?;
        } else {
            self.launch(steps, &mut device)?;
        }
        for (buffer, device) in buffers.iter_mut().zip(&device) {
            let bytes: &mut [u8] = for_each_type!(buffer, values => bytemuck::cast_slice_mut(values));
            self.stream.download(device, bytes)?;
        }
        Ok(())
    }
}

/// A buffer lent to one launch: to read any number of times, to write once.
struct Lent<'a> {
    read: View<'a, u8>,
    write: Option<ViewMut<'a, u8>>,
}

impl<'a> Lent<'a> {
    fn new(buffer: &'a mut Buffer<u8>) -> Self {
        let write = buffer.view_mut();
        Self { read: write.aliased(), write: Some(write) }
    }

    /// The elements from `offset` on.
    fn pass(&mut self, element: Element, access: Access, offset: usize) -> Result<Passed<'a>> {
        match element {
            Element::U8 => self.pass_as::<u8>(access, offset),
            Element::U32 => self.pass_as::<u32>(access, offset),
            Element::I32 => self.pass_as::<i32>(access, offset),
            Element::U64 => self.pass_as::<u64>(access, offset),
            Element::F16 => self.pass_as::<f16>(access, offset),
            Element::Bf16 => self.pass_as::<bf16>(access, offset),
            Element::F32 => self.pass_as::<f32>(access, offset),
            Element::F64 => self.pass_as::<f64>(access, offset),
        }
    }

    fn pass_as<T: DeviceType>(&mut self, access: Access, offset: usize) -> Result<Passed<'a>> {
        if access == Access::Read {
            return Ok(self.read.cast::<T>()?.range(offset..)?.into());
        }
        let view = self.write.take().context("the launch writes one buffer through two parameters")?;
        Ok(view.cast::<T>()?.range(offset..)?.into())
    }
}

/// The emulator in place of the driver. One at a time, for its settings and contexts belong to the process.
struct Emulated {
    driven: Driven,
    emulator: Emulator,
    way: Way,
    _turn: MutexGuard<'static, ()>,
}

/// The registers of our kernels, without which the emulator cannot refuse a block that has too many.
const PTXAS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/kernels-ptx/ptxas.md");

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl Emulated {
    fn open(way: Way) -> Result<Self> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let emulator = gpu_emulator::install()?;
        emulator.set("GPU_EMULATOR_COMPUTE", "9.0")?;
        emulator.set("GPU_EMULATOR_MEMCHECK", "on")?;
        emulator.set("GPU_EMULATOR_RACECHECK", if way.racecheck { "on" } else { "off" })?;
        emulator.set("GPU_EMULATOR_REGISTERS", PTXAS)?;
        let order = way.seed.map_or("lazy".to_owned(), |seed| seed.to_string());
        emulator.set("GPU_EMULATOR_STREAMS", &order)?;
        Ok(Self { driven: Driven::open(way.captured)?, emulator, way, _turn: turn })
    }
}

impl Device for Emulated {
    fn name(&self) -> String {
        let order = self.way.seed.map_or("in order".to_string(), |seed| format!("shuffled by seed {seed}"));
        let captured = if self.way.captured { ", captured" } else { "" };
        let checks = if self.way.racecheck { "memcheck and racecheck" } else { "memcheck" };
        format!("emulator behind gpu-driver, {checks} on, blocks and warps {order}{captured}")
    }

    fn capability(&self) -> u32 {
        self.driven.capability()
    }

    fn run(&mut self, buffers: &mut [Data], steps: &[Step]) -> Result<()> {
        self.emulator.clear_reports();
        // What the emulator reports says where it was; the driver's code only what.
        let result = self.driven.run(buffers, steps).map_err(|error| {
            let reports = self.emulator.reports().join("\n");
            error.context(reports)
        });
        let reports = self.emulator.reports();
        if result.is_ok() && !reports.is_empty() {
            bail!("the emulator reports: {}", reports.join("\n"));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parity::all_cases;

    #[test]
    fn a_captured_case_gives_the_bits_of_a_launched_one() {
        let mut results = Vec::new();
        for captured in [false, true] {
            let mut device = open(Backend::Emulator, Way { captured, ..Way::default() }).unwrap();
            let mut seen: Vec<Vec<Data>> = Vec::new();
            // The last case of each kernel, which is seldom the simplest.
            let mut cases = all_cases().unwrap();
            cases.reverse();
            let mut done = std::collections::BTreeSet::new();
            for case in cases.iter().filter(|case| done.insert(case.kernel.name)) {
                let mut buffers = case.buffers.clone();
                device.run(&mut buffers, &case.steps).unwrap();
                seen.push(buffers);
            }
            assert_eq!(seen.len(), kernels_ptx::KERNELS.len());
            results.push(seen);
        }
        for (eager, captured) in results[0].iter().flatten().zip(results[1].iter().flatten()) {
            assert!((0..eager.len()).all(|i| eager.bits(i) == captured.bits(i)));
        }
    }

    #[test]
    fn a_machine_without_a_gpu_is_told_so() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "parity::device::tests::child_without_a_gpu", "--ignored", "--nocapture"]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    #[ignore = "run by a_machine_without_a_gpu_is_told_so in a process of its own"]
    fn child_without_a_gpu() {
        let seed = Way { seed: Some(1), ..Way::default() };
        assert!(open(Backend::Gpu, seed).err().unwrap().to_string().contains("--seed shuffles the emulator"));
        match open(Backend::Gpu, Way::default()) {
            Err(error) => {
                let error = error.downcast_ref::<gpu_driver::DriverError>().expect("a typed error");
                println!("{error}");
            }
            // A machine with a card.
            Ok(device) => assert!(device.name().starts_with("cuda:0")),
        }
    }
}
