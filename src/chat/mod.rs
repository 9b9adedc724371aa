//! Chat templates: messages to the prompt text a model was trained on.
//!
//! Templates come with the model file, in the Jinja of Python's transformers, or by name. They are
//! untrusted programs, and `jinja` runs them: in steps, memory, time and nesting each rendering
//! is limited, and its caller can cancel it. This module knows nothing of tokens.

mod error;
mod fuzz;
mod jinja;
mod named;
mod shape;

#[cfg(test)]
mod tests;

pub use error::ChatError;
pub use fuzz::fuzz_template;
pub use named::{named_template, template_names};

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use jinja::{Fault, Limits, Program};
use serde_json::Value as Json;
use shape::Shape;

/// Most steps of a rendering: expressions and statements, and pieces of data.
const STEPS_MAX: u64 = 4_000_000;

/// Most memory of the values of a rendering, beside eight times what it is given.
const BYTES_MAX: u64 = 32 << 20;

/// Longest time of a rendering. The steps end it in a second or two; this is for a machine that
/// does not get to them.
const SECONDS_MAX: u64 = 30;

/// Stack of a rendering, of which the limits on nesting let it use a part.
const STACK_BYTES: usize = 16 << 20;

/// Objects of JSON: what templates take beside texts.
pub type JsonObject = serde_json::Map<String, Json>;

/// The content of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// The message has none.
    #[default]
    Absent,
    /// It is null.
    Null,
    /// A text.
    Text(String),
    /// Parts, as OpenAI has them: `{type: "text", text}` and others.
    Parts(Vec<JsonObject>),
}

impl Content {
    /// Its text, or the texts of its parts, one on each line.
    #[must_use]
    pub fn into_text(self) -> Option<String> {
        match self {
            Self::Absent | Self::Null => None,
            Self::Text(text) => Some(text),
            Self::Parts(parts) => {
                let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                Some(texts.collect::<Vec<_>>().join("\n"))
            }
        }
    }
}

impl Content {
    /// Bytes of its text, or of its parts as JSON.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Absent | Self::Null => 0,
            Self::Text(text) => text.len(),
            Self::Parts(parts) => {
                parts.iter().flat_map(JsonObject::values).map(|part| part.to_string().len()).sum()
            }
        }
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What it says; one that calls tools may say nothing.
    pub content: Content,
    /// What else the template may look for, such as `tool_calls` and `reasoning_content`.
    pub fields: JsonObject,
}

impl ChatMessage {
    /// A message of text alone.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        let content = Content::Text(content.into());
        Self { role: role.into(), content, fields: JsonObject::new() }
    }

    fn json(&self) -> Json {
        let mut fields = JsonObject::new();
        fields.insert("role".to_owned(), self.role.as_str().into());
        match &self.content {
            Content::Absent => {}
            Content::Null => drop(fields.insert("content".to_owned(), Json::Null)),
            Content::Text(text) => drop(fields.insert("content".to_owned(), text.as_str().into())),
            Content::Parts(parts) => {
                fields.insert("content".to_owned(), parts.clone().into());
            }
        }
        fields.extend(self.fields.clone());
        fields.into()
    }
}

/// Input of a template.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conversation<'a> {
    /// The messages, in order.
    pub messages: &'a [ChatMessage],
    /// Tools that the model may call, as templates want them: `{type, function}` objects.
    pub tools: &'a [JsonObject],
    /// Documents that the model may look at.
    pub documents: &'a [JsonObject],
    /// Further variables of the template, such as `enable_thinking`: `chat_template_kwargs`.
    pub variables: Option<&'a JsonObject>,
    /// True if the prompt goes on to where the model answers.
    pub add_generation_prompt: bool,
}

/// A model's chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    program: Program,
    /// The template for conversations with tools, where the model has one of its own.
    with_tools: Option<Program>,
    bos_text: String,
    eos_text: String,
    shape: Arc<OnceLock<Shape>>,
    source: Arc<str>,
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
        Ok(Self {
            program: compile(source)?,
            with_tools: None,
            bos_text: bos_text.to_owned(),
            eos_text: eos_text.to_owned(),
            shape: Arc::default(),
            source: source.into(),
        })
    }

    /// The same with a template of its own for conversations with tools.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_tool_use(mut self, source: &str) -> Result<Self, ChatError> {
        self.with_tools = Some(compile(source)?);
        self.source = [&*self.source, source].join("\n").into();
        Ok(self)
    }

    /// The source, with that of the template for tools behind it: marks of the model's formats are
    /// looked for in it.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
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
    /// The template refuses the messages, fails, takes too much, or makes no use of the tools or
    /// the documents: the model would not know of them.
    pub fn render_conversation(&self, conversation: &Conversation) -> Result<String, ChatError> {
        self.render_unless(conversation, &|| false)
    }

    /// As [`Self::render_conversation`], and ends when `cancelled` says so.
    ///
    /// # Errors
    /// As [`Self::render_conversation`], and [`ChatError::Cancelled`].
    pub fn render_unless(
        &self,
        conversation: &Conversation,
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<String, ChatError> {
        let prompt = self.render_as_it_is(conversation, cancelled)?;
        let without_tools = Conversation { tools: &[], ..*conversation };
        let without_documents = Conversation { documents: &[], ..*conversation };
        for (given, what, without) in [
            (conversation.tools, "tools", without_tools),
            (conversation.documents, "documents", without_documents),
        ] {
            if given.is_empty() {
                continue;
            }
            match self.render_as_it_is(&without, cancelled) {
                Err(ChatError::Cancelled) => return Err(ChatError::Cancelled),
                Ok(other) if other == prompt => return Err(ChatError::Unused { what }),
                _ => {}
            }
        }
        Ok(prompt)
    }

    fn render_as_it_is(
        &self,
        conversation: &Conversation,
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<String, ChatError> {
        let messages = Json::Array(conversation.messages.iter().map(ChatMessage::json).collect());
        let objects = |objects: &[JsonObject]| match objects {
            [] => Json::Null,
            _ => Json::Array(objects.iter().cloned().map(Json::Object).collect()),
        };
        let (tools, documents) = (objects(conversation.tools), objects(conversation.documents));
        let add = Json::Bool(conversation.add_generation_prompt);
        let (bos, eos) = (self.bos_text.as_str().into(), self.eos_text.as_str().into());
        // Those that every template has come last: no other can take their place.
        let more = conversation.variables.into_iter().flatten();
        let mut variables: Vec<(&str, &Json)> =
            more.map(|(name, value)| (name.as_str(), value)).collect();
        variables.extend([
            ("messages", &messages),
            ("tools", &tools),
            ("documents", &documents),
            ("add_generation_prompt", &add),
            ("bos_token", &bos),
            ("eos_token", &eos),
        ]);
        let program = match &self.with_tools {
            Some(with_tools) if !conversation.tools.is_empty() => with_tools,
            _ => &self.program,
        };
        let given: usize = variables.iter().map(|(_, json)| bytes_of(json)).sum();
        let bytes = BYTES_MAX + 8 * given as u64;
        let until = Instant::now() + Duration::from_secs(SECONDS_MAX);
        let limits = Limits { steps: STEPS_MAX, bytes, until, cancelled };
        on_own_stack(|| program.run(&variables, limits))?
            .map_err(|(line, fault)| render_error(line, fault, bytes))
    }

    /// Messages as this template takes them: contents in parts become texts, or texts parts, where
    /// the template knows the other alone, and arguments of calls that are texts, as OpenAI has
    /// them, become the objects that most templates want.
    #[must_use]
    pub fn adapted(&self, messages: Vec<ChatMessage>) -> Vec<ChatMessage> {
        let shape = self.shape.get_or_init(|| Shape::of(self));
        messages.into_iter().map(|message| shape.adapted(message)).collect()
    }

    /// True if a rendered prompt begins with BOS already, so that none is to be added.
    #[must_use]
    pub fn template_adds_bos(&self, rendered: &str) -> bool {
        !self.bos_text.is_empty() && rendered.starts_with(&self.bos_text)
    }
}

fn compile(source: &str) -> Result<Program, ChatError> {
    if source.len() > ChatTemplate::SOURCE_BYTES_MAX {
        let (bytes, limit) = (source.len(), ChatTemplate::SOURCE_BYTES_MAX);
        return Err(ChatError::TooLarge { bytes, limit });
    }
    let compiled = on_own_stack(|| Program::new(source))?;
    compiled.map_err(|fault| ChatError::Syntax { line: fault.line, detail: fault.detail })
}

/// Bytes that a value takes as an input, roughly.
fn bytes_of(json: &Json) -> usize {
    64 + match json {
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(bytes_of).sum(),
        Json::Object(fields) => {
            fields.iter().map(|(name, value)| 64 + name.len() + bytes_of(value)).sum()
        }
        _ => 0,
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

fn render_error(line: usize, fault: Fault, bytes: u64) -> ChatError {
    match fault {
        Fault::Raised(message) => ChatError::Refused { message },
        Fault::Steps => ChatError::TooLong { limit: STEPS_MAX },
        Fault::Memory => ChatError::TooMuchMemory { limit: bytes },
        Fault::Time => ChatError::TimedOut { seconds: SECONDS_MAX },
        Fault::Cancelled => ChatError::Cancelled,
        Fault::Failed(detail) => ChatError::Failed { line, detail },
    }
}
