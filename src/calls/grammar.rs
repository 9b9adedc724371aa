//! Lark grammars of calls, in llguidance's dialect.

use serde_json::{Value, json};

use super::format::{CallFormat, Calls, JsonKeys, Kind, Tags};
use crate::chat::JsonObject;

/// Which calls a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolChoice<'a> {
    /// Calls or text, as the model likes.
    Auto,
    /// Text alone.
    None,
    /// At least one call.
    Required,
    /// A call of this tool.
    Named(&'a str),
}

/// Makes the rules of one grammar.
struct Writer<'s> {
    special: &'s dyn Fn(&str) -> Option<u32>,
    rules: String,
}

impl CallFormat {
    /// The text of a grammar for calls of `tools`. `special` gives the id of a mark that is a
    /// special token. There is none for a model without a form of calls, with
    /// [`ToolChoice::None`], for tools that are not there, and for forms whose arguments no grammar
    /// describes so far: Gemma's, Python's and the channels of gpt-oss.
    ///
    /// With [`ToolChoice::Auto`] text may come before the calls. A thought is not a part of the
    /// grammar, which begins behind it.
    #[must_use]
    pub fn grammar(
        &self,
        tools: &[JsonObject],
        choice: ToolChoice,
        parallel: bool,
        special: &dyn Fn(&str) -> Option<u32>,
    ) -> Option<String> {
        let calls = self.calls?;
        let wanted = |name: &str| match choice {
            ToolChoice::Named(only) => name == only,
            _ => true,
        };
        let tools: Vec<(&str, Value)> =
            tools.iter().filter_map(schema_of).filter(|(name, _)| wanted(name)).collect();
        if tools.is_empty() || choice == ToolChoice::None {
            return None;
        }
        let mut writer = Writer { special, rules: String::new() };
        let each = writer.calls(calls, &tools, parallel)?;
        let open = calls.open.first().map(|mark| writer.mark(mark));
        let start = match choice {
            ToolChoice::Auto => {
                // No text holds a mark that is a special token; otherwise the text ends with it.
                let first = calls.open.first()?;
                if special(first).is_some() {
                    format!("start: TEXT | TEXT? {each}\nTEXT: /(.|\\n)+/\n")
                } else {
                    let behind = each.strip_prefix(&open?).unwrap_or(&each).trim().to_owned();
                    let mark = Value::from(*first);
                    format!(
                        "start: TEXT | before {behind}\nbefore[suffix={mark}]: /(.|\\n)*/\n\
                         TEXT: /(.|\\n)+/\n"
                    )
                }
            }
            _ => format!("start: {each}\n"),
        };
        Some(start + &writer.rules)
    }
}

impl Writer<'_> {
    /// A mark as a part of a rule.
    fn mark(&self, mark: &str) -> String {
        match (self.special)(mark) {
            Some(id) => format!("<[{id}]>"),
            None => Value::from(mark).to_string(),
        }
    }

    fn rule(&mut self, name: &str, body: &str) {
        self.rules.push_str(&format!("{name}: {body}\n"));
    }

    /// The part of a rule that stands for all calls.
    fn calls(&mut self, calls: Calls, tools: &[(&str, Value)], parallel: bool) -> Option<String> {
        let open = calls.open.first().map_or(String::new(), |mark| self.mark(mark));
        let close = calls.close.first().map_or(String::new(), |mark| self.mark(mark));
        match calls.kind {
            Kind::Json(keys) => {
                let schema = calls_schema(keys, tools, parallel);
                self.rule("arguments", &format!("%json {schema}"));
                let around = |inner: &str| format!("{open} {inner} {close}");
                Some(match (keys.array, close.is_empty(), parallel) {
                    (true, ..) => around("arguments"),
                    (false, true, _) => around("/\\n?/ arguments"),
                    (false, false, true) => {
                        self.rule("call", &around("/\\n?/ arguments /\\n?/"));
                        format!("{open} /\\n?/ arguments /\\n?/ {close} (/\\n?/ call)*")
                    }
                    _ => around("/\\n?/ arguments /\\n?/"),
                })
            }
            Kind::Named { prefix, ends, behind } => {
                let sep = self.mark(if ends.contains(&"[ARGS]") { "[ARGS]" } else { ends[0] });
                let behind: Vec<String> = behind.iter().map(|mark| self.mark(mark)).collect();
                let prefix = prefix.strip_suffix("<｜tool▁sep｜>").map_or(String::new(), |word| {
                    format!("{} {} ", Value::from(word), self.mark("<｜tool▁sep｜>"))
                });
                let mut names = Vec::new();
                for (number, (name, schema)) in tools.iter().enumerate() {
                    self.rule(&format!("tool_{number}"), &format!("%json {schema}"));
                    names.push(format!("{} {sep} tool_{number}", Value::from(*name)));
                }
                self.rule("one", &format!("{prefix}({}) {}", names.join(" | "), behind.join(" ")));
                let again = if parallel { format!(" ({open} one)*") } else { String::new() };
                Some(format!("{open} one{again} {close}"))
            }
            Kind::Tagged(tags) => Some(self.tagged(calls, tags, tools, parallel)),
            Kind::Gemma { .. } | Kind::Pythonic | Kind::Harmony => None,
        }
    }

    fn tagged(
        &mut self,
        calls: Calls,
        tags: Tags,
        tools: &[(&str, Value)],
        parallel: bool,
    ) -> String {
        let text = |text: &str| Value::from(text).to_string();
        let mut bodies = Vec::new();
        for (number, (name, schema)) in tools.iter().enumerate() {
            let properties = schema.get("properties").and_then(Value::as_object);
            let mut parameters = Vec::new();
            for (at, (key, schema)) in properties.into_iter().flatten().enumerate() {
                let rule = format!("value_{number}_{at}");
                let line = if tags.lines { "\n" } else { "" };
                let end = format!("{line}{}", tags.parameter.2);
                let is_text = schema.get("type").and_then(Value::as_str) == Some("string");
                if is_text {
                    self.rules.push_str(&format!("{rule}[suffix={}]: /(.|\\n)*/\n", text(&end)));
                } else {
                    self.rule(&rule, &format!("%json {schema} {}", text(&end)));
                }
                let says = match (tags.says_string, is_text) {
                    (false, _) => "",
                    (true, true) => " string=\"true\">",
                    (true, false) => " string=\"false\">",
                };
                let value = if tags.parameter.1 == "</arg_key>" { "\n<arg_value>" } else { "" };
                let head =
                    format!("{}{key}{}{says}{value}{line}", tags.parameter.0, tags.parameter.1);
                parameters.push(format!("{} {rule}", text(&head)));
            }
            let inner = match parameters.is_empty() {
                true => String::new(),
                false => format!("(({}) /\\n?/)*", parameters.join(" | ")),
            };
            let glm = tags.name.0.is_empty();
            let head = format!("{}{name}{}", tags.name.0, if glm { "" } else { tags.name.1[0] });
            let end = if tags.end.is_empty() { String::new() } else { text(tags.end) };
            let inner = if glm { inner } else { format!("/\\n?/ {inner}") };
            let gap = if glm { "/\\n?/ " } else { "" };
            bodies.push(format!("{} {gap}{inner} {end}", text(&head)));
        }
        self.rule("one", &format!("/\\n?/ ({}) /\\n?/", bodies.join(" | ")));
        let open = calls.open.first().map_or(String::new(), |mark| self.mark(mark));
        let close = calls.close.first().map_or(String::new(), |mark| self.mark(mark));
        if close.is_empty() {
            return if parallel { "one+".to_owned() } else { "one".to_owned() };
        }
        let again = if parallel { format!(" (/\\n?/ {open} one {close})*") } else { String::new() };
        format!("{open} one {close}{again}")
    }
}

/// A tool's name, and the schema of its arguments.
fn schema_of(tool: &JsonObject) -> Option<(&str, Value)> {
    let function = tool.get("function").and_then(Value::as_object).unwrap_or(tool);
    let empty = || json!({"type": "object", "properties": {}});
    let schema = function.get("parameters").filter(|schema| schema.is_object());
    Some((function.get("name")?.as_str()?, schema.cloned().unwrap_or_else(empty)))
}

/// The schema of a call that is an object, or of an array of them.
fn calls_schema(keys: JsonKeys, tools: &[(&str, Value)], parallel: bool) -> Value {
    let each = tools.iter().map(|(name, schema)| {
        if keys.name.is_empty() {
            return json!({
                "type": "object", "properties": {*name: schema}, "required": [name],
                "additionalProperties": false,
            });
        }
        let mut properties = JsonObject::new();
        let mut required = vec![keys.name, keys.arguments[0]];
        if keys.id == "tool_call_id" {
            properties.insert(keys.id.to_owned(), json!({"type": "string"}));
            required.insert(0, keys.id);
        }
        properties.insert(keys.name.to_owned(), json!({"const": name}));
        properties.insert(keys.arguments[0].to_owned(), schema.clone());
        json!({
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false,
        })
    });
    let one = json!({"anyOf": each.collect::<Vec<_>>()});
    if !keys.array {
        return one;
    }
    let most = if parallel { 64 } else { 1 };
    json!({"type": "array", "items": one, "minItems": 1, "maxItems": most})
}
