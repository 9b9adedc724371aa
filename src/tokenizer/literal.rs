//! Text within a prompt whose special tokens are to be read as text.
//!
//! A chat template mixes its own special tokens with texts of others. Those texts are prepared
//! before the template sees them: a mark, which is a character that none of them has, goes into
//! every special token they spell. The tokens are then found in the prompt as always, and the marks
//! taken out of the text between them. Text that spells no special token has no marks, and becomes
//! the same tokens as without all this.

use std::borrow::Cow;

use super::Tokenizer;

/// Characters that marks are taken from: Unicode keeps them for the inside of programs.
const MARKS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// A character that none of the texts has, nor its JSON escape; `None` where they have them all.
#[must_use]
pub fn unused_mark<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Option<char> {
    let is_unused = |mark: &char| {
        let escape = escape(*mark);
        texts.clone().all(|text| {
            !text.contains(*mark) && !text.to_ascii_lowercase().contains(escape.as_str())
        })
    };
    MARKS.into_iter().find(is_unused)
}

/// A mark as JSON in ASCII has it.
fn escape(mark: char) -> String {
    format!("\\u{:04x}", u32::from(mark))
}

/// A prompt without the marks in the escapes of JSON, where a template wrote some.
#[must_use]
pub fn without_escaped_marks(prompt: String, mark: char) -> String {
    let escape = escape(mark);
    let found = [escape.clone(), escape.to_ascii_uppercase().replace("\\U", "\\u")];
    found.iter().fold(prompt, |prompt, escape| match prompt.contains(escape.as_str()) {
        true => prompt.replace(escape.as_str(), &mark.to_string()),
        false => prompt,
    })
}

impl Tokenizer {
    /// Text with a mark in every control token that it spells, and at its ends where it could make
    /// one together with what stands beside it.
    #[must_use]
    pub fn mark_specials<'a>(&self, text: &'a str, mark: char) -> Cow<'a, str> {
        let mut places = self.specials.control_places(&self.vocab, text);
        if self.specials.begins_inside(&self.vocab, text) {
            places.push(0);
        }
        if self.specials.ends_inside(&self.vocab, text) {
            places.push(text.len());
        }
        if places.is_empty() {
            return Cow::Borrowed(text);
        }
        places.sort_unstable();
        places.dedup();
        let mut marked = String::with_capacity(text.len() + places.len() * mark.len_utf8());
        let mut from = 0;
        for place in places {
            marked.push_str(&text[from..place]);
            marked.push(mark);
            from = place;
        }
        marked.push_str(&text[from..]);
        Cow::Owned(marked)
    }
}
