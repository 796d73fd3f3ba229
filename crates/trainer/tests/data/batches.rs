//! Orders, windows and batches, against the reference trainer's runs and the faults that others met.

use proptest::prelude::*;
use trainer::data::{Batch, IGNORED, Loader, LoaderOptions, Sample};

use crate::json;

const PLAIN: LoaderOptions =
    LoaderOptions { batch_size: 2, accumulation: 1, pack: None, shuffle: false, seed: 0 };

fn sample(ids: &[u32], prompt: usize) -> Sample {
    let labels =
        ids.iter().enumerate().map(|(at, &id)| if at < prompt { IGNORED } else { id as i32 }).collect();
    Sample { ids: ids.to_vec(), labels }
}

/// Samples of the given lengths, all tokens different.
fn samples(lengths: impl IntoIterator<Item = usize>) -> Vec<Sample> {
    let mut next = 0;
    let make = |length: usize| {
        let ids: Vec<u32> = (next..next + length as u32).collect();
        next += length as u32;
        sample(&ids, 1)
    };
    lengths.into_iter().map(make).collect()
}

fn loader(samples: Vec<Sample>, options: LoaderOptions) -> Loader {
    Loader::new(samples, options).expect("a loader")
}

/// Sample indices of the steps, micro-batches joined.
fn order(loader: &Loader, steps: std::ops::RangeInclusive<u64>) -> Vec<usize> {
    steps.flat_map(|step| loader.step(step).samples.concat()).collect()
}

/// B94 and the reference trainer: which samples each of its steps had, how many supervised tokens, and how many
/// steps its epochs make; the last window of an epoch is as small as what is left.
#[test]
fn windows_are_those_of_the_reference_trainer() {
    let file = json("trainer_run.json");
    let numbers = |value: &serde_json::Value| -> Vec<i64> {
        value.as_array().expect("numbers").iter().map(|x| x.as_i64().expect("a number")).collect()
    };
    let all: Vec<Sample> = file["samples"]
        .as_array()
        .expect("samples")
        .iter()
        .map(|sample| Sample {
            ids: numbers(&sample["input_ids"]).into_iter().map(|id| id as u32).collect(),
            labels: numbers(&sample["labels"]).into_iter().map(|label| label as i32).collect(),
        })
        .collect();
    let number = |value: &serde_json::Value| value.as_u64().expect("a number") as usize;
    let options = LoaderOptions {
        batch_size: number(&file["settings"]["batch"]),
        accumulation: number(&file["settings"]["accumulate"]),
        ..PLAIN
    };
    for name in ["steps9", "epochs3"] {
        let run = &file["runs"][name];
        let loader = loader(all[..number(&run["samples"])].to_vec(), options);
        let steps = run["steps"].as_array().expect("steps");
        assert_eq!(steps.len(), 9);
        for step in steps {
            let window = loader.step(step["step"].as_u64().expect("a step"));
            let batches: Vec<Vec<usize>> = step["batches"]
                .as_array()
                .expect("batches")
                .iter()
                .map(|batch| numbers(batch).into_iter().map(|at| at as usize).collect())
                .collect();
            assert_eq!(window.samples, batches, "{name}, step {}", step["step"]);
            assert_eq!(window.supervised(), number(&step["tokens"]), "{name}, step {}", step["step"]);
        }
    }
    let three = loader(all[..15].to_vec(), options);
    assert_eq!((three.steps_per_epoch(), three.steps(3.0).expect("steps")), (3, 9));
    assert_eq!(three.step(9).epoch, 3.0);
}

/// B91: what a step runs on depends on its number alone: a loader that begins at any step goes on as one that
/// has done all before, at the ends of epochs too.
#[test]
fn a_resumed_run_sees_the_same_samples() {
    let options = LoaderOptions { shuffle: true, seed: 5, ..PLAIN };
    let through = loader(samples(3..13), options);
    let order_of_all: Vec<_> = (1..=15).map(|step| through.step(step)).collect();
    for resumed_at in 1..=15 {
        let resumed = loader(samples(3..13), options);
        for step in resumed_at..=15 {
            assert_eq!(resumed.step(step), order_of_all[step as usize - 1], "step {step} from {resumed_at}");
        }
    }
    for epoch in 0..3 {
        let mut seen = order(&through, epoch * 5 + 1..=epoch * 5 + 5);
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>(), "each sample once in epoch {epoch}");
    }
    assert_ne!(order(&through, 1..=5), order(&through, 6..=10), "epoch 1 is not epoch 0 again");
}

/// B104: equal seeds give equal orders, other seeds and other epochs other ones, no shuffling the file's.
#[test]
fn seeds_make_orders() {
    let with = |seed| loader(samples([4; 8]), LoaderOptions { shuffle: true, seed, ..PLAIN });
    assert_eq!(order(&with(1), 1..=8), order(&with(1), 1..=8));
    assert_ne!(order(&with(1), 1..=8), order(&with(2), 1..=8));
    assert_ne!(order(&with(1), 1..=4), order(&with(1), 5..=8));
    let plain = loader(samples([4; 8]), LoaderOptions { seed: 1, ..PLAIN });
    assert_eq!(order(&plain, 1..=8), [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7]);
}

/// A saved run must find its order again with a later version: these orders never change. They were made by
/// another implementation, from the description in `order.rs`.
#[test]
fn orders_are_frozen() {
    assert_eq!(trainer::data::permutation(0, 0, 8), [4, 1, 2, 6, 7, 0, 3, 5]);
    assert_eq!(trainer::data::permutation(42, 3, 8), [6, 5, 0, 3, 2, 7, 1, 4]);
}

/// B36: labels shift once, the last token of a sample predicts nothing, the first is never a target.
#[test]
fn rows_do_not_leak() {
    let batch = Batch::new(&[sample(&[1, 2, 3], 0), sample(&[4, 5, 6], 0)]);
    assert_eq!(batch.ids, [1, 2, 3, 4, 5, 6]);
    assert_eq!(batch.rows, [0, 1, 3, 4]);
    assert_eq!(batch.targets, [2, 3, 5, 6]);
    assert_eq!(batch.positions, [0, 1, 2, 0, 1, 2]);
    assert_eq!(batch.starts, [0, 0, 0, 3, 3, 3]);
}

/// B90: with a prompt of three tokens it is rows 2, 3, 4 that predict the completion.
#[test]
fn the_first_completion_token_is_learnt() {
    let batch = Batch::new(&[sample(&[1, 2, 3, 7, 8, 9], 3)]);
    assert_eq!((batch.rows, batch.targets), (vec![2, 3, 4], vec![7, 8, 9]));
}

/// B25: a batch without a supervised token counts none and stays a batch.
#[test]
fn a_batch_may_have_nothing_to_learn() {
    let silent = sample(&[1, 2, 3], 3);
    let window = loader(vec![silent; 2], PLAIN).step(1);
    assert_eq!((window.supervised(), window.tokens()), (0, 6));
    assert!(window.batches[0].rows.is_empty());
    assert_eq!(sample(&[1], 0).supervised(), 0, "nothing predicts a first token");
}

/// Packing and the reference's packed row: ids, labels, positions and segments.
#[test]
fn a_packed_row_is_that_of_the_reference() {
    let file = json("packing.json");
    let numbers = |value: &serde_json::Value| -> Vec<i32> {
        value.as_array().expect("numbers").iter().map(|x| x.as_i64().expect("a number") as i32).collect()
    };
    let unsigned =
        |value: &serde_json::Value| -> Vec<u32> { numbers(value).iter().map(|&x| x as u32).collect() };
    let samples: Vec<Sample> = file["samples"]
        .as_array()
        .expect("samples")
        .iter()
        .map(|sample| Sample { ids: unsigned(&sample["input_ids"]), labels: numbers(&sample["labels"]) })
        .collect();
    let window = loader(samples, LoaderOptions { batch_size: 1, pack: Some(22), ..PLAIN }).step(1);
    let [batch] = &window.batches[..] else { panic!("one row expected: {window:?}") };
    let packed = &file["packed"];
    assert_eq!(batch.ids, unsigned(&packed["input_ids"]));
    assert_eq!(batch.positions, unsigned(&packed["position_ids"]));
    let segments: Vec<u32> = batch.starts.iter().map(|&start| u32::from(start > 0)).collect();
    assert_eq!(segments, unsigned(&packed["segment"]));
    let labels = numbers(&packed["labels"]);
    let rows: Vec<u32> =
        (0..labels.len() as u32 - 1).filter(|&row| labels[row as usize + 1] != IGNORED).collect();
    assert_eq!(batch.rows, rows);
    assert_eq!(batch.targets.len(), file["label_count"].as_u64().expect("a count") as usize);
    // One token less, and the second sample has to open a row, here a step, of its own.
    let samples = loader(
        vec![sample(&[1; 13], 1), sample(&[2; 9], 1)],
        LoaderOptions { batch_size: 1, pack: Some(21), ..PLAIN },
    );
    assert_eq!((samples.steps_per_epoch(), samples.step(1).samples), (2, vec![vec![0]]));
}

#[test]
fn rows_fill_in_order() {
    let options = LoaderOptions { batch_size: 2, accumulation: 2, pack: Some(10), ..PLAIN };
    let loader = loader(samples([4, 6, 3, 8, 10, 12, 1, 9, 1]), options);
    // Rows: 4+6 | 3 | 8 | 10 | 12 (longer than a row) | 1+9 | 1
    assert_eq!(loader.steps_per_epoch(), 2);
    assert_eq!(loader.step(1).samples, [vec![0, 1, 2], vec![3, 4]]);
    assert_eq!(loader.step(2).samples, [vec![5, 6, 7], vec![8]]);
    assert_eq!(loader.step(1).epoch, 5.0 / 9.0);
    assert_eq!(loader.step(4).epoch, 2.0);
    assert_eq!(loader.steps(0.5).expect("half an epoch"), 1);
    assert_eq!(loader.steps(1.1).expect("a little more than one"), 3);
}

#[test]
fn settings_of_nothing_are_refused() {
    let refused = |options, count: usize| {
        Loader::new(samples(vec![3; count]), options).expect_err("a refusal").to_string()
    };
    assert_eq!(
        refused(LoaderOptions { batch_size: 0, ..PLAIN }, 1),
        "train.batch_size = 0: must be at least 1"
    );
    assert_eq!(
        refused(LoaderOptions { accumulation: 0, ..PLAIN }, 1),
        "train.gradient_accumulation_steps = 0: must be at least 1"
    );
    assert_eq!(refused(PLAIN, 0), "samples = 0: must be at least 1");
    for epochs in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = loader(samples([3]), PLAIN).steps(epochs).expect_err("no number of epochs");
        assert_eq!(error.to_string(), format!("train.epochs = {epochs}: must be a number above 0"));
    }
}

proptest! {
    /// Whatever the sizes: an epoch has every sample once, no micro-batch and no window is larger than it may be
    /// or empty, only the last of an epoch is smaller, and the epoch ends at a whole number.
    #[test]
    fn an_epoch_has_every_sample_once(
        lengths in prop::collection::vec(1usize..12, 1..40),
        batch_size in 1usize..5,
        accumulation in 1usize..4,
        pack in prop::option::of(1usize..20),
        shuffle: bool,
        seed: u64,
        epoch in 0u64..3,
    ) {
        let count = lengths.len();
        let loader = loader(samples(lengths), LoaderOptions { batch_size, accumulation, pack, shuffle, seed });
        let steps = loader.steps_per_epoch();
        let mut seen = Vec::new();
        for step in epoch * steps + 1..=(epoch + 1) * steps {
            let window = loader.step(step);
            let last = step == (epoch + 1) * steps;
            prop_assert!(!window.batches.is_empty() && window.batches.len() <= accumulation);
            prop_assert!(last || window.batches.len() == accumulation);
            for (batch, samples) in window.batches.iter().zip(&window.samples) {
                prop_assert!(!samples.is_empty());
                prop_assert!(pack.is_some() || samples.len() <= batch_size);
                prop_assert_eq!(batch, &Batch::new(samples.iter().map(|&at| &loader.samples()[at])));
            }
            prop_assert!(window.epoch > epoch as f64 && window.epoch <= (epoch + 1) as f64);
            prop_assert_eq!(last, window.epoch == (epoch + 1) as f64);
            seen.extend(window.samples.concat());
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..count).collect::<Vec<_>>());
    }
}
