//! What must not change a single bit: the number of threads, keeping or recomputing activations, what else
//! stands in a batch, and stopping and resuming.

use trainer::backend::{AdamW, CpuBackend, Storage};
use trainer::data::{Batch, IGNORED, Sample};
use trainer::engine::{Engine, Update};
use trainer::event::Collected;
use whole_system_tests::Setup;

const NF4: Storage = Storage::Nf4 { block_size: 64, double: true };

/// Samples of different lengths, their first third unsupervised.
fn samples(count: usize) -> Vec<Sample> {
    let sample = |n: usize| {
        let ids: Vec<u32> = (0..7 + 5 * n).map(|i| (3 + (i * 37 + n * 101) % 509) as u32).collect();
        let cut = ids.len() / 3;
        let labels = ids.iter().enumerate().map(|(i, &id)| if i < cut { IGNORED } else { id as i32 });
        Sample { labels: labels.collect(), ids }
    };
    (0..count).map(sample).collect()
}

fn windows() -> Vec<Vec<Batch>> {
    let samples = samples(6);
    vec![
        vec![Batch::new(&samples[0..2]), Batch::new(&samples[2..3])],
        vec![Batch::new(&samples[3..4]), Batch::new(&samples[4..6])],
        vec![Batch::new(&samples[1..4])],
    ]
}

fn update(step: u64) -> Update {
    let adamw = AdamW { lr: 5e-3, weight_decay: 0.01, ..AdamW::default() };
    Update { step, adamw, max_grad_norm: 0.5 }
}

/// Everything that a run leaves, as bits.
fn train(engine: &mut Engine<CpuBackend>, steps: impl Iterator<Item = usize>) -> Vec<u64> {
    let windows = windows();
    let mut bits = Vec::new();
    for step in steps {
        let window = &windows[step % windows.len()];
        let outcome = engine.step(window, &update(step as u64 + 1), &mut Collected::default()).unwrap();
        bits.extend([outcome.loss.to_bits(), outcome.grad_norm.to_bits()]);
    }
    bits
}

fn adapter_bits(engine: &mut Engine<CpuBackend>) -> Vec<u32> {
    let modules = engine.adapter().unwrap().modules;
    modules.iter().flat_map(|(_, t)| t.a.iter().chain(&t.b)).map(|v| v.to_bits()).collect()
}

fn run(setup: Setup) -> (Vec<u64>, Vec<u32>) {
    let mut engine = setup.engine();
    let losses = train(&mut engine, 0..6);
    (losses, adapter_bits(&mut engine))
}

#[test]
fn one_to_four_threads() {
    for family in ["qwen2", "qwen3"] {
        let setup = || Setup::tiny(family).storage(NF4).dropout(0.1);
        let one = run(setup().threads(1));
        for threads in 2..=4 {
            assert!(run(setup().threads(threads)) == one, "{family}: {threads} threads differ from one");
        }
    }
}

#[test]
fn kept_and_recomputed_activations() {
    for family in ["llama", "qwen3"] {
        let setup = || Setup::tiny(family).storage(NF4).dropout(0.1);
        let kept = setup().engine();
        assert_eq!(kept.kept_blocks(), 2);
        let recomputed = setup().activation_bytes(0).engine();
        assert_eq!(recomputed.kept_blocks(), 1);
        assert!(run(setup()) == run(setup().activation_bytes(0)), "{family}");
    }
}

#[test]
fn interrupted_and_resumed() {
    let setup = || Setup::tiny("mistral").storage(NF4).dropout(0.1);
    let through = run(setup());
    for stop in 1..6 {
        let mut first = setup().engine();
        let mut losses = train(&mut first, 0..stop);
        let (adapter, state) = (first.adapter().unwrap(), first.optimizer_state().unwrap());
        let mut second = setup().engine();
        second.set_adapter(&adapter).unwrap();
        second.set_optimizer_state(&state).unwrap();
        losses.extend(train(&mut second, stop..6));
        assert!((losses, adapter_bits(&mut second)) == through, "stopped after {stop}");
    }
}

#[test]
fn stale_or_missing_moments_after_a_resume_would_show() {
    let setup = || Setup::tiny("mistral");
    let through = run(setup());
    let mut first = setup().engine();
    train(&mut first, 0..3);
    let mut second = setup().engine();
    second.set_adapter(&first.adapter().unwrap()).unwrap();
    train(&mut second, 3..6);
    assert!(adapter_bits(&mut second) != through.1, "moments make no difference: this test checks nothing");
}

#[test]
fn what_else_is_in_the_batch() {
    let all = samples(3);
    let mut engine = Setup::tiny("qwen2").engine();
    let mut losses = |samples: &[Sample]| -> Vec<u32> {
        engine.losses(&Batch::new(samples)).unwrap().iter().map(|loss| loss.to_bits()).collect()
    };
    let before = losses(&all);
    let mut changed = all.clone();
    for id in &mut changed[0].ids {
        *id = 511 - *id;
    }
    changed[0].labels = changed[0].ids.iter().map(|&id| id as i32).collect();
    let after = losses(&changed);
    let others = all[1].supervised() + all[2].supervised();
    assert_eq!(before[before.len() - others..], after[after.len() - others..]);
    assert_ne!(before[0], after[0]);
}
