//! Evaluates expressions.

use std::rc::Rc;

use indexmap::IndexMap;

use super::ast::{Arguments, Expr, Link};
use super::call::Args;
use super::eval::{Interpreter, Scope};
use super::value::{List, Loop, Object, Value};
use super::{Fault, Outcome, checks, filters, methods, ops};

impl<'a> Interpreter<'a> {
    /// The value of an expression.
    pub(super) fn expr(&mut self, expr: &'a Expr, scope: &Rc<Scope<'a>>) -> Outcome<Value<'a>> {
        match expr {
            Expr::None => Ok(Value::None),
            Expr::Bool(value) => Ok(Value::Bool(*value)),
            Expr::Int(value) => Ok(Value::Int(*value)),
            Expr::Float(value) => Ok(Value::Float(*value)),
            Expr::Text(text) => self.make.text(text),
            Expr::Name(name) => {
                self.make.0.steps(1)?;
                Ok(self.lookup(scope, name))
            }
            _ => self.nested(|i| i.compound(expr, scope)),
        }
    }

    fn exprs(&mut self, all: &'a [Expr], scope: &Rc<Scope<'a>>) -> Outcome<Vec<Value<'a>>> {
        all.iter().map(|expr| self.expr(expr, scope)).collect()
    }

    fn compound(&mut self, expr: &'a Expr, scope: &Rc<Scope<'a>>) -> Outcome<Value<'a>> {
        match expr {
            Expr::List(items) => {
                let items = self.exprs(items, scope)?;
                self.make.list(items)
            }
            Expr::Tuple(items) => {
                let items = self.exprs(items, scope)?;
                self.make.tuple(items)
            }
            Expr::Dict(items) => self.dict(items, scope),
            Expr::Negative(value) => {
                let value = self.expr(value, scope)?;
                ops::negative(&value)
            }
            Expr::Positive(value) => {
                let value = self.expr(value, scope)?;
                ops::negative(&ops::negative(&value)?)
            }
            Expr::Not(value) => Ok(Value::Bool(!self.expr(value, scope)?.is_true())),
            Expr::And(all) => self.first(all, false, scope),
            Expr::Or(all) => self.first(all, true, scope),
            Expr::Concat(all) => {
                let mut out = self.make.buffer()?;
                for expr in all {
                    let value = self.expr(expr, scope)?;
                    self.make.write(&mut out, &value)?;
                }
                self.make.built(out)
            }
            Expr::Arithmetic(first, others) => {
                let mut value = self.expr(first, scope)?;
                for (operator, other) in others {
                    let other = self.expr(other, scope)?;
                    value = ops::arithmetic(&self.make, *operator, &value, &other)?;
                }
                Ok(value)
            }
            Expr::Compare(first, others) => {
                let mut left = self.expr(first, scope)?;
                for (comparison, other) in others {
                    let right = self.expr(other, scope)?;
                    if !ops::compare(&self.make, *comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::Conditional(parts) => {
                let (test, then, otherwise) = &**parts;
                if self.expr(test, scope)?.is_true() {
                    return self.expr(then, scope);
                }
                otherwise.as_ref().map_or(Ok(Value::Undefined), |expr| self.expr(expr, scope))
            }
            Expr::Chain(base, links) => self.chain(base, links, None, scope),
            // Those without parts were looked at before.
            _ => self.expr(expr, scope),
        }
    }

    /// The first value that is true, or false, and else the last.
    fn first(
        &mut self,
        all: &'a [Expr],
        wanted: bool,
        scope: &Rc<Scope<'a>>,
    ) -> Outcome<Value<'a>> {
        let mut value = Value::Undefined;
        for expr in all {
            value = self.expr(expr, scope)?;
            if value.is_true() == wanted {
                break;
            }
        }
        Ok(value)
    }

    fn dict(&mut self, items: &'a [(Expr, Expr)], scope: &Rc<Scope<'a>>) -> Outcome<Value<'a>> {
        let mut map = IndexMap::new();
        for (key, value) in items {
            let key = self.expr(key, scope)?;
            let value = self.expr(value, scope)?;
            map.insert(self.make.key(&key)?, value);
        }
        self.make.dict(map)
    }

    /// An expression and its links; `caller` goes to the last call.
    fn chain(
        &mut self,
        base: &'a Expr,
        links: &'a [Link],
        mut caller: Option<Value<'a>>,
        scope: &Rc<Scope<'a>>,
    ) -> Outcome<Value<'a>> {
        let mut value = self.expr(base, scope)?;
        let mut rest = links;
        let mut name = match base {
            Expr::Name(name) => Some(&**name),
            _ => None,
        };
        while let Some((link, behind)) = rest.split_first() {
            rest = behind;
            if matches!(value, Value::Undefined)
                && matches!(link, Link::Attribute(_) | Link::Item(_) | Link::Call(_))
            {
                let name = name.unwrap_or("a value");
                return Err(Fault::new(format_args!("`{name}` is undefined")));
            }
            // A method that is called at once needs no value of its own.
            if let (Link::Attribute(method), Some((Link::Call(arguments), behind))) =
                (link, rest.split_first())
                && methods::has(&value, method)
            {
                rest = behind;
                let args = self.args(arguments, scope)?;
                value = methods::call(&self.make, &value, method, args)?;
            } else if let Link::Call(arguments) = link {
                let mut args = self.args(arguments, scope)?;
                if rest.is_empty()
                    && let Some(caller) = caller.take()
                {
                    args.named.push(("caller".to_owned(), caller));
                }
                value = self.call(&value, args)?;
            } else {
                value = self.link(value, link, scope)?;
            }
            name = match link {
                Link::Attribute(name) => Some(&**name),
                _ => None,
            };
        }
        Ok(value)
    }

    /// The value of `{% call %}`.
    pub(super) fn call_with_caller(
        &mut self,
        call: &'a Expr,
        caller: Value<'a>,
        scope: &Rc<Scope<'a>>,
    ) -> Outcome<Value<'a>> {
        match call {
            Expr::Chain(base, links) => self.nested(|i| i.chain(base, links, Some(caller), scope)),
            _ => Err(Fault::new("`call` wants a call")),
        }
    }

    /// One link of a chain.
    pub(super) fn link(
        &mut self,
        value: Value<'a>,
        link: &'a Link,
        scope: &Rc<Scope<'a>>,
    ) -> Outcome<Value<'a>> {
        match link {
            Link::Attribute(name) => self.attribute(&value, name),
            Link::Item(key) => {
                let key = self.expr(key, scope)?;
                self.item(&value, &key)
            }
            Link::Slice(parts) => {
                let mut limits = [None; 3];
                for (limit, part) in limits.iter_mut().zip(parts.iter()) {
                    let Some(part) = part else { continue };
                    let part = self.expr(part, scope)?;
                    if !matches!(part, Value::None) {
                        let index = part.as_index();
                        *limit = Some(index.ok_or_else(|| Fault::new("a slice wants integers"))?);
                    }
                }
                ops::slice(&self.make, &value, limits)
            }
            Link::Call(arguments) => {
                let args = self.args(arguments, scope)?;
                self.call(&value, args)
            }
            Link::Filter(name, arguments) => {
                let args = self.args(arguments, scope)?;
                self.nested(|i| filters::call(i, name, value, args))
            }
            Link::Test { name, arguments, negated } => {
                let args = self.args(arguments, scope)?;
                let holds = checks::call(&self.make, name, &value, &args.positional)?;
                Ok(Value::Bool(holds != *negated))
            }
        }
    }

    fn args(&mut self, arguments: &'a Arguments, scope: &Rc<Scope<'a>>) -> Outcome<Args<'a>> {
        let mut positional = self.exprs(&arguments.positional, scope)?;
        let mut named = Vec::new();
        for (name, value) in &arguments.named {
            named.push((name.to_string(), self.expr(value, scope)?));
        }
        if let Some(splat) = &arguments.splat {
            let list = self.expr(splat, scope)?;
            let list = self.make.items(&list)?;
            self.make.0.steps(list.items().len() as u64)?;
            positional.extend_from_slice(list.items());
        }
        if let Some(splat) = &arguments.named_splat {
            let Value::Dict(dict) = self.expr(splat, scope)? else {
                return Err(Fault::new("`**` wants a dictionary"));
            };
            self.make.0.steps(dict.map().len() as u64)?;
            for (key, value) in dict.map() {
                let Some(name) = key.value().as_str() else {
                    return Err(Fault::new("names of arguments are texts"));
                };
                self.make.0.look(name.len())?;
                named.push((name.to_owned(), value.clone()));
            }
        }
        Ok(Args { positional, named })
    }

    /// `value.name`.
    pub(super) fn attribute(&self, value: &Value<'a>, name: &str) -> Outcome<Value<'a>> {
        if methods::has(value, name) {
            return self.make.object(Object::Method(value.clone(), name.to_owned()));
        }
        match value {
            Value::Undefined => Err(Fault::new(format_args!("`{name}` of an undefined value"))),
            Value::Dict(dict) => Ok(dict.get(name).cloned().unwrap_or(Value::Undefined)),
            Value::Object(object) => match &**object {
                Object::Namespace(members) => {
                    Ok(members.borrow().get(name).cloned().unwrap_or(Value::Undefined))
                }
                Object::Loop(inner) => self.loop_attribute(object, inner, name),
                Object::Cycler(items, at) if name == "current" => Ok(nth(items, at.get())),
                Object::Macro(inner, _) if name == "name" => self.make.text(&inner.name),
                Object::Cycler(..) => match name {
                    "next" => {
                        Ok(self.make.object(Object::LoopMethod(Rc::clone(object), "next"))?)
                    }
                    "reset" => {
                        Ok(self.make.object(Object::LoopMethod(Rc::clone(object), "reset"))?)
                    }
                    _ => Ok(Value::Undefined),
                },
                _ => Ok(Value::Undefined),
            },
            _ => Ok(Value::Undefined),
        }
    }

    fn loop_attribute(
        &self,
        object: &Rc<Object<'a>>,
        state: &Loop<'a>,
        name: &str,
    ) -> Outcome<Value<'a>> {
        let (index, length) = (state.index.get(), state.items.items().len());
        let number = |n: usize| Ok(Value::Int(n as i128));
        match name {
            "index" => number(index + 1),
            "index0" => number(index),
            "revindex" => number(length - index),
            "revindex0" => number(length - index - 1),
            "first" => Ok(Value::Bool(index == 0)),
            "last" => Ok(Value::Bool(index + 1 == length)),
            "length" => number(length),
            "depth" => number(state.depth + 1),
            "depth0" => number(state.depth),
            "previtem" => {
                Ok(index.checked_sub(1).map_or(Value::Undefined, |i| nth(&state.items, i)))
            }
            "nextitem" => Ok(nth(&state.items, index + 1)),
            "cycle" => self.make.object(Object::LoopMethod(Rc::clone(object), "cycle")),
            "changed" => self.make.object(Object::LoopMethod(Rc::clone(object), "changed")),
            _ => Ok(Value::Undefined),
        }
    }

    /// `value[key]`.
    pub(super) fn item(&self, value: &Value<'a>, key: &Value<'a>) -> Outcome<Value<'a>> {
        if let Value::Dict(dict) = value {
            let found = match key.as_str() {
                Some(name) => {
                    self.make.0.look(name.len())?;
                    dict.get(name)
                }
                None => dict.map().get(&self.make.key(key)?),
            };
            if let Some(found) = found {
                return Ok(found.clone());
            }
        }
        match (value, key.as_str(), key.as_index()) {
            (Value::Undefined, ..) => Err(Fault::new("an item of an undefined value")),
            (Value::List(list) | Value::Tuple(list), _, Some(index)) => {
                let index = ops::position(index, list.items().len());
                Ok(index.map_or(Value::Undefined, |index| nth(list, index)))
            }
            (Value::Text(text), _, Some(index)) => {
                let Some(index) = ops::position(index, text.characters()) else {
                    return Ok(Value::Undefined);
                };
                ops::slice(&self.make, value, [Some(index as i128), Some(index as i128 + 1), None])
            }
            (_, Some(name), _) => self.attribute(value, name),
            _ => Ok(Value::Undefined),
        }
    }
}

fn nth<'a>(list: &List<'a>, index: usize) -> Value<'a> {
    list.items().get(index).cloned().unwrap_or(Value::Undefined)
}
