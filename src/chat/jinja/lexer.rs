//! Source to tokens, by the rules of Jinja2's lexer with `trim_blocks` and `lstrip_blocks`.

use super::SyntaxFault;

/// A token and its line.
#[derive(Clone, Debug)]
pub(super) struct Lexeme {
    pub(super) token: Token,
    pub(super) line: u32,
}

/// A token of a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Text outside of tags.
    Data(Box<str>),
    BlockBegin,
    BlockEnd,
    VariableBegin,
    VariableEnd,
    Name(Box<str>),
    Text(Box<str>),
    Int(i128),
    Float(f64),
    Op(&'static str),
}

/// Operators, the longer ones first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

struct Lexer<'a> {
    rest: &'a str,
    line: u32,
    /// True if `rest` begins a line.
    line_start: bool,
    out: Vec<Lexeme>,
}

/// The tokens of a source.
pub(super) fn tokens(source: &str) -> Result<Vec<Lexeme>, SyntaxFault> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { rest: source, line: 1, line_start: true, out: Vec::new() };
    lexer.template()?;
    Ok(lexer.out)
}

impl<'a> Lexer<'a> {
    fn fault(&self, detail: impl Into<String>) -> SyntaxFault {
        SyntaxFault { line: self.line as usize, detail: detail.into() }
    }

    fn push(&mut self, token: Token) {
        self.out.push(Lexeme { token, line: self.line });
    }

    /// Moves `bytes` ahead and gives the text back.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (text, rest) = self.rest.split_at(bytes);
        self.line += text.bytes().filter(|&byte| byte == b'\n').count() as u32;
        if !text.is_empty() {
            self.line_start = text.ends_with('\n');
        }
        self.rest = rest;
        text
    }

    fn template(&mut self) -> Result<(), SyntaxFault> {
        loop {
            let Some(at) = next_tag(self.rest) else {
                self.data(self.rest.len(), "", false);
                return Ok(());
            };
            let kind = self.rest.as_bytes()[at + 1];
            let sign = sign_of(&self.rest[at + 2..]);
            self.data(at, sign, kind != b'{');
            match kind {
                b'#' => {
                    self.take(2);
                    self.comment()?;
                }
                b'{' => {
                    self.push(Token::VariableBegin);
                    self.take(2 + sign.len());
                    self.tag("}}", Token::VariableEnd)?;
                }
                _ if self.raw_begins(sign) => self.raw()?,
                _ => {
                    self.push(Token::BlockBegin);
                    self.take(2 + sign.len());
                    self.tag("%}", Token::BlockEnd)?;
                }
            }
        }
    }

    /// The text up to a tag, less the white space that the tag takes away.
    fn data(&mut self, bytes: usize, sign: &str, strips_line: bool) {
        let (line, at_line_start) = (self.line, self.line_start);
        let text = self.take(bytes);
        let text = before_tag(text, sign, strips_line, at_line_start);
        if !text.is_empty() {
            self.out.push(Lexeme { token: Token::Data(text.into()), line });
        }
    }

    fn comment(&mut self) -> Result<(), SyntaxFault> {
        let Some(end) = self.rest.find("#}") else {
            return Err(self.fault("missing end of comment tag"));
        };
        let sign = match end.checked_sub(1).map(|before| self.rest.as_bytes()[before]) {
            Some(b'-') => "-",
            Some(b'+') => "+",
            _ => "",
        };
        self.take(end + 2);
        self.after_tag(sign, true);
        Ok(())
    }

    /// Takes the white space behind a tag that the tag takes away.
    fn after_tag(&mut self, sign: &str, trims: bool) {
        let bytes = match sign {
            "-" => self.rest.len() - self.rest.trim_start().len(),
            "" if trims && self.rest.starts_with('\n') => 1,
            _ => 0,
        };
        self.take(bytes);
    }

    fn raw_begins(&self, sign: &str) -> bool {
        let inner = self.rest[2 + sign.len()..].trim_start();
        let Some(behind) = inner.strip_prefix("raw") else { return false };
        let behind = behind.trim_start();
        behind.starts_with("%}") || behind.starts_with("-%}")
    }

    fn raw(&mut self) -> Result<(), SyntaxFault> {
        let begin = self.rest.find("%}").unwrap_or_default();
        let strips = self.rest[..begin].ends_with('-');
        self.take(begin + 2);
        self.after_tag(if strips { "-" } else { "" }, false);
        let mut from = 0;
        while let Some(found) = self.rest[from..].find("{%") {
            let at = from + found;
            let sign = sign_of(&self.rest[at + 2..]);
            let inner = &self.rest[at + 2 + sign.len()..];
            let name = inner.trim_start();
            let behind = name.strip_prefix("endraw").map(str::trim_start);
            let end = behind.and_then(|b| Some((b, end_sign(b, "%}")?)));
            if let Some((behind, end)) = end {
                let behind = behind.len();
                self.data(at, sign, true);
                self.take(self.rest.len() - behind + end.len() + 2);
                self.after_tag(end, true);
                return Ok(());
            }
            from = at + 2;
        }
        Err(self.fault("missing end of raw directive"))
    }

    /// The tokens inside of a tag, and its end.
    fn tag(&mut self, end: &'static str, end_token: Token) -> Result<(), SyntaxFault> {
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            let white = self.rest.len() - self.rest.trim_start().len();
            self.take(white);
            if open.is_empty()
                && let Some(sign) = end_sign(self.rest, end)
                && (end == "%}" || sign != "+")
            {
                self.push(end_token);
                self.take(sign.len() + end.len());
                self.after_tag(sign, end == "%}");
                return Ok(());
            }
            let Some(first) = self.rest.chars().next() else {
                return Err(self.fault(format!("the template ends inside a tag: wanted `{end}`")));
            };
            if first.is_ascii_digit() {
                self.number()?;
            } else if first == '_' || first.is_alphanumeric() {
                let length = self.rest.find(|c: char| c != '_' && !c.is_alphanumeric());
                let name = &self.rest[..length.unwrap_or(self.rest.len())];
                self.push(Token::Name(name.into()));
                self.take(name.len());
            } else if first == '\'' || first == '"' {
                self.text(first)?;
            } else {
                self.operator(&mut open, first)?;
            }
        }
    }

    fn operator(&mut self, open: &mut Vec<&'static str>, first: char) -> Result<(), SyntaxFault> {
        let Some(op) = OPERATORS.iter().find(|op| self.rest.starts_with(**op)) else {
            return Err(self.fault(format!("unexpected character {first:?}")));
        };
        match *op {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" if open.pop() != Some(op) => {
                return Err(self.fault(format!("unexpected `{op}`")));
            }
            _ => {}
        }
        self.push(Token::Op(op));
        self.take(op.len());
        Ok(())
    }

    fn number(&mut self) -> Result<(), SyntaxFault> {
        let bytes = self.rest.as_bytes();
        let digits = |from: usize| {
            let mut end = from;
            while bytes.get(end).is_some_and(u8::is_ascii_digit)
                || (end > from
                    && bytes.get(end) == Some(&b'_')
                    && bytes.get(end + 1).is_some_and(u8::is_ascii_digit))
            {
                end += 1;
            }
            end
        };
        let radix = match bytes.get(1) {
            Some(b'x' | b'X') => Some(16),
            Some(b'o' | b'O') => Some(8),
            Some(b'b' | b'B') => Some(2),
            _ => None,
        };
        if let (b'0', Some(radix)) = (bytes[0], radix) {
            let length = self.rest[2..].find(|c: char| c != '_' && !c.is_digit(radix));
            let end = length.map_or(self.rest.len(), |length| 2 + length);
            let text: String = self.rest[2..end].chars().filter(|c| *c != '_').collect();
            let value = i128::from_str_radix(&text, radix);
            self.push(Token::Int(value.map_err(|_| self.fault("a number that is none"))?));
            self.take(end);
            return Ok(());
        }
        let whole = digits(0);
        let mut end = whole;
        let after_dot = matches!(self.out.last(), Some(Lexeme { token: Token::Op("."), .. }));
        if !after_dot {
            if bytes.get(end) == Some(&b'.') && digits(end + 1) > end + 1 {
                end = digits(end + 1);
            }
            if matches!(bytes.get(end), Some(b'e' | b'E')) {
                let signed = matches!(bytes.get(end + 1), Some(b'+' | b'-'));
                let from = end + 1 + usize::from(signed);
                end = if digits(from) > from { digits(from) } else { end };
            }
        }
        let text: String = self.rest[..end].chars().filter(|c| *c != '_').collect();
        let token = if end > whole {
            text.parse().ok().map(Token::Float)
        } else {
            text.parse().ok().map(Token::Int)
        };
        self.push(token.ok_or_else(|| self.fault(format!("the number {text} is too large")))?);
        self.take(end);
        Ok(())
    }

    fn text(&mut self, quote: char) -> Result<(), SyntaxFault> {
        let mut escaped = false;
        let end = self.rest[1..].find(|c: char| {
            let ends = c == quote && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let Some(end) = end else {
            return Err(self.fault("a text without its closing quote"));
        };
        let text = unescaped(&self.rest[1..=end]).map_err(|detail| self.fault(detail))?;
        self.push(Token::Text(text.into()));
        self.take(end + 2);
        Ok(())
    }
}

/// Where the next tag or comment begins.
fn next_tag(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut pairs = bytes.windows(2).enumerate();
    pairs
        .find(|(_, pair)| pair[0] == b'{' && matches!(pair[1], b'{' | b'%' | b'#'))
        .map(|(at, _)| at)
}

/// The sign behind the beginning of a tag.
fn sign_of(text: &str) -> &'static str {
    match text.as_bytes().first() {
        Some(b'-') => "-",
        Some(b'+') => "+",
        _ => "",
    }
}

/// The sign before the end of a tag, if `text` begins with an end.
fn end_sign(text: &str, end: &str) -> Option<&'static str> {
    let sign = sign_of(text);
    text[sign.len()..].starts_with(end).then_some(sign)
}

fn before_tag<'a>(text: &'a str, sign: &str, strips_line: bool, at_line_start: bool) -> &'a str {
    match sign {
        "-" => text.trim_end(),
        "" if strips_line => {
            let line = text.rfind('\n').map_or(0, |at| at + 1);
            let blank = text[line..].chars().all(char::is_whitespace);
            if blank && (line > 0 || at_line_start) { &text[..line] } else { text }
        }
        _ => text,
    }
}

/// As Python decodes `unicode-escape`.
fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(kind) = rest.chars().next() else { break };
        rest = &rest[kind.len_utf8()..];
        let simple = match kind {
            '\n' => continue,
            '\\' | '\'' | '"' => kind,
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            '0'..='7' | 'x' | 'u' | 'U' => {
                let (from, length, radix) = match kind {
                    'x' => (rest, 2, 16),
                    'u' => (rest, 4, 16),
                    'U' => (rest, 8, 16),
                    _ => (&text[text.len() - rest.len() - 1..], 3, 8),
                };
                let digits = from.bytes().take(length).take_while(|b| (*b as char).is_digit(radix));
                let digits = digits.count();
                if radix == 16 && digits < length {
                    return Err(format!("\\{kind} without its {length} digits"));
                }
                let code = u32::from_str_radix(&from[..digits], radix).unwrap_or(u32::MAX);
                rest = &from[digits..];
                char::from_u32(code).ok_or("an escape that is no character")?
            }
            'N' => return Err("\\N in a text is not supported".to_owned()),
            other => {
                out.push('\\');
                other
            }
        };
        out.push(simple);
    }
    out.push_str(rest);
    Ok(out)
}
