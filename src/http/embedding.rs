//! What interfaces with embeddings share: texts to vectors.

use tokio::sync::oneshot;

use super::caller::{Caller, Loading};
use super::error::Failure;
use crate::engine::{AdmitError, CancelFlag, EmbedRequest, EngineCommand, Priority};
use crate::model::normalise;
use crate::protocol::{ErrorCode, ErrorObject};
use crate::server::text::{self, Job};
use crate::server::{InUse, embed_texts_max};

/// What is to be embedded.
#[derive(Clone, Debug)]
pub(super) enum Input {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

impl Input {
    fn len(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Tokens(texts) => texts.len(),
        }
    }
}

/// A request of any interface, made plain.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) model: Option<String>,
    pub(super) loading: Loading,
    pub(super) input: Input,
    /// Values of a vector; all of them where it is absent.
    pub(super) dimensions: Option<u32>,
    pub(super) normalised: bool,
    /// What is longer than the context loses its end; otherwise it is refused.
    pub(super) truncate: bool,
}

/// Vectors, in the order of the texts.
#[derive(Debug)]
pub(super) struct Embedded {
    pub(super) model: InUse,
    pub(super) vectors: Vec<Vec<f32>>,
    pub(super) prompt_tokens: usize,
    pub(super) compute_ms: f64,
}

/// Embeds.
pub(super) async fn embed(caller: &Caller, task: Task) -> Result<Embedded, Failure> {
    let model = caller.model(task.model.as_deref(), task.loading).await?;
    let limit = embed_texts_max(&model.model, caller.waiting_bytes_max());
    let count = task.input.len();
    if !(1..=limit).contains(&count) {
        let message = format!("field \"input\": wanted 1 to {limit} texts, found {count}");
        return Err(Failure::invalid("input", message));
    }
    let whole = model.model.embedding_length;
    let dimensions = task.dimensions.unwrap_or(whole);
    if !(1..=whole).contains(&dimensions) {
        let message = format!("field \"dimensions\": wanted 1 to {whole}, found {dimensions}");
        return Err(Failure::invalid("dimensions", message));
    }
    let texts = tokens(&caller.host.job(caller.owner), &model, task.input, task.truncate).await?;
    let prompt_tokens = texts.iter().map(Vec::len).sum();
    let (reply, answer) = oneshot::channel();
    let request = EmbedRequest {
        owner: caller.owner,
        texts,
        pooling: None,
        priority: Priority::default(),
        deadline: None,
        cancel: CancelFlag::default(),
    };
    let command = EngineCommand::Embed { request: Box::new(request), reply };
    model.enqueue(caller.owner, command).await?;
    let stopped = || {
        let message = "the engine cannot take on requests any more";
        ErrorObject::new(ErrorCode::ENGINE_STOPPED, message)
    };
    let result = answer.await.map_err(|_| stopped())?.map_err(ErrorObject::from)?;
    let mut vectors = result.vectors;
    for vector in &mut vectors {
        vector.truncate(dimensions as usize);
        if task.normalised {
            normalise(vector);
        }
    }
    Ok(Embedded { model, vectors, prompt_tokens, compute_ms: result.compute_ms })
}

async fn tokens(
    job: &Job,
    model: &InUse,
    input: Input,
    truncate: bool,
) -> Result<Vec<Vec<u32>>, Failure> {
    let context_tokens = model.model.context_tokens as usize;
    let too_long = |prompt_tokens: usize| {
        let error = AdmitError::ContextFull { prompt_tokens, context_tokens };
        let failure = Failure::from(ErrorObject::from(error));
        let message = format!(
            "the input is too large: {prompt_tokens} tokens, the context holds {context_tokens}"
        );
        failure.with_message(message)
    };
    match input {
        Input::Texts(texts) => {
            if let Some(at) = texts.iter().position(String::is_empty) {
                let message = format!("field \"input\": text {at} is empty");
                return Err(Failure::invalid("input", message));
            }
            let texts = text::encode_all(job, model, texts, context_tokens).await?;
            match texts.iter().find(|text| text.truncated && !truncate) {
                Some(long) => Err(too_long(long.tokens_seen)),
                None => Ok(texts.into_iter().map(|text| text.tokens).collect()),
            }
        }
        Input::Tokens(mut texts) => {
            if let Some(at) = texts.iter().position(Vec::is_empty) {
                let message = format!("field \"input\": text {at} has no tokens");
                return Err(Failure::invalid("input", message));
            }
            match texts.iter().find(|text| text.len() > context_tokens) {
                Some(long) if !truncate => Err(too_long(long.len())),
                _ => {
                    texts.iter_mut().for_each(|text| text.truncate(context_tokens));
                    Ok(texts)
                }
            }
        }
    }
}
