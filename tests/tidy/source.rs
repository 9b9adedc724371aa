//! A source file as the tidy tests read it: its text, and its code with all else blanked out.

use std::path::{Path, PathBuf};

/// One file.
pub(crate) struct Source {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// All of it.
    pub(crate) text: String,
    /// The same length and lines; comments, strings and test modules are blanks.
    pub(crate) code: String,
}

impl Source {
    /// Reads a file, which must be there and be UTF-8.
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        let code = blank_tests(blank_comments_and_strings(&text));
        Self { path: path.to_owned(), text, code }
    }

    /// Whether the file is a module of tests, by its name.
    pub(crate) fn is_test(&self) -> bool {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let folder = self.path.parent().and_then(Path::file_name).unwrap_or_default();
        stem == "tests" || stem.ends_with("_tests") || folder == "tests"
    }

    /// The number of the line, from 1, that holds this byte of `code`.
    pub(crate) fn line_of(&self, offset: usize) -> usize {
        self.code[..offset].bytes().filter(|byte| *byte == b'\n').count() + 1
    }

    /// Lines of code, from 1, that hold this word.
    pub(crate) fn lines_with_word(&self, word: &str) -> Vec<usize> {
        words(&self.code, word).map(|offset| self.line_of(offset)).collect()
    }

    /// Every function with a body: its line, its name, how many lines it takes.
    pub(crate) fn functions(&self) -> Vec<(usize, String, usize)> {
        let mut found = Vec::new();
        for start in words(&self.code, "fn") {
            let rest = &self.code[start + 2..];
            let name: String = rest.trim_start().chars().take_while(|c| is_word(*c)).collect();
            // A pointer's type has no name, a trait's method may have no body.
            let Some(open) = rest.find(['{', ';']) else { continue };
            if name.is_empty() || rest.as_bytes()[open] == b';' {
                continue;
            }
            let end = closing_brace(rest, open);
            let length = rest[..end].matches('\n').count() + 1;
            found.push((self.line_of(start), name, length));
        }
        found
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where a word stands, apart from longer words that hold it.
pub(crate) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(start, _)| start).filter(move |start| {
        let before = code[..*start].chars().next_back();
        let after = code[start + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The byte after the brace that closes the one at `open`, or the end.
fn closing_brace(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return offset + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}

/// Modules that are compiled for tests only may import what they like.
fn blank_tests(code: String) -> String {
    let mut bytes = code.clone().into_bytes();
    for (start, attribute) in code.match_indices("#[cfg(test)]") {
        let rest = &code[start + attribute.len()..];
        let Some(open) = rest.find(['{', ';']) else { continue };
        let end = if rest.as_bytes()[open] == b';' { open + 1 } else { closing_brace(rest, open) };
        blank(&mut bytes[start..start + attribute.len() + end]);
    }
    String::from_utf8(bytes).expect("whole items were blanked")
}

fn blank_comments_and_strings(text: &str) -> String {
    let source = text.as_bytes();
    let mut bytes = source.to_vec();
    let mut at = 0;
    while at < source.len() {
        let end = match source[at] {
            b'/' if source[at..].starts_with(b"//") => line_end(source, at),
            b'/' if source[at..].starts_with(b"/*") => comment_end(source, at),
            b'"' => string_end(source, at),
            b'r' if !follows_word(source, at) => match raw_string_end(source, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            b'\'' => character_end(text, at),
            _ => {
                at += 1;
                continue;
            }
        };
        blank(&mut bytes[at..end]);
        at = end;
    }
    String::from_utf8(bytes).expect("whole characters were blanked")
}

/// A prefix like that of `br"…"` is no word before the string.
fn follows_word(source: &[u8], at: usize) -> bool {
    at > 0
        && is_word(source[at - 1] as char)
        && !(source[at - 1] == b'b' && (at < 2 || !is_word(source[at - 2] as char)))
}

fn line_end(source: &[u8], at: usize) -> usize {
    source[at..].iter().position(|byte| *byte == b'\n').map_or(source.len(), |found| at + found)
}

fn comment_end(source: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = start;
    while at < source.len() {
        if source[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if source[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    source.len()
}

fn string_end(source: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < source.len() {
        match source[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    source.len()
}

fn raw_string_end(source: &[u8], start: usize) -> Option<usize> {
    let hashes = source[start + 1..].iter().take_while(|byte| **byte == b'#').count();
    let open = start + 1 + hashes;
    if source.get(open) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let found = source[open + 1..].windows(close.len()).position(|window| window == close);
    Some(found.map_or(source.len(), |found| open + 1 + found + close.len()))
}

/// The end of a character literal; of a lifetime, only its quote.
fn character_end(text: &str, start: usize) -> usize {
    let mut characters = text[start + 1..].char_indices();
    match characters.next() {
        Some((_, '\\')) => {
            let rest = &text[start + 3..];
            rest.find('\'').map_or(text.len(), |found| start + 3 + found + 1)
        }
        Some(_) => match characters.next() {
            Some((offset, '\'')) => start + 1 + offset + 1,
            _ => start + 1,
        },
        None => text.len(),
    }
}

#[test]
fn code_is_told_from_comments_and_strings() {
    let text =
        "let a = \"unsafe\"; // unsafe\nlet b = '\"'; unsafe { r#\"\"unsafe\"#; 'x: loop {} }";
    let code = blank_comments_and_strings(text);
    assert_eq!(code.len(), text.len());
    assert_eq!(words(&code, "unsafe").count(), 1);
    assert!(code.contains("x: loop"));
    let code =
        blank_tests("fn a() {}\n#[cfg(test)]\nmod tests { use crate::b; }\nfn c() {}".into());
    assert!(!code.contains("crate") && code.contains("fn c()"));
}
