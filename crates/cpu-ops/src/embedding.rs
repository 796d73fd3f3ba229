//! Rows of an embedding table by token id, widened to f32.

use crate::gemm::Operand;
use crate::row_tasks::{expect, row_chunks, rows_per_task};
use crate::{Error, MatMut, Result, Threads, cast};

/// Row `i` of `out` becomes row `ids[i]` of `table`: `[vocab, hidden]` to `[ids, hidden]`, exactly.
///
/// ```
/// use cpu_ops::{MatMut, MatRef, Threads, embedding};
///
/// let (table, mut out) = ([1.0, 2.0, 3.0, 4.0], [0.0; 2]);
/// let rows = MatMut::new(&mut out, 1, 2)?;
/// embedding::gather(&Threads::new(1)?, MatRef::new(&table, 2, 2)?.into(), &[1], rows)?;
/// assert_eq!(out, [3.0, 4.0]);
/// # Ok::<(), cpu_ops::Error>(())
/// ```
///
/// # Errors
/// An id is not below the table's rows, `out` has another size, or the table is NF4, which embeddings never are;
/// nothing has been written then.
pub fn gather(threads: &Threads, table: Operand<'_>, ids: &[u32], out: MatMut<'_>) -> Result<()> {
    const NAME: &str = "embedding::gather";
    let (vocab, hidden) = (table.rows(), table.cols());
    expect(NAME, "rows of out", ids.len(), out.rows())?;
    expect(NAME, "columns of out", hidden, out.cols())?;
    if matches!(table, Operand::Nf4(_)) {
        return Err(Error::Unsupported {
            operation: NAME,
            parameter: "table",
            value: "NF4".into(),
            supported: "f32, f16 and bf16 tables are",
        });
    }
    if let Some(row) = ids.iter().position(|&id| id as usize >= vocab) {
        let index = u64::from(ids[row]);
        return Err(Error::Index { operation: NAME, what: "token id", index, row, limit: vocab });
    }
    let rows = rows_per_task(hidden);
    threads.run_on(row_chunks(out, rows), |task, mut out| {
        for row in 0..out.rows() {
            let (id, to) = (ids[task * rows + row] as usize, out.row_mut(row));
            match table {
                Operand::F32(table) => to.copy_from_slice(table.row(id)),
                Operand::F16(table) => cast::f16_to_f32(table.row(id), to),
                Operand::Bf16(table) => cast::bf16_to_f32(table.row(id), to),
                Operand::Nf4(_) => unreachable!("refused above"),
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::MatRef;
    use crate::nf4::Nf4Matrix;

    #[test]
    fn rows_come_back_exactly_from_every_type() {
        let (vocab, hidden, stride) = (50, 70, 73);
        let wide: Vec<f32> = (0..vocab * stride).map(|i| ((i * 37 % 211) as f32 - 105.0) * 0.125).collect();
        let halves: Vec<f16> = wide.iter().map(|&x| f16::from_f32(x)).collect();
        let brains: Vec<bf16> = wide.iter().map(|&x| bf16::from_f32(x)).collect();
        let ids: Vec<u32> = (0..1000).map(|i| i * 7 % 50).collect();
        let tables: [Operand<'_>; 3] = [
            MatRef::with_stride(&wide, vocab, hidden, stride).unwrap().into(),
            MatRef::with_stride(&halves, vocab, hidden, stride).unwrap().into(),
            MatRef::with_stride(&brains, vocab, hidden, stride).unwrap().into(),
        ];
        for table in tables {
            for count in 1..=4 {
                let mut out = vec![f32::NAN; ids.len() * hidden];
                let to = MatMut::new(&mut out, ids.len(), hidden).unwrap();
                gather(&Threads::new(count).unwrap(), table, &ids, to).unwrap();
                for (row, &id) in out.chunks(hidden).zip(&ids) {
                    // Multiples of an eighth below 14 have at most eight significant bits: all types hold them.
                    assert_eq!(row, &wide[id as usize * stride..][..hidden]);
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_is_written() {
        let threads = Threads::new(1).unwrap();
        let data = [1.0f32; 6];
        let table = MatRef::new(&data, 3, 2).unwrap();
        let packed = Nf4Matrix::quantize(&threads, table, 32, false).unwrap();
        let run = |table: Operand<'_>, ids: &[u32], rows, cols| {
            let mut out = [7.0f32; 4];
            let to = MatMut::new(&mut out, rows, cols).unwrap();
            let result = gather(&threads, table, ids, to).map_err(|e| e.to_string());
            assert!(result.is_ok() || out == [7.0; 4]);
            result
        };
        assert_eq!(run(table.into(), &[2, 0], 2, 2), Ok(()));
        let error = run(table.into(), &[0, 3], 2, 2).unwrap_err();
        assert_eq!(error, "embedding::gather: token id 3 at row 1 is outside of 0..3");
        assert!(run(table.into(), &[0], 2, 2).is_err());
        assert!(run(table.into(), &[0, 0], 2, 1).is_err());
        assert!(run(packed.view().into(), &[0, 0], 2, 2).unwrap_err().contains("NF4"));
        let empty: MatRef<'_> = MatRef::new(&[], 0, 2).unwrap();
        assert_eq!(run(empty.into(), &[], 0, 2), Ok(()));
    }
}
