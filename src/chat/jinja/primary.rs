//! Tokens to a tree: expressions, by the grammar of Jinja2.

use super::SyntaxFault;
use super::ast::{Arguments, Comparison, Expr, Link, Operator};
use super::lexer::Token;
use super::parser::Parser;

type Parsed<T> = Result<T, SyntaxFault>;

/// Longest chain of conditions without `else`.
const CONDITIONS_MAX: usize = 50;

/// Most arguments of a call.
const ARGUMENTS_MAX: usize = 1000;

impl Parser {
    /// An expression with its conditions.
    pub(super) fn expression(&mut self) -> Parsed<Expr> {
        self.nested(Self::conditional)
    }

    /// An expression, or several with commas between them: a tuple.
    pub(super) fn tuple(&mut self, conditional: bool, ends: &[&str]) -> Parsed<Expr> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            let ended = matches!(self.current(), None | Some(Token::VariableEnd | Token::BlockEnd))
                || self.is_op(")")
                || ends.iter().any(|end| self.is_name(end));
            if ended {
                break;
            }
            items.push(if conditional { self.expression()? } else { self.nested(Self::or)? });
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
        }
        match items.pop() {
            None => self.unexpected("an expression"),
            Some(only) if !is_tuple => Ok(only),
            Some(last) => {
                items.push(last);
                Ok(Expr::Tuple(items))
            }
        }
    }

    fn conditional(&mut self) -> Parsed<Expr> {
        let mut value = self.or()?;
        let mut conditions = 0;
        while self.skip_name("if") {
            conditions += 1;
            if conditions > CONDITIONS_MAX {
                return self.fault("too many conditions");
            }
            let test = self.or()?;
            let otherwise = if self.skip_name("else") { Some(self.expression()?) } else { None };
            value = Expr::Conditional(Box::new((test, value, otherwise)));
        }
        Ok(value)
    }

    fn or(&mut self) -> Parsed<Expr> {
        let first = self.and()?;
        self.several(first, Expr::Or, |p| p.skip_name("or"), Self::and)
    }

    fn and(&mut self) -> Parsed<Expr> {
        let first = self.not()?;
        self.several(first, Expr::And, |p| p.skip_name("and"), Self::not)
    }

    /// Operands with one operator between them.
    fn several(
        &mut self,
        first: Expr,
        kind: fn(Vec<Expr>) -> Expr,
        operator: fn(&mut Self) -> bool,
        operand: fn(&mut Self) -> Parsed<Expr>,
    ) -> Parsed<Expr> {
        if !operator(self) {
            return Ok(first);
        }
        let mut all = vec![first, operand(self)?];
        while operator(self) {
            all.push(operand(self)?);
        }
        Ok(kind(all))
    }

    fn not(&mut self) -> Parsed<Expr> {
        if self.is_name("not") {
            self.advance();
            return Ok(Expr::Not(Box::new(self.nested(Self::not)?)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Parsed<Expr> {
        let first = self.sum()?;
        let mut others = Vec::new();
        loop {
            let comparison = match self.current() {
                Some(Token::Op("==")) => Comparison::Eq,
                Some(Token::Op("!=")) => Comparison::Ne,
                Some(Token::Op("<")) => Comparison::Lt,
                Some(Token::Op("<=")) => Comparison::Le,
                Some(Token::Op(">")) => Comparison::Gt,
                Some(Token::Op(">=")) => Comparison::Ge,
                Some(Token::Name(name)) if &**name == "in" => Comparison::In,
                Some(Token::Name(name)) if &**name == "not" => {
                    if !matches!(self.following(), Some(Token::Name(next)) if &**next == "in") {
                        break;
                    }
                    self.advance();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.advance();
            others.push((comparison, self.sum()?));
        }
        Ok(if others.is_empty() { first } else { Expr::Compare(Box::new(first), others) })
    }

    fn operators(
        &mut self,
        table: &[(&str, Operator)],
        operand: fn(&mut Self) -> Parsed<Expr>,
    ) -> Parsed<Expr> {
        let first = operand(self)?;
        let mut others = Vec::new();
        while let Some((op, operator)) = table.iter().find(|(op, _)| self.is_op(op)) {
            self.expect_op(op)?;
            others.push((*operator, operand(self)?));
        }
        Ok(if others.is_empty() { first } else { Expr::Arithmetic(Box::new(first), others) })
    }

    fn sum(&mut self) -> Parsed<Expr> {
        self.operators(&[("+", Operator::Add), ("-", Operator::Sub)], Self::concat)
    }

    fn concat(&mut self) -> Parsed<Expr> {
        let first = self.product()?;
        self.several(first, Expr::Concat, |p| p.skip_op("~"), Self::product)
    }

    fn product(&mut self) -> Parsed<Expr> {
        let table = [
            ("*", Operator::Mul),
            ("/", Operator::Div),
            ("//", Operator::FloorDiv),
            ("%", Operator::Mod),
        ];
        self.operators(&table, Self::power)
    }

    fn power(&mut self) -> Parsed<Expr> {
        self.operators(&[("**", Operator::Pow)], |p| p.unary(true))
    }

    fn unary(&mut self, with_filters: bool) -> Parsed<Expr> {
        let value = if self.skip_op("-") {
            Expr::Negative(Box::new(self.nested(|p| p.unary(false))?))
        } else if self.skip_op("+") {
            Expr::Positive(Box::new(self.nested(|p| p.unary(false))?))
        } else {
            self.primary()?
        };
        let mut links = Vec::new();
        self.postfix(&mut links)?;
        if with_filters {
            self.filters_and_tests(&mut links)?;
        }
        Ok(chain(value, links))
    }

    fn primary(&mut self) -> Parsed<Expr> {
        match self.current() {
            Some(Token::Name(_)) => self.name("").map(|name| self.named(name)),
            Some(Token::Text(_)) => {
                let mut all = String::new();
                while matches!(self.current(), Some(Token::Text(_))) {
                    if let Some(Token::Text(text)) = self.advance() {
                        all.push_str(&text);
                    }
                }
                Ok(Expr::Text(all.into()))
            }
            Some(&Token::Int(value)) => {
                self.advance();
                Ok(Expr::Int(value))
            }
            Some(&Token::Float(value)) => {
                self.advance();
                Ok(Expr::Float(value))
            }
            Some(Token::Op("(")) => {
                self.advance();
                if self.skip_op(")") {
                    return Ok(Expr::Tuple(Vec::new()));
                }
                let inner = self.tuple(true, &[])?;
                self.expect_op(")")?;
                Ok(inner)
            }
            Some(Token::Op("[")) => self.list(),
            Some(Token::Op("{")) => self.dict(),
            _ => self.unexpected("an expression"),
        }
    }

    fn named(&mut self, name: Box<str>) -> Expr {
        if let Some((varargs, kwargs)) = self.macro_uses.last_mut() {
            *varargs |= &*name == "varargs";
            *kwargs |= &*name == "kwargs";
        }
        match &*name {
            "true" | "True" => Expr::Bool(true),
            "false" | "False" => Expr::Bool(false),
            "none" | "None" => Expr::None,
            _ => Expr::Name(name),
        }
    }

    fn list(&mut self) -> Parsed<Expr> {
        self.expect_op("[")?;
        let mut items = Vec::new();
        while !self.is_op("]") {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.is_op("]") {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        self.expect_op("]")?;
        Ok(Expr::List(items))
    }

    fn dict(&mut self) -> Parsed<Expr> {
        self.expect_op("{")?;
        let mut items = Vec::new();
        while !self.is_op("}") {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.is_op("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_op(":")?;
            items.push((key, self.expression()?));
        }
        self.expect_op("}")?;
        Ok(Expr::Dict(items))
    }

    fn postfix(&mut self, links: &mut Vec<Link>) -> Parsed<()> {
        loop {
            if self.skip_op(".") {
                links.push(match self.advance() {
                    Some(Token::Name(name)) => Link::Attribute(name),
                    Some(Token::Int(index)) => Link::Item(Expr::Int(index)),
                    _ => return self.fault("wanted a name or a number behind `.`"),
                });
            } else if self.skip_op("[") {
                links.push(self.subscript()?);
            } else if self.is_op("(") {
                links.push(Link::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    fn subscript(&mut self) -> Parsed<Link> {
        let mut items = Vec::new();
        let link = if self.is_op(":") {
            self.slice(None)?
        } else {
            let first = self.expression()?;
            if self.is_op(":") {
                self.slice(Some(first))?
            } else if self.is_op(",") {
                items.push(first);
                while self.skip_op(",") {
                    items.push(self.expression()?);
                }
                Link::Item(Expr::Tuple(items))
            } else {
                Link::Item(first)
            }
        };
        self.expect_op("]")?;
        Ok(link)
    }

    fn slice(&mut self, start: Option<Expr>) -> Parsed<Link> {
        self.expect_op(":")?;
        let mut parts = [start, None, None];
        if !self.is_op("]") && !self.is_op(":") {
            parts[1] = Some(self.expression()?);
        }
        if self.skip_op(":") && !self.is_op("]") {
            parts[2] = Some(self.expression()?);
        }
        Ok(Link::Slice(Box::new(parts)))
    }

    fn filters_and_tests(&mut self, links: &mut Vec<Link>) -> Parsed<()> {
        loop {
            if self.is_op("|") {
                links.push(self.filter()?);
            } else if self.is_name("is") {
                links.push(self.test()?);
            } else if self.is_op("(") {
                links.push(Link::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    /// Filters of a block; the first one of `{% filter %}` stands without `|`.
    pub(super) fn filters(&mut self, mut inline: bool) -> Parsed<Vec<Link>> {
        let mut links = Vec::new();
        while inline || self.is_op("|") {
            links.push(if std::mem::take(&mut inline) {
                self.filter_named()?
            } else {
                self.filter()?
            });
        }
        Ok(links)
    }

    fn filter(&mut self) -> Parsed<Link> {
        self.expect_op("|")?;
        self.filter_named()
    }

    fn filter_named(&mut self) -> Parsed<Link> {
        let name = self.dotted("the name of a filter")?;
        let arguments = if self.is_op("(") { self.arguments()? } else { Arguments::default() };
        Ok(Link::Filter(name, arguments))
    }

    fn dotted(&mut self, wanted: &str) -> Parsed<Box<str>> {
        let mut name = self.name(wanted)?.into_string();
        while self.skip_op(".") {
            name.push('.');
            name.push_str(&self.name(wanted)?);
        }
        Ok(name.into())
    }

    fn test(&mut self) -> Parsed<Link> {
        self.advance();
        let negated = self.skip_name("not");
        let name = self.dotted("the name of a test")?;
        let mut arguments = Arguments::default();
        let takes_one = match self.current() {
            Some(Token::Name(name)) => !matches!(&**name, "else" | "or" | "and"),
            Some(Token::Text(_) | Token::Int(_) | Token::Float(_)) => true,
            _ => self.is_op("[") || self.is_op("{"),
        };
        if self.is_op("(") {
            arguments = self.arguments()?;
        } else if takes_one {
            if self.is_name("is") {
                return self.fault("tests cannot be chained with `is`");
            }
            let value = self.primary()?;
            let mut links = Vec::new();
            self.postfix(&mut links)?;
            arguments.positional.push(chain(value, links));
        }
        Ok(Link::Test { name, arguments, negated })
    }

    fn arguments(&mut self) -> Parsed<Arguments> {
        self.nested(Self::arguments_nested)
    }

    fn arguments_nested(&mut self) -> Parsed<Arguments> {
        self.expect_op("(")?;
        let mut arguments = Arguments::default();
        let mut first = true;
        while !self.is_op(")") {
            if !std::mem::take(&mut first) {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            let is_named = matches!(self.current(), Some(Token::Name(_)))
                && self.following() == Some(&Token::Op("="));
            if self.skip_op("**") {
                if arguments.named_splat.replace(self.expression()?).is_some() {
                    return self.fault("`**` twice");
                }
            } else if self.skip_op("*") {
                if arguments.splat.replace(self.expression()?).is_some() {
                    return self.fault("`*` twice");
                }
            } else if is_named {
                let name = self.name("")?;
                self.expect_op("=")?;
                arguments.named.push((name, self.expression()?));
            } else if arguments.named.is_empty() && arguments.splat.is_none() {
                arguments.positional.push(self.expression()?);
            } else {
                return self.fault("an argument without a name behind one with a name");
            }
            if arguments.positional.len() + arguments.named.len() > ARGUMENTS_MAX {
                return self.fault(format!("more than {ARGUMENTS_MAX} arguments"));
            }
        }
        self.expect_op(")")?;
        Ok(arguments)
    }
}

fn chain(value: Expr, links: Vec<Link>) -> Expr {
    if links.is_empty() { value } else { Expr::Chain(Box::new(value), links) }
}
