//! What the tests of the binary share: a model of a few kilobytes, a data set, and a way to run `nibble` on them.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

/// The binary under test.
pub const NIBBLE: &str = env!("CARGO_BIN_EXE_nibble");

/// A directory with a model, data and a configuration, in which `nibble` can be run.
pub struct Work {
    pub dir: tempfile::TempDir,
}

/// What a run of the binary gave.
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program writes UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Ran {
    /// The standard output of a run that went well.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}\n{}", self.out, self.err);
        self.out
    }

    /// The message of a run that failed with this code.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.err);
        let at = self.err.find("error: ").unwrap_or_else(|| panic!("no message in {}", self.err));
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self.err[at..].to_owned()
    }
}

/// Six steps an epoch of two samples each.
pub const CONFIG: &str = r#"
model = "model"
output_dir = "out"

[data]
train = "train.jsonl"
max_length = 64

[lora]
r = 4
alpha = 8

[train]
batch_size = 2
gradient_accumulation_steps = 1
epochs = 2
learning_rate = 1e-2
warmup_steps = 1
save_steps = 4

[device]
kind = "cpu"
threads = 1
"#;

impl Work {
    /// Everything in place for `nibble train run.toml`.
    pub fn new() -> Self {
        let work = Self { dir: tempfile::tempdir().unwrap() };
        write_model(&work.path("model"));
        let lines: Vec<String> = (0..12)
            .map(|n| json!({"prompt": format!("n{n}?"), "completion": format!("is {}", n * n)}).to_string())
            .collect();
        work.write("train.jsonl", &(lines.join("\n") + "\n"));
        work.write("run.toml", CONFIG);
        work
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
    }

    /// The binary with these arguments, not started yet.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(NIBBLE);
        command.args(arguments).current_dir(self.dir.path());
        command
    }

    pub fn nibble(&self, arguments: &[&str]) -> Ran {
        self.command(arguments).output().unwrap().into()
    }

    /// `nibble train run.toml` with values put over the file's.
    pub fn train(&self, sets: &[&str]) -> Ran {
        let mut arguments = vec!["train", "run.toml"];
        sets.iter().for_each(|set| arguments.extend(["--set", set]));
        self.nibble(&arguments)
    }

    /// The lines of a JSONL file.
    pub fn lines(&self, name: &str) -> Vec<Value> {
        lines(&self.path(name))
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The names in a directory, sorted; empty where there is none.
    pub fn names(&self, name: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(name)) else { return Vec::new() };
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

pub fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

/// Steps without what depends on the clock or the machine.
pub fn without_times(mut steps: Vec<Value>) -> Vec<Value> {
    for step in &mut steps {
        let fields = step.as_object_mut().unwrap();
        fields.remove("tokens_per_second").expect("every step has it");
        fields.remove("peak_rss_bytes").expect("every step has it");
    }
    steps
}

const HIDDEN: usize = 32;
const KV: usize = 16;
const INTERMEDIATE: usize = 48;
const LAYERS: usize = 2;
/// 256 bytes and three special tokens.
pub const VOCAB: usize = 259;

/// Writes a Llama of two blocks with a tokenizer of bytes and a ChatML template.
pub fn write_model(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    let write = |name: &str, value: Value| fs::write(directory.join(name), value.to_string()).unwrap();
    write("config.json", model_config());
    write("tokenizer.json", tokenizer());
    write(
        "tokenizer_config.json",
        json!({
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
                              {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        }),
    );
    write_tensors(directory, &tensors());
}

pub fn model_config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
        "eos_token_id": 258,
        "torch_dtype": "float32",
    })
}

/// A byte-level BPE without merges: a token for each byte.
fn tokenizer() -> Value {
    let mut vocab = BTreeMap::new();
    let mut next = 256;
    for byte in 0..=255u32 {
        // GPT-2's table: printable bytes stand for themselves, the others for characters from 256 on.
        let printable = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let code = if printable { byte } else { next };
        next += u32::from(!printable);
        vocab.insert(char::from_u32(code).unwrap().to_string(), byte);
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false})
    };
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [special(256, "<|endoftext|>"), special(257, "<|im_start|>"), special(258, "<|im_end|>")],
        "normalizer": null,
        "pre_tokenizer":
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Small pseudorandom weights.
pub fn tensors() -> Tensors {
    let mut state = 1u64;
    let mut random = move || {
        // Knuth's MMIX generator; its high bits are good enough here.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let mut all = Tensors::new();
    let mut add = |name: String, shape: &[usize], scale: f32| {
        let values = (0..shape.iter().product()).map(|_| if scale == 0.0 { 1.0 } else { random() * scale });
        all.insert(name, (shape.to_vec(), values.collect()));
    };
    add("model.embed_tokens.weight".into(), &[VOCAB, HIDDEN], 1.0);
    add("model.norm.weight".into(), &[HIDDEN], 0.0);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        add(name("input_layernorm"), &[HIDDEN], 0.0);
        add(name("post_attention_layernorm"), &[HIDDEN], 0.0);
        add(name("self_attn.q_proj"), &[HIDDEN, HIDDEN], 0.5);
        add(name("self_attn.k_proj"), &[KV, HIDDEN], 0.5);
        add(name("self_attn.v_proj"), &[KV, HIDDEN], 0.5);
        add(name("self_attn.o_proj"), &[HIDDEN, HIDDEN], 0.5);
        add(name("mlp.gate_proj"), &[INTERMEDIATE, HIDDEN], 0.5);
        add(name("mlp.up_proj"), &[INTERMEDIATE, HIDDEN], 0.5);
        add(name("mlp.down_proj"), &[HIDDEN, INTERMEDIATE], 0.5);
    }
    all
}

/// Writes a model's weights into one file.
pub fn write_tensors(directory: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (shape, values))| {
        let bytes = bytemuck::cast_slice::<f32, u8>(values);
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
    fs::write(directory.join("model.safetensors"), safetensors::serialize(views, metadata).unwrap()).unwrap();
}
