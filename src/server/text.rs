//! Text to tokens and back, and messages to text: away from the tasks that serve the sockets,
//! because a long text takes its time.

use std::sync::Arc;

use serde_json::json;
use tokio::task::spawn_blocking;
use tracing::error;

use super::Shared;
use super::conversation::Conversation;
use super::literal::marked;
use super::text_pool::TextPool;
use crate::chat::{ChatError, ChatTemplate};
use crate::engine::{AdmitError, CancelFlag, EngineHandle};
use crate::protocol::{ErrorCode, ErrorObject};
use crate::tokenizer::{Meter, Tokenizer, TokenizerError, without_escaped_marks};

/// Who wants text worked on, and whether they still do.
#[derive(Clone, Debug)]
pub struct Job {
    texts: TextPool,
    uid: u32,
    reply_bytes_max: usize,
    cancel: CancelFlag,
}

impl Job {
    pub(super) fn new(shared: &Shared, uid: u32, cancel: &CancelFlag) -> Self {
        Self {
            texts: shared.texts.clone(),
            uid,
            reply_bytes_max: shared.options.outgoing_bytes_max,
            cancel: cancel.clone(),
        }
    }

    /// Runs `work` on `bytes` of text on a thread that may block, when it is this user's turn. It
    /// is cancelled when the future is dropped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&CancelFlag) -> Result<T, ErrorObject> + Send + 'static,
    ) -> Result<T, ErrorObject> {
        let place = self.texts.admit(self.uid, bytes).await;
        let cancel = self.cancel.clone();
        let mut waiting = Waiting { cancel: Some(cancel.clone()) };
        let work = spawn_blocking(move || {
            let _place = place;
            match cancel.is_raised() {
                true => Err(AdmitError::Cancelled.into()),
                false => work(&cancel),
            }
        });
        let result = work.await;
        waiting.cancel = None;
        result.unwrap_or_else(|failure| {
            error!(panicked = failure.is_panic(), "a text could not be worked on");
            Err(ErrorObject::new(ErrorCode::INTERNAL, "the daemon failed; its log says more"))
        })
    }
}

/// Raises a flag if nobody waits any more.
struct Waiting {
    cancel: Option<CancelFlag>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.cancel.iter().for_each(CancelFlag::raise);
    }
}

/// Most tokens that are counted of a text to embed, unless the context holds more.
const COUNTED_TOKENS_MAX: usize = 1 << 16;

/// Least bytes of a token's id and its comma in a reply.
const ID_BYTES_MIN: usize = 2;

/// Tokens of a text for a reply, which has to fit what may wait for a client.
pub(super) async fn tokenize(
    job: &Job,
    engine: &EngineHandle,
    text: String,
    add_special: bool,
    parse_special: bool,
) -> Result<Vec<u32>, ErrorObject> {
    let limit = job.reply_bytes_max;
    let tokenizer = Arc::clone(&engine.tokenizer);
    job.run(text.len(), move |cancel| {
        if tokenizer.tokens_min(&text) * ID_BYTES_MIN > limit {
            return Err(reply_too_large(limit));
        }
        let mut tokens = Vec::new();
        let cancelled = || cancel.is_raised();
        let mut meter = Meter::new(limit / ID_BYTES_MIN, &cancelled);
        match tokenizer.encode_into(&text, add_special, parse_special, &mut meter, &mut tokens) {
            Err(TokenizerError::TooManyTokens { .. }) => Err(reply_too_large(limit)),
            result => result.map(|()| tokens).map_err(tokenizer_failed),
        }
    })
    .await
}

/// Refuses a reply that does not fit what may wait for a client.
pub(super) fn reply_too_large(limit: usize) -> ErrorObject {
    let message = format!(
        "the reply would be larger than {limit} bytes (outgoing_bytes_max); ask for less at once"
    );
    ErrorObject::new(ErrorCode::REPLY_TOO_LARGE, message).with_data(json!({"limit": limit}))
}

/// Tokens of a prompt. With a context's tokens, one whose length alone says that it does not fit is
/// refused without a closer look.
///
/// # Errors
/// The tokenizer refuses the text, or it cannot fit.
pub async fn encode_prompt(
    job: &Job,
    engine: &EngineHandle,
    text: String,
    context_tokens: Option<u32>,
) -> Result<Vec<u32>, ErrorObject> {
    let tokenizer = Arc::clone(&engine.tokenizer);
    job.run(text.len(), move |cancel| {
        if let Some(context_tokens) = context_tokens {
            check_length(&tokenizer, &text, context_tokens as usize)?;
        }
        encode_now(&tokenizer, &text, true, None, cancel)
    })
    .await
}

fn check_length(
    tokenizer: &Tokenizer,
    text: &str,
    context_tokens: usize,
) -> Result<(), ErrorObject> {
    let least = tokenizer.tokens_min(text);
    if least <= context_tokens {
        return Ok(());
    }
    let bytes = text.len();
    let message = format!(
        "a prompt of {bytes} bytes has at least {least} tokens; the context holds {context_tokens}"
    );
    Err(ErrorObject::new(ErrorCode::CONTEXT_FULL, message)
        .with_data(json!({"prompt_tokens": least, "context_tokens": context_tokens})))
}

fn encode_now(
    tokenizer: &Tokenizer,
    text: &str,
    add_special: bool,
    mark: Option<char>,
    cancel: &CancelFlag,
) -> Result<Vec<u32>, ErrorObject> {
    let mut tokens = Vec::new();
    let cancelled = || cancel.is_raised();
    let mut meter = Meter::new(usize::MAX, &cancelled);
    let encoded = match mark {
        Some(mark) => tokenizer.encode_marked(text, add_special, mark, &mut meter, &mut tokens),
        None => tokenizer.encode_into(text, add_special, true, &mut meter, &mut tokens),
    };
    encoded.map(|()| tokens).map_err(tokenizer_failed)
}

/// A text to embed.
#[derive(Debug)]
pub struct EncodedText {
    /// As many tokens as the context holds.
    pub tokens: Vec<u32>,
    /// All that there were, or at least one more than the context holds.
    pub tokens_seen: usize,
    /// Some were left out.
    pub truncated: bool,
}

/// Tokens of texts to embed. Of a text that is longer than the context the end is left out, but not
/// the token that the model wants behind it.
///
/// # Errors
/// The tokenizer refuses a text.
pub async fn encode_all(
    job: &Job,
    engine: &EngineHandle,
    texts: Vec<String>,
    tokens_max: usize,
) -> Result<Vec<EncodedText>, ErrorObject> {
    let tokenizer = Arc::clone(&engine.tokenizer);
    let bytes = texts.iter().map(String::len).sum();
    job.run(bytes, move |cancel| {
        let encode = |text: &String| encode_start(&tokenizer, text, tokens_max, cancel);
        texts.iter().map(encode).collect()
    })
    .await
}

fn encode_start(
    tokenizer: &Tokenizer,
    text: &str,
    tokens_max: usize,
    cancel: &CancelFlag,
) -> Result<EncodedText, ErrorObject> {
    let mut tokens = Vec::new();
    let cancelled = || cancel.is_raised();
    // An error names the length of a text of usual size; no more is counted of a longer one.
    let mut meter = Meter::new(tokens_max.max(COUNTED_TOKENS_MAX), &cancelled);
    match tokenizer.encode_into(text, true, false, &mut meter, &mut tokens) {
        Ok(()) | Err(TokenizerError::TooManyTokens { .. }) => {}
        Err(error) => return Err(tokenizer_failed(error)),
    }
    let tokens_seen = tokens.len();
    let truncated = tokens_seen > tokens_max;
    if truncated {
        let end = tokenizer.added_end();
        tokens.truncate(tokens_max - usize::from(end.is_some()));
        tokens.extend(end);
    }
    Ok(EncodedText { tokens, tokens_seen, truncated })
}

/// Text of tokens; control tokens show as their text.
///
/// # Errors
/// A token that the vocabulary lacks, or a text that no reply has room for.
pub async fn decode(
    job: &Job,
    engine: &EngineHandle,
    tokens: Vec<u32>,
) -> Result<String, ErrorObject> {
    let limit = job.reply_bytes_max;
    let tokenizer = Arc::clone(&engine.tokenizer);
    job.run(tokens.len() * size_of::<u32>(), move |_| {
        if tokenizer.text_bytes_max(&tokens) > limit {
            return Err(reply_too_large(limit));
        }
        tokenizer.decode(&tokens, true).map_err(tokenizer_failed)
    })
    .await
}

/// The prompt of a conversation, up to where the model answers.
pub(super) async fn render(
    job: &Job,
    engine: &EngineHandle,
    conversation: Conversation,
) -> Result<String, ErrorObject> {
    let chat = template(engine)?;
    let limit = job.reply_bytes_max;
    job.run(conversation.bytes(), move |cancel| {
        let prompt = render_now(&chat, conversation, cancel)?;
        if prompt.len() > limit { Err(reply_too_large(limit)) } else { Ok(prompt) }
    })
    .await
}

/// Tokens of a conversation. A template may write BOS itself; then none is added. With a context's
/// tokens, a prompt whose length alone says that it does not fit is refused.
///
/// # Errors
/// There is no template, or it or the tokenizer refuses the messages.
pub async fn encode_conversation(
    job: &Job,
    engine: &EngineHandle,
    conversation: Conversation,
    context_tokens: Option<u32>,
) -> Result<Vec<u32>, ErrorObject> {
    let chat = template(engine)?;
    let tokenizer = Arc::clone(&engine.tokenizer);
    let spells_specials = engine.model.special_tokens_in_messages;
    job.run(conversation.bytes(), move |cancel| {
        let conversation = conversation.adapted_to(&chat);
        let (conversation, mark) = match spells_specials {
            true => (conversation, None),
            false => {
                let (marked, mark) = marked(&conversation, &tokenizer).ok_or_else(no_mark)?;
                (marked, Some(mark))
            }
        };
        let prompt = render_adapted(&chat, &conversation, cancel)?;
        let prompt = match mark {
            Some(mark) => without_escaped_marks(prompt, mark),
            None => prompt,
        };
        if let Some(context_tokens) = context_tokens {
            check_length(&tokenizer, &prompt, context_tokens as usize)?;
        }
        let add_special = !begins_with_bos(&tokenizer, &prompt);
        encode_now(&tokenizer, &prompt, add_special, mark, cancel)
    })
    .await
}

fn no_mark() -> ErrorObject {
    let message = "the messages have every one of the characters U+FDD0 to U+FDEF, which are no \
                   text; leave one out";
    ErrorObject::new(ErrorCode::TEMPLATE_FAILED, message)
}

fn begins_with_bos(tokenizer: &Tokenizer, prompt: &str) -> bool {
    let bos = tokenizer.bos().and_then(|bos| tokenizer.token_text(bos));
    bos.is_some_and(|bos| !bos.is_empty() && prompt.starts_with(bos))
}

fn template(engine: &EngineHandle) -> Result<Arc<ChatTemplate>, ErrorObject> {
    engine.chat.clone().ok_or_else(|| {
        let message = "the model has no chat template; send a prompt instead of messages";
        ErrorObject::new(ErrorCode::NO_CHAT_TEMPLATE, message)
    })
}

fn render_now(
    chat: &ChatTemplate,
    conversation: Conversation,
    cancel: &CancelFlag,
) -> Result<String, ErrorObject> {
    render_adapted(chat, &conversation.adapted_to(chat), cancel)
}

fn render_adapted(
    chat: &ChatTemplate,
    conversation: &Conversation,
    cancel: &CancelFlag,
) -> Result<String, ErrorObject> {
    chat.render_unless(&conversation.as_chat(), &|| cancel.is_raised()).map_err(template_failed)
}

fn template_failed(error: ChatError) -> ErrorObject {
    ErrorObject::new(ErrorCode::TEMPLATE_FAILED, error.to_string())
}

fn tokenizer_failed(error: TokenizerError) -> ErrorObject {
    let message = error.to_string();
    match error {
        TokenizerError::UnknownToken { token, vocab_size } => {
            let vocab_size = u32::try_from(vocab_size).unwrap_or(u32::MAX);
            AdmitError::UnknownToken { token, vocab_size }.into()
        }
        TokenizerError::Cancelled => AdmitError::Cancelled.into(),
        TokenizerError::TextTooLong { bytes, limit } => {
            ErrorObject::new(ErrorCode::TOKENIZER_FAILED, message)
                .with_data(json!({"bytes": bytes, "limit": limit}))
        }
        _ => ErrorObject::new(ErrorCode::TOKENIZER_FAILED, message),
    }
}
