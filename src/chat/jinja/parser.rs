//! Tokens to a tree: statements, by the grammar of Jinja2. Expressions are in [`super::primary`].

use super::SyntaxFault;
use super::ast::{Body, Expr, For, Kind, Link, Macro, Statement, Target};
use super::lexer::{Lexeme, Token};

/// Deepest nesting of statements and expressions.
const NESTING_MAX: usize = 100;

/// The state of parsing.
pub(super) struct Parser {
    tokens: std::vec::IntoIter<Lexeme>,
    current: Option<Token>,
    next: Option<Lexeme>,
    pub(super) line: u32,
    nesting: usize,
    loops: usize,
    /// Names that bodies of macros use, the innermost last: `(varargs, kwargs)`.
    pub(super) macro_uses: Vec<(bool, bool)>,
    blocks: Vec<Box<str>>,
}

type Parsed<T> = Result<T, SyntaxFault>;

/// The tree of a template.
pub(super) fn parse(tokens: Vec<Lexeme>) -> Parsed<Body> {
    let mut parser = Parser {
        tokens: tokens.into_iter(),
        current: None,
        next: None,
        line: 1,
        nesting: 0,
        loops: 0,
        macro_uses: Vec::new(),
        blocks: Vec::new(),
    };
    parser.advance();
    parser.advance();
    let (body, _) = parser.body(&[])?;
    Ok(body)
}

impl Parser {
    /// Moves on by one token and returns the one before.
    pub(super) fn advance(&mut self) -> Option<Token> {
        let next = self.next.take();
        self.next = self.tokens.next();
        if let Some(lexeme) = &next {
            self.line = lexeme.line;
        }
        std::mem::replace(&mut self.current, next.map(|lexeme| lexeme.token))
    }

    pub(super) fn current(&self) -> Option<&Token> {
        self.current.as_ref()
    }

    pub(super) fn following(&self) -> Option<&Token> {
        self.next.as_ref().map(|lexeme| &lexeme.token)
    }

    pub(super) fn fault<T>(&self, detail: impl Into<String>) -> Parsed<T> {
        Err(SyntaxFault { line: self.line as usize, detail: detail.into() })
    }

    pub(super) fn unexpected<T>(&self, wanted: &str) -> Parsed<T> {
        let found = match &self.current {
            None => "the end of the template".to_owned(),
            Some(Token::Data(_)) => "text".to_owned(),
            Some(Token::BlockBegin) => "`{%`".to_owned(),
            Some(Token::BlockEnd) => "`%}`".to_owned(),
            Some(Token::VariableBegin) => "`{{`".to_owned(),
            Some(Token::VariableEnd) => "`}}`".to_owned(),
            Some(Token::Name(name)) => format!("`{name}`"),
            Some(Token::Text(_)) => "a text".to_owned(),
            Some(Token::Int(_) | Token::Float(_)) => "a number".to_owned(),
            Some(Token::Op(op)) => format!("`{op}`"),
        };
        self.fault(format!("wanted {wanted}, found {found}"))
    }

    pub(super) fn is_op(&self, op: &str) -> bool {
        matches!(&self.current, Some(Token::Op(found)) if *found == op)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(&self.current, Some(Token::Name(found)) if **found == *name)
    }

    pub(super) fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn expect_op(&mut self, op: &str) -> Parsed<()> {
        if self.skip_op(op) { Ok(()) } else { self.unexpected(&format!("`{op}`")) }
    }

    pub(super) fn name(&mut self, wanted: &str) -> Parsed<Box<str>> {
        if !matches!(self.current, Some(Token::Name(_))) {
            return self.unexpected(wanted);
        }
        match self.advance() {
            Some(Token::Name(name)) => Ok(name),
            _ => self.unexpected(wanted),
        }
    }

    fn block_end(&mut self) -> Parsed<()> {
        if self.current != Some(Token::BlockEnd) {
            return self.unexpected("`%}`");
        }
        self.advance();
        Ok(())
    }

    /// Parses something inside of something else.
    pub(super) fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            return self.fault(format!("nested deeper than {NESTING_MAX}"));
        }
        let parsed = parse(self);
        self.nesting -= 1;
        parsed
    }

    /// Statements up to a tag of one of the names `ends`, whose name is taken; up to the end of the
    /// template if there are none.
    fn body(&mut self, ends: &[&'static str]) -> Parsed<(Body, &'static str)> {
        let mut body = Body::new();
        loop {
            let line = self.line;
            match self.advance() {
                None if ends.is_empty() => return Ok((body, "")),
                None => {
                    let wanted = ends.join("` or `");
                    return self.fault(format!("the template ends without `{wanted}`"));
                }
                Some(Token::Data(text)) => body.push(Statement { line, kind: Kind::Data(text) }),
                Some(Token::VariableBegin) => {
                    let shown = self.nested(|p| p.tuple(true, &[]))?;
                    if self.current != Some(Token::VariableEnd) {
                        return self.unexpected("`}}`");
                    }
                    self.advance();
                    body.push(Statement { line, kind: Kind::Output(shown) });
                }
                Some(_) => {
                    if let Some(end) = ends.iter().find(|end| self.is_name(end)) {
                        self.advance();
                        return Ok((body, end));
                    }
                    let line = self.line;
                    let kind = self.nested(Self::statement)?;
                    body.push(Statement { line, kind });
                }
            }
        }
    }

    /// The body of a tag, behind the tag's own end.
    fn inner(&mut self, ends: &[&'static str]) -> Parsed<(Body, &'static str)> {
        self.block_end()?;
        self.body(ends)
    }

    /// The body of a tag that has one end, and that end.
    fn whole(&mut self, end: &'static str) -> Parsed<Body> {
        let (body, _) = self.inner(&[end])?;
        self.block_end()?;
        Ok(body)
    }

    fn statement(&mut self) -> Parsed<Kind> {
        let tag = self.name("the name of a tag")?;
        match &*tag {
            "if" => self.if_statement(),
            "for" => self.for_statement(),
            "set" => self.set_statement(),
            "macro" => self.macro_statement(),
            "call" => self.call_statement(),
            "with" => self.with_statement(),
            "filter" => {
                let filters = self.filters(true)?;
                Ok(Kind::Filter { filters, body: self.whole("endfilter")? })
            }
            "generation" => {
                Ok(Kind::Scope { body: self.whole("endgeneration")?, from_root: false })
            }
            "block" => self.block_statement(),
            "autoescape" => {
                // Nothing is escaped, which is what all chat templates want.
                if !matches!(self.expression()?, Expr::Bool(false)) {
                    return self.fault("only `autoescape false` is supported");
                }
                Ok(Kind::Scope { body: self.whole("endautoescape")?, from_root: false })
            }
            "break" | "continue" => {
                if self.loops == 0 {
                    return self.fault(format!("`{tag}` outside of a loop"));
                }
                self.block_end()?;
                Ok(if &*tag == "break" { Kind::Break } else { Kind::Continue })
            }
            "do" | "print" => {
                let value = self.tuple(true, &[])?;
                self.block_end()?;
                Ok(if &*tag == "do" { Kind::Do(value) } else { Kind::Output(value) })
            }
            "include" | "import" | "extends" | "from" => {
                self.fault(format!("`{tag}`: a chat template stands alone"))
            }
            _ => self.fault(format!("unknown tag `{tag}`")),
        }
    }

    fn if_statement(&mut self) -> Parsed<Kind> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple(false, &[])?;
            let (body, end) = self.inner(&["elif", "else", "endif"])?;
            branches.push((test, body));
            if end == "elif" {
                continue;
            }
            let otherwise = if end == "else" { self.inner(&["endif"])?.0 } else { Body::new() };
            self.block_end()?;
            return Ok(Kind::If { branches, otherwise });
        }
    }

    fn for_statement(&mut self) -> Parsed<Kind> {
        let target = self.target(&["in"], false)?;
        if !self.skip_name("in") {
            return self.unexpected("`in`");
        }
        let over = self.tuple(false, &["recursive"])?;
        let test = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.loops += 1;
        let (body, end) = self.inner(&["else", "endfor"])?;
        self.loops -= 1;
        let otherwise = if end == "else" { self.inner(&["endfor"])?.0 } else { Body::new() };
        self.block_end()?;
        Ok(Kind::For(Box::new(For { target, over, test, recursive, body, otherwise })))
    }

    fn set_statement(&mut self) -> Parsed<Kind> {
        let target = self.target(&[], true)?;
        if self.skip_op("=") {
            let value = self.tuple(true, &[])?;
            self.block_end()?;
            return Ok(Kind::Set(target, value));
        }
        let filters = self.filters(false)?;
        Ok(Kind::SetBlock { target, filters, body: self.whole("endset")? })
    }

    fn with_statement(&mut self) -> Parsed<Kind> {
        let mut assigned = Vec::new();
        while self.current != Some(Token::BlockEnd) {
            if !assigned.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.target_of_one(false)?;
            self.expect_op("=")?;
            assigned.push((target, self.expression()?));
        }
        Ok(Kind::With { assigned, body: self.whole("endwith")? })
    }

    fn block_statement(&mut self) -> Parsed<Kind> {
        let name = self.name("the name of a block")?;
        if self.blocks.contains(&name) {
            return self.fault(format!("block `{name}` is defined twice"));
        }
        self.blocks.push(name.clone());
        let from_root = !self.skip_name("scoped");
        self.skip_name("required");
        let loops = std::mem::take(&mut self.loops);
        let (body, _) = self.inner(&["endblock"])?;
        self.loops = loops;
        self.skip_name(&name);
        self.block_end()?;
        Ok(Kind::Scope { body, from_root })
    }

    fn macro_statement(&mut self) -> Parsed<Kind> {
        let name = self.name("the name of a macro")?;
        let parameters = self.parameters()?;
        Ok(Kind::Macro(Box::new(self.macro_body(name, parameters, "endmacro")?)))
    }

    fn call_statement(&mut self) -> Parsed<Kind> {
        let parameters = if self.is_op("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        let calls =
            matches!(&call, Expr::Chain(_, links) if matches!(links.last(), Some(Link::Call(_))));
        if !calls {
            return self.fault("`call` wants a call");
        }
        let caller = Box::new(self.macro_body("caller".into(), parameters, "endcall")?);
        Ok(Kind::Call { call, caller })
    }

    fn macro_body(
        &mut self,
        name: Box<str>,
        parameters: Vec<(Box<str>, Option<Expr>)>,
        end: &'static str,
    ) -> Parsed<Macro> {
        let loops = std::mem::take(&mut self.loops);
        self.macro_uses.push((false, false));
        let body = self.whole(end)?;
        let (takes_varargs, takes_kwargs) = self.macro_uses.pop().unwrap_or_default();
        self.loops = loops;
        Ok(Macro { name, parameters, body, takes_varargs, takes_kwargs })
    }

    fn parameters(&mut self) -> Parsed<Vec<(Box<str>, Option<Expr>)>> {
        self.expect_op("(")?;
        let mut parameters: Vec<(Box<str>, Option<Expr>)> = Vec::new();
        while !self.is_op(")") {
            if !parameters.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.name("the name of a parameter")?;
            let default = if self.skip_op("=") { Some(self.expression()?) } else { None };
            let before = parameters.last().is_some_and(|(_, default)| default.is_some());
            if default.is_none() && before {
                return self.fault("a parameter without a default behind one with a default");
            }
            parameters.push((name, default));
        }
        self.expect_op(")")?;
        Ok(parameters)
    }

    /// One place to assign to, or several with commas between them.
    fn target(&mut self, ends: &[&str], members: bool) -> Parsed<Target> {
        let first = self.target_of_one(members)?;
        let mut all = vec![first];
        let mut several = false;
        while self.skip_op(",") {
            several = true;
            let ended = self.current == Some(Token::BlockEnd)
                || self.is_op(")")
                || self.is_op("=")
                || ends.iter().any(|end| self.is_name(end));
            if ended {
                break;
            }
            all.push(self.target_of_one(members)?);
        }
        match (several, all.pop()) {
            (false, Some(only)) => Ok(only),
            (_, last) => {
                all.extend(last);
                Ok(Target::Several(all))
            }
        }
    }

    fn target_of_one(&mut self, members: bool) -> Parsed<Target> {
        if self.is_op("(") || self.is_op("[") {
            let close = if self.is_op("(") { ")" } else { "]" };
            self.advance();
            let inner = self.nested(|p| p.target(&[], members))?;
            self.expect_op(close)?;
            return Ok(inner);
        }
        let name = self.name("a name to assign to")?;
        if matches!(&*name, "true" | "True" | "false" | "False" | "none" | "None") {
            return self.fault(format!("`{name}` cannot be assigned to"));
        }
        if members && self.skip_op(".") {
            return Ok(Target::Member(name, self.name("a member's name")?));
        }
        Ok(Target::Name(name))
    }
}
