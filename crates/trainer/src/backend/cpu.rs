//! The CPU as a [`Backend`]: every operation is one call into cpu-ops on slices. It runs on the caller's
//! thread and a pool; nothing is asynchronous.

use cpu_ops::gemm::{Factor, Operand, gemm};
use cpu_ops::nf4::Nf4Matrix;
use cpu_ops::{MatMut, MatRef, Threads, attention, embedding, lm_head, norm, optimiser, rope, swiglu};

use super::{AdamW, AttentionInputs, Backend, DeviceTensor, Direction, DropoutKey, Parameter, Side, Storage};
use crate::Result;
use crate::model::{Rope, Table};

/// Operations on host memory.
#[derive(Debug)]
pub struct CpuBackend {
    threads: Threads,
}

impl CpuBackend {
    /// A backend over `threads`.
    pub fn new(threads: Threads) -> Self {
        Self { threads }
    }
}

/// A matrix in host memory.
#[derive(Debug, Clone)]
pub struct CpuTensor {
    data: Vec<f32>,
    rows: usize,
    cols: usize,
}

impl CpuTensor {
    fn values(&self) -> &[f32] {
        &self.data[..self.rows * self.cols]
    }
    fn values_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.rows * self.cols]
    }
    fn view(&self) -> MatRef<'_> {
        self.view_as(self.cols)
    }
    fn view_mut(&mut self) -> MatMut<'_> {
        self.view_mut_as(self.cols)
    }
    /// The same values in rows of `cols`, which divides the tensor's own (heads within a row).
    fn view_as(&self, cols: usize) -> MatRef<'_> {
        MatRef::new(&self.data, self.rows * (self.cols / cols), cols).expect("a tensor holds its rows")
    }
    fn view_mut_as(&mut self, cols: usize) -> MatMut<'_> {
        let rows = self.rows * (self.cols / cols);
        MatMut::new(&mut self.data, rows, cols).expect("a tensor holds its rows")
    }
}

impl DeviceTensor for CpuTensor {
    fn rows(&self) -> usize {
        self.rows
    }
    fn cols(&self) -> usize {
        self.cols
    }
    fn set_rows(&mut self, rows: usize) {
        assert!(rows * self.cols <= self.data.len(), "{rows} rows of {} in {}", self.cols, self.data.len());
        self.rows = rows;
    }
    fn bytes(&self) -> usize {
        self.data.len() * size_of::<f32>()
    }
}

/// A frozen matrix in host memory, in the type in which it is kept.
#[derive(Debug)]
pub struct CpuWeight {
    values: Values,
    rows: usize,
    cols: usize,
}

#[derive(Debug)]
enum Values {
    Table(Table),
    Nf4(Nf4Matrix),
}

impl CpuWeight {
    fn operand(&self) -> Operand<'_> {
        let fits = "the constructor checked the length";
        match &self.values {
            Values::Table(Table::F32(values)) => {
                MatRef::new(values, self.rows, self.cols).expect(fits).into()
            }
            Values::Table(Table::F16(values)) => {
                MatRef::new(values, self.rows, self.cols).expect(fits).into()
            }
            Values::Table(Table::Bf16(values)) => {
                MatRef::new(values, self.rows, self.cols).expect(fits).into()
            }
            Values::Nf4(matrix) => matrix.view().into(),
        }
    }

    fn table(table: Table, rows: usize, cols: usize) -> Result<Self> {
        match &table {
            Table::F32(values) => drop(MatRef::new(values, rows, cols)?),
            Table::F16(values) => drop(MatRef::new(values, rows, cols)?),
            Table::Bf16(values) => drop(MatRef::new(values, rows, cols)?),
        }
        Ok(Self { values: Values::Table(table), rows, cols })
    }
}

impl Backend for CpuBackend {
    type Tensor = CpuTensor;
    type Index = Vec<u32>;
    type Weight = CpuWeight;
    type Table = CpuWeight;
    type Rope = rope::RopeTable;

    fn tensor(&mut self, rows: usize, cols: usize) -> Result<CpuTensor> {
        Ok(CpuTensor { data: vec![0.0; rows * cols], rows, cols })
    }

    fn index(&mut self, len: usize) -> Result<Vec<u32>> {
        Ok(Vec::with_capacity(len))
    }

    fn weight(&mut self, values: Table, out: usize, inputs: usize, storage: Storage) -> Result<CpuWeight> {
        match storage {
            Storage::AsIs => CpuWeight::table(values, out, inputs),
            Storage::Nf4 { block_size, double } => {
                let values = values.into_f32();
                let matrix = MatRef::new(&values, out, inputs)?;
                let matrix = Nf4Matrix::quantize(&self.threads, matrix, block_size, double)?;
                Ok(CpuWeight { values: Values::Nf4(matrix), rows: out, cols: inputs })
            }
        }
    }

    fn table(&mut self, values: Table, vocab: usize, hidden: usize) -> Result<CpuWeight> {
        CpuWeight::table(values, vocab, hidden)
    }

    fn rope_table(&mut self, rope: &Rope, positions: usize) -> Result<rope::RopeTable> {
        Ok(rope::RopeTable::new(&rope.inv_freq, rope.attention_factor, positions)?)
    }

    fn upload(&mut self, values: &[f32], to: &mut CpuTensor) -> Result<()> {
        to.values_mut().copy_from_slice(values);
        Ok(())
    }

    fn upload_index(&mut self, values: &[u32], to: &mut Vec<u32>) -> Result<()> {
        to.clear();
        to.extend_from_slice(values);
        Ok(())
    }

    fn download(&mut self, from: &CpuTensor) -> Result<Vec<f32>> {
        Ok(from.values().to_vec())
    }

    fn linear(&mut self, x: &CpuTensor, w: &CpuWeight, y: &mut CpuTensor) -> Result<()> {
        Ok(gemm(&self.threads, 1.0, x.view(), Factor::t(w.operand()), 0.0, y.view_mut())?)
    }

    fn linear_dx(&mut self, dy: &CpuTensor, w: &CpuWeight, beta: f32, dx: &mut CpuTensor) -> Result<()> {
        Ok(gemm(&self.threads, 1.0, dy.view(), w.operand(), beta, dx.view_mut())?)
    }

    fn add_bias(&mut self, bias: &CpuTensor, y: &mut CpuTensor) -> Result<()> {
        let bias = bias.values();
        for row in y.values_mut().chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
        Ok(())
    }

    fn matmul(
        &mut self,
        alpha: f32,
        a: Side<'_, CpuTensor>,
        b: Side<'_, CpuTensor>,
        beta: f32,
        c: &mut CpuTensor,
    ) -> Result<()> {
        let left = Factor { matrix: a.tensor.view(), op: a.op };
        let right = Factor { matrix: Operand::from(b.tensor.view()), op: b.op };
        Ok(gemm(&self.threads, alpha, left, right, beta, c.view_mut())?)
    }

    fn rms_norm(&mut self, x: &CpuTensor, weight: &CpuTensor, eps: f32, y: &mut CpuTensor) -> Result<()> {
        let width = weight.cols;
        Ok(norm::rms_norm(&self.threads, x.view_as(width), weight.values(), eps, y.view_mut_as(width))?)
    }

    fn rms_norm_dx(
        &mut self,
        x: &CpuTensor,
        weight: &CpuTensor,
        eps: f32,
        dy: &CpuTensor,
        beta: f32,
        dx: &mut CpuTensor,
    ) -> Result<()> {
        let width = weight.cols;
        let (x, dy) = (x.view_as(width), dy.view_as(width));
        Ok(norm::rms_norm_dx(&self.threads, x, weight.values(), eps, dy, beta, dx.view_mut_as(width))?)
    }

    fn rope(
        &mut self,
        table: &rope::RopeTable,
        positions: &Vec<u32>,
        direction: Direction,
        x: &mut CpuTensor,
    ) -> Result<()> {
        Ok(rope::rotate(&self.threads, table, positions, table.head_dim(), direction, x.view_mut())?)
    }

    fn attention(
        &mut self,
        inputs: AttentionInputs<'_, CpuTensor, Vec<u32>>,
        out: &mut CpuTensor,
        log_sum_exp: &mut CpuTensor,
    ) -> Result<()> {
        let AttentionInputs { shape, starts, q, k, v } = inputs;
        let (q, k, v) = (q.view(), k.view(), v.view());
        Ok(attention::forward(
            &self.threads,
            shape,
            starts,
            q,
            k,
            v,
            out.view_mut(),
            log_sum_exp.values_mut(),
        )?)
    }

    fn attention_d(
        &mut self,
        inputs: AttentionInputs<'_, CpuTensor, Vec<u32>>,
        out: &CpuTensor,
        log_sum_exp: &CpuTensor,
        d_out: &CpuTensor,
        [dq, dk, dv]: [&mut CpuTensor; 3],
    ) -> Result<()> {
        let AttentionInputs { shape, starts, q, k, v } = inputs;
        let grads = attention::AttentionGrads { dq: dq.view_mut(), dk: dk.view_mut(), dv: dv.view_mut() };
        Ok(attention::backward(
            &self.threads,
            shape,
            starts,
            q.view(),
            k.view(),
            v.view(),
            out.view(),
            log_sum_exp.values(),
            d_out.view(),
            grads,
        )?)
    }

    fn swiglu(&mut self, gate: &CpuTensor, up: &CpuTensor, y: &mut CpuTensor) -> Result<()> {
        Ok(swiglu::forward(&self.threads, gate.view(), up.view(), y.view_mut())?)
    }

    fn swiglu_d(
        &mut self,
        gate: &CpuTensor,
        up: &CpuTensor,
        dy: &CpuTensor,
        [dgate, dup]: [&mut CpuTensor; 2],
    ) -> Result<()> {
        let (gate, up, dy) = (gate.view(), up.view(), dy.view());
        Ok(swiglu::backward(&self.threads, gate, up, dy, dgate.view_mut(), dup.view_mut())?)
    }

    fn add(&mut self, x: &CpuTensor, y: &mut CpuTensor) -> Result<()> {
        y.values_mut().iter_mut().zip(x.values()).for_each(|(y, x)| *y += x);
        Ok(())
    }

    fn copy(&mut self, x: &CpuTensor, y: &mut CpuTensor) -> Result<()> {
        y.values_mut().copy_from_slice(x.values());
        Ok(())
    }

    fn copy_rows(&mut self, x: &CpuTensor, at: usize, y: &mut CpuTensor) -> Result<()> {
        let from = at * y.cols;
        y.values_mut()[from..from + x.values().len()].copy_from_slice(x.values());
        Ok(())
    }

    fn zero(&mut self, y: &mut CpuTensor) -> Result<()> {
        y.values_mut().fill(0.0);
        Ok(())
    }

    fn dropout(&mut self, x: &CpuTensor, key: DropoutKey, beta: f32, y: &mut CpuTensor) -> Result<()> {
        // Kept where a 32-bit uniform is at or above the threshold.
        let threshold = (f64::from(key.probability) * 4_294_967_296.0) as u64;
        let scale = 1.0 / (1.0 - key.probability);
        for (element, (x, y)) in x.values().iter().zip(y.values_mut()).enumerate() {
            let uniform = crate::random::at(key.key, element as u64) >> 32;
            let kept = if uniform >= threshold { x * scale } else { 0.0 };
            *y = if beta == 0.0 { kept } else { beta * *y + kept };
        }
        Ok(())
    }

    fn gather_rows(&mut self, x: &CpuTensor, rows: &Vec<u32>, y: &mut CpuTensor) -> Result<()> {
        for (row, to) in rows.iter().zip(y.values_mut().chunks_exact_mut(x.cols)) {
            to.copy_from_slice(x.view().row(*row as usize));
        }
        Ok(())
    }

    fn scatter_rows(&mut self, x: &CpuTensor, rows: &Vec<u32>, y: &mut CpuTensor) -> Result<()> {
        y.values_mut().fill(0.0);
        for (row, from) in rows.iter().zip(x.values().chunks_exact(x.cols)) {
            y.view_mut().row_mut(*row as usize).copy_from_slice(from);
        }
        Ok(())
    }

    fn embed(&mut self, table: &CpuWeight, ids: &Vec<u32>, y: &mut CpuTensor) -> Result<()> {
        Ok(embedding::gather(&self.threads, table.operand(), ids, y.view_mut())?)
    }

    fn head_loss(
        &mut self,
        hidden: &CpuTensor,
        table: &CpuWeight,
        targets: &Vec<u32>,
        losses: &mut CpuTensor,
        gradient: Option<(f32, &mut CpuTensor)>,
    ) -> Result<()> {
        let (scale, d_hidden) = match gradient {
            Some((scale, d_hidden)) => (scale, Some(d_hidden.view_mut())),
            None => (0.0, None),
        };
        let (hidden, table) = (hidden.view(), table.operand());
        lm_head::cross_entropy(&self.threads, hidden, table, targets, scale, losses.values_mut(), d_hidden)?;
        Ok(())
    }

    fn head_logits(&mut self, hidden: &CpuTensor, table: &CpuWeight, logits: &mut CpuTensor) -> Result<()> {
        self.linear(hidden, table, logits)
    }

    fn sums_of_squares(&mut self, tensors: &[&CpuTensor]) -> Result<Vec<f64>> {
        Ok(tensors.iter().map(|tensor| optimiser::sum_of_squares(tensor.values())).collect())
    }

    fn adamw(
        &mut self,
        rule: &AdamW,
        update: u64,
        grad_scale: f32,
        parameter: Parameter<'_, CpuTensor>,
    ) -> Result<()> {
        let Parameter { value, gradient, m, v } = parameter;
        Ok(optimiser::adamw(
            &self.threads,
            rule,
            update,
            grad_scale,
            value.values_mut(),
            gradient.values(),
            m.values_mut(),
            v.values_mut(),
        )?)
    }
}
