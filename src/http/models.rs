//! OpenAI's and Anthropic's lists of models.

use serde_json::{Value, json};

use super::call::Call;
use super::error::{Failure, Shape};
use super::openai::now;
use super::reply::Reply;
use super::router::{Route, Verb};
use crate::protocol::ModelEntry;

pub(super) const ROUTES: &[Route] = &[
    Route::new(Verb::Get, &["/v1/models", "/models"], Shape::OpenAi, |call| Box::pin(list(call))),
    Route::new(Verb::Get, &["/v1/models/{id...}", "/models/{id...}"], Shape::OpenAi, |call| {
        Box::pin(one(call))
    }),
];

async fn list(call: Call) -> Result<Reply, Failure> {
    let models = call.caller.host.models().list().await.models;
    if call.header("anthropic-version").is_some() {
        let data: Vec<Value> = models.iter().map(anthropic_entry).collect();
        let id = |entry: Option<&Value>| entry.map_or(Value::Null, |entry| entry["id"].clone());
        let (first, last) = (id(data.first()), id(data.last()));
        return Ok(Reply::json(
            &json!({"data": data, "has_more": false, "first_id": first, "last_id": last}),
        ));
    }
    let data: Vec<Value> = models.iter().map(entry).collect();
    Ok(Reply::json(&json!({"object": "list", "data": data})))
}

async fn one(call: Call) -> Result<Reply, Failure> {
    let models = call.caller.host.models().list().await.models;
    let id = call.param("id");
    let called = |model: &&ModelEntry| model.name == id || model.aliases.iter().any(|a| a == id);
    let Some(model) = models.iter().find(called) else {
        let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
        let message = format!("no model of this name; there are {}", names.join(", "));
        return Err(Failure::not_found("model_not_found", message));
    };
    Ok(Reply::json(&match call.header("anthropic-version") {
        Some(_) => anthropic_entry(model),
        None => entry(model),
    }))
}

fn entry(model: &ModelEntry) -> Value {
    let meta = model.facts.as_ref().map(|facts| {
        json!({
            "n_vocab": facts.vocab_size,
            "n_ctx_train": facts.context_tokens_trained,
            "n_embd": facts.embedding_length,
            "n_params": facts.parameters,
            "size": facts.weights_bytes,
            "n_ctx": facts.context_tokens,
        })
    });
    json!({
        "id": model.name,
        "object": "model",
        "created": now(),
        "owned_by": "hob",
        "meta": meta,
    })
}

fn anthropic_entry(model: &ModelEntry) -> Value {
    json!({
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": "1970-01-01T00:00:00Z",
    })
}
