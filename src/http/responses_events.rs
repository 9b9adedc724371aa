//! The events of a response, and the items that they build.

use serde_json::{Value, json};

use super::call::fresh_id;
use super::conversation::{Event, Finished, Stop};
use super::error::Failure;
use super::openai;
use super::responses_request::Turns;
use super::scored::Scored;
use crate::chat::{ChatMessage, JsonObject};

/// An event: its name, and its data.
pub(super) type Told = (&'static str, Value);

/// A response that is being made.
pub(super) struct Making {
    pub(super) id: String,
    created: u64,
    model: String,
    echo: JsonObject,
    custom_tools: Vec<String>,
    output: Vec<Value>,
    open: Option<Open>,
    sequence: u64,
    said: String,
    thought: String,
    calls: Vec<(String, String, Value)>,
}

/// The item that is being made.
struct Open {
    kind: Kind,
    id: String,
    text: String,
    logprobs: Vec<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call { call_id: String, name: String },
    Custom { call_id: String, name: String },
}

impl Making {
    pub(super) fn new(model: String, echo: JsonObject, custom_tools: Vec<String>) -> Self {
        Self {
            id: fresh_id("resp_"),
            created: openai::now(),
            model,
            echo,
            custom_tools,
            output: Vec::new(),
            open: None,
            sequence: 0,
            said: String::new(),
            thought: String::new(),
            calls: Vec::new(),
        }
    }

    /// What was said, thought and called, as a message of a conversation that goes on.
    pub(super) fn messages(&self) -> Vec<ChatMessage> {
        Turns::of_answer(&self.said, &self.thought, &self.calls)
    }

    /// The response as it is.
    fn response(&self, status: &str) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "model": self.model,
            "output": self.output,
            "usage": null,
        });
        for (field, value) in &self.echo {
            response[field] = value.clone();
        }
        response
    }

    /// The response at its end.
    pub(super) fn whole(&self, finished: &Finished) -> Value {
        let incomplete = finished.stop == Stop::Length;
        let mut response = self.response(if incomplete { "incomplete" } else { "completed" });
        if incomplete {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["usage"] = json!({
            "input_tokens": finished.prompt_tokens,
            "input_tokens_details": {"cached_tokens": finished.cached_tokens},
            "output_tokens": finished.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": finished.reasoning_tokens},
            "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        });
        response
    }

    fn tell(&mut self, name: &'static str, mut data: Value) -> Told {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        (name, data)
    }

    fn tell_of_response(&mut self, name: &'static str, response: Value) -> Told {
        self.tell(name, json!({"type": null, "sequence_number": null, "response": response}))
    }

    pub(super) fn begin(&mut self) -> Vec<Told> {
        let response = self.response("in_progress");
        vec![self.tell_of_response("response.created", response), self.in_progress()]
    }

    /// Nothing has changed: for clients that take silence for the end.
    pub(super) fn in_progress(&mut self) -> Told {
        let response = self.response("in_progress");
        self.tell_of_response("response.in_progress", response)
    }

    pub(super) fn fail(&mut self, failure: &Failure) -> Told {
        let mut response = self.response("failed");
        response["error"] = json!({"code": failure.code(), "message": failure.message});
        self.tell_of_response("response.failed", response)
    }

    pub(super) fn end(&mut self, finished: &Finished) -> Told {
        let name = match finished.stop {
            Stop::Length => "response.incomplete",
            _ => "response.completed",
        };
        let whole = self.whole(finished);
        self.tell_of_response(name, whole)
    }

    /// Takes an event of the answer.
    pub(super) fn take(&mut self, event: &Event) -> Vec<Told> {
        let mut told = Vec::new();
        match event {
            Event::Reasoning(text) => {
                self.open(Kind::Reasoning, &mut told);
                self.thought.push_str(text);
                self.delta(text, &[], &mut told);
            }
            Event::Content { text, scored } => {
                self.open(Kind::Message, &mut told);
                self.said.push_str(text);
                self.delta(text, scored, &mut told);
            }
            Event::CallStart { id, name, .. } => {
                let (call_id, name) = (id.clone(), name.clone());
                let kind = match self.custom_tools.contains(&name) {
                    true => Kind::Custom { call_id, name },
                    false => Kind::Call { call_id, name },
                };
                self.open(kind, &mut told);
            }
            Event::Arguments { delta, .. } => self.delta(delta, &[], &mut told),
            Event::Finished(_) => self.close(&mut told),
        }
        told
    }

    /// Where an event of the open item belongs.
    fn place(&self, id: &str) -> Value {
        json!({
            "type": null,
            "sequence_number": null,
            "item_id": id,
            "output_index": self.output.len(),
        })
    }

    /// Opens an item, unless it is open already.
    fn open(&mut self, kind: Kind, told: &mut Vec<Told>) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        self.close(told);
        let prefix = match &kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call { .. } => "fc_",
            Kind::Custom { .. } => "ctc_",
        };
        let open = Open { kind, id: fresh_id(prefix), text: String::new(), logprobs: Vec::new() };
        let added = json!({
            "type": null,
            "sequence_number": null,
            "output_index": self.output.len(),
            "item": open.item("in_progress"),
        });
        told.push(self.tell("response.output_item.added", added));
        if open.kind == Kind::Message {
            let mut data = self.place(&open.id);
            data["content_index"] = 0.into();
            data["part"] = open.part();
            told.push(self.tell("response.content_part.added", data));
        }
        self.open = Some(open);
    }

    fn delta(&mut self, delta: &str, scored: &[Scored], told: &mut Vec<Told>) {
        let Some(mut open) = self.open.take() else { return };
        open.text.push_str(delta);
        let mut data = self.place(&open.id);
        let name = match open.kind {
            Kind::Reasoning => "response.reasoning_text.delta",
            Kind::Message => "response.output_text.delta",
            Kind::Call { .. } => "response.function_call_arguments.delta",
            Kind::Custom { .. } => {
                // Its text is inside the JSON, and known as a whole.
                self.open = Some(open);
                return;
            }
        };
        if matches!(open.kind, Kind::Reasoning | Kind::Message) {
            data["content_index"] = 0.into();
        }
        data["delta"] = delta.into();
        if open.kind == Kind::Message {
            let logprobs = openai::logprobs(scored)["content"].take();
            data["logprobs"] = logprobs.clone();
            open.logprobs.extend(logprobs.as_array().cloned().unwrap_or_default());
        }
        told.push(self.tell(name, data));
        self.open = Some(open);
    }

    fn close(&mut self, told: &mut Vec<Told>) {
        let Some(open) = self.open.take() else { return };
        let mut data = self.place(&open.id);
        match &open.kind {
            Kind::Reasoning => {
                data["content_index"] = 0.into();
                data["text"] = open.text.as_str().into();
                told.push(self.tell("response.reasoning_text.done", data));
            }
            Kind::Message => {
                data["content_index"] = 0.into();
                let mut part = data.clone();
                data["text"] = open.text.as_str().into();
                data["logprobs"] = open.logprobs.clone().into();
                told.push(self.tell("response.output_text.done", data));
                part["part"] = open.part();
                told.push(self.tell("response.content_part.done", part));
            }
            Kind::Call { call_id, name } => {
                let arguments = openai::parse_arguments(open.text.as_str().into());
                self.calls.push((call_id.clone(), name.clone(), arguments));
                data["name"] = name.as_str().into();
                data["arguments"] = open.text.as_str().into();
                told.push(self.tell("response.function_call_arguments.done", data));
            }
            Kind::Custom { call_id, name } => {
                let input = open.input();
                self.calls.push((call_id.clone(), name.clone(), json!({"input": input})));
                let mut done = data.clone();
                data["delta"] = input.as_str().into();
                told.push(self.tell("response.custom_tool_call_input.delta", data));
                done["input"] = input.into();
                told.push(self.tell("response.custom_tool_call_input.done", done));
            }
        }
        let item = open.item("completed");
        let done = json!({
            "type": null,
            "sequence_number": null,
            "output_index": self.output.len(),
            "item": item,
        });
        self.output.push(item);
        told.push(self.tell("response.output_item.done", done));
    }
}

impl Open {
    fn part(&self) -> Value {
        json!({
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": self.logprobs,
        })
    }

    /// The text of a custom tool's call, out of the JSON that the model writes.
    fn input(&self) -> String {
        let arguments: Value = serde_json::from_str(&self.text).unwrap_or_default();
        arguments["input"].as_str().unwrap_or(&self.text).to_owned()
    }

    fn item(&self, status: &str) -> Value {
        let made = status == "completed";
        match &self.kind {
            Kind::Reasoning => {
                let part = json!({"type": "reasoning_text", "text": self.text});
                json!({
                    "type": "reasoning",
                    "id": self.id,
                    "summary": [],
                    "content": if made { json!([part]) } else { json!([]) },
                    "encrypted_content": null,
                    "status": status,
                })
            }
            Kind::Message => json!({
                "type": "message",
                "id": self.id,
                "status": status,
                "role": "assistant",
                "content": if made { json!([self.part()]) } else { json!([]) },
            }),
            Kind::Call { call_id, name } => json!({
                "type": "function_call",
                "id": self.id,
                "call_id": call_id,
                "name": name,
                "arguments": self.text,
                "status": status,
            }),
            Kind::Custom { call_id, name } => json!({
                "type": "custom_tool_call",
                "id": self.id,
                "call_id": call_id,
                "name": name,
                "input": if made { self.input() } else { String::new() },
                "status": status,
            }),
        }
    }
}
