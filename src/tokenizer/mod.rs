//! Text to tokens and back.

/// A model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {}
