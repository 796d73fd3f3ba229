//! Buffers, their accounting, copies, pinned memory and transfers.

mod common;

use common::{Setup, says};
use gpu_driver::DriverError;

const MIB: u64 = 1 << 20;

#[test]
fn what_is_uploaded_comes_back() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let buffer = stream.buffer(&x).unwrap();
    assert_eq!(stream.read(&buffer).unwrap(), x);
    let mut copy = gpu.buffer::<f32>(10).unwrap();
    stream.copy(buffer.view().range(5..15).unwrap(), &mut copy).unwrap();
    assert_eq!(stream.read(&copy).unwrap(), &x[5..15]);
    stream.zero(copy.view_mut().range(..3).unwrap()).unwrap();
    assert_eq!(stream.read(copy.view().range(..4).unwrap()).unwrap(), [0.0, 0.0, 0.0, 8.0]);
    setup.silent();
}

#[test]
fn lengths_that_differ_are_refused() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let mut three = gpu.buffer::<f32>(3).unwrap();
    let four = gpu.buffer::<f32>(4).unwrap();
    let lengths = |from, to| move |e: &DriverError| matches!(e, DriverError::Lengths { from: f, to: t, .. } if (*f, *t) == (from, to));
    assert!(stream.upload(&[0.0; 2], &mut three).is_err_and(|e| lengths(2, 3)(&e)));
    assert!(stream.download(&three, &mut [0.0; 5]).is_err_and(|e| lengths(3, 5)(&e)));
    assert!(stream.copy(&four, &mut three).is_err_and(|e| lengths(4, 3)(&e)));
    let refused = stream.send(gpu.pinned::<f32>(2).unwrap(), three).unwrap_err();
    says(&refused, &["the lengths differ, 2 elements to 3"]);
    // Both ends come back.
    assert_eq!((refused.host.as_slice().len(), refused.device.len()), (2, 3));
    says(&four.view().range(2..9).unwrap_err(), &["elements 2..9 are not in a buffer of 4"]);
    setup.silent();
}

#[test]
fn memory_is_counted_and_given_back() {
    let setup = Setup::new();
    let (gpu, _) = setup.open();
    let live = setup.emulator.counter("allocations").unwrap();
    assert_eq!((gpu.memory().in_use, gpu.memory().limit), (0, u64::MAX));
    let a = gpu.buffer::<u8>(1000).unwrap();
    let b = gpu.buffer::<f32>(1000).unwrap();
    assert_eq!(gpu.memory().in_use, 1024 + 4096);
    drop(a);
    assert_eq!((gpu.memory().in_use, gpu.memory().peak), (4096, 5120));
    drop(b);
    assert_eq!((gpu.memory().in_use, gpu.memory().peak), (0, 5120));
    assert_eq!(setup.emulator.counter("allocations"), Some(live));
    let pinned = gpu.pinned::<u64>(100).unwrap();
    assert_eq!(gpu.memory().pinned, 800);
    drop(pinned);
    assert_eq!((gpu.memory().pinned, setup.emulator.counter("pinned")), (0, Some(0)));
    // An empty buffer is one: it can be viewed, copied and passed.
    let empty = gpu.buffer::<f32>(0).unwrap();
    assert!(empty.is_empty() && empty.view().is_empty());
    setup.silent();
}

#[test]
fn the_limit_is_kept_and_named() {
    let setup = Setup::new();
    let (gpu, _) = setup.open();
    gpu.set_memory_limit(MIB);
    let first = gpu.buffer::<u8>(MIB as usize / 2).unwrap();
    let error = gpu.buffer::<u8>(MIB as usize / 2 + 1).unwrap_err();
    assert!(
        matches!(error, DriverError::OverLimit { requested, in_use, limit } if requested == MIB / 2 + 256 && in_use == MIB / 2 && limit == MIB)
    );
    says(&error, &["over the limit", "524544 bytes", "524288 of 1048576"]);
    // The driver was not asked.
    assert_eq!(setup.calls("cuMemAlloc_v2"), 1);
    drop(first);
    assert!(gpu.buffer::<u8>(MIB as usize).is_ok());
    // The device is opened once for the process: another handle sees the same account.
    assert_eq!(gpu_driver::Gpu::open(0).unwrap().memory().limit, MIB);
}

#[test]
fn a_device_without_room_says_how_much_there_is() {
    let setup = Setup::new();
    setup.set("GPU_EMULATOR_VRAM", "64MiB");
    let (gpu, stream) = setup.open();
    // What a test that lost its context has left on the emulated device is not ours.
    let (before, _) = gpu.free_memory().unwrap();
    let held = gpu.buffer::<u8>(16 << 20).unwrap();
    let error = gpu.buffer::<u8>(100 << 20).unwrap_err();
    let DriverError::OutOfMemory { requested, free, total, in_use } = error else { panic!("{error}") };
    assert_eq!((requested, free, total, in_use), (100 * MIB, before - 16 * MIB, 64 * MIB, 16 * MIB));
    says(&error, &["out of device memory", "104857600 bytes", "16777216 are in use by this program"]);
    // Nothing is lost by it: the account, the context and what was there are as before.
    assert_eq!(gpu.memory().in_use, 16 * MIB);
    assert_eq!(stream.read(stream.buffer(&[7u32]).unwrap().view()).unwrap(), [7]);
    drop(held);
}

#[test]
fn sizes_beyond_what_can_be_counted_or_exists_are_errors() {
    let setup = Setup::new();
    let (gpu, _) = setup.open();
    says(
        &gpu.buffer::<f64>(usize::MAX / 4).unwrap_err(),
        &["elements of F64 are more bytes than can be counted"],
    );
    assert!(matches!(gpu.buffer::<u8>(usize::MAX), Err(DriverError::TooLarge { .. })));
    // More than 2^31 elements are ordinary; here the device is too small for them.
    assert!(matches!(gpu.buffer::<f32>((1 << 31) + 1), Err(DriverError::OutOfMemory { .. })));
    assert!(gpu.buffer::<u8>((1 << 31) + 1).is_ok());
}

/// B01, on the device: memory that was used before is not seen by what comes after it.
#[test]
fn memory_that_is_used_again_is_not_read_before_it_is_written() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    drop(stream.buffer(&[1e30f32; 128]).unwrap());
    let unwritten = gpu.buffer::<f32>(128).unwrap();
    let add = gpu.load(&kernels_ptx::ADD).unwrap();
    let mut sum = gpu.buffer::<f32>(128).unwrap();
    add.launch(&stream, &[128], &gpu_driver::arguments![&unwritten, &unwritten, &mut sum, 128u64]).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(error.is_sticky());
    setup.reported(&["`add`", "nothing has written"]);
}

#[test]
fn an_arena_is_cut_into_buffers_that_live_as_long_as_any() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let arena = gpu.buffer::<u8>(4096).unwrap();
    let (head, rest) = arena.split(1024).unwrap();
    let mut head = head.cast::<f32>().unwrap();
    let rest = rest.cast::<u64>().unwrap();
    assert_eq!((head.len(), rest.len()), (256, 384));
    drop(rest);
    stream.upload(&[3.0; 256], &mut head).unwrap();
    assert_eq!(stream.read(&head).unwrap(), [3.0; 256]);
    let (first, mut second) = head.view_mut().split(100).unwrap();
    stream.upload(&[1.0; 100], first).unwrap();
    stream.upload(&[2.0; 56], second.reborrow().range(..56).unwrap()).unwrap();
    stream.upload(&[4.0; 100], second.range(56..).unwrap()).unwrap();
    let got = stream.read(&head).unwrap();
    assert_eq!((got[99], got[100], got[155], got[156], got[255]), (1.0, 2.0, 2.0, 4.0, 4.0));
    assert_eq!(gpu.memory().in_use, 4096);
    drop(head);
    assert_eq!(gpu.memory().in_use, 0);
    says(&gpu.buffer::<u8>(10).unwrap().cast::<f32>().unwrap_err(), &["10 bytes", "cannot be seen as F32"]);
    setup.silent();
}

#[test]
fn transfers_own_both_ends_until_they_are_done() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let mut host = gpu.pinned::<f32>(1000).unwrap();
    assert!(host.as_slice().iter().all(|&x| x == 0.0));
    host.as_mut_slice().fill(2.5);
    let transfer = stream.send(host, gpu.buffer(1000).unwrap()).unwrap();
    // The emulator's streams are lazy, so the copy is really in flight.
    assert!(!transfer.is_done().unwrap());
    let (mut host, device) = transfer.wait().unwrap();
    host.as_mut_slice().fill(0.0);
    let (host, device) = stream.fetch(device, host).unwrap().wait().unwrap();
    assert!(host.as_slice().iter().all(|&x| x == 2.5));
    // Dropping one waits for it; nothing is written to memory that is gone.
    drop(stream.fetch(device, host).unwrap());
    assert_eq!((gpu.memory().pinned, gpu.memory().in_use), (0, 0));
    setup.silent();
}

#[test]
fn a_copy_whose_event_fails_gives_both_ends_back_done() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let device = stream.buffer(&[3.0f32; 10]).unwrap();
    setup.set("GPU_EMULATOR_FAIL", "cuEventRecord:1:999");
    let refused = stream.fetch(device, gpu.pinned(10).unwrap()).unwrap_err();
    assert_eq!(refused.error, DriverError::Call { call: "cuEventRecord", code: 999 });
    // The copy had been enqueued, and must not write what the host has again.
    assert!(stream.is_idle().unwrap());
    assert_eq!((refused.host.as_slice(), refused.device.len()), (&[3.0; 10][..], 10));
}

#[test]
fn nothing_is_copied_where_there_is_nothing() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let mut empty = stream.buffer::<f32>(&[]).unwrap();
    assert_eq!(stream.read(&empty).unwrap(), []);
    stream.zero(&mut empty).unwrap();
    stream.copy(&gpu.buffer::<f32>(0).unwrap(), &mut empty).unwrap();
    stream.send_frozen(&gpu.pinned::<f32>(1).unwrap().freeze(), 1.., &mut empty).unwrap();
    let (host, _) = stream.send(gpu.pinned::<f32>(0).unwrap(), empty).unwrap().wait().unwrap();
    assert_eq!(host.as_slice(), []);
    setup.silent();
}

#[test]
fn the_devices_end_goes_on_to_another_stream_before_the_copy_is_done() {
    let setup = Setup::new();
    let (gpu, copies) = setup.open();
    let work = gpu.stream().unwrap();
    let add = gpu.load(&kernels_ptx::ADD).unwrap();
    let mut host = gpu.pinned::<f32>(256).unwrap();
    host.as_mut_slice().fill(1.5);
    let transfer = copies.send(host, gpu.buffer(256).unwrap()).unwrap();
    let (x, in_flight) = transfer.continue_on(&work).unwrap();
    let mut sum = gpu.buffer::<f32>(256).unwrap();
    add.launch(&work, &[256], &gpu_driver::arguments![&x, &x, &mut sum, 256u64]).unwrap();
    assert_eq!(work.read(&sum).unwrap(), [3.0; 256]);
    assert_eq!(in_flight.wait().unwrap().as_slice()[0], 1.5);
    setup.silent();
}

/// Write-combined memory is read by the CPU hundreds of times slower, which is what cudarc's own call gives.
#[test]
fn pinned_memory_is_not_write_combined() {
    use cudarc::driver::sys;
    let setup = Setup::new();
    let (gpu, _) = setup.open();
    let buffer = gpu.pinned::<u8>(64).unwrap();
    let mut flags = u32::MAX;
    let at = buffer.as_slice().as_ptr().cast_mut().cast();
    // SAFETY: the pointer is to pinned memory that is alive, and to a local.
    let code = unsafe { sys::cuMemHostGetFlags(&raw mut flags, at) };
    assert_eq!((code, flags & 4), (sys::CUresult::CUDA_SUCCESS, 0));
}

#[test]
fn pinned_memory_that_the_system_refuses_is_named() {
    let setup = Setup::new();
    let (gpu, _) = setup.open();
    setup.set("GPU_EMULATOR_PINNED_LIMIT", "1MiB");
    let held = gpu.pinned::<u8>(600_000).unwrap();
    let error = gpu.pinned::<u8>(600_000).unwrap_err();
    assert_eq!(error, DriverError::OutOfPinned { requested: 600_000, in_use: 600_000 });
    drop(held);
    assert!(gpu.pinned::<u8>(600_000).is_ok());
    setup.set("GPU_EMULATOR_PINNED_LIMIT", "1000GiB");
}
