//! Configs as they come, and those to be refused.

use serde_json::{Value, json};

use super::super::testing::{f32_from_hex, fixture};
use super::*;
use crate::event::Collected;

fn llama() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 16, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    })
}

fn with(mut config: Value, fields: Value) -> Value {
    for (key, value) in fields.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn without(mut config: Value, key: &str) -> Value {
    config.as_object_mut().unwrap().remove(key).unwrap();
    config
}

fn read(config: &Value) -> (ModelShape, Vec<String>) {
    let mut events = Collected::default();
    let shape = ModelShape::from_config("config.json".as_ref(), config, None, &mut events)
        .unwrap_or_else(|error| panic!("{error}"));
    (shape, events.0.iter().map(ToString::to_string).collect())
}

fn error(config: &Value) -> String {
    match ModelShape::from_config("config.json".as_ref(), config, None, &mut Collected::default()) {
        Ok(shape) => panic!("accepted: {shape:?}"),
        Err(error) => error.to_string(),
    }
}

/// Every case of the reference's tables, but those of `dynamic` beyond its length, which is refused elsewhere.
#[test]
fn rope_tables_are_those_of_the_reference() {
    let text = std::fs::read_to_string(fixture("rope_tables.json")).unwrap();
    let cases = serde_json::from_str::<Value>(&text).unwrap();
    let mut compared = 0;
    for case in cases["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        if name.starts_with("dynamic_beyond") {
            continue;
        }
        let mut config = with(without(llama(), "rope_theta"), case["config"].clone());
        config["head_dim"] = case["head_dim"].clone();
        let expected = f32_from_hex(case["inv_freq"].as_str().unwrap());
        let mut spellings = vec![config.clone()];
        // The same in the old spelling, with and without the theta inside.
        let mut old = config.as_object_mut().unwrap().remove("rope_parameters").unwrap();
        config["rope_scaling"] = old.clone();
        spellings.push(config.clone());
        let object = old.as_object_mut().unwrap();
        config["rope_theta"] = object.remove("rope_theta").unwrap();
        let kind = object.remove("rope_type").unwrap();
        object.insert("type".into(), kind);
        config["rope_scaling"] = old;
        spellings.push(config);
        for config in &spellings {
            let rope = read(config).0.rope;
            assert_eq!(rope.attention_factor, case["attention_factor"].as_f64().unwrap() as f32, "{name}");
            assert_eq!(rope.inv_freq.len(), expected.len(), "{name}");
            for (ours, theirs) in rope.inv_freq.iter().zip(&expected) {
                // The reference's vectorised power function is within 1 ulp, ours within half of one: after the
                // division by it, and a scaling of three more roundings, they may be 2 ulp apart. Few are at all.
                let apart = ours.to_bits().abs_diff(theirs.to_bits());
                assert!(apart <= 2, "{name}: {ours:e} and {theirs:e}");
            }
            let different =
                rope.inv_freq.iter().zip(&expected).filter(|(ours, theirs)| ours != theirs).count();
            assert!(different <= 1, "{name}: {different} of {} differ", expected.len());
            compared += 1;
        }
    }
    assert_eq!(compared, 14 * 3);
}

/// B59
#[test]
fn the_rope_base_is_found_wherever_it_stands() {
    let (top, events) = read(&llama());
    assert_eq!(events, [""; 0]);
    let base = |fields: Value| read(&with(without(llama(), "rope_theta"), fields));
    let (new, _) = base(json!({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}));
    let (old, _) = base(json!({"rope_scaling": {"type": "default", "rope_theta": 10000}}));
    let (nowhere, events) = base(json!({}));
    assert!(top.rope == new.rope && top.rope == old.rope && top.rope == nowhere.rope);
    assert_eq!(events, ["config.json does not state rope_theta: 10000 assumed, the family's default"]);
    let (other, _) = base(json!({"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}));
    assert!(other.rope != top.rope);
    assert_eq!(
        error(&with(llama(), json!({"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}))),
        "config.json: rope_parameters.rope_theta: is 500000 here and 10000 elsewhere in this file; remove the wrong one"
    );
}

/// B61
#[test]
fn yarn_attention_factor() {
    let factor = |extra: Value| {
        let yarn = with(json!({"rope_type": "yarn", "factor": 4.0}), extra);
        read(&with(llama(), json!({"rope_scaling": yarn}))).0.rope.attention_factor
    };
    assert_eq!(factor(json!({})), 1.138_629_4);
    assert_eq!(factor(json!({"attention_factor": 1.0})), 1.0);
    // As transformers: the two scales cancel.
    assert_eq!(factor(json!({"mscale": 1.0, "mscale_all_dim": 1.0})), 1.0);
    assert_eq!(factor(json!({"mscale": 0.0, "mscale_all_dim": 1.0})), 1.138_629_4);
}

#[test]
fn yarn_reaches_as_far_as_its_factor() {
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128});
    assert_eq!(read(&with(llama(), json!({"rope_scaling": yarn}))).0.max_positions, 512);
    let dynamic = json!({"type": "dynamic", "factor": 4.0});
    assert_eq!(read(&with(llama(), json!({"rope_scaling": dynamic}))).0.max_positions, 128);
}

#[test]
fn bad_rope_parameters_are_named() {
    let scaled = |fields: Value| error(&with(llama(), json!({"rope_scaling": fields})));
    assert_eq!(
        scaled(json!({"rope_type": "longrope"})),
        "config.json: rope_scaling.rope_type = \"longrope\" is not supported; supported: default, linear, dynamic, \
         llama3, yarn"
    );
    assert_eq!(
        scaled(json!({"type": "mrope"})).split(" is").next(),
        Some("config.json: rope_scaling.type = \"mrope\"")
    );
    assert_eq!(scaled(json!({"type": "linear"})), "config.json: rope_scaling.factor: is missing");
    assert_eq!(
        scaled(json!({"type": "linear", "factor": 0})),
        "config.json: rope_scaling.factor: must be above 0, is 0"
    );
    assert_eq!(
        scaled(json!({"type": "linear", "factor": "4"})),
        "config.json: rope_scaling.factor: expected a number, found \"4\""
    );
    assert_eq!(
        scaled(json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1})),
        "config.json: rope_scaling.high_freq_factor: 1 must be above low_freq_factor = 4"
    );
    assert_eq!(
        scaled(json!({"rope_type": "linear", "type": "yarn", "factor": 4})),
        "config.json: rope_scaling.rope_type: is \"linear\", but type is \"yarn\"; remove one of them"
    );
    assert!(scaled(json!([])).ends_with("rope_scaling: expected an object, found []"));
    let both = json!({"rope_scaling": {"factor": 2.0}, "rope_parameters": {"factor": 4.0}});
    assert_eq!(
        error(&with(llama(), both)),
        "config.json: rope_parameters.factor: is 4.0, but rope_scaling.factor is 2.0; remove one of them"
    );
}

/// B54
#[test]
fn head_dim_is_given_derived_or_refused() {
    let (shape, _) = read(&with(llama(), json!({"hidden_size": 40, "head_dim": 16})));
    assert_eq!(super::super::Projection::Q.dims(&shape), (64, 40));
    assert_eq!(super::super::Projection::K.dims(&shape), (32, 40));
    assert_eq!(super::super::Projection::O.dims(&shape), (40, 64));
    assert_eq!(read(&llama()).0.head_dim, 8);
    assert_eq!(read(&with(llama(), json!({"head_dim": null}))).0.head_dim, 8);
    assert_eq!(
        error(&with(llama(), json!({"hidden_size": 42}))),
        "config.json: hidden_size: 42 is no multiple of num_attention_heads = 4, and head_dim is not given"
    );
    let (qwen3, events) = read(&with(llama(), json!({"model_type": "qwen3"})));
    assert_eq!(qwen3.head_dim, 128);
    assert_eq!(events, ["config.json does not state head_dim: 128 assumed, the family's default"]);
    assert!(error(&with(llama(), json!({"head_dim": 7}))).contains("7 is odd"));
}

/// B55
#[test]
fn the_head_is_tied_where_the_config_says_so() {
    assert!(!read(&llama()).0.tied);
    assert!(read(&with(llama(), json!({"tie_word_embeddings": true}))).0.tied);
    assert!(!read(&with(llama(), json!({"tie_word_embeddings": null}))).0.tied);
}

/// B62
#[test]
fn biases_of_each_family() {
    let biases = |family: &str, bias: bool| {
        let shape =
            read(&with(llama(), json!({"model_type": family, "attention_bias": bias, "head_dim": 8}))).0;
        (shape.qkv_bias, shape.o_bias, shape.mlp_bias, shape.qk_norm)
    };
    assert_eq!(biases("llama", false), (false, false, false, false));
    assert_eq!(biases("llama", true), (true, true, false, false));
    assert_eq!(biases("mistral", true), (false, false, false, false));
    assert_eq!(biases("qwen2", false), (true, false, false, false));
    assert_eq!(biases("qwen3", false), (false, false, false, true));
    assert_eq!(biases("qwen3", true), (true, true, false, true));
    assert!(read(&with(llama(), json!({"mlp_bias": true}))).0.mlp_bias);
}

/// B64: a window counts the token itself; what uses it is tested where attention is.
#[test]
fn windows_of_each_family() {
    let windows = |fields: Value| read(&with(llama(), fields)).0.windows;
    assert_eq!(windows(json!({"sliding_window": 7})), [None; 3]);
    assert_eq!(windows(json!({"model_type": "mistral", "sliding_window": 7})), [Some(7); 3]);
    assert_eq!(windows(json!({"model_type": "mistral", "sliding_window": null})), [None; 3]);
    let (shape, events) = read(&with(llama(), json!({"model_type": "mistral"})));
    assert_eq!(shape.windows, [Some(4096); 3]);
    assert_eq!(events, ["config.json does not state sliding_window: 4096 assumed, the family's default"]);
    for family in ["qwen2", "qwen3"] {
        let of = |fields: Value| {
            windows(with(json!({"model_type": family, "head_dim": 8, "sliding_window": 7}), fields))
        };
        assert_eq!(of(json!({"max_window_layers": 1})), [None; 3]);
        assert_eq!(of(json!({"use_sliding_window": true, "max_window_layers": 1})), [None, Some(7), Some(7)]);
        assert_eq!(of(json!({"use_sliding_window": true})), [None; 3]);
        let types = json!(["sliding_attention", "full_attention", "sliding_attention"]);
        assert_eq!(of(json!({"use_sliding_window": true, "layer_types": types})), [Some(7), None, Some(7)]);
        let config = json!({"model_type": family, "head_dim": 8, "sliding_window": 7, "layer_types": types});
        assert!(error(&with(llama(), config)).contains("sliding_window is not set"));
    }
    let bad = json!({"model_type": "qwen2", "layer_types": ["full_attention", "linear_attention", "full_attention"]});
    assert!(error(&with(llama(), bad)).contains("\"linear_attention\" is not supported"));
    let short = json!({"model_type": "qwen2", "layer_types": ["full_attention"]});
    assert!(error(&with(llama(), short)).contains("has 1 entries for num_hidden_layers = 3"));
    assert!(
        error(&with(llama(), json!({"model_type": "mistral", "sliding_window": 0})))
            .contains("sliding_window")
    );
}

/// B65
#[test]
fn eos_is_one_id_a_list_or_none() {
    let eos = |fields: Value| read(&with(llama(), fields)).0.eos;
    assert_eq!(eos(json!({"eos_token_id": 2})), [2]);
    assert_eq!(eos(json!({"eos_token_id": [128001, 128008, 128009]})), [128001, 128008, 128009]);
    assert_eq!(eos(json!({"eos_token_id": null})), [0; 0]);
    assert_eq!(eos(json!({})), [2]);
    assert_eq!(eos(json!({"model_type": "qwen2"})), [0; 0]);
    assert!(error(&with(llama(), json!({"eos_token_id": "x"}))).contains("expected a token id or a list"));
    let generation = json!({"eos_token_id": [7, 8]});
    let with_generation = |generation: &Value| {
        let generation = Some(("generation_config.json".as_ref(), generation));
        let config = with(llama(), json!({"eos_token_id": 3}));
        ModelShape::from_config("config.json".as_ref(), &config, generation, &mut Collected::default())
            .unwrap()
            .eos
    };
    assert_eq!(with_generation(&generation), [7, 8]);
    assert_eq!(with_generation(&json!({})), [3]);
}

/// B69
#[test]
fn unknown_families_are_refused_and_unknown_fields_are_not() {
    assert_eq!(
        error(&with(llama(), json!({"model_type": "foo"}))),
        "config.json: model_type = \"foo\" is not supported; supported: llama, mistral, qwen2, qwen3"
    );
    assert_eq!(
        error(&without(llama(), "model_type")),
        "config.json: model_type: is missing, as is architectures; supported: llama, mistral, qwen2, qwen3"
    );
    let old = with(without(llama(), "model_type"), json!({"architectures": ["LlamaForCausalLM"]}));
    assert_eq!(read(&old).0.family, Family::Llama);
    let gpt2 = with(without(llama(), "model_type"), json!({"architectures": ["GPT2LMHeadModel"]}));
    assert!(error(&gpt2).contains("GPT2LMHeadModel"));
    let mut extra = llama();
    for number in 0..30 {
        extra[format!("unknown_{number}")] = json!({"value": [number]});
    }
    assert_eq!(read(&extra).0, read(&llama()).0);
    assert!(error(&json!([])).contains("expected an object, found a list"));
}

#[test]
fn what_changes_results_is_refused_by_name() {
    for (key, value) in [
        ("hidden_act", json!("gelu")),
        ("attn_logit_softcapping", json!(50.0)),
        ("final_logit_softcapping", json!(30.0)),
        ("num_experts", json!(8)),
        ("num_local_experts", json!(8)),
        ("partial_rotary_factor", json!(0.5)),
        ("attention_dropout", json!(0.1)),
        ("residual_multiplier", json!(0.22)),
        ("query_pre_attn_scalar", json!(256)),
        ("quantization_config", json!({"quant_method": "gptq"})),
    ] {
        let message = error(&with(llama(), json!({key: value})));
        assert!(
            message.starts_with(&format!("config.json: {key}")) && message.contains("not supported"),
            "{message}"
        );
    }
    let nested = json!({"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25}});
    assert!(error(&with(llama(), nested)).contains("rope_parameters.partial_rotary_factor = 0.25"));
    let harmless = json!({
        "num_experts": null, "partial_rotary_factor": 1.0, "attention_dropout": 0.0, "hidden_act": "silu",
        "rope_scaling": null, "quantization_config": null, "pretraining_tp": 1,
    });
    assert_eq!(read(&with(llama(), harmless)).0, read(&llama()).0);
}

#[test]
fn sizes_must_be_sizes() {
    for (key, value) in [
        ("vocab_size", json!(0)),
        ("hidden_size", json!(-4)),
        ("num_hidden_layers", json!(1.5)),
        ("intermediate_size", json!("64")),
        ("num_attention_heads", json!(u64::MAX)),
    ] {
        let message = error(&with(llama(), json!({key: value})));
        assert!(message.contains(&format!("{key}: expected a whole number from 1 to 2097152")), "{message}");
    }
    let deep = error(&with(llama(), json!({"num_hidden_layers": 10_001})));
    assert_eq!(deep, "config.json: num_hidden_layers: 10001 (limit 10000)");
    assert_eq!(
        error(&with(llama(), json!({"rope_theta": 1.0}))),
        "config.json: rope_theta: must be above 1, is 1"
    );
    assert_eq!(error(&without(llama(), "hidden_size")), "config.json: hidden_size: is missing");
    assert!(error(&with(llama(), json!({"num_key_value_heads": 3}))).contains("3 does not divide"));
    assert_eq!(read(&without(llama(), "num_key_value_heads")).0.kv_heads, 4);
    let qwen = with(without(llama(), "num_key_value_heads"), json!({"model_type": "qwen2"}));
    assert!(error(&qwen).contains("num_key_value_heads: is missing"));
}

#[test]
fn the_tiny_models_are_read() {
    let mut count = 0;
    for (name, family) in [
        ("llama", Family::Llama),
        ("llama3", Family::Llama),
        ("mistral", Family::Mistral),
        ("qwen2", Family::Qwen2),
        ("qwen3", Family::Qwen3),
    ] {
        let path = fixture("tiny").join(name).join("config.json");
        let config = super::super::fields::read_json(&path).unwrap();
        let mut events = Collected::default();
        let shape = ModelShape::from_config(&path, &config, None, &mut events).unwrap();
        assert_eq!(shape.family, family);
        assert_eq!((shape.vocab, shape.hidden, shape.layers, shape.intermediate), (512, 64, 2, 128));
        assert_eq!(shape.tied, !["llama3", "mistral"].contains(&name));
        assert_eq!(shape.windows, [None; 2]);
        assert!(events.0.is_empty(), "{:?}", events.0);
        count += 1;
    }
    assert_eq!(count, 5);
}
