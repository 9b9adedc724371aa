//! Chat templates: messages to the prompt text a model was trained on.
//!
//! Templates come with the model file, in the Jinja of Python's transformers, or by name. They are
//! untrusted programs: each rendering has a limited number of steps, which bounds its output, its
//! memory and its time, and its own stack. What the engine does not count, `toll` makes it count.
//! This module knows nothing of tokens.

mod error;
mod functions;
mod fuzz;
mod named;
mod operators;
mod toll;

#[cfg(test)]
mod tests;

pub use error::ChatError;
pub use fuzz::fuzz_template;
pub use named::{named_template, template_names};

use minijinja::machinery::{self, CodeGenerator};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, Value, context};
use regex::Regex;

/// Steps of one rendering; a step is an instruction, or 64 bytes of data: 128 MB in all.
const STEPS_MAX: u64 = 2_000_000;

/// Stack of a rendering. A template can nest values as deep as its steps allow, and the engine
/// walks and frees them recursively. The pages that are not touched cost nothing.
const STACK_BYTES: usize = 512 << 20;

/// The template's name in the engine.
const NAME: &str = "chat";

/// Objects of JSON: what templates take beside texts.
pub type JsonObject = serde_json::Map<String, serde_json::Value>;

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// Its text; one that calls tools may have none.
    pub content: Option<String>,
    /// What else the template may look for, such as `tool_calls`.
    pub fields: JsonObject,
}

impl ChatMessage {
    /// A message of text alone.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(content.into()), fields: JsonObject::new() }
    }
}

/// What a template makes a prompt of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conversation<'a> {
    /// The messages, in order.
    pub messages: &'a [ChatMessage],
    /// Tools that the model may call, as templates want them: `{type, function}` objects.
    pub tools: &'a [JsonObject],
    /// Documents that the model may look at.
    pub documents: &'a [JsonObject],
    /// Whether the prompt goes on to where the model answers.
    pub add_generation_prompt: bool,
}

/// A model's chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    bos_text: String,
    eos_text: String,
}

impl ChatTemplate {
    /// Longest template source; the longest real ones have some 20 KB.
    pub const SOURCE_BYTES_MAX: usize = 1 << 20;

    /// Compiles a template.
    ///
    /// `bos_text` and `eos_text` are the texts of the model's BOS and EOS, the template's
    /// `bos_token` and `eos_token`; empty where the model has none.
    ///
    /// # Errors
    /// [`ChatError::TooLarge`] and [`ChatError::Syntax`].
    pub fn new(source: &str, bos_text: &str, eos_text: &str) -> Result<Self, ChatError> {
        if source.len() > Self::SOURCE_BYTES_MAX {
            let (bytes, limit) = (source.len(), Self::SOURCE_BYTES_MAX);
            return Err(ChatError::TooLarge { bytes, limit });
        }
        let source = without_generation_tags(source);
        on_own_stack(|| {
            // Compiled to see whether it can be; a rendering compiles it again, in a millisecond.
            compile(&source).map(drop).map_err(|error| {
                let line = error.line().unwrap_or(0);
                ChatError::Syntax { line, detail: detail(&error) }
            })
        })??;
        Ok(Self { source, bos_text: bos_text.to_owned(), eos_text: eos_text.to_owned() })
    }

    /// The prompt of messages alone.
    ///
    /// # Errors
    /// As [`Self::render_conversation`].
    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let conversation = Conversation { messages, add_generation_prompt, ..Default::default() };
        self.render_conversation(&conversation)
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// The template refuses the messages, fails, takes too long, or makes no use of the tools or
    /// the documents: the model would not know of them.
    pub fn render_conversation(&self, conversation: &Conversation) -> Result<String, ChatError> {
        let prompt = self.render_as_it_is(conversation)?;
        let without_tools = Conversation { tools: &[], ..*conversation };
        let without_documents = Conversation { documents: &[], ..*conversation };
        for (given, what, without) in [
            (conversation.tools, "tools", without_tools),
            (conversation.documents, "documents", without_documents),
        ] {
            if !given.is_empty() && self.render_as_it_is(&without).as_ref() == Ok(&prompt) {
                return Err(ChatError::Unused { what });
            }
        }
        Ok(prompt)
    }

    fn render_as_it_is(&self, conversation: &Conversation) -> Result<String, ChatError> {
        on_own_stack(|| {
            let messages: Value = conversation.messages.iter().map(message_value).collect();
            let variables = context! {
                messages,
                add_generation_prompt => conversation.add_generation_prompt,
                bos_token => self.bos_text.as_str(),
                eos_token => self.eos_text.as_str(),
                tools => objects_value(conversation.tools),
                documents => objects_value(conversation.documents),
            };
            evaluate(&self.source, variables).map_err(|error| render_error(&error))
        })?
    }

    /// Whether a rendered prompt begins with BOS already, so that none is to be added.
    #[must_use]
    pub fn template_adds_bos(&self, rendered: &str) -> bool {
        !self.bos_text.is_empty() && rendered.starts_with(&self.bos_text)
    }
}

fn message_value(message: &ChatMessage) -> Value {
    let mut fields = JsonObject::new();
    fields.insert("role".to_owned(), message.role.as_str().into());
    fields.insert("content".to_owned(), message.content.as_deref().into());
    fields.extend(message.fields.clone());
    Value::from(Serde(fields))
}

/// None where there are no objects: templates ask whether there are tools at all.
fn objects_value(objects: &[JsonObject]) -> Value {
    if objects.is_empty() { Value::from(()) } else { Value::from(Serde(objects)) }
}

type Blocks<'a> = std::collections::BTreeMap<&'a str, machinery::Instructions<'a>>;

/// Parses a template, puts the tolls in, and compiles it.
fn compile(source: &str) -> Result<(machinery::Instructions<'_>, Blocks<'_>), minijinja::Error> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let syntax = syntax.expect("the default delimiters are valid");
    let tree = toll::stmt(&machinery::parse(source, NAME, syntax)?);
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&tree);
    Ok(generator.finish())
}

/// Runs a template.
fn evaluate(source: &str, variables: Value) -> Result<String, minijinja::Error> {
    let (instructions, blocks) = compile(source)?;
    let mut env = Environment::new();
    env.set_fuel(Some(STEPS_MAX));
    functions::add_to(&mut env);
    operators::add_to(&mut env);
    let mut text = String::new();
    let mut out = machinery::make_string_output(&mut text);
    machinery::eval(&env, &instructions, variables, &blocks, &mut out, AutoEscape::None)?;
    drop(out);
    Ok(text)
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
