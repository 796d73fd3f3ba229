//! `cargo xtask parity --exhaustive`: the casts from f32 over all 2^32 inputs, with their overflow counts.

use anyhow::{Result, ensure};
use cpu_ops::cast;
use half::{bf16, f16};
use kernels_ptx as k;
use kernels_ptx::{Element, Kernel};

use super::case::{Argument, Case, Data, Want, u64};
use super::compare;
use super::device::Device;

/// Inputs of one launch.
const CHUNK: usize = 1 << 24;

/// Runs all inputs through both counting casts; they share their arithmetic with the plain ones, whose cases hold
/// every special value.
pub fn run(device: &mut dyn Device) -> Result<()> {
    let kernels: [(&'static Kernel, Element); 2] =
        [(&k::CAST_F32_TO_F16_COUNTED, Element::F16), (&k::CAST_F32_TO_BF16_COUNTED, Element::Bf16)];
    for (kernel, element) in kernels {
        let mut compared = 0u64;
        let mut nans = 0u64;
        for start in (0..1u64 << 32).step_by(CHUNK) {
            let x: Vec<f32> = (0..CHUNK as u64).map(|i| f32::from_bits((start + i) as u32)).collect();
            let (want, overflows) = match element {
                Element::F16 => {
                    let mut y = vec![f16::ZERO; CHUNK];
                    let overflows = cast::f32_to_f16(&x, &mut y);
                    (Data::F16(y), overflows)
                }
                _ => {
                    let mut y = vec![bf16::ZERO; CHUNK];
                    let overflows = cast::f32_to_bf16(&x, &mut y);
                    (Data::Bf16(y), overflows)
                }
            };
            nans += x.iter().filter(|x| x.is_nan()).count() as u64;
            let mut case = Case::new(kernel, format!("inputs from {start:#x}"));
            let (source, target) = (case.buffer(Data::F32(x)), case.output(element, CHUNK));
            let count = case.buffer(Data::U64(vec![0]));
            case.launch(&[CHUNK], &[source, target, count, u64(CHUNK)]);
            let mut buffers = std::mem::take(&mut case.buffers);
            device.run(&mut buffers, &case.steps)?;
            for (argument, want) in [(target, want), (count, Data::U64(vec![overflows as u64]))] {
                let Argument::Buffer { index, .. } = argument else { unreachable!("just made") };
                let agreement = compare::compare(&buffers[index], &Want::Exact(want))?;
                ensure!(
                    agreement.first_failure.is_none(),
                    "{}, {}: {}",
                    kernel.name,
                    case.label,
                    agreement.first_failure.unwrap_or_default()
                );
            }
            compared += CHUNK as u64;
        }
        ensure!(compared == 1 << 32, "{}: only {compared} inputs ran", kernel.name);
        println!("{}: all 2^32 inputs agree ({nans} NaN compared as a class)", kernel.name);
    }
    Ok(())
}
