//! Rotary frequencies. Kinds and formulas are those of transformers' `modeling_rope_utils`, evaluated with its
//! roundings (f32 tensors, f64 scalars), so that the tables agree to the last bit but for the power function.
//! Llama 3 scaling: the Llama 3.1 model card; YaRN: arXiv 2309.00071, equations 17 to 23.

use std::f64::consts::PI;

use super::shape::Rope;

/// How frequencies are changed to reach longer contexts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scaling {
    /// Not at all.
    Default,
    /// All divided by a factor.
    Linear { factor: f64 },
    /// Low ones divided by a factor, high ones kept, a ramp between.
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_positions: f64 },
    /// As Llama 3, with the ramp over the index, and a factor on cos and sin.
    Yarn(Yarn),
}

/// Parameters of YaRN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Yarn {
    pub factor: f64,
    pub original_positions: f64,
    pub beta_fast: f64,
    pub beta_slow: f64,
    /// Given by the config, or derived from `factor`.
    pub attention_factor: Option<f64>,
    pub mscale: Option<f64>,
    pub mscale_all_dim: Option<f64>,
    /// Whether the ends of the ramp are rounded to whole indices.
    pub truncate: bool,
}

impl Scaling {
    /// The table for heads of `head_dim` (even) with the base `theta`.
    pub fn table(&self, theta: f64, head_dim: usize) -> Rope {
        // base^(2i/d), rounded to f32: f32 tensors in the reference.
        let powers: Vec<f32> = (0..head_dim / 2)
            .map(|i| {
                let exponent = (2 * i) as f32 / head_dim as f32;
                f64::from(theta as f32).powf(f64::from(exponent)) as f32
            })
            .collect();
        let plain = powers.iter().map(|power| 1.0 / power);
        match *self {
            Self::Default => Rope { inv_freq: plain.collect(), attention_factor: 1.0 },
            Self::Linear { factor } => {
                Rope { inv_freq: plain.map(|freq| freq / factor as f32).collect(), attention_factor: 1.0 }
            }
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
                let factor = factor as f32;
                let longest = (original_positions / low_freq_factor) as f32;
                let shortest = (original_positions / high_freq_factor) as f32;
                let inv_freq = plain.map(|freq| {
                    let wavelength = (2.0 * PI) as f32 / freq;
                    if wavelength > longest {
                        freq / factor
                    } else if wavelength < shortest {
                        freq
                    } else {
                        let smooth = (original_positions as f32 / wavelength - low_freq_factor as f32)
                            / (high_freq_factor - low_freq_factor) as f32;
                        (1.0 - smooth) * freq / factor + smooth * freq
                    }
                });
                Rope { inv_freq: inv_freq.collect(), attention_factor: 1.0 }
            }
            Self::Yarn(yarn) => yarn.table(theta, head_dim, &powers),
        }
    }
}

impl Yarn {
    fn table(&self, theta: f64, head_dim: usize, powers: &[f32]) -> Rope {
        // The index at which a frequency turns `rotations` times within the original context.
        let index = |rotations: f64| {
            head_dim as f64 * (self.original_positions / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (index(self.beta_fast), index(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let low = low.max(0.0);
        let mut high = high.min((head_dim - 1) as f64);
        if low == high {
            high += 0.001;
        }
        let inv_freq = powers.iter().enumerate().map(|(i, &power)| {
            let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            let kept = 1.0 - ramp;
            let (extrapolated, interpolated) = (1.0 / power, 1.0 / (self.factor as f32 * power));
            interpolated * (1.0 - kept) + extrapolated * kept
        });
        Rope { inv_freq: inv_freq.collect(), attention_factor: self.attention_factor() as f32 }
    }

    /// The factor on cos and sin: given, or 0.1 ln(factor) + 1, or the ratio of two such where both scales are given.
    fn attention_factor(&self) -> f64 {
        let scale =
            |mscale: f64| if self.factor <= 1.0 { 1.0 } else { 0.1 * mscale * self.factor.ln() + 1.0 };
        // A scale of 0 counts as not given.
        let given = |mscale: Option<f64>| mscale.filter(|&mscale| mscale != 0.0);
        match (self.attention_factor, given(self.mscale), given(self.mscale_all_dim)) {
            (Some(factor), ..) => factor,
            (None, Some(mscale), Some(all)) => scale(mscale) / scale(all),
            (None, ..) => scale(1.0),
        }
    }
}
