//! Rows of an embedding table by token id, widened to f32.

use crate::gemm::Operand;
use crate::{Error, MatMut, Result, Threads};

/// Row i of `out` becomes row `ids[i]` of `table`: `[vocab, hidden]` to `[ids, hidden]`, exact.
///
/// # Errors
/// An id is not below the table's rows, `out` has another size, or the table is NF4, which embeddings never are.
pub fn gather(_threads: &Threads, table: Operand<'_>, ids: &[u32], mut out: MatMut<'_>) -> Result<()> {
    const NAME: &str = "embedding::gather";
    let (vocab, hidden) = (table.rows(), table.cols());
    for (what, expected, found) in
        [("rows of out", ids.len(), out.rows()), ("columns of out", hidden, out.cols())]
    {
        if expected != found {
            return Err(Error::Shape { operation: NAME, what, expected, found });
        }
    }
    if let Some(row) = ids.iter().position(|&id| id as usize >= vocab) {
        let index = u64::from(ids[row]);
        return Err(Error::Index { operation: NAME, what: "token id", index, row, limit: vocab });
    }
    for (row, &id) in ids.iter().enumerate() {
        let to = out.row_mut(row);
        let id = id as usize;
        match table {
            Operand::F32(table) => to.copy_from_slice(table.row(id)),
            Operand::F16(table) => crate::cast::f16_to_f32(table.row(id), to),
            Operand::Bf16(table) => crate::cast::bf16_to_f32(table.row(id), to),
            Operand::Nf4(_) => {
                return Err(Error::Unsupported {
                    operation: NAME,
                    parameter: "table",
                    value: "NF4".into(),
                    supported: "f32, f16 and bf16 tables are",
                });
            }
        }
    }
    Ok(())
}
