//! Twenty steps on SmolLM2-135M-Instruct through the trainer that the binary uses, against PyTorch, PEFT and
//! bitsandbytes. The model comes from `cargo xtask fetch smollm2`; without it these tests fail when they are
//! asked for (`cargo test -p whole-system-tests --test smollm2 -- --ignored`).
//!
//! The reference depends on its processor: the model has activations of 25,000 beside ones of 1, so that the
//! order of a sum shows, and training repeats what rounding began. The same versions, settings and data on a
//! processor with AVX2 (`reference_losses.json`) and on one with AVX-512 (`reference_losses_avx512.json`) differ
//! by up to 5.8e-5 in a loss and, relatively, 1.1e-4 in a gradient norm. So a value must lie within the bound of
//! one of the two, or between them.

use std::path::{Path, PathBuf};

use serde_json::Value;
use trainer::config::Config;
use trainer::report::Observers;
use trainer::session;
use trainer::train::Stop;
use whole_system_tests::{Tensors, assert_close, fixture, json};

fn model() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/smollm2-135m-instruct");
    assert!(path.is_dir(), "{} is not there: run cargo xtask fetch smollm2", path.display());
    path
}

fn train(quantization: &str, output: &Path) {
    let text = format!(
        r#"
model = "{model}"
output_dir = "{output}"
[data]
train = "{data}"
max_length = 512
shuffle = false
[lora]
r = 16
alpha = 32
[quantization]
{quantization}
[train]
batch_size = 1
gradient_accumulation_steps = 1
max_steps = 20
learning_rate = 2e-4
lr_scheduler = "constant"
max_grad_norm = 0
seed = 0
save_steps = 0
[device]
kind = "cpu"
threads = 2
"#,
        model = model().display(),
        output = output.display(),
        data = fixture("data/instructions.jsonl").display(),
    );
    let config = Config::parse(&text, "smollm2.rs", &[]).unwrap_or_else(|e| panic!("{e}"));
    session::train(&config, &mut Observers::new(vec![]), &Stop::default()).unwrap_or_else(|e| panic!("{e}"));
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

/// The value between the two references that is nearest to `found`.
fn nearest(found: f64, [a, b]: [f64; 2]) -> f64 {
    if found.is_nan() { a } else { found.clamp(a.min(b), a.max(b)) }
}

/// How far `found` is from what lies between the two references.
fn outside(found: f64, references: [f64; 2]) -> f64 {
    (found - nearest(found, references)).abs()
}

/// How far a run may be from the reference: losses, and relative norms of gradients and of the final adapter.
struct Bounds {
    loss: f64,
    norm: f64,
    last: f64,
}

fn agrees(name: &str, quantization: &str, bounds: Bounds) {
    let reference = json("reference_losses.json");
    let other = json("reference_losses_avx512.json");
    let (expected, other) = (&reference["runs"][name], &other["runs"][name]);
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    train(quantization, &output);
    let text = std::fs::read_to_string(output.join("metrics.jsonl")).unwrap();
    let steps: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(steps.len(), 20);
    let (mut worst_loss, mut worst_norm) = (0f64, 0f64);
    for (at, step) in steps.iter().enumerate() {
        assert_eq!(step["tokens"], reference["steps"][at]["loss_tokens"]);
        let losses = [number(&expected["loss"][at]), number(&other["loss"][at])];
        let norms = [number(&expected["grad_norm"][at]), number(&other["grad_norm"][at])];
        let (loss, norm) = (number(&step["loss"]), number(&step["grad_norm"]));
        worst_loss = worst_loss.max(outside(loss, losses));
        worst_norm = worst_norm.max(outside(norm, norms) / norms[0]);
        assert_close(&format!("{name} loss of step {}", at + 1), loss, nearest(loss, losses), bounds.loss);
        let what = format!("{name} gradient norm of step {}", at + 1);
        assert_close(&what, norm, nearest(norm, norms), bounds.norm * norms[0]);
    }
    let adapter = Tensors::read(output.join("adapter/adapter_model.safetensors"));
    let mut worst_last = 0f64;
    for (kind, norm) in expected["final_norm_by_kind"].as_object().expect("a table") {
        let mut squares = 0.0;
        for tensor in adapter.names().iter().filter(|tensor| tensor.ends_with(&format!("{kind}.weight"))) {
            squares += adapter.f32(tensor).iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>();
        }
        let norms = [number(norm), number(&other["final_norm_by_kind"][kind])];
        let found = squares.sqrt();
        worst_last = worst_last.max(outside(found, norms) / norms[0]);
        let what = format!("{name} final norm of {kind}");
        assert_close(&what, found, nearest(found, norms), bounds.last * norms[0]);
    }
    println!(
        "{name}: losses within {worst_loss:.1e}, gradient norms {worst_norm:.1e}, adapter {worst_last:.1e}"
    );
}

const EXACT: Bounds = Bounds { loss: 1e-4, norm: 1e-4, last: 1e-4 };

#[test]
#[ignore = "needs the model of cargo xtask fetch smollm2"]
fn unquantised() {
    agrees("none", "weights = \"none\"", EXACT);
}

#[test]
#[ignore = "needs the model of cargo xtask fetch smollm2"]
fn nf4() {
    agrees("nf4", "weights = \"nf4\"\ndouble = false", EXACT);
}

#[test]
#[ignore = "needs the model of cargo xtask fetch smollm2"]
fn nf4_with_double_quantisation() {
    agrees("nf4-dq-exact", "weights = \"nf4\"\ndouble = true", EXACT);
}

/// The library takes its scale codes from a coarser table than the exact rule; runs stay this close.
#[test]
#[ignore = "needs the model of cargo xtask fetch smollm2"]
fn nf4_with_the_librarys_own_double_quantisation() {
    let bounds = Bounds { loss: 3e-3, norm: 5e-3, last: 5e-4 };
    agrees("nf4-dq", "weights = \"nf4\"\ndouble = true", bounds);
}
