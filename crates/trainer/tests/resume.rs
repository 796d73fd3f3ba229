//! Runs that are stopped, killed, or that cannot write: what is left is whole, and going on gives the bytes of a
//! run that was never interrupted.

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use common::{Work, without_times};

/// Long enough to be interrupted, short enough to wait for.
const LONG: &[&str] = &["train.epochs=100", "train.save_steps=50", "lora.dropout=0.1"];

fn start(work: &Work, sets: &[&str]) -> Child {
    let mut arguments = vec!["train", "run.toml"];
    LONG.iter().chain(sets).for_each(|set| arguments.extend(["--set", set]));
    work.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until a run has done so many steps.
fn wait_for_step(work: &Work, out: &str, step: usize) {
    let path = work.path(out).join("metrics.jsonl");
    let end = Instant::now() + Duration::from_secs(60);
    while fs::read_to_string(&path).map_or(0, |text| text.lines().count()) < step {
        assert!(Instant::now() < end, "step {step} was not reached in a minute");
        thread::sleep(Duration::from_millis(2));
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// The steps and the adapter of a run to the end that nothing interrupts.
fn uninterrupted(work: &Work) -> (Vec<serde_json::Value>, Vec<u8>) {
    let sets: Vec<&str> = LONG.iter().copied().chain(["output_dir=whole"]).collect();
    work.train(&sets).ok();
    result(work, "whole")
}

fn result(work: &Work, out: &str) -> (Vec<serde_json::Value>, Vec<u8>) {
    let metrics = without_times(work.lines(&format!("{out}/metrics.jsonl")));
    (metrics, work.bytes(&format!("{out}/adapter/adapter_model.safetensors")))
}

// B91, B93: stopped by Ctrl-C in the middle of an epoch, twice, and resumed: the same steps, rates and bytes.
#[test]
fn a_run_stopped_by_ctrl_c_goes_on_as_if_it_had_never_stopped() {
    let work = Work::new();
    let whole = uninterrupted(&work);
    assert_eq!(whole.0.len(), 600);
    let mut done = 0;
    for sets in [&[][..], &["train.resume=auto"]] {
        let child = start(&work, sets);
        wait_for_step(&work, "out", done + 20);
        signal(&child, "-INT");
        let ran = common::Ran::from(child.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(10), "{}\n{}", ran.out, ran.err);
        assert!(ran.err.contains("stopping after this step; again to stop at once"), "{}", ran.err);
        let last = work.names("out/checkpoints").pop().unwrap();
        assert!(ran.out.contains(&format!("To go on from out/checkpoints/{last}:")), "{}", ran.out);
        // With the values that were given: without them, it would be another run.
        let command = "train run.toml --set train.epochs=100 --set train.save_steps=50 --set lora.dropout=0.1 \
                       --set train.resume=auto\n";
        assert!(ran.out.contains(command), "{}", ran.out);
        done = work.lines("out/metrics.jsonl").len();
        assert_eq!(last, format!("step-{done:06}"));
        assert!(!work.path("out/adapter").exists());
    }
    assert!(done < 600);
    let sets: Vec<&str> = LONG.iter().copied().chain(["train.resume=auto"]).collect();
    work.train(&sets).ok();
    assert!(result(&work, "out") == whole);
    let events = work.lines("out/events.jsonl");
    assert_eq!(events.iter().filter(|event| event["event"] == "resumed").count(), 2);
    // A finished run says so and changes nothing.
    let message = work.train(&sets).failed(5);
    assert!(message.contains("is at step 600 of 600: the run is finished"), "{message}");
    // Unless its adapter was not written, or only in part, or is still that of a shorter run.
    let adapter = work.path("out/adapter/adapter_model.safetensors");
    fs::remove_file(&adapter).unwrap();
    work.train(&sets).ok();
    assert!(result(&work, "out") == whole);
    let mut last = fs::read(&adapter).unwrap();
    *last.last_mut().unwrap() ^= 1;
    fs::write(&adapter, last).unwrap();
    work.train(&sets).ok();
    assert!(result(&work, "out") == whole);
}

// B101: killed at any moment, also while a checkpoint is written, a run goes on from a whole checkpoint.
#[test]
fn a_killed_run_goes_on_from_a_whole_checkpoint() {
    let work = Work::new();
    let whole = uninterrupted(&work);
    // A checkpoint after each step makes most of the time a time of writing.
    let often = ["train.save_steps=1", "train.save_total_limit=2", "train.resume=auto"];
    for round in 0..50 {
        let mut child = start(&work, &often);
        // At an unforeseen moment of the run, which takes longer than this in all.
        let done = work.path("out/metrics.jsonl");
        let done = if done.exists() { fs::read_to_string(done).unwrap().lines().count() } else { 0 };
        wait_for_step(&work, "out", done + 2);
        thread::sleep(Duration::from_micros(331 * round));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let sets: Vec<&str> = LONG.iter().copied().chain(["train.resume=auto"]).collect();
    work.train(&sets).ok();
    assert!(result(&work, "out") == whole);
    assert!(
        work.names("out/checkpoints").iter().all(|name| !name.ends_with(".tmp")),
        "what is left is cleared"
    );
}

// Two runs would write over each other's files: the second is refused at once, whether it resumes or not. A run that
// was killed leaves its lock's file behind, which locks nothing.
#[test]
fn a_second_run_in_the_same_directory_is_refused_while_the_first_goes_on() {
    let work = Work::new();
    let mut first = start(&work, &["train.epochs=100000"]);
    wait_for_step(&work, "out", 3);
    for sets in [&[][..], &["train.resume=auto"]] {
        let message = work.train(sets).failed(5);
        assert_eq!(
            message,
            format!(
                "error: output_dir = out is in use by another run (process {}); wait until that ends, or give \
                 another directory\n",
                first.id()
            )
        );
    }
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(work.path("out/.lock").exists());
    let sets: Vec<&str> = LONG.iter().copied().chain(["train.resume=auto"]).collect();
    work.train(&sets).ok();
    assert!(work.path("out/adapter").exists());
}

/// `nibble train` in a shell that limits the size of files, so that larger ones fail while they are written.
fn train_with_file_limit(work: &Work, kib: usize, sets: &[&str]) -> common::Ran {
    let sets: String = sets.iter().map(|set| format!(" --set {set}")).collect();
    // Without the trap, the system would end the process instead of failing the write.
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec {} train run.toml{sets}", common::NIBBLE);
    Command::new("bash").args(["-c", &script]).current_dir(work.dir.path()).output().unwrap().into()
}

// B101: a write that fails in the middle leaves the last checkpoint, and is reported.
#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_one_before() {
    let work = Work::new();
    work.train(&["train.max_steps=12"]).ok();
    let before = work.names("out/checkpoints");
    let kept = work.bytes("out/checkpoints/step-000012/optimizer.safetensors");
    // The optimiser's state is the largest file: about 33 KiB. A longer run then fails at its next checkpoint.
    assert!(kept.len() > 24 << 10 && kept.len() < 64 << 10, "{}", kept.len());
    let sets = ["train.max_steps=20", "train.resume=auto"];
    let message = train_with_file_limit(&work, 24, &sets).failed(5);
    assert!(
        message.contains("cannot write out/checkpoints/step-000016.tmp/optimizer.safetensors: "),
        "{message}"
    );
    assert!(message.contains("make room there; a run goes on from its last checkpoint"), "{message}");
    assert_eq!(work.names("out/checkpoints"), before, "no part is left to take up room");
    assert_eq!(work.bytes("out/checkpoints/step-000012/optimizer.safetensors"), kept);
    // With room again, the run goes on from it.
    work.train(&sets).ok();
    assert_eq!(work.lines("out/metrics.jsonl").len(), 20);
    assert!(work.names("out/checkpoints").iter().all(|name| !name.ends_with(".tmp")));
}

// B93: a checkpoint of another run is refused, with every difference.
#[test]
fn a_checkpoint_of_another_run_is_refused_with_its_differences() {
    let work = Work::new();
    work.train(&[]).ok();
    let before = work.bytes("out/metrics.jsonl");
    let longer = ["train.epochs=3", "train.resume=auto"];
    let refused = |sets: &[&str]| work.train(&[&longer[..], sets].concat()).failed(5);
    let cases = [
        ("train.seed=1", "train.seed: the checkpoint has 0, this run has 1"),
        ("lora.r=5", "lora.r: the checkpoint has 4, this run has 5"),
        ("lora.target_modules=[\"q_proj\"]", "this run has q_proj"),
        ("train.batch_size=3", "train.batch_size: the checkpoint has 2, this run has 3"),
        (
            "quantization.weights=none",
            "quantization: the checkpoint has nf4, block_size 64, double, this run has none",
        ),
        ("data.loss_on=all", "data.train: the checkpoint has sha256:"),
    ];
    for (set, expected) in cases {
        let message = refused(&[set]);
        assert!(message.contains(expected), "{set}: {message}");
    }
    let message = refused(&["train.seed=1", "lora.r=5"]);
    assert!(message.contains("train.seed: ") && message.contains("lora.r: "), "{message}");
    // Other weights under the same path.
    let mut tensors = common::tensors();
    tensors.get_mut("model.layers.0.mlp.up_proj.weight").unwrap().1[0] = 0.75;
    common::write_tensors(&work.path("model"), &tensors);
    assert!(refused(&[]).contains("model: the checkpoint has sha256:"));
    common::write_model(&work.path("model"));
    assert_eq!(work.bytes("out/metrics.jsonl"), before, "nothing was touched");
    // What may change is told.
    work.train(&[&longer[..], &["train.learning_rate=1e-3"]].concat()).ok();
    let events = work.lines("out/events.jsonl");
    let changes = events[0]["changes"].to_string();
    assert!(
        changes.contains("train.learning_rate: the checkpoint has 0.01, this run has 0.001"),
        "{changes}"
    );
    assert!(changes.contains("steps: the checkpoint has 12, this run has 18"), "{changes}");
}

#[test]
fn a_checkpoint_can_be_named_and_must_be_the_newest() {
    let work = Work::new();
    work.train(&[]).ok();
    let from = |path: &str| format!("train.resume={path}");
    let message = work.train(&["train.epochs=3", &from("out/checkpoints/step-000004")]).failed(5);
    assert!(message.contains("step-000004 is older than out/checkpoints/step-000012"), "{message}");
    let message = work.train(&["train.epochs=3", "output_dir=b", &from("out/nothing")]).failed(5);
    assert!(message.contains("out/nothing is no checkpoint"), "{message}");
}

// B91, B93: from every step, borders of epochs (6 and 12) among them, the rest of the run is the same.
#[test]
fn the_rest_of_a_run_is_the_same_from_every_checkpoint() {
    let work = Work::new();
    let sets = [
        "train.epochs=3",
        "train.save_steps=1",
        "train.save_total_limit=0",
        "train.lr_scheduler=cosine",
        "train.warmup_steps=4",
    ];
    work.train(&sets).ok();
    let all = work.lines("out/metrics.jsonl");
    for step in 1..all.len() {
        let (out, from) = (format!("b{step}"), format!("out/checkpoints/step-{step:06}"));
        work.train(&[&sets[..], &[&format!("output_dir={out}"), &format!("train.resume={from}")]].concat())
            .ok();
        let rest = work.lines(&format!("{out}/metrics.jsonl"));
        assert_eq!(without_times(all[step..].to_vec()), without_times(rest), "from step {step}");
        let adapter = |out: &str| work.bytes(&format!("{out}/adapter/adapter_model.safetensors"));
        assert!(adapter("out") == adapter(&out), "from step {step}");
    }
}

#[test]
fn old_checkpoints_are_removed() {
    let work = Work::new();
    work.train(&["train.save_steps=2", "train.save_total_limit=2"]).ok();
    assert_eq!(work.names("out/checkpoints"), ["step-000010", "step-000012"]);
    work.train(&["output_dir=b", "train.save_steps=5", "train.save_total_limit=0"]).ok();
    assert_eq!(work.names("b/checkpoints"), ["step-000005", "step-000010", "step-000012"]);
    work.train(&["output_dir=c", "train.save_steps=0"]).ok();
    assert_eq!(work.names("c/checkpoints"), Vec::<String>::new());
    assert!(Path::new(&work.path("c/adapter")).exists());
}

// The second Ctrl-C does not wait for the step.
#[test]
fn a_second_ctrl_c_stops_at_once() {
    let work = Work::new();
    // Steps of two thousand samples take long enough for two signals.
    let rows: String =
        (0..2000).map(|n| format!("{{\"prompt\": \"n{n}?\", \"completion\": \"is it {n}\"}}\n")).collect();
    work.write("train.jsonl", &rows);
    let child = start(&work, &["train.batch_size=4", "train.gradient_accumulation_steps=500"]);
    wait_for_step(&work, "out", 1);
    signal(&child, "-INT");
    thread::sleep(Duration::from_millis(20));
    signal(&child, "-INT");
    let ran = common::Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}\n{}", ran.out, ran.err);
    assert_eq!(work.names("out/checkpoints"), Vec::<String>::new());
}
