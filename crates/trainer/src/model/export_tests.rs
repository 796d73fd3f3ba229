//! A small GGUF file written as a directory and read again; the real model is compared where it is fetched.

use super::super::testing::TinyGguf;
use super::*;
use crate::event::Collected;
use crate::model::open;

#[test]
fn numbers_look_as_in_python() {
    for (value, expected) in [
        (1e-5, "1e-05"),
        (1e-6, "1e-06"),
        (0.0001, "0.0001"),
        (0.00012345, "0.00012345"),
        (100_000.0, "100000.0"),
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0 / 24.0, "0.041666666666666664"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e+16"),
        (1.5e300, "1.5e+300"),
        (-2.5e-10, "-2.5e-10"),
    ] {
        assert_eq!(python_float(value), expected);
    }
}

/// What is written is the model that was read: the same shape, the same weights rounded to bf16, the same tokenizer.
#[test]
fn an_exported_directory_is_the_same_model() {
    let place = tempfile::tempdir().unwrap();
    for architecture in ["llama", "qwen2", "qwen3"] {
        let gguf = place.path().join(format!("{architecture}.gguf"));
        TinyGguf::new(architecture).write(&gguf);
        let directory = place.path().join(architecture);
        let exported = export_hf(&gguf, &directory, &mut Collected::default()).unwrap();
        let (mut from, mut to) = (
            open(&gguf, &mut Collected::default()).unwrap(),
            open(&directory, &mut Collected::default()).unwrap(),
        );
        assert_eq!(from.shape, to.shape);
        let mut parameters = 0;
        for tensor in names::expected(&from.shape) {
            let rounded: Vec<f32> = from
                .source
                .read_f32(&tensor.name, &tensor.shape)
                .unwrap()
                .iter()
                .map(|&value| bf16::from_f32(value).to_f32())
                .collect();
            assert_eq!(to.source.read_f32(&tensor.name, &tensor.shape).unwrap(), rounded, "{}", tensor.name);
            parameters += rounded.len();
        }
        assert_eq!(exported.parameters, parameters);
        let text = "ab<|end|> abc";
        assert_eq!(from.tokenizer.encode(text).unwrap(), to.tokenizer.encode(text).unwrap());
        assert_eq!(from.tokenizer.roles(), to.tokenizer.roles());
        assert_eq!(from.tokenizer.chat_templates(), to.tokenizer.chat_templates());
        // It is not written over, and nothing unfinished is left.
        let message = export_hf(&gguf, &directory, &mut Collected::default()).unwrap_err().to_string();
        assert!(message.ends_with("it exists; give another name or remove it"), "{message}");
        assert!(!unfinished(&directory).exists());
    }
}

#[test]
fn a_failed_export_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let (gguf, directory) = (place.path().join("m.gguf"), place.path().join("out"));
    let mut tiny = TinyGguf::new("llama");
    // A NaN in the last tensor that is written.
    tiny.tensor("output_norm.weight").bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    tiny.write(&gguf);
    let message = export_hf(&gguf, &directory, &mut Collected::default()).unwrap_err().to_string();
    assert!(message.contains("output_norm.weight holds NaN at index 0"), "{message}");
    assert!(!directory.exists() && !unfinished(&directory).exists());
    let message =
        export_hf("Cargo.toml".as_ref(), &directory, &mut Collected::default()).unwrap_err().to_string();
    assert!(message.contains("it is no GGUF file"), "{message}");
}
