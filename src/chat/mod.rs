//! Chat templates: messages to the prompt text a model was trained on.
//!
//! Templates come with the model file, in the Jinja of Python's transformers. They are untrusted
//! programs: each rendering has a limited number of steps, which bounds its output and memory too,
//! and its own stack. One hole is left: the engine joins lists lazily and does not count the steps
//! of copying them, so that a template that doubles one list over and over can exhaust the memory.
//! This module knows nothing of tokens.

mod error;
mod functions;

#[cfg(test)]
mod tests;

pub use error::ChatError;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};
use regex::Regex;

/// Longest template source; the longest real ones have some 20 KB.
const SOURCE_BYTES_MAX: usize = 1 << 20;

/// Steps of one rendering; a step is an instruction, or 64 bytes of data: 128 MB in all.
const STEPS_MAX: u64 = 2_000_000;

/// Stack of a rendering. A template can nest values as deep as its steps allow, and the engine
/// walks and frees them recursively. The pages that are not touched cost nothing.
const STACK_BYTES: usize = 512 << 20;

/// The template's name in the engine; without an extension, nothing is escaped.
const NAME: &str = "chat";

/// ChatML, the template llama.cpp takes for a model whose file has none.
pub const CHATML: &str = "\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// Its text.
    pub content: String,
}

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    bos_text: String,
    eos_text: String,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// `bos_text` and `eos_text` are the texts of the model's BOS and EOS, the template's
    /// `bos_token` and `eos_token`; empty where the model has none.
    ///
    /// # Errors
    /// [`ChatError::TooLarge`] and [`ChatError::Syntax`].
    pub fn new(source: &str, bos_text: &str, eos_text: &str) -> Result<Self, ChatError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(ChatError::TooLarge { bytes: source.len(), limit: SOURCE_BYTES_MAX });
        }
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.expect("the default delimiters are valid"));
        env.set_fuel(Some(STEPS_MAX));
        functions::add_to(&mut env);
        let source = without_generation_tags(source);
        let compiled = on_own_stack(|| {
            env.add_template_owned(NAME, source).map_err(|error| {
                let line = error.line().unwrap_or(0);
                ChatError::Syntax { line, detail: detail(&error) }
            })
        })?;
        compiled?;
        Ok(Self { env, bos_text: bos_text.to_owned(), eos_text: eos_text.to_owned() })
    }

    /// The prompt of a conversation; with `add_generation_prompt`, up to where the model answers.
    ///
    /// # Errors
    /// The template refuses the messages, fails, or takes too long.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        on_own_stack(|| {
            let messages: Value = messages
                .iter()
                .map(|m| context! { role => m.role.as_str(), content => m.content.as_str() })
                .collect();
            let template = self.env.get_template(NAME).expect("added when compiled");
            let rendered = template.render(context! {
                messages,
                add_generation_prompt,
                bos_token => self.bos_text.as_str(),
                eos_token => self.eos_text.as_str(),
                tools => (),
                documents => (),
            });
            rendered.map_err(|error| render_error(&error))
        })?
    }

    /// Whether a rendered prompt begins with BOS already, so that none is to be added.
    #[must_use]
    pub fn template_adds_bos(&self, rendered: &str) -> bool {
        !self.bos_text.is_empty() && rendered.starts_with(&self.bos_text)
    }
}

/// Runs `work` on a thread with a stack of [`STACK_BYTES`].
fn on_own_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, ChatError> {
    let builder = std::thread::Builder::new().name("chat".to_owned()).stack_size(STACK_BYTES);
    std::thread::scope(|scope| {
        let thread = builder
            .spawn_scoped(scope, work)
            .map_err(|error| ChatError::NoThread { detail: error.to_string() })?;
        thread.join().map_err(|_| ChatError::NoThread { detail: "it panicked".to_owned() })
    })
}

/// transformers marks the assistant's text for training by a tag of its own, which shows it as is.
fn without_generation_tags(source: &str) -> String {
    let open = Regex::new(r"\{%([-+]?)\s*generation\s*([-+]?)%\}").expect("a valid pattern");
    let close = Regex::new(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}").expect("a valid pattern");
    let source = open.replace_all(source, "{%$1 if true $2%}");
    close.replace_all(&source, "{%$1 endif $2%}").into_owned()
}

fn render_error(error: &minijinja::Error) -> ChatError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(functions::Raised(message)) = cause.downcast_ref() {
            return ChatError::Refused { message: message.clone() };
        }
        let engine = cause.downcast_ref::<minijinja::Error>();
        if engine.is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return ChatError::TooLong { limit: STEPS_MAX };
        }
        source = cause.source();
    }
    ChatError::Failed { line: error.line().unwrap_or(0), detail: detail(error) }
}

/// What kind of error, and the engine's detail.
fn detail(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
