//! QLoRA fine-tuning of Llama, Qwen2, Qwen3 and Mistral models: frozen 4-bit weights, LoRA adapters, exact
//! numbers on every path. The `nibble` binary is a thin shell over this library.
//!
//! The way of one sample: a JSONL line becomes a [`data::Sample`] (text becomes tokens once), samples become a
//! [`data::Batch`] without padding, batches run forward and backward through one definition of the transformer
//! block over a [`backend::Backend`], and the optimiser step changes the adapters.
#![deny(unsafe_code)]

pub mod adapter;
pub mod ask;
pub mod backend;
pub mod block;
pub mod checkpoint;
pub mod config;
pub mod data;
pub mod device;
pub mod engine;
pub mod error;
pub mod event;
mod files;
pub mod generate;
pub mod lora;
pub mod model;
pub mod output;
pub mod random;
pub mod report;
pub mod schedule;
pub mod session;
pub mod tokenizer;
pub mod train;

pub use error::{Error, Result};
pub use event::Event;
