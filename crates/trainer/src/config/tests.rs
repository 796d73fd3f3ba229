//! Every key is read, refused where it must be, and settable from the command line.

use super::keys::KEYS;
use super::*;

const MINIMAL: &str = "model = \"m\"\noutput_dir = \"o\"\n[data]\ntrain = \"t.jsonl\"\n";

fn parse(extra: &str, sets: &[&str]) -> Result<Config, ConfigError> {
    let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
    Config::parse(&format!("{MINIMAL}{extra}"), "run.toml", &sets)
}

fn message(extra: &str, sets: &[&str]) -> String {
    parse(extra, sets).expect_err("must be refused").to_string()
}

/// A value other than the default for each key, and one that must be refused.
const VALUES: &[(&str, &str, &str)] = &[
    ("model", "other", "\"\""),
    ("output_dir", "other", "\"\""),
    ("data.train", "other.jsonl", "[1]"),
    ("data.eval", "eval.jsonl", "[1]"),
    ("data.format", "messages", "csv"),
    ("data.max_length", "77", "1"),
    ("data.packing", "true", "yes"),
    ("data.shuffle", "false", "0"),
    ("data.loss_on", "all", "answers"),
    ("lora.r", "3", "0"),
    ("lora.alpha", "7", "0"),
    ("lora.dropout", "0.25", "1.0"),
    ("lora.target_modules", "[\"q_proj\"]", "[\"lm_head\"]"),
    ("lora.rslora", "true", "1"),
    ("lora.adapter", "adapters/a", "[1]"),
    ("quantization.weights", "none", "int8"),
    ("quantization.double", "false", "2"),
    ("quantization.block_size", "128", "48"),
    ("train.batch_size", "5", "0"),
    ("train.gradient_accumulation_steps", "3", "0"),
    ("train.max_steps", "9", "0"),
    ("train.epochs", "9", "0"),
    ("train.learning_rate", "0.5", "0.0"),
    ("train.lr_scheduler", "cosine", "polynomial"),
    ("train.warmup_steps", "2", "-1"),
    ("train.weight_decay", "0.1", "-0.1"),
    ("train.max_grad_norm", "0", "nan"),
    ("train.seed", "12", "-1"),
    ("train.logging_steps", "7", "0"),
    ("train.eval_steps", "4", "-1"),
    ("train.save_steps", "4", "-1"),
    ("train.save_total_limit", "4", "-1"),
    ("train.resume", "auto", "\"\""),
    ("device.kind", "cpu", "gpu"),
    ("device.threads", "3", "0"),
    ("device.vram_limit_mb", "4000", "0"),
];

#[test]
fn every_key_changes_the_configuration_and_refuses_nonsense() {
    let listed: Vec<&str> = VALUES.iter().map(|(key, ..)| *key).collect();
    let known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(listed, known, "a key without a test");
    let plain = |mut config: Config| {
        config.places.clear();
        config
    };
    let default = plain(parse("", &[]).unwrap());
    for (key, value, wrong) in VALUES {
        // eval_steps alone is refused, because nothing would be measured.
        let mut sets = vec![format!("{key}={value}")];
        if *key == "train.eval_steps" {
            sets.push("data.eval=eval.jsonl".into());
        }
        let changed = Config::parse(MINIMAL, "run.toml", &sets).unwrap_or_else(|e| panic!("{key}: {e}"));
        assert_eq!(changed.place(key), Some(format!("--set {key}={value}").as_str()));
        assert_ne!(plain(changed), default, "{key} = {value} changes nothing");
        let refused = message("", &[&format!("{key}={wrong}")]);
        assert!(refused.starts_with(&format!("--set {key}={wrong}: {key} = ")), "{refused}");
    }
}

#[test]
fn defaults_are_those_that_the_list_of_keys_documents() {
    for key in KEYS {
        if ["required", "none", "all"].contains(&key.default) {
            continue;
        }
        let value: toml::Value = key.default.parse().unwrap();
        let (mut config, default) = (Config::default(), Config::default());
        (key.set)(&mut config, &value).unwrap();
        assert_eq!(config, default, "{} is documented as {}", key.name, key.default);
    }
}

#[test]
fn messages_name_place_key_and_remedy() {
    let cases = [
        (
            "[train]\nlearning_rat = 1.0",
            "run.toml:6:1: unknown key `train.learning_rat`; did you mean `train.learning_rate`?",
        ),
        ("[trian]\nseed = 1", "run.toml:5:2: unknown key `trian`; did you mean [train]?"),
        ("batch_size = 2", "run.toml:5:1: unknown key `data.batch_size`; `batch_size` belongs into [train]"),
        (
            "[train]\nbatch_size = \"two\"",
            "run.toml:6:14: train.batch_size = \"two\": a string is given, expected an integer of at least 1",
        ),
        (
            "[train]\nlr_scheduler = \"linaer\"",
            "run.toml:6:16: train.lr_scheduler = \"linaer\": expected one of \"constant\", \"constant_with_warmup\", \"linear\", \"cosine\"; did you mean \"linear\"?",
        ),
        (
            "[train]\nseed = ",
            "run.toml:6:8: not valid TOML: string values must be quoted, expected literal string",
        ),
        (
            "[train]\nmax_steps = 3\nepochs = 2",
            "run.toml:6:13: train.max_steps and train.epochs are both given; keep one",
        ),
        (
            "[train]\neval_steps = 3",
            "run.toml:6:14: train.eval_steps has no effect without data.eval; give the file to measure on, or leave it out",
        ),
        (
            "[train]\nlr_scheduler = \"constant\"\nwarmup_steps = 3",
            "run.toml:7:16: lr_scheduler = \"constant\" has no warmup; take \"constant_with_warmup\", or leave warmup_steps out",
        ),
        (
            "[quantization]\nweights = \"none\"\ndouble = true",
            "run.toml:7:10: quantization.double has no effect with quantization.weights = \"none\"; leave one of them out",
        ),
        (
            "[quantization]\nblock_size = 48",
            "run.toml:6:14: quantization.block_size = 48: expected a power of two from 32 to 4096; 64 is usual",
        ),
        (
            "[device]\nkind = \"cuda:-1\"",
            "run.toml:6:8: device.kind = \"cuda:-1\": expected \"auto\", \"cpu\" or \"cuda:N\", as in \"cuda:0\"",
        ),
        ("[lora]\nr = 0", "run.toml:6:5: lora.r = 0: expected an integer of at least 1"),
    ];
    for (extra, expected) in cases {
        assert_eq!(message(extra, &[]), expected, "for {extra}");
    }
    assert_eq!(message("", &["seed=1"]), "--set seed=1: unknown key `seed`; `seed` belongs into [train]");
    assert_eq!(
        message("", &["device=cpu"]),
        "--set device=cpu: unknown key `device`; [device] is a section, with the keys kind, threads, vram_limit_mb"
    );
    assert_eq!(
        message("", &["train.seed"]),
        "--set train.seed: expected section.key=value, as in --set train.seed=1"
    );
    let missing = Config::parse("model = \"m\"", "run.toml", &["data.train=x".into()]).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "run.toml: `output_dir` is missing (where the adapter, checkpoints and metrics go); add it to the file or \
         give --set output_dir=..."
    );
}

// B45, B51: a module that cannot be adapted is refused by its name, never left out.
#[test]
fn target_modules_that_cannot_be_adapted_are_named() {
    for name in ["lm_head", "embed_tokens", "norm", "q_prj", "model.layers.0.self_attn.q_proj", ""] {
        let refused = message("", &[&format!("lora.target_modules=[\"q_proj\", \"{name}\"]")]);
        assert!(refused.contains(&format!("`{name}` cannot be adapted")), "{refused}");
        assert!(refused.contains("These can: q_proj, k_proj"), "{refused}");
    }
    assert!(message("", &["lora.target_modules=q_prj"]).contains("did you mean q_proj?"));
    assert!(message("", &["lora.target_modules=[]"]).contains("adapts nothing"));
    let chosen = parse("", &["lora.target_modules=[\"v_proj\", \"q_proj\", \"v_proj\"]"]).unwrap();
    assert_eq!(chosen.lora.target_modules, [Projection::Q, Projection::V]);
}

#[test]
fn the_command_line_wins_over_the_file() {
    let config = parse("[train]\nepochs = 3\nseed = 1", &["train.seed=5", "train.seed=6"]).unwrap();
    assert_eq!(config.train.seed, 6);
    // One of two keys that exclude each other replaces the other.
    let config = parse("[train]\nepochs = 3", &["train.max_steps=7"]).unwrap();
    assert_eq!(config.train.length, Length::Steps(7));
    assert!(message("", &["train.max_steps=7", "train.epochs=1"]).contains("keep one"));
    // A path may look like a number, and text may be quoted or not.
    assert_eq!(parse("", &["output_dir=17"]).unwrap().output_dir, Path::new("17"));
    assert_eq!(parse("", &["model=\"a b\""]).unwrap().model, Path::new("a b"));
    assert_eq!(parse("", &["model=a=b"]).unwrap().model, Path::new("a=b"));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = Config::load(Path::new("/nowhere/run.toml"), &[]).unwrap_err().to_string();
    assert!(error.starts_with("cannot read the configuration /nowhere/run.toml: "), "{error}");
}
