//! How many registers a thread of a kernel has, which only `ptxas` knows: read from a table that it made.

use std::collections::HashMap;

/// Registers of a multiprocessor, and the most of a block.
const FILE: u32 = 65536;
/// Registers of a warp come in units of this.
const UNIT: u32 = 256;

/// Registers of a thread, by kernel and capability.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// Capability times ten and registers, by rising capability.
    kernels: HashMap<String, Vec<(u32, u32)>>,
}

impl Registers {
    /// Reads the rows of a Markdown table whose header names `kernel` and columns `sm_NN`; `-` stands for nothing.
    ///
    /// # Errors
    /// No such header, or a cell that is no number: in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let cells = |line: &str| -> Vec<String> {
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect()
        };
        let mut lines = text.lines().map(str::trim).filter(|l| l.starts_with('|'));
        let header = lines.next().map(cells).unwrap_or_default();
        let capability = |cell: &String| cell.strip_prefix("sm_").and_then(|n| n.parse::<u32>().ok());
        if header.first().map(String::as_str) != Some("kernel")
            || !header.iter().any(|c| capability(c).is_some())
        {
            return Err("expected a table with the columns kernel and sm_NN".into());
        }
        let mut kernels = HashMap::new();
        for row in lines.map(cells).filter(|row| !row[0].starts_with('-')) {
            let mut counts = Vec::new();
            for (column, cell) in header.iter().zip(&row) {
                if let Some(capability) = capability(column).filter(|_| cell != "-") {
                    let count = cell.parse().map_err(|_| {
                        format!("`{cell}` in the row of `{}` is no number of registers", row[0])
                    })?;
                    counts.push((capability, count));
                }
            }
            counts.sort_unstable();
            kernels.insert(row[0].clone(), counts);
        }
        Ok(Self { kernels })
    }

    /// Registers of a thread of `kernel` on a device of capability `compute`: those of the highest column that is
    /// not above it.
    pub fn of(&self, kernel: &str, compute: u32) -> Option<u32> {
        let counts = self.kernels.get(kernel)?;
        counts.iter().rev().find(|(capability, _)| *capability <= compute).map(|&(_, count)| count)
    }

    /// Why a block of `threads` does not fit, where it does not.
    pub fn complaint(&self, kernel: &str, compute: u32, threads: u32) -> Option<String> {
        let count = self.of(kernel, compute)?;
        let warps = threads.div_ceil(32);
        let needed = warps * (32 * count).next_multiple_of(UNIT);
        (needed > FILE).then(|| {
            format!(
                "{threads} threads with {count} registers each take {needed} registers; a block has {FILE}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_kernels_is_read() {
        let text = include_str!("../../../kernels-ptx/ptxas.md");
        let registers = Registers::parse(text).unwrap();
        assert!(registers.kernels.len() > 40);
        let add = registers.of("add", 86).unwrap();
        assert!((8..=32).contains(&add), "{add}");
        assert_eq!(registers.of("gemm_bf16", 75), None, "it needs sm_80");
        assert_eq!(registers.of("add", 88), registers.of("add", 86));
    }

    #[test]
    fn a_block_has_so_many_registers() {
        let text = "| kernel | threads | sm_75 | sm_80 |\n|---|--:|--:|--:|\n| big | 256 | 64 | 65 |\n";
        let registers = Registers::parse(text).unwrap();
        assert_eq!(registers.complaint("big", 75, 1024), None);
        let message = registers.complaint("big", 80, 1024).unwrap();
        // 65 registers of 32 lanes are 2080, in units of 256: 2304 a warp, 32 warps.
        assert!(message.contains("take 73728 registers; a block has 65536"), "{message}");
        assert_eq!(registers.complaint("other", 80, 1024), None);
        assert!(Registers::parse("| a | b |\n").unwrap_err().contains("kernel and sm_NN"));
        assert!(Registers::parse("| kernel | sm_75 |\n| k | many |\n").unwrap_err().contains("`many`"));
    }
}
