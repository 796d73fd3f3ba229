//! NF4 of a large projection (8960 x 1536, blocks of 64), beside bitsandbytes where Python has it. Its
//! dequantisation allocates the result in every call (on the CPU it takes no `out`), ours writes where it is told.

use anyhow::{Result, ensure};
use cpu_ops::nf4::{Nf4Matrix, Scales};
use cpu_ops::reference;
use cpu_ops::{MatRef, Threads};
use half::bf16;

use super::{sample, values};
use crate::{Bench, Definition, Peer, Unit};

const BLOCK_SIZE: usize = 64;
/// Statements that make the same operands in Python; the package is imported by torch's peer process.
const SETUP: &str = "import bitsandbytes.functional as F; w = torch.randn(8960, 1536) * 0.02";

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Quantise { double: bool },
    DequantiseF32 { double: bool },
    DequantiseBf16,
}

pub(super) fn definitions() -> Vec<Definition> {
    let restore = |double: &str, to: &str| {
        format!("{SETUP}; q, s = F.quantize_nf4(w.to(torch.{to}), compress_statistics={double})")
    };
    let call = "F.dequantize_nf4(q, s)".to_owned();
    [
        ("quantise", What::Quantise { double: false }, SETUP.to_owned(), "F.quantize_nf4(w)".to_owned()),
        (
            "quantise, double",
            What::Quantise { double: true },
            SETUP.to_owned(),
            "F.quantize_nf4(w, compress_statistics=True)".to_owned(),
        ),
        ("dequantise", What::DequantiseF32 { double: false }, restore("False", "float32"), call.clone()),
        (
            "dequantise, double",
            What::DequantiseF32 { double: true },
            restore("True", "float32"),
            call.clone(),
        ),
        ("dequantise to bf16", What::DequantiseBf16, restore("False", "bfloat16"), call),
    ]
    .into_iter()
    .map(|(name, what, setup, call)| Definition {
        name: format!("nf4/{name}"),
        unit: Unit::GigaBytes,
        peers: vec![Peer::torch(setup, call)],
        prepare: Box::new(move |threads, small| Ok(Box::new(Prepared::new(what, threads, small)?))),
    })
    .collect()
}

struct Prepared {
    what: What,
    rows: usize,
    cols: usize,
    weights: Vec<f32>,
    packed: Nf4Matrix,
    wide: Vec<f32>,
    narrow: Vec<bf16>,
}

impl Prepared {
    fn new(what: What, threads: &Threads, small: bool) -> Result<Self> {
        let (rows, cols) = if small { (37, 101) } else { (8960, 1536) };
        let weights = values(rows * cols, 3);
        let double = matches!(what, What::Quantise { double: true } | What::DequantiseF32 { double: true });
        let packed = Nf4Matrix::quantize(threads, MatRef::new(&weights, rows, cols)?, BLOCK_SIZE, double)?;
        let wide = if matches!(what, What::DequantiseF32 { .. }) { rows * cols } else { 0 };
        let narrow = if what == What::DequantiseBf16 { rows * cols } else { 0 };
        Ok(Self {
            what,
            rows,
            cols,
            weights,
            packed,
            wide: vec![f32::NAN; wide],
            narrow: vec![bf16::NAN; narrow],
        })
    }
}

impl Bench for Prepared {
    fn run(&mut self, threads: &Threads) -> Result<()> {
        match self.what {
            What::Quantise { double } => {
                let weights = MatRef::new(&self.weights, self.rows, self.cols)?;
                self.packed = Nf4Matrix::quantize(threads, weights, BLOCK_SIZE, double)?;
            }
            What::DequantiseF32 { .. } => self.packed.view().dequantize(threads, &mut self.wide)?,
            What::DequantiseBf16 => {
                self.packed.view().dequantize_bf16(threads, &mut self.narrow)?;
            }
        }
        Ok(())
    }

    fn work(&self) -> f64 {
        self.bytes()
    }

    fn bytes(&self) -> f64 {
        let element = if self.what == What::DequantiseBf16 { 2 } else { 4 };
        (self.rows * self.cols * element + self.packed.bytes()) as f64
    }

    fn check(&self) -> Result<()> {
        let view = self.packed.view();
        for block in sample(view.blocks()) {
            let start = block * BLOCK_SIZE;
            let values = &self.weights[start..self.weights.len().min(start + BLOCK_SIZE)];
            let (indices, scales) = reference::nf4::quantize(values, BLOCK_SIZE);
            let codes = reference::nf4::pack(&indices);
            ensure!(view.codes()[start / 2..][..codes.len()] == codes, "codes of block {block}");
            if let Scales::Plain(found) = view.scales() {
                ensure!(found[block] == scales[0], "scale of block {block}");
            }
            let restored = reference::nf4::dequantize(&indices, &[view.scale(block)], BLOCK_SIZE);
            if !self.wide.is_empty() {
                ensure!(self.wide[start..][..restored.len()] == restored, "values of block {block}");
            }
            if !self.narrow.is_empty() {
                let restored: Vec<bf16> = restored.iter().map(|&x| bf16::from_f32(x)).collect();
                ensure!(self.narrow[start..][..restored.len()] == restored, "values of block {block}");
            }
        }
        Ok(())
    }
}
