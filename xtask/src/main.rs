//! Development tasks.
#![forbid(unsafe_code)]
fn main() {}
