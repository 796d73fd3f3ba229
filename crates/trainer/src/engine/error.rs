//! What can go wrong while a model is put on a device or trained.

/// A step or the preparation of one failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A sample is longer than the model allows, or than the run was prepared for.
    #[error(
        "a sample of {tokens} tokens is longer than the {limit} positions that are possible here; lower data.max_length"
    )]
    TooLong {
        /// Tokens of the sample.
        tokens: usize,
        /// Positions available.
        limit: usize,
    },
    /// A micro-batch has more tokens than memory was reserved for.
    #[error("a micro-batch has {tokens} tokens, memory was reserved for {limit}")]
    BatchTooLarge {
        /// Tokens of the batch.
        tokens: usize,
        /// Tokens reserved.
        limit: usize,
    },
    /// An adapter is for other modules.
    #[error("the adapter does not fit the model: missing {missing:?}, left over {left:?}")]
    AdapterModules {
        /// Modules that the run adapts and the adapter lacks.
        missing: Vec<String>,
        /// Modules that the adapter has and the run does not adapt.
        left: Vec<String>,
    },
    /// A matrix of an adapter, or its optimiser state, has another size.
    #[error("{module}: {side} has {found} values, the model and rank ask for {expected}")]
    AdapterShape {
        /// The module.
        module: String,
        /// Which matrix.
        side: &'static str,
        /// Values found.
        found: usize,
        /// Values expected.
        expected: usize,
    },
    /// Optimiser state of another adapter.
    #[error("the optimiser state belongs to an adapter with other modules")]
    OptimizerModules,
    /// Too many steps in a row with a gradient that is not finite.
    #[error(
        "step {step}: the gradient was not finite for {steps} steps in a row, first in {tensor}; lower \
         train.learning_rate, or look for broken samples with a smaller train.batch_size"
    )]
    NonFinite {
        /// The step, from 1.
        step: u64,
        /// How many in a row.
        steps: u32,
        /// The first tensor whose gradient is not finite.
        tensor: String,
    },
    /// Nothing would be learnt.
    #[error(
        "step {step}: every lora_B has a zero gradient, so that nothing would be trained; no update was made"
    )]
    NoGradient {
        /// The step, from 1.
        step: u64,
    },
    /// There is nothing to continue.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// The model's output is unusable.
    #[error("the logit of token {id} is {logit}: the model or the adapter is broken")]
    LogitNotFinite {
        /// The token.
        id: usize,
        /// Its logit.
        logit: f32,
    },
}
