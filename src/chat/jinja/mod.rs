//! An interpreter of Jinja2 templates, as Python's transformers sets the engine up.
//!
//! A chat template comes with a model file and is a program of somebody unknown. This interpreter
//! exists so that none of its operations is free: every value is paid for before it is made
//! ([`meter`]), work is counted, a clock and a flag are looked at while it runs, arithmetic is
//! checked, and neither the nesting of a template nor that of a value can exceed a limit, so that
//! a moderate stack is enough. The behaviour is that of Jinja2 3.1 with `trim_blocks`,
//! `lstrip_blocks`, loop controls and the immutable sandbox: nothing that a template is given can
//! be changed by it.
//!
//! A child process with `RLIMIT_AS` and `RLIMIT_CPU` was considered, and is not used: it would
//! cost each request a process, would need a sandbox of its own to be worth it, and turns a
//! template that is at fault into one that was killed. Here each limit has an error that names it.
//!
//! ```text
//! lexer -> parser -> ast      once, when the template is compiled
//! eval, expr                  statements and expressions
//! value, show, ops, format    values, their texts, operators, `%` and `str.format`
//! methods, filters, lists     what values can do
//! json, time                  `tojson`, `strftime_now`
//! ```

mod ast;
mod call;
mod checks;
mod eval;
mod expr;
mod filters;
mod format;
mod json;
mod lexer;
mod lists;
mod meter;
mod methods;
mod ops;
mod parser;
mod primary;
mod show;
mod texts;
mod time;
mod value;

#[cfg(test)]
mod tests;

use std::fmt;

pub(super) use meter::Limits;
use serde_json::Value as Json;

/// A compiled template.
#[derive(Clone, Debug)]
pub(super) struct Program {
    body: std::sync::Arc<[ast::Statement]>,
}

/// A fault of a template's source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SyntaxFault {
    /// From 1.
    pub(super) line: usize,
    pub(super) detail: String,
}

/// The reason for which a rendering ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The template called `raise_exception`.
    Raised(String),
    /// More steps than allowed.
    Steps,
    /// More memory than allowed.
    Memory,
    /// More time than allowed.
    Time,
    /// The caller gave up.
    Cancelled,
    /// An operation that Jinja2 refuses as well, or one that is not supported.
    Failed(String),
}

impl Fault {
    fn new(detail: impl fmt::Display) -> Self {
        Self::Failed(detail.to_string())
    }
}

/// A result of an operation of a template.
type Outcome<T> = Result<T, Fault>;

impl Program {
    /// Compiles a source.
    pub(super) fn new(source: &str) -> Result<Self, SyntaxFault> {
        let tokens = lexer::tokens(source)?;
        Ok(Self { body: parser::parse(tokens)?.into() })
    }

    /// Runs the program over `variables`; an error has the line at which it happened.
    pub(super) fn run(
        &self,
        variables: &[(&str, &Json)],
        limits: Limits<'_>,
    ) -> Result<String, (usize, Fault)> {
        eval::run(&self.body, variables, limits)
    }
}
