//! Devices through the emulated driver, and a machine without one. Each in a process of its own, for a library
//! that was opened stays open: the first test runs the second by name.

use gpu_driver::{DriverError, devices};

#[test]
fn the_emulated_device_is_described() {
    let _emulator = gpu_emulator::install().unwrap();
    let found = devices().unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].ordinal, found[0].capability), (0, (8, 6)));
    assert!(found[0].total_memory > 0 && !found[0].integrated);
    assert!(found[0].to_string().starts_with("cuda:0: "), "{}", found[0]);
}

/// B106 (a): no libcuda is an error that says what was looked for, not a panic.
#[test]
fn a_machine_without_a_driver_gets_an_error() {
    let this = std::env::current_exe().unwrap();
    let child = ["--exact", "child_without_a_driver", "--ignored"];
    let output = std::process::Command::new(this).args(child).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "run by a_machine_without_a_driver_gets_an_error in a process of its own"]
fn child_without_a_driver() {
    match devices() {
        Err(error @ DriverError::NoLibrary { .. }) => assert!(error.to_string().contains("libcuda.so")),
        // A machine with a card: whatever it says, it did not panic.
        Ok(found) => assert!(!found.is_empty()),
        Err(error) => println!("{error}"),
    }
}
