//! Calls with marks around the name and around each argument.

use super::format::Tags;
use super::input::Found;
use super::json::escaped;
use super::parser::{CallParser, State};

/// Where a tagged call stands.
#[derive(Clone, Debug)]
pub(super) enum Tagged {
    /// Before a call, or behind the last one.
    Outside,
    /// Behind a call whose name has no mark before it.
    Behind,
    /// Within the name.
    Name,
    /// Between arguments; the number of those so far.
    Arguments(usize),
    /// Within the name of an argument.
    Key(usize),
    /// Behind that name, before the value.
    Gap(usize, String),
    /// Within the value.
    Value { arguments: usize, quoted: bool, lines: bool, held: String },
}

impl CallParser {
    /// Goes on with tagged calls; false if more text is needed.
    pub(super) fn tagged_step(&mut self, tags: Tags, state: Tagged) -> bool {
        match state {
            Tagged::Outside => self.tagged_outside(tags),
            Tagged::Behind => self.after_calls(State::Tagged(tags, Tagged::Behind)),
            Tagged::Name => self.tagged_name(tags),
            Tagged::Arguments(count) => self.tagged_arguments(tags, count),
            Tagged::Key(count) => match self.input.find(&[tags.parameter.1], &self.marks) {
                Found::Mark(_, at) => {
                    let key = self.input.take(at);
                    self.input.take(tags.parameter.1.len());
                    self.state = State::Tagged(tags, Tagged::Gap(count, key.trim().to_owned()));
                    true
                }
                Found::Safe(_) => false,
            },
            Tagged::Gap(count, key) => self.tagged_gap(tags, count, &key),
            Tagged::Value { arguments, quoted, lines, held } => {
                self.tagged_value(tags, arguments, quoted, lines, held)
            }
        }
    }

    fn to(&mut self, tags: Tags, state: Tagged) -> bool {
        self.state = State::Tagged(tags, state);
        true
    }

    fn tagged_outside(&mut self, tags: Tags) -> bool {
        if !self.input.skip_white(&[]) {
            return false;
        }
        let mark = tags.name.0;
        if mark.is_empty() {
            return self.to(tags, Tagged::Name);
        }
        match self.input.begins(mark, &self.marks) {
            None => false,
            Some(true) => {
                self.input.take(mark.len());
                self.to(tags, Tagged::Name)
            }
            Some(false) => self.after_calls(State::Tagged(tags, Tagged::Outside)),
        }
    }

    fn tagged_name(&mut self, tags: Tags) -> bool {
        let Found::Mark(number, at) = self.input.find(tags.name.1, &self.marks) else {
            return false;
        };
        let name = self.input.take(at);
        // For GLM, whose name ends where something else begins, that stays.
        if !tags.name.0.is_empty() {
            self.input.take(tags.name.1[number].len());
        }
        self.begin_call(name.trim(), "");
        self.arguments("{");
        self.to(tags, Tagged::Arguments(0))
    }

    fn tagged_arguments(&mut self, tags: Tags, count: usize) -> bool {
        if !self.input.skip_white(&[]) {
            return false;
        }
        match self.input.begins(tags.parameter.0, &self.marks) {
            None => return false,
            Some(true) => {
                self.input.take(tags.parameter.0.len());
                return self.to(tags, Tagged::Key(count));
            }
            Some(false) => {}
        }
        if !tags.end.is_empty() {
            match self.input.begins(tags.end, &self.marks) {
                None => return false,
                Some(true) => drop(self.input.take(tags.end.len())),
                Some(false) => {}
            }
        }
        self.arguments("}");
        self.end_call();
        self.to(tags, if tags.name.0.is_empty() { Tagged::Behind } else { Tagged::Outside })
    }

    fn tagged_gap(&mut self, tags: Tags, count: usize, key: &str) -> bool {
        let mut says = None;
        if tags.says_string {
            let Some(end) = self.input.rest().find('>') else { return false };
            let attribute = self.input.take(end + 1);
            says = Some(!attribute.contains("string=\"false\""));
        } else if tags.parameter.1 == "</arg_key>" {
            let mark = "<arg_value>";
            if !self.input.skip_white(&[]) {
                return false;
            }
            match self.input.begins(mark, &self.marks) {
                None => return false,
                Some(true) => drop(self.input.take(mark.len())),
                Some(false) => {}
            }
        }
        // Whether the value is on lines of its own is told by its first character.
        let mut lines = false;
        if tags.lines {
            if self.input.is_empty() && !self.input.ended {
                return false;
            }
            lines = self.input.rest().starts_with('\n');
            self.input.take(usize::from(lines));
        }
        let quoted = says.unwrap_or_else(|| self.is_text_argument(key));
        let comma = if count > 0 { ", " } else { "" };
        self.arguments(&format!("{comma}\"{}\": ", escaped(key)));
        if quoted {
            self.arguments("\"");
        }
        let arguments = count + 1;
        self.to(tags, Tagged::Value { arguments, quoted, lines, held: String::new() })
    }

    fn tagged_value(
        &mut self,
        tags: Tags,
        arguments: usize,
        quoted: bool,
        lines: bool,
        mut held: String,
    ) -> bool {
        let on_line = format!("\n{}", tags.parameter.2);
        let wanted: &[&str] = if lines { &[&on_line] } else { &[tags.parameter.2] };
        let literal = "<![CDATA[";
        if held.is_empty() && quoted && !lines && !tags.says_string {
            match self.input.begins(literal, &self.marks) {
                None => {
                    self.to(tags, Tagged::Value { arguments, quoted, lines, held });
                    return false;
                }
                Some(true) => {
                    let Some(end) = self.input.rest().find("]]>") else {
                        self.to(tags, Tagged::Value { arguments, quoted, lines, held });
                        return false;
                    };
                    let text = self.input.take(end + 3);
                    self.arguments(&escaped(&text[literal.len()..end]));
                }
                Some(false) => {}
            }
        }
        let (bytes, done) = match self.input.find(wanted, &self.marks) {
            Found::Mark(_, at) => (at, true),
            Found::Safe(bytes) => (bytes, false),
        };
        let piece = self.input.take(bytes);
        if quoted {
            self.arguments(&escaped(&piece));
            if !piece.is_empty() {
                held = "begun".to_owned();
            }
        } else {
            held.push_str(&piece);
        }
        if !done {
            self.to(tags, Tagged::Value { arguments, quoted, lines, held });
            return false;
        }
        self.input.take(wanted[0].len());
        if quoted {
            self.arguments("\"");
        } else {
            let value = value_of(&held);
            self.arguments(&value);
        }
        self.to(tags, Tagged::Arguments(arguments))
    }
}

/// A value as it was written, as JSON: itself where it is JSON, and else a text.
fn value_of(text: &str) -> String {
    let trimmed = text.trim();
    match trimmed {
        "True" => return "true".to_owned(),
        "False" => return "false".to_owned(),
        "None" => return "null".to_owned(),
        _ => {}
    }
    if serde_json::from_str::<serde::de::IgnoredAny>(trimmed).is_ok() {
        trimmed.to_owned()
    } else {
        format!("\"{}\"", escaped(text))
    }
}
