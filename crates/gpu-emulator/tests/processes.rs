//! What is decided once for a process: missing functions, a device that is not there, `REQUIRE_GPU`. Each
//! case runs this file again as a process of its own.

// Every unsafe block here is a call of the driver API whose pointers are locals of the test.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::process::{Command, Output};

use cudarc::driver::sys::{self, CUresult};

fn child(name: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command.env_remove("REQUIRE_GPU").envs(variables.iter().copied());
    command.output().unwrap()
}

#[track_caller]
fn passes(name: &str, variables: &[(&str, &str)]) {
    let output = child(name, variables);
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn an_old_driver_lacks_functions() {
    passes("child_without_pools", &[("GPU_EMULATOR_MISSING", "cuMemAllocAsync, cuMemFreeAsync")]);
}

#[test]
#[ignore = "run by an_old_driver_lacks_functions in a process of its own"]
fn child_without_pools() {
    gpu_emulator::install().unwrap();
    unsafe { assert_eq!(sys::cuInit(0), CUresult::CUDA_SUCCESS) };
    let mut at = 0;
    // cudarc panics where a function is missing.
    let call =
        std::panic::catch_unwind(move || unsafe { sys::cuMemAllocAsync(&mut at, 4, std::ptr::null_mut()) });
    assert!(call.is_err());
    let mut found = std::ptr::null_mut();
    let code = unsafe {
        sys::cuGetProcAddress_v2(c"cuMemAllocAsync".as_ptr(), &mut found, 12000, 0, std::ptr::null_mut())
    };
    assert_eq!((code, found.is_null()), (CUresult::CUDA_ERROR_NOT_FOUND, true));
    let code = unsafe {
        sys::cuGetProcAddress_v2(c"cuMemAlloc".as_ptr(), &mut found, 12000, 0, std::ptr::null_mut())
    };
    assert_eq!((code, found.is_null()), (CUresult::CUDA_SUCCESS, false));
}

#[test]
fn a_machine_without_a_device_says_so() {
    passes("child_without_device", &[("GPU_EMULATOR_DEVICES", "0")]);
    passes("child_without_device", &[("GPU_EMULATOR_VRAM", "a lot")]);
}

#[test]
#[ignore = "run by a_machine_without_a_device_says_so in a process of its own"]
fn child_without_device() {
    gpu_emulator::install().unwrap();
    unsafe { assert_eq!(sys::cuInit(0), CUresult::CUDA_ERROR_NO_DEVICE) };
}

#[test]
fn it_does_not_stand_in_where_a_gpu_is_required() {
    passes("child_that_requires_a_gpu", &[("REQUIRE_GPU", "1")]);
}

#[test]
#[ignore = "run by it_does_not_stand_in_where_a_gpu_is_required in a process of its own"]
fn child_that_requires_a_gpu() {
    let error = gpu_emulator::install().unwrap_err().to_string();
    assert!(error.contains("REQUIRE_GPU=1 is set"), "{error}");
}

/// No file in the target folder may be found by an ordinary run that looks for a driver.
#[test]
fn no_file_is_called_libcuda() {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    for folder in [folder.as_path(), folder.parent().unwrap()] {
        for file in std::fs::read_dir(folder).unwrap() {
            let name = file.unwrap().file_name().to_string_lossy().into_owned();
            assert!(
                !name.starts_with("libcuda.so") && !name.starts_with("libcublas.so"),
                "{}/{name}",
                folder.display()
            );
        }
    }
}
