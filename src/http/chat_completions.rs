//! `POST /v1/chat/completions`.

use serde_json::{Map, Value, json};

use super::call::{Call, fresh_id};
use super::conversation::{
    self, Event, Finished, Input, Running, Stop, Task, Thinking, ToolChoice, Whole,
};
use super::error::{Failure, Shape};
use super::fields::{self, Fields};
use super::openai::{self, FINGERPRINT};
use super::reply::{Gone, Reply, Sink};
use super::router::{Route, Verb};
use super::scored::Scored;
use crate::chat::{ChatMessage, Content, JsonObject};

pub(super) const ROUTES: &[Route] = &[Route::new(
    Verb::Post,
    &["/v1/chat/completions", "/chat/completions"],
    Shape::OpenAi,
    |call| Box::pin(chat(call)),
)];

async fn chat(call: Call) -> Result<Reply, Failure> {
    let (task, form) = {
        let fields = call.json()?;
        let form = Form::read(&fields)?;
        (read_task(&fields, form.logprobs)?, form)
    };
    let prepared = conversation::prepare(&call.caller, task).await?;
    let model = prepared.model.name.clone();
    let running = prepared.start_many(&call.caller, form.n).await?;
    let head = Head { id: fresh_id("chatcmpl-"), created: openai::now(), model };
    match form.stream {
        true => {
            let id = call.id.clone();
            Ok(call.events(move |sink| stream(sink, running, head, form, id)))
        }
        false => {
            let mut all = Vec::with_capacity(running.len());
            for running in running {
                all.push(running.collect().await?);
            }
            Ok(Reply::json(&head.whole(&all, form)))
        }
    }
}

/// How the answer is to be told.
#[derive(Clone, Copy, Debug)]
struct Form {
    stream: bool,
    include_usage: bool,
    logprobs: bool,
    timings_per_token: bool,
    n: usize,
}

impl Form {
    fn read(fields: &Fields<'_>) -> Result<Self, Failure> {
        Ok(Self {
            stream: fields.flag("stream")?.unwrap_or(false),
            include_usage: openai::read_include_usage(fields)?,
            logprobs: fields.flag("logprobs")?.unwrap_or(false),
            timings_per_token: fields.flag("timings_per_token")?.unwrap_or(false),
            n: openai::read_n(fields)?,
        })
    }
}

fn read_task(fields: &Fields<'_>, logprobs: bool) -> Result<Task, Failure> {
    let top = fields.optional::<u32>("top_logprobs", "an integer from 0 to 20")?;
    if top.is_some_and(|top| top > 0) && !logprobs {
        return Err(fields.refuse("top_logprobs", "logprobs true with it", "none"));
    }
    refuse_unserved(fields)?;
    let tools = read_tools(fields)?;
    let (tool_choice, tools) = read_tool_choice(fields, tools)?;
    Ok(Task {
        input: Input::Messages(read_messages(fields)?),
        tools,
        tool_choice,
        single_call: fields.flag("parallel_tool_calls")? == Some(false),
        logprobs: logprobs.then(|| top.unwrap_or(0)),
        format: openai::read_format(fields)?,
        thinking: read_thinking(fields)?,
        template: read_template(fields)?,
        ..openai::read_common(fields)?
    })
}

/// What would change the answer and cannot be had.
fn refuse_unserved(fields: &Fields<'_>) -> Result<(), Failure> {
    if fields.raw("web_search_options").is_some() || fields.raw("audio").is_some() {
        let field = if fields.raw("audio").is_some() { "audio" } else { "web_search_options" };
        return Err(fields.refuse(field, "none: it is not supported", "one"));
    }
    let modalities: Vec<String> =
        fields.optional("modalities", "an array of strings")?.unwrap_or_default();
    if modalities.iter().any(|modality| modality != "text") {
        return Err(fields.refuse("modalities", "[\"text\"]", modalities.join(", ")));
    }
    Ok(())
}

/// The messages, as chat templates take them.
pub(super) fn read_messages(fields: &Fields<'_>) -> Result<Vec<ChatMessage>, Failure> {
    let messages = fields.objects("messages")?;
    let messages = messages.ok_or_else(|| fields.missing("messages", "an array of messages"))?;
    if messages.is_empty() {
        return Err(fields.refuse("messages", "at least one message", "none"));
    }
    messages.iter().map(read_message).collect()
}

fn read_message(message: &Fields<'_>) -> Result<ChatMessage, Failure> {
    let role: String = message.required("role", "a string")?;
    let role = match role.as_str() {
        "system" | "user" | "assistant" | "tool" => role,
        "developer" => "system".to_owned(),
        "function" => "tool".to_owned(),
        _ => {
            let wanted = "system, developer, user, assistant, tool or function";
            return Err(message.refuse("role", wanted, role));
        }
    };
    let mut more = JsonObject::new();
    if let Some(calls) = read_calls(message)? {
        more.insert("tool_calls".to_owned(), calls.into());
    }
    for field in ["name", "tool_call_id"] {
        if let Some(text) = message.text(field)? {
            more.insert(field.to_owned(), text.into());
        }
    }
    for field in ["reasoning_content", "reasoning", "thinking"] {
        if let Some(text) = message.text(field)? {
            more.insert("reasoning_content".to_owned(), text.into());
            break;
        }
    }
    let content = read_content(message)?;
    if content.is_none() && !more.contains_key("tool_calls") && role != "assistant" {
        return Err(message.missing("content", "a string or an array of parts"));
    }
    let content = content.map_or(Content::Absent, Content::Text);
    Ok(ChatMessage { role, content, fields: more })
}

/// A text, or parts of it put together.
fn read_content(message: &Fields<'_>) -> Result<Option<String>, Failure> {
    let Some(raw) = message.raw("content") else { return Ok(None) };
    if !fields::is_array(raw) {
        return message.optional("content", "a string or an array of parts");
    }
    let parts = message.list("content")?.unwrap_or_default();
    let texts: Vec<String> = parts.iter().map(openai::read_part).collect::<Result<_, _>>()?;
    Ok(Some(texts.concat()))
}

/// The calls of an assistant's message; arguments that are a JSON text become an object.
fn read_calls(message: &Fields<'_>) -> Result<Option<Vec<Value>>, Failure> {
    let Some(calls) = message.objects("tool_calls")? else { return Ok(None) };
    if calls.is_empty() {
        return Ok(None);
    }
    let one = |call: &Fields<'_>| {
        let function = call.object("function")?;
        let function = function.ok_or_else(|| call.missing("function", "an object"))?;
        let name: String = function.required("name", "a string")?;
        let arguments = match function.raw("arguments") {
            None => json!({}),
            Some(raw) => {
                let path = function.path("arguments");
                openai::parse_arguments(fields::value(raw, &path)?)
            }
        };
        let id = call.text("id")?;
        let mut value = json!({
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        });
        if let Some(id) = id {
            value["id"] = id.into();
        }
        Ok(value)
    };
    calls.iter().map(one).collect::<Result<_, _>>().map(Some)
}

/// The tools, as chat templates take them.
fn read_tools(fields: &Fields<'_>) -> Result<Vec<JsonObject>, Failure> {
    let Some(items) = fields.list("tools")? else { return Ok(Vec::new()) };
    openai::check_size(fields, "tools")?;
    let mut tools = Vec::with_capacity(items.len());
    for item in items {
        let tool = item.object()?;
        let kind = tool.text("type")?;
        if kind.as_deref().is_some_and(|kind| kind != "function") {
            return Err(tool.refuse("type", "function", kind.unwrap_or_default()));
        }
        let function = tool.object("function")?;
        let function = function.ok_or_else(|| tool.missing("function", "an object"))?;
        function.required::<String>("name", "a string")?;
        match fields::value(item.raw, &item.at)? {
            Value::Object(mut value) => {
                value.insert("type".to_owned(), "function".into());
                tools.push(value);
            }
            _ => return Err(Failure::invalid(item.at, "wanted an object")),
        }
    }
    Ok(tools)
}

/// Which tools may be called, and those that are left of all.
fn read_tool_choice(
    fields: &Fields<'_>,
    tools: Vec<JsonObject>,
) -> Result<(ToolChoice, Vec<JsonObject>), Failure> {
    const WANTED: &str = "\"none\", \"auto\", \"required\", or an object that names a tool";
    let Some(raw) = fields.raw("tool_choice") else { return Ok((ToolChoice::Auto, tools)) };
    if fields::is_text(raw) {
        let choice: String = fields.required("tool_choice", WANTED)?;
        return Ok((word_choice(fields, "tool_choice", &choice, WANTED)?, tools));
    }
    let choice = fields.object("tool_choice")?;
    let choice = choice.ok_or_else(|| fields.missing("tool_choice", WANTED))?;
    if choice.text("type")?.as_deref() == Some("allowed_tools") {
        let allowed = choice.object("allowed_tools")?;
        let allowed = allowed.ok_or_else(|| choice.missing("allowed_tools", "an object"))?;
        let mode: String = allowed.required("mode", "auto or required")?;
        let mode = word_choice(&allowed, "mode", &mode, "auto or required")?;
        let named = allowed.objects("tools")?.unwrap_or_default();
        let names: Vec<String> = named.iter().map(name_of).collect::<Result<_, _>>()?;
        let mut tools = tools;
        tools.retain(|tool| names.iter().any(|name| name == openai::tool_name(tool)));
        return Ok((mode, tools));
    }
    let name = name_of(&choice)?;
    if !tools.iter().any(|tool| openai::tool_name(tool) == name) {
        return Err(fields.refuse("tool_choice", "the name of one of tools", name));
    }
    Ok((ToolChoice::Named(name), tools))
}

fn word_choice(
    fields: &Fields<'_>,
    field: &str,
    word: &str,
    wanted: &str,
) -> Result<ToolChoice, Failure> {
    match word {
        "none" => Ok(ToolChoice::None),
        "auto" => Ok(ToolChoice::Auto),
        "required" | "any" => Ok(ToolChoice::Required),
        _ => Err(fields.refuse(field, wanted, word)),
    }
}

fn name_of(choice: &Fields<'_>) -> Result<String, Failure> {
    match choice.object("function")? {
        Some(function) => function.required("name", "a string"),
        None => choice.required("name", "a string"),
    }
}

fn read_thinking(fields: &Fields<'_>) -> Result<Thinking, Failure> {
    let effort = fields.text("reasoning_effort")?;
    let kwargs = fields.object("chat_template_kwargs")?;
    let on = kwargs.map(|kwargs| kwargs.flag("enable_thinking")).transpose()?.flatten();
    let off = effort.as_deref() == Some("none");
    let budget = fields.optional::<i64>("thinking_budget_tokens", "an integer")?;
    Ok(Thinking {
        on: on.or(off.then_some(false)),
        effort: effort.filter(|_| !off),
        tokens_max: budget.and_then(|budget| u32::try_from(budget).ok()),
    })
}

fn read_template(fields: &Fields<'_>) -> Result<JsonObject, Failure> {
    openai::check_size(fields, "chat_template_kwargs")?;
    let kwargs = fields.optional("chat_template_kwargs", "an object")?;
    Ok(kwargs.unwrap_or_default())
}

/// What every chunk and the whole answer begin with.
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn object(&self, object: &str, choices: Value) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".to_owned(), self.id.as_str().into());
        map.insert("object".to_owned(), object.into());
        map.insert("created".to_owned(), self.created.into());
        map.insert("model".to_owned(), self.model.as_str().into());
        map.insert("system_fingerprint".to_owned(), FINGERPRINT.into());
        map.insert("choices".to_owned(), choices);
        map
    }

    fn whole(&self, all: &[Whole], form: Form) -> Value {
        let choice = |(index, whole): (usize, &Whole)| {
            json!({
                "index": index,
                "message": message(whole),
                "logprobs": form.logprobs.then(|| openai::logprobs(&whole.scored)),
                "finish_reason": openai::finish_reason(&whole.finished.stop),
            })
        };
        let choices = all.iter().enumerate().map(choice).collect();
        let mut object = self.object("chat.completion", choices);
        let ends: Vec<Finished> = all.iter().map(|whole| whole.finished.clone()).collect();
        object.insert("usage".to_owned(), openai::usage_of(&ends, form.n));
        if let [finished] = &ends[..] {
            object.insert("timings".to_owned(), openai::timings(finished));
        }
        object.into()
    }

    fn chunk(
        &self,
        index: usize,
        delta: Value,
        scored: Option<&[Scored]>,
        stop: Option<&Stop>,
    ) -> Value {
        let choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": scored.map(openai::logprobs),
            "finish_reason": stop.map(openai::finish_reason),
        });
        self.object("chat.completion.chunk", json!([choice])).into()
    }
}

/// An answer, collected.
fn message(whole: &Whole) -> Value {
    let content = match whole.content.is_empty() && !whole.calls.is_empty() {
        true => Value::Null,
        false => whole.content.as_str().into(),
    };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !whole.reasoning.is_empty() {
        message["reasoning_content"] = whole.reasoning.as_str().into();
    }
    if !whole.calls.is_empty() {
        let call = |call: &conversation::ToolCall| {
            json!({
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })
        };
        message["tool_calls"] = whole.calls.iter().map(call).collect();
    }
    message
}

/// The events of the answers, one answer after the other; the engine works on all of them.
async fn stream(
    mut sink: Sink,
    all: Vec<Running>,
    head: Head,
    form: Form,
    request_id: String,
) -> Result<(), Gone> {
    let send = |sink: &mut Sink, mut chunk: Value| {
        if form.include_usage {
            chunk["usage"] = Value::Null;
        }
        sink.data(&chunk)
    };
    let mut ends = Vec::with_capacity(all.len());
    for (index, mut running) in all.into_iter().enumerate() {
        let first = json!({"role": "assistant", "content": null});
        send(&mut sink, head.chunk(index, first, None, None))?;
        while let Some(event) = running.next().await {
            let event = match event {
                Ok(event) => event,
                Err(failure) => return sink.data(&failure.value(Shape::OpenAi, &request_id)),
            };
            if let Event::Finished(finished) = event {
                let mut last = head.chunk(index, json!({}), None, Some(&finished.stop));
                if !form.include_usage || form.timings_per_token {
                    last["timings"] = openai::timings(&finished);
                }
                send(&mut sink, last)?;
                ends.push(*finished);
            } else if let Some((delta, scored)) = delta(&event) {
                let scored = scored.filter(|_| form.logprobs);
                send(&mut sink, head.chunk(index, delta, scored, None))?;
            }
        }
    }
    if form.include_usage {
        let mut usage = head.object("chat.completion.chunk", json!([]));
        usage.insert("usage".to_owned(), openai::usage_of(&ends, form.n));
        if let [finished] = &ends[..] {
            usage.insert("timings".to_owned(), openai::timings(finished));
        }
        sink.data(&usage)?;
    }
    sink.done()
}

/// What an event adds to an answer; `None` for its end.
fn delta(event: &Event) -> Option<(Value, Option<&[Scored]>)> {
    Some(match event {
        Event::Reasoning(text) => (json!({"reasoning_content": text}), None),
        Event::Content { text, scored } => (json!({"content": text}), Some(scored)),
        Event::CallStart { index, id, name } => {
            let function = json!({"name": name, "arguments": ""});
            let call = json!({"index": index, "id": id, "type": "function", "function": function});
            (json!({"tool_calls": [call]}), None)
        }
        Event::Arguments { index, delta } => {
            let call = json!({"index": index, "function": {"arguments": delta}});
            (json!({"tool_calls": [call]}), None)
        }
        Event::Finished(_) => return None,
    })
}
