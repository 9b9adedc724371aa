//! Anthropic's `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use serde_json::{Value, json};

use super::anthropic_request::read_task;
use super::call::{Call, fresh_id};
use super::conversation::{self, Event, Finished, Running, Stop, Whole};
use super::error::{Failure, Shape};
use super::reply::{Gone, Reply, Sink};
use super::router::{Route, Verb};

pub(super) const ROUTES: &[Route] = &[
    Route::new(Verb::Post, &["/v1/messages"], Shape::Anthropic, |call| Box::pin(messages(call))),
    Route::new(Verb::Post, &["/v1/messages/count_tokens"], Shape::Anthropic, |call| {
        Box::pin(count(call))
    }),
];

async fn messages(call: Call) -> Result<Reply, Failure> {
    let (task, streams) = {
        let fields = call.json()?;
        let task = read_task(&fields)?;
        if task.tokens_max.is_none() {
            return Err(fields.missing("max_tokens", "an integer from 1"));
        }
        (task, fields.flag("stream")?.unwrap_or(false))
    };
    let running = conversation::start(&call.caller, task).await?;
    let head = Head { id: fresh_id("msg_"), model: running.model.name.clone() };
    if streams {
        let id = call.id.clone();
        return Ok(call.events(move |sink| stream(sink, running, head, id)));
    }
    let whole = running.collect().await?;
    Ok(Reply::json(&head.whole(&whole)))
}

async fn count(call: Call) -> Result<Reply, Failure> {
    let task = read_task(&call.json()?)?;
    let tokens = conversation::count(&call.caller, task).await?;
    Ok(Reply::json(&json!({"input_tokens": tokens})))
}

struct Head {
    id: String,
    model: String,
}

impl Head {
    fn message(&self, content: Value, stop: Option<&Stop>, usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop.map(stop_reason),
            "stop_sequence": stop.and_then(stop_sequence),
            "usage": usage,
        })
    }

    fn whole(&self, whole: &Whole) -> Value {
        let mut content = Vec::new();
        if !whole.reasoning.is_empty() {
            let (thinking, signature) = (&whole.reasoning, SIGNATURE);
            content.push(json!({"type": "thinking", "thinking": thinking, "signature": signature}));
        }
        if !whole.content.is_empty() {
            content.push(json!({"type": "text", "text": whole.content}));
        }
        for call in &whole.calls {
            // What the model wrote may be cut off.
            let input = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
            content.push(tool_use(&call.id, &call.name, &input));
        }
        let finished = &whole.finished;
        self.message(content.into(), Some(&finished.stop), usage(finished))
    }
}

/// Clients send it back with the thought; it says nothing.
const SIGNATURE: &str = "hob";

fn tool_use(id: &str, name: &str, input: &Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": input})
}

fn stop_reason(stop: &Stop) -> &'static str {
    match stop {
        Stop::End => "end_turn",
        Stop::Length => "max_tokens",
        Stop::Text(_) => "stop_sequence",
        Stop::Calls => "tool_use",
    }
}

fn stop_sequence(stop: &Stop) -> Option<&str> {
    match stop {
        Stop::Text(text) => Some(text),
        _ => None,
    }
}

/// What was read from a cache is told apart from the rest of the input.
fn input_usage(prompt_tokens: u32, cached_tokens: u32, output_tokens: u32) -> Value {
    json!({
        "input_tokens": prompt_tokens.saturating_sub(cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    })
}

fn usage(finished: &Finished) -> Value {
    input_usage(finished.prompt_tokens, finished.cached_tokens, finished.completion_tokens)
}

/// A block of the answer, as long as it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

/// Blocks, one after the other.
struct Blocks {
    sink: Sink,
    open: Option<Block>,
    index: usize,
}

impl Blocks {
    fn event(&mut self, name: &str, mut value: Value) -> Result<(), Gone> {
        value["type"] = name.into();
        self.sink.event(name, &value)
    }

    /// Opens a block, unless it is open already.
    fn open(&mut self, block: Block, start: Value) -> Result<(), Gone> {
        if self.open == Some(block) && block != Block::ToolUse {
            return Ok(());
        }
        self.close()?;
        self.open = Some(block);
        let index = self.index;
        self.event(
            "content_block_start",
            json!({"type": null, "index": index, "content_block": start}),
        )
    }

    fn delta(&mut self, delta: Value) -> Result<(), Gone> {
        let index = self.index;
        self.event("content_block_delta", json!({"type": null, "index": index, "delta": delta}))
    }

    fn close(&mut self) -> Result<(), Gone> {
        let Some(block) = self.open.take() else { return Ok(()) };
        if block == Block::Thinking {
            self.delta(json!({"type": "signature_delta", "signature": SIGNATURE}))?;
        }
        let index = self.index;
        self.index += 1;
        self.event("content_block_stop", json!({"type": null, "index": index}))
    }

    /// Tells an event of the answer but for its end.
    fn tell(&mut self, event: Event) -> Result<(), Gone> {
        match event {
            Event::Reasoning(text) => {
                let start = json!({"type": "thinking", "thinking": "", "signature": ""});
                self.open(Block::Thinking, start)?;
                self.delta(json!({"type": "thinking_delta", "thinking": text}))
            }
            Event::Content { text, .. } => {
                self.open(Block::Text, json!({"type": "text", "text": ""}))?;
                self.delta(json!({"type": "text_delta", "text": text}))
            }
            Event::CallStart { id, name, .. } => {
                self.open(Block::ToolUse, tool_use(&id, &name, &json!({})))
            }
            Event::Arguments { delta, .. } => {
                self.delta(json!({"type": "input_json_delta", "partial_json": delta}))
            }
            Event::Finished(_) => Ok(()),
        }
    }
}

async fn stream(
    sink: Sink,
    mut running: Running,
    head: Head,
    request_id: String,
) -> Result<(), Gone> {
    let mut blocks = Blocks { sink, open: None, index: 0 };
    // The usage is known once the request has its turn, which may be after its reply's head.
    if let Err(failure) = running.wait_for_turn().await {
        return blocks.sink.event("error", &failure.value(Shape::Anthropic, &request_id));
    }
    let usage_so_far = input_usage(running.prompt_tokens, running.cached_tokens.unwrap_or(0), 0);
    let message = head.message(json!([]), None, usage_so_far);
    blocks.event("message_start", json!({"type": null, "message": message}))?;
    blocks.event("ping", json!({}))?;
    while let Some(event) = running.next().await {
        match event {
            Err(failure) => {
                let error = failure.value(Shape::Anthropic, &request_id);
                return blocks.sink.event("error", &error);
            }
            Ok(Event::Finished(finished)) => {
                blocks.close()?;
                let stop = &finished.stop;
                let delta = json!({
                    "stop_reason": stop_reason(stop),
                    "stop_sequence": stop_sequence(stop),
                });
                let usage = usage(&finished);
                blocks.event(
                    "message_delta",
                    json!({"type": null, "delta": delta, "usage": usage}),
                )?;
                return blocks.event("message_stop", json!({}));
            }
            Ok(event) => blocks.tell(event)?,
        }
    }
    Ok(())
}
