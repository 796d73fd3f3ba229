//! The shape of a model: sizes, family, rotary frequencies, everything but its weights.

/// The model families whose blocks we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Llama 2, 3.x, SmolLM2 and what shares their config.
    Llama,
    /// Mistral 7B and relatives.
    Mistral,
    /// Qwen2 and Qwen2.5: biases on q, k and v.
    Qwen2,
    /// Qwen3: RMSNorm per head on q and k.
    Qwen3,
}

/// Rotary embedding: angle = position * inv_freq\[i\], cos and sin times `attention_factor`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// `head_dim / 2` inverse frequencies, any scaling already applied.
    pub inv_freq: Vec<f32>,
    /// Multiplies cos and sin; 1 except for YaRN.
    pub attention_factor: f32,
}

/// Sizes and options of a decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelShape {
    /// Which family's conventions apply.
    pub family: Family,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; need not be `hidden / heads`.
    pub head_dim: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f32,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether o has a bias.
    pub o_bias: bool,
    /// Whether gate, up and down have biases.
    pub mlp_bias: bool,
    /// Whether q and k are normalised per head before the rotation.
    pub qk_norm: bool,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Rotary embedding.
    pub rope: Rope,
    /// Longest sequence that the rotary tables are right for.
    pub max_positions: usize,
    /// For each block, how many positions a token sees, itself included; `None` is all before it.
    pub windows: Vec<Option<usize>>,
    /// Ids that end a generation.
    pub eos: Vec<u32>,
}

/// The seven linear layers of a block, in the order in which they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Projection {
    Q,
    K,
    V,
    O,
    Gate,
    Up,
    Down,
}

impl Projection {
    /// All seven, in order.
    pub const ALL: [Self; 7] = [Self::Q, Self::K, Self::V, Self::O, Self::Gate, Self::Up, Self::Down];

    /// The name that `target_modules` uses: `q_proj` and so on.
    pub fn name(self) -> &'static str {
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"][self as usize]
    }

    /// The module path in a Hugging Face checkpoint: `model.layers.0.self_attn.q_proj`.
    pub fn module(self, layer: usize) -> String {
        let part = if (self as usize) < 4 { "self_attn" } else { "mlp" };
        format!("model.layers.{layer}.{part}.{}", self.name())
    }

    /// `(out_features, in_features)`: the weight's rows and columns.
    pub fn dims(self, shape: &ModelShape) -> (usize, usize) {
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        match self {
            Self::Q => (q, shape.hidden),
            Self::K | Self::V => (kv, shape.hidden),
            Self::O => (shape.hidden, q),
            Self::Gate | Self::Up => (shape.intermediate, shape.hidden),
            Self::Down => (shape.hidden, shape.intermediate),
        }
    }

    /// Whether this layer has a bias in a model of this shape.
    pub fn has_bias(self, shape: &ModelShape) -> bool {
        match self {
            Self::Q | Self::K | Self::V => shape.qkv_bias,
            Self::O => shape.o_bias,
            Self::Gate | Self::Up | Self::Down => shape.mlp_bias,
        }
    }
}
