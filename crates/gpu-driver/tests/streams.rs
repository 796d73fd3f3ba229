//! Streams and events: order is what the program says, and nothing else.

mod common;

use common::{Setup, says};
use gpu_driver::{DriverError, Gpu, Stream, arguments};
use kernels_ptx::ADD;

#[test]
fn a_copy_without_the_needed_synchronisation_reads_old_data() {
    let setup = Setup::new();
    let (gpu, writer) = setup.open();
    let reader = gpu.stream().unwrap();
    let add = gpu.load(&ADD).unwrap();
    let one = writer.buffer(&[1.0f32; 4]).unwrap();
    let mut sum = writer.buffer(&[0.0f32; 4]).unwrap();
    add.launch(&writer, &[4], &arguments![&one, &one, &mut sum, 4u64]).unwrap();
    // Nothing orders the reader after the writer: on the emulator, whose streams are lazy, it always comes first.
    assert_eq!(reader.read(&sum).unwrap(), [0.0; 4]);
    let written = gpu.event().unwrap();
    written.record(&writer).unwrap();
    reader.wait(&written).unwrap();
    assert_eq!(reader.read(&sum).unwrap(), [2.0; 4]);
    setup.silent();
}

#[test]
fn reading_on_the_writers_stream_needs_nothing() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let add = gpu.load(&ADD).unwrap();
    let one = stream.buffer(&[1.0f32; 4]).unwrap();
    let mut sum = gpu.buffer::<f32>(4).unwrap();
    add.launch(&stream, &[4], &arguments![&one, &one, &mut sum, 4u64]).unwrap();
    // cudarc's clone_dtoh would give a vector that is not written yet where the memory is pinned; ours waits.
    assert_eq!(stream.read(&sum).unwrap(), [2.0; 4]);
    assert!(stream.is_idle().unwrap());
}

#[test]
fn events_have_times_and_an_order() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let [start, end, never] = [(); 3].map(|()| gpu.event().unwrap());
    start.record(&stream).unwrap();
    let buffer = stream.buffer(&vec![1.0f32; 1 << 20]).unwrap();
    end.record(&stream).unwrap();
    assert!(!end.is_done().unwrap());
    end.synchronize().unwrap();
    assert!(start.is_done().unwrap() && end.elapsed_since(&start).unwrap() > std::time::Duration::ZERO);
    for error in [never.synchronize(), never.is_done().map(drop), stream.wait(&never)] {
        assert!(matches!(error, Err(DriverError::NotRecorded { .. })));
    }
    says(&never.elapsed_since(&start).unwrap_err(), &["measuring to an event: the event was never recorded"]);
    drop(buffer);
    setup.silent();
}

/// B116: products of cuBLAS, own kernels and copies of one stream come in order, many times, without a wait between.
#[test]
fn library_and_kernels_share_the_stream() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let blas = gpu_driver::Blas::new(&stream).unwrap();
    let add = gpu.load(&ADD).unwrap();
    let mut results = Vec::new();
    for seed in ["3", "4", "lazy"] {
        setup.set("GPU_EMULATOR_STREAMS", seed);
        for rows in [30usize, 200] {
            let pass = |gpu: &Gpu, stream: &Stream| {
                let x: Vec<f32> = (0..rows * 16).map(|i| (i % 13) as f32 - 6.0).collect();
                let x = stream.buffer(&x).unwrap();
                let weight = stream.buffer(&[0.25f32; 256]).unwrap();
                let mut y = gpu.buffer::<f32>(rows * 16).unwrap();
                let mut z = gpu.buffer::<f32>(rows * 16).unwrap();
                for _ in 0..5 {
                    let a = gpu_driver::Factor::new(&x, rows, 16);
                    let b = gpu_driver::Factor::new(&weight, 16, 16).t();
                    let layout = gpu_driver::Layout::new(rows, 16);
                    blas.product(1, 1.0, a, b, 0.0, (y.view_mut(), layout)).unwrap();
                    let n = (rows * 16) as u64;
                    add.launch(stream, &[n], &arguments![&x, &y, &mut z, n]).unwrap();
                }
                stream.read(&z).unwrap()
            };
            results.push((rows, pass(&gpu, &stream)));
        }
    }
    for (rows, result) in &results[2..] {
        assert_eq!(result, &results[usize::from(*rows != 30)].1);
    }
    setup.silent();
}

#[test]
fn buffers_that_go_while_their_launch_is_in_flight_are_freed_after_it() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let add = gpu.load(&ADD).unwrap();
    let mut sum = gpu.buffer::<f32>(256).unwrap();
    {
        let temporary = stream.buffer(&[4.0f32; 256]).unwrap();
        add.launch(&stream, &[256], &arguments![&temporary, &temporary, &mut sum, 256u64]).unwrap();
    }
    drop(add);
    assert_eq!(stream.read(&sum).unwrap(), [8.0; 256]);
    assert_eq!(gpu.memory().in_use, 1024);
    setup.silent();
}

/// B114: nothing tracks events behind the program's back, so there is nothing to turn off and nothing to wait for
/// that never comes.
#[test]
fn a_buffer_used_on_two_streams_is_freed_in_time() {
    let setup = Setup::new();
    let (gpu, first) = setup.open();
    let second = gpu.stream().unwrap();
    let add = gpu.load(&ADD).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        let x = first.buffer(&[1.0f32; 32]).unwrap();
        let mut sums = [(); 2].map(|()| gpu.buffer::<f32>(32).unwrap());
        for (stream, sum) in [&first, &second].into_iter().zip(&mut sums) {
            add.launch(stream, &[32], &arguments![&x, &x, sum, 32u64]).unwrap();
        }
        drop(x);
        drop(sums);
        done.send(gpu.memory().in_use).unwrap();
    });
    assert_eq!(ended.recv_timeout(std::time::Duration::from_secs(10)), Ok(0));
    worker.join().unwrap();
    setup.silent();
}

#[test]
fn a_failing_kernel_is_named_once_and_then_nothing_more_is_asked() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let buffer = stream.buffer(&[0.0f32; 4]).unwrap();
    setup.set("GPU_EMULATOR_FAIL_ASYNC", "1:716");
    let mut other = gpu.buffer::<f32>(4).unwrap();
    stream.copy(&buffer, &mut other).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error, DriverError::Call { call: "cuStreamSynchronize", code: 716 });
    assert!(error.is_sticky());
    says(&error, &["misaligned address", "the context is lost"]);
    for error in [gpu.check(), stream.zero(&mut other), gpu.stream().map(drop)] {
        assert_eq!(error, Err(DriverError::Poisoned { call: "cuStreamSynchronize", code: 716 }));
    }
    // Dropping what is left asks nothing of a context that is lost.
    drop((buffer, other));
    assert_eq!(setup.calls("cuMemFree_v2"), 0);
}

/// Every call's status is looked at: whichever call fails, its name comes back.
#[test]
fn whichever_call_fails_is_named() {
    type Attempt = fn(&Gpu, &Stream) -> Result<(), DriverError>;
    let attempts: [(&'static str, Attempt); 9] = [
        ("cuStreamCreate", |gpu, _| gpu.stream().map(drop)),
        ("cuEventCreate", |gpu, _| gpu.event().map(drop)),
        ("cuEventRecord", |gpu, stream| gpu.event()?.record(stream)),
        ("cuStreamSynchronize", |_, stream| stream.synchronize()),
        ("cuMemGetInfo_v2", |gpu, _| gpu.free_memory().map(drop)),
        ("cuMemcpyHtoDAsync_v2", |_, stream| stream.buffer(&[1u8]).map(drop)),
        ("cuMemcpyDtoHAsync_v2", |_, stream| stream.read(&stream.buffer(&[1u8])?).map(drop)),
        ("cuMemsetD8Async", |gpu, stream| stream.zero(&mut gpu.buffer::<u8>(1)?)),
        ("cuModuleGetFunction", |gpu, _| gpu.load(&ADD).map(drop)),
    ];
    let setup = Setup::new();
    for (call, attempt) in attempts {
        let (gpu, stream) = setup.open();
        setup.set("GPU_EMULATOR_FAIL", &format!("{call}:1:999"));
        let error = attempt(&gpu, &stream).unwrap_err();
        assert_eq!(error, DriverError::Call { call, code: 999 });
        setup.set("GPU_EMULATOR_FAIL", "");
        attempt(&gpu, &stream).unwrap();
    }
}

#[test]
fn a_failing_drop_is_returned_by_the_next_call() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let buffer = gpu.buffer::<u8>(10).unwrap();
    setup.set("GPU_EMULATOR_FAIL", "cuMemFree_v2:1:999");
    drop(buffer);
    let error = gpu.event().unwrap_err();
    says(&error, &["an earlier buffer could not be given back", "cuMemFree_v2 failed with CUDA error 999"]);
    // It is returned once.
    gpu.event().unwrap();
    setup.set("GPU_EMULATOR_FAIL", "cuEventDestroy_v2:1:999");
    drop(gpu.event().unwrap());
    says(&gpu.check().unwrap_err(), &["an earlier event could not be given back"]);
    gpu.check().unwrap();
    stream.synchronize().unwrap();
}
