//! A cheap name for a model's content, which checkpoints record, so that a resumed run finds out that its base
//! model is another one. What goes into it is said where it is made, in `directory.rs` and `gguf`.

use sha2::{Digest, Sha256};

const SAMPLE: usize = 4096;

/// Adds the length of a tensor's bytes and up to 4 KiB of its start, middle and end.
pub(crate) fn sample(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    if bytes.len() <= 3 * SAMPLE {
        hash.update(bytes);
    } else {
        let middle = bytes.len() / 2;
        hash.update(&bytes[..SAMPLE]);
        hash.update(&bytes[middle..middle + SAMPLE]);
        hash.update(&bytes[bytes.len() - SAMPLE..]);
    }
}

/// The digest as `sha256:` and hexadecimal digits.
pub(crate) fn text(hash: Sha256) -> String {
    format!("sha256:{}", hexadecimal(hash))
}

/// The digest in hexadecimal digits.
pub(crate) fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
