//! Limits on what a request may generate: a grammar, biases and forbidden tokens.

use std::sync::Arc;

use crate::grammar::{BeginsAfter, Grammar};

/// Limits on the tokens of a request, and biases of their logits.
#[derive(Clone, Debug, Default)]
pub struct Constraints {
    /// Grammar of the whole answer.
    pub grammar: Option<Arc<Grammar>>,
    /// What has to come before the grammar holds; without it, it holds at once.
    pub begins_after: Option<BeginsAfter>,
    /// Added to the logits of tokens; each token once.
    pub bias: Vec<(u32, f32)>,
    /// Tokens that must not come.
    pub forbidden: Vec<u32>,
    /// The model's end tokens must not come either, unless a grammar leaves nothing else.
    pub ignore_eos: bool,
}
