//! Products by cuBLAS: layouts, the workspace, captures, and what is refused.

mod common;

use common::{Setup, in_a_process, says};
use gpu_driver::{Blas, Capture, DeviceType, DriverError, Factor, Layout, ProductInput, Stream, arguments};
use half::{bf16, f16};

const ROWS: usize = 5;
const INNER: usize = 7;
const COLUMNS: usize = 3;

fn value(seed: usize) -> f32 {
    ((seed * 37 + 11) % 17) as f32 - 8.0
}

/// Small integers, whose products are exact in every type.
fn matrix<T: DeviceType>(rows: usize, columns: usize, seed: usize, from: impl Fn(f32) -> T) -> Vec<T> {
    (0..rows * columns).map(|i| from(value(i + seed))).collect()
}

/// C = A B with plain loops; `at` gives the elements.
fn naive(a: impl Fn(usize, usize) -> f32, b: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    let cell = |i: usize, j: usize| (0..INNER).map(|p| a(i, p) * b(p, j)).sum();
    (0..ROWS).flat_map(|i| (0..COLUMNS).map(move |j| (i, j))).map(|(i, j)| cell(i, j)).collect()
}

fn every_layout<T: ProductInput>(stream: &Stream, blas: &Blas, from: impl Fn(f32) -> T + Copy) {
    let c_layout = Layout::new(ROWS, COLUMNS);
    for (a_t, b_t) in [(false, false), (true, false), (false, true), (true, true)] {
        let (a_rows, a_cols) = if a_t { (INNER, ROWS) } else { (ROWS, INNER) };
        let (b_rows, b_cols) = if b_t { (COLUMNS, INNER) } else { (INNER, COLUMNS) };
        let a = stream.buffer(&matrix(a_rows, a_cols, 1, from)).unwrap();
        let b = stream.buffer(&matrix(b_rows, b_cols, 2, from)).unwrap();
        let mut c = stream.buffer(&matrix(ROWS, COLUMNS, 3, |x| x)).unwrap();
        let mut factors = (Factor::new(&a, a_rows, a_cols), Factor::new(&b, b_rows, b_cols));
        factors.0 = if a_t { factors.0.t() } else { factors.0 };
        factors.1 = if b_t { factors.1.t() } else { factors.1 };
        blas.product(1, 2.0, factors.0, factors.1, -1.0, (c.view_mut(), c_layout)).unwrap();
        let product = naive(
            |i, p| value(1 + if a_t { p * ROWS + i } else { i * INNER + p }),
            |p, j| value(2 + if b_t { j * INNER + p } else { p * COLUMNS + j }),
        );
        let want: Vec<f32> = product.iter().enumerate().map(|(i, x)| 2.0 * x - value(3 + i)).collect();
        assert_eq!(stream.read(&c).unwrap(), want, "A transposed: {a_t}, B transposed: {b_t}");
    }
}

#[test]
fn products_of_every_type_and_layout() {
    let setup = Setup::new();
    let (_gpu, stream) = setup.open();
    let blas = Blas::new(&stream).unwrap();
    every_layout(&stream, &blas, |x| x);
    every_layout(&stream, &blas, f16::from_f32);
    every_layout(&stream, &blas, bf16::from_f32);
    assert_eq!(blas.version().unwrap(), 120_405);
    setup.silent();
}

#[test]
fn batches_and_gaps() {
    let setup = Setup::new();
    let (_gpu, stream) = setup.open();
    let blas = Blas::new(&stream).unwrap();
    let count = 4;
    // Rows 10 apart, matrices 60 apart; B is shared by all.
    let a = stream.buffer(&matrix(count, 60, 1, f16::from_f32)).unwrap();
    let b = stream.buffer(&matrix(INNER, COLUMNS, 2, f16::from_f32)).unwrap();
    let mut c = stream.buffer(&vec![f32::NAN; count * 20]).unwrap();
    let a_factor = Factor {
        layout: Layout { stride: 10, batch_stride: 60, ..Layout::new(ROWS, INNER) },
        ..Factor::new(&a, 1, 1)
    };
    let b_factor =
        Factor { layout: Layout { batch_stride: 0, ..Layout::new(INNER, COLUMNS) }, ..Factor::new(&b, 1, 1) };
    let c_layout = Layout { stride: 4, batch_stride: 20, ..Layout::new(ROWS, COLUMNS) };
    blas.product(count, 1.0, a_factor, b_factor, 0.0, (c.view_mut(), c_layout)).unwrap();
    let got = stream.read(&c).unwrap();
    for z in 0..count {
        let want = naive(|i, p| value(1 + z * 60 + i * 10 + p), |p, j| value(2 + p * COLUMNS + j));
        for i in 0..ROWS {
            let row = &got[z * 20 + i * 4..][..4];
            assert_eq!(row[..3], want[i * COLUMNS..][..3]);
            // What lies between the rows stays.
            assert!(row[3].is_nan());
        }
    }
    setup.silent();
}

/// B123, on the device: with beta 0, what stood in C does not matter.
#[test]
fn beta_zero_does_not_read_c() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let blas = Blas::new(&stream).unwrap();
    let a = stream.buffer(&[3.0f32]).unwrap();
    let mut c = gpu.buffer::<f32>(1).unwrap();
    let factor = Factor::new(&a, 1, 1);
    blas.product(1, 1.0, factor, factor, 0.0, (c.view_mut(), Layout::new(1, 1))).unwrap();
    assert_eq!(stream.read(&c).unwrap(), [9.0]);
    setup.silent();
}

/// B19: halves whose sum is beyond the largest half come out in f32.
#[test]
fn a_sum_beyond_f16_is_finite() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let blas = Blas::new(&stream).unwrap();
    let weights = stream.buffer(&[f16::from_f32(32.34375); 64]).unwrap();
    let activations = stream.buffer(&[f16::from_f32(32.0); 64]).unwrap();
    let mut c = gpu.buffer::<f32>(1).unwrap();
    let (a, b) = (Factor::new(&activations, 1, 64), Factor::new(&weights, 1, 64).t());
    blas.product(1, 1.0, a, b, 0.0, (c.view_mut(), Layout::new(1, 1))).unwrap();
    assert_eq!(stream.read(&c).unwrap(), [66240.0]);
    setup.silent();
}

#[test]
fn sizes_that_do_not_fit_are_named() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let blas = Blas::new(&stream).unwrap();
    let a = stream.buffer(&[1.0f32; 12]).unwrap();
    let mut c = gpu.buffer::<f32>(9).unwrap();
    let square = |n| Factor::new(&a, n, n);
    let mut product = |a, b, layout| blas.product(1, 1.0, a, b, 0.0, (c.view_mut(), layout)).unwrap_err();
    let layout = Layout::new(3, 3);
    says(
        &product(square(3), Factor::new(&a, 2, 3), layout),
        &["the number of rows of B is 2, and must be 3, the columns of A"],
    );
    says(
        &product(Factor::new(&a, 4, 3), square(3), layout),
        &["the number of rows of C is 3, and must be 4"],
    );
    says(
        &product(square(4), Factor::new(&a, 4, 3), Layout::new(4, 3)),
        &["the length of A is 12, and must be 16 at least"],
    );
    let narrow = Layout { stride: 2, ..layout };
    says(&product(square(3), square(3), narrow), &["a row stride is 2, and must be at least the 3 columns"]);
    // Nothing to do is nothing to ask for.
    blas.product(1, 1.0, Factor::new(&a, 0, 3), square(3), 0.0, (c.view_mut(), Layout::new(0, 3))).unwrap();
    setup.silent();
    setup.set("GPU_EMULATOR_COMPUTE", "7.5");
    drop((a, c, blas, stream, gpu));
    let (gpu, stream) = setup.open();
    let blas = Blas::new(&stream).unwrap();
    let a = stream.buffer(&[bf16::ONE]).unwrap();
    let mut c = gpu.buffer::<f32>(1).unwrap();
    let a = Factor::new(&a, 1, 1);
    let error = blas.product(1, 1.0, a, a, 0.0, (c.view_mut(), Layout::new(1, 1))).unwrap_err();
    says(&error, &["a product of bf16 needs compute capability 8.0"]);
}

#[test]
fn sizes_over_31_bits_are_refused() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let blas = Blas::new(&stream).unwrap();
    // cuBLAS takes 32-bit sizes: a longer one is an error, not another size.
    let depth = 1usize << 31;
    let long = gpu.buffer::<f16>(depth).unwrap();
    let mut c = gpu.buffer::<f32>(1).unwrap();
    let (a, b) = (Factor::new(&long, 1, depth), Factor::new(&long, depth, 1));
    let error = blas.product(1, 1.0, a, b, 0.0, (c.view_mut(), Layout::new(1, 1))).unwrap_err();
    says(&error, &["a size is 2147483648, and must be below 2^31; split the product"]);
    setup.silent();
}

/// A single row has no next one, so that the distance to it may be anything; cuBLAS itself would refuse it.
#[test]
fn one_row_needs_no_distance_to_the_next() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let blas = Blas::new(&stream).unwrap();
    let a = stream.buffer(&[1.0f32, 2.0, 3.0]).unwrap();
    let mut c = gpu.buffer::<f32>(1).unwrap();
    let row = Factor { layout: Layout { stride: 0, ..Layout::new(1, 3) }, ..Factor::new(&a, 1, 3) };
    let target = (c.view_mut(), Layout { stride: 0, ..Layout::new(1, 1) });
    blas.product(1, 1.0, row, row.t(), 0.0, target).unwrap();
    assert_eq!(stream.read(&c).unwrap(), [14.0]);
    setup.silent();
}

/// B111: the first product ever may be inside a capture; memory does not grow from capture to capture, and another
/// shape is no difference.
#[test]
fn captures_use_the_bound_workspace() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let blas = Blas::new(&stream).unwrap();
    let a = stream.buffer(&[f16::from_f32(0.5); 256]).unwrap();
    let mut c = gpu.buffer::<f32>(256).unwrap();
    let used = setup.emulator.counter("memory_used").unwrap();
    let mut graphs = Vec::new();
    for round in 0..20 {
        let rows = 1 + round % 16;
        let bound = setup.calls("cublasSetWorkspace_v2");
        let capture = Capture::begin(&stream, &[&blas]).unwrap();
        assert_eq!(setup.calls("cublasSetWorkspace_v2"), bound + 1);
        let layout = Layout::new(rows, 16);
        let factor = Factor::new(a.view().range(..rows * 16).unwrap(), rows, 16);
        let target = c.view_mut().range(..rows * 16).unwrap();
        blas.product(1, 1.0, factor, Factor::new(&a, 16, 16), 0.0, (target, layout)).unwrap();
        graphs.push(capture.end().unwrap().instantiate().unwrap());
        graphs[round].launch(&stream).unwrap();
        assert_eq!(stream.read(c.view().range(..rows * 16).unwrap()).unwrap(), vec![4.0; rows * 16]);
        assert_eq!(setup.emulator.counter("memory_used"), Some(used));
    }
    // The workspace lives as long as a graph that uses it.
    drop(blas);
    stream.zero(&mut c).unwrap();
    graphs[15].launch(&stream).unwrap();
    assert_eq!(stream.read(&c).unwrap(), [4.0; 256]);
    drop(graphs);
    assert_eq!(gpu.memory().in_use, 512 + 1024);
    setup.silent();
}

#[test]
fn a_handle_that_the_capture_does_not_know_is_refused() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let (known, unknown) = (Blas::new(&stream).unwrap(), Blas::new(&stream).unwrap());
    let a = stream.buffer(&[2.0f32]).unwrap();
    let mut c = gpu.buffer::<f32>(1).unwrap();
    let mut product = |blas: &Blas| {
        let factor = Factor::new(&a, 1, 1);
        blas.product(1, 1.0, factor, factor, 0.0, (c.view_mut(), Layout::new(1, 1)))
    };
    let capture = Capture::begin(&stream, &[&known]).unwrap();
    assert_eq!(product(&unknown), Err(DriverError::BlasNotInCapture));
    product(&known).unwrap();
    capture.end().unwrap().instantiate().unwrap().launch(&stream).unwrap();
    assert_eq!(stream.read(&c).unwrap(), [4.0]);
    setup.silent();
}

/// One product inside a capture whose handle has lost its workspace: the call that binds it is made to do nothing,
/// as if it had been forgotten.
fn captured_without_workspace(setup: &Setup) -> (Result<(), DriverError>, DriverError) {
    let (gpu, stream) = setup.open();
    let blas = Blas::new(&stream).unwrap();
    let a = stream.buffer(&[2.0f32]).unwrap();
    let mut c = gpu.buffer::<f32>(1).unwrap();
    setup.set("GPU_EMULATOR_FAIL", "cublasSetWorkspace_v2:1:0");
    let capture = Capture::begin(&stream, &[&blas]).unwrap();
    let factor = Factor::new(&a, 1, 1);
    let product = blas.product(1, 1.0, factor, factor, 0.0, (c.view_mut(), Layout::new(1, 1)));
    let ended = capture.end().unwrap_err();
    // The stream is usable either way.
    assert_eq!(stream.read(&a).unwrap(), [2.0]);
    (product, ended)
}

#[test]
fn a_workspace_that_is_not_bound_breaks_the_capture_with_the_reason() {
    let setup = Setup::new();
    let (product, ended) = captured_without_workspace(&setup);
    let refused = DriverError::Blas { call: "cublasGemmStridedBatchedEx", status: 3 };
    assert_eq!(product, Err(refused.clone()));
    says(&refused, &["no workspace is bound while a stream captures"]);
    assert_eq!(ended, DriverError::Capture { code: 901, first: Some(Box::new(refused)) });
}

/// As cuBLAS is reported to behave since CUDA 12.2: it allocates in stream order, and the graph owns the memory.
#[test]
fn a_graph_with_memory_nodes_is_refused() {
    let setup = Setup::new();
    setup.set("GPU_EMULATOR_CUBLAS_CAPTURE", "allocate");
    let (product, ended) = captured_without_workspace(&setup);
    assert_eq!((product, &ended), (Ok(()), &DriverError::MemoryNodes { nodes: 2 }));
    says(&ended, &["the captured graph has 2 memory nodes", "a library without a workspace does"]);
}

#[test]
fn a_handle_that_cannot_be_destroyed_is_no_panic() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let blas = Blas::new(&stream).unwrap();
    setup.set("GPU_EMULATOR_FAIL", "cublasDestroy_v2:1:14");
    drop(blas);
    let error = gpu.check().unwrap_err();
    says(&error, &["an earlier cuBLAS handle could not be given back", "cublasDestroy_v2", "internal error"]);
    gpu.check().unwrap();
}

/// A capture binds the workspace of a handle and takes the stream; a product takes the same two. Whoever comes first,
/// the other waits and goes on.
#[test]
fn captures_and_products_of_two_threads_do_not_wait_for_each_other_forever() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let blas = std::sync::Arc::new(Blas::new(&stream).unwrap());
    let a = stream.buffer(&[2.0f32]).unwrap();
    let mut c = gpu.buffer::<f32>(1).unwrap();
    // With the two taken in different orders, a fifth of this ended in the wait in two runs of three on two cores.
    const ROUNDS: usize = 100_000;
    let together = std::sync::Arc::new(std::sync::Barrier::new(2));
    let (done, ended) = std::sync::mpsc::channel();
    let (captured, captures) = (stream.clone(), done.clone());
    let (of_captures, first) = (blas.clone(), together.clone());
    let one = std::thread::spawn(move || {
        first.wait();
        for _ in 0..ROUNDS {
            Capture::begin(&captured, &[&of_captures]).unwrap().end().unwrap();
        }
        captures.send(()).unwrap();
    });
    let other = std::thread::spawn(move || {
        together.wait();
        for _ in 0..ROUNDS {
            let factor = Factor::new(&a, 1, 1);
            blas.product(1, 1.0, factor, factor, 0.0, (c.view_mut(), Layout::new(1, 1))).unwrap();
        }
        done.send(()).unwrap();
    });
    for _ in 0..2 {
        ended.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
    }
    // What the threads hold goes before the next test opens the device.
    one.join().unwrap();
    other.join().unwrap();
    stream.synchronize().unwrap();
    setup.silent();
}

/// A launch between products needs no other stream, and both are captured in order.
#[test]
fn products_and_kernels_are_captured_together() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let blas = Blas::new(&stream).unwrap();
    let add = gpu.load(&kernels_ptx::ADD).unwrap();
    let a = stream.buffer(&[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let [mut c, mut d] = [(); 2].map(|()| gpu.buffer::<f32>(4).unwrap());
    let capture = Capture::begin(&stream, &[&blas]).unwrap();
    let square = Factor::new(&a, 2, 2);
    blas.product(1, 1.0, square, square, 0.0, (c.view_mut(), Layout::new(2, 2))).unwrap();
    add.launch(&stream, &[4], &arguments![&a, &c, &mut d, 4u64]).unwrap();
    blas.product(1, 1.0, Factor::new(&d, 2, 2), square, 0.0, (c.view_mut(), Layout::new(2, 2))).unwrap();
    let graph = capture.end().unwrap();
    assert_eq!(graph.nodes(), 3);
    let graph = graph.instantiate().unwrap();
    graph.launch(&stream).unwrap();
    // A A = [7 10; 15 22], + A = [8 12; 18 26], times A:
    assert_eq!(stream.read(&c).unwrap(), [44.0, 64.0, 96.0, 140.0]);
    setup.silent();
}

#[test]
fn an_environment_that_changes_precision_is_refused() {
    in_a_process("child_with_tf32_override", &[("NVIDIA_TF32_OVERRIDE", "1")]);
}

#[test]
#[ignore = "run by an_environment_that_changes_precision_is_refused in a process of its own"]
fn child_with_tf32_override() {
    let setup = Setup::new();
    let (_gpu, stream) = setup.open();
    let error = Blas::new(&stream).unwrap_err();
    says(&error, &["NVIDIA_TF32_OVERRIDE is set to \"1\"", "unset it"]);
}

#[test]
fn a_library_can_be_given_by_path_and_a_wrong_path_is_named() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let path = std::path::Path::new("/no/such/folder/libcublas.so.12");
    let error = Blas::with(&stream, 1 << 20, Some(path)).unwrap_err();
    says(&error, &["no cuBLAS: /no/such/folder/libcublas.so.12 cannot be opened", "give its path"]);
    // A library that is there and is no cuBLAS.
    let error = Blas::with(&stream, 1 << 20, Some(std::path::Path::new("libc.so.6"))).unwrap_err();
    assert_eq!(error, DriverError::OldBlas { function: "cublasCreate_v2" });
    assert_eq!(gpu.memory().in_use, 0);
    let beside = std::env::current_exe().unwrap().with_file_name("libgpu_emulator_cublas.so");
    let blas = Blas::with(&stream, 1 << 20, Some(&beside)).unwrap();
    assert_eq!(gpu.memory().in_use, 1 << 20);
    drop(blas);
    assert_eq!(gpu.memory().in_use, 0);
}

#[test]
fn the_recommended_workspace_depends_on_the_architecture() {
    let sizes = [(7, 5), (8, 6), (9, 0), (10, 0), (12, 0)].map(Blas::recommended_workspace);
    assert_eq!(sizes.map(|bytes| bytes >> 20), [4, 4, 32, 32, 12]);
}
