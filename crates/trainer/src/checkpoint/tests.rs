//! What is saved is loaded to the bit, and nothing unfinished or foreign is taken for a checkpoint.

use super::*;
use crate::engine::Moments;
use crate::lora::{LoraConfig, LoraTensors, modules};
use crate::model::testing::{flip_each_bit, header_of_safetensors};
use crate::model::{Family, Projection, Rope};

fn shape() -> ModelShape {
    ModelShape {
        family: Family::Llama,
        vocab: 32,
        hidden: 8,
        layers: 1,
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
        windows: vec![None; 1],
        eos: vec![2],
    }
}

fn checkpoint(step: u64) -> Checkpoint {
    let config = LoraConfig {
        r: 2,
        alpha: 4.0,
        dropout: 0.0,
        rslora: false,
        targets: vec![Projection::Q, Projection::Down],
    };
    let mut next = 1.0f32;
    let mut values = |count: usize| -> Vec<f32> {
        (0..count)
            .map(|_| {
                next *= 1.01;
                next.sin()
            })
            .collect()
    };
    let (mut tensors, mut moments) = (Vec::new(), Vec::new());
    for (layer, projection) in modules(&config, &shape()) {
        let (out, inputs) = projection.dims(&shape());
        let (a, b) = (config.r * inputs, out * config.r);
        let name = projection.module(layer);
        tensors.push((name.clone(), LoraTensors { a: values(a), b: values(b) }));
        moments.push((name, Moments { a: [values(a), values(a)], b: [values(b), values(b)] }));
    }
    let entry = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Checkpoint {
        step,
        adapter: Adapter { config, modules: tensors },
        optimizer: OptimizerState { updates: step - 1, non_finite: 1, moments },
        settings: Settings {
            identity: [entry("train.seed", "0"), entry("lora.r", "2")].into(),
            course: [entry("train.max_steps", "10")].into(),
        },
        now: Moment::from_unix(1_700_000_000),
    }
}

fn save(directory: &Path, step: u64) -> PathBuf {
    checkpoint(step).save(directory, "base", &shape()).unwrap()
}

#[test]
fn what_is_saved_is_loaded_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), 7);
    assert!(path.ends_with("step-000007"));
    assert_eq!(Checkpoint::load(&path, &shape()).unwrap(), checkpoint(7));
    let Checkpoint { step, settings, now, .. } = checkpoint(7);
    assert_eq!(read_header(&path).unwrap(), Header { step, now, settings });
    // It is an adapter too.
    let adapter = adapter::read(&path, &shape(), &mut Collected::default()).unwrap();
    assert_eq!(adapter, checkpoint(7).adapter);
    assert!(checkpoint(7).save(dir.path(), "base", &shape()).is_err(), "nothing is overwritten");
}

// B101: an unfinished directory, or one of another name, is no checkpoint.
#[test]
fn only_finished_checkpoints_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(list(&dir.path().join("absent")).unwrap(), []);
    save(dir.path(), 5);
    save(dir.path(), 12);
    for name in ["step-000099.tmp", "step-99", "step-00009x", "latest", "step-"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("step-000100"), "a file").unwrap();
    let steps: Vec<u64> = list(dir.path()).unwrap().into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [5, 12]);
    clear_unfinished(dir.path()).unwrap();
    assert!(!dir.path().join("step-000099.tmp").exists());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 7, "nothing else is touched");
}

#[test]
fn the_oldest_are_pruned() {
    let dir = tempfile::tempdir().unwrap();
    (1..=5).for_each(|step| drop(save(dir.path(), step)));
    prune(dir.path(), 0).unwrap();
    assert_eq!(list(dir.path()).unwrap().len(), 5);
    prune(dir.path(), 2).unwrap();
    let steps: Vec<u64> = list(dir.path()).unwrap().into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [4, 5]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left of the others");
}

// B101: whatever part is missing or cut, the checkpoint is refused with the file's name.
#[test]
fn damaged_checkpoints_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), 1);
    for entry in fs::read_dir(&path).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let content = fs::read(&file).unwrap();
        for length in [0, content.len() / 2, content.len() - 2] {
            fs::write(&file, &content[..length]).unwrap();
            let error = Checkpoint::load(&path, &shape()).expect_err(&name).to_string();
            assert!(error.contains(&name), "{error}");
        }
        fs::remove_file(&file).unwrap();
        let error = Checkpoint::load(&path, &shape()).expect_err(&name).to_string();
        assert!(error.contains(&name), "{error}");
        fs::write(&file, &content).unwrap();
    }
    Checkpoint::load(&path, &shape()).unwrap();
}

// B101: whatever bit is flipped in what is not values, it is an error or another checkpoint, and never a panic.
#[test]
fn flipped_bits_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = 0;
    for entry in fs::read_dir(save(dir.path(), 1)).unwrap() {
        let name = entry.unwrap().file_name();
        let whole = fs::read(dir.path().join("step-000001").join(&name)).unwrap();
        let is_json = name.to_string_lossy().ends_with(".json");
        let bytes = if is_json { 0..whole.len() } else { header_of_safetensors(&whole) };
        let flips = 8 * bytes.len();
        // A flip of a digit or of a space is seldom seen.
        let usable = flip_each_bit(&whole, bytes, || {
            let dir = tempfile::tempdir().unwrap();
            let path = save(dir.path(), 1);
            let file = path.join(&name);
            move |changed: &[u8]| {
                let _ = &dir;
                fs::write(&file, changed).unwrap();
                read_header(&path).is_ok() & Checkpoint::load(&path, &shape()).is_ok()
            }
        });
        assert!(usable < flips * 2 / 3, "{usable} of {flips} changes of {name:?} go unseen");
        files += 1;
    }
    assert_eq!(files, 5);
}

#[test]
fn another_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = save(dir.path(), 1).join(STATE);
    let text = fs::read_to_string(&file).unwrap().replace("\"version\": 1", "\"version\": 2");
    fs::write(&file, text).unwrap();
    let error = Checkpoint::load(file.parent().unwrap(), &shape()).unwrap_err().to_string();
    assert!(error.ends_with("has version 2 of the format, this program reads 1"), "{error}");
}

// B93: each setting that differs is named with both values.
#[test]
fn differences_are_named() {
    let mut other = checkpoint(1).settings;
    assert_eq!(checkpoint(1).settings.differences(&other), (vec![], vec![]));
    other.identity.insert("train.seed".into(), "1".into());
    other.identity.remove("lora.r");
    other.course.insert("train.max_steps".into(), "20".into());
    let (identity, course) = checkpoint(1).settings.differences(&other);
    assert_eq!(
        identity,
        [
            "lora.r: the checkpoint has 2, this run has nothing",
            "train.seed: the checkpoint has 0, this run has 1"
        ]
    );
    assert_eq!(course, ["train.max_steps: the checkpoint has 10, this run has 20"]);
}
