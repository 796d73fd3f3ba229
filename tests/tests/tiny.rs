//! The five tiny models against PyTorch, transformers and PEFT: logits, hidden states, losses, gradients of the
//! adapters and of the embeddings, AdamW steps, greedy tokens; unquantised and in NF4 with double quantisation.
//! The bounds are those of the reference: its own kernels differ by as much.

use trainer::backend::{AdamW, Storage};
use trainer::data::{Batch, Sample};
use trainer::engine::Update;
use trainer::event::Collected;
use trainer::generate::Generator;
use whole_system_tests::{Setup, Tensors, assert_close, fixture, max_abs, max_difference, relative_norm};

const FAMILIES: [&str; 5] = ["llama", "llama3", "mistral", "qwen2", "qwen3"];
const NF4_DOUBLE: Storage = Storage::Nf4 { block_size: 64, double: true };

fn expected(family: &str, file: &str) -> Tensors {
    Tensors::read(fixture("tiny").join(family).join(file))
}

/// The rows of a `[2, 24, width]` tensor that are not padding, as our batches have them.
fn unpadded(values: &[f32], samples: &[Sample]) -> Vec<f32> {
    let per_row = values.len() / samples.len();
    let width = per_row / 24;
    let rows = values.chunks(per_row).zip(samples);
    rows.flat_map(|(row, sample)| row[..sample.ids.len() * width].to_vec()).collect()
}

/// Asserts that the largest difference is at most 1e-5 of the largest magnitude.
fn assert_values(what: &str, found: &[f32], reference: &[f32]) {
    assert_close(what, max_difference(found, reference), 0.0, 1e-5 * max_abs(reference));
}

fn check_family(family: &str, storage: Storage, file: &str) {
    let inputs = expected(family, "expected.safetensors").samples();
    let want = expected(family, file);
    let batch = Batch::new(&inputs);
    let mut engine = Setup::tiny(family).storage(storage).engine();

    // The base: lora_B is zero in a fresh adapter.
    let logits = engine.logits(&batch).unwrap();
    assert_values(&format!("{family} base logits"), &logits, &unpadded(&want.f32("base.logits"), &inputs));
    for layer in 0..2 {
        let reference = unpadded(&want.f32(&format!("base.hidden.{layer}")), &inputs);
        assert_values(&format!("{family} hidden {layer}"), &engine.hidden(layer).unwrap(), &reference);
    }
    let (sum, count) = engine.evaluate(&batch).unwrap();
    let reference = f64::from(want.f32("base.loss")[0]);
    assert_close(&format!("{family} base loss"), sum / count as f64, reference, 1e-6 * reference);

    engine.set_adapter(&Setup::tiny(family).adapter()).unwrap();
    let logits = engine.logits(&batch).unwrap();
    assert_values(&format!("{family} lora logits"), &logits, &unpadded(&want.f32("lora.logits"), &inputs));
    let (loss, d_embeds) = engine.gradients_of(&batch).unwrap();
    let reference = f64::from(want.f32("lora.loss")[0]);
    assert_close(&format!("{family} lora loss"), loss, reference, 1e-6 * reference);
    let reference = unpadded(&want.f32("lora.grad.inputs_embeds"), &inputs);
    assert_close(&format!("{family} d embeddings"), relative_norm(&d_embeds, &reference), 0.0, 2e-5);
    let gradients = engine.gradients().unwrap();
    assert_eq!(gradients.modules.len(), 14);
    for (module, tensors) in &gradients.modules {
        for (side, found) in [("lora_A", &tensors.a), ("lora_B", &tensors.b)] {
            let reference = want.f32(&format!("lora.grad.{module}.{side}"));
            let what = format!("{family} gradient of {module}.{side}");
            assert_close(&what, relative_norm(found, &reference), 0.0, 2e-5);
        }
    }
}

#[test]
fn logits_losses_and_gradients_are_the_references() {
    for family in FAMILIES {
        check_family(family, Storage::AsIs, "expected.safetensors");
    }
}

#[test]
fn the_same_in_nf4_with_double_quantisation() {
    for family in FAMILIES {
        check_family(family, NF4_DOUBLE, "expected_nf4dq.safetensors");
    }
}

#[test]
fn three_adamw_steps_are_the_references() {
    for family in FAMILIES {
        let want = expected(family, "expected.safetensors");
        let batch = Batch::new(&want.samples());
        let mut engine = Setup::tiny(family).engine();
        engine.set_adapter(&Setup::tiny(family).adapter()).unwrap();
        let (losses, norms) = (want.f32("adamw.loss"), want.f32("adamw.grad_norm"));
        for step in 0..3 {
            let adamw = AdamW { lr: 1e-2, ..AdamW::default() };
            let update = Update { step: step as u64 + 1, adamw, max_grad_norm: 0.0 };
            let batches = std::slice::from_ref(&batch);
            let outcome = engine.step(batches, &update, &mut Collected::default()).unwrap();
            let (loss, norm) = (f64::from(losses[step]), f64::from(norms[step]));
            assert_close(&format!("{family} loss of step {step}"), outcome.loss, loss, 1e-5 * loss);
            assert_close(&format!("{family} norm of step {step}"), outcome.grad_norm, norm, 1e-5 * norm);
        }
        for (module, tensors) in engine.adapter().unwrap().modules {
            for (side, found) in [("lora_A", &tensors.a), ("lora_B", &tensors.b)] {
                let reference = want.f32(&format!("adamw.{module}.{side}"));
                let what = format!("{family} {module}.{side} after three steps");
                assert_close(&what, max_difference(found, &reference), 0.0, 2e-4);
            }
        }
    }
}

#[test]
fn greedy_tokens_are_the_references_with_any_chunk_of_the_prompt() {
    for family in FAMILIES {
        let want = expected(family, "expected.safetensors");
        let ids = |name: &str| -> Vec<u32> { want.i64(name).into_iter().map(|id| id as u32).collect() };
        for chunk in [1, 4, 64] {
            let (mut backend, model) = Setup::tiny(family).model();
            let mut generator = Generator::new(&mut backend, &model, chunk, 64).unwrap();
            let found = generator.greedy(&ids("greedy.prompt"), 12, &[], |_| ()).unwrap();
            assert_eq!(found, ids("greedy.ids"), "{family}, chunks of {chunk}");
        }
    }
}
