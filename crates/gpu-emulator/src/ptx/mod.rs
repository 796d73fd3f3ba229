//! From PTX text to something that can run: tokens, syntax tree, compact code.

pub mod ast;
pub mod code;
pub mod decode;
mod flow;
pub mod lexer;
pub mod parser;
mod unwritten;

/// Why PTX was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PtxError {
    /// The text is not PTX, or its types do not fit.
    #[error("ptx line {line}: {message}")]
    Syntax {
        /// Line, from 1.
        line: u32,
        /// What is wrong.
        message: String,
    },
    /// PTX that is valid but that the emulator does not run.
    #[error("ptx line {line}: the emulator does not implement {what}")]
    Unsupported {
        /// Line, from 1.
        line: u32,
        /// The instruction or directive.
        what: String,
    },
    /// The module's `.version` is newer than the driver.
    #[error("ptx version {}.{} is newer than this driver understands ({}.{})", found.0, found.1, supported.0, supported.1)]
    Version {
        /// `.version` of the module.
        found: (u32, u32),
        /// The driver's newest.
        supported: (u32, u32),
    },
    /// The module's `.target` is newer than the device.
    #[error("ptx target sm_{target} is higher than the device's sm_{device}")]
    Target {
        /// `.target` of the module.
        target: u32,
        /// The device's capability.
        device: u32,
    },
}

impl PtxError {
    pub(crate) fn at(line: u32, message: impl Into<String>) -> Self {
        Self::Syntax { line, message: message.into() }
    }

    pub(crate) fn unsupported(line: u32, what: impl Into<String>) -> Self {
        Self::Unsupported { line, what: what.into() }
    }
}
