//! The `nibble` binary: dispatches, and does nothing else.
#![forbid(unsafe_code)]

fn main() {}
