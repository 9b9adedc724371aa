//! `embed`: from parameters to the engine's request, and from its vectors to the reply.

use tokio::sync::oneshot;
use tracing::debug;

use super::connection::Connection;
use super::generate::read_deadline;
use super::methods::{engine_stopped, enqueue, out_of_range};
use super::text;
use crate::engine::{
    AdmitError, CancelFlag, EmbedRequest, EngineCommand, EngineHandle, ModelInfo, Priority,
};
use crate::model::normalise;
use crate::protocol::{
    EMBED_TEXTS_MAX, EMBED_VALUE_BYTES, EmbedParams, EmbedResult, EmbedTimings, ErrorObject,
    Pooling, RequestId, TextEmbedding,
};

/// Most bytes of a reply for each text, its vector apart.
const TEXT_BYTES: usize = 64;

/// Embeds texts.
pub(super) async fn embed(
    connection: &Connection,
    id: &RequestId,
    params: EmbedParams,
    cancel: &CancelFlag,
) -> Result<EmbedResult, ErrorObject> {
    let model = connection.model(id, params.model.as_deref()).await?;
    let engine: &EngineHandle = &model;
    check(&params, &engine.model, connection.shared.options.outgoing_bytes_max)?;
    let deadline = read_deadline(params.deadline_ms)?;
    let context_tokens = engine.model.context_tokens as usize;
    let texts =
        text::encode_all(&connection.job(cancel), engine, params.input.0, context_tokens).await?;
    if let Some(text) = texts.iter().find(|text| text.truncated)
        && params.truncate == Some(false)
    {
        let prompt_tokens = text.tokens_seen;
        return Err(AdmitError::ContextFull { prompt_tokens, context_tokens }.into());
    }
    let (tokens, truncated): (Vec<_>, Vec<_>) =
        texts.into_iter().map(|text| (text.tokens, text.truncated)).unzip();
    let counts: Vec<usize> = tokens.iter().map(Vec::len).collect();
    let request = EmbedRequest {
        owner: connection.owner,
        texts: tokens,
        pooling: params.pooling.map(Into::into),
        priority: params.priority.map_or(Priority::default(), Into::into),
        deadline,
        cancel: cancel.clone(),
    };
    let result = ask(engine, request).await?;
    debug!(
        uid = connection.owner.uid,
        texts = counts.len(),
        tokens = counts.iter().sum::<usize>(),
        queue_ms = result.queue_ms,
        compute_ms = result.compute_ms,
        "embedded",
    );
    let whole = engine.model.embedding_length;
    let dimensions = params.dimensions.unwrap_or(whole);
    let timings = EmbedTimings::from(&result);
    let vectors = result.vectors.into_iter().map(|mut vector| {
        vector.truncate(dimensions as usize);
        if params.normalize != Some(false) {
            normalise(&mut vector);
        }
        vector
    });
    let embeddings = vectors.zip(&counts).zip(truncated).map(|((embedding, count), truncated)| {
        TextEmbedding { embedding, tokens: to_u32(*count), truncated }
    });
    Ok(EmbedResult {
        embeddings: embeddings.collect(),
        pooling: result.pooling.into(),
        dimensions,
        prompt_tokens: counts.iter().sum::<usize>() as u64,
        timings,
    })
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Texts of one request, such that two replies fit what may wait for a client.
#[must_use]
pub fn texts_max(model: &ModelInfo, outgoing_bytes_max: usize) -> usize {
    let vector_bytes = (model.embedding_length as usize).max(1) * EMBED_VALUE_BYTES + TEXT_BYTES;
    (outgoing_bytes_max / 2 / vector_bytes).clamp(1, EMBED_TEXTS_MAX)
}

fn check(
    params: &EmbedParams,
    model: &ModelInfo,
    outgoing_bytes_max: usize,
) -> Result<(), ErrorObject> {
    let (count, limit) = (params.input.0.len(), texts_max(model, outgoing_bytes_max));
    if !(1..=limit).contains(&count) {
        return Err(out_of_range("input", format!("1 to {limit} texts"), count));
    }
    if let Some(at) = params.input.0.iter().position(String::is_empty) {
        let found = format_args!("text {at}, which is empty");
        return Err(out_of_range("input", "texts that are not empty", found));
    }
    if let Some(found) = params.dimensions
        && !(1..=model.embedding_length).contains(&found)
    {
        return Err(out_of_range("dimensions", format!("1 to {}", model.embedding_length), found));
    }
    if params.pooling == Some(Pooling::Cls) && model.generates {
        let wanted = format!("mean or last, as {} reads from left to right", model.architecture);
        return Err(out_of_range("pooling", wanted, "cls"));
    }
    Ok(())
}

async fn ask(
    engine: &EngineHandle,
    request: EmbedRequest,
) -> Result<crate::engine::EmbedResult, ErrorObject> {
    let (reply, answer) = oneshot::channel();
    let (owner, cancel, deadline) = (request.owner, request.cancel.clone(), request.deadline);
    let command = EngineCommand::Embed { request: Box::new(request), reply };
    enqueue(engine, owner, command, (&cancel, deadline)).await?;
    Ok(answer.await.map_err(|_| engine_stopped())??)
}
