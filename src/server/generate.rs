//! `generate`: from parameters to the engine's request, and from its events to replies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tracing::debug;

use super::connection::Connection;
use super::conversation::Conversation;
use super::methods::{engine_stopped, enqueue, out_of_range};
use super::sessions::{act, find_session, read_lora};
use super::{constraints, shift, text};
use crate::config::SamplingOverrides;
use crate::engine::{
    AdmitError, CancelFlag, Constraints, EngineCommand, EngineEvent, EngineHandle, GenerateRequest,
    PENALTY_TOKENS, SamplingParams, SessionAction, TokenLogprob,
};
use crate::protocol::{
    self, ErrorObject, GenerateParams, GenerateToken, LOGPROBS_MAX, MAX_TOKENS_DEFAULT,
    OnContextFull, RequestId, STOP_TEXTS_MAX, method,
};

/// Longest stop text; the engine holds back as much of the text.
const STOP_TEXT_BYTES_MAX: usize = 1024;

/// Longest `deadline_ms`: a day.
const DEADLINE_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// Form of the prompt.
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Messages(Conversation),
}

/// Runs a generation, sending its tokens on as they come where asked for.
pub(super) async fn generate(
    connection: &Arc<Connection>,
    id: &RequestId,
    params: GenerateParams,
    cancel: &CancelFlag,
) -> Result<protocol::GenerateResult, ErrorObject> {
    let on_context_full = params.on_context_full.unwrap_or_default();
    let mut model = params.model.clone();
    let sampling = sampling(&params)?;
    let grammar = constraints::read_grammar(&params)?;
    let (prompt, session, mut request) = read(connection, params, cancel)?;
    if let Some(session) = session {
        let (found, session) = find_session(connection, session, model.as_deref()).await?;
        request.session = Some(session);
        model = Some(found.name.clone());
    }
    let model = connection.model(id, model.as_deref()).await?;
    let engine: &EngineHandle = &model;
    request.sampling = request.sampling.beside(engine.model.sampling.with(sampling));
    request.constraints.grammar =
        constraints::compile(engine, connection.owner.uid, grammar, cancel).await?;
    let mut shifted = None;
    let job = connection.job(cancel);
    let context_tokens = Some(engine.model.context_tokens);
    request.tokens = match (prompt, on_context_full) {
        (Prompt::Text(prompt), _) => {
            text::encode_prompt(&job, engine, prompt, context_tokens).await?
        }
        (Prompt::Tokens(tokens), _) => tokens,
        (Prompt::Messages(conversation), OnContextFull::Error) => {
            text::encode_conversation(&job, engine, conversation, context_tokens).await?
        }
        (Prompt::Messages(conversation), OnContextFull::Shift) => {
            let context_tokens = match request.session {
                Some(id) => act(connection, engine, id, SessionAction::Info).await?.context_tokens,
                None => engine.model.context_tokens,
            };
            let fitted =
                shift::fit(&job, engine, conversation, context_tokens, request.tokens_max).await?;
            shifted = fitted.1;
            fitted.0
        }
    };
    check_reply(&request, connection.shared.options.outgoing_bytes_max)?;
    let (events, mut incoming) = mpsc::unbounded_channel();
    let limits = (cancel, request.deadline);
    let command = EngineCommand::Generate { request: Box::new(request), events };
    enqueue(engine, connection.owner, command, limits).await?;
    while let Some(event) = incoming.recv().await {
        match event {
            EngineEvent::Started { .. } => {}
            EngineEvent::Token { text, token, logprob } => {
                connection.notify(method::GENERATE_TOKEN, &notification(id, text, token, logprob));
            }
            EngineEvent::Done(result) => {
                log_end(connection.owner.uid, &result);
                return Ok(protocol::GenerateResult { shifted, ..(*result).into() });
            }
            EngineEvent::Refused(error) => return Err(error.into()),
        }
    }
    Err(engine_stopped())
}

/// Logs the end of a generation: counts and times, never text.
pub fn log_end(uid: u32, result: &crate::engine::GenerateResult) {
    debug!(
        uid,
        finish_reason = ?result.finish_reason,
        prompt_tokens = result.prompt_tokens,
        cached_tokens = result.cached_tokens,
        completion_tokens = result.tokens.len(),
        queue_ms = result.timings.queue_ms,
        prefill_ms = result.timings.prefill_ms,
        decode_ms = result.timings.decode_ms,
        "generated",
    );
}

/// Refuses log probabilities of a prompt that no reply has room for.
fn check_reply(request: &GenerateRequest, bytes_max: usize) -> Result<(), ErrorObject> {
    /// Of `{"id":1,"logprob":-1,"top":[]},` and of `[1,-1],`.
    const TOKEN_BYTES_MIN: usize = 30;
    const TOP_BYTES_MIN: usize = 7;
    let Some(top) = request.prompt_logprobs else { return Ok(()) };
    let bytes_min = request.tokens.len() * (TOKEN_BYTES_MIN + top as usize * TOP_BYTES_MIN);
    if bytes_min > bytes_max { Err(text::reply_too_large(bytes_max)) } else { Ok(()) }
}

fn notification(
    id: &RequestId,
    text: String,
    token: u32,
    logprob: Option<TokenLogprob>,
) -> GenerateToken {
    let logprob = logprob.map(protocol::TokenLogprob::from);
    let (logprob, top) = logprob.map(|item| (item.logprob, item.top)).unzip();
    GenerateToken { id: id.clone(), text, token, logprob, top }
}

/// Sampling settings of the request, checked against their ranges.
fn sampling(params: &GenerateParams) -> Result<SamplingOverrides, ErrorObject> {
    let sampling = SamplingOverrides {
        temperature: params.temperature,
        top_k: params.top_k,
        top_p: params.top_p,
        min_p: params.min_p,
        repeat_penalty: params.repeat_penalty,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
    };
    let typical_p = params.typical_p.unwrap_or(1.0);
    let checked = SamplingParams { typical_p, ..SamplingParams::default().with(sampling) };
    checked.check().map_err(AdmitError::Sampling)?;
    Ok(sampling)
}

type ReadParams = (Prompt, Option<protocol::SessionRef>, GenerateRequest);

/// Checks the other parameters. The request's tokens, session and most of its sampling come later.
fn read(
    connection: &Connection,
    params: GenerateParams,
    cancel: &CancelFlag,
) -> Result<ReadParams, ErrorObject> {
    check_for_messages(&params)?;
    let stop = params.stop.unwrap_or_default().0;
    check_stop(&stop)?;
    for (field, count) in
        [("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)]
    {
        if let Some(found) = count.filter(|count| *count > LOGPROBS_MAX) {
            return Err(out_of_range(field, format!("0 to {LOGPROBS_MAX}"), found));
        }
    }
    let repeat_last_n = match params.repeat_last_n {
        None => PENALTY_TOKENS,
        Some(-1) => u32::MAX,
        Some(found) => u32::try_from(found)
            .map_err(|_| out_of_range("repeat_last_n", "an integer from -1", found))?,
    };
    let ignore_eos = params.ignore_eos.unwrap_or(false);
    let constraints = Constraints { ignore_eos, ..constraints::read_bias(params.logit_bias)? };
    let adapters = read_lora(params.lora)?;
    if params.session.is_some() && !adapters.is_empty() {
        let wanted = "none beside session, which has its own since it was created";
        return Err(out_of_range("lora", wanted, format_args!("{} of them", adapters.len())));
    }
    let deadline = read_deadline(params.deadline_ms)?;
    let conversation = params
        .messages
        .map(|messages| {
            let variables = params.chat_template_kwargs;
            Conversation::read(messages, params.tools, params.documents, variables)
        })
        .transpose()?;
    let prompt = one_prompt(params.prompt, params.tokens, conversation)?;
    let request = GenerateRequest {
        owner: connection.owner,
        session: None,
        tokens: Vec::new(),
        tokens_max: params.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT),
        sampling: SamplingParams {
            repeat_last_n,
            typical_p: params.typical_p.unwrap_or(1.0),
            min_keep: params.min_keep.unwrap_or(0),
            seed: params.seed,
            ..SamplingParams::default()
        },
        stop,
        logprobs: params.logprobs,
        prompt_logprobs: params.prompt_logprobs,
        stream: params.stream.unwrap_or(false),
        report_start: false,
        adapters,
        priority: params.priority.map(Into::into),
        deadline,
        cancel: cancel.clone(),
        constraints,
    };
    Ok((prompt, params.session, request))
}

/// Refuses, for other prompts, what only messages can have.
fn check_for_messages(params: &GenerateParams) -> Result<(), ErrorObject> {
    if params.messages.is_some() {
        return Ok(());
    }
    let shifts = params.on_context_full == Some(OnContextFull::Shift);
    for (field, given) in [
        ("on_context_full", shifts),
        ("tools", params.tools.is_some()),
        ("documents", params.documents.is_some()),
        ("chat_template_kwargs", params.chat_template_kwargs.is_some()),
    ] {
        if given {
            return Err(out_of_range(field, "messages with it", "a prompt that has none"));
        }
    }
    Ok(())
}

/// The time of a `deadline_ms`.
pub(super) fn read_deadline(deadline_ms: Option<u64>) -> Result<Option<Instant>, ErrorObject> {
    match deadline_ms {
        Some(found) if !(1..=DEADLINE_MS_MAX).contains(&found) => {
            Err(out_of_range("deadline_ms", format!("1 to {DEADLINE_MS_MAX}"), found))
        }
        deadline_ms => Ok(deadline_ms.map(|ms| Instant::now() + Duration::from_millis(ms))),
    }
}

fn one_prompt(
    prompt: Option<String>,
    tokens: Option<Vec<u32>>,
    messages: Option<Conversation>,
) -> Result<Prompt, ErrorObject> {
    match (prompt, tokens, messages) {
        (Some(prompt), None, None) => Ok(Prompt::Text(prompt)),
        (None, Some(tokens), None) => Ok(Prompt::Tokens(tokens)),
        (None, None, Some(messages)) => Ok(Prompt::Messages(messages)),
        (prompt, tokens, messages) => {
            let given =
                [prompt.map(|_| "prompt"), tokens.map(|_| "tokens"), messages.map(|_| "messages")];
            let given: Vec<&str> = given.into_iter().flatten().collect();
            let found = match given.is_empty() {
                true => "none of them".to_owned(),
                false => given.join(" and "),
            };
            Err(out_of_range("prompt", "exactly one of prompt, tokens and messages", found))
        }
    }
}

fn check_stop(stop: &[String]) -> Result<(), ErrorObject> {
    if stop.len() > STOP_TEXTS_MAX {
        let wanted = format!("at most {STOP_TEXTS_MAX} texts");
        return Err(out_of_range("stop", wanted, format_args!("{} texts", stop.len())));
    }
    let wrong = stop.iter().find(|text| !(1..=STOP_TEXT_BYTES_MAX).contains(&text.len()));
    match wrong {
        None => Ok(()),
        Some(text) => {
            let wanted = format!("texts of 1 to {STOP_TEXT_BYTES_MAX} bytes");
            Err(out_of_range("stop", wanted, format_args!("one of {} bytes", text.len())))
        }
    }
}
