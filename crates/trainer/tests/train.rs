//! `nibble train` and `nibble generate` from outside: what they write, and that every key of a configuration
//! changes something that can be seen.

mod common;

use std::fs;

use common::{Work, without_times};
use serde_json::{Value, json};
use trainer::config::keys::KEYS;

#[test]
fn a_run_writes_its_adapter_metrics_events_and_checkpoints() {
    let work = Work::new();
    let out = work.train(&[]).ok();
    assert_eq!(work.names("out"), [".lock", "adapter", "checkpoints", "events.jsonl", "metrics.jsonl"]);
    assert_eq!(
        work.names("out/adapter"),
        ["adapter_config.json", "adapter_model.safetensors", "nibble.json"]
    );
    assert_eq!(work.names("out/checkpoints"), ["step-000004", "step-000008", "step-000012"]);
    // The newest checkpoint's adapter is the trained one.
    for name in work.names("out/adapter") {
        assert_eq!(
            work.bytes(&format!("out/adapter/{name}")),
            work.bytes(&format!("out/checkpoints/step-000012/{name}"))
        );
    }
    let steps = work.lines("out/metrics.jsonl");
    assert_eq!(steps.len(), 12);
    let fields = [
        "step",
        "epoch",
        "loss",
        "grad_norm",
        "learning_rate",
        "tokens",
        "tokens_per_second",
        "peak_rss_bytes",
    ];
    for (index, step) in steps.iter().enumerate() {
        assert_eq!(step.as_object().unwrap().keys().collect::<Vec<_>>(), fields);
        assert_eq!(step["step"], json!(index + 1));
        let epoch = step["epoch"].as_f64().unwrap();
        assert!((epoch - (index + 1) as f64 / 6.0).abs() < 1e-12, "{epoch}");
        // Two answers a step: "is 49", its end and the newline after it are at least 6 tokens each.
        assert!(step["tokens"].as_u64().unwrap() >= 12, "{step}");
        assert!(
            step["tokens_per_second"].as_f64().unwrap() > 0.0
                && step["peak_rss_bytes"].as_u64().unwrap() > 1 << 20
        );
    }
    // B96: the first step of a warmup has rate 0.
    let rates: Vec<f64> = steps.iter().map(|step| step["learning_rate"].as_f64().unwrap()).collect();
    assert_eq!((rates[0], rates[1]), (0.0, 1e-2));
    // B105: it learns.
    let loss = |at: usize| steps[at]["loss"].as_f64().unwrap();
    assert!(loss(11) < 0.7 * loss(0), "{} to {}", loss(0), loss(11));
    assert_eq!(work.lines("out/events.jsonl"), Vec::<Value>::new());
    let config: Value = serde_json::from_slice(&work.bytes("out/adapter/adapter_config.json")).unwrap();
    assert_eq!(config["base_model_name_or_path"], json!("model"));
    // The end says how to ask.
    let command = out.lines().last().unwrap().trim();
    assert!(command.ends_with("generate --model model --adapter out/adapter --prompt 'n0?'"), "{command}");
    let answer =
        std::process::Command::new("sh").args(["-c", command]).current_dir(work.dir.path()).output().unwrap();
    assert!(answer.status.success() && !answer.stdout.is_empty(), "{answer:?}");
}

// B96, B105: the rate that is shown is the one that is used. The first step of a warmup moves nothing, the second
// moves every lora_B and, their gradients being 0 until then, no lora_A; the third moves these too.
#[test]
fn the_rate_shown_is_the_one_used() {
    let work = Work::new();
    work.train(&["train.max_steps=3", "train.save_steps=1"]).ok();
    let rates = work.lines("out/metrics.jsonl");
    assert_eq!(
        rates.iter().map(|step| step["learning_rate"].as_f64().unwrap() > 0.0).collect::<Vec<_>>(),
        [false, true, true]
    );
    let checkpoint = |step: u32| {
        let bytes = work.bytes(&format!("out/checkpoints/step-00000{step}/adapter_model.safetensors"));
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        file.iter()
            .map(|(key, tensor)| (key.to_owned(), tensor.data().to_vec()))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    let (first, second, third) = (checkpoint(1), checkpoint(2), checkpoint(3));
    for ((key, one), ((_, two), (_, three))) in first.iter().zip(second.iter().zip(&third)) {
        let is_b = key.contains("lora_B");
        assert_eq!(one.iter().all(|&byte| byte == 0), is_b, "{key} after a step of rate 0");
        assert_eq!(one != two, is_b, "{key} in the second step");
        assert_ne!(two, three, "{key} in the third step");
    }
}

// B105: one sample, trained until it is known; and then the model says it.
#[test]
fn a_sample_that_is_trained_on_is_answered() {
    let work = Work::new();
    work.write("train.jsonl", r#"{"prompt": "what?", "completion": "a frog"}"#);
    let sets =
        ["train.epochs=60", "train.batch_size=1", "lora.r=8", "train.lr_scheduler=constant_with_warmup"];
    work.train(&sets).ok();
    let steps = work.lines("out/metrics.jsonl");
    let (first, last) = (steps[0]["loss"].as_f64().unwrap(), steps[59]["loss"].as_f64().unwrap());
    assert!(last < 0.1 * first, "{first} to {last}");
    let ask = |adapter: &[&str]| {
        let arguments =
            [&["generate", "--model", "model", "--prompt", "what?", "--max-tokens", "16"], adapter].concat();
        work.nibble(&arguments).ok()
    };
    assert_eq!(ask(&["--adapter", "out/adapter"]), "a frog\n");
    assert_ne!(ask(&[]), "a frog\n");
}

/// What the binary asks the adapter when the template shows the date, made visible by a template that refuses it.
#[test]
fn an_adapter_is_asked_with_the_date_that_its_training_saw() {
    let work = Work::new();
    let template = |body: &str| {
        let path = work.path("model/tokenizer_config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config["chat_template"] = json!(body);
        fs::write(path, config.to_string()).unwrap();
    };
    let dated = "{{ strftime_now('%Y-%m-%d %H:%M:%S') }}{% for m in messages %}<|im_start|>{{ m.role }}\n\
                 {{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n\
                 {% endif %}";
    template(dated);
    work.train(&["train.max_steps=4", "train.save_steps=2"]).ok();
    let state: Value = serde_json::from_slice(&work.bytes("out/checkpoints/step-000002/state.json")).unwrap();
    let began = trainer::data::Moment::from_unix(state["now"].as_i64().unwrap());
    // The second of the start passes, so that the present is another.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    template(&dated.replacen(
        "{{ strftime_now('%Y-%m-%d %H:%M:%S') }}",
        "{{ raise_exception(strftime_now('%Y-%m-%d %H:%M:%S')) }}",
        1,
    ));
    let shown = |adapter: &[&str]| {
        let arguments = [&["generate", "--model", "model", "--prompt", "n0?"], adapter].concat();
        work.nibble(&arguments).failed(4)
    };
    let date = began.format("%Y-%m-%d %H:%M:%S").unwrap();
    for adapter in ["out/adapter", "out/checkpoints/step-000002"] {
        let message = shown(&["--adapter", adapter]);
        assert!(message.contains(&date), "{adapter}: {date} is not in {message}");
    }
    assert!(!shown(&[]).contains(&date));
    // An adapter of another program has no date; a damaged one is named.
    fs::write(work.path("out/adapter/nibble.json"), "{\"now\": \"monday\"}").unwrap();
    let message = work
        .nibble(&["generate", "--model", "model", "--prompt", "n0?", "--adapter", "out/adapter"])
        .failed(3);
    assert!(message.contains("out/adapter/nibble.json is damaged"), "{message}");
    fs::remove_file(work.path("out/adapter/nibble.json")).unwrap();
    assert!(!shown(&["--adapter", "out/adapter"]).contains(&date));
}

/// What a run leaves that does not depend on the clock.
#[derive(PartialEq)]
struct Traces {
    metrics: Vec<Value>,
    events: Vec<Value>,
    adapter: [Vec<u8>; 2],
    checkpoints: Vec<String>,
}

fn traces(work: &Work) -> Traces {
    Traces {
        metrics: without_times(work.lines("out/metrics.jsonl")),
        events: work.lines("out/events.jsonl"),
        adapter: ["adapter_model.safetensors", "adapter_config.json"]
            .map(|name| work.bytes(&format!("out/adapter/{name}"))),
        checkpoints: work.names("out/checkpoints"),
    }
}

/// Keys whose effect is tested elsewhere, with the test of this file or another.
const ELSEWHERE: &[(&str, &str)] = &[
    ("output_dir", "the_output_directory_is_where_it_is_asked_for"),
    ("lora.adapter", "a_run_can_start_from_an_adapter"),
    ("data.eval", "held_out_samples_are_measured"),
    ("train.eval_steps", "held_out_samples_are_measured"),
    ("train.logging_steps", "lines_come_every_so_many_steps"),
    ("train.resume", "a_run_stopped_by_ctrl_c_goes_on_as_if_it_had_never_stopped"),
    ("device.threads", "threads_change_the_line_and_not_the_result"),
];

/// Keys that this machine or build has no use for, with what is refused.
const REFUSED: &[(&str, &str, i32)] = &[("device.kind", "cuda:0", 7), ("device.vram_limit_mb", "4000", 7)];

/// A value for each other key; the run must differ from the one without it.
const CHANGES: &[(&str, &str)] = &[
    ("model", "other-model"),
    ("data.train", "other.jsonl"),
    ("data.format", "text"),
    ("data.max_length", "28"),
    ("data.packing", "true"),
    ("data.shuffle", "false"),
    ("data.loss_on", "all"),
    ("lora.r", "2"),
    ("lora.alpha", "16"),
    ("lora.dropout", "0.3"),
    ("lora.target_modules", "[\"q_proj\", \"v_proj\"]"),
    ("lora.rslora", "true"),
    ("quantization.weights", "none"),
    ("quantization.double", "false"),
    ("quantization.block_size", "32"),
    ("train.batch_size", "3"),
    ("train.gradient_accumulation_steps", "2"),
    ("train.max_steps", "5"),
    ("train.epochs", "1"),
    ("train.learning_rate", "2e-2"),
    ("train.lr_scheduler", "cosine"),
    ("train.warmup_steps", "3"),
    ("train.weight_decay", "0.5"),
    ("train.max_grad_norm", "0.01"),
    ("train.seed", "7"),
    ("train.save_steps", "5"),
    ("train.save_total_limit", "1"),
];

#[test]
fn every_key_changes_a_run_or_is_refused() {
    for key in KEYS {
        let listed = CHANGES.iter().filter(|(name, _)| *name == key.name).count()
            + ELSEWHERE.iter().filter(|(name, _)| *name == key.name).count()
            + REFUSED.iter().filter(|(name, ..)| *name == key.name).count();
        assert_eq!(listed, 1, "{} is not in one of the lists", key.name);
    }
    for (key, test) in ELSEWHERE {
        assert!(KEYS.iter().any(|known| known.name == *key), "there is no key {key}");
        let tests = [include_str!("train.rs"), include_str!("resume.rs")].concat();
        let body = tests.split_once(&format!("#[test]\nfn {test}()"));
        let (_, body) = body.unwrap_or_else(|| panic!("{key}: there is no test {test}"));
        let body = body.split("#[test]").next().unwrap();
        assert!(body.contains(key), "{key} is not in {test}");
    }
    let prepare = || {
        let work = Work::new();
        common::write_model(&work.path("other-model"));
        let mut tensors = common::tensors();
        tensors.get_mut("model.layers.0.mlp.up_proj.weight").unwrap().1[5] = 0.75;
        common::write_tensors(&work.path("other-model"), &tensors);
        // Both prompt and completion, and a text, so that another format can read it.
        let lines: Vec<String> = (0..12)
            .map(|n| json!({"prompt": format!("n{n}?"), "completion": format!("is {}", n * n), "text": format!("{n} and on")}).to_string())
            .collect();
        work.write("train.jsonl", &lines.join("\n"));
        work.write("other.jsonl", &lines[1..].join("\n"));
        let config = common::CONFIG.replace("[data]", "[data]\nformat = \"prompt_completion\"");
        work.write("run.toml", &config);
        work
    };
    let plain = prepare();
    plain.train(&[]).ok();
    let plain = traces(&plain);
    for (key, value) in CHANGES {
        let work = prepare();
        work.train(&[&format!("{key}={value}")]).ok();
        assert!(traces(&work) != plain, "{key} = {value} changes nothing");
    }
    for (key, value, code) in REFUSED {
        let work = prepare();
        let message = work.train(&[&format!("{key}={value}")]).failed(*code);
        assert!(message.contains(key), "{message}");
        assert_eq!(work.names("out"), Vec::<String>::new());
    }
    // And a run without any change is the same to the byte.
    let again = prepare();
    again.train(&[]).ok();
    assert!(traces(&again) == plain);
}

#[test]
fn the_output_directory_is_where_it_is_asked_for() {
    let work = Work::new();
    work.train(&["output_dir=deep/er/out", "train.max_steps=2"]).ok();
    assert_eq!(work.names("deep/er/out").len(), 5);
    assert_eq!(work.names("out"), Vec::<String>::new());
}

#[test]
fn a_run_can_start_from_an_adapter() {
    let work = Work::new();
    work.train(&["train.save_steps=0"]).ok();
    let first = work.lines("out/metrics.jsonl");
    // Its own rank and scale hold, unless a key says otherwise: then it is refused.
    let sets = ["output_dir=second", "lora.adapter=out/adapter", "train.save_steps=0"];
    let message = work.train(&[&sets[..], &["lora.r=5"]].concat()).failed(2);
    assert!(
        message.contains("--set lora.r=5: lora.r differs from the adapter in lora.adapter = out/adapter"),
        "{message}"
    );
    work.train(&sets).ok();
    let second = work.lines("second/metrics.jsonl");
    let loss = |steps: &[Value], at: usize| steps[at]["loss"].as_f64().unwrap();
    assert!(loss(&second, 0) < 0.8 * loss(&first, 0), "{} and {}", loss(&first, 0), loss(&second, 0));
    // B41: an adapter of another model is refused with the tensor.
    let path = work.path("out/adapter/adapter_config.json");
    let other = fs::read_to_string(&path).unwrap().replace("\"r\": 4", "\"r\": 3");
    fs::write(&path, other).unwrap();
    let config = common::CONFIG.replace("r = 4\nalpha = 8\n", "");
    work.write("run.toml", &config);
    let message = work.train(&["output_dir=third", "lora.adapter=out/adapter"]).failed(3);
    assert!(message.contains("lora_A.weight is [4, 32], the model and r ask for [3, 32]"), "{message}");
}

// B22: whatever type an adapter's file has, it is trained in f32: the smallest update counts, and a run that starts
// from bf16 is that from the same values in f32, to the byte.
#[test]
fn an_adapter_in_half_precision_is_trained_in_f32() {
    let work = Work::new();
    work.train(&["train.max_steps=4", "train.save_steps=0"]).ok();
    let trained = work.bytes("out/adapter/adapter_model.safetensors");
    let trained = safetensors::SafeTensors::deserialize(&trained).unwrap();
    for (directory, dtype) in [("wide", safetensors::Dtype::F32), ("half", safetensors::Dtype::BF16)] {
        let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = trained
            .iter()
            .map(|(key, tensor)| {
                // The upper half of an f32 is a bf16.
                let halves = tensor.data().chunks_exact(4).map(|value| [value[2], value[3]]);
                let bytes = match dtype {
                    safetensors::Dtype::BF16 => halves.flatten().collect(),
                    _ => halves.flat_map(|[low, high]| [0, 0, low, high]).collect(),
                };
                (key.to_owned(), tensor.shape().to_vec(), bytes)
            })
            .collect();
        let views = tensors.iter().map(|(key, shape, bytes)| {
            (key, safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).unwrap())
        });
        fs::create_dir(work.path(directory)).unwrap();
        fs::write(
            work.path(&format!("{directory}/adapter_model.safetensors")),
            safetensors::serialize(views, None).unwrap(),
        )
        .unwrap();
        fs::copy(
            work.path("out/adapter/adapter_config.json"),
            work.path(&format!("{directory}/adapter_config.json")),
        )
        .unwrap();
        // So small a rate that no value of bf16 would move.
        let sets = [
            &format!("output_dir=from-{directory}")[..],
            &format!("lora.adapter={directory}"),
            "train.learning_rate=1e-6",
            "train.lr_scheduler=constant",
            "train.warmup_steps=0",
            "train.max_steps=20",
        ];
        work.train(&sets).ok();
    }
    let after = |directory: &str| work.bytes(&format!("from-{directory}/adapter/adapter_model.safetensors"));
    assert!(after("wide") == after("half"));
    let (before, after) = (work.bytes("wide/adapter_model.safetensors"), after("half"));
    let [before, after] =
        [&before, &after].map(|bytes| safetensors::SafeTensors::deserialize(bytes).unwrap());
    for (key, tensor) in after.iter() {
        assert_eq!(tensor.dtype(), safetensors::Dtype::F32, "{key}");
        let values =
            |data: &[u8]| -> Vec<[u8; 4]> { data.chunks_exact(4).map(|v| v.try_into().unwrap()).collect() };
        let (old, new) = (values(before.tensor(key).unwrap().data()), values(tensor.data()));
        let moved = old.iter().zip(&new).filter(|(a, b)| a != b).count();
        assert!(moved * 10 >= old.len() * 9, "{moved} of {} values of {key} moved", old.len());
    }
}

#[test]
fn held_out_samples_are_measured() {
    let work = Work::new();
    work.write("eval.jsonl", r#"{"prompt": "n3?", "completion": "is 9"}"#);
    let measured = |sets: &[&str]| -> Vec<u64> {
        work.train(sets).ok();
        let steps = work.lines(&format!("{}/metrics.jsonl", sets[0].split_once('=').unwrap().1));
        let measured = steps
            .iter()
            .filter(|step| step.get("eval_loss").is_some_and(|loss| loss.as_f64().unwrap() > 0.0));
        measured.map(|step| step["step"].as_u64().unwrap()).collect()
    };
    assert_eq!(measured(&["output_dir=a", "data.eval=eval.jsonl", "train.eval_steps=5"]), [5, 10, 12]);
    assert_eq!(measured(&["output_dir=b", "data.eval=eval.jsonl"]), [12]);
    assert!(measured(&["output_dir=c"]).is_empty());
    // Measuring changes nothing about the training.
    assert_eq!(
        work.bytes("a/adapter/adapter_model.safetensors"),
        work.bytes("c/adapter/adapter_model.safetensors")
    );
}

#[test]
fn lines_come_every_so_many_steps() {
    let work = Work::new();
    let shown = |out: &str, every: &str| {
        let ran = work.train(&[&format!("output_dir={out}"), &format!("train.logging_steps={every}")]);
        let lines = ran.err.lines().filter(|line| line.starts_with("step ")).count();
        ran.ok();
        lines
    };
    assert_eq!((shown("a", "1"), shown("b", "5")), (12, 4));
}

// One to four threads give the same bytes.
#[test]
fn threads_change_the_line_and_not_the_result() {
    let work = Work::new();
    let mut results = Vec::new();
    for threads in 1..=4 {
        let out = format!("out{threads}");
        let ran = work.train(&[&format!("output_dir={out}"), &format!("device.threads={threads}")]);
        assert!(ran.err.contains(&format!("CPU, {threads} thread")), "{}", ran.err);
        ran.ok();
        let adapter = work.bytes(&format!("{out}/adapter/adapter_model.safetensors"));
        results.push((adapter, without_times(work.lines(&format!("{out}/metrics.jsonl")))));
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

// B94: five equal micro-batches in windows of two: the last window has one, and its update is no smaller.
#[test]
fn a_short_last_window_is_a_whole_update() {
    let work = Work::new();
    work.write("train.jsonl", &"{\"prompt\": \"n?\", \"completion\": \"is 1\"}\n".repeat(5));
    // With a rate of almost nothing, all windows see the same weights.
    work.train(&[
        "train.batch_size=1",
        "train.gradient_accumulation_steps=2",
        "train.epochs=1",
        "train.learning_rate=1e-12",
        "train.lr_scheduler=constant_with_warmup",
    ])
    .ok();
    let steps = work.lines("out/metrics.jsonl");
    let of = |field: &str| -> Vec<f64> { steps.iter().map(|step| step[field].as_f64().unwrap()).collect() };
    let (losses, norms, tokens) = (of("loss"), of("grad_norm"), of("tokens"));
    assert_eq!(tokens[0], 2.0 * tokens[2]);
    for values in [losses, norms] {
        // The sums of two equal halves and of one whole differ by roundings of f32, a few units in 2^-24.
        assert!(values.iter().all(|value| (value - values[0]).abs() <= 1e-6 * values[0]), "{values:?}");
    }
}

#[test]
fn help_names_every_key_and_every_exit_code() {
    let work = Work::new();
    let help = work.nibble(&["train", "--help"]).ok();
    for key in KEYS {
        assert!(help.contains(key.name) && help.contains(key.about), "{}", key.name);
    }
    let help = work.nibble(&["--help"]).ok();
    for code in ["0 ", "1 ", "2 ", "3 ", "4 ", "5 ", "6 ", "7 ", "10 ", "130 "] {
        assert!(help.contains(&format!("\n  {code}")), "{code} in {help}");
    }
    assert_eq!(work.nibble(&["trian"]).code, Some(2));
}
