//! Whole-system tests live in `tests/`; shared helpers stand here.
