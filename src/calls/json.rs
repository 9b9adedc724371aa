//! JSON as it comes, piece by piece: values that are passed on, and calls that are objects.

use super::format::JsonKeys;
use super::parser::{CallParser, State};

/// Follows one value of JSON to its end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    depth: usize,
    in_text: bool,
    escaped: bool,
    begun: bool,
}

impl Scan {
    /// Bytes of `text` that belong to the value, and true if it ends there.
    pub(super) fn feed(&mut self, text: &str) -> (usize, bool) {
        for (at, c) in text.char_indices() {
            let behind = at + c.len_utf8();
            if self.in_text {
                self.in_text = self.escaped || c != '"';
                self.escaped = c == '\\' && !self.escaped;
                if !self.in_text && self.depth == 0 {
                    return (behind, true);
                }
                continue;
            }
            match c {
                '"' => self.in_text = true,
                '{' | '[' => self.depth += 1,
                '}' | ']' | ',' if self.depth == 0 => return (at, true),
                '}' | ']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return (behind, true);
                    }
                }
                c if self.depth == 0 && self.begun && c.is_whitespace() => return (at, true),
                // No value begins or goes on like this: a mark follows.
                '<' | '`' if self.depth == 0 => return (at, true),
                _ => {}
            }
            self.begun = true;
        }
        (text.len(), false)
    }
}

/// The text at the beginning of `rest`, and where it ends; none if it is not whole.
pub(super) fn text_at(rest: &str) -> Option<(String, usize)> {
    let mut escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    let (end, _) = end?;
    let text = serde_json::from_str(&rest[..=end]);
    Some((text.unwrap_or_else(|_| rest[1..end].to_owned()), end + 1))
}

/// A text as JSON has it inside of its quotes.
pub(super) fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// A call that is an object.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonCall {
    stage: Stage,
    name: Option<String>,
    id: String,
    /// Arguments that came before the name.
    early: String,
    begun: bool,
    /// Arguments that are a text of JSON.
    as_text: bool,
    /// True if the value of the arguments has begun.
    passing: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    /// Between objects.
    #[default]
    Outside,
    /// Before a member's name, or the end of the object.
    Member,
    /// Within the value of a member: of the arguments, or of one that is passed over.
    Value(Scan, bool),
    Name,
    Id,
}

impl CallParser {
    /// Goes on with calls that are objects; false if more text is needed.
    pub(super) fn json_step(&mut self, keys: JsonKeys, mut call: JsonCall) -> bool {
        let white: &[char] = match call.stage {
            Stage::Outside => &[',', '[', ']', ';'],
            Stage::Member => &[',', ':'],
            _ => &[],
        };
        let in_value = matches!(call.stage, Stage::Value(..));
        if !in_value && !self.input.skip_white(white) {
            self.state = State::Json(keys, call);
            return false;
        }
        let rest = self.input.rest();
        let goes_on = match call.stage {
            Stage::Outside if rest.starts_with('{') => {
                self.input.take(1);
                call = JsonCall { stage: Stage::Member, ..JsonCall::default() };
                true
            }
            Stage::Outside => return self.after_calls(State::Json(keys, call)),
            Stage::Member if rest.starts_with('}') => {
                self.input.take(1);
                self.begin_json(&mut call);
                if call.begun {
                    self.end_call();
                }
                call.stage = Stage::Outside;
                true
            }
            Stage::Member if rest.starts_with('"') => self.json_member(keys, &mut call),
            // No JSON: what follows is text again.
            Stage::Member => {
                self.state = State::Prose;
                return true;
            }
            Stage::Name | Stage::Id => match text_at(rest) {
                Some((text, end)) if rest.starts_with('"') => {
                    self.input.take(end);
                    if matches!(call.stage, Stage::Name) {
                        call.name = Some(text);
                    } else {
                        call.id = text;
                    }
                    if !call.id.is_empty() {
                        self.begin_json(&mut call);
                    }
                    call.stage = Stage::Member;
                    true
                }
                None if rest.starts_with('"') => false,
                _ => {
                    call.stage = Stage::Value(Scan::default(), false);
                    true
                }
            },
            Stage::Value(mut scan, passed_on) => {
                let (bytes, done) = scan.feed(rest);
                let piece = self.input.take(bytes);
                call.stage = if done { Stage::Member } else { Stage::Value(scan, passed_on) };
                if passed_on {
                    self.json_piece(&mut call, &piece, done);
                }
                done
            }
        };
        self.state = State::Json(keys, call);
        goes_on
    }

    fn json_member(&mut self, keys: JsonKeys, call: &mut JsonCall) -> bool {
        let Some((key, end)) = text_at(self.input.rest()) else { return false };
        let behind = &self.input.rest()[end..];
        let Some(colon) = behind.find(|c: char| !c.is_whitespace()) else { return false };
        self.input.take(end + colon + 1);
        let as_name = keys.name.is_empty();
        if as_name {
            call.name = Some(key.clone());
        }
        call.stage = if as_name || keys.arguments.contains(&key.as_str()) {
            // A name that is known begins the call.
            if !keys.id_last {
                self.begin_json(call);
            }
            Stage::Value(Scan::default(), true)
        } else if key == keys.name {
            Stage::Name
        } else if key == keys.id {
            Stage::Id
        } else {
            Stage::Value(Scan::default(), false)
        };
        true
    }

    fn begin_json(&mut self, call: &mut JsonCall) {
        if let Some(name) = call.name.clone().filter(|_| !call.begun) {
            call.begun = true;
            self.begin_call(&name, &call.id);
            let early = std::mem::take(&mut call.early);
            self.arguments(early.trim_start());
        }
    }

    fn json_piece(&mut self, call: &mut JsonCall, piece: &str, done: bool) {
        if !call.passing && piece.trim().is_empty() {
            return;
        }
        let begins = !call.passing;
        call.as_text |= begins && piece.trim_start().starts_with('"');
        call.passing |= begins;
        if call.begun && !call.as_text {
            return self.arguments(if begins { piece.trim_start() } else { piece });
        }
        call.early.push_str(piece);
        if done && call.as_text {
            let early = std::mem::take(&mut call.early);
            call.early = text_at(early.trim()).map_or(early.clone(), |(text, _)| text);
            if call.begun {
                let text = std::mem::take(&mut call.early);
                self.arguments(&text);
            }
        }
    }
}
