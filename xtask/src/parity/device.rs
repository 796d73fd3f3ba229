//! Where the cases run: the emulator's executor, under memcheck and racecheck.

use std::collections::HashMap;

use anyhow::{Context as _, Result, anyhow};
use gpu_emulator::exec::{self, Counts, Options};
use gpu_emulator::memory::DeviceMemory;
use gpu_emulator::ptx::ast::Module;
use gpu_emulator::ptx::{decode, parser};

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

/// The device of a backend. With a seed, the emulator shuffles blocks and warps.
///
/// # Errors
/// There is no such device here.
pub fn open(backend: Backend, seed: Option<u64>) -> Result<Box<dyn Device>> {
    match backend {
        Backend::Emulator => Ok(Box::new(Emulated { modules: HashMap::new(), launches: 0, seed })),
    }
}

/// Bytes of device memory: enough for the largest chunk of the exhaustive run.
const MEMORY: u64 = 4 << 30;

struct Emulated {
    /// Modules that were parsed, by kernel.
    modules: HashMap<&'static str, Module>,
    launches: u32,
    /// The order of blocks and warps; none: ascending.
    seed: Option<u64>,
}

impl Device for Emulated {
    fn name(&self) -> String {
        let order = self.seed.map_or("in order".to_string(), |seed| format!("shuffled by seed {seed}"));
        format!("emulator, memcheck and racecheck on, blocks and warps {order}")
    }

    fn capability(&self) -> u32 {
        90
    }

    fn run(&mut self, buffers: &mut [Data], steps: &[Step]) -> Result<()> {
        let mut memory = DeviceMemory::new(MEMORY, true);
        let allocate = |memory: &mut DeviceMemory, bytes: &[u8], name| -> Result<u64> {
            let length = bytes.len().max(1) as u64;
            let address = memory.allocate(length, name, true).context("the emulated device is full")?;
            if !bytes.is_empty() {
                memory.write(address, bytes).map_err(|bad| anyhow!("{bad:?}"))?;
            }
            Ok(address)
        };
        let mut addresses = Vec::new();
        for buffer in buffers.iter() {
            let bytes = for_each_type!(buffer, values => bytemuck::cast_slice(values));
            addresses.push(allocate(&mut memory, bytes, "buffer of the case")?);
        }
        for step in steps {
            let kernel = step.kernel;
            let launch = kernel.launch(&step.sizes)?;
            if launch.is_empty() {
                continue;
            }
            if !self.modules.contains_key(kernel.name) {
                self.modules.insert(kernel.name, parser::parse(kernel.source).context(kernel.name)?);
            }
            let module = &self.modules[kernel.name];
            let mut globals = HashMap::new();
            for variable in &module.variables {
                if let Some(init) = &variable.init {
                    globals.insert(variable.name.clone(), allocate(&mut memory, init, "module variable")?);
                }
            }
            let entry = module.entries.first().with_context(|| format!("{}: no entry", kernel.name))?;
            let code = decode::decode(module, entry, &globals).context(kernel.name)?;
            self.launches += 1;
            let launch = exec::Launch {
                kernel: &code,
                grid: launch.grid,
                block: launch.block,
                params: &parameters(&step.arguments, buffers, &addresses),
                dynamic_shared: launch.shared_bytes as usize,
                id: self.launches,
            };
            let options = Options { race: true, seed: self.seed, ..Options::default() };
            exec::run(&launch, &mut memory, options, &mut Counts::default())
                .map_err(|fault| anyhow!("{} ({})", fault.message, fault.code))?;
        }
        for (buffer, address) in buffers.iter_mut().zip(addresses) {
            let bytes: &mut [u8] = for_each_type!(buffer, values => bytemuck::cast_slice_mut(values));
            if !bytes.is_empty() {
                memory.read(address, bytes, false).map_err(|bad| anyhow!("{bad:?}"))?;
            }
        }
        Ok(())
    }
}

/// The parameter buffer: each argument at a multiple of its size.
fn parameters(arguments: &[Argument], buffers: &[Data], addresses: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |value: &[u8]| {
        bytes.resize(bytes.len().next_multiple_of(value.len()), 0u8);
        bytes.extend_from_slice(value);
    };
    for argument in arguments {
        match *argument {
            Argument::Buffer { index, offset } => {
                let at = addresses[index] + (offset * buffers[index].element().bytes()) as u64;
                put(&at.to_le_bytes());
            }
            Argument::Nothing => put(&0u64.to_le_bytes()),
            Argument::U32(value) => put(&value.to_le_bytes()),
            Argument::U64(value) => put(&value.to_le_bytes()),
            Argument::F32(value) => put(&value.to_le_bytes()),
            Argument::F64(value) => put(&value.to_le_bytes()),
        }
    }
    bytes
}
