//! OpenAI's `/v1/responses`.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::call::{Call, fresh_id};
use super::caller::Caller;
use super::conversation::{self, Event, Finished, Input, Running};
use super::error::{Failure, Shape};
use super::reply::{Gone, Reply, Sink};
use super::responses_events::Making;
use super::responses_request::{self as request, Request};
use super::responses_store::Stored;
use super::router::{Route, Verb};
use crate::chat::ChatMessage;

pub(super) const ROUTES: &[Route] = &[
    Route::new(Verb::Post, &["/v1/responses", "/responses"], Shape::OpenAi, |call| {
        Box::pin(create(call))
    }),
    Route::new(
        Verb::Post,
        &["/v1/responses/input_tokens", "/responses/input_tokens"],
        Shape::OpenAi,
        |call| Box::pin(input_tokens(call)),
    ),
    Route::new(Verb::Get, &["/v1/responses/{id}", "/responses/{id}"], Shape::OpenAi, |call| {
        Box::pin(retrieve(call))
    }),
    Route::new(Verb::Delete, &["/v1/responses/{id}", "/responses/{id}"], Shape::OpenAi, |call| {
        Box::pin(delete(call))
    }),
    Route::new(
        Verb::Get,
        &["/v1/responses/{id}/input_items", "/responses/{id}/input_items"],
        Shape::OpenAi,
        |call| Box::pin(input_items(call)),
    ),
];

async fn create(call: Call) -> Result<Reply, Failure> {
    let mut request = request::read(&call.json()?)?;
    if request.messages.is_empty() && request.previous.is_none() {
        let message = "field \"input\" is missing: wanted a string or an array of items";
        return Err(Failure::invalid("input", message));
    }
    let messages = history(&call.caller, &mut request)?;
    let running = conversation::start(&call.caller, request.task.clone()).await?;
    let model = running.model.name.clone();
    let custom = std::mem::take(&mut request.custom_tools);
    let making = Making::new(model, std::mem::take(&mut request.echo), custom);
    let keeping = request.store.then(|| Keeping {
        caller: call.caller.clone(),
        input_items: std::mem::take(&mut request.input_items),
        messages,
    });
    if request.stream {
        let silence = call.caller.state.times.silence;
        return Ok(call.events(move |sink| stream(sink, running, making, keeping, silence)));
    }
    Ok(Reply::json(&whole(running, making, keeping).await?))
}

/// Completes the task's input: instructions, what was said before, and the request's own. What is
/// returned is the same without the instructions, which hold for one request.
fn history(caller: &Caller, request: &mut Request) -> Result<Vec<ChatMessage>, Failure> {
    let mut messages = match &request.previous {
        None => Vec::new(),
        Some(id) => find_previous(caller, id)?,
    };
    messages.append(&mut request.messages);
    let instructions = request.instructions.iter().filter(|text| !text.is_empty());
    let instructions = instructions.map(|text| ChatMessage::new("system", text.as_str()));
    request.task.input = Input::Messages(instructions.chain(messages.iter().cloned()).collect());
    Ok(messages)
}

fn find_previous(caller: &Caller, id: &str) -> Result<Vec<ChatMessage>, Failure> {
    let stored = caller.state.responses.get(caller.owner.uid, id);
    stored.map(|stored| stored.messages.clone()).ok_or_else(|| {
        let message = "there is no response of the id in \"previous_response_id\"";
        Failure::invalid("previous_response_id", message).with_code("previous_response_not_found")
    })
}

async fn input_tokens(call: Call) -> Result<Reply, Failure> {
    let mut request = request::read(&call.json()?)?;
    history(&call.caller, &mut request)?;
    let tokens = conversation::count(&call.caller, request.task).await?;
    Ok(Reply::json(&json!({"object": "response.input_tokens", "input_tokens": tokens})))
}

/// What is needed to keep a response.
struct Keeping {
    caller: Caller,
    input_items: Vec<Value>,
    messages: Vec<ChatMessage>,
}

impl Keeping {
    fn keep(self, making: &Making, finished: &Finished) {
        let Self { caller, mut input_items, mut messages } = self;
        for item in &mut input_items {
            if item["id"].is_null() {
                item["id"] = fresh_id("msg_").into();
            }
        }
        messages.extend(making.messages());
        let (id, response) = (making.id.clone(), making.whole(finished));
        let stored = Stored { id, response, input_items, messages };
        caller.state.responses.put(caller.owner.uid, stored);
    }
}

async fn whole(
    mut running: Running,
    mut making: Making,
    keeping: Option<Keeping>,
) -> Result<Value, Failure> {
    let mut end = Finished::default();
    while let Some(event) = running.next().await {
        let event = event?;
        making.take(&event);
        if let Event::Finished(finished) = event {
            end = *finished;
        }
    }
    if let Some(keeping) = keeping {
        keeping.keep(&making, &end);
    }
    Ok(making.whole(&end))
}

async fn stream(
    mut sink: Sink,
    mut running: Running,
    mut making: Making,
    mut keeping: Option<Keeping>,
    silence: Duration,
) -> Result<(), Gone> {
    for (name, data) in making.begin() {
        sink.event(name, &data)?;
    }
    loop {
        // Codex does not count comments as signs of life.
        let event = match timeout(silence, running.next()).await {
            Err(_) => {
                let (name, data) = making.in_progress();
                sink.event(name, &data)?;
                continue;
            }
            Ok(None) => return Ok(()),
            Ok(Some(Err(failure))) => {
                let (name, data) = making.fail(&failure);
                return sink.event(name, &data);
            }
            Ok(Some(Ok(event))) => event,
        };
        for (name, data) in making.take(&event) {
            sink.event(name, &data)?;
        }
        if let Event::Finished(finished) = event {
            // Before the event: who has read it may go on from there.
            if let Some(keeping) = keeping.take() {
                keeping.keep(&making, &finished);
            }
            let (name, data) = making.end(&finished);
            sink.event(name, &data)?;
        }
    }
}

fn find(call: &Call) -> Result<std::sync::Arc<Stored>, Failure> {
    let id = call.param("id");
    let found = call.caller.state.responses.get(call.caller.owner.uid, id);
    found.ok_or_else(unknown)
}

fn unknown() -> Failure {
    Failure::not_found("response_not_found", "there is no response of this id")
}

async fn retrieve(call: Call) -> Result<Reply, Failure> {
    Ok(Reply::json(&find(&call)?.response))
}

async fn delete(call: Call) -> Result<Reply, Failure> {
    let id = call.param("id");
    match call.caller.state.responses.remove(call.caller.owner.uid, id) {
        true => Ok(Reply::json(&json!({"id": id, "object": "response", "deleted": true}))),
        false => Err(unknown()),
    }
}

async fn input_items(call: Call) -> Result<Reply, Failure> {
    let stored = find(&call)?;
    let items = &stored.input_items;
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    Ok(Reply::json(&json!({
        "object": "list",
        "data": items,
        "first_id": id(items.first()),
        "last_id": id(items.last()),
        "has_more": false,
    })))
}
