//! Writes a grammar over atoms as Lark.

use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;

use super::Class;
use super::lower::{Expr, Lowered, Regex, Text};

pub(super) fn emit(lowered: &Lowered) -> String {
    let mut out = String::from("start: r0\n");
    let mut names: HashMap<Rc<Regex>, usize> = HashMap::new();
    let mut lexemes = String::new();
    let atoms: Vec<String> = lowered
        .atoms
        .iter()
        .map(|atom| match &atom.text {
            Text::Tokens(ranges) => {
                let ranges: Vec<String> =
                    ranges.iter().map(|r| format!("{}-{}", r.start(), r.end())).collect();
                format!("<[{}]>", ranges.join(","))
            }
            Text::Lexeme(regex) => {
                let next = names.len();
                let number = *names.entry(Rc::clone(regex)).or_insert(next);
                if number == next {
                    let _ = write!(lexemes, "L{number}: /"); // a String takes all
                    write_regex(regex, &mut lexemes);
                    lexemes.push_str("/\n");
                }
                format!("L{number}")
            }
        })
        .collect();
    for (number, body) in lowered.rules.iter().enumerate() {
        let _ = write!(out, "r{number}: ");
        write_expr(body, &atoms, &mut out);
        out.push('\n');
    }
    out + &lexemes
}

fn write_expr(expr: &Expr, atoms: &[String], out: &mut String) {
    let mut joined = |parts: &[Expr], by: &str, empty: &str| {
        if parts.is_empty() {
            return out.push_str(empty);
        }
        out.push('(');
        for (at, part) in parts.iter().enumerate() {
            out.push_str(if at > 0 { by } else { "" });
            write_expr(part, atoms, out);
        }
        out.push(')');
    };
    match expr {
        Expr::Atom(at) => out.push_str(&atoms[*at]),
        Expr::Rule(number) => {
            let _ = write!(out, "r{number}"); // as above
        }
        Expr::All(parts) => joined(parts, " ", "\"\""),
        Expr::Any(parts) => joined(parts, " | ", "\"\""),
        Expr::Repeat(_, _, Some(0)) => out.push_str("\"\""),
        Expr::Repeat(part, least, most) => {
            out.push('(');
            write_expr(part, atoms, out);
            out.push(')');
            write_times(*least, *most, out);
        }
    }
}

fn write_times(least: u32, most: Option<u32>, out: &mut String) {
    let _ = match (least, most) {
        (0, None) => write!(out, "*"),
        (1, None) => write!(out, "+"),
        (0, Some(1)) => write!(out, "?"),
        (least, None) => write!(out, "{{{least},}}"),
        (least, Some(most)) => write!(out, "{{{least},{most}}}"),
    };
}

fn write_regex(regex: &Regex, out: &mut String) {
    let mut joined = |parts: &[Rc<Regex>], by: &str| {
        out.push_str("(?:");
        for (at, part) in parts.iter().enumerate() {
            out.push_str(if at > 0 { by } else { "" });
            write_regex(part, out);
        }
        out.push(')');
    };
    match regex {
        Regex::Class(class) => write_class(class, out),
        Regex::All(parts) => joined(parts, ""),
        Regex::Any(parts) => joined(parts, "|"),
        Regex::Repeat(_, _, Some(0)) => out.push_str("(?:)"),
        Regex::Repeat(part, least, most) => {
            out.push_str("(?:");
            write_regex(part, out);
            out.push(')');
            write_times(*least, *most, out);
        }
    }
}

fn write_class(class: &Class, out: &mut String) {
    let character = |code: u32, out: &mut String| match char::from_u32(code) {
        Some(c) if c.is_ascii_alphanumeric() => out.push(c),
        _ => {
            let _ = write!(out, "\\x{{{code:X}}}");
        }
    };
    let is_one = class.0.len() == 1 && class.0[0].start() == class.0[0].end();
    if is_one {
        return character(*class.0[0].start(), out);
    }
    out.push('[');
    for range in &class.0 {
        character(*range.start(), out);
        if range.end() > range.start() {
            out.push('-');
            character(*range.end(), out);
        }
    }
    out.push(']');
}
