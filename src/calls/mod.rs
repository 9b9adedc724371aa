//! Calls of tools and thoughts in what a model writes.
//!
//! Each family of models writes them in a form of its own. A [`CallFormat`] describes that form,
//! found by parts of the model's chat template. From it come an incremental [`CallParser`], which
//! makes [`Delta`]s of the bytes of tokens as they are generated, and the text of a Lark grammar
//! that constrains a generation to calls of a request's tools ([`CallFormat::grammar`]).
//!
//! A mark that is a special token of the model counts only where it came as that token: a text
//! that merely spells it is text.

mod convert;
mod format;
mod grammar;
mod harmony;
mod input;
mod json;
mod named;
mod parser;
mod tagged;

#[cfg(test)]
mod tests;

pub use format::{CallFormat, Reasoning};
pub use grammar::ToolChoice;
pub use parser::{CallParser, Delta, ParseOptions};
