//! Loading and launching: what is refused before the driver hears of it, and what the driver refuses.

mod common;

use common::{Setup, says};
use gpu_driver::{Argument, DriverError, Module, arguments};
use kernels_ptx::{ACCUMULATE, ADD, Access, Element, GEMM_BF16, GEMM_F32, KERNELS, Kind, Launch, Param};

const DOUBLE: &str = "
.version 6.3
.target sm_75
.address_size 64
.visible .entry double_it(.param .u64 x, .param .u32 n) {
  .reg .pred %p; .reg .b32 %i, %n; .reg .b64 %x, %o; .reg .f32 %f;
  ld.param.u64 %x, [x];
  ld.param.u32 %n, [n];
  mov.u32 %i, %tid.x;
  setp.ge.u32 %p, %i, %n;
  @%p ret;
  mul.wide.u32 %o, %i, 4;
  add.u64 %x, %x, %o;
  ld.global.f32 %f, [%x];
  add.rn.f32 %f, %f, %f;
  st.global.f32 [%x], %f;
  ret;
}
";

const DOUBLE_PARAMETERS: [Param; 2] = [
    Param {
        name: "x",
        kind: Kind::Pointer { element: Element::F32, access: Access::Update, optional: false },
        note: "[n]",
    },
    Param { name: "n", kind: Kind::U32, note: "how many" },
];

#[test]
fn every_kernel_loads() {
    let setup = Setup::new();
    let (gpu, _) = setup.open();
    for kernel in KERNELS {
        let loaded = gpu.load(kernel).unwrap();
        assert_eq!(loaded.name(), kernel.name);
    }
    setup.silent();
}

#[test]
fn a_wrong_argument_is_named_before_the_launch() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let kernel = gpu.load(&ACCUMULATE).unwrap();
    let x = stream.buffer(&[1.0f32; 8]).unwrap();
    let halves = stream.buffer(&[half::f16::ONE; 8]).unwrap();
    let mut y = stream.buffer(&[1.0f32; 8]).unwrap();
    let launch = |arguments: &[Argument<'_>]| kernel.launch(&stream, &[8], arguments).unwrap_err();

    let error = launch(&arguments![&halves, &mut y, 8u64, 1.0f32]);
    says(&error, &["accumulate: argument 0 (`x`) must be a buffer of F32", "a buffer of F16 to read"]);
    assert!(matches!(error, DriverError::Argument { index: 0, parameter: "x", .. }));
    // What is written must be lent to be written.
    let error = launch(&arguments![&x, &y, 8u64, 1.0f32]);
    says(
        &error,
        &["argument 1 (`y`) must be a buffer to write (&mut) of F32, and is a buffer of F32 to read"],
    );
    // Numbers are of one type each: a 32-bit one would leave half of a 64-bit parameter to chance.
    says(
        &launch(&arguments![&x, &mut y, 8u32, 1.0f32]),
        &["argument 2 (`elements`) must be a u64", "the u32 8"],
    );
    says(
        &launch(&arguments![&x, &mut y, 8u64, 1.0f64]),
        &["argument 3 (`factor`) must be an f32", "the f64 1"],
    );
    says(
        &launch(&[Argument::NOTHING, (&mut y).into(), 8u64.into(), 1f32.into()]),
        &["must be a buffer of F32, and is nothing"],
    );
    let error = launch(&arguments![&x, &mut y, 8u64]);
    says(&error, &["accumulate has 4 parameters (x, y, elements, factor), 3 arguments were given"]);
    assert_eq!(setup.calls("cuLaunchKernel"), 0);
    setup.silent();
}

#[test]
fn lengths_and_sizes_that_do_not_match_are_named_before_the_launch() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let kernel = gpu.load(&ACCUMULATE).unwrap();
    let x = stream.buffer(&[1.0f32; 7]).unwrap();
    let mut y = stream.buffer(&[1.0f32; 8]).unwrap();
    let error = kernel.launch(&stream, &[8], &arguments![&x, &mut y, 8u64, 1.0f32]).unwrap_err();
    says(&error, &["accumulate: `x` has 7 elements, and needs 8 for [elements]"]);
    let error = kernel.launch(&stream, &[8], &arguments![&x, &mut y, 7u64, 1.0f32]).unwrap_err();
    says(&error, &["accumulate is launched for elements = 8, and its argument says 7"]);
    says(
        &kernel.launch(&stream, &[], &arguments![&x, &mut y, 7u64, 1.0f32]).unwrap_err(),
        &["accumulate: needs 1 sizes to be launched, got 0"],
    );
    // Nothing to do is nothing to launch.
    kernel.launch(&stream, &[0], &arguments![&x, &mut y, 0u64, 1.0f32]).unwrap();
    assert_eq!(setup.calls("cuLaunchKernel"), 0);
    kernel.launch(&stream, &[7], &arguments![&x, &mut y, 7u64, 1.0f32]).unwrap();
    assert_eq!(stream.read(&y).unwrap(), [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0]);
    setup.silent();
}

#[test]
fn sizes_that_one_launch_cannot_cover_say_where_to_split() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let add = gpu.load(&ADD).unwrap();
    let x = stream.buffer(&[1.0f32]).unwrap();
    let mut y = gpu.buffer::<f32>(1).unwrap();
    // Beyond 2^31 elements a buffer is too short, and says so; beyond 2^31 blocks the launch is.
    let elements = (1u64 << 31) + 1;
    let error = add.launch(&stream, &[elements], &arguments![&x, &x, &mut y, elements]).unwrap_err();
    says(&error, &["`a` has 1 elements, and needs 2147483649"]);
    let elements = 1u64 << 50;
    let error = add.launch(&stream, &[elements], &arguments![&x, &x, &mut y, elements]).unwrap_err();
    says(&error, &["add: elements = 1125899906842624 is more than one launch can cover; split it at"]);
    let gemm = gpu.load(&GEMM_F32).unwrap();
    let error = gemm.launch(&stream, &[1, 1, 1 << 20], &[]).unwrap_err();
    says(&error, &["gemm_f32: batch = 1048576", "split it at 65535"]);
    setup.silent();
}

#[test]
fn a_device_without_the_instructions_is_named() {
    let setup = Setup::new();
    setup.set("GPU_EMULATOR_COMPUTE", "7.5");
    let (gpu, _) = setup.open();
    says(
        &gpu.load(&GEMM_BF16).unwrap_err(),
        &["gemm_bf16 needs compute capability 8.0, Software GPU has 7.5"],
    );
    assert!(gpu.load(&kernels_ptx::GEMM_F16_K8).is_ok());
}

/// B108: the error names kernel, PTX version and driver version, and shows the compiler's log.
#[test]
fn ptx_newer_than_the_driver_is_named() {
    let setup = Setup::new();
    let (gpu, _) = setup.open();
    let error = Module::load(&gpu, &DOUBLE.replace(".version 6.3", ".version 9.9")).unwrap_err();
    says(
        &error,
        &["CUDA error 222", "update the driver", "version 9.9 for sm_75", "the driver supports CUDA 12.4"],
    );
    let error = Module::load(&gpu, &DOUBLE.replace("sm_75", "sm_120")).unwrap_err();
    says(&error, &["a module does not load", "version 6.3 for sm_120", "sm_120"]);
    // Ours need no more than they use, so that a driver of CUDA 12.0 loads them all.
    setup.set("GPU_EMULATOR_DRIVER_VERSION", "12000");
    for kernel in KERNELS {
        gpu.load(kernel).unwrap();
    }
}

#[test]
fn ptx_that_does_not_load_shows_the_log() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let error = Module::load(&gpu, &DOUBLE.replace("add.rn.f32", "add.rn.f33")).unwrap_err();
    let DriverError::Module { code: 218, log, .. } = &error else { panic!("{error}") };
    assert!(log.contains("double_it") && log.contains("f33"), "{log}");
    says(&error, &[log, "invalid PTX"]);
    says(&Module::load(&gpu, "").unwrap_err(), &["invalid image", "version none"]);
    assert_eq!(Module::load(&gpu, ".version\0").unwrap_err(), DriverError::ZeroByte { at: 8 });
    // The context is as good as before.
    assert_eq!(stream.read(&stream.buffer(&[1u8]).unwrap()).unwrap(), [1]);
}

#[test]
fn a_container_without_the_ptx_compiler_is_told_what_it_lacks() {
    let setup = Setup::new();
    let (gpu, _) = setup.open();
    setup.set("GPU_EMULATOR_FAIL", "cuModuleLoadDataEx:1:221");
    says(
        &gpu.load(&ADD).unwrap_err(),
        &["add does not load", "CUDA error 221", "capability `compute,utility`"],
    );
}

/// B109: all kernels are loaded before anything runs, so a bad one is found before the first result.
#[test]
fn a_kernel_that_does_not_load_is_found_before_the_first_launch() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    setup.set("GPU_EMULATOR_FAIL", "cuModuleLoadDataEx:20:218");
    let error = KERNELS.iter().map(|kernel| gpu.load(kernel)).collect::<Result<Vec<_>, _>>().unwrap_err();
    says(&error, &[KERNELS[19].name, "does not load"]);
    assert_eq!(setup.calls("cuLaunchKernel"), 0);
    // And a context that is lost refuses everything from there on.
    setup.set("GPU_EMULATOR_FAIL", "cuModuleLoadDataEx:1:700");
    let error = gpu.load(&ADD).unwrap_err();
    assert!(error.is_sticky(), "{error}");
    let calls = setup.calls("cuMemAlloc_v2");
    let error = stream.buffer(&[0.0f32]).unwrap_err();
    assert!(matches!(error, DriverError::Poisoned { call: "cuModuleLoadDataEx", code: 700 }));
    says(&error, &["the GPU cannot be used any more", "illegal address", "start the program anew"]);
    assert_eq!(setup.calls("cuMemAlloc_v2"), calls);
}

#[test]
fn a_programs_own_kernel_is_checked_by_its_own_signature() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let module = Module::load(&gpu, DOUBLE).unwrap();
    // SAFETY: the parameters are those of the entry above, which touches the first n elements of x.
    let kernel = unsafe { module.kernel("double_it", &DOUBLE_PARAMETERS) }.unwrap();
    drop(module);
    let mut x = stream.buffer(&[1.0f32, 2.0, 3.0]).unwrap();
    let launch = Launch { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 0 };
    kernel.launch_grid(&stream, launch, &arguments![&mut x, 2u32]).unwrap();
    assert_eq!(stream.read(&x).unwrap(), [2.0, 4.0, 3.0]);
    says(
        &kernel.launch_grid(&stream, launch, &arguments![&mut x, 4u32]).unwrap_err(),
        &["double_it: `x` has 3 elements, and needs 4 for [n]"],
    );
    says(
        &kernel.launch(&stream, &[2], &arguments![&mut x, 2u32]).unwrap_err(),
        &["launch it with Kernel::launch_grid"],
    );
    for (grid, block, what) in [
        ([1, 1, 1], [2048, 1, 1], "the number of threads of a block is 2048, and can be 1024"),
        ([1, 70_000, 1], [1, 1, 1], "the grid in y is 70000, and can be 65535"),
        ([1 << 31, 1, 1], [1, 1, 1], "the grid in x is 2147483648, and can be 2147483647"),
        ([1, 1, 1], [1, 1, 128], "the block in z is 128, and can be 64"),
    ] {
        let launch = Launch { grid, block, shared_bytes: 0 };
        says(&kernel.launch_grid(&stream, launch, &arguments![&mut x, 2u32]).unwrap_err(), &[what]);
    }
    setup.silent();
    // Shared memory beyond 48 KB is opted in to; what the device lacks it refuses.
    let launch = |kib: u32| Launch { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: kib << 10 };
    kernel.launch_grid(&stream, launch(64), &arguments![&mut x, 2u32]).unwrap();
    let error = kernel.launch_grid(&stream, launch(128), &arguments![&mut x, 2u32]).unwrap_err();
    assert_eq!(error, DriverError::Call { call: "cuFuncSetAttribute", code: 1 });
    // SAFETY: nothing is launched; the signature is refused.
    let error = unsafe { Module::load(&gpu, DOUBLE).unwrap().kernel("double_it", &DOUBLE_PARAMETERS[..1]) };
    says(&error.unwrap_err(), &["double_it takes parameters of [8, 4] bytes, and its signature says [8]"]);
    // SAFETY: nothing is launched; the entry does not exist.
    let error = unsafe { Module::load(&gpu, DOUBLE).unwrap().kernel("halve_it", &[]) }.unwrap_err();
    assert_eq!(error, DriverError::NoKernel { kernel: "halve_it".into() });
}

#[test]
fn optional_pointers_and_kernels_that_work_in_place() {
    let setup = Setup::new();
    let (gpu, stream) = setup.open();
    let gemm = gpu.load(&kernels_ptx::GEMM_F16).unwrap();
    let a = stream.buffer(&[half::f16::from_f32(2.0); 4]).unwrap();
    let mut c = gpu.buffer::<f32>(4).unwrap();
    let [m, n, k] = [2u32; 3];
    let mut arguments = Vec::from(arguments![&a, &a, &mut c]);
    arguments.extend([Argument::NOTHING, Argument::NOTHING]);
    arguments.extend(arguments![m, n, k, 2u64, 2u64, 2u64, 4u64, 4u64, 4u64, 0u32, 0u32, 1.0f32, 0.0f32]);
    gemm.launch(&stream, &[2, 2, 1], &arguments).unwrap();
    assert_eq!(stream.read(&c).unwrap(), [8.0; 4]);
    let add = gpu.load(&ADD).unwrap();
    let target = c.view_mut();
    add.launch(&stream, &[4], &arguments![target.aliased(), target.aliased(), target, 4u64]).unwrap();
    assert_eq!(stream.read(&c).unwrap(), [16.0; 4]);
    setup.silent();
}
