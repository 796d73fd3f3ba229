//! Captures and graphs: that they give the same as running, own what they use, and cannot be broken by accident.

mod common;

use common::{Setup, says};
use cudarc::driver::sys;
use gpu_driver::{Buffer, Capture, DriverError, Gpu, GraphExec, Kernel, Module, Stream, arguments};
use kernels_ptx::{ACCUMULATE, ADD, SCALE};

/// y += 1, captured; with x, which the graph reads.
fn count_up(gpu: &Gpu, stream: &Stream, y: &mut Buffer<f32>) -> (GraphExec, Kernel, Buffer<f32>) {
    let kernel = gpu.load(&ACCUMULATE).unwrap();
    let x = stream.buffer(&vec![1.0f32; y.len()]).unwrap();
    let n = y.len() as u64;
    let capture = Capture::begin(stream, &[]).unwrap();
    kernel.launch(stream, &[n], &arguments![&x, y, n, 1.0f32]).unwrap();
    let graph = capture.end().unwrap();
    assert_eq!(graph.nodes(), 1);
    (graph.instantiate().unwrap(), kernel, x)
}

#[test]
fn nothing_runs_while_it_is_captured_and_everything_when_it_is_launched() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let mut y = stream.buffer(&[0.0f32; 100]).unwrap();
    let (graph, ..) = count_up(&gpu, &stream, &mut y);
    assert_eq!(stream.read(&y).unwrap(), [0.0; 100]);
    for _ in 0..3 {
        graph.launch(&stream).unwrap();
    }
    assert_eq!(stream.read(&y).unwrap(), [3.0; 100]);
    let other = gpu.stream().unwrap();
    graph.launch(&other).unwrap();
    assert_eq!(other.read(&y).unwrap(), [4.0; 100]);
    setup.silent();
}

#[test]
fn a_graph_keeps_what_it_uses() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let mut y = stream.buffer(&[0.0f32; 64]).unwrap();
    let (graph, kernel, x) = count_up(&gpu, &stream, &mut y);
    assert_eq!(graph.kept(), 3);
    let used = gpu.memory().in_use;
    // The program lets go of the module and the input; the graph does not.
    drop(kernel);
    drop(x);
    assert_eq!(gpu.memory().in_use, used);
    graph.launch(&stream).unwrap();
    // In flight when the graph goes: what it used is freed after the launch.
    drop(graph);
    assert_eq!(stream.read(&y).unwrap(), [1.0; 64]);
    assert_eq!(gpu.memory().in_use, 256);
    setup.silent();
}

/// What `a_graph_keeps_what_it_uses` guards against, without the guard: plain driver calls.
#[test]
fn memory_that_is_freed_under_a_graph_is_reported_by_the_emulator() {
    let setup = Setup::new();
    let (gpu, _) = setup.open();
    // SAFETY: each pointer is to a local or to memory of this test; the free below is the fault on purpose, on a
    // device that checks every access.
    unsafe {
        let (mut stream, mut graph, mut exec) = Default::default();
        stream_of(&mut stream);
        let mut at = 0;
        assert_eq!(sys::cuMemAlloc_v2(&raw mut at, 64), sys::CUresult::CUDA_SUCCESS);
        sys::cuStreamBeginCapture_v2(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        sys::cuMemsetD8Async(at, 1, 64, stream);
        sys::cuStreamEndCapture(stream, &raw mut graph);
        sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0);
        sys::cuMemFree_v2(at);
        sys::cuGraphLaunch(exec, stream);
        assert_eq!(sys::cuStreamSynchronize(stream), sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    setup.reported(&["memset", "freed"]);
    assert!(gpu.event().unwrap_err().is_sticky());
}

/// # Safety
/// - A context is current.
unsafe fn stream_of(stream: &mut sys::CUstream) {
    // SAFETY: the pointer is to a place for the result.
    assert_eq!(unsafe { sys::cuStreamCreate(stream, 1) }, sys::CUresult::CUDA_SUCCESS);
}

#[test]
fn what_would_break_a_capture_is_refused_and_it_goes_on() {
    for pools in ["on", "off"] {
        let setup = Setup::new();
        setup.set("GPU_EMULATOR_POOLS", pools);
        let (gpu, stream) = setup.open();
        assert_eq!(gpu.device().memory_pools, pools == "on");
        let before = gpu.event().unwrap();
        before.record(&stream).unwrap();
        let accumulate = gpu.load(&ACCUMULATE).unwrap();
        let x = stream.buffer(&[1.0f32; 8]).unwrap();
        let mut y = stream.buffer(&[0.0f32; 8]).unwrap();
        let mut y2 = stream.buffer(&[0.0f32; 8]).unwrap();
        let graph = {
            let mut z = vec![0.0f32; 8];
            let capture = Capture::begin(&stream, &[]).unwrap();
            let inside = gpu.event().unwrap();
            inside.record(&stream).unwrap();
            let refused: Vec<(&str, DriverError)> = vec![
                (
                    "allocating device memory is not possible while a stream captures; allocate before",
                    gpu.buffer::<f32>(8).unwrap_err(),
                ),
                ("pinning host memory", gpu.pinned::<f32>(8).unwrap_err()),
                ("loading a module", gpu.load(&ADD).unwrap_err()),
                ("loading a module", Module::load(&gpu, "").unwrap_err()),
                ("waiting for a stream", stream.synchronize().unwrap_err()),
                ("asking whether a stream is done", stream.is_idle().unwrap_err()),
                ("copying from pageable memory", stream.upload(&z, &mut y2).unwrap_err()),
                ("copying to pageable memory", stream.download(&y2, &mut z).unwrap_err()),
                (
                    "waiting for an event on a stream is not possible while a stream captures; record it within",
                    stream.wait(&before).unwrap_err(),
                ),
                ("waiting for an event", inside.synchronize().unwrap_err()),
                ("asking for an event", inside.is_done().unwrap_err()),
                ("measuring to an event", inside.elapsed_since(&before).unwrap_err()),
                ("beginning a capture", Capture::begin(&stream, &[]).unwrap_err()),
                ("beginning a capture", Capture::begin(&gpu.stream().unwrap(), &[]).unwrap_err()),
                ("making a cuBLAS handle", gpu_driver::Blas::new(&gpu.stream().unwrap()).unwrap_err()),
            ];
            for (what, error) in refused {
                assert!(matches!(error, DriverError::InCapture { .. }), "{error}");
                says(&error, &[what]);
            }
            accumulate.launch(&stream, &[8], &arguments![&x, &mut y, 8u64, 2.0f32]).unwrap();
            capture.end().unwrap().instantiate().unwrap()
        };
        graph.launch(&stream).unwrap();
        assert_eq!(stream.read(&y).unwrap(), [2.0; 8]);
        setup.silent();
    }
}

/// B113: what is dropped during a capture is freed after it, and no later call hears of it.
#[test]
fn what_is_dropped_during_a_capture_is_freed_after_it() {
    for pools in ["on", "off"] {
        let setup = Setup::new();
        setup.set("GPU_EMULATOR_POOLS", pools);
        let (gpu, stream) = setup.open();
        let add = gpu.load(&ADD).unwrap();
        let mut sum = gpu.buffer::<f32>(64).unwrap();
        let x = stream.buffer(&[1.0f32; 64]).unwrap();
        let unused = stream.buffer(&[1.0f32; 64]).unwrap();
        let pinned = gpu.pinned::<f32>(64).unwrap();
        let module = gpu.load(&SCALE).unwrap();
        let capture = Capture::begin(&stream, &[]).unwrap();
        add.launch(&stream, &[64], &arguments![&x, &x, &mut sum, 64u64]).unwrap();
        let frees = setup.calls("cuMemFree_v2");
        drop((x, unused, pinned, module));
        assert_eq!((setup.calls("cuMemFree_v2"), gpu.memory().in_use), (frees, 768));
        let graph = capture.end().unwrap().instantiate().unwrap();
        // `unused` went with the capture; `x` stays with the graph.
        assert_eq!((gpu.memory().in_use, gpu.memory().pinned), (512, 0));
        graph.launch(&stream).unwrap();
        assert_eq!(stream.read(&sum).unwrap(), [2.0; 64]);
        drop(graph);
        assert_eq!(gpu.memory().in_use, 256);
        drop(sum);
        gpu.buffer::<u8>(1).unwrap();
        setup.silent();
    }
}

/// With cudarc's tracking of events and two streams this is error 905: a launch waits for what another stream did
/// to its buffers before the capture.
#[test]
fn buffers_that_other_streams_used_before_can_be_captured() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let other = gpu.stream().unwrap();
    let add = gpu.load(&ADD).unwrap();
    let x = other.buffer(&[1.0f32; 8]).unwrap();
    let [mut before, mut sum] = [(); 2].map(|()| gpu.buffer::<f32>(8).unwrap());
    add.launch(&other, &[8], &arguments![&x, &x, &mut before, 8u64]).unwrap();
    other.synchronize().unwrap();
    let capture = Capture::begin(&stream, &[]).unwrap();
    add.launch(&stream, &[8], &arguments![&x, &before, &mut sum, 8u64]).unwrap();
    capture.end().unwrap().instantiate().unwrap().launch(&stream).unwrap();
    assert_eq!(stream.read(&sum).unwrap(), [3.0; 8]);
    setup.silent();
}

#[test]
fn a_capture_that_is_dropped_leaves_the_stream_as_it_was() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let add = gpu.load(&ADD).unwrap();
    let mut sum = stream.buffer(&[0.0f32; 8]).unwrap();
    let x = stream.buffer(&[1.0f32; 8]).unwrap();
    let capture = Capture::begin(&stream, &[]).unwrap();
    add.launch(&stream, &[8], &arguments![&x, &x, &mut sum, 8u64]).unwrap();
    assert!(stream.is_capturing());
    drop(capture);
    assert!(!stream.is_capturing());
    assert_eq!(stream.read(&sum).unwrap(), [0.0; 8]);
    add.launch(&stream, &[8], &arguments![&x, &x, &mut sum, 8u64]).unwrap();
    assert_eq!(stream.read(&sum).unwrap(), [2.0; 8]);
    drop((x, sum));
    assert_eq!(gpu.memory().in_use, 0);
    setup.silent();
}

#[test]
fn a_capture_that_something_else_breaks_names_it_and_leaves_the_stream_usable() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let add = gpu.load(&ADD).unwrap();
    let x = stream.buffer(&[1.0f32; 8]).unwrap();
    let mut sum = gpu.buffer::<f32>(8).unwrap();
    let capture = Capture::begin(&stream, &[]).unwrap();
    // A library that knows nothing of our capture allocates on this thread.
    let mut at = 0;
    // SAFETY: the pointer is to a local.
    let code = unsafe { sys::cuMemAlloc_v2(&raw mut at, 64) };
    assert_eq!(code, sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let error = add.launch(&stream, &[8], &arguments![&x, &x, &mut sum, 8u64]).unwrap_err();
    says(&error, &["cuLaunchKernel failed with CUDA error 901", "an earlier call broke the capture"]);
    let error = capture.end().unwrap_err();
    let DriverError::Capture { code: 901, first: Some(first) } = &error else { panic!("{error}") };
    assert_eq!(**first, DriverError::Call { call: "cuLaunchKernel", code: 901 });
    says(&error, &["the capture failed with CUDA error 901", "the first failure inside it: cuLaunchKernel"]);
    // Eagerly the same work runs.
    add.launch(&stream, &[8], &arguments![&x, &x, &mut sum, 8u64]).unwrap();
    assert_eq!(stream.read(&sum).unwrap(), [2.0; 8]);
}

#[test]
fn every_code_of_a_capture_has_a_name_and_a_remedy() {
    let setup = Setup::new();
    for (code, remedy) in [
        (900, "do them before"),
        (901, "an earlier call broke the capture"),
        (902, "streams of two captures were joined"),
        (904, "let the captured stream wait for its event"),
        (905, "record it on a stream of the capture"),
        (906, "uses the legacy default stream"),
        (907, "wait for an event that is recorded after the capture"),
    ] {
        let (gpu, stream) = setup.open();
        let mut x = gpu.buffer::<f32>(8).unwrap();
        let capture = Capture::begin(&stream, &[]).unwrap();
        setup.set("GPU_EMULATOR_FAIL", &format!("cuMemsetD8Async:1:{code},cuStreamEndCapture:1:{code}"));
        let inside = stream.zero(&mut x).unwrap_err();
        assert_eq!(inside, DriverError::Call { call: "cuMemsetD8Async", code });
        says(&inside, &[remedy]);
        let error = capture.end().unwrap_err();
        assert_eq!(error, DriverError::Capture { code, first: Some(Box::new(inside)) });
        // Although the call that ends it failed, the stream does not stay captured.
        assert!(!stream.is_capturing());
        stream.zero(&mut x).unwrap();
        assert_eq!(stream.read(&x).unwrap(), [0.0; 8]);
    }
}

#[test]
fn streams_fork_into_a_capture_and_join_it_again() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let copies = gpu.stream().unwrap();
    let add = gpu.load(&ADD).unwrap();
    let mut host = gpu.pinned::<f32>(32).unwrap();
    host.as_mut_slice().fill(5.0);
    let weights = host.freeze();
    let x = stream.buffer(&[1.0f32; 32]).unwrap();
    let mut loaded = gpu.buffer::<f32>(32).unwrap();
    let mut sum = gpu.buffer::<f32>(32).unwrap();
    let [fork, join] = [(); 2].map(|()| gpu.event().unwrap());

    let capture = Capture::begin(&stream, &[]).unwrap();
    fork.record(&stream).unwrap();
    copies.wait(&fork).unwrap();
    assert!(copies.is_capturing());
    copies.send_frozen(&weights, .., &mut loaded).unwrap();
    join.record(&copies).unwrap();
    stream.wait(&join).unwrap();
    add.launch(&stream, &[32], &arguments![&x, &loaded, &mut sum, 32u64]).unwrap();
    let graph = capture.end().unwrap().instantiate().unwrap();

    assert!(!copies.is_capturing());
    // The graph keeps the pinned memory and the input.
    drop((weights, x));
    graph.launch(&stream).unwrap();
    assert_eq!(stream.read(&sum).unwrap(), [6.0; 32]);
    assert_eq!(gpu.memory().pinned, 128);
    drop(graph);
    assert_eq!(gpu.memory().pinned, 0);
    // What was recorded inside has no meaning outside.
    says(&copies.wait(&join).unwrap_err(), &["the capture of the event is over; record it again"]);
    setup.silent();
}

#[test]
fn a_fork_that_is_not_joined_is_named_and_both_streams_can_be_used() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let other = gpu.stream().unwrap();
    let mut x = gpu.buffer::<f32>(8).unwrap();
    let fork = gpu.event().unwrap();
    let capture = Capture::begin(&stream, &[]).unwrap();
    fork.record(&stream).unwrap();
    other.wait(&fork).unwrap();
    other.zero(&mut x).unwrap();
    let error = capture.end().unwrap_err();
    assert_eq!(error, DriverError::Capture { code: 904, first: None });
    says(&error, &["unjoined work", "let the captured stream wait for its event"]);
    for stream in [&stream, &other] {
        stream.zero(&mut x).unwrap();
        assert_eq!(stream.read(&x).unwrap(), [0.0; 8]);
    }
}

#[test]
fn pinned_memory_that_the_host_gets_back_is_not_captured() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let (host, device) = (gpu.pinned::<f32>(8).unwrap(), gpu.buffer::<f32>(8).unwrap());
    let graph = gpu.stream().unwrap();
    let capture = Capture::begin(&stream, &[]).unwrap();
    let refused = stream.send(host, device).unwrap_err();
    says(&refused, &["a copy whose memory comes back", "use Stream::send_frozen"]);
    let refused = stream.fetch(refused.device, refused.host).unwrap_err();
    assert!(matches!(refused.error, DriverError::InCapture { .. }));
    // On a stream that does not capture, it is possible.
    let mut host = refused.host;
    host.as_mut_slice().fill(1.0);
    let transfer = graph.send(host, refused.device);
    drop(capture);
    // Its event is an allocation of the driver's own, not of device memory.
    assert_eq!(transfer.unwrap().wait().unwrap().0.as_slice(), [1.0; 8]);
    setup.silent();
}

/// B118: another thread allocates, pins and copies meanwhile; the capture is thread-local.
#[test]
fn other_threads_do_not_break_a_capture() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let accumulate = gpu.load(&ACCUMULATE).unwrap();
    let x = stream.buffer(&[1.0f32; 8]).unwrap();
    let mut y = stream.buffer(&[0.0f32; 8]).unwrap();
    let capture = Capture::begin(&stream, &[]).unwrap();
    let loader = gpu.clone();
    std::thread::spawn(move || {
        let stream = loader.stream().unwrap();
        for i in 0..10u8 {
            let mut host = loader.pinned::<u8>(100).unwrap();
            host.as_mut_slice().fill(i);
            let (_, device) = stream.send(host, loader.buffer(100).unwrap()).unwrap().wait().unwrap();
            assert_eq!(stream.read(&device).unwrap(), [i; 100]);
        }
    })
    .join()
    .unwrap();
    accumulate.launch(&stream, &[8], &arguments![&x, &mut y, 8u64, 1.0f32]).unwrap();
    capture.end().unwrap().instantiate().unwrap().launch(&stream).unwrap();
    assert_eq!(stream.read(&y).unwrap(), [1.0; 8]);
    setup.silent();
}

/// B115: what changes from replay to replay is read from device memory, so that a captured update gives the bits of
/// an eager one, step by step.
#[test]
fn a_captured_optimiser_step_sees_the_rate_and_the_step_of_its_replay() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let coefficients = gpu.load(&kernels_ptx::ADAMW_COEFFICIENTS).unwrap();
    let adamw = gpu.load(&kernels_ptx::ADAMW).unwrap();
    let run = |captured: bool| {
        let mut weights = stream.buffer(&[0.5f32, -0.25, 2.0, 0.0]).unwrap();
        let gradients = stream.buffer(&[0.1f32, -0.2, 0.0, 3.0]).unwrap();
        let [mut m, mut v] = [(); 2].map(|()| stream.buffer(&[0.0f32; 4]).unwrap());
        let first = stream.buffer(&[0u64]).unwrap();
        let length = stream.buffer(&[4u32]).unwrap();
        let factor = stream.buffer(&[1.0f32]).unwrap();
        let mut rate = stream.buffer(&[0.0f64]).unwrap();
        let mut step = stream.buffer(&[0u64]).unwrap();
        let mut four = gpu.buffer::<f32>(4).unwrap();
        let (beta1, beta2) = (0.9f32, 0.999f32);
        let mut update = |rate: &Buffer<f64>, step: &Buffer<u64>, weights: &mut Buffer<f32>| {
            let arguments = arguments![rate, step, &mut four, 0.9f64, 0.999f64, 0.01f64];
            coefficients.launch(&stream, &[1], &arguments).unwrap();
            let mut arguments = Vec::from(arguments![weights, &gradients, &mut m, &mut v, &first, &length]);
            arguments.push(gpu_driver::Argument::NOTHING);
            arguments.extend(arguments![&four, &factor, beta1, 1.0 - beta1, beta2, 1.0 - beta2, 1e-8f32]);
            adamw.launch(&stream, &[1], &arguments).unwrap();
        };
        let mut graph = None;
        let mut seen = Vec::new();
        for t in 1..=10u64 {
            // Warm-up, then a constant rate.
            stream.upload(&[1e-2 * (t as f64 / 5.0).min(1.0)], &mut rate).unwrap();
            stream.upload(&[t], &mut step).unwrap();
            if captured && graph.is_none() {
                let capture = Capture::begin(&stream, &[]).unwrap();
                update(&rate, &step, &mut weights);
                graph = Some(capture.end().unwrap().instantiate().unwrap());
            }
            match &graph {
                Some(graph) => graph.launch(&stream).unwrap(),
                None => update(&rate, &step, &mut weights),
            }
            seen.push(stream.read(&weights).unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        }
        seen
    };
    let eager = run(false);
    assert_ne!(eager[8], eager[9]);
    assert_eq!(eager, run(true));
    setup.silent();
}
