//! Text to tokens and back, and messages to text: away from the tasks that serve the sockets,
//! because a long text takes its time.

use std::sync::Arc;

use serde_json::json;
use tokio::task::spawn_blocking;
use tracing::error;

use super::conversation::Conversation;
use crate::chat::{ChatError, ChatTemplate};
use crate::engine::{AdmitError, EngineHandle};
use crate::protocol::{ErrorCode, ErrorObject};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ErrorObject> + Send + 'static,
) -> Result<T, ErrorObject> {
    spawn_blocking(work).await.unwrap_or_else(|failure| {
        error!(panicked = failure.is_panic(), "a text could not be worked on");
        Err(ErrorObject::new(ErrorCode::INTERNAL, "the daemon failed; its log says more"))
    })
}

/// Tokens of a text.
///
/// # Errors
/// The tokenizer refuses the text.
pub async fn encode(
    engine: &EngineHandle,
    text: String,
    add_special: bool,
    parse_special: bool,
) -> Result<Vec<u32>, ErrorObject> {
    let tokenizer = Arc::clone(&engine.tokenizer);
    blocking(move || tokenizer.encode(&text, add_special, parse_special).map_err(tokenizer_failed))
        .await
}

/// A text to embed.
#[derive(Debug)]
pub struct EncodedText {
    /// As many tokens as the context holds.
    pub tokens: Vec<u32>,
    /// All that there were.
    pub tokens_whole: usize,
    /// Some were left out.
    pub truncated: bool,
}

/// Tokens of texts to embed. Of a text that is longer than the context the end is left out, but not
/// the token that the model wants behind it.
///
/// # Errors
/// The tokenizer refuses a text.
pub async fn encode_all(
    engine: &EngineHandle,
    texts: Vec<String>,
    tokens_max: usize,
) -> Result<Vec<EncodedText>, ErrorObject> {
    let tokenizer = Arc::clone(&engine.tokenizer);
    let encode = move |text: &String| {
        let mut tokens = tokenizer.encode(text, true, false).map_err(tokenizer_failed)?;
        let tokens_whole = tokens.len();
        let truncated = tokens_whole > tokens_max;
        if truncated {
            let end = tokenizer.added_end();
            tokens.truncate(tokens_max - usize::from(end.is_some()));
            tokens.extend(end);
        }
        Ok(EncodedText { tokens, tokens_whole, truncated })
    };
    blocking(move || texts.iter().map(encode).collect()).await
}

/// Text of tokens; control tokens show as their text.
///
/// # Errors
/// A token that the vocabulary lacks.
pub async fn decode(engine: &EngineHandle, tokens: Vec<u32>) -> Result<String, ErrorObject> {
    let tokenizer = Arc::clone(&engine.tokenizer);
    blocking(move || tokenizer.decode(&tokens, true).map_err(tokenizer_failed)).await
}

/// The prompt of a conversation, up to where the model answers.
///
/// # Errors
/// There is no template, or it refuses the messages.
pub async fn render(
    engine: &EngineHandle,
    conversation: Conversation,
) -> Result<String, ErrorObject> {
    let chat = template(engine)?;
    blocking(move || render_now(&chat, conversation)).await
}

/// Tokens of a conversation. A template may write BOS itself; then none is added.
///
/// # Errors
/// There is no template, or it or the tokenizer refuses the messages.
pub async fn encode_conversation(
    engine: &EngineHandle,
    conversation: Conversation,
) -> Result<Vec<u32>, ErrorObject> {
    let chat = template(engine)?;
    let tokenizer = Arc::clone(&engine.tokenizer);
    blocking(move || {
        let prompt = render_now(&chat, conversation)?;
        let add_special = !begins_with_bos(&tokenizer, &prompt);
        tokenizer.encode(&prompt, add_special, true).map_err(tokenizer_failed)
    })
    .await
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

fn render_now(chat: &ChatTemplate, conversation: Conversation) -> Result<String, ErrorObject> {
    let conversation = conversation.adapted_to(chat);
    chat.render_conversation(&conversation.as_chat()).map_err(template_failed)
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
        TokenizerError::TextTooLong { bytes, limit } => {
            ErrorObject::new(ErrorCode::TOKENIZER_FAILED, message)
                .with_data(json!({"bytes": bytes, "limit": limit}))
        }
        _ => ErrorObject::new(ErrorCode::TOKENIZER_FAILED, message),
    }
}
