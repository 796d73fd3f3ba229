//! Files go in and out as PEFT has them, and nothing that would change the result is passed over.

use std::fs;

use serde_json::{Value, json};

use super::*;
use crate::event::{Collected, Event};
use crate::model::{Family, Projection, Rope};

fn shape() -> ModelShape {
    ModelShape {
        family: Family::Llama,
        vocab: 32,
        hidden: 8,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        intermediate: 12,
        rms_norm_eps: 1e-5,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: false,
        tied: true,
        rope: Rope { inv_freq: vec![1.0, 0.01], attention_factor: 1.0 },
        max_positions: 64,
        windows: vec![None; 2],
        eos: vec![2],
    }
}

fn lora(targets: &[Projection]) -> LoraConfig {
    LoraConfig { r: 2, alpha: 4.0, dropout: 0.1, rslora: false, targets: targets.to_vec() }
}

/// An adapter whose values are all different.
fn adapter(targets: &[Projection]) -> Adapter {
    let config = lora(targets);
    let mut next = 0.0;
    let mut values = |count: usize| {
        (0..count)
            .map(|_| {
                next += 0.25;
                next
            })
            .collect::<Vec<f32>>()
    };
    let shape = shape();
    let pairs = modules(&config, &shape).map(|(layer, projection)| {
        let (out, inputs) = projection.dims(&shape);
        (projection.module(layer), LoraTensors { a: values(config.r * inputs), b: values(out * config.r) })
    });
    let modules = pairs.collect();
    Adapter { config, modules }
}

/// A tensor of a file: key, type, shape, bytes.
type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn of(adapter: &Adapter) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), adapter, "some/base", Moment::from_unix(7), &shape()).unwrap();
        Self { dir }
    }

    fn config(&self) -> Value {
        serde_json::from_slice(&fs::read(self.dir.path().join(CONFIG)).unwrap()).unwrap()
    }

    /// Changes fields of the config; null takes one out.
    fn with(self, changes: Value) -> Self {
        let mut config = self.config();
        for (field, value) in changes.as_object().unwrap() {
            config[field] = value.clone();
        }
        fs::write(self.dir.path().join(CONFIG), config.to_string()).unwrap();
        self
    }

    fn without(self, field: &str) -> Self {
        let mut config = self.config();
        config.as_object_mut().unwrap().remove(field);
        fs::write(self.dir.path().join(CONFIG), config.to_string()).unwrap();
        self
    }

    /// Writes tensors under other keys, or in other types.
    fn with_tensors(self, tensors: Vec<Stored>) -> Self {
        let views: Vec<_> = tensors
            .iter()
            .map(|(key, dtype, shape, data)| (key, TensorView::new(*dtype, shape.clone(), data).unwrap()))
            .collect();
        fs::write(self.dir.path().join(TENSORS), safetensors::serialize(views, None).unwrap()).unwrap();
        self
    }

    fn tensors(&self) -> Vec<Stored> {
        let bytes = fs::read(self.dir.path().join(TENSORS)).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        file.iter()
            .map(|(key, t)| (key.to_owned(), t.dtype(), t.shape().to_vec(), t.data().to_vec()))
            .collect()
    }

    fn read(&self) -> (Result<Adapter>, Vec<Event>) {
        let mut events = Collected::default();
        let outcome = read(self.dir.path(), &shape(), &mut events);
        (outcome, events.0)
    }

    fn refusal(&self) -> String {
        self.read().0.expect_err("must be refused").to_string()
    }
}

#[test]
fn what_is_written_is_read_back_exactly() {
    for targets in [&Projection::ALL[..], &[Projection::Q], &[Projection::V, Projection::Down]] {
        let adapter = adapter(targets);
        let (back, events) = Files::of(&adapter).read();
        assert_eq!(back.unwrap(), adapter);
        assert_eq!(events, []);
    }
}

#[test]
fn the_reference_adapter_is_read_without_a_word() {
    let directory =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny/llama/adapter"));
    let mut shape = shape();
    (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.intermediate) = (64, 4, 2, 16, 128);
    let mut events = Collected::default();
    let adapter = read(directory, &shape, &mut events).unwrap();
    assert_eq!((adapter.config.r, adapter.config.scale()), (4, 2.0));
    assert_eq!(adapter.modules.len(), 14);
    assert_eq!(events.0, []);
}

// B41, B44: keys are exactly those of PEFT.
#[test]
fn keys_are_those_of_peft() {
    let files = Files::of(&adapter(&[Projection::Q]));
    let mut keys: Vec<_> = files.tensors().into_iter().map(|(key, _, shape, _)| (key, shape)).collect();
    keys.sort();
    let expected = [
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", [2, 8]),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", [8, 2]),
        ("base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", [2, 8]),
        ("base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight", [8, 2]),
    ];
    assert_eq!(keys, expected.map(|(key, shape)| (key.to_owned(), shape.to_vec())));
    let bytes = fs::read(files.dir.path().join(TENSORS)).unwrap();
    let header = String::from_utf8_lossy(&bytes[8..200]).into_owned();
    assert!(header.contains(r#""format":"pt""#), "{header}");
}

// B43: a module may be called anything; only the end of a key is interpreted.
#[test]
fn only_the_end_of_a_key_is_interpreted() {
    let cases = [
        ("base_model.model.a.weight_gate_proj.lora_A.weight", Some(("a.weight_gate_proj", Side::A))),
        ("base_model.model.lora_A.weight.x.lora_B.weight", Some(("lora_A.weight.x", Side::B))),
        ("base_model.model.x.lora_A.default.weight", Some(("x", Side::A))),
        ("base_model.model.x.lora_A.other.weight", None),
        ("base_model.model.x.base_layer.weight", None),
        ("base_model.model.x.lora_A", None),
        ("model.x.lora_A.weight", None),
        ("base_model.model.lora_A.weight", None),
    ];
    for (text, expected) in cases {
        assert_eq!(parse_key(text), expected, "{text}");
        if let Some((module, side)) = expected
            && !text.contains(".default.")
        {
            assert_eq!(key(module, side), text);
        }
    }
}

// B44: keys of other tools are understood or named.
#[test]
fn an_adapters_name_within_keys_is_understood() {
    let wanted = adapter(&[Projection::Q]);
    let files = Files::of(&wanted);
    let renamed = |to: &str| {
        let all = files.tensors().into_iter();
        all.map(|(key, d, s, b)| (key.replace(".weight", to), d, s, b)).collect::<Vec<_>>()
    };
    let understood = Files::of(&wanted).with_tensors(renamed(".default.weight"));
    assert_eq!(understood.read().0.unwrap(), wanted);
    let foreign = Files::of(&wanted).with_tensors(renamed(".mine.weight"));
    assert!(foreign.refusal().contains("q_proj.lora_A.mine.weight"), "{}", foreign.refusal());
}

// B41: a key too few, too many or under another prefix is an error that names it.
#[test]
fn missing_and_left_over_keys_are_named() {
    let wanted = adapter(&[Projection::Q]);
    let all = Files::of(&wanted).tensors();
    let less = Files::of(&wanted).with_tensors(all[1..].to_vec());
    assert!(less.refusal().ends_with(&format!("does not fit the model: it lacks {}", all[0].0)));
    let mut more = all.clone();
    more.push(("base_model.model.lm_head.lora_A.weight".into(), Dtype::F32, vec![1, 1], vec![0; 4]));
    let more = Files::of(&wanted).with_tensors(more).refusal();
    assert!(more.ends_with("model: nothing uses its base_model.model.lm_head.lora_A.weight"), "{more}");
    let unprefixed =
        all.into_iter().map(|(k, d, s, b)| (k.replacen("base_model.model.", "", 1), d, s, b)).collect();
    let refusal = Files::of(&wanted).with_tensors(unprefixed).refusal();
    assert!(
        refusal.contains("lacks base_model.model.model.layers.0")
            && refusal.contains("; nothing uses its model."),
        "{refusal}"
    );
}

#[test]
fn wrong_shapes_types_and_values_are_named() {
    let wanted = adapter(&[Projection::Q]);
    let with_first = |change: &dyn Fn(&mut Stored)| {
        let mut all = Files::of(&wanted).tensors();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        change(&mut all[0]);
        Files::of(&wanted).with_tensors(all).refusal()
    };
    let refusal = with_first(&|t| t.2 = vec![8, 2]);
    assert!(refusal.contains("q_proj.lora_A.weight is [8, 2], the model and r ask for [2, 8]"), "{refusal}");
    let refusal = with_first(&|t| (t.1, t.2) = (Dtype::I32, vec![2, 8]));
    assert!(refusal.contains("has type I32; F32, F16 and BF16 can be read"), "{refusal}");
    let refusal = with_first(&|t| t.3[20..24].copy_from_slice(&f32::NAN.to_le_bytes()));
    assert!(refusal.contains("lora_A.weight holds NaN at index 5"), "{refusal}");
    let files = Files::of(&wanted);
    let path = files.dir.path().join(TENSORS);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(files.refusal().contains("adapter_model.safetensors is damaged"), "{}", files.refusal());
}

// B48: each tensor has its own type.
#[test]
fn half_precision_tensors_are_widened_each_by_its_own_type() {
    let wanted = adapter(&[Projection::Q]);
    let mixed = Files::of(&wanted).tensors().into_iter().map(|(key, _, shape, data)| {
        let values = data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        // All values are small multiples of 1/4, exact in both types.
        if key.contains("lora_A") {
            (key, Dtype::BF16, shape, values.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect())
        } else {
            (key, Dtype::F16, shape, values.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect())
        }
    });
    let files = Files::of(&wanted).with_tensors(mixed.collect());
    assert_eq!(files.read().0.unwrap(), wanted);
}

// B47: the flag is written, read, and decides the scale.
#[test]
fn rank_stabilised_scaling_survives_a_round_trip() {
    let mut adapter = adapter(&[Projection::Q]);
    adapter.config = LoraConfig { r: 2, alpha: 4.0, rslora: true, ..adapter.config };
    let files = Files::of(&adapter);
    assert_eq!(files.config()["use_rslora"], json!(true));
    let back = files.read().0.unwrap();
    assert_eq!(back.config.scale(), (4.0 / 2f64.sqrt()) as f32);
    let plain = files.with(json!({"use_rslora": false})).read().0.unwrap();
    assert_eq!(plain.config.scale(), 2.0);
}

// B45: a pattern that matches nothing is a mistake; one that says what holds anyway is not.
#[test]
fn patterns_that_match_nothing_are_refused() {
    let files = |changes| Files::of(&adapter(&[Projection::Q])).with(changes);
    let refusal = files(json!({"rank_pattern": {"q_porj": 4}})).refusal();
    assert!(refusal.contains("rank_pattern: \"q_porj\" matches no adapted module"), "{refusal}");
    let refusal = files(json!({"alpha_pattern": {"k_proj": 100}})).refusal();
    assert!(refusal.contains("alpha_pattern: \"k_proj\" matches no adapted module"), "{refusal}");
    // The dot of a plain name is no wildcard.
    let refusal = files(json!({"rank_pattern": {"self_attn_q_proj": 2}})).refusal();
    assert!(refusal.contains("matches no adapted module"), "{refusal}");
    let refusal = files(json!({"alpha_pattern": {"^model.layers.0.self_attn.q_proj": 100}})).refusal();
    assert!(refusal.contains("100 differs from 4"), "{refusal}");
    assert!(files(json!({"rank_pattern": {"q_proj": 2}})).read().0.is_ok());
}

// B50, B51: what cannot be adapted is refused by name.
#[test]
fn adapters_of_the_head_are_refused() {
    for name in ["lm_head", "embed_tokens"] {
        let files = Files::of(&adapter(&[Projection::Q])).with(json!({"target_modules": ["q_proj", name]}));
        assert!(files.refusal().contains(&format!("target_modules: `{name}` cannot be adapted")));
    }
}

// B52: configs of other versions.
#[test]
fn configs_of_other_versions_are_read() {
    let wanted = adapter(&Projection::ALL);
    let files = |changes| Files::of(&wanted).with(changes);
    let mut changes =
        json!({"lora_alpha": 4.0, "use_dora": false, "loftq_config": {}, "qalora_group_size": 16});
    for number in 0..10 {
        changes[format!("future_{number}")] = Value::Null;
    }
    let (back, events) = files(changes).read();
    assert_eq!((back.unwrap(), events), (wanted.clone(), vec![]));

    let (back, events) = files(json!({"future": {"a": 1}})).read();
    assert_eq!(back.unwrap(), wanted);
    let [Event::Assumed { what }] = &events[..] else { panic!("{events:?}") };
    assert!(what.contains("future = {\"a\":1} is not known"), "{what}");

    for absent in ["rank_pattern", "alpha_pattern", "use_rslora", "bias", "task_type", "init_lora_weights"] {
        assert_eq!(Files::of(&wanted).without(absent).read().0.unwrap(), wanted, "{absent}");
    }
    for targets in [json!("all-linear"), Value::Null] {
        assert_eq!(files(json!({"target_modules": targets})).read().0.unwrap(), wanted);
    }
    let (back, _) = Files::of(&adapter(&[Projection::Q])).with(json!({"target_modules": "q_proj"})).read();
    assert_eq!(back.unwrap().config.targets, [Projection::Q]);

    let refused = [
        (json!({"use_dora": true}), "use_dora: true is not supported"),
        (json!({"lora_bias": true}), "lora_bias: true is not supported"),
        (json!({"bias": "all"}), "bias: \"all\" is not supported"),
        (json!({"modules_to_save": ["lm_head"]}), "modules_to_save: [\"lm_head\"] is not supported"),
        (json!({"layers_to_transform": [0]}), "layers_to_transform: [0] is not supported"),
        (json!({"fan_in_fan_out": true}), "fan_in_fan_out: true is not supported"),
        (json!({"peft_type": "LOHA"}), "peft_type: \"LOHA\" is not supported"),
        (json!({"task_type": "SEQ_CLS"}), "task_type: \"SEQ_CLS\" is not supported"),
        (
            json!({"init_lora_weights": "pissa_niter_16"}),
            "init_lora_weights: \"pissa_niter_16\" changes the base",
        ),
        (json!({"r": null}), "r: the rank is missing"),
        (json!({"r": 0}), "r: 0 is no rank"),
        (json!({"r": "8"}), "r: \"8\" is no number"),
        (json!({"lora_alpha": null}), "lora_alpha: it is missing"),
        (json!({"lora_dropout": 1.0}), "lora_dropout: 1 is not from 0 to below 1"),
    ];
    for (changes, expected) in refused {
        let refusal = files(changes.clone()).refusal();
        assert!(refusal.contains(expected), "{changes}: {refusal}");
        assert!(refusal.contains("adapter_config.json: "), "{refusal}");
    }
}

#[test]
fn written_configs_have_only_long_standing_fields_in_short_numbers() {
    let config = Files::of(&adapter(&[Projection::V, Projection::Q])).config();
    let fields: Vec<_> = config.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = "alpha_pattern auto_mapping base_model_name_or_path bias fan_in_fan_out inference_mode \
                    init_lora_weights layers_pattern layers_to_transform lora_alpha lora_dropout modules_to_save \
                    peft_type r rank_pattern revision target_modules task_type use_rslora";
    assert_eq!(fields.join(" "), expected);
    assert_eq!(config["lora_alpha"], json!(4));
    assert_eq!(config["lora_dropout"], json!(0.1));
    assert_eq!(config["target_modules"], json!(["q_proj", "v_proj"]));
    assert_eq!(config["base_model_name_or_path"], json!("some/base"));
}

#[test]
fn a_missing_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = read(&dir.path().join("none"), &shape(), &mut Collected::default()).unwrap_err().to_string();
    assert!(error.contains("cannot read") && error.contains("adapter_config.json"), "{error}");
    let files = Files::of(&adapter(&[Projection::Q]));
    fs::remove_file(files.dir.path().join(TENSORS)).unwrap();
    assert!(files.refusal().contains("adapter_model.safetensors"));
}

// B140: a second writing gives the same bytes.
#[test]
fn files_depend_on_their_content_only() {
    let adapter = adapter(&Projection::ALL);
    let read = |files: &Files| -> Vec<Vec<u8>> {
        [CONFIG, TENSORS].map(|name| fs::read(files.dir.path().join(name)).unwrap()).into()
    };
    assert_eq!(read(&Files::of(&adapter)), read(&Files::of(&adapter)));
}
