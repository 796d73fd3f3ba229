//! Runs one kernel on fresh device memory, without the driver.

use gpu_emulator::exec::{Counts, Fault, Launch, Options, run};
use gpu_emulator::memory::DeviceMemory;
use gpu_emulator::ptx::decode::{Addresses, decode};
use gpu_emulator::ptx::parser::parse;

/// A kernel `k` with parameters `in` and `out` (64-bit), and its launch.
pub struct Case<'a> {
    /// Declarations and instructions.
    pub body: &'a str,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks.
    pub blocks: u32,
    /// Bytes of the input, in words.
    pub input: Vec<u32>,
    /// Words of the output.
    pub output: usize,
    /// Races are errors.
    pub race: bool,
    /// Shuffles blocks and warps.
    pub seed: Option<u64>,
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self { body: "", threads: 32, blocks: 1, input: vec![0; 1], output: 32, race: true, seed: None }
    }
}

impl Case<'_> {
    /// The PTX that is run.
    pub fn source(&self) -> String {
        // One line before the body, so that line n of the body is line n + 1.
        format!(
            ".version 8.0 .target sm_90 .address_size 64 .visible .entry k(.param .u64 in, .param .u64 out) {{\n{}\n}}\n",
            self.body
        )
    }

    /// The output, or the fault.
    pub fn run(&self) -> Result<Vec<u32>, Fault> {
        let source = self.source();
        let module = parse(&source).unwrap_or_else(|e| panic!("{e}\n{source}"));
        let kernel = decode(&module, &module.entries[0], &Addresses::new())
            .unwrap_or_else(|e| panic!("{e}\n{source}"));
        let mut memory = DeviceMemory::new(1 << 30, true);
        let bytes: Vec<u8> = self.input.iter().flat_map(|w| w.to_le_bytes()).collect();
        let input = memory.allocate(bytes.len() as u64, "input", true).unwrap();
        let output = memory.allocate(4 * self.output as u64, "output", true).unwrap();
        memory.write(input, &bytes).unwrap();
        let params: Vec<u8> = [input, output].iter().flat_map(|p| p.to_le_bytes()).collect();
        let launch = Launch {
            kernel: &kernel,
            grid: [self.blocks, 1, 1],
            block: [self.threads, 1, 1],
            params: &params,
            dynamic_shared: 0,
            id: 1,
        };
        let options = Options { race: self.race, seed: self.seed, watchdog: 1_000_000, ..Options::default() };
        run(&launch, &mut memory, options, &mut Counts::default())?;
        let mut out = vec![0; 4 * self.output];
        memory.read(output, &mut out, false).unwrap();
        Ok(out.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect())
    }
}

/// Registers and the thread's own addresses: `%in`, `%out`, `%tid`, `%mine` (out + 4 tid), `%from` (in + 4 tid).
pub const PROLOGUE: &str = ".reg .b64 %in, %out, %mine, %from, %off; .reg .b32 %tid; .reg .b32 %r<16>; .reg .f32 %f<16>; .reg .pred %p<8>; .reg .b64 %rd<8>;
ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mov.u32 %tid, %tid.x; mul.wide.u32 %off, %tid, 4; add.u64 %mine, %out, %off; add.u64 %from, %in, %off;
";
