//! Cases of the NF4 expansion: exact, for block sizes, partial blocks, odd starts and double quantisation.

use cpu_ops::nf4::{Nf4Matrix, Scales};
use cpu_ops::{MatRef, Threads};
use half::{bf16, f16};
use kernels_ptx as k;
use kernels_ptx::{Element, Kernel};

use super::case::{Argument, Case, Data, u64};
use super::values::Random;

/// Every case of this family.
pub fn cases() -> anyhow::Result<Vec<Case>> {
    let threads = Threads::new(1)?;
    let mut all = Vec::new();
    let mut random = Random::new(2);
    let shapes =
        [(1, 1, 32), (1, 7, 64), (3, 33, 64), (2, 2048, 64), (5, 1001, 128), (1, 4097, 4096), (3, 5000, 32)];
    for (rows, cols, block_size) in shapes {
        let elements = rows * cols;
        let mut values = random.floats(elements, 0.05);
        // A block of zeros, which has a scale of zero or nearly so.
        values.iter_mut().skip(block_size).take(block_size).for_each(|x| *x = 0.0);
        for double in [false, true] {
            let matrix =
                Nf4Matrix::quantize(&threads, MatRef::new(&values, rows, cols)?, block_size, double)?;
            let view = matrix.view();
            let mut wide = vec![0.0; elements];
            view.dequantize(&threads, &mut wide)?;
            let mut half = vec![f16::ZERO; elements];
            view.dequantize_f16(&threads, &mut half)?;
            let mut brain = vec![bf16::ZERO; elements];
            view.dequantize_bf16(&threads, &mut brain)?;
            // The whole matrix, and parts that begin within a group of eight, a byte and a block.
            let mut parts = vec![(0, elements)];
            if elements > 40 {
                parts.extend([(8, elements - 8), (3, elements - 5), (elements - 33, 33)]);
            }
            for (first, count) in parts {
                let range = first..first + count;
                let kernels: [(&'static Kernel, Element, Data); 3] = [
                    (
                        if double { &k::NF4_DEQUANTIZE_F32_DOUBLE } else { &k::NF4_DEQUANTIZE_F32 },
                        Element::F32,
                        Data::F32(wide[range.clone()].to_vec()),
                    ),
                    (
                        if double { &k::NF4_DEQUANTIZE_F16_DOUBLE } else { &k::NF4_DEQUANTIZE_F16 },
                        Element::F16,
                        Data::F16(half[range.clone()].to_vec()),
                    ),
                    (
                        if double { &k::NF4_DEQUANTIZE_BF16_DOUBLE } else { &k::NF4_DEQUANTIZE_BF16 },
                        Element::Bf16,
                        Data::Bf16(brain[range].to_vec()),
                    ),
                ];
                for (kernel, element, want) in kernels {
                    let label = format!("{rows} x {cols}, blocks of {block_size}, {count} from {first}");
                    let mut case = Case::new(kernel, label);
                    let mut arguments = vec![case.buffer(Data::U8(view.codes().to_vec()))];
                    let mut offset = None;
                    match view.scales() {
                        Scales::Plain(absmax) => arguments.push(case.buffer(Data::F32(absmax.to_vec()))),
                        Scales::Double { codes, block_absmax, offset: subtracted } => {
                            arguments.push(case.buffer(Data::U8(codes.to_vec())));
                            arguments.push(case.buffer(Data::F32(block_absmax.to_vec())));
                            offset = Some(Argument::F32(subtracted));
                        }
                    }
                    let target = case.output(element, count);
                    let shift = Argument::U32(block_size.trailing_zeros());
                    arguments.extend([target, u64(first), u64(count), shift]);
                    arguments.extend(offset);
                    case.launch(&[count], &arguments);
                    case.expect_exact(target, want);
                    all.push(case);
                }
            }
        }
    }
    Ok(all)
}
