//! What a request says about the form of its text.

use std::fmt;

/// The languages in which a grammar can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrammarKind {
    /// JSON Schema, draft 2020-12 and older.
    JsonSchema,
    /// Any JSON object; it has no text.
    JsonObject,
    /// A regular expression that the whole text matches.
    Regex,
    /// Lark, as llguidance takes it.
    Lark,
    /// llama.cpp's form of BNF.
    Gbnf,
}

impl GrammarKind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::JsonSchema, Self::JsonObject, Self::Regex, Self::Lark, Self::Gbnf];

    /// Name in requests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::JsonSchema => "json_schema",
            Self::JsonObject => "json_object",
            Self::Regex => "regex",
            Self::Lark => "lark",
            Self::Gbnf => "gbnf",
        }
    }

    /// Name in messages.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::JsonSchema => "JSON Schema",
            Self::JsonObject => "JSON object",
            Self::Regex => "regular expression",
            Self::Lark => "Lark grammar",
            Self::Gbnf => "GBNF grammar",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for GrammarKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

/// A grammar as its author wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GrammarSource {
    /// Language.
    pub kind: GrammarKind,
    /// Text; empty for [`GrammarKind::JsonObject`].
    pub text: String,
    /// Start rule of a GBNF grammar; `root` without it.
    pub root: Option<String>,
}

impl GrammarSource {
    /// A grammar of this kind.
    pub fn new(kind: GrammarKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), root: None }
    }

    /// A `grammar` field of llama-server: GBNF, or Lark where its first line says `%llguidance`.
    pub fn gbnf_or_lark(text: impl Into<String>) -> Self {
        let text = text.into();
        let is_lark = text.trim_start().starts_with("%llguidance");
        Self::new(if is_lark { GrammarKind::Lark } else { GrammarKind::Gbnf }, text)
    }

    /// One of these texts and nothing else.
    pub fn choice<'a>(choices: impl IntoIterator<Item = &'a str>) -> Self {
        let escaped: Vec<String> = choices.into_iter().map(regex::escape).collect();
        Self::new(GrammarKind::Regex, format!("({})", escaped.join("|")))
    }
}

/// What has to be written before a grammar begins to hold, as the end of a model's thoughts. Until
/// then any text may come, but no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeginsAfter {
    /// This token.
    Token(u32),
    /// This text, however it is cut into tokens.
    Text(String),
}
