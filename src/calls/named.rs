//! Calls that are a name and an object behind a mark, and calls without a mark.

use super::format::{Calls, Kind};
use super::input::Found;
use super::json::{JsonCall, Scan};
use super::parser::{CallParser, State};

impl CallParser {
    /// A call without a mark, as Llama 3 writes it: one where it names a tool. Returns true if the
    /// parser goes on, false if it needs more text, and nothing where there is none.
    pub(super) fn bare_call(&mut self) -> Option<bool> {
        let calls = self
            .format
            .calls
            .filter(|calls| self.takes_calls && calls.open.first() == Some(&"<|python_tag|>"))?;
        let Kind::Json(keys) = calls.kind else { return None };
        if self.content.begun || self.calls > 0 {
            return None;
        }
        let rest = self.input.rest().trim_start();
        let mut parts = rest.splitn(5, '"');
        let (open, key, colon, name) = (parts.next()?, parts.next(), parts.next(), parts.next());
        let is_object = open.trim_end() == "{" || (open.trim_end().is_empty() && key.is_none());
        if !is_object {
            return None;
        }
        let whole = parts.next().is_some();
        let is_wrong = |key: &str| !"name".starts_with(key) || (colon.is_some() && key != "name");
        let wrong_key = key.is_some_and(is_wrong);
        if wrong_key || colon.is_some_and(|colon| !matches!(colon.trim(), "" | ":")) {
            return None;
        }
        if !whole {
            return if self.input.ended { None } else { Some(false) };
        }
        self.is_tool(name?).then(|| {
            self.state = State::Json(keys, JsonCall::default());
            true
        })
    }

    pub(super) fn named_step(&mut self) -> bool {
        let Some(Calls { kind: Kind::Named { prefix, ends, .. }, open, .. }) = self.format.calls
        else {
            return false;
        };
        if !self.input.skip_white(&[]) {
            return false;
        }
        for mark in open.iter().chain([&prefix]).filter(|mark| !mark.is_empty()) {
            match self.input.begins(mark, &self.marks) {
                None => return false,
                Some(true) => {
                    self.input.take(mark.len());
                    return true;
                }
                Some(false) => {}
            }
        }
        let Found::Mark(number, at) = self.input.find(ends, &self.marks) else { return false };
        let part = self.input.take(at).trim().to_owned();
        self.input.take(ends[number].len());
        let is_id_next = ends[number] == "[CALL_ID]";
        if is_id_next || self.block.is_empty() {
            self.block = part.clone();
        }
        if is_id_next {
            return true;
        }
        let name = std::mem::take(&mut self.block);
        let id = if name == part { String::new() } else { part };
        self.begin_call(&name, &id);
        self.state = State::NamedValue(Scan::default());
        true
    }

    pub(super) fn named_value_step(&mut self, mut scan: Scan) -> bool {
        let (bytes, done) = scan.feed(self.input.rest());
        let text = self.input.take(bytes);
        self.arguments(&text);
        self.state = State::NamedValue(scan);
        if done {
            self.end_call();
            self.state = State::NamedEnd;
        }
        done
    }

    pub(super) fn named_end_step(&mut self) -> bool {
        let Some(Calls { kind: Kind::Named { behind, .. }, .. }) = self.format.calls else {
            return false;
        };
        if !self.input.skip_white(&[]) {
            return false;
        }
        for mark in behind {
            match self.input.begins(mark, &self.marks) {
                None => return false,
                Some(true) => {
                    self.input.take(mark.len());
                    return true;
                }
                Some(false) => {}
            }
        }
        self.after_calls(State::NamedEnd)
    }
}
