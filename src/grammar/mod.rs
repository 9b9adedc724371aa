//! Grammars: what a generation may write, token by token.
//!
//! A [`GrammarSource`] is a JSON Schema, a regular expression, a Lark or a GBNF grammar. A
//! [`GrammarCompiler`], one for each tokenizer, makes a [`Grammar`] of it, on threads of its own
//! and within limits; llguidance does the parsing. A [`GrammarState`] follows one generation: it
//! gives a mask of the tokens that may come next, and takes the one that was chosen.
//!
//! Special tokens are never text here: a mask lets one through only where the grammar names it.

mod cache;
mod compile;
mod error;
mod fuzz;
mod gbnf;
mod schema;
mod source;
mod state;
mod vocabulary;

pub use compile::{Grammar, GrammarCompiler};
pub use error::GrammarError;
pub use fuzz::{fuzz_gbnf, fuzz_schema};
pub use source::{BeginsAfter, GrammarKind, GrammarSource};
pub use state::{GrammarState, mask_words};
