//! Anthropic's requests: blocks to messages as chat templates take them.

use serde_json::{Value, json};
use tracing::debug;

use super::conversation::{Format, Input, Task, Thinking, ToolChoice};
use super::error::Failure;
use super::fields::{self, Fields, Item};
use super::openai;
use crate::chat::{ChatMessage, JsonObject};
use crate::config::SamplingOverrides;

/// Begins a block of `system` that changes with every request of Claude Code, and so would defeat
/// the cache of prompts: it is left out.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

pub(super) fn read_task(fields: &Fields<'_>) -> Result<Task, Failure> {
    let mut messages = Vec::new();
    if let Some(system) = read_system(fields)? {
        messages.push(ChatMessage::new("system", system));
    }
    let given = fields.objects("messages")?;
    let given = given.ok_or_else(|| fields.missing("messages", "an array of messages"))?;
    if given.is_empty() {
        return Err(fields.refuse("messages", "at least one message", "none"));
    }
    for message in &given {
        read_message(message, &mut messages)?;
    }
    let tools = read_tools(fields)?;
    let (tool_choice, single_call) = read_tool_choice(fields, &tools)?;
    let number = |field| fields.optional::<f32>(field, "a number");
    let tokens_max = fields.optional::<u32>("max_tokens", "an integer from 1")?;
    if tokens_max == Some(0) {
        return Err(fields.refuse("max_tokens", "an integer from 1", 0));
    }
    Ok(Task {
        model: fields.text("model")?,
        input: Input::Messages(messages),
        tools,
        tool_choice,
        single_call,
        sampling: SamplingOverrides {
            temperature: number("temperature")?,
            top_k: fields.optional("top_k", "an integer from 0")?,
            top_p: number("top_p")?,
            ..SamplingOverrides::default()
        },
        tokens_max,
        stop: openai::read_stop(fields, "stop_sequences")?,
        format: read_format(fields)?,
        thinking: read_thinking(fields)?,
        ..Task::default()
    })
}

/// A text, or blocks of it.
fn read_system(fields: &Fields<'_>) -> Result<Option<String>, Failure> {
    let Some(raw) = fields.raw("system") else { return Ok(None) };
    let mut texts: Vec<String> = if fields::is_array(raw) {
        let blocks = fields.objects("system")?.unwrap_or_default();
        blocks.iter().map(|block| block.required("text", "a string")).collect::<Result<_, _>>()?
    } else {
        vec![fields.required("system", "a string or an array of text blocks")?]
    };
    texts.retain(|text| !text.starts_with(BILLING_HEADER) && !text.is_empty());
    Ok((!texts.is_empty()).then(|| texts.join("\n\n")))
}

/// One message becomes several where it holds results of tools.
fn read_message(message: &Fields<'_>, out: &mut Vec<ChatMessage>) -> Result<(), Failure> {
    let role: String = message.required("role", "user or assistant")?;
    let raw = message.raw("content");
    let raw = raw.ok_or_else(|| message.missing("content", "a string or an array of blocks"))?;
    let blocks = match fields::is_array(raw) {
        true => message.list("content")?.unwrap_or_default(),
        false => {
            let text: String = message.required("content", "a string or an array of blocks")?;
            return match role.as_str() {
                "user" | "assistant" | "system" => {
                    out.push(ChatMessage::new(role, text));
                    Ok(())
                }
                _ => Err(message.refuse("role", "user or assistant", role)),
            };
        }
    };
    match role.as_str() {
        "user" => read_user(&blocks, out),
        "assistant" => read_assistant(&blocks, out),
        "system" => {
            let texts: Vec<String> = blocks
                .iter()
                .map(|block| block.object()?.required("text", "a string"))
                .collect::<Result<_, Failure>>()?;
            out.push(ChatMessage::new(role, texts.join("\n\n")));
            Ok(())
        }
        _ => Err(message.refuse("role", "user or assistant", role)),
    }
}

fn read_user(blocks: &[Item<'_>], out: &mut Vec<ChatMessage>) -> Result<(), Failure> {
    let mut texts: Vec<String> = Vec::new();
    let flush = |texts: &mut Vec<String>, out: &mut Vec<ChatMessage>| {
        if !texts.is_empty() {
            out.push(ChatMessage::new("user", texts.join("\n")));
            texts.clear();
        }
    };
    for block in blocks {
        let block = block.object()?;
        let kind: String = block.required("type", "a string")?;
        match kind.as_str() {
            "text" => texts.push(block.required("text", "a string")?),
            "tool_result" => {
                flush(&mut texts, out);
                out.push(tool_result(&block)?);
            }
            "image" => {
                return Err(Failure::invalid(block.path("type"), "image input is not supported"));
            }
            "document" => {
                return Err(Failure::invalid(
                    block.path("type"),
                    "document input is not supported",
                ));
            }
            _ => debug!(kind, "a block of a kind that is not known is left out"),
        }
    }
    flush(&mut texts, out);
    Ok(())
}

fn tool_result(block: &Fields<'_>) -> Result<ChatMessage, Failure> {
    let id: String = block.required("tool_use_id", "a string")?;
    let mut text = match block.raw("content") {
        None => String::new(),
        Some(raw) if !fields::is_array(raw) => {
            block.required("content", "a string or an array of blocks")?
        }
        Some(_) => {
            let parts = block.objects("content")?.unwrap_or_default();
            let texts: Vec<String> = parts.iter().map(result_part).collect::<Result<_, _>>()?;
            texts.join("\n")
        }
    };
    if block.flag("is_error")? == Some(true) {
        text = format!("Error: {text}");
    }
    let mut message = ChatMessage::new("tool", text);
    message.fields.insert("tool_call_id".to_owned(), id.into());
    Ok(message)
}

/// What cannot be shown becomes a note, so that an agent's run goes on.
fn result_part(part: &Fields<'_>) -> Result<String, Failure> {
    let kind: String = part.required("type", "a string")?;
    match kind.as_str() {
        "text" => part.required("text", "a string"),
        kind => Ok(format!("[{kind} left out: this model takes text alone]")),
    }
}

fn read_assistant(blocks: &[Item<'_>], out: &mut Vec<ChatMessage>) -> Result<(), Failure> {
    let (mut texts, mut thoughts) = (Vec::<String>::new(), Vec::<String>::new());
    let mut calls = Vec::new();
    for block in blocks {
        let block = block.object()?;
        let kind: String = block.required("type", "a string")?;
        match kind.as_str() {
            "text" => texts.push(block.required("text", "a string")?),
            "thinking" => thoughts.push(block.required("thinking", "a string")?),
            "tool_use" => {
                let (id, name): (String, String) =
                    (block.required("id", "a string")?, block.required("name", "a string")?);
                let input = match block.raw("input") {
                    Some(raw) => fields::value(raw, &block.path("input"))?,
                    None => json!({}),
                };
                calls.push(json!({
                    "id": id,
                    "type": "function",
                    "function": {"name": name, "arguments": input},
                }));
            }
            // What a redacted thought says nobody here can read.
            _ => debug!(kind, "a block is left out"),
        }
    }
    let mut more = JsonObject::new();
    if !calls.is_empty() {
        more.insert("tool_calls".to_owned(), calls.into());
    }
    if !thoughts.is_empty() {
        more.insert("reasoning_content".to_owned(), thoughts.join("\n").into());
    }
    let mut message = ChatMessage::new("assistant", texts.join("\n"));
    message.fields = more;
    out.push(message);
    Ok(())
}

/// The tools, as chat templates take them. Those that Anthropic's servers run are left out.
fn read_tools(fields: &Fields<'_>) -> Result<Vec<JsonObject>, Failure> {
    openai::check_size(fields, "tools")?;
    let mut tools = Vec::new();
    for tool in fields.objects("tools")?.unwrap_or_default() {
        if let Some(kind) = tool.text("type")?.filter(|kind| kind != "custom") {
            debug!(kind, "a tool of a server is left out");
            continue;
        }
        let name: String = tool.required("name", "a string")?;
        let mut function = JsonObject::new();
        function.insert("name".to_owned(), name.into());
        if let Some(description) = tool.text("description")? {
            function.insert("description".to_owned(), description.into());
        }
        let schema = tool.raw("input_schema");
        let schema = schema.ok_or_else(|| tool.missing("input_schema", "a JSON Schema"))?;
        let schema = fields::value(schema, &tool.path("input_schema"))?;
        function.insert("parameters".to_owned(), schema);
        tools.push(JsonObject::from_iter([
            ("type".to_owned(), "function".into()),
            ("function".to_owned(), Value::Object(function)),
        ]));
    }
    Ok(tools)
}

fn read_tool_choice(
    fields: &Fields<'_>,
    tools: &[JsonObject],
) -> Result<(ToolChoice, bool), Failure> {
    const WANTED: &str = "auto, any, tool or none";
    let Some(choice) = fields.object("tool_choice")? else { return Ok((ToolChoice::Auto, false)) };
    let single = choice.flag("disable_parallel_tool_use")? == Some(true);
    let kind: String = choice.required("type", WANTED)?;
    let choice = match kind.as_str() {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => {
            let name: String = choice.required("name", "the name of one of tools")?;
            if !tools.iter().any(|tool| openai::tool_name(tool) == name) {
                return Err(choice.refuse("name", "the name of one of tools", name));
            }
            ToolChoice::Named(name)
        }
        _ => return Err(choice.refuse("type", WANTED, kind)),
    };
    Ok((choice, single))
}

fn read_thinking(fields: &Fields<'_>) -> Result<Thinking, Failure> {
    const WANTED: &str = "enabled, disabled or adaptive";
    let output = fields.object("output_config")?;
    let effort = output.map(|output| output.text("effort")).transpose()?.flatten();
    let Some(thinking) = fields.object("thinking")? else {
        return Ok(Thinking { effort, ..Thinking::default() });
    };
    let kind: String = thinking.required("type", WANTED)?;
    let tokens_max = thinking.optional("budget_tokens", "an integer")?;
    let on = match kind.as_str() {
        "enabled" => Some(true),
        "disabled" => Some(false),
        "adaptive" => None,
        _ => return Err(thinking.refuse("type", WANTED, kind)),
    };
    Ok(Thinking { on, effort, tokens_max })
}

fn read_format(fields: &Fields<'_>) -> Result<Format, Failure> {
    let Some(output) = fields.object("output_config")? else { return Ok(Format::Text) };
    openai::check_size(fields, "output_config")?;
    let Some(format) = output.object("format")? else { return Ok(Format::Text) };
    let kind: String = format.required("type", "json_schema")?;
    if kind != "json_schema" {
        return Err(format.refuse("type", "json_schema", kind));
    }
    let schema = format.raw("schema");
    let schema = schema.ok_or_else(|| format.missing("schema", "a JSON Schema"))?;
    fields::value(schema, &format.path("schema")).map(Format::JsonSchema)
}
