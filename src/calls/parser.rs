//! The incremental parser: pieces of what a model writes to deltas.

use serde_json::Value;

use super::convert;
use super::format::{CallFormat, Calls, JsonKeys, Kind, Tags};
use super::harmony::Harmony;
use super::input::{Found, Input, Marks};
use super::json::{JsonCall, Scan};
use super::tagged::Tagged;
use crate::chat::JsonObject;

/// Longest call that is converted whole.
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// What a piece adds to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// More of the thought.
    Reasoning(String),
    /// More of what is said.
    Content(String),
    /// A call begins.
    CallStart {
        /// Its number, from 0.
        index: usize,
        /// The id that the model gave it; empty where it gives none.
        id: String,
        /// Name of the tool.
        name: String,
    },
    /// More of the text of a call's arguments, which is a JSON object when the call ends.
    Arguments {
        /// The call's number.
        index: usize,
        /// The piece.
        text: String,
    },
    /// A call ends.
    CallEnd {
        /// Its number.
        index: usize,
    },
}

/// How an output is parsed.
#[derive(Clone, Copy, Debug)]
pub struct ParseOptions<'a> {
    /// The request's tools, as its template takes them. Without any, nothing is a call.
    pub tools: &'a [JsonObject],
    /// The prompt, or its end: it may have opened a thought.
    pub prompt: &'a str,
    /// True if thoughts are apart from content; otherwise they stay in it, with their marks.
    pub split_reasoning: bool,
}

/// Where a parser stands.
#[derive(Clone, Debug)]
pub(super) enum State {
    Thought,
    Prose,
    Json(JsonKeys, JsonCall),
    /// Before or within a name, behind which a value follows.
    Named,
    /// Within the arguments of a named call.
    NamedValue(Scan),
    /// Behind them.
    NamedEnd,
    Tagged(Tags, Tagged),
    /// Within a call that is converted whole.
    Block,
    Harmony(Harmony),
}

/// Parses what one model writes in answer to one prompt.
#[derive(Clone, Debug)]
pub struct CallParser {
    pub(super) format: CallFormat,
    pub(super) takes_calls: bool,
    split: bool,
    /// Names of the tools, and of each the parameters that are texts.
    tools: Vec<(String, Vec<String>)>,
    pub(super) input: Input,
    pub(super) marks: Marks,
    pub(super) state: State,
    out: Vec<Delta>,
    /// Calls that have begun.
    pub(super) calls: usize,
    in_call: bool,
    pub(super) content: Held,
    thought: Held,
    pub(super) block: String,
    /// The id of a named call.
    id: String,
}

/// A text whose white space at the ends is left out.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) begun: bool,
    white: String,
}

impl Held {
    fn add(&mut self, text: &str) -> Option<String> {
        let whole = std::mem::take(&mut self.white) + text;
        let text = if self.begun { &whole } else { whole.trim_start() };
        let end = text.trim_end().len();
        self.white = text[end..].to_owned();
        self.begun |= end > 0;
        (end > 0).then(|| text[..end].to_owned())
    }
}

impl CallParser {
    /// A parser of what follows a prompt. `special` tells which marks are special tokens of the
    /// model.
    #[must_use]
    pub fn new(format: CallFormat, options: &ParseOptions, special: &dyn Fn(&str) -> bool) -> Self {
        let marks = format.marks().filter(|mark| special(mark)).map(str::to_owned).collect();
        let tools = options.tools.iter().filter_map(tool_of).collect();
        let mut parser = Self {
            format,
            takes_calls: !options.tools.is_empty() && format.calls.is_some(),
            split: options.split_reasoning,
            tools,
            input: Input::default(),
            marks: Marks(marks),
            state: State::Prose,
            out: Vec::new(),
            calls: 0,
            in_call: false,
            content: Held::default(),
            thought: Held::default(),
            block: String::new(),
            id: String::new(),
        };
        if matches!(format.calls, Some(Calls { kind: Kind::Harmony, .. })) {
            parser.state = State::Harmony(Harmony::Header);
        } else if let Some(reasoning) = format.reasoning
            && options.prompt.trim_end().ends_with(reasoning.open.trim_end())
        {
            parser.state = State::Thought;
            let opened = options.prompt.rfind(reasoning.open.trim_end()).unwrap_or(0);
            // An opening in plain words is a part of the thought.
            let in_words = reasoning.open.starts_with(char::is_alphabetic);
            if !parser.split || in_words {
                parser.reasoning(&options.prompt[opened..]);
            }
        }
        parser
    }

    /// Takes a token's bytes; `special` is true for one that is no text.
    pub fn push(&mut self, bytes: &[u8], special: bool) -> Vec<Delta> {
        self.input.push(bytes, special);
        self.run()
    }

    /// The output ends here.
    pub fn finish(&mut self) -> Vec<Delta> {
        self.input.end();
        let mut deltas = self.run();
        if let State::Block = self.state
            && !self.block.is_empty()
        {
            self.end_block();
        }
        if self.calls == 0 && self.content.begun {
            let white = std::mem::take(&mut self.content.white);
            self.put(Delta::Content(white));
        }
        deltas.append(&mut self.out);
        deltas
    }

    fn run(&mut self) -> Vec<Delta> {
        while self.step() {}
        std::mem::take(&mut self.out)
    }

    /// Goes on by one part; false if more text is needed.
    fn step(&mut self) -> bool {
        if self.input.is_empty() {
            return false;
        }
        // A state that holds a part of a call is moved, not copied: its step always puts it back.
        let state = match &self.state {
            State::Json(..) | State::Tagged(_, Tagged::Value { .. }) => {
                std::mem::replace(&mut self.state, State::Prose)
            }
            state => state.clone(),
        };
        match state {
            State::Thought => self.thought_step(),
            State::Prose => self.prose_step(),
            State::Json(keys, call) => self.json_step(keys, call),
            State::Named => self.named_step(),
            State::NamedValue(scan) => self.named_value_step(scan),
            State::NamedEnd => self.named_end_step(),
            State::Tagged(tags, tagged) => self.tagged_step(tags, tagged),
            State::Block => self.block_step(),
            State::Harmony(harmony) => self.harmony_step(harmony),
        }
    }

    fn thought_step(&mut self) -> bool {
        let Some(reasoning) = self.format.reasoning else {
            self.state = State::Prose;
            return true;
        };
        let calls = self.format.calls.filter(|_| self.takes_calls && reasoning.calls_end_it);
        let mut wanted = vec![reasoning.close, reasoning.open];
        wanted.extend(calls.iter().flat_map(|calls| calls.open));
        let found = self.input.find(&wanted, &self.marks);
        let (bytes, number) = match found {
            Found::Mark(number, at) => (at, Some(number)),
            Found::Safe(bytes) => (bytes, None),
        };
        let text = self.input.take(bytes);
        self.reasoning(&text);
        match number {
            None => return false,
            Some(0 | 1) => {
                let mark = wanted[number.unwrap_or(0)];
                self.input.take(mark.len());
                if !self.split {
                    self.content(mark);
                }
                if number == Some(0) {
                    self.state = State::Prose;
                }
            }
            Some(_) => self.state = State::Prose,
        }
        true
    }

    fn prose_step(&mut self) -> bool {
        if let Some(waits) = self.bare_call() {
            return waits;
        }
        let reasoning = self.format.reasoning;
        let calls = self.format.calls.filter(|_| self.takes_calls);
        let mut wanted: Vec<&str> = calls.iter().flat_map(|calls| calls.open).copied().collect();
        let opens = wanted.len();
        wanted.extend(reasoning.iter().flat_map(|r| [r.open, r.close]));
        let thoughts = wanted.len();
        wanted.extend(self.format.wraps);
        let (bytes, number) = match self.input.find(&wanted, &self.marks) {
            Found::Mark(number, at) => (at, Some(number)),
            Found::Safe(bytes) => (bytes, None),
        };
        let text = self.input.take(bytes);
        self.content(&text);
        let Some(number) = number else { return false };
        let mark = wanted[number];
        if number < opens {
            self.open_calls(mark);
            return true;
        }
        self.input.take(mark.len());
        if number < thoughts {
            if !self.split {
                self.content(mark);
            }
            if reasoning.is_some_and(|reasoning| reasoning.open == mark) {
                self.state = State::Thought;
            }
        }
        true
    }

    pub(super) fn is_tool(&self, name: &str) -> bool {
        self.tools.iter().any(|(known, _)| known == name)
    }

    /// Takes the mark of a call, unless it is the beginning of the call itself.
    pub(super) fn open_calls(&mut self, mark: &str) {
        let Some(calls) = self.format.calls else { return };
        let (is_inner, state) = match calls.kind {
            Kind::Json(keys) => (false, State::Json(keys, JsonCall::default())),
            Kind::Named { .. } => (false, State::Named),
            Kind::Tagged(tags) => (mark == tags.name.0, State::Tagged(tags, Tagged::Outside)),
            Kind::Gemma { .. } | Kind::Pythonic => (false, State::Block),
            Kind::Harmony => (false, State::Harmony(Harmony::Header)),
        };
        if !is_inner {
            self.input.take(mark.len());
        }
        self.state = state;
    }

    /// Behind calls: their end, another one's beginning, or text again. Keeps `state` if more text
    /// is needed to tell.
    pub(super) fn after_calls(&mut self, state: State) -> bool {
        let Some(calls) = self.format.calls else { return false };
        self.state = state;
        if !self.input.skip_white(&[]) {
            return false;
        }
        let mut waits = false;
        for (ends, marks) in [(true, calls.close), (false, calls.open)] {
            for mark in marks {
                match self.input.begins(mark, &self.marks) {
                    None => waits = true,
                    Some(false) => {}
                    Some(true) => {
                        if ends {
                            self.input.take(mark.len());
                            self.state = State::Prose;
                        } else {
                            self.open_calls(mark);
                        }
                        return true;
                    }
                }
            }
        }
        if !waits {
            self.state = State::Prose;
        }
        !waits
    }

    fn block_step(&mut self) -> bool {
        let Some(calls) = self.format.calls else { return false };
        let (bytes, mark) = match self.input.find(calls.close, &self.marks) {
            Found::Mark(number, at) => (at, Some(calls.close[number])),
            Found::Safe(bytes) => (bytes, None),
        };
        let text = self.input.take(bytes);
        self.block.push_str(&text);
        let too_long = self.block.len() > BLOCK_BYTES_MAX;
        if mark.is_none() && !too_long {
            return false;
        }
        self.input.take(mark.map_or(0, str::len));
        let block = std::mem::take(&mut self.block);
        self.convert(&block);
        self.state = State::Prose;
        true
    }

    /// A call that was cut off begins, and has no arguments.
    fn end_block(&mut self) {
        let block = std::mem::take(&mut self.block);
        if self.calls_of(&block).is_some() {
            return self.convert(&block);
        }
        let name = block.trim_start().trim_start_matches('[').trim_start_matches("call:");
        match name.split_once(['(', '{']) {
            Some((name, _)) => self.begin_call(name.trim(), ""),
            None => self.content(&block),
        }
    }

    fn calls_of(&self, block: &str) -> Option<Vec<(String, String)>> {
        match self.format.calls {
            Some(Calls { kind: Kind::Gemma { quote }, .. }) => {
                convert::gemma(block, quote).map(|call| vec![call])
            }
            _ => convert::pythonic(block),
        }
    }

    fn convert(&mut self, block: &str) {
        // What is no call is what the model said.
        let Some(calls) = self.calls_of(block) else { return self.content(block) };
        for (name, arguments) in calls {
            self.begin_call(&name, "");
            self.arguments(&arguments);
            self.end_call();
        }
    }

    pub(super) fn is_text_argument(&self, key: &str) -> bool {
        let name = self.id.as_str();
        let tool = self.tools.iter().find(|(known, _)| known == name);
        tool.is_some_and(|(_, texts)| texts.iter().any(|text| text == key))
    }

    fn put(&mut self, delta: Delta) {
        match (self.out.last_mut(), delta) {
            (_, Delta::Content(text) | Delta::Reasoning(text)) if text.is_empty() => {}
            (Some(Delta::Content(before)), Delta::Content(text)) => before.push_str(&text),
            (Some(Delta::Reasoning(before)), Delta::Reasoning(text)) => before.push_str(&text),
            (Some(Delta::Arguments { text: before, .. }), Delta::Arguments { text, .. }) => {
                before.push_str(&text);
            }
            (_, delta) => self.out.push(delta),
        }
    }

    pub(super) fn content(&mut self, text: &str) {
        if let Some(text) = self.content.add(text) {
            self.put(Delta::Content(text));
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        if !self.split {
            return self.content(text);
        }
        if let Some(text) = self.thought.add(text) {
            self.put(Delta::Reasoning(text));
        }
    }

    pub(super) fn begin_call(&mut self, name: &str, id: &str) {
        let (index, name, id) = (self.calls, name.to_owned(), id.to_owned());
        self.calls += 1;
        self.in_call = true;
        self.id.clone_from(&name);
        self.put(Delta::CallStart { index, id, name });
    }

    pub(super) fn arguments(&mut self, text: &str) {
        if self.in_call && !text.is_empty() {
            self.put(Delta::Arguments { index: self.calls - 1, text: text.to_owned() });
        }
    }

    pub(super) fn end_call(&mut self) {
        if std::mem::take(&mut self.in_call) {
            self.put(Delta::CallEnd { index: self.calls - 1 });
        }
    }
}

/// A tool's name, and its parameters that are texts.
fn tool_of(tool: &JsonObject) -> Option<(String, Vec<String>)> {
    let function = tool.get("function").and_then(Value::as_object).unwrap_or(tool);
    let name = function.get("name")?.as_str()?.to_owned();
    let parameters = function.get("parameters");
    let properties = parameters.and_then(|p| p.get("properties")).and_then(Value::as_object);
    let texts = properties.into_iter().flatten().filter(|(_, schema)| is_text(schema));
    Some((name, texts.map(|(key, _)| key.clone()).collect()))
}

/// True if a schema takes a text and nothing that JSON writes without quotes.
fn is_text(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().all(|kind| kind == "string"),
        _ => schema
            .get("enum")
            .and_then(Value::as_array)
            .is_some_and(|values| !values.is_empty() && values.iter().all(Value::is_string)),
    }
}
