//! What the whole-system tests share: fixtures by name, tensors out of safetensors files, and comparisons that
//! fail on NaN. The tests themselves stand in `tests/`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use trainer::backend::{Backend, CpuBackend, Storage};
use trainer::data::Sample;
use trainer::engine::{Engine, EngineOptions, Model};
use trainer::event::Collected;
use trainer::lora::{Adapter, LoraConfig, LoraTensors};
use trainer::model::{Projection, Weights, open_weights};

/// A file or folder under `tests/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// A JSON fixture.
pub fn json(name: &str) -> serde_json::Value {
    let path = fixture(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The tensors of one safetensors file.
pub struct Tensors {
    bytes: Vec<u8>,
    path: PathBuf,
}

impl Tensors {
    /// Reads a file.
    pub fn read(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_path_buf();
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self { bytes, path }
    }

    fn parsed(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap_or_else(|e| panic!("{}: {e}", self.path.display()))
    }

    fn bytes_of(&self, name: &str, dtype: Dtype) -> Vec<u8> {
        let file = self.parsed();
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{} {name}: {e}", self.path.display()));
        assert_eq!(view.dtype(), dtype, "{name}");
        view.data().to_vec()
    }

    /// Names of all tensors.
    pub fn names(&self) -> Vec<String> {
        self.parsed().names().iter().map(|name| name.to_string()).collect()
    }

    /// The sizes of a tensor.
    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.parsed().tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).shape().to_vec()
    }

    /// An f32 tensor.
    pub fn f32(&self, name: &str) -> Vec<f32> {
        let bytes = self.bytes_of(name, Dtype::F32);
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect()
    }

    /// An i64 tensor.
    pub fn i64(&self, name: &str) -> Vec<i64> {
        let bytes = self.bytes_of(name, Dtype::I64);
        bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes"))).collect()
    }

    /// The rows of a padded batch (`input_ids`, `attention_mask`, `labels`) without their padding.
    pub fn samples(&self) -> Vec<Sample> {
        let width = self.shape("input_ids")[1];
        let (ids, mask, labels) = (self.i64("input_ids"), self.i64("attention_mask"), self.i64("labels"));
        let rows = ids.chunks(width).zip(mask.chunks(width)).zip(labels.chunks(width));
        rows.map(|((ids, mask), labels)| {
            let len = mask.iter().filter(|&&m| m == 1).count();
            assert!(mask[..len].iter().all(|&m| m == 1), "padding is on the right");
            Sample {
                ids: ids[..len].iter().map(|&id| id as u32).collect(),
                labels: labels[..len].iter().map(|&label| label as i32).collect(),
            }
        })
        .collect()
    }
}

/// Asserts |found - expected| <= bound, failing on NaN, with `what` in the message.
pub fn assert_close(what: &str, found: f64, expected: f64, bound: f64) {
    let difference = (found - expected).abs();
    assert!(
        difference <= bound,
        "{what}: {found} is not {expected}: off by {difference:e}, allowed {bound:e}"
    );
}

/// Largest |found - expected|; NaN if any value is.
pub fn max_difference(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).fold(0.0, |max: f64, (a, b)| {
        let d = (f64::from(*a) - f64::from(*b)).abs();
        if d.is_nan() { f64::NAN } else { max.max(d) }
    })
}

/// Largest magnitude.
pub fn max_abs(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |max: f64, v| max.max(f64::from(v.abs())))
}

/// |found - expected| / |expected| in the Euclidean norm.
pub fn relative_norm(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let sum = |f: &mut dyn Iterator<Item = f64>| f.map(|x| x * x).sum::<f64>().sqrt();
    let difference = sum(&mut found.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    difference / sum(&mut expected.iter().map(|&v| f64::from(v)))
}

/// A model directory made ready to run: the settings that tests vary, with defaults.
#[derive(Clone)]
pub struct Setup {
    path: PathBuf,
    storage: Storage,
    lora: LoraConfig,
    seed: u64,
    threads: usize,
    max_tokens: usize,
    activation_bytes: usize,
}

impl Setup {
    /// A model directory; rank 16, alpha 32 on all projections, unquantised, two threads.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let lora =
            LoraConfig { r: 16, alpha: 32.0, dropout: 0.0, rslora: false, targets: Projection::ALL.to_vec() };
        Self {
            path: path.into(),
            storage: Storage::AsIs,
            lora,
            seed: 0,
            threads: 2,
            max_tokens: 128,
            activation_bytes: usize::MAX,
        }
    }

    /// One of the tiny models, with the rank and scale of its adapter (4 and 2).
    pub fn tiny(family: &str) -> Self {
        let mut setup = Self::new(fixture("tiny").join(family));
        (setup.lora.r, setup.lora.alpha) = (4, 8.0);
        setup
    }

    /// How the projections are kept.
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = storage;
        self
    }

    /// Threads to run on.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Bytes for activations; see `EngineOptions`.
    pub fn activation_bytes(mut self, bytes: usize) -> Self {
        self.activation_bytes = bytes;
        self
    }

    /// Probability of the adapters' dropout.
    pub fn dropout(mut self, probability: f32) -> Self {
        self.lora.dropout = probability;
        self
    }

    /// Numerator of the adapters' scale.
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.lora.alpha = alpha;
        self
    }

    /// Tokens of the largest micro-batch.
    pub fn max_tokens(mut self, tokens: usize) -> Self {
        self.max_tokens = tokens;
        self
    }

    /// Seed of the fresh adapter and of dropout.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The CPU with the number of threads.
    pub fn backend(&self) -> CpuBackend {
        CpuBackend::new(cpu_ops::Threads::new(self.threads).expect("threads start"))
    }

    fn weights(&self) -> Weights {
        open_weights(&self.path, &mut Collected::default()).unwrap_or_else(|e| panic!("{e}"))
    }

    /// An engine with a fresh adapter.
    pub fn engine(&self) -> Engine<CpuBackend> {
        self.engine_on(self.backend())
    }

    /// An engine with a fresh adapter, on another device.
    pub fn engine_on<B: Backend>(&self, backend: B) -> Engine<B> {
        let mut weights = self.weights();
        let options = EngineOptions {
            storage: self.storage,
            lora: self.lora.clone(),
            seed: self.seed,
            max_tokens: self.max_tokens,
            max_positions: self.max_tokens.min(weights.shape.max_positions),
            activation_bytes: self.activation_bytes,
        };
        let shape = weights.shape.clone();
        Engine::new(backend, &shape, weights.source.as_mut(), options).unwrap_or_else(|e| panic!("{e}"))
    }

    /// A model without training buffers.
    pub fn model(&self) -> (CpuBackend, Model<CpuBackend>) {
        let mut weights = self.weights();
        let mut backend = self.backend();
        let (shape, lora) = (weights.shape.clone(), (&self.lora, self.seed));
        let positions = self.max_tokens.min(shape.max_positions);
        let model = Model::load(&mut backend, &shape, weights.source.as_mut(), self.storage, lora, positions);
        (backend, model.unwrap_or_else(|e| panic!("{e}")))
    }

    /// The adapter that stands beside a tiny model.
    pub fn adapter(&self) -> Adapter {
        let file = Tensors::read(self.path.join("adapter/adapter_model.safetensors"));
        let shape = self.weights().shape;
        let modules = trainer::lora::modules(&self.lora, &shape).map(|(layer, projection)| {
            let module = projection.module(layer);
            let side = |side: &str| file.f32(&format!("base_model.model.{module}.{side}.weight"));
            let tensors = LoraTensors { a: side("lora_A"), b: side("lora_B") };
            (module, tensors)
        });
        Adapter { config: self.lora.clone(), modules: modules.collect() }
    }
}
