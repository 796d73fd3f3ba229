//! Functions that are not CUDA's: how a test talks to the emulator behind the loaded library.
//!
//! The crate that a test links holds its own copy of this code, whose state is not the library's; so
//! everything goes through these exports.

use std::ffi::{c_char, c_int};

use super::ffi::{Out, Text, api};
use super::state::Locked;

/// Numbers that [`emu_counter`] answers.
pub const COUNTERS: &[&str] = &[
    "lane_instructions",
    "warp_instructions",
    "launches",
    "memory_used",
    "memory_peak",
    "allocations",
    "pinned",
    "reports",
];

fn counter(d: &Locked, name: &str) -> Option<u64> {
    Some(match name {
        "lane_instructions" => d.counts.lanes,
        "warp_instructions" => d.counts.warps,
        "launches" => d.counts.launches,
        "memory_used" => d.memory.used(),
        "memory_peak" => d.memory.peak(),
        "allocations" => d.memory.live() as u64,
        "pinned" => d.memory.host.pinned(),
        "reports" => d.reports.len() as u64,
        // Calls of a driver or cuBLAS function.
        other => {
            let all = super::functions().into_iter().chain(crate::cublas::api::table());
            let name = all.map(|(n, _)| n.strip_prefix("emu_").unwrap_or(n)).find(|n| *n == other)?;
            d.calls.get(name).copied().unwrap_or(0)
        }
    })
}

api! {
    fn emu_set(name: Text, value: Text) |d| {
        let (name, value) = (name.get()?, value.get()?);
        if let Err(error) = d.config.set(&name, &value) {
            d.report(error.to_string());
            return Err(super::codes::INVALID_VALUE);
        }
        let (vram, track) = (d.config.vram, d.config.exec.uninitialised);
        d.memory.set_total(vram);
        d.memory.track_writes = track;
        Ok(())
    }

    fn emu_counter(name: Text, out: Out<u64>) |d| {
        let name = name.get()?;
        let value = counter(d, &name).ok_or(super::codes::NOT_FOUND)?;
        out.set(value)
    }

    fn emu_report(index: usize, out: Out<c_char>, room: usize, len: Out<usize>) |d| {
        let text = d.reports.get(index).ok_or(super::codes::NOT_FOUND)?;
        let bytes: Vec<c_char> = text.bytes().take(room).map(|b| b as c_char).collect();
        len.set(text.len())?;
        out.set_all(&bytes)
    }

    fn emu_clear_reports() |d| {
        d.reports.clear();
        Ok(())
    }

    fn emu_lanes(out: Out<c_int>) |d| {
        // 0 baseline, 1 avx2, 2 avx512.
        out.set(match d.config.exec.lanes.name { "avx512" => 2, "avx2" => 1, _ => 0 })
    }
}
