//! Rates of copies, kernels and products, by events of the stream: the median of five rounds. Every result is checked
//! before it is timed.

use anyhow::{Result, ensure};
use cpu_ops::nf4::{Nf4Matrix, Scales};
use cpu_ops::{MatRef, Threads};
use gpu_driver::{
    Argument, Blas, Buffer, Capture, DriverError, Factor, Gpu, Kernel, Layout, ProductInput, Stream,
    arguments,
};
use half::{bf16, f16};
use serde_json::{Value, json};

/// How much is done: enough for a rate, or enough to see that all of it works.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Bytes of a copy.
    bytes: usize,
    /// Rows, columns and depth of a product.
    product: usize,
    /// Seconds of a round.
    round: f64,
}

impl Effort {
    /// For a GPU.
    pub const LARGE: Self = Self { bytes: 256 << 20, product: 4096, round: 0.05 };
    /// To see that all of it works, also on the emulator.
    pub const SMALL: Self = Self { bytes: 1 << 20, product: 64, round: 0.0 };
}

/// Seconds of one call, of which as many are enqueued as fill a round.
fn seconds(gpu: &Gpu, stream: &Stream, effort: Effort, mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let (start, end) = (gpu.event()?, gpu.event()?);
    let mut timed = |calls: u32| -> Result<f64> {
        start.record(stream)?;
        for _ in 0..calls {
            once()?;
        }
        end.record(stream)?;
        end.synchronize()?;
        Ok(end.elapsed_since(&start)?.as_secs_f64() / f64::from(calls))
    };
    // The first call warms up, the second says how many make a round.
    timed(1)?;
    let calls = (effort.round / timed(1)?.max(1e-7)).clamp(1.0, 1000.0) as u32;
    let mut rounds = (0..5).map(|_| timed(calls)).collect::<Result<Vec<f64>>>()?;
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[2])
}

/// Copies within the device and over the bus, in 10^9 bytes a second (a copy within the device reads and writes).
///
/// # Errors
/// A call fails.
pub fn copies(gpu: &Gpu, effort: Effort) -> Result<Value> {
    let stream = gpu.stream()?;
    let bytes = effort.bytes;
    let rate = |bytes: usize, seconds: f64| bytes as f64 / seconds / 1e9;
    let from = stream.buffer(&vec![7u8; bytes])?;
    let mut to = gpu.buffer::<u8>(bytes)?;
    let device = seconds(gpu, &stream, effort, || Ok(stream.copy(&from, &mut to)?))?;
    ensure!(stream.read(to.view().range(bytes - 1..)?)? == [7], "a copy did not arrive");
    // A transfer owns both ends, so they go round.
    let mut ends = Some((gpu.pinned::<u8>(bytes)?, to));
    let mut up = |stream: &Stream| -> Result<()> {
        if let Some((host, device)) = ends.take() {
            ends = Some(stream.send(host, device).map_err(DriverError::from)?.wait()?);
        }
        Ok(())
    };
    let to_device = seconds(gpu, &stream, effort, || up(&stream))?;
    let mut down = |stream: &Stream| -> Result<()> {
        if let Some((host, device)) = ends.take() {
            ends = Some(stream.fetch(device, host).map_err(DriverError::from)?.wait()?);
        }
        Ok(())
    };
    let from_device = seconds(gpu, &stream, effort, || down(&stream))?;
    Ok(json!({
        "unit": "10^9 bytes a second",
        "bytes": bytes,
        "device": rate(2 * bytes, device),
        "to_device": rate(bytes, to_device),
        "from_device": rate(bytes, from_device),
    }))
}

/// Kernels that are bound by memory, in 10^9 bytes a second read and written, and as a share of the copy's rate.
///
/// # Errors
/// A call fails, or a result differs from the CPU's.
pub fn kernels(gpu: &Gpu, effort: Effort, copy: Option<f64>) -> Result<Value> {
    let stream = gpu.stream()?;
    let mut rows = Vec::new();
    let mut row = |name: &str, bytes: usize, seconds: f64| {
        let rate = bytes as f64 / seconds / 1e9;
        rows.push(json!({ "kernel": name, "rate": rate, "of_copy": copy.map(|copy| rate / copy) }));
    };

    let elements = effort.bytes / 4;
    let n = elements as u64;
    let kernel = gpu.load(&kernels_ptx::CAST_F32_TO_F16)?;
    let x: Vec<f32> = (0..elements).map(|i| i as f32 * 0.37 - 900.0).collect();
    let source = stream.buffer(&x)?;
    let mut target = gpu.buffer::<f16>(elements)?;
    let cast = seconds(gpu, &stream, effort, || {
        Ok(kernel.launch(&stream, &[n], &arguments![&source, &mut target, n])?)
    })?;
    let same = stream.read(&target)?.iter().zip(&x).all(|(y, &x)| y.to_bits() == f16::from_f32(x).to_bits());
    ensure!(same, "cast_f32_to_f16 differs from the CPU");
    row(kernel.name(), elements * 6, cast);

    // A matrix is quantised on the CPU, and repeated to the length that is timed.
    let (rows_of_one, cols, block) = (64, 1024, 64);
    let threads = Threads::new(1)?;
    let one = Nf4Matrix::quantize(
        &threads,
        MatRef::new(&x[..rows_of_one * cols], rows_of_one, cols)?,
        block,
        false,
    )?;
    let mut wanted = vec![f16::ZERO; rows_of_one * cols];
    one.view().dequantize_f16(&threads, &mut wanted)?;
    let Scales::Plain(scales) = one.view().scales() else { anyhow::bail!("plain scales were asked for") };
    let times = elements / wanted.len();
    let codes = stream.buffer(&one.view().codes().repeat(times))?;
    let absmax = stream.buffer(&scales.repeat(times))?;
    let expanded = wanted.len() * times;
    let n = expanded as u64;
    let kernel = gpu.load(&kernels_ptx::NF4_DEQUANTIZE_F16)?;
    let mut target = gpu.buffer::<f16>(expanded)?;
    let nf4 = seconds(gpu, &stream, effort, || {
        let arguments = arguments![&codes, &absmax, &mut target, 0u64, n, block.trailing_zeros()];
        Ok(kernel.launch(&stream, &[n], &arguments)?)
    })?;
    let got = stream.read(target.view().range(expanded - wanted.len()..)?)?;
    let same = got.iter().zip(&wanted).all(|(y, want)| y.to_bits() == want.to_bits());
    ensure!(same, "nf4_dequantize_f16 differs from the CPU");
    row(kernel.name(), expanded * 2 + expanded / 2 + expanded / block * 4, nf4);
    Ok(json!({ "unit": "10^9 bytes a second", "elements": elements, "rates": rows }))
}

/// Products of our own kernels and of cuBLAS, in 10^12 operations a second. Inputs are small integers, so that every
/// order of summation gives the same bits, and all are compared with the CPU in one row and one column.
///
/// # Errors
/// A call fails, or a result differs. Without cuBLAS its rates are missing and the reason is there.
pub fn products(gpu: &Gpu, effort: Effort) -> Result<Value> {
    let stream = gpu.stream()?;
    let (blas, cublas) = match Blas::new(&stream) {
        Ok(blas) => {
            let version = blas.version()?;
            (Some(blas), json!(version))
        }
        Err(error @ DriverError::NoBlas { .. }) => (None, json!(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let mut bench = Products { gpu, stream: &stream, effort, blas, rows: Vec::new() };
    let compute = gpu.device().compute();
    let halves = if compute >= 80 { &kernels_ptx::GEMM_F16 } else { &kernels_ptx::GEMM_F16_K8 };
    bench.of::<f16>("f16", halves, true, f16::from_f32)?;
    if compute >= 80 {
        bench.of::<bf16>("bf16", &kernels_ptx::GEMM_BF16, true, bf16::from_f32)?;
    }
    bench.of::<f32>("f32", &kernels_ptx::GEMM_F32, false, |x| x)?;
    Ok(json!({
        "unit": "10^12 operations a second",
        "rows, columns, depth": effort.product,
        "cublas_version": cublas,
        "rates": bench.rows,
    }))
}

struct Products<'a> {
    gpu: &'a Gpu,
    stream: &'a Stream,
    effort: Effort,
    blas: Option<Blas>,
    rows: Vec<Value>,
}

impl Products<'_> {
    /// One type of inputs with both providers.
    fn of<T: ProductInput>(
        &mut self,
        inputs: &str,
        kernel: &'static kernels_ptx::Kernel,
        exponents: bool,
        from: impl Fn(f32) -> T,
    ) -> Result<()> {
        let n = self.effort.product;
        let value = |seed: usize, i: usize| ((i * 7 + i / n + seed) % 5) as f32 - 2.0;
        let host = |seed: usize| (0..n * n).map(|i| from(value(seed, i))).collect::<Vec<T>>();
        let (a, b) = (self.stream.buffer(&host(1))?, self.stream.buffer(&host(3))?);
        let kernel = self.gpu.load(kernel)?;
        let mut c = self.gpu.buffer::<f32>(n * n)?;
        let own = seconds(self.gpu, self.stream, self.effort, || {
            launch(self.stream, &kernel, n, exponents, (&a, &b), &mut c)
        })?;
        let cell =
            |i: usize, j: usize| (0..n).map(|p| value(1, i * n + p) * value(3, p * n + j)).sum::<f32>();
        let check = |c: &Buffer<f32>, who: &str| -> Result<Vec<f32>> {
            let got = self.stream.read(c)?;
            for i in 0..n {
                ensure!(got[i] == cell(0, i), "{who} differs from the CPU in column {i}");
                ensure!(got[i * n + n - 1] == cell(i, n - 1), "{who} differs from the CPU in row {i}");
            }
            Ok(got)
        };
        let result = check(&c, kernel.name())?;
        let rate = |seconds: f64| 2.0 * (n as f64).powi(3) / seconds / 1e12;
        self.rows.push(json!({
            "provider": "own", "kernel": kernel.name(), "inputs": inputs, "tflops": rate(own),
            "registers": kernel.registers(),
        }));
        if let Some(blas) = &self.blas {
            let (a, b) = (Factor::new(&a, n, n), Factor::new(&b, n, n));
            self.stream.zero(&mut c)?;
            let theirs = seconds(self.gpu, self.stream, self.effort, || {
                Ok(blas.product(1, 1.0, a, b, 0.0, (c.view_mut(), Layout::new(n, n)))?)
            })?;
            ensure!(check(&c, "cuBLAS")? == result, "{} and cuBLAS differ", kernel.name());
            // Captured with its workspace, the same product must give the same bits.
            self.stream.zero(&mut c)?;
            let capture = Capture::begin(self.stream, &[blas])?;
            blas.product(1, 1.0, a, b, 0.0, (c.view_mut(), Layout::new(n, n)))?;
            let graph = capture.end()?;
            let nodes = graph.nodes();
            graph.instantiate()?.launch(self.stream)?;
            ensure!(check(&c, "captured cuBLAS")? == result, "cuBLAS differs where it is captured");
            self.rows.push(json!({
                "provider": "cublas", "inputs": inputs, "tflops": rate(theirs), "captured_nodes": nodes,
            }));
        }
        Ok(())
    }
}

/// C = A B for square matrices by one of our kernels; those of halves may scale rows and columns, and do not here.
fn launch<T: ProductInput>(
    stream: &Stream,
    kernel: &Kernel,
    n: usize,
    exponents: bool,
    (a, b): (&Buffer<T>, &Buffer<T>),
    c: &mut Buffer<f32>,
) -> Result<()> {
    let mut arguments = Vec::from(arguments![a, b, c]);
    if exponents {
        arguments.extend([Argument::NOTHING, Argument::NOTHING]);
    }
    let (size, stride, batch) = (u32::try_from(n)?, n as u64, (n * n) as u64);
    arguments.extend(arguments![size, size, size, stride, stride, stride, batch, batch, batch]);
    arguments.extend(arguments![0u32, 0u32, 1.0f32, 0.0f32]);
    Ok(kernel.launch(stream, &[stride, stride, 1], &arguments)?)
}
