//! Opening a device, and machines on which that is not possible. What is decided once for a process runs in a process
//! of its own: such a test runs an ignored one of this file by name.

mod common;

use common::{Setup, in_a_process, says};
use gpu_driver::{DriverError, Gpu, devices};

#[test]
fn the_emulated_device_is_described() {
    let setup = Setup::new();
    let found = devices().unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].ordinal, found[0].capability, found[0].compute()), (0, (8, 6), 86));
    assert!(!found[0].integrated && found[0].memory_pools && found[0].multiprocessors > 0);
    assert_eq!(found[0].to_string(), "cuda:0: Software GPU, sm_86, 8589 MB");
    let (gpu, _) = setup.open();
    assert_eq!(gpu.device(), &found[0]);
    assert_eq!(gpu.free_memory().unwrap(), (8 << 30, 8 << 30));
    assert_eq!(gpu.driver_version().unwrap(), (12, 4));
    setup.silent();
}

#[test]
fn an_integrated_device_says_so() {
    let setup = Setup::new();
    setup.set("GPU_EMULATOR_INTEGRATED", "on");
    assert!(Gpu::open(0).unwrap().device().integrated);
    setup.set("GPU_EMULATOR_INTEGRATED", "off");
}

/// B122: the error lists the devices that there are, before anything else is done.
#[test]
fn a_wrong_ordinal_lists_the_devices() {
    let setup = Setup::new();
    for ordinal in [1, 7, u32::MAX] {
        let error = Gpu::open(ordinal).unwrap_err();
        assert!(matches!(&error, DriverError::NoSuchDevice { ordinal: o, .. } if *o == ordinal));
        says(&error, &[&format!("no device cuda:{ordinal}; there is cuda:0: Software GPU, sm_86, 8589 MB")]);
    }
    setup.silent();
}

/// B106 (a): no libcuda is an error that says what was looked for, not a panic.
#[test]
fn a_machine_without_a_driver_gets_an_error() {
    in_a_process("child_without_a_driver", &[]);
}

#[test]
#[ignore = "run by a_machine_without_a_driver_gets_an_error in a process of its own"]
fn child_without_a_driver() {
    match devices() {
        Err(error @ DriverError::NoLibrary { .. }) => {
            says(&error, &["no NVIDIA driver", "libcuda.so"]);
            assert_eq!(Gpu::open(0).unwrap_err(), error);
        }
        // A machine with a card: whatever it says, it did not panic.
        Ok(found) => assert!(!found.is_empty()),
        Err(error) => println!("{error}"),
    }
}

/// B106 (b): a driver without a device.
#[test]
fn a_machine_without_a_device_gets_an_error() {
    in_a_process("child_without_a_device", &[("GPU_EMULATOR_DEVICES", "0")]);
}

#[test]
#[ignore = "run by a_machine_without_a_device_gets_an_error in a process of its own"]
fn child_without_a_device() {
    gpu_emulator::install().unwrap();
    let error = devices().unwrap_err();
    assert_eq!(error, DriverError::Call { call: "cuInit", code: 100 });
    says(&error, &["no device is visible", "CUDA_VISIBLE_DEVICES", "nvidia-smi"]);
    assert_eq!(Gpu::open(0).unwrap_err(), error);
}

#[test]
fn an_old_driver_is_named_with_both_versions() {
    in_a_process("child_with_an_old_driver", &[("GPU_EMULATOR_DRIVER_VERSION", "11040")]);
}

#[test]
#[ignore = "run by an_old_driver_is_named_with_both_versions in a process of its own"]
fn child_with_an_old_driver() {
    gpu_emulator::install().unwrap();
    let error = Gpu::open(0).unwrap_err();
    assert_eq!(error, DriverError::OldDriver { found: (11, 4), needed: (12, 0) });
    says(&error, &["supports CUDA 11.4, and 12.0 is needed; update it"]);
    assert_eq!(devices().unwrap_err(), error);
}

/// cudarc looks functions up at their first call, and panics where one is missing.
#[test]
fn a_driver_without_a_function_is_named_before_anything_is_called() {
    in_a_process("child_without_a_function", &[("GPU_EMULATOR_MISSING", "cuGraphInstantiateWithFlags")]);
}

#[test]
#[ignore = "run by a_driver_without_a_function_is_named_before_anything_is_called in a process of its own"]
fn child_without_a_function() {
    let emulator = gpu_emulator::install().unwrap();
    let error = Gpu::open(0).unwrap_err();
    assert_eq!(error, DriverError::TooOld { function: "cuGraphInstantiateWithFlags" });
    says(&error, &["has no cuGraphInstantiateWithFlags", "update it"]);
    assert_eq!(emulator.counter("cuInit"), Some(0));
}

/// What cannot be opened takes nothing: once there is room, or a driver, the next attempt succeeds.
#[test]
fn a_failed_start_is_tried_again() {
    let setup = Setup::new();
    setup.set("GPU_EMULATOR_FAIL", "cuInit:1:802,cuDevicePrimaryCtxRetain:1:2");
    says(&Gpu::open(0).unwrap_err(), &["cuInit failed with CUDA error 802", "fabric manager"]);
    says(&Gpu::open(0).unwrap_err(), &["cuDevicePrimaryCtxRetain failed with CUDA error 2 (out of memory)"]);
    Gpu::open(0).unwrap();
}
