//! What all interfaces share: a request made plain goes in, events come out.
//!
//! [`prepare`] validates, renders and tokenizes; [`Prepared::start`] asks the engine and waits
//! until the request is let in, so that whatever is refused is refused before anything was sent;
//! [`Running`] gives the events, or collects them.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::caller::{Caller, Loading};
use super::error::Failure;
use super::scored::{Scored, scored};
use crate::chat::{ChatMessage, JsonObject};
use crate::config::SamplingOverrides;
use crate::engine::{
    AdmitError, CancelFlag, Constraints, EngineCommand, EngineEvent, FinishReason, GenerateRequest,
    GenerateResult, SamplingParams, Timings, TokenLogprob,
};
use crate::protocol::{ErrorCode, ErrorObject, LOGPROBS_MAX, STOP_TEXTS_MAX};
use crate::server::{Conversation, InUse, log_end, text};

/// Longest stop text; the engine holds back as much of the text.
const STOP_TEXT_BYTES_MAX: usize = 1024;

/// How long a request may wait for its turn before the head of its reply is sent: some clients give
/// up without one. What goes wrong later is an error in the stream.
const TURN_PATIENCE: Duration = Duration::from_secs(60);

/// A request of any interface, made plain.
#[derive(Clone, Debug, Default)]
pub(super) struct Task {
    /// The default where it is empty or absent.
    pub(super) model: Option<String>,
    pub(super) loading: Loading,
    pub(super) input: Input,
    /// `{type, function}` objects, as templates want them.
    pub(super) tools: Vec<JsonObject>,
    pub(super) tool_choice: ToolChoice,
    /// At most one call in an answer.
    pub(super) single_call: bool,
    pub(super) sampling: SamplingOverrides,
    pub(super) seed: Option<u64>,
    /// Up to the end of the context where it is absent.
    pub(super) tokens_max: Option<u32>,
    pub(super) stop: Vec<String>,
    pub(super) logprobs: Option<u32>,
    pub(super) prompt_logprobs: Option<u32>,
    pub(super) format: Format,
    pub(super) thinking: Thinking,
    /// More variables for the chat template.
    pub(super) template: JsonObject,
}

/// What a prompt is made of.
#[derive(Clone, Debug)]
pub(super) enum Input {
    Messages(Vec<ChatMessage>),
    /// The model's begin token is put before it.
    Text(String),
    /// Taken as they are.
    Tokens(Vec<u32>),
}

impl Default for Input {
    fn default() -> Self {
        Self::Messages(Vec::new())
    }
}

/// Which tools the model may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ToolChoice {
    #[default]
    Auto,
    None,
    Required,
    Named(String),
}

/// What the answer has to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Format {
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON of a schema.
    JsonSchema(serde_json::Value),
}

/// How a model that can think does so; what is absent is the template's to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Thinking {
    pub(super) on: Option<bool>,
    pub(super) effort: Option<String>,
    pub(super) tokens_max: Option<u32>,
}

/// What a running request tells.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    Reasoning(String),
    Content {
        text: String,
        /// Where asked for: tokens up to here.
        scored: Vec<Scored>,
    },
    CallStart {
        index: usize,
        id: String,
        name: String,
    },
    Arguments {
        index: usize,
        delta: String,
    },
    /// The end; nothing follows.
    Finished(Box<Finished>),
}

/// How an answer ended, and what it took.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Finished {
    pub(super) stop: Stop,
    pub(super) prompt_tokens: u32,
    /// Of these, found in a cache.
    pub(super) cached_tokens: u32,
    pub(super) completion_tokens: u32,
    /// Of these, in thoughts.
    pub(super) reasoning_tokens: u32,
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_logprobs: Option<Vec<TokenLogprob>>,
    pub(super) timings: Timings,
}

/// Why an answer ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Stop {
    /// A stop token of the model.
    #[default]
    End,
    /// `tokens_max`, or the context's end.
    Length,
    /// A stop text.
    Text(String),
    /// The model waits for what its calls return.
    Calls,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ToolCall {
    pub(super) id: String,
    pub(super) name: String,
    /// A JSON text.
    pub(super) arguments: String,
}

/// An answer, collected.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Whole {
    pub(super) content: String,
    pub(super) reasoning: String,
    pub(super) calls: Vec<ToolCall>,
    pub(super) scored: Vec<Scored>,
    pub(super) finished: Finished,
}

/// A request whose prompt is tokens.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    pub(super) model: InUse,
    pub(super) tokens: Vec<u32>,
    task: Task,
}

/// A request that the engine has let in.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) model: InUse,
    pub(super) prompt_tokens: u32,
    /// Of these, found in a cache; absent while the request waits for its turn.
    pub(super) cached_tokens: Option<u32>,
    incoming: mpsc::UnboundedReceiver<EngineEvent>,
    cancel: CancelFlag,
    stopping: tokio_util::sync::CancellationToken,
    /// Taken from the engine, not given out yet.
    ready: VecDeque<Event>,
    /// Tokens whose text is held back.
    scored: Vec<Scored>,
    uid: u32,
    ended: bool,
}

/// Validates, loads, renders and tokenizes.
pub(super) async fn prepare(caller: &Caller, task: Task) -> Result<Prepared, Failure> {
    check(&task)?;
    let model = caller.model(task.model.as_deref(), task.loading).await?;
    if !model.model.generates {
        let architecture = model.model.architecture.clone();
        return Err(ErrorObject::from(AdmitError::NoGeneration { architecture }).into());
    }
    let context_tokens = Some(model.model.context_tokens);
    let (tokens, task) = tokens(caller, &model, task, context_tokens).await?;
    Ok(Prepared { model, tokens, task })
}

/// The prompt's tokens of a task, without the model on the device: what a request would count.
pub(super) async fn count(caller: &Caller, task: Task) -> Result<usize, Failure> {
    let model = caller.model_of_text(task.model.as_deref()).await?;
    Ok(tokens(caller, &model, task, None).await?.0.len())
}

/// Prepares a task and starts it.
pub(super) async fn start(caller: &Caller, task: Task) -> Result<Running, Failure> {
    prepare(caller, task).await?.start(caller).await
}

/// The prompt's tokens. With a context's tokens, what cannot fit is refused before it is tokenized.
async fn tokens(
    caller: &Caller,
    model: &InUse,
    mut task: Task,
    context_tokens: Option<u32>,
) -> Result<(Vec<u32>, Task), Failure> {
    let job = caller.host.job(caller.owner);
    let tokens = match std::mem::take(&mut task.input) {
        Input::Text(prompt) => text::encode_prompt(&job, model, prompt, context_tokens).await?,
        Input::Tokens(tokens) => tokens,
        Input::Messages(messages) => {
            let tools = match task.tool_choice {
                ToolChoice::None => Vec::new(),
                _ => task.tools.clone(),
            };
            let conversation = Conversation::new(with_one_system(messages), tools);
            let conversation = conversation.with_variables(variables(&task));
            text::encode_conversation(&job, model, conversation, context_tokens).await?
        }
    };
    Ok((tokens, task))
}

/// The variables of the chat template that a task sets.
fn variables(task: &Task) -> JsonObject {
    let mut variables = task.template.clone();
    let on = task.thinking.on.map(serde_json::Value::from);
    let effort = task.thinking.effort.as_deref().map(serde_json::Value::from);
    for (name, value) in
        [("enable_thinking", on.clone()), ("thinking", on), ("reasoning_effort", effort)]
    {
        if let Some(value) = value {
            variables.entry(name).or_insert(value);
        }
    }
    variables
}

/// Most templates take one system message, the first: those that begin a conversation become one.
fn with_one_system(mut messages: Vec<ChatMessage>) -> Vec<ChatMessage> {
    let count = messages.iter().take_while(|message| message.role == "system").count();
    if count > 1 {
        let texts: Vec<String> =
            messages.drain(..count).filter_map(|message| message.content.into_text()).collect();
        messages.insert(0, ChatMessage::new("system", texts.join("\n\n")));
    }
    messages
}

fn check(task: &Task) -> Result<(), Failure> {
    SamplingParams::default()
        .with(task.sampling)
        .check()
        .map_err(AdmitError::Sampling)
        .map_err(|error| Failure::from(ErrorObject::from(error)))?;
    if task.format != Format::Text {
        let message = "field \"response_format\": structured output is not supported yet";
        return Err(Failure::invalid("response_format", message));
    }
    if matches!(task.tool_choice, ToolChoice::Required | ToolChoice::Named(_)) {
        let message = "field \"tool_choice\": forced calls are not supported yet";
        return Err(Failure::invalid("tool_choice", message));
    }
    let stop = &task.stop;
    if stop.len() > STOP_TEXTS_MAX {
        let message =
            format!("field \"stop\": wanted at most {STOP_TEXTS_MAX} texts, found {}", stop.len());
        return Err(Failure::invalid("stop", message));
    }
    if let Some(long) = stop.iter().find(|text| text.len() > STOP_TEXT_BYTES_MAX) {
        let (limit, found) = (STOP_TEXT_BYTES_MAX, long.len());
        let message =
            format!("field \"stop\": wanted texts of at most {limit} bytes, found {found}");
        return Err(Failure::invalid("stop", message));
    }
    if let Some(found) = task.logprobs.filter(|count| *count > LOGPROBS_MAX) {
        let message = format!("field \"top_logprobs\": wanted 0 to {LOGPROBS_MAX}, found {found}");
        return Err(Failure::invalid("top_logprobs", message));
    }
    Ok(())
}

impl Prepared {
    /// Hands the request to the engine and waits for its turn.
    pub(super) async fn start(self, caller: &Caller) -> Result<Running, Failure> {
        let Self { model, tokens, task } = self;
        let prompt_tokens = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let seed = task.seed;
        let cancel = CancelFlag::default();
        let request = GenerateRequest {
            owner: caller.owner,
            session: None,
            tokens,
            tokens_max: task.tokens_max.unwrap_or(u32::MAX),
            sampling: SamplingParams { seed, ..model.model.sampling.with(task.sampling) },
            stop: task.stop,
            logprobs: task.logprobs,
            prompt_logprobs: task.prompt_logprobs,
            stream: true,
            report_start: true,
            adapters: Vec::new(),
            priority: None,
            deadline: None,
            cancel: cancel.clone(),
            constraints: Constraints::default(),
        };
        let (events, incoming) = mpsc::unbounded_channel();
        let command = EngineCommand::Generate { request: Box::new(request), events };
        model.enqueue(caller.owner, command).await?;
        let mut running = Running {
            model,
            prompt_tokens,
            cached_tokens: None,
            incoming,
            cancel,
            stopping: caller.stopping().clone(),
            ready: VecDeque::new(),
            scored: Vec::new(),
            uid: caller.owner.uid,
            ended: false,
        };
        match timeout(TURN_PATIENCE, running.wait_for_turn()).await {
            Ok(Err(failure)) => Err(failure),
            Ok(Ok(())) | Err(_) => Ok(running),
        }
    }
}

impl Prepared {
    /// Starts several answers to one prompt, each by a seed of its own.
    pub(super) async fn start_many(
        self,
        caller: &Caller,
        count: usize,
    ) -> Result<Vec<Running>, Failure> {
        let mut all = Vec::with_capacity(count);
        for number in 0..count as u64 {
            let mut one = self.clone();
            one.task.seed = one.task.seed.map(|seed| seed.wrapping_add(number));
            all.push(one.start(caller).await?);
        }
        Ok(all)
    }
}

impl Running {
    /// Waits until the request is let in.
    pub(super) async fn wait_for_turn(&mut self) -> Result<(), Failure> {
        while self.cached_tokens.is_none() && self.ready.is_empty() {
            self.take_one().await?;
        }
        Ok(())
    }

    /// The next event; `None` behind the last.
    pub(super) async fn next(&mut self) -> Option<Result<Event, Failure>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.ended |= matches!(event, Event::Finished(_));
                return Some(Ok(event));
            }
            if self.ended {
                return None;
            }
            if let Err(failure) = self.take_one().await {
                self.ended = true;
                return Some(Err(failure));
            }
        }
    }

    /// All that is still to come.
    pub(super) async fn collect(mut self) -> Result<Whole, Failure> {
        let mut whole = Whole::default();
        while let Some(event) = self.next().await {
            match event? {
                Event::Reasoning(text) => whole.reasoning.push_str(&text),
                Event::Content { text, mut scored } => {
                    whole.content.push_str(&text);
                    whole.scored.append(&mut scored);
                }
                Event::CallStart { id, name, .. } => {
                    whole.calls.push(ToolCall { id, name, arguments: String::new() });
                }
                Event::Arguments { index, delta } => {
                    if let Some(call) = whole.calls.get_mut(index) {
                        call.arguments.push_str(&delta);
                    }
                }
                Event::Finished(finished) => whole.finished = *finished,
            }
        }
        Ok(whole)
    }

    /// Takes one event of the engine's.
    async fn take_one(&mut self) -> Result<(), Failure> {
        let event = tokio::select! {
            biased;
            event = self.incoming.recv() => event,
            () = self.stopping.cancelled() => {
                self.cancel.raise();
                self.incoming.recv().await
            }
        };
        match event {
            None => {
                let message = "the engine cannot take on requests any more";
                Err(ErrorObject::new(ErrorCode::ENGINE_STOPPED, message).into())
            }
            Some(EngineEvent::Refused(error)) => Err(ErrorObject::from(error).into()),
            Some(EngineEvent::Started { cached_tokens }) => {
                self.cached_tokens = Some(cached_tokens);
                Ok(())
            }
            Some(EngineEvent::Token { text, logprob, .. }) => {
                self.scored.extend(logprob.map(|logprob| scored(&self.model, logprob)));
                self.give_content(text);
                Ok(())
            }
            Some(EngineEvent::Done(result)) => self.finish(*result),
        }
    }

    fn give_content(&mut self, text: String) {
        if !text.is_empty() {
            let scored = std::mem::take(&mut self.scored);
            self.ready.push_back(Event::Content { text, scored });
        }
    }

    fn finish(&mut self, result: GenerateResult) -> Result<(), Failure> {
        log_end(self.uid, &result);
        let stop = match result.finish_reason {
            FinishReason::Stop => result.stop_text.map_or(Stop::End, Stop::Text),
            FinishReason::Length => Stop::Length,
            FinishReason::Cancelled => return Err(Caller::shutting_down().into()),
            FinishReason::Deadline | FinishReason::Error => {
                let error = result.error.unwrap_or_else(|| "the request failed".to_owned());
                return Err(ErrorObject::from(AdmitError::Failed(error)).into());
            }
        };
        self.cached_tokens = Some(result.cached_tokens);
        if !self.scored.is_empty() {
            let scored = std::mem::take(&mut self.scored);
            self.ready.push_back(Event::Content { text: String::new(), scored });
        }
        self.ready.push_back(Event::Finished(Box::new(Finished {
            stop,
            prompt_tokens: result.prompt_tokens,
            cached_tokens: result.cached_tokens,
            completion_tokens: u32::try_from(result.tokens.len()).unwrap_or(u32::MAX),
            reasoning_tokens: 0,
            tokens: result.tokens,
            prompt_logprobs: result.prompt_logprobs,
            timings: result.timings,
        })));
        Ok(())
    }
}
