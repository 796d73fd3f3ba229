//! The settings that decide a run's numbers, put down in its checkpoints.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::checkpoint::Settings;
use crate::config::{Config, Weights};
use crate::data::Sample;
use crate::lora::LoraConfig;
use crate::model::Projection;
use crate::schedule::Schedule;

/// The settings of a run on this model and these samples.
pub(super) fn of(
    config: &Config,
    lora: &LoraConfig,
    schedule: &Schedule,
    model: &str,
    samples: &[Sample],
) -> Settings {
    let targets: Vec<&str> = lora.targets.iter().copied().map(Projection::name).collect();
    let weights = match config.quantization.weights {
        Weights::None => "none".to_owned(),
        Weights::Nf4 => {
            let double = if config.quantization.double { ", double" } else { "" };
            format!("nf4, block_size {}{double}", config.quantization.block_size)
        }
    };
    let mut identity = named([
        ("model", model.to_owned()),
        ("data.train", fingerprint(samples)),
        ("data.shuffle", config.data.shuffle.to_string()),
        ("data.packing", config.data.packing.to_string()),
        ("lora.r", lora.r.to_string()),
        ("lora.alpha", lora.alpha.to_string()),
        ("lora.dropout", lora.dropout.to_string()),
        ("lora.rslora", lora.rslora.to_string()),
        ("lora.target_modules", targets.join(" ")),
        ("quantization", weights),
        ("train.batch_size", config.train.batch_size.to_string()),
        ("train.gradient_accumulation_steps", config.train.gradient_accumulation_steps.to_string()),
        ("train.seed", config.train.seed.to_string()),
    ]);
    if config.data.packing {
        // Without packing, the samples themselves show where they were cut.
        identity.insert("data.max_length".into(), config.data.max_length.to_string());
    }
    let course = named([
        ("steps", schedule.total.to_string()),
        ("train.learning_rate", schedule.peak.to_string()),
        ("train.lr_scheduler", schedule.shape.name().to_owned()),
        ("train.warmup_steps", schedule.warmup.to_string()),
        ("train.weight_decay", config.train.weight_decay.to_string()),
        ("train.max_grad_norm", config.train.max_grad_norm.to_string()),
    ]);
    Settings { identity, course }
}

fn named<const N: usize>(entries: [(&str, String); N]) -> BTreeMap<String, String> {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A hash of all samples: of what is trained on, whatever the file looks like. A changed template, tokenizer or
/// `data.loss_on` shows in it too.
fn fingerprint(samples: &[Sample]) -> String {
    let mut hash = Sha256::new();
    for sample in samples {
        hash.update((sample.ids.len() as u64).to_le_bytes());
        for (id, label) in sample.ids.iter().zip(&sample.labels) {
            hash.update(id.to_le_bytes());
            hash.update(label.to_le_bytes());
        }
    }
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits} ({} samples)", samples.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Shape;

    fn settings(sets: &[&str], samples: &[Sample]) -> Settings {
        let text = "model = \"m\"\noutput_dir = \"o\"\n[data]\ntrain = \"t\"";
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        let config = Config::parse(text, "run.toml", &sets).unwrap();
        let lora = LoraConfig {
            r: config.lora.r,
            alpha: config.lora.alpha as f32,
            dropout: config.lora.dropout as f32,
            rslora: config.lora.rslora,
            targets: config.lora.target_modules.clone(),
        };
        let schedule =
            Schedule { shape: Shape::Linear, peak: config.train.learning_rate, warmup: 0, total: 9 };
        of(&config, &lora, &schedule, "sha256:0", samples)
    }

    fn sample(ids: &[u32]) -> Sample {
        Sample { ids: ids.to_vec(), labels: ids.iter().map(|&id| id as i32).collect() }
    }

    // B93: a run on other samples, or with other settings that decide its numbers, is another run.
    #[test]
    fn whatever_decides_numbers_is_seen() {
        let samples = [sample(&[1, 2]), sample(&[3])];
        let plain = settings(&[], &samples);
        let changes = [
            ("lora.r=3", "lora.r"),
            ("lora.alpha=3", "lora.alpha"),
            ("lora.dropout=0.5", "lora.dropout"),
            ("lora.rslora=true", "lora.rslora"),
            ("lora.target_modules=[\"q_proj\"]", "lora.target_modules"),
            ("quantization.weights=none", "quantization"),
            ("quantization.double=false", "quantization"),
            ("quantization.block_size=128", "quantization"),
            ("train.batch_size=7", "train.batch_size"),
            ("train.gradient_accumulation_steps=7", "train.gradient_accumulation_steps"),
            ("train.seed=7", "train.seed"),
            ("data.shuffle=false", "data.shuffle"),
        ];
        for (set, name) in changes {
            let (identity, course) = plain.differences(&settings(&[set], &samples));
            assert!(
                identity.len() == 1 && identity[0].starts_with(&format!("{name}: ")),
                "{set}: {identity:?}"
            );
            assert_eq!(course.len(), 0, "{set}");
        }
        for set in ["train.learning_rate=1.0", "train.weight_decay=1.0", "train.max_grad_norm=3"] {
            let (identity, course) = plain.differences(&settings(&[set], &samples));
            assert_eq!((identity.len(), course.len()), (0, 1), "{set}");
        }
        // Samples: other ids, another border, another label, another order.
        let mut label = samples.clone();
        label[0].labels[0] = -100;
        let others = [
            vec![sample(&[1, 2]), sample(&[4])],
            vec![sample(&[1]), sample(&[2, 3])],
            label.to_vec(),
            vec![sample(&[3]), sample(&[1, 2])],
        ];
        for other in others {
            assert_eq!(plain.differences(&settings(&[], &other)).0.len(), 1, "{other:?}");
        }
    }
}
