//! That training trains, and that a broken gradient never reaches the weights.

use trainer::Error;
use trainer::backend::{AdamW, CpuBackend, Storage};
use trainer::data::{Batch, Sample};
use trainer::engine::{Engine, EngineError, StepOutcome, Update};
use trainer::event::{Collected, Event};
use whole_system_tests::{Setup, assert_close};

const NF4: Storage = Storage::Nf4 { block_size: 64, double: true };

fn batch(tokens: u32) -> Batch {
    let ids: Vec<u32> = (0..tokens).map(|i| 3 + (i * 61) % 500).collect();
    let labels = ids.iter().map(|&id| id as i32).collect();
    Batch::new([&Sample { ids, labels }])
}

fn update(step: u64, lr: f64) -> Update {
    Update { step, adamw: AdamW { lr, ..AdamW::default() }, max_grad_norm: 1.0 }
}

fn step(engine: &mut Engine<CpuBackend>, update: &Update) -> (StepOutcome, Vec<Event>) {
    let mut events = Collected::default();
    let outcome = engine.step(&[batch(8)], update, &mut events).unwrap();
    (outcome, events.0)
}

/// B105: the loss of one sample falls below a tenth on every path that the CPU has.
#[test]
fn one_sample_is_learnt_whatever_the_storage() {
    for family in ["llama", "qwen2", "qwen3"] {
        for storage in [Storage::AsIs, NF4, Storage::Nf4 { block_size: 32, double: false }] {
            for activation_bytes in [0, usize::MAX] {
                let setup = Setup::tiny(family).storage(storage).activation_bytes(activation_bytes);
                let mut engine = setup.engine();
                let losses: Vec<f64> = (1..=50).map(|n| step(&mut engine, &update(n, 2e-2)).0.loss).collect();
                assert!(
                    losses[49] < losses[0] / 10.0,
                    "{family} {storage:?}: {} to {}",
                    losses[0],
                    losses[49]
                );
            }
        }
    }
}

/// B105: the first step with a rate above 0 changes every lora_B (A has no gradient while B is zero), the next
/// one every lora_A; a step with rate 0 changes nothing.
#[test]
fn every_matrix_moves_as_soon_as_it_can() {
    let mut engine = Setup::tiny("qwen3").storage(NF4).engine();
    let start = engine.adapter().unwrap().modules;
    step(&mut engine, &update(1, 0.0));
    assert!(engine.adapter().unwrap().modules == start, "a rate of 0 moved something");
    step(&mut engine, &update(2, 1e-3));
    let first = engine.adapter().unwrap().modules;
    step(&mut engine, &update(3, 1e-3));
    let second = engine.adapter().unwrap().modules;
    assert_eq!(start.len(), 14);
    for ((module, before), ((_, after), (_, then))) in start.iter().zip(first.iter().zip(&second)) {
        assert!(after.b != before.b, "{module}: lora_B stands still");
        assert!(then.a != after.a, "{module}: lora_A stands still");
    }
}

/// B99: the loss is finite and the gradient is not: nothing changes, the tensor is named, the tenth time in a
/// row ends the run.
#[test]
fn a_gradient_that_is_not_finite_is_never_applied() {
    let mut engine = Setup::tiny("llama").alpha(1e6).engine();
    let mut adapter = engine.adapter().unwrap();
    // x Aᵀ is about 1e35, times B = 0; the gradient of B is a million times that.
    adapter.modules[3].1.a.iter_mut().for_each(|v| *v *= 1e36);
    engine.set_adapter(&adapter).unwrap();
    let state = engine.optimizer_state().unwrap();
    for n in 1..10 {
        let (outcome, events) = step(&mut engine, &update(n, 1e-3));
        assert!(outcome.loss.is_finite());
        let reason = outcome.skipped.expect("the step is skipped");
        assert!(reason.contains("model.layers.0.self_attn.o_proj.lora_B"), "{reason}");
        assert_eq!(events, [Event::StepSkipped { step: n, reason }]);
    }
    assert!(engine.adapter().unwrap() == adapter);
    let after = engine.optimizer_state().unwrap();
    assert_eq!((after.updates, after.non_finite), (0, 9));
    assert!(after.moments == state.moments);
    let error = engine.step(&[batch(8)], &update(10, 1e-3), &mut Collected::default()).unwrap_err();
    let Error::Engine(EngineError::NonFinite { step: 10, steps: 10, tensor }) = error else {
        panic!("{error}");
    };
    assert_eq!(tensor, "model.layers.0.self_attn.o_proj.lora_B");
    assert!(engine.adapter().unwrap() == adapter);
}

/// B99: a NaN in the adapter is found in the same way.
#[test]
fn a_gradient_of_nan_is_never_applied() {
    let mut engine = Setup::tiny("llama").engine();
    let mut adapter = engine.adapter().unwrap();
    adapter.modules[0].1.b[5] = f32::NAN;
    engine.set_adapter(&adapter).unwrap();
    let (outcome, _) = step(&mut engine, &update(1, 1e-3));
    assert!(outcome.skipped.is_some());
    assert_eq!(engine.updates(), 0);
}

/// B99: a large but finite gradient is clipped, not lost to an overflowing sum of squares.
#[test]
fn a_norm_beyond_f32_is_clipped_to_the_limit() {
    let mut engine = Setup::tiny("llama").engine();
    let mut adapter = engine.adapter().unwrap();
    for (_, tensors) in &mut adapter.modules {
        tensors.a.iter_mut().for_each(|v| *v *= 1e25);
    }
    engine.set_adapter(&adapter).unwrap();
    let (outcome, _) = step(&mut engine, &update(1, 1e-3));
    assert!(outcome.skipped.is_none() && outcome.grad_norm > 1e22, "{outcome:?}");
    // The first moment is (1 - β1) times the clipped gradient, whose norm is the limit.
    let moments = engine.optimizer_state().unwrap().moments;
    let squares = moments.iter().flat_map(|(_, m)| m.a[0].iter().chain(&m.b[0]));
    let norm = squares.map(|&v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt();
    assert_close("norm of the clipped gradient", norm / 0.1, 1.0, 1e-5);
}

/// An adapter for other modules or of another rank is refused, with what is missing and what is left over.
#[test]
fn an_adapter_that_does_not_fit_is_refused_whole() {
    let mut engine = Setup::tiny("llama").engine();
    let before = engine.adapter().unwrap();
    let mut other = before.clone();
    other.modules[2].0 = "model.layers.0.self_attn.w_proj".into();
    let error = engine.set_adapter(&other).unwrap_err();
    let Error::Engine(EngineError::AdapterModules { missing, left }) = &error else { panic!("{error}") };
    assert_eq!(missing, &["model.layers.0.self_attn.v_proj"]);
    assert_eq!(left, &["model.layers.0.self_attn.w_proj"]);
    let mut other = before.clone();
    other.modules[1].1.a.pop();
    let error = engine.set_adapter(&other).unwrap_err();
    assert!(matches!(error, Error::Engine(EngineError::AdapterShape { side: "lora_A", .. })), "{error}");
    assert!(engine.adapter().unwrap() == before);
}

/// Dropout: masks follow seed, step and micro-batch, and evaluation uses none.
#[test]
fn dropout_is_a_function_of_seed_and_step() {
    let loss = |seed: u64, number: u64| {
        let mut engine = Setup::tiny("llama").dropout(0.5).seed(seed).engine();
        engine.set_adapter(&Setup::tiny("llama").adapter()).unwrap();
        step(&mut engine, &update(number, 0.0)).0.loss
    };
    assert_eq!(loss(1, 1), loss(1, 1));
    assert_ne!(loss(1, 1), loss(2, 1));
    assert_ne!(loss(1, 1), loss(1, 2));
    let mut with = Setup::tiny("llama").dropout(0.5).engine();
    let mut without = Setup::tiny("llama").engine();
    assert_eq!(with.losses(&batch(8)).unwrap(), without.losses(&batch(8)).unwrap());
}

/// The gradient with dropout is the gradient of the loss with the same masks: central differences of the loss
/// in f32 along one direction.
#[test]
fn the_gradient_with_dropout_is_that_of_the_masked_loss() {
    let mut engine = Setup::tiny("qwen3").dropout(0.3).engine();
    let start = Setup::tiny("qwen3").adapter();
    engine.set_adapter(&start).unwrap();
    step(&mut engine, &update(1, 0.0));
    let gradients = engine.gradients().unwrap().modules;
    let direction = |at: usize| ((at * 37 % 19) as f32 - 9.0) / 9.0;
    let mut slope = 0.0;
    let mut shifted = |h: f32| {
        let mut adapter = start.clone();
        let mut at = 0;
        for ((_, tensors), (_, gradient)) in adapter.modules.iter_mut().zip(&gradients) {
            let values = tensors.a.iter_mut().chain(&mut tensors.b);
            for (value, g) in values.zip(gradient.a.iter().chain(&gradient.b)) {
                *value += h * direction(at);
                slope += if h > 0.0 { f64::from(*g) * f64::from(direction(at)) } else { 0.0 };
                at += 1;
            }
        }
        let mut engine = Setup::tiny("qwen3").dropout(0.3).engine();
        engine.set_adapter(&adapter).unwrap();
        step(&mut engine, &update(1, 0.0)).0.loss
    };
    let h = 1e-4;
    let difference = (shifted(h) - shifted(-h)) / (2.0 * f64::from(h));
    // Rounding of a loss near 10 in f32, 1e-6 at most, over 2h gives 5e-3; the curvature term is h² times a
    // third derivative.
    assert_close("slope", difference, slope, 1e-2 * slope.abs() + 5e-3);
}
