//! Naive oracles: each operation written down once more, slowly and obviously, in f64 where rounding matters.
//! Tests of this crate and of those above compare with them; nothing else should call them.

pub mod nf4;
