//! Whole-system tests live in `tests/`; shared helpers stand here.
#![forbid(unsafe_code)]
