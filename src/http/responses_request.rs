//! OpenAI's responses: items to messages as chat templates take them.

use serde_json::{Value, json};
use tracing::debug;

use super::conversation::{Format, Task, Thinking, ToolChoice};
use super::error::Failure;
use super::fields::{self, Fields, Item};
use super::openai;
use crate::chat::{ChatMessage, JsonObject};
use crate::config::SamplingOverrides;

/// What a request says, apart from the messages.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Its input comes later, behind that of the previous response.
    pub(super) task: Task,
    pub(super) instructions: Option<String>,
    pub(super) previous: Option<String>,
    pub(super) messages: Vec<ChatMessage>,
    pub(super) input_items: Vec<Value>,
    /// Names of tools that take a text.
    pub(super) custom_tools: Vec<String>,
    pub(super) store: bool,
    pub(super) stream: bool,
    /// What replies repeat.
    pub(super) echo: JsonObject,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Request, Failure> {
    refuse_unserved(fields)?;
    let (messages, input_items) = read_input(fields)?;
    let Tools { tools, custom } = read_tools(fields)?;
    let reasoning = fields.object("reasoning")?;
    let effort = reasoning.map(|reasoning| reasoning.text("effort")).transpose()?.flatten();
    let off = effort.as_deref() == Some("none");
    let include: Vec<String> =
        fields.optional("include", "an array of strings")?.unwrap_or_default();
    let top = fields.optional::<u32>("top_logprobs", "an integer from 0 to 20")?;
    let scored = include.iter().any(|what| what == "message.output_text.logprobs");
    let number = |field| fields.optional::<f32>(field, "a number");
    let task = Task {
        model: fields.text("model")?,
        tool_choice: read_tool_choice(fields, &tools)?,
        tools,
        single_call: fields.flag("parallel_tool_calls")? == Some(false),
        sampling: SamplingOverrides {
            temperature: number("temperature")?,
            top_p: number("top_p")?,
            ..SamplingOverrides::default()
        },
        tokens_max: fields.optional("max_output_tokens", "an integer from 1")?,
        logprobs: scored.then(|| top.unwrap_or(0)),
        format: read_format(fields)?,
        thinking: Thinking {
            on: off.then_some(false),
            effort: effort.filter(|_| !off),
            tokens_max: None,
        },
        ..Task::default()
    };
    Ok(Request {
        task,
        instructions: fields.text("instructions")?,
        previous: fields.text("previous_response_id")?,
        messages,
        input_items,
        custom_tools: custom,
        store: fields.flag("store")?.unwrap_or(true),
        stream: fields.flag("stream")?.unwrap_or(false),
        echo: echo(fields)?,
    })
}

fn refuse_unserved(fields: &Fields<'_>) -> Result<(), Failure> {
    if fields.flag("background")? == Some(true) {
        return Err(fields.refuse("background", "false: it is not supported", true));
    }
    for field in ["conversation", "prompt"] {
        if fields.raw(field).is_some() {
            return Err(fields.refuse(field, "none: it is not supported", "one"));
        }
    }
    match fields.text("truncation")?.as_deref() {
        None | Some("auto" | "disabled") => Ok(()),
        Some(other) => Err(fields.refuse("truncation", "auto or disabled", other)),
    }
}

/// The settings that a response repeats, as they were sent.
fn echo(fields: &Fields<'_>) -> Result<JsonObject, Failure> {
    let defaults = [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("max_tool_calls", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", true.into()),
        ("previous_response_id", Value::Null),
        ("prompt_cache_key", Value::Null),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("safety_identifier", Value::Null),
        ("service_tier", "default".into()),
        ("store", true.into()),
        ("temperature", Value::Null),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", "auto".into()),
        ("tools", json!([])),
        ("top_logprobs", 0.into()),
        ("top_p", Value::Null),
        ("truncation", "disabled".into()),
        ("user", Value::Null),
    ];
    let mut echo = JsonObject::new();
    for (field, default) in defaults {
        openai::check_size(fields, field)?;
        let sent = fields.raw(field).map(|raw| fields::value(raw, field)).transpose()?;
        echo.insert(field.to_owned(), sent.unwrap_or(default));
    }
    Ok(echo)
}

type ReadInput = (Vec<ChatMessage>, Vec<Value>);

/// A text, or items; the items as they are told to whoever asks for them later.
fn read_input(fields: &Fields<'_>) -> Result<ReadInput, Failure> {
    const WANTED: &str = "a string or an array of items";
    let Some(raw) = fields.raw("input") else { return Ok((Vec::new(), Vec::new())) };
    if !fields::is_array(raw) {
        let text: String = fields.required("input", WANTED)?;
        let content = json!([{"type": "input_text", "text": text}]);
        let item = json!({"type": "message", "role": "user", "content": content});
        return Ok((vec![ChatMessage::new("user", text)], vec![item]));
    }
    let mut turns = Turns::default();
    let mut items = Vec::new();
    for item in fields.list("input")?.unwrap_or_default() {
        turns.add(&item.object()?)?;
        items.push(fields::value(item.raw, &item.at)?);
    }
    Ok((turns.done(), items))
}

/// Items become messages: what an assistant thought, said and called in a row is one.
#[derive(Debug, Default)]
pub(super) struct Turns {
    messages: Vec<ChatMessage>,
    said: Vec<String>,
    thought: Vec<String>,
    calls: Vec<Value>,
}

impl Turns {
    fn add(&mut self, item: &Fields<'_>) -> Result<(), Failure> {
        let kind = item.text("type")?;
        match kind.as_deref() {
            None | Some("message") => self.add_message(item),
            Some("reasoning") => {
                for part in item.objects("content")?.unwrap_or_default() {
                    self.thought.extend(part.text("text")?);
                }
                Ok(())
            }
            Some("function_call") => {
                let arguments: String = item.required("arguments", "a string")?;
                self.add_call(item, openai::parse_arguments(arguments.into()))
            }
            Some("custom_tool_call") => {
                let input: String = item.required("input", "a string")?;
                self.add_call(item, json!({"input": input}))
            }
            Some("function_call_output" | "custom_tool_call_output") => self.add_output(item),
            Some("item_reference") => {
                Err(item.refuse("type", "an item itself", "item_reference, which is not supported"))
            }
            Some(kind) => {
                debug!(kind, "an item of a kind that is not served is left out");
                Ok(())
            }
        }
    }

    fn add_message(&mut self, item: &Fields<'_>) -> Result<(), Failure> {
        let role: String = item.required("role", "a string")?;
        let content = item.raw("content");
        let content = content.ok_or_else(|| item.missing("content", "a string or an array"))?;
        let text = match fields::is_array(content) {
            true => {
                let parts = item.list("content")?.unwrap_or_default();
                let texts: Vec<String> =
                    parts.iter().map(openai::read_part).collect::<Result<_, _>>()?;
                texts.concat()
            }
            false => item.required("content", "a string or an array of parts")?,
        };
        match role.as_str() {
            "assistant" => self.said.push(text),
            "user" => self.add_turn(ChatMessage::new("user", text)),
            "system" | "developer" => self.add_turn(ChatMessage::new("system", text)),
            _ => return Err(item.refuse("role", "user, assistant, system or developer", role)),
        }
        Ok(())
    }

    fn add_call(&mut self, item: &Fields<'_>, arguments: Value) -> Result<(), Failure> {
        let id: String = item.required("call_id", "a string")?;
        let name: String = item.required("name", "a string")?;
        self.call(&id, &name, arguments);
        Ok(())
    }

    fn call(&mut self, id: &str, name: &str, arguments: Value) {
        self.calls.push(json!({
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }));
    }

    fn add_output(&mut self, item: &Fields<'_>) -> Result<(), Failure> {
        let id: String = item.required("call_id", "a string")?;
        let output = item.raw("output");
        let output = output.ok_or_else(|| item.missing("output", "a string or an array"))?;
        let text = match fields::is_array(output) {
            true => {
                let parts = item.list("output")?.unwrap_or_default();
                let texts: Vec<String> = parts.iter().map(output_part).collect::<Result<_, _>>()?;
                texts.join("\n")
            }
            false => item.required("output", "a string or an array of parts")?,
        };
        let mut message = ChatMessage::new("tool", text);
        message.fields.insert("tool_call_id".to_owned(), id.into());
        self.add_turn(message);
        Ok(())
    }

    fn add_turn(&mut self, message: ChatMessage) {
        self.end_assistant();
        self.messages.push(message);
    }

    fn end_assistant(&mut self) {
        let (said, thought) = (std::mem::take(&mut self.said), std::mem::take(&mut self.thought));
        let calls = std::mem::take(&mut self.calls);
        if said.is_empty() && thought.is_empty() && calls.is_empty() {
            return;
        }
        let mut message = ChatMessage::new("assistant", said.join("\n"));
        if !thought.is_empty() {
            message.fields.insert("reasoning_content".to_owned(), thought.join("\n").into());
        }
        if !calls.is_empty() {
            message.fields.insert("tool_calls".to_owned(), calls.into());
        }
        self.messages.push(message);
    }

    fn done(mut self) -> Vec<ChatMessage> {
        self.end_assistant();
        self.messages
    }

    /// The message of an answer.
    pub(super) fn of_answer(
        said: &str,
        thought: &str,
        calls: &[(String, String, Value)],
    ) -> Vec<ChatMessage> {
        let some = |text: &str| Vec::from_iter((!text.is_empty()).then(|| text.to_owned()));
        let mut turns = Self { said: some(said), thought: some(thought), ..Self::default() };
        for (id, name, arguments) in calls {
            turns.call(id, name, arguments.clone());
        }
        turns.done()
    }
}

/// What cannot be shown becomes a note, so that an agent's run goes on.
fn output_part(part: &Item<'_>) -> Result<String, Failure> {
    if part.is_text() {
        return part.read("a string");
    }
    let part = part.object()?;
    let kind: String = part.required("type", "a string")?;
    match kind.as_str() {
        "input_text" | "output_text" | "text" => part.required("text", "a string"),
        kind => Ok(format!("[{kind} left out: this model takes text alone]")),
    }
}

#[derive(Default)]
struct Tools {
    tools: Vec<JsonObject>,
    custom: Vec<String>,
}

impl Tools {
    fn add(&mut self, tool: &Fields<'_>) -> Result<(), Failure> {
        let kind: String = tool.required("type", "a string")?;
        match kind.as_str() {
            "function" => {
                let parameters = tool.raw("parameters");
                let parameters = parameters
                    .map(|raw| fields::value(raw, &tool.path("parameters")))
                    .transpose()?;
                let any = json!({"type": "object", "properties": {}});
                self.push(tool, parameters.unwrap_or(any))
            }
            "custom" => {
                let properties = json!({"input": {"type": "string"}});
                self.custom.push(tool.required("name", "a string")?);
                self.push(
                    tool,
                    json!({
                        "type": "object",
                        "properties": properties,
                        "required": ["input"],
                        "additionalProperties": false,
                    }),
                )
            }
            "namespace" => {
                let tools = tool.objects("tools")?.unwrap_or_default();
                tools.iter().try_for_each(|tool| self.add(tool))
            }
            kind => {
                debug!(kind, "a tool of a kind that is not served is left out");
                Ok(())
            }
        }
    }

    fn push(&mut self, tool: &Fields<'_>, parameters: Value) -> Result<(), Failure> {
        let name: String = tool.required("name", "a string")?;
        let mut function = JsonObject::new();
        function.insert("name".to_owned(), name.into());
        if let Some(description) = tool.text("description")? {
            function.insert("description".to_owned(), description.into());
        }
        function.insert("parameters".to_owned(), parameters);
        self.tools.push(JsonObject::from_iter([
            ("type".to_owned(), "function".into()),
            ("function".to_owned(), Value::Object(function)),
        ]));
        Ok(())
    }
}

fn read_tools(fields: &Fields<'_>) -> Result<Tools, Failure> {
    openai::check_size(fields, "tools")?;
    let mut tools = Tools::default();
    for tool in fields.objects("tools")?.unwrap_or_default() {
        tools.add(&tool)?;
    }
    Ok(tools)
}

fn read_tool_choice(fields: &Fields<'_>, tools: &[JsonObject]) -> Result<ToolChoice, Failure> {
    const WANTED: &str = "\"none\", \"auto\", \"required\", or an object that names a tool";
    let Some(raw) = fields.raw("tool_choice") else { return Ok(ToolChoice::Auto) };
    if fields::is_text(raw) {
        let choice: String = fields.required("tool_choice", WANTED)?;
        return match choice.as_str() {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" => Ok(ToolChoice::Required),
            _ => Err(fields.refuse("tool_choice", WANTED, choice)),
        };
    }
    let choice = fields.object("tool_choice")?;
    let choice = choice.ok_or_else(|| fields.missing("tool_choice", WANTED))?;
    let name: String = choice.required("name", "the name of one of tools")?;
    if !tools.iter().any(|tool| openai::tool_name(tool) == name) {
        return Err(choice.refuse("name", "the name of one of tools", name));
    }
    Ok(ToolChoice::Named(name))
}

fn read_format(fields: &Fields<'_>) -> Result<Format, Failure> {
    const WANTED: &str = "text, json_object or json_schema";
    let Some(text) = fields.object("text")? else { return Ok(Format::Text) };
    openai::check_size(fields, "text")?;
    let Some(format) = text.object("format")? else { return Ok(Format::Text) };
    let kind: String = format.required("type", WANTED)?;
    match kind.as_str() {
        "text" => Ok(Format::Text),
        "json_object" => Ok(Format::JsonObject),
        "json_schema" => {
            let schema = format.raw("schema");
            let schema = schema.ok_or_else(|| format.missing("schema", "a JSON Schema"))?;
            fields::value(schema, &format.path("schema")).map(Format::JsonSchema)
        }
        _ => Err(format.refuse("type", WANTED, kind)),
    }
}
