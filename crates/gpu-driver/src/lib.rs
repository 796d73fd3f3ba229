//! Placeholder heading, replaced with the crate's first content.
