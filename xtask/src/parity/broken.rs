//! Kernels broken on purpose: each kind of fault that parity is there for is found, by a message that says where.

use kernels_ptx as k;
use kernels_ptx::{Element, Kernel};

use super::case::{Case, Data, f32, u64};
use super::{Backend, device, products, run_case};

/// The kernel with `from` replaced by `to` where it first stands.
fn broken(kernel: &'static Kernel, from: &str, to: &str) -> &'static Kernel {
    assert!(kernel.source.contains(from), "{} does not hold {from:?}", kernel.name);
    let source = kernel.source.replacen(from, to, 1);
    // A descriptor is static; a test may leak a few.
    Box::leak(Box::new(Kernel { source: source.leak(), ..*kernel }))
}

/// What parity says of the case: the fault of a launch, or the first element that differs.
fn complaint(case: &Case) -> String {
    let mut device = device::open(Backend::Emulator, device::Way::default()).unwrap();
    match run_case(&mut *device, case) {
        Ok(agreement) => agreement.first_failure.unwrap_or_default(),
        Err(error) => format!("{error:#}"),
    }
}

fn add(kernel: &'static Kernel) -> Case {
    let mut case = Case::new(kernel, "255 elements");
    let [a, b] = [1.0, 2.0].map(|x| case.buffer(Data::F32(vec![x; 255])));
    let sum = case.output(Element::F32, 255);
    case.launch(&[255], &[a, b, sum, u64(255)]);
    case.expect_exact(sum, Data::F32(vec![3.0; 255]));
    case
}

fn norm(kernel: &'static Kernel) -> Case {
    let mut case = Case::new(kernel, "a row of 512");
    let x = case.buffer(Data::F32(vec![2.0; 512]));
    let weight = case.buffer(Data::F32(vec![1.0; 512]));
    let y = case.output(Element::F32, 512);
    case.launch(&[1], &[x, weight, y, u64(512), f32(0.0)]);
    case.expect_exact(y, Data::F32(vec![1.0; 512]));
    case
}

/// A product of two tiles in depth.
fn product(kernel: &'static Kernel) -> Case {
    let wanted = |case: &Case| case.kernel.name == kernel.name && case.label.starts_with("128 x 128 x 32");
    let mut case = products::cases().into_iter().find(wanted).unwrap();
    case.kernel = kernel;
    case.steps.iter_mut().for_each(|step| step.kernel = kernel);
    case
}

fn cast(kernel: &'static Kernel) -> Case {
    let mut case = Case::new(kernel, "a value above half-way");
    let x = case.buffer(Data::F32(vec![f32::from_bits(0x3F80_1001)]));
    let y = case.output(Element::F16, 1);
    case.launch(&[1], &[x, y, u64(1)]);
    case.expect_exact(y, Data::F16(vec![half::f16::from_bits(0x3C01)]));
    case
}

#[test]
fn whole_kernels_have_no_complaint() {
    for case in [add(&k::ADD), norm(&k::RMS_NORM_FORWARD), product(&k::GEMM_F32), cast(&k::CAST_F32_TO_F16)] {
        assert_eq!(complaint(&case), "", "{}", case.kernel.name);
    }
}

#[test]
fn a_bound_that_is_off_by_one_names_kernel_line_thread_and_address() {
    let message = complaint(&add(broken(&k::ADD, "setp.ge.u64 %outside", "setp.gt.u64 %outside")));
    for part in ["`add`", "ptx line", "thread (255,0,0)", "1020-byte"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn a_missing_barrier_is_found() {
    let message = complaint(&norm(broken(&k::RMS_NORM_FORWARD, "    bar.sync 0;\n", "")));
    for part in ["`rms_norm_forward`", "ptx line", "shared byte", "a barrier is missing"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // Where both sides of the barrier have been written before, it is a race: the second tile of a product.
    let end_of_tile = "    @%more bra INNER;\n    bar.sync 0;\n";
    let message = complaint(&product(broken(&k::GEMM_F32, end_of_tile, "    @%more bra INNER;\n")));
    for part in ["`gemm_f32`", "ptx line", "race: ", "no barrier came between"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn memory_that_nothing_wrote_is_found() {
    let message =
        complaint(&norm(broken(&k::RMS_NORM_FORWARD, "@%first_lane st.shared.f32 [%warp_slot], %sum;", "")));
    assert!(message.contains("nothing has written"), "{message}");
}

#[test]
fn the_wrong_rounding_is_found() {
    // One element goes through the second, element-wise conversion of the file.
    let kernel = broken(
        &k::CAST_F32_TO_F16,
        "ELEMENT:\n    ld.global.f32 %f0, [%from];\n    cvt.rn",
        "ELEMENT:\n    ld.global.f32 %f0, [%from];\n    cvt.rz",
    );
    let message = complaint(&cast(kernel));
    assert!(message.contains("element 0") && message.contains("0x3c00"), "{message}");
}
