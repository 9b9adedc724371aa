//! The channels of gpt-oss: headers say what follows, and for whom.

use super::input::Found;
use super::parser::{CallParser, State};

/// Where an output in channels stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Harmony {
    Header,
    Thought,
    Content,
    Call,
    /// For nobody that is known.
    Dropped,
}

const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>"];

impl CallParser {
    /// Goes on with channels; false if more text is needed.
    pub(super) fn harmony_step(&mut self, state: Harmony) -> bool {
        if state == Harmony::Header {
            let Found::Mark(_, at) = self.input.find(&["<|message|>"], &self.marks) else {
                return false;
            };
            let header = self.input.take(at);
            self.input.take("<|message|>".len());
            self.state = State::Harmony(self.harmony_kind(&header));
            return true;
        }
        let (bytes, mark) = match self.input.find(&ENDS, &self.marks) {
            Found::Mark(number, at) => (at, Some(ENDS[number])),
            Found::Safe(bytes) => (bytes, None),
        };
        let piece = self.input.take(bytes);
        match state {
            Harmony::Thought => self.reasoning(&piece),
            Harmony::Content => self.content(&piece),
            Harmony::Call => self.arguments(&piece),
            _ => {}
        }
        let Some(mark) = mark else { return false };
        self.input.take(mark.len());
        if state == Harmony::Call {
            self.end_call();
        }
        self.state = State::Harmony(Harmony::Header);
        true
    }

    fn harmony_kind(&mut self, header: &str) -> Harmony {
        let to = header.split("to=").skip(1);
        let mut to = to.filter_map(|part| part.split([' ', '<', '\n']).next());
        if let Some(name) = to.find_map(|to| to.strip_prefix("functions.")) {
            let name = name.to_owned();
            self.begin_call(&name, "");
            return Harmony::Call;
        }
        if header.contains("to=") && !header.contains("to=assistant") {
            return Harmony::Dropped;
        }
        let channel = header.rsplit("<|channel|>").next().unwrap_or_default().trim();
        if channel.starts_with("analysis") { Harmony::Thought } else { Harmony::Content }
    }
}
