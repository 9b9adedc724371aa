//! A model in this process, for the commands that need no daemon.

use std::path::PathBuf;

use thiserror::Error;

use crate::config::KvDtype;
use crate::gguf::GgufError;
use crate::gpu::DeviceError;
use crate::tokenizer::{Tokenizer, TokenizerError};

/// One model with one context of its own.
pub trait LocalModel {
    /// The model's tokenizer.
    fn tokenizer(&self) -> &Tokenizer;

    /// Logits of a row.
    fn vocab_size(&self) -> usize;

    /// Most tokens the context holds.
    fn context_tokens(&self) -> usize;

    /// The device's name.
    fn device(&self) -> String;

    /// Empties the context.
    ///
    /// # Errors
    /// The device failed.
    fn reset(&mut self) -> Result<(), LocalError>;

    /// Appends `tokens` to the context. Returns the logits of the tokens whose place in
    /// `want_logits` (as long as `tokens`) is true, in order: `[vocab_size]` each.
    ///
    /// # Errors
    /// [`LocalError::ContextFull`], or the device failed.
    fn evaluate(
        &mut self,
        tokens: &[u32],
        want_logits: &[bool],
    ) -> Result<Vec<Vec<f32>>, LocalError>;
}

/// What to open, and on what.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// GGUF file.
    pub model: PathBuf,
    /// Index, name or UUID; `None` takes the best.
    pub device: Option<String>,
    /// Element type of the KV cache.
    pub kv_dtype: KvDtype,
    /// Tokens the context must hold.
    pub context_tokens: u32,
}

/// A model in this process failed.
#[derive(Debug, Error)]
pub enum LocalError {
    /// The file cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file's vocabulary cannot be used.
    #[error("{}: {source}", .path.display())]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<TokenizerError>,
    },
    /// The device failed, or there is none.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// More tokens than the context holds.
    #[error("{wanted_tokens} tokens in a context of {context_tokens}")]
    ContextFull {
        /// Tokens there would be.
        wanted_tokens: usize,
        /// Tokens that fit.
        context_tokens: usize,
    },
    /// The program was built without an engine for this.
    #[error("this hob cannot compute with models in its own process")]
    NoEngine,
}

impl LocalError {
    /// Whether the model file is at fault.
    pub(crate) fn is_model(&self) -> bool {
        matches!(self, Self::Gguf(_) | Self::Vocabulary { .. })
    }
}

/// Loads a model on a device of this machine.
///
/// # Errors
/// The file or the device is not usable.
pub fn open_local(_options: &LocalOptions) -> Result<Box<dyn LocalModel>, LocalError> {
    Err(LocalError::NoEngine)
}

#[cfg(test)]
pub(crate) mod fake {
    use super::{LocalError, LocalModel};
    use crate::tokenizer::Tokenizer;

    /// Predicts that each token is followed by the next id: its logit is 1, all others' are 0.
    #[derive(Debug)]
    pub(crate) struct FakeModel {
        vocab_size: usize,
        /// Tokens since the last reset.
        pub(crate) context: Vec<u32>,
        pub(crate) resets: usize,
        pub(crate) evaluations: usize,
        pub(crate) rows_at_once_max: usize,
    }

    impl FakeModel {
        pub(crate) fn new(vocab_size: usize) -> Self {
            Self { vocab_size, context: vec![], resets: 0, evaluations: 0, rows_at_once_max: 0 }
        }

        fn logits_after(&self, token: u32) -> Vec<f32> {
            let next = (token as usize + 1) % self.vocab_size;
            (0..self.vocab_size).map(|id| if id == next { 1.0 } else { 0.0 }).collect()
        }
    }

    impl LocalModel for FakeModel {
        fn tokenizer(&self) -> &Tokenizer {
            unreachable!("what is tested starts with tokens")
        }

        fn vocab_size(&self) -> usize {
            self.vocab_size
        }

        fn context_tokens(&self) -> usize {
            1024
        }

        fn device(&self) -> String {
            "fake".into()
        }

        fn reset(&mut self) -> Result<(), LocalError> {
            self.context.clear();
            self.resets += 1;
            Ok(())
        }

        fn evaluate(
            &mut self,
            tokens: &[u32],
            want_logits: &[bool],
        ) -> Result<Vec<Vec<f32>>, LocalError> {
            assert_eq!(tokens.len(), want_logits.len());
            self.evaluations += 1;
            self.context.extend(tokens);
            let wanted = tokens.iter().zip(want_logits).filter(|(_, wanted)| **wanted);
            let rows: Vec<_> = wanted.map(|(&token, _)| self.logits_after(token)).collect();
            self.rows_at_once_max = self.rows_at_once_max.max(rows.len());
            Ok(rows)
        }
    }
}
