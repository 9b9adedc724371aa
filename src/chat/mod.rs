//! Chat templates: messages to the prompt text a model was trained on.

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {}
