//! How samples are put into batches and windows must not change what is learnt: packing against the reference,
//! token means instead of means of means, windows without supervised tokens.

use serde_json::Value;
use trainer::backend::AdamW;
use trainer::data::{Batch, IGNORED, Sample};
use trainer::engine::Update;
use trainer::event::{Collected, Event};
use whole_system_tests::{Setup, assert_close, json, relative_norm};

fn numbers(value: &Value) -> Vec<i64> {
    value.as_array().expect("a list").iter().map(|v| v.as_i64().expect("a number")).collect()
}

fn sample(value: &Value) -> Sample {
    Sample {
        ids: numbers(&value["input_ids"]).into_iter().map(|id| id as u32).collect(),
        labels: numbers(&value["labels"]).into_iter().map(|label| label as i32).collect(),
    }
}

fn known_losses(value: &Value) -> Vec<f64> {
    value["token_loss"].as_array().expect("a list").iter().filter_map(Value::as_f64).collect()
}

fn update(step: u64, max_grad_norm: f64) -> Update {
    Update { step, adamw: AdamW { lr: 1e-3, ..AdamW::default() }, max_grad_norm }
}

#[test]
fn packed_samples_have_the_losses_and_gradients_that_they_have_alone() {
    let reference = json("packing.json");
    let samples: Vec<Sample> = reference["samples"].as_array().expect("a list").iter().map(sample).collect();
    let packed = Batch::new(&samples);
    let positions: Vec<u32> =
        numbers(&reference["packed"]["position_ids"]).into_iter().map(|p| p as u32).collect();
    assert_eq!(packed.positions, positions, "rope is relative: only this shows a missing restart");

    let mut engine = Setup::tiny("qwen2").engine();
    engine.set_adapter(&Setup::tiny("qwen2").adapter()).unwrap();
    let losses = engine.losses(&packed).unwrap();
    let wanted = known_losses(&reference["packed"]);
    assert_eq!(losses.len(), wanted.len());
    // The reference's own two ways differ by 2e-6; a leak moves the mean by 0.19, a counted border by 0.02.
    for (at, (found, expected)) in losses.iter().zip(&wanted).enumerate() {
        assert_close(&format!("packed token {at}"), f64::from(*found), *expected, 2e-5);
    }
    let alone: Vec<f32> =
        samples.iter().flat_map(|sample| engine.losses(&Batch::new([sample])).unwrap()).collect();
    for (at, (found, expected)) in losses.iter().zip(&alone).enumerate() {
        assert_close(&format!("token {at} alone"), f64::from(*found), f64::from(*expected), 2e-5);
    }
    let outcome = engine.step(&[packed], &update(1, 0.0), &mut Collected::default()).unwrap();
    let norm = reference["grad_norm"]["packed"].as_f64().expect("a number");
    assert_close("gradient norm", outcome.grad_norm, norm, 1e-5 * norm);
    let mean = reference["mean_loss"]["packed"].as_f64().expect("a number");
    assert_close("mean loss", outcome.loss, mean, 1e-6 * mean);
}

/// B34, B94, B103: a short sample's token counts as much as a long one's, in whichever micro-batch it stands.
#[test]
fn micro_batches_give_the_gradient_of_the_whole_window() {
    let ids = |len: u32, seed: u32| (0..len).map(|i| 3 + (i * 53 + seed) % 500).collect::<Vec<_>>();
    let sample = |len: u32, supervised: usize, seed: u32| {
        let ids = ids(len, seed);
        let from = ids.len() - supervised;
        let labels = ids.iter().enumerate().map(|(i, &id)| if i < from { IGNORED } else { id as i32 });
        Sample { labels: labels.collect(), ids }
    };
    let samples = [sample(4, 1, 1), sample(20, 9, 2), sample(11, 4, 3)];
    let splits: [Vec<Batch>; 3] = [
        vec![Batch::new(&samples)],
        vec![Batch::new(&samples[..1]), Batch::new(&samples[1..])],
        samples.iter().map(|sample| Batch::new([sample])).collect(),
    ];
    let mut found = Vec::new();
    for split in &splits {
        let mut engine = Setup::tiny("llama").engine();
        engine.set_adapter(&Setup::tiny("llama").adapter()).unwrap();
        let outcome = engine.step(split, &update(1, 0.0), &mut Collected::default()).unwrap();
        assert_eq!(outcome.supervised, 14);
        let gradients = engine.gradients().unwrap().modules;
        let flat: Vec<f32> = gradients.into_iter().flat_map(|(_, t)| [t.a, t.b].concat()).collect();
        found.push((outcome, flat));
    }
    let (whole, gradients) = &found[0];
    for (outcome, flat) in &found[1..] {
        assert_close("loss", outcome.loss, whole.loss, 1e-6 * whole.loss);
        assert_close("norm", outcome.grad_norm, whole.grad_norm, 1e-6 * whole.grad_norm);
        assert_close("gradients", relative_norm(flat, gradients), 0.0, 1e-6);
    }
    // A mean of means would be another number: the test could see it.
    let mut engine = Setup::tiny("llama").engine();
    engine.set_adapter(&Setup::tiny("llama").adapter()).unwrap();
    let means: Vec<f64> = splits[2]
        .iter()
        .map(|batch| engine.evaluate(batch).map(|(sum, count)| sum / count as f64).unwrap())
        .collect();
    assert!((means.iter().sum::<f64>() / 3.0 - whole.loss).abs() > 1e-3);
}

/// B103: four equal micro-batches have the norm of one, so that clipping starts where it should.
#[test]
fn clipping_compares_the_averaged_gradient() {
    let ids: Vec<u32> = (3..20).collect();
    let sample = Sample { labels: ids.iter().map(|&id| id as i32).collect(), ids };
    let batch = Batch::new([&sample]);
    let norm_of = |count: usize| {
        let mut engine = Setup::tiny("llama").engine();
        engine.set_adapter(&Setup::tiny("llama").adapter()).unwrap();
        let window = vec![batch.clone(); count];
        engine.step(&window, &update(1, 0.0), &mut Collected::default()).unwrap().grad_norm
    };
    let one = norm_of(1);
    assert_close("norm of four", norm_of(4), one, 1e-6 * one);
}

/// Gradients are scaled to the limit and no further: below it a limit changes nothing, above it the update is
/// that of the scaled gradient, which AdamW's epsilon lets us see.
#[test]
fn clipping_changes_the_update_only_above_the_limit() {
    let ids: Vec<u32> = (3..20).collect();
    let sample = Sample { labels: ids.iter().map(|&id| id as i32).collect(), ids };
    let after = |limit: f64| {
        let mut engine = Setup::tiny("llama").engine();
        engine.set_adapter(&Setup::tiny("llama").adapter()).unwrap();
        let adamw = AdamW { lr: 1e-3, eps: 1.0, ..AdamW::default() };
        let update = Update { step: 1, adamw, max_grad_norm: limit };
        engine.step(&[Batch::new([&sample])], &update, &mut Collected::default()).unwrap();
        engine.adapter().unwrap().modules
    };
    let free = after(0.0);
    assert!(after(1e6) == free);
    assert!(after(1e-3) != free);
}

/// B25: nothing to learn from is nothing learnt: no loss, no update, no count, and the user is told.
#[test]
fn a_window_without_supervised_tokens_changes_nothing() {
    let ids: Vec<u32> = (3..20).collect();
    let silent = Sample { labels: vec![IGNORED; ids.len()], ids: ids.clone() };
    let spoken = Sample { labels: ids.iter().map(|&id| id as i32).collect(), ids };
    let mut engine = Setup::tiny("llama").engine();
    let before = engine.adapter().unwrap();
    let mut events = Collected::default();
    let outcome = engine.step(&[Batch::new([&silent])], &update(1, 1.0), &mut events).unwrap();
    assert_eq!((outcome.loss, outcome.supervised, engine.updates()), (0.0, 0, 0));
    assert!(outcome.skipped.is_some());
    assert!(matches!(&events.0[..], [Event::StepSkipped { step: 1, .. }]), "{:?}", events.0);
    assert!(engine.adapter().unwrap() == before);

    // Beside a micro-batch that has some, a silent one adds nothing.
    let mut other = Setup::tiny("llama").engine();
    let mixed = [Batch::new([&silent]), Batch::new([&spoken])];
    let mixed = engine.step(&mixed, &update(1, 1.0), &mut events).unwrap();
    let alone = other.step(&[Batch::new([&spoken])], &update(1, 1.0), &mut events).unwrap();
    assert_eq!((mixed.loss, mixed.grad_norm), (alone.loss, alone.grad_norm));
    assert!(engine.adapter().unwrap() == other.adapter().unwrap());
}
