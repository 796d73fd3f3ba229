//! Bad input of every kind: a clear message that says where and what to do, the documented exit code, and nothing
//! written.

mod common;

use std::fs;

use common::Work;
use serde_json::{Value, json};

/// A fault, what puts it in, and what must be said of it.
struct Case {
    name: &'static str,
    put: fn(&Work),
    sets: &'static [&'static str],
    code: i32,
    says: &'static [&'static str],
}

fn edit_config(work: &Work, change: impl Fn(&mut Value)) {
    let mut config = common::model_config();
    change(&mut config);
    work.write("model/config.json", &config.to_string());
}

fn edit_tensors(work: &Work, change: impl Fn(&mut common::Tensors)) {
    let mut tensors = common::tensors();
    change(&mut tensors);
    common::write_tensors(&work.path("model"), &tensors);
}

fn edit_weights(work: &Work, change: impl Fn(&mut Vec<u8>)) {
    let mut bytes = work.bytes("model/model.safetensors");
    change(&mut bytes);
    fs::write(work.path("model/model.safetensors"), bytes).unwrap();
}

fn edit_template(work: &Work, template: &str) {
    let mut config: Value = serde_json::from_slice(&work.bytes("model/tokenizer_config.json")).unwrap();
    config["chat_template"] = json!(template);
    work.write("model/tokenizer_config.json", &config.to_string());
}

/// Splits the weights into two shards with an index, of which the second is then taken away.
fn lose_a_shard(work: &Work) {
    let all = common::tensors();
    let mut map = serde_json::Map::new();
    for (shard, half) in [(1, true), (2, false)] {
        let part: common::Tensors = all
            .iter()
            .filter(|(name, _)| name.contains("layers") == half)
            .map(|(n, t)| (n.clone(), t.clone()))
            .collect();
        common::write_tensors(&work.path("model"), &part);
        let name = format!("model-0000{shard}-of-00002.safetensors");
        fs::rename(work.path("model/model.safetensors"), work.path(&format!("model/{name}"))).unwrap();
        part.keys().for_each(|key| drop(map.insert(key.clone(), json!(name))));
    }
    work.write("model/model.safetensors.index.json", &json!({"metadata": {}, "weight_map": map}).to_string());
    fs::remove_file(work.path("model/model-00002-of-00002.safetensors")).unwrap();
}

const NOTHING: fn(&Work) = |_| {};

const CASES: &[Case] = &[
    // The command line and the configuration.
    Case {
        name: "no configuration",
        put: |work| fs::remove_file(work.path("run.toml")).unwrap(),
        sets: &[],
        code: 2,
        says: &["cannot read the configuration run.toml: No such file"],
    },
    Case {
        name: "no TOML",
        put: |work| work.write("run.toml", "model = \"model\"\n[data\n"),
        sets: &[],
        code: 2,
        says: &["run.toml:2:6: not valid TOML: "],
    },
    Case {
        name: "an unknown key",
        put: |work| work.write("run.toml", &format!("{}\n[quantisation]\n", common::CONFIG)),
        sets: &[],
        code: 2,
        says: &["unknown key `quantisation`; did you mean [quantization]?"],
    },
    Case {
        name: "a module that cannot be adapted",
        put: NOTHING,
        sets: &["lora.target_modules=[\"q_proj\", \"lm_head\"]"],
        code: 2,
        says: &["`lm_head` cannot be adapted", "These can: q_proj"],
    },
    // B96
    Case {
        name: "a run of rate 0",
        put: NOTHING,
        sets: &["train.max_steps=1"],
        code: 2,
        says: &[
            "run.toml:18:16: every one of the 1 steps would have learning rate 0",
            "lower train.warmup_steps",
        ],
    },
    // The model.
    Case {
        name: "no model",
        put: NOTHING,
        sets: &["model=nowhere"],
        code: 3,
        says: &[
            "nowhere is not a model: there is no such directory or file",
            "give a Hugging Face model directory",
        ],
    },
    Case {
        name: "no config",
        put: |work| fs::remove_file(work.path("model/config.json")).unwrap(),
        sets: &[],
        code: 3,
        says: &["config.json"],
    },
    Case {
        name: "an unknown architecture",
        put: |work| edit_config(work, |config| config["model_type"] = json!("mamba")),
        sets: &[],
        code: 3,
        says: &["config.json", "mamba"],
    },
    Case {
        name: "an unknown rope type",
        put: |work| {
            edit_config(work, |config| config["rope_scaling"] = json!({"rope_type": "spiral", "factor": 2.0}))
        },
        sets: &[],
        code: 3,
        says: &["config.json", "spiral"],
    },
    Case {
        name: "no weights",
        put: |work| fs::remove_file(work.path("model/model.safetensors")).unwrap(),
        sets: &[],
        code: 3,
        says: &["safetensors"],
    },
    Case {
        name: "truncated weights",
        put: |work| edit_weights(work, |bytes| bytes.truncate(bytes.len() / 2)),
        sets: &[],
        code: 3,
        says: &["model.safetensors", "fetch it again"],
    },
    Case {
        name: "weights that are something else",
        put: |work| edit_weights(work, |bytes| *bytes = b"<html>not found</html>".to_vec()),
        sets: &[],
        code: 3,
        says: &["model.safetensors"],
    },
    // B57
    Case {
        name: "a missing shard",
        put: lose_a_shard,
        sets: &[],
        code: 3,
        says: &["model-00002-of-00002.safetensors, which does not exist", "model.safetensors.index.json"],
    },
    // B68
    Case {
        name: "a wrong shape",
        put: |work| {
            edit_tensors(work, |all| {
                let wrong = (vec![31, 32], vec![0.0; 31 * 32]);
                all.insert("model.layers.1.self_attn.q_proj.weight".into(), wrong);
            });
        },
        sets: &[],
        code: 3,
        says: &["model.layers.1.self_attn.q_proj.weight is [31, 32], expected [32, 32]"],
    },
    Case {
        name: "a tensor that nothing uses",
        put: |work| {
            edit_tensors(work, |all| drop(all.insert("model.extra.weight".into(), (vec![1], vec![0.0]))))
        },
        sets: &[],
        code: 3,
        says: &["model.extra.weight"],
    },
    Case {
        name: "NaN in a weight",
        put: |work| {
            edit_tensors(work, |all| {
                all.get_mut("model.layers.0.mlp.up_proj.weight").unwrap().1[7] = f32::NAN
            })
        },
        sets: &[],
        code: 3,
        says: &["model.layers.0.mlp.up_proj.weight holds NaN at index 7"],
    },
    Case {
        name: "no tokenizer",
        put: |work| fs::remove_file(work.path("model/tokenizer.json")).unwrap(),
        sets: &[],
        code: 3,
        says: &["tokenizer.json"],
    },
    Case {
        name: "a truncated GGUF",
        put: |work| work.write("model.gguf", "GGUF\u{3}"),
        sets: &["model=model.gguf"],
        code: 3,
        says: &["model.gguf"],
    },
    Case {
        name: "no adapter",
        put: NOTHING,
        sets: &["lora.adapter=nowhere"],
        code: 5,
        says: &["cannot read nowhere/adapter_config.json: No such file"],
    },
    // The data set.
    Case {
        name: "no data",
        put: |work| fs::remove_file(work.path("train.jsonl")).unwrap(),
        sets: &[],
        code: 5,
        says: &["cannot read train.jsonl: No such file"],
    },
    Case {
        name: "an empty data set",
        put: |work| work.write("train.jsonl", "\n\n"),
        sets: &[],
        code: 4,
        says: &["train.jsonl"],
    },
    Case {
        name: "a broken line",
        put: |work| {
            let good = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
            work.write("train.jsonl", &format!("{good}{good}{{\"prompt\": \"a\", \"completion\n{good}"));
        },
        sets: &[],
        code: 4,
        says: &["train.jsonl:3:", "not valid JSON"],
    },
    Case {
        name: "a field that is missing",
        put: |work| {
            work.write("train.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"a\"}\n")
        },
        sets: &[],
        code: 4,
        says: &["train.jsonl:2: field `completion`"],
    },
    // B78
    Case {
        name: "only samples that are too long to have an answer",
        put: NOTHING,
        sets: &["data.max_length=16"],
        code: 4,
        says: &["data.max_length"],
    },
    Case {
        name: "a conversation with nothing to learn",
        put: |work| {
            work.write("train.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"hello?\"}]}\n")
        },
        sets: &[],
        code: 4,
        says: &["train.jsonl:1"],
    },
    Case {
        name: "a template that refuses a conversation",
        put: |work| edit_template(work, "{{ raise_exception('roles must alternate') }}"),
        sets: &[],
        code: 4,
        says: &["train.jsonl:1", "roles must alternate"],
    },
    Case {
        name: "a template that is not valid",
        put: |work| edit_template(work, "{% for m in messages %}{{ m.content }}"),
        sets: &[],
        code: 4,
        says: &["template"],
    },
    Case {
        name: "a sample longer than the model's positions",
        put: |work| {
            let line = json!({"prompt": "x".repeat(300), "completion": "y"});
            work.write("train.jsonl", &line.to_string());
        },
        sets: &["data.max_length=1000"],
        code: 4,
        says: &["train.jsonl:1: 322 tokens are more than the 256 positions of the model", "data.max_length"],
    },
    // The output directory.
    Case {
        name: "an output directory that is a file",
        put: NOTHING,
        sets: &["output_dir=train.jsonl"],
        code: 5,
        says: &["output_dir = train.jsonl is not a directory"],
    },
    Case {
        name: "an output directory that cannot be made",
        put: NOTHING,
        sets: &["output_dir=train.jsonl/out"],
        code: 5,
        says: &["output_dir = train.jsonl/out cannot be written to: "],
    },
    // The device. B122
    Case {
        name: "a GPU that is not there",
        put: NOTHING,
        sets: &["device.kind=cuda:7"],
        code: 7,
        says: &["device.kind = \"cuda:7\": ", "use \"cpu\""],
    },
    Case {
        name: "a GPU of no number",
        put: NOTHING,
        sets: &["device.kind=cuda:x"],
        code: 2,
        says: &["expected \"auto\", \"cpu\" or \"cuda:N\""],
    },
];

#[test]
fn every_fault_is_named_and_nothing_is_written() {
    for case in CASES {
        let work = Work::new();
        (case.put)(&work);
        let before = work.names("");
        let ran = work.train(case.sets);
        assert_eq!(ran.code, Some(case.code), "{}: {}", case.name, ran.err);
        let message = ran.failed(case.code);
        for part in case.says {
            assert!(message.contains(part), "{}: {part:?} is not in {message}", case.name);
        }
        assert_eq!(work.names(""), before, "{}: something was written", case.name);
    }
}

#[test]
fn a_directory_that_holds_a_run_is_left_alone() {
    let work = Work::new();
    work.train(&["train.max_steps=2"]).ok();
    let content = |work: &Work| {
        ["out/metrics.jsonl", "out/events.jsonl", "out/adapter/adapter_model.safetensors"]
            .map(|name| work.bytes(name))
    };
    let before = content(&work);
    let message = work.train(&["train.max_steps=3"]).failed(5);
    assert_eq!(
        message,
        "error: output_dir = out already holds a run (checkpoints), and nothing is overwritten; give another \
         directory, or go on with that run by train.resume = \"auto\"\n"
    );
    assert!(content(&work) == before);
}

#[test]
fn generate_names_what_is_wrong() {
    let work = Work::new();
    let ask = |arguments: &[&str]| work.nibble(&[&["generate", "--prompt", "hello"], arguments].concat());
    let message = ask(&["--model", "nowhere"]).failed(3);
    assert!(message.contains("nowhere is not a model"), "{message}");
    let message = ask(&["--model", "model", "--adapter", "nowhere"]).failed(5);
    assert!(message.contains("cannot read nowhere/adapter_config.json"), "{message}");
    let message = ask(&["--model", "model", "--block-size", "48"]).failed(2);
    assert!(message.contains("expected a power of two from 32 to 4096"), "{message}");
    assert_eq!(ask(&["--model", "model", "--max-tokens", "0"]).ok(), "\n");
    // Past the end of the model's positions an answer just ends.
    assert!(ask(&["--model", "model", "--max-tokens", "1000"]).ok().len() > 1);
}
