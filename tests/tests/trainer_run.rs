//! Whole runs against the Hugging Face Trainer: accumulation, the short last batch and window of an epoch, a
//! cosine with warmup, weight decay and clipping, together, over nine steps.

use serde_json::Value;
use trainer::backend::AdamW;
use trainer::data::{Loader, LoaderOptions, Sample};
use trainer::engine::Update;
use trainer::event::Collected;
use trainer::schedule::{Schedule, Shape};
use whole_system_tests::{Setup, Tensors, assert_close, fixture, json, max_difference};

fn numbers(value: &Value) -> Vec<i64> {
    value.as_array().expect("a list").iter().map(|v| v.as_i64().expect("a number")).collect()
}

fn samples(reference: &Value, count: usize) -> Vec<Sample> {
    let all = reference["samples"].as_array().expect("a list");
    let sample = |value: &Value| Sample {
        ids: numbers(&value["input_ids"]).into_iter().map(|id| id as u32).collect(),
        labels: numbers(&value["labels"]).into_iter().map(|label| label as i32).collect(),
    };
    all[..count].iter().map(sample).collect()
}

fn follow(run: &str) {
    let reference = json("trainer_run.json");
    let expected = &reference["runs"][run];
    let settings = &reference["settings"];
    let count = expected["samples"].as_u64().expect("a number") as usize;
    let setting = |name: &str| settings[name].as_f64().expect("a number");
    let options = LoaderOptions {
        batch_size: setting("batch") as usize,
        accumulation: setting("accumulate") as usize,
        pack: None,
        shuffle: false,
        seed: 0,
    };
    let loader = Loader::new(samples(&reference, count), options).unwrap();
    let steps = expected["steps"].as_array().expect("a list");
    let schedule = Schedule {
        shape: Shape::Cosine,
        peak: setting("peak_lr"),
        warmup: setting("warmup_steps") as u64,
        total: steps.len() as u64,
    };
    let mut engine = Setup::tiny("llama").engine();
    engine.set_adapter(&Setup::tiny("llama").adapter()).unwrap();
    for (at, want) in steps.iter().enumerate() {
        let step = at as u64 + 1;
        let window = loader.step(step);
        let want_number = |name: &str| want[name].as_f64().expect("a number");
        let batches: Vec<Vec<i64>> =
            want["batches"].as_array().expect("a list").iter().map(numbers).collect();
        let taken = window.samples.iter().map(|batch| batch.iter().map(|&s| s as i64).collect::<Vec<_>>());
        assert_eq!(taken.collect::<Vec<_>>(), batches, "{run} step {step}");
        let rate = schedule.rate(step);
        assert_close(&format!("{run} rate of step {step}"), rate, want_number("lr"), 1e-15);
        let adamw = AdamW { lr: rate, weight_decay: setting("weight_decay"), ..AdamW::default() };
        let update = Update { step, adamw, max_grad_norm: setting("max_grad_norm") };
        let outcome = engine.step(&window.batches, &update, &mut Collected::default()).unwrap();
        assert_eq!(outcome.supervised as f64, want_number("tokens"));
        let (loss, norm) = (want_number("loss"), want_number("grad_norm"));
        assert_close(&format!("{run} loss of step {step}"), outcome.loss, loss, 1e-5 * loss);
        assert_close(&format!("{run} norm of step {step}"), outcome.grad_norm, norm, 1e-5 * norm);
    }
    let want = Tensors::read(fixture(expected["final"].as_str().expect("a name")));
    for (module, tensors) in engine.adapter().unwrap().modules {
        for (side, found) in [("lora_A", &tensors.a), ("lora_B", &tensors.b)] {
            let values = want.f32(&format!("base_model.model.{module}.{side}.weight"));
            let what = format!("{run} {module}.{side}");
            assert_close(&what, max_difference(found, &values), 0.0, 2e-4);
        }
    }
}

#[test]
fn nine_steps_ending_in_the_third_epoch() {
    follow("steps9");
}

#[test]
fn three_whole_epochs() {
    follow("epochs3");
}
