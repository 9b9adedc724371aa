//! Pipelines of steps that were not taken yet, built while nobody waits: the first prompt finds
//! them there.
//!
//! A step's recording is submitted with no workgroups in it. Drivers that build code when it is
//! first run do so then (Mesa's software driver does), all others have built it by preparing it;
//! nothing is computed, and nothing is read or written.

use super::runner::Runner;
use crate::gpu::{Command, DeviceError, Recording};
use crate::kernels::sample;
use crate::scheduler::{Batch, TokenSpan};

/// Tokens of the steps: all numbers of columns that matmuls tell apart, the likeliest first.
pub(super) const STEPS: [usize; 10] = [1, 17, 40, 128, 9, 5, 7, 2, 3, 4];

impl Runner {
    /// Builds the pipelines of a step of so many tokens.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn warm_up(&mut self, tokens: usize) -> Result<(), DeviceError> {
        let limits = self.model().limits();
        let tokens = tokens.min(limits.tokens_max).min(self.kv().config().context_tokens);
        let encoder = self.model().hyper().encoder;
        let logits = usize::from(!encoder);
        let span = TokenSpan { table: 0, position: 0, tokens: vec![0; tokens], logits };
        let mut shape = self.shape_of(&Batch { spans: vec![span] }, encoder);
        if logits > 0 && sample::is_sound(self.model().capabilities()) {
            shape.choosing = self.upload_wanted(shape.buffer_set, &[self.seeded_draw()])?;
        }
        let mut recording = Recording::new();
        for command in self.model().record_forward(self.kv(), shape).commands {
            if let Command::Dispatch(mut dispatch) = command {
                dispatch.groups = [0, 1, 1];
                recording.dispatch(dispatch);
            }
        }
        self.run_now(&mut recording)
    }
}
