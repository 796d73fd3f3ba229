//! Products of a transformer's training step and of generation, at the sizes of SmolLM2-135M and 256 tokens.

use anyhow::{Result, ensure};
use cpu_ops::gemm::{Factor, Op, Operand, gemm};
use cpu_ops::nf4::Nf4Matrix;
use cpu_ops::reference;
use cpu_ops::{MatMut, MatRef, Threads};
use half::bf16;

use super::{sample, values};
use crate::{Bench, Definition, Peer, Unit};

/// Storage of the right-hand side.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Storage {
    F32,
    Bf16,
    Nf4,
}

/// `C[m, n] = op(A) op(B)` over the inner dimension k.
#[derive(Debug, Clone, Copy)]
struct Product {
    what: &'static str,
    m: usize,
    n: usize,
    k: usize,
    a_op: Op,
    b_op: Op,
    storage: Storage,
}

const fn product(
    what: &'static str,
    (m, n, k): (usize, usize, usize),
    ops: (Op, Op),
    storage: Storage,
) -> Product {
    Product { what, m, n, k, a_op: ops.0, b_op: ops.1, storage }
}

/// y = x Wᵀ with W stored [out, in].
const FORWARD: (Op, Op) = (Op::None, Op::Transpose);
/// dx = dy W.
const BACKWARD: (Op, Op) = (Op::None, Op::None);
/// dW = dyᵀ x.
const WEIGHT: (Op, Op) = (Op::Transpose, Op::None);

const PRODUCTS: &[Product] = &[
    product("gate or up, forward", (256, 1536, 576), FORWARD, Storage::F32),
    product("down, forward", (256, 576, 1536), FORWARD, Storage::F32),
    product("q or o, forward", (256, 576, 576), FORWARD, Storage::F32),
    product("k or v, forward", (256, 192, 576), FORWARD, Storage::F32),
    product("gate or up, backward", (256, 576, 1536), BACKWARD, Storage::F32),
    product("down, backward", (256, 1536, 576), BACKWARD, Storage::F32),
    product("q or o, backward", (256, 576, 576), BACKWARD, Storage::F32),
    product("gate or up, forward", (256, 1536, 576), FORWARD, Storage::Nf4),
    product("down, forward", (256, 576, 1536), FORWARD, Storage::Nf4),
    product("q or o, forward", (256, 576, 576), FORWARD, Storage::Nf4),
    product("k or v, forward", (256, 192, 576), FORWARD, Storage::Nf4),
    product("gate or up, backward", (256, 576, 1536), BACKWARD, Storage::Nf4),
    product("down, backward", (256, 1536, 576), BACKWARD, Storage::Nf4),
    product("q or o, backward", (256, 576, 576), BACKWARD, Storage::Nf4),
    product("LoRA A, forward", (256, 16, 576), FORWARD, Storage::F32),
    product("LoRA B, forward", (256, 1536, 16), FORWARD, Storage::F32),
    product("LoRA B, input gradient", (256, 16, 1536), BACKWARD, Storage::F32),
    product("LoRA A, input gradient", (256, 576, 16), BACKWARD, Storage::F32),
    product("LoRA A, weight gradient", (16, 576, 256), WEIGHT, Storage::F32),
    product("LoRA B, weight gradient", (1536, 16, 256), WEIGHT, Storage::F32),
    product("generation, gate or up", (1, 1536, 576), FORWARD, Storage::Nf4),
    product("generation, head", (1, 49152, 576), FORWARD, Storage::Bf16),
    product("generation, head", (1, 49152, 576), FORWARD, Storage::F32),
    product("a large square", (2048, 2048, 2048), BACKWARD, Storage::F32),
];

pub(super) fn definitions() -> Vec<Definition> {
    PRODUCTS.iter().map(|p| p.definition()).collect()
}

impl Product {
    fn definition(self) -> Definition {
        let storage = format!("{:?}", self.storage).to_lowercase();
        let letter = |op| if op == Op::None { "" } else { "t" };
        let name = format!(
            "gemm/{storage}/{}x{}x{}{}{} ({})",
            self.m,
            self.n,
            self.k,
            letter(self.a_op),
            if self.b_op == Op::None { "" } else { " Bt" },
            self.what
        );
        let size = |rows, cols, op| if op == Op::None { (rows, cols) } else { (cols, rows) };
        let (a, b) = (size(self.m, self.k, self.a_op), size(self.k, self.n, self.b_op));
        let t = |op| if op == Op::None { "" } else { ".T" };
        let call = format!("a{}, b{}, out=out", t(self.a_op), t(self.b_op));
        let peers = vec![
            Peer::torch(
                format!(
                    "a = torch.randn{a:?}; b = torch.randn{b:?}; out = torch.empty({}, {})",
                    self.m, self.n
                ),
                format!("torch.matmul({call})"),
            ),
            Peer::numpy(
                format!(
                    "a = random{a:?}; b = random{b:?}; out = numpy.empty(({}, {}), numpy.float32)",
                    self.m, self.n
                ),
                format!("numpy.matmul({call})"),
            ),
        ];
        Definition {
            name,
            unit: Unit::GigaFlops,
            peers,
            prepare: Box::new(move |threads, small| Ok(Box::new(Prepared::new(self, threads, small)?))),
        }
    }
}

struct Prepared {
    product: Product,
    a: Vec<f32>,
    wide: Vec<f32>,
    halves: Vec<bf16>,
    nf4: Option<Nf4Matrix>,
    c: Vec<f32>,
}

impl Prepared {
    fn new(mut product: Product, threads: &Threads, small: bool) -> Result<Self> {
        if small {
            // A tenth of each size, made odd: tiles then have edges.
            for size in [&mut product.m, &mut product.n, &mut product.k] {
                *size = (*size / 10) | 1;
            }
        }
        let Product { m, n, k, storage, .. } = product;
        let mut prepared = Self {
            product,
            a: values(m * k, 1),
            wide: values(k * n, 2),
            halves: Vec::new(),
            nf4: None,
            c: vec![f32::NAN; m * n],
        };
        let (rows, cols) = prepared.b_size();
        match storage {
            Storage::F32 => {}
            Storage::Bf16 => prepared.halves = prepared.wide.iter().map(|&x| bf16::from_f32(x)).collect(),
            Storage::Nf4 => {
                let values = MatRef::new(&prepared.wide, rows, cols)?;
                prepared.nf4 = Some(Nf4Matrix::quantize(threads, values, 64, true)?);
            }
        }
        Ok(prepared)
    }

    fn b_size(&self) -> (usize, usize) {
        let Product { n, k, b_op, .. } = self.product;
        if b_op == Op::None { (k, n) } else { (n, k) }
    }

    fn factors(&self) -> Result<(Factor<MatRef<'_>>, Factor<Operand<'_>>)> {
        let Product { m, k, a_op, b_op, .. } = self.product;
        let (rows, cols) = if a_op == Op::None { (m, k) } else { (k, m) };
        let a = Factor { matrix: MatRef::new(&self.a, rows, cols)?, op: a_op };
        let (rows, cols) = self.b_size();
        let b = match (&self.nf4, self.product.storage) {
            (Some(matrix), _) => matrix.view().into(),
            (None, Storage::Bf16) => MatRef::new(&self.halves, rows, cols)?.into(),
            (None, _) => MatRef::new(&self.wide, rows, cols)?.into(),
        };
        Ok((a, Factor { matrix: b, op: b_op }))
    }
}

impl Bench for Prepared {
    fn run(&mut self, threads: &Threads) -> Result<()> {
        let mut c = std::mem::take(&mut self.c);
        let (a, b) = self.factors()?;
        gemm(threads, 1.0, a, b, 0.0, MatMut::new(&mut c, self.product.m, self.product.n)?)?;
        self.c = c;
        Ok(())
    }

    fn work(&self) -> f64 {
        let Product { m, n, k, .. } = self.product;
        2.0 * m as f64 * n as f64 * k as f64
    }

    fn bytes(&self) -> f64 {
        let Product { m, n, k, storage, .. } = self.product;
        let b = match storage {
            Storage::F32 => 4.0 * (n * k) as f64,
            Storage::Bf16 => 2.0 * (n * k) as f64,
            Storage::Nf4 => self.nf4.as_ref().map_or(0.0, |matrix| matrix.bytes() as f64),
        };
        b + 4.0 * (m * k + m * n) as f64
    }

    fn check(&self) -> Result<()> {
        let Product { m, n, k, .. } = self.product;
        let (a, b) = self.factors()?;
        let at = |matrix: &Operand<'_>, op, row, col| match op {
            Op::None => reference::gemm::element(matrix, row, col),
            Op::Transpose => reference::gemm::element(matrix, col, row),
        };
        let wide_a = Operand::F32(a.matrix);
        for row in sample(m) {
            for col in sample(n) {
                let terms = (0..k).map(|p| at(&wide_a, a.op, row, p) * at(&b.matrix, b.op, p, col));
                let (exact, magnitude) =
                    terms.fold((0.0, 0.0), |(sum, size), term: f64| (sum + term, size + term.abs()));
                let found = f64::from(self.c[row * n + col]);
                let bound = k as f64 * reference::UNIT_ROUNDOFF * magnitude;
                ensure!((found - exact).abs() <= bound, "({row}, {col}): {found}, {exact} +- {bound}");
            }
        }
        Ok(())
    }
}
