<<<<<<< HEAD
//! Whole-system tests live in `tests/`; shared helpers stand here.
#![forbid(unsafe_code)]
=======
//! What the whole-system tests share: fixtures by name, tensors out of safetensors files, and comparisons that
//! fail on NaN. The tests themselves stand in `tests/`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use trainer::data::Sample;

/// A file or folder under `tests/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// A JSON fixture.
pub fn json(name: &str) -> serde_json::Value {
    let path = fixture(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The tensors of one safetensors file.
pub struct Tensors {
    bytes: Vec<u8>,
    path: PathBuf,
}

impl Tensors {
    /// Reads a file.
    pub fn read(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_path_buf();
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self { bytes, path }
    }

    fn parsed(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap_or_else(|e| panic!("{}: {e}", self.path.display()))
    }

    fn bytes_of(&self, name: &str, dtype: Dtype) -> Vec<u8> {
        let file = self.parsed();
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{} {name}: {e}", self.path.display()));
        assert_eq!(view.dtype(), dtype, "{name}");
        view.data().to_vec()
    }

    /// Names of all tensors.
    pub fn names(&self) -> Vec<String> {
        self.parsed().names().iter().map(|name| name.to_string()).collect()
    }

    /// The sizes of a tensor.
    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.parsed().tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).shape().to_vec()
    }

    /// An f32 tensor.
    pub fn f32(&self, name: &str) -> Vec<f32> {
        let bytes = self.bytes_of(name, Dtype::F32);
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect()
    }

    /// An i64 tensor.
    pub fn i64(&self, name: &str) -> Vec<i64> {
        let bytes = self.bytes_of(name, Dtype::I64);
        bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes"))).collect()
    }

    /// The rows of a padded batch (`input_ids`, `attention_mask`, `labels`) without their padding.
    pub fn samples(&self) -> Vec<Sample> {
        let width = self.shape("input_ids")[1];
        let (ids, mask, labels) = (self.i64("input_ids"), self.i64("attention_mask"), self.i64("labels"));
        let rows = ids.chunks(width).zip(mask.chunks(width)).zip(labels.chunks(width));
        rows.map(|((ids, mask), labels)| {
            let len = mask.iter().filter(|&&m| m == 1).count();
            assert!(mask[..len].iter().all(|&m| m == 1), "padding is on the right");
            Sample {
                ids: ids[..len].iter().map(|&id| id as u32).collect(),
                labels: labels[..len].iter().map(|&label| label as i32).collect(),
            }
        })
        .collect()
    }
}

/// Asserts |found - expected| <= bound, failing on NaN, with `what` in the message.
pub fn assert_close(what: &str, found: f64, expected: f64, bound: f64) {
    let difference = (found - expected).abs();
    assert!(difference <= bound, "{what}: {found} is not {expected}: off by {difference:e}, allowed {bound:e}");
}

/// Largest |found - expected|; NaN if any value is.
pub fn max_difference(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).fold(0.0, |max: f64, (a, b)| {
        let d = (f64::from(*a) - f64::from(*b)).abs();
        if d.is_nan() { f64::NAN } else { max.max(d) }
    })
}

/// Largest magnitude.
pub fn max_abs(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |max: f64, v| max.max(f64::from(v.abs())))
}

/// |found - expected| / |expected| in the Euclidean norm.
pub fn relative_norm(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let sum = |f: &mut dyn Iterator<Item = f64>| f.map(|x| x * x).sum::<f64>().sqrt();
    let difference = sum(&mut found.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    difference / sum(&mut expected.iter().map(|&v| f64::from(v)))
}
>>>>>>> 7422fd5 (Write the transformer block, LoRA and the training step once, over a Backend trait)
